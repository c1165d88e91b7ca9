//! Ends of sessionless calls other than by a response: the client disconnects or cancels, a timeout, a dead or busy
//! backend, a shutdown.
//!
//! In each case the backend receives a cancellation if it still works on the call, and no call is left open.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::modern::with_meta;
use crate::harness::{Gateway, fixture_server};
use crate::support::{await_arrivals, await_log};
use crate::transport_pairs::Scene;
use crate::transport_pairs::{Back, Backend};

const IN_FLIGHT: &str = "goblin_requests_in_flight";

#[tokio::test]
async fn route3_closing_the_stream_of_a_call_cancels_it() {
    for back in [Back::Stdio, Back::Post, Back::Sse] {
        let scene = Scene::start(back, json!({}), json!({})).await;
        // A call with an open stream.
        let draft = scene.client.draft("tools/call", json!({"name": "a_hang"}));
        let (parts, stream) = scene.client.open_draft(&draft).await;
        assert_eq!(parts.headers["content-type"], "text/event-stream");
        drop(stream);
        let reason = scene.backend.notification("notifications/cancelled").await;
        assert!(reason.contains("closed the stream"), "{back:?}: {reason}");
        scene.gauge_becomes(IN_FLIGHT, 0).await;

        // A call without a response head yet.
        let watcher = scene.gateway.client().await;
        let (address, before) = (scene.gateway.address, scene.backend.received().len());
        let call = tokio::spawn(async move { Client::modern(address, json!({})).try_call("a_hang", json!({})).await });
        await_arrivals(&watcher, "a", 2).await;
        call.abort();
        scene.gauge_becomes(IN_FLIGHT, 0).await;
        scene.backend.await_message("the other end", |_| scene.backend.received().len() > before).await;
        let cancelled: Vec<Value> =
            serde_json::from_str(&watcher.call_text("a_cancelled", json!({})).await).expect("a list");
        assert_eq!(cancelled.len(), 2, "{back:?}: {cancelled:?}");
    }
}

/// The id of a cancelled request is free at once, and the cancelled request sends no further messages.
#[tokio::test]
async fn route3_a_cancelled_call_over_a_pipe_frees_its_id() {
    let backend = Backend::start(Back::Stdio).await;
    let client = Client::stdio(json!({ "mcpServers": { "a": backend.server() } })).as_modern(json!({}));
    client.await_tool("a_hang").await;
    let cancel = |id: &Value| json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id, "reason": "enough"}});
    for round in 0..20 {
        let id = if round % 2 == 0 { json!(7) } else { json!("7") };
        client.begin_as(id.clone(), "tools/call", json!({"name": "a_hang"})).await;
        let text =
            with_meta(json!({"name": "a_nonce", "arguments": {"nonce": round.to_string(), "delayMs": 20}}), &json!({}));
        let again = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": text});
        client.write(&format!("{}\n{again}", cancel(&id))).await;
        let answer = client.next_answer(&id).await;
        assert_eq!(answer["result"]["content"][0]["text"], round.to_string(), "{answer}");
    }
    assert!(backend.notification("notifications/cancelled").await.contains("enough"));
    client.begin_as(json!(1), "tools/call", json!({"name": "a_hang"})).await;
    // Another id, and unknown ids.
    for other in [json!("1"), json!(2), json!(null)] {
        client.write(&cancel(&other).to_string()).await;
    }
    client.begin_as(json!(1), "tools/list", json!({})).await;
    let rejected = client.next_answer(&json!(1)).await;
    assert_eq!(rejected["error"]["code"], -32600, "the id is in flight: {rejected}");
}

#[tokio::test]
async fn route3_a_call_that_times_out_is_cancelled_and_answered_with_an_error() {
    for back in [Back::Stdio, Back::Post] {
        let members = json!({ "tools": { "timeouts": { "hang": "300ms" } } });
        let scene = Scene::start(back, json!({}), members).await;
        let answer = scene.client.send_draft(&scene.client.draft("tools/call", json!({"name": "a_hang"}))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json()["error"]["data"]["code"], "TIMEOUT", "{answer:?}");
        assert!(scene.backend.notification("notifications/cancelled").await.contains("timeout"));
        scene.gauge_becomes(IN_FLIGHT, 0).await;
    }
}

#[tokio::test]
async fn a_backend_that_crashes_ends_its_calls_with_an_error() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = Client::modern(gateway.address, json!({}));
    client.await_tool("a_crash").await;
    let answer = client.send_draft(&client.draft("tools/call", json!({"name": "a_crash"}))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["error"]["data"]["code"], "BACKEND_UNAVAILABLE", "{answer:?}");
}

#[tokio::test]
async fn a_backend_at_its_call_limit_rejects_calls_until_one_ends() {
    let scene = Scene::start(Back::Stdio, json!({ "maxInFlightPerBackend": 1 }), json!({})).await;
    let (_, stream) = scene.client.open_draft(&scene.client.draft("tools/call", json!({"name": "a_hang"}))).await;
    let answer = scene.client.send_draft(&scene.client.draft("tools/call", json!({"name": "a_echo"}))).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["error"]["data"]["code"], "OVERLOADED", "{answer:?}");
    drop(stream);
    scene.gauge_becomes(IN_FLIGHT, 0).await;
    assert!(scene.client.try_call("a_echo", json!({})).await["error"].is_null());
}

#[tokio::test]
async fn sess1_the_number_of_open_requests_of_a_pipe_is_limited() {
    let config = json!({ "policies": { "maxInFlight": 2 }, "mcpServers": { "a": fixture_server(&[]) } });
    let client = Client::stdio(config).as_modern(json!({}));
    client.await_tool("a_hang").await;
    for id in [101, 102] {
        client.begin_as(json!(id), "tools/call", json!({"name": "a_hang"})).await;
    }
    client.begin_as(json!(103), "tools/list", json!({})).await;
    let rejected = client.next_answer(&json!(103)).await;
    assert_eq!(rejected["error"]["data"]["limit"], "maxInFlight", "{rejected}");
    client.write(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":102}}"#).await;
    client.begin_as(json!(104), "tools/list", json!({})).await;
    assert!(client.next_answer(&json!(104)).await["result"]["tools"].is_array());
}

#[tokio::test]
async fn a_gateway_that_stops_logs_the_calls_it_cuts() {
    let config = json!({ "gateway": { "grace": "200ms" }, "mcpServers": { "a": fixture_server(&[]) } });
    let mut gateway = Gateway::start(config).await;
    let client = Client::modern(gateway.address, json!({}));
    client.await_tool("a_hang").await;
    let (_, mut stream) = client.open_draft(&client.draft("tools/call", json!({"name": "a_hang"}))).await;
    assert!(gateway.terminate().await.success());
    // The stream of the call is cut, or first reports the loss of the server.
    if let Some(last) = stream.next().await {
        assert_eq!(last["error"]["data"]["code"], "BACKEND_UNAVAILABLE", "{last}");
    }
    await_log(&gateway, &["a_hang", "tools/call"]).await;
}

#[tokio::test]
async fn calls_over_a_pipe_are_answered_after_the_input_ends() {
    let client = Client::stdio(json!({ "mcpServers": { "a": fixture_server(&[]) } })).as_modern(json!({}));
    client.await_tool("a_nonce").await;
    let call = json!({"name": "a_nonce", "arguments": {"nonce": "late", "delayMs": 300}});
    client.begin_as(json!("n"), "tools/call", call).await;
    client.begin_as(json!("l"), "subscriptions/listen", json!({"notifications": {}})).await;
    let acknowledged = client.message().await;
    assert_eq!(acknowledged["params"]["notifications"], json!({}), "{acknowledged}");
    client.close_input();
    let mut ends: Vec<_> = [client.message().await, client.message().await].into_iter().collect();
    ends.sort_by_key(|message| message["id"].to_string());
    assert_eq!(ends[0]["result"]["resultType"], "complete", "the listen ends: {ends:?}");
    assert_eq!(ends[1]["result"]["content"][0]["text"], "late", "{ends:?}");
    assert!(client.close().await.success());
}
