//! The gateway that an entry of `mcpServers` leads to.

use crate::network;

/// The note on an entry that may lead back to the gateway.
pub const UNCLEAR: &str =
    "its arguments name the address of this gateway; if it leads back, the running gateway drops it";

/// The gateway that an entry leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayLead {
    /// The gateway of the configuration itself.
    Own,
    /// Another gateway, described for the user.
    Other(String),
    /// The arguments name the gateway of the configuration. The program may lead back to it, or use it as a client.
    Unclear,
}

/// Reports whether the URL is an endpoint of a gateway that listens at `host` and `port`.
pub fn is_gateway_url(url: &str, host: &str, port: u16) -> bool {
    network::is_gateway_url(url, host, port)
}
