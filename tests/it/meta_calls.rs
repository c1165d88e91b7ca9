//! A call with `call_tool` equals the direct call: the same result, byte for byte, and the same messages in between.
//!
//! Timeouts, progress, cancellation, tasks and input requests follow the rules of the called tool.

use goblin_fixture::lossless::LOSSLESS;
use serde_json::{Value, json};

use crate::client::Client;
use crate::client::inbox::raw_member;
use crate::client::modern::Draft;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::meta_client::{clients_of_each_kind, text};
use crate::suspended_calls::{ELICITATION, required, retry, server_request_call, to_all};
use crate::transport_pairs::Back;
use crate::transport_pairs::Scene;

/// Returns the params of a call, direct and with `call_tool`.
fn both(tool: &str, arguments: &Value) -> [Value; 2] {
    [
        json!({"name": tool, "arguments": arguments}),
        json!({"name": "call_tool", "arguments": {"name": tool, "arguments": arguments}}),
    ]
}

async fn gateway() -> (Gateway, HttpFixture) {
    let http = HttpFixture::start(&[]).await;
    let mut strict = fixture_server(&[]);
    strict["validate"] = json!(true);
    strict["tools"] = json!({ "timeouts": { "hang": "200ms" } });
    let gateway =
        Gateway::with_servers(json!({ "a": fixture_server(&[]), "h": http.server(), "strict": strict })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("h_echo").await;
    client.await_tool("strict_echo").await;
    (gateway, http)
}

#[tokio::test]
async fn meta5_call_tool_returns_the_results_and_errors_of_a_direct_call_byte_for_byte() {
    let (gateway, _http) = gateway().await;
    let (session, stateless) = (gateway.client().await, Client::modern(gateway.address, json!({})));
    for (tool, arguments) in [
        ("a_lossless", json!({})),
        ("h_lossless", json!({})),
        ("a_add", json!({"a": 1, "b": 2})),
        ("a_fail", json!({})),
        ("a_error", json!({"code": -32050, "message": "no", "data": {"x": [1.5]}})),
        ("h_error", json!({"code": -32601, "message": "no"})),
        ("a_link", json!({"uri": "note:///alpha"})),
        ("strict_add", json!({"a": "no number"})),
    ] {
        let mut seen = Vec::new();
        for params in both(tool, &arguments) {
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
            let old = session.post(body.to_string()).await.messages().pop().expect("an answer");
            let new = stateless.send_draft(&Draft::new("tools/call", params)).await;
            seen.push((old, new.status, new.messages().pop().expect("an answer")));
        }
        assert_eq!(seen[0], seen[1], "{tool}");
        if tool.ends_with("lossless") {
            assert!(seen[1].0.contains(LOSSLESS) || tool.starts_with("h_"), "{}", seen[1].0);
        }
    }
}

#[tokio::test]
async fn meta5_call_tool_applies_the_timeout_of_the_called_tool() {
    let (gateway, _http) = gateway().await;
    let client = gateway.client().await;
    let answer = client.request("tools/call", both("strict_hang", &json!({}))[1].clone()).await;
    let data = json!({"code": "TIMEOUT", "serverId": "strict", "method": "tools/call"});
    assert_eq!(answer["error"]["data"], data, "{answer}");
}

#[tokio::test]
async fn meta5_call_tool_forwards_the_arguments_byte_for_byte() {
    let (gateway, _http) = gateway().await;
    let client = gateway.client().await;
    let odd =
        r#"{"n":[1.0,1e3,-0,123456789012345678901234567890],"caf\u00e9":"\/ 😀","name":"call_tool","arguments":{}}"#;
    for spelled in [
        format!(r#"{{"name":"a_echo","arguments":{odd}}}"#),
        format!(r#"{{ "arguments" : {odd} , "name" : "a\u005fecho" }}"#),
    ] {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"arguments":{spelled},"name":"call_tool"}}}}"#
        );
        let answer = client.post(body).await.body;
        let result = raw_member(&answer, "result").unwrap_or_else(|| panic!("{answer}"));
        assert_eq!(raw_member(&result, "structuredContent").as_deref(), Some(odd));
    }
    // A call without arguments passes none.
    let echoed = client.call("call_tool", json!({"name": "a_echo"})).await;
    assert_eq!(echoed["structuredContent"], json!({}));
}

#[tokio::test]
async fn meta5_call_tool_works_over_every_transport() {
    let config = json!({ "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config.clone()).await;
    for client in clients_of_each_kind(&gateway, &config, &["a_echo"]).await {
        let sum = client.call("call_tool", json!({"name": "a_add", "arguments": {"a": 2, "b": 3}})).await;
        assert_eq!(sum["structuredContent"], json!({"sum": 5}), "{}", client.name);
        let failed = client.call("call_tool", json!({"name": "a_fail"})).await;
        assert_eq!(failed["isError"], true, "{failed}");
    }
}

#[tokio::test]
async fn meta5_call_tool_reports_progress_with_the_token_of_the_client() {
    let (gateway, _http) = gateway().await;
    let client = gateway.client().await;
    for server in ["a", "h"] {
        let mut params = both(&format!("{server}_progress"), &json!({"steps": 3, "delayMs": 1}))[1].clone();
        params["_meta"] = json!({"progressToken": "mine"});
        let body = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params});
        let messages = client.post(body.to_string()).await.messages();
        let messages: Vec<Value> = messages.iter().map(|text| serde_json::from_str(text).expect("JSON")).collect();
        let (answer, progress) = messages.split_last().expect("an answer");
        assert_eq!(text(&answer["result"]), "3 steps", "{answer}");
        assert_eq!(progress.len(), 3, "{progress:?}");
        assert!(progress.iter().all(|notification| notification["params"]["progressToken"] == "mine"), "{progress:?}");
    }
}

#[tokio::test]
async fn meta5_cancelling_call_tool_cancels_the_call_at_the_server() {
    let (gateway, _http) = gateway().await;
    let client = gateway.client().await;
    for server in ["a", "h"] {
        let before = client.call_text(&format!("{server}_call_count"), json!({})).await;
        let body = json!({"jsonrpc": "2.0", "id": server, "method": "tools/call", "params": both(&format!("{server}_hang"), &json!({}))[1]});
        let hanging = tokio::spawn({
            let client = client.clone();
            async move { client.post(body.to_string()).await }
        });
        let before: u64 = before.parse().expect("a number");
        let queries = std::sync::atomic::AtomicU64::new(0);
        eventually("the call has arrived", || async {
            let own = queries.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            let count: u64 =
                client.call_text(&format!("{server}_call_count"), json!({})).await.parse().expect("a number");
            (count == before + own + 1).then_some(())
        })
        .await;
        client.notify("notifications/cancelled", json!({"requestId": server, "reason": "enough"})).await;
        eventually("the server received the cancellation", || async {
            (client.call_text(&format!("{server}_cancelled"), json!({})).await != "[]").then_some(())
        })
        .await;
        hanging.abort();
    }
}

#[tokio::test]
async fn meta5_call_tool_can_create_a_task() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&["--tasks"]) })).await;
    let client = gateway.client_seeing("a_task_slow").await;
    let mut params = both("a_task_slow", &json!({"text": "done", "ms": 1}))[1].clone();
    params["task"] = json!({});
    let begun = client.request("tools/call", params).await;
    let id = begun["result"]["task"]["taskId"].as_str().unwrap_or_else(|| panic!("no task in {begun}"));
    let done = client.request("tasks/result", json!({ "taskId": id })).await;
    assert_eq!(text(&done["result"]), "done", "{done}");
}

#[tokio::test]
async fn meta5_client_headers_name_call_tool_and_server_headers_name_the_called_tool() {
    let server = HttpFixture::start(&["--era", "modern", "--header-tools"]).await;
    let gateway = Gateway::with_servers(json!({ "m": server.server() })).await;
    let stateless = Client::modern(gateway.address, json!({}));
    stateless.await_tool("m_headed").await;
    let params = both("m_headed", &json!({"region": "north", "priority": 3}))[1].clone();
    let draft = Draft::new("tools/call", params);
    assert!(draft.headers.contains(&("mcp-name".to_owned(), "call_tool".to_owned())));
    let answer = stateless.send_draft(&draft).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.body;
    assert!(body.contains("north") && body.contains("headed"), "{body}");
    assert!(!body.contains("call_tool"), "{body}");
    let wrong = stateless.send_draft(&draft.with("mcp-name", "m_headed")).await;
    assert_eq!(wrong.status, 400, "{wrong:?}");
}

#[tokio::test]
async fn meta5_a_call_that_requires_input_continues_with_call_tool() {
    for back in [Back::Stdio, Back::Post] {
        let scene = Scene::start(back, json!({}), json!({})).await;
        let inner = server_request_call(&scene.backend, ELICITATION, r#","params":{"message":"m"}"#);
        let call = json!({"name": "call_tool", "arguments": inner});
        let (input_requests, state) = required(&scene.client.request("tools/call", call.clone()).await);
        let response = json!({"action": "accept", "content": {"n": 1}});
        // The state is bound to this call.
        let other = json!({"name": "call_tool", "arguments": {"name": "a_echo"}});
        let rejected =
            scene.client.request("tools/call", retry(&other, to_all(&input_requests, response.clone()), &state)).await;
        assert!(rejected["error"].is_object(), "{rejected}");
        let done =
            scene.client.request("tools/call", retry(&call, to_all(&input_requests, response.clone()), &state)).await;
        let outcome: Value = serde_json::from_str(text(&done["result"])).expect("JSON");
        assert_eq!(outcome, json!({ "result": response }), "{back:?}");
        assert_eq!(scene.runs().await, 1, "{back:?}: the tool ran once");
    }
}
