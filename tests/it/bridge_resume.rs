//! Streams that are cut between bridge and gateway.
//!
//! The bridge resumes them. No message is sent or delivered twice, and a gap is reported to the client.

use std::process::Stdio;

use serde_json::json;

use crate::client::Client;
use crate::harness::{Scratch, goblin};
use crate::raw_gateway::{EventStream, RawGateway};

/// A retry delay that exceeds the duration of any test.
const NEVER: &str = "retry: 600000";

/// Returns a gateway, a client with a session, and the session's stream.
async fn bridged() -> (RawGateway, Client, EventStream, Scratch) {
    let scratch = Scratch::new();
    let mut gateway = RawGateway::start().await;
    let mut command = goblin(scratch.path());
    command.args(["stdio", "--url", &gateway.url]).stderr(Stdio::null());
    let mut client = Client::run(command);
    let (_, (_, stream)) = tokio::join!(client.initialize("2025-11-25"), gateway.begin("one"));
    (gateway, client, stream, scratch)
}

/// Makes a call and returns the stream of its response.
async fn call(gateway: &mut RawGateway, client: &Client, id: &str) -> EventStream {
    client
        .write(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "t"}}).to_string())
        .await;
    gateway.request("tools/call").await.stream().await
}

fn progress(step: u64) -> String {
    let params = json!({"progressToken": "p", "progress": step});
    format!("data: {}", json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))
}

fn answer(id: &str) -> String {
    format!("data: {}", json!({"jsonrpc": "2.0", "id": id, "result": {"of": id}}))
}

#[tokio::test]
async fn a_cut_stream_of_a_call_is_resumed_without_loss_or_repetition() {
    let (mut gateway, client, _session_stream, _scratch) = bridged().await;
    let mut stream = call(&mut gateway, &client, "c").await;
    stream.write(&["id: c-0", "retry: 1", "data:"]).await;
    stream.write(&["id: c-1", &progress(1)]).await;
    assert_eq!(client.message().await["params"]["progress"], 1);
    // The stream is cut, then ended regularly. Each time the gateway repeats the event that the bridge named.
    drop(stream);
    let arrival = gateway.get(Some("c-1")).await;
    assert_eq!(arrival.header("mcp-session-id"), Some("one"));
    let mut stream = arrival.stream().await;
    stream.write(&["id: c-1", &progress(1)]).await;
    stream.write(&["id: c-2", &progress(2)]).await;
    assert_eq!(client.message().await["params"]["progress"], 2);
    stream.end().await;
    let mut stream = gateway.get(Some("c-2")).await.stream().await;
    stream.write(&["id: c-2", &progress(2)]).await;
    // A server request may arrive late too.
    stream.write(&["id: c-3", r#"data: {"jsonrpc":"2.0","id":1,"method":"ping"}"#]).await;
    assert_eq!(client.message().await["method"], "ping");
    client.write(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    gateway.post().await.accept().await;
    stream.write(&["id: c-4", &answer("c")]).await;
    stream.end().await;
    assert_eq!(client.message().await["result"], json!({"of": "c"}));
    assert!(!gateway.has(|arrival| arrival.message["method"] == "tools/call"), "the call was sent again");
}

#[tokio::test]
async fn the_bridge_waits_for_the_retry_delay_of_the_gateway() {
    let (mut gateway, client, mut session_stream, _scratch) = bridged().await;
    session_stream.write(&["id: s-0", NEVER, "data:"]).await;
    let mut call_stream = call(&mut gateway, &client, "patient").await;
    call_stream.write(&["id: p-0", NEVER, "data:"]).await;
    // The pings prove that the bridge has read up to here.
    session_stream.send_message(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await;
    call_stream.send_message(r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#).await;
    for _ in 0..2 {
        assert_eq!(client.message().await["method"], "ping");
    }
    drop((session_stream, call_stream));
    for number in 0..3 {
        let mut eager = call(&mut gateway, &client, "eager").await;
        eager.write(&[&format!("id: e-{number}"), "data:"]).await;
        eager.end().await;
        // This stream was cut last and is resumed first.
        let mut eager = gateway.get(Some(&format!("e-{number}"))).await.stream().await;
        eager.write(&[&answer("eager")]).await;
        eager.end().await;
        assert_eq!(client.message().await["id"], "eager");
    }
    assert!(!gateway.has(|arrival| arrival.verb() == "GET"));
    // A call that waits for its stream can be cancelled.
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"patient"}}"#;
    client.write(cancel).await;
    let arrival = gateway.request("notifications/cancelled").await;
    assert_eq!(arrival.body, cancel);
    arrival.accept().await;
}

#[tokio::test]
async fn a_call_that_cannot_be_resumed_fails_and_is_not_sent_again() {
    let (mut gateway, client, _session_stream, _scratch) = bridged().await;
    for (id, event, status, fragment) in [
        ("nameless", progress(1), None, "the connection was lost before the answer"),
        ("forgotten", "data:".to_owned(), Some("404 Not Found"), "HTTP 404"),
        ("unable", "data:".to_owned(), Some("405 Method Not Allowed"), "HTTP 405"),
        ("no stream", "data:".to_owned(), Some("200 OK"), "HTTP 200"),
    ] {
        let mut stream = call(&mut gateway, &client, id).await;
        match status {
            Some(_) => stream.write(&[&format!("id: {id}"), &event]).await,
            None => stream.write(&[&event]).await,
        }
        if status.is_none() {
            assert_eq!(client.message().await["params"]["progress"], 1);
        }
        drop(stream);
        if let Some(status) = status {
            gateway.get(Some(id)).await.answer(status, "", "").await;
        }
        let failed = client.message().await;
        assert_eq!((&failed["id"], &failed["error"]["code"]), (&json!(id), &json!(1503)), "{failed}");
        assert!(failed["error"]["message"].as_str().is_some_and(|text| text.contains(fragment)), "{id}: {failed}");
    }
    assert!(!gateway.has(|arrival| arrival.message["method"] == "tools/call"), "a call was sent again");
}

#[tokio::test]
async fn a_call_fails_after_six_resumed_streams_without_a_message() {
    const MAX: usize = 6;
    let (mut gateway, client, _session_stream, _scratch) = bridged().await;
    let mut stream = call(&mut gateway, &client, "empty").await;
    stream.write(&["id: e", "data:"]).await;
    stream.end().await;
    for _ in 0..MAX {
        let mut stream = gateway.get(Some("e")).await.stream().await;
        stream.write(&["id: e", "data:"]).await;
        stream.end().await;
    }
    let failed = client.message().await;
    assert!(
        failed["error"]["message"].as_str().is_some_and(|text| text.contains("all attempts to resume it failed")),
        "{failed}"
    );
}

#[tokio::test]
async fn the_session_stream_is_resumed_and_a_gap_is_reported() {
    let (mut gateway, client, mut session_stream, _scratch) = bridged().await;
    session_stream.write(&["id: s-1", &progress(1)]).await;
    assert_eq!(client.message().await["params"]["progress"], 1);
    drop(session_stream);
    // The gateway may consider the old connection open for a while.
    gateway.get(Some("s-1")).await.answer("409 Conflict", "", "").await;
    let mut session_stream = gateway.get(Some("s-1")).await.stream().await;
    session_stream.write(&["id: s-1", &progress(1)]).await;
    session_stream.write(&["id: s-2", &progress(2)]).await;
    assert_eq!(client.message().await["params"]["progress"], 2);
    session_stream.end().await;
    // The session lives, but the events after that one are lost.
    gateway.get(Some("s-2")).await.answer("404 Not Found", "", "").await;
    let mut session_stream = gateway.get(None).await.stream().await;
    for list in ["tools", "prompts", "resources"] {
        assert_eq!(client.message().await["method"], format!("notifications/{list}/list_changed"));
    }
    session_stream.write(&["id: t-1", &progress(3)]).await;
    assert_eq!(client.message().await["params"]["progress"], 3);
    assert!(!gateway.has(|arrival| arrival.message["method"] == "initialize"), "the session was not lost");
}
