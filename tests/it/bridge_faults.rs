//! A bridge to a faulty gateway. Each fault is simulated, because the real gateway hardly ever shows it.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::client::Client;
use crate::harness::{Scratch, TIMEOUT, goblin};
use crate::raw_server::{Acceptor, read_request, response};

/// The reaction to a call.
#[derive(Clone, Copy)]
enum Fault {
    /// The head of the response arrives only after the cancellation, and no response follows.
    Overtaken,
    WebPage,
    /// Every session is forgotten at once.
    Forgets,
}

/// The messages that the gateway has received.
#[derive(Clone, Default)]
struct Received {
    handshakes: usize,
    calls: usize,
    /// The cancelled ids.
    cancels: Vec<Value>,
}

struct Faulty {
    url: String,
    received: Arc<watch::Sender<Received>>,
    _acceptor: Acceptor,
}

impl Faulty {
    async fn start(fault: Fault) -> Faulty {
        let received = Arc::new(watch::Sender::<Received>::default());
        let shared = Arc::clone(&received);
        let acceptor = Acceptor::start(move |stream| answer(stream, fault, Arc::clone(&shared))).await;
        Faulty { url: acceptor.url(), received, _acceptor: acceptor }
    }

    /// Starts a bridge to the gateway and completes the handshake.
    async fn client(&self) -> (Client, Scratch) {
        let scratch = Scratch::new();
        let mut command = goblin(scratch.path());
        command.args(["stdio", "--url", &self.url]).stderr(std::process::Stdio::null());
        let mut client = Client::run(command);
        client.initialize("2025-06-18").await;
        (client, scratch)
    }

    async fn await_received(&self, condition: &str, is_received: impl FnMut(&Received) -> bool) {
        let mut received = self.received.subscribe();
        let waited = tokio::time::timeout(TIMEOUT, received.wait_for(is_received)).await;
        assert!(waited.is_ok(), "timed out before {condition}");
    }
}

async fn answer(mut stream: TcpStream, fault: Fault, received: Arc<watch::Sender<Received>>) {
    let Some((_, body)) = read_request(&mut stream).await else { return };
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let reply = |result: Value| {
        let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
        response("200 OK", "Content-Type: application/json\r\nMcp-Session-Id: one\r\n", &body)
    };
    let bytes = match (message["method"].as_str().unwrap_or_default(), fault) {
        ("initialize", _) => {
            received.send_modify(|received| received.handshakes += 1);
            reply(json!({"protocolVersion": "2025-06-18", "capabilities": {}}))
        }
        (_, Fault::Forgets) => response("404 Not Found", "", ""),
        ("notifications/cancelled", _) => {
            received.send_modify(|received| received.cancels.push(message["params"]["requestId"].clone()));
            response("202 Accepted", "", "")
        }
        ("tools/call", Fault::Overtaken) => {
            received.send_modify(|received| received.calls += 1);
            let mut received = received.subscribe();
            let _ = received.wait_for(|received| !received.cancels.is_empty()).await;
            let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n";
            let _ = stream.write_all(head).await;
            let _ = received.wait_for(|received| received.cancels.len() > 1).await;
            return;
        }
        ("tools/call", Fault::WebPage) => response("200 OK", "Content-Type: text/html\r\n", "<html>\nhello"),
        ("ping", _) => reply(json!({})),
        ("", _) => response("405 Method Not Allowed", "", ""),
        _ => response("202 Accepted", "", ""),
    };
    // A disconnected peer is not an error here.
    let _ = stream.write_all(&bytes).await;
}

fn call(id: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "t"}}).to_string()
}

#[tokio::test]
async fn a_cancellation_that_overtakes_its_request_is_sent_again() {
    let gateway = Faulty::start(Fault::Overtaken).await;
    let (client, _scratch) = gateway.client().await;
    client.write(&call("long")).await;
    // The call is under way, but the gateway has not answered its head.
    gateway.await_received("the call is there", |received| received.calls == 1).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "long"}});
    client.write(&cancel.to_string()).await;
    gateway.await_received("the cancellation was sent twice", |received| received.cancels == ["long", "long"]).await;
    // The client receives no message about the call, neither before nor after.
    let answer = client.request("ping", json!({})).await;
    assert_eq!(answer["result"], json!({}));
    client.close_input();
    assert_eq!(client.line().await, None);
}

#[tokio::test]
async fn a_web_page_instead_of_an_answer_is_an_error() {
    let gateway = Faulty::start(Fault::WebPage).await;
    let (client, _scratch) = gateway.client().await;
    client.write(&call("page")).await;
    let answer = client.message().await;
    assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!("page"), &json!(1503)), "{answer}");
}

#[tokio::test]
async fn a_gateway_that_forgets_every_session_causes_an_error_and_a_new_handshake() {
    let gateway = Faulty::start(Fault::Forgets).await;
    let (client, _scratch) = gateway.client().await;
    client.write(&call("lost")).await;
    let answer = loop {
        let message = client.message().await;
        if message["id"] == "lost" {
            break message;
        }
    };
    let message = answer["error"]["message"].as_str().expect("a text");
    assert!(message.contains("lost the session 3 times in a row"), "{answer}");
    gateway.await_received("another session was requested", |received| received.handshakes > 1).await;
}
