//! Changes of profiles and of rules for client programs while sessions and subscriptions stay (USE-9, USE-12).

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::modern::{META, listen_to};
use crate::harness::fixture_server;
use crate::meta_listing::client_named;
use crate::served::{Served, text};
use crate::subscriber::UPDATED;
use crate::subscriptions_patterns::glob;
use crate::support::assert_error;

const ALPHA: &str = "a+note:///alpha";
const BETA: &str = "a+note:///beta";
const TOOLS_CHANGED: &str = "notifications/tools/list_changed";

/// Returns a file with the profile `dev`, or without one.
fn file(profile: Option<Value>) -> String {
    let mut config =
        json!({ "metaTools": false, "mcpServers": { "a": fixture_server(&[]), "b": fixture_server(&[]) } });
    if let Some(profile) = profile {
        config["profiles"] = json!({ "dev": profile });
    }
    config.to_string()
}

/// Returns a file with these rules for client programs.
fn ruled(clients: Value) -> String {
    let exposure = json!({ "mode": "search", "pinned": ["a_echo"], "clients": clients });
    json!({ "exposure": exposure, "mcpServers": { "a": fixture_server(&[]) } }).to_string()
}

fn resources(allow: &[&str]) -> Option<Value> {
    Some(json!({ "resources": allow }))
}

/// A gateway whose profile changes, a client of the profile, and one that sees everything.
struct Viewed {
    served: Served,
    member: Client,
    other: Client,
    reloads: u64,
}

impl Viewed {
    async fn start(profile: Option<Value>) -> Viewed {
        let served = Served::with(&file(profile)).await;
        served.gateway.client_seeing("a_echo").await;
        let other = Client::new(served.gateway.address).listening(json!({})).await;
        let member = Client::new(served.gateway.address).at("/mcp/p/dev").listening(json!({})).await;
        Viewed { served, member, other, reloads: 0 }
    }

    async fn change(&mut self, profile: Option<Value>) {
        self.served.put(&file(profile));
        self.served.hang_up();
        self.reloads += 1;
        self.served.reloads(self.reloads).await;
    }

    /// The server updates both resources. Asserts that the member gets the update of the second one next.
    async fn assert_only_beta(&self) {
        self.other.touch("note:///alpha", 1).await;
        self.other.touch("note:///beta", 1).await;
        assert_eq!(self.member.updated().await.json()["params"]["uri"], BETA);
    }

    /// Returns the next two updates in the order of their URIs.
    async fn next_two(&self) -> [Value; 2] {
        let next = async || self.member.updated().await.json()["params"].clone();
        let mut both = [next().await, next().await];
        both.sort_by_key(|params| params["uri"].to_string());
        both
    }

    async fn assert_next(&self, params: Value) {
        assert_eq!(self.member.notification(UPDATED).await.json()["params"], params);
    }
}

fn deleted(uri: &str) -> Value {
    json!({ "uri": uri, "_meta": { "dev.goblin/deleted": true } })
}

fn updated(uri: &str) -> Value {
    json!({ "uri": uri })
}

#[tokio::test]
async fn use9_a_resource_that_a_profile_hides_sends_nothing_to_its_clients() {
    let mut viewed = Viewed::start(resources(&["**"])).await;
    for uri in [ALPHA, BETA] {
        viewed.member.subscribe(uri).await;
    }
    viewed.other.subscribe(ALPHA).await;
    viewed.change(resources(&[BETA])).await;
    viewed.assert_next(deleted(ALPHA)).await;
    viewed.assert_only_beta().await;
    assert_eq!(viewed.other.updated().await.json()["params"]["uri"], ALPHA, "the other client sees both");
    viewed.change(resources(&["**"])).await;
    viewed.assert_next(updated(ALPHA)).await;
    viewed.other.touch("note:///alpha", 1).await;
    assert_eq!(viewed.member.updated().await.json()["params"]["uri"], ALPHA);
    // The profile shows another server only, then it disappears, then it comes back.
    viewed.change(Some(json!({ "servers": ["b"] }))).await;
    assert_eq!(viewed.next_two().await, [deleted(ALPHA), deleted(BETA)]);
    viewed.change(None).await;
    viewed.other.touch("note:///alpha", 1).await;
    viewed.change(resources(&[BETA])).await;
    viewed.assert_next(updated(BETA)).await;
    viewed.assert_only_beta().await;
}

#[tokio::test]
async fn use9_a_pattern_follows_the_profile_of_its_client() {
    let mut viewed = Viewed::start(resources(&[BETA])).await;
    let pattern = "a+note:///*";
    viewed.member.subscribe_with(pattern, glob()).await;
    viewed.assert_only_beta().await;
    viewed.change(resources(&["**"])).await;
    viewed.assert_next(updated(pattern)).await;
    viewed.other.touch("note:///alpha", 1).await;
    assert_eq!(viewed.member.updated().await.json()["params"]["uri"], ALPHA);
    viewed.change(resources(&[BETA])).await;
    assert_eq!(viewed.next_two().await, [updated(pattern), deleted(ALPHA)]);
    viewed.assert_only_beta().await;
}

#[tokio::test]
async fn use9_a_new_filter_applies_to_the_uris_of_a_template_while_the_lists_stay_equal() {
    let (hidden, shown) = ("a+db://salaries/1", "a+db://users/1");
    let mut viewed = Viewed::start(resources(&["**"])).await;
    let read = async |viewed: &Viewed, uri: &str| viewed.member.request("resources/read", json!({ "uri": uri })).await;
    assert!(read(&viewed, hidden).await["result"].is_object());
    viewed.member.subscribe(hidden).await;
    viewed.change(Some(json!({ "resources": { "deny": ["a+db://salaries/*"] } }))).await;
    viewed.assert_next(deleted(hidden)).await;
    assert_error(&read(&viewed, hidden).await, -32002, "RESOURCE_NOT_FOUND");
    let again = viewed.member.request("resources/subscribe", json!({ "uri": hidden })).await;
    assert_error(&again, -32602, "RESOURCE_NOT_FOUND");
    assert!(read(&viewed, shown).await["result"].is_object());
    viewed.change(resources(&["**"])).await;
    viewed.assert_next(updated(hidden)).await;
    assert!(read(&viewed, hidden).await["result"].is_object());
}

#[tokio::test]
async fn d10_a_resource_that_the_next_process_does_not_have_is_deleted_although_a_template_matches() {
    let server = |process: &str| {
        let mut server = fixture_server(&[]);
        server["env"] = json!({ "PROCESS": process });
        text(json!({ "a": server }))
    };
    let served = Served::with(&server("1")).await;
    served.gateway.client_seeing("a_echo").await;
    let client = Client::new(served.gateway.address).listening(json!({})).await;
    // The fixture can list this resource, and never reads it.
    client.define(&["note:///missing"]).await;
    client.subscribe("a+note:///missing").await;
    served.put(&server("2"));
    served.hang_up();
    // The replacement causes an update, because one may have been missed.
    while client.updated().await.json()["params"] != deleted("a+note:///missing") {}
}

#[tokio::test]
async fn use12_a_client_whose_rule_changes_is_notified() {
    let rules = |program: &str| {
        let exposure = json!({ "mode": "all", "clients": { program: "search" } });
        json!({ "exposure": exposure, "metaTools": true, "mcpServers": { "a": fixture_server(&[]) } }).to_string()
    };
    let served = Served::with(&rules("claude-code")).await;
    served.gateway.client_seeing("a_echo").await;
    let (client, _) = client_named(&served.gateway, "/mcp", "cursor").await;
    assert!(client.tool_names().await.iter().any(|name| name == "a_echo"));
    let mut stream = client.listen().await;
    served.put(&rules("cursor"));
    served.hang_up();
    stream.await_method(TOOLS_CHANGED).await;
    assert!(!client.tool_names().await.iter().any(|name| name == "a_echo"));
}

#[tokio::test]
async fn reg8_use12_a_new_rule_notifies_only_the_clients_whose_lists_change() {
    let served = Served::with(&ruled(json!({}))).await;
    served.gateway.client_seeing("a_echo").await;
    let (cursor, _) = client_named(&served.gateway, "/mcp", "cursor").await;
    let (other, _) = client_named(&served.gateway, "/mcp", "other").await;
    let (mut cursor_stream, mut other_stream) = (cursor.listen().await, other.listen().await);
    let mut reload = async |clients: Value| {
        served.put(&ruled(clients));
        served.hang_up();
        cursor_stream.await_method(TOOLS_CHANGED).await;
    };
    reload(json!({ "cursor": "all" })).await;
    reload(json!({ "claude-code": "all", "cursor": { "pinned": ["a_add"] } })).await;
    reload(json!({})).await;
    // The change of another list comes next, so none came before.
    other.call("a_change_prompts", json!({})).await;
    let next = other_stream.next().await.expect("a message");
    assert_eq!(next["method"], "notifications/prompts/list_changed", "{next}");
}

#[tokio::test]
async fn use12_a_listen_stream_follows_the_list_of_its_program_from_the_first_rule_on() {
    let served = Served::with(&ruled(json!({}))).await;
    let other = served.gateway.client_seeing("a_echo").await;
    let modern = Client::modern(served.gateway.address, json!({}));
    let mut params = listen_to(json!({ "toolsListChanged": true }));
    params["_meta"][format!("{META}clientInfo")] = json!({ "name": "claude-code", "version": "1" });
    let (_, mut stream) = modern.listen_with(json!("l"), params).await;
    served.put(&ruled(json!({ "claude-code": "all" })));
    served.hang_up();
    stream.await_method(TOOLS_CHANGED).await;
    // Only the new list of the program has this tool.
    other.call("a_change_tools", json!({})).await;
    stream.await_method(TOOLS_CHANGED).await;
}
