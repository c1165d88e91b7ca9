//! Tests the server and the runner over HTTP.

mod wire {
    mod client;
    mod suite;
    mod talk;
}
