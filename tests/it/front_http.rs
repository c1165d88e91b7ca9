//! Streamable HTTP from the client's view: sessions, statuses, streams.
//!
//! Each violation of the transport has a defined status. A lost connection does not cancel a call.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::Client;
use crate::harness::{Frozen, Gateway, Scratch, TIMEOUT, eventually, fixture_server};
use crate::scrape::{metric, metric_becomes};
use crate::support::frozen_server;

async fn gateway() -> Gateway {
    Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await
}

fn message(id: u64, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn call(id: u64, name: &str, arguments: Value) -> String {
    message(id, "tools/call", json!({"name": name, "arguments": arguments}))
}

/// Returns the headers of `client` with one replaced, or removed if the value is empty.
fn with<'a>(client: &'a Client, name: &'a str, value: &'a str) -> Vec<(&'a str, &'a str)> {
    let others = client.headers().into_iter().filter(|(other, _)| *other != name);
    others.chain(Some((name, value)).filter(|(_, value)| !value.is_empty())).collect()
}

async fn works(client: &Client) {
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn sess1_every_handshake_gets_a_session_of_its_own() {
    let gateway = Gateway::with_servers(json!({})).await;
    let mut ids = std::collections::HashSet::new();
    for _ in 0..5 {
        let session = gateway.client().await.session.expect("a session id");
        assert_eq!(session.len(), 36, "{session}");
        assert_eq!(&session[14..15], "8", "a version 8 UUID: {session}");
        assert!("89ab".contains(&session[19..20]), "{session}");
        assert!(ids.insert(session));
    }
}

#[tokio::test]
async fn http3_a_request_needs_a_live_session() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    let unknown_session = "0f0f0f0f-0f0f-8f0f-8f0f-0f0f0f0f0f0f";
    for (session, status) in
        [("", StatusCode::BAD_REQUEST), (unknown_session, StatusCode::NOT_FOUND), ("x", StatusCode::NOT_FOUND)]
    {
        for verb in [Method::POST, Method::GET, Method::DELETE] {
            let headers = with(&client, "mcp-session-id", session);
            let answer = client.send(verb.clone(), "/mcp", &headers, message(1, "ping", json!({}))).await;
            assert_eq!(answer.status, status, "{verb} {session}: {answer:?}");
            assert_eq!(answer.json()["error"]["code"], -32600, "{answer:?}");
        }
    }
    works(&client).await;
}

#[tokio::test]
async fn http3_a_malformed_session_id_is_a_bad_request() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    for session in ["two words", &"x".repeat(257)] {
        let headers = with(&client, "mcp-session-id", session);
        let answer = client.send(Method::POST, "/mcp", &headers, message(1, "ping", json!({}))).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{session}: {answer:?}");
    }
    works(&client).await;
}

#[tokio::test]
async fn sess1_a_deleted_session_ends_and_others_continue() {
    let gateway = Gateway::with_servers(json!({})).await;
    let (client, other) = (gateway.client().await, gateway.client().await);
    let mut stream = client.listen().await;
    assert_eq!(client.send(Method::DELETE, "/mcp", &client.headers(), "").await.status, StatusCode::NO_CONTENT);
    assert!(stream.next().await.is_none(), "the stream ends with the session");
    for verb in [Method::POST, Method::GET, Method::DELETE] {
        let answer = client.send(verb, "/mcp", &client.headers(), message(1, "ping", json!({}))).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{answer:?}");
    }
    works(&other).await;
}

#[tokio::test]
async fn http3_the_version_header_of_a_session_must_name_a_legacy_version() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    for (version, status) in [
        ("1999-01-01", StatusCode::BAD_REQUEST),
        ("x", StatusCode::BAD_REQUEST),
        ("2025-11-25", StatusCode::OK),
        ("", StatusCode::OK),
    ] {
        let headers = with(&client, "mcp-protocol-version", version);
        let answer = client.send(Method::POST, "/mcp", &headers, message(1, "ping", json!({}))).await;
        assert_eq!(answer.status, status, "{version}: {answer:?}");
        assert!(status == StatusCode::OK || answer.body.contains(version), "{answer:?}");
    }
    let headers = with(&client, "mcp-protocol-version", "2026-07-28");
    let answer = client.send(Method::POST, "/mcp", &headers, message(1, "ping", json!({}))).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["data"]["code"]),
        (StatusCode::BAD_REQUEST, &json!("MISSING_META"))
    );
}

#[tokio::test]
async fn http3_other_content_types_and_accept_headers_are_rejected() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    for kind in ["text/plain", "application/jsonx", ""] {
        let answer = client
            .send(Method::POST, "/mcp", &with(&client, "content-type", kind), message(1, "ping", json!({})))
            .await;
        assert_eq!(answer.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind}: {answer:?}");
    }
    for (verb, accept) in
        [(Method::POST, "text/html"), (Method::GET, "application/json"), (Method::GET, "text/html, */html")]
    {
        let answer =
            client.send(verb.clone(), "/mcp", &with(&client, "accept", accept), message(1, "ping", json!({}))).await;
        assert_eq!(answer.status, StatusCode::NOT_ACCEPTABLE, "{verb} {accept}: {answer:?}");
    }
    for (name, value) in [
        ("content-type", "Application/JSON; charset=utf-8"),
        ("accept", "*/*"),
        ("accept", "application/*;q=0.5"),
        ("accept", ""),
    ] {
        let answer =
            client.send(Method::POST, "/mcp", &with(&client, name, value), message(1, "ping", json!({}))).await;
        assert_eq!(answer.status, StatusCode::OK, "{name} {value}: {answer:?}");
    }
}

#[tokio::test]
async fn http3_other_methods_and_paths_are_rejected() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    for verb in [Method::PUT, Method::PATCH] {
        let answer = client.send(verb, "/mcp", &client.headers(), "{}").await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{answer:?}");
        assert_eq!(answer.headers["allow"], "GET, POST, DELETE");
    }
    for path in ["/", "/mcp/", "/mcp/x", "/MCP"] {
        assert_eq!(
            client.send(Method::POST, path, &client.headers(), "{}").await.status,
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
}

#[tokio::test]
async fn http3_a_body_above_the_limit_is_rejected_and_one_at_the_limit_is_accepted() {
    let config = json!({ "gateway": { "maxBodySize": "2KiB" }, "mcpServers": {} });
    let gateway = Gateway::start(config).await;
    let client = gateway.client().await;
    let bare = message(1, "ping", json!({"fill": ""})).len();
    let filled = |size: usize| message(1, "ping", json!({"fill": "x".repeat(size - bare)}));
    assert_eq!(client.post(filled(2048)).await.status, StatusCode::OK);
    let answer = client.post(filled(2049)).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{answer:?}");
    assert!(answer.body.contains("maxBodySize"), "{answer:?}");
    works(&client).await;
}

/// Writes these bytes and reads until the connection closes.
async fn raw(address: std::net::SocketAddr, bytes: &[u8]) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("the gateway listens");
    stream.write_all(bytes).await.expect("the gateway reads");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut answer)).await.expect("an end in time");
    // Unread data may turn the close into a reset.
    assert!(read.is_ok() || !answer.is_empty(), "{read:?}");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn http3_a_chunked_body_above_the_limit_is_rejected() {
    let config = json!({ "gateway": { "maxBodySize": "1KiB" }, "mcpServers": {} });
    let gateway = Gateway::start(config).await;
    let client = gateway.client().await;
    let session = client.session.as_deref().expect("a session");
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nmcp-session-id: {session}\r\n\
         transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    );
    let chunk = format!("400\r\n{}\r\n", " ".repeat(1024));
    let answer = raw(gateway.address, format!("{head}{chunk}{chunk}0\r\n\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    works(&client).await;
}

#[tokio::test]
async fn http3_a_head_above_the_limit_is_rejected() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    let request =
        |size| format!("GET /mcp HTTP/1.1\r\nhost: localhost\r\nx: {}\r\nconnection: close\r\n\r\n", "x".repeat(size));
    let answer = raw(gateway.address, request(17 * 1024).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let answer = raw(gateway.address, request(8 * 1024).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    works(&client).await;
}

#[tokio::test]
async fn http3_notifications_and_answers_are_accepted_with_an_empty_body() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    for body in [
        json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}),
        json!({"jsonrpc": "2.0", "method": "notifications/nobody/knows"}),
        json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
        json!({"jsonrpc": "2.0", "id": "x", "error": {"code": 1, "message": "no"}}),
    ] {
        let answer = client.post(body.to_string()).await;
        assert_eq!((answer.status, answer.body.as_str()), (StatusCode::ACCEPTED, ""), "{body}");
    }
}

#[tokio::test]
async fn http3_a_batch_is_answered_in_version_2025_03_26() {
    let gateway = gateway().await;
    gateway.client_seeing("a_echo").await;
    let client = gateway.client_of("2025-03-26").await;
    let note = json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"});
    let batch = format!(
        "[{},{note},{},7,{}]",
        message(1, "ping", json!({})),
        call(2, "a_echo", json!({"n": 2})),
        call(3, "nope", json!({}))
    );
    let answer = client.post(batch).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let answers = answer.json();
    let answers = answers.as_array().expect("an array");
    assert_eq!(answers.len(), 4, "{answers:?}");
    let of = |id: u64| answers.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("{id}: {answers:?}"));
    assert_eq!(of(1)["result"], json!({}));
    assert_eq!(of(2)["result"]["structuredContent"], json!({"n": 2}));
    assert_eq!(of(3)["error"]["data"]["code"], "TOOL_NOT_FOUND");
    assert!(answers.iter().any(|answer| answer["id"].is_null() && answer["error"]["code"] == -32600), "{answers:?}");

    assert_eq!(client.post(format!("[{note},{note}]")).await.status, StatusCode::ACCEPTED);
    let hello = message(4, "initialize", json!({"protocolVersion": "2025-03-26"}));
    assert_eq!(client.post(format!("[{hello}]")).await.json()[0]["error"]["code"], -32600);
    for bad in ["[]", "[1", "[{},]"] {
        let answer = client.post(bad).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{bad}: {answer:?}");
    }
    works(&client).await;
}

#[tokio::test]
async fn http3_a_batch_is_rejected_in_every_other_version() {
    let gateway = Gateway::with_servers(json!({})).await;
    for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let client = gateway.client_of(version).await;
        let answer = client.post(format!("[{}]", message(1, "ping", json!({})))).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{version}: {answer:?}");
        assert_eq!(answer.json()["error"]["code"], -32600, "{version}: {answer:?}");
        works(&client).await;
    }
}

#[tokio::test]
async fn http3_an_answer_alone_is_json_and_one_after_progress_is_a_stream() {
    let gateway = gateway().await;
    let client = gateway.client_seeing("a_progress").await;
    let alone = client.post(call(1, "a_progress", json!({"steps": 2}))).await;
    assert_eq!(alone.headers["content-type"], "application/json", "{alone:?}");

    let params = json!({"name": "a_progress", "arguments": {"steps": 2}, "_meta": {"progressToken": "my token"}});
    let streamed = client.post(message(2, "tools/call", params.clone())).await;
    assert_eq!(streamed.headers["content-type"], "text/event-stream", "{streamed:?}");
    let messages: Vec<Value> =
        streamed.messages().iter().map(|text| serde_json::from_str(text).expect("JSON")).collect();
    let [first, second, answer] = &messages[..] else { panic!("{messages:?}") };
    for (step, progress) in [(1, first), (2, second)] {
        assert_eq!(progress["method"], "notifications/progress");
        assert_eq!(progress["params"]["progressToken"], "my token");
        assert_eq!(progress["params"]["progress"], step);
    }
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(2), &json!("2 steps")));

    let headers = with(&client, "accept", "application/json");
    let plain = client.send(Method::POST, "/mcp", &headers, message(3, "tools/call", params)).await;
    assert_eq!(plain.headers["content-type"], "application/json", "{plain:?}");
    assert_eq!(plain.json()["result"]["content"][0]["text"], "2 steps");
}

#[tokio::test]
async fn http3_a_slow_answer_is_sent_as_a_stream() {
    let (_gateway, client, frozen) = frozen_server().await;
    let (head, mut stream) = client.open(call(1, "a_echo", json!({"n": 1}))).await;
    assert_eq!(head.headers["content-type"], "text/event-stream");
    drop(frozen);
    assert_eq!(stream.next().await.expect("the answer")["result"]["structuredContent"], json!({"n": 1}));
    assert!(stream.next().await.is_none(), "the stream ends with the answer");
}

#[tokio::test]
async fn sess1_a_second_stream_replaces_the_first() {
    let gateway = gateway().await;
    let client = gateway.client_seeing("a_change_tools").await;
    let mut first = client.listen().await;
    let mut second = client.listen().await;
    while let Some(message) = first.next().await {
        assert!(message["method"].as_str().is_some_and(|method| method.ends_with("list_changed")), "{message}");
    }
    client.call("a_change_tools", json!({})).await;
    second.await_method("notifications/tools/list_changed").await;
}

#[tokio::test]
async fn srv4_every_client_with_a_stream_is_notified_of_a_change() {
    let gateway = gateway().await;
    let client = gateway.client_seeing("a_change_tools").await;
    let other = gateway.client_of("2025-03-26").await;
    let (mut one, mut two) = (client.listen().await, other.listen().await);
    for (tool, notification) in [
        ("a_change_tools", "notifications/tools/list_changed"),
        ("a_change_prompts", "notifications/prompts/list_changed"),
        ("a_change_resources", "notifications/resources/list_changed"),
    ] {
        client.call(tool, json!({})).await;
        one.await_method(notification).await;
        two.await_method(notification).await;
    }
}

#[tokio::test]
async fn srv4_a_client_without_a_stream_is_notified_of_a_change_when_it_opens_one() {
    let gateway = gateway().await;
    let client = gateway.client_seeing("a_change_tools").await;
    let added = client.call_text("a_change_tools", json!({})).await;
    client.await_tool(&format!("a_{added}")).await;
    client.listen().await.await_method("notifications/tools/list_changed").await;
}

#[tokio::test]
async fn http3_a_lost_connection_does_not_cancel_its_call() {
    let scratch = Scratch::new();
    let pid = scratch.path().join("pid");
    let server = fixture_server(&["--pid-file", pid.to_str().expect("text")]);
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    let frozen = Frozen::new(&pid).await;
    // A client that accepts no stream cannot resume.
    let headers = with(&client, "accept", "application/json");
    let before = metric(&client, "process_open_fds").await;
    tokio::select! {
        answer = client.send(Method::POST, "/mcp", &headers, call(1, "a_echo", json!({}))) => panic!("{answer:?}"),
        () = metric_becomes(&client, "goblin_requests_in_flight", 1) => {}
    }
    // The gateway has noticed the closed connection.
    metric_becomes(&client, "process_open_fds", before).await;
    drop(frozen);
    eventually("the answer arrived after the client disconnected", || async {
        gateway.log().iter().any(|line| line.contains("the client disconnected before its answer")).then_some(())
    })
    .await;
    assert_eq!(client.call_text("a_cancelled", json!({})).await, "[]");
}

#[tokio::test]
async fn http3_a_head_or_a_body_that_never_ends_is_cut() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{";
    let (head, body) =
        tokio::join!(raw(gateway.address, &head.as_bytes()[..30]), raw(gateway.address, head.as_bytes()));
    assert!(!head.contains(" 200 "), "{head}");
    assert!(body.starts_with("HTTP/1.1 408 "), "{body}");
    works(&client).await;
}

#[tokio::test]
async fn http3_messages_dropped_for_a_client_that_accepts_no_stream_are_counted() {
    let gateway = gateway().await;
    let client = gateway.client_seeing("a_progress").await;
    let params = json!({"name": "a_progress", "arguments": {"steps": 3}, "_meta": {"progressToken": 1}});
    let headers: Vec<_> = client.headers().into_iter().filter(|(name, _)| *name != "accept").collect();
    let headers = [&headers[..], &[("accept", "application/json")]].concat();
    let answer = client.send(Method::POST, "/mcp", &headers, message(1, "tools/call", params)).await;
    assert_eq!(answer.headers["content-type"], "application/json", "{answer:?}");
    assert_eq!(metric(&client, r#"goblin_events_total{kind="message_dropped"}"#).await, 3);
}
