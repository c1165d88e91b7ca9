//! Tests at the wire: real processes, real sockets, raw bytes.

mod fixture_http;
mod harness;
mod raw_server;
mod sdk;
mod sdk_script;
mod support;

mod backend_http;
mod backend_stdio;
mod bad_input;
mod cli;
mod completion;
mod connect;
mod documents;
mod front_http;
mod front_stdio;
mod gate;
mod guard;
mod handshake;
mod inspector;
mod isolation;
mod ledger;
mod lists;
mod lossless;
mod orphans;
mod prompts;
mod real_servers;
mod resources;
mod routing;
mod sdk_rust;
mod sdk_tour;
mod seeds;
mod shutdown;
mod smoke;
mod templates;
mod timeouts;
