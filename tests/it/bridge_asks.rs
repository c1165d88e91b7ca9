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
    let (said, stream) = bridged.gateway.begin("one").await;
    assert_eq!(said, HELLO);
    assert_eq!(bridged.client.message().await["id"], "h");
    (bridged, stream)
}

impl Bridged {
    async fn await_log(&self, words: &str) {
        eventually(&format!("the log says {words:?}"), || async {
            self.log.lock().expect("no test panics here").iter().any(|line| line.contains(words)).then_some(())
        })
        .await;
    }

    /// Sends a response as the client, and checks that the gateway receives it unchanged.
    async fn carries(&mut self, line: &str) {
        self.client.write(line).await;
        let arrival = self.gateway.post().await;
        assert_eq!((arrival.body.as_str(), arrival.header("mcp-session-id")), (line, Some("one")));
        arrival.accept().await;
    }

    /// Makes the gateway forget the session at a request of the client, which starts the session "two".
    async fn forget(&mut self, stream: EventStream) -> EventStream {
        self.client.write(r#"{"jsonrpc":"2.0","id":"first","method":"ping"}"#).await;
        self.gateway.request("ping").await.answer("404 Not Found", "", "").await;
        drop(stream);
        let (said, stream) = self.gateway.begin("two").await;
        assert_eq!(said, HELLO, "the capabilities are those of the client");
        let ping = self.gateway.request("ping").await;
        assert_eq!(ping.header("mcp-session-id"), Some("two"));
        ping.reply(json!({})).await;
        stream
    }

    /// Reads until a message is `wanted`.
    async fn hears(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.client.message().await;
            if wanted(&message) {
                return message;
            }
        }
    }
}

#[tokio::test]
async fn asks_and_answers_pass_as_they_are_on_every_stream() {
    let (mut bridged, mut standing) = bridged().await;
    bridged.client.write(r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t"}}"#).await;
    let mut answering = bridged.gateway.request("tools/call").await.stream().await;
    let sampling = r#"{ "params":{"n":1.50},"method":"sampling/createMessage","id":7,"jsonrpc":"2.0"}"#;
    let roots = r#"{"jsonrpc":"2.0","id":"a\u00e9","method":"roots/list"}"#;
    let ping = r#"{"jsonrpc":"2.0","id":-3,"method":"ping"}"#;
    answering.say(sampling).await;
    assert_eq!(bridged.client.line().await.as_deref(), Some(sampling));
    answering.say(roots).await;
    assert_eq!(bridged.client.line().await.as_deref(), Some(roots));
    standing.say(ping).await;
    assert_eq!(bridged.client.line().await.as_deref(), Some(ping));

    bridged.carries(r#"{"result":{ "roots":[] },"id":"a\u00e9","jsonrpc":"2.0"}"#).await;
    bridged.carries(r#"{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"no","data":{"x":1.0}}}"#).await;
    bridged.carries(r#"{"jsonrpc":"2.0","id":-3,"result":{}}"#).await;

    answering.say(r#"{"jsonrpc":"2.0","id":7,"result":{"ok":true}}"#).await;
    answering.end().await;
    assert_eq!(bridged.client.message().await["result"], json!({"ok": true}));
}

#[tokio::test]
async fn answers_and_notifications_arrive_in_the_order_they_were_said() {
    let (mut bridged, mut standing) = bridged().await;
    for number in 0..10 {
        standing.say(&json!({"jsonrpc": "2.0", "id": number, "method": "sampling/createMessage"}).to_string()).await;
        assert_eq!(bridged.client.message().await["id"], number);
    }
    let mut said = Vec::new();
    for number in 0..10 {
        let progress = json!({"progressToken": number, "progress": 1});
        said.push(json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}).to_string());
        said.push(r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#.to_owned());
        said.push(json!({"jsonrpc": "2.0", "id": number, "result": {}}).to_string());
    }
    bridged.client.write(&said.join("\n")).await;
    for line in said {
        let arrival = bridged.gateway.post().await;
        assert_eq!(arrival.body, line);
        arrival.accept().await;
    }
}

#[tokio::test]
async fn an_answer_to_an_ask_of_the_session_before_goes_nowhere() {
    let (mut bridged, mut stream) = bridged().await;
    stream.say(r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"one?"}}"#).await;
    assert_eq!(bridged.client.message().await["id"], 1);
    let mut stream = bridged.forget(stream).await;
    let cancelled = bridged.hears(|message| message["method"] == "notifications/cancelled").await;
    assert_eq!(cancelled["params"]["requestId"], 1);

    // The id is the same but the request is another. The client may still answer the first.
    stream.say(r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"two?"}}"#).await;
    let ask = bridged.hears(|message| message["method"] == "elicitation/create").await;
    assert_eq!(ask["params"]["message"], "two?");
    assert_ne!(ask["id"], 1);
    bridged.client.write(r#"{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}"#).await;
    bridged.await_log("dropped an answer of the client").await;
    bridged
        .client
        .write(&json!({"jsonrpc": "2.0", "id": ask["id"], "result": {"action": "decline"}}).to_string())
        .await;
    let arrival = bridged.gateway.post().await;
    assert_eq!(arrival.message, json!({"jsonrpc": "2.0", "id": 1, "result": {"action": "decline"}}));
    assert_eq!(arrival.header("mcp-session-id"), Some("two"));
    arrival.accept().await;
}

#[tokio::test]
async fn an_answer_that_finds_its_session_forgotten_is_not_sent_into_the_next() {
    let (mut bridged, mut stream) = bridged().await;
    stream.say(r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#).await;
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
async fn an_answer_that_the_gateway_does_not_take_becomes_an_error_there() {
    let (mut bridged, mut stream) = bridged().await;
    stream.say(r#"{"jsonrpc":"2.0","id":"big","method":"sampling/createMessage"}"#).await;
    assert_eq!(bridged.client.message().await["id"], "big");
    bridged.client.write(r#"{"jsonrpc":"2.0","id":"big","result":{"content":"too large"}}"#).await;
    bridged.gateway.post().await.answer("413 Content Too Large", "", "").await;
    let arrival = bridged.gateway.post().await;
    assert_eq!(arrival.message["id"], "big");
    let words = arrival.message["error"]["message"].as_str().expect("words");
    assert!(words.contains("413"), "{words}");
    arrival.accept().await;
}

#[tokio::test]
async fn asks_are_cancelled_by_the_gateway_and_refused_when_the_client_is_gone() {
    let (mut bridged, mut stream) = bridged().await;
    for number in 1..=2 {
        stream.say(&json!({"jsonrpc": "2.0", "id": number, "method": "ping"}).to_string()).await;
        assert_eq!(bridged.client.message().await["id"], number);
    }
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    stream.say(cancel).await;
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
