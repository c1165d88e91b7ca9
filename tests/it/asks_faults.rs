//! Server requests without a regular response (timeout, refusal, lost client), and unsolicited responses.
//!
//! The server must receive exactly one response to each request. The client receives a cancellation if its response is
//! not needed any more.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::inbox::{Heard, raw_member};
use crate::harness::Gateway;
use crate::raw_server::{RESUME, RawServer, response};
use crate::stage::{Back, Front, Stage, pairs};
use crate::support::{assert_error, http_server};

const SAMPLING: &str = "sampling/createMessage";
const CANCELLED: &str = "notifications/cancelled";
const REFUSED: &str = r#"goblin_events_total{kind="server_request_rejected"}"#;
const STRAY: &str = r#"goblin_events_total{kind="reply_without_request"}"#;
const RESULT: &str = r#""result":{"model":"m"}"#;
/// An id with a spelling that only the server uses.
const ID: &str = r#""its-own""#;

/// Returns the capabilities of a client that answers server requests.
fn abilities() -> Value {
    json!({ "sampling": {}, "elicitation": {} })
}

/// Starts a call that sends a server request, and waits for that request.
async fn open(stage: &Stage, peer: &Client, rest: &str) -> (u64, Heard) {
    let arguments = stage.backend.arguments(SAMPLING, &format!(r#","params":{{}},"id":{ID}{rest}"#));
    let call = peer.begin_call("a_ask", &arguments).await;
    (call, peer.asked(SAMPLING).await)
}

/// Waits until the client receives the cancellation of a server request.
async fn is_called_off(peer: &Client, asked: &Heard) -> Value {
    let told = peer.told(CANCELLED).await.json();
    assert_eq!(told["params"]["requestId"], asked.json()["id"], "{told}");
    told
}

fn outcome(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn ask_that_is_not_answered_in_time_fails_and_is_called_off() {
    for (front, back) in pairs() {
        let stage = Stage::configured(front, back, json!({ "askTimeout": "300ms" }), json!({})).await;
        let peer = stage.peer(abilities()).await;
        let (call, asked) = open(&stage, &peer, "").await;
        let told = outcome(&peer.text_of(call).await);
        assert_eq!(told["error"]["code"], 1504, "{front:?} {back:?}: {told}");
        is_called_off(&peer, &asked).await;
        // A late response is accepted and counted, but not forwarded.
        peer.reply(&asked, RESULT).await;
        if Front::SHARED.contains(&front) {
            stage.metric_becomes(STRAY, 1).await;
        }
        peer.call_text("a_echo", "{}").await;
        assert_eq!(answers(&stage), 1, "{front:?} {back:?}: {:?}", stage.backend.heard());
    }
}

/// Returns the number of responses that the server received.
fn answers(stage: &Stage) -> usize {
    stage.backend.heard().iter().filter(|message| raw_member(message, "id").as_deref() == Some(ID)).count()
}

#[tokio::test]
async fn ask_is_answered_once_and_other_answers_are_counted() {
    for front in Front::SHARED {
        for back in Back::ALL {
            let stage = Stage::start(front, back).await;
            let (peer, other) = (stage.peer(abilities()).await, stage.peer(abilities()).await);
            let (call, asked) = open(&stage, &peer, "").await;
            // Another client cannot answer in place of the right one.
            other.reply(&asked, r#""result":{"model":"stolen"}"#).await;
            stage.metric_becomes(STRAY, 1).await;
            // The type of an id is significant.
            let id = asked.json()["id"].clone();
            let retyped = if id.is_string() { json!(4711) } else { json!(id.to_string()) };
            peer.write(&json!({"jsonrpc": "2.0", "id": retyped, "result": {}}).to_string()).await;
            stage.metric_becomes(STRAY, 2).await;
            peer.reply(&asked, RESULT).await;
            assert_eq!(peer.text_of(call).await, format!("{{{RESULT}}}"), "{front:?} {back:?}");
            for (stray, outcome) in [(3, RESULT), (4, r#""error":{"code":-1,"message":"no"}"#)] {
                peer.reply(&asked, outcome).await;
                stage.metric_becomes(STRAY, stray).await;
            }
            peer.write(r#"{"jsonrpc":"2.0","id":"nobody asked","result":{}}"#).await;
            stage.metric_becomes(STRAY, 5).await;
            assert_eq!(answers(&stage), 1, "{front:?} {back:?}: {:?}", stage.backend.heard());
            peer.call_text("a_echo", "{}").await;
        }
    }
}

#[tokio::test]
async fn ask_that_its_server_cancels_is_called_off() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(abilities()).await;
        let (call, asked) = open(&stage, &peer, "").await;
        assert_eq!(peer.call_text("a_cancel_asks", "{}").await, "1");
        let told = is_called_off(&peer, &asked).await;
        assert_eq!(told["params"]["reason"], "no longer wanted", "{front:?} {back:?}: {told}");
        assert_eq!(peer.answer_to(call).await["result"]["isError"], true, "{front:?} {back:?}");
        peer.reply(&asked, RESULT).await;
        peer.call_text("a_echo", "{}").await;
        assert_eq!(answers(&stage), 0, "nothing is owed to a cancelled ask: {:?}", stage.backend.heard());
    }
}

#[tokio::test]
async fn ask_of_a_call_that_its_client_cancels_is_called_off() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(abilities()).await;
        let (call, asked) = open(&stage, &peer, "").await;
        peer.cancel(call).await;
        is_called_off(&peer, &asked).await;
        stage.backend.told(CANCELLED).await;
        // The server may wait for the response independently of the call.
        let answer = stage.backend.answer_to(ID).await;
        assert_eq!(answer["error"]["code"], 1503, "{front:?} {back:?}: {answer}");
        // The link still works.
        let rest = r#","params":{},"id":2"#;
        let call = peer.begin_call("a_ask", &stage.backend.arguments(SAMPLING, rest)).await;
        let asked = peer.asked(SAMPLING).await;
        peer.reply(&asked, RESULT).await;
        assert_eq!(peer.text_of(call).await, format!("{{{RESULT}}}"), "{front:?} {back:?}");
    }
}

#[tokio::test]
async fn ask_of_a_client_that_goes_away_is_answered_with_an_error() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(abilities()).await;
        open(&stage, &peer, "").await;
        peer.leave().await;
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
async fn ask_of_a_client_that_went_away_is_nothing_to_the_next() {
    for front in Front::SHARED {
        for back in Back::ALL {
            let stage = Stage::start(front, back).await;
            let gone = stage.peer(abilities()).await;
            let (_, stale) = open(&stage, &gone, "").await;
            gone.leave().await;
            stage.backend.answer_to(ID).await;
            stage.metric_becomes("goblin_requests_in_flight", 0).await;
            let peer = stage.peer(abilities()).await;
            peer.reply(&stale, RESULT).await;
            stage.metric_becomes(STRAY, 1).await;
            let rest = r#","params":{"for":"the next"}"#;
            let arguments = stage.backend.arguments(SAMPLING, rest);
            let call = peer.begin_call("a_ask", &arguments).await;
            let asked = peer.hear("the ask, or the end of the call", |message| !message["id"].is_null()).await;
            if asked.json()["method"].is_null() {
                // The server does not report when it has finished the cancelled call. Until then its request is
                // ambiguous.
                assert!(back != Back::Post && asked.text.contains("per-client"), "{front:?} {back:?}: {}", asked.text);
                continue;
            }
            assert_eq!(asked.raw("params"), r#"{"for":"the next"}"#, "{front:?} {back:?}");
            peer.reply(&asked, RESULT).await;
            assert_eq!(peer.text_of(call).await, format!("{{{RESULT}}}"), "{front:?} {back:?}");
        }
    }
}

/// ROUTE-3: the timeout of a call pauses while its server request is open, and resumes afterwards. A second call, which
/// starts later and times out, proves that the time had passed.
#[tokio::test]
async fn ask_route3_the_clock_of_its_call_stands_still() {
    for (front, back) in pairs() {
        let stage = Stage::configured(front, back, json!({}), json!({ "timeout": "800ms" })).await;
        let peer = stage.peer(abilities()).await;
        for rest in ["", r#","then":"hang""#] {
            let (call, asked) = open(&stage, &peer, rest).await;
            let hanging = peer.begin_call("a_hang", "{}").await;
            assert_error(&peer.answer_to(hanging).await, 1504, "TIMEOUT");
            peer.reply(&asked, RESULT).await;
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
async fn ask_that_outlives_its_call_still_has_one_end() {
    for (front, back) in pairs() {
        let stage = Stage::configured(front, back, json!({ "askTimeout": "2s" }), json!({})).await;
        let peer = stage.peer(abilities()).await;
        let arguments =
            stage.backend.arguments(SAMPLING, &format!(r#","params":{{}},"id":{ID},"forget":true,"then":"release""#));
        let call = peer.begin_call("a_ask", &arguments).await;
        let asked = peer.asked(SAMPLING).await;
        peer.call_text("a_release", "{}").await;
        assert_eq!(peer.text_of(call).await, "asked");
        peer.reply(&asked, RESULT).await;
        stage.backend.answer_to(ID).await;
        peer.call_text("a_echo", "{}").await;
        assert_eq!(answers(&stage), 1, "{front:?} {back:?}: {:?}", stage.backend.heard());
    }
}

/// A second server request with an open id is a replay on a resumed stream, or a protocol violation. It is ignored,
/// because an error would answer the first.
#[tokio::test]
async fn ask_under_an_id_that_is_in_use_is_passed_over() {
    for back in Back::ALL {
        let stage = Stage::start(Front::Http, back).await;
        let peer = stage.peer(abilities()).await;
        let (call, asked) = open(&stage, &peer, r#","times":2,"forget":true,"then":"release""#).await;
        stage.metric_becomes(REFUSED, 1).await;
        peer.reply(&asked, RESULT).await;
        stage.backend.answer_to(ID).await;
        assert_eq!(answers(&stage), 1, "{back:?}: {:?}", stage.backend.heard());
        peer.call_text("a_release", "{}").await;
        peer.text_of(call).await;
    }
}

/// The server ends while its request is open. The client receives a cancellation.
#[tokio::test]
async fn ask_of_a_server_that_is_gone_is_called_off() {
    for front in Front::ALL {
        let stage = Stage::start(front, Back::Stdio).await;
        let peer = stage.peer(abilities()).await;
        let (call, asked) = open(&stage, &peer, "").await;
        let crash = peer.begin_call("a_crash", "{}").await;
        for lost in [call, crash] {
            assert_error(&peer.answer_to(lost).await, 1503, "BACKEND_UNAVAILABLE");
        }
        is_called_off(&peer, &asked).await;
        peer.reply(&asked, RESULT).await;
    }
}

/// The event that the server of [`ask_that_is_told_again_on_anothers_stream_reaches_nobody`] sends to every client that
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
async fn ask_that_is_told_again_on_anothers_stream_reaches_nobody() {
    let server = RawServer::refusing(
        |method| (method == RESUME).then(|| stream(REPLAYED)),
        |arguments| match arguments["asks"] == true {
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
    let call = first.begin_call("a_t", r#"{"asks":true}"#).await;
    let asked = first.asked(SAMPLING).await;
    first.answer_to(call).await;
    first.reply(&asked, RESULT).await;
    // The link has no other client now, and the resumed stream contains the request.
    let call = other.begin_call("a_t", "{}").await;
    assert_error(&other.answer_to(call).await, 1503, "BACKEND_UNAVAILABLE");
    assert_eq!(other.stray_asks().await, Vec::<Value>::new());
}
