//! A gateway that listens on a Unix socket, and requests over that socket.
//!
//! `socket` and `hostile_socket` use it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::process::Child;

use crate::client::http::Answer;
use crate::harness::{TIMEOUT, fixture_server, servers_only, signal};
use crate::home::Home;

/// The path of the socket below the home.
pub const SOCKET: &str = "private/goblin.sock";

/// Returns a home for a gateway that listens on [`SOCKET`] only, with these additional keys of `gateway`.
pub fn home_with(gateway: Value) -> Home {
    let mut keys = json!({ "socket": SOCKET, "tcp": false, "grace": "60s" });
    let object = keys.as_object_mut().expect("an object");
    object.extend(gateway.as_object().expect("an object").clone());
    Home::new(&servers_only(json!({ "gateway": keys, "mcpServers": { "a": fixture_server(&[]) } })))
}

/// Returns the path of the socket of this home.
pub fn socket_of(home: &Home) -> PathBuf {
    home.scratch.path().join(SOCKET)
}

/// A `goblin serve` process without flags for TCP.
pub struct SocketGateway {
    pub child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl SocketGateway {
    /// Starts a gateway and waits until it listens on its socket.
    pub async fn start(home: &Home) -> SocketGateway {
        let mut gateway = SocketGateway::spawn(home);
        match gateway.outcome().await {
            None => gateway,
            Some(code) => panic!("goblin ended with {code:?}: {:?}", gateway.log()),
        }
    }

    pub fn spawn(home: &Home) -> SocketGateway {
        let mut command = home.goblin(&["serve", "--log-level", "debug", "--config", home.config()]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("goblin starts");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                kept.lock().expect("no test panics here").push(line);
            }
        });
        SocketGateway { child, log }
    }

    /// Waits until the gateway listens on its socket or ends. Returns the exit code if it ended.
    pub async fn outcome(&mut self) -> Option<i32> {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            if self.has_logged("listening on unix:") {
                return None;
            }
            if let Some(status) = self.child.try_wait().expect("a child") {
                return Some(status.code().unwrap_or(-1));
            }
            assert!(tokio::time::Instant::now() < deadline, "goblin neither listens nor ends: {:?}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("no test panics here").clone()
    }

    pub fn has_logged(&self, text: &str) -> bool {
        self.log().iter().any(|line| line.contains(text))
    }

    /// Ends the gateway with this signal and waits for its end.
    pub async fn end(&mut self, name: &str) {
        signal(self.child.id().expect("the gateway runs"), name);
        tokio::time::timeout(TIMEOUT, self.child.wait()).await.expect("the gateway ends").expect("a child");
    }
}

/// Sends one request over a socket, with exactly these headers.
pub async fn send(socket: &Path, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let stream = UnixStream::connect(socket).await.expect("the gateway accepts");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a valid request");
    let response = tokio::time::timeout(TIMEOUT, sender.send_request(request)).await.expect("an answer in time");
    let (parts, body) = response.expect("an answer").into_parts();
    let body = tokio::time::timeout(TIMEOUT, body.collect()).await.expect("a body in time").expect("a whole body");
    let body = String::from_utf8(body.to_bytes().to_vec()).expect("text");
    Answer { status: parts.status, headers: parts.headers, body }
}

/// Calls a tool over a socket in a new session. Returns the result.
pub async fn call(socket: &Path, tool: &str, arguments: Value) -> Value {
    let hello = json!({
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "0" },
    });
    let answer = post(socket, None, "initialize", &hello).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let session = answer.headers["mcp-session-id"].to_str().expect("text").to_owned();
    let answer = post(socket, Some(&session), "tools/call", &json!({ "name": tool, "arguments": arguments })).await;
    answer.json()["result"].clone()
}

/// Posts one request of the protocol over a socket.
pub async fn post(socket: &Path, session: Option<&str>, method: &str, params: &Value) -> Answer {
    let mut headers = vec![
        ("host", "localhost"),
        ("content-type", "application/json"),
        ("accept", "application/json, text/event-stream"),
    ];
    headers.extend(session.map(|session| ("mcp-session-id", session)));
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
    send(socket, Method::POST, "/mcp", &headers, &body).await
}

/// Waits until the tool `a_echo` responds over the socket.
pub async fn await_tools(socket: &Path) {
    crate::harness::eventually("the tool a_echo answers", || async {
        let result = call(socket, "a_echo", json!({ "text": "hello" })).await;
        result.to_string().contains("hello").then_some(())
    })
    .await;
}
