//! `goblin stdio` next to a gateway of the same configuration: both share one set of servers.
//!
//! The bridge survives a restart of the gateway. Each request of the client receives exactly one response.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::client::Client;
use crate::harness::{Deadline, Gateway, PATIENCE, Scratch, eventually, fixture, goblin, signal};
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
    spoken_for(home.stdio(arguments)).await
}

async fn bridge(home: &Home) -> Client {
    let (client, word) = client(home, &[]).await;
    assert!(word.starts_with("goblin: bridging to the gateway at http://127.0.0.1:"), "{word}");
    let client = client.connected("2025-11-25").await;
    client.await_tool("a_echo").await;
    client
}

fn starts(home: &Home) -> usize {
    crate::support::starts(&home.scratch.path().join("starts"))
}

async fn spoken_for(mut command: tokio::process::Command) -> (Client, String) {
    command.stderr(Stdio::piped());
    let client = Client::run(command);
    let mut lines = BufReader::new(client.stderr()).lines();
    let word = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("a word in time").expect("text");
    // The log must be read, so that the pipe does not fill.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (client, word.expect("it says which it is"))
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
    let (mut client, word) = client(&home, &["--standalone"]).await;
    assert!(word.contains("running its own gateway") && word.contains("--standalone"), "{word}");
    client.initialize("2025-11-25").await;
    client.await_tool("a_echo").await;
    assert_eq!(starts(&home), 2);
}

#[tokio::test]
async fn another_text_of_the_configuration_is_another_gateway() {
    let home = home(json!({}), json!({}));
    let _gateway = Gateway::of(home.serve(0)).await;
    let text = std::fs::read_to_string(&home.config).expect("a configuration");
    std::fs::write(&home.config, format!("{text} ")).expect("room");
    let (_client, word) = client(&home, &[]).await;
    assert!(word.contains("running its own gateway") && word.contains("another version"), "{word}");
}

#[tokio::test]
async fn variables_must_agree_and_a_missing_one_is_taken_from_the_gateway() {
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
    for (key, words) in
        [(None, "bridging to"), (Some("s3cret"), "bridging to"), (Some("other"), "another value of GOBLIN_TEST_KEY")]
    {
        let (_client, word) = spoken_for(command(&["stdio"], key)).await;
        assert!(word.contains(words) && !word.contains("s3cret"), "{key:?}: {word}");
    }
}

#[tokio::test]
async fn a_record_of_a_killed_gateway_is_no_gateway() {
    let home = home(json!({}), json!({}));
    let mut gateway = Gateway::of(home.serve(0)).await;
    gateway.child.kill().await.expect("it can be killed");
    let (_client, word) = client(&home, &[]).await;
    assert!(word.contains("running its own gateway") && word.contains("no gateway of this configuration"), "{word}");
}

#[tokio::test]
async fn a_gateway_that_does_not_answer_is_not_used() {
    let home = home(json!({}), json!({}));
    let gateway = Gateway::of(home.serve(0)).await;
    let pid = gateway.child.id().expect("it runs");
    signal(pid, "STOP");
    let (_client, word) = client(&home, &[]).await;
    signal(pid, "CONT");
    assert!(word.contains("running its own gateway") && word.contains("does not answer"), "{word}");
}

#[tokio::test]
async fn calls_in_parallel_reach_their_own_ids_and_progress_passes() {
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
    let deadline = tokio::time::Instant::now() + PATIENCE;
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
        assert!(tokio::time::Instant::now() < deadline, "the server was not told");
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
async fn what_the_gateway_refuses_is_told_under_the_id_of_the_request() {
    let home = home(json!({ "maxBodySize": "8KiB" }), json!({}));
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    client.write(&call(json!("big"), "a_echo", json!({"text": "x".repeat(10_000)}))).await;
    let refused = answer(&client, &json!("big")).await;
    assert!(refused["error"]["message"].as_str().is_some_and(|text| text.contains("maxBodySize")), "{refused}");
    client.write("{ this is no JSON").await;
    assert_eq!(client.message().await["error"]["code"], -32700);
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn the_token_is_found_with_the_gateway_or_given() {
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
        let (client, word) = spoken_for(command).await;
        assert!(word.contains(&gateway.url()) && !word.contains("s3cret"), "{word}");
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
async fn a_gateway_killed_and_started_again_goes_unnoticed_but_for_the_gap() {
    let home = home(json!({}), json!({}));
    let mut gateway = Gateway::of(home.serve(0)).await;
    let port = gateway.address.port();
    let client = bridge(&home).await;
    client.write(&call(json!("cut"), "a_hang", json!({}))).await;
    client.write(&call(json!("done"), "a_echo", json!({}))).await;
    answer(&client, &json!("done")).await;
    // Each call is a separate request, so the first may arrive last.
    let deadline = Deadline::new();
    for asked in 1_u64.. {
        let answer = client.request("tools/call", json!({"name": "a_call_count"})).await;
        let counted = answer["result"]["content"][0]["text"].as_str().and_then(|count| count.parse().ok());
        if counted >= Some(asked + 2) {
            break;
        }
        deadline.pause("the call that will be cut has arrived").await;
    }
    gateway.child.kill().await.expect("it can be killed");
    let cut = answer(&client, &json!("cut")).await;
    assert_eq!(cut["error"]["data"]["code"], "BACKEND_UNAVAILABLE", "{cut}");
    let gone = client.request("tools/list", json!({})).await;
    assert_eq!(gone["error"]["code"], 1503, "{gone}");
    let words = gone["error"]["message"].as_str().expect("words");
    assert!(words.contains(&gateway.url()) && words.contains("goblin serve"), "{words}");

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
async fn a_request_that_meets_a_forgotten_session_is_sent_again() {
    let home = home(json!({}), json!({}));
    let mut gateway = Gateway::of(home.serve(0)).await;
    let port = gateway.address.port();
    let client = bridge(&home).await;
    gateway.child.kill().await.expect("it can be killed");
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
async fn the_end_of_the_input_ends_it_after_what_is_open() {
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
async fn exactly_so_many_requests_of_one_client_are_open_and_the_next_is_refused() {
    const MOST: usize = 256;
    let home = home(json!({}), json!({ "maxInFlight": 1000 }));
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    for number in 0..MOST {
        client.write(&call(json!(format!("hang {number}")), "a_hang", json!({}))).await;
    }
    client.write(&call(json!("one more"), "a_echo", json!({}))).await;
    let refused = answer(&client, &json!("one more")).await;
    assert_eq!(refused["error"]["data"]["code"], "LIMIT_EXCEEDED", "{refused}");
    assert_eq!(refused["error"]["data"]["value"], MOST);
    let params = json!({"requestId": "hang 0"});
    client.write(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).to_string()).await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let answer = client.request("ping", json!({})).await;
        if answer["result"].is_object() {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "there is no room after one was cancelled: {answer}");
    }
}

#[tokio::test]
async fn whoever_takes_the_port_of_an_ended_gateway_hears_nothing_and_its_successor_is_found() {
    let home = home(json!({ "token": "s3cret-token-0123" }), json!({}));
    let mut gateway = Gateway::of(home.serve(0)).await;
    let client = bridge(&home).await;
    gateway.child.kill().await.expect("it can be killed");
    let stranger = std::net::TcpListener::bind(gateway.address).expect("the port is free again");
    stranger.set_nonblocking(true).expect("a listener of ours");
    for _ in 0..3 {
        let gone = client.request("ping", json!({})).await;
        assert_eq!(gone["error"]["code"], 1503, "{gone}");
    }
    // The new gateway uses another port, because the old one is taken.
    let _again = Gateway::of(home.serve(0)).await;
    while client.message().await["method"] != "notifications/tools/list_changed" {}
    client.await_tool("a_echo").await;
    let nobody = stranger.accept().map(|(_, peer)| peer).expect_err("a stranger was spoken to");
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock, "{nobody}");
}
