//! The client side: connections to MCP servers, and to a gateway that runs already.

pub mod connect;
