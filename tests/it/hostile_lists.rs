//! Backends with too large lists, or with too frequent changes.
//!
//! The gateway keeps only the entries it needs, and a bounded amount of old versions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::harness::{Gateway, eventually, fixture_server};
use crate::hostile::{Attack, HEALTHY, await_limit, counter, limit_hits};
use crate::raw_server::response;
use crate::scripted_backend::{Reply, Scripted, Seen};
use crate::support::{await_log, http_server};

const EVENTS: &str = "Content-Type: text/event-stream\r\n";
const CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
const MIB: usize = 1024 * 1024;

/// Returns a response together with a `list_changed` notification.
fn changed(seen: &Seen, result: &str) -> Reply {
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, seen.message["id"]);
    Reply::Bytes(response("200 OK", EVENTS, &format!("data: {CHANGED}\n\ndata: {answer}\n\n")))
}

fn answered(seen: &Seen, result: &str) -> Reply {
    let answer = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, seen.message["id"]);
    Reply::Bytes(response("200 OK", "Content-Type: application/json\r\n", &answer))
}

fn hello(seen: &Seen) -> Reply {
    seen.result(json!({
        "protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": "s", "version": "0"},
    }))
}

fn tool(name: &str, description: &str) -> String {
    format!(r#"{{"name":"{name}","description":"{description}","inputSchema":{{"type":"object"}}}}"#)
}

/// Starts a backend that changes its tools with every fetch. Each of two pages has `garbage` bytes around a tool of
/// `entry` bytes.
async fn changing(garbage: usize, entry: usize) -> Scripted {
    let (garbage, description) = ("x".repeat(garbage), "y".repeat(entry));
    Scripted::start(move |seen, before| match seen.method() {
        "initialize" => hello(seen),
        "tools/list" if before.is_multiple_of(2) => {
            let tool = tool(&format!("first_{before}"), &description);
            answered(seen, &format!(r#"{{"tools":[{tool}],"nextCursor":"2","garbage":"{garbage}"}}"#))
        }
        "tools/list" => {
            let tool = tool(&format!("second_{before}"), &description);
            changed(seen, &format!(r#"{{"tools":[{tool}],"garbage":"{garbage}"}}"#))
        }
        _ => seen.legacy(),
    })
    .await
}

/// Begins a list of each of `count` versions of the tools, and never finishes it. The cursor of a page names its version.
/// The first version may not contain the tools of the backend yet.
async fn begin_lists(gateway: &Gateway, count: usize) {
    let client = gateway.client().await;
    let mut last = Value::Null;
    for version in 1..=count {
        last = eventually(&format!("version {version} is listed"), || async {
            let page = client.request("tools/list", json!({})).await;
            let cursor = page["result"]["nextCursor"].clone();
            assert!(cursor.is_string(), "{}", page["error"]);
            (cursor != last).then_some(cursor)
        })
        .await;
    }
}

async fn gateway_with(backend: &Scripted) -> Gateway {
    let servers = json!({ HEALTHY: fixture_server(&[]), "hostile": http_server(backend.address) });
    Gateway::start(json!({ "policies": { "pageSize": 1 }, "mcpServers": servers })).await
}

#[tokio::test]
async fn hard2_a_small_entry_does_not_keep_its_large_page_in_memory() {
    let backend = changing(3 * MIB, 10).await;
    let gateway = gateway_with(&backend).await;
    let attack = Attack::begin("list pages full of garbage", &gateway).await;
    begin_lists(&gateway, 20).await;
    // Each version has six MiB of pages, and cursors keep sixteen versions.
    attack.end(120).await;
}

#[tokio::test]
async fn hard2_versions_kept_for_cursors_are_bounded_in_bytes() {
    let backend = changing(0, 3 * MIB).await;
    let gateway = gateway_with(&backend).await;
    let attack = Attack::begin("large lists that change again and again", &gateway).await;
    begin_lists(&gateway, 20).await;
    let client = gateway.client().await;
    assert!(limit_hits(&client, "listBytes").await > 0);
    attack.end(260).await;
}

#[tokio::test]
async fn hard2_a_list_beyond_the_limit_is_reported_and_the_last_one_stays() {
    let mode = Arc::new(AtomicUsize::new(0));
    let (chosen, large) = (Arc::clone(&mode), "y".repeat(3 * MIB));
    let backend = Scripted::start(move |seen, before| match (seen.method(), chosen.load(Ordering::SeqCst)) {
        ("initialize", _) => hello(seen),
        ("tools/list", 0) => answered(seen, &format!(r#"{{"tools":[{}]}}"#, tool("t", ""))),
        ("tools/list", 1) => {
            let tool = tool(&format!("large_{before}"), &large);
            answered(seen, &format!(r#"{{"tools":[{tool}],"nextCursor":"{before}"}}"#))
        }
        ("tools/list", _) => answered(seen, &format!(r#"{{"tools":[{},{}]}}"#, tool("t", ""), tool("u", ""))),
        ("tools/call", _) => changed(seen, r#"{"content":[]}"#),
        _ => seen.legacy(),
    })
    .await;
    let servers = json!({ HEALTHY: fixture_server(&[]), "hostile": http_server(backend.address) });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("hostile_t").await;
    let attack = Attack::begin("a list without end", &gateway).await;
    mode.store(1, Ordering::SeqCst);
    client.call("hostile_t", json!({})).await;
    await_limit(&client, "listBytes").await;
    await_log(&gateway, &["hostile", "tools/list", "listBytes, 64 MiB"]).await;
    let reported = eventually("the status reports the limit", || async {
        let status = get_admin(&client, "/api/servers").await;
        status.body.contains("listBytes").then_some(status.body)
    });
    assert!(reported.await.contains("shorten its descriptions"), "the cure");
    assert!(client.tool_names().await.contains(&"hostile_t".to_owned()), "the last list stays");
    mode.store(2, Ordering::SeqCst);
    let answer: Value = client.try_call("hostile_t", json!({})).await;
    assert!(answer["error"].is_null(), "{answer}");
    client.await_tool("hostile_u").await;
    // A fetch that began before the change of the mode may end with large tools. The next fetch replaces them.
    eventually("the memory of the large lists is free", || async {
        let reserved = counter(&client, "goblin_memory_reserved_bytes", r#"kind="listings""#).await;
        (reserved < MIB as u64).then_some(())
    })
    .await;
    attack.end(300).await;
}
