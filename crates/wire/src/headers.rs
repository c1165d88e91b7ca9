//! The names of the HTTP headers that the protocol and Goblin define.

use http::HeaderName;

pub const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
pub const METHOD: HeaderName = HeaderName::from_static("mcp-method");
pub const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// The standard of event streams defines this header.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The ids of gateways that a connection comes from. See [`via`](crate::via).
pub const VIA: HeaderName = HeaderName::from_static("goblin-via");
