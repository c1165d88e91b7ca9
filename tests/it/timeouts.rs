//! The timeouts of calls, and other ends before their response (ROUTE-3).
//!
//! A call that ends early is cancelled at its backend, and a late response is dropped.

use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, eventually, fixture_server};

fn with(mut server: Value, key: &str, value: Value) -> Value {
    server[key] = value;
    server
}

async fn cancelled(client: &Client) -> Vec<Value> {
    serde_json::from_str(&client.call_text("a_cancelled", json!({})).await).expect("a list of ids")
}

async fn await_cancellations(client: &Client, count: usize) {
    eventually("the backend received the cancellation", || async {
        (cancelled(client).await.len() == count).then_some(())
    })
    .await;
}

fn check_timeout(answer: &Value) {
    let error = &answer["error"];
    assert_eq!((&error["code"], &error["data"]["code"]), (&json!(1504), &json!("TIMEOUT")), "{answer}");
    assert_eq!(error["data"]["serverId"], "a", "{answer}");
    assert!(error["message"].as_str().expect("a text").starts_with("Timeout: backend a did not answer"), "{answer}");
}

#[tokio::test]
async fn route3_a_silent_call_is_cancelled_at_the_backend_and_answered_with_timeout() {
    let http = HttpFixture::start(&[]).await;
    for server in [fixture_server(&[]), http.server()] {
        let server = with(server, "tools", json!({ "timeouts": { "hang": "200ms" } }));
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        let client = gateway.client_seeing("a_hang").await;
        check_timeout(&client.request("tools/call", json!({"name": "a_hang"})).await);
        await_cancellations(&client, 1).await;
    }
}

#[tokio::test]
async fn route3_a_late_answer_is_dropped() {
    let server = with(fixture_server(&["--ignore-cancel"]), "tools", json!({ "timeouts": { "nonce": "200ms" } }));
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_nonce").await;
    check_timeout(
        &client
            .request("tools/call", json!({"name": "a_nonce", "arguments": {"nonce": "late", "delayMs": 1000}}))
            .await,
    );
    // This call is sent and answered later, so the late response arrives in between.
    assert_eq!(client.call_text("a_sleep", json!({"ms": 1500})).await, "slept");
    eventually("the late answer is noted", || async {
        gateway.log().iter().any(|line| line.contains("backend sent an answer without a waiting call")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn route3_the_most_specific_timeout_applies() {
    // The timeouts of the gateway, the server and the tool: the most specific one applies, and 0 means none.
    for (policies, server, tools, in_time) in [
        (json!("200ms"), json!("1h"), json!({}), true),
        (json!("200ms"), json!(3_600_000), json!({}), true),
        (json!("1h"), json!("200ms"), json!({}), false),
        (json!("1h"), json!(200), json!({}), false),
        (json!("200ms"), json!("200ms"), json!({"sleep": "0"}), true),
        (json!("0"), json!("0"), json!({"sleep": "200ms"}), false),
        (json!("200ms"), json!("0"), json!({}), true),
    ] {
        let entry = with(with(fixture_server(&[]), "timeout", server), "tools", json!({ "timeouts": tools }));
        let config = json!({ "policies": { "defaultTimeout": policies }, "mcpServers": { "a": entry } });
        let gateway = Gateway::start(config.clone()).await;
        let client = gateway.client_seeing("a_sleep").await;
        let answer = client.request("tools/call", json!({"name": "a_sleep", "arguments": {"ms": 800}})).await;
        if in_time {
            assert_eq!(answer["result"]["content"][0]["text"], "slept", "{config}: {answer}");
        } else {
            check_timeout(&answer);
        }
    }
}

#[tokio::test]
async fn route3_the_default_timeout_applies_to_prompts_and_resources() {
    let scratch = crate::harness::Scratch::new();
    let pid_file = scratch.path().join("pid");
    let server = fixture_server(&["--pid-file", &pid_file.display().to_string()]);
    let config = json!({ "policies": { "defaultTimeout": "200ms" }, "mcpServers": { "a": server } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_echo").await;
    let _frozen = crate::harness::Frozen::new(&pid_file).await;
    check_timeout(&client.request("prompts/get", json!({"name": "a_linked"})).await);
    check_timeout(&client.request("resources/read", json!({"uri": "a+note:///alpha"})).await);
}

#[tokio::test]
async fn route3_progress_restarts_the_deadline() {
    let server = with(fixture_server(&[]), "tools", json!({ "timeouts": { "progress": "4s" } }));
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_progress").await;
    // The call exceeds the timeout, but each step is much shorter.
    let params =
        json!({"name": "a_progress", "arguments": {"steps": 5, "delayMs": 1000}, "_meta": {"progressToken": 1}});
    let answer = client.request("tools/call", params).await;
    assert_eq!(answer["result"]["content"][0]["text"], "5 steps", "{answer}");
}

#[tokio::test]
async fn route3_max_timeout_is_absolute() {
    let config = json!({ "policies": { "maxTimeout": "500ms" }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_progress").await;
    let params =
        json!({"name": "a_progress", "arguments": {"steps": 100_000, "delayMs": 20}, "_meta": {"progressToken": 1}});
    check_timeout(&client.request("tools/call", params).await);
    await_cancellations(&client, 1).await;
}

#[tokio::test]
async fn route3_a_client_can_cancel_a_call_and_receives_no_answer() {
    let http = HttpFixture::start(&[]).await;
    for server in [fixture_server(&[]), http.server()] {
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        let client = gateway.client_seeing("a_hang").await;
        let body = json!({"jsonrpc": "2.0", "id": "h", "method": "tools/call", "params": {"name": "a_hang"}});
        let (_, mut stream) = client.open(body.to_string()).await;
        client.notify("notifications/cancelled", json!({"requestId": "someone else's"})).await;
        assert_eq!(cancelled(&client).await, Vec::<Value>::new());
        client.notify("notifications/cancelled", json!({"requestId": "h", "reason": "enough"})).await;
        assert!(stream.next().await.is_none(), "a cancelled request has no answer");
        await_cancellations(&client, 1).await;
    }
}

#[tokio::test]
async fn route3_a_stdio_client_can_cancel_a_call() {
    let config = json!({ "mcpServers": { "a": fixture_server(&[]) } });
    let client = Client::stdio(config).connected("2025-11-25").await;
    client.await_tool("a_hang").await;
    client
        .write(&json!({"jsonrpc": "2.0", "id": "h", "method": "tools/call", "params": {"name": "a_hang"}}).to_string())
        .await;
    // The cancellation must follow the arrival, because a call that is cancelled earlier never reaches the backend.
    for queries in 1_u64.. {
        let answer = client.request("tools/call", json!({"name": "a_call_count"})).await;
        let counted = answer["result"]["content"][0]["text"].as_str().and_then(|count| count.parse().ok());
        if counted > Some(queries) {
            break;
        }
    }
    client.write(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"h"}}"#).await;
    // A response would arrive before those of later calls.
    let mut cancelled_ids = json!("[]");
    while cancelled_ids == "[]" {
        let id = "count";
        client
            .write(
                &json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "a_cancelled"}})
                    .to_string(),
            )
            .await;
        loop {
            let message = client.message().await;
            assert_ne!(message["id"], "h", "{message}");
            if message["id"] == id {
                cancelled_ids = message["result"]["content"][0]["text"].clone();
                break;
            }
        }
    }
}

#[tokio::test]
async fn sess1_the_end_of_a_session_cancels_only_its_own_calls() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let (client, other) = (gateway.client_seeing("a_hang").await, gateway.client().await);
    let body =
        |tool: &str| json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": tool}}).to_string();
    let (_, mut ended) = client.open(body("a_hang")).await;
    let (_, mut kept) = other.open(body("a_hang")).await;
    client.send(http::Method::DELETE, "/mcp", &client.headers(), "").await;
    assert!(ended.next().await.is_none());
    await_cancellations(&other, 1).await;
    other.notify("notifications/cancelled", json!({"requestId": 77})).await;
    assert!(kept.next().await.is_none());
    await_cancellations(&other, 2).await;
}
