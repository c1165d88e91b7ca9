//! Servers that do not announce the changes of their lists (D20). The gateway lists them again, so that a client sees
//! what it would see without the gateway.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::client::modern::everything;
use crate::harness::{Gateway, ROOT, TIMEOUT, eventually};
use crate::raw_server::response;
use crate::scripted_backend::{Reply, Scripted, Seen};
use crate::sdk::tool;
use crate::served::{Served, text};

/// A program of `tests/clients` that serves over HTTP.
pub struct SdkServer {
    _process: Child,
    pub url: String,
}

impl SdkServer {
    pub async fn start(program: &str, arguments: &[&str]) -> SdkServer {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{program} does not start: {error}"));
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let line = tokio::time::timeout(TIMEOUT, lines.next_line()).await.expect("an address in time");
        let line = line.expect("the line can be read").expect("the program listens");
        let url = line.strip_prefix("listening ").expect("the program prints its address").to_owned();
        SdkServer { _process: process, url }
    }
}

/// Returns the path of a program of `tests/clients`.
pub fn script(name: &str) -> String {
    Path::new(ROOT).join("tests/clients").join(name).display().to_string()
}

fn python(sdk: &str) -> String {
    tool(&format!("{sdk}/bin/python")).display().to_string()
}

/// Starts the growing server. Returns its entry in the configuration, and its process if it serves over HTTP.
pub async fn growing(sdk: &str, transport: &str, protocol: &str) -> (Value, Option<SdkServer>) {
    let (program, script) = (python(sdk), script("server_growing.py"));
    if transport == "stdio" {
        return (json!({"command": program, "args": [script, "--silent", "stdio"], "protocol": protocol}), None);
    }
    let server = SdkServer::start(&program, &[&script, "--silent", transport]).await;
    let kind = if transport == "sse" { "sse" } else { "http" };
    (json!({"url": server.url, "type": kind, "protocol": protocol}), Some(server))
}

/// Waits until a call succeeds and returns its text. A refresh may need a second when the machine is busy.
async fn call_appears(client: &Client, name: &str) -> String {
    eventually(&format!("{name} can be called"), || async {
        let answer = client.try_call(name, json!({})).await;
        answer["result"]["content"][0]["text"].as_str().map(str::to_owned)
    })
    .await
}

async fn resource_appears(client: &Client, uri: &str) {
    eventually(&format!("{uri} is listed"), || async {
        let listed = client.list("resources/list", "resources").await;
        listed.iter().any(|resource| resource["uri"] == uri).then_some(())
    })
    .await;
}

#[tokio::test]
async fn d20_a_client_sees_what_a_silent_server_of_the_python_sdk_adds() {
    for (sdk, transport, protocol) in [
        ("py1", "stdio", "auto"),
        ("py1", "http", "auto"),
        ("py1", "sse", "auto"),
        ("py2", "http", "legacy"),
        ("py2", "http", "modern"),
        ("py2", "stdio", "modern"),
    ] {
        let (server, _process) = growing(sdk, transport, protocol).await;
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        let context = format!("{sdk} {transport} {protocol}");
        let listener = Client::new(gateway.address).listening(json!({})).await;
        let legacy = gateway.client_seeing("a_grow").await;
        let modern = Client::modern(gateway.address, everything());
        // A client lists after a call.
        legacy.call_text("a_grow", json!({"name": "one"})).await;
        legacy.await_tool("a_one").await;
        resource_appears(&legacy, "a+grown://one").await;
        assert_eq!(legacy.call_text("a_one", json!({})).await, "one works", "{context}");
        // Another client, that only listens, is notified.
        listener.notification("notifications/tools/list_changed").await;
        listener.notification("notifications/resources/list_changed").await;
        // A client uses a new name without listing.
        modern.call_text("a_grow", json!({"name": "two"})).await;
        assert_eq!(call_appears(&modern, "a_two").await, "two works", "{context}");
        let read = eventually("the resource can be read", || async {
            let answer = modern.request("resources/read", json!({"uri": "a+grown://two"})).await;
            answer["result"]["contents"][0]["text"].as_str().map(str::to_owned)
        });
        assert_eq!(read.await, "text of two", "{context}");
        modern.await_tool("a_two").await;
        let got = eventually("the prompt is offered", || async {
            let answer = legacy.request("prompts/get", json!({"name": "a_two"})).await;
            answer["result"]["messages"][0]["content"]["text"].as_str().map(str::to_owned)
        });
        assert_eq!(got.await, "two works", "{context}");
        gateway.client().await.await_tool("a_two").await;
    }
}

#[tokio::test]
async fn d20_the_meta_tools_see_what_a_silent_server_adds() {
    let (server, _process) = growing("py1", "stdio", "auto").await;
    let config = json!({ "metaTools": { "enabled": true }, "mcpServers": { "a": server } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_grow").await;
    client.call_text("a_grow", json!({"name": "one"})).await;
    eventually("the tool is described", || async {
        let answer = client.try_call("describe_tool", json!({"name": "a_one"})).await;
        (answer["result"]["isError"] != true).then_some(())
    })
    .await;
    client.call_text("a_grow", json!({"name": "two"})).await;
    eventually("the tool can be called with call_tool", || async {
        let answer = client.try_call("call_tool", json!({"name": "a_two", "arguments": {}})).await;
        (answer["result"]["content"][0]["text"] == "two works").then_some(())
    })
    .await;
    client.call_text("a_grow", json!({"name": "unusual"})).await;
    eventually("the tool is found", || async {
        let found = client.call_text("search_tools", json!({"query": "unusual"})).await;
        found.contains("a_unusual").then_some(())
    })
    .await;
}

/// Answers like a legacy server with the tools `t0` to `tN`, and without notifications.
fn with_tools(seen: &Seen, count: usize) -> Reply {
    match seen.method() {
        "tools/list" => {
            let tools: Vec<_> =
                (0..=count).map(|n| json!({"name": format!("t{n}"), "inputSchema": {"type": "object"}})).collect();
            seen.result(json!({ "tools": tools }))
        }
        _ => seen.legacy(),
    }
}

/// Starts a server with one more tool than the counter.
async fn counted() -> (Arc<AtomicUsize>, Scripted) {
    let count = Arc::<AtomicUsize>::default();
    let shown = Arc::clone(&count);
    let server = Scripted::start(move |seen, _| with_tools(seen, shown.load(Ordering::SeqCst))).await;
    (count, server)
}

fn entry(server: &Scripted) -> Value {
    json!({"url": format!("http://{}/mcp", server.address), "protocol": "legacy"})
}

#[tokio::test]
async fn d20_an_interval_finds_changes_without_any_request() {
    let (count, server) = counted().await;
    let mut entry = entry(&server);
    entry["refresh"] = json!("1s");
    let gateway = Gateway::with_servers(json!({ "a": entry })).await;
    let listener = Client::new(gateway.address).listening(json!({})).await;
    listener.await_tool("a_t0").await;
    listener.notification("notifications/tools/list_changed").await;
    count.store(1, Ordering::SeqCst);
    listener.notification("notifications/tools/list_changed").await;
    assert!(listener.tool_names().await.contains(&"a_t1".to_owned()));
}

#[tokio::test]
async fn use10_a_new_refresh_interval_applies_to_a_kept_connection() {
    let (count, server) = counted().await;
    let servers = |refresh: &str| {
        let mut entry = entry(&server);
        entry["refresh"] = json!(refresh);
        json!({ "a": entry })
    };
    let served = Served::start(servers("1h")).await;
    let listener = Client::new(served.gateway.address).listening(json!({})).await;
    listener.await_tool("a_t0").await;
    count.store(1, Ordering::SeqCst);
    served.put(&text(servers("1s")));
    served.hang_up();
    listener.notification("notifications/tools/list_changed").await;
    listener.await_tool("a_t1").await;
    served.put(&text(servers("never")));
    served.hang_up();
    served.reloads(2).await;
    assert_eq!(server.of("initialize").len(), 1, "the connection stays");
}

#[tokio::test]
async fn d20_an_interval_covers_a_server_that_declares_notifications_and_sends_none() {
    let arguments = json!([script("server_growing.py"), "stdio"]);
    let server = json!({"command": python("py2"), "args": arguments, "protocol": "modern", "refresh": "1s"});
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_grow").await;
    client.call_text("a_grow", json!({"name": "one"})).await;
    assert_eq!(call_appears(&client, "a_one").await, "one works");
}

#[tokio::test]
async fn d20_a_server_that_declares_notifications_and_sends_none_is_listed_again_after_calls() {
    let arguments = json!([script("server_growing.py"), "stdio"]);
    let stdio = json!({"command": python("py2"), "args": arguments, "protocol": "modern"});
    let process = SdkServer::start(&python("py2"), &[&script("server_growing.py"), "http"]).await;
    for server in [stdio, json!({"url": process.url, "type": "http"})] {
        let gateway = Gateway::with_servers(json!({ "a": server })).await;
        let listener = Client::new(gateway.address).listening(json!({})).await;
        let (legacy, modern) = (gateway.client_seeing("a_grow").await, Client::modern(gateway.address, everything()));
        legacy.call_text("a_grow", json!({"name": "one"})).await;
        legacy.await_tool("a_one").await;
        listener.notification("notifications/tools/list_changed").await;
        // From now on the gateway knows that the announcements are missing.
        modern.call_text("a_grow", json!({"name": "two"})).await;
        assert_eq!(call_appears(&modern, "a_two").await, "two works");
        resource_appears(&legacy, "a+grown://two").await;
    }
}

#[tokio::test]
async fn d20_no_list_is_fetched_again_if_the_configuration_says_never() {
    let (count, server) = counted().await;
    let mut entry = entry(&server);
    entry["refresh"] = json!("never");
    let gateway = Gateway::with_servers(json!({ "a": entry })).await;
    let client = gateway.client_seeing("a_t0").await;
    count.store(1, Ordering::SeqCst);
    client.call("a_t0", json!({})).await;
    assert_eq!(client.try_call("a_t1", json!({})).await["error"]["data"]["code"], "TOOL_NOT_FOUND");
    assert!(!client.tool_names().await.contains(&"a_t1".to_owned()));
    assert_eq!(server.of("tools/list").len(), 1);
}

#[tokio::test]
async fn d20_a_miss_lists_only_the_server_that_its_prefix_names() {
    let ((count, named), (_, other)) = (counted().await, counted().await);
    let gateway = Gateway::with_servers(json!({ "a": entry(&named), "b": entry(&other) })).await;
    let client = gateway.client_seeing("a_t0").await;
    client.await_tool("b_t0").await;
    count.store(1, Ordering::SeqCst);
    let before = other.of("tools/list").len();
    eventually("the new tool can be called", || async {
        client.try_call("a_t1", json!({})).await["error"].is_null().then_some(())
    })
    .await;
    assert_eq!(other.of("tools/list").len(), before, "the other server is not listed");
    assert!(other.of("tools/call").is_empty());
    assert_eq!(named.of("tools/call").len(), 1, "only the call that the gateway knows is forwarded");
}

#[tokio::test]
async fn d20_a_ttl_of_the_server_is_obeyed() {
    let count = Arc::<AtomicUsize>::default();
    let shown = Arc::clone(&count);
    let server = Scripted::start(move |seen, _| match seen.method() {
        "tools/list" => {
            let tools: Vec<_> = (0..=shown.load(Ordering::SeqCst))
                .map(|n| json!({"name": format!("t{n}"), "inputSchema": {"type": "object"}}))
                .collect();
            seen.result(json!({"resultType": "complete", "ttlMs": 3_600_000, "cacheScope": "private", "tools": tools}))
        }
        _ => seen.modern(&json!({"type": "object"})),
    })
    .await;
    let url = format!("http://{}/mcp", server.address);
    let gateway = Gateway::with_servers(json!({ "a": {"url": url, "protocol": "modern"} })).await;
    let client = gateway.client_seeing("a_t0").await;
    let before = server.of("tools/list").len();
    count.store(1, Ordering::SeqCst);
    client.call("a_t0", json!({})).await;
    assert_eq!(client.try_call("a_t1", json!({})).await["error"]["data"]["code"], "TOOL_NOT_FOUND");
    assert!(!client.tool_names().await.contains(&"a_t1".to_owned()));
    assert_eq!(server.of("tools/list").len(), before, "the lists are fresh for an hour");
}

/// Starts a gateway before a server whose first list is good. Returns both after `requests` calls with lists.
async fn pressed(requests: usize, list: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> (Gateway, Scripted) {
    let server = Scripted::start(move |seen, before| match (seen.method(), before) {
        ("tools/list", 1..) => list(seen, before),
        _ => with_tools(seen, 0),
    })
    .await;
    let gateway = Gateway::with_servers(json!({ "a": entry(&server) })).await;
    let client = gateway.client_seeing("a_t0").await;
    for _ in 0..requests {
        client.try_call("a_t0", json!({})).await;
        client.try_call("a_none", json!({})).await;
        client.tool_names().await;
    }
    (gateway, server)
}

/// Waits until the status of the server has this text among its problems.
async fn problem_appears(gateway: &Gateway, text: &str) {
    eventually(&format!("the status has the problem {text}"), || async {
        let status = get_admin(&Client::new(gateway.address), "/api/status").await.json();
        status["servers"][0].to_string().contains(text).then_some(())
    })
    .await;
}

#[tokio::test]
async fn d20_a_server_that_demands_a_pause_is_left_alone() {
    let busy = |_: &Seen, _| Reply::Bytes(response("429 Too Many Requests", "Retry-After: 600\r\n", ""));
    let (gateway, server) = pressed(20, busy).await;
    problem_appears(&gateway, "429").await;
    assert_eq!(server.of("tools/list").len(), 2, "one refresh, and none before the pause has passed");
}

#[tokio::test]
async fn d20_lists_that_fail_or_never_end_are_fetched_less_often() {
    let failing = |seen: &Seen, _| seen.error("200 OK", json!({"code": -32603, "message": "no list today"}));
    let half = |seen: &Seen, before: usize| match seen.message["params"]["cursor"].is_string() {
        false => seen.result(json!({"tools": [], "nextCursor": format!("c{before}")})),
        true => seen.error("200 OK", json!({"code": -32603, "message": "no second page"})),
    };
    let endless = |seen: &Seen, before: usize| {
        let tools: Vec<_> = (0..2_000).map(|n| json!({ "name": format!("t{before}_{n}") })).collect();
        seen.result(json!({"tools": tools, "nextCursor": format!("c{before}")}))
    };
    let (gateway, server) = pressed(20, failing).await;
    problem_appears(&gateway, "no list today").await;
    // Without the backoff, each round would wait for a refresh.
    assert!(server.of("tools/list").len() <= 8, "{:?}", server.methods());
    let (gateway, server) = pressed(20, half).await;
    problem_appears(&gateway, "no second page").await;
    assert!(server.of("tools/list").len() <= 16, "{:?}", server.methods());
    // The tools of the last complete list stay.
    assert!(gateway.client().await.tool_names().await.contains(&"a_t0".to_owned()));
    let (gateway, _server) = pressed(1, endless).await;
    problem_appears(&gateway, "entries").await;
    assert!(gateway.client().await.tool_names().await.contains(&"a_t0".to_owned()));
}

#[tokio::test]
async fn d20_lists_that_change_with_every_fetch_are_named_in_the_status() {
    let server = Scripted::start(with_tools).await;
    let mut entry = entry(&server);
    entry["refresh"] = json!("1s");
    let gateway = Gateway::with_servers(json!({ "a": entry })).await;
    let client = Client::new(gateway.address).listening(json!({})).await;
    client.await_tool("a_t0").await;
    problem_appears(&gateway, "change with every fetch").await;
}
