//! Attempts to connect that a call triggers, and the mark of listings from an earlier connection.

use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server};
use crate::support::{assert_error, begin_call, ended, http_server, path_text, scripted_server, starts};

/// A server that ends with the exit code in a file, if that file exists. It logs all its starts.
struct Breakable(Scratch);

impl Breakable {
    fn new() -> Breakable {
        Breakable(Scratch::new())
    }

    fn server(&self) -> Value {
        let script = r#"echo start >>starts; [ -e silent ] && exec cat >taken; [ -e broken ] && exit "$(cat broken)"; exec "$@""#;
        let mut server = scripted_server(script, &[]);
        server["cwd"] = json!(path_text(self.0.path()));
        server
    }

    fn starts(&self) -> usize {
        starts(&self.0.path().join("starts"))
    }

    fn break_with(&self, code: u8) {
        self.0.write("broken", &code.to_string());
    }

    fn repair(&self) {
        std::fs::remove_file(self.0.path().join("broken")).expect("the server is broken");
    }

    /// Ends the server, which then fails so often that the gateway pauses for 30 s.
    async fn exhaust(&self, gateway: &Gateway, client: &Client) {
        self.break_with(3);
        let crashed = client.try_call("a_crash", json!({})).await;
        assert_error(&crashed, 1503, "BACKEND_UNAVAILABLE");
        eventually("the gateway has tried often", || async {
            let failures = gateway.log().iter().filter(|line| line.contains("cannot connect to backend")).count();
            (failures >= 5).then_some(())
        })
        .await;
        assert_eq!(self.starts(), 5);
    }
}

async fn status(gateway: &Gateway) -> Value {
    get_admin(&Client::new(gateway.address), "/api/status").await.json()
}

pub async fn status_of(gateway: &Gateway) -> Value {
    status(gateway).await["servers"][0].clone()
}

fn message(answer: &Value) -> &str {
    answer["error"]["message"].as_str().unwrap_or_default()
}

#[tokio::test]
async fn use5_a_call_wakes_a_failed_server() {
    let breakable = Breakable::new();
    let gateway = Gateway::with_servers(json!({ "a": breakable.server() })).await;
    let client = gateway.client_seeing("a_echo").await;
    breakable.exhaust(&gateway, &client).await;
    breakable.repair();
    let calls: Vec<_> = (0..8).map(|_| begin_call(&client, "a_echo", json!({}))).collect();
    for call in calls {
        let answer = ended(call).await;
        assert!(answer["error"].is_null(), "{answer}");
    }
    assert_eq!(breakable.starts(), 6, "all calls share one attempt");
}

#[tokio::test]
async fn d18_calls_get_the_reason_of_the_attempt_that_they_triggered() {
    let breakable = Breakable::new();
    let gateway = Gateway::with_servers(json!({ "a": breakable.server() })).await;
    let client = gateway.client_seeing("a_echo").await;
    breakable.exhaust(&gateway, &client).await;
    breakable.break_with(7);
    // On a slow machine a call may stop waiting before the attempt ends.
    let answer = eventually("an attempt of a call has failed", || async {
        let answer = client.try_call("a_echo", json!({})).await;
        message(&answer).contains("exit code 7").then_some(answer)
    })
    .await;
    assert_eq!(assert_error(&answer, 1503, "BACKEND_UNAVAILABLE")["retryable"], true, "{answer}");
    assert!(message(&answer).contains("; the next attempt comes in "), "{answer}");
}

#[tokio::test]
async fn d18_every_method_connects_a_lost_server() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let complete =
        json!({"ref": {"type": "ref/prompt", "name": "a_greet"}, "argument": {"name": "name", "value": "A"}});
    for (method, params) in [
        ("tools/call", json!({"name": "a_echo", "arguments": {}})),
        ("prompts/get", json!({"name": "a_greet", "arguments": {"name": "you"}})),
        ("resources/read", json!({"uri": "a+note:///alpha"})),
        ("completion/complete", complete),
        ("resources/subscribe", json!({"uri": "a+note:///alpha"})),
    ] {
        assert_error(&client.try_call("a_crash", json!({})).await, 1503, "BACKEND_UNAVAILABLE");
        let answer = client.request(method, params).await;
        assert!(answer["error"].is_null(), "{method}: {answer}");
    }
}

#[tokio::test]
async fn d18_a_call_wakes_the_own_link_of_its_client() {
    let breakable = Breakable::new();
    let mut server = breakable.server();
    server["session"] = json!("per-client");
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.call("a_echo", json!({})).await;
    breakable.break_with(3);
    assert_error(&client.try_call("a_crash", json!({})).await, 1503, "BACKEND_UNAVAILABLE");
    for _ in 0..3 {
        let answer = client.try_call("a_echo", json!({})).await;
        assert!(message(&answer).ends_with("; the next attempt comes with a call"), "{answer}");
    }
    breakable.repair();
    // On a slow machine a call may stop waiting before the attempt ends.
    eventually("a call has connected the link", || async {
        client.try_call("a_echo", json!({})).await["error"].is_null().then_some(())
    })
    .await;
}

#[tokio::test]
async fn d18_a_cancelled_call_stops_waiting() {
    let breakable = Breakable::new();
    let gateway = Gateway::with_servers(json!({ "a": breakable.server() })).await;
    let client = gateway.client_seeing("a_echo").await;
    breakable.exhaust(&gateway, &client).await;
    breakable.0.write("silent", "");
    let body = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "a_echo"}}).to_string();
    let call = tokio::spawn({
        let client = client.clone();
        async move { client.post(body).await }
    });
    eventually("the call is open", || async { (status(&gateway).await["sessions"]["inFlight"] == 1).then_some(()) })
        .await;
    client.notify("notifications/cancelled", json!({"requestId": 9})).await;
    let answer = call.await.expect("no panic");
    assert!(answer.messages().is_empty(), "{answer:?}");
}

#[tokio::test]
async fn d14_the_listing_of_a_lost_server_is_stale() {
    let breakable = Breakable::new();
    let gateway = Gateway::start(json!({ "mcpServers": { "a": breakable.server() }, "metaTools": true })).await;
    let client = gateway.client().await;
    eventually("the catalog has the entries of the server", || async {
        let status = status_of(&gateway).await;
        (status["state"] == "ready" && status["entries"]["tools"].as_u64() > Some(0)).then_some(())
    })
    .await;
    assert_eq!(status_of(&gateway).await["stale"], false);
    breakable.break_with(3);
    client.request("tools/call", json!({"name": "call_tool", "arguments": {"name": "a_crash", "arguments": {}}})).await;
    let status = eventually("the server is lost", || async {
        let status = status_of(&gateway).await;
        (status["state"] == "failed").then_some(status)
    })
    .await;
    assert_eq!(status["stale"], true, "{status}");
    assert!(status["entries"]["tools"].as_u64().is_some_and(|tools| tools > 0), "{status}");
    let servers = client.call("list_servers", json!({})).await;
    assert_eq!(servers["structuredContent"]["servers"][0]["stale"], true, "{servers}");
    breakable.repair();
    eventually("the listing is from the new connection", || async {
        (status_of(&gateway).await["stale"] == false).then_some(())
    })
    .await;
}

#[tokio::test]
async fn d18_a_call_connects_an_http_server_that_came_back() {
    let backend = HttpFixture::start(&[]).await;
    let proxy = goblin_fixture::fault::FaultProxy::start(backend.address);
    let gateway = Gateway::with_servers(json!({ "a": http_server(proxy.addr()) })).await;
    let client = gateway.client_seeing("a_echo").await;
    proxy.cut().await;
    for _ in 0..3 {
        assert_error(&client.try_call("a_echo", json!({})).await, 1503, "BACKEND_UNAVAILABLE");
    }
    proxy.pass().await;
    eventually("a call has connected the server", || async {
        client.try_call("a_echo", json!({})).await["error"].is_null().then_some(())
    })
    .await;
}
