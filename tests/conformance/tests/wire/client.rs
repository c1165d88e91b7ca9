//! A minimal client for the tests: raw requests, and the events of a stream one by one.
//!
//! It does no checks of its own beyond the HTTP status, so each test asserts exactly what it needs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_goblin-conformance");
/// The time that a test waits for a message.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server process that ends with its test.
pub struct Server {
    process: Child,
    pub url: String,
}

impl Server {
    pub fn start() -> Server {
        let mut command = Command::new(PROGRAM);
        let mut process = command.arg("serve").stdout(Stdio::piped()).spawn().expect("the server starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("stdout is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the server says where it listens");
        let url = line.trim().strip_prefix("listening ").expect("a URL").to_owned();
        Server { process, url }
    }

    /// Makes a `tools/call` of 2026-07-28 as a client with elicitation.
    pub async fn call_modern(&self, mut params: Value) -> Value {
        let name = params["name"].as_str().expect("a tool has a name").to_owned();
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        });
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let version = ("mcp-protocol-version", "2026-07-28");
        let headers = [version, ("mcp-method", "tools/call"), ("mcp-name", &name)];
        Stream::of(send(&self.url, Method::POST, &headers, message.to_string()).await).message().await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().expect("the server can be ended");
        self.process.wait().expect("the server has ended");
    }
}

/// A session of 2025-11-25.
pub struct Session {
    url: String,
    id: String,
    next: AtomicU64,
}

impl Session {
    pub async fn open(server: &Server, capabilities: Value) -> Session {
        let client = json!({"name": "test", "version": "1"});
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client});
        let message = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let response = send(&server.url, Method::POST, &[], message.to_string()).await;
        let id = response.headers()["mcp-session-id"].to_str().expect("a visible id").to_owned();
        let session = Session { url: server.url.clone(), id, next: AtomicU64::new(1) };
        assert_eq!(Stream::of(response).message().await["result"]["protocolVersion"], "2025-11-25");
        session.post(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        session
    }

    async fn post(&self, message: Value) -> Response<Incoming> {
        send(&self.url, Method::POST, &[("mcp-session-id", &self.id)], message.to_string()).await
    }

    async fn start(&self, method: &str, params: Value) -> Stream {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        Stream::of(self.post(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await)
    }

    pub async fn request(&self, method: &str, params: Value) -> Value {
        self.start(method, params).await.message().await
    }

    pub async fn call(&self, tool: &str) -> Stream {
        self.start("tools/call", json!({"name": tool, "arguments": {}})).await
    }

    /// Answers a server request.
    pub async fn answer(&self, request: &Value, result: Value) {
        let response = self.post(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).await;
        assert_eq!(response.status(), 202);
    }

    pub async fn listen(&self) -> Stream {
        Stream::of(send(&self.url, Method::GET, &[("mcp-session-id", &self.id)], String::new()).await)
    }
}

/// The messages of a response.
pub struct Stream {
    body: Incoming,
    text: String,
}

impl Stream {
    fn of(response: Response<Incoming>) -> Stream {
        assert!(response.status().is_success(), "{response:?}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Stream { body: response.into_body(), text: String::new() }
    }

    pub async fn message(&mut self) -> Value {
        loop {
            while let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
                // The first event of a stream carries no message.
                let message = (!data.is_empty()).then(|| serde_json::from_str(data).expect("a message is JSON"));
                self.text = rest.to_owned();
                if let Some(message) = message {
                    return message;
                }
            }
            let frame = timeout(TIMEOUT, self.body.frame()).await.expect("a message arrives in time");
            let frame = frame.expect("the stream goes on").expect("the stream can be read");
            let data = frame.into_data().expect("there are no trailers");
            self.text.push_str(std::str::from_utf8(&data).expect("the stream is UTF-8"));
        }
    }
}

async fn send(url: &str, method: Method, headers: &[(&str, &str)], body: String) -> Response<Incoming> {
    let address = url.trim_start_matches("http://").split('/').next().expect("a URL has an address");
    let stream = TcpStream::connect(address).await.expect("the server listens");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    // The connection ends with the response. The test may drop its body at any time.
    tokio::spawn(async move { drop(connection.await) });
    let mut request = Request::builder().method(method).uri(url).header("host", address);
    let kinds = "application/json, text/event-stream";
    for (name, value) in [("content-type", "application/json"), ("accept", kinds)].iter().chain(headers) {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).expect("a request");
    sender.send_request(request).await.expect("an answer")
}
