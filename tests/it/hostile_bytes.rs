//! Messages that are too deep, batches that are too long, and clients and backends that make the gateway store too
//! much.
//!
//! Each limit rejects one message and leaves its connection usable.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::hostile::{Attack, HEALTHY, await_limit, limit_hits};
use crate::raw_server::{RawServer, response};
use crate::scrape::gauge;
use crate::scripted_backend::Scripted;
use crate::support::{assert_error, http_server};

const MIB: usize = 1024 * 1024;
const DEEP: usize = 1_000_000;

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn assert_limit(answer: &Value, limit: &str, value: usize) {
    let data = assert_error(answer, 1429, "LIMIT_EXCEEDED");
    assert_eq!((&data["limit"], &data["value"]), (&json!(limit), &json!(value)), "{answer}");
    assert!(data["retryable"].is_null(), "the same message is too large the next time too");
}

/// Returns a call with this nesting depth, counting the message, its params, its arguments and their content.
fn deep_call(id: usize, depth: usize) -> String {
    let inner = nested(depth - 3);
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{HEALTHY}_echo","arguments":{{"x":{inner}}}}}}}"#
    )
}

async fn healthy() -> Gateway {
    Gateway::with_servers(json!({ HEALTHY: fixture_server(&[]) })).await
}

#[tokio::test]
async fn hard2_a_client_message_that_is_too_deep_reaches_no_backend() {
    let backend = Scripted::start(|seen, _| seen.legacy()).await;
    let gateway =
        Gateway::with_servers(json!({ HEALTHY: fixture_server(&[]), "s": http_server(backend.address) })).await;
    let client = gateway.client_seeing("s_t").await;
    let attack = Attack::begin("deep arguments", &gateway).await;
    let to_scripted = |depth| deep_call(7, depth).replace(&format!("{HEALTHY}_echo"), "s_t");
    for depth in [513, DEEP] {
        let answer = client.post(to_scripted(depth)).await;
        assert_eq!((answer.status, &answer.json()["id"]), (StatusCode::OK, &json!(7)));
        assert_limit(&answer.json(), "jsonDepth", 512);
    }
    assert!(backend.of("tools/call").is_empty());
    // The JSON parser of this test cannot read a response of that depth.
    let answer = client.post(deep_call(8, 512)).await.body;
    assert!(answer.contains(r#""id":8"#) && answer.contains("[[[["), "exactly so deep passes: {answer}");
    assert_eq!(limit_hits(&client, "jsonDepth").await, 2);
    attack.end(150).await;
}

#[tokio::test]
async fn hard2_the_depth_is_bounded_over_every_transport() {
    let gateway = healthy().await;
    gateway.client_seeing(&format!("{HEALTHY}_echo")).await;
    let sse = Client::sse(gateway.address).await.connected("2025-11-25").await;
    let rejected = sse.post(deep_call(7, 513)).await;
    assert_limit(&rejected.json(), "jsonDepth", 512);
    sse.works().await;
    let stdio = Client::stdio(json!({ "mcpServers": { HEALTHY: fixture_server(&[]) } })).connected("2025-11-25").await;
    stdio.write(&deep_call(7, DEEP)).await;
    assert_limit(&stdio.answer_to(7).await, "jsonDepth", 512);
    assert!(stdio.request("ping", json!({})).await["error"].is_null());
}

#[tokio::test]
async fn hard2_an_answer_that_is_too_deep_fails_its_call() {
    let backend = RawServer::start(|arguments| {
        let (id, deep) = (&arguments["id"], nested(DEEP));
        let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[],"x":{deep}}}}}"#);
        if arguments["stream"] == true {
            let note =
                format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"x":{}}}}}"#, nested(513));
            let events = format!("data: {note}\n\ndata: {answer}\n\n");
            return response("200 OK", "Content-Type: text/event-stream\r\n", &events);
        }
        response("200 OK", "Content-Type: application/json\r\n", &answer)
    })
    .await;
    let gateway =
        Gateway::with_servers(json!({ HEALTHY: fixture_server(&["--deep"]), "raw": http_server(backend.address) }))
            .await;
    let client = gateway.client_seeing("raw_t").await;
    let attack = Attack::begin("deep results", &gateway).await;
    let calls =
        [("raw_t", json!({})), ("raw_t", json!({ "stream": true })), ("healthy_deep", json!({ "depth": DEEP }))];
    for (tool, arguments) in calls {
        let answer = client.try_call(tool, arguments).await;
        let data = assert_error(&answer, 1502, "BACKEND_PROTOCOL");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| text.contains("jsonDepth is 512")), "{answer}");
        assert!(data["serverId"].is_string());
    }
    assert_eq!(limit_hits(&client, "jsonDepth").await, 4, "three answers and a notification");
    let shallow = client.try_call("healthy_deep", json!({ "depth": 100 })).await;
    assert!(shallow["error"].is_null(), "the link still works: {shallow}");
    attack.end(150).await;
}

#[tokio::test]
async fn hard2_a_batch_above_the_limit_gets_one_error() {
    let gateway = healthy().await;
    let client = gateway.client_of("2025-03-26").await;
    let attack = Attack::begin("a batch of a million numbers", &gateway).await;
    let ones = format!("[1{}]", ",1".repeat(MIB * 3 / 2));
    for _ in 0..5 {
        let answer = client.post(ones.clone()).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_limit(&answer.json(), "batchMessages", 100);
    }
    let pings = |count: usize| {
        let ping = |id| json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
        Value::from((0..count).map(ping).collect::<Vec<_>>()).to_string()
    };
    let answer = client.post(pings(100)).await.json();
    assert_eq!(answer.as_array().map(Vec::len), Some(100), "exactly so many fit");
    assert_limit(&client.post(pings(101)).await.json(), "batchMessages", 100);
    let sse = Client::sse(gateway.address).await.connected("2025-03-26").await;
    assert_limit(&sse.post(pings(101)).await.json(), "batchMessages", 100);
    sse.works().await;
    assert_eq!(limit_hits(&client, "batchMessages").await, 7);
    attack.end(150).await;
    let stdio = Client::stdio(json!({ "mcpServers": {} })).connected("2025-03-26").await;
    stdio.write(&ones).await;
    assert_limit(&stdio.message().await, "batchMessages", 100);
    assert!(stdio.request("ping", json!({})).await["error"].is_null());
}

/// Returns an `initialize` with capabilities and client info of this total size.
fn large_hello(bytes: usize) -> String {
    let info = r#"{"name":"x","version":"0"}"#;
    let capabilities = format!(r#"{{"x":"{}"}}"#, "y".repeat(bytes - info.len() - r#"{"x":""}"#.len()));
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{{"protocolVersion":"2025-11-25","capabilities":{capabilities},"clientInfo":{info}}}}}"#
    )
}

#[tokio::test]
async fn hard2_the_size_of_client_info_and_capabilities_is_bounded() {
    let gateway = healthy().await;
    let client = gateway.client_seeing(&format!("{HEALTHY}_echo")).await;
    let attack = Attack::begin("handshakes with large capabilities", &gateway).await;
    let (before, large) = (gauge(&client, "goblin_sessions_active").await, large_hello(3 * MIB));
    for _ in 0..50 {
        let answer = Client::new(gateway.address).post(large.clone()).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_limit(&answer.json(), "clientInfoBytes", 16 * 1024);
    }
    assert_eq!(gauge(&client, "goblin_sessions_active").await, before, "no session was begun");
    assert_limit(
        &Client::new(gateway.address).post(large_hello(16 * 1024 + 1)).await.json(),
        "clientInfoBytes",
        16 * 1024,
    );
    let fits = Client::new(gateway.address).post(large_hello(16 * 1024)).await.json();
    assert!(fits["error"].is_null(), "exactly so many fit: {fits}");
    let modern = Client::modern(gateway.address, json!({ "x": "y".repeat(16 * 1024) }));
    for (method, params) in [
        ("tools/call", json!({ "name": format!("{HEALTHY}_echo"), "arguments": {} })),
        ("subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } })),
    ] {
        let draft = modern.draft(method, params);
        assert_limit(&modern.send_draft(&draft).await.json(), "clientInfoBytes", 16 * 1024);
    }
    assert_eq!(limit_hits(&client, "clientInfoBytes").await, 53);
    attack.end(150).await;
    let mut stdio = Client::stdio(json!({ "mcpServers": {} }));
    stdio.write(&large_hello(MIB)).await;
    assert_limit(&stdio.message().await, "clientInfoBytes", 16 * 1024);
    stdio.initialize("2025-11-25").await;
}

#[tokio::test]
async fn hard2_d13_links_in_results_are_remembered_within_bounds() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let backend = RawServer::start(|arguments| {
        let call = CALLS.fetch_add(1, Ordering::SeqCst);
        let (count, bytes) = (arguments["count"].as_u64().unwrap_or(1), arguments["bytes"].as_u64().unwrap_or(1));
        let link = |number| {
            let uri = format!("made:{call}-{number}-{}", "z".repeat(usize::try_from(bytes).expect("small")));
            json!({ "type": "resource_link", "uri": uri, "name": "n" })
        };
        let content: Vec<_> = (0..count).map(link).collect();
        let answer = json!({ "jsonrpc": "2.0", "id": arguments["id"], "result": { "content": content } });
        response("200 OK", "Content-Type: application/json\r\n", &answer.to_string())
    })
    .await;
    let gateway =
        Gateway::with_servers(json!({ HEALTHY: fixture_server(&[]), "raw": http_server(backend.address) })).await;
    let client = gateway.client_seeing("raw_t").await;
    let attack = Attack::begin("links with long addresses", &gateway).await;
    for _ in 0..40 {
        client.call("raw_t", json!({ "bytes": 3 * MIB })).await;
    }
    assert_eq!(limit_hits(&client, "knownUriBytes").await, 40, "none of them is remembered");
    let uri_of = |result: &Value, index: usize| result["content"][index]["uri"].as_str().expect("a link").to_owned();
    let first = client.call("raw_t", json!({ "bytes": 100 })).await;
    let is_known = async |uri: String| {
        let answer = client.request("resources/read", json!({ "uri": uri })).await;
        answer["error"]["data"]["code"] != "RESOURCE_NOT_FOUND"
    };
    assert!(is_known(uri_of(&first, 0)).await, "a short link can be read");
    for _ in 0..3 {
        let many = client.call("raw_t", json!({ "bytes": 8000, "count": 100 })).await;
        assert!(is_known(uri_of(&many, 99)).await, "the newest is remembered");
    }
    await_limit(&client, "knownUriBytes").await;
    assert!(!is_known(uri_of(&first, 0)).await, "the oldest is forgotten");
    eventually("the bytes are counted", || async {
        let bytes = crate::hostile::counter(&client, "goblin_memory_reserved_bytes", r#"kind="known_uris""#).await;
        (bytes > 3 << 20 && bytes <= 4 << 20).then_some(())
    })
    .await;
    attack.end(150).await;
}
