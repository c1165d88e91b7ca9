//! Suspended calls under faults: foreign states, clients that repeat twice, late or never, dead backends, ambiguous
//! server requests, and a shutdown.
//!
//! A state is valid for its own call and only once. The tool must never run twice.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::client::modern::everything;
use crate::client::{Client, text_of};
use crate::harness::{Deadline, Gateway, fixture_server};
use crate::raw_server::{RawServer, response};
use crate::support::{await_log, http_server};
use crate::suspended_calls::{ELICITATION, required, retry, server_request_call, to_all};
use crate::transport_pairs::Scene;
use crate::transport_pairs::{Back, Backend};

fn accept() -> Value {
    json!({"action": "accept"})
}

fn assert_stale(answer: &Value) {
    assert_eq!(answer["error"]["code"], -32602, "{answer}");
    assert_eq!(answer["error"]["data"]["code"], "STALE_STATE", "{answer}");
}

/// Returns a suspended call, the responses to its input requests, and its state.
async fn suspend(scene: &Scene, rest: &str) -> (Value, Value, String) {
    let call = server_request_call(&scene.backend, ELICITATION, &format!(r#","params":{{"message":"m"}}{rest}"#));
    let (input_requests, state) = required(&scene.client.request("tools/call", call.clone()).await);
    (call, to_all(&input_requests, accept()), state)
}

#[tokio::test]
async fn a_request_state_is_valid_once_and_only_for_its_own_call() {
    let scene = Scene::start(Back::Post, json!({}), json!({})).await;
    let (call, answers, state) = suspend(&scene, "").await;
    let good = retry(&call, answers, &state);
    let wrong = |change: fn(&mut Value)| {
        let mut wrong = good.clone();
        change(&mut wrong);
        wrong
    };
    for params in [
        wrong(|it| it["requestState"] = json!(format!("A{}", it["requestState"].as_str().expect("text")))),
        wrong(|it| it["requestState"] = json!(it["requestState"].as_str().expect("text").to_lowercase())),
        wrong(|it| it["requestState"] = json!("")),
        wrong(|it| it["requestState"] = json!(null)),
        wrong(|it| it["requestState"] = json!({})),
        wrong(|it| it["arguments"]["more"] = json!(1)),
        wrong(|it| it["arguments"]["params"]["message"] = json!("n")),
        wrong(|it| it["name"] = json!("a_echo")),
        wrong(|it| it["task"] = json!({})),
    ] {
        assert_stale(&scene.client.request("tools/call", params).await);
    }
    let without = wrong(|it| drop(it.as_object_mut().expect("an object").remove("requestState")));
    let missing = scene.client.request("tools/call", without).await;
    assert_eq!(missing["error"]["code"], -32602, "{missing}");
    let expected = "invalid params: inputResponses need the requestState of the result that requested them";
    assert_eq!(missing["error"]["message"], expected);
    let mut other = good.clone();
    other["uri"] = json!("a+note:///alpha");
    for method in ["resources/read", "prompts/get"] {
        assert_stale(&scene.client.request(method, other.clone()).await);
    }
    // The first repetition gets the call, and the order of the arguments does not matter.
    let again = Scene::config(&scene.backend, json!({}), json!({}));
    let (one, two) = tokio::join!(
        scene.client.request("tools/call", good.clone()),
        scene.client.request("tools/call", good.clone())
    );
    let (done, rejected) = if one["error"].is_null() { (one, two) } else { (two, one) };
    assert_eq!(text_of(&done), r#"{"result":{"action":"accept"}}"#);
    assert_stale(&rejected);
    assert_eq!(scene.runs().await, 1);
    // Another gateway, or the same after a restart, does not know the state.
    let other = Gateway::start(again).await;
    let client = Client::modern(other.address, everything());
    client.await_tool("a_request").await;
    assert_stale(&client.request("tools/call", good).await);
    assert_eq!(scene.runs().await, 1);
}

#[tokio::test]
async fn server_request_times_out_and_the_retry_returns_the_result_of_the_call() {
    for back in [Back::Stdio, Back::Post] {
        let scene = Scene::start(back, json!({ "askTimeout": "300ms" }), json!({})).await;
        let (call, answers, state) = suspend(&scene, r#","id":"q""#).await;
        let reply = scene.backend.answer_to("\"q\"").await;
        assert_eq!(reply["error"]["data"]["code"], "TIMEOUT", "{back:?}: {reply}");
        scene.gauge_becomes("goblin_requests_in_flight", 0).await;
        // The server request has timed out, so the repetition returns the result, with or without a response.
        let answers = if back == Back::Stdio { json!({}) } else { answers };
        let done = scene.client.request("tools/call", retry(&call, answers.clone(), &state)).await;
        assert!(text_of(&done).contains("TIMEOUT"), "{back:?}: {done}");
        assert_stale(&scene.client.request("tools/call", retry(&call, answers, &state)).await);
        assert_eq!(scene.runs().await, 1, "{back:?}");
    }
}

#[tokio::test]
async fn a_retry_after_the_backend_cancels_its_request_returns_the_result() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let (call, _, state) = suspend(&scene, "").await;
    scene.client.try_call("a_cancel_requests", json!({})).await;
    scene.gauge_becomes("goblin_requests_in_flight", 0).await;
    let done = scene.client.request("tools/call", retry(&call, json!({}), &state)).await;
    assert!(text_of(&done).contains("cancelled"), "{done}");
    assert_eq!(scene.runs().await, 2, "the call, and its cancellation");
}

#[tokio::test]
async fn a_dead_backend_ends_the_suspended_call_with_an_error() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = Client::modern(gateway.address, everything());
    client.await_tool("a_request").await;
    let call = json!({"name": "a_request", "arguments": {"method": ELICITATION, "params": {"message": "m"}}});
    let (input_requests, mut state) = required(&client.request("tools/call", call.clone()).await);
    client.try_call("a_crash", json!({})).await;
    // The crashed call can end first. Until the suspended call ends too, it needs its input again.
    let deadline = Deadline::new();
    let answer = loop {
        let answer = client.request("tools/call", retry(&call, json!({}), &state)).await;
        if answer.get("error").is_some() {
            break answer;
        }
        state = required(&answer).1;
        deadline.pause("the call ends with its backend").await;
    };
    assert_eq!(answer["error"]["data"]["code"], "BACKEND_UNAVAILABLE", "{answer}");
    assert_stale(&client.request("tools/call", retry(&call, to_all(&input_requests, accept()), &state)).await);
}

/// Waits until a call has reached the server, in addition to those that query the count.
async fn arrives(client: &Client) {
    let deadline = Deadline::new();
    for queries in 1_u64.. {
        let answer = client.try_call("a_call_count", json!({})).await;
        if text_of(&answer).parse::<u64>().expect("a number") > queries {
            return;
        }
        deadline.pause("the call arrives").await;
    }
}

/// A server request belongs to the call of its stream. If there is no such stream, two open calls make it ambiguous,
/// even of the same client, because the wrong call could return it.
#[tokio::test]
async fn server_request_that_may_belong_to_two_calls_is_rejected() {
    for back in [Back::Stdio, Back::Get, Back::Sse, Back::Post] {
        let scene = Scene::start(back, json!({}), json!({})).await;
        let other = Client::modern(scene.gateway.address, everything());
        let (_, stream) = other.open_draft(&other.draft("tools/call", json!({"name": "a_hang"}))).await;
        let call = server_request_call(&scene.backend, ELICITATION, r#","params":{"message":"m"}"#);
        let answer = scene.client.request("tools/call", call.clone()).await;
        match back {
            Back::Post => assert_eq!(required(&answer).0.len(), 1, "{answer}"),
            _ => assert!(text_of(&answer).contains("per-client"), "{back:?}: {answer}"),
        }
        drop(stream);

        let backend = Backend::start(back).await;
        let client = Client::stdio(Scene::config(&backend, json!({}), json!({}))).as_modern(everything());
        client.await_tool("a_request").await;
        client.begin_as("hang", "tools/call", json!({"name": "a_hang"})).await;
        arrives(&client).await;
        let call = server_request_call(&backend, ELICITATION, r#","params":{"message":"m"}"#);
        let answer = client.request("tools/call", call.clone()).await;
        match back {
            Back::Post => assert_eq!(required(&answer).0.len(), 1, "{answer}"),
            _ => assert!(text_of(&answer).contains("CLIENT_UNAVAILABLE"), "{back:?}: {answer}"),
        }
        // A cancelled call may still be the origin of the request.
        client.write(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"hang"}}"#).await;
        if back == Back::Stdio {
            let answer = client.request("tools/call", call).await;
            assert!(text_of(&answer).contains("CLIENT_UNAVAILABLE"), "{answer}");
        }
    }
}

#[tokio::test]
async fn a_stopping_gateway_does_not_wait_for_suspended_calls() {
    let mut scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    suspend(&scene, r#","id":"q""#).await;
    assert!(scene.gateway.terminate().await.success());
    let reply = scene.backend.answer_to("\"q\"").await;
    assert_eq!(reply["error"]["data"]["code"], "CLIENT_UNAVAILABLE", "{reply}");
    await_log(&scene.gateway, &["stopped"]).await;

    let backend = Backend::start(Back::Stdio).await;
    let client = Client::stdio(Scene::config(&backend, json!({}), json!({}))).as_modern(everything());
    client.await_tool("a_request").await;
    let call = server_request_call(&backend, ELICITATION, r#","params":{"message":"m"},"then":"hang""#);
    required(&client.request("tools/call", call).await);
    assert!(client.close().await.success(), "no client waits for the call");
}

/// Starts a server that requires its client to visit a URL first, in the legacy way. The second call succeeds.
async fn input_required_server(first: fn(&Value) -> Vec<u8>) -> (RawServer, Gateway) {
    let server = RawServer::start(first).await;
    let gateway = Gateway::with_servers(json!({ "r": http_server(server.address) })).await;
    Client::modern(gateway.address, json!({})).await_tool("r_t").await;
    (server, gateway)
}

fn body(id: &Value, outcome: &str) -> Vec<u8> {
    let text = format!(r#"{{"jsonrpc":"2.0","id":{id},{outcome}}}"#);
    response("200 OK", "Content-Type: application/json\r\n", &text)
}

const INPUT_REQUIRED: &str = concat!(
    r#""error":{"code":-32042,"message":"open the URL","data":{"elicitations":["#,
    r#"{"mode":"url","elicitationId":"e","url":"https://x.example/","message":"m","odd":1.0},7,"#,
    r#"{"url":"https://y.example/","mode":"url","message":"n","elicitationId":"f"}]}}"#
);
static CALLS: AtomicUsize = AtomicUsize::new(0);

#[tokio::test]
async fn a_required_url_elicitation_becomes_an_input_request_and_the_retry_calls_again() {
    let (server, gateway) = input_required_server(|arguments| match CALLS.fetch_add(1, Ordering::SeqCst) {
        0 => body(&arguments["id"], INPUT_REQUIRED),
        _ => body(&arguments["id"], r#""result":{"content":[{"type":"text","text":"visited"}]}"#),
    })
    .await;
    let client = Client::modern(gateway.address, everything());
    let call = json!({"name": "r_t", "arguments": {"x": 1.5}});
    let (input_requests, state) = required(&client.request("tools/call", call.clone()).await);
    let questions: Vec<_> = input_requests.values().map(|question| question["params"].clone()).collect();
    assert_eq!(
        questions,
        [
            json!({"mode": "url", "url": "https://x.example/", "message": "m", "odd": 1.0}),
            json!({"mode": "url", "url": "https://y.example/", "message": "n"}),
        ]
    );
    assert_stale(
        &client.request("tools/call", retry(&json!({"name": "r_t", "arguments": {"x": 2}}), json!({}), &state)).await,
    );
    assert_eq!(server.calls(), 1);
    let done = client.request("tools/call", retry(&call, to_all(&input_requests, accept()), &state)).await;
    assert_eq!((text_of(&done).as_str(), server.calls()), ("visited", 2));
}

#[tokio::test]
async fn a_required_url_elicitation_is_an_error_for_a_client_without_the_capability() {
    let (_server, gateway) = input_required_server(|arguments| match arguments["broken"] == true {
        true => {
            body(&arguments["id"], r#""error":{"code":-32042,"message":"open the URL","data":{"elicitations":[1]}}"#)
        }
        false => body(&arguments["id"], INPUT_REQUIRED),
    })
    .await;
    let unable = Client::modern(gateway.address, json!({"elicitation": {"form": {}}}));
    let answer = unable.send_draft(&unable.draft("tools/call", json!({"name": "r_t", "arguments": {}}))).await;
    assert_eq!((answer.status.as_u16(), &answer.json()["error"]["code"]), (400, &json!(-32021)), "{answer:?}");
    let required = &answer.json()["error"]["data"]["requiredCapabilities"];
    assert_eq!(*required, json!({"elicitation": {"url": {}}}), "{answer:?}");
    let able = Client::modern(gateway.address, everything());
    let broken = able.try_call("r_t", json!({"broken": true})).await;
    assert_eq!(broken["error"]["code"], -32042, "without elicitations the error is a plain one: {broken}");
}
