//! A client on one TCP connection, which a test can close in any way. It is cheap, so a test can use many.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::TIMEOUT;

const HELLO: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","#,
    r#""capabilities":{"sampling":{}},"clientInfo":{"name":"raw","version":"0"}}}"#
);
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

pub struct RawClient {
    pub socket: TcpStream,
    address: SocketAddr,
    /// Data that was read but not consumed yet.
    unread: String,
    /// The session id of Streamable HTTP. For HTTP+SSE it is the path of the POSTs.
    pub session: String,
}

impl RawClient {
    async fn connect(address: SocketAddr) -> RawClient {
        let socket = TcpStream::connect(address).await.expect("the gateway listens");
        RawClient { socket, address, unread: String::new(), session: String::new() }
    }

    /// Opens a session of Streamable HTTP.
    pub async fn streamable(address: SocketAddr) -> RawClient {
        let mut client = RawClient::connect(address).await;
        client.post_mcp(HELLO).await;
        let head = client.until("\r\n\r\n").await;
        let session = head.split("mcp-session-id: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        client.session = session.unwrap_or_else(|| panic!("no session in {head}")).to_owned();
        client.until("serverInfo").await;
        client.post_mcp(INITIALIZED).await;
        client.until("202 Accepted").await;
        client.until("\r\n\r\n").await;
        client
    }

    /// Opens a session of HTTP+SSE. This connection carries its stream.
    pub async fn sse(address: SocketAddr) -> RawClient {
        let mut client = RawClient::connect(address).await;
        client.send("GET /sse", "accept: text/event-stream\r\n", "").await;
        client.until("data: ").await;
        client.session = client.until("\n\n").await.trim_end().to_owned();
        client.post_sse(HELLO).await;
        client.until("serverInfo").await;
        client.post_sse(INITIALIZED).await;
        client
    }

    /// Opens the session's stream of Streamable HTTP on this connection.
    pub async fn listen(mut self) -> RawClient {
        let headers = format!("accept: text/event-stream\r\nmcp-session-id: {}\r\n", self.session);
        self.send("GET /mcp", &headers, "").await;
        self.until("text/event-stream").await;
        self
    }

    /// Sends a call over Streamable HTTP on this connection. `accept` lists the content types of the response.
    pub async fn begin_call(mut self, accept: &str, tool: &str, arguments: Value) -> RawClient {
        let headers =
            format!("accept: {accept}\r\ncontent-type: application/json\r\nmcp-session-id: {}\r\n", self.session);
        self.send("POST /mcp", &headers, &call(tool, arguments)).await;
        self
    }

    /// Sends a call over HTTP+SSE.
    pub async fn begin_sse_call(self, tool: &str, arguments: Value) -> RawClient {
        self.post_sse(&call(tool, arguments)).await;
        self
    }

    /// Reads until this text arrives.
    pub async fn read_until(mut self, text: &str) -> RawClient {
        self.until(text).await;
        self
    }

    /// Ends the session of Streamable HTTP over another connection.
    pub async fn delete(&self) {
        let mut other = RawClient::connect(self.address).await;
        other.send("DELETE /mcp", &format!("mcp-session-id: {}\r\n", self.session), "").await;
        // On a busy machine the session may have expired before.
        let head = other.until("\r\n\r\n").await;
        assert!(head.contains("204 No Content") || head.contains("404 Not Found"), "{head}");
    }

    async fn post_mcp(&mut self, body: &str) {
        let session =
            if self.session.is_empty() { String::new() } else { format!("mcp-session-id: {}\r\n", self.session) };
        let headers =
            format!("accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n{session}");
        self.send("POST /mcp", &headers, body).await;
    }

    /// POSTs a message of HTTP+SSE over a new connection.
    async fn post_sse(&self, body: &str) {
        let mut other = RawClient::connect(self.address).await;
        other.send(&format!("POST {}", self.session), "content-type: application/json\r\n", body).await;
        other.until("202 Accepted").await;
    }

    async fn send(&mut self, request_line: &str, headers: &str, body: &str) {
        let (host, length) = (self.address, body.len());
        let request =
            format!("{request_line} HTTP/1.1\r\nhost: {host}\r\n{headers}content-length: {length}\r\n\r\n{body}");
        self.socket.write_all(request.as_bytes()).await.expect("the gateway reads");
    }

    /// Reads until `mark` and returns the text before it.
    async fn until(&mut self, mark: &str) -> String {
        loop {
            if let Some((before, rest)) = self.unread.split_once(mark) {
                let (before, rest) = (before.to_owned(), rest.to_owned());
                self.unread = rest;
                return before;
            }
            let mut bytes = [0; 4096];
            let read = tokio::time::timeout(TIMEOUT, self.socket.read(&mut bytes)).await;
            let count = read.unwrap_or_else(|_| panic!("no {mark:?} after {}", self.unread)).expect("a connection");
            assert!(count > 0, "the connection ended before {mark:?}, after {}", self.unread);
            self.unread.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
        }
    }
}

fn call(tool: &str, arguments: Value) -> String {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}})
        .to_string()
}
