//! The handshake: the negotiation of versions and capabilities, and the instructions.
//!
//! The gateway's capabilities do not depend on its backends. An older client receives only content that its version
//! defines.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, fixture_server};

const VERSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"];

fn nothing_behind() -> Value {
    json!({ "mcpServers": {} })
}

fn one_server() -> Value {
    json!({ "mcpServers": { "a": fixture_server(&[]) } })
}

#[tokio::test]
async fn srv2_every_version_is_supported_over_http() {
    let gateway = Gateway::start(one_server()).await;
    gateway.client_seeing("a_echo").await;
    for version in VERSIONS {
        let client = gateway.client_of(version).await;
        assert_eq!(client.call_text("a_echo", json!({"v": version})).await, json!({"v": version}).to_string());
    }
}

#[tokio::test]
async fn srv2_every_version_is_supported_over_stdio() {
    for version in VERSIONS {
        let client = Client::stdio(one_server()).connected(version).await;
        client.await_tool("a_echo").await;
        assert!(client.close().await.success(), "{version}");
    }
}

#[tokio::test]
async fn srv2_an_unknown_version_gets_the_newest_legacy_version() {
    let gateway = Gateway::start(nothing_behind()).await;
    for requested in ["1999-01-01", "2026-07-28", "2099-12-31", "nonsense"] {
        let answer = Client::new(gateway.address).initialize_with(requested, json!({})).await;
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{requested}: {answer}");
    }
}

#[tokio::test]
async fn srv2_a_handshake_without_a_version_opens_no_session() {
    let gateway = Gateway::start(nothing_behind()).await;
    for params in [json!({}), json!({"protocolVersion": 7}), json!({"protocolVersion": ""})] {
        let request = json!({"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": params});
        let answer = Client::new(gateway.address).post(request.to_string()).await;
        assert!(!answer.headers.contains_key("mcp-session-id"), "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], -32602, "{answer:?}");
        assert_eq!(answer.json()["id"], 5, "{answer:?}");
    }
}

#[tokio::test]
async fn srv1_cap1_d11_capabilities_do_not_depend_on_the_backends() {
    let everything = json!({
        "tools": {"listChanged": true},
        "prompts": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
        "completions": {},
        "logging": {},
        "experimental": { "dev.goblin/subscriptions": {
            "version": 1,
            "options": ["pattern", "fields", "minIntervalMs", "batchMs", "priority"],
            "patterns": ["glob", "template"],
        } },
    });
    let bare = fixture_server(&["--without", "prompts,resources,logging,completions"]);
    for config in [nothing_behind(), json!({ "mcpServers": { "a": bare } })] {
        let gateway = Gateway::start(config).await;
        for version in VERSIONS {
            let answer = Client::new(gateway.address).initialize(version).await;
            assert_eq!(answer["result"]["capabilities"], everything, "{version}");
        }
    }
    // The meta tools are advertised only if they are on, or if the client asks for them.
    let advertised = json!({ "prefix": "gw_" });
    for (is_on, capabilities, expected) in [
        (true, json!({}), &advertised),
        (false, json!({}), &Value::Null),
        (false, json!({ "experimental": { "dev.goblin/metaTools": {} } }), &advertised),
    ] {
        let meta_tools = json!({ "enabled": is_on, "prefix": "gw_" });
        let gateway = Gateway::start(json!({ "metaTools": meta_tools, "mcpServers": {} })).await;
        let answer = Client::new(gateway.address).initialize_with("2025-11-25", capabilities.clone()).await;
        let found = &answer["result"]["capabilities"]["experimental"];
        assert_eq!(found["dev.goblin/metaTools"], *expected, "{is_on} {capabilities}: {found}");
        let discovered = Client::modern(gateway.address, capabilities).request("server/discover", json!({})).await;
        let discovered = discovered["result"]["capabilities"].to_string();
        assert!(discovered.contains("dev.goblin/subscriptions") && !discovered.contains("metaTools"), "{discovered}");
    }
}

#[tokio::test]
async fn cap1_a_log_level_can_be_set_and_reaches_the_backend() {
    let gateway = Gateway::start(one_server()).await;
    let client = gateway.client_seeing("a_level").await;
    let answer = client.request("logging/setLevel", json!({"level": "warning"})).await;
    assert_eq!(answer["result"], json!({}));
    crate::harness::eventually("the backend has the level", || async {
        (client.call_text("a_level", json!({})).await == "warning").then_some(())
    })
    .await;
}

#[tokio::test]
async fn srv6_instructions_are_joined_under_a_heading_per_server() {
    let servers = json!({
        "one": fixture_server(&["--instructions", "Mind the gap.\n"]),
        "two": fixture_server(&[]),
        "three": fixture_server(&["--instructions", "Be \"kind\"."]),
    });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client().await;
    for tool in ["one_echo", "two_echo", "three_echo"] {
        client.await_tool(tool).await;
    }
    let answer = Client::new(gateway.address).initialize("2025-11-25").await;
    let result = &answer["result"];
    let expected = concat!(
        "## one\n\nMind the gap.\n\nTools of this server are listed here as `one_NAME`.\n\n",
        "## three\n\nBe \"kind\".\n\nTools of this server are listed here as `three_NAME`.",
    );
    assert_eq!(result["instructions"], expected);
    assert_eq!(result["serverInfo"]["name"], "goblin");
}

#[tokio::test]
async fn srv6_instructions_are_bounded_and_the_cut_is_stated() {
    let long = "x".repeat(12 * 1024);
    let servers = json!({
        "first": fixture_server(&["--instructions", &long]),
        "second": fixture_server(&["--instructions", &long]),
        "third": fixture_server(&["--instructions", "short"]),
    });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client().await;
    for tool in ["first_echo", "second_echo", "third_echo"] {
        client.await_tool(tool).await;
    }
    let answer = Client::new(gateway.address).initialize("2025-11-25").await;
    let instructions = answer["result"]["instructions"].as_str().expect("instructions");
    assert!(instructions.len() <= 16 * 1024, "{}", instructions.len());
    assert!(instructions.starts_with("## first\n\nxxx"));
    assert!(instructions.contains("## third\n\nshort"));
    assert!(instructions.ends_with("(Omitted for length: the instructions of second.)"), "{instructions}");
}

#[tokio::test]
async fn srv7_an_older_client_gets_content_it_can_parse() {
    let gateway = Gateway::start(one_server()).await;
    gateway.client_seeing("a_link").await;
    for (version, link, audio) in [
        ("2024-11-05", "text", "text"),
        ("2025-03-26", "text", "audio"),
        ("2025-06-18", "resource_link", "audio"),
        ("2025-11-25", "resource_link", "audio"),
    ] {
        let client = gateway.client_of(version).await;
        let linked = client.call("a_link", json!({})).await;
        assert_eq!(linked["content"][0]["type"], link, "{version}: {linked}");
        let linked_value = if link == "text" { &linked["content"][0]["text"] } else { &linked["content"][0]["uri"] };
        assert!(linked_value.as_str().expect("a string").ends_with("a+note:///alpha"), "{version}: {linked}");
        assert_eq!(linked["content"][1]["resource"]["uri"], "a+note:///alpha", "{version}: {linked}");
        let audio_result = client.call("a_audio", json!({})).await;
        assert_eq!(audio_result["content"][0]["type"], audio, "{version}: {audio_result}");
        let prompt = client.request("prompts/get", json!({"name": "a_linked"})).await;
        assert_eq!(prompt["result"]["messages"][1]["content"]["type"], link, "{version}: {prompt}");
    }
}

#[tokio::test]
async fn cap1_log_messages_of_a_call_reach_its_client_from_the_level_it_set() {
    let http = crate::fixture_http::HttpFixture::start(&[]).await;
    let gateway = Gateway::with_servers(json!({ "a": http.server() })).await;
    let client = gateway.client_seeing("a_log").await;
    for (wanted, level, expected) in [
        (None, "info", 2),
        (None, "debug", 2),
        (Some("debug"), "debug", 2),
        (Some("error"), "warning", 0),
        (Some("error"), "emergency", 2),
    ] {
        if let Some(wanted) = wanted {
            client.request("logging/setLevel", json!({"level": wanted})).await;
        }
        let params = json!({"name": "a_log", "arguments": {"count": 2, "level": level}});
        let body = json!({"jsonrpc": "2.0", "id": "l", "method": "tools/call", "params": params});
        let messages = client.post(body.to_string()).await.messages();
        assert_eq!(messages.len(), expected + 1, "{wanted:?} {level}: {messages:?}");
        for line in &messages[..expected] {
            assert!(line.contains(r#""data":{"number":"#) && line.contains(r#""odd":1.0"#), "{line}");
        }
    }
}
