//! The exposure of tools: all are listed, or only the pinned ones. Unlisted tools can still be found and called.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::http::Listener;
use crate::harness::{Gateway, fixture_server};

const CHANGED: &str = "notifications/tools/list_changed";

fn config(exposure: Value) -> Value {
    json!({"exposure": exposure, "metaTools": {"enabled": true}, "mcpServers": {"a": fixture_server(&[])}})
}

/// Starts a gateway and waits until a search finds the server's tools.
async fn start(exposure: Value) -> (Gateway, Client) {
    let gateway = Gateway::start(config(exposure)).await;
    let client = gateway.client().await;
    crate::harness::eventually("the server's tools are found", || async {
        let found = client.call("search_tools", json!({"query": "echo"})).await;
        (found["structuredContent"]["total"].as_u64() > Some(0)).then_some(())
    })
    .await;
    (gateway, client)
}

fn server_tools(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).filter(|name| name.starts_with("a_")).collect()
}

#[tokio::test]
async fn reg6_search_mode_lists_only_meta_and_pinned_tools_and_all_tools_can_be_called() {
    let (gateway, client) = start(json!({"mode": "search", "pinned": ["a_ad*", "a_nothing"]})).await;
    let names = client.tool_names().await;
    assert_eq!(server_tools(&names), ["a_add"]);
    assert_eq!(names.len(), 13, "{names:?}");
    assert_eq!(client.call_text("a_echo", json!({"x": 1})).await, r#"{"x":1}"#, "by its own name");
    let called = client.call("call_tool", json!({"name": "a_echo", "arguments": {"x": 1}})).await;
    assert_eq!(called, client.call("a_echo", json!({"x": 1})).await);
    let modern = Client::modern(gateway.address, json!({}));
    let listed = modern.request("tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(13), "{listed}");
    // A client that sees only some tools receives instructions to find the others.
    let discovered = modern.request("server/discover", json!({})).await;
    let mut fresh = Client::new(gateway.address);
    for instructions in [
        discovered["result"]["instructions"].clone(),
        fresh.initialize("2025-06-18").await["result"]["instructions"].clone(),
    ] {
        assert!(instructions.as_str().is_some_and(|text| text.contains("`search_tools`")), "{instructions}");
    }
    let pipe = Client::stdio(config(json!("search"))).connected("2025-11-25").await;
    let listed = pipe.request("tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"].as_array().map(Vec::len), Some(12), "{listed}");
}

#[tokio::test]
async fn reg6_auto_mode_lists_a_few_tools_and_hides_many() {
    for (above, is_listed) in [(1000, true), (10, false)] {
        let (_gateway, client) = start(json!({"mode": "auto", "autoAbove": above})).await;
        assert_eq!(client.tool_names().await.iter().any(|name| name == "a_echo"), is_listed, "{above}");
    }
}

async fn no_more_than(stream: &mut Listener, client: &Client, method: &str) {
    // The notification of this call follows any earlier ones on the session's stream.
    client.call("a_change_prompts", json!({})).await;
    let next = stream.next().await.expect("a message");
    assert_eq!(next["method"], method, "{next}");
}

#[tokio::test]
async fn reg8_a_described_tool_is_added_to_the_list_of_that_client_alone() {
    let (gateway, client) = start(json!({"mode": "search", "reveal": true})).await;
    let other = gateway.client().await;
    let (mut stream, mut other_stream) = (client.listen().await, other.listen().await);
    client.call("describe_tool", json!({"name": "a_echo"})).await;
    stream.await_method(CHANGED).await;
    let tools = client.list("tools/list", "tools").await;
    assert_eq!(tools.len(), 13);
    assert_eq!(tools[0]["name"], "a_echo");
    let described = client.call("describe_tool", json!({"name": "a_echo"})).await;
    assert_eq!(described["structuredContent"]["tool"], tools[0]);
    no_more_than(&mut stream, &client, "notifications/prompts/list_changed").await;
    assert_eq!(other.tool_names().await.len(), 12);
    let next = other_stream.next().await.expect("a message");
    assert_eq!(next["method"], "notifications/prompts/list_changed", "{next}");
    // Only existing backend tools can be added to a list.
    client.call("describe_tool", json!({"name": "a_nobody"})).await;
    client.call("describe_tool", json!({"name": "search_tools"})).await;
    assert_eq!(client.tool_names().await.len(), 13);
}

#[tokio::test]
async fn reg8_a_change_of_unlisted_tools_is_not_announced() {
    let (_gateway, client) = start(json!({"mode": "search", "pinned": ["a_late*"]})).await;
    let mut stream = client.listen().await;
    client.call("a_change_tools", json!({})).await;
    no_more_than(&mut stream, &client, "notifications/prompts/list_changed").await;
}

#[tokio::test]
async fn reg6_unlisted_meta_tools_can_be_called() {
    let mut config = config(json!("all"));
    config["metaTools"] = json!({"enabled": false, "prefix": "goblin_"});
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_echo").await;
    assert!(!client.tool_names().await.iter().any(|name| name.contains("search")));
    let found = client.call("goblin_search_tools", json!({"query": "echo"})).await;
    assert_eq!(found["structuredContent"]["tools"][0]["name"], "a_echo", "{found}");
    let missing = client.request("tools/call", json!({"name": "search_tools", "arguments": {"query": "x"}})).await;
    assert_eq!(missing["error"]["data"]["code"], "TOOL_NOT_FOUND", "the name has a prefix: {missing}");
}
