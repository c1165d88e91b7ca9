//! The client side: connections to MCP servers, and to a gateway that runs already.

pub mod address;
pub mod admin;
pub mod authorization;
pub mod bridge;
pub mod connect;
pub mod content;
pub mod environment;
pub mod events;
pub mod gateway;
pub mod lineage;
pub mod peer;
pub mod runtime;
pub mod schema;
pub use goblin_wire::units;
pub mod update;
