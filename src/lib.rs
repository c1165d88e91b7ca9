//! Goblin, an MCP gateway: one endpoint for many MCP servers.
//!
//! The map of the code, in reading order. Each module may use only those above it; a test keeps that true.

pub mod caller;

// One open stream to one client, and what must survive it.
pub mod lane;
pub mod mailbox;
pub mod subscriptions;

// The servers behind the gateway.
pub mod backend;

// What they offer together, and where a request goes.
pub mod directory;
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
