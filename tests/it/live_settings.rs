//! Settings of the gateway that a reload applies while sessions stay (USE-9).

use http::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{eventually, fixture_server};
use crate::per_client::own_process;
use crate::served::Served;
use crate::subscriber::subscribe_params;
use crate::subscriptions_patterns::glob;
use crate::support::{assert_error, await_log, hold_call, is_error, release};

const LIST_CHANGED: &str = "notifications/tools/list_changed";

fn file(settings: Value) -> String {
    let mut config = json!({ "metaTools": { "enabled": true }, "mcpServers": { "a": fixture_server(&[]) } });
    let members = settings.as_object().expect("an object").clone();
    config.as_object_mut().expect("an object").extend(members);
    config.to_string()
}

/// Replaces the file and waits until it is in force.
async fn reload(served: &Served, settings: Value, count: u64) {
    served.put(&file(settings));
    served.hang_up();
    served.reloads(count).await;
}

#[tokio::test]
async fn use9_exposure_and_policies_change_while_a_session_stays() {
    let served = Served::with(&file(json!({}))).await;
    served.gateway.client_seeing("a_echo").await;
    let client = Client::new(served.gateway.address).listening(json!({})).await;
    assert!(client.tool_names().await.iter().any(|name| name == "a_echo"));
    client.drain();
    let open = hold_call(&client).await;
    reload(&served, json!({ "exposure": "search" }), 1).await;
    client.notification(LIST_CHANGED).await;
    assert!(!client.tool_names().await.iter().any(|name| name == "a_echo"), "the tool is not listed any more");
    release(&client).await;
    assert_eq!(client.text_of(open).await, "[]", "an open call survives the change");
    await_log(&served.gateway, &["configuration reloaded", "exposure changed"]).await;
    // The limits change no list. If they did, a notification would come before the next answer.
    let before = served.status().await["catalog"]["version"].clone();
    let limits = json!({ "exposure": "search", "policies": { "maxInFlight": 7, "maxInFlightPerBackend": 3 } });
    reload(&served, limits, 2).await;
    eventually("the catalog is published with the new settings", || async {
        (served.status().await["catalog"]["version"] != before).then_some(())
    })
    .await;
    reload(&served, json!({ "exposure": { "mode": "search", "pinned": ["a_echo"] } }), 3).await;
    client.notification(LIST_CHANGED).await;
    assert!(client.tool_names().await.iter().any(|name| name == "a_echo"));
    let announced = |messages: Vec<Value>| messages.iter().filter(|message| message["method"] == LIST_CHANGED).count();
    assert_eq!(announced(client.pending_messages().await), 0, "one notification for one change");
}

#[tokio::test]
async fn use9_new_limits_apply_to_the_next_call_of_a_session() {
    let served = Served::with(&file(json!({}))).await;
    served.gateway.client_seeing("a_echo").await;
    let (client, other) = (served.gateway.client().await, served.gateway.client().await);
    let limits = [(1, "maxInFlight", &client, "LIMIT_EXCEEDED"), (3, "maxInFlightPerBackend", &other, "OVERLOADED")];
    for (count, limit, caller, error) in limits {
        let open = hold_call(&client).await;
        reload(&served, json!({ "policies": { limit: 1 } }), count).await;
        let answer = caller.try_call("a_echo", json!({})).await;
        assert!(is_error(&answer, error), "{limit}: {answer}");
        reload(&served, json!({}), count + 1).await;
        caller.call("a_echo", json!({})).await;
        release(&client).await;
        assert_eq!(client.text_of(open).await, "[]", "an open call survives the change");
    }
}

#[tokio::test]
async fn use9_a_new_ask_timeout_applies_to_the_next_server_request_over_a_kept_connection() {
    let served = Served::with(&file(json!({}))).await;
    served.gateway.client_seeing("a_echo").await;
    let client = Client::new(served.gateway.address).listening(json!({ "sampling": {} })).await;
    reload(&served, json!({ "policies": { "askTimeout": "200ms" } }), 1).await;
    let method = "sampling/createMessage";
    let call = client.begin_call("a_request", json!({ "method": method, "params": {} })).await;
    assert!(client.text_of(call).await.contains("1504"), "the server gets the error of a request without an answer");
}

#[tokio::test]
async fn use9_a_client_that_connects_after_a_reload_gets_the_new_limit_of_subscriptions() {
    let settings = |limit: u64| {
        let servers = json!({ "a": own_process(&["--resources", "5"]) });
        json!({ "mcpServers": servers, "subscriptions": { "maxUpstream": limit } })
    };
    let served = Served::with(&file(settings(100))).await;
    let subscribe = async |client: &Client| {
        client.request("resources/subscribe", subscribe_params("a+note:///numbered/*", &glob())).await
    };
    let early = served.gateway.client_seeing("a_echo").await;
    let answer = subscribe(&early).await;
    assert!(answer["error"].is_null(), "{answer}");
    reload(&served, settings(2), 1).await;
    let late = served.gateway.client_seeing("a_echo").await;
    let data = assert_error(&subscribe(&late).await, 1429, "LIMIT_EXCEEDED");
    assert_eq!(data["limit"], "subscriptions.maxUpstream");
}

/// Waits for notifications until the tool is absent, and returns the names of the others. A notification of an earlier
/// change may arrive first.
async fn listed_without(client: &Client, tool: &str) -> Vec<String> {
    loop {
        client.notification(LIST_CHANGED).await;
        let names = client.tool_names().await;
        if names.iter().all(|name| name != tool) {
            return names;
        }
    }
}

#[tokio::test]
async fn use9_namespacing_and_meta_tools_change_while_a_session_stays() {
    let served = Served::with(&file(json!({}))).await;
    served.gateway.client_seeing("a_echo").await;
    let client = Client::new(served.gateway.address).listening(json!({})).await;
    client.await_tool("search_tools").await;
    let open = hold_call(&client).await;
    client.drain();
    reload(&served, json!({ "metaTools": { "enabled": false } }), 1).await;
    let names = listed_without(&client, "search_tools").await;
    assert!(names.iter().any(|name| name == "a_echo"), "{names:?}");
    await_log(&served.gateway, &["configuration reloaded", "metaTools changed"]).await;
    let namespacing = json!({ "separator": "-" });
    reload(&served, json!({ "metaTools": { "enabled": false }, "namespacing": namespacing }), 2).await;
    client.await_tool("a-echo").await;
    assert_error(&client.try_call("a_echo", json!({})).await, -32602, "TOOL_NOT_FOUND");
    await_log(&served.gateway, &["configuration reloaded", "namespacing changed"]).await;
    client.call("a-release", json!({})).await;
    assert_eq!(client.text_of(open).await, "[]", "an open call survives the change");
}

#[tokio::test]
async fn use9_profiles_are_added_changed_and_removed_while_the_gateway_runs() {
    let served = Served::with(&file(json!({}))).await;
    served.gateway.client_seeing("a_echo").await;
    let plain = Client::new(served.gateway.address);
    let status = async || plain.send(Method::POST, "/mcp/p/dev", &[], "{}").await.status.as_u16();
    assert_eq!(status().await, 404);
    reload(&served, json!({ "profiles": { "dev": { "tools": ["a_echo", "a_nonce"] } } }), 1).await;
    let client = Client::new(served.gateway.address).at("/mcp/p/dev").listening(json!({})).await;
    client.await_tool("a_nonce").await;
    client.drain();
    reload(&served, json!({ "profiles": { "dev": { "tools": ["a_echo"] } } }), 2).await;
    let names = listed_without(&client, "a_nonce").await;
    assert!(names.iter().any(|name| name == "a_echo"), "{names:?}");
    reload(&served, json!({}), 3).await;
    client.notification(LIST_CHANGED).await;
    while status().await != 404 {
        client.notification(LIST_CHANGED).await;
    }
    // The profile comes back, and its session continues.
    reload(&served, json!({ "profiles": { "dev": { "tools": ["a_echo"] } } }), 4).await;
    client.await_tool("a_echo").await;
}
