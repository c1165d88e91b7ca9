//! Requests of 2026-07-28 at `/mcp`: the errors, their order, and the detection of the era.
//!
//! The body of each request decides its era, so both eras can share a connection. No session is created or looked up.

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::client::Client;
use crate::client::http::Answer;
use crate::client::modern::{Draft, META, VERSION, listen_to, with_meta};
use crate::harness::{Gateway, fixture_server};

async fn gateway() -> (Gateway, Client) {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = Client::modern(gateway.address, json!({}));
    client.await_tool("a_echo").await;
    (gateway, client)
}

fn call(tool: &str) -> Draft {
    Draft::new("tools/call", json!({"name": tool, "arguments": {}}))
}

/// Checks the status and code, and that no session is involved.
fn check(case: &str, answer: &Answer, status: u16, code: i64) -> Value {
    let message = answer.json();
    assert_eq!((answer.status.as_u16(), &message["error"]["code"]), (status, &json!(code)), "{case}: {answer:?}");
    assert!(answer.headers.get("mcp-session-id").is_none(), "{case}: {answer:?}");
    message
}

#[tokio::test]
async fn srv2_every_error_has_its_status_and_code() {
    let (_gateway, client) = gateway().await;
    let meta = |key: &str| format!("{META}{key}");
    let unmeta = |key: &str| call("a_echo").changed(|body| drop(body["params"]["_meta"][meta(key)].take()));
    let version = |header: &str, body: &str| {
        let body = body.to_owned();
        call("a_echo")
            .with("mcp-protocol-version", header)
            .changed(|it| it["params"]["_meta"][meta("protocolVersion")] = json!(body))
    };
    let of = |method: &str| Draft::new(method, json!({"uri": "a+note:///alpha", "level": "info", "name": "a_echo"}));
    let read = || Draft::new("resources/read", json!({ "uri": "a+note:///alpha" }));
    for (case, draft, status, code) in [
        ("an empty object", Draft { body: "{}".to_owned(), ..call("a_echo") }, 400, -32600),
        ("no JSON", Draft { body: "{".to_owned(), ..call("a_echo") }, 400, -32700),
        ("an array", Draft { body: format!("[{}]", call("a_echo").body), ..call("a_echo") }, 400, -32600),
        ("an answer", call("a_echo").changed(|it| *it = json!({"jsonrpc": "2.0", "id": 1, "result": {}})), 400, -32600),
        ("no params", call("a_echo").changed(|it| drop(it["params"].take())), 400, -32602),
        ("no _meta", call("a_echo").changed(|it| drop(it["params"]["_meta"].take())), 400, -32602),
        ("no capabilities", unmeta("clientCapabilities"), 400, -32602),
        ("no version", unmeta("protocolVersion"), 400, -32602),
        (
            "a handshake under a new header",
            of("initialize").changed(|it| drop(it["params"]["_meta"].take())),
            400,
            -32602,
        ),
        (
            "capabilities that are none",
            call("a_echo").changed(|it| it["params"]["_meta"][meta("clientCapabilities")] = json!([])),
            400,
            -32602,
        ),
        ("no version header", call("a_echo").without("mcp-protocol-version"), 400, -32020),
        ("an older version header", version("2025-11-25", VERSION), 400, -32020),
        ("a newer version in the body", version(VERSION, "2026-07-29"), 400, -32020),
        ("two version headers", call("a_echo").also("mcp-protocol-version", VERSION), 400, -32020),
        ("an unknown version", version("2099-01-01", "2099-01-01"), 400, -32022),
        ("a version with sessions", version("2025-11-25", "2025-11-25"), 400, -32022),
        ("a version that is none", version("new", "new"), 400, -32022),
        ("no method header", call("a_echo").without("mcp-method"), 400, -32020),
        ("another method header", call("a_echo").with("mcp-method", "tools/list"), 400, -32020),
        ("the method in capitals", call("a_echo").with("mcp-method", "Tools/Call"), 400, -32020),
        ("two method headers", call("a_echo").also("mcp-method", "tools/call"), 400, -32020),
        ("no name header", call("a_echo").without("mcp-name"), 400, -32020),
        ("another name header", call("a_echo").with("mcp-name", "a_add"), 400, -32020),
        ("two name headers", call("a_echo").also("mcp-name", "a_echo"), 400, -32020),
        ("an empty name header", call("a_echo").with("mcp-name", ""), 400, -32020),
        ("a name header of bad base64", call("a_echo").with("mcp-name", "=?base64?YV9lY2hv=?="), 400, -32020),
        ("a name header half marked", call("a_echo").with("mcp-name", "=?base64?YV9lY2hv"), 400, -32020),
        ("no URI header", read().without("mcp-name"), 400, -32020),
        ("another URI header", read().with("mcp-name", "a+note:///beta"), 400, -32020),
        (
            "a prompt's other name",
            Draft::new("prompts/get", json!({"name": "a_greet"})).with("mcp-name", "x"),
            400,
            -32020,
        ),
        ("initialize", of("initialize"), 404, -32601),
        ("ping", of("ping"), 404, -32601),
        ("logging/setLevel", of("logging/setLevel"), 404, -32601),
        ("resources/subscribe", of("resources/subscribe"), 404, -32601),
        ("resources/unsubscribe", of("resources/unsubscribe"), 404, -32601),
        ("an unknown method", of("no/such"), 404, -32601),
        ("a tool without a name", Draft::new("tools/call", json!({})), 200, -32602),
        ("an unknown tool", call("a_nobody"), 200, -32602),
        ("an unknown prompt", Draft::new("prompts/get", json!({"name": "a_nobody"})), 200, -32602),
        ("a missing resource", Draft::new("resources/read", json!({"uri": "a+note:///missing"})), 200, -32602),
        ("nobody's resource", Draft::new("resources/read", json!({"uri": "nobody:///x"})), 200, -32602),
        ("a bad cursor", Draft::new("tools/list", json!({"cursor": "x"})), 200, -32602),
        ("a bad log level", Draft::new("tools/list", json!({"_meta": {meta("logLevel"): "loud"}})), 200, -32602),
        (
            "a log level that is no text",
            Draft::new("server/discover", json!({"_meta": {meta("logLevel"): 3}})),
            200,
            -32602,
        ),
        (
            "a state that is none of ours",
            Draft::new("tools/call", json!({"name": "a_echo", "requestState": "x"})),
            200,
            -32602,
        ),
        ("a listen for nothing at all", Draft::new("subscriptions/listen", json!({})), 200, -32602),
    ] {
        let message = check(case, &client.send_draft(&draft).await, status, code);
        let has_id = !matches!(case, "an empty object" | "no JSON" | "an array" | "an answer");
        assert_eq!(message["id"], if has_id { json!(1) } else { Value::Null }, "{case}: {message}");
        assert!(has_id || message.get("id").is_none(), "{case}: an id that was not read is absent");
        match code {
            -32022 => {
                assert_eq!(message["error"]["data"]["supported"], json!([VERSION]), "{case}: {message}");
                assert!(message["error"]["data"]["requested"].is_string(), "{case}: {message}");
            }
            -32020 => assert!(message["error"]["message"].to_string().contains("header mcp-"), "{case}: {message}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn srv2_headers_are_compared_as_the_protocol_defines() {
    let (_gateway, client) = gateway().await;
    for name in ["a_echo", " a_echo\t", "=?base64?YV9lY2hv?="] {
        let answer = client.send_draft(&call("a_echo").with("mcp-name", name)).await;
        assert_eq!(answer.status, 200, "{name:?}: {answer:?}");
        assert_eq!(answer.json()["result"]["resultType"], "complete", "{name:?}: {answer:?}");
    }
    let uri = "a+file:///naïve/日本.txt";
    let read = Draft::new("resources/read", json!({ "uri": uri }));
    assert!(read.headers.iter().any(|(_, value)| value.starts_with("=?base64?")), "the raw value is no valid header");
    for draft in [read.clone(), read.with("mcp-name", uri)] {
        let answer = client.send_draft(&draft).await.json();
        assert_eq!(answer["result"]["contents"][0]["uri"], uri, "{answer}");
    }
    // A name that looks encoded is decoded.
    let sentinel = "=?base64?YV9lY2hv?=";
    let plain = Draft::new("tools/call", json!({ "name": sentinel })).with("mcp-name", sentinel);
    check("an unencoded sentinel", &client.send_draft(&plain).await, 400, -32020);
    // A method without a name needs no such header, and an extra one is ignored.
    for headers in [Draft::new("tools/list", json!({})).with("mcp-name", "x"), Draft::new("server/discover", json!({}))]
    {
        assert_eq!(client.send_draft(&headers).await.status, 200);
    }
}

/// A fault: a word of its error, the change to the request, the status and the code.
type Fault = (&'static str, fn(Draft) -> Draft, u16, i64);

/// Returns the possible faults of a request, in the order of their checks.
fn faults() -> Vec<Fault> {
    fn set(draft: Draft, key: &str, value: Value) -> Draft {
        draft.changed(|it| it["params"]["_meta"][format!("{META}{key}")] = value)
    }
    vec![
        ("jsonrpc", |it| it.changed(|it| it["jsonrpc"] = json!("1.0")), 400, -32600),
        ("clientCapabilities", |it| set(it, "clientCapabilities", Value::Null), 400, -32602),
        ("mcp-protocol-version", |it| it.with("mcp-protocol-version", "2025-11-25"), 400, -32020),
        (
            "2099-01-01",
            |it| set(it, "protocolVersion", json!("2099-01-01")).with("mcp-protocol-version", "2099-01-01"),
            400,
            -32022,
        ),
        ("mcp-method", |it| it.with("mcp-method", "x"), 400, -32020),
        ("mcp-name", |it| it.with("mcp-name", "x"), 400, -32020),
        ("no/such", |it| it.changed(|it| it["method"] = json!("no/such")).with("mcp-method", "no/such"), 404, -32601),
        ("level", |it| set(it, "logLevel", json!("loud")), 200, -32602),
        (
            "nobody",
            |it| it.changed(|it| it["params"]["name"] = json!("nobody")).with("mcp-name", "nobody"),
            200,
            -32602,
        ),
    ]
}

#[tokio::test]
async fn srv2_the_earlier_of_two_mistakes_decides_the_error() {
    // With one server, the gateway would forward an unknown method.
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) })).await;
    let client = Client::modern(gateway.address, json!({}));
    client.await_tool("a_echo").await;
    let faults = faults();
    for (index, (place, break_first, status, code)) in faults.iter().enumerate() {
        for (other, break_second, ..) in &faults[index..] {
            if (*place, *other) == ("mcp-name", "no/such") {
                // An invalid method has no name to repeat.
                continue;
            }
            let draft = break_first(break_second(call("a_echo")));
            let message = check(&format!("{place} before {other}"), &client.send_draft(&draft).await, *status, *code);
            assert!(message["error"].to_string().contains(place), "{place} before {other}: {message}");
        }
    }
}

#[tokio::test]
async fn http1_stateless_get_and_delete_are_rejected_and_notifications_are_accepted() {
    let (gateway, _) = gateway().await;
    let client = Client::new(gateway.address);
    let session = gateway.client().await.session.expect("a session");
    for verb in [Method::GET, Method::DELETE] {
        for extra in [None, Some(("mcp-session-id", session.as_str()))] {
            let mut headers = vec![("accept", "text/event-stream"), ("mcp-protocol-version", VERSION)];
            headers.extend(extra);
            let answer = client.send(verb.clone(), "/mcp", &headers, "").await;
            assert_eq!(
                (answer.status, &answer.headers["allow"]),
                (StatusCode::METHOD_NOT_ALLOWED, &"POST".parse().expect("a value"))
            );
        }
    }
    let notification = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    let kind = ("content-type", "application/json");
    for headers in [
        vec![kind],
        vec![kind, ("mcp-protocol-version", VERSION)],
        vec![kind, ("mcp-protocol-version", VERSION), ("mcp-session-id", "none-of-ours")],
    ] {
        let answer = client.send(Method::POST, "/mcp", &headers, notification).await;
        assert_eq!((answer.status, answer.body.as_str()), (StatusCode::ACCEPTED, ""), "{headers:?}");
    }
}

/// A session id in a header has no effect, valid or not.
#[tokio::test]
async fn srv2_a_session_id_has_no_effect_on_a_modern_request() {
    let (gateway, client) = gateway().await;
    let legacy = gateway.client().await;
    let session = legacy.session.clone().expect("a session");
    for id in [session.as_str(), "none-of-ours"] {
        let draft = call("a_echo").also("mcp-session-id", id).also("last-event-id", "1-2-3");
        let answer = client.send_draft(&draft).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.headers.get("mcp-session-id").is_none(), "{answer:?}");
    }
    assert!(legacy.tool_names().await.contains(&"a_echo".to_owned()));
}

#[tokio::test]
async fn srv2_the_accept_header_decides_the_form_of_the_answer() {
    let (_gateway, client) = gateway().await;
    let listen = Draft::of(&json!({
        "jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": listen_to(json!({})),
    }));
    let rejected = client.send_draft(&listen.with("accept", "application/json")).await;
    check("a listen without a stream", &rejected, 406, -32600);
    assert_eq!(rejected.json()["id"], 1);
    let streamed = client.send_draft(&call("a_echo").with("accept", "text/event-stream")).await;
    assert_eq!(streamed.headers["content-type"], "text/event-stream");
    assert_eq!(streamed.json()["result"]["resultType"], "complete");
    // A plain JSON response has no room for earlier messages.
    let progress = Draft::new("tools/call", json!({"name": "a_progress", "_meta": {"progressToken": 1}}));
    let plain = client.send_draft(&progress.with("accept", "application/json")).await;
    assert_eq!(plain.headers["content-type"], "application/json");
    assert_eq!(plain.json()["result"]["content"][0]["text"], "3 steps");
    check("neither", &client.send_draft(&call("a_echo").with("accept", "text/html")).await, 406, -32600);
    check("no JSON", &client.send_draft(&call("a_echo").with("content-type", "text/plain")).await, 415, -32600);
}

/// A single connection that sends header names in capitals.
struct Connection(SendRequest<Full<Bytes>>, std::net::SocketAddr);

impl Connection {
    async fn open(address: std::net::SocketAddr) -> Connection {
        let socket = TcpStream::connect(address).await.expect("the gateway listens");
        let (sender, connection) =
            Builder::new().title_case_headers(true).handshake(TokioIo::new(socket)).await.expect("a connection");
        tokio::spawn(connection);
        Connection(sender, address)
    }

    async fn post(&mut self, headers: &[(String, String)], body: &str) -> Answer {
        let mut request = Request::post("/mcp").header("host", self.1.to_string());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        self.0.ready().await.expect("the connection stays");
        let request = request.body(Full::from(body.to_owned())).expect("a request");
        let (parts, body) = self.0.send_request(request).await.expect("an answer").into_parts();
        let body = body.collect().await.expect("a whole body").to_bytes();
        let body = String::from_utf8(body.to_vec()).expect("text");
        Answer { status: parts.status, headers: parts.headers, body }
    }
}

#[tokio::test]
async fn srv2_the_body_decides_the_era_on_one_connection() {
    let (gateway, _) = gateway().await;
    let mut connection = Connection::open(gateway.address).await;
    let plain = |session: &str| {
        let mut headers =
            call("a_echo").without("mcp-protocol-version").without("mcp-method").without("mcp-name").headers;
        if !session.is_empty() {
            headers.push(("mcp-session-id".to_owned(), session.to_owned()));
        }
        headers
    };
    let hello = json!({"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}).to_string();
    let answer = connection.post(&plain(""), &hello).await;
    // A handshake negotiates a legacy version, even if the client requested a modern one.
    assert_eq!(answer.json()["result"]["protocolVersion"], "2025-11-25", "{answer:?}");
    let session = answer.headers["mcp-session-id"].to_str().expect("text").to_owned();
    let legacy = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "a_echo"}}).to_string();
    for _ in 0..3 {
        let modern = connection.post(&call("a_echo").headers, &call("a_echo").body).await;
        assert_eq!(modern.json()["result"]["resultType"], "complete", "{modern:?}");
        assert!(modern.headers.get("mcp-session-id").is_none(), "{modern:?}");
        let older = connection.post(&plain(&session), &legacy).await;
        assert!(older.json()["result"]["content"].is_array(), "{older:?}");
        assert!(older.json()["result"]["resultType"].is_null(), "{older:?}");
        let ping = connection.post(&plain(&session), r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#).await;
        assert_eq!(ping.json()["result"], json!({}));
    }
    assert_eq!(connection.post(&plain(""), &legacy).await.status, 400, "the connection is no session");
}

#[tokio::test]
async fn srv2_the_body_decides_the_era_on_one_pipe() {
    let mut client = Client::stdio(json!({ "mcpServers": { "a": fixture_server(&[]) } }));
    let modern = client.as_modern(json!({}));
    modern.await_tool("a_echo").await;
    let call = json!({"name": "a_nonce", "arguments": {"nonce": "n"}});
    let early = client.request("tools/call", call.clone()).await;
    assert_eq!(early["error"]["code"], -32600, "{early}");
    client.initialize("2025-06-18").await;
    for _ in 0..3 {
        let newer = modern.request("tools/call", call.clone()).await;
        assert_eq!(newer["result"]["resultType"], "complete", "{newer}");
        let older = client.request("tools/call", call.clone()).await;
        assert_eq!(older["result"], json!({"content": [{"type": "text", "text": "n"}]}), "{older}");
        assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
        assert_eq!(modern.request("ping", json!({})).await["error"]["code"], -32601);
    }
    for (key, value, code) in [
        ("protocolVersion", json!("2099-01-01"), -32022),
        ("protocolVersion", json!("2025-11-25"), -32022),
        ("protocolVersion", json!(7), -32602),
        ("clientCapabilities", Value::Null, -32602),
        ("logLevel", json!("loud"), -32602),
    ] {
        let mut params = with_meta(call.clone(), &json!({}));
        params["_meta"][format!("{META}{key}")] = value.clone();
        let answer = client.request("tools/call", params).await;
        assert_eq!(answer["error"]["code"], code, "{key} {value}: {answer}");
    }
    assert!(client.close().await.success());
}
