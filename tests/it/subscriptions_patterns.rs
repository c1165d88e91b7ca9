//! Subscriptions to patterns: the covered resources, the updates for clients, the requests to the server, and the
//! errors.
//!
//! A pattern covers present and future resources. Overlapping patterns share upstream requests.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::http::Listener;
use crate::harness::{Gateway, fixture_server};
use crate::scrape::gauge;
use crate::subscriber::{
    ACTIVE, UPDATED, await_upstream, short, states, states_become, subscribe, subscribe_params, touched,
};
use crate::support::assert_error;
use crate::transport_pairs::{Back, Front, Stage, pairs};

const LOGS: &str = "a+file:///d/*.log";

pub fn glob() -> Value {
    json!({ "pattern": "glob" })
}

/// A pattern, another one with the same coverage, and example URIs.
struct Case {
    kind: &'static str,
    pattern: &'static str,
    other: &'static str,
    listed: &'static str,
    late: &'static str,
    /// A URI that is not covered.
    beyond: &'static str,
}

const CASES: [Case; 2] = [
    Case {
        kind: "glob",
        pattern: "a+file:///d/*.log",
        other: "a+file:///d/[0-9].lo?",
        listed: "file:///d/1.log",
        late: "file:///d/2.log",
        beyond: "file:///d/e/3.log",
    },
    Case {
        kind: "template",
        pattern: "a+db://{table}/{id}",
        other: "a+db://t/?",
        listed: "db://t/1",
        late: "db://t/2",
        beyond: "db://u/1/2",
    },
];

#[tokio::test]
async fn subx1_a_pattern_covers_present_and_later_matches_over_every_pair_of_transports() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(json!({})).await;
        let mut expected_requests = Vec::new();
        for Case { kind, pattern, other, listed, late, beyond } in CASES {
            let case = format!("{front:?} {back:?} {kind}");
            let exposed = |native: &str| format!("a+{native}");
            peer.define(&[listed]).await;
            let meta = peer.subscribe_with(pattern, json!({ "pattern": kind })).await;
            assert_eq!((&meta["dev.goblin/uri"], &meta["dev.goblin/server"]), (&json!(pattern), &json!("a")), "{case}");
            assert!(meta["dev.goblin/state"].is_null(), "{case}: {meta}");
            expected_requests.push(format!("+{listed}"));
            assert_eq!(
                peer.upstream_requests().await,
                expected_requests,
                "{case}: the gateway subscribes before it answers"
            );
            peer.subscribe_with(other, glob()).await;
            peer.subscribe(&exposed(listed)).await;

            peer.touch(listed, 1).await;
            assert_eq!(peer.updated().await.raw("params"), touched(&exposed(listed), 1), "{case}: the server's params");
            peer.touch(beyond, 1).await;
            assert_eq!(peer.updates().await, Vec::<Value>::new(), "{case}: once, and no unmatched resource");

            peer.define(&[late]).await;
            assert_eq!(
                peer.updated().await.json()["params"],
                json!({ "uri": exposed(late) }),
                "{case}: the resource is new"
            );
            expected_requests.push(format!("+{late}"));
            assert_eq!(
                peer.upstream_requests().await,
                expected_requests,
                "{case}: one request for each, in spite of three subscriptions"
            );
            peer.touch(late, 1).await;
            assert_eq!(short(&peer.updates().await), [format!("{} 1", exposed(late))], "{case}");

            for uri in [pattern, other, &exposed(listed)] {
                peer.unsubscribe(uri).await;
            }
            expected_requests.extend([format!("-{listed}"), format!("-{late}")]);
            peer.await_upstream_unordered(&expected_requests.iter().map(String::as_str).collect::<Vec<_>>()).await;
            peer.touch(listed, 1).await;
            assert_eq!(peer.updates().await, Vec::<Value>::new(), "{case}: the subscription has ended");
            // The last requests arrived in any order.
            expected_requests = peer.upstream_requests().await;
        }
    }
}

#[tokio::test]
async fn subx1_sub2_overlapping_patterns_share_requests_and_end_separately() {
    for back in Back::SHARED {
        let stage = Stage::start(Front::Http, back).await;
        let (one, two) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
        one.define(&["file:///d/1.log", "file:///d/2.log", "file:///d/e/3.log"]).await;
        let id = one.subscribe_with(LOGS, glob()).await["dev.goblin/subscriptionId"].clone();
        assert_eq!(one.subscribe_with(LOGS, glob()).await["dev.goblin/subscriptionId"], id, "{back:?}: twice is once");
        one.await_upstream_unordered(&["+file:///d/1.log", "+file:///d/2.log"]).await;
        two.subscribe_with("a+file:///d/**", glob()).await;
        two.subscribe("a+file:///d/2.log").await;
        let all = ["+file:///d/1.log", "+file:///d/2.log", "+file:///d/e/3.log"];
        one.await_upstream_unordered(&all).await;
        stage.has_subscriptions(3).await;

        for (native, for_one) in [("file:///d/1.log", true), ("file:///d/2.log", true), ("file:///d/e/3.log", false)] {
            two.touch(native, 1).await;
            let expected = [format!("a+{native} 1")];
            assert_eq!(short(&one.updates().await), if for_one { &expected[..] } else { &[] }, "{back:?} {native}");
            assert_eq!(short(&two.updates().await), expected, "{back:?} {native}: once, for two reasons");
        }
        two.unsubscribe("a+file:///d/**").await;
        let fewer = [&all[..], &["-file:///d/e/3.log"]].concat();
        one.await_upstream_unordered(&fewer).await;
        one.unsubscribe(id.as_str().expect("an id")).await;
        let least = [&fewer[..], &["-file:///d/1.log"]].concat();
        one.await_upstream_unordered(&least).await;
        two.touch("file:///d/2.log", 1).await;
        assert_eq!(short(&two.updates().await), ["a+file:///d/2.log 2"], "{back:?}: subscribed by its URI");
        assert_eq!(one.updates().await, Vec::<Value>::new(), "{back:?}");
        two.disconnect().await;
        one.await_upstream_unordered(&[&least[..], &["-file:///d/2.log"]].concat()).await;
        stage.has_subscriptions(0).await;
    }
}

/// Returns the URIs of the next updates, up to one of `a+note:///fence` that is made now.
async fn receive_updates(client: &Client, stream: &mut Listener) -> Vec<String> {
    const FENCE: &str = "a+note:///fence";
    subscribe(client, FENCE, json!({})).await;
    client.call("a_touch", json!({"uri": "note:///fence"})).await;
    let mut received = Vec::new();
    loop {
        let uri = stream.await_method(UPDATED).await["params"]["uri"].as_str().expect("a URI").to_owned();
        if uri == FENCE {
            return received;
        }
        received.push(uri);
    }
}

#[tokio::test]
async fn subx1_sub18_up_to_64_updates_of_unlisted_matches_are_kept_and_more_are_folded() {
    const MAX_LISTED: usize = 64;
    for (count, is_folded) in [(MAX_LISTED, false), (MAX_LISTED + 1, true)] {
        let stage = Stage::start(Front::Http, Back::Stdio).await;
        let client = stage.client(json!({})).await;
        client.await_tool("a_touch").await;
        subscribe(&client, LOGS, glob()).await;
        await_upstream(&client, &[]).await;
        let uris: Vec<_> = (0..count).map(|number| format!("file:///d/{number}.log")).collect();
        for uri in &uris {
            client.call("a_touch", json!({ "uri": uri })).await;
        }
        // The client opens its stream only now.
        let mut stream = client.listen().await;
        let expected = match is_folded {
            true => vec![LOGS.to_owned()],
            false => uris.iter().map(|uri| format!("a+{uri}")).collect(),
        };
        assert_eq!(receive_updates(&client, &mut stream).await, expected);
    }
}

#[tokio::test]
async fn subx1_an_invalid_pattern_is_rejected_with_the_cause() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    client.await_tool("b_touch").await;
    let long = format!("a+file:///{}*", "x".repeat(2000));
    let stars = format!("a+file:///{}", "*a".repeat(65));
    for (uri, kind, code, fragment) in [
        ("a+file:///[", "glob", "INVALID_PARAMS", "uri is not a valid glob"),
        ("a+file:///[z-a]", "glob", "INVALID_PARAMS", "uri is not a valid glob"),
        (long.as_str(), "glob", "INVALID_PARAMS", "uri is not a valid glob"),
        (stars.as_str(), "glob", "INVALID_PARAMS", "uri is not a valid glob"),
        ("note:///*", "glob", "RESOURCE_NOT_FOUND", "note:///*"),
        ("nope:///*", "glob", "RESOURCE_NOT_FOUND", "nope:///*"),
        ("c+note:///*", "glob", "RESOURCE_NOT_FOUND", "c+note:///*"),
        ("a+note:///{other}", "template", "RESOURCE_NOT_FOUND", "a+note:///{other}"),
        ("note:///{name}", "template", "RESOURCE_NOT_FOUND", "note:///{name}"),
        ("a+note:///alpha", "template", "RESOURCE_NOT_FOUND", "a+note:///alpha"),
        ("a+note:///*", "regex", "INVALID_PARAMS", r#"dev.goblin/pattern must be "glob" or "template""#),
    ] {
        let answer = client.request("resources/subscribe", subscribe_params(uri, &json!({ "pattern": kind }))).await;
        let data = assert_error(&answer, -32602, code);
        let message = answer["error"]["message"].as_str().expect("a text");
        assert!(message.contains(fragment), "{uri}: {message}");
        if (uri, kind) == ("note:///*", "glob") {
            assert_eq!(data["candidates"], json!(["a+note:///*", "b+note:///*"]), "{answer}");
        }
    }
    assert_eq!(gauge(&client, ACTIVE).await, 0);
    for server in ["a", "b"] {
        assert_eq!(client.call_text(&format!("{server}_subscribed"), json!({})).await, "[]");
    }
    // The same applies with a single server that the pattern does not name.
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    let answer = client.request("resources/subscribe", subscribe_params("c+note:///*", &glob())).await;
    assert_error(&answer, -32602, "RESOURCE_NOT_FOUND");
}

#[tokio::test]
async fn subx1_sub4_a_pattern_subscription_ends_by_any_spelling_or_by_its_id() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let (peer, other) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
    peer.define(&["file:///d/1.log", "db://t/1"]).await;
    let kept = other.subscribe_with(LOGS, glob()).await["dev.goblin/subscriptionId"].clone();
    for (kind, exposed, spellings) in [
        ("glob", LOGS, ["a+file:///d/*.log", "A+file:///d/*.log", "file:///d/*.log"]),
        ("glob", "a+:*n*", ["a+:*n*", "a+*n*", "A+:*n*"]),
        ("template", "a+db://{table}/{id}", ["a+db://{table}/{id}", "A+db://{table}/{id}", "db://{table}/{id}"]),
    ] {
        for subscribed in spellings {
            for ended in spellings.map(Some).into_iter().chain([None]) {
                let meta = peer.subscribe_with(subscribed, json!({ "pattern": kind })).await;
                assert_eq!(meta["dev.goblin/uri"], exposed, "{subscribed}");
                stage.has_subscriptions(2).await;
                peer.unsubscribe(kept.as_str().expect("an id")).await;
                assert_eq!(stage.metric(ACTIVE).await, 2, "a client cannot end the subscription of another client");
                let id = meta["dev.goblin/subscriptionId"].as_str().expect("an id");
                peer.unsubscribe(ended.unwrap_or(id)).await;
                assert_eq!(stage.metric(ACTIVE).await, 1, "{subscribed} {ended:?}");
            }
        }
    }
    other.touch("file:///d/1.log", 1).await;
    assert_eq!(short(&other.updates().await), ["a+file:///d/1.log 1"]);
    assert_eq!(peer.updates().await, Vec::<Value>::new());
}

#[tokio::test]
async fn subx1_sub10_a_fully_rejected_pattern_fails_and_a_partly_rejected_one_is_partial() {
    let (gateway, peer) = start_alone(fixture_server(&[])).await;
    peer.define(&["note:///refused"]).await;
    let answer = peer.request("resources/subscribe", subscribe_params("a+note:///r*", &glob())).await;
    assert_eq!(
        (&answer["error"]["code"], &answer["error"]["data"]["code"]),
        (&json!(-32001), &json!("SUBSCRIPTION_FAILED"))
    );
    assert_eq!(states(gateway.address).await, []);
    peer.define(&["note:///rest"]).await;
    peer.subscribe_with("a+note:///r*", glob()).await;
    states_become(gateway.address, &[("a+note:///r*", "partial")]).await;
    peer.touch("note:///rest", 1).await;
    assert_eq!(short(&peer.updates().await), ["a+note:///rest 1"]);
    peer.unsubscribe("a+note:///r*").await;
    let expected = ["+note:///refused", "+note:///refused", "+note:///rest", "-note:///rest"];
    peer.await_upstream_unordered(&expected).await;
}

#[tokio::test]
async fn subx1_sub9_without_subscriptions_new_matches_are_notified_and_no_subscribe_is_sent() {
    let (gateway, peer) = start_alone(fixture_server(&["--without", "subscribe"])).await;
    peer.define(&["file:///d/1.log"]).await;
    peer.subscribe_with(LOGS, glob()).await;
    states_become(gateway.address, &[(LOGS, "tracked")]).await;
    peer.define(&["file:///d/2.log"]).await;
    assert_eq!(peer.updated().await.json()["params"], json!({"uri": "a+file:///d/2.log"}));
    for native in ["file:///d/1.log", "file:///d/2.log"] {
        peer.touch(native, 1).await;
        assert_eq!(short(&peer.updates().await), [format!("a+{native} 1")]);
    }
    assert_eq!(peer.upstream_requests().await, [""; 0]);
}

async fn start_alone(server: Value) -> (Gateway, Client) {
    start_limited(1000, server).await
}

/// Starts a gateway with a limit of `limit` upstream resources.
async fn start_limited(limit: usize, server: Value) -> (Gateway, Client) {
    let config = json!({ "subscriptions": { "maxUpstream": limit }, "mcpServers": { "a": server } });
    let gateway = Gateway::start(config).await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.await_tool("a_touch").await;
    (gateway, peer)
}

#[tokio::test]
async fn subx1_d6_a_pattern_above_max_upstream_is_rejected_and_leaves_no_trace() {
    const ALL: &str = "a+note:///numbered/*";
    let (gateway, peer) = start_limited(3, fixture_server(&["--resources", "4"])).await;
    peer.lists("a+note:///numbered/0004", true).await;
    let answer = peer.request("resources/subscribe", subscribe_params(ALL, &glob())).await;
    let data = assert_error(&answer, 1429, "LIMIT_EXCEEDED");
    assert_eq!(data["limit"], "subscriptions.maxUpstream", "{answer}");
    assert!(answer["error"]["message"].as_str().is_some_and(|it| it.starts_with("LimitExceeded: ")), "{answer}");
    assert_eq!(peer.upstream_requests().await, [""; 0]);
    assert_eq!(states(gateway.address).await, []);

    // Exactly this many fit. Resources with single subscriptions do not count.
    peer.subscribe_with("a+note:///numbered/000[1-3]", glob()).await;
    peer.await_upstream_unordered(&["+note:///numbered/0001", "+note:///numbered/0002", "+note:///numbered/0003"])
        .await;
    peer.subscribe_with("a+note:///numbered/000[12]", glob()).await;
    peer.subscribe("a+note:///numbered/0004").await;
    assert_error(
        &peer.request("resources/subscribe", subscribe_params("a+file:///logs/*", &glob())).await,
        1429,
        "LIMIT_EXCEEDED",
    );
    peer.subscribe_with(ALL, glob()).await;
    states_become(
        gateway.address,
        &[
            ("a+note:///numbered/000[1-3]", "subscribed"),
            ("a+note:///numbered/000[12]", "subscribed"),
            ("a+note:///numbered/0004", "subscribed"),
            (ALL, "subscribed"),
        ],
    )
    .await;
}

#[tokio::test]
async fn subx1_a_pattern_that_grows_above_max_upstream_is_partial() {
    let (gateway, peer) = start_limited(2, fixture_server(&[])).await;
    peer.define(&["file:///d/1.log"]).await;
    peer.subscribe_with(LOGS, glob()).await;
    peer.define(&["file:///d/2.log"]).await;
    assert_eq!(peer.updated().await.json()["params"]["uri"], "a+file:///d/2.log");
    states_become(gateway.address, &[(LOGS, "subscribed")]).await;
    peer.define(&["file:///d/3.log"]).await;
    states_become(gateway.address, &[(LOGS, "partial")]).await;
    assert_eq!(peer.upstream_requests().await, ["+file:///d/1.log", "+file:///d/2.log"]);
    peer.touch("file:///d/1.log", 1).await;
    peer.touch("file:///d/3.log", 1).await;
    let received = short(&peer.updates().await);
    assert_eq!(
        received,
        ["a+file:///d/1.log 1", "a+file:///d/3.log 1"],
        "unrequested updates of the server are forwarded"
    );
    // A slot is free again, and the next list of the server uses it.
    peer.change(json!({"remove": "file:///d/1.log"})).await;
    peer.await_upstream(&["+file:///d/1.log", "+file:///d/2.log", "-file:///d/1.log"]).await;
    peer.change(json!({"define": "file:///elsewhere"})).await;
    peer.await_upstream(&["+file:///d/1.log", "+file:///d/2.log", "-file:///d/1.log", "+file:///d/3.log"]).await;
    states_become(gateway.address, &[(LOGS, "subscribed")]).await;
}
