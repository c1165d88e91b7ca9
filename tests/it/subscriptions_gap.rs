//! A server over HTTP that loses its session stream for a while. Its notifications are lost in the meantime.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;

use crate::client::Client;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::raw_server::response;
use crate::scripted_backend::{Reply, Scripted, Seen};
use crate::subscriber::short;
use crate::support::http_server;

const NOTE: &str = "s+note:///one";

/// Answers like a legacy server with one note that supports subscriptions.
fn notes(seen: &Seen) -> Reply {
    match seen.method() {
        "initialize" => seen.result(json!({
            "protocolVersion": "2025-11-25", "capabilities": {"resources": {"subscribe": true}},
            "serverInfo": {"name": "s", "version": "0"},
        })),
        "resources/list" => seen.result(json!({"resources": [{"name": "one", "uri": "note:///one"}]})),
        "resources/templates/list" => seen.result(json!({"resourceTemplates": []})),
        "resources/subscribe" => seen.result(json!({})),
        "notifications/initialized" => Reply::Bytes(response("202 Accepted", "", "")),
        _ => seen.error("200 OK", json!({"code": -32601, "message": "Method not found"})),
    }
}

/// Returns the beginning of an event stream without ids.
fn stream() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nretry: 500\n\n".to_vec()
}

/// Returns a client behind a gateway that is subscribed to the note of this server. A second server provides the fence
/// for updates.
async fn subscribed(server: &Scripted) -> (Gateway, Client) {
    let gateway = Gateway::with_servers(json!({ "s": http_server(server.address), "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_touch").await;
    eventually("the note is listed", || async {
        let list = client.request("resources/list", json!({})).await;
        let resources = list["result"]["resources"].as_array()?;
        resources.iter().any(|resource| resource["uri"] == NOTE).then_some(())
    })
    .await;
    let peer = Client::new(gateway.address).listening(json!({})).await;
    peer.subscribe(NOTE).await;
    (gateway, peer)
}

async fn is_opened(server: &Scripted, times: usize) {
    eventually("the stream is opened", || async {
        (server.seen().iter().filter(|seen| seen.verb() == "GET").count() == times).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sub16_a_cut_of_the_session_stream_leads_to_one_update() {
    let cut = Arc::new(Notify::new());
    let bell = Arc::clone(&cut);
    let server = Scripted::start(move |seen, before| match (seen.verb(), before) {
        ("GET", 0) => Reply::Paused(stream(), Arc::clone(&bell), Box::new(Reply::Bytes(Vec::new()))),
        ("GET", _) => Reply::Held(stream()),
        _ => notes(seen),
    })
    .await;
    let (_gateway, peer) = subscribed(&server).await;
    assert!(peer.updates().await.is_empty());
    cut.notify_one();
    is_opened(&server, 2).await;
    peer.updated().await;
    assert!(peer.updates().await.is_empty());
    assert_eq!(server.of("resources/subscribe").len(), 1, "the subscription is active");
}

#[tokio::test]
async fn sub16_a_late_session_stream_leads_to_one_update() {
    let there = Arc::new(Notify::new());
    let bell = Arc::clone(&there);
    let server = Scripted::start(move |seen, _| match seen.verb() {
        "GET" => Reply::Paused(Vec::new(), Arc::clone(&bell), Box::new(Reply::Held(stream()))),
        _ => notes(seen),
    })
    .await;
    let (_gateway, peer) = subscribed(&server).await;
    assert!(peer.updates().await.is_empty());
    there.notify_one();
    let update = peer.updated().await;
    assert_eq!(short(&[update.json()["params"].clone()]), [NOTE]);
    assert!(peer.updates().await.is_empty());
}

/// A stream that exists from the beginning can miss nothing, so no extra update is sent.
#[tokio::test]
async fn sub16_the_session_stream_opens_before_lists_and_subscribes() {
    let server = Scripted::start(|seen, _| match seen.verb() {
        "GET" => Reply::Held(stream()),
        _ => notes(seen),
    })
    .await;
    let (_gateway, peer) = subscribed(&server).await;
    assert!(peer.updates().await.is_empty());
    let methods = server.methods();
    let place = |method: &str| methods.iter().position(|other| other == method);
    assert!(place("GET") < place("resources/list") && place("GET") < place("resources/subscribe"), "{methods:?}");
}
