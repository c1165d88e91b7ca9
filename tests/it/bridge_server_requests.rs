//! Server requests to a client behind a bridge, and the routing of its responses.
//!
//! A response must never reach another session than the one of its request. The tests play the gateway themselves to
//! control every message.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::client::Client;
use crate::harness::{Scratch, eventually, goblin};
use crate::raw_gateway::{EventStream, RawGateway};

/// A handshake with a spelling that no bridge would write. It must be forwarded unchanged.
const HELLO: &str = concat!(
    r#"{ "method":"initialize","id" : "h","jsonrpc":"2.0","params":{"clientInfo":{"version":"0","name":"t"},"#,
    r#""protocolVersion":"2025-11-25","capabilities":{"sampling":{"tools":{}},"elicitation":{"url":{},"form":{}},"#,
    r#""roots":{"listChanged":true},"x":1.50}} }"#
);

struct Bridged {
    gateway: RawGateway,
    client: Client,
    log: Arc<Mutex<Vec<String>>>,
    _scratch: Scratch,
}

/// Returns a client with a session, and the session's stream.
async fn bridged() -> (Bridged, EventStream) {
    let scratch = Scratch::new();
    let gateway = RawGateway::start().await;
    let mut command = goblin(scratch.path());
    command.args(["stdio", "--url", &gateway.url]).stderr(Stdio::piped());
    let client = Client::run(command);
    let mut lines = BufReader::new(client.stderr()).lines();
    let log = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&log);
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            kept.lock().expect("no test panics here").push(line);
        }
    });
    let mut bridged = Bridged { gateway, client, log, _scratch: scratch };
    bridged.client.write(HELLO).await;
    bridged.client.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    let (initialize, stream) = bridged.gateway.begin("one").await;
    assert_eq!(initialize, HELLO);
    assert_eq!(bridged.client.message().await["id"], "h");
    (bridged, stream)
}

impl Bridged {
    async fn await_log(&self, fragment: &str) {
        eventually(&format!("the log has {fragment:?}"), || async {
            self.log.lock().expect("no test panics here").iter().any(|line| line.contains(fragment)).then_some(())
        })
        .await;
    }

    /// Sends a response as the client, and checks that the gateway receives it unchanged.
    async fn assert_forwarded(&mut self, line: &str) {
        self.client.write(line).await;
        let arrival = self.gateway.post().await;
        assert_eq!((arrival.body.as_str(), arrival.header("mcp-session-id")), (line, Some("one")));
        arrival.accept().await;
    }

    /// Makes the gateway forget the session at a request of the client, which starts the session "two".
    async fn forget_session(&mut self, stream: EventStream) -> EventStream {
        self.client.write(r#"{"jsonrpc":"2.0","id":"first","method":"ping"}"#).await;
        self.gateway.request("ping").await.answer("404 Not Found", "", "").await;
        drop(stream);
        let (initialize, stream) = self.gateway.begin("two").await;
        assert_eq!(initialize, HELLO, "the capabilities are those of the client");
        let ping = self.gateway.request("ping").await;
        assert_eq!(ping.header("mcp-session-id"), Some("two"));
        ping.reply(json!({})).await;
        stream
    }

    /// Reads until a message is `wanted`.
    async fn await_message(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.client.message().await;
            if wanted(&message) {
                return message;
            }
        }
    }
}

#[tokio::test]
async fn server_requests_and_answers_pass_unchanged_on_every_stream() {
    let (mut bridged, mut session_stream) = bridged().await;
    bridged.client.write(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}"#).await;
    let mut answering = bridged.gateway.request("tools/call").await.stream().await;
    let sampling = r#"{ "params":{"n":1.50},"method":"sampling/createMessage","id":7,"jsonrpc":"2.0"}"#;
    let roots = r#"{"jsonrpc":"2.0","id":"a\u00e9","method":"roots/list"}"#;
    let ping = r#"{"jsonrpc":"2.0","id":-3,"method":"ping"}"#;
    answering.send_message(sampling).await;
    assert_eq!(bridged.client.line().await.as_deref(), Some(sampling));
    answering.send_message(roots).await;
    assert_eq!(bridged.client.line().await.as_deref(), Some(roots));
    session_stream.send_message(ping).await;
    assert_eq!(bridged.client.line().await.as_deref(), Some(ping));

    bridged.assert_forwarded(r#"{"result":{ "roots":[] },"id":"a\u00e9","jsonrpc":"2.0"}"#).await;
    bridged.assert_forwarded(r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"no","data":{"x":1.0}}}"#).await;
    bridged.assert_forwarded(r#"{"jsonrpc":"2.0","id":-3,"result":{}}"#).await;

    answering.send_message(r#"{"jsonrpc":"2.0","id":7,"result":{"ok":true}}"#).await;
    answering.end().await;
    assert_eq!(bridged.client.message().await["result"], json!({"ok": true}));
}

#[tokio::test]
async fn answers_and_notifications_arrive_in_the_order_of_the_client() {
    let (mut bridged, mut session_stream) = bridged().await;
    for number in 0..10 {
        session_stream
            .send_message(&json!({"jsonrpc": "2.0", "id": number, "method": "sampling/createMessage"}).to_string())
            .await;
        assert_eq!(bridged.client.message().await["id"], number);
    }
    let mut lines = Vec::new();
    for number in 0..10 {
        let progress = json!({"progressToken": number, "progress": 1});
        lines.push(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}).to_string());
        lines.push(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#.to_owned());
        lines.push(json!({"jsonrpc": "2.0", "id": number, "result": {}}).to_string());
    }
    bridged.client.write(&lines.join("\n")).await;
    for line in lines {
        let arrival = bridged.gateway.post().await;
        assert_eq!(arrival.body, line);
        arrival.accept().await;
    }
}

#[tokio::test]
async fn an_answer_to_a_server_request_of_an_earlier_session_is_dropped() {
    let (mut bridged, mut stream) = bridged().await;
    stream.send_message(r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"one?"}}"#).await;
    assert_eq!(bridged.client.message().await["id"], 1);
    let mut stream = bridged.forget_session(stream).await;
    let cancelled = bridged.await_message(|message| message["method"] == "notifications/cancelled").await;
    assert_eq!(cancelled["params"]["requestId"], 1);

    // The id is the same but the request is another. The client may still answer the first.
    stream.send_message(r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"two?"}}"#).await;
    let server_request = bridged.await_message(|message| message["method"] == "elicitation/create").await;
    assert_eq!(server_request["params"]["message"], "two?");
    assert_ne!(server_request["id"], 1);
    bridged.client.write(r#"{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}"#).await;
    bridged.await_log("dropped an answer of the client").await;
    bridged
        .client
        .write(&json!({"jsonrpc": "2.0", "id": server_request["id"], "result": {"action": "decline"}}).to_string())
        .await;
    let arrival = bridged.gateway.post().await;
    assert_eq!(arrival.message, json!({"jsonrpc": "2.0", "id": 1, "result": {"action": "decline"}}));
    assert_eq!(arrival.header("mcp-session-id"), Some("two"));
    arrival.accept().await;
}

#[tokio::test]
async fn an_answer_for_a_forgotten_session_is_not_sent_to_the_next_session() {
    let (mut bridged, mut stream) = bridged().await;
    stream.send_message(r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#).await;
    assert_eq!(bridged.client.message().await["id"], 1);
    bridged.client.write(r#"{"jsonrpc":"2.0","id":1,"result":{"roots":[]}}"#).await;
    bridged.client.write(r#"{"jsonrpc":"2.0","id":"after","method":"ping"}"#).await;
    bridged.gateway.post().await.answer("404 Not Found", "", "").await;
    drop(stream);
    let _stream = bridged.gateway.begin("two").await;
    // Any other pending message would arrive before this one. The bridge may also have tried the old session.
    loop {
        let arrival = bridged.gateway.post().await;
        assert_eq!(arrival.message["id"], "after", "{}", arrival.body);
        if arrival.header("mcp-session-id") == Some("two") {
            return arrival.reply(json!({})).await;
        }
        arrival.answer("404 Not Found", "", "").await;
    }
}

#[tokio::test]
async fn an_answer_that_the_gateway_rejects_is_replaced_by_an_error() {
    let (mut bridged, mut stream) = bridged().await;
    stream.send_message(r#"{"jsonrpc":"2.0","id":"big","method":"sampling/createMessage"}"#).await;
    assert_eq!(bridged.client.message().await["id"], "big");
    bridged.client.write(r#"{"jsonrpc":"2.0","id":"big","result":{"content":"too large"}}"#).await;
    bridged.gateway.post().await.answer("413 Content Too Large", "", "").await;
    let arrival = bridged.gateway.post().await;
    assert_eq!(arrival.message["id"], "big");
    let message = arrival.message["error"]["message"].as_str().expect("a text");
    assert!(message.contains("413"), "{message}");
    arrival.accept().await;
}

#[tokio::test]
async fn server_requests_are_cancelled_by_the_gateway_and_rejected_after_the_client_leaves() {
    let (mut bridged, mut stream) = bridged().await;
    for number in 1..=2 {
        stream.send_message(&json!({"jsonrpc": "2.0", "id": number, "method": "ping"}).to_string()).await;
        assert_eq!(bridged.client.message().await["id"], number);
    }
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    stream.send_message(cancel).await;
    assert_eq!(bridged.client.line().await.as_deref(), Some(cancel));
    bridged.client.close_input();
    let arrival = bridged.gateway.post().await;
    assert_eq!(arrival.message["id"], 2, "{}", arrival.body);
    assert!(arrival.message["error"].is_object(), "{}", arrival.body);
    arrival.accept().await;
    let end = bridged.gateway.take("the end", |arrival| arrival.verb() == "DELETE").await;
    assert_eq!(end.header("mcp-session-id"), Some("one"));
    end.accept().await;
    assert_eq!(bridged.client.close().await.code(), Some(0));
}
