//! Goblin, an MCP gateway: one endpoint for many MCP servers.
//!
//! The map of the code, in reading order. Each module may use only those above it; a test keeps that true.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::print_stdout))]

// Words: no I/O, no clock.
pub mod caller;
pub mod config;
pub mod memory;
pub mod observe;
pub mod protocol;
pub mod worker;

// One open stream to one client, and what must survive it.
pub mod lane;
pub mod mailbox;

// Who wants to know of which resource.
pub mod subscriptions;

// The servers behind the gateway.
pub mod backend;

// What they offer together, and where a request goes.
pub mod catalog;
pub mod meta;
pub mod router;

// The clients.
pub mod session;

// The transports they come over, and what operators ask.
pub mod admin;
pub mod front;

// Assembly.
pub mod app;
pub mod cli;
pub mod tui;
