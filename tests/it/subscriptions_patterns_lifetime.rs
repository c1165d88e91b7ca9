//! Patterns across streams, connections and servers, and the updates that must never reach their subscribers.
//!
//! A gap leads to one update of the pattern. Denied resources stay invisible.

use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server};
use crate::per_client::own_process;
use crate::subscriber::{UPDATED, short, states, states_become, subscribe, touch};
use crate::subscriptions_patterns::glob;
use crate::support::{path_text, scripted_server};

const NUMBERED: &str = "a+note:///numbered/*";
const ONE: &str = "note:///numbered/0001";
const TWO: &str = "note:///numbered/0002";

/// Returns a client of one server that sees the numbered notes.
async fn peer_of(gateway: &Gateway) -> Client {
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.await_tool("a_touch").await;
    peer.lists(&format!("a+{ONE}"), true).await;
    peer
}

#[tokio::test]
async fn subx1_sub16_a_restarted_server_is_subscribed_again_and_the_pattern_receives_one_update() {
    let (web, old) =
        (HttpFixture::start(&["--resources", "2"]).await, HttpFixture::start(&["--sse", "--resources", "2"]).await);
    let ways = [
        (fixture_server(&["--resources", "2"]), None),
        (web.server(), Some((web, vec!["--resources", "2"]))),
        (old.server(), Some((old, vec!["--sse", "--resources", "2"]))),
    ];
    for (number, (server, replaced)) in ways.into_iter().enumerate() {
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        let (peer, caller) = (peer_of(&gateway).await, gateway.client().await);
        peer.subscribe_with(NUMBERED, glob()).await;
        peer.subscribe(&format!("a+{TWO}")).await;
        let _server = match replaced {
            None => {
                caller.try_call("a_crash", json!({})).await;
                None
            }
            Some((web, switches)) => Some(web.replace(&switches).await),
        };
        let mut received =
            [peer.updated().await.json()["params"].clone(), peer.updated().await.json()["params"].clone()];
        received.sort_by_key(Value::to_string);
        assert_eq!(received, [json!({ "uri": NUMBERED }), json!({"uri": format!("a+{TWO}")})], "way {number}");
        eventually(&format!("way {number}: both are subscribed"), || async {
            let all = caller.try_call("a_subscribed", json!({})).await["result"]["content"][0]["text"].clone();
            let both = [format!(r#"["+{ONE}","+{TWO}"]"#), format!(r#"["+{TWO}","+{ONE}"]"#)];
            both.iter().any(|both| all == both.as_str()).then_some(())
        })
        .await;
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "way {number}: once");
        peer.touch(ONE, 1).await;
        assert_eq!(short(&peer.updates().await), [format!("a+{ONE} 1")], "way {number}");
    }
}

#[tokio::test]
async fn subx1_subx6_a_gap_sends_one_update_of_the_pattern() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--resources", "3"]) })).await;
    let waiting = peer_of(&gateway).await;
    waiting.lists("a+note:///numbered/0003", true).await;
    let client = gateway.client().await;
    subscribe(&client, NUMBERED, glob()).await;
    let mut stream = client.listen().await;
    touch(&client, ONE, 1).await;
    assert_eq!(stream.await_method(UPDATED).await["params"]["version"], 1);
    for _ in 0..2 {
        // The client sends no event id.
        stream = client.listen().await;
        assert_eq!(stream.await_method(UPDATED).await["params"], json!({ "uri": NUMBERED }));
    }
    touch(&client, ONE, 1).await;
    assert_eq!(stream.await_method(UPDATED).await["params"]["version"], 2, "once");
}

#[tokio::test]
async fn subx1_sub10_a_pattern_of_an_unconnected_server_is_pending_and_then_updated_once() {
    let scratch = Scratch::new();
    let script = format!(r#"test -e {} && exec "$@""#, path_text(&scratch.path().join("gate")));
    let server = scripted_server(&script, &["--resources", "2"]);
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    let meta = peer.subscribe_with(NUMBERED, glob()).await;
    assert_eq!((&meta["dev.goblin/uri"], &meta["dev.goblin/state"]), (&json!(NUMBERED), &json!("pending")));
    states_become(gateway.address, &[(NUMBERED, "pending")]).await;
    scratch.write("gate", "");
    assert_eq!(peer.updated().await.json()["params"], json!({ "uri": NUMBERED }));
    peer.await_tool("a_touch").await;
    peer.await_upstream_unordered(&[&format!("+{ONE}"), &format!("+{TWO}")]).await;
    states_become(gateway.address, &[(NUMBERED, "subscribed")]).await;
    assert_eq!(peer.updates().await, Vec::<Value>::new(), "one update for all matches");
    peer.touch(TWO, 1).await;
    assert_eq!(short(&peer.updates().await), [format!("a+{TWO} 1")]);
}

#[tokio::test]
async fn subx1_each_client_subscribes_over_its_own_link_and_is_updated_once_after_a_crash() {
    let gateway = Gateway::with_servers(json!({ "a": own_process(&["--resources", "2"]) })).await;
    let (one, two) = (peer_of(&gateway).await, peer_of(&gateway).await);
    one.subscribe_with(NUMBERED, glob()).await;
    // No listed resource matches this pattern.
    one.subscribe_with("a+nothing:///*", glob()).await;
    one.await_upstream_unordered(&[&format!("+{ONE}"), &format!("+{TWO}")]).await;
    two.await_upstream(&[]).await;
    let crash = one.begin_call("a_crash", "{}").await;
    assert!(one.answer_to(crash).await["error"].is_object());
    let mut received = [one.updated().await.json()["params"].clone(), one.updated().await.json()["params"].clone()];
    received.sort_by_key(Value::to_string);
    assert_eq!(received, [json!({ "uri": NUMBERED }), json!({"uri": "a+nothing:///*"})]);
    one.await_upstream_unordered(&[&format!("+{ONE}"), &format!("+{TWO}")]).await;
    one.touch(ONE, 1).await;
    assert_eq!(short(&one.updates().await), [format!("a+{ONE} 1")]);
    assert_eq!(two.updates().await, Vec::<Value>::new());
}

/// A hidden resource does not exist for clients, however wide their patterns are.
#[tokio::test]
async fn subx1_a_denied_resource_never_reaches_a_pattern() {
    let mut server = fixture_server(&["--resources", "3"]);
    server["resources"] = json!({ "deny": [TWO, "file:///secret/*"] });
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let peer = peer_of(&gateway).await;
    peer.lists("a+note:///numbered/0003", true).await;
    let patterns = [(NUMBERED, "glob"), ("a+note:///**", "glob"), ("a+note:///{name}", "template"), ("a+:**", "glob")];
    for (pattern, kind) in patterns {
        peer.subscribe_with(pattern, json!({ "pattern": kind })).await;
    }
    peer.subscribe_with("a+file:///**", json!({"pattern": "glob", "fields": ["size"]})).await;
    let assert_no_hidden = |requests: Vec<String>| {
        assert!(!requests.is_empty());
        let hidden = requests.iter().find(|entry| entry.contains("0002") || entry.contains("secret"));
        assert_eq!(hidden, None, "the server received a hidden URI");
    };
    assert_no_hidden(peer.upstream_requests().await);
    // Changes of denied resources: a listed one, an unsolicited update, a new one, and one with fields.
    peer.touch(TWO, 3).await;
    peer.touch("file:///secret/a", 1).await;
    peer.send_update(r#"{"uri":"file:///secret/a/b","size":7}"#).await;
    for size in [1, 2] {
        peer.change(json!({"define": "file:///secret/a", "members": { "size": size }})).await;
        peer.define(&[&format!("file:///open/{size}")]).await;
        assert_eq!(
            peer.updated().await.json()["params"]["uri"],
            format!("a+file:///open/{size}"),
            "the resource is new"
        );
    }
    peer.change(json!({"remove": "file:///secret/a"})).await;
    peer.change(json!({"remove": TWO})).await;
    peer.define(&["file:///open/3"]).await;
    assert_eq!(peer.updated().await.json()["params"]["uri"], "a+file:///open/3", "the resource is new");
    assert_no_hidden(peer.upstream_requests().await);
    peer.touch(ONE, 1).await;
    assert_eq!(short(&peer.updates().await), [format!("a+{ONE} 1")]);
    let crash = peer.begin_call("a_crash", "{}").await;
    assert!(peer.answer_to(crash).await["error"].is_object());
    let mut received = Vec::new();
    for _ in 0..patterns.len() + 1 {
        received.push(peer.updated().await.json()["params"]["uri"].as_str().expect("a URI").to_owned());
    }
    received.sort();
    assert_eq!(received, ["a+:**", "a+file:///**", "a+note:///**", NUMBERED, "a+note:///{name}"]);
    let others = peer.pending_messages().await;
    assert!(!format!("{others:?}").contains("secret") && !format!("{others:?}").contains("0002"), "{others:?}");
    assert_eq!(states(gateway.address).await.len(), patterns.len() + 1);
}
