//! The JSON-RPC envelope, parsed once with its members left raw. The servers of this package look at nothing else.
//!
//! The bare proxy and the static server share it. Both baselines do the one parse that any MCP gateway needs, and no
//! more.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A message from a client: a request, or a notification if `id` is absent.
#[derive(Deserialize)]
pub struct Call<'a> {
    #[serde(borrow)]
    jsonrpc: &'a RawValue,
    #[serde(borrow, default)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: &'a RawValue,
    #[serde(borrow, default)]
    pub params: Option<&'a RawValue>,
}

/// A response from a server.
#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    jsonrpc: &'a RawValue,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// The methods that the servers here distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Initialize,
    Discover,
    Ping,
    ToolsList,
    ToolsCall,
    Other,
}

/// Parses a call. Returns `None` if the bytes are not one.
pub fn call(bytes: &[u8]) -> Option<Call<'_>> {
    let call: Call<'_> = serde_json::from_slice(bytes).ok()?;
    (call.jsonrpc.get() == VERSION).then_some(call)
}

/// Reports whether the bytes are a response: an id, and either a result or an error.
pub fn is_answer(bytes: &[u8]) -> bool {
    serde_json::from_slice(bytes).is_ok_and(|answer: Answer<'_>| {
        answer.jsonrpc.get() == VERSION && answer.id.is_some() && (answer.result.is_some() != answer.error.is_some())
    })
}

const VERSION: &str = "\"2.0\"";

impl Call<'_> {
    pub fn method(&self) -> Method {
        match self.method.get() {
            "\"initialize\"" => Method::Initialize,
            "\"server/discover\"" => Method::Discover,
            "\"ping\"" => Method::Ping,
            "\"tools/list\"" => Method::ToolsList,
            "\"tools/call\"" => Method::ToolsCall,
            _ => Method::Other,
        }
    }

    /// Reports whether the method is `method`, which must not need escapes in JSON.
    pub fn is(&self, method: &str) -> bool {
        self.method.get().strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) == Some(method)
    }
}

#[cfg(test)]
mod tests {
    use super::{Method, call, is_answer};

    #[test]
    fn a_call_keeps_the_spelling_of_its_id() {
        let call = call(br#"{"jsonrpc":"2.0","id":"1","method":"tools/call","params":{"name":"echo"}}"#).unwrap();
        assert_eq!(call.id.unwrap().get(), "\"1\"");
        assert_eq!(call.method(), Method::ToolsCall);
        assert_eq!(call.params.unwrap().get(), r#"{"name":"echo"}"#);
    }

    #[test]
    fn a_notification_has_no_id() {
        assert!(call(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).unwrap().id.is_none());
    }

    #[test]
    fn an_invalid_envelope_is_rejected() {
        assert!(call(br#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#).is_none());
        assert!(call(br#"{"jsonrpc":"2.0","id":1}"#).is_none());
        assert!(is_answer(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#));
        assert!(!is_answer(br#"{"jsonrpc":"2.0","id":1}"#));
        assert!(!is_answer(br#"{"jsonrpc":"2.0","id":1,"result":{}"#));
    }
}
