//! Requests of 2026-07-28 over `goblin stdio` next to a gateway of the same configuration. None of them needs a
//! session.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Deadline, GOBLIN, Gateway, eventually, fixture_server};
use crate::home::Home;
use crate::sdk::{Over, Sdk};

const CANCELLED: &str = "notifications/cancelled";
const PROGRESS: &str = "notifications/progress";

/// Returns a home with the fixture as its only server.
pub fn home(switches: &[&str]) -> Home {
    Home::new(&json!({ "mcpServers": { "a": fixture_server(switches) } }))
}

/// Returns a request that names its version.
pub fn request(id: impl Into<Value>, method: &str, mut params: Value) -> String {
    let id = id.into();
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "form": {} } },
        "progressToken": id,
    });
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn call(id: impl Into<Value>, tool: &str, arguments: Value) -> String {
    request(id, "tools/call", json!({ "name": tool, "arguments": arguments }))
}

pub async fn cancel(client: &Client, id: &str) {
    let params = json!({ "requestId": id });
    client.write(&json!({"jsonrpc": "2.0", "method": CANCELLED, "params": params}).to_string()).await;
}

/// Sends a line and reads until its response.
pub async fn answer(client: &Client, line: &str) -> Value {
    client.write(line).await;
    let request: Value = serde_json::from_str(line).expect("a request");
    loop {
        let message = client.message().await;
        if message["id"] == request["id"] && message["method"].is_null() {
            return message;
        }
    }
}

async fn call_text(client: &Client, id: impl Into<Value>, tool: &str) -> String {
    let answer = answer(client, &call(id, tool, json!({}))).await;
    answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {answer}")).to_owned()
}

async fn await_tool(client: &Client, name: &str) {
    let deadline = Deadline::new();
    loop {
        let list = answer(client, &request("list", "tools/list", json!({}))).await;
        if list["result"]["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["name"] == name)) {
            return;
        }
        deadline.pause("the tool is listed").await;
    }
}

#[tokio::test]
async fn srv2_modern_requests_open_no_session() {
    let home = home(&[]);
    let gateway = Gateway::of(home.serve(0)).await;
    let mut client = home.bridge();
    let discovered = answer(&client, &request("d", "server/discover", json!({}))).await;
    assert_eq!(discovered["result"]["supportedVersions"], json!(["2026-07-28"]), "{discovered}");
    await_tool(&client, "a_echo").await;
    let echoed = answer(&client, &call(1, "a_echo", json!({"n": 1.50}))).await;
    assert_eq!(echoed["result"]["structuredContent"], json!({"n": 1.5}), "{echoed}");
    let read = answer(&client, &request("é", "resources/read", json!({"uri": "a+note:///alpha"}))).await;
    assert_eq!(read["result"]["resultType"], "complete", "{read}");
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    client.write(&request("l", "subscriptions/listen", filter)).await;
    assert_eq!(client.message().await["params"]["notifications"], json!({ "toolsListChanged": true }));
    // This proves that the log would show a session.
    client.initialize("2025-11-25").await;
    let opened = || gateway.log().iter().filter(|line| line.contains("session opened")).count();
    eventually("a session is opened", || async { (opened() > 0).then_some(()) }).await;
    assert_eq!(opened(), 1, "{:?}", gateway.log());
}

#[tokio::test]
async fn srv2_errors_of_the_gateway_reach_the_client() {
    let home = home(&[]);
    let _gateway = home.gateway("a_touch").await;
    let client = home.bridge();
    let check = async |client: &Client, line: String, code: i64| {
        let answer = answer(client, &line).await;
        assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
    };
    check(&client, request(1, "initialize", json!({})), -32601).await;
    check(&client, request(2, "tools/call", json!({"name": "nobody's"})), -32602).await;
    check(&client, request(3, "tools/list", json!({})).replace("2026-07-28", "2099-01-01"), -32022).await;
    check(&client, request(4, "tools/list", json!({})).replace("clientCapabilities", "x"), -32602).await;
    check(&client, request(5, "subscriptions/listen", json!({})), -32602).await;
    client.write(&call("twice", "a_hang", json!({}))).await;
    check(&client, request("twice", "tools/list", json!({})), -32600).await;
}

#[tokio::test]
async fn route3_progress_is_delivered_before_the_answer() {
    let home = home(&[]);
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = home.bridge();
    await_tool(&client, "a_progress").await;
    client.write(&call("slow", "a_progress", json!({"steps": 3, "delayMs": 20}))).await;
    for step in 1..=3 {
        let message = client.message().await;
        assert_eq!(message["params"]["progressToken"], "slow", "{message}");
        assert_eq!((&message["method"], &message["params"]["progress"]), (&json!(PROGRESS), &json!(step)));
    }
    assert_eq!(client.message().await["id"], "slow");
}

#[tokio::test]
async fn a_suspended_call_continues_with_the_next_request_of_its_client() {
    let home = home(&[]);
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = home.bridge();
    await_tool(&client, "a_request").await;
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    let params = json!({ "message": "who?", "requestedSchema": schema });
    let arguments = json!({ "method": "elicitation/create", "params": params });
    let suspended = answer(&client, &call("first", "a_request", arguments.clone())).await;
    assert_eq!(suspended["result"]["resultType"], "input_required", "{suspended}");
    let (key, server_request) = suspended["result"]["inputRequests"]
        .as_object()
        .and_then(|requests| requests.iter().next())
        .expect("a server request");
    assert_eq!(server_request["params"]["message"], "who?", "{suspended}");
    let responses = json!({ key: { "action": "accept", "content": { "name": "Ada" } } });
    let again = json!({
        "name": "a_request", "arguments": arguments, "inputResponses": responses,
        "requestState": suspended["result"]["requestState"],
    });
    let done = answer(&client, &request("second", "tools/call", again)).await;
    assert!(done["result"]["content"][0]["text"].as_str().is_some_and(|text| text.contains("Ada")), "{done}");
}

/// The call is cancelled with and without earlier progress.
#[tokio::test]
async fn route3_a_cancelled_call_is_cancelled_at_the_server_and_never_answered() {
    let home = home(&[]);
    let (_gateway, caller) = home.gateway("a_touch").await;
    let client = home.bridge();
    let count = async || caller.call_text("a_call_count", json!({})).await.parse::<usize>().expect("a count");
    for (round, tool) in ["a_hang", "a_progress"].into_iter().enumerate() {
        let before = count().await;
        client.write(&call("long", tool, json!({"steps": 100_000, "delayMs": 10}))).await;
        let deadline = Deadline::new();
        // The query is counted as a call too.
        for queries in 1.. {
            if count().await > before + queries {
                break;
            }
            deadline.pause("the call has reached the server").await;
        }
        cancel(&client, "long").await;
        eventually("the server received the cancellation", || async {
            let cancelled: Vec<Value> =
                serde_json::from_str(&caller.call_text("a_cancelled", json!({})).await).expect("a list");
            (cancelled.len() > round).then_some(())
        })
        .await;
    }
    // The id is free again, and all later messages with it belong to the new request.
    assert!(answer(&client, &call("long", "a_echo", json!({"n": 7}))).await["result"].is_object());
}

#[tokio::test]
async fn both_eras_share_one_pipe_and_may_use_the_same_id() {
    let home = home(&[]);
    let _gateway = Gateway::of(home.serve(0)).await;
    let mut client = home.bridge();
    await_tool(&client, "a_sleep").await;
    client.initialize("2025-11-25").await;
    let mut plain: Value = serde_json::from_str(&call("same", "a_sleep", json!({"ms": 50}))).expect("a request");
    plain["params"]["_meta"] = json!({});
    client.write(&plain.to_string()).await;
    client.write(&call("same", "a_echo", json!({}))).await;
    // Only the newer protocol has `resultType`.
    let mut kinds = Vec::new();
    while kinds.len() < 2 {
        let message = client.message().await;
        if message["id"] == "same" {
            kinds.push(message["result"]["resultType"].as_str().map(str::to_owned));
        }
    }
    kinds.sort();
    assert_eq!(kinds, [None, Some("complete".to_owned())]);
}

#[tokio::test]
async fn srv2_the_bridge_repeats_annotated_arguments_in_headers() {
    let home = home(&["--header-tools"]);
    let _gateway = Gateway::of(home.serve(0)).await;
    let client = home.bridge();
    await_tool(&client, "a_headed").await;
    for region in ["eu", "Zürich"] {
        let arguments = json!({ "region": region, "priority": 3, "dry": true, "options": { "tenant": " t" } });
        let answer = answer(&client, &call(region, "a_headed", arguments)).await;
        assert_eq!(answer["result"]["resultType"], "complete", "{answer}");
    }
}

#[tokio::test]
async fn a_killed_gateway_fails_its_open_call_and_the_next_gateway_serves_the_next_call() {
    let home = home(&[]);
    let (mut gateway, caller) = home.gateway("a_touch").await;
    let client = home.bridge();
    client.write(&call("cut", "a_progress", json!({"steps": 100_000, "delayMs": 10}))).await;
    while client.message().await["method"] != PROGRESS {}
    drop(caller);
    gateway.child.kill().await.expect("the process can be killed");
    let cut = loop {
        let message = client.message().await;
        if message["id"] == "cut" {
            break message;
        }
    };
    assert_eq!(cut["error"]["data"]["code"], "BACKEND_UNAVAILABLE", "{cut}");
    assert!(cut["error"]["data"]["retryable"].is_null(), "the call may have run: {cut}");
    let closed = answer(&client, &request("gone", "tools/list", json!({}))).await;
    assert_eq!(
        (&closed["error"]["code"], &closed["error"]["data"]["retryable"]),
        (&json!(1503), &json!(true)),
        "{closed}"
    );
    let message = closed["error"]["message"].as_str().expect("a text");
    assert!(message.contains(&gateway.url()) && message.contains("goblin serve"), "{message}");
    let _again = home.gateway("a_touch").await;
    assert_eq!(call_text(&client, "count", "a_call_count").await, "1", "nothing was sent a second time");
}

#[tokio::test]
async fn at_the_end_of_the_input_calls_finish_and_streams_end() {
    let home = home(&[]);
    let _gateway = home.gateway("a_touch").await;
    let client = home.bridge();
    let filter = json!({ "notifications": { "toolsListChanged": true } });
    client.write(&request("stream", "subscriptions/listen", filter)).await;
    assert_eq!(client.message().await["method"], "notifications/subscriptions/acknowledged");
    client.write(&call("open", "a_sleep", json!({"ms": 300}))).await;
    client.close_input();
    let mut answered = Vec::new();
    while let Some(line) = client.line().await {
        let message: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(message["result"]["resultType"], "complete", "{message}");
        answered.push(message["id"].clone());
    }
    assert_eq!(answered, ["stream", "open"]);
    assert_eq!(client.close().await.code(), Some(0));
}

async fn check_sdk(sdk: Sdk) {
    let home = home(&[]);
    let (gateway, _caller) = home.gateway("a_touch").await;
    let url = gateway.url();
    let over = Over::Program(&[GOBLIN, "stdio", "--url", &url]);
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    let input_request =
        json!({ "method": "elicitation/create", "params": { "message": "who?", "requestedSchema": schema } });
    let filter = json!({ "toolsListChanged": true, "resourceSubscriptions": ["a+note:///alpha"] });
    let steps = [
        json!({"do": "list_tools"}),
        json!({"do": "call_tool", "name": "a_echo", "arguments": {"n": 1}}),
        json!({"do": "call_tool", "name": "a_progress", "arguments": {"steps": 3, "delayMs": 20}, "progress": true}),
        json!({"do": "read_resource", "uri": "a+note:///alpha"}),
        json!({"do": "call_tool", "name": "a_request", "arguments": input_request}),
        json!({"do": "listen", "notifications": filter}),
        json!({"do": "call_tool", "name": "a_touch", "arguments": {"uri": "note:///alpha"}}),
        json!({"do": "wait_notification", "method": "notifications/resources/updated", "params": {"uri": "a+note:///alpha"}}),
        json!({"do": "call_tool", "name": "a_change_tools", "arguments": {}}),
        json!({"do": "wait_notification", "method": "notifications/tools/list_changed"}),
    ];
    let report = sdk.begin_modern("Ada", over, &steps).report().await;
    for step in 0..steps.len() {
        assert_eq!(report.step(step)["ok"], true, "{sdk:?}: {}", report.step(step));
    }
    assert_eq!(report.member("protocolVersion"), "2026-07-28");
    let answer_text = report.step(4)["result"]["content"][0]["text"].to_string();
    assert!(answer_text.contains("Ada"), "{sdk:?}: {answer_text}");
}

#[tokio::test]
async fn srv2_a_python_client_works_over_the_bridge() {
    check_sdk(Sdk::Python2).await;
}

#[tokio::test]
async fn srv2_a_typescript_client_works_over_the_bridge() {
    check_sdk(Sdk::TypeScript2).await;
}
