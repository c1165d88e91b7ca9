//! Deletion of subscribed resources.
//!
//! The subscriber is notified, stays subscribed, and is notified again when the resource returns. A failed or
//! restarting server deletes nothing.

use std::fs;

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, Scratch, fixture_server};
use crate::resources::few_templates;
use crate::subscriber::{DELETED, UPDATED, short, states_become};
use crate::subscriptions_patterns::glob;
use crate::support::path_text;
use crate::transport_pairs::{Back, Front, Stage, pairs};

/// A listed resource that no template matches.
const NATIVE: &str = "blob:///bin";
const BIN: &str = "a+blob:///bin";
const LIST_CHANGED: &str = "notifications/resources/list_changed";

/// Returns the capabilities of a client that supports deletions.
fn deletion_capabilities() -> Value {
    json!({"experimental": {"dev.goblin/subscriptions": {}}})
}

/// Returns the params that announce a deletion to a plain client.
pub fn deletion_mark(uri: &str) -> Value {
    json!({"uri": uri, "_meta": {"dev.goblin/deleted": true}})
}

#[tokio::test]
async fn sub14_d10_deletion_and_return_of_a_resource_are_notified_over_every_pair_of_transports() {
    for (front, back) in pairs() {
        let pair = format!("{front:?} {back:?}");
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(json!({})).await;
        peer.subscribe(BIN).await;
        peer.change(json!({ "remove": NATIVE })).await;
        assert_eq!(peer.updated().await.json()["params"], deletion_mark(BIN), "{pair}");
        peer.notification(LIST_CHANGED).await;
        let answer = peer.request("resources/read", json!({ "uri": BIN })).await;
        assert_eq!(answer["error"]["data"]["code"], "RESOURCE_NOT_FOUND", "{pair}: {answer}");
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "{pair}: once");

        peer.change(json!({ "restore": NATIVE })).await;
        assert_eq!(peer.updated().await.json()["params"], json!({ "uri": BIN }), "{pair}");
        assert_eq!(
            peer.upstream_requests().await,
            ["+blob:///bin", "+blob:///bin"],
            "{pair}: the gateway subscribes again"
        );
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "{pair}: once");
        peer.touch(NATIVE, 1).await;
        assert_eq!(short(&peer.updates().await), [format!("{BIN} 1")], "{pair}");
        peer.unsubscribe(BIN).await;
        peer.await_upstream(&["+blob:///bin", "+blob:///bin", "-blob:///bin"]).await;
    }
}

#[tokio::test]
async fn sub14_d10_only_a_client_with_the_capability_receives_resources_deleted() {
    let capabilities = [
        deletion_capabilities(),
        json!({"extensions": {"dev.goblin/subscriptions": {}}}),
        json!({"experimental": {"other": {}}}),
        json!({}),
    ];
    let stage = Stage::start(Front::Http, Back::Get).await;
    let mut peers = Vec::new();
    for capabilities in capabilities {
        let peer = stage.peer(capabilities).await;
        // The client is notified once, however many subscriptions cover the resource.
        peer.subscribe(BIN).await;
        peer.subscribe_with("a+blob:///*", glob()).await;
        peers.push(peer);
    }
    let mut indifferent = stage.peer(deletion_capabilities()).await;
    for peer in peers.iter_mut().chain([&mut indifferent]) {
        // The messages from the set-up are dropped.
        peer.pending_messages().await;
    }
    indifferent.change(json!({ "remove": NATIVE })).await;
    for (number, peer) in peers.iter_mut().enumerate() {
        let (method, params) =
            if number < 2 { (DELETED, json!({ "uri": BIN })) } else { (UPDATED, deletion_mark(BIN)) };
        assert_eq!(peer.notification(method).await.json()["params"], params, "{number}");
        peer.notification(LIST_CHANGED).await;
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "{number}: once");
        assert_eq!(notified_of_resources(peer).await, Vec::<Value>::new(), "{number}: nothing else");
    }
    indifferent.notification(LIST_CHANGED).await;
    assert_eq!(notified_of_resources(&indifferent).await, Vec::<Value>::new());
    indifferent.change(json!({ "restore": NATIVE })).await;
    for (number, peer) in peers.iter_mut().enumerate() {
        assert_eq!(peer.updated().await.json()["params"], json!({ "uri": BIN }), "{number}");
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "{number}: once");
    }
}

/// Returns the pending updates and deletions.
async fn notified_of_resources(peer: &Client) -> Vec<Value> {
    let mut others = peer.pending_messages().await;
    others.retain(|message| message["method"] == UPDATED || message["method"] == DELETED);
    others
}

async fn start_alone(server: Value) -> (Gateway, Client) {
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.await_tool("a_touch").await;
    (gateway, peer)
}

#[tokio::test]
async fn d10_a_deleted_resource_stays_subscribed_and_is_listed_as_missing() {
    let (gateway, peer) = start_alone(fixture_server(&[])).await;
    let id = peer.subscribe(BIN).await["dev.goblin/subscriptionId"].clone();
    let kept = peer.subscribe("a+note:///alpha").await;
    states_become(gateway.address, &[(BIN, "subscribed"), ("a+note:///alpha", "subscribed")]).await;
    peer.change(json!({ "remove": NATIVE })).await;
    assert_eq!(peer.updated().await.json()["params"], deletion_mark(BIN));
    states_become(gateway.address, &[(BIN, "missing"), ("a+note:///alpha", "subscribed")]).await;
    // The resource cannot be subscribed again, and the subscription still ends by its name.
    let answer = peer.request("resources/subscribe", json!({ "uri": BIN })).await;
    assert_eq!(answer["error"]["data"]["code"], "RESOURCE_NOT_FOUND", "{answer}");
    peer.change(json!({ "restore": NATIVE })).await;
    assert_eq!(peer.updated().await.json()["params"], json!({ "uri": BIN }));
    states_become(gateway.address, &[(BIN, "subscribed"), ("a+note:///alpha", "subscribed")]).await;
    assert_eq!(peer.subscribe(BIN).await["dev.goblin/subscriptionId"], id, "the same as ever");
    peer.change(json!({ "remove": NATIVE })).await;
    assert_eq!(peer.updated().await.json()["params"], deletion_mark(BIN), "a second time");
    peer.unsubscribe(id.as_str().expect("an id")).await;
    states_become(gateway.address, &[("a+note:///alpha", "subscribed")]).await;
    peer.change(json!({ "restore": NATIVE })).await;
    peer.lists(BIN, true).await;
    assert_eq!(peer.updates().await, Vec::<Value>::new(), "no client waits for the update");
    assert_eq!(peer.subscribe("a+note:///alpha").await, kept);
}

#[tokio::test]
async fn d10_deletion_and_return_of_a_resource_under_a_pattern_are_notified() {
    let (gateway, peer) = start_alone(fixture_server(&[])).await;
    peer.define(&["file:///d/1", "file:///d/2"]).await;
    peer.subscribe_with("a+file:///d/*", glob()).await;
    peer.await_upstream_unordered(&["+file:///d/1", "+file:///d/2"]).await;
    peer.change(json!({"remove": "file:///d/1"})).await;
    assert_eq!(peer.updated().await.json()["params"], deletion_mark("a+file:///d/1"));
    peer.await_upstream_unordered(&["+file:///d/1", "+file:///d/2", "-file:///d/1"]).await;
    states_become(gateway.address, &[("a+file:///d/*", "subscribed")]).await;
    peer.change(json!({"restore": "file:///d/1"})).await;
    assert_eq!(peer.updated().await.json()["params"], json!({"uri": "a+file:///d/1"}));
    assert_eq!(peer.updates().await, Vec::<Value>::new(), "once");
    peer.touch("file:///d/1", 1).await;
    assert_eq!(short(&peer.updates().await), ["a+file:///d/1 1"]);
}

#[tokio::test]
async fn d10_an_unlisted_resource_that_can_be_read_is_not_deleted() {
    let (gateway, peer) = start_alone(fixture_server(&[])).await;
    // The first can still be read, and the second was never listed.
    for uri in [BIN, "a+note:///missing"] {
        peer.subscribe(uri).await;
    }
    peer.define(&["file:///marker"]).await;
    peer.subscribe("a+file:///marker").await;
    peer.change(json!({ "hide": NATIVE })).await;
    peer.lists(BIN, false).await;
    // A deletion of one of them would have been notified before this one.
    peer.change(json!({"remove": "file:///marker"})).await;
    assert_eq!(peer.updated().await.json()["params"], deletion_mark("a+file:///marker"));
    let expected = [(BIN, "subscribed"), ("a+note:///missing", "subscribed"), ("a+file:///marker", "missing")];
    states_become(gateway.address, &expected).await;
    peer.touch(NATIVE, 1).await;
    assert_eq!(short(&peer.updates().await), [format!("a+{NATIVE} 1")]);
    // A later deletion is notified when it happens.
    peer.change(json!({ "remove": NATIVE })).await;
    assert_eq!(peer.updated().await.json()["params"], deletion_mark(BIN));
}

#[tokio::test]
async fn d10_a_matching_template_does_not_keep_a_removed_resource() {
    let (gateway, peer) = start_alone(fixture_server(&[])).await;
    let uri = "a+note:///alpha";
    peer.subscribe(uri).await;
    for _ in 0..2 {
        peer.change(json!({"remove": "note:///alpha"})).await;
        assert_eq!(peer.updated().await.json()["params"], deletion_mark(uri));
        states_become(gateway.address, &[(uri, "missing")]).await;
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "once");
        peer.change(json!({"restore": "note:///alpha"})).await;
        assert_eq!(peer.updated().await.json()["params"], json!({ "uri": uri }));
        states_become(gateway.address, &[(uri, "subscribed")]).await;
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "once");
    }
}

#[tokio::test]
async fn d10_a_removed_resource_with_only_a_denied_template_is_deleted() {
    let (_gateway, peer) = start_alone(few_templates()).await;
    peer.subscribe("a+note:///alpha").await;
    peer.change(json!({"remove": "note:///alpha"})).await;
    assert_eq!(peer.updated().await.json()["params"], deletion_mark("a+note:///alpha"));
}

#[tokio::test]
async fn d10_d14_a_failing_or_dead_server_deletes_no_resource() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let (gateway, peer) = start_alone(fixture_server(&["--pid-file", path_text(&pid_file)])).await;
    peer.subscribe(BIN).await;
    peer.define(&["file:///marker"]).await;
    peer.subscribe("a+file:///marker").await;
    peer.change(json!({"broken": true})).await;
    peer.change(json!({"remove": "file:///marker"})).await;
    crate::support::await_log(&gateway, &["the list is broken"]).await;
    assert_eq!(peer.updates().await, Vec::<Value>::new(), "a failed list changes nothing");
    states_become(gateway.address, &[(BIN, "subscribed"), ("a+file:///marker", "subscribed")]).await;
    peer.change(json!({"broken": false})).await;
    assert_eq!(
        peer.updated().await.json()["params"],
        deletion_mark("a+file:///marker"),
        "the deletion is reported now"
    );

    // The next process does not know the marker.
    peer.change(json!({"restore": "file:///marker"})).await;
    assert_eq!(peer.updated().await.json()["params"], json!({"uri": "a+file:///marker"}));
    let crash = peer.begin_call("a_crash", "{}").await;
    assert!(peer.answer_to(crash).await["error"].is_object());
    let mut received = [peer.updated().await.json()["params"].clone(), peer.updated().await.json()["params"].clone()];
    received.sort_by_key(Value::to_string);
    assert_eq!(
        received,
        [json!({ "uri": BIN }), json!({"uri": "a+file:///marker"})],
        "only the returned resource is reported"
    );
    assert_eq!(
        peer.updated().await.json()["params"],
        deletion_mark("a+file:///marker"),
        "the deletion is reported after the next list"
    );
    states_become(gateway.address, &[(BIN, "subscribed"), ("a+file:///marker", "missing")]).await;
    assert_eq!(peer.updates().await, Vec::<Value>::new(), "once");
}

/// A files server has a template for all its files, which does not keep a removed file.
#[tokio::test]
async fn d10_a_removed_or_restored_file_is_notified_once() {
    let scratch = Scratch::new();
    let root = scratch.path().canonicalize().expect("the file exists");
    // A rename is a single atomic change.
    let write = |name: &str, text: &str| {
        scratch.write(".new", text);
        fs::rename(root.join(".new"), root.join(name)).expect("the file can be renamed");
    };
    write("deleted.txt", "first");
    write("fence.txt", "first");
    let servers = json!({ "a": { "type": "files", "root": root.display().to_string() } });
    let gateway = Gateway::with_servers(servers).await;
    let uri = |name: &str| format!("a+file://{}/{name}", root.display());
    let (deleted, fence, all) = (uri("deleted.txt"), uri("fence.txt"), uri("*.txt"));
    let mut peers = [
        Client::new(gateway.address).listening(json!({})).await,
        Client::new(gateway.address).listening(deletion_capabilities()).await,
    ];
    for peer in &mut peers {
        peer.await_tool("a_read").await;
        peer.lists(&deleted, true).await;
        for uri in [&deleted, &fence] {
            peer.subscribe(uri).await;
        }
        peer.subscribe_with(&all, glob()).await;
    }
    let mut fences = 0;
    for (round, is_there) in [false, true, false, true].into_iter().enumerate() {
        match is_there {
            true => write("deleted.txt", &format!("{round}")),
            false => fs::remove_file(root.join("deleted.txt")).expect("the file exists"),
        }
        for peer in &mut peers {
            peer.lists(&deleted, is_there).await;
        }
        let [plain, capable] = &peers;
        if is_there {
            for peer in &peers {
                assert_eq!(peer.updated().await.json()["params"], json!({ "uri": deleted }), "{round}");
            }
        } else {
            assert_eq!(plain.updated().await.json()["params"], deletion_mark(&deleted), "{round}");
            assert_eq!(capable.notification(DELETED).await.json()["params"], json!({ "uri": deleted }), "{round}");
        }
        // One scan notifies in any order. After a second scan no notification of the first is left.
        for _ in 0..2 {
            fences += 1;
            write("fence.txt", &format!("fence {fences}"));
            for peer in &peers {
                assert_eq!(peer.updated().await.json()["params"], json!({ "uri": fence }), "{round}");
            }
        }
        for peer in &mut peers {
            assert_eq!(notified_of_resources(peer).await, Vec::<Value>::new(), "{round}");
        }
    }
    let all = [&deleted, &fence, &all, &deleted, &fence, &all];
    states_become(gateway.address, &all.map(|uri| (uri.as_str(), "subscribed"))).await;
}
