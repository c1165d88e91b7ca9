//! A backend that answers `tools/call` with arbitrary bytes, also with ones that no real server would send.
//!
//! The tests of backend faults use it. It counts the calls, so that a test can prove that none was repeated.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// The pseudo-method of a GET that resumes a stream.
pub const RESUME: &str = "GET, resumed";

/// A listener on loopback that serves each connection in its own task. It closes with this value.
pub struct Acceptor {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Acceptor {
    pub async fn start<F>(serve: impl Fn(TcpStream) -> F + Send + 'static) -> Acceptor
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream));
            }
        });
        Acceptor { address, task }
    }

    /// Returns the URL of an MCP endpoint at this address.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A server with one tool, `t`. Each connection serves one request.
pub struct RawServer {
    pub address: SocketAddr,
    calls: Arc<AtomicUsize>,
    _acceptor: Acceptor,
}

impl RawServer {
    /// Starts a server. `answer` returns the whole HTTP response to a `tools/call` from its arguments. The connection
    /// closes after it.
    pub async fn start(answer: fn(&Value) -> Vec<u8>) -> RawServer {
        RawServer::rejecting(|_| None, answer).await
    }

    /// Starts a server. `reject` may return the response to any other request, by its method.
    pub async fn rejecting(reject: fn(&str) -> Option<Vec<u8>>, answer: fn(&Value) -> Vec<u8>) -> RawServer {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let acceptor = Acceptor::start(move |stream| serve(stream, Arc::clone(&counted), reject, answer)).await;
        RawServer { address: acceptor.address, calls, _acceptor: acceptor }
    }

    /// Returns the number of `tools/call` requests.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

/// Returns a whole response with a body.
pub fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}

async fn serve(
    mut stream: TcpStream,
    calls: Arc<AtomicUsize>,
    reject: fn(&str) -> Option<Vec<u8>>,
    answer: fn(&Value) -> Vec<u8>,
) {
    let Some((head, body)) = read_request(&mut stream).await else { return };
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let is_resumed = head.to_ascii_lowercase().contains("\r\nlast-event-id:");
    let method = if is_resumed { RESUME } else { message["method"].as_str().unwrap_or_default() }.to_owned();
    let bytes = if method == "tools/call" {
        calls.fetch_add(1, Ordering::SeqCst);
        let mut arguments = message["params"]["arguments"].clone();
        arguments["id"] = message["id"].clone();
        answer(&arguments)
    } else if let Some(rejection) = reject(&method) {
        rejection
    } else if head.starts_with("POST") {
        reply(&message, &method)
    } else {
        response("405 Method Not Allowed", "", "")
    };
    // A write error is expected, because some tests disconnect.
    let _ = stream.write_all(&bytes).await;
}

fn reply(message: &Value, method: &str) -> Vec<u8> {
    let result = match method {
        "initialize" => json!({
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "0"},
        }),
        "tools/list" => json!({ "tools": [{ "name": "t", "inputSchema": { "type": "object" } }] }),
        _ => return response("202 Accepted", "", ""),
    };
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    response("200 OK", "Content-Type: application/json\r\n", &body)
}

pub async fn read_request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut body = bytes.split_off(end);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, body))
}
