//! Per-client servers (`"session": "per-client"`): started with the first list or call, ended with the client, and never
//! shared.
//!
//! A failing or slow start affects only its own client.

use std::path::{Path, PathBuf};

use http::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, TIMEOUT, eventually, goblin, signal};
use crate::scrape::{metric, metric_becomes};
use crate::support::{
    assert_error, await_call, await_exit, await_log, begin_call, ended, is_alive, path_text, scripted_server, starts,
};

/// Returns a server entry with a separate server for each client.
pub fn per_client(mut server: Value) -> Value {
    server["session"] = json!("per-client");
    server
}

/// Returns the fixture with its process id in a variable, for [`pid`].
pub fn own_process(arguments: &[&str]) -> Value {
    per_client(scripted_server(r#"ME=$$ exec "$@""#, arguments))
}

async fn pid(client: &Client) -> u32 {
    client.call_text("a_env", json!({"name": "ME"})).await.parse().expect("a process id")
}

/// Returns servers of the same behaviour over every transport, with the processes behind them.
pub async fn each_transport() -> Vec<(&'static str, Value, Option<HttpFixture>)> {
    let (http, sse) = (HttpFixture::start(&[]).await, HttpFixture::start(&["--sse"]).await);
    let (streamable, old) = (per_client(http.server()), per_client(sse.server()));
    vec![("stdio", own_process(&[]), None), ("http", streamable, Some(http)), ("sse", old, Some(sse))]
}

async fn gateway_of(server: Value) -> Gateway {
    Gateway::with_servers(json!({ "a": server })).await
}

/// Waits until the shared connection has listed the server. No client lists, so none has a connection of its own.
pub async fn await_listed(gateway: &Gateway) {
    metric_becomes(&Client::new(gateway.address), r#"goblin_backend_up{server_id="a"}"#, 1).await;
}

async fn listed_gateway(server: Value) -> Gateway {
    let gateway = gateway_of(server).await;
    await_listed(&gateway).await;
    gateway
}

/// Returns a scratch directory and the path of a log of starts in it.
fn start_log() -> (Scratch, PathBuf) {
    let scratch = Scratch::new();
    let path = scratch.path().join("starts");
    (scratch, path)
}

/// Returns the processes that were started so far. The first is the one that lists.
fn started(path: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a process id")).collect()
}

const LINKS: &str = r#"goblin_backend_client_links{server_id="a"}"#;

/// Returns the number of clients with their own connection.
async fn links(gateway: &Gateway) -> u64 {
    metric(&Client::new(gateway.address), LINKS).await
}

async fn delete(client: &Client) {
    let answer = client.send(Method::DELETE, "/mcp", &client.headers(), "").await;
    assert!(answer.status.is_success(), "{answer:?}");
}

#[tokio::test]
async fn each_client_has_a_separate_server_state_over_every_transport() {
    for (transport, server, _backend) in each_transport().await {
        let gateway = gateway_of(server).await;
        let seeing = gateway.client_seeing("a_level").await;
        let (one, two) = (gateway.client().await, gateway.client().await);
        one.request("logging/setLevel", json!({"level": "debug"})).await;
        assert_eq!(one.call_text("a_level", json!({})).await, "debug", "{transport}: set before the first call");
        assert_eq!(two.call_text("a_level", json!({})).await, "none", "{transport}");
        two.request("logging/setLevel", json!({"level": "alert"})).await;
        eventually("the level has reached the server", || async {
            (two.call_text("a_level", json!({})).await == "alert").then_some(())
        })
        .await;
        assert_eq!(one.call_text("a_level", json!({})).await, "debug", "{transport}");
        assert_eq!(seeing.call_text("a_level", json!({})).await, "none", "{transport}");
        assert_eq!(links(&gateway).await, 3, "{transport}");
    }
}

#[tokio::test]
async fn d21_only_the_first_list_or_call_of_a_client_starts_its_process() {
    let (_scratch, log) = start_log();
    let gateway = gateway_of(own_process(&["--start-log", path_text(&log)])).await;
    let client = gateway.client().await;
    let shared = || async { (starts(&log) == 1).then_some(()) };
    eventually("the process of the shared connection is started", shared).await;
    for (method, params) in [("ping", json!({})), ("logging/setLevel", json!({"level": "info"}))] {
        client.request(method, params).await;
    }
    client.notify("notifications/roots/list_changed", json!({})).await;
    assert_eq!((starts(&log), links(&gateway).await), (1, 0), "the shared one");
    client.await_tool("a_env").await;
    for method in ["prompts/list", "resources/list", "tools/list"] {
        client.request(method, json!({})).await;
    }
    assert_eq!((starts(&log), links(&gateway).await), (2, 1), "the first list starts it");
    let calls: Vec<_> = (0..20).map(|_| begin_call(&client, "a_env", json!({"name": "ME"}))).collect();
    let mut pids = Vec::new();
    for call in calls {
        pids.push(ended(call).await["result"]["content"][0]["text"].clone());
    }
    pids.dedup();
    assert_eq!(pids.len(), 1, "{pids:?}");
    assert_eq!((starts(&log), links(&gateway).await), (2, 1));
    client.request("prompts/get", json!({"name": "a_greet", "arguments": {"name": "x"}})).await;
    client.request("resources/read", json!({"uri": "a+note:///alpha"})).await;
    assert_eq!(starts(&log), 2, "all of a client's calls go to the same");
}

#[tokio::test]
async fn sess2_the_process_of_a_client_ends_with_its_session() {
    let (_scratch, log) = start_log();
    let servers = json!({ "a": own_process(&["--start-log", path_text(&log)]) });
    let config = json!({"gateway": {"sessionIdleTimeout": "2s"}, "mcpServers": servers});
    let mut gateway = Gateway::start(config).await;
    let stays = gateway.client_seeing("a_env").await;
    let _present = stays.listen().await;
    let kept = pid(&stays).await;

    let deleted = gateway.client().await;
    let process = pid(&deleted).await;
    assert_ne!(process, kept);
    delete(&deleted).await;
    await_exit(process).await;

    let idle = gateway.client().await;
    await_exit(pid(&idle).await).await;

    let old = Client::sse(gateway.address).await.connected("2024-11-05").await;
    let answer = old.request("tools/call", json!({"name": "a_env", "arguments": {"name": "ME"}})).await;
    let process = answer["result"]["content"][0]["text"].as_str().expect("a text").parse().expect("a process id");
    assert!(is_alive(process));
    drop(old);
    await_exit(process).await;

    assert_eq!(pid(&stays).await, kept, "the end of other clients does not affect it");
    gateway.terminate().await;
    for process in started(&log) {
        assert!(!is_alive(process), "{process} still runs");
    }
    assert_eq!(starts(&log), 5);
}

#[tokio::test]
async fn sess2_the_process_of_a_stdio_client_ends_with_its_input() {
    let (_scratch, log) = start_log();
    let config = json!({"mcpServers": {"a": own_process(&["--start-log", path_text(&log)])}});
    let client = Client::stdio(config).connected("2025-11-25").await;
    client.await_tool("a_env").await;
    let answer = client.request("tools/call", json!({"name": "a_env", "arguments": {"name": "ME"}})).await;
    let process: u32 = answer["result"]["content"][0]["text"].as_str().expect("a text").parse().expect("a process id");
    assert!(started(&log).contains(&process), "{process}");
    assert!(client.close().await.success());
    assert!(started(&log).into_iter().all(|process| !is_alive(process)));
}

#[tokio::test]
async fn sess2_no_process_of_a_client_outlives_a_killed_gateway() {
    let (_scratch, log) = start_log();
    let mut gateway = gateway_of(own_process(&["--start-log", path_text(&log), "--ignore-eof"])).await;
    let (one, two) = (gateway.client_seeing("a_env").await, gateway.client().await);
    assert_ne!(pid(&one).await, pid(&two).await);
    gateway.child.kill().await.expect("the process can be killed");
    assert_eq!(starts(&log), 3);
    for process in started(&log) {
        await_exit(process).await;
    }
}

#[tokio::test]
async fn sess2_an_upstream_session_ends_with_its_client() {
    let backend = HttpFixture::start(&[]).await;
    let gateway = gateway_of(per_client(backend.server())).await;
    let (one, two) = (gateway.client_seeing("a_headers").await, gateway.client().await);
    let session = async |client: &Client| {
        let headers: Value = serde_json::from_str(&client.call_text("a_headers", json!({})).await).expect("an object");
        headers["mcp-session-id"].as_str().expect("a session").to_owned()
    };
    let (of_one, of_two) = (session(&one).await, session(&two).await);
    assert_ne!(of_one, of_two);
    delete(&one).await;
    let mut direct = backend.client().await;
    direct.session = Some(of_one);
    eventually("the server has forgotten the session", || async {
        (direct.post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#).await.status == 404).then_some(())
    })
    .await;
    assert_eq!(session(&two).await, of_two);
}

#[tokio::test]
async fn max_clients_limits_the_links_and_a_closed_session_frees_one() {
    let mut server = own_process(&[]);
    server["maxClients"] = json!(2);
    let gateway = gateway_of(server).await;
    let (one, two, three) = (gateway.client_seeing("a_env").await, gateway.client().await, gateway.client().await);
    let (of_one, of_two) = (pid(&one).await, pid(&two).await);
    let rejected = three.try_call("a_env", json!({"name": "ME"})).await;
    let data = assert_error(&rejected, 1429, "LIMIT_EXCEEDED");
    assert_eq!((&data["limit"], &data["value"]), (&json!("maxClients"), &json!(2)), "{rejected}");
    assert_eq!((pid(&one).await, pid(&two).await), (of_one, of_two));
    delete(&one).await;
    eventually("there is room", || async {
        three.try_call("a_env", json!({"name": "ME"})).await["error"].is_null().then_some(())
    })
    .await;
    assert_ne!(pid(&three).await, of_two);
    assert_eq!(links(&gateway).await, 2);
}

#[tokio::test]
async fn a_crash_affects_only_its_own_client_and_the_next_call_starts_a_new_process() {
    let gateway = gateway_of(own_process(&[])).await;
    let (one, two) = (gateway.client_seeing("a_env").await, gateway.client().await);
    let (of_one, of_two) = (pid(&one).await, pid(&two).await);
    let hanging = begin_call(&two, "a_sleep", json!({"ms": 1500}));
    let crashed = one.try_call("a_crash", json!({})).await;
    let data = assert_error(&crashed, 1503, "BACKEND_UNAVAILABLE");
    assert!(data["retryable"].is_null(), "the call may have run: {crashed}");
    assert_ne!(pid(&one).await, of_one);
    assert!(ended(hanging).await["error"].is_null());
    assert_eq!(pid(&two).await, of_two);
    await_log(&gateway, &["WARN", "connection of one client lost", "exit code 3"]).await;
    let process = pid(&one).await;
    signal(process, "KILL");
    // A call before the gateway notices the loss may have been handled, and fails.
    metric_becomes(&Client::new(gateway.address), LINKS, 1).await;
    assert_ne!(pid(&one).await, process);
    assert_eq!(links(&gateway).await, 2);
}

#[tokio::test]
async fn d18_a_failed_start_is_reported_with_its_cause_and_each_call_triggers_at_most_one() {
    let (scratch, log) = start_log();
    // Only the first start, the one that lists, succeeds.
    let script =
        r#"if [ -e "$0.first" ]; then echo sorry >&2; echo $$ >>"$0.later"; exit 7; fi; : >"$0.first"; exec "$@""#;
    let mut server = per_client(scripted_server(script, &[]));
    server["args"][2] = json!(path_text(&log));
    let gateway = listed_gateway(server).await;
    let client = gateway.client().await;
    let mut rejected = Vec::new();
    for _ in 0..6 {
        rejected.push(client.try_call("a_echo", json!({})).await);
    }
    for answer in &rejected {
        let data = assert_error(answer, 1503, "BACKEND_UNAVAILABLE");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains("exit code 7") && !message.contains("sorry"), "{answer}");
        assert_eq!(data["retryable"], true, "{answer}");
    }
    await_log(&gateway, &["sorry", "exit code 7"]).await;
    let later = starts(&scratch.path().join("starts.later"));
    // The first list of a client also triggers an attempt. Usually the first call waits for it.
    assert!((2..=rejected.len() + 1).contains(&later), "{later} starts");
    assert_eq!(links(&gateway).await, 0);
    assert!(gateway.client().await.try_call("a_echo", json!({})).await["error"].is_object());
}

#[tokio::test]
async fn a_slow_start_delays_only_its_own_client_and_no_cancelled_call() {
    let (scratch, log) = start_log();
    // The second start, that of the first client, waits for the test.
    let script =
        r#"echo $$ >>"$0"; [ $(wc -l <"$0") = 2 ] && while [ ! -e "$0.go" ]; do sleep 0.05; done; ME=$$ exec "$@""#;
    let mut server = per_client(scripted_server(script, &[]));
    server["args"][2] = json!(path_text(&log));
    let gateway = listed_gateway(server).await;
    let (slow, quick) = (gateway.client().await, gateway.client().await);
    let (first, second) = (begin_call(&slow, "a_env", json!({"name": "ME"})), begin_call(&slow, "a_echo", json!({})));
    eventually("the process of the slow one is started", || async { (starts(&log) == 2).then_some(()) }).await;
    let leaving = slow.clone();
    let abandoned = tokio::spawn(async move {
        leaving.post(r#"{"jsonrpc":"2.0","id":"g","method":"tools/call","params":{"name":"a_echo"}}"#).await
    });
    metric_becomes(&Client::new(gateway.address), "goblin_requests_in_flight", 3).await;
    slow.notify("notifications/cancelled", json!({"requestId": "g"})).await;
    let answer = tokio::time::timeout(TIMEOUT, abandoned).await.expect("the process ends").expect("no panic");
    assert!(answer.messages().is_empty(), "{answer:?}");
    pid(&quick).await;
    assert!(!first.is_finished() && !second.is_finished());
    scratch.write("starts.go", "");
    assert!(ended(first).await["error"].is_null() && ended(second).await["error"].is_null());
    assert_eq!(starts(&log), 3);
}

/// A call that waits for a slow start becomes a stream, like any other slow call.
#[tokio::test]
async fn a_call_that_waits_for_a_slow_start_opens_a_stream() {
    let (scratch, log) = start_log();
    let script = r#"echo $$ >>"$0"; [ $(wc -l <"$0") = 2 ] && while [ ! -e "$0.go" ]; do sleep 0.05; done; exec "$@""#;
    let mut server = per_client(scripted_server(script, &[]));
    server["args"][2] = json!(path_text(&log));
    let gateway = listed_gateway(server).await;
    let client = gateway.client().await;
    let body = r#"{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"a_echo"}}"#;
    let (_, mut stream) = tokio::time::timeout(TIMEOUT, client.open(body.to_owned())).await.expect("a stream");
    assert_eq!(starts(&log), 2);
    scratch.write("starts.go", "");
    let answer = stream.next().await.expect("the answer");
    assert!(answer["error"].is_null(), "{answer}");
}

#[tokio::test]
async fn a_client_that_disconnects_during_the_start_leaves_no_process() {
    let (_scratch, log) = start_log();
    // All starts except the first never respond, and end only when killed.
    let script = r#"echo $$ >>"$0"; [ $(wc -l <"$0") = 1 ] && exec "$@"; trap "" TERM; while :; do sleep 1; done"#;
    let mut server = per_client(scripted_server(script, &[]));
    server["args"][2] = json!(path_text(&log));
    let mut gateway = Gateway::start(json!({"gateway": {"grace": "500ms"}, "mcpServers": {"a": server}})).await;
    let (one, two) = (gateway.client().await, gateway.client().await);
    await_listed(&gateway).await;
    let _calls = [begin_call(&one, "a_echo", json!({})), begin_call(&two, "a_echo", json!({}))];
    eventually("both are started", || async { (starts(&log) == 3).then_some(()) }).await;
    metric_becomes(&Client::new(gateway.address), LINKS, 2).await;
    delete(&one).await;
    metric_becomes(&Client::new(gateway.address), LINKS, 1).await;
    gateway.terminate().await;
    assert!(started(&log).into_iter().all(|process| !is_alive(process)));
}

#[tokio::test]
async fn a_lost_upstream_session_is_renewed_and_a_replaced_server_is_reconnected() {
    for switches in [&[][..], &["--sse"]] {
        let backend = HttpFixture::start(switches).await;
        let gateway = gateway_of(per_client(backend.server())).await;
        let client = gateway.client_seeing("a_forget_sessions").await;
        client.call("a_forget_sessions", json!({})).await;
        assert_eq!(client.call_text("a_echo", json!({})).await, "{}", "{switches:?}");
        assert_eq!(links(&gateway).await, 1);
        let _backend = backend.replace(switches).await;
        await_call(&client, "a_echo").await;
    }
}

#[tokio::test]
async fn check_connects_once_and_leaves_no_process() {
    let (scratch, log) = start_log();
    let server = own_process(&["--start-log", path_text(&log)]);
    let config = scratch.write("goblin.json", &json!({"mcpServers": {"a": server}}).to_string());
    let output = goblin(scratch.path()).args(["check", "--connect", "--config"]).arg(&config).output();
    let output = tokio::time::timeout(TIMEOUT, output).await.expect("an end in time").expect("goblin starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(starts(&log), 1);
    assert!(started(&log).into_iter().all(|process| !is_alive(process)));
}
