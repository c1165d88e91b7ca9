//! Goblin, an MCP gateway: one endpoint for many MCP servers.
//!
//! The modules are listed in reading order. Each module may use only those above it, which a test enforces.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::print_stdout))]

// Types that every layer uses: clients, configuration, buffers, events, the protocol and tasks.
pub mod caller;
pub mod config;
pub mod memory;
pub mod observe;
pub mod protocol;
pub mod worker;

// Streams to one client, and the state that outlives a stream.
pub mod lane;
pub mod mailbox;

// Subscriptions of clients to resources.
pub mod subscriptions;

// The servers behind the gateway.
pub mod backend;

// The merged catalog of all servers, and the routing of requests.
pub mod catalog;
pub mod meta;
pub mod router;

// Client sessions.
pub mod session;

// The transports for clients, and the endpoints for operators.
pub mod admin;
pub mod front;

// Assembly of the program, and its commands.
pub mod app;
pub mod cli;
pub mod tui;
