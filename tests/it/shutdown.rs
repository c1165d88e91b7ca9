//! Shutdown: open requests finish within the grace period, and nothing is left behind (F26).
//!
//! Calls beyond the grace period are cut and named in the log. A second signal ends the wait at once.

use serde_json::json;
use tokio::net::TcpStream;

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server, signal};
use crate::support::{
    await_arrivals, await_exit, await_log, begin_call, ended, is_alive, parent, path_text, pid_in, raw_post, rest,
};

#[tokio::test]
async fn f26_open_calls_are_answered_before_the_gateway_ends() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let http = HttpFixture::start(&["--reply", "sse"]).await;
    let mut gateway = Gateway::start(json!({
        "gateway": { "grace": "60s" },
        "mcpServers": { "pipe": fixture_server(&["--pid-file", path_text(&file)]), "http": http.server() },
    }))
    .await;
    let client = gateway.client_seeing("pipe_nonce").await;
    client.await_tool("http_nonce").await;
    let server = pid_in(&file).await;
    let guard = parent(server);
    let mut calls = Vec::new();
    for number in 0..10 {
        for tool in ["pipe_nonce", "http_nonce"] {
            let nonce = format!("{tool} {number}");
            calls.push((nonce.clone(), begin_call(&client, tool, json!({"nonce": nonce, "delayMs": 1500}))));
        }
    }
    let watcher = gateway.client().await;
    await_arrivals(&watcher, "pipe", 10).await;
    await_arrivals(&watcher, "http", 10).await;
    assert!(gateway.terminate().await.success());
    for (nonce, call) in calls {
        assert_eq!(ended(call).await["result"]["content"][0]["text"], nonce);
    }
    assert!(!is_alive(server) && !is_alive(guard));
}

#[tokio::test]
async fn f26_open_streams_end_and_new_connections_are_refused() {
    let mut gateway = Gateway::start(json!({
        "gateway": { "grace": "60s" },
        "mcpServers": { "a": fixture_server(&[]) },
    }))
    .await;
    let client = gateway.client_seeing("a_sleep").await;
    let mut listeners = Vec::new();
    for _ in 0..3 {
        listeners.push(gateway.client().await.listen().await);
    }
    let idle = TcpStream::connect(gateway.address).await.expect("the gateway listens");
    let call = begin_call(&client, "a_sleep", json!({"ms": 1500}));
    await_arrivals(&gateway.client().await, "a", 1).await;
    signal(gateway.child.id().expect("the process runs"), "TERM");
    for listener in &mut listeners {
        while let Some(message) = listener.next().await {
            assert!(message["method"].as_str().is_some_and(|method| method.ends_with("list_changed")), "{message}");
        }
    }
    eventually("connections are refused", || async { TcpStream::connect(gateway.address).await.err() }).await;
    assert!(ended(call).await["error"].is_null());
    let status = gateway.child.wait().await.expect("the exit status is known");
    assert!(status.success(), "{status}");
    drop(idle);
}

#[tokio::test]
async fn f26_calls_beyond_the_grace_are_cut_and_logged() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let mut gateway = Gateway::start(json!({
        "gateway": { "grace": "200ms" },
        "mcpServers": { "a": fixture_server(&["--pid-file", path_text(&file)]) },
    }))
    .await;
    let client = gateway.client_seeing("a_hang").await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_hang"}}"#;
    let stream = raw_post(&client, body).await;
    await_arrivals(&gateway.client().await, "a", 1).await;
    let server = pid_in(&file).await;
    assert!(gateway.terminate().await.success());
    assert!(!rest(stream).await.contains("\"result\""));
    assert!(!is_alive(server));
    let session = &client.session.as_deref().expect("a session")[28..];
    await_log(&gateway, &["shutting down", "open=1", "grace=200ms"]).await;
    let fragments = ["call cut by the shutdown", "server=\"a\"", "method=\"tools/call\"", "name=\"a_hang\"", "age="];
    let line = await_log(&gateway, &fragments).await;
    assert!(line.contains(session) && !line.contains(client.session.as_deref().expect("a session")), "{line}");
    await_log(&gateway, &["calls cut by the shutdown", "count=1", "unnamed=0"]).await;
    await_log(&gateway, &["stopped", "took=", "drained_in=", "closed_in="]).await;
}

#[tokio::test]
async fn f26_the_log_names_twenty_cut_calls_and_counts_the_rest() {
    let mut gateway = Gateway::start(json!({
        "gateway": { "grace": "100ms" },
        "mcpServers": { "a": fixture_server(&[]) },
    }))
    .await;
    let client = gateway.client_seeing("a_hang").await;
    let calls: Vec<_> = (0..25).map(|_| begin_call(&client, "a_hang", json!({}))).collect();
    await_arrivals(&gateway.client().await, "a", 25).await;
    assert!(gateway.terminate().await.success());
    await_log(&gateway, &["calls cut by the shutdown", "count=25", "unnamed=5"]).await;
    let named = |line: &&String| line.contains("call cut by the shutdown");
    assert_eq!(gateway.log().iter().filter(named).count(), 20);
    for call in calls {
        call.abort();
    }
}

#[tokio::test]
async fn f26_a_second_signal_ends_the_drain_at_once_and_leaves_no_process() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let mut gateway = Gateway::start(json!({
        "gateway": { "grace": "1h" },
        "mcpServers": { "a": fixture_server(&["--pid-file", path_text(&file)]) },
    }))
    .await;
    let client = gateway.client_seeing("a_hang").await;
    let call = begin_call(&client, "a_hang", json!({}));
    await_arrivals(&gateway.client().await, "a", 1).await;
    let server = pid_in(&file).await;
    signal(gateway.child.id().expect("the process runs"), "TERM");
    await_log(&gateway, &["shutting down", "open=1"]).await;
    assert_eq!(gateway.terminate().await.code(), Some(1));
    await_exit(server).await;
    call.abort();
}

#[tokio::test]
async fn f26_a_second_signal_ends_a_stdio_gateway_at_once() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let config = json!({
        "gateway": { "grace": "1h" },
        "mcpServers": { "a": fixture_server(&["--pid-file", path_text(&file)]) },
    });
    let client = Client::stdio(config).connected("2025-11-25").await;
    client.await_tool("a_hang").await;
    client.write(r#"{"jsonrpc":"2.0","id":"never","method":"tools/call","params":{"name":"a_hang"}}"#).await;
    // Lines are handled in order, so the call is open when this response arrives.
    client.request("ping", json!({})).await;
    let server = pid_in(&file).await;
    // Two signals at the same time may merge into one, so the signal is repeated until the process ends.
    let code = eventually("the gateway ends", || async {
        let ended = client.try_ended();
        if ended.is_none() {
            signal(client.pid(), "TERM");
        }
        ended
    })
    .await;
    assert_eq!(code.code(), Some(1));
    await_exit(server).await;
}

#[tokio::test]
async fn f26_a_stdio_gateway_answers_open_calls_after_its_input_ends() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let config = json!({ "mcpServers": { "a": fixture_server(&["--pid-file", path_text(&file)]) } });
    let client = Client::stdio(config).connected("2025-11-25").await;
    client.await_tool("a_sleep").await;
    let server = pid_in(&file).await;
    client
        .write(
            r#"{"jsonrpc":"2.0","id":"last","method":"tools/call","params":{"name":"a_sleep","arguments":{"ms":500}}}"#,
        )
        .await;
    client.close_input();
    let answer = loop {
        let message = client.message().await;
        if message["method"].is_null() {
            break message;
        }
    };
    assert_eq!((&answer["id"], answer["error"].is_null()), (&json!("last"), true), "{answer}");
    assert_eq!(client.line().await, None);
    assert!(client.close().await.success());
    assert!(!is_alive(server));
}

#[tokio::test]
async fn f26_a_stdio_gateway_ends_at_sigterm() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let config = json!({ "mcpServers": { "a": fixture_server(&["--pid-file", path_text(&file)]) } });
    let client = Client::stdio(config).connected("2025-11-25").await;
    client.await_tool("a_echo").await;
    let server = pid_in(&file).await;
    signal(client.pid(), "TERM");
    assert!(client.ended().await.success());
    await_exit(server).await;
}

/// The gateway accepts no connections any more, so no response can arrive.
#[tokio::test]
async fn f26_an_open_server_request_does_not_delay_the_shutdown_and_its_call_is_answered() {
    let config = json!({ "gateway": { "grace": "1h" }, "mcpServers": { "a": fixture_server(&[]) } });
    for over_sse in [false, true] {
        let mut gateway = Gateway::start(config.clone()).await;
        gateway.client_seeing("a_request").await;
        let peer = match over_sse {
            false => Client::new(gateway.address).listening(json!({"sampling": {}})).await,
            true => Client::sse(gateway.address).await.listening(json!({"sampling": {}})).await,
        };
        let call = peer.begin_call("a_request", r#"{"method":"sampling/createMessage","params":{}}"#).await;
        peer.server_request("sampling/createMessage").await;
        assert!(gateway.terminate().await.success(), "{over_sse}");
        let outcome = peer.text_of(call).await;
        assert!(outcome.contains("CLIENT_UNAVAILABLE"), "{over_sse}: {outcome}");
    }
}

#[tokio::test]
async fn f26_a_call_with_a_lost_connection_is_logged_and_does_not_delay_the_shutdown() {
    let mut gateway = Gateway::start(json!({
        "gateway": { "grace": "1h" },
        "mcpServers": { "a": fixture_server(&[]) },
    }))
    .await;
    let client = gateway.client_seeing("a_hang").await;
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a_hang"}}"#;
    let stream = raw_post(&client, body).await;
    await_arrivals(&gateway.client().await, "a", 1).await;
    drop(stream);
    assert!(gateway.terminate().await.success());
    await_log(&gateway, &["call cut by the shutdown", "name=\"a_hang\""]).await;
}
