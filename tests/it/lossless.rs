//! A client reads exactly the bytes that a backend writes: every token, over every pair of transports.
//!
//! Only white space outside of strings may change.

use goblin_fixture::lossless::LOSSLESS;
use serde_json::json;

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Frozen, Gateway, Scratch, fixture_server};

/// Removes the white space outside of strings.
fn tokens(text: &str) -> String {
    let (mut inside, mut escaped) = (false, false);
    let keep = |character: &char| {
        match character {
            '"' if !escaped => inside = !inside,
            '\\' if inside && !escaped => {
                escaped = true;
                return true;
            }
            _ => {}
        }
        escaped = false;
        inside || !character.is_ascii_whitespace()
    };
    text.chars().filter(keep).collect()
}

fn call(name: &str, arguments: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":"l","method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
    )
}

fn expected(result: &str) -> String {
    tokens(&format!(r#"{{"jsonrpc":"2.0","id":"l","result":{result}}}"#))
}

/// Unusual numbers, escapes, unknown members, deep nesting, and numbers that no double can hold.
const ODD: &str = r#"{"numbers":[1.0,1e3,1E+2,-0,-0.0,0.10,1e400,-1e-400,123456789012345678901234567890.000],"caf\u00e9 \/":"\ud83d\ude00 😀 \u2028 \"\\\b\f\n\r\t","é":{"":null},"10":1,"9":2,"uri":"note:///alpha","a":[[[[{}]]]],"t":true,"f":false}"#;

fn echoed() -> String {
    expected(&format!(r#"{{"content":[{{"type":"text","text":{}}}],"structuredContent":{ODD}}}"#, json!(ODD)))
}

#[test]
fn tokens_ignores_white_space_outside_strings_only() {
    assert_eq!(tokens("{ \"a b\" :\t[1.0 ,\r\n\"\\\" x\\\\\" ] }"), "{\"a b\":[1.0,\"\\\" x\\\\\"]}");
}

/// Backends of every transport and form, with a pid file for each.
struct Backends {
    config: serde_json::Value,
    names: Vec<String>,
    scratch: Scratch,
    _http: Vec<HttpFixture>,
}

impl Backends {
    async fn start() -> Backends {
        let scratch = Scratch::new();
        let (mut servers, mut names, mut http) = (serde_json::Map::new(), Vec::new(), Vec::new());
        for (name, switches) in [
            ("stdio", &[][..]),
            ("stdiopretty", &["--pretty"]),
            ("http", &["--http"]),
            ("httppretty", &["--http", "--pretty"]),
            ("httpsse", &["--http", "--reply", "sse"]),
            ("httpssepretty", &["--http", "--reply", "sse", "--pretty"]),
        ] {
            let pid_file = scratch.path().join(name).display().to_string();
            let mut switches = switches.to_vec();
            switches.extend(["--pid-file", &pid_file]);
            let server = match switches.first() {
                Some(&"--http") => {
                    http.push(HttpFixture::start(&switches[1..]).await);
                    http[http.len() - 1].server()
                }
                _ => fixture_server(&switches),
            };
            servers.insert(name.to_owned(), server);
            names.push(name.to_owned());
        }
        Backends { config: json!({ "mcpServers": servers }), names, scratch, _http: http }
    }
}

async fn client(gateway: &Gateway, backends: &Backends) -> Client {
    let client = gateway.client().await;
    for name in &backends.names {
        client.await_tool(&format!("{name}_lossless")).await;
    }
    client
}

#[tokio::test]
async fn srv5_results_are_lossless_as_json_over_http() {
    let backends = Backends::start().await;
    let gateway = Gateway::start(backends.config.clone()).await;
    let client = client(&gateway, &backends).await;
    for name in &backends.names {
        let answer = client.post(call(&format!("{name}_lossless"), "{}")).await;
        assert_eq!(tokens(&answer.messages().pop().expect("an answer")), expected(LOSSLESS), "{name}");
        let answer = client.post(call(&format!("{name}_echo"), ODD)).await;
        assert_eq!(tokens(&answer.messages().pop().expect("an answer")), echoed(), "{name}");
    }
}

#[tokio::test]
async fn srv5_results_are_lossless_in_a_stream_over_http() {
    let backends = Backends::start().await;
    let gateway = Gateway::start(backends.config.clone()).await;
    let client = client(&gateway, &backends).await;
    for name in &backends.names {
        // A backend that does not respond at once makes the gateway begin a stream.
        let frozen = Frozen::new(&backends.scratch.path().join(name)).await;
        let (head, mut stream) = client.open(call(&format!("{name}_lossless"), "{}")).await;
        assert_eq!(head.headers["content-type"], "text/event-stream", "{name}");
        drop(frozen);
        assert_eq!(tokens(&stream.next_text().await.expect("an answer")), expected(LOSSLESS), "{name}");
    }
}

#[tokio::test]
async fn srv5_results_are_lossless_over_stdio() {
    let backends = Backends::start().await;
    let client = Client::stdio(backends.config.clone()).connected("2025-11-25").await;
    for name in &backends.names {
        client.await_tool(&format!("{name}_lossless")).await;
        for (body, expected) in [
            (call(&format!("{name}_lossless"), "{}"), expected(LOSSLESS)),
            (call(&format!("{name}_echo"), ODD), echoed()),
        ] {
            client.write(&body).await;
            let line = loop {
                let line = client.line().await.expect("an answer");
                if !line.contains("list_changed") {
                    break line;
                }
            };
            assert_eq!(tokens(&line), expected, "{name}");
        }
    }
}

#[tokio::test]
async fn srv5_arguments_with_extra_white_space_are_lossless() {
    let backends = Backends::start().await;
    let gateway = Gateway::start(backends.config.clone()).await;
    let client = client(&gateway, &backends).await;
    for name in &backends.names {
        for gap in [" ", "\n", "\r\n\t"] {
            let spread =
                ODD.replace(":{\"\"", &format!("{gap}:{gap}{{{gap}\"\"")).replacen('{', &format!("{{{gap}"), 1);
            let body =
                call(&format!("{name}_echo"), &spread).replacen("{\"jsonrpc\"", &format!("{gap}{{{gap}\"jsonrpc\""), 1);
            let answer = client.post(body).await.body;
            let end = format!(r#""structuredContent":{}}}}}"#, tokens(ODD));
            assert!(tokens(&answer).ends_with(&end), "{name} {gap:?}: {answer}");
        }
    }
}

#[tokio::test]
async fn reg4_definitions_keep_every_byte_without_namespacing() {
    let fixture = HttpFixture::start(&["--prefix-unknown", "--tools", "5", "--prompts", "5"]).await;
    let config = json!({ "namespacing": "none", "mcpServers": { "a": fixture.server() } });
    let gateway = Gateway::start(config).await;
    let (through, direct) = (gateway.client_seeing("echo").await, fixture.client().await);
    for (method, member) in [
        ("tools/list", "tools"),
        ("prompts/list", "prompts"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
        let (through, direct) = (through.post(body.clone()).await.body, direct.post(body).await.body);
        assert!(direct.contains("x-vendor"), "{method} is dressed");
        assert_eq!(definitions(&through, member), definitions(&direct, member), "{method}");
    }
}

/// Returns the entries of a list as text, sorted, because the gateway sorts resources.
fn definitions(answer: &str, member: &str) -> Vec<String> {
    use serde_json::value::RawValue;
    use std::collections::BTreeMap;
    let answer: BTreeMap<String, &RawValue> = serde_json::from_str(answer).expect("an object");
    let result: BTreeMap<String, &RawValue> = serde_json::from_str(answer["result"].get()).expect("an object");
    let entries: Vec<&RawValue> = serde_json::from_str(result[member].get()).expect("an array");
    let mut entries: Vec<_> = entries.iter().map(|entry| entry.get().to_owned()).collect();
    entries.sort_unstable();
    entries
}
