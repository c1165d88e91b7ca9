//! The gateway's own tools are listed where they save tokens, and can be called everywhere.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, Scratch, eventually, fixture_server};
use crate::native_names::{listed, server};
use crate::support::http_server;

const TOOLS: [&str; 5] = ["search_tools", "describe_tool", "call_tool", "catalog_tools", "list_servers"];
const MARK: &str = "anthropic/alwaysLoad";

/// Returns the listed tools of the gateway itself.
async fn own_tools(client: &Client) -> Vec<String> {
    let tools = client.list("tools/list", "tools").await;
    let own = tools.iter().filter_map(|tool| tool["_meta"]["dev.goblin/meta"].as_str());
    own.map(str::to_owned).collect()
}

/// Returns a client of an endpoint, as soon as a call finds the tool.
async fn client_at(gateway: &Gateway, endpoint: &str, tool: &str) -> Client {
    let client = Client::new(gateway.address).at(endpoint).connected("2025-11-25").await;
    eventually("the tool is known", || async {
        let found = client.call("describe_tool", json!({ "name": tool })).await;
        (found["isError"] != true).then_some(())
    })
    .await;
    client
}

#[tokio::test]
async fn use11_a_small_catalog_lists_no_meta_tools_and_they_can_be_called() {
    let few = server(["one", "two"].map(str::to_owned).to_vec(), false).await;
    let config = json!({ "metaTools": "auto", "mcpServers": { "s": http_server(few.address) } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("s_one").await;
    assert_eq!(client.tool_names().await, ["s_one", "s_two"]);
    let found = client.call("search_tools", json!({ "query": "one" })).await;
    assert_eq!(found["structuredContent"]["tools"][0]["name"], "s_one", "{found}");
    let called = client.call("call_tool", json!({ "name": "s_two" })).await;
    assert_eq!(called["content"][0]["text"], "two", "{called}");
    let hello = Client::new(gateway.address).initialize("2025-11-25").await;
    let capability = &hello["result"]["capabilities"]["experimental"]["dev.goblin/metaTools"];
    assert_eq!(*capability, json!({ "prefix": "" }), "{hello}");
    let modern = Client::modern(gateway.address, json!({}));
    assert_eq!(listed(&modern, "tools", 2).await, ["s_one", "s_two"]);
}

#[tokio::test]
async fn use11_each_profile_decides_by_its_own_catalog() {
    let config = json!({
        "metaTools": "auto",
        "profiles": {
            "few": { "tools": ["a_echo", "a_add"] },
            "search": { "tools": ["a_echo", "a_add"], "exposure": { "mode": "search", "pinned": ["a_add"] } },
        },
        "mcpServers": { "a": fixture_server(&["--prompts", "30", "--resources", "60"]), "b": fixture_server(&[]) },
    });
    let gateway = Gateway::start(config).await;
    let whole = gateway.client_seeing("a_echo").await;
    let all = own_tools(&whole).await;
    assert_eq!(all.len(), 12, "{all:?}");
    let few = client_at(&gateway, "/mcp/p/few", "a_echo").await;
    assert!(!own_tools(&few).await.iter().any(|name| TOOLS[..4].contains(&name.as_str())), "two tools");
    let search = client_at(&gateway, "/mcp/p/search", "a_echo").await;
    let names = search.tool_names().await;
    assert_eq!(names[0], "a_add");
    assert!(TOOLS.iter().all(|name| names.iter().any(|found| found == name)), "{names:?}");
    assert!(!names.iter().any(|name| name == "a_echo"), "{names:?}");
}

#[tokio::test]
async fn use11_a_new_meta_tool_is_announced() {
    let scratch = Scratch::new();
    scratch.write("0.txt", "text");
    let servers = json!({ "f": { "type": "files", "root": scratch.path() } });
    let gateway = Gateway::start(json!({ "metaTools": "auto", "mcpServers": servers })).await;
    gateway.client_seeing("f_read").await;
    let client = gateway.client().await;
    assert!(own_tools(&client).await.is_empty());
    let mut stream = client.listen().await;
    for number in 1..=60 {
        scratch.write(&format!("{number}.txt"), "text");
    }
    stream.await_method("notifications/tools/list_changed").await;
    let expected =
        ["search_resources", "describe_resource", "catalog_resources", "catalog_resource_templates", "list_servers"];
    assert_eq!(own_tools(&client).await, expected, "there are few tools and many resources");
}

#[tokio::test]
async fn use11_search_exposure_marks_the_listed_tools_for_clients_that_defer_tools() {
    let config = |mode: &str| {
        json!({
            "metaTools": "auto", "exposure": { "mode": mode, "pinned": ["a_add"] },
            "mcpServers": { "a": fixture_server(&[]) },
        })
    };
    let gateway = Gateway::start(config("search")).await;
    let client = gateway.client_seeing("a_add").await;
    let tools = client.list("tools/list", "tools").await;
    assert_eq!(tools.len(), 1 + TOOLS.len(), "{tools:?}");
    let modern = Client::modern(gateway.address, json!({}));
    for tool in tools.iter().chain(&modern.list("tools/list", "tools").await) {
        assert_eq!(tool["_meta"][MARK], true, "{tool}");
    }
    assert_eq!(tools[0]["_meta"]["dev.goblin/native"], "add", "{}", tools[0]);
    let described = |name: &'static str| {
        let client = &client;
        async move { client.call("describe_tool", json!({ "name": name })).await["structuredContent"]["tool"].clone() }
    };
    assert_eq!(described("a_add").await, tools[0]);
    assert_eq!(described("a_echo").await["_meta"][MARK], Value::Null, "it is not listed");
    let gateway = Gateway::start(config("all")).await;
    let client = gateway.client_seeing("a_add").await;
    let marked = client.list("tools/list", "tools").await.into_iter().filter(|tool| !tool["_meta"][MARK].is_null());
    assert_eq!(marked.count(), 0);
}

#[tokio::test]
async fn srv6_instructions_of_servers_without_a_listed_tool_come_from_list_servers() {
    let config = json!({
        "metaTools": "auto", "exposure": { "mode": "search", "pinned": ["b_add"] },
        "mcpServers": {
            "a": fixture_server(&["--instructions", "Say please."]),
            "b": fixture_server(&["--instructions", "Use add."]),
        },
    });
    let gateway = Gateway::start(config).await;
    client_at(&gateway, "/mcp", "a_add").await;
    let client = client_at(&gateway, "/mcp", "b_add").await;
    let hello = Client::new(gateway.address).initialize("2025-11-25").await;
    let instructions = hello["result"]["instructions"].as_str().unwrap_or_default();
    let expected = "## b\n\nUse add.\n\nTools of this server are listed here as `b_NAME`.";
    assert!(instructions.ends_with(expected) && !instructions.contains("please"), "{instructions}");
    assert!(instructions.contains("`list_servers` with a `serverId`"), "{instructions}");
    let one = client.call("list_servers", json!({ "serverId": "a" })).await;
    assert_eq!(one["structuredContent"]["servers"][0]["instructions"], "Say please.", "{one}");
    assert_eq!(one["structuredContent"]["total"], 1);
    let all = client.call("list_servers", json!({})).await;
    assert!(all["structuredContent"]["total"] == 2 && !all.to_string().contains("please"), "{all}");
    let unknown = client.call("list_servers", json!({ "serverId": "aa" })).await;
    assert!(unknown["isError"] == true && unknown.to_string().contains("did you mean"), "{unknown}");
}

/// Returns a client whose program has this name.
pub async fn client_named(gateway: &Gateway, endpoint: &str, name: &str) -> (Client, Value) {
    let mut client = Client::new(gateway.address).at(endpoint);
    let params =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": name, "version": "1" } });
    let answer = client.post(crate::client::request(json!(0), "initialize", params)).await;
    client.session = answer.headers.get("mcp-session-id").map(|id| id.to_str().expect("text").to_owned());
    client.version = Some("2025-11-25".to_owned());
    client.notify("notifications/initialized", json!({})).await;
    (client, answer.json()["result"]["instructions"].clone())
}

fn rules() -> Value {
    json!({
        "metaTools": "auto",
        "exposure": {
            "mode": "search", "pinned": ["a_add"],
            "clients": { "*": "search", "Cursor*": { "pinned": ["a_echo"] }, "claude-code": "all" },
        },
        "profiles": { "p": { "tools": ["a_add", "a_echo"] } },
        "mcpServers": { "a": fixture_server(&["--instructions", "Be kind."]) },
    })
}

#[tokio::test]
async fn use12_each_client_program_has_its_own_lists_and_instructions() {
    let mut config = rules();
    config["exposure"]["clients"].as_object_mut().expect("an object").remove("*");
    let gateway = Gateway::start(config).await;
    client_at(&gateway, "/mcp", "a_echo").await;
    let own = TOOLS.len();
    for (endpoint, name, first, count) in [
        ("/mcp", "other", "a_add", 1 + own),
        ("/mcp", "cursor-vscode", "a_echo", 1 + own),
        ("/mcp/p/p", "CURSOR", "a_echo", 1 + own),
        ("/mcp/p/p", "Claude-Code", "a_echo", 2),
        ("/mcp/p/p", "", "a_add", 1 + own),
    ] {
        let (client, instructions) = client_named(&gateway, endpoint, name).await;
        let names = client.tool_names().await;
        assert_eq!((names[0].as_str(), names.len()), (first, count), "{endpoint} {name}: {names:?}");
        assert_eq!(instructions.to_string().contains("search_tools"), count > own, "{name}: {instructions}");
        // Clients can call every tool, whatever their lists have.
        assert_eq!(client.call_text("a_echo", json!({ "x": 1 })).await, r#"{"x":1}"#);
        let modern = Client::modern(gateway.address, json!({})).at(endpoint);
        let info = json!({ "io.modelcontextprotocol/clientInfo": { "name": name, "version": "1" } });
        let listed = modern.request("tools/list", json!({ "_meta": info })).await;
        let listed = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("no tools in {listed}")).clone();
        assert_eq!((&listed[0]["name"], listed.len()), (&json!(first), count), "{endpoint} {name}");
    }
    let (claude, _) = client_named(&gateway, "/mcp", "claude-code").await;
    let tools = claude.list("tools/list", "tools").await;
    assert!(tools.len() > 30 && tools.iter().all(|tool| tool["_meta"][MARK].is_null()), "{}", tools.len());
}

#[tokio::test]
async fn use12_a_pattern_applies_after_exact_names() {
    let gateway = Gateway::start(rules()).await;
    client_at(&gateway, "/mcp", "a_echo").await;
    let (claude, _) = client_named(&gateway, "/mcp", "claude-code").await;
    assert!(claude.tool_names().await.len() > 30, "the exact name precedes the pattern before it");
    let (cursor, _) = client_named(&gateway, "/mcp", "cursor").await;
    assert_eq!(cursor.tool_names().await[0], "a_add", "the first pattern of the file applies");
}

#[tokio::test]
async fn use12_only_clients_whose_list_changes_are_notified() {
    let gateway = Gateway::start(rules()).await;
    client_at(&gateway, "/mcp", "a_echo").await;
    let (claude, _) = client_named(&gateway, "/mcp", "claude-code").await;
    let (other, _) = client_named(&gateway, "/mcp", "other").await;
    let (mut claude_stream, mut other_stream) = (claude.listen().await, other.listen().await);
    // The server registers another tool, which only the list of one client has.
    other.call("a_change_tools", json!({})).await;
    claude_stream.await_method("notifications/tools/list_changed").await;
    other.call("a_change_prompts", json!({})).await;
    let next = other_stream.next().await.expect("a message");
    assert_eq!(next["method"], "notifications/prompts/list_changed", "{next}");
}
