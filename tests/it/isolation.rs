//! A client or backend does not affect the others, and every limit holds at its exact number (P6, P7).
//!
//! The tests fill a limit exactly, and check that the next request is rejected while others proceed.

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server, signal};
use crate::support::{
    Arrivals, assert_error, await_arrivals, await_log, begin_call, ended, is_error, path_text, pid_in, raw_post, rest,
};

fn call_body(id: u64, tool: &str, arguments: Value) -> String {
    let params = json!({ "name": tool, "arguments": arguments, "_meta": { "progressToken": "t" } });
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

async fn delete(client: &Client) -> StatusCode {
    client.send(Method::DELETE, "/mcp", &client.headers(), "").await.status
}

#[tokio::test]
async fn p7_bad_backends_change_nothing_for_the_others() {
    let mut garbage = fixture_server(&["--garbage"]);
    garbage["timeout"] = json!("30s");
    let gateway = Gateway::with_servers(json!({
        "flooding": fixture_server(&["--flood", "50000"]),
        "garbage": garbage,
        "mute": fixture_server(&["--hang-handshake"]),
        "crashing": fixture_server(&["--exit-at-start"]),
        "noisy": fixture_server(&["--stderr-noise"]),
        "stormy": fixture_server(&["--list-changed-storm", "20000"]),
        "missing": { "command": "no-such-program-anywhere" },
        "hanging": fixture_server(&[]),
        "good": fixture_server(&[]),
    }))
    .await;
    let client = gateway.client_seeing("good_echo").await;
    let other = gateway.client_seeing("hanging_hang").await;
    let mut hanging = Vec::new();
    for id in 0..20 {
        hanging.push(raw_post(&other, &call_body(id, "hanging_hang", json!({}))).await);
    }
    for number in 0..100 {
        assert_eq!(client.call("good_echo", json!({ "n": number })).await["structuredContent"]["n"], number);
    }
    for server in ["flooding", "garbage", "noisy", "stormy"] {
        client.await_tool(&format!("{server}_echo")).await;
        client.call(&format!("{server}_echo"), json!({})).await;
    }
    await_arrivals(&client, "hanging", 20).await;
    assert_eq!(delete(&other).await, StatusCode::NO_CONTENT);
    for stream in hanging {
        assert!(!rest(stream).await.contains("\"jsonrpc\""));
    }
}

#[tokio::test]
async fn p6_a_client_is_limited_to_exactly_max_in_flight_calls() {
    let config = json!({ "policies": { "maxInFlight": 3 }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_nonce").await;
    let other = gateway.client().await;
    let calls: Vec<_> =
        (0..3).map(|_| begin_call(&client, "a_nonce", json!({"nonce": "n", "delayMs": 1500}))).collect();
    await_arrivals(&other, "a", 3).await;
    let data = assert_error(&client.try_call("a_echo", json!({})).await, 1429, "LIMIT_EXCEEDED");
    assert_eq!((&data["limit"], &data["value"]), (&json!("maxInFlight"), &json!(3)));
    other.call("a_echo", json!({})).await;
    for call in calls {
        assert_eq!(ended(call).await["result"]["content"][0]["text"], "n");
    }
    client.call("a_echo", json!({})).await;
}

#[tokio::test]
async fn p6_a_call_to_a_backend_at_its_call_limit_is_rejected_after_a_wait() {
    let config = json!({
        "policies": { "maxInFlightPerBackend": 2 },
        "mcpServers": { "a": fixture_server(&[]), "good": fixture_server(&[]) },
    });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_hang").await;
    client.await_tool("good_echo").await;
    let other = gateway.client().await;
    let calls = [
        raw_post(&client, &call_body(1, "a_hang", json!({}))).await,
        raw_post(&client, &call_body(2, "a_hang", json!({}))).await,
    ];
    // An earlier call of the other client could keep the second slot until the second of these gives up.
    eventually("both calls have begun", || async {
        let status = get_admin(&other, "/api/status").await.json();
        (status["sessions"]["inFlight"] == 2).then_some(())
    })
    .await;
    let rejected = other.try_call("a_echo", json!({})).await;
    let data = assert_error(&rejected, 1529, "OVERLOADED");
    assert_eq!((&data["serverId"], &data["retryable"]), (&json!("a"), &json!(true)));
    other.call("good_echo", json!({})).await;
    // A client that leaves frees its slots.
    assert_eq!(delete(&client).await, StatusCode::NO_CONTENT);
    let answer = eventually("a slot is free", || async {
        let answer = other.try_call("a_echo", json!({"waited": true})).await;
        answer["error"].is_null().then_some(answer)
    })
    .await;
    assert_eq!(answer["result"]["structuredContent"]["waited"], true);
    drop(calls);
}

#[tokio::test]
async fn f14_exactly_max_sessions_are_admitted_and_delete_frees_a_place() {
    // An open stream protects its session. A session without a stream would be replaced by the new client.
    let gateway = Gateway::start(json!({ "gateway": { "maxSessions": 2 }, "mcpServers": {} })).await;
    let first = gateway.client().await;
    let second = gateway.client().await;
    let _streams = (first.listen().await, second.listen().await);
    let third = Client::new(gateway.address);
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string();
    let rejected = third.post(body.clone()).await;
    assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(rejected.headers.contains_key("retry-after"));
    assert_eq!(assert_error(&rejected.json(), 1429, "LIMIT_EXCEEDED")["limit"], "maxSessions");
    assert_eq!(second.request("ping", json!({})).await["result"], json!({}));
    assert_eq!(delete(&first).await, StatusCode::NO_CONTENT);
    assert_eq!(third.post(body).await.status, StatusCode::OK);
}

#[tokio::test]
async fn sess2_idle_sessions_end_and_those_with_a_stream_or_a_call_do_not() {
    let config = json!({
        "gateway": { "sessionIdleTimeout": "2s" },
        "mcpServers": { "a": fixture_server(&[]) },
    });
    let gateway = Gateway::start(config).await;
    let calling = gateway.client_seeing("a_nonce").await;
    let call = begin_call(&calling, "a_nonce", json!({"nonce": "n", "delayMs": 8000}));
    let streaming = gateway.client().await;
    let _listener = streaming.listen().await;
    let idle = gateway.client().await;
    let id = idle.session.clone().expect("a session");
    let short: String = id.chars().skip(id.len() - 8).collect();
    await_log(&gateway, &["session ended", &short, "idle"]).await;
    assert_eq!(idle.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await.status, StatusCode::NOT_FOUND);
    assert_eq!(streaming.request("ping", json!({})).await["result"], json!({}));
    assert_eq!(ended(call).await["result"]["content"][0]["text"], "n");
}

#[tokio::test]
async fn sess2_the_end_of_a_session_cancels_its_calls_at_the_backend() {
    let backend = HttpFixture::start(&[]).await;
    let gateway = Gateway::with_servers(json!({ "pipe": fixture_server(&[]), "http": backend.server() })).await;
    for server in ["pipe", "http"] {
        let client = gateway.client_seeing(&format!("{server}_hang")).await;
        let watcher = gateway.client().await;
        let stream = raw_post(&client, &call_body(1, &format!("{server}_hang"), json!({}))).await;
        await_arrivals(&watcher, server, 1).await;
        assert_eq!(delete(&client).await, StatusCode::NO_CONTENT);
        let cancelled = format!("{server}_cancelled");
        eventually("the backend received the cancellation", || async {
            (watcher.call_text(&cancelled, json!({})).await != "[]").then_some(())
        })
        .await;
        assert!(!rest(stream).await.contains("\"jsonrpc\""), "a cancelled call has no answer");
    }
}

#[tokio::test]
async fn f12_a_client_that_disconnects_cancels_nothing_and_leaks_nothing() {
    let config = json!({ "policies": { "maxInFlight": 1 }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_sleep").await;
    let watcher = gateway.client().await;
    let arrivals = Arrivals::new(watcher.clone(), "a");
    for number in 1..=5 {
        let stream = raw_post(&client, &call_body(1, "a_sleep", json!({"ms": 200}))).await;
        arrivals.reach(2 * number - 1).await;
        drop(stream);
        eventually("the place of the call is free", || async {
            let answer = client.try_call("a_echo", json!({})).await;
            (!is_error(&answer, "LIMIT_EXCEEDED")).then_some(())
        })
        .await;
    }
    assert_eq!(watcher.call_text("a_cancelled", json!({})).await, "[]");
    let cancellations = gateway.log().iter().filter(|line| line.contains("disconnected before its answer")).count();
    assert_eq!(cancellations, 5);
}

#[tokio::test]
async fn f13_a_client_that_does_not_read_its_stream_delays_no_other_client() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_progress").await;
    let mut slow = raw_post(&gateway.client().await, &call_body(1, "a_progress", json!({"steps": 60_000}))).await;
    // The stream has begun and is then not read, with far more data to come than sockets can buffer.
    let mut first = [0; 64];
    slow.read_exact(&mut first).await.expect("a beginning");
    for number in 0..50 {
        assert_eq!(client.call("a_echo", json!({ "n": number })).await["structuredContent"]["n"], number);
    }
    await_log(&gateway, &["progress dropped"]).await;
    drop(slow);
    client.call("a_echo", json!({})).await;
}

/// Calls `a_log` and returns the number of log lines that its client receives.
async fn log_lines(client: &Client, server: &str, level: &str) -> usize {
    let answer = client.post(call_body(9, &format!("{server}_log"), json!({"level": level, "count": 2}))).await;
    assert!(answer.json()["error"].is_null(), "{answer:?}");
    answer.messages().len() - 1
}

#[tokio::test]
async fn the_lowest_log_level_is_sent_upstream_and_each_client_is_filtered_by_its_own() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let http = HttpFixture::start(&["--reply", "sse"]).await;
    let servers = json!({ "pipe": fixture_server(&["--pid-file", path_text(&file)]), "http": http.server() });
    let gateway = Gateway::with_servers(servers).await;
    let curious = gateway.client_seeing("pipe_level").await;
    curious.await_tool("http_level").await;
    let quiet_client = gateway.client().await;
    let level_is = async |level: &str| {
        for server in ["pipe", "http"] {
            let tool = format!("{server}_level");
            eventually(&format!("{server} logs at {level}"), || async {
                let answer = quiet_client.try_call(&tool, json!({})).await;
                (answer["result"]["content"][0]["text"] == level).then_some(())
            })
            .await;
        }
    };
    assert_eq!(curious.request("logging/setLevel", json!({"level": "warning"})).await["result"], json!({}));
    assert_eq!(quiet_client.request("logging/setLevel", json!({"level": "error"})).await["result"], json!({}));
    level_is("warning").await;
    assert_eq!(curious.request("logging/setLevel", json!({"level": "debug"})).await["result"], json!({}));
    level_is("debug").await;
    for server in ["pipe", "http"] {
        assert_eq!(log_lines(&curious, server, "debug").await, 2);
        assert_eq!(log_lines(&quiet_client, server, "debug").await, 0);
        assert_eq!(log_lines(&quiet_client, server, "error").await, 2);
    }
    signal(pid_in(&file).await, "KILL");
    level_is("debug").await;
    assert_eq!(delete(&curious).await, StatusCode::NO_CONTENT);
    level_is("error").await;
}

/// The backend's own selection is lost as soon as one client sets a level. So the backend then sends everything.
#[tokio::test]
async fn cap1_a_client_without_a_level_loses_no_log_message_to_the_level_of_another() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let unset = gateway.client_seeing("a_level").await;
    let quiet = gateway.client().await;
    let level_is = async |level: &str| {
        eventually(&format!("the server logs at {level}"), || async {
            let answer = quiet.try_call("a_level", json!({})).await;
            (answer["result"]["content"][0]["text"] == level).then_some(())
        })
        .await;
    };
    assert_eq!(log_lines(&unset, "a", "debug").await, 2);
    // The answer to this request comes after the answer of the server, so nothing is awaited.
    assert_eq!(quiet.request("logging/setLevel", json!({"level": "error"})).await["result"], json!({}));
    assert_eq!(log_lines(&unset, "a", "debug").await, 2);
    assert_eq!(log_lines(&quiet, "a", "debug").await, 0);
    assert_eq!(delete(&unset).await, StatusCode::NO_CONTENT);
    level_is("error").await;
    let next = gateway.client().await;
    level_is("debug").await;
    assert_eq!(log_lines(&next, "a", "debug").await, 2);
    assert_eq!(delete(&quiet).await, StatusCode::NO_CONTENT);
    assert_eq!(log_lines(&next, "a", "debug").await, 2, "the level of an ended client has no effect");
}

#[tokio::test]
async fn p2_an_unattributed_log_message_reaches_no_client() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_log").await;
    // This call stays open until the client answers the server request.
    let mut other = Client::new(gateway.address);
    other.initialize_with("2025-11-25", json!({"elicitation": {}})).await;
    let arguments = json!({"method": "elicitation/create", "params": {"message": "", "requestedSchema": {}}});
    let (_, mut open) = other.open(call_body(1, "a_request", arguments)).await;
    let server_request = open.next().await.expect("the server request");
    assert_eq!(log_lines(&client, "a", "emergency").await, 0, "two clients have calls open on one pipe");
    let answer = json!({"jsonrpc": "2.0", "id": server_request["id"], "result": {"action": "decline"}});
    assert_eq!(other.post(answer.to_string()).await.status, StatusCode::ACCEPTED);
    assert!(open.next().await.is_some_and(|answer| answer["result"].is_object()));
    assert_eq!(log_lines(&client, "a", "emergency").await, 2, "the only caller is certain");
}
