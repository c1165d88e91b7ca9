//! The client of a server in either era.
//!
//! Requests of older versions belong to a session, and server requests arrive during a call and are answered
//! separately. Requests of 2026-07-28 are independent. There the result of a call holds the input requests, and the
//! call is repeated with the responses.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use crate::client::mirror::{self, encode, some_value};
use crate::client::wire::{Header, Messages, send};

const FIRST_MODERN: &str = "2026-07-28";
/// The first version that is named in a header of each request.
const FIRST_IN_HEADER: &str = "2025-06-18";
/// The limit of repetitions of a call with input responses.
const ROUNDS: usize = 10;
/// The interval of list requests.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Peer {
    line: Line,
    /// The tools, listed before the first call. Their schemas define which arguments go into headers.
    tools: OnceLock<Vec<Value>>,
    next: AtomicU64,
}

impl Peer {
    pub async fn connect(url: &str, version: &str) -> Result<Peer> {
        let line = Line { url: url.to_owned(), version: version.to_owned(), session: None };
        let mut peer = Peer { line, tools: OnceLock::new(), next: AtomicU64::new(1) };
        if peer.line.is_modern() {
            peer.request("server/discover", json!({})).await?;
        } else {
            peer.line.initialize().await?;
            peer.line.answer_requests().await?;
        }
        Ok(peer)
    }

    /// Sends a request and returns its result. An error response is an error.
    pub async fn request(&self, method: &str, params: Value) -> Result<Value> {
        let answer = self.send_request(method, params).await?;
        answer.get("result").cloned().with_context(|| format!("{method} was rejected: {answer}"))
    }

    /// Sends a request and returns the response, also if it is an error.
    pub async fn send_request(&self, method: &str, params: Value) -> Result<Value> {
        if self.line.is_modern() {
            self.request_in_rounds(method, params).await
        } else {
            self.exchange(method, &params).await
        }
    }

    /// Lists tools until there are some. A gateway may list none before its backend is ready.
    pub async fn tools(&self) -> Result<&[Value]> {
        loop {
            if let Some(tools) = self.tools.get() {
                return Ok(tools);
            }
            let result = self.request("tools/list", json!({})).await?;
            match result["tools"].as_array().with_context(|| format!("no tools in {result}"))? {
                none if none.is_empty() => sleep(PAUSE).await,
                some => return Ok(self.tools.get_or_init(|| some.clone())),
            }
        }
    }

    /// Calls a tool and returns the first text of its result.
    pub async fn call(&self, name: &str, arguments: Value) -> Result<String> {
        let result = self.request("tools/call", json!({"name": name, "arguments": arguments})).await?;
        let text = result["content"][0]["text"].as_str();
        text.map(str::to_owned).with_context(|| format!("{name} returned no text: {result}"))
    }

    async fn request_in_rounds(&self, method: &str, mut params: Value) -> Result<Value> {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": self.line.version,
            "io.modelcontextprotocol/clientCapabilities": capabilities(),
            "io.modelcontextprotocol/clientInfo": client_info(),
        });
        for _ in 0..ROUNDS {
            let answer = self.exchange(method, &params).await?;
            let result = &answer["result"];
            if result["resultType"] != "input_required" {
                return Ok(answer);
            }
            let requests = result["inputRequests"].as_object().into_iter().flatten();
            params["inputResponses"] = requests.map(|(key, request)| (key.clone(), reply(request))).collect();
            match result.get("requestState") {
                Some(state) => params["requestState"] = state.clone(),
                None => drop(params.as_object_mut().and_then(|params| params.remove("requestState"))),
            }
        }
        bail!("{method} still requires input after {ROUNDS} rounds")
    }

    /// Sends one request and reads until its response. Resumes the stream of a session if it is cut.
    async fn exchange(&self, method: &str, params: &Value) -> Result<Value> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        let mut messages = self.line.post(&self.mirrored(method, params), &message).await?;
        loop {
            while let Some(message) = messages.next().await? {
                if message["method"].is_null() && message["id"] == id {
                    return Ok(message);
                }
                self.line.answer(&message).await?;
            }
            let Some(last_event) = messages.last_event.take().filter(|_| !self.line.is_modern()) else {
                bail!("{method} was not answered");
            };
            sleep(messages.retry).await;
            messages = self.line.resume(last_event).await?;
        }
    }

    /// Returns the headers that repeat parts of a request.
    fn mirrored(&self, method: &str, params: &Value) -> Vec<Header> {
        if !self.line.is_modern() {
            return Vec::new();
        }
        let mut headers = vec![("mcp-method".to_owned(), method.to_owned())];
        headers.extend(mirror::name(method, params).map(|name| ("mcp-name".to_owned(), encode(name))));
        let tools = self.tools.get().filter(|_| method == "tools/call").into_iter().flatten();
        let tool = tools.into_iter().find(|tool| tool["name"] == params["name"]);
        headers.extend(tool.into_iter().flat_map(|tool| mirror::arguments(&tool["inputSchema"], &params["arguments"])));
        headers
    }
}

/// The address, version and session of the server.
#[derive(Clone)]
struct Line {
    url: String,
    version: String,
    session: Option<String>,
}

impl Line {
    fn is_modern(&self) -> bool {
        is_modern(&self.version)
    }

    async fn initialize(&mut self) -> Result<()> {
        let params =
            json!({"protocolVersion": self.version, "capabilities": capabilities(), "clientInfo": client_info()});
        let message = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let response = send(&self.url, Method::POST, &accepting(), message.to_string()).await?;
        let session = response.headers().get("mcp-session-id").and_then(|id| id.to_str().ok());
        self.session = session.map(str::to_owned);
        let answer = Messages::of(response).next().await?.context("initialize was not answered")?;
        ensure!(answer["result"]["protocolVersion"] == self.version, "the version was not accepted: {answer}");
        let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        self.post(&[], &initialized).await.map(drop)
    }

    /// Answers server requests on the session's own stream, if the server offers one. The task ends with the process.
    async fn answer_requests(&self) -> Result<()> {
        let response = send(&self.url, Method::GET, &self.headers(), String::new()).await?;
        if response.status().is_success() {
            let (line, mut messages) = (self.clone(), Messages::of(response));
            tokio::spawn(async move {
                while let Ok(Some(message)) = messages.next().await {
                    // A failure shows in the call that caused the request.
                    let _ = line.answer(&message).await;
                }
            });
        }
        Ok(())
    }

    /// Answers a server request that arrives during a call. Ignores notifications.
    async fn answer(&self, message: &Value) -> Result<()> {
        if message["id"].is_null() {
            return Ok(());
        }
        ensure!(!self.is_modern(), "a server of {} sent a request: {message}", self.version);
        let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": reply(message)});
        self.post(&[], &answer).await.map(drop)
    }

    async fn resume(&self, last_event: String) -> Result<Messages> {
        let mut headers = self.headers();
        headers.push(("last-event-id".to_owned(), last_event));
        let response = send(&self.url, Method::GET, &headers, String::new()).await?;
        ensure!(response.status().is_success(), "the rest of a stream was rejected: {}", response.status());
        Ok(Messages::of(response))
    }

    async fn post(&self, mirrored: &[Header], message: &Value) -> Result<Messages> {
        let headers = [self.headers().as_slice(), mirrored].concat();
        Ok(Messages::of(send(&self.url, Method::POST, &headers, message.to_string()).await?))
    }

    fn headers(&self) -> Vec<Header> {
        let mut headers = accepting();
        headers.extend(self.session.clone().map(|session| ("mcp-session-id".to_owned(), session)));
        if self.version.as_str() >= FIRST_IN_HEADER {
            headers.push(("mcp-protocol-version".to_owned(), self.version.clone()));
        }
        headers
    }
}

/// Reports whether a version has no sessions.
pub fn is_modern(version: &str) -> bool {
    version >= FIRST_MODERN
}

fn accepting() -> Vec<Header> {
    let headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}

fn client_info() -> Value {
    json!({"name": "goblin-conformance", "version": env!("CARGO_PKG_VERSION")})
}

fn capabilities() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {}})
}

/// Returns the response of a user that accepts everything and changes nothing.
fn reply(request: &Value) -> Value {
    match request["method"].as_str().unwrap_or_default() {
        "elicitation/create" => {
            let properties = request["params"]["requestedSchema"]["properties"].as_object().into_iter().flatten();
            let content: Map<_, _> = properties.map(|(name, schema)| (name.clone(), some_value(schema))).collect();
            json!({"action": "accept", "content": content})
        }
        "sampling/createMessage" => {
            json!({"role": "assistant", "model": "none", "content": {"type": "text", "text": "some text"}})
        }
        "roots/list" => json!({"roots": []}),
        _ => json!({}),
    }
}
