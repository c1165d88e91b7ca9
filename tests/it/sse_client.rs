//! A client over HTTP+SSE: one stream for all incoming messages, a POST for each outgoing one.
//!
//! The tests of that transport and the ledgers use it.

use std::net::SocketAddr;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Gateway, Listener, PATIENCE};

pub struct SseClient {
    pub http: Client,
    /// The path of the POSTs, from the first event.
    pub path: String,
    pub stream: Listener,
    next: u64,
}

impl SseClient {
    /// Opens the stream without a handshake.
    pub async fn open(address: SocketAddr) -> SseClient {
        let http = Client::new(address);
        let mut stream = http.listen_at("/sse").await;
        let path = stream.next_text().await.expect("the first event");
        SseClient { http, path, stream, next: 0 }
    }

    pub async fn connect(gateway: &Gateway, version: &str) -> SseClient {
        let mut client = SseClient::open(gateway.address).await;
        let answer = client.request("initialize", hello(version)).await;
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
        client.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        client
    }

    /// Returns a client with a session of the newest legacy version, after the tool of this name is listed.
    pub async fn seeing(gateway: &Gateway, tool: &str) -> SseClient {
        gateway.client_seeing(tool).await;
        SseClient::connect(gateway, "2025-11-25").await
    }

    pub async fn post(&self, body: &str) -> Answer {
        post(&self.http, &self.path, body).await
    }

    /// POSTs one message, which must be accepted.
    pub async fn write(&self, body: &str) {
        let answer = self.post(body).await;
        assert_eq!((answer.status, answer.body.as_str()), (StatusCode::ACCEPTED, "Accepted"), "{body}: {answer:?}");
    }

    pub async fn message(&mut self) -> Value {
        self.stream.next().await.expect("another message")
    }

    /// Returns the next message that is not a notification.
    pub async fn answer(&mut self) -> Value {
        tokio::time::timeout(PATIENCE, async {
            loop {
                let message = self.message().await;
                if message["method"].is_null() {
                    return message;
                }
            }
        })
        .await
        .expect("an answer in time")
    }

    /// Sends a request with a fresh id and returns its response. Skips notifications.
    pub async fn request(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        self.write(&request(json!(id), method, params)).await;
        let answer = self.answer().await;
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    pub async fn works(&mut self) {
        assert_eq!(self.request("ping", json!({})).await["result"], json!({}));
    }
}

pub async fn post(http: &Client, path: &str, body: &str) -> Answer {
    http.send(Method::POST, path, &[("content-type", "application/json")], body.to_owned()).await
}

pub fn request(id: Value, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

pub fn call(id: impl Into<Value>, name: &str, arguments: Value) -> String {
    request(id.into(), "tools/call", json!({"name": name, "arguments": arguments}))
}

pub fn hello(version: &str) -> Value {
    json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}})
}
