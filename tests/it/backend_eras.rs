//! Legacy, modern and dual-era backends: the detected era, and the protocol towards each.
//!
//! The gateway probes a backend once and remembers the result. A backend that changes its era is detected again.

use serde_json::{Value, json};

use crate::client::Client;
use crate::client::modern::Draft;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server};
use crate::per_client::per_client;
use crate::scripted_backend::{Reply, Scripted};
use crate::support::{assert_error, await_log, http_server, path_text, scripted_server, starts, without_login};

fn with(mut server: Value, key: &str, value: Value) -> Value {
    server[key] = value;
    server
}

async fn gateway_of(server: Value) -> Gateway {
    Gateway::with_servers(json!({ "a": server })).await
}

/// Uses the features of any backend as a legacy client.
async fn tour(client: &Client) {
    assert_eq!(client.call_text("a_echo", json!({"x": 1.0})).await, r#"{"x":1.0}"#);
    let read = client.request("resources/read", json!({"uri": "a+note:///alpha"})).await;
    assert!(read["result"]["contents"][0]["text"].is_string(), "{read}");
    let prompts = client.list("prompts/list", "prompts").await;
    let name = prompts[0]["name"].as_str().expect("a name");
    let prompt = client.request("prompts/get", json!({"name": name, "arguments": {"who": "me", "name": "x"}})).await;
    assert!(prompt["result"]["messages"].is_array(), "{prompt}");
}

/// A second process would have a state of its own.
#[tokio::test]
async fn d17_one_process_serves_clients_of_both_eras() {
    let scratch = Scratch::new();
    let file = scratch.path().join("starts");
    let gateway = gateway_of(fixture_server(&["--era", "both", "--start-log", path_text(&file)])).await;
    let (legacy, modern) = (gateway.client_seeing("a_echo").await, Client::modern(gateway.address, json!({})));
    for client in [&legacy, &modern] {
        assert_eq!(client.call_text("a_echo", json!({"x": 1})).await, r#"{"x":1}"#);
    }
    assert_eq!(starts(&file), 1);
}

#[tokio::test]
async fn d17_one_modern_process_serves_calls_levels_and_subscriptions_of_both_eras() {
    let scratch = Scratch::new();
    let file = scratch.path().join("starts");
    let gateway = gateway_of(fixture_server(&["--era", "modern", "--start-log", path_text(&file)])).await;
    let legacy = Client::new(gateway.address).listening(json!({})).await;
    legacy.await_tool("a_touch").await;
    let modern = Client::modern(gateway.address, json!({}));
    for client in [&legacy, &modern] {
        assert_eq!(client.call_text("a_echo", json!({"x": 1})).await, r#"{"x":1}"#);
    }
    let answer = legacy.request("logging/setLevel", json!({"level": "debug"})).await;
    assert!(answer["result"].is_object(), "{answer}");
    let uri = "a+note:///alpha";
    legacy.subscribe(uri).await;
    let (_, mut listener) = modern.listen_to(json!("s"), json!({ "resourceSubscriptions": [uri] })).await;
    // The version of the resource is a state of the process.
    for (version, client) in (1..).zip([&legacy, &modern]) {
        client.call("a_touch", json!({"uri": "note:///alpha"})).await;
        assert_eq!(legacy.updated().await.json()["params"]["version"], version);
        let update = listener.await_method("notifications/resources/updated").await;
        assert_eq!(update["params"]["version"], version, "{update}");
    }
    assert_eq!(starts(&file), 1);
}

#[tokio::test]
async fn srv2_legacy_clients_use_modern_backends() {
    let http = HttpFixture::start(&["--era", "modern"]).await;
    for server in [http.server(), fixture_server(&["--era", "modern"])] {
        let gateway = gateway_of(server).await;
        let client = gateway.client_seeing("a_echo").await;
        await_log(&gateway, &["version=\"2026-07-28\""]).await;
        tour(&client).await;
        let answer = client.call_text("a_hello", json!({})).await;
        assert!(answer.contains("2026-07-28") && answer.contains(r#""name":"goblin""#), "{answer}");
    }
}

#[tokio::test]
async fn srv2_a_dual_era_backend_serves_legacy_clients_over_a_legacy_link() {
    let http = HttpFixture::start(&["--era", "both"]).await;
    let gateway = gateway_of(http.server()).await;
    let client = gateway.client_seeing("a_echo").await;
    await_log(&gateway, &["version=\"2026-07-28\""]).await;
    tour(&client).await;
    let answer = client.call_text("a_hello", json!({})).await;
    assert!(!answer.contains("2026-07-28") && answer.contains("2025-11-25"), "{answer}");
}

#[tokio::test]
async fn srv2_a_rejected_legacy_handshake_is_not_repeated() {
    let schema = json!({"type": "object"});
    let server = Scripted::start(move |seen, _| seen.modern(&schema)).await;
    let gateway = gateway_of(http_server(server.address)).await;
    let client = gateway.client_seeing("a_t").await;
    for _ in 0..3 {
        assert!(client.try_call("a_t", json!({})).await["error"].is_null());
    }
    assert_eq!(server.of("initialize").len(), 1, "the handshake was rejected once");
    let pinned = with(fixture_server(&["--era", "both"]), "protocol", json!("modern"));
    let gateway = gateway_of(pinned).await;
    let client = gateway.client_seeing("a_echo").await;
    let answer = client.call_text("a_hello", json!({})).await;
    assert!(answer.contains("2026-07-28"), "{answer}");
}

#[tokio::test]
async fn srv2_a_per_client_link_uses_the_era_of_its_client_if_the_backend_has_it() {
    for (era, expected) in [("both", "2025-11-25"), ("modern", "2026-07-28")] {
        let http = HttpFixture::start(&["--era", era]).await;
        for server in [http.server(), fixture_server(&["--era", era])] {
            let gateway = gateway_of(per_client(server)).await;
            let client = gateway.client_seeing("a_echo").await;
            let answer = client.call_text("a_hello", json!({})).await;
            assert!(answer.contains(expected), "{era}: {answer}");
            tour(&client).await;
        }
    }
}

#[tokio::test]
async fn srv2_a_configured_era_is_the_only_one_tried() {
    let legacy = Scripted::start(|seen, _| seen.legacy()).await;
    let gateway = gateway_of(with(http_server(legacy.address), "protocol", json!("legacy"))).await;
    gateway.client_seeing("a_t").await;
    assert!(legacy.of("server/discover").is_empty());
    for server in [http_server(legacy.address), fixture_server(&[])] {
        let gateway = gateway_of(with(server, "protocol", json!("modern"))).await;
        await_log(&gateway, &["it supports no version without a handshake", "use \\\"auto\\\" or \\\"legacy\\\""])
            .await;
    }
    assert_eq!(legacy.of("initialize").len(), 1, "by the first gateway alone");
}

#[tokio::test]
async fn srv2_a_rejected_probe_is_followed_by_the_legacy_handshake() {
    let server = Scripted::start(|seen, _| match (seen.verb(), seen.method()) {
        ("POST", "server/discover") => seen.error("400 Bad Request", json!({"code": -32000, "message": "No session"})),
        ("POST", "tools/call") => seen.error("404 Not Found", json!({"code": -32001, "message": "Session not found"})),
        _ => seen.legacy(),
    })
    .await;
    let gateway = gateway_of(http_server(server.address)).await;
    gateway.client_seeing("a_t").await;
    let expected = ["server/discover", "initialize", "notifications/initialized"];
    assert_eq!(server.methods()[..3], expected);
    let discover = &server.of("server/discover")[0];
    assert_eq!(discover.header("mcp-protocol-version"), Some("2026-07-28"));
    assert_eq!(discover.header("mcp-method"), Some("server/discover"));
    assert_eq!(discover.meta("protocolVersion"), "2026-07-28");
    assert_eq!(discover.meta("clientInfo")["name"], "goblin");
    assert!(discover.meta("clientCapabilities").is_object());
    let began = &server.of("initialize")[0];
    assert_eq!((began.header("mcp-method"), began.header("mcp-protocol-version")), (None, None));
}

#[tokio::test]
async fn srv2_http_401_403_and_503_do_not_decide_the_era() {
    for status in ["401 Unauthorized", "403 Forbidden", "503 Service Unavailable"] {
        let server = Scripted::start(move |_, _| Reply::Bytes(crate::raw_server::response(status, "", ""))).await;
        let gateway = gateway_of(without_login(http_server(server.address))).await;
        await_log(&gateway, &["cannot connect to backend", &format!("it answered HTTP {status}")]).await;
        assert!(server.of("initialize").is_empty(), "{status}: {:?}", server.methods());
    }
}

#[tokio::test]
async fn srv2_an_unsupported_version_error_repeats_the_probe() {
    let schema = json!({"type": "object"});
    let server = Scripted::start(move |seen, before| match (seen.method(), before) {
        ("server/discover", 0) => {
            let data = json!({"supported": ["2026-07-28"], "requested": "2026-07-28"});
            seen.error("400 Bad Request", json!({"code": -32022, "message": "no", "data": data}))
        }
        _ => seen.modern(&schema),
    })
    .await;
    let gateway = gateway_of(http_server(server.address)).await;
    gateway.client_seeing("a_t").await;
    assert_eq!(server.methods()[..2], ["server/discover", "server/discover"]);
    assert!(server.of("initialize").is_empty());
}

/// A wrapper that exits unless the first line is a handshake, like older SDKs. The next one drops unknown requests.
const ENDS: &str =
    r#"read -r line; case "$line" in *'"initialize"'*) { printf '%s\n' "$line"; cat; } | "$@" ;; *) exit 3 ;; esac"#;
const UNANSWERED: &str = r#"grep --line-buffered -v server/discover | "$@""#;

#[tokio::test]
async fn srv2_processes_that_do_not_answer_the_probe_get_the_legacy_handshake() {
    for script in [ENDS, UNANSWERED] {
        let config = json!({
            "policies": { "startTimeout": "8s" },
            "mcpServers": { "a": scripted_server(script, &[]) },
        });
        let gateway = Gateway::start(config).await;
        let client = gateway.client_seeing("a_echo").await;
        await_log(&gateway, &["version=\"2025-11-25\""]).await;
        tour(&client).await;
    }
}

#[tokio::test]
async fn srv2_a_server_that_changes_its_era_is_detected_again() {
    let mut server = HttpFixture::start(&["--era", "modern"]).await;
    let gateway = gateway_of(server.server()).await;
    let client = gateway.client_seeing("a_echo").await;
    tour(&client).await;
    for (era, version) in [("legacy", "2025-11-25"), ("modern", "2026-07-28")] {
        server = server.replace(&["--era", era]).await;
        eventually(&format!("the server receives version {version}"), || async {
            let answer = client.try_call("a_hello", json!({})).await;
            answer["result"].to_string().contains(version).then_some(())
        })
        .await;
        tour(&client).await;
    }
}

#[tokio::test]
async fn srv2_headers_repeat_annotated_arguments_and_badly_annotated_tools_are_left_out() {
    let http = HttpFixture::start(&["--era", "modern", "--header-tools"]).await;
    let gateway = gateway_of(http.server()).await;
    let client = gateway.client_seeing("a_headed").await;
    let arguments = json!({"region": "köln", "priority": 7, "dry": true, "options": {"tenant": " t"}});
    let answer = client.call_text("a_headed", arguments).await;
    for header in [r#""mcp-name":"headed""#, "=?base64?a8O2bG4=?=", r#""mcp-param-priority":"7""#] {
        assert!(answer.contains(header), "{header}: {answer}");
    }
    client.call_text("a_headed", json!({"region": null})).await;
    assert!(!client.tool_names().await.contains(&"a_headed_badly".to_owned()));
    await_log(&gateway, &["tool omitted", "headed_badly"]).await;
    // Over a pipe no headers repeat the arguments, so the annotation does not matter.
    let gateway = gateway_of(fixture_server(&["--era", "modern", "--header-tools"])).await;
    gateway.client_seeing("a_headed_badly").await;
}

#[tokio::test]
async fn srv2_modern_requests_carry_the_capabilities_and_log_level_of_the_client() {
    let schema = json!({"type": "object"});
    let server = Scripted::start(move |seen, _| seen.modern(&schema)).await;
    let config = with(http_server(server.address), "declare", json!(["elicitation"]));
    let gateway = gateway_of(config).await;
    gateway.client_seeing("a_t").await;
    let mut client = Client::new(gateway.address);
    let abilities = json!({"roots": {"listChanged": true}, "sampling": {}, "elicitation": {"form": {}}, "x": {"y": 1}});
    client.initialize_with("2025-11-25", abilities).await;
    let params = json!({"name": "a_t", "arguments": {}, "_meta": {"vendor": 1, "progressToken": "p"}});
    client.request("tools/call", params.clone()).await;
    client.request("logging/setLevel", json!({"level": "warning"})).await;
    client.request("tools/call", params).await;
    let calls = server.of("tools/call");
    assert_eq!(calls[0].meta("clientCapabilities"), &json!({"roots": {}, "elicitation": {"form": {}}, "x": {"y": 1}}));
    assert_eq!((calls[0].meta("logLevel"), calls[1].meta("logLevel")), (&json!("debug"), &json!("warning")));
    let meta = &calls[0].message["params"]["_meta"];
    assert_eq!(meta["vendor"], 1);
    assert_eq!(meta["progressToken"], calls[0].message["id"], "the gateway's own token");
    assert_eq!((calls[0].header("mcp-method"), calls[0].header("mcp-name")), (Some("tools/call"), Some("t")));
    let shared = server.of("tools/list")[0].meta("clientCapabilities").clone();
    assert_eq!(shared, json!({"elicitation": {"form": {}, "url": {}}}));
}

#[tokio::test]
async fn srv2_a_call_rejected_for_its_headers_is_repeated_once_with_a_fresh_listing() {
    let plain = json!({"type": "object", "properties": {"r": {"type": "string"}}});
    let marked = json!({"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}});
    let server = Scripted::start(move |seen, before| match seen.method() {
        "tools/list" if before == 0 => seen.modern(&plain),
        "tools/call" if seen.header("mcp-param-r") != Some("x") => {
            seen.error("400 Bad Request", json!({"code": -32020, "message": "headers"}))
        }
        _ => seen.modern(&marked),
    })
    .await;
    let gateway = gateway_of(http_server(server.address)).await;
    let client = gateway.client_seeing("a_t").await;
    client.call("a_t", json!({"r": "x"})).await;
    assert_eq!(server.of("tools/call").len(), 2);
    let rejected = client.request("tools/call", json!({"name": "a_t", "arguments": {"r": "y"}})).await;
    assert_eq!(rejected["error"]["code"], -32603, "{rejected}");
    assert_eq!(server.of("tools/call").len(), 4, "once more, not for ever");
}

#[tokio::test]
async fn route3_a_modern_call_is_cancelled_by_closing_its_stream() {
    let schema = json!({"type": "object"});
    let server = Scripted::start(move |seen, _| match seen.method() {
        "tools/call" => Reply::Held(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nMcp-Session-Id: x\r\n\r\n:\n\n".to_vec(),
        ),
        _ => seen.modern(&schema),
    })
    .await;
    let gateway = gateway_of(http_server(server.address)).await;
    let client = gateway.client_seeing("a_t").await;
    let begun = json!({"jsonrpc": "2.0", "id": 77, "method": "tools/call", "params": {"name": "a_t"}}).to_string();
    let caller = client.clone();
    let call = tokio::spawn(async move { caller.post(begun).await });
    eventually("the server has the call", || async { (!server.of("tools/call").is_empty()).then_some(()) }).await;
    client.notify("notifications/cancelled", json!({"requestId": 77})).await;
    server.await_disconnect().await;
    call.await.expect("no panic");
    assert!(server.of("notifications/cancelled").is_empty());
    assert!(server.seen().iter().all(|seen| seen.verb() == "POST" && seen.header("mcp-session-id").is_none()));
}

#[tokio::test]
async fn f5_a_stream_that_ends_without_an_answer_fails_its_call_and_nothing_is_resent() {
    let schema = json!({"type": "object"});
    let server = Scripted::start(move |seen, _| match seen.method() {
        "tools/call" => Reply::Bytes(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\nid: 1\ndata: \n\n"
                .to_vec(),
        ),
        _ => seen.modern(&schema),
    })
    .await;
    let gateway = gateway_of(http_server(server.address)).await;
    let client = gateway.client_seeing("a_t").await;
    let answer = client.try_call("a_t", json!({})).await;
    assert_error(&answer, 1503, "BACKEND_UNAVAILABLE");
    assert_eq!(server.of("tools/call").len(), 1);
    assert!(server.seen().iter().all(|seen| seen.verb() == "POST"), "{:?}", server.methods());
}

/// The gateway does not know which member of an unknown request the header `Mcp-Name` repeats, so it passes it on.
#[tokio::test]
async fn srv2_an_unknown_request_keeps_its_name_header_and_gets_meta() {
    let schema = json!({"type": "object"});
    let server = Scripted::start(move |seen, _| match seen.method() {
        "vendor/method" => seen.result(json!({"resultType": "complete", "x": 1})),
        _ => seen.modern(&schema),
    })
    .await;
    let gateway = gateway_of(with(http_server(server.address), "protocol", json!("modern"))).await;
    let legacy = gateway.client_seeing("a_t").await;
    let modern = Client::modern(gateway.address, json!({}));
    let draft = Draft::new("vendor/method", json!({"id": "x y"})).with("mcp-name", "x y");
    assert_eq!(modern.send_draft(&draft).await.json()["result"]["x"], 1);
    // This request has no params.
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"vendor/method"}"#;
    assert_eq!(legacy.post(body).await.json()["result"], json!({"x": 1}));
    let seen = server.of("vendor/method");
    assert_eq!(seen[0].header("mcp-name"), Some("x y"));
    for request in &seen {
        assert_eq!(request.header("mcp-method"), Some("vendor/method"));
        assert_eq!(request.meta("protocolVersion"), "2026-07-28");
    }
}
