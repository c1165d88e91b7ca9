//! A gateway that the test plays: the test receives each request and writes its response.
//!
//! The tests of the bridge and of commands use it to simulate faults and exact orders of messages.

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::harness::TIMEOUT;
use crate::raw_server::{Acceptor, read_request, response};

/// The capacity of the queue. It exceeds the number of requests that any test leaves unanswered.
const MAX_ARRIVALS: usize = 1000;

pub struct RawGateway {
    pub url: String,
    arrivals: mpsc::Receiver<Arrival>,
    /// The requests that arrived before the awaited one.
    early: Vec<Arrival>,
    _acceptor: Acceptor,
}

impl RawGateway {
    pub async fn start() -> RawGateway {
        let (sender, arrivals) = mpsc::channel(MAX_ARRIVALS);
        let acceptor = Acceptor::start(move |mut stream| {
            let sender = sender.clone();
            async move {
                let Some((head, body)) = read_request(&mut stream).await else { return };
                let body = String::from_utf8(body).expect("text");
                let message = serde_json::from_str(&body).unwrap_or_default();
                let _ = sender.send(Arrival { head, body, message, stream }).await;
            }
        });
        let acceptor = acceptor.await;
        RawGateway { url: acceptor.url(), arrivals, early: Vec::new(), _acceptor: acceptor }
    }

    /// Returns the next request that is `wanted`. Other requests stay queued.
    pub async fn take(&mut self, description: &str, wanted: impl Fn(&Arrival) -> bool) -> Arrival {
        if let Some(at) = self.early.iter().position(&wanted) {
            return self.early.remove(at);
        }
        loop {
            let arrival = tokio::time::timeout(TIMEOUT, self.arrivals.recv()).await;
            let arrival = arrival.unwrap_or_else(|_| panic!("{description} in time")).expect("the listener runs");
            if wanted(&arrival) {
                return arrival;
            }
            self.early.push(arrival);
        }
    }

    /// Returns the next POST.
    pub async fn post(&mut self) -> Arrival {
        self.take("a message", |arrival| arrival.verb() == "POST").await
    }

    pub async fn request(&mut self, method: &str) -> Arrival {
        self.take(method, |arrival| arrival.message["method"] == method).await
    }

    /// Returns the GET that resumes after this event.
    pub async fn get(&mut self, after: Option<&str>) -> Arrival {
        let wanted = |arrival: &Arrival| arrival.verb() == "GET" && arrival.header("last-event-id") == after;
        self.take(&format!("a stream after {after:?}"), wanted).await
    }

    /// Reports whether such a request has arrived.
    pub fn has(&mut self, wanted: impl Fn(&Arrival) -> bool) -> bool {
        while let Ok(arrival) = self.arrivals.try_recv() {
            self.early.push(arrival);
        }
        self.early.iter().any(wanted)
    }

    /// Answers a handshake. Returns the client's `initialize` and the session's stream.
    pub async fn begin(&mut self, session: &str) -> (String, EventStream) {
        let hello = self.request("initialize").await;
        let initialize = hello.body.clone();
        let result = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
        let body = json!({"jsonrpc": "2.0", "id": hello.message["id"], "result": result}).to_string();
        let headers = format!("Content-Type: application/json\r\nMcp-Session-Id: {session}\r\n");
        hello.answer("200 OK", &headers, &body).await;
        let initialized = self.request("notifications/initialized").await;
        assert_eq!(initialized.header("mcp-session-id"), Some(session));
        initialized.accept().await;
        let wanted = |arrival: &Arrival| arrival.verb() == "GET" && arrival.header("mcp-session-id") == Some(session);
        (initialize, self.take("the stream of the session", wanted).await.stream().await)
    }
}

/// A request that waits for its response. Dropping it closes the connection.
pub struct Arrival {
    head: String,
    pub body: String,
    pub message: Value,
    stream: TcpStream,
}

impl Arrival {
    pub fn verb(&self) -> &str {
        self.head.split(' ').next().unwrap_or_default()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }

    pub async fn answer(mut self, status: &str, headers: &str, body: &str) {
        self.stream.write_all(&response(status, headers, body)).await.expect("the client listens");
    }

    pub async fn accept(self) {
        self.answer("202 Accepted", "", "").await;
    }

    pub async fn reply(self, result: Value) {
        let body = json!({"jsonrpc": "2.0", "id": self.message["id"], "result": result}).to_string();
        self.answer("200 OK", "Content-Type: application/json\r\n", &body).await;
    }

    /// Answers with an event stream.
    pub async fn stream(mut self) -> EventStream {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        self.stream.write_all(head.as_bytes()).await.expect("the client listens");
        EventStream(self.stream)
    }
}

/// An open stream. Dropping it cuts the connection.
pub struct EventStream(TcpStream);

impl EventStream {
    /// Writes an event with these lines.
    pub async fn write(&mut self, lines: &[&str]) {
        let event = format!("{}\n\n", lines.join("\n"));
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        self.0.write_all(chunk.as_bytes()).await.expect("the client listens");
    }

    pub async fn send_message(&mut self, message: &str) {
        self.write(&[&format!("data: {message}")]).await;
    }

    /// Ends the stream regularly, like a gateway that expects the client to reconnect.
    pub async fn end(mut self) {
        self.0.write_all(b"0\r\n\r\n").await.expect("the client listens");
    }
}
