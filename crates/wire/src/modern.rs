//! What a request of 2026-07-28 says of itself: the members of `_meta` that took the place of the handshake.

use crate::Request;
use crate::json::{Member, Span};

/// Prefix of the keys in `_meta` that the protocol keeps for itself.
pub const RESERVED: &str = "io.modelcontextprotocol/";
const RESERVED_QUOTED: &str = "\"io.modelcontextprotocol/";
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// The extension that has tasks.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";
/// The capabilities that declare it.
pub const TASKS_DECLARED: &str = r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
/// Names the task that a message belongs to. Of 2025-11-25, which keeps the same prefix for itself.
pub const RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// What we call ourselves.
pub const IDENTITY: &str =
    concat!(r#"{"name":"goblin","title":"Goblin MCP gateway","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// What a result must say that may be kept, with a comma before. It is stale at once: to ask us again costs a copy of
/// bytes, and who does not listen is not told when it changes.
pub const FRESHNESS: &str = r#","ttlMs":0,"cacheScope":"private""#;

/// Whether a request says its version itself, and so needs no session.
pub fn is_visit(request: &Request) -> bool {
    request.params.said.version.is_some()
}

/// Where these members stand, and the progress token beside them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meta {
    pub version: Option<Span>,
    pub capabilities: Option<Span>,
    pub client_info: Option<Span>,
    pub level: Option<Span>,
    pub progress_token: Option<Span>,
}

impl Meta {
    /// Of a member that stands twice, the first counts.
    pub(super) fn see(&mut self, text: &str, member: Member) {
        let written = member.key.get(text);
        let slot = match written.strip_prefix(RESERVED_QUOTED) {
            // Some of it may be written as an escape.
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
    fn srv2_what_a_request_says_of_itself_is_found() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"x":1,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}},"progressToken":7}}}"#;
        let Ok(Message::Request(request)) = Message::parse(text.into()) else { panic!("a request") };
        let meta = request.params.said;
        let get = |span: Option<Span>| span.map(|span| span.get(text));
        assert_eq!(get(meta.version), Some("\"2026-07-28\""));
        assert_eq!(get(meta.capabilities), Some(r#"{"roots":{}}"#));
        assert_eq!(get(meta.progress_token), Some("7"));
        assert_eq!((get(meta.client_info), get(meta.level)), (None, None));
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol\/logLevel":"info","progress\u0054oken":8,"io.modelcontextprotocol/logLevels":1,"io.modelcontextprotocol/clientInfo":{},"Xprogresstoken":2}}}"#;
        let Ok(Message::Request(request)) = Message::parse(text.into()) else { panic!("a request") };
        let meta = request.params.said;
        let get = |span: Option<Span>| span.map(|span| span.get(text));
        assert_eq!((get(meta.level), get(meta.progress_token)), (Some("\"info\""), Some("8")));
        assert_eq!((get(meta.client_info), meta.version), (Some("{}"), None));
    }
}
