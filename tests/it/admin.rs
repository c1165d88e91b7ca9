//! The probes (alive, ready, and the details they must not reveal), and the operators' API under `/api`.
//!
//! The metrics in the status equal those of `/metrics`, and the entries equal those of clients. No session id appears
//! in full.

use std::collections::BTreeMap;

use goblin_admin::api::EntryList;
use goblin_engine::admin::events::MAX_READERS;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::admin_client::{bearer, get_admin, open_admin_stream};
use crate::client::Client;
use crate::client::http::{Answer, Listener, field};
use crate::harness::{Gateway, eventually, fixture_server};
use crate::subscriber::subscribe;
use crate::support::await_log;

/// A probe uses an unknown host, any origin and no token.
const FOREIGN: [(&str, &str); 2] = [("host", "10.0.0.7:8080"), ("origin", "http://evil.example")];

async fn readyz(client: &Client) -> (StatusCode, Value) {
    let answer = client.send(Method::GET, "/readyz", &[], "").await;
    (answer.status, serde_json::from_str(&answer.body).expect("JSON"))
}

/// Waits until the gateway is ready and returns the response.
async fn ready(client: &Client) -> Value {
    eventually("the gateway is ready", || async {
        let (status, body) = readyz(client).await;
        assert_eq!(status == StatusCode::OK, body["ready"] == true, "{body}");
        (status == StatusCode::OK).then_some(body)
    })
    .await
}

fn assert_sent_to_no_other_client(answer: &Answer) {
    assert!(!answer.headers.contains_key("access-control-allow-origin"), "{answer:?}");
}

#[tokio::test]
async fn probes_need_no_token_and_accept_any_host() {
    let gateway = Gateway::start(json!({ "gateway": { "token": "s3cret-0123456789" }, "mcpServers": {} })).await;
    let client = Client::new(gateway.address);
    ready(&client).await;
    for headers in [&[][..], &FOREIGN] {
        let alive = client.send(Method::GET, "/healthz", headers, "").await;
        assert_eq!((alive.status, alive.body.as_str()), (StatusCode::OK, "ok\n"));
        assert_sent_to_no_other_client(&alive);
        let ready = client.send(Method::GET, "/readyz", headers, "").await;
        let none = r#"{"ready":true,"state":"ready","summary":"ready","servers":{"total":0,"ready":0,"starting":0,"failed":0,"loginNeeded":0}}"#;
        assert_eq!((ready.status, ready.body.as_str()), (StatusCode::OK, none));
        assert_sent_to_no_other_client(&ready);
    }
    for path in
        ["/metrics", "/api/subscriptions", "/healthz/", "/healthz/x", "/readyz/../metrics", "//healthz", "/HEALTHZ"]
    {
        let answer = client.send(Method::GET, path, &[], "").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn probes_metrics_and_api_reads_accept_only_get_and_head() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = Client::new(gateway.address);
    ready(&client).await;
    for path in ["/healthz", "/readyz", "/metrics", "/api/subscriptions"] {
        let bearer = bearer(client.address).await;
        let head = client.send(Method::HEAD, path, &[("authorization", &bearer)], "").await;
        assert_eq!((head.status, head.body.as_str()), (StatusCode::OK, ""), "{path}");
        for verb in [Method::POST, Method::PUT, Method::DELETE] {
            let answer = client.send(verb.clone(), path, &[("authorization", &bearer)], "{}").await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{verb} {path}");
        }
    }
}

#[tokio::test]
async fn sess2_a_ready_gateway_lists_the_tools_of_all_started_servers() {
    let servers =
        json!({ "a": fixture_server(&[]), "b": fixture_server(&[]), "bad": { "command": "no-such-program" } });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client().await;
    let body = ready(&client).await;
    let line = await_log(&gateway, &["ready", "servers=3", "took="]).await;
    // Under load a server may start more slowly than the wait. The log then names it.
    if !line.contains("waiting=") {
        assert_eq!(body["servers"], json!({"total": 3, "ready": 2, "starting": 0, "failed": 1, "loginNeeded": 0}));
        let names = client.tool_names().await;
        assert!(["a_echo", "b_echo"].iter().all(|name| names.iter().any(|known| known == name)), "{names:?}");
    }
}

#[tokio::test]
async fn sess2_a_server_that_never_answers_does_not_delay_readiness() {
    let servers = json!({ "hanging": fixture_server(&["--hang-handshake"]), "good": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("good_echo").await;
    let body = ready(&client).await;
    assert_eq!(body["servers"], json!({"total": 2, "ready": 1, "starting": 1, "failed": 0, "loginNeeded": 0}));
    await_log(&gateway, &["ready", "servers=2", "waiting=\"hanging\""]).await;
}

#[tokio::test]
async fn use3_probe_and_api_report_the_same_state() {
    let servers = json!({ "hanging": fixture_server(&["--hang-handshake"]), "bad": { "command": "no-such-program" } });
    let config = json!({ "gateway": { "startWait": "10m" }, "mcpServers": servers });
    let gateway = Gateway::start(config).await;
    let client = Client::new(gateway.address);
    let probe = eventually("one server has settled", || async {
        let (status, body) = readyz(&client).await;
        (body["servers"]["failed"] == 1).then_some((status, body))
    });
    let (status, body) = probe.await;
    assert_eq!(
        (status, &body["state"], &body["summary"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("starting"), &json!("starting 1/2"))
    );
    let reported = get_json(&client, "/api/status").await;
    for key in ["state", "summary"] {
        assert_eq!(reported[key], body[key]);
    }
    assert_eq!(reported["serverCounts"], body["servers"]);

    let gateway =
        Gateway::with_servers(json!({ "a": fixture_server(&[]), "bad": { "command": "no-such-program" } })).await;
    let client = gateway.client_seeing("a_echo").await;
    let degraded = status_when(&client, "the gateway is degraded", |status| status["state"] == "degraded").await;
    assert_eq!(degraded["summary"], "degraded: 1 failed");
    let (status, body) = readyz(&client).await;
    assert_eq!((status, &body["ready"], &body["summary"]), (StatusCode::OK, &json!(true), &degraded["summary"]));
}

/// Starts a gateway with a working server, one that cannot start and one that is disabled, and a client of it.
async fn three_servers() -> (Gateway, Client) {
    let servers = json!({
        "a": fixture_server(&[]),
        "broken": { "command": "no-such-program" },
        "off": { "command": "no-such-program", "enabled": false },
    });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("a_echo").await;
    (gateway, client)
}

async fn get_json(client: &Client, path: &str) -> Value {
    let answer = get_admin(client, path).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
    assert_eq!(answer.headers["content-type"], "application/json", "{path}");
    assert_eq!(answer.headers["cache-control"], "no-store", "{path}");
    serde_json::from_str(&answer.body).expect("JSON")
}

/// Waits until the status satisfies the condition.
async fn status_when(client: &Client, condition: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    eventually(condition, || async { Some(get_json(client, "/api/status").await).filter(|status| is_so(status)) }).await
}

#[tokio::test]
async fn met1_met2_d7_the_status_reports_servers_calls_entries_and_metrics() {
    let (gateway, client) = three_servers().await;
    for name in ["x", "y"] {
        client.call("a_echo", json!({ "name": name })).await;
    }
    client.request("resources/read", json!({ "uri": "a+note:///alpha" })).await;
    client.request("resources/read", json!({ "uri": "a+note:///missing" })).await;
    subscribe(&client, "a+note:///alpha", json!({})).await;
    let status = status_when(&client, "all servers have settled and all is counted", |status| {
        let calls = &status["servers"][0]["calls"];
        let is_counted = (&calls["ok"], &calls["error"]) == (&json!(3), &json!(1));
        status["state"] == "degraded" && status["servers"][1]["state"] == "failed" && is_counted
    })
    .await;
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["pid"], gateway.child.id().expect("the process runs"));
    assert_eq!(status["configuration"]["reloads"], 0);
    assert_eq!((&status["subscriptions"], &status["sessions"]["total"]), (&json!(1), &json!(1)));
    let states: Vec<_> =
        status["servers"].as_array().expect("a list").iter().map(|it| (&it["id"], &it["state"])).collect();
    let expected =
        [("a", "ready"), ("broken", "failed"), ("off", "disabled")].map(|(id, state)| (json!(id), json!(state)));
    assert_eq!(states, expected.iter().map(|(id, state)| (id, state)).collect::<Vec<_>>());
    assert!(status["servers"][1]["reason"].as_str().is_some_and(|it| it.contains("no-such-program")), "{status}");

    let server = &status["servers"][0];
    for (key, expected) in [
        ("transport", "stdio"),
        ("protocol", "2025-11-25"),
        ("era", "legacy"),
        ("software", "goblin-fixture 0.0.0"),
        ("session", "shared"),
    ] {
        assert_eq!(server[key], expected, "{key}");
    }
    let calls =
        json!({"ok": 3, "error": 1, "timeout": 0, "cancelled": 0, "unavailable": 0, "overloaded": 0, "protocol": 0});
    assert_eq!(server["calls"], calls, "two calls, a read, and one that failed");
    assert_eq!((&server["subscriptions"], &server["latency"]["count"]), (&json!(1), &json!(4)));
    let latency = |key: &str| server["latency"][key].as_f64().unwrap_or_else(|| panic!("{key}: {server}"));
    assert!(latency("p50Ms") <= latency("p95Ms") && latency("p95Ms") <= latency("p99Ms") && latency("meanMs") > 0.0);
    for (kind, method, member) in [
        ("tools", "tools/list", "tools"),
        ("prompts", "prompts/list", "prompts"),
        ("resources", "resources/list", "resources"),
        ("templates", "resources/templates/list", "resourceTemplates"),
    ] {
        let count = client.list(method, member).await.len();
        assert!(count > 0 && server["entries"][kind] == count && status["catalog"][kind] == count, "{kind}: {server}");
    }
    // The values equal those on /metrics, with other names.
    let metrics = &status["metrics"];
    assert_eq!(metrics["mcpResourceSubscriptionsActive"], 1);
    let read = |mime: &str, status: &str| json!({"serverId": "a", "mimeType": mime, "status": status, "value": 1});
    let reads = metrics["mcpResourceReadsTotal"].as_array().expect("a list");
    assert_eq!(reads.len(), 2, "{metrics}");
    assert!(reads.contains(&read("text/plain", "success")) && reads.contains(&read("unknown", "failure")), "{metrics}");
    let request = json!({"serverId": "a", "method": "tools/call", "outcome": "ok", "value": 2});
    assert!(metrics["mcpRequestsTotal"].as_array().expect("a list").contains(&request), "{metrics}");
}

#[tokio::test]
async fn each_server_has_a_route_and_an_unknown_name_gets_a_suggestion() {
    let (_gateway, client) = three_servers().await;
    for (id, state) in [("a", "ready"), ("broken", "failed"), ("off", "disabled")] {
        eventually(&format!("{id} is {state}"), || async {
            (get_json(&client, &format!("/api/servers/{id}")).await["state"] == state).then_some(())
        })
        .await;
    }
    let list = get_json(&client, "/api/servers").await;
    assert_eq!(list["servers"].as_array().map(Vec::len), Some(3), "{list}");
    for (path, fragment) in [
        ("/api/servers/brokn", "there is no server `brokn`; did you mean `broken`?"),
        ("/api/tools?server=of", "did you mean `off`?"),
        ("/api/servres", "the nearest is GET /api/servers"),
        ("/api/", "the nearest is"),
    ] {
        let answer = get_admin(&client, path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}: {answer:?}");
        assert!(
            answer.json()["error"]["message"]
                .as_str()
                .is_some_and(|it| it.ends_with(fragment) || it.contains(fragment))
        );
    }
    for path in ["/api/status?x=1", "/api/tools?sever=a", "/api/tools?server=", "/api/tools?server=a&server=a"] {
        let answer = get_admin(&client, path).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {answer:?}");
    }
}

#[derive(Deserialize)]
struct Listed {
    result: BTreeMap<String, Box<RawValue>>,
}

#[tokio::test]
async fn the_api_returns_entries_exactly_as_clients_receive_them() {
    let servers = json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    for (path, method, member) in [
        ("/api/tools", "tools/list", "tools"),
        ("/api/prompts", "prompts/list", "prompts"),
        ("/api/resources", "resources/list", "resources"),
        ("/api/templates", "resources/templates/list", "resourceTemplates"),
    ] {
        let body = client.post(json!({"jsonrpc": "2.0", "id": 1, "method": method}).to_string()).await.body;
        let listed: Listed = serde_json::from_str(&body).expect("a list");
        let listed: Vec<&RawValue> = serde_json::from_str(listed.result[member].get()).expect("definitions");
        let listed: Vec<_> = listed.iter().map(|definition| definition.get()).collect();
        let entries = async |query: &str| {
            let answer = get_admin(&client, &format!("{path}{query}")).await;
            serde_json::from_str::<EntryList>(&answer.body).expect("entries")
        };
        // A catalog with the same entries may follow while the servers start.
        let all = eventually("the entries and the status are of one catalog", || async {
            let all = entries("").await;
            (get_json(&client, "/api/status").await["catalog"]["version"] == all.version).then_some(all)
        })
        .await;
        assert_eq!(all.entries.iter().map(|entry| entry.definition.get()).collect::<Vec<_>>(), listed, "{path}");
        let of = |id: &str| entries(if id == "a" { "?server=a" } else { "?server=b" });
        let (a, b) = (of("a").await.entries, of("b").await.entries);
        assert!(!a.is_empty() && a.len() + b.len() == all.entries.len(), "{path}");
        assert!(a.iter().all(|entry| entry.server == "a") && b.iter().all(|entry| entry.server == "b"), "{path}");
        assert!(a.iter().all(|entry| entry.exposed.contains('a') && entry.exposed != entry.native), "{path}");
    }
}

#[tokio::test]
async fn sub15_sessions_are_listed_without_their_full_ids() {
    let config = json!({ "mcpServers": { "a": fixture_server(&[]) }, "profiles": { "p": {} }, "metaTools": false });
    let gateway = Gateway::start(config).await;
    let first = gateway.client_seeing("a_touch").await;
    let mut second = Client::new(gateway.address).at("/mcp/p/p");
    second.initialize("2025-06-18").await;
    subscribe(&first, "a+note:///alpha", json!({})).await;
    let _stream = first.listen().await;
    let list = eventually("the stream is listed", || async {
        let list = get_json(&first, "/api/sessions").await;
        let has_stream = |session: &Value| session["streams"] == 1;
        list["sessions"].as_array().expect("a list").iter().any(has_stream).then_some(list)
    })
    .await;
    assert_eq!((&list["total"], &list["omitted"]), (&json!(2), &json!(0)));
    let ends: Vec<_> = [&first, &second].map(|client| client.session.clone().expect("a session")).to_vec();
    let of = |whole: &str| {
        let sessions = list["sessions"].as_array().expect("a list");
        sessions
            .iter()
            .find(|it| whole.ends_with(it["id"].as_str().expect("an id")))
            .expect("the entry is listed")
            .clone()
    };
    let (one, other) = (of(&ends[0]), of(&ends[1]));
    assert_eq!((&one["client"], &one["clientVersion"]), (&json!("test"), &json!("0")));
    assert_eq!(
        (&one["protocol"], &one["subscriptions"], &one["streams"]),
        (&json!("2025-11-25"), &json!(1), &json!(1))
    );
    assert_eq!((&other["protocol"], &other["profile"]), (&json!("2025-06-18"), &json!("p")));
    assert_eq!(other["requests"], 0, "the handshake does not count");
    assert!(one["requests"].as_u64() >= Some(2), "at least one list and one subscribe: {one}");
    assert!(ends.iter().all(|whole| !list.to_string().contains(whole)), "a full session id is a credential: {list}");
}

/// Opens the event stream.
async fn events(client: &Client, headers: &[(&str, &str)]) -> Listener {
    let (parts, listener) = open_admin_stream(client, "/api/events", headers).await;
    assert_eq!(
        (parts.status, &parts.headers["content-type"]),
        (StatusCode::OK, &"text/event-stream".parse().expect("a value"))
    );
    listener
}

/// Reads until an event of this kind arrives.
async fn await_kind(listener: &mut Listener, kind: &str) -> (Value, String) {
    loop {
        let event = listener.next_event().await.expect("the stream is open");
        let data: Value = serde_json::from_str(field(&event, "data").expect("data")).expect("JSON");
        assert_eq!(field(&event, "id").map(str::to_owned), Some(data["seq"].to_string()), "{event}");
        if data["kind"] == kind {
            return (data, event);
        }
    }
}

#[tokio::test]
async fn events_are_streamed_live_and_a_reader_can_resume() {
    let (gateway, client) = three_servers().await;
    let mut reader = events(&client, &[]).await;
    let (ready, _) = await_kind(&mut reader, "backend_ready").await;
    assert_eq!((&ready["server"], &ready["level"]), (&json!("a"), &json!("info")), "past events are listed too");
    let mut new = gateway.client().await;
    let (opened, _) = await_kind(&mut reader, "session_opened").await;
    let whole = new.session.take().expect("a session");
    assert!(whole.ends_with(opened["session"].as_str().expect("a session")), "{opened}");
    let last = opened["seq"].to_string();
    drop(reader);
    // A client that resumes receives exactly the events it missed.
    new.session = Some(whole.clone());
    new.send(Method::DELETE, "/mcp", &[("mcp-session-id", &whole)], "").await;
    let mut reader = events(&client, &[("last-event-id", &last)]).await;
    let first = reader.next_event().await.expect("an event");
    let seq: u64 = field(&first, "id").expect("an id").parse().expect("a number");
    assert_eq!(seq, last.parse::<u64>().expect("a number") + 1, "{first}");
    let answer = {
        let bearer = bearer(client.address).await;
        let headers = [("last-event-id", "x"), ("authorization", bearer.as_str())];
        client.send(Method::GET, "/api/events", &headers, "").await
    };
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
}

#[tokio::test]
async fn the_number_of_event_readers_is_limited_and_none_delays_the_shutdown() {
    let mut gateway = Gateway::with_servers(json!({})).await;
    let client = Client::new(gateway.address);
    let mut readers = Vec::new();
    for _ in 0..MAX_READERS {
        readers.push(events(&client, &[]).await);
    }
    let rejected = get_admin(&client, "/api/events").await;
    assert_eq!(rejected.status, StatusCode::SERVICE_UNAVAILABLE, "{rejected:?}");
    readers.pop();
    let back = eventually("the room of one that went is free", || async {
        let (parts, listener) = open_admin_stream(&client, "/api/events", &[]).await;
        (parts.status == StatusCode::OK).then_some(listener)
    });
    readers.push(back.await);
    assert!(gateway.terminate().await.success());
    for mut reader in readers {
        while reader.next_event().await.is_some() {}
    }
    let cut = gateway.log().iter().filter(|line| line.contains("grace") && line.contains("cut")).count();
    assert_eq!(cut, 0, "{:?}", gateway.log());
}

#[tokio::test]
async fn d2_the_admin_api_shows_the_identifier_of_each_resource() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let listed = get_admin(&client, "/api/resources").await.json();
    let entries = listed["entries"].as_array().expect("a list");
    let alpha = entries.iter().find(|entry| entry["native"] == "note:///alpha").expect("a listed resource");
    assert_eq!(alpha["id"], "a_note_alpha", "{alpha}");
    assert!(entries.iter().all(|entry| entry["id"].is_string()), "{listed}");
    let templates = get_admin(&client, "/api/templates").await.json();
    assert!(templates["entries"][0]["native"].is_string() && templates["entries"][0]["id"].is_null(), "{templates}");
}
