//! Server requests without a regular response (timeout, refusal, lost client), and unsolicited responses.
//!
//! The server must receive exactly one response to each request. The client receives a cancellation if its response is
//! not needed any more.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::inbox::{Received, raw_member};
use crate::harness::Gateway;
use crate::raw_server::{RESUME, RawServer, response};
use crate::support::{assert_error, http_server};
use crate::transport_pairs::{Back, Front, Stage, pairs};

const SAMPLING: &str = "sampling/createMessage";
const CANCELLED: &str = "notifications/cancelled";
const REJECTED: &str = r#"goblin_events_total{kind="server_request_rejected"}"#;
const UNMATCHED: &str = r#"goblin_events_total{kind="reply_without_request"}"#;
const RESULT: &str = r#""result":{"model":"m"}"#;
/// An id with a spelling that only the server uses.
const ID: &str = r#""its-own""#;

/// Returns the capabilities of a client that answers server requests.
fn abilities() -> Value {
    json!({ "sampling": {}, "elicitation": {} })
}

/// Starts a call that sends a server request, and waits for that request.
async fn open(stage: &Stage, peer: &Client, rest: &str) -> (u64, Received) {
    let arguments = stage.backend.arguments(SAMPLING, &format!(r#","params":{{}},"id":{ID}{rest}"#));
    let call = peer.begin_call("a_request", &arguments).await;
    (call, peer.server_request(SAMPLING).await)
}

/// Waits until the client receives the cancellation of a server request.
async fn assert_cancelled(peer: &Client, server_request: &Received) -> Value {
    let received = peer.notification(CANCELLED).await.json();
    assert_eq!(received["params"]["requestId"], server_request.json()["id"], "{received}");
    received
}

fn outcome(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn a_server_request_without_an_answer_times_out_and_is_cancelled() {
    for (front, back) in pairs() {
        let stage = Stage::configured(front, back, json!({ "askTimeout": "300ms" }), json!({})).await;
        let peer = stage.peer(abilities()).await;
        let (call, server_request) = open(&stage, &peer, "").await;
        let received = outcome(&peer.text_of(call).await);
        assert_eq!(received["error"]["code"], 1504, "{front:?} {back:?}: {received}");
        assert_cancelled(&peer, &server_request).await;
        // A late response is accepted and counted, but not forwarded.
        peer.reply(&server_request, RESULT).await;
        if Front::SHARED.contains(&front) {
            stage.metric_becomes(UNMATCHED, 1).await;
        }
        peer.call_text("a_echo", "{}").await;
        assert_eq!(answers(&stage), 1, "{front:?} {back:?}: {:?}", stage.backend.received());
    }
}

/// Returns the number of responses that the server received.
fn answers(stage: &Stage) -> usize {
    stage.backend.received().iter().filter(|message| raw_member(message, "id").as_deref() == Some(ID)).count()
}

#[tokio::test]
async fn a_server_request_is_answered_once_and_stray_answers_are_counted() {
    for front in Front::SHARED {
        for back in Back::ALL {
            let stage = Stage::start(front, back).await;
            let (peer, other) = (stage.peer(abilities()).await, stage.peer(abilities()).await);
            let (call, server_request) = open(&stage, &peer, "").await;
            // Another client cannot answer in place of the right one.
            other.reply(&server_request, r#""result":{"model":"stolen"}"#).await;
            stage.metric_becomes(UNMATCHED, 1).await;
            // The type of an id is significant.
            let id = server_request.json()["id"].clone();
            let retyped = if id.is_string() { json!(4711) } else { json!(id.to_string()) };
            peer.write(&json!({"jsonrpc": "2.0", "id": retyped, "result": {}}).to_string()).await;
            stage.metric_becomes(UNMATCHED, 2).await;
            peer.reply(&server_request, RESULT).await;
            assert_eq!(peer.text_of(call).await, format!("{{{RESULT}}}"), "{front:?} {back:?}");
            for (count, outcome) in [(3, RESULT), (4, r#""error":{"code":-1,"message":"no"}"#)] {
                peer.reply(&server_request, outcome).await;
                stage.metric_becomes(UNMATCHED, count).await;
            }
            peer.write(r#"{"jsonrpc":"2.0","id":"unknown request","result":{}}"#).await;
            stage.metric_becomes(UNMATCHED, 5).await;
            assert_eq!(answers(&stage), 1, "{front:?} {back:?}: {:?}", stage.backend.received());
            peer.call_text("a_echo", "{}").await;
        }
    }
}

#[tokio::test]
async fn a_server_request_that_its_server_cancels_is_cancelled_at_the_client() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(abilities()).await;
        let (call, server_request) = open(&stage, &peer, "").await;
        assert_eq!(peer.call_text("a_cancel_requests", "{}").await, "1");
        let received = assert_cancelled(&peer, &server_request).await;
        assert_eq!(received["params"]["reason"], "no longer wanted", "{front:?} {back:?}: {received}");
        assert_eq!(peer.answer_to(call).await["result"]["isError"], true, "{front:?} {back:?}");
        peer.reply(&server_request, RESULT).await;
        peer.call_text("a_echo", "{}").await;
        assert_eq!(answers(&stage), 0, "a cancelled request gets no response: {:?}", stage.backend.received());
    }
}

#[tokio::test]
async fn cancelling_a_call_cancels_its_open_server_request() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(abilities()).await;
        let (call, server_request) = open(&stage, &peer, "").await;
        peer.cancel(call).await;
        assert_cancelled(&peer, &server_request).await;
        stage.backend.notification(CANCELLED).await;
        // The server may wait for the response independently of the call.
        let answer = stage.backend.answer_to(ID).await;
        assert_eq!(answer["error"]["code"], 1503, "{front:?} {back:?}: {answer}");
        // The link still works.
        let rest = r#","params":{},"id":2"#;
        let call = peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, rest)).await;
        let server_request = peer.server_request(SAMPLING).await;
        peer.reply(&server_request, RESULT).await;
        assert_eq!(peer.text_of(call).await, format!("{{{RESULT}}}"), "{front:?} {back:?}");
    }
}

#[tokio::test]
async fn a_server_request_to_a_disconnected_client_is_answered_with_an_error() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(abilities()).await;
        open(&stage, &peer, "").await;
        peer.disconnect().await;
        let answer = stage.backend.answer_to(ID).await;
        assert!(answer["error"]["code"].is_i64(), "{front:?} {back:?}: {answer}");
        if Front::SHARED.contains(&front) {
            stage.metric_becomes("goblin_sessions_active", 0).await;
            stage.metric_becomes("goblin_requests_in_flight", 0).await;
        }
    }
}

/// The next client on the same link receives its requests normally.
#[tokio::test]
async fn a_server_request_to_a_disconnected_client_does_not_affect_the_next_client() {
    for front in Front::SHARED {
        for back in Back::ALL {
            let stage = Stage::start(front, back).await;
            let disconnected = stage.peer(abilities()).await;
            let (_, stale) = open(&stage, &disconnected, "").await;
            disconnected.disconnect().await;
            stage.backend.answer_to(ID).await;
            stage.metric_becomes("goblin_requests_in_flight", 0).await;
            let peer = stage.peer(abilities()).await;
            peer.reply(&stale, RESULT).await;
            stage.metric_becomes(UNMATCHED, 1).await;
            let rest = r#","params":{"for":"the next"}"#;
            let arguments = stage.backend.arguments(SAMPLING, rest);
            let call = peer.begin_call("a_request", &arguments).await;
            let server_request =
                peer.receive("the server request, or the end of the call", |message| !message["id"].is_null()).await;
            if server_request.json()["method"].is_null() {
                // The server does not report when it has finished the cancelled call. Until then its request is
                // ambiguous.
                assert!(
                    back != Back::Post && server_request.text.contains("per-client"),
                    "{front:?} {back:?}: {}",
                    server_request.text
                );
                continue;
            }
            assert_eq!(server_request.raw("params"), r#"{"for":"the next"}"#, "{front:?} {back:?}");
            peer.reply(&server_request, RESULT).await;
            assert_eq!(peer.text_of(call).await, format!("{{{RESULT}}}"), "{front:?} {back:?}");
        }
    }
}

/// ROUTE-3: the timeout of a call pauses while its server request is open, and resumes afterwards. A second call, which
/// starts later and times out, proves that the time had passed.
#[tokio::test]
async fn route3_an_open_server_request_pauses_the_timeout_of_its_call() {
    for (front, back) in pairs() {
        let stage = Stage::configured(front, back, json!({}), json!({ "timeout": "800ms" })).await;
        let peer = stage.peer(abilities()).await;
        for rest in ["", r#","then":"hang""#] {
            let (call, server_request) = open(&stage, &peer, rest).await;
            let hanging = peer.begin_call("a_hang", "{}").await;
            assert_error(&peer.answer_to(hanging).await, 1504, "TIMEOUT");
            peer.reply(&server_request, RESULT).await;
            match rest {
                "" => assert_eq!(peer.text_of(call).await, format!("{{{RESULT}}}"), "{front:?} {back:?}"),
                _ => drop(assert_error(&peer.answer_to(call).await, 1504, "TIMEOUT")),
            }
        }
    }
}

/// A server that sends a request and returns without waiting. The request continues without its call, and the server
/// receives its outcome.
#[tokio::test]
async fn a_server_request_that_outlives_its_call_is_answered_once() {
    for (front, back) in pairs() {
        let stage = Stage::configured(front, back, json!({ "askTimeout": "2s" }), json!({})).await;
        let peer = stage.peer(abilities()).await;
        let arguments =
            stage.backend.arguments(SAMPLING, &format!(r#","params":{{}},"id":{ID},"forget":true,"then":"release""#));
        let call = peer.begin_call("a_request", &arguments).await;
        let server_request = peer.server_request(SAMPLING).await;
        peer.call_text("a_release", "{}").await;
        assert_eq!(peer.text_of(call).await, "sent");
        peer.reply(&server_request, RESULT).await;
        stage.backend.answer_to(ID).await;
        peer.call_text("a_echo", "{}").await;
        assert_eq!(answers(&stage), 1, "{front:?} {back:?}: {:?}", stage.backend.received());
    }
}

/// A second server request with an open id is a replay on a resumed stream, or a protocol violation. It is ignored,
/// because an error would answer the first.
#[tokio::test]
async fn a_server_request_with_an_id_in_use_is_ignored() {
    for back in Back::ALL {
        let stage = Stage::start(Front::Http, back).await;
        let peer = stage.peer(abilities()).await;
        let (call, server_request) = open(&stage, &peer, r#","times":2,"forget":true,"then":"release""#).await;
        stage.metric_becomes(REJECTED, 1).await;
        peer.reply(&server_request, RESULT).await;
        stage.backend.answer_to(ID).await;
        assert_eq!(answers(&stage), 1, "{back:?}: {:?}", stage.backend.received());
        peer.call_text("a_release", "{}").await;
        peer.text_of(call).await;
    }
}

/// The server ends while its request is open. The client receives a cancellation.
#[tokio::test]
async fn a_crash_of_the_server_cancels_its_open_request() {
    for front in Front::ALL {
        let stage = Stage::start(front, Back::Stdio).await;
        let peer = stage.peer(abilities()).await;
        let (call, server_request) = open(&stage, &peer, "").await;
        let crash = peer.begin_call("a_crash", "{}").await;
        for lost in [call, crash] {
            assert_error(&peer.answer_to(lost).await, 1503, "BACKEND_UNAVAILABLE");
        }
        assert_cancelled(&peer, &server_request).await;
        peer.reply(&server_request, RESULT).await;
    }
}

/// The event that the server of [`a_server_request_replayed_on_another_stream_reaches_no_client`] sends to every client that
/// resumes.
const REPLAYED: &str = concat!(
    "id: 1\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"once\",\"method\":\"sampling/createMessage\",",
    "\"params\":{\"messages\":[],\"maxTokens\":1}}\n\n"
);

fn stream(body: &str) -> Vec<u8> {
    response("200 OK", "Content-Type: text/event-stream\r\n", body)
}

/// Some servers replay the streams of all calls to any client that resumes one.
#[tokio::test]
async fn a_server_request_replayed_on_another_stream_reaches_no_client() {
    let server = RawServer::rejecting(
        |method| (method == RESUME).then(|| stream(REPLAYED)),
        |arguments| match arguments["requests"] == true {
            true => {
                let answer = json!({"jsonrpc": "2.0", "id": arguments["id"], "result": {"content": []}});
                stream(&format!("{REPLAYED}data: {answer}\n\n"))
            }
            false => stream("id: 0\ndata: \n\n"),
        },
    )
    .await;
    let gateway = Gateway::with_servers(json!({ "a": http_server(server.address) })).await;
    let first = Client::new(gateway.address).listening(abilities()).await;
    let other = Client::new(gateway.address).listening(abilities()).await;
    first.await_tool("a_t").await;
    let call = first.begin_call("a_t", r#"{"requests":true}"#).await;
    let server_request = first.server_request(SAMPLING).await;
    first.answer_to(call).await;
    first.reply(&server_request, RESULT).await;
    // The link has no other client now, and the resumed stream contains the request.
    let call = other.begin_call("a_t", "{}").await;
    assert_error(&other.answer_to(call).await, 1503, "BACKEND_UNAVAILABLE");
    assert_eq!(other.pending_server_requests().await, Vec::<Value>::new());
}
