//! Calls of sessionless clients with a backend that requests input. The call returns the input requests, waits, and
//! continues when its client repeats it. The tool runs once.

use serde_json::{Map, Value, json};

use crate::client::http::Listener;
use crate::client::inbox::raw_member;
use crate::client::modern::{Draft, everything};
use crate::client::{Client, text_of};
use crate::harness::eventually;
use crate::transport_pairs::Scene;
use crate::transport_pairs::{Back, Backend};

pub const ELICITATION: &str = "elicitation/create";
const SAMPLING: &str = "sampling/createMessage";
/// Params with unusual spelling.
const FORM: &str =
    r#"{"message":"caf\u00e9 \/","requestedSchema":{"type":"object","properties":{}},"x-vendor":{"odd":[1.0,1e3,-0]}}"#;
const ACCEPTED: &str = r#"{"action":"accept","content":{"n":1.50,"s":"\u00e9\/"}}"#;

/// Returns the input requests and the state of an `input_required` result.
pub fn required(answer: &Value) -> (Map<String, Value>, String) {
    let result = &answer["result"];
    assert_eq!(result["resultType"], "input_required", "{answer}");
    let input_requests = result["inputRequests"].as_object().unwrap_or_else(|| panic!("{answer}"));
    (input_requests.clone(), result["requestState"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned())
}

/// Returns the call again with these responses.
pub fn retry(call: &Value, responses: Value, state: &str) -> Value {
    let mut call = call.clone();
    call["inputResponses"] = responses;
    call["requestState"] = json!(state);
    call
}

/// Returns a call of the tool that sends requests. `rest` holds further members of its arguments, each after a comma.
pub fn server_request_call(backend: &Backend, method: &str, rest: &str) -> Value {
    let arguments: Value = serde_json::from_str(&backend.arguments(method, rest)).expect("JSON");
    json!({ "name": "a_request", "arguments": arguments })
}

/// Returns the same response to every input request.
pub fn to_all(input_requests: &Map<String, Value>, answer: Value) -> Value {
    input_requests.keys().map(|key| (key.clone(), answer.clone())).collect::<Map<_, _>>().into()
}

#[tokio::test]
async fn elicitation_suspends_the_call_and_passes_request_and_response_byte_for_byte() {
    for back in Back::ALL {
        let scene = Scene::start(back, json!({}), json!({})).await;
        // The body is written by hand, because the spelling of params and responses is compared.
        let arguments = scene.backend.arguments(ELICITATION, &format!(r#","params":{FORM}"#));
        let draft = scene.client.draft("tools/call", json!({"name": "a_request", "arguments": "ARGUMENTS"}));
        let draft = Draft { body: draft.body.replace(r#""ARGUMENTS""#, &arguments), ..draft };
        let answer = scene.client.send_draft(&draft).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let (input_requests, state) = required(&answer.json());
        assert_eq!(input_requests.len(), 1, "{back:?}: {input_requests:?}");
        let message = answer.messages().pop().expect("an answer");
        let result = raw_member(&message, "result").expect("a result");
        let requests = raw_member(&result, "inputRequests").expect("requests");
        let (key, question) = input_requests.iter().next().expect("one");
        let raw = raw_member(&requests, key).expect("the file exists");
        assert_eq!(
            (&question["method"], raw_member(&raw, "params").as_deref()),
            (&json!(ELICITATION), Some(FORM)),
            "{back:?}"
        );
        assert!(question.get("id").is_none() && question.get("jsonrpc").is_none(), "{question}");

        let again = scene.client.draft(
            "tools/call",
            json!({
                "name": "a_request", "arguments": "ARGUMENTS", "requestState": state, "inputResponses": {key: "ANSWER"},
            }),
        );
        let body = again.body.replace(r#""ARGUMENTS""#, &arguments).replace(r#""ANSWER""#, ACCEPTED);
        let done = scene.client.send_draft(&Draft { body: body.clone(), ..again }).await.json();
        assert_eq!(
            done["id"],
            serde_json::from_str::<Value>(&body).expect("JSON")["id"],
            "the id of the retry: {done}"
        );
        assert_eq!(done["result"]["resultType"], "complete", "{back:?}: {done}");
        assert_eq!(text_of(&done), format!(r#"{{"result":{ACCEPTED}}}"#), "{back:?}");
        assert_eq!(scene.runs().await, 1, "{back:?}");
        scene.gauge_becomes("goblin_requests_in_flight", 0).await;
    }
}

#[tokio::test]
async fn res4_a_link_in_a_sampling_request_has_its_exposed_uri() {
    let scene = Scene::start(Back::Post, json!({}), json!({})).await;
    let params = |uri: &str| json!({"messages": [{"role": "user", "content": {"type": "resource_link", "uri": uri, "name": "n"}}], "maxTokens": 9});
    let call = server_request_call(&scene.backend, SAMPLING, &format!(r#","params":{}"#, params("note:///alpha")));
    let (input_requests, state) = required(&scene.client.request("tools/call", call.clone()).await);
    let (_, question) = input_requests.iter().next().expect("a question");
    assert_eq!(*question, json!({"method": SAMPLING, "params": params("a+note:///alpha")}));
    let response = json!({"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"});
    let done =
        scene.client.request("tools/call", retry(&call, to_all(&input_requests, response.clone()), &state)).await;
    assert_eq!(serde_json::from_str::<Value>(&text_of(&done)).expect("JSON"), json!({ "result": response }));
}

/// A client receives only the requests that its declared capabilities cover.
#[tokio::test]
async fn server_request_beyond_the_declared_capabilities_is_rejected() {
    let scene = Scene::start(Back::Post, json!({}), json!({})).await;
    for (capabilities, method, params, code, missing) in [
        (json!({}), ELICITATION, json!({"message": "m"}), "-32601", "elicitation.form"),
        (json!({}), ELICITATION, json!({"mode": "url", "url": "u"}), "-32601", "elicitation.url"),
        (json!({"elicitation": {"url": {}}}), ELICITATION, json!({"message": "m"}), "-32602", "elicitation.form"),
        (json!({"elicitation": {}}), ELICITATION, json!({"mode": "url", "url": "u"}), "-32602", "elicitation.url"),
        (json!({"elicitation": {}}), SAMPLING, json!({"messages": []}), "-32601", "sampling"),
        (json!({"sampling": {}}), SAMPLING, json!({"messages": [], "tools": []}), "-32601", "sampling.tools"),
    ] {
        let client = Client::modern(scene.gateway.address, capabilities);
        let call = server_request_call(&scene.backend, method, &format!(r#","params":{params}"#));
        let answer = text_of(&client.request("tools/call", call).await);
        assert!(answer.contains(code) && answer.contains(missing), "{missing}: {answer}");
    }
}

/// A shared server must not see the directories of one client. It receives the roots of the configuration, or none.
#[tokio::test]
async fn roots_list_reaches_a_client_only_from_a_per_client_server() {
    for (members, expected) in
        [(json!({"roots": [{"uri": "file:///r", "name": "r"}]}), r#""uri":"file:///r""#), (json!({}), "-32601")]
    {
        let scene = Scene::start(Back::Stdio, json!({}), members).await;
        let answer = scene.client.request("tools/call", server_request_call(&scene.backend, "roots/list", "")).await;
        assert!(text_of(&answer).contains(expected), "{answer}");
    }
    let backend = Backend::start(Back::Stdio).await;
    let client =
        Client::stdio(Scene::config(&backend, json!({}), json!({"session": "per-client"}))).as_modern(everything());
    client.await_tool("a_request").await;
    let call = server_request_call(&backend, "roots/list", "");
    let (input_requests, state) = required(&client.request("tools/call", call.clone()).await);
    assert_eq!(input_requests.values().collect::<Vec<_>>(), [&json!({"method": "roots/list"})]);
    let roots = json!({"roots": [{"uri": "file:///mine"}]});
    let done = client.request("tools/call", retry(&call, to_all(&input_requests, roots), &state)).await;
    assert!(text_of(&done).contains("file:///mine"), "{done}");
}

/// Over HTTP, sessionless clients differ only in their capabilities. Clients with the same capabilities share a link.
#[tokio::test]
async fn roots_list_reaches_a_stateless_client_over_the_link_of_its_capabilities() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({"session": "per-client"})).await;
    let call = server_request_call(&scene.backend, "roots/list", "");
    let (input_requests, state) = required(&scene.client.request("tools/call", call.clone()).await);
    let roots = json!({"roots": [{"uri": "file:///mine"}]});
    let done = scene.client.request("tools/call", retry(&call, to_all(&input_requests, roots), &state)).await;
    assert!(text_of(&done).contains("file:///mine"), "{done}");
    scene.gauge_becomes("goblin_backend_client_links", 1).await;
    let able_to_less = Client::modern(scene.gateway.address, json!({}));
    let answer = able_to_less.request("tools/call", call).await;
    assert!(text_of(&answer).contains("-32601"), "{answer}");
    scene.gauge_becomes("goblin_backend_client_links", 2).await;
}

#[tokio::test]
async fn each_of_several_input_requests_is_sent_once_and_the_tool_runs_once() {
    for back in Back::ALL {
        let scene = Scene::start(back, json!({}), json!({})).await;
        let call = server_request_call(&scene.backend, ELICITATION, r#","params":{"message":"m"},"times":5"#);
        let mut answer = scene.client.request("tools/call", call.clone()).await;
        let mut keys = std::collections::BTreeSet::new();
        while answer["result"]["resultType"] == "input_required" {
            let (input_requests, state) = required(&answer);
            for key in input_requests.keys() {
                assert!(keys.insert(key.clone()), "{back:?}: {key} is requested once");
            }
            answer = scene
                .client
                .request("tools/call", retry(&call, to_all(&input_requests, json!({"action": "decline"})), &state))
                .await;
        }
        assert_eq!((keys.len(), text_of(&answer).matches("decline").count()), (5, 5), "{back:?}: {answer}");
        assert_eq!(scene.runs().await, 1, "{back:?}");
    }
}

#[tokio::test]
async fn an_unanswered_input_request_is_repeated_and_an_extra_response_is_ignored() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let call = server_request_call(&scene.backend, ELICITATION, r#","params":{"message":"m"},"times":2"#);
    let (mut input_requests, mut state) = required(&scene.client.request("tools/call", call.clone()).await);
    // The second input request follows as soon as it arrives.
    while input_requests.len() < 2 {
        (input_requests, state) = required(&scene.client.request("tools/call", retry(&call, json!({}), &state)).await);
    }
    let keys: Vec<_> = input_requests.keys().cloned().collect();
    for wrong in [
        json!({}),
        json!(null),
        json!([]),
        json!("x"),
        json!({"other": {"action": "accept"}}),
        json!({&keys[0]: null, &keys[1]: "accept"}),
        json!({&keys[0]: [], &keys[1]: 7}),
    ] {
        let answer = scene.client.request("tools/call", retry(&call, wrong.clone(), &state)).await;
        let again;
        (again, state) = required(&answer);
        assert_eq!(again, input_requests, "{wrong}");
    }
    let mut partial = retry(&call, json!({&keys[1]: {"action": "accept"}, "other": {"action": "decline"}}), &state);
    (input_requests, state) = required(&scene.client.request("tools/call", partial.clone()).await);
    assert_eq!(input_requests.keys().collect::<Vec<_>>(), [&keys[0]], "the other was answered");
    // A repetition without any responses.
    partial["requestState"] = json!(state);
    partial.as_object_mut().expect("an object").remove("inputResponses");
    (input_requests, state) = required(&scene.client.request("tools/call", partial).await);
    let done = scene
        .client
        .request("tools/call", retry(&call, to_all(&input_requests, json!({"action": "cancel"})), &state))
        .await;
    assert_eq!(text_of(&done), r#"[{"result":{"action":"cancel"}},{"result":{"action":"accept"}}]"#);
    assert_eq!(scene.runs().await, 1);
}

/// Sends progress for every token that calls of the gateway may have by now.
async fn send_progress(scene: &Scene) {
    for token in 1..40 {
        let params = json!({"progressToken": token, "progress": 0.5});
        scene.client.try_call("a_notify", json!({"method": "notifications/progress", "params": params})).await;
    }
}

async fn open(scene: &Scene, call: &Value) -> Listener {
    scene.client.open_draft(&scene.client.draft("tools/call", call.clone())).await.1
}

#[tokio::test]
async fn progress_of_a_resumed_call_has_the_token_of_the_retry() {
    let scene = Scene::start(Back::Stdio, json!({}), json!({})).await;
    let mut call = server_request_call(&scene.backend, ELICITATION, r#","params":{"message":"m"},"then":"release""#);
    call["_meta"] = json!({"progressToken": "before"});
    let (input_requests, state) = required(&scene.client.request("tools/call", call.clone()).await);
    // The client is not connected, so this progress is dropped.
    send_progress(&scene).await;
    call["_meta"] = json!({"progressToken": 2});
    let mut stream = open(&scene, &retry(&call, to_all(&input_requests, json!({"action": "accept"})), &state)).await;
    eventually("the server has its answer", || async { (!scene.backend.received().is_empty()).then_some(()) }).await;
    send_progress(&scene).await;
    let received = stream.next().await.expect("progress");
    assert_eq!(received["params"], json!({"progressToken": 2, "progress": 0.5}), "{received}");
    scene.client.try_call("a_release", json!({})).await;
    let done = stream.next().await.expect("an answer");
    assert_eq!(text_of(&done), r#"{"result":{"action":"accept"}}"#);
    assert_eq!(stream.next().await, None);
}

#[tokio::test]
async fn a_call_over_stdio_is_suspended_and_its_state_is_valid_once() {
    for back in Back::ALL {
        let backend = Backend::start(back).await;
        let client = Client::stdio(Scene::config(&backend, json!({}), json!({}))).as_modern(everything());
        client.await_tool("a_request").await;
        let call = server_request_call(&backend, ELICITATION, r#","params":{"message":"m"}"#);
        let (input_requests, state) = required(&client.request("tools/call", call.clone()).await);
        // The id is free, and a cancellation of the first request has no effect any more.
        client.write(r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#).await;
        let answers = to_all(&input_requests, json!({"action": "accept"}));
        let done = client.request("tools/call", retry(&call, answers.clone(), &state)).await;
        assert_eq!(text_of(&done), r#"{"result":{"action":"accept"}}"#, "{back:?}");
        let stale = client.request("tools/call", retry(&call, answers, &state)).await;
        assert_eq!(stale["error"]["data"]["code"], "STALE_STATE", "{back:?}: {stale}");
        assert!(client.close().await.success());
    }
}
