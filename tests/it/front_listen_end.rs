//! Streams of listening clients: their ends, their limits, and their independence of other requests.
//!
//! A stream that ends leaves no subscription behind, in the gateway or at the server.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::modern::named;
use crate::front_listen::{ALPHA, next_notification, next_touched, uris};
use crate::harness::{Gateway, eventually, fixture_server, signal};
use crate::subscriber::{ACTIVE, UPDATED, await_upstream, touch};
use crate::transport_pairs::Back;
use crate::transport_pairs::Scene;

fn over(id: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"resultType": "complete", "_meta": named(id)}})
}

#[tokio::test]
async fn a_stopping_gateway_ends_every_listen_stream_with_its_result() {
    let mut scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let mut streams = Vec::new();
    for id in [json!("a"), json!(7)] {
        streams.push((id.clone(), scene.client.listen_to(id, uris(&[ALPHA])).await.1));
    }
    assert!(scene.gateway.terminate().await.success());
    for (id, mut stream) in streams {
        assert_eq!(stream.next().await, Some(over(&id)));
        assert_eq!(stream.next().await, None);
    }
}

#[tokio::test]
async fn sigterm_ends_every_listen_stream_over_stdio_with_its_result() {
    let config = json!({ "gateway": { "grace": "10m" }, "mcpServers": { "a": fixture_server(&[]) } });
    let client = Client::stdio(config).as_modern(json!({}));
    client.await_tool("a_touch").await;
    for id in [json!("a"), json!(700)] {
        client.begin_as(id, "subscriptions/listen", json!({"notifications": {"toolsListChanged": true}})).await;
        client.message().await;
    }
    signal(client.pid(), "TERM");
    let mut ends = [client.message().await, client.message().await];
    ends.sort_by_key(|message| message["id"].to_string());
    assert_eq!(ends, [over(&json!("a")), over(&json!(700))]);
    assert_eq!(client.line().await, None);
}

#[tokio::test]
async fn sub5_many_listen_streams_share_one_subscription_and_each_receives_every_update() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let mut streams = Vec::new();
    for number in 0..200 {
        streams.push((json!(number), scene.client.listen_to(json!(number), uris(&[ALPHA])).await.1));
    }
    scene.gauge_becomes(ACTIVE, 200).await;
    let legacy = scene.gateway.client().await;
    await_upstream(&legacy, &["+note:///alpha"]).await;
    for version in [1, 2] {
        touch(&legacy, "note:///alpha", 1).await;
        for (id, stream) in &mut streams {
            assert_eq!(next_touched(stream, id).await["version"], version);
        }
    }
    drop(streams);
    scene.gauge_becomes(ACTIVE, 0).await;
    await_upstream(&legacy, &["+note:///alpha", "-note:///alpha"]).await;
}

#[tokio::test]
async fn sess1_listen_streams_count_against_max_sessions() {
    let config = json!({ "gateway": { "maxSessions": 2 }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = Client::modern(gateway.address, json!({}));
    client.await_tool("a_touch").await;
    let (_, first) = client.listen_to(json!(1), json!({})).await;
    let (_, second) = client.listen_to(json!(2), json!({})).await;
    let rejected = client.request("subscriptions/listen", json!({"notifications": {}})).await;
    assert_eq!(rejected["error"]["data"]["limit"], "maxSessions", "{rejected}");
    assert!(client.try_call("a_echo", json!({})).await["error"].is_null(), "calls need no place");
    drop(first);
    let third = eventually("the place is free", || async {
        let draft = client.draft("subscriptions/listen", json!({"notifications": {}}));
        let (parts, stream) = client.open_draft(&draft).await;
        (parts.headers["content-type"] == "text/event-stream").then_some(stream)
    });
    drop((second, third.await));
}

#[tokio::test]
async fn a_listen_acknowledges_at_most_max_per_client_resources() {
    let config = json!({ "subscriptions": { "maxPerClient": 2 }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = Client::modern(gateway.address, json!({}));
    client.await_tool("a_touch").await;
    let three = ["a+note:///1", "a+note:///2", "a+note:///3"];
    let (accepted, mut stream) = client.listen_to(json!(1), uris(&three)).await;
    assert_eq!(accepted, uris(&three[..2]));
    let (other, _) = client.listen_to(json!(2), uris(&three[2..])).await;
    assert_eq!(other, uris(&three[2..]), "each stream has its own room");
    let legacy = gateway.client().await;
    eventually("both are subscribed", || async {
        let requests = legacy.call_text("a_subscribed", json!({})).await;
        (requests.contains("+note:///1") && requests.contains("+note:///2")).then_some(())
    })
    .await;
    for uri in ["note:///3", "note:///2", "note:///1"] {
        touch(&legacy, uri, 1).await;
    }
    let mut updates = [
        next_notification(&mut stream, UPDATED, &json!(1)).await,
        next_notification(&mut stream, UPDATED, &json!(1)).await,
    ];
    updates.sort_by_key(|params| params["uri"].to_string());
    assert_eq!([&updates[0]["uri"], &updates[1]["uri"]], three[..2]);
}

/// A client that disconnects before the server's response leaves nothing behind.
#[tokio::test]
async fn sub9_a_stream_that_closes_before_the_server_answers_leaves_no_subscription() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let legacy = scene.gateway.client().await;
    let (accepted, stream) = scene.client.listen_to(json!(1), uris(&["a+note:///held-x"])).await;
    assert_eq!(accepted, uris(&["a+note:///held-x"]), "the listen is acknowledged before the server answers");
    await_upstream(&legacy, &["+note:///held-x"]).await;
    drop(stream);
    scene.gauge_becomes(ACTIVE, 0).await;
    legacy.call("a_release", json!({})).await;
    await_upstream(&legacy, &["+note:///held-x", "-note:///held-x"]).await;
}
