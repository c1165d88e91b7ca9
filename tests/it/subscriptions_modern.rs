//! Subscriptions to resources of modern servers: the gateway merges single subscriptions into a few listens.
//!
//! A merged stream is replaced without a gap, and a lost one leads to one update for each resource.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server, signal};
use crate::scrape::gauge;
use crate::subscriber::{ACTIVE, short, states};
use crate::support::{assert_error, begin_call, next_pid_in, path_text, pid_in};

const MODERN: [&str; 2] = ["--era", "modern"];
const ALPHA: &str = "a+note:///alpha";
/// The milliseconds of a call that ends long after the gateway closes a stream without URIs, and long before it merges
/// streams.
const BETWEEN_CLOSE_AND_MERGE: u64 = 8000;

/// A gateway with one modern server `a`.
struct Stage {
    gateway: Gateway,
    web: Option<HttpFixture>,
}

impl Stage {
    async fn over_stdio(switches: &[&str]) -> Stage {
        let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[&MODERN, switches].concat()) })).await;
        Stage { gateway, web: None }
    }

    async fn over_http(switches: &[&str]) -> Stage {
        let web = HttpFixture::start(&[&MODERN, switches].concat()).await;
        let gateway = Gateway::with_servers(json!({ "a": web.server() })).await;
        Stage { gateway, web: Some(web) }
    }

    async fn both() -> [Stage; 2] {
        [Stage::over_stdio(&[]).await, Stage::over_http(&[]).await]
    }

    async fn peer(&self) -> Client {
        let peer = Client::new(self.gateway.address).listening(json!({})).await;
        peer.await_tool("a_touch").await;
        peer
    }
}

/// Returns the filter of each stream that is open at the server.
async fn streams(client: &Client) -> Vec<Value> {
    let listens: Vec<Value> = serde_json::from_str(&client.call_text("a_listens", json!({})).await).expect("a list");
    listens.into_iter().map(|listen| listen["notifications"].clone()).collect()
}

fn uris(streams: &[Value]) -> BTreeSet<String> {
    let uris = streams.iter().filter_map(|stream| stream["resourceSubscriptions"].as_array()).flatten();
    uris.map(|uri| uri.as_str().expect("a URI").to_owned()).collect()
}

/// Waits until there is one stream with exactly these URIs.
async fn merged(client: &Client, expected: &[&str]) {
    eventually(&format!("one stream covers {expected:?}"), || async {
        let streams = streams(client).await;
        (streams.len() == 1 && uris(&streams).iter().eq(expected)).then_some(())
    })
    .await;
}

/// Returns the open streams when there are at most `limit`. The server notices a closed stream with a delay.
async fn await_at_most(client: &Client, limit: usize) -> Vec<Value> {
    eventually(&format!("at most {limit} streams are open"), || async {
        Some(streams(client).await).filter(|streams| streams.len() <= limit)
    })
    .await
}

#[tokio::test]
async fn sub1_sub2_updates_of_a_modern_server_pass_unchanged() {
    for stage in Stage::both().await {
        let (peer, client) = (stage.peer().await, stage.gateway.client().await);
        let meta = peer.subscribe(ALPHA).await;
        assert_eq!((&meta["dev.goblin/uri"], &meta["dev.goblin/state"]), (&json!(ALPHA), &Value::Null));
        for version in [1, 2] {
            peer.touch("note:///alpha", 1).await;
            let params = peer.updated().await.json()["params"].clone();
            let expected = json!({
                "uri": ALPHA, "version": version, "x-extra": { "odd": 1.0 }, "_meta": { "dev.fixture/touched": 1e0 },
            });
            assert_eq!(params, expected);
        }
        peer.touch("note:///beta", 1).await;
        peer.unsubscribe(ALPHA).await;
        peer.touch("note:///alpha", 1).await;
        assert_eq!(peer.updates().await, Vec::<Value>::new());
        merged(&client, &[]).await;
    }
}

/// Many resources share a few streams.
#[tokio::test]
async fn sub2_sub5_many_resources_share_few_listen_streams_and_every_update_arrives() {
    const MANY: usize = 200;
    /// The number of clients. Each stays below the limit of 64 open requests.
    const PEERS: usize = 4;
    let name = |number: usize| format!("note:///many-{number}");
    for stage in Stage::both().await {
        let client = stage.gateway.client().await;
        let mut peers = Vec::new();
        for _ in 0..PEERS {
            peers.push(stage.peer().await);
        }
        let mut begun = Vec::new();
        for number in 0..MANY {
            let uri = json!({ "uri": format!("a+{}", name(number)) });
            begun.push(peers[number % PEERS].begin("resources/subscribe", uri).await);
            if number % 50 == 0 {
                // A base, a delta, and the stream that replaces them.
                await_at_most(&client, 3).await;
            }
        }
        for (number, id) in begun.into_iter().enumerate() {
            let answer = peers[number % PEERS].answer_to(id).await;
            assert!(answer["result"].is_object(), "{answer}");
        }
        let open = await_at_most(&client, 2).await;
        assert_eq!(uris(&open), (0..MANY).map(name).collect());
        for number in 0..MANY {
            client.call("a_touch", json!({ "uri": name(number) })).await;
        }
        for (number, peer) in peers.iter_mut().enumerate() {
            let received: BTreeSet<_> = short(&peer.updates().await).into_iter().collect();
            let expected = (number..MANY).step_by(PEERS).map(|number| format!("a+{} 1", name(number)));
            assert_eq!(received, expected.collect());
        }
        for peer in peers {
            peer.disconnect().await;
        }
        merged(&client, &[]).await;
        assert_eq!(gauge(&client, ACTIVE).await, 0);
    }
}

#[tokio::test]
async fn sub2_the_server_sees_the_end_of_the_stream_after_the_last_subscription() {
    for stage in Stage::both().await {
        let client = stage.gateway.client().await;
        for unsubscribes in [true, false] {
            let peer = stage.peer().await;
            peer.subscribe(ALPHA).await;
            assert!(uris(&streams(&client).await).contains("note:///alpha"));
            match unsubscribes {
                true => peer.unsubscribe(ALPHA).await,
                false => peer.disconnect().await,
            }
            let slow = begin_call(&client, "a_sleep", json!({ "ms": BETWEEN_CLOSE_AND_MERGE }));
            merged(&client, &[]).await;
            assert!(!slow.is_finished(), "the stream ends soon, not with the next merge");
            slow.abort();
        }
    }
}

#[tokio::test]
async fn sub3_a_resource_that_the_server_does_not_acknowledge_is_rejected_by_uri() {
    for stage in Stage::both().await {
        let peer = stage.peer().await;
        peer.subscribe(ALPHA).await;
        for native in ["note:///refused", "note:///barred"] {
            let uri = format!("a+{native}");
            let answer = peer.request("resources/subscribe", json!({ "uri": uri })).await;
            assert_eq!(assert_error(&answer, -32602, "SUBSCRIPTION_FAILED")["uri"], uri, "{answer}");
        }
        assert_eq!(states(stage.gateway.address).await, [(ALPHA.to_owned(), "subscribed".to_owned())]);
        peer.touch("note:///alpha", 1).await;
        assert_eq!(short(&peer.updates().await), [format!("{ALPHA} 1")]);
    }
}

#[tokio::test]
async fn sub2_a_modern_server_without_subscriptions_receives_no_listen_for_resources() {
    let stage = Stage::over_stdio(&["--without", "subscribe"]).await;
    let (peer, client) = (stage.peer().await, stage.gateway.client().await);
    peer.subscribe(ALPHA).await;
    assert_eq!(states(stage.gateway.address).await, [(ALPHA.to_owned(), "tracked".to_owned())]);
    merged(&client, &[]).await;
}

#[tokio::test]
async fn reg3_changed_lists_of_a_modern_server_reach_clients() {
    for stage in Stage::both().await {
        let peer = stage.peer().await;
        let client = stage.gateway.client().await;
        eventually("all lists are listened for", || async {
            let lists = ["toolsListChanged", "promptsListChanged", "resourcesListChanged"];
            let streams = streams(&client).await;
            lists.iter().all(|list| streams.iter().any(|stream| stream[*list] == true)).then_some(())
        })
        .await;
        for (tool, kind) in
            [("a_change_tools", "tools"), ("a_change_prompts", "prompts"), ("a_change_resources", "resources")]
        {
            peer.call_text(tool, "{}").await;
            peer.notification(&format!("notifications/{kind}/list_changed")).await;
        }
    }
}

/// A server does not repeat notifications, so clients that may have missed one receive one update. Calls are not
/// affected.
#[tokio::test]
async fn sub14_an_ended_listen_stream_is_reopened_and_ends_no_call() {
    for stage in Stage::both().await {
        let (peer, client) = (stage.peer().await, stage.gateway.client().await);
        peer.subscribe(ALPHA).await;
        let slow = peer.begin_call("a_sleep", r#"{"ms":2000}"#).await;
        let over_http: &[&str] =
            if stage.web.is_some() { &["result", "cancelled", "cut"] } else { &["result", "cancelled"] };
        for (version, how) in (1..).zip(over_http) {
            let ended = client.call_text("a_end_listens", json!({ "how": how })).await;
            assert_ne!(ended, "0");
            assert_eq!(peer.updated().await.json()["params"], json!({ "uri": ALPHA }), "{how}");
            peer.touch("note:///alpha", 1).await;
            assert_eq!(short(&peer.updates().await), [format!("{ALPHA} {version}")], "{how}");
        }
        let answer = peer.answer_to(slow).await;
        assert!(answer["result"].is_object(), "{answer}");
        assert!(!stage.gateway.log().iter().any(|line| line.contains("backend lost")));
    }
}

#[tokio::test]
async fn sub14_a_replaced_server_leads_to_one_update_per_subscription() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let stdio = Stage::over_stdio(&["--pid-file", path_text(&pid_file)]).await;
    for mut stage in [stdio, Stage::over_http(&[]).await] {
        let (one, two) = (stage.peer().await, stage.peer().await);
        one.subscribe(ALPHA).await;
        two.subscribe(ALPHA).await;
        two.subscribe("a+note:///beta").await;
        match stage.web.take() {
            Some(web) => stage.web = Some(web.replace(&MODERN).await),
            None => {
                let pid = pid_in(&pid_file).await;
                signal(pid, "KILL");
                next_pid_in(&pid_file, pid).await;
            }
        }
        assert_eq!(one.updated().await.json()["params"], json!({ "uri": ALPHA }));
        let mut received =
            [two.updated().await, two.updated().await].map(|update| update.json()["params"]["uri"].to_string());
        received.sort();
        assert_eq!(received, [format!("{ALPHA:?}"), r#""a+note:///beta""#.to_owned()]);
        one.touch("note:///alpha", 1).await;
        assert_eq!(short(&one.updates().await), [format!("{ALPHA} 1")]);
        assert_eq!(short(&two.updates().await), [format!("{ALPHA} 1")]);
    }
}
