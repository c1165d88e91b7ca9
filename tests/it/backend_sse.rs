//! Backends over HTTP+SSE, configured or detected: one stream for all messages, and its failures.
//!
//! A fault affects only the calls of its own backend, and a sent call is never sent again.

use std::sync::atomic::{AtomicUsize, Ordering};

use goblin_fixture::fault::FaultProxy;
use serde_json::{Value, json};

use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server, goblin};
use crate::raw_server::{RawServer, response};
use crate::support::{
    assert_error, await_arrivals, await_call, await_log, begin_call, ended, http_server, is_error, messages_of,
    path_text, without_login,
};

/// Returns a server entry with an explicit type.
fn typed(mut server: Value, kind: &str) -> Value {
    server["type"] = json!(kind);
    server
}

async fn start(switches: &[&str]) -> HttpFixture {
    HttpFixture::start(&[&["--sse"], switches].concat()).await
}

async fn gateway_with(server: Value) -> Gateway {
    Gateway::with_servers(json!({ "a": server })).await
}

#[tokio::test]
async fn srv2_all_forms_of_endpoints_and_answers_are_understood() {
    for switches in [
        &[][..],
        &["--endpoint", "http://HOST/messages?session="],
        &["--endpoint", "messages?session="],
        &["--pretty", "--page-size", "5", "--flood", "100"],
        &["--answer-in-post"],
    ] {
        let backend = start(switches).await;
        let gateway = gateway_with(typed(backend.server(), "sse")).await;
        let client = gateway.client_seeing("a_echo").await;
        let calls: Vec<_> = (0..20).map(|number| begin_call(&client, "a_echo", json!({ "n": number }))).collect();
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(ended(call).await["result"]["structuredContent"]["n"], number, "{switches:?}");
        }
        assert!(!client.list("prompts/list", "prompts").await.is_empty());
        let read = client.request("resources/read", json!({"uri": "a+note:///alpha"})).await;
        assert!(read["result"]["contents"][0]["text"].is_string(), "{read}");
    }
}

#[tokio::test]
async fn p2_progress_reaches_its_call_and_log_messages_reach_the_only_client_with_calls() {
    let backend = start(&[]).await;
    let gateway = gateway_with(typed(backend.server(), "sse")).await;
    let one = gateway.client_seeing("a_progress").await;
    let two = gateway.client().await;
    let lines = messages_of(&one, "a_log", json!({"count": 4, "level": "error"})).await;
    let numbers: Vec<_> = lines.iter().filter_map(|line| line["params"]["data"].get("number")).collect();
    assert_eq!(numbers, [1, 2, 3, 4].map(Value::from).iter().collect::<Vec<_>>());

    // Two clients have calls in flight, so the log line cannot be attributed.
    let _open = begin_call(&two, "a_sleep", json!({"ms": 600_000}));
    await_arrivals(&gateway.client().await, "a", 2).await;
    let lines = messages_of(&one, "a_log", json!({"count": 1, "level": "error"})).await;
    assert_eq!(lines.len(), 1, "{lines:?}");

    let (first, second) = tokio::join!(
        messages_of(&one, "a_progress", json!({"steps": 3, "delayMs": 50})),
        messages_of(&two, "a_progress", json!({"steps": 5, "delayMs": 30})),
    );
    for (messages, steps) in [(first, 3), (second, 5)] {
        let progress: Vec<_> = messages.iter().filter(|it| it["method"] == "notifications/progress").collect();
        let seen: Vec<_> = progress.iter().map(|message| message["params"]["progress"].clone()).collect();
        assert_eq!(seen, (1..=steps).map(Value::from).collect::<Vec<_>>());
        assert!(progress.iter().all(|message| message["params"]["progressToken"] == "same"));
    }
}

#[tokio::test]
async fn reg3_a_list_change_on_the_stream_reaches_every_client() {
    let backend = start(&[]).await;
    let gateway = gateway_with(typed(backend.server(), "sse")).await;
    let client = gateway.client_seeing("a_change_tools").await;
    let mut listener = gateway.client().await.listen().await;
    let added = client.call_text("a_change_tools", json!({})).await;
    listener.await_method("notifications/tools/list_changed").await;
    client.await_tool(&format!("a_{added}")).await;
}

#[tokio::test]
async fn srv2_configured_headers_are_sent_and_server_requests_are_answered() {
    let backend = start(&[]).await;
    let mut server = typed(backend.server(), "sse");
    server["headers"] = json!({ "X-Team": "goblins" });
    let gateway = gateway_with(server).await;
    let client = gateway.client_seeing("a_headers").await;
    let sent: Value = serde_json::from_str(&client.call_text("a_headers", json!({})).await).expect("an object");
    assert_eq!((&sent["x-team"], &sent["content-type"]), (&json!("goblins"), &json!("application/json")));
    assert_eq!(client.call_text("a_request", json!({"method": "ping"})).await, r#"{"result":{}}"#);
    let rejected = client.call_text("a_request", json!({"method": "roots/list"})).await;
    assert!(rejected.contains("-32601") && rejected.contains("roots/list"), "{rejected}");
}

#[tokio::test]
async fn an_endpoint_of_another_origin_is_rejected() {
    let other = RawServer::start(|_| Vec::new()).await;
    let endpoint = format!("http://{}/messages?session=", other.address);
    let backend = start(&["--endpoint", &endpoint]).await;
    let gateway = gateway_with(typed(backend.server(), "sse")).await;
    let fragment =
        format!("its endpoint is at http://{}, but the url is at http://{} (", other.address, backend.address);
    await_log(&gateway, &["cannot connect to backend", &fragment]).await;
}

#[tokio::test]
async fn p3_a_cut_stream_fails_the_sent_calls_and_is_opened_again() {
    let backend = start(&[]).await;
    let proxy = FaultProxy::start(backend.address);
    let servers = json!({ "a": typed(http_server(proxy.addr()), "sse"), "other": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("other_echo").await;
    let listed = client.tool_names().await;
    let open = begin_call(&client, "a_sleep", json!({"ms": 600_000}));
    await_arrivals(&gateway.client().await, "a", 1).await;
    proxy.cut().await;
    let answer = ended(open).await;
    assert!(assert_error(&answer, 1503, "BACKEND_UNAVAILABLE")["retryable"].is_null(), "{answer}");
    eventually("the gateway knows that the session is lost", || async {
        let answer = client.try_call("a_echo", json!({})).await;
        (assert_error(&answer, 1503, "BACKEND_UNAVAILABLE")["retryable"] == true).then_some(())
    })
    .await;
    client.call("other_echo", json!({})).await;
    proxy.pass().await;
    await_call(&client, "a_echo").await;
    assert_eq!(client.tool_names().await, listed);
}

#[tokio::test]
async fn f8_calls_after_a_forgotten_session_succeed_and_run_once() {
    let backend = start(&[]).await;
    let gateway = gateway_with(typed(backend.server(), "sse")).await;
    let client = gateway.client_seeing("a_echo").await;
    client.call("a_forget_sessions", json!({})).await;
    let calls: Vec<_> = (0..10).map(|number| begin_call(&client, "a_echo", json!({ "n": number }))).collect();
    for (number, call) in calls.into_iter().enumerate() {
        let answer = ended(call).await;
        assert_eq!(answer["result"]["structuredContent"]["n"], number, "{answer}");
    }
    assert_eq!(client.call_text("a_call_count", json!({})).await, "12");
}

#[tokio::test]
async fn f6_an_oversize_event_fails_its_own_call_only() {
    for switches in [&["--oversize", "300000"][..], &["--oversize", "300000", "--answer-in-post"]] {
        let backend = start(switches).await;
        let servers = json!({ "a": typed(backend.server(), "sse") });
        let config = json!({ "policies": { "maxMessageSize": "256KiB" }, "mcpServers": servers });
        let gateway = Gateway::start(config).await;
        let client = gateway.client_seeing("a_oversize").await;
        let other = begin_call(&client, "a_nonce", json!({"nonce": "n", "delayMs": 300}));
        let answer = client.try_call("a_oversize", json!({})).await;
        assert_error(&answer, 1502, "BACKEND_PROTOCOL");
        assert!(
            answer["error"]["message"].as_str().is_some_and(|fragment| fragment.contains("maxMessageSize")),
            "{answer}"
        );
        assert_eq!(ended(other).await["result"]["content"][0]["text"], "n");
        assert_eq!(client.call_text("a_endless", json!({"mib": 2})).await, "went on");
    }
}

#[tokio::test]
async fn route3_f7_a_silent_backend_affects_only_its_callers_and_receives_cancellations() {
    let backend = start(&[]).await;
    let proxy = FaultProxy::start(backend.address);
    let mut server = typed(http_server(proxy.addr()), "sse");
    server["timeout"] = json!("2s");
    let gateway = Gateway::with_servers(json!({ "a": server, "good": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("good_echo").await;
    assert_error(&client.try_call("a_hang", json!({})).await, 1504, "TIMEOUT");
    eventually("the backend received the cancellation", || async {
        (client.call_text("a_cancelled", json!({})).await != "[]").then_some(())
    })
    .await;
    proxy.half_open().await;
    let calls: Vec<_> = (0..5).map(|_| begin_call(&client, "a_echo", json!({}))).collect();
    client.call("good_echo", json!({})).await;
    for call in calls {
        assert_eq!(assert_error(&ended(call).await, 1504, "TIMEOUT")["serverId"], "a");
    }
    proxy.pass().await;
    await_call(&client, "a_echo").await;
}

#[tokio::test]
async fn f5_garbage_on_the_stream_fails_only_calls_of_that_backend() {
    let backend = start(&[]).await;
    let proxy = FaultProxy::start(backend.address);
    let servers = json!({ "a": typed(http_server(proxy.addr()), "sse"), "good": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("good_echo").await;
    proxy.garbage().await;
    let answer = client.try_call("a_echo", json!({})).await;
    assert!(is_error(&answer, "BACKEND_UNAVAILABLE") || is_error(&answer, "BACKEND_PROTOCOL"), "{answer}");
    client.call("good_echo", json!({})).await;
    proxy.pass().await;
    await_call(&client, "a_echo").await;
}

#[tokio::test]
async fn srv2_a_url_without_a_type_is_tried_as_sse_after_a_rejected_post() {
    for status in ["400", "404", "405"] {
        let backend = start(&["--post-status", status]).await;
        let gateway = gateway_with(backend.server()).await;
        let client = gateway.client_seeing("a_echo").await;
        assert_eq!(client.call("a_echo", json!({"n": 1})).await["structuredContent"]["n"], 1);
        await_log(&gateway, &["backend ready", "transport=\"sse\""]).await;
    }
}

/// The gateway follows a server that changes its transport, whichever it detected before.
#[tokio::test]
async fn srv2_a_server_that_changes_its_transport_is_detected_again() {
    let streamable = HttpFixture::start(&[]).await;
    let gateway = gateway_with(streamable.server()).await;
    let client = gateway.client_seeing("a_echo").await;
    let sse = streamable.replace(&["--sse"]).await;
    // Only a call notices the loss.
    await_call(&client, "a_echo").await;
    await_log(&gateway, &["backend ready", "transport=\"sse\""]).await;
    let sse = sse.replace(&["--sse"]).await;
    await_call(&client, "a_echo").await;
    let _streamable = sse.replace(&[]).await;
    await_call(&client, "a_echo").await;
    let ready = |line: &String| line.contains("backend ready") && line.contains("transport=\"http\"");
    eventually("the server is connected as before", || async {
        (gateway.log().iter().filter(|line| ready(line)).count() == 2).then_some(())
    })
    .await;
}

static GETS: AtomicUsize = AtomicUsize::new(0);

/// Returns the same response to everything. Counts requests that are not a POST of a message.
fn reject(method: &str, status: &str, body: &str) -> Option<Vec<u8>> {
    if method.is_empty() {
        GETS.fetch_add(1, Ordering::SeqCst);
    }
    Some(response(status, "Content-Type: application/json\r\n", body))
}

#[tokio::test]
async fn srv2_other_failures_and_servers_of_type_http_are_not_tried_as_sse() {
    let servers = [
        RawServer::rejecting(|method| reject(method, "401 Unauthorized", ""), |_| Vec::new()).await,
        RawServer::rejecting(|method| reject(method, "500 Internal Server Error", ""), |_| Vec::new()).await,
        RawServer::rejecting(
            |method| {
                // The first request of a link has the first id.
                let body = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"unwilling"}}"#;
                reject(method, "400 Bad Request", body)
            },
            |_| Vec::new(),
        )
        .await,
        RawServer::rejecting(|method| reject(method, "405 Method Not Allowed", ""), |_| Vec::new()).await,
    ];
    let gateway = Gateway::with_servers(json!({
        "locked": without_login(http_server(servers[0].address)),
        "ill": http_server(servers[1].address),
        "unwilling": http_server(servers[2].address),
        "explicit": typed(http_server(servers[3].address), "http"),
    }))
    .await;
    for (server, fragment) in
        [("locked", "HTTP 401"), ("ill", "HTTP 500"), ("unwilling", "unwilling"), ("explicit", "HTTP 405")]
    {
        let again = [&format!("server=\"{server}\"")[..], "cannot connect to backend, as before", fragment];
        let line = await_log(&gateway, &again).await;
        assert!(!line.contains("HTTP+SSE"), "{line}");
    }
    assert_eq!(GETS.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn d12_a_failed_sse_connection_is_reported_with_each_attempt_and_its_reason() {
    let page = |_: &str| Some(response("404 Not Found", "Content-Type: text/html\r\n", "<h1>no</h1>"));
    let nothing = RawServer::rejecting(page, |_| Vec::new()).await;
    let website = |_: &str| Some(response("200 OK", "Content-Type: text/html\r\n", "<h1>hello</h1>"));
    let website = RawServer::rejecting(website, |_| Vec::new()).await;
    let (streamable, mute) = (HttpFixture::start(&[]).await, HttpFixture::start(&["--stateless"]).await);
    let gateway = Gateway::start(json!({
        "policies": { "startTimeout": "2s" },
        "mcpServers": {
            "nothing": http_server(nothing.address),
            "website": typed(http_server(website.address), "sse"),
            "streamable": typed(streamable.server(), "sse"),
            "mute": typed(mute.server(), "sse"),
        },
    }))
    .await;
    let not_found = "it answered HTTP 404 Not Found (is the url right?)";
    for (server, fragment) in [
        ("nothing", format!("{not_found}; tried as HTTP+SSE: {not_found}")),
        ("website", "it answered GET without an event stream (is the url that of".to_owned()),
        ("streamable", "it answered HTTP 400 Bad Request".to_owned()),
        ("mute", "no endpoint event on its stream within 2 s (is the url that of an HTTP+SSE server?".to_owned()),
    ] {
        await_log(&gateway, &["cannot connect to backend", &format!("server=\"{server}\""), &fragment]).await;
    }
}

#[tokio::test]
async fn the_check_shows_the_detected_transport() {
    let backend = start(&[]).await;
    let scratch = Scratch::new();
    let path = scratch.write("goblin.json", &json!({ "mcpServers": { "a": backend.server() } }).to_string());
    let report = async |form: &[&str]| {
        let mut command = goblin(scratch.path());
        command.args(["check", "--connect", "--config", path_text(&path)]).args(form);
        String::from_utf8(command.output().await.expect("the command runs").stdout).expect("text")
    };
    let json: Value = serde_json::from_str(&report(&["--json"]).await).expect("JSON");
    assert_eq!((&json["servers"][0]["state"], &json["servers"][0]["transport"]), (&json!("ready"), &json!("sse")));
    let table = report(&[]).await;
    assert!(table.contains("2025-11-25 legacy over sse"), "{table}");
}
