//! The server and the runner at the wire.

mod wire {
    mod client;
    mod suite;
    mod talk;
}
