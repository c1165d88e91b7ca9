//! Tests at the wire: real processes, real sockets, raw bytes.

mod fixture_http;
mod harness;

mod bad_input;
mod cli;
mod completion;
mod front_http;
mod front_stdio;
mod gate;
mod handshake;
mod lists;
mod lossless;
mod prompts;
mod resources;
mod routing;
mod smoke;
mod templates;
mod timeouts;
