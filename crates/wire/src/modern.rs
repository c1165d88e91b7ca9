//! The members of `_meta` that describe a request of 2026-07-28. They replace the handshake of earlier versions.

use crate::Request;
use crate::json::{Member, Span};

/// The prefix of the `_meta` keys that the protocol reserves.
pub const RESERVED: &str = "io.modelcontextprotocol/";
const RESERVED_QUOTED: &str = "\"io.modelcontextprotocol/";
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// The extension for tasks.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";
/// The capabilities that declare the tasks extension.
pub const TASKS_DECLARED: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
/// The key that names the task of a message. It belongs to 2025-11-25, which reserves the same prefix.
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// The gateway's own name and version.
pub const IDENTITY: &str =
    concat!(r#"{"name":"goblin","title":"Goblin MCP gateway","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// The cache members of a result, with a leading comma. Results are stale at once. A repeated request to the gateway
/// only copies bytes, and a client without a subscription receives no notification when the result changes.
pub const FRESHNESS: &str = r#","ttlMs":0,"cacheScope":"private""#;

/// Reports whether a request declares its protocol version. These requests need no session.
pub fn is_stateless(request: &Request) -> bool {
    request.params.known_meta.version.is_some()
}

/// The spans of these members, and of the progress token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meta {
    pub version: Option<Span>,
    pub capabilities: Option<Span>,
    pub client_info: Option<Span>,
    pub level: Option<Span>,
    pub progress_token: Option<Span>,
}

impl Meta {
    /// Records a member of `_meta` if it is known. If a key occurs twice, the first member counts.
    pub(super) fn record(&mut self, text: &str, member: Member) {
        let written = member.key.get(text);
        let slot = match written.strip_prefix(RESERVED_QUOTED) {
            // The key may contain escapes, so decode it first.
            _ if written.contains('\\') => self.slot(&member.key(text)),
            Some(rest) => self.reserved(rest.trim_end_matches('"')),
            None => self.slot(written.trim_matches('"')),
        };
        if let Some(slot) = slot {
            slot.get_or_insert(member.value);
        }
    }

    fn slot(&mut self, key: &str) -> Option<&mut Option<Span>> {
        match key.strip_prefix(RESERVED) {
            Some(rest) => self.reserved(rest),
            None => (key == "progressToken").then_some(&mut self.progress_token),
        }
    }

    fn reserved(&mut self, rest: &str) -> Option<&mut Option<Span>> {
        match rest {
            "protocolVersion" => Some(&mut self.version),
            "clientCapabilities" => Some(&mut self.capabilities),
            "clientInfo" => Some(&mut self.client_info),
            "logLevel" => Some(&mut self.level),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;

    #[test]
    fn srv2_the_meta_members_of_a_request_are_found() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"x":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}},"progressToken":7}}}"#;
        let Ok(Message::Request(request)) = Message::parse(text.into()) else { panic!("a request") };
        let meta = request.params.known_meta;
        let get = |span: Option<Span>| span.map(|span| span.get(text));
        assert_eq!(get(meta.version), Some("\"2026-07-28\""));
        assert_eq!(get(meta.capabilities), Some(r#"{"roots":{}}"#));
        assert_eq!(get(meta.progress_token), Some("7"));
        assert_eq!((get(meta.client_info), get(meta.level)), (None, None));
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol\/logLevel":"info","progress\u0054oken":8,"io.modelcontextprotocol/logLevels":1,"io.modelcontextprotocol/clientInfo":{},"Xprogresstoken":2}}}"#;
        let Ok(Message::Request(request)) = Message::parse(text.into()) else { panic!("a request") };
        let meta = request.params.known_meta;
        let get = |span: Option<Span>| span.map(|span| span.get(text));
        assert_eq!((get(meta.level), get(meta.progress_token)), (Some("\"info\""), Some("8")));
        assert_eq!((get(meta.client_info), meta.version), (Some("{}"), None));
    }
}
