//! A backend over HTTP that records every request and answers by a script.
//!
//! It serves tests about the requests of the gateway: their headers, order and number.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::harness::eventually;
use crate::raw_server::{Acceptor, read_request, response};

const JSON: &str = "Content-Type: application/json\r\n";

pub struct Scripted {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    hung_up: Arc<AtomicUsize>,
    _acceptor: Acceptor,
}

/// A recorded request.
#[derive(Clone, Debug)]
pub struct Seen {
    head: String,
    pub message: Value,
}

/// A response.
pub enum Reply {
    /// Sends the bytes and closes the connection.
    Bytes(Vec<u8>),
    /// Sends the bytes and stays open until the peer disconnects.
    Held(Vec<u8>),
    /// Sends the bytes, waits for the signal, and continues with the next reply.
    Paused(Vec<u8>, Arc<Notify>, Box<Reply>),
}

impl Seen {
    pub fn verb(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    pub fn method(&self) -> &str {
        self.message["method"].as_str().unwrap_or_default()
    }

    /// Returns the value of a header. Names compare without case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
    }

    pub fn meta(&self, key: &str) -> &Value {
        &self.message["params"]["_meta"][format!("io.modelcontextprotocol/{key}")]
    }

    pub fn result(&self, result: Value) -> Reply {
        let body = json!({"jsonrpc": "2.0", "id": self.message["id"], "result": result}).to_string();
        Reply::Bytes(response("200 OK", JSON, &body))
    }

    pub fn error(&self, status: &str, error: Value) -> Reply {
        let body = json!({"jsonrpc": "2.0", "id": self.message["id"], "error": error}).to_string();
        Reply::Bytes(response(status, JSON, &body))
    }

    /// Answers like a modern server with one tool `t` that has this input schema.
    pub fn modern(&self, schema: &Value) -> Reply {
        match self.method() {
            "server/discover" => self.result(json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "ttlMs": 0, "cacheScope": "private",
            })),
            "tools/list" => self.result(json!({
                "resultType": "complete", "ttlMs": 0, "cacheScope": "private",
                "tools": [{"name": "t", "inputSchema": schema}],
            })),
            "tools/call" => self.result(json!({"resultType": "complete", "content": []})),
            _ => self.error("404 Not Found", json!({"code": -32601, "message": "Method not found"})),
        }
    }

    /// Answers like a legacy server with one tool `t`.
    pub fn legacy(&self) -> Reply {
        match self.method() {
            "initialize" => self.result(json!({
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "0"},
            })),
            "tools/list" => self.result(json!({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})),
            "tools/call" => self.result(json!({"content": []})),
            "notifications/initialized" => Reply::Bytes(response("202 Accepted", "", "")),
            _ => Reply::Bytes(response("405 Method Not Allowed", "", "")),
        }
    }
}

impl Scripted {
    /// Starts a server. `answer` receives the request and the number of earlier requests of its method.
    pub async fn start(answer: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Scripted {
        let (seen, hung_up) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::<AtomicUsize>::default());
        let (kept, counted, answer) = (Arc::clone(&seen), Arc::clone(&hung_up), Arc::new(answer));
        let acceptor = Acceptor::start(move |stream| {
            let (kept, counted, answer) = (Arc::clone(&kept), Arc::clone(&counted), Arc::clone(&answer));
            async move { serve(stream, &kept, &counted, &*answer).await }
        });
        let acceptor = acceptor.await;
        Scripted { address: acceptor.address, seen, hung_up, _acceptor: acceptor }
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no test panics here").clone()
    }

    /// Returns the methods of the requests in order. A request without a method has its verb.
    pub fn methods(&self) -> Vec<String> {
        let name = |seen: &Seen| if seen.method().is_empty() { seen.verb() } else { seen.method() }.to_owned();
        self.seen().iter().map(name).collect()
    }

    pub fn of(&self, method: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.method() == method).collect()
    }

    /// Waits until the peer has disconnected from a held response.
    pub async fn await_disconnect(&self) {
        eventually("the peer disconnected", || async { (self.hung_up.load(Ordering::SeqCst) > 0).then_some(()) }).await;
    }
}

async fn serve(
    mut stream: TcpStream,
    kept: &Mutex<Vec<Seen>>,
    hung_up: &AtomicUsize,
    answer: &(impl Fn(&Seen, usize) -> Reply + Sync),
) {
    let Some((head, body)) = read_request(&mut stream).await else { return };
    let seen = Seen { head, message: serde_json::from_slice(&body).unwrap_or_default() };
    let before = {
        let mut kept = kept.lock().expect("no test panics here");
        let before = kept.iter().filter(|other| other.method() == seen.method()).count();
        kept.push(seen.clone());
        before
    };
    let mut reply = answer(&seen, before);
    while let Reply::Paused(bytes, bell, rest) = reply {
        let _ = stream.write_all(&bytes).await;
        bell.notified().await;
        reply = *rest;
    }
    match reply {
        Reply::Bytes(bytes) => {
            // A write error is expected, because some tests disconnect.
            let _ = stream.write_all(&bytes).await;
        }
        Reply::Held(bytes) => {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.read(&mut [0; 16]).await;
            hung_up.fetch_add(1, Ordering::SeqCst);
        }
        Reply::Paused(..) => unreachable!("the loop handles pauses"),
    }
}
