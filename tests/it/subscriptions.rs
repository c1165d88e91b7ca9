//! `resources/subscribe` and `resources/unsubscribe`: the updates for clients, and the requests to servers.
//!
//! Many clients share one upstream subscription, and an update reaches each of them once.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::inbox::Way;
use crate::harness::{Gateway, fixture_server};
use crate::scrape::gauge;
use crate::subscriber::{
    ACTIVE, UPDATED, await_upstream, meta, named, short, subscribe, subscribe_params, touch, touched,
};
use crate::support::assert_error;
use crate::transport_pairs::{Back, Front, Stage, pairs};

const ALPHA: &str = "a+note:///alpha";
const BETA: &str = "a+note:///beta";

#[tokio::test]
async fn sub1_sub2_sub4_sub13_updates_pass_unchanged_over_every_pair_of_transports() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(json!({})).await;
        let meta = peer.subscribe(ALPHA).await;
        assert_eq!(meta["dev.goblin/uri"], ALPHA, "{front:?} {back:?}: {meta}");
        assert!(meta["dev.goblin/state"].is_null(), "{front:?} {back:?}: {meta}");
        assert_eq!(peer.call_text("a_subscriptions", "{}").await, r#"["note:///alpha"]"#);
        for version in [1, 2] {
            peer.touch("note:///alpha", 1).await;
            let received = peer.updated().await;
            assert_eq!(received.raw("params"), touched(ALPHA, version), "{front:?} {back:?}");
            assert_eq!((received.way, received.json()["id"].is_null()), (Way::Session, true), "{front:?} {back:?}");
        }
        // The server may send the update on any stream.
        let params = r#","params":{"x":1.0,"uri":"note:\/\/\/alpha"}"#;
        peer.call_text("a_notify", &stage.backend.arguments(UPDATED, params)).await;
        assert_eq!(peer.updated().await.raw("params"), format!(r#"{{"x":1.0,"uri":"{ALPHA}"}}"#), "{front:?} {back:?}");
        peer.unsubscribe(ALPHA).await;
        peer.await_upstream(&["+note:///alpha", "-note:///alpha"]).await;
        peer.touch("note:///alpha", 1).await;
        assert_eq!(peer.updates().await, Vec::<Value>::new(), "{front:?} {back:?}");
    }
}

#[tokio::test]
async fn sub2_sub5_sub12_many_clients_share_one_subscription_and_each_receives_an_update_once() {
    for (front, back) in Front::SHARED.into_iter().zip([Back::Stdio, Back::Sse]) {
        let stage = Stage::start(front, back).await;
        let mut peers = Vec::new();
        for _ in 0..5 {
            peers.push(stage.peer(json!({})).await);
        }
        let mut begun = Vec::new();
        for peer in &mut peers {
            begun.push(peer.begin("resources/subscribe", named("a+note:///held-x")).await);
        }
        stage.has_subscriptions(5).await;
        peers[0].await_upstream(&["+note:///held-x"]).await;
        peers[0].call_text("a_release", "{}").await;
        let mut ids = std::collections::BTreeSet::new();
        for (peer, id) in peers.iter_mut().zip(begun) {
            ids.insert(meta(&peer.answer_to(id).await)["dev.goblin/subscriptionId"].to_string());
        }
        assert_eq!(ids.len(), 5, "each has its own: {ids:?}");
        peers[0].touch("note:///held-x", 1).await;
        for peer in &mut peers {
            assert_eq!(short(&peer.updates().await), ["a+note:///held-x 1"]);
        }
        assert_eq!(peers[0].upstream_requests().await, ["+note:///held-x"]);

        let last = peers.pop().expect("a peer");
        for peer in &mut peers {
            peer.unsubscribe("a+note:///held-x").await;
        }
        stage.has_subscriptions(1).await;
        last.touch("note:///held-x", 1).await;
        assert_eq!(short(&last.updates().await), ["a+note:///held-x 2"]);
        for peer in &mut peers {
            assert_eq!(peer.updates().await, Vec::<Value>::new());
        }
        assert_eq!(last.upstream_requests().await, ["+note:///held-x"], "a client is subscribed");
        last.unsubscribe("a+note:///held-x").await;
        last.await_upstream(&["+note:///held-x", "-note:///held-x"]).await;
        stage.has_subscriptions(0).await;
    }
}

#[tokio::test]
async fn sub3_d5_a_uri_that_no_server_offers_is_rejected_without_contacting_a_server() {
    let servers = json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    let seeing = gateway.client_seeing("b_touch").await;
    seeing.await_tool("a_touch").await;
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let client = gateway.client_of(version).await;
        for uri in ["a+nope:///x", "nope:///x", "c+note:///alpha", "note:///alpha", "a+note:///{name}"] {
            let answer = client.request("resources/subscribe", json!({ "uri": uri })).await;
            let data = assert_error(&answer, -32602, "RESOURCE_NOT_FOUND");
            assert_eq!(data["uri"], uri, "{version}: {answer}");
            assert!(answer["error"]["message"].as_str().is_some_and(|message| message.contains(uri)), "{answer}");
        }
    }
    assert_eq!(gauge(&seeing, ACTIVE).await, 0);
    for server in ["a", "b"] {
        assert_eq!(seeing.call_text(&format!("{server}_subscribed"), json!({})).await, "[]");
    }
}

#[tokio::test]
async fn d22_a_subscribe_result_has_members_only_for_clients_that_use_the_extension() {
    for front in [Front::Http, Front::Sse, Front::Stdio] {
        let stage = Stage::start(front, Back::Stdio).await;
        let other = json!({"experimental": {"dev.goblin/subscriptions": null, "other": {}}});
        let peer = stage.peer(other).await;
        let bare = json!({ "uri": ALPHA });
        let foreign = json!({ "uri": ALPHA, "_meta": { "progressToken": 1, "other/option": true } });
        for params in [&bare, &foreign] {
            let answer = peer.request("resources/subscribe", params).await;
            assert_eq!(answer["result"], json!({}), "{front:?}: {answer}");
        }
        peer.touch("note:///alpha", 1).await;
        assert_eq!(short(&peer.updates().await), [format!("{ALPHA} 1")], "{front:?}");
        for (name, value) in [("priority", json!(0)), ("minIntervalMs", json!(0)), ("batchMs", json!(0))] {
            let params = subscribe_params(ALPHA, &json!({ name: value }));
            let answer = peer.request("resources/subscribe", params).await;
            assert_eq!(meta(&answer)["dev.goblin/uri"], ALPHA, "{front:?}: {answer}");
        }
        drop(peer);
        for key in ["experimental", "extensions"] {
            let declared = stage.peer(json!({ key: { "dev.goblin/subscriptions": {} } })).await;
            let answer = declared.request("resources/subscribe", &bare).await;
            assert_eq!(meta(&answer)["dev.goblin/uri"], ALPHA, "{front:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn sub4_a_subscription_ends_by_any_spelling_of_its_uri_or_by_its_id() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let (peer, other) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
    other.subscribe("a+note:///kept").await;
    let kept = other.subscribe(ALPHA).await["dev.goblin/subscriptionId"].clone();
    for subscribed in [ALPHA, "a_note_alpha", "note:///alpha", "A+note:///alpha"] {
        for ended in [Some(ALPHA), Some("a_note_alpha"), Some("note:///alpha"), None] {
            let meta = peer.subscribe(subscribed).await;
            assert_eq!(meta["dev.goblin/uri"], ALPHA, "{subscribed}");
            stage.has_subscriptions(3).await;
            peer.unsubscribe(kept.as_str().expect("an id")).await;
            assert_eq!(stage.metric(ACTIVE).await, 3, "a client cannot end the subscription of another client");
            let id = meta["dev.goblin/subscriptionId"].as_str().expect("an id");
            peer.unsubscribe(ended.unwrap_or(id)).await;
            assert_eq!(stage.metric(ACTIVE).await, 2, "{subscribed} {ended:?}");
        }
    }
    assert_eq!(other.upstream_requests().await, ["+note:///kept", "+note:///alpha"]);
}

#[tokio::test]
async fn sub4_a_resource_that_is_no_longer_offered_can_be_unsubscribed() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let peer = stage.peer(json!({})).await;
    let uri = "a+blob:///bin";
    peer.subscribe(uri).await;
    peer.call_text("a_change_resources", r#"{"remove":"blob:///bin"}"#).await;
    let mut stays_listed = true;
    while stays_listed {
        stays_listed = peer.request("resources/list", json!({})).await.to_string().contains(uri);
    }
    let answer = peer.request("resources/subscribe", json!({ "uri": uri })).await;
    assert_error(&answer, -32602, "RESOURCE_NOT_FOUND");
    peer.touch("blob:///bin", 1).await;
    assert_eq!(short(&peer.updates().await), ["a+blob:///bin 1"], "the subscription is still active");
    peer.unsubscribe(uri).await;
    peer.await_upstream(&["+blob:///bin", "-blob:///bin"]).await;
    stage.has_subscriptions(0).await;
}

#[tokio::test]
async fn sub5_subx5_updates_arrive_in_order_and_a_slow_client_receives_the_last() {
    let stage = Stage::start(Front::Http, Back::Get).await;
    let quick = stage.peer(json!({})).await;
    let slow = stage.client(json!({})).await;
    for uri in [ALPHA, BETA] {
        quick.subscribe(uri).await;
        subscribe(&slow, uri, json!({})).await;
    }
    const MANY: u64 = 200;
    quick.touch("note:///alpha", MANY).await;
    quick.touch("note:///beta", MANY).await;
    let updates = quick.updates().await;
    for uri in [ALPHA, BETA] {
        let of_it = updates.iter().filter(|params| params["uri"] == uri);
        let versions: Vec<_> = of_it.map(|params| params["version"].as_u64().expect("a version")).collect();
        assert!(versions.is_sorted_by(|one, two| one < two), "{uri}: {versions:?}");
        assert_eq!(versions.last(), Some(&MANY), "{uri}");
    }
    // The client opens its stream only now.
    let mut stream = slow.listen().await;
    for uri in [ALPHA, BETA] {
        let text = stream.next_text().await.expect("an update");
        assert_eq!(text, format!(r#"{{"jsonrpc":"2.0","method":"{UPDATED}","params":{}}}"#, touched(uri, MANY)));
    }
    touch(&slow, "note:///alpha", 1).await;
    assert_eq!(stream.await_method(UPDATED).await["params"]["version"], MANY + 1, "nothing was between");
}

#[tokio::test]
async fn sub6_an_update_without_subscribers_is_dropped() {
    for back in Back::SHARED {
        let stage = Stage::start(Front::Http, back).await;
        let (one, two) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
        one.subscribe(ALPHA).await;
        two.touch("note:///beta", 3).await;
        two.touch("note:///alpha", 1).await;
        assert_eq!(short(&one.updates().await), [format!("{ALPHA} 1")], "{back:?}");
        assert_eq!(two.updates().await, Vec::<Value>::new(), "{back:?}");
        // Params that are not a valid update.
        for params in ["{}", r#"{"uri":7}"#, r#"{"uri":""}"#, r#"{"uri":"\ud800"}"#] {
            let rest = format!(r#","params":{params}"#);
            one.call_text("a_notify", &stage.backend.arguments(UPDATED, &rest)).await;
        }
        assert_eq!(one.updates().await, Vec::<Value>::new(), "{back:?}");
    }
}

#[tokio::test]
async fn sub8_d6_a_subscription_above_the_limit_is_rejected_and_leaves_no_trace() {
    const LIMIT: usize = 1000;
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let (client, other) = (stage.client(json!({})).await, stage.client(json!({})).await);
    client.await_tool("a_touch").await;
    for number in 0..LIMIT {
        subscribe(&client, &format!("a+note:///{number}"), json!({})).await;
    }
    for _ in 0..2 {
        let answer = client.request("resources/subscribe", json!({"uri": "a+note:///more"})).await;
        let data = assert_error(&answer, 1429, "LIMIT_EXCEEDED");
        assert_eq!((&data["limit"], &data["value"]), (&json!("subscriptions.maxPerClient"), &json!(LIMIT)), "{answer}");
        assert!(
            answer["error"]["message"].as_str().is_some_and(|text| text.starts_with("LimitExceeded: ")),
            "{answer}"
        );
    }
    subscribe(&client, "a+note:///7", json!({})).await;
    assert_eq!(gauge(&client, ACTIVE).await, LIMIT, "one that is there needs no room");
    let requests = client.call_text("a_subscribed", json!({})).await;
    assert!(!requests.contains("note:///more") && requests.matches("note:///7\"").count() == 1);
    subscribe(&other, "a+note:///more", json!({})).await;
    client.request("resources/unsubscribe", json!({"uri": "a+note:///7"})).await;
    subscribe(&client, "a+note:///more", json!({})).await;
    assert_eq!(gauge(&client, ACTIVE).await, LIMIT + 1);
}

#[tokio::test]
async fn sub9_a_server_without_subscriptions_receives_no_subscribe_and_its_updates_are_forwarded() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--without", "subscribe"]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    subscribe(&client, ALPHA, json!({})).await;
    let mut stream = client.listen().await;
    touch(&client, "note:///alpha", 1).await;
    assert_eq!(stream.await_method(UPDATED).await["params"]["uri"], ALPHA);
    client.request("resources/unsubscribe", json!({ "uri": ALPHA })).await;
    touch(&client, "note:///alpha", 1).await;
    subscribe(&client, BETA, json!({})).await;
    touch(&client, "note:///beta", 1).await;
    assert_eq!(stream.await_method(UPDATED).await["params"]["uri"], BETA, "no update of an unsubscribed resource");
    assert_eq!(client.call_text("a_subscribed", json!({})).await, "[]");
}

#[tokio::test]
async fn sub10_a_rejected_subscribe_reaches_all_waiting_clients_and_leaves_no_subscription() {
    for (front, back) in [(Front::Http, Back::Stdio), (Front::Sse, Back::Post), (Front::Http, Back::Sse)] {
        let stage = Stage::start(front, back).await;
        let (one, two) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
        let rejected =
            json!({"code": -32001, "message": "subscription refused", "data": {"code": "SUBSCRIPTION_FAILED"}});
        let barred = json!({"code": -32099, "message": "barred", "data": {"why": 1.0}});
        let mut requests = Vec::new();
        for (uri, error) in [("note:///held-refused", rejected), ("note:///held-barred", barred)] {
            let exposed = format!("a+{uri}");
            let first = one.begin("resources/subscribe", json!({ "uri": exposed })).await;
            let second = two.begin("resources/subscribe", json!({ "uri": exposed })).await;
            stage.has_subscriptions(2).await;
            requests.push(format!("+{uri}"));
            one.await_upstream(&requests.iter().map(String::as_str).collect::<Vec<_>>()).await;
            one.call_text("a_release", "{}").await;
            assert_eq!(one.answer_to(first).await["error"], error, "{front:?} {back:?}");
            assert_eq!(two.answer_to(second).await["error"], error, "{front:?} {back:?}");
            stage.has_subscriptions(0).await;
            assert_eq!(one.upstream_requests().await, requests, "{front:?} {back:?}");
        }
        one.touch("note:///held-refused", 1).await;
        assert_eq!(one.updates().await, Vec::<Value>::new(), "{front:?} {back:?}");
    }
}

#[tokio::test]
async fn sub10_sub9_a_subscription_answered_with_method_not_found_is_tracked() {
    let stage = Stage::start(Front::Http, Back::Post).await;
    let peer = stage.peer(json!({})).await;
    for _ in 0..2 {
        peer.subscribe("a+note:///unsupported").await;
    }
    peer.touch("note:///unsupported", 1).await;
    assert_eq!(short(&peer.updates().await), ["a+note:///unsupported 1"]);
    peer.unsubscribe("a+note:///unsupported").await;
    stage.has_subscriptions(0).await;
    assert_eq!(peer.upstream_requests().await, ["+note:///unsupported"], "a rejected subscribe is not unsubscribed");
}

#[tokio::test]
async fn sub11_a_repeated_subscribe_has_no_effect_and_an_unknown_unsubscribe_succeeds() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let peer = stage.peer(json!({})).await;
    let first = peer.subscribe(ALPHA).await;
    assert_eq!(peer.subscribe("note:///alpha").await, first);
    assert_eq!(stage.metric(ACTIVE).await, 1);
    peer.touch("note:///alpha", 1).await;
    assert_eq!(short(&peer.updates().await), [format!("{ALPHA} 1")], "once");
    let never = "urn:uuid:0190a000-0000-7000-8000-000000000000";
    for uri in [ALPHA, ALPHA, BETA, "a+nope:///x", "nonsense", never] {
        peer.unsubscribe(uri).await;
    }
    peer.await_upstream(&["+note:///alpha", "-note:///alpha"]).await;
    assert_ne!(peer.subscribe(ALPHA).await, first, "another one has another name");
}

#[tokio::test]
async fn sub17_an_invalid_uri_is_rejected() {
    for front in Front::ALL {
        let stage = Stage::start(front, Back::Stdio).await;
        let peer = stage.peer(json!({})).await;
        for method in ["resources/subscribe", "resources/unsubscribe"] {
            for params in
                [json!({}), json!({"uri": ""}), json!({"uri": 7}), json!({"uri": null}), json!({"uri": [ALPHA]})]
            {
                let answer = peer.request(method, params.clone()).await;
                assert_error(&answer, -32602, "INVALID_PARAMS");
                let message = answer["error"]["message"].as_str().unwrap_or_default();
                assert!(message.contains("uri"), "{front:?} {params}: {answer}");
            }
        }
        assert_eq!(peer.upstream_requests().await, Vec::<String>::new(), "{front:?}");
    }
}

#[tokio::test]
async fn sub18_sub5_d13_an_update_of_a_sub_resource_is_delivered_once_and_makes_it_readable() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let peer = stage.peer(json!({})).await;
    let send_update = async |peer: &Client, uri: &str| {
        let arguments = json!({"method": UPDATED, "params": {"uri": uri, "part": uri}}).to_string();
        peer.call_text("a_notify", &arguments).await;
    };
    let inside = "a+note:///alpha/part/1";
    let read = json!({ "uri": inside });
    assert_error(&peer.request("resources/read", read.clone()).await, -32002, "RESOURCE_NOT_FOUND");
    peer.subscribe(ALPHA).await;
    for (uri, expected) in [
        ("note:///alpha/part/1", vec![inside]),
        ("note:///alpha?x", vec!["a+note:///alpha?x"]),
        ("note:///alpha#x", vec!["a+note:///alpha#x"]),
        ("note:///alphabet", vec![]),
        ("note:///alph", vec![]),
        ("note://", vec![]),
    ] {
        send_update(&peer, uri).await;
        assert_eq!(short(&peer.updates().await), expected, "{uri}");
    }
    let answer = peer.request("resources/read", read).await;
    assert_eq!(answer["error"]["message"], "Resource not found", "the server itself answered: {answer}");
    // The URI was part of an update, so it can be subscribed too. A resource inside both is notified once.
    peer.subscribe(inside).await;
    send_update(&peer, "note:///alpha/part/1/x").await;
    send_update(&peer, "note:///alpha/part/1").await;
    assert_eq!(short(&peer.updates().await), ["a+note:///alpha/part/1/x", inside]);
    // Ending the inner subscription keeps the outer one.
    peer.unsubscribe(inside).await;
    send_update(&peer, "note:///alpha/part/1").await;
    assert_eq!(short(&peer.updates().await), [inside]);
}

#[tokio::test]
async fn sub18_up_to_64_pending_sub_resource_updates_are_kept_and_more_are_folded() {
    const MAX_SUBSCRIPTIONS: usize = 64;
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    let send_update = async |uri: &str| {
        client.call("a_notify", json!({"method": UPDATED, "params": { "uri": uri }})).await;
    };
    subscribe(&client, ALPHA, json!({})).await;
    send_update("note:///alpha/0").await;
    subscribe(&client, "a+note:///alpha/0", json!({})).await;
    client.request("resources/unsubscribe", json!({"uri": "a+note:///alpha/0"})).await;
    for number in 1..MAX_SUBSCRIPTIONS {
        send_update(&format!("note:///alpha/{number}")).await;
    }
    let mut stream = client.listen().await;
    for number in 0..MAX_SUBSCRIPTIONS {
        let update = stream.await_method(UPDATED).await;
        assert_eq!(update["params"]["uri"], format!("{ALPHA}/{number}"));
    }
    drop(stream);

    let client = gateway.client().await;
    let send_update = async |uri: String| {
        client.call("a_notify", json!({"method": UPDATED, "params": { "uri": uri }})).await;
    };
    subscribe(&client, ALPHA, json!({})).await;
    subscribe(&client, BETA, json!({})).await;
    for number in 0..=MAX_SUBSCRIPTIONS {
        send_update(format!("note:///alpha/{number}")).await;
    }
    send_update("note:///beta".to_owned()).await;
    let mut stream = client.listen().await;
    assert_eq!(stream.await_method(UPDATED).await["params"], json!({ "uri": ALPHA }), "one for all");
    assert_eq!(stream.await_method(UPDATED).await["params"], json!({ "uri": BETA }));
}

#[tokio::test]
async fn subx3_sub11_min_interval_spaces_updates_until_a_new_subscribe_and_keeps_the_last() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let peer = stage.peer(json!({})).await;
    let an_hour = 3_600_000;
    let spaced =
        peer.request("resources/subscribe", subscribe_params(ALPHA, &json!({ "minIntervalMs": an_hour }))).await;
    peer.touch("note:///alpha", 1).await;
    assert_eq!(short(&peer.updates().await), [format!("{ALPHA} 1")], "the first at once");
    peer.touch("note:///alpha", 1).await;
    peer.touch("note:///alpha", 1).await;
    assert_eq!(peer.updates().await, Vec::<Value>::new());
    assert_eq!(peer.subscribe(ALPHA).await, meta(&spaced));
    assert_eq!(short(&peer.updates().await), [format!("{ALPHA} 3")], "the newest, and once");
    peer.touch("note:///alpha", 1).await;
    assert_eq!(short(&peer.updates().await), [format!("{ALPHA} 4")]);

    const INTERVAL_MS: u64 = 300;
    peer.request("resources/subscribe", subscribe_params(BETA, &json!({ "minIntervalMs": INTERVAL_MS }))).await;
    let began = std::time::Instant::now();
    peer.touch("note:///beta", 20).await;
    let last = peer.receive("the last", |message| message["params"]["version"] == 20).await;
    assert_eq!(last.json()["params"]["uri"], BETA);
    let before = peer.pending_messages().await.iter().filter(|message| message["method"] == UPDATED).count();
    // A slower machine permits more updates.
    let max_updates = began.elapsed().as_millis() / u128::from(INTERVAL_MS);
    assert!(before as u128 <= max_updates, "{before} updates arrived before the last");
}

#[tokio::test]
async fn subx3_batch_gathers_updates_of_many_uris() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let peer = stage.peer(json!({})).await;
    let an_hour = 3_600_000;
    for uri in [ALPHA, BETA] {
        meta(&peer.request("resources/subscribe", subscribe_params(uri, &json!({ "batchMs": an_hour }))).await);
    }
    for uri in ["note:///alpha", "note:///beta", "note:///alpha"] {
        peer.touch(uri, 1).await;
    }
    assert_eq!(peer.updates().await, Vec::<Value>::new());
    for uri in [ALPHA, BETA] {
        meta(&peer.request("resources/subscribe", subscribe_params(uri, &json!({ "batchMs": 20 }))).await);
    }
    let first = peer.updated().await.json()["params"].clone();
    let second = peer.updated().await.json()["params"].clone();
    assert_eq!(short(&[first, second]), [format!("{ALPHA} 2"), format!("{BETA} 1")]);
}

#[tokio::test]
async fn subx4_higher_priority_is_delivered_first_and_invalid_options_are_rejected_by_name() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    for (name, priority) in [("low", -10), ("plain", 0), ("high", 10), ("also", 0)] {
        subscribe(&client, &format!("a+note:///{name}"), json!({ "priority": priority })).await;
        touch(&client, &format!("note:///{name}"), 1).await;
    }
    let mut stream = client.listen().await;
    for name in ["high", "plain", "also", "low"] {
        assert_eq!(stream.await_method(UPDATED).await["params"]["uri"], format!("a+note:///{name}"));
    }
    for (options, option) in [
        (json!({"priority": 11}), "dev.goblin/priority"),
        (json!({"minIntervalMs": -1}), "dev.goblin/minIntervalMs"),
        (json!({"batchMs": "1"}), "dev.goblin/batchMs"),
        (json!({"nope": 1}), "dev.goblin/nope"),
    ] {
        let answer = client.request("resources/subscribe", subscribe_params(ALPHA, &options)).await;
        assert_error(&answer, -32602, "INVALID_PARAMS");
        assert!(answer["error"]["message"].as_str().is_some_and(|message| message.contains(option)), "{answer}");
    }
    await_upstream(&client, &["+note:///low", "+note:///plain", "+note:///high", "+note:///also"]).await;
    // Foreign members of `_meta` are not options of the gateway.
    let other = json!({"uri": ALPHA, "_meta": {"progressToken": 1, "example.org/x": true}});
    assert_eq!(client.request("resources/subscribe", other).await["result"], json!({}));
}
