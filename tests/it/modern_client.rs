//! A client of 2026-07-28, which has no session. It derives the headers of a request from its body. A test can omit,
//! duplicate or falsify any of them. Over stdio the same bodies are lines.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use http::response::Parts;
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Gateway, Listener, StdioClient, eventually};
use crate::stage::{Back, Backend};
use crate::support::gauge;

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

    fn pairs(&self) -> Vec<(&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
}

/// Encodes a value for a header.
fn mirrored(value: &str) -> String {
    match value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        true => value.to_owned(),
        false => format!("=?base64?{}?=", STANDARD.encode(value)),
    }
}

pub struct ModernClient {
    client: Client,
    /// The capabilities in each request.
    pub capabilities: Value,
    next: AtomicU64,
}

impl ModernClient {
    pub fn new(address: SocketAddr) -> ModernClient {
        ModernClient::able(address, json!({}))
    }

    pub fn able(address: SocketAddr, capabilities: Value) -> ModernClient {
        ModernClient { client: Client::new(address), capabilities, next: AtomicU64::new(1) }
    }

    /// Returns the same client at another endpoint.
    pub fn at(self, endpoint: &str) -> ModernClient {
        ModernClient { client: self.client.at(endpoint), ..self }
    }

    pub async fn send(&self, draft: &Draft) -> Answer {
        self.client.send(Method::POST, &self.client.endpoint, &draft.pairs(), draft.body.clone()).await
    }

    /// Sends a request and returns as soon as the head of the response arrives.
    pub async fn open(&self, draft: &Draft) -> (Parts, Listener) {
        self.client.open_with(&draft.pairs(), draft.body.clone()).await
    }

    /// Returns a request of this client with a fresh id.
    pub fn draft(&self, method: &str, params: Value) -> Draft {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let params = with_meta(params, &self.capabilities);
        Draft::of(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
    }

    /// Sends a request and returns the whole response, which must have its id.
    pub async fn request(&self, method: &str, params: Value) -> Value {
        let draft = self.draft(method, params);
        let answer = self.send(&draft).await;
        let (asked, message): (Value, _) = (serde_json::from_str(&draft.body).expect("JSON"), answer.json());
        assert_eq!(message["id"], asked["id"], "{answer:?}");
        assert!(answer.headers.get("mcp-session-id").is_none(), "{answer:?}");
        message
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Value {
        self.request("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    /// Calls a tool and returns the text of its result.
    pub async fn call_text(&self, tool: &str, arguments: Value) -> String {
        text_of(&self.call(tool, arguments).await)
    }

    /// Opens a listen and waits for its acknowledgement. Returns the honoured filter and the stream.
    pub async fn listen(&self, id: Value, notifications: Value) -> (Value, Listener) {
        let params = with_meta(json!({ "notifications": notifications }), &self.capabilities);
        self.listen_with(id, params).await
    }

    pub async fn listen_with(&self, id: Value, params: Value) -> (Value, Listener) {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen", "params": params});
        let (parts, mut stream) = self.open(&Draft::of(&message)).await;
        assert_eq!(parts.headers["content-type"], "text/event-stream", "{parts:?}");
        let first = stream.next().await.expect("an acknowledgement");
        assert_eq!(first["method"], ACKNOWLEDGED, "{first}");
        assert_eq!(first["params"]["_meta"], named(&id), "{first}");
        (first["params"]["notifications"].clone(), stream)
    }

    pub async fn await_tool(&self, name: &str) {
        eventually(&format!("the tool {name} is listed"), || async {
            let answer = self.request("tools/list", json!({})).await;
            let tools = answer["result"]["tools"].as_array().cloned().unwrap_or_else(|| panic!("{answer}"));
            tools.iter().any(|tool| tool["name"] == name).then_some(())
        })
        .await;
    }
}

/// Returns the `_meta` of notifications on the stream of the listen `id`.
pub fn named(id: &Value) -> Value {
    json!({ format!("{META}subscriptionId"): id })
}

/// Returns the text of the first block of a tool result.
pub fn text_of(answer: &Value) -> String {
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}")).to_owned()
}

impl StdioClient {
    /// Writes a request of 2026-07-28.
    pub async fn begin_modern(&mut self, id: Value, method: &str, params: Value, capabilities: &Value) {
        let params = with_meta(params, capabilities);
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await;
    }

    /// Returns the response with this id. Only list changes may precede it.
    pub async fn answer_to(&mut self, id: &Value) -> Value {
        loop {
            let message = self.message().await;
            if message["id"] == *id {
                return message;
            }
            let method = message["method"].as_str().unwrap_or_default();
            assert!(method.ends_with("list_changed"), "before the answer to {id} came {message}");
        }
    }

    /// Sends a request of 2026-07-28 and returns the whole response.
    pub async fn modern(&mut self, method: &str, params: Value, capabilities: &Value) -> Value {
        self.request(method, with_meta(params, capabilities)).await
    }

    /// Waits until a tool is listed, without a handshake.
    pub async fn await_modern_tool(&mut self, name: &str) {
        let deadline = crate::harness::Deadline::new();
        loop {
            let answer = self.modern("tools/list", json!({}), &json!({})).await;
            let tools = answer["result"]["tools"].as_array().cloned().unwrap_or_else(|| panic!("{answer}"));
            if tools.iter().any(|tool| tool["name"] == name) {
                return;
            }
            deadline.pause(&format!("the tool {name} is listed")).await;
        }
    }
}

/// A gateway with one server `a`, and a sessionless client that supports everything.
pub struct Scene {
    pub gateway: Gateway,
    pub backend: Backend,
    pub client: ModernClient,
    counted: AtomicU64,
}

impl Scene {
    /// Starts a gateway with these policies, and these members in the server's entry.
    pub async fn start(back: Back, policies: Value, members: Value) -> Scene {
        let backend = Backend::start(back).await;
        let config = Scene::config(&backend, policies, members);
        let gateway = Gateway::start(config).await;
        let client = ModernClient::able(gateway.address, everything());
        client.await_tool("a_ask").await;
        Scene { gateway, backend, client, counted: AtomicU64::new(0) }
    }

    /// Returns the configuration. The grace period is long, so that a shutdown that waits in vain fails the test.
    pub fn config(backend: &Backend, policies: Value, members: Value) -> Value {
        let mut server = backend.server();
        for (name, value) in members.as_object().expect("an object") {
            server[name] = value.clone();
        }
        json!({ "gateway": { "grace": "10m" }, "policies": policies, "mcpServers": { "a": server } })
    }

    /// Returns the number of calls that the server received, without those of this function.
    pub async fn runs(&self) -> u64 {
        let asked = self.counted.fetch_add(1, Ordering::Relaxed) + 1;
        let all: u64 = self.client.call_text("a_call_count", json!({})).await.parse().expect("a number");
        all - asked
    }

    pub async fn gauge_becomes(&self, name: &str, value: usize) {
        let client = Client::new(self.gateway.address);
        eventually(&format!("{name} is {value}"), || async { (gauge(&client, name).await == value).then_some(()) })
            .await;
    }
}
