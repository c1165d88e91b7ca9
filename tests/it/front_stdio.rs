//! `goblin stdio` from the view of a client program.
//!
//! The handshake comes first and once. At the end of the input, open calls are completed before the process exits.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Scratch, TIMEOUT, fixture_server, goblin, signal};

fn config() -> Value {
    json!({ "mcpServers": { "a": fixture_server(&[]) } })
}

fn request(id: Value, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn hello(version: &str) -> Value {
    json!({"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}})
}

async fn works(client: &Client) {
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
}

/// Returns the next message that is not a notification.
async fn answer(client: &Client) -> Value {
    loop {
        let message = client.message().await;
        if message["method"].is_null() {
            return message;
        }
    }
}

#[tokio::test]
async fn srv2_a_connection_begins_with_exactly_one_handshake() {
    let client = Client::stdio(json!({ "mcpServers": {} }));
    works(&client).await;
    for method in ["tools/list", "tools/call", "nobody/knows"] {
        let rejected = client.request(method, json!({"name": "x"})).await;
        assert_eq!(rejected["error"]["code"], -32600, "{rejected}");
        assert!(rejected["error"]["message"].as_str().expect("a text").contains("initialize"), "{rejected}");
    }
    let answer = client.request("initialize", hello("2025-06-18")).await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-06-18");
    let again = client.request("initialize", hello("2025-11-25")).await;
    assert_eq!(again["error"]["code"], -32600, "{again}");
    assert_eq!(client.request("tools/list", json!({})).await["result"]["tools"], json!([]));
    assert!(client.close().await.success());
}

#[tokio::test]
async fn srv2_no_notification_is_sent_before_the_client_completes_the_handshake() {
    // This exceeds the time that the first response waits for servers.
    let config = json!({ "mcpServers": { "a": fixture_server(&["--slow-start", "5000"]) } });
    let client = Client::stdio(config);
    client.write(&request(json!("hello"), "initialize", hello("2025-11-25"))).await;
    assert_eq!(client.message().await["id"], "hello");
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    loop {
        client.write(&request(json!("list"), "tools/list", json!({}))).await;
        let message = client.message().await;
        assert_eq!(message["id"], "list", "a notification before `initialized`: {message}");
        if message["result"]["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // This exceeds the pause between two notifications.
    client.write(&request(json!("sleep"), "tools/call", json!({"name": "a_sleep", "arguments": {"ms": 1500}}))).await;
    let message = client.message().await;
    assert_eq!(message["id"], "sleep", "a notification before `initialized`: {message}");
    client.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    assert_eq!(client.message().await["method"], "notifications/tools/list_changed");
}

#[tokio::test]
async fn sess1_the_end_of_input_ends_the_process_after_open_calls_are_answered() {
    let client = Client::stdio(config()).connected("2025-11-25").await;
    client.await_tool("a_nonce").await;
    for number in 0..5 {
        let params = json!({"name": "a_nonce", "arguments": {"nonce": number.to_string(), "delayMs": 300}});
        client.write(&request(json!(format!("n{number}")), "tools/call", params)).await;
    }
    client.close_input();
    let mut answered = std::collections::BTreeMap::new();
    while let Some(line) = client.line().await {
        let message: Value = serde_json::from_str(&line).expect("a message");
        if let Some(id) = message["id"].as_str() {
            answered.insert(id.to_owned(), message["result"]["content"][0]["text"].clone());
        }
    }
    let expected = (0..5).map(|number| (format!("n{number}"), json!(number.to_string()))).collect();
    assert_eq!(answered, expected);
    assert_eq!(client.close().await.code(), Some(0));
}

#[tokio::test]
async fn sess1_a_call_that_never_ends_does_not_delay_the_exit() {
    let mut config = config();
    config["gateway"] = json!({ "grace": "100ms" });
    let client = Client::stdio(config).connected("2025-11-25").await;
    client.await_tool("a_hang").await;
    client.write(&request(json!("h"), "tools/call", json!({"name": "a_hang"}))).await;
    assert_eq!(client.close().await.code(), Some(0));
}

#[tokio::test]
async fn sess1_a_signal_ends_the_process() {
    let client = Client::stdio(config()).connected("2025-11-25").await;
    works(&client).await;
    signal(client.pid(), "TERM");
    assert_eq!(client.ended().await.code(), Some(0));
}

#[tokio::test]
async fn http3_a_batch_on_stdio_is_answered_message_by_message() {
    let client = Client::stdio(config()).connected("2025-03-26").await;
    client.await_tool("a_echo").await;
    let one = request(json!("one"), "ping", json!({}));
    let two = request(json!("two"), "tools/call", json!({"name": "a_echo", "arguments": {"n": 2}}));
    client.write(&format!("[{one},{two},7]")).await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(answer(&client).await);
    }
    let of =
        |id: Value| answers.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("{id}: {answers:?}"));
    assert_eq!(of(json!("one"))["result"], json!({}));
    assert_eq!(of(json!("two"))["result"]["structuredContent"], json!({"n": 2}));
    assert_eq!(of(Value::Null)["error"]["code"], -32600);
    client.write("[]").await;
    assert_eq!(answer(&client).await["error"]["code"], -32600);
    works(&client).await;
}

#[tokio::test]
async fn http3_a_batch_on_stdio_is_rejected_in_every_other_version() {
    for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let client = Client::stdio(json!({ "mcpServers": {} })).connected(version).await;
        client.write(&format!("[{}]", request(json!("one"), "ping", json!({})))).await;
        let rejected = answer(&client).await;
        assert_eq!(rejected["error"]["code"], -32600, "{version}: {rejected}");
        works(&client).await;
    }
}

#[tokio::test]
async fn http3_a_line_above_the_limit_is_rejected_and_the_next_one_is_read() {
    let config = json!({ "policies": { "maxMessageSize": "4KiB" }, "mcpServers": {} });
    let client = Client::stdio(config).connected("2025-11-25").await;
    for size in [5 * 1024, 300 * 1024] {
        client.write(&request(json!("big"), "ping", json!({"fill": "x".repeat(size)}))).await;
        let rejected = answer(&client).await;
        assert_eq!(rejected["error"]["code"], -32600, "{rejected}");
        assert!(rejected["error"]["message"].as_str().expect("a text").contains("maxMessageSize"), "{rejected}");
        works(&client).await;
    }
}

#[tokio::test]
async fn srv4_a_change_is_notified_on_stdio() {
    let client = Client::stdio(config()).connected("2025-11-25").await;
    client.await_tool("a_change_prompts").await;
    for (tool, method) in [
        ("a_change_prompts", "notifications/prompts/list_changed"),
        ("a_change_tools", "notifications/tools/list_changed"),
        ("a_change_resources", "notifications/resources/list_changed"),
    ] {
        // A notification of the start may come first, so the call may still be open in the next round.
        client.write(&request(json!(tool), "tools/call", json!({"name": tool}))).await;
        while client.message().await["method"] != method {}
    }
}

#[tokio::test]
async fn http3_progress_is_delivered_before_the_answer_on_stdio() {
    let client = Client::stdio(config()).connected("2025-11-25").await;
    client.await_tool("a_progress").await;
    let params = json!({"name": "a_progress", "arguments": {"steps": 3}, "_meta": {"progressToken": 7}});
    client.write(&request(json!("p"), "tools/call", params)).await;
    let mut seen = Vec::new();
    loop {
        let message = client.message().await;
        if message["id"] == "p" {
            break;
        }
        if message["method"] == "notifications/progress" {
            assert_eq!(message["params"]["progressToken"], 7);
            seen.push(message["params"]["progress"].clone());
        }
    }
    assert_eq!(seen, [1, 2, 3]);
}

#[tokio::test]
async fn a_closed_stderr_does_not_end_the_process() {
    let scratch = Scratch::new();
    let config = scratch.write("goblin.json", r#"{ "mcpServers": {} }"#);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = goblin(scratch.path());
    command.args(["stdio", "--log-level", "trace", "--config"]).arg(config).stderr(writer);
    let mut client = Client::run(command);
    client.initialize("2025-11-25").await;
    assert_eq!(client.close().await.code(), Some(0));
}

#[tokio::test]
async fn sess2_the_first_list_waits_for_servers_that_are_starting() {
    let servers = json!({
        "slow": fixture_server(&["--slow-start", "700"]),
        "gone": { "command": "/nowhere/at/all" },
    });
    let client = Client::stdio(json!({ "mcpServers": servers })).connected("2025-11-25").await;
    let listed = client.request("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().expect("a list");
    assert!(tools.iter().any(|tool| tool["name"] == "slow_echo"), "{listed}");
}
