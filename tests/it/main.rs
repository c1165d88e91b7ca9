//! Tests at the wire: real processes, real sockets, raw bytes.

mod harness;
mod raw_server;
mod support;

mod backend_http;
mod backend_stdio;
mod isolation;
mod ledger;
mod orphans;
mod shutdown;
mod smoke;
