//! Subscriptions of a `goblin stdio` client survive a restart of the gateway.
//!
//! The bridge repeats them at the next gateway under the URIs that the client knows.

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::fixture_server;
use crate::home::Home;
use crate::subscriber::{meta, named, subscribed_upstream, touch};

const ALPHA: &str = "a+note:///alpha";
const BETA: &str = "a+note:///beta";

fn home() -> Home {
    // With a cached listing the next gateway accepts subscriptions before the server is ready, and notifies them twice.
    let gateway = json!({ "listingCache": false });
    Home::new(&json!({ "gateway": gateway, "mcpServers": { "a": fixture_server(&[]) } }))
}

/// Reads until an update and returns its params.
async fn updated(client: &Client) -> Value {
    loop {
        let mut message = client.message().await;
        if message["method"] == "notifications/resources/updated" {
            return message["params"].take();
        }
    }
}

#[tokio::test]
async fn live_subscriptions_are_repeated_at_the_next_gateway_and_ended_ones_are_not() {
    let home = home();
    let (mut gateway, caller) = home.gateway("a_touch").await;
    let client = home.bridge().connected("2025-11-25").await;
    for uri in [ALPHA, BETA, "note:///gamma"] {
        let answer = client.request("resources/subscribe", json!({ "uri": uri })).await;
        assert!(answer["result"].is_object(), "{answer}");
    }
    let rejected = client.request("resources/subscribe", json!({ "uri": "note:///refused" })).await;
    assert!(rejected["error"].is_object(), "{rejected}");
    client.request("resources/unsubscribe", json!({ "uri": BETA })).await;
    touch(&caller, "note:///alpha", 1).await;
    assert_eq!(updated(&client).await["uri"], ALPHA);
    gateway.child.kill().await.expect("the process can be killed");
    let (_again, caller) = home.gateway("a_touch").await;
    // Each resource is notified once, because updates may have been missed. The URIs are those of the first gateway.
    let mut updates = [updated(&client).await, updated(&client).await];
    updates.sort_by_key(|params| params["uri"].to_string());
    assert_eq!(updates, [json!({ "uri": ALPHA }), json!({ "uri": "a+note:///gamma" })]);
    subscribed_upstream(&caller, r#"["note:///alpha","note:///gamma"]"#).await;
    touch(&caller, "note:///alpha", 1).await;
    let update = updated(&client).await;
    assert_eq!((&update["uri"], &update["version"]), (&json!(ALPHA), &json!(1)), "{update}");
}

#[tokio::test]
async fn a_subscription_id_of_the_first_gateway_unsubscribes_at_the_next() {
    let home = home();
    let (mut gateway, _caller) = home.gateway("a_touch").await;
    let client = home.bridge().connected("2025-11-25").await;
    let answer = client.request("resources/subscribe", named(ALPHA)).await;
    let id = answer["result"]["_meta"]["dev.goblin/subscriptionId"].clone();
    assert!(id.as_str().is_some_and(|id| id.starts_with("urn:uuid:")), "{answer}");
    gateway.child.kill().await.expect("the process can be killed");
    let (_again, caller) = home.gateway("a_touch").await;
    assert_eq!(updated(&client).await["uri"], ALPHA);
    subscribed_upstream(&caller, r#"["note:///alpha"]"#).await;
    let answer = client.request("resources/unsubscribe", json!({ "uri": id })).await;
    assert_eq!(answer["result"], json!({}), "{answer}");
    subscribed_upstream(&caller, "[]").await;
}

#[tokio::test]
async fn d22_sub4_the_bridge_removes_the_names_unless_its_client_asked_for_them() {
    let home = home();
    let (_gateway, caller) = home.gateway("a_touch").await;
    let plain = home.bridge().connected("2025-11-25").await;
    let bare = json!({ "uri": "note:///alpha" });
    let answer = plain.request("resources/subscribe", &bare).await;
    assert_eq!(answer["result"], json!({}), "{answer}");
    let options = json!({ "uri": "note:///alpha", "_meta": { "other": 1 } });
    let answer = plain.request("resources/subscribe", options).await;
    assert_eq!(answer["result"], json!({}), "{answer}");
    // The canonical URI was never sent to the client, but the bridge knows it.
    plain.unsubscribe(ALPHA).await;
    subscribed_upstream(&caller, "[]").await;
    // A client that asks gets an id that ends the subscription.
    let id = plain.subscribe("note:///alpha").await["dev.goblin/subscriptionId"].clone();
    plain.unsubscribe(id.as_str().expect("an id")).await;
    subscribed_upstream(&caller, "[]").await;
    for key in ["experimental", "extensions"] {
        let declared = home.bridge().listening(json!({ key: { "dev.goblin/subscriptions": {} } })).await;
        let answer = declared.request("resources/subscribe", &bare).await;
        assert_eq!(meta(&answer)["dev.goblin/uri"], ALPHA, "{answer}");
    }
}
