//! Backends over Streamable HTTP: the forms of a response, expired sessions, and bad networks.
//!
//! A fault affects only the calls of its own backend, and a sent call is never sent again.

use std::sync::atomic::{AtomicBool, Ordering};

use goblin_fixture::fault::FaultProxy;
use serde_json::{Value, json};

use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::raw_server::{RawServer, response};
use crate::support::{
    assert_error, await_arrivals, await_call, await_log, begin_call, ended, http_server, is_error, messages_of,
    without_login,
};

#[tokio::test]
async fn http3_answers_as_json_and_as_streams_are_understood() {
    let (plain, streaming) = (HttpFixture::start(&[]).await, HttpFixture::start(&["--reply", "sse"]).await);
    let pretty = HttpFixture::start(&["--reply", "sse", "--pretty", "--page-size", "5"]).await;
    let servers = json!({ "plain": plain.server(), "streaming": streaming.server(), "pretty": pretty.server() });
    let gateway = Gateway::with_servers(servers).await;
    for server in ["plain", "streaming", "pretty"] {
        let client = gateway.client_seeing(&format!("{server}_echo")).await;
        let calls: Vec<_> =
            (0..20).map(|number| begin_call(&client, &format!("{server}_echo"), json!({ "n": number }))).collect();
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(ended(call).await["result"]["structuredContent"]["n"], number, "{server}");
        }
    }
}

#[tokio::test]
async fn p2_progress_and_log_messages_reach_only_their_own_call() {
    for arguments in [&["--reply", "sse"][..], &[]] {
        let backend = HttpFixture::start(arguments).await;
        let gateway = Gateway::with_servers(json!({ "a": backend.server() })).await;
        let one = gateway.client_seeing("a_progress").await;
        let two = gateway.client().await;
        let (first, second, logs) = tokio::join!(
            messages_of(&one, "a_progress", json!({"steps": 3, "delayMs": 50})),
            messages_of(&two, "a_progress", json!({"steps": 5, "delayMs": 30})),
            async {
                let three = gateway.client().await;
                messages_of(&three, "a_log", json!({"count": 4, "level": "error"})).await
            },
        );
        for (messages, steps) in [(first, 3), (second, 5)] {
            let (answer, progress) = messages.split_last().expect("an answer");
            assert_eq!(answer["result"]["content"][0]["text"], format!("{steps} steps"));
            let seen: Vec<_> = progress.iter().map(|message| message["params"]["progress"].clone()).collect();
            assert_eq!(seen, (1..=steps).map(Value::from).collect::<Vec<_>>());
            assert!(progress.iter().all(|message| message["params"]["progressToken"] == "same"));
            assert!(progress.iter().all(|message| message["params"]["total"] == steps));
        }
        let (answer, lines) = logs.split_last().expect("an answer");
        assert!(answer["error"].is_null(), "{answer}");
        let numbers: Vec<_> = lines.iter().map(|line| line["params"]["data"]["number"].clone()).collect();
        assert_eq!(numbers, [1, 2, 3, 4].map(Value::from));
    }
}

#[tokio::test]
async fn reg3_a_list_change_on_the_get_stream_reaches_every_client() {
    for arguments in [&[][..], &["--reply", "sse"]] {
        let backend = HttpFixture::start(arguments).await;
        let gateway = Gateway::with_servers(json!({ "a": backend.server() })).await;
        let client = gateway.client_seeing("a_change_tools").await;
        let mut listener = gateway.client().await.listen().await;
        let added = client.call_text("a_change_tools", json!({})).await;
        listener.await_method("notifications/tools/list_changed").await;
        client.await_tool(&format!("a_{added}")).await;
        client.call("a_change_tools", json!({ "remove": added })).await;
        listener.await_method("notifications/tools/list_changed").await;
        let removed = format!("a_{added}");
        eventually("the tool is not listed", || async {
            (!client.tool_names().await.contains(&removed)).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn srv2_backends_without_a_get_stream_or_sessions_work() {
    let (silent, stateless) = (HttpFixture::start(&["--no-get"]).await, HttpFixture::start(&["--stateless"]).await);
    let gateway = Gateway::with_servers(json!({ "silent": silent.server(), "stateless": stateless.server() })).await;
    for server in ["silent", "stateless"] {
        let client = gateway.client_seeing(&format!("{server}_echo")).await;
        for number in 0..10 {
            let result = client.call(&format!("{server}_echo"), json!({ "n": number })).await;
            assert_eq!(result["structuredContent"]["n"], number);
        }
    }
}

#[tokio::test]
async fn configured_headers_are_sent_to_the_backend_and_client_headers_are_not() {
    let backend = HttpFixture::start(&[]).await;
    let mut server = backend.server();
    server["headers"] = json!({ "X-Team": "goblins", "Authorization": "Bearer for-the-backend" });
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_headers").await;
    let mut headers = client.headers();
    headers.extend([
        ("authorization", "Bearer of-the-client"),
        ("cookie", "of-the-client"),
        ("x-other", "of-the-client"),
    ]);
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_headers"}}"#;
    let answer = client.send(http::Method::POST, "/mcp", &headers, body).await.json();
    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    let sent: Value = serde_json::from_str(text).expect("an object");
    assert_eq!((&sent["x-team"], &sent["authorization"]), (&json!("goblins"), &json!("Bearer for-the-backend")));
    assert_eq!(sent["mcp-protocol-version"], "2025-11-25");
    assert!(!text.contains("of-the-client"), "{text}");
    assert!(!gateway.log().iter().any(|line| line.contains("for-the-backend")));
}

#[tokio::test]
async fn f8_calls_after_a_forgotten_session_succeed_and_run_once() {
    for arguments in [&[][..], &["--reply", "sse"], &["--no-get"]] {
        let backend = HttpFixture::start(arguments).await;
        let gateway = Gateway::with_servers(json!({ "a": backend.server() })).await;
        let client = gateway.client_seeing("a_echo").await;
        client.call("a_forget_sessions", json!({})).await;
        let calls: Vec<_> = (0..10).map(|number| begin_call(&client, "a_echo", json!({ "n": number }))).collect();
        for (number, call) in calls.into_iter().enumerate() {
            let answer = ended(call).await;
            assert_eq!(answer["result"]["structuredContent"]["n"], number, "{answer}");
        }
        assert_eq!(client.call_text("a_call_count", json!({})).await, "12", "{arguments:?}");
    }
}

#[tokio::test]
async fn d14_a_lost_backend_keeps_its_listing_and_reconnects() {
    let backend = HttpFixture::start(&[]).await;
    let proxy = FaultProxy::start(backend.address);
    let servers = json!({ "a": http_server(proxy.addr()), "other": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("other_echo").await;
    let listed = client.tool_names().await;
    let mut listener = gateway.client().await.listen().await;
    // This simulates a restart: the next process knows no earlier session.
    client.call("a_forget_sessions", json!({})).await;
    proxy.cut().await;
    for _ in 0..3 {
        let answer = client.try_call("a_echo", json!({})).await;
        assert_eq!(assert_error(&answer, 1503, "BACKEND_UNAVAILABLE")["serverId"], "a");
        client.call("other_echo", json!({})).await;
    }
    await_log(&gateway, &["cannot connect to backend", "server=\"a\""]).await;
    assert_eq!(client.tool_names().await, listed);
    proxy.pass().await;
    await_call(&client, "a_echo").await;
    assert_eq!(client.tool_names().await, listed);
    // Neither the loss nor the return of the same listing is a change.
    client.call("other_change_prompts", json!({})).await;
    let first = listener.next().await.expect("a message");
    assert_eq!(first["method"], "notifications/prompts/list_changed");
}

#[tokio::test]
async fn f7_a_half_open_backend_affects_only_its_own_callers() {
    let backend = HttpFixture::start(&[]).await;
    let proxy = FaultProxy::start(backend.address);
    let mut server = http_server(proxy.addr());
    server["timeout"] = json!("2s");
    let gateway = Gateway::with_servers(json!({ "a": server, "good": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("good_echo").await;
    proxy.half_open().await;
    let calls: Vec<_> = (0..5).map(|_| begin_call(&client, "a_echo", json!({}))).collect();
    for _ in 0..10 {
        client.call("good_echo", json!({})).await;
    }
    for call in calls {
        assert_eq!(assert_error(&ended(call).await, 1504, "TIMEOUT")["serverId"], "a");
    }
    proxy.pass().await;
    await_call(&client, "a_echo").await;
}

#[tokio::test]
async fn route3_a_call_that_takes_too_long_is_cancelled_at_the_backend() {
    for arguments in [&[][..], &["--reply", "sse"]] {
        let backend = HttpFixture::start(arguments).await;
        let mut server = backend.server();
        server["tools"] = json!({ "timeouts": { "hang": "100ms" } });
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        let client = gateway.client_seeing("a_hang").await;
        assert_error(&client.try_call("a_hang", json!({})).await, 1504, "TIMEOUT");
        eventually("the backend received the cancellation", || async {
            (client.call_text("a_cancelled", json!({})).await != "[]").then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn f6_an_oversize_answer_fails_its_own_call_only() {
    for arguments in [&["--oversize", "300000"][..], &["--oversize", "300000", "--reply", "sse"]] {
        let backend = HttpFixture::start(arguments).await;
        let servers = json!({ "a": backend.server() });
        let gateway =
            Gateway::start(json!({ "policies": { "maxMessageSize": "256KiB" }, "mcpServers": servers })).await;
        let client = gateway.client_seeing("a_oversize").await;
        let other = begin_call(&client, "a_nonce", json!({"nonce": "n", "delayMs": 300}));
        let answer = client.try_call("a_oversize", json!({})).await;
        assert_error(&answer, 1502, "BACKEND_PROTOCOL");
        assert!(
            answer["error"]["message"].as_str().is_some_and(|fragment| fragment.contains("maxMessageSize")),
            "{answer}"
        );
        assert_eq!(ended(other).await["result"]["content"][0]["text"], "n");
    }
}

#[tokio::test]
async fn srv2_a_ping_of_a_backend_is_answered_and_roots_list_is_rejected_by_name() {
    let backend = HttpFixture::start(&[]).await;
    let gateway = Gateway::with_servers(json!({ "pipe": fixture_server(&[]), "http": backend.server() })).await;
    for (server, via) in [("pipe", "call"), ("http", "call"), ("http", "get")] {
        let tool = format!("{server}_request");
        let client = gateway.client_seeing(&tool).await;
        assert_eq!(client.call_text(&tool, json!({"method": "ping", "via": via})).await, r#"{"result":{}}"#);
        let rejected = client.call_text(&tool, json!({"method": "roots/list", "via": via})).await;
        assert!(rejected.contains("-32601") && rejected.contains("roots/list"), "{server} {via}: {rejected}");
    }
}

#[tokio::test]
async fn f4_a_throttled_backend_affects_only_its_own_callers() {
    let backend = HttpFixture::start(&[]).await;
    let proxy = FaultProxy::start(backend.address);
    let gateway = Gateway::with_servers(json!({ "a": http_server(proxy.addr()), "good": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_big").await;
    client.await_tool("good_echo").await;
    proxy.throttle(100).await;
    let slow = begin_call(&client, "a_big", json!({"bytes": 100_000}));
    for _ in 0..20 {
        client.call("good_echo", json!({})).await;
    }
    assert!(!slow.is_finished(), "100 bytes a second are not that fast");
    proxy.pass().await;
    let answer = ended(slow).await;
    assert_eq!(answer["result"]["content"][0]["text"].as_str().map(str::len), Some(100_000));
}

#[tokio::test]
async fn f5_garbage_from_a_backend_fails_only_its_own_calls() {
    let backend = HttpFixture::start(&["--reply", "sse"]).await;
    let proxy = FaultProxy::start(backend.address);
    let gateway = Gateway::with_servers(json!({ "a": http_server(proxy.addr()), "good": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("good_echo").await;
    let open = begin_call(&client, "a_sleep", json!({"ms": 60_000}));
    await_arrivals(&gateway.client().await, "a", 1).await;
    proxy.garbage().await;
    // In the middle of a stream, garbage is an unknown line or ends the connection.
    for _ in 0..5 {
        let answer = client.try_call("a_echo", json!({})).await;
        assert!(is_error(&answer, "BACKEND_UNAVAILABLE") || is_error(&answer, "BACKEND_PROTOCOL"), "{answer}");
        client.call("good_echo", json!({})).await;
    }
    proxy.cut().await;
    assert_error(&ended(open).await, 1503, "BACKEND_UNAVAILABLE");
    proxy.pass().await;
    await_call(&client, "a_echo").await;
}

#[tokio::test]
async fn p3_a_call_that_was_sent_is_never_sent_again() {
    let json_head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{\"json";
    let stream_head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    let server = RawServer::start(|arguments| arguments["raw"].as_str().unwrap_or_default().as_bytes().to_vec()).await;
    let gateway = Gateway::with_servers(json!({ "a": http_server(server.address) })).await;
    let client = gateway.client_seeing("a_t").await;
    let half_event = format!("{stream_head}data: {{\"jsonrpc\":\"2.0\",");
    for (number, raw) in ["", "HTTP/1.1 200", json_head, stream_head, &half_event].into_iter().enumerate() {
        let answer = client.try_call("a_t", json!({ "raw": raw })).await;
        let data = assert_error(&answer, 1503, "BACKEND_UNAVAILABLE");
        assert!(data["retryable"].is_null(), "{answer}");
        assert_eq!(server.calls(), number + 1, "after {raw:?}");
    }
}

#[tokio::test]
async fn d12_an_http_failure_is_reported_with_its_status_and_a_hint() {
    let server = RawServer::start(|arguments| {
        let status = arguments["status"].as_str().unwrap_or_default();
        let headers = "Content-Type: text/html\r\nLocation: http://127.0.0.1:1/elsewhere\r\n";
        response(status, headers, "<h1>no</h1>")
    })
    .await;
    let gateway = Gateway::with_servers(json!({ "a": without_login(http_server(server.address)) })).await;
    let client = gateway.client_seeing("a_t").await;
    for (status, fragment) in [
        ("401 Unauthorized", "HTTP 401 Unauthorized (check its headers"),
        ("403 Forbidden", "HTTP 403 Forbidden (check its headers"),
        ("404 Not Found", "HTTP 404 Not Found (is the url right?)"),
        ("500 Internal Server Error", "HTTP 500 Internal Server Error"),
        ("307 Temporary Redirect", "HTTP 307 Temporary Redirect (redirects are not followed"),
        ("200 OK", "a web page (is the url right?"),
    ] {
        let answer = client.try_call("a_t", json!({ "status": status })).await;
        assert_eq!(assert_error(&answer, 1502, "BACKEND_PROTOCOL")["serverId"], "a");
        assert!(answer["error"]["message"].as_str().is_some_and(|message| message.contains(fragment)), "{answer}");
    }
    assert_eq!(server.calls(), 6);
}

/// D12: some servers report an expired session with status 400 and name the session. An error with the id of the
/// request is a response to it.
#[tokio::test]
async fn d12_p3_an_error_with_the_request_id_is_an_answer_even_if_it_mentions_sessions() {
    let hello = |method: &str| {
        let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}});
        // The first request of a link has the first id.
        let body = json!({"jsonrpc": "2.0", "id": 1, "result": result}).to_string();
        let headers = "Content-Type: application/json\r\nMcp-Session-Id: one\r\n";
        (method == "initialize").then(|| response("200 OK", headers, &body))
    };
    let server = RawServer::rejecting(hello, |arguments| {
        let id = if arguments["named"] == true { &arguments["id"] } else { &Value::Null };
        let error = json!({"code": -32000, "message": "the session of this user has no basket"});
        let body = json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string();
        response("400 Bad Request", "Content-Type: application/json\r\n", &body)
    })
    .await;
    let gateway = Gateway::with_servers(json!({ "a": http_server(server.address) })).await;
    let client = gateway.client_seeing("a_t").await;
    let answer = client.try_call("a_t", json!({ "named": true })).await;
    assert_eq!(answer["error"]["code"], -32000, "{answer}");
    assert_eq!(server.calls(), 1);
    // The same message without an id refers to the session.
    assert_error(&client.try_call("a_t", json!({ "named": false })).await, 1503, "BACKEND_UNAVAILABLE");
    assert_eq!(server.calls(), 3);
}

#[tokio::test]
async fn d12_a_backend_that_answers_401_is_explained_in_the_log() {
    let reject = |_: &str| Some(response("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", "unauthorized"));
    let server = RawServer::rejecting(reject, |_| Vec::new()).await;
    let servers = json!({ "locked": without_login(http_server(server.address)), "good": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    await_log(&gateway, &["server=\"locked\"", "HTTP 401 Unauthorized (check its headers in the configuration)"]).await;
    gateway.client_seeing("good_echo").await;
}

#[tokio::test]
async fn reg1_a_list_is_fetched_again_after_a_broken_connection() {
    static BROKE: AtomicBool = AtomicBool::new(false);
    let reject = |method: &str| (method == "tools/list" && !BROKE.swap(true, Ordering::SeqCst)).then(Vec::new);
    let server = RawServer::rejecting(reject, |_| Vec::new()).await;
    let gateway = Gateway::with_servers(json!({ "a": http_server(server.address) })).await;
    gateway.client_seeing("a_t").await;
    assert!(BROKE.load(Ordering::SeqCst));
}

#[tokio::test]
async fn p1_an_answer_for_another_request_is_rejected() {
    let server = RawServer::start(|arguments| {
        let body = json!({"jsonrpc": "2.0", "id": 424_242, "result": {"content": []}, "was": arguments["id"]});
        response("200 OK", "Content-Type: application/json\r\n", &body.to_string())
    })
    .await;
    let gateway = Gateway::with_servers(json!({ "a": http_server(server.address) })).await;
    let client = gateway.client_seeing("a_t").await;
    assert_error(&client.try_call("a_t", json!({})).await, 1502, "BACKEND_PROTOCOL");
}
