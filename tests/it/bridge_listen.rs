//! Listens of a `goblin stdio` client without a session. The notifications equal those over HTTP, and the next gateway
//! continues them.

use serde_json::{Value, json};

use crate::bridge_stateless::{cancel, home, request};
use crate::client::Client;
use crate::harness::{Scratch, fixture_server, goblin};
use crate::home::Home;
use crate::raw_gateway::{Arrival, EventStream, RawGateway};
use crate::subscriber::{subscribed_upstream, touch};

const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
const UPDATED: &str = "notifications/resources/updated";
const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
const ALPHA: &str = "a+note:///alpha";
const BETA: &str = "a+note:///beta";
const LISTEN: &str = "subscriptions/listen";

fn listen(filter: &Value) -> String {
    request("stream", LISTEN, json!({ "notifications": filter }))
}

/// Returns the method and subject of the next notification, and checks its subscription id.
async fn next_message(client: &Client) -> (String, Value) {
    let mut message = client.message().await;
    let mut meta = message["params"]["_meta"].take();
    assert_eq!(meta["io.modelcontextprotocol/subscriptionId"].take(), "stream", "{message}");
    let method = message["method"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned();
    let subject = if method == ACKNOWLEDGED { "notifications" } else { "uri" };
    (method, message["params"][subject].take())
}

#[tokio::test]
async fn updates_are_delivered_until_the_client_cancels_its_listen() {
    let home = home(&[]);
    let (_gateway, caller) = home.gateway("a_touch").await;
    let client = home.bridge();
    let filter = json!({ "resourceSubscriptions": [ALPHA] });
    client.write(&listen(&filter)).await;
    assert_eq!(next_message(&client).await, (ACKNOWLEDGED.to_owned(), filter));
    subscribed_upstream(&caller, r#"["note:///alpha"]"#).await;
    touch(&caller, "note:///alpha", 1).await;
    assert_eq!(next_message(&client).await, (UPDATED.to_owned(), json!(ALPHA)));
    cancel(&client, "stream").await;
    subscribed_upstream(&caller, "[]").await;
    touch(&caller, "note:///alpha", 1).await;
    client.write(&request("last", "server/discover", json!({}))).await;
    assert_eq!(client.message().await["id"], "last");
}

#[derive(Clone, Copy, Debug)]
enum Goes {
    Killed,
    InGoodOrder,
}

async fn check_restart(goes: Goes) {
    // With a cached listing the stream covers the resources before the server is ready, so each is notified twice.
    let gateway = json!({ "listingCache": false });
    let home = Home::new(&json!({ "gateway": gateway, "mcpServers": { "a": fixture_server(&[]) } }));
    let (mut gateway, caller) = home.gateway("a_touch").await;
    let client = home.bridge();
    let filter = json!({ "toolsListChanged": true, "resourceSubscriptions": [ALPHA, BETA] });
    client.write(&listen(&filter)).await;
    assert_eq!(next_message(&client).await, (ACKNOWLEDGED.to_owned(), filter));
    subscribed_upstream(&caller, r#"["note:///alpha","note:///beta"]"#).await;
    drop(caller);
    match goes {
        Goes::Killed => gateway.child.kill().await.expect("the process can be killed"),
        Goes::InGoodOrder => assert!(gateway.terminate().await.success()),
    }
    let (_again, caller) = home.gateway("a_touch").await;
    // The server may become ready after the stream. List changes may then be repeated, but each resource is notified
    // once.
    let (mut lists, mut updates) = (0, Vec::new());
    while updates.len() < 2 {
        match next_message(&client).await {
            (method, uri) if method == UPDATED => updates.push(uri),
            (method, _) if method == "notifications/tools/list_changed" => lists += 1,
            other => panic!("{goes:?}: {other:?}"),
        }
    }
    assert_eq!(updates, [ALPHA, BETA], "{goes:?}");
    assert!(lists > 0, "{goes:?}");
    subscribed_upstream(&caller, r#"["note:///alpha","note:///beta"]"#).await;
    touch(&caller, "note:///beta", 1).await;
    loop {
        match next_message(&client).await {
            (method, uri) if method == UPDATED => break assert_eq!(uri, BETA, "{goes:?}"),
            (method, _) => assert_eq!(method, "notifications/tools/list_changed", "{goes:?}"),
        }
    }
}

#[tokio::test]
async fn a_listen_continues_after_the_gateway_is_killed_and_started_again() {
    check_restart(Goes::Killed).await;
}

#[tokio::test]
async fn a_listen_continues_after_the_gateway_is_stopped_and_started_again() {
    check_restart(Goes::InGoodOrder).await;
}

/// Starts a bridge to a simulated gateway, with an acknowledged stream.
async fn listening(filter: &Value) -> (RawGateway, Client, EventStream, Scratch) {
    let scratch = Scratch::new();
    let mut gateway = RawGateway::start().await;
    let mut command = goblin(scratch.path());
    command.args(["stdio", "--url", &gateway.url]).stderr(std::process::Stdio::null());
    let client = Client::run(command);
    let line = listen(filter);
    client.write(&line).await;
    let arrival = gateway.request(LISTEN).await;
    assert_eq!(arrival.body, line);
    for (name, value) in
        [("mcp-protocol-version", Some("2026-07-28")), ("mcp-method", Some(LISTEN)), ("mcp-name", None)]
    {
        assert_eq!(arrival.header(name), value, "{name}");
    }
    assert_eq!(arrival.header("mcp-session-id"), None);
    let stream = acknowledge(arrival, filter).await;
    assert_eq!(next_message(&client).await, (ACKNOWLEDGED.to_owned(), filter.clone()));
    (gateway, client, stream, scratch)
}

async fn acknowledge(arrival: Arrival, filter: &Value) -> EventStream {
    let mut stream = arrival.stream().await;
    stream.send_message(&note(ACKNOWLEDGED, json!({ "notifications": filter }))).await;
    stream
}

fn note(method: &str, mut params: Value) -> String {
    params["_meta"] = json!({ "io.modelcontextprotocol/subscriptionId": "stream" });
    json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()
}

fn end() -> String {
    json!({"jsonrpc": "2.0", "id": "stream", "result": {"resultType": "complete"}}).to_string()
}

#[tokio::test]
async fn a_resource_unknown_to_the_next_gateway_is_requested_again_when_its_list_changes() {
    let filter = json!({ "resourceSubscriptions": ["x:1", "x:2"] });
    let (mut gateway, client, stream, _scratch) = listening(&filter).await;
    drop(stream);
    let again = gateway.request(LISTEN).await;
    let widened = json!({ "resourcesListChanged": true, "resourceSubscriptions": ["x:1", "x:2"] });
    assert_eq!(again.message["params"]["notifications"], widened);
    assert_eq!(again.message["id"], "stream");
    let mut stream =
        acknowledge(again, &json!({ "resourcesListChanged": true, "resourceSubscriptions": ["x:1"] })).await;
    assert_eq!(next_message(&client).await, (UPDATED.to_owned(), json!("x:1")));

    // The first probe finds nothing new, and the client receives no change of a list that it did not request.
    stream.send_message(&note(RESOURCES_CHANGED, json!({}))).await;
    let probe = gateway.request(LISTEN).await;
    assert_eq!(probe.message["params"]["notifications"], json!({ "resourceSubscriptions": ["x:2"] }));
    drop(acknowledge(probe, &json!({})).await);
    stream.send_message(&note(UPDATED, json!({ "uri": "x:1" }))).await;
    assert_eq!(next_message(&client).await, (UPDATED.to_owned(), json!("x:1")));

    stream.send_message(&note(RESOURCES_CHANGED, json!({}))).await;
    drop(acknowledge(gateway.request(LISTEN).await, &json!({ "resourceSubscriptions": ["x:2"] })).await);
    let whole = gateway.request(LISTEN).await;
    assert_eq!(whole.message["params"]["notifications"], widened);
    let mut stream = acknowledge(whole, &widened).await;
    for uri in ["x:1", "x:2"] {
        assert_eq!(next_message(&client).await, (UPDATED.to_owned(), json!(uri)));
    }
    // Everything is honoured now, so the bridge sends no further probe.
    stream.send_message(&note(RESOURCES_CHANGED, json!({}))).await;
    stream.send_message(&note(UPDATED, json!({ "uri": "x:2" }))).await;
    assert_eq!(next_message(&client).await, (UPDATED.to_owned(), json!("x:2")));
    assert!(!gateway.has(|arrival| arrival.message["method"] == LISTEN));
}

#[tokio::test]
async fn a_repeated_listen_that_the_gateway_ends_at_once_ends_at_the_client() {
    let filter = json!({ "toolsListChanged": true });
    let (mut gateway, client, mut stream, _scratch) = listening(&filter).await;
    stream.send_message(&end()).await;
    stream.end().await;
    let again = gateway.request(LISTEN).await;
    assert_eq!(again.message["params"]["notifications"], filter, "there is no resource to wait for");
    let mut stream = acknowledge(again, &filter).await;
    stream.send_message(&end()).await;
    assert_eq!(next_message(&client).await.0, "notifications/tools/list_changed");
    assert_eq!(client.line().await, Some(end()));
}

#[tokio::test]
async fn a_listen_that_the_next_gateway_rejects_ends_with_its_error() {
    let filter = json!({ "toolsListChanged": true });
    let (mut gateway, client, stream, _scratch) = listening(&filter).await;
    drop(stream);
    let json_type = "Content-Type: application/json\r\n";
    let shutting = json!({"jsonrpc": "2.0", "id": "stream", "error": {"code": 1500, "message": "later"}}).to_string();
    gateway.request(LISTEN).await.answer("503 Service Unavailable", json_type, &shutting).await;
    let full = json!({"code": 1429, "message": "full", "data": {"retryable": true}});
    let full = json!({"jsonrpc": "2.0", "id": "stream", "error": full}).to_string();
    gateway.request(LISTEN).await.answer("200 OK", json_type, &full).await;
    let old = json!({"jsonrpc": "2.0", "id": "stream", "error": {"code": -32022, "message": "no"}}).to_string();
    gateway.request(LISTEN).await.answer("400 Bad Request", json_type, &old).await;
    assert_eq!(client.line().await, Some(old));
    // The listen has ended, so its id is free.
    client.write(&listen(&filter)).await;
    gateway.request(LISTEN).await.answer("400 Bad Request", json_type, &shutting).await;
    assert_eq!(client.line().await, Some(shutting));
}

#[tokio::test]
async fn srv2_a_header_error_makes_the_bridge_fetch_the_tools_and_repeat_the_call() {
    let (mut gateway, client, _stream, _scratch) = listening(&json!({})).await;
    let call = |id: u64| request(id, "tools/call", json!({ "name": "t", "arguments": { "r": "x" } }));
    client.write(&call(1)).await;
    let first = gateway.request("tools/call").await;
    assert_eq!((first.header("mcp-name"), first.header("mcp-param-r")), (Some("t"), None));
    let rejection = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32020, "message": "no"}}).to_string();
    first.answer("400 Bad Request", "Content-Type: application/json\r\n", &rejection).await;
    let list = gateway.request("tools/list").await;
    assert_eq!((list.header("mcp-method"), &list.message["params"]["cursor"]), (Some("tools/list"), &Value::Null));
    list.reply(json!({ "tools": [], "nextCursor": "c" })).await;
    let list = gateway.request("tools/list").await;
    assert_eq!(list.message["params"]["cursor"], "c");
    let property = json!({ "type": "string", "x-mcp-header": "R" });
    let tool = json!({ "name": "t", "inputSchema": { "type": "object", "properties": { "r": property } } });
    list.reply(json!({ "tools": [tool] })).await;
    let again = gateway.request("tools/call").await;
    assert_eq!((again.body.as_str(), again.header("mcp-param-r")), (call(1).as_str(), Some("x")));
    again.reply(json!({})).await;
    assert_eq!(client.message().await["id"], 1);
    // The bridge knows the tool now and sends its headers. The same error for an unchanged tool is final, and the
    // client receives it.
    client.write(&call(2)).await;
    let known = gateway.request("tools/call").await;
    assert_eq!(known.header("mcp-param-r"), Some("x"));
    let rejection = rejection.replace("\"id\":1", "\"id\":2");
    known.answer("400 Bad Request", "Content-Type: application/json\r\n", &rejection).await;
    gateway.request("tools/list").await.reply(json!({ "tools": [tool] })).await;
    assert_eq!(client.line().await, Some(rejection));
    assert!(is_next_answered(&mut gateway, &client).await);
}

/// Reports whether the next request is the next one to arrive.
async fn is_next_answered(gateway: &mut RawGateway, client: &Client) -> bool {
    client.write(&request("next", "server/discover", json!({}))).await;
    let next = gateway.post().await;
    let is_next = next.message["id"] == "next";
    next.reply(json!({})).await;
    is_next && client.message().await["id"] == "next"
}
