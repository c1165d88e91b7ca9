//! Tests of the server and the runner over HTTP.
//!
//! They run without a gateway. They prove that a failure through the gateway is not a fault of this package.

mod wire {
    mod client;
    mod suite;
    mod talk;
}
