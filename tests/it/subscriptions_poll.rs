//! Polling: the gateway reads the resources of servers that never notify, and sends an update when the content differs.
//!
//! A change is notified once, and unchanged content never.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, fixture_server};
use crate::subscriber::{states_become, touch};
use crate::subscriptions_patterns::glob;

const ALPHA: &str = "a+note:///alpha";
const BETA: &str = "a+note:///beta";

/// Returns the server with a poll interval of 200 ms.
fn polled(mut server: Value) -> Value {
    server["poll"] = json!("200ms");
    server
}

/// Returns a client of a server that suppresses all notifications.
async fn quiet_peer(gateway: &Gateway) -> Client {
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.await_tool("a_touch").await;
    assert_eq!(peer.call_text("a_toggle_quiet", "{}").await, "quiet");
    peer
}

/// Returns the URI of the next update, which must come from the gateway.
async fn next_update(peer: &Client) -> String {
    let params = peer.updated().await.json()["params"].clone();
    assert_eq!(params, json!({"uri": params["uri"]}));
    params["uri"].as_str().expect("a URI").to_owned()
}

#[tokio::test]
async fn subx9_a_change_sends_one_update_and_unchanged_content_sends_none() {
    let web = HttpFixture::start(&["--without", "subscribe"]).await;
    let old = HttpFixture::start(&["--sse", "--without", "subscribe"]).await;
    let servers = [
        ("silent", fixture_server(&["--without", "subscribe"])),
        ("subscribable", fixture_server(&[])),
        ("http", web.server()),
        ("sse", old.server()),
        ("silent", fixture_server(&["--era", "modern", "--without", "subscribe"])),
        ("listened to", fixture_server(&["--era", "modern"])),
    ];
    for (case, server) in servers {
        let gateway = Gateway::with_servers(json!({ "a": polled(server) })).await;
        let mut peer = quiet_peer(&gateway).await;
        peer.name = case.to_owned();
        assert!(peer.subscribe(ALPHA).await["dev.goblin/state"].is_null(), "{case}");
        // The first change is found, because the initial content is read before the response to the subscribe.
        peer.touch("note:///alpha", 1).await;
        assert_eq!(next_update(&peer).await, ALPHA, "{case}");
        peer.subscribe(BETA).await;
        states_become(gateway.address, &[(ALPHA, "subscribed"), (BETA, "subscribed")]).await;
        // Each change is found by a later poll. An update without a change would arrive in between.
        for round in 0..4 {
            peer.touch("note:///beta", 1).await;
            assert_eq!(next_update(&peer).await, BETA, "{case} {round}");
        }
        // Each resource may be on several streams, one after the other.
        let subscribed: BTreeSet<_> =
            peer.upstream_requests().await.into_iter().filter(|request| request.starts_with('+')).collect();
        let expected: &[&str] = match case {
            "subscribable" | "listened to" => &["+note:///alpha", "+note:///beta"],
            _ => &[],
        };
        assert!(subscribed.iter().eq(expected), "{case}: {subscribed:?}");
        peer.unsubscribe(BETA).await;
        peer.touch("note:///beta", 1).await;
        for _ in 0..2 {
            peer.touch("note:///alpha", 1).await;
            assert_eq!(next_update(&peer).await, ALPHA, "{case}: no update without a subscription");
        }
    }
}

#[tokio::test]
async fn subx9_a_later_subscriber_receives_only_later_changes() {
    let gateway = Gateway::with_servers(json!({ "a": polled(fixture_server(&["--without", "subscribe"])) })).await;
    let one = quiet_peer(&gateway).await;
    one.subscribe(ALPHA).await;
    one.touch("note:///alpha", 1).await;
    assert_eq!(next_update(&one).await, ALPHA);
    let two = Client::new(gateway.address).listening(json!({})).await;
    two.subscribe(ALPHA).await;
    two.subscribe(BETA).await;
    one.touch("note:///beta", 1).await;
    assert_eq!(next_update(&two).await, BETA, "the change of before is not its");
    one.touch("note:///alpha", 1).await;
    for peer in [&one, &two] {
        assert_eq!(next_update(peer).await, ALPHA);
    }
}

#[tokio::test]
async fn subx9_polling_loses_no_update_of_a_notifying_server() {
    let gateway = Gateway::with_servers(json!({ "a": polled(fixture_server(&[])) })).await;
    let client = gateway.client_seeing("a_touch").await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.subscribe(ALPHA).await;
    for version in 1..=3 {
        touch(&client, "note:///alpha", 1).await;
        // A poll may also find a difference, before or after the notification.
        let is_it = |message: &Value| message["params"]["version"] == version;
        peer.receive(&format!("version {version}"), is_it).await;
    }
    assert_eq!(client.call_text("a_subscribed", json!({})).await, r#"["+note:///alpha"]"#);
}

#[tokio::test]
async fn subx9_subx1_polling_reports_new_matches_of_a_pattern() {
    let gateway = Gateway::with_servers(json!({ "a": polled(fixture_server(&["--without", "subscribe"])) })).await;
    let peer = quiet_peer(&gateway).await;
    peer.change(json!({"define": "file:///d/1"})).await;
    peer.subscribe_with("a+file:///d/*", glob()).await;
    // The resource may have been listed before the subscription or not. Only the later notification matters.
    peer.lists("a+file:///d/1", true).await;
    peer.change(json!({"define": "file:///d/2"})).await;
    let mut news = vec![next_update(&peer).await];
    if news == ["a+file:///d/1"] {
        news = vec![next_update(&peer).await];
    }
    assert_eq!(news, ["a+file:///d/2"]);
    for uri in ["file:///d/2", "file:///d/1", "file:///d/2"] {
        peer.touch(uri, 1).await;
        assert_eq!(next_update(&peer).await, format!("a+{uri}"));
    }
}

#[tokio::test]
async fn subx9_sub14_polling_reports_a_deleted_resource() {
    let gateway = Gateway::with_servers(json!({ "a": polled(fixture_server(&["--without", "subscribe"])) })).await;
    let peer = quiet_peer(&gateway).await;
    peer.subscribe("a+blob:///bin").await;
    peer.subscribe_with("a+blob:///*", glob()).await;
    peer.change(json!({"remove": "blob:///bin"})).await;
    let params = peer.updated().await.json()["params"].clone();
    assert_eq!(params, json!({"uri": "a+blob:///bin", "_meta": {"dev.goblin/deleted": true}}));
    states_become(gateway.address, &[("a+blob:///bin", "missing"), ("a+blob:///*", "subscribed")]).await;
    peer.change(json!({"restore": "blob:///bin"})).await;
    assert_eq!(next_update(&peer).await, "a+blob:///bin");
    peer.subscribe(ALPHA).await;
    for _ in 0..2 {
        peer.touch("note:///alpha", 1).await;
        assert_eq!(next_update(&peer).await, ALPHA, "once");
    }
}
