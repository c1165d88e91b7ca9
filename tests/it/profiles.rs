//! Profiles: hidden entries are unreachable by any request.
//!
//! A response about a hidden entry must equal the one for an unknown entry. Even notifications must not reveal it.

use std::process::Stdio;

use http::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::front_listen::uris;
use crate::harness::{Gateway, Scratch, fixture_server, goblin};
use crate::subscriber::{UPDATED, await_upstream, subscribe};
use crate::support::path_text;

const NARROW: &str = "/mcp/p/narrow";
/// Words that must not appear in any response to a client without access.
const SECRETS: [&str; 4] = ["hush", "a_add", "note:///beta", "db://"];

/// Returns a configuration with two servers, and a profile that shows a part of one.
fn config() -> Value {
    let profile = json!({
        "servers": ["a"],
        "tools": {"allow": ["a_echo", "a_touch", "a_subscribed", "a_link", "a_change_*", "a_nonce"], "rename": {"a_nonce": "once"},
                  "describe": {"a_echo": "Says it again."}},
        "prompts": ["a_greet"],
        "resources": {"allow": ["a+note:///*", "a+blob:*"], "deny": ["a+note:///b*"]},
    });
    json!({
        "metaTools": {"enabled": true},
        "profiles": {"narrow": profile, "all": {}},
        "mcpServers": {"a": fixture_server(&[]), "hush": fixture_server(&[])},
    })
}

async fn start() -> Gateway {
    let gateway = Gateway::start(config()).await;
    gateway.client_seeing("a_echo").await;
    gateway.client_seeing("hush_echo").await;
    gateway
}

async fn narrow(gateway: &Gateway) -> Client {
    let mut client = Client::new(gateway.address).at(NARROW);
    client.initialize("2025-11-25").await;
    client
}

fn assert_no_notification(answer: &str, about: &str) {
    for secret in SECRETS {
        // A response may repeat the client's own words.
        if !about.contains(secret) {
            assert!(!answer.contains(secret), "{about} reveals {secret}: {answer}");
        }
    }
}

#[tokio::test]
async fn reg5_lists_of_a_profile_contain_only_its_entries() {
    let gateway = start().await;
    let client = narrow(&gateway).await;
    let names = client.tool_names().await;
    let server_tools: Vec<_> = names.iter().filter(|name| name.starts_with("a_") || *name == "once").collect();
    assert_eq!(
        server_tools,
        [
            "a_echo",
            "once",
            "a_link",
            "a_change_tools",
            "a_change_prompts",
            "a_change_resources",
            "a_touch",
            "a_subscribed"
        ]
    );
    assert!(
        names.contains(&"search_tools".to_owned()) && !names.iter().any(|name| name.starts_with("hush")),
        "{names:?}"
    );
    let tools = client.list("tools/list", "tools").await;
    let echo = tools.iter().find(|tool| tool["name"] == "a_echo").expect("the text is shown");
    assert_eq!(echo["description"], "Says it again.");
    let once = tools.iter().find(|tool| tool["name"] == "once").expect("the tool is renamed");
    assert_eq!(once["_meta"]["dev.goblin/native"], "nonce");
    for (method, member, key, expected) in [
        ("prompts/list", "prompts", "name", json!(["a_greet"])),
        ("resources/list", "resources", "uri", json!(["a+blob:///bin", "a+note:///alpha"])),
        ("resources/templates/list", "resourceTemplates", "uriTemplate", json!(["a+note:///{name}"])),
    ] {
        let listed: Vec<_> = client.list(method, member).await.iter().map(|entry| entry[key].clone()).collect();
        assert_eq!(Value::from(listed), expected, "{method}");
    }
    // A profile that hides nothing shows everything.
    let mut all = Client::new(gateway.address).at("/mcp/p/all");
    all.initialize("2025-11-25").await;
    assert_eq!(all.tool_names().await, gateway.client().await.tool_names().await);
}

#[tokio::test]
async fn route2_an_entry_hidden_by_a_profile_cannot_be_used_and_is_never_named() {
    let gateway = start().await;
    let client = narrow(&gateway).await;
    let modern = Client::modern(gateway.address, json!({})).at(NARROW);
    assert_eq!(client.call_text("a_echo", json!({"text": "x"})).await, r#"{"text":"x"}"#);
    assert!(client.request("resources/read", json!({"uri": "a+note:///alpha"})).await["result"].is_object());
    let reference =
        |uri: &str| json!({"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "x", "value": ""}});
    let prompt = json!({"ref": {"type": "ref/prompt", "name": "a_linked"}, "argument": {"name": "x", "value": ""}});
    let hidden = [
        ("tools/call", json!({"name": "a_add", "arguments": {"a": 1, "b": 2}})),
        ("tools/call", json!({"name": "hush_echo", "arguments": {}})),
        ("tools/call", json!({"name": "a_nonce", "arguments": {}})),
        ("prompts/get", json!({"name": "a_linked"})),
        ("prompts/get", json!({"name": "hush_greet"})),
        ("resources/read", json!({"uri": "a+note:///beta"})),
        ("resources/read", json!({"uri": "note:///beta"})),
        ("resources/read", json!({"uri": "a_note_beta"})),
        ("resources/read", json!({"uri": "a+note:///b"})),
        ("resources/read", json!({"uri": "a+db://t/1"})),
        ("resources/read", json!({"uri": "hush+note:///alpha"})),
        ("resources/read", json!({"uri": "hush_note_alpha"})),
        ("completion/complete", reference("a+db://{table}/{id}")),
        ("completion/complete", reference("hush+note:///{name}")),
        ("completion/complete", prompt),
    ];
    for (method, params) in &hidden {
        for answer in [client.request(method, params.clone()).await, modern.request(method, params.clone()).await] {
            assert!(answer["error"].is_object(), "{method} {params}: {answer}");
            assert_no_notification(&answer.to_string(), &params.to_string());
        }
    }
    for uri in ["a+note:///beta", "note:///beta", "a+db://t/1", "hush+note:///alpha"] {
        let answer = client.request("resources/subscribe", json!({ "uri": uri })).await;
        assert_eq!(answer["error"]["code"], -32602, "{uri}: {answer}");
        assert_no_notification(&answer.to_string(), uri);
    }
    let pattern = json!({"uri": "hush+note:///*", "_meta": {"dev.goblin/pattern": "glob"}});
    let answer = client.request("resources/subscribe", pattern).await;
    assert!(answer["error"].is_object(), "{answer}");
    // The native URI belongs to the only visible server, so it is not ambiguous.
    assert!(client.request("resources/read", json!({"uri": "note:///alpha"})).await["result"].is_object());
}

#[tokio::test]
async fn meta5_meta_tools_of_a_profile_reveal_no_hidden_entry() {
    let gateway = start().await;
    let client = narrow(&gateway).await;
    for (tool, arguments) in [
        ("list_servers", json!({})),
        ("catalog_tools", json!({})),
        ("catalog_prompts", json!({})),
        ("catalog_resources", json!({})),
        ("catalog_resource_templates", json!({})),
        ("search_tools", json!({"query": "add two numbers"})),
        ("search_tools", json!({"query": ""})),
        ("search_prompts", json!({"query": "greet linked"})),
        ("search_resources", json!({"query": "note"})),
        ("search_tools", json!({"query": "echo", "serverId": "hus"})),
        ("describe_tool", json!({"name": "a_ad"})),
        ("describe_prompt", json!({"name": "a_linke"})),
        ("describe_resource", json!({"uri": "a+note:///bet"})),
        ("call_tool", json!({"name": "a_ad"})),
        ("call_tool", json!({"name": "a_add", "arguments": {"a": 1, "b": 2}})),
        ("call_tool", json!({"name": "hush_echo"})),
    ] {
        let answer = client.request("tools/call", json!({"name": tool, "arguments": arguments})).await;
        assert!(answer["result"].is_object(), "{tool} {arguments}: {answer}");
        assert_no_notification(&answer.to_string(), &arguments.to_string());
    }
    let answer = client.call("call_tool", json!({"name": "once", "arguments": {"nonce": "n"}})).await;
    assert!(answer["content"].is_array() && answer["isError"] != true, "{answer}");
    let answer = client.call("call_tool", json!({"name": "a_add", "arguments": {"a": 1, "b": 2}})).await;
    assert_eq!(answer["isError"], true, "{answer}");
}

#[tokio::test]
async fn sub6_a_pattern_covers_only_resources_of_its_profile() {
    let gateway = start().await;
    let client = narrow(&gateway).await;
    let mut stream = client.listen().await;
    subscribe(&client, "a+note:///*", json!({"pattern": "glob"})).await;
    let modern = Client::modern(gateway.address, json!({})).at(NARROW);
    let (accepted, mut listener) =
        modern.listen_to(json!(7), json!({"resourceSubscriptions": ["a+note:///alpha", "a+note:///beta"]})).await;
    assert_eq!(accepted, uris(&["a+note:///alpha"]));
    let whole = gateway.client().await;
    await_upstream(&whole, &["+note:///alpha"]).await;
    // The other client has access and subscribes, so that the server sends notifications.
    subscribe(&whole, "a+note:///beta", json!({})).await;
    for uri in ["note:///beta", "note:///alpha"] {
        whole.call("a_touch", json!({ "uri": uri })).await;
    }
    let update = stream.await_method(UPDATED).await;
    assert_eq!(update["params"]["uri"], "a+note:///alpha", "the other is hidden");
    let update = listener.await_method(UPDATED).await;
    assert_eq!(update["params"]["uri"], "a+note:///alpha");
}

#[tokio::test]
async fn reg8_a_change_of_a_hidden_server_notifies_no_client_of_the_profile() {
    let gateway = start().await;
    let client = narrow(&gateway).await;
    let whole = gateway.client().await;
    let mut narrow_stream = client.listen().await;
    let mut whole_stream = whole.listen().await;
    // The hidden server changes first. Its notification would arrive before the other one.
    let added = whole.call_text("hush_change_tools", json!({})).await;
    whole_stream.await_method("notifications/tools/list_changed").await;
    whole.await_tool(&format!("hush_{added}")).await;
    whole.call("a_change_resources", json!({"remove": "blob:///bin"})).await;
    let first = narrow_stream.next().await.expect("a message");
    assert_eq!(first["method"], "notifications/resources/list_changed", "{first}");
}

#[tokio::test]
async fn sess1_a_session_is_valid_only_at_the_endpoint_that_opened_it() {
    let gateway = start().await;
    let client = narrow(&gateway).await;
    let elsewhere = client.clone().at("/mcp");
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    assert_eq!(elsewhere.post(ping).await.status, 404, "the token is not for the whole catalog");
    assert_eq!(client.clone().at("/mcp/p/all").post(ping).await.status, 404);
    assert_eq!(client.post(ping).await.status, 200);
    let whole = gateway.client().await;
    assert_eq!(whole.clone().at(NARROW).post(ping).await.status, 404);
    let deleted = elsewhere.send(Method::DELETE, "/mcp", &elsewhere.headers(), "").await;
    assert_eq!(deleted.status, 404);
    assert_eq!(client.post(ping).await.status, 200, "the profile is still served");
    for (path, status) in
        [("/mcp/p/nobody", 404), ("/mcp/p/", 404), ("/mcp/p/narrow/x", 404), ("/messages/p/narrow", 404)]
    {
        let mut other = Client::new(gateway.address).at(path);
        other.version = Some("2025-11-25".to_owned());
        let answer = other.post(ping).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        assert!(!answer.body.contains("\"all\""), "other profiles are not named: {answer:?}");
    }
}

#[tokio::test]
async fn http1_http3_every_transport_serves_profiles() {
    let gateway = start().await;
    let http = Client::new(gateway.address);
    let mut stream = http.clone().at("/sse/p/narrow").listen().await;
    let path = stream.next_text().await.expect("the endpoint");
    let headers = [("content-type", "application/json")];
    for body in [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2024-11-05",
            "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "prompts/list"}),
    ] {
        http.send(Method::POST, &path, &headers, body.to_string()).await;
    }
    let listed = loop {
        let message = stream.next().await.expect("an answer");
        if message["id"] == 2 {
            break message;
        }
    };
    assert_eq!(listed["result"]["prompts"].as_array().map(Vec::len), Some(1), "{listed}");

    let scratch = Scratch::new();
    let file = scratch.write("goblin.json", &config().to_string());
    let url = gateway.url();
    for arguments in [["--config", path_text(&file)], ["--url", &url]] {
        let mut command = goblin(scratch.path());
        command.args(["stdio", "--profile", "narrow"]).args(arguments).stderr(Stdio::null());
        let mut client = Client::run(command);
        client.initialize("2025-11-25").await;
        client.await_tool("once").await;
        let answer = client.request("prompts/list", json!({})).await;
        assert_eq!(answer["result"]["prompts"].as_array().map(Vec::len), Some(1), "{arguments:?}: {answer}");
        client.close().await;
    }
    let mut command = goblin(scratch.path());
    command.args(["stdio", "--profile", "narow", "--config", path_text(&file)]).stdin(Stdio::null());
    let output = command.output().await.expect("the command runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("unknown profile narow; the profiles are all, narrow"), "{stderr}");
}
