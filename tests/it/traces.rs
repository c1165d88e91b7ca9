//! Traces: the context of clients reaches servers, and each call is a span if a collector is configured.
//!
//! An unreachable collector costs no call.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::raw_server::{Acceptor, read_request, response};
use crate::scrape::{find_metric, gauge};
use crate::support::http_server;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The head of a POST, in lower case, and its body.
type Post = (String, Value);

/// A recorder of all requests. It is both a server with one tool, `t`, and a collector.
struct Recorder {
    address: SocketAddr,
    posts: Arc<Mutex<Vec<Post>>>,
    _acceptor: Acceptor,
}

impl Recorder {
    async fn start() -> Recorder {
        let posts: Arc<Mutex<Vec<Post>>> = Arc::default();
        let kept = Arc::clone(&posts);
        let acceptor = Acceptor::start(move |mut stream| {
            let kept = Arc::clone(&kept);
            async move {
                let Some((head, body)) = read_request(&mut stream).await else { return };
                let message: Value = serde_json::from_slice(&body).unwrap_or_default();
                let answer = answer(&head, &message);
                kept.lock().expect("no test panics here").push((head.to_ascii_lowercase(), message));
                // A disconnected peer only misses its own response.
                let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, &answer).await;
            }
        });
        let acceptor = acceptor.await;
        Recorder { address: acceptor.address, posts, _acceptor: acceptor }
    }

    fn calls(&self) -> Vec<Post> {
        let posts = self.posts.lock().expect("no test panics here");
        posts.iter().filter(|(_, message)| message["method"] == "tools/call").cloned().collect()
    }

    fn spans(&self) -> Vec<Value> {
        let posts = self.posts.lock().expect("no test panics here");
        let traces = posts.iter().filter(|(head, _)| head.starts_with("post /v1/traces "));
        let spans = |message: &Value| message["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().cloned();
        traces.filter_map(|(_, message)| spans(message)).flatten().collect()
    }
}

fn answer(head: &str, message: &Value) -> Vec<u8> {
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "recorder", "version": "0"},
        }),
        Some("tools/list") => json!({ "tools": [{ "name": "t", "inputSchema": { "type": "object" } }] }),
        Some("tools/call") => json!({ "content": [] }),
        Some(_) => return response("202 Accepted", "", ""),
        None if head.starts_with("POST") => return response("200 OK", "Content-Type: application/json\r\n", "{}"),
        None => return response("405 Method Not Allowed", "", ""),
    };
    let body = json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string();
    response("200 OK", "Content-Type: application/json\r\n", &body)
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
}

/// Calls `r_t` with these headers and this `_meta` as text.
async fn call(client: &Client, headers: &[(&str, &str)], meta: &str) {
    let body = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{{"name":"r_t"{meta}}}}}"#);
    let answer = client.send(Method::POST, "/mcp", &[&client.headers()[..], headers].concat(), body).await;
    assert!(answer.json()["error"].is_null(), "{answer:?}");
}

#[tokio::test]
async fn the_trace_context_of_a_client_reaches_the_server_unchanged() {
    let recorder = Recorder::start().await;
    let gateway = Gateway::with_servers(json!({ "r": http_server(recorder.address) })).await;
    let client = gateway.client_seeing("r_t").await;
    let headers = [("traceparent", PARENT), ("tracestate", "a=1"), ("baggage", "user=me")];
    call(&client, &headers, "").await;
    call(&client, &headers, r#","_meta":{"x":1.0,"traceparent":"odd \u0041","baggage":"b=2"}"#).await;
    call(&client, &[("traceparent", "no such thing")], "").await;
    let calls = recorder.calls();
    let metas: Vec<_> = calls.iter().map(|(_, message)| message["params"]["_meta"].clone()).collect();
    let forwarded = json!({ "traceparent": PARENT, "tracestate": "a=1" });
    assert_eq!(metas, [forwarded, json!({ "x": 1.0, "traceparent": "odd A", "baggage": "b=2" }), Value::Null]);
    let sent = |name| calls.iter().map(|(head, _)| header(head, name)).collect::<Vec<_>>();
    assert_eq!(sent("traceparent"), [Some(PARENT.to_owned()), Some("odd a".to_owned()), None]);
    assert_eq!(sent("tracestate"), [Some("a=1".to_owned()), None, None]);
    assert_eq!(sent("baggage"), [None, Some("b=2".to_owned()), None]);
}

#[tokio::test]
async fn each_sampled_call_is_a_span_between_its_client_and_its_server() {
    let (recorder, collector) = (Recorder::start().await, Recorder::start().await);
    let mut gateway = Gateway::start(json!({
        "telemetry": { "otlp": format!("http://{}", collector.address) },
        "mcpServers": { "r": http_server(recorder.address), "a": fixture_server(&[]) },
    }))
    .await;
    let client = gateway.client_seeing("r_t").await;
    client.await_tool("a_fail").await;
    call(&client, &[("traceparent", PARENT), ("tracestate", "a=1")], "").await;
    call(&client, &[], "").await;
    // The parent span is not sampled, so the gateway does not sample its span either.
    let unsampled = PARENT.replace("-01", "-00");
    call(&client, &[], &format!(r#","_meta":{{"traceparent":"{unsampled}"}}"#)).await;
    client.call("a_fail", json!({})).await;
    client.request("tools/call", json!({ "name": "a_none" })).await;
    eventually("all spans have arrived", || async { (collector.spans().len() == 4).then_some(()) }).await;
    // The last spans are sent at the shutdown.
    client.request("resources/read", json!({ "uri": "a+note:///alpha" })).await;
    assert!(gateway.terminate().await.success());
    let (spans, calls) = (collector.spans(), recorder.calls());
    assert_eq!(spans.len(), 5, "{spans:?}");
    let named: Vec<_> = spans.iter().map(|span| span["name"].as_str().expect("a name")).collect();
    assert_eq!(named, ["tools/call r_t", "tools/call r_t", "tools/call a_fail", "tools/call a_none", "resources/read"]);
    let first = &spans[0];
    assert_eq!((&first["traceId"], &first["parentSpanId"]), (&json!(&PARENT[3..35]), &json!(&PARENT[36..52])));
    assert_eq!((&first["traceState"], &first["kind"]), (&json!("a=1"), &json!(2)));
    assert!(spans[1]["parentSpanId"].is_null() && spans[1]["traceId"] != first["traceId"], "{spans:?}");
    for (span, (head, message)) in spans.iter().zip(&calls[..2]) {
        let text = |key: &str| span[key].as_str().expect("a text");
        let expected = format!("00-{}-{}-01", text("traceId"), text("spanId"));
        assert_eq!(message["params"]["_meta"]["traceparent"], expected);
        assert_eq!(header(head, "traceparent"), Some(expected));
    }
    assert_eq!(calls[2].1["params"]["_meta"]["traceparent"], unsampled);
    let attribute = |span: &Value, name: &str| {
        let all = span["attributes"].as_array().expect("a list");
        let found = all.iter().find(|attribute| attribute["key"] == name);
        found
            .map(|attribute| attribute["value"]["stringValue"].as_str().expect("a text").to_owned())
            .unwrap_or_default()
    };
    for (span, server, outcome, error) in [
        (first, "r", "ok", ""),
        (&spans[2], "a", "tool_error", "tool_error"),
        (&spans[3], "", "error", "TOOL_NOT_FOUND"),
        (&spans[4], "a", "ok", ""),
    ] {
        let attributes = ["goblin.server", "goblin.outcome", "error.type"].map(|name| attribute(span, name));
        assert_eq!(attributes, [server, outcome, error], "{span}");
        assert_eq!(span["status"]["code"] == 2, !error.is_empty(), "{span}");
    }
    assert_eq!(attribute(first, "mcp.method.name"), "tools/call");
    assert_eq!(attribute(first, "jsonrpc.request.id"), "7");
}

#[tokio::test]
async fn an_unreachable_collector_is_logged_once_and_fails_no_call() {
    let gateway = Gateway::start(json!({
        "telemetry": { "otlp": "http://127.0.0.1:9" }, "mcpServers": { "a": fixture_server(&[]) },
    }))
    .await;
    let client = gateway.client_seeing("a_echo").await;
    eventually("two spans were rejected", || async {
        client.call("a_echo", json!({})).await;
        let count = find_metric(&client, r#"goblin_events_total{kind="spans_failed"}"#).await;
        count.filter(|count| *count >= 2)
    })
    .await;
    let warnings = gateway.log().into_iter().filter(|line| line.contains("WARN cannot send traces")).count();
    assert_eq!(warnings, 1, "{:?}", gateway.log());
    assert_eq!(gauge(&client, "goblin_requests_in_flight").await, 0);
}
