//! The gateway's own tools under other settings: a prefix, few listed tools, a profile, changing servers.
//!
//! The tools see exactly the catalog of their client.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::meta_client::{NAMES, column, text};

#[tokio::test]
async fn meta5_a_configured_prefix_is_part_of_all_meta_tool_names_and_texts() {
    let config =
        json!({ "metaTools": { "enabled": true, "prefix": "gw_" }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_echo").await;
    let tools = client.list("tools/list", "tools").await;
    let meta_tools: Vec<&Value> = tools.iter().filter(|tool| tool["_meta"]["dev.goblin/meta"].is_string()).collect();
    let names: Vec<String> = meta_tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(names, NAMES.map(|name| format!("gw_{name}")));
    let plain: Vec<&Value> = meta_tools.iter().map(|tool| &tool["_meta"]["dev.goblin/meta"]).collect();
    assert_eq!(plain, NAMES.iter().map(|name| Value::from(*name)).collect::<Vec<_>>().iter().collect::<Vec<_>>());
    let sum = client.call("gw_call_tool", json!({"name": "a_add", "arguments": {"a": 1, "b": 1}})).await;
    assert_eq!(sum["structuredContent"], json!({"sum": 2}));
    let missing = client.call("gw_describe_tool", json!({"name": "qqqqqqqqqq"})).await;
    assert!(text(&missing).contains("`gw_search_tools`"), "{missing}");
    let unknown = client.request("tools/call", json!({"name": "search_tools", "arguments": {"query": "x"}})).await;
    assert_eq!(unknown["error"]["data"]["code"], "TOOL_NOT_FOUND", "{unknown}");
}

#[tokio::test]
async fn meta5_an_unlisted_tool_can_be_searched_described_and_called() {
    let config = json!({
        "exposure": { "mode": "search", "pinned": ["a_echo"], "reveal": true },
        "mcpServers": { "a": fixture_server(&[]) },
    });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_echo").await;
    let mut stream = client.listen().await;
    let names = client.tool_names().await;
    assert_eq!(names[0], "a_echo");
    assert_eq!(names[1..], NAMES);
    let found = client.call("search_tools", json!({"query": "add two numbers"})).await;
    assert_eq!(found["structuredContent"]["tools"][0]["name"], "a_add");
    assert_eq!(client.tool_names().await, names, "to be found is not to be described");
    let described = client.call("describe_tool", json!({"name": "a_add"})).await;
    assert_eq!(described["structuredContent"]["tool"]["name"], "a_add");
    let sum = client.call("call_tool", json!({"name": "a_add", "arguments": {"a": 1, "b": 1}})).await;
    assert_eq!(sum["structuredContent"], json!({"sum": 2}));
    stream.await_method("notifications/tools/list_changed").await;
    let revealed = client.tool_names().await;
    assert!(revealed.contains(&"a_add".to_owned()), "{revealed:?}");
    assert_eq!(revealed.len(), names.len() + 1);
    assert_eq!(gateway.client().await.tool_names().await, names, "other clients had nothing described");
}

#[tokio::test]
async fn meta5_meta_tools_return_only_the_entries_of_the_profile() {
    let config = json!({
        "profiles": { "few": {
            "servers": ["a"], "tools": ["a_add", "a_echo"], "prompts": ["a_greet"], "resources": ["a+note:///*"],
        } },
        "mcpServers": { "a": fixture_server(&[]), "b": fixture_server(&[]) },
    });
    let gateway = Gateway::start(config).await;
    gateway.client_seeing("a_echo").await.await_tool("b_echo").await;
    let client = Client::new(gateway.address).at("/mcp/p/few").connected("2025-06-18").await;
    let call = async |tool: &str, arguments: Value| client.call(tool, arguments).await;
    let call_structured = async |tool: &str, arguments: Value| call(tool, arguments).await["structuredContent"].clone();
    let servers = call_structured("list_servers", json!({})).await;
    assert_eq!(column(&servers["servers"], "serverId"), ["a"]);
    assert_eq!((&servers["servers"][0]["tools"], &servers["servers"][0]["prompts"]), (&json!(2), &json!(1)));
    let tools = call_structured("catalog_tools", json!({})).await;
    assert_eq!(column(&tools["tools"], "name"), ["a_echo", "a_add"]);
    let found = call_structured("search_tools", json!({"query": "sleep hang crash echo", "limit": 100})).await;
    assert_eq!(column(&found["tools"], "name"), ["a_echo"], "{found}");
    let resources = call_structured("search_resources", json!({"query": "", "limit": 100})).await;
    assert!(column(&resources["resources"], "uri").iter().all(|uri| uri.starts_with("a+note:///")), "{resources}");
    for (tool, arguments) in [
        ("describe_tool", json!({"name": "a_sleep"})),
        ("describe_tool", json!({"name": "b_echo"})),
        ("call_tool", json!({"name": "b_echo"})),
        ("describe_prompt", json!({"name": "a_linked"})),
        ("describe_resource", json!({"uri": "b+note:///alpha"})),
        ("search_tools", json!({"query": "", "serverId": "b"})),
    ] {
        let result = call(tool, arguments.clone()).await;
        assert_eq!(result["isError"], true, "{tool} {arguments}: {result}");
        let text_value = text(&result);
        assert!(
            !text_value.contains("`b_echo`, ") && !text_value.contains("mean `b"),
            "nothing hidden is proposed: {text_value}"
        );
    }
}

#[tokio::test]
async fn meta5_search_tools_finds_restored_tools_and_no_removed_ones() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let first = async |query: &str| {
        let found = client.call("search_tools", json!({"query": query, "limit": 1})).await;
        found["structuredContent"]["tools"][0]["name"].clone()
    };
    assert_eq!(first("add numbers").await, "a_add");
    client.call("a_change_tools", json!({"remove": "add"})).await;
    eventually("the tool is not listed", || async { (first("a_add").await != "a_add").then_some(()) }).await;
    let missing = client.call("describe_tool", json!({"name": "a_add"})).await;
    assert_eq!(missing["isError"], true, "{missing}");
    client.call("a_change_tools", json!({"restore": "add"})).await;
    eventually("the tool is back", || async { (first("a_add").await == "a_add").then_some(()) }).await;
    // The prompts have not changed, so their index is that of an earlier catalog and must still match.
    let found = client.call("search_prompts", json!({"query": "greet"})).await;
    assert_eq!(found["structuredContent"]["prompts"][0]["name"], "a_greet");
}
