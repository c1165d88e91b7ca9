//! Server requests: each reaches only the client it is meant for, and the response returns to the server. Both keep
//! their spelling.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::inbox::{Received, Way, raw_member};
use crate::client::modern::everything;
use crate::harness::Gateway;
use crate::support::await_arrivals;
use crate::transport_pairs::{Back, Backend, Front, Stage, pairs};

const SAMPLING: &str = "sampling/createMessage";
const ELICITATION: &str = "elicitation/create";
/// The params, result and error of a server request, with unusual spelling.
const PARAMS: &str = concat!(
    r#"{"messages":[{"role":"user","content":{"type":"text","text":"\u00e9\/\ud83d\ude00 {","x-vendor":1.0}}],"#,
    r#""x-vendor":{"odd":[1.0,1e3,9223372036854775808,1E+2,-0], "a":null},"maxTokens":1e2}"#
);
const RESULT: &str = r#""result":{"role":"assistant","x-vendor":[ -0,1.50],"content":{"text":"\u00e9\/"},"model":"m"}"#;
const ERROR: &str = r#""error":{"x-vendor":1.0,"code":-1,"message":"User rejected \u0022it\"","data":{"n":1E5}}"#;

/// An empty list of messages.
const NONE: [Value; 0] = [];

/// Parses the outcome of a server request in the fixture's format.
fn outcome(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the params of an elicitation in URL mode.
fn url_mode(id: &str) -> String {
    format!(r#"{{"mode":"url","message":"m","url":"https://x.example/","elicitationId":"{id}"}}"#)
}

#[tokio::test]
async fn a_server_request_reaches_the_caller_and_both_messages_stay_verbatim() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(everything()).await;
        let mut ids = Vec::new();
        for (id, answer) in [(r#""x-1""#, RESULT), ("7", RESULT), ("-2", ERROR)] {
            let rest = format!(r#","params":{PARAMS},"id":{id}"#);
            let call = peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, &rest)).await;
            let server_request = peer.server_request(SAMPLING).await;
            assert_eq!(server_request.raw("params"), PARAMS, "{front:?} {back:?}");
            if (front, back) == (Front::Http, Back::Post) {
                assert_eq!(server_request.way, Way::Post, "the request belongs to its call");
            }
            ids.push(server_request.raw("id"));
            peer.reply(&server_request, answer).await;
            assert_eq!(peer.text_of(call).await, format!("{{{answer}}}"), "{front:?} {back:?}");
            stage.backend.answer_to(id).await;
        }
        assert!(!ids[0].contains("x-"), "the gateway's own id: {ids:?}");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 3, "{front:?} {back:?}: {ids:?}");
    }
}

#[tokio::test]
async fn a_server_request_without_params_arrives_without_params() {
    for back in Back::ALL {
        let stage = Stage::start(Front::Http, back).await;
        let peer = stage.peer(everything()).await;
        let call = peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, "")).await;
        let server_request = peer.server_request(SAMPLING).await;
        assert_eq!(raw_member(&server_request.text, "params"), None, "{back:?}");
        peer.reply(&server_request, RESULT).await;
        assert_eq!(peer.text_of(call).await, format!("{{{RESULT}}}"), "{back:?}");
    }
}

/// One call sends several requests at once, and the client answers them in another order.
#[tokio::test]
async fn server_requests_of_one_call_may_be_answered_in_any_order() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(everything()).await;
        let rest = format!(r#","params":{PARAMS},"times":3"#);
        let call = peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, &rest)).await;
        let mut server_requests = Vec::new();
        for _ in 0..3 {
            server_requests.push(peer.server_request(SAMPLING).await);
        }
        for number in [2, 0, 1] {
            peer.reply(&server_requests[number], &format!(r#""result":{{"number":{number}}}"#)).await;
        }
        let answers = r#"[{"result":{"number":0}},{"result":{"number":1}},{"result":{"number":2}}]"#;
        assert_eq!(peer.text_of(call).await, answers, "{front:?} {back:?}");
    }
}

#[tokio::test]
async fn server_request_ids_of_two_backends_and_client_ids_do_not_collide() {
    let (a, b) = (Backend::start(Back::Stdio).await, Backend::start(Back::Sse).await);
    let gateway = Gateway::with_servers(json!({ "a": a.server(), "b": b.server() })).await;
    let peer = Client::new(gateway.address).listening(everything()).await;
    let mut open = Vec::new();
    for (backend, tool) in [(&a, "a_request"), (&b, "b_request")] {
        peer.await_tool(tool).await;
        let call = peer.begin_call(tool, &backend.arguments(SAMPLING, r#","id":1,"params":{}"#)).await;
        open.push((call, peer.server_request(SAMPLING).await, format!(r#""result":{{"for":"{tool}"}}"#)));
    }
    assert_ne!(open[0].1.raw("id"), open[1].1.raw("id"));
    // The ids of requests and of server requests are independent.
    for (_, server_request, _) in &open {
        let id = server_request.raw("id");
        peer.begin_text(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)).await;
        let pong = peer.receive("the ping's answer", |message| message["result"] == json!({})).await;
        assert_eq!(pong.raw("id"), id);
    }
    for (_, server_request, result) in open.iter().rev() {
        peer.reply(server_request, result).await;
    }
    for (call, _, result) in open {
        assert_eq!(peer.text_of(call).await, format!("{{{result}}}"));
    }
}

/// RES-4: a link in a sampling message uses the URI that the client can read.
#[tokio::test]
async fn res4_links_in_sampling_messages_are_namespaced() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let peer = stage.peer(everything()).await;
    let block = |uri: &str| format!(r#"{{"type":"resource_link","uri":"{uri}","name":"n","odd":1.0}}"#);
    let params = |uri: &str| format!(r#"{{"messages":[{{"role":"user","content":[{}]}}],"maxTokens":9}}"#, block(uri));
    let rest = format!(r#","params":{}"#, params("note:///alpha"));
    let call = peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, &rest)).await;
    let server_request = peer.server_request(SAMPLING).await;
    assert_eq!(server_request.raw("params"), params("a+note:///alpha"));
    peer.reply(&server_request, RESULT).await;
    peer.text_of(call).await;
}

#[tokio::test]
async fn an_unattributed_server_request_is_rejected_while_two_clients_have_calls() {
    for front in Front::SHARED {
        for back in Back::SHARED {
            let stage = Stage::start(front, back).await;
            let (busy, requesting) = (stage.peer(everything()).await, stage.peer(everything()).await);
            busy.begin_call("a_hang", "{}").await;
            await_arrivals(&busy, "a", 1).await;
            let rest = format!(r#","params":{PARAMS}"#);
            let received = requesting.call_text("a_request", &stage.backend.arguments(SAMPLING, &rest)).await;
            let message = outcome(&received)["error"]["message"].as_str().unwrap_or_default().to_owned();
            assert!(message.contains("per-client"), "{front:?} {back:?}: {received}");
            assert_eq!(busy.pending_server_requests().await, NONE, "{front:?} {back:?}");
            assert_eq!(requesting.pending_server_requests().await, NONE, "{front:?} {back:?}");
        }
    }
}

#[tokio::test]
async fn a_server_request_on_the_stream_of_a_call_reaches_only_its_client() {
    for front in Front::SHARED {
        let stage = Stage::start(front, Back::Post).await;
        let mut peers = [stage.peer(everything()).await, stage.peer(everything()).await];
        let mut calls = Vec::new();
        for (number, peer) in peers.iter_mut().enumerate() {
            let rest = format!(r#","params":{{"mark":{number}}},"times":2"#);
            calls.push(peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, &rest)).await);
        }
        let mut server_requests: Vec<(usize, Received)> = Vec::new();
        for (number, peer) in peers.iter_mut().enumerate() {
            for _ in 0..2 {
                let server_request = peer.server_request(SAMPLING).await;
                assert_eq!(server_request.raw("params"), format!(r#"{{"mark":{number}}}"#), "{front:?}");
                server_requests.push((number, server_request));
            }
        }
        for (number, server_request) in server_requests.iter().rev() {
            peers[*number].reply(server_request, &format!(r#""result":{{"by":{number}}}"#)).await;
        }
        for (number, peer) in peers.iter_mut().enumerate() {
            let answer = format!(r#"{{"result":{{"by":{number}}}}}"#);
            assert_eq!(peer.text_of(calls[number]).await, format!("[{answer},{answer}]"), "{front:?}");
            assert_eq!(peer.pending_server_requests().await, NONE, "{front:?}");
        }
    }
}

#[tokio::test]
async fn a_server_request_without_a_call_goes_to_the_only_client_of_the_connection() {
    for (front, back) in pairs().filter(|(_, back)| Back::SHARED.contains(back)) {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(everything()).await;
        let rest = format!(r#","params":{PARAMS},"id":"late","when":"cancelled""#);
        let call = peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, &rest)).await;
        await_arrivals(&peer, "a", 1).await;
        peer.cancel(call).await;
        let server_request = peer.server_request(SAMPLING).await;
        peer.reply(&server_request, r#""result":{"by":"the only one"}"#).await;
        let answer = stage.backend.answer_to(r#""late""#).await;
        assert_eq!(answer["result"]["by"], "the only one", "{front:?} {back:?}: {answer}");
    }
}

#[tokio::test]
async fn a_server_request_without_a_call_in_flight_is_rejected_if_two_clients_used_the_connection() {
    for (front, back) in pairs().filter(|(front, back)| Front::SHARED.contains(front) && Back::SHARED.contains(back)) {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(everything()).await;
        stage.peer(everything()).await.call("a_echo", json!({})).await;
        let rest = format!(r#","params":{PARAMS},"id":"late","when":"cancelled""#);
        let call = peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, &rest)).await;
        await_arrivals(&peer, "a", 2).await;
        peer.cancel(call).await;
        let answer = stage.backend.answer_to(r#""late""#).await;
        assert_eq!(answer["error"]["code"], 1503, "{front:?} {back:?}: {answer}");
        assert_eq!(peer.pending_server_requests().await, NONE, "{front:?} {back:?}");
    }
}

/// The request may be about the resource that the other client watches.
#[tokio::test]
async fn a_server_request_without_a_call_in_flight_is_rejected_if_another_client_subscribes() {
    let stage = Stage::start(Front::Http, Back::Stdio).await;
    let (peer, other) = (stage.peer(everything()).await, stage.peer(everything()).await);
    let subscribed = other.request("resources/subscribe", json!({"uri": "a+note:///alpha"})).await;
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    let rest = format!(r#","params":{PARAMS},"id":"late","when":"cancelled""#);
    let call = peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, &rest)).await;
    await_arrivals(&peer, "a", 1).await;
    peer.cancel(call).await;
    let answer = stage.backend.answer_to(r#""late""#).await;
    assert_eq!(answer["error"]["code"], 1503, "{answer}");
    assert_eq!(peer.pending_server_requests().await, NONE);
    assert_eq!(other.pending_server_requests().await, NONE);
}

#[tokio::test]
async fn a_server_request_is_rejected_with_the_capability_that_the_client_lacks() {
    let url = url_mode("e");
    let form = r#"{"message":"m","requestedSchema":{"type":"object","properties":{}}}"#;
    let tools = r#"{"messages":[],"maxTokens":1,"tools":[]}"#;
    for (front, back) in [(Front::Http, Back::Post), (Front::Sse, Back::Stdio), (Front::Stdio, Back::Get)] {
        let stage = Stage::start(front, back).await;
        for (capabilities, method, params, missing) in [
            (json!({}), SAMPLING, "{}", Some("sampling")),
            (json!({ "elicitation": {} }), SAMPLING, "{}", Some("sampling")),
            (json!({ "sampling": {} }), SAMPLING, "{}", None),
            (json!({ "sampling": {} }), SAMPLING, tools, Some("sampling.tools")),
            (json!({ "sampling": { "tools": {} } }), SAMPLING, tools, None),
            (json!({ "sampling": {} }), ELICITATION, form, Some("elicitation")),
            (json!({ "elicitation": {} }), ELICITATION, form, None),
            (json!({ "elicitation": {} }), ELICITATION, &url, Some("elicitation.url")),
            (json!({ "elicitation": { "form": {} } }), ELICITATION, &url, Some("elicitation.url")),
            (json!({ "elicitation": { "url": {} } }), ELICITATION, &url, None),
            (json!({ "elicitation": { "url": {} } }), ELICITATION, form, Some("elicitation.form")),
        ] {
            let peer = stage.peer(capabilities.clone()).await;
            let arguments = stage.backend.arguments(method, &format!(r#","params":{params}"#));
            let call = peer.begin_call("a_request", &arguments).await;
            if missing.is_none() {
                let server_request = peer.server_request(method).await;
                peer.reply(&server_request, r#""result":{}"#).await;
            }
            let received = outcome(&peer.text_of(call).await);
            let message = received["error"]["message"].as_str().unwrap_or_default();
            let context = format!("{capabilities} {method} {params}: {received}");
            // A client that declares the other mode knows the method, so the params are at fault.
            let is_other_mode = method == ELICITATION && capabilities["elicitation"].is_object();
            let code = if is_other_mode { -32602 } else { -32601 };
            match missing {
                Some(missing) => assert!(received["error"]["code"] == code && message.contains(missing), "{context}"),
                None => assert_eq!(received["result"], json!({}), "{context}"),
            }
            assert_eq!(peer.pending_server_requests().await, NONE, "{context}");
        }
    }
}

/// Returns the capabilities that the shared link declared to the server.
async fn declared(peer: &Client) -> Value {
    outcome(&peer.call_text("a_hello", "{}").await)["capabilities"].clone()
}

#[tokio::test]
async fn roots_list_is_answered_from_the_configuration_alone() {
    let roots = json!([{ "uri": "file:///srv/a", "name": "A" }, "file:///srv/b"]);
    for back in Back::ALL {
        for (members, expected) in [
            (
                json!({ "roots": roots }),
                Some(json!([{ "uri": "file:///srv/a", "name": "A" }, { "uri": "file:///srv/b" }])),
            ),
            (json!({}), None),
        ] {
            let stage = Stage::configured(Front::Http, back, json!({}), members).await;
            let peer = stage.peer(everything()).await;
            assert_eq!(declared(&peer).await["roots"].is_object(), expected.is_some(), "{back:?}");
            let received = outcome(&peer.call_text("a_request", &stage.backend.arguments("roots/list", "")).await);
            match expected {
                Some(roots) => assert_eq!(received, json!({ "result": { "roots": roots } }), "{back:?}"),
                None => assert_eq!(received["error"]["code"], -32601, "{back:?}: {received}"),
            }
            assert_eq!(peer.pending_server_requests().await, NONE, "{back:?}");
        }
    }
}

#[tokio::test]
async fn client_capabilities_are_declared_to_the_server_as_configured() {
    for (members, sampling, elicitation) in [
        (json!({}), true, true),
        (json!({ "declare": ["sampling"] }), true, false),
        (json!({ "declare": ["elicitation"] }), false, true),
        (json!({ "declare": [] }), false, false),
    ] {
        let stage = Stage::configured(Front::Http, Back::Stdio, json!({}), members.clone()).await;
        let peer = stage.peer(everything()).await;
        let declared = declared(&peer).await;
        let received = (declared["sampling"].is_object(), declared["elicitation"].is_object());
        assert_eq!(received, (sampling, elicitation), "{members}: {declared}");
        assert!(declared["roots"].is_null(), "{members}: {declared}");
    }
}

/// The request is rejected even if the client supports it, because the gateway did not declare it to the server.
#[tokio::test]
async fn a_server_request_for_an_undeclared_capability_is_rejected() {
    for back in Back::ALL {
        for (session, method, capability) in [
            ("shared", SAMPLING, "sampling"),
            ("shared", ELICITATION, "elicitation"),
            ("per-client", SAMPLING, "sampling"),
        ] {
            let members = json!({ "declare": [], "session": session });
            let stage = Stage::configured(Front::Http, back, json!({}), members).await;
            let peer = stage.peer(everything()).await;
            let call = peer.begin_call("a_request", &stage.backend.arguments(method, r#","params":{}"#)).await;
            let received = outcome(&peer.text_of(call).await);
            let message = received["error"]["message"].as_str().unwrap_or_default();
            assert!(
                received["error"]["code"] == -32601 && message.contains(capability),
                "{back:?} {session}: {received}"
            );
            assert_eq!(peer.pending_server_requests().await, NONE, "{back:?} {session}");
        }
    }
}

#[tokio::test]
async fn a_ping_of_a_server_is_answered_by_the_gateway() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(json!({})).await;
        let received = peer.call_text("a_request", &stage.backend.arguments("ping", r#","id":"p""#)).await;
        assert_eq!(received, r#"{"result":{}}"#, "{front:?} {back:?}");
        // A ping is answered even if no call is in flight.
        let rest = r#","id":"q","when":"cancelled""#;
        let call = peer.begin_call("a_request", &stage.backend.arguments("ping", rest)).await;
        await_arrivals(&peer, "a", 2).await;
        peer.cancel(call).await;
        assert_eq!(stage.backend.answer_to(r#""q""#).await["result"], json!({}), "{front:?} {back:?}");
        assert_eq!(peer.pending_server_requests().await, NONE, "{front:?} {back:?}");
    }
}

/// A method that no version defines is left to the client.
#[tokio::test]
async fn a_server_request_of_an_unknown_method_is_forwarded_unchanged() {
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(json!({})).await;
        let rest = format!(r#","params":{PARAMS}"#);
        let call = peer.begin_call("a_request", &stage.backend.arguments("vendor/request", &rest)).await;
        let server_request = peer.server_request("vendor/request").await;
        assert_eq!(server_request.raw("params"), PARAMS, "{front:?} {back:?}");
        peer.reply(&server_request, ERROR).await;
        assert_eq!(peer.text_of(call).await, format!("{{{ERROR}}}"), "{front:?} {back:?}");
    }
}

#[tokio::test]
async fn progress_of_a_server_request_returns_under_the_token_of_the_server() {
    const PROGRESS: &str = r#""jsonrpc":"2.0","method":"notifications/progress","params""#;
    let progress = |token: &str| format!(r#"{{"progressToken":{token},"progress":1.0,"x":"\u00e9"}}"#);
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(everything()).await;
        for token in [r#""t-\u0031""#, "41"] {
            let params = format!(r#"{{"maxTokens":1.0,"_meta":{{"a":1.0,"progressToken":{token},"b":"\/"}}}}"#);
            let rest = format!(r#","params":{params}"#);
            let call = peer.begin_call("a_request", &stage.backend.arguments(SAMPLING, &rest)).await;
            let server_request = peer.server_request(SAMPLING).await;
            let meta = raw_member(&server_request.raw("params"), "_meta").expect("the params have _meta");
            let minted = raw_member(&meta, "progressToken").expect("the _meta has a token");
            assert_ne!(minted, token, "the token of the server stays there");
            assert_eq!(server_request.raw("params"), params.replace(token, &minted), "{front:?} {back:?}");
            peer.write(&format!("{{{PROGRESS}:{}}}", progress(&minted))).await;
            let is_it = |message: &str| raw_member(message, "params") == Some(progress(token));
            stage.backend.await_message(&format!("progress of {token}"), is_it).await;
            // A server's progress token has no effect if a client uses it.
            peer.write(&format!("{{{PROGRESS}:{}}}", progress(token))).await;
            peer.reply(&server_request, RESULT).await;
            peer.text_of(call).await;
        }
        let received = stage.backend.received();
        let progress = received.iter().filter(|message| message.contains("notifications/progress"));
        assert_eq!(progress.count(), 2, "{front:?} {back:?}: {received:?}");
    }
}

#[tokio::test]
async fn the_completion_of_a_url_elicitation_reaches_only_its_client() {
    const COMPLETE: &str = "notifications/elicitation/complete";
    for front in Front::SHARED {
        for back in Back::ALL {
            let stage = Stage::start(front, back).await;
            let (elicited, other) = (stage.peer(everything()).await, stage.peer(everything()).await);
            let rest = format!(r#","params":{}"#, url_mode("e-1"));
            let call = elicited.begin_call("a_request", &stage.backend.arguments(ELICITATION, &rest)).await;
            let server_request = elicited.server_request(ELICITATION).await;
            assert_eq!(server_request.raw("params"), url_mode("e-1"));
            elicited.reply(&server_request, r#""result":{"action":"accept"}"#).await;
            elicited.text_of(call).await;
            // The notification may come any time later, here while another client has a call in flight.
            let params = r#"{"elicitationId":"e-1","x-vendor":1.0}"#;
            let arguments = format!(r#"{{"method":"{COMPLETE}","via":"get","params":{params}}}"#);
            other.call_text("a_notify", &arguments).await;
            let received = elicited.notification(COMPLETE).await;
            assert_eq!((received.way, received.raw("params").as_str()), (Way::Session, params), "{front:?} {back:?}");
            assert!(
                other.pending_messages().await.iter().all(|message| message["method"] != COMPLETE),
                "{front:?} {back:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_unknown_notification_reaches_the_client_of_its_call() {
    const THING: &str = "vendor/thing";
    for (front, back) in pairs() {
        let stage = Stage::start(front, back).await;
        let peer = stage.peer(json!({})).await;
        for params in [Some(PARAMS), None] {
            let rest = params.map_or(String::new(), |params| format!(r#","params":{params}"#));
            let arguments = stage.backend.arguments(THING, &format!(r#","count":2,"then":"release"{rest}"#));
            let call = peer.begin_call("a_notify", &arguments).await;
            for _ in 0..2 {
                let received = peer.notification(THING).await;
                assert_eq!(raw_member(&received.text, "params").as_deref(), params, "{front:?} {back:?}");
            }
            peer.call_text("a_release", "{}").await;
            peer.text_of(call).await;
        }
    }
}

/// A notification without a certain recipient is dropped.
#[tokio::test]
async fn an_unknown_notification_without_attribution_is_dropped() {
    for back in Back::SHARED {
        let stage = Stage::start(Front::Http, back).await;
        let (mut busy, mut notifying) = (stage.peer(json!({})).await, stage.peer(json!({})).await);
        busy.begin_call("a_hang", "{}").await;
        await_arrivals(&busy, "a", 1).await;
        let arguments = stage.backend.arguments("vendor/thing", r#","then":"release""#);
        let call = notifying.begin_call("a_notify", &arguments).await;
        // Both calls are in flight when the notification arrives.
        stage.metric_becomes(r#"goblin_events_total{kind="backend_notification"}"#, 1).await;
        notifying.call_text("a_release", "{}").await;
        notifying.text_of(call).await;
        for peer in [&mut busy, &mut notifying] {
            let others = peer.pending_messages().await;
            assert!(others.iter().all(|message| message["method"] != "vendor/thing"), "{back:?}: {others:?}");
        }
    }
}

/// A client that reads only the stream of its call receives the request there.
#[tokio::test]
async fn a_server_request_reaches_a_client_without_a_session_stream() {
    for back in Back::ALL {
        let stage = Stage::start(Front::Http, back).await;
        drop(stage.peer(everything()).await);
        let client = stage.client(everything()).await;
        let arguments = stage.backend.arguments(SAMPLING, r#","params":{},"id":5"#);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"a_request","arguments":{arguments}}}}}"#
        );
        let (_, mut stream) = client.open(body).await;
        let server_request = stream.await_method(SAMPLING).await;
        let answer = client.post(json!({"jsonrpc": "2.0", "id": server_request["id"], "result": {}}).to_string()).await;
        assert_eq!(answer.status, 202, "{back:?}: {answer:?}");
        let received = stream.next().await.expect("the answer");
        assert_eq!(received["result"]["content"][0]["text"], r#"{"result":{}}"#, "{back:?}");
        // The session continues to work.
        client.call("a_echo", json!({})).await;
    }
}
