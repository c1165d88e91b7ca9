//! Requests of 2026-07-28, which has no session. The headers of a request repeat its body. A test can omit, duplicate or
//! falsify any of them. Over stdio the same bodies are lines.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use http::response::Parts;
use serde_json::{Value, json};

use crate::client::Client;
use crate::client::http::{Answer, Listener};

pub const VERSION: &str = "2026-07-28";
pub const META: &str = "io.modelcontextprotocol/";
pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

/// Returns the capabilities of a client that supports everything.
pub fn everything() -> Value {
    json!({ "sampling": { "tools": {}, "context": {} }, "elicitation": { "form": {}, "url": {} }, "roots": {} })
}

/// Adds the required metadata of the client to `_meta` in `params`.
pub fn with_meta(mut params: Value, capabilities: &Value) -> Value {
    let meta = &mut params["_meta"];
    meta[format!("{META}protocolVersion")] = json!(VERSION);
    meta[format!("{META}clientCapabilities")] = capabilities.clone();
    params
}

/// Returns the `params` of a listen.
pub fn listen_to(notifications: Value) -> Value {
    with_meta(json!({ "notifications": notifications }), &json!({}))
}

/// A request before it is sent.
#[derive(Clone)]
pub struct Draft {
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Draft {
    /// Returns a valid request with the id 1.
    pub fn new(method: &str, params: Value) -> Draft {
        Draft::of(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": with_meta(params, &json!({}))}))
    }

    /// Returns a request with the headers that repeat `message`.
    pub fn of(message: &Value) -> Draft {
        Draft::from_text(message, message.to_string())
    }

    /// Returns a request with the headers of `message` and this body.
    pub fn from_text(message: &Value, body: String) -> Draft {
        let params = &message["params"];
        let mut headers = vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("accept".to_owned(), "application/json, text/event-stream".to_owned()),
        ];
        let method = message["method"].as_str();
        let name = match method {
            Some("tools/call" | "prompts/get") => params["name"].as_str(),
            Some("resources/read") => params["uri"].as_str(),
            Some(method) if method.starts_with("tasks/") => params["taskId"].as_str(),
            _ => None,
        };
        let version = params["_meta"][format!("{META}protocolVersion")].as_str();
        for (header, value) in [("mcp-protocol-version", version), ("mcp-method", method), ("mcp-name", name)] {
            headers.extend(value.map(|value| (header.to_owned(), mirrored(value))));
        }
        Draft { headers, body }
    }

    pub fn without(mut self, header: &str) -> Draft {
        self.headers.retain(|(name, _)| name != header);
        self
    }

    /// Replaces a header.
    pub fn with(self, header: &str, value: &str) -> Draft {
        self.without(header).also(header, value)
    }

    /// Adds a header without removing existing ones.
    pub fn also(mut self, header: &str, value: &str) -> Draft {
        self.headers.push((header.to_owned(), value.to_owned()));
        self
    }

    /// Changes the body but not the headers.
    pub fn changed(self, change: impl FnOnce(&mut Value)) -> Draft {
        let mut body: Value = serde_json::from_str(&self.body).expect("a body of JSON");
        change(&mut body);
        Draft { body: body.to_string(), ..self }
    }

    pub fn pairs(&self) -> Vec<(&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
}

/// Encodes a value for a header.
fn mirrored(value: &str) -> String {
    let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    match is_plain && value.trim_ascii() == value && !value.starts_with("=?base64?") {
        true => value.to_owned(),
        false => format!("=?base64?{}?=", STANDARD.encode(value)),
    }
}

impl Client {
    pub async fn send_draft(&self, draft: &Draft) -> Answer {
        self.send(Method::POST, &self.endpoint, &draft.pairs(), draft.body.clone()).await
    }

    /// Sends a request and returns as soon as the head of the response arrives.
    pub async fn open_draft(&self, draft: &Draft) -> (Parts, Listener) {
        self.open_with(&draft.pairs(), draft.body.clone()).await
    }

    /// Returns a request of this client with a fresh id.
    pub fn draft(&self, method: &str, params: Value) -> Draft {
        self.draft_of(self.request_text(self.fresh_id(), method, params))
    }

    /// Opens a listen and waits for its acknowledgement. Returns the honoured filter and the stream.
    pub async fn listen_to(&self, id: Value, notifications: Value) -> (Value, Listener) {
        let capabilities = self.capabilities.as_ref().expect("a client of 2026-07-28");
        self.listen_with(id, with_meta(json!({ "notifications": notifications }), capabilities)).await
    }

    pub async fn listen_with(&self, id: Value, params: Value) -> (Value, Listener) {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params});
        let (parts, mut stream) = self.open_draft(&Draft::of(&message)).await;
        assert_eq!(parts.headers["content-type"], "text/event-stream", "{parts:?}");
        let first = stream.next().await.expect("an acknowledgement");
        assert_eq!(first["method"], ACKNOWLEDGED, "{first}");
        assert_eq!(first["params"]["_meta"], named(&id), "{first}");
        (first["params"]["notifications"].clone(), stream)
    }

    /// Returns the response with this id. Only list changes may precede it.
    pub async fn next_answer(&self, id: &Value) -> Value {
        loop {
            let message = self.message().await;
            if message["id"] == *id {
                return message;
            }
            let method = message["method"].as_str().unwrap_or_default();
            assert!(method.ends_with("list_changed"), "{message} preceded the answer to {id}");
        }
    }
}

/// Returns the `_meta` of notifications on the stream of the listen `id`.
pub fn named(id: &Value) -> Value {
    json!({ format!("{META}subscriptionId"): id })
}
