//! The lists of per-client servers (D21). A client gets the lists of its own connection, and no other client's.

use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::per_client::{await_listed, per_client};
use crate::scrape::{metric, metric_becomes};
use crate::sdk::reference_server;
use crate::silent_servers::{SdkServer, growing, script};
use crate::support::scripted_server;

/// Starts the server whose tool `unlock` registers `secret` for its own session.
async fn unlock_server(transport: &str) -> (Value, Option<SdkServer>) {
    let script = script("server-unlock.mjs");
    if transport == "stdio" {
        return (per_client(json!({"command": "node", "args": [script, "stdio"]})), None);
    }
    let server = SdkServer::start("node", &[&script, transport]).await;
    let kind = if transport == "sse" { "sse" } else { "http" };
    (per_client(json!({"url": server.url, "type": kind})), Some(server))
}

async fn changes(client: &Client) -> usize {
    let messages = client.pending_messages().await;
    messages.iter().filter(|message| message["method"] == "notifications/tools/list_changed").count()
}

#[tokio::test]
async fn d21_a_tool_that_a_session_registers_is_listed_for_its_client_alone() {
    for transport in ["stdio", "http", "sse"] {
        let (server, _process) = unlock_server(transport).await;
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        let one = Client::new(gateway.address).listening(json!({})).await;
        let two = Client::new(gateway.address).listening(json!({})).await;
        one.await_tool("a_unlock").await;
        two.await_tool("a_unlock").await;
        one.drain();
        two.drain();
        assert_eq!(one.call_text("a_unlock", json!({})).await, "unlocked", "{transport}");
        one.notification("notifications/tools/list_changed").await;
        assert!(one.tool_names().await.contains(&"a_secret".to_owned()), "{transport}");
        assert_eq!(one.call_text("a_secret", json!({})).await, "the secret", "{transport}");
        assert!(!two.tool_names().await.contains(&"a_secret".to_owned()), "{transport}");
        let hidden = two.try_call("a_secret", json!({})).await;
        assert_eq!(hidden["error"]["data"]["code"], "TOOL_NOT_FOUND", "{transport}");
        assert_eq!((changes(&one).await, changes(&two).await), (0, 0), "{transport}: one notification in all");
        let found = one.call_text("search_tools", json!({"query": "secret"})).await;
        assert!(found.contains("a_secret"), "{transport}: {found}");
        let found = two.call_text("search_tools", json!({"query": "secret"})).await;
        assert!(!found.contains("a_secret"), "{transport}: {found}");
    }
}

#[tokio::test]
async fn d21_a_client_over_http_sse_and_stdio_gets_the_tools_of_its_session() {
    let (server, _process) = unlock_server("stdio").await;
    let config = json!({ "mcpServers": { "a": server } });
    let gateway = Gateway::start(config.clone()).await;
    let sse = Client::sse(gateway.address).await.listening(json!({})).await;
    let stdio = Client::stdio(config).listening(json!({})).await;
    for client in [sse, stdio] {
        client.await_tool("a_unlock").await;
        client.drain();
        client.call_text("a_unlock", json!({})).await;
        client.notification("notifications/tools/list_changed").await;
        assert_eq!(client.call_text("a_secret", json!({})).await, "the secret");
    }
}

/// Returns the tools of server-everything that depend on a capability of the client.
async fn conditional(client: &Client) -> Vec<String> {
    let names = client.tool_names().await.into_iter();
    let names =
        names.filter(|name| name.contains("roots") || name.contains("sampling") || name.contains("elicitation"));
    names.collect()
}

#[tokio::test]
async fn d21_server_everything_offers_tools_by_the_capabilities_of_the_client() {
    let server = per_client(reference_server("server-everything", &["stdio"]));
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    gateway.client_seeing("a_echo").await;
    let roots = Client::new(gateway.address).listening(json!({"roots": {}})).await;
    let sampling = Client::new(gateway.address).listening(json!({"sampling": {}})).await;
    let modern_roots = Client::modern(gateway.address, json!({"roots": {}}));
    let modern_none = Client::modern(gateway.address, json!({}));
    for client in [&roots, &modern_roots] {
        eventually("the client sees the tool for roots alone", || async {
            (conditional(client).await == ["a_get-roots-list"]).then_some(())
        })
        .await;
    }
    eventually("the client sees the tools for sampling alone", || async {
        let names = conditional(&sampling).await;
        (!names.is_empty() && names.iter().all(|name| name.contains("sampling"))).then_some(())
    })
    .await;
    eventually("the client sees none of them", || async { conditional(&modern_none).await.is_empty().then_some(()) })
        .await;
}

#[tokio::test]
async fn d21_the_first_list_of_a_client_has_the_tools_of_its_own_link() {
    // The shared connection starts first and has one more tool.
    let script = r#"if mkdir "$1" 2>/dev/null; then shift; exec "$@" --tools 1; else shift; exec "$@"; fi"#;
    let scratch = crate::harness::Scratch::new();
    let mark = scratch.path().join("first");
    let server = per_client(scripted_server(&format!(r#"set -- '{}' "$@"; {script}"#, mark.display()), &[]));
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    await_listed(&gateway).await;
    // A connected server may not be in the catalog yet.
    gateway.client_seeing("a_echo").await;
    let lists_own_tools = async |client: &Client| {
        let names = client.tool_names().await;
        assert!(names.contains(&"a_echo".to_owned()) && !names.contains(&"a_tool_0001".to_owned()), "{names:?}");
    };
    lists_own_tools(&gateway.client().await).await;
    // A call connects the own link, and the list comes when its lists are known.
    let calling = gateway.client().await;
    calling.call_text("a_echo", json!({"text": "x"})).await;
    lists_own_tools(&calling).await;
}

/// The catalog of a client with own lists follows the other servers too.
#[tokio::test]
async fn d20_d21_a_client_with_own_lists_sees_what_a_silent_server_adds() {
    let (server, _process) = unlock_server("stdio").await;
    let (growing, _growing) = growing("py1", "stdio", "auto").await;
    let gateway = Gateway::with_servers(json!({ "a": server, "b": growing })).await;
    let client = Client::new(gateway.address).listening(json!({})).await;
    client.await_tool("a_unlock").await;
    client.await_tool("b_grow").await;
    client.call_text("a_unlock", json!({})).await;
    client.await_tool("a_secret").await;
    // The first list after a call has the new tool. The gateway counts the lists for which it could not wait.
    let outdated = r#"goblin_events_total{kind="lists_outdated"}"#;
    for name in ["one", "two", "three", "four", "five", "six"] {
        let before = metric(&client, outdated).await;
        client.call_text("b_grow", json!({"name": name})).await;
        let tool = format!("b_{name}");
        let is_listed = client.tool_names().await.contains(&tool);
        assert!(is_listed || metric(&client, outdated).await > before, "{tool} is missing");
    }
    client.await_tool("b_six").await;
    assert_eq!(client.call_text("b_one", json!({})).await, "one works");
    assert_eq!(client.call_text("a_secret", json!({})).await, "the secret");
}

#[tokio::test]
async fn d21_above_the_limit_of_clients_the_list_of_the_shared_link_serves() {
    let fixture = HttpFixture::start(&[]).await;
    let mut server = per_client(fixture.server());
    server["maxClients"] = json!(1);
    let gateway = Gateway::with_servers(json!({ "a": server, "b": fixture_server(&[]) })).await;
    let one = gateway.client_seeing("a_echo").await;
    metric_becomes(&Client::new(gateway.address), r#"goblin_backend_client_links{server_id="a"}"#, 1).await;
    let two = gateway.client().await;
    assert_eq!(two.tool_names().await, one.tool_names().await);
    assert_eq!(metric(&Client::new(gateway.address), r#"goblin_backend_client_links{server_id="a"}"#).await, 1);
}

#[tokio::test]
async fn d21_a_pattern_and_a_cursor_use_the_lists_of_the_own_link() {
    let server = per_client(fixture_server(&["--tools", "25", "--resources", "5"]));
    let config = json!({ "policies": { "pageSize": 4 }, "mcpServers": { "a": server } });
    let gateway = Gateway::start(config).await;
    let client = Client::new(gateway.address).listening(json!({})).await;
    client.await_tool("a_echo").await;
    let names = client.tool_names().await;
    assert_eq!(names.iter().filter(|name| name.starts_with("a_tool_")).count(), 25, "{names:?}");
    let params = json!({"uri": "a+note:///numbered/*", "_meta": {"dev.goblin/pattern": "glob"}});
    let answer = client.request("resources/subscribe", params).await;
    assert!(answer["error"].is_null(), "{answer}");
}
