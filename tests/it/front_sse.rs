//! HTTP+SSE from the client's view: one stream for all incoming messages, a POST for each outgoing one.
//!
//! The stream is the session: when it ends, the session and its calls end too. A client that does not read is
//! disconnected without effect on others.

use std::collections::BTreeSet;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::client::http::Answer;
use crate::client::{Client, NEWEST_LEGACY, call, hello, request};
use crate::harness::{Gateway, TIMEOUT, eventually, fixture_server, signal};
use crate::scrape::{metric, metric_becomes};
use crate::support::{assert_error, await_arrivals};

const UNKNOWN_SESSION: &str = "0f0f0f0f-0f0f-8f0f-8f0f-0f0f0f0f0f0f";

async fn gateway() -> Gateway {
    Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await
}

async fn sessions_become(client: &Client, count: u64) {
    metric_becomes(client, "goblin_sessions_active", count).await;
}

async fn was_cancelled(watcher: &Client) {
    eventually("the backend received the cancellation", || async {
        (watcher.call_text("a_cancelled", json!({})).await != "[]").then_some(())
    })
    .await;
}

async fn post(http: &Client, path: &str, body: &str) -> Answer {
    http.send(Method::POST, path, &[("content-type", "application/json")], body.to_owned()).await
}

/// Returns a client with a session of the newest legacy version, after the tool of this name is listed.
async fn connected_client(gateway: &Gateway, tool: &str) -> Client {
    gateway.client_seeing(tool).await;
    Client::sse(gateway.address).await.connected(NEWEST_LEGACY).await
}

/// A stream as bytes. HTTP/1.0 has no chunks, so the bytes are exactly those of the gateway.
struct RawStream {
    stream: TcpStream,
    read: Vec<u8>,
}

impl RawStream {
    async fn open(gateway: &Gateway) -> RawStream {
        let mut stream = TcpStream::connect(gateway.address).await.expect("the gateway listens");
        stream.write_all(b"GET /sse HTTP/1.0\r\nhost: localhost\r\n\r\n").await.expect("the gateway reads");
        RawStream { stream, read: Vec::new() }
    }

    /// Reads everything up to the next empty line.
    async fn block(&mut self) -> String {
        loop {
            let end_of =
                |mark: &[u8]| self.read.windows(mark.len()).position(|at| at == mark).map(|at| at + mark.len());
            let end = end_of(b"\n\n").into_iter().chain(end_of(b"\r\n\r\n")).min();
            if let Some(end) = end {
                return String::from_utf8(self.read.drain(..end).collect()).expect("text");
            }
            let read = self.stream.read_buf(&mut self.read);
            let count = tokio::time::timeout(TIMEOUT, read).await.expect("bytes in time").expect("bytes");
            assert!(count > 0, "the stream ended");
        }
    }

    /// Reads the head, and the path in the first event.
    async fn read_head(&mut self) -> (String, String) {
        let (head, event) = (self.block().await, self.block().await);
        let path = event.strip_prefix("event: endpoint\ndata: ").and_then(|rest| rest.strip_suffix("\n\n"));
        (head, path.unwrap_or_else(|| panic!("{event:?}")).to_owned())
    }

    /// Returns a client that has completed the handshake and reads no further.
    async fn open_unread(gateway: &Gateway) -> (RawStream, Client, String) {
        let http = Client::new(gateway.address);
        let mut raw = RawStream::open(gateway).await;
        let (_, path) = raw.read_head().await;
        let body = request(json!("hello"), "initialize", hello("2025-11-25", json!({})));
        assert_eq!(post(&http, &path, &body).await.status, StatusCode::ACCEPTED);
        raw.block().await;
        (raw, http, path)
    }
}

#[tokio::test]
async fn http1_the_first_event_names_the_path_and_answers_are_messages() {
    let gateway = gateway().await;
    let client = gateway.client_seeing("a_echo").await;
    let mut raw = RawStream::open(&gateway).await;
    let (head, path) = raw.read_head().await;
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    for header in ["content-type: text/event-stream\r\n", "cache-control: no-cache\r\n", "x-accel-buffering: no\r\n"] {
        assert!(head.contains(header), "{head}");
    }
    let id = path.strip_prefix("/messages?sessionId=").unwrap_or_else(|| panic!("{path}"));
    assert_eq!((id.len(), &id[14..15]), (36, "8"), "a version 8 UUID: {id}");
    for (body, answer) in [
        (request(json!("é"), "ping", json!({})), r#"{"jsonrpc":"2.0","id":"é","result":{}}"#),
        (
            request(json!(7), "tools/list", json!({})),
            r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"invalid request: the first request must be initialize","data":{"code":"INVALID_REQUEST"}}}"#,
        ),
    ] {
        let accepted = post(&client, &path, &body).await;
        assert_eq!((accepted.status, accepted.body.as_str()), (StatusCode::ACCEPTED, "Accepted"), "{accepted:?}");
        assert_eq!(raw.block().await, format!("event: message\ndata: {answer}\n\n"));
    }
    post(&client, &path, &request(json!(0), "initialize", hello("2024-11-05", json!({})))).await;
    assert!(
        raw.block().await.starts_with("event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{\"protocolV")
    );
    post(&client, &path, &call("c", "a_echo", json!({"n": 1}))).await;
    let expected = concat!(
        r#"{"jsonrpc":"2.0","id":"c","result":{"content":[{"type":"text","text":"{\"n\":1}"}],"#,
        r#""structuredContent":{"n":1}}}"#
    );
    assert_eq!(raw.block().await, format!("event: message\ndata: {expected}\n\n"));
}

#[tokio::test]
async fn http1_only_get_opens_a_stream() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = Client::new(gateway.address);
    let json = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")];
    for verb in [Method::POST, Method::PUT, Method::DELETE] {
        let body = request(json!(0), "initialize", hello("2025-11-25", json!({})));
        let answer = client.send(verb.clone(), "/sse", &json, body).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{verb}: {answer:?}");
        assert_eq!(answer.headers["allow"], "GET");
    }
    let answer = client.send(Method::GET, "/sse", &[("accept", "application/json")], "").await;
    assert_eq!(answer.status, StatusCode::NOT_ACCEPTABLE, "{answer:?}");
    for path in ["/sse/", "/messages/", "/SSE"] {
        let answer = client.send(Method::GET, path, &[], "").await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}: {answer:?}");
    }
    sessions_become(&client, 0).await;
}

#[tokio::test]
async fn http2_an_undeliverable_post_is_rejected_and_changes_nothing() {
    let gateway =
        Gateway::start(json!({ "gateway": { "maxBodySize": "2KiB" }, "mcpServers": { "a": fixture_server(&[]) } }));
    let gateway = gateway.await;
    let client = connected_client(&gateway, "a_echo").await;
    let ping = request(json!("p"), "ping", json!({}));
    let long = request(json!("p"), "ping", json!({"fill": "x".repeat(2048)}));
    let own = client.endpoint.clone();
    let path = |id: &str| format!("/messages?sessionId={id}");
    let kind = "application/json";
    for (verb, path, kind, body, status) in [
        (Method::POST, own.clone(), kind, "{", 400),
        (Method::POST, own.clone(), kind, "", 400),
        (Method::POST, own.clone(), kind, "7", 400),
        (Method::POST, own.clone(), kind, r#"{"jsonrpc":"2.0","id":1}"#, 400),
        (Method::POST, own.clone(), kind, r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#, 400),
        (Method::POST, own.clone(), kind, r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#, 400),
        (Method::POST, own.clone(), kind, "[]", 400),
        (Method::POST, own.clone(), kind, &format!("[{ping}]"), 400),
        (Method::POST, own.clone(), kind, &long, 413),
        (Method::POST, own.clone(), "text/plain", &ping, 415),
        (Method::POST, own.clone(), "", &ping, 415),
        (Method::GET, own.clone(), kind, "", 405),
        (Method::DELETE, own.clone(), kind, "", 405),
        (Method::POST, "/messages".to_owned(), kind, &ping, 400),
        (Method::POST, format!("{own}&sessionId={UNKNOWN_SESSION}"), kind, &ping, 400),
        (Method::POST, path(UNKNOWN_SESSION), kind, &ping, 404),
        (Method::POST, path("x"), kind, &ping, 404),
        (Method::POST, path(""), kind, &ping, 404),
    ] {
        let answer = client.send(verb.clone(), &path, &[("content-type", kind)], body.to_owned()).await;
        assert_eq!(answer.status.as_u16(), status, "{verb} {path} {kind} {body}: {answer:?}");
        match status {
            405 => assert_eq!(answer.headers["allow"], "POST"),
            _ => assert!(answer.json()["error"]["code"].is_i64(), "{answer:?}"),
        }
    }
    // A response to any of them would arrive first.
    client.works().await;
    client.write(&call("c", "a_echo", json!({"n": 1}))).await;
    assert_eq!(client.answer().await["result"]["structuredContent"], json!({"n": 1}));
}

#[tokio::test]
async fn http2_notifications_and_answers_are_accepted() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = Client::sse(gateway.address).await.connected("2025-11-25").await;
    for body in [
        json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}),
        json!({"jsonrpc": "2.0", "method": "notifications/nobody/knows"}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
        json!({"jsonrpc": "2.0", "id": "x", "error": {"code": 1, "message": "no"}}),
    ] {
        client.write(&body.to_string()).await;
    }
    client.works().await;
}

#[tokio::test]
async fn srv2_a_session_over_sse_begins_with_exactly_one_handshake() {
    let gateway = Gateway::with_servers(json!({})).await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = Client::sse(gateway.address).await;
        client.works().await;
        for method in ["tools/list", "tools/call", "nobody/knows"] {
            let rejected = client.request(method, json!({"name": "x"})).await;
            assert_eq!(rejected["error"]["code"], -32600, "{rejected}");
            assert!(rejected["error"]["message"].as_str().expect("a text").contains("initialize"), "{rejected}");
        }
        assert_eq!(client.post(format!("[{}]", request(json!(1), "ping", json!({})))).await.status, 400);
        assert_eq!(client.request("initialize", json!({})).await["error"]["code"], -32602);
        let answer = client.request("initialize", hello(version, json!({}))).await;
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
        assert_eq!(client.request("initialize", hello(version, json!({}))).await["error"]["code"], -32600);
        assert_eq!(client.request("tools/list", json!({})).await["result"]["tools"], json!([]));
    }
}

#[tokio::test]
async fn http2_a_batch_over_sse_is_answered_message_by_message_in_version_2025_03_26() {
    let gateway = gateway().await;
    gateway.client_seeing("a_echo").await;
    let client = Client::sse(gateway.address).await.connected("2025-03-26").await;
    let batch = [request(json!("one"), "ping", json!({})), call("two", "a_echo", json!({"n": 2})), "7".to_owned()];
    client.write(&format!("[{}]", batch.join(","))).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(client.answer().await);
    }
    let of =
        |id: Value| answers.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("{id}: {answers:?}"));
    assert_eq!(of(json!("one"))["result"], json!({}));
    assert_eq!(of(json!("two"))["result"]["structuredContent"], json!({"n": 2}));
    assert_eq!(of(Value::Null)["error"]["code"], -32600);
    client.works().await;
}

#[tokio::test]
async fn sess1_two_streams_are_two_sessions_and_receive_only_their_own_messages() {
    let gateway = gateway().await;
    let one = connected_client(&gateway, "a_nonce").await;
    let other = Client::sse(gateway.address).await.connected("2024-11-05").await;
    assert_ne!(one.endpoint, other.endpoint);
    for round in 0..20 {
        // Both clients use the same ids, and the second receives its response first.
        one.write(&call(7, "a_nonce", json!({"nonce": format!("one {round}"), "delayMs": 20}))).await;
        other.write(&call(7, "a_nonce", json!({"nonce": format!("other {round}")}))).await;
        for (client, name) in [(&other, "other"), (&one, "one")] {
            let answer = client.answer().await;
            assert_eq!(answer["id"], 7);
            assert_eq!(answer["result"]["content"][0]["text"], format!("{name} {round}"));
        }
    }
}

#[tokio::test]
async fn sess1_a_session_id_of_one_transport_is_unknown_to_the_other() {
    let gateway = Gateway::with_servers(json!({})).await;
    let (sse, mut mcp) = (Client::sse(gateway.address).await.connected("2025-11-25").await, gateway.client().await);
    let own = mcp.session.clone().expect("a session");
    let ping = request(json!(1), "ping", json!({}));
    let answer = post(&mcp, &format!("/messages?sessionId={own}"), &ping).await;
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "{answer:?}");
    mcp.session = sse.endpoint.split('=').nth(1).map(str::to_owned);
    for verb in [Method::POST, Method::GET, Method::DELETE] {
        let answer = mcp.send(verb.clone(), "/mcp", &mcp.headers(), ping.clone()).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{verb}: {answer:?}");
    }
    sse.works().await;
    mcp.session = Some(own);
    assert_eq!(mcp.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn sess1_streams_count_as_sessions_also_before_their_handshake() {
    let gateway = Gateway::start(json!({ "gateway": { "maxSessions": 2 }, "mcpServers": {} })).await;
    let http = Client::new(gateway.address);
    let (silent, client) =
        (Client::sse(gateway.address).await, Client::sse(gateway.address).await.connected("2025-11-25").await);
    let accept = [("accept", "text/event-stream"), ("content-type", "application/json")];
    let hello = request(json!(0), "initialize", hello("2025-11-25", json!({})));
    for (verb, path) in [(Method::GET, "/sse"), (Method::POST, "/mcp")] {
        let answer = http.send(verb, path, &accept, hello.clone()).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}: {answer:?}");
        assert_error(&answer.json(), 1429, "LIMIT_EXCEEDED");
        assert!(answer.headers.contains_key("retry-after"));
    }
    sessions_become(&http, 2).await;
    drop(silent);
    sessions_become(&http, 1).await;
    assert_eq!(gateway.client().await.request("ping", json!({})).await["result"], json!({}));
    client.works().await;
}

#[tokio::test]
async fn http1_progress_is_delivered_before_the_answer() {
    let gateway = gateway().await;
    let client = connected_client(&gateway, "a_progress").await;
    let params = json!({"name": "a_progress", "arguments": {"steps": 3}, "_meta": {"progressToken": "mine"}});
    client.write(&request(json!("p"), "tools/call", params)).await;
    for step in 1..=3 {
        let message = client.message().await;
        assert_eq!(message["method"], "notifications/progress", "{message}");
        assert_eq!(
            (&message["params"]["progressToken"], &message["params"]["progress"]),
            (&json!("mine"), &json!(step))
        );
    }
    assert_eq!(client.message().await["result"]["content"][0]["text"], "3 steps");
}

#[tokio::test]
async fn srv4_a_change_is_notified_on_the_stream_only_after_the_handshake() {
    let gateway = gateway().await;
    let watcher = gateway.client_seeing("a_change_tools").await;
    let client = Client::sse(gateway.address).await;
    client.request("initialize", hello("2025-11-25", json!({}))).await;
    watcher.call("a_change_tools", json!({})).await;
    watcher.await_tool("a_added_0001").await;
    // This exceeds the pause between two notifications.
    client.write(&call("sleep", "a_sleep", json!({"ms": 1500}))).await;
    let message = client.message().await;
    assert_eq!(message["id"], "sleep", "a notification before `initialized`: {message}");
    client.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    assert_eq!(client.message().await["method"], "notifications/tools/list_changed");
    for (tool, method) in [
        ("a_change_prompts", "notifications/prompts/list_changed"),
        ("a_change_resources", "notifications/resources/list_changed"),
    ] {
        watcher.call(tool, json!({})).await;
        client.notification(method).await;
    }
}

#[tokio::test]
async fn http2_a_call_is_answered_on_the_stream_even_if_its_post_is_cut() {
    let gateway = gateway().await;
    let client = connected_client(&gateway, "a_nonce").await;
    for number in 0..10 {
        let nonce = format!("nonce {number}");
        let body = call(number, "a_nonce", json!({"nonce": nonce, "delayMs": 50}));
        let mut stream = TcpStream::connect(gateway.address).await.expect("the gateway listens");
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            client.endpoint,
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).await.expect("the gateway reads");
        // The response has arrived, so the message was accepted. A connection that ends earlier may lose the message.
        stream.readable().await.expect("an answer");
        if number % 2 == 0 {
            stream.set_zero_linger().expect("the option can be set");
        }
        drop(stream);
        let answer = client.answer().await;
        assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(number), &json!(nonce)));
    }
}

#[tokio::test]
async fn http2_calls_over_sse_are_bounded_and_can_be_cancelled() {
    let config = json!({ "policies": { "maxInFlight": 2 }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = connected_client(&gateway, "a_hang").await;
    client.write(&call("one", "a_hang", json!({}))).await;
    client.write(&call("two", "a_hang", json!({}))).await;
    client.write(&call("two", "a_echo", json!({}))).await;
    assert_eq!(client.answer().await["error"]["code"], -32600, "an id in flight");
    client.write(&call("three", "a_echo", json!({}))).await;
    assert_error(&client.answer().await, 1429, "LIMIT_EXCEEDED");
    client.write(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"one"}}"#).await;
    was_cancelled(&gateway.client().await).await;
    let answer = client.request("tools/call", json!({"name": "a_echo", "arguments": {}})).await;
    assert!(answer["error"].is_null(), "a cancelled call has no answer and leaves its place: {answer}");
}

/// The ways in which a client's stream may end.
#[derive(Clone, Copy, Debug)]
enum End {
    Close,
    HalfClose,
    Reset,
}

#[tokio::test]
async fn sess2_a_session_and_its_calls_end_with_its_stream() {
    for end in [End::Close, End::HalfClose, End::Reset] {
        let gateway = gateway().await;
        let watcher = gateway.client_seeing("a_hang").await;
        let other = Client::sse(gateway.address).await.connected("2025-11-25").await;
        // The sessions of the client that waited for the tool, the watcher and the other client.
        let before = metric(&watcher, "goblin_sessions_active").await;
        let (mut raw, http, path) = RawStream::open_unread(&gateway).await;
        sessions_become(&watcher, before + 1).await;
        assert_eq!(post(&http, &path, &call("h", "a_hang", json!({}))).await.status, StatusCode::ACCEPTED);
        await_arrivals(&watcher, "a", 1).await;
        match end {
            End::Close => drop(raw),
            End::HalfClose => {
                raw.stream.shutdown().await.expect("the stream is open");
                let mut rest = Vec::new();
                let read = tokio::time::timeout(TIMEOUT, raw.stream.read_to_end(&mut rest)).await;
                read.expect("an end in time").expect("bytes");
                assert_eq!(rest, b"", "{end:?}");
            }
            // The system resets the connection of a program that is killed with unread bytes.
            End::Reset => {
                raw.stream.set_zero_linger().expect("the option can be set");
                drop(raw);
            }
        }
        was_cancelled(&watcher).await;
        sessions_become(&watcher, before).await;
        let answer = post(&http, &path, &request(json!(1), "ping", json!({}))).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{end:?}: {answer:?}");
        other.works().await;
    }
}

/// Starts a gateway with a list of about 1 MiB, which is a large response at no cost. No list waits for a refresh.
async fn gateway_with_long_lists() -> Gateway {
    let mut server = fixture_server(&["--tools", "900"]);
    server["refresh"] = json!("never");
    Gateway::with_servers(json!({ "a": server })).await
}

#[tokio::test]
async fn sess2_a_client_that_never_reads_is_disconnected_and_others_are_unaffected() {
    let gateway = gateway_with_long_lists().await;
    let watcher = gateway.client_seeing("a_hang").await;
    let other = Client::sse(gateway.address).await.connected("2025-11-25").await;
    let before = metric(&watcher, "goblin_sessions_active").await;
    let (mut raw, http, path) = RawStream::open_unread(&gateway).await;
    assert_eq!(post(&http, &path, &call("h", "a_hang", json!({}))).await.status, StatusCode::ACCEPTED);
    await_arrivals(&watcher, "a", 1).await;
    let mut posted = 0;
    while post(&http, &path, &request(json!(posted), "tools/list", json!({}))).await.status == StatusCode::ACCEPTED {
        posted += 1;
        assert!(posted < 1000, "the gateway accepts an unlimited number of answers");
        if posted % 10 == 0 {
            other.works().await;
        }
    }
    assert!(posted > 16, "{posted}: a short delay of a client that reads must be no reason");
    assert_eq!(metric(&watcher, r#"goblin_events_total{kind="client_slow"}"#).await, 1);
    was_cancelled(&watcher).await;
    sessions_become(&watcher, before).await;
    other.works().await;
    // The remaining bytes are whole responses in order, followed by the end.
    let mut rest = std::mem::take(&mut raw.read);
    tokio::time::timeout(TIMEOUT, raw.stream.read_to_end(&mut rest)).await.expect("an end in time").expect("bytes");
    let rest = String::from_utf8(rest).expect("text");
    assert!(rest.ends_with("\n\n"));
    let ids: Vec<Value> = rest
        .split_terminator("\n\n")
        .map(|event| event.strip_prefix("event: message\ndata: ").expect("a message"))
        .map(|data| serde_json::from_str::<Value>(data).expect("a whole message")["id"].clone())
        .collect();
    assert!(ids.len() < posted, "some were thrown away");
    assert_eq!(ids, (0..ids.len()).map(Value::from).collect::<Vec<_>>());
}

#[tokio::test]
async fn http1_progress_without_room_is_dropped_and_counted_and_every_answer_is_delivered() {
    const LISTS: usize = 30;
    const STEPS: usize = 50;
    let gateway = gateway_with_long_lists().await;
    let watcher = gateway.client_seeing("a_progress").await;
    let (mut raw, http, path) = RawStream::open_unread(&gateway).await;
    for id in 0..LISTS {
        let answer = post(&http, &path, &request(json!(id), "tools/list", json!({}))).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED);
    }
    let params = json!({"name": "a_progress", "arguments": {"steps": STEPS}, "_meta": {"progressToken": 1}});
    assert_eq!(post(&http, &path, &request(json!("p"), "tools/call", params)).await.status, StatusCode::ACCEPTED);
    metric_becomes(&watcher, r#"goblin_events_total{kind="message_dropped"}"#, STEPS as u64).await;
    let mut ids = BTreeSet::new();
    while ids.len() <= LISTS {
        let event = raw.block().await;
        let data = event.strip_prefix("event: message\ndata: ").expect("a message");
        let message: Value = serde_json::from_str(data).expect("a whole message");
        assert!(message["method"].is_null(), "{message}");
        ids.insert(message["id"].to_string());
    }
    let expected = (0..LISTS).map(|id| id.to_string()).chain(["\"p\"".to_owned()]).collect();
    assert_eq!(ids, expected);
    assert_eq!(metric(&watcher, r#"goblin_events_total{kind="client_slow"}"#).await, 0);
}

#[tokio::test]
async fn f26_over_sse_open_calls_are_answered_before_the_stream_ends() {
    let config = json!({ "gateway": { "grace": "60s" }, "mcpServers": { "a": fixture_server(&[]) } });
    let mut gateway = Gateway::start(config).await;
    let client = connected_client(&gateway, "a_nonce").await;
    let idle = Client::sse(gateway.address).await.connected("2025-11-25").await;
    let silent = Client::sse(gateway.address).await;
    client.write(&call("last", "a_nonce", json!({"nonce": "last words", "delayMs": 1500}))).await;
    await_arrivals(&gateway.client().await, "a", 1).await;
    signal(gateway.child.id().expect("the process runs"), "TERM");
    for client in [idle, silent] {
        assert_eq!(client.line().await, None);
    }
    assert_eq!(client.answer().await["result"]["content"][0]["text"], "last words");
    assert_eq!(client.line().await, None);
    let status = gateway.child.wait().await.expect("the exit status is known");
    assert!(status.success(), "{status}");
}
