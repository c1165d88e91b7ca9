//! The operators' output: the log in both formats, and the audit.
//!
//! Every event kind is documented. No secret or session id appears in a line, and the audit has no content of messages.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server, goblin, servers_only};
use crate::support::await_log;

/// Starts a gateway with additional arguments and variables.
async fn gateway(config: Value, arguments: &[&str], variables: &[(&str, &str)]) -> (Gateway, Scratch) {
    let scratch = Scratch::new();
    let path = scratch.write("goblin.json", &servers_only(config).to_string());
    let mut command = goblin(scratch.path());
    command.args(["serve", "--port", "0", "--config"]).arg(&path).args(arguments).envs(variables.iter().copied());
    (Gateway::of(command).await, scratch)
}

fn lines(gateway: &Gateway) -> Vec<Value> {
    let line = |line: String| serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    gateway.log().into_iter().map(line).collect()
}

#[tokio::test]
async fn the_json_log_has_one_object_per_event_with_its_kind_server_and_session() {
    let config = json!({ "mcpServers": { "a": fixture_server(&[]), "gone": { "command": "./no-such-program" } } });
    let (gateway, _scratch) = gateway(config, &["--log-level", "debug", "--log-format", "json"], &[]).await;
    let client = gateway.client_seeing("a_echo").await;
    await_log(&gateway, &["\"backend_failed\""]).await;
    let lines = lines(&gateway);
    let find = |kind: &str| {
        let found = lines.iter().find(|line| line["fields"]["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind} in {lines:?}"))
    };
    let ready = find("backend_ready");
    assert_eq!(
        (&ready["level"], &ready["fields"]["server"], &ready["target"]),
        (&json!("INFO"), &json!("a"), &json!("goblin"))
    );
    assert_eq!(ready["fields"]["message"], "backend ready");
    assert_eq!(find("backend_failed")["fields"]["server"], "gone");
    assert!(find("catalog_published")["fields"]["tools"].is_u64(), "numbers are numbers");
    let session = find("session_opened")["fields"]["session"].as_str().expect("a text").to_owned();
    let whole = client.session.expect("a value is present");
    assert!(session.len() == 8 && whole.ends_with(&session), "{session} of {whole}");
    let kinds: BTreeSet<_> = goblin_telemetry::kinds().map(|(kind, _)| kind).collect();
    for line in &lines {
        let kind = line["fields"]["kind"].as_str().expect("each has one");
        assert!(kinds.contains(kind), "{line}");
    }
}

#[tokio::test]
async fn the_text_log_puts_the_message_before_the_fields_and_omits_the_kind() {
    let (gateway, _scratch) = gateway(
        json!({ "log": { "format": "json" }, "mcpServers": { "a": fixture_server(&[]) } }),
        &["--log-format", "text"],
        &[],
    )
    .await;
    let line = await_log(&gateway, &["backend ready"]).await;
    assert!(line.contains(" INFO backend ready server=\"a\" transport=\"stdio\" version="), "{line}");
    assert!(!line.contains("kind"), "{line}");
}

#[tokio::test]
async fn no_log_line_contains_a_secret_or_a_whole_session_id() {
    let backend = HttpFixture::start(&[]).await;
    let mut http = backend.server();
    http["headers"] = json!({ "Authorization": "Bearer ${SECRET_HEADER}", "X-Api-Key": "${SECRET_KEY}" });
    let mut child = fixture_server(&[]);
    child["env"] = json!({ "API_TOKEN": "${SECRET_ENV}" });
    let rejected =
        json!({ "url": "http://127.0.0.1:9/mcp?key=${SECRET_QUERY}", "headers": { "Cookie": "${SECRET_KEY}" } });
    let config = json!({
        "gateway": { "token": "${SECRET_TOKEN}" }, "log": { "audit": true },
        "mcpServers": { "http": http, "child": child, "refused": rejected },
    });
    let names = ["SECRET_HEADER", "SECRET_KEY", "SECRET_ENV", "SECRET_QUERY", "SECRET_TOKEN"];
    let values = names.map(|name| format!("{}-value", name.to_lowercase().replace('_', "-")));
    let variables: Vec<_> = names.iter().copied().zip(values.iter().map(String::as_str)).collect();
    for format in ["text", "json"] {
        let arguments = ["--log-level", "trace", "--log-format", format];
        let (gateway, _scratch) = self::gateway(config.clone(), &arguments, &variables).await;
        let bearer = format!("Bearer {}", values[4]);
        let client = crate::client::Client::new(gateway.address);
        let headers = [
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
            ("authorization", bearer.as_str()),
        ];
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}});
        let hello = client.send(http::Method::POST, "/mcp", &headers, body.to_string()).await;
        let session = hello.headers["mcp-session-id"].to_str().expect("text").to_owned();
        let headers = [&headers[..], &[("mcp-session-id", session.as_str())]].concat();
        for (tool, arguments) in [("child_env", json!({ "name": "API_TOKEN" })), ("http_headers", json!({}))] {
            let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": { "name": tool, "arguments": arguments }});
            eventually("the tool answers", || async {
                let answer = client.send(http::Method::POST, "/mcp", &headers, body.to_string()).await;
                answer.body.contains("-value").then_some(())
            })
            .await;
        }
        client.send(http::Method::POST, "/mcp", &[("authorization", "Bearer wrong-secret")], "{}").await;
        await_log(&gateway, &["cannot connect to backend", "refused"]).await;
        await_log(&gateway, &["audit", "http_headers"]).await;
        for line in gateway.log() {
            let leaked = values
                .iter()
                .map(String::as_str)
                .chain(["wrong-secret", &session])
                .find(|secret| line.contains(secret));
            assert_eq!(leaked, None, "{line}");
        }
    }
}

#[tokio::test]
async fn the_audit_has_one_line_per_request_with_its_metadata_and_no_content() {
    let config = json!({
        "log": { "audit": true }, "profiles": { "few": { "servers": ["a"] } },
        "mcpServers": { "a": fixture_server(&[]) },
    });
    let (gateway, _scratch) = gateway(config, &["--log-format", "json"], &[]).await;
    let mut client = crate::client::Client::new(gateway.address).at("/mcp/p/few");
    client.initialize("2025-11-25").await;
    client.await_tool("a_echo").await;
    client.call("a_echo", json!({ "text": "never-logged" })).await;
    client.call("a_fail", json!({})).await;
    client.request("tools/call", json!({ "name": "a_none" })).await;
    client.request("resources/read", json!({ "uri": "a+note:///alpha" })).await;
    client.request("resources/subscribe", json!({ "uri": "a+note:///alpha" })).await;
    client.request("resources/read", json!({ "uri": "none:///\u{202e}x" })).await;
    let whole = client.session.clone().expect("a value is present");
    let lines = eventually("there are six lines", || async {
        let lines: Vec<_> = lines(&gateway).into_iter().filter(|line| line["target"] == "audit").collect();
        (lines.len() == 6).then_some(lines)
    })
    .await;
    let expected = [
        ("tools/call", "a_echo", "", "a", "ok", ""),
        ("tools/call", "a_fail", "", "a", "tool_error", ""),
        ("tools/call", "a_none", "", "", "error", "TOOL_NOT_FOUND"),
        ("resources/read", "", "a+note:///alpha", "a", "ok", ""),
        ("resources/subscribe", "", "a+note:///alpha", "a", "ok", ""),
        ("resources/read", "", "none:///x", "", "error", "RESOURCE_NOT_FOUND"),
    ];
    for (line, expected) in lines.iter().zip(expected) {
        let field = |key: &str| line["fields"][key].as_str().unwrap_or_default();
        let logged = (field("method"), field("name"), field("uri"), field("server"), field("outcome"), field("code"));
        assert_eq!(logged, expected, "{line}");
        assert_eq!((field("principal"), field("client"), field("profile")), ("anonymous", "test", "few"), "{line}");
        assert_eq!(field("session"), &whole[28..], "{line}");
        assert!(!field("request").is_empty() && line["fields"]["took"].is_f64(), "{line}");
        assert!(!line.to_string().contains("never-logged"), "{line}");
    }
}

#[tokio::test]
async fn the_audit_is_off_by_default() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.call("a_echo", json!({})).await;
    client.request("tools/call", json!({ "name": "a_error" })).await;
    await_log(&gateway, &["backend returned an error"]).await;
    assert!(!gateway.log().iter().any(|line| line.contains("audit") || line.contains("outcome")));
}

#[test]
fn the_log_reference_lists_exactly_the_existing_event_kinds() {
    let page = include_str!("../../docs/reference/logs.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    // A level in a row may be followed by a comma and more text.
    let level = |rest: &str| rest.split([' ', ',']).next().unwrap_or_default().to_owned();
    let documented: BTreeSet<_> = rows.map(|(kind, rest)| (kind.to_owned(), level(rest))).collect();
    let level_name = |level| json!(level).as_str().expect("a text").to_owned();
    assert_eq!(
        documented,
        goblin_telemetry::kinds().map(|(kind, level)| (kind.to_owned(), level_name(level))).collect()
    );
}
