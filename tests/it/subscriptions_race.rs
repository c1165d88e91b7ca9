//! Races of subscriptions: a client unsubscribes, disconnects or cancels before the server's response.
//!
//! The server must end up with exactly the subscriptions that clients still want.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Deadline, Gateway, eventually, fixture_server};
use crate::ledger_subscriptions_player::Random;
use crate::resources::few_templates;
use crate::scrape::gauge;
use crate::subscriber::{ACTIVE, meta, named, short, subscribe, subscribe_params};
use crate::support::assert_error;
use crate::transport_pairs::{Back, Front, Stage};

const HELD: &str = "a+note:///held-x";

#[tokio::test]
async fn sub12_an_unsubscribe_during_a_pending_subscribe_answers_both_requests() {
    for (front, back) in [(Front::Http, Back::Stdio), (Front::Sse, Back::Post)] {
        let stage = Stage::start(front, back).await;
        let (one, two) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
        let begun = one.begin("resources/subscribe", named(HELD)).await;
        stage.has_subscriptions(1).await;
        two.await_upstream(&["+note:///held-x"]).await;
        one.unsubscribe(HELD).await;
        meta(&one.answer_to(begun).await);
        stage.has_subscriptions(0).await;
        two.call_text("a_release", "{}").await;
        two.await_upstream(&["+note:///held-x", "-note:///held-x"]).await;

        // Another client subscribes meanwhile and is not affected by the first client's unsubscribe.
        let begun = one.begin("resources/subscribe", named(HELD)).await;
        stage.has_subscriptions(1).await;
        let other = two.begin("resources/subscribe", named(HELD)).await;
        stage.has_subscriptions(2).await;
        one.unsubscribe(HELD).await;
        meta(&one.answer_to(begun).await);
        two.await_upstream(&["+note:///held-x", "-note:///held-x", "+note:///held-x"]).await;
        two.call_text("a_release", "{}").await;
        meta(&two.answer_to(other).await);
        two.touch("note:///held-x", 1).await;
        assert_eq!(short(&two.updates().await), [format!("{HELD} 1")], "{front:?}");
        assert_eq!(one.updates().await, Vec::<Value>::new(), "{front:?}");
    }
}

#[tokio::test]
async fn sub10_a_cancelled_or_abandoned_subscribe_is_undone_at_the_server() {
    for (front, back) in [(Front::Http, Back::Stdio), (Front::Sse, Back::Get)] {
        let stage = Stage::start(front, back).await;
        let (one, two) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
        let begun = one.begin("resources/subscribe", named(HELD)).await;
        stage.has_subscriptions(1).await;
        two.await_upstream(&["+note:///held-x"]).await;
        one.cancel(begun).await;
        stage.has_subscriptions(0).await;
        two.call_text("a_release", "{}").await;
        two.await_upstream(&["+note:///held-x", "-note:///held-x"]).await;

        one.begin("resources/subscribe", named(HELD)).await;
        stage.has_subscriptions(1).await;
        two.await_upstream(&["+note:///held-x", "-note:///held-x", "+note:///held-x"]).await;
        one.disconnect().await;
        stage.has_subscriptions(0).await;
        two.call_text("a_release", "{}").await;
        two.await_upstream(&["+note:///held-x", "-note:///held-x", "+note:///held-x", "-note:///held-x"]).await;
    }
}

#[tokio::test]
async fn sub10_sub16_a_subscribe_becomes_pending_when_its_server_dies() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let (one, two) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
    let begun = one.begin("resources/subscribe", named(HELD)).await;
    two.await_upstream(&["+note:///held-x"]).await;
    let crash = two.begin_call("a_crash", "{}").await;
    assert!(two.answer_to(crash).await["error"].is_object());
    assert_eq!(meta(&one.answer_to(begun).await)["dev.goblin/state"], "pending");
    stage.metric_becomes(r#"goblin_backend_up{server_id="a"}"#, 1).await;
    // The new server received the subscribe as soon as it was ready, and delays it too.
    two.await_upstream(&["+note:///held-x"]).await;
    two.call_text("a_release", "{}").await;
    assert_eq!(one.updated().await.json()["params"], json!({ "uri": HELD }));
    one.touch("note:///held-x", 1).await;
    assert_eq!(short(&one.updates().await), [format!("{HELD} 1")]);
}

/// The server's late response counts: it accepted the subscription after the timeout, so the gateway unsubscribes.
#[tokio::test]
async fn sub10_a_subscribe_timeout_fails_all_waiting_clients_and_undoes_a_late_acceptance() {
    for (front, back) in [(Front::Http, Back::Stdio), (Front::Sse, Back::Post), (Front::Http, Back::Sse)] {
        let stage = Stage::configured(front, back, json!({}), json!({"timeout": "1s"})).await;
        let (one, two) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
        for (uri, options) in [(HELD, json!({})), ("a+note:///held-*", json!({"pattern": "glob"}))] {
            let before = one.upstream_requests().await.len();
            if uri != HELD {
                one.define(&["note:///held-x"]).await;
            }
            let begun = [&one, &two].map(|peer| (peer, subscribe_params(uri, &options)));
            let mut ids = Vec::new();
            for (peer, params) in begun {
                ids.push(peer.begin("resources/subscribe", params).await);
            }
            for (peer, id) in [&one, &two].into_iter().zip(ids) {
                let answer = peer.answer_to(id).await;
                assert_error(&answer, 1504, "TIMEOUT");
                let message = answer["error"]["message"].as_str().expect("a text");
                assert!(message.contains('a') && message.contains("resources/subscribe"), "{message}");
            }
            stage.has_subscriptions(0).await;
            one.call_text("a_release", "{}").await;
            let deadline = Deadline::new();
            while one.upstream_requests().await.last().is_none_or(|last| last != "-note:///held-x")
                || one.call_text("a_subscriptions", "{}").await != "[]"
            {
                deadline.pause("the subscription is cancelled").await;
            }
            let requests = one.upstream_requests().await;
            assert_eq!(requests[before], "+note:///held-x", "{front:?} {back:?}");
            let subscribes = requests[before..].iter().filter(|entry| entry.starts_with('+')).count();
            assert_eq!(subscribes, 1, "{front:?} {back:?}: {requests:?}");
        }
        // No state is left, so a new subscription succeeds.
        let begun = two.begin("resources/subscribe", named(HELD)).await;
        stage.has_subscriptions(1).await;
        let deadline = Deadline::new();
        while one.upstream_requests().await.last().is_none_or(|last| last.starts_with('-')) {
            deadline.pause("the gateway subscribes").await;
        }
        one.call_text("a_release", "{}").await;
        meta(&two.answer_to(begun).await);
        one.touch("note:///held-x", 1).await;
        assert_eq!(short(&two.updates().await), [format!("{HELD} 1")], "{front:?} {back:?}");
    }
}

#[tokio::test]
async fn d13_sub2_a_resource_that_was_just_added_can_be_subscribed() {
    let gateway = Gateway::with_servers(json!({ "a": few_templates() })).await;
    let client = gateway.client_seeing("a_touch").await;
    for _ in 0..3 {
        let native = client.call_text("a_change_resources", json!({})).await;
        subscribe(&client, &format!("a+{native}"), json!({})).await;
    }
    assert_eq!(gauge(&client, ACTIVE).await, 3);
}

/// Subscribes and unsubscribes at random. Returns the final subscriptions.
async fn subscribe_at_random(client: Client, mut random: Random) -> BTreeSet<String> {
    let mut wanted = BTreeMap::new();
    for _ in 0..120 {
        let uri = format!("note:///{}", random.below(3));
        let is_wanted = random.below(7) < 4;
        let method = if is_wanted { "resources/subscribe" } else { "resources/unsubscribe" };
        let answer = client.request(method, json!({"uri": format!("a+{uri}")})).await;
        assert!(answer["error"].is_null(), "{answer}");
        wanted.insert(uri, is_wanted);
    }
    wanted.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(uri, _)| uri).collect()
}

#[tokio::test]
async fn sub2_sub12_concurrent_changes_leave_exactly_the_wanted_subscriptions_at_the_server() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let watcher = gateway.client_seeing("a_touch").await;
    let mut clients = Vec::new();
    for seed in 1..=4 {
        clients.push(tokio::spawn(subscribe_at_random(gateway.client().await, Random::new(seed))));
    }
    let mut wanted = Vec::new();
    for client in clients {
        wanted.push(client.await.expect("no panic"));
    }
    let all: BTreeSet<_> = wanted.iter().flatten().cloned().collect();
    assert_eq!(gauge(&watcher, ACTIVE).await, wanted.iter().map(BTreeSet::len).sum::<usize>());
    eventually(&format!("exactly {all:?} is subscribed"), || async {
        let now = watcher.call_text("a_subscriptions", json!({})).await;
        let now: BTreeSet<String> = serde_json::from_str(&now).expect("a list");
        (now == all).then_some(())
    })
    .await;
    let requests: Vec<String> =
        serde_json::from_str(&watcher.call_text("a_subscribed", json!({})).await).expect("a list");
    let mut now = BTreeSet::new();
    for request in requests {
        let (sign, uri) = request.split_at(1);
        assert!(if sign == "+" { now.insert(uri.to_owned()) } else { now.remove(uri) }, "{request} was sent twice");
    }
}
