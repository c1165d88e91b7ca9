//! `goblin stdio` next to a gateway of the same configuration: both share one set of servers.
//!
//! The bridge survives a restart of the gateway. Each request of the client receives exactly one response.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::client::Client;
use crate::harness::{Deadline, Gateway, Scratch, TIMEOUT, eventually, fixture, goblin, signal};
use crate::home::Home;

/// Returns a home with one server that records each start.
fn home(gateway: Value, policies: Value) -> Home {
    let mut home = Home::new(&json!({}));
    let server = json!({ "command": fixture(), "args": ["--start-log", home.scratch.path().join("starts")] });
    let config = json!({ "gateway": gateway, "policies": policies, "mcpServers": { "a": server } });
    home.config = home.scratch.write("goblin.json", &config.to_string());
    home
}

/// Starts a client. Returns it and the line in which it reports its mode.
async fn client(home: &Home, arguments: &[&str]) -> (Client, String) {
    start_and_read_line(home.stdio(arguments)).await
}

async fn bridge(home: &Home) -> Client {
    let (client, first_line) = client(home, &[]).await;
    assert!(first_line.starts_with("goblin: bridging to the gateway at http://127.0.0.1:"), "{first_line}");
    let client = client.connected("2025-11-25").await;
    client.await_tool("a_echo").await;
    client
}

fn starts(home: &Home) -> usize {
    crate::support::starts(&home.scratch.path().join("starts"))
}

async fn start_and_read_line(mut command: tokio::process::Command) -> (Client, String) {
    command.stderr(Stdio::piped());
    let client = Client::run(command);
    let mut lines = BufReader::new(client.stderr()).lines();
    let first_line = tokio::time::timeout(TIMEOUT, lines.next_line()).await.expect("a line in time").expect("text");
    // The log must be read, so that the pipe does not fill.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (client, first_line.expect("the process names its mode"))
}

fn call(id: Value, tool: &str, arguments: Value) -> String {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": id}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

/// Reads until the response with this id.
async fn answer(client: &Client, id: &Value) -> Value {
    loop {
        let message = client.message().await;
        if message["id"] == *id && message["method"].is_null() {
            return message;
        }
    }
}

#[tokio::test]
async fn ten_clients_of_one_configuration_share_one_set_of_servers() {
    let home = home(json!({}), json!({}));
    let gateway = Gateway::of(home.serve(0)).await;
    let mut clients = Vec::new();
    for _ in 0..10 {
        clients.push(bridge(&home).await);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.write(&call(json!("same id"), "a_echo", json!({"n": number}))).await;
    }
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(answer(client, &json!("same id")).await["result"]["structuredContent"], json!({"n": number}));
    }
    assert_eq!(starts(&home), 1);
    for client in clients {
        assert_eq!(client.close().await.code(), Some(0));
    }
    let ended = || async {
        let log = gateway.log();
        (log.iter().filter(|line| line.contains("session ended")).count() == 10).then_some(())
    };
    eventually("each client has ended its session", ended).await;
}

#[tokio::test]
async fn standalone_starts_servers_of_its_own() {
    let home = home(json!({}), json!({}));
    let gateway = Gateway::of(home.serve(0)).await;
    gateway.client_seeing("a_echo").await;
    let (mut client, first_line) = client(&home, &["--standalone"]).await;
    assert!(first_line.contains("running its own gateway") && first_line.contains("--standalone"), "{first_line}");
    client.initialize("2025-11-25").await;
    client.await_tool("a_echo").await;
    // The tool may come from the cached listing, before the second server started.
    eventually("the second server started", || async { (starts(&home) == 2).then_some(()) }).await;
}

#[tokio::test]
async fn a_client_with_another_configuration_text_starts_its_own_gateway() {
    let home = home(json!({}), json!({}));
    let _gateway = Gateway::of(home.serve(0)).await;
    let text = std::fs::read_to_string(&home.config).expect("a configuration");
    std::fs::write(&home.config, format!("{text} ")).expect("room");
    let (_client, first_line) = client(&home, &[]).await;
    assert!(first_line.contains("running its own gateway") && first_line.contains("another version"), "{first_line}");
}

#[tokio::test]
async fn a_bridge_requires_equal_variables_and_accepts_unset_ones() {
    let scratch = Scratch::new();
    let server = json!({ "command": fixture(), "env": { "KEY": "${GOBLIN_TEST_KEY}" } });
    let config = scratch.write("goblin.json", &json!({ "mcpServers": { "a": server } }).to_string());
    let command = |arguments: &[&str], key: Option<&str>| {
        let mut command = goblin(scratch.path());
        command.args(arguments).arg("--config").arg(&config).env_remove("GOBLIN_TEST_KEY");
        command.envs(key.map(|key| ("GOBLIN_TEST_KEY", key)));
        command
    };
    let _gateway = Gateway::of(command(&["serve", "--port", "0"], Some("s3cret"))).await;
    for (key, fragment) in
        [(None, "bridging to"), (Some("s3cret"), "bridging to"), (Some("other"), "another value of GOBLIN_TEST_KEY")]
    {
        let (_client, first_line) = start_and_read_line(command(&["stdio"], key)).await;
        assert!(first_line.contains(fragment) && !first_line.contains("s3cret"), "{key:?}: {first_line}");
    }
}

#[tokio::test]
async fn the_record_of_a_killed_gateway_is_ignored() {
    let home = home(json!({}), json!({}));
    let mut gateway = Gateway::of(home.serve(0)).await;
    gateway.child.kill().await.expect("the process can be killed");
    let (_client, first_line) = client(&home, &[]).await;
    assert!(
        first_line.contains("running its own gateway") && first_line.contains("no gateway of this configuration"),
        "{first_line}"
    );
}

#[tokio::test]
async fn a_gateway_that_does_not_answer_is_not_used() {
    let home = home(json!({}), json!({}));
    let gateway = Gateway::of(home.serve(0)).await;
    let pid = gateway.child.id().expect("the process runs");
    signal(pid, "STOP");
    let (_client, first_line) = client(&home, &[]).await;
    signal(pid, "CONT");
    assert!(first_line.contains("running its own gateway") && first_line.contains("does not answer"), "{first_line}");
}

#[tokio::test]
async fn parallel_calls_are_answered_under_their_ids_and_progress_is_forwarded() {
    let home = home(json!({}), json!({}));
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    client.write(&call(json!("slow"), "a_progress", json!({"steps": 3, "delayMs": 20}))).await;
    for id in 0..50 {
        client.write(&call(json!(id), "a_echo", json!({"n": id}))).await;
    }
    let (mut echoes, mut steps, mut ended) = (Vec::new(), Vec::new(), false);
    while echoes.len() < 50 || !ended {
        let message = client.message().await;
        if message["method"] == "notifications/progress" {
            assert_eq!(message["params"]["progressToken"], "slow", "{message}");
            assert!(!ended, "progress after the answer");
            steps.push(message["params"]["progress"].clone());
        } else if message["id"] == "slow" {
            ended = true;
        } else if !message["id"].is_null() {
            assert_eq!(message["result"]["structuredContent"]["n"], message["id"], "{message}");
            echoes.push(message["id"].as_i64());
        }
    }
    echoes.sort_unstable();
    echoes.dedup();
    assert_eq!(echoes.len(), 50);
    assert_eq!(steps, [1, 2, 3]);
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_the_server_and_never_answered() {
    let home = home(json!({}), json!({}));
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    client.write(&call(json!("long"), "a_progress", json!({"steps": 100_000, "delayMs": 10}))).await;
    // The progress proves that the call has reached the server.
    while client.message().await["method"] != "notifications/progress" {}
    let params = json!({"requestId": "long"});
    client.write(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string()).await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    for number in 0.. {
        client.write(&call(json!(number), "a_cancelled", json!({}))).await;
        loop {
            let message = client.message().await;
            assert_ne!(message["id"], "long", "{message}");
            if message["id"] == number {
                if message["result"]["content"][0]["text"] != "[]" {
                    return;
                }
                break;
            }
        }
        assert!(tokio::time::Instant::now() < deadline, "the server did not receive the message");
    }
}

#[tokio::test]
async fn big_messages_pass_in_both_directions() {
    let home = home(json!({ "maxBodySize": "16MiB" }), json!({}));
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    let text = "é".repeat(2 << 20);
    client.write(&call(json!("up"), "a_echo", json!({"text": text}))).await;
    assert_eq!(answer(&client, &json!("up")).await["result"]["structuredContent"]["text"], text);
    client.write(&call(json!("down"), "a_big", json!({"bytes": 8 << 20}))).await;
    let big = answer(&client, &json!("down")).await;
    assert_eq!(big["result"]["content"][0]["text"].as_str().map(str::len), Some(8 << 20));
}

#[tokio::test]
async fn a_rejection_by_the_gateway_is_reported_under_the_request_id() {
    let home = home(json!({ "maxBodySize": "8KiB" }), json!({}));
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    client.write(&call(json!("big"), "a_echo", json!({"text": "x".repeat(10_000)}))).await;
    let rejected = answer(&client, &json!("big")).await;
    assert!(rejected["error"]["message"].as_str().is_some_and(|text| text.contains("maxBodySize")), "{rejected}");
    client.write("{ this is no JSON").await;
    assert_eq!(answer(&client, &Value::Null).await["error"]["code"], -32700);
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn the_bridge_takes_the_token_from_the_gateway_record_a_file_or_a_variable() {
    let home = home(json!({ "token": "s3cret-token-0123" }), json!({}));
    let gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
    let file = home.scratch.write("token", "s3cret-token-0123\n").display().to_string();
    for (arguments, variable, works) in [
        (&["--token-file", &file][..], None, true),
        (&[], Some("s3cret-token-0123"), true),
        (&[], Some("wrong"), false),
        (&[], None, false),
    ] {
        let mut command = goblin(home.scratch.path());
        command.args(["stdio", "--url", &gateway.url()]).args(arguments);
        command.envs(variable.map(|token| ("GOBLIN_TOKEN", token)));
        let (client, first_line) = start_and_read_line(command).await;
        assert!(first_line.contains(&gateway.url()) && !first_line.contains("s3cret"), "{first_line}");
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
        let answer = client.request("initialize", params).await;
        assert_eq!(answer["result"].is_object(), works, "{arguments:?} {variable:?}: {answer}");
        if !works {
            assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("--token-file")), "{answer}");
        }
    }
}

#[tokio::test]
async fn the_bridge_continues_after_a_restart_of_a_killed_gateway_and_resends_no_call() {
    let home = home(json!({}), json!({}));
    let mut gateway = Gateway::of(home.serve(0)).await;
    let port = gateway.address.port();
    let client = bridge(&home).await;
    client.write(&call(json!("cut"), "a_hang", json!({}))).await;
    client.write(&call(json!("done"), "a_echo", json!({}))).await;
    answer(&client, &json!("done")).await;
    // Each call is a separate request, so the first may arrive last.
    let deadline = Deadline::new();
    for queries in 1_u64.. {
        let answer = client.request("tools/call", json!({"name": "a_call_count"})).await;
        let counted = answer["result"]["content"][0]["text"].as_str().and_then(|count| count.parse().ok());
        if counted >= Some(queries + 2) {
            break;
        }
        deadline.pause("the call that will be cut has arrived").await;
    }
    gateway.child.kill().await.expect("the process can be killed");
    let cut = answer(&client, &json!("cut")).await;
    assert_eq!(cut["error"]["data"]["code"], "BACKEND_UNAVAILABLE", "{cut}");
    let closed = client.request("tools/list", json!({})).await;
    assert_eq!(closed["error"]["code"], 1503, "{closed}");
    let message = closed["error"]["message"].as_str().expect("a text");
    assert!(message.contains(&gateway.url()) && message.contains("goblin serve"), "{message}");

    let again = Gateway::of(home.serve(port)).await;
    // The gateway notifies without a change, so that clients fetch their lists again.
    while client.message().await["method"] != "notifications/tools/list_changed" {}
    client.await_tool("a_echo").await;
    let calls = client.request("tools/call", json!({"name": "a_call_count"})).await;
    assert_eq!(calls["result"]["content"][0]["text"], "1", "nothing was sent a second time: {calls}");
    assert_eq!(client.close().await.code(), Some(0));
    eventually("the session has ended", || async {
        again.log().iter().any(|line| line.contains("session ended")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_request_for_a_forgotten_session_is_sent_again_and_runs_once() {
    let home = home(json!({}), json!({}));
    let mut gateway = Gateway::of(home.serve(0)).await;
    let port = gateway.address.port();
    let client = bridge(&home).await;
    gateway.child.kill().await.expect("the process can be killed");
    let again = Gateway::of(home.serve(port)).await;
    again.client_seeing("a_echo").await;
    // Each call receives exactly one response, whether or not the bridge has noticed the loss.
    for id in 0..20 {
        client.write(&call(json!(id), "a_echo", json!({"n": id}))).await;
    }
    let mut answered = Vec::new();
    while answered.len() < 20 {
        let message = client.message().await;
        if let Some(id) = message["id"].as_i64() {
            assert_eq!(message["result"]["structuredContent"]["n"], id, "{message}");
            answered.push(id);
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, (0..20).collect::<Vec<_>>());
    let calls = client.request("tools/call", json!({"name": "a_call_count"})).await;
    assert_eq!(calls["result"]["content"][0]["text"], "21", "{calls}");
}

#[tokio::test]
async fn the_end_of_the_input_ends_the_bridge_after_its_open_calls() {
    let home = home(json!({}), json!({}));
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    client.write(&call(json!("open"), "a_sleep", json!({"ms": 300}))).await;
    client.close_input();
    assert!(answer(&client, &json!("open")).await["result"].is_object());
    assert_eq!(client.line().await, None);
    assert_eq!(client.close().await.code(), Some(0));
}

#[tokio::test]
async fn one_client_has_at_most_256_open_requests_and_the_next_is_rejected() {
    const MAX: usize = 256;
    let home = home(json!({}), json!({ "maxInFlight": 1000 }));
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    for number in 0..MAX {
        client.write(&call(json!(format!("hang {number}")), "a_hang", json!({}))).await;
    }
    client.write(&call(json!("one more"), "a_echo", json!({}))).await;
    let rejected = answer(&client, &json!("one more")).await;
    assert_eq!(rejected["error"]["data"]["code"], "LIMIT_EXCEEDED", "{rejected}");
    assert_eq!(rejected["error"]["data"]["value"], MAX);
    let params = json!({"requestId": "hang 0"});
    client.write(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string()).await;
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        let answer = client.request("ping", json!({})).await;
        if answer["result"].is_object() {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "there is no room after one was cancelled: {answer}");
    }
}

#[tokio::test]
async fn the_bridge_sends_nothing_to_a_stranger_on_the_old_port_and_finds_the_next_gateway() {
    let home = home(json!({ "token": "s3cret-token-0123" }), json!({}));
    let mut gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    gateway.child.kill().await.expect("the process can be killed");
    let other_program = std::net::TcpListener::bind(gateway.address).expect("the port is free again");
    other_program.set_nonblocking(true).expect("the listener can be configured");
    for _ in 0..3 {
        let closed = client.request("ping", json!({})).await;
        assert_eq!(closed["error"]["code"], 1503, "{closed}");
    }
    // The new gateway uses another port, because the old one is taken.
    let _again = Gateway::of(home.serve(0)).await;
    while client.message().await["method"] != "notifications/tools/list_changed" {}
    client.await_tool("a_echo").await;
    let no_connection =
        other_program.accept().map(|(_, peer)| peer).expect_err("the bridge connected to another program");
    assert_eq!(no_connection.kind(), std::io::ErrorKind::WouldBlock, "{no_connection}");
}
