//! Invalid input from clients. Each message receives a specific error, and the connection continues to work.

use http::StatusCode;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Frozen, Gateway, Scratch, eventually, fixture_server};

/// Returns the rows: the bytes, the JSON-RPC code of the error, and the HTTP status.
fn table() -> Vec<(Vec<u8>, i64, u16)> {
    let mut rows = Vec::new();
    for broken in [
        &b"{"[..],
        b"nonsense",
        br#"{"jsonrpc":"2.0","id":9,"method":"ping"} x"#,
        br#"{"jsonrpc":"2.0","id":9,"method":"ping"}{}"#,
        br#"{"jsonrpc":"2.0","id":9,"method":"ping",}"#,
        br#"{'jsonrpc':"2.0"}"#,
        b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"ping\0\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"ping\"}\0",
        b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"\xff\"}",
        b"{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"ping\",\"params\":{\"a\":\"\xc3\x28\"}}",
        br#"{"jsonrpc":"2.0","id":9,"method":"ping","params":{"a":01}}"#,
    ] {
        rows.push((broken.to_vec(), -32700, 400));
    }
    for wrong in [
        r#"7"#,
        r#""text""#,
        r#"null"#,
        r#"{}"#,
        r#"{"id":9,"method":"ping"}"#,
        r#"{"jsonrpc":"1.0","id":9,"method":"ping"}"#,
        r#"{"jsonrpc":2.0,"id":9,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":9.5,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":9e1,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":[9],"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":9}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":7}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"ping","params":[]}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"ping","result":{}}"#,
        r#"{"jsonrpc":"2.0","id":9,"result":{},"error":{}}"#,
        r#"{"jsonrpc":"2.0","id":9,"id":9,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"ping","\u006dethod":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"ping","x":1,"x":1}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"a_echo","name":"a_echo"}}"#,
        r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"a_echo","n\u0061me":"a_add"}}"#,
    ] {
        rows.push((wrong.as_bytes().to_vec(), -32600, 400));
    }
    for method in ["sampling/createMessage", "roots/list", "server/discover", "notifications/initialized"] {
        rows.push((request(method, json!({})), -32601, 200));
    }
    for (method, key) in [("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri")] {
        for bad in [json!({}), json!({key: 7}), json!({key: null}), json!({key: ""}), json!({key: ["a_echo"]})] {
            rows.push((request(method, bad), -32602, 200));
        }
        rows.push((format!(r#"{{"jsonrpc":"2.0","id":9,"method":"{method}"}}"#).into_bytes(), -32602, 200));
    }
    for method in ["tools/list", "prompts/list", "resources/list", "resources/templates/list"] {
        for cursor in [json!("x"), json!(""), json!(7), json!("0-0-0"), json!("ffffffffffffffffff-0-0")] {
            rows.push((request(method, json!({"cursor": cursor})), -32602, 200));
        }
    }
    for bad in [
        json!({}),
        json!({"ref": 7}),
        json!({"ref": {"type": "ref/other", "name": "a_greet"}}),
        json!({"ref": {"type": "ref/prompt"}}),
        json!({"ref": {"type": "ref/prompt", "name": "nobody"}}),
        json!({"ref": {"type": "ref/resource", "uri": 7}}),
    ] {
        rows.push((request("completion/complete", bad), -32602, 200));
    }
    for level in [json!({}), json!({"level": "loud"}), json!({"level": 3})] {
        rows.push((request("logging/setLevel", level), -32602, 200));
    }
    rows.push((request("resources/read", json!({"uri": format!("a+note:///{}", "x".repeat(8 * 1024))})), -32602, 200));
    rows.push((request("resources/read", json!({"uri": "a+note:///\u{1}"})), -32602, 200));
    rows.push((request("tools/call", json!({"name": "n".repeat(10_000)})), -32602, 200));
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{{"name":"nobody","arguments":{{"a":{deep}}}}}}}"#
    );
    // This exceeds the limit `jsonDepth`.
    rows.push((deep.into_bytes(), 1429, 200));
    rows.push((request("initialize", json!({"protocolVersion": "2025-11-25"})), -32600, 200));
    rows
}

fn request(method: &str, params: Value) -> Vec<u8> {
    json!({"jsonrpc": "2.0", "id": 9, "method": method, "params": params}).to_string().into_bytes()
}

/// ERR-1: an error of the gateway has a code, a message and a stable name. It carries the request's id if that could be
/// read.
fn check_error(sent: &str, answer: &Value, code: i64) {
    let error = &answer["error"];
    assert_eq!(error["code"], code, "{sent}: {answer}");
    assert!(!error["message"].as_str().unwrap_or_default().is_empty(), "{sent}: {answer}");
    assert!(error["data"]["code"].is_string(), "{sent}: {answer}");
    assert!(answer["id"] == 9 || answer.get("id").is_none(), "{sent}: {answer}");
    assert!(code == -32700 || code == -32600 || answer["id"] == 9, "{sent}: {answer}");
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(200)]).into_owned()
}

#[tokio::test]
async fn err1_bad_input_over_http_gets_an_error_and_the_session_continues() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    for (bytes, code, status) in table() {
        let sent = shown(&bytes);
        let answer = client.post(bytes).await;
        assert_eq!(answer.status.as_u16(), status, "{sent}: {answer:?}");
        check_error(&sent, &answer.json(), code);
        assert_eq!(client.call_text("a_echo", json!({"still": true})).await, r#"{"still":true}"#, "{sent}");
    }
    let empty = client.post("").await;
    assert_eq!(empty.status, StatusCode::BAD_REQUEST);
    assert_eq!(empty.json()["error"]["code"], -32700);
}

#[tokio::test]
async fn err1_bad_input_over_stdio_gets_an_error_and_the_connection_continues() {
    let config = json!({ "mcpServers": { "a": fixture_server(&[]) } });
    let client = Client::stdio(config).connected("2025-11-25").await;
    client.await_tool("a_echo").await;
    for (bytes, code, _) in table() {
        let sent = shown(&bytes);
        client.write_bytes(&bytes).await;
        client.write("").await;
        let answer = loop {
            let message = client.message().await;
            if message["method"].is_null() {
                break message;
            }
        };
        check_error(&sent, &answer, code);
        let echo = client.request("tools/call", json!({"name": "a_echo", "arguments": {"still": true}})).await;
        assert_eq!(echo["result"]["structuredContent"], json!({"still": true}), "{sent}: {echo}");
    }
}

#[tokio::test]
async fn err1_bad_notifications_get_no_answer_and_the_session_continues() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = gateway.client().await;
    for params in
        [json!({}), json!({"requestId": null}), json!({"requestId": {}}), json!({"requestId": 1.5, "reason": 7})]
    {
        client.notify("notifications/cancelled", params).await;
    }
    assert_eq!(client.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn res11_a_cursor_of_another_list_is_rejected() {
    let config = json!({ "policies": { "pageSize": 1 }, "mcpServers": { "a": fixture_server(&[]) } });
    let gateway = Gateway::start(config).await;
    let client = gateway.client_seeing("a_echo").await;
    let lists = ["tools/list", "prompts/list", "resources/list", "resources/templates/list"];
    for from in lists {
        let cursor = client.request(from, json!({})).await["result"]["nextCursor"].clone();
        assert!(cursor.is_string(), "{from} has another page");
        for to in lists {
            let answer = client.request(to, json!({"cursor": cursor})).await;
            if from == to {
                assert!(answer["error"].is_null(), "{from} to {to}: {answer}");
            } else {
                assert_eq!(answer["error"]["code"], -32602, "{from} to {to}: {answer}");
                assert_eq!(answer["error"]["data"]["code"], "INVALID_CURSOR", "{from} to {to}: {answer}");
            }
        }
    }
}

async fn freezable() -> (Scratch, std::path::PathBuf, Value) {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let server = fixture_server(&["--pid-file", &pid_file.display().to_string()]);
    (scratch, pid_file, server)
}

fn echo(id: Value, n: u64) -> String {
    let params = json!({"name": "a_echo", "arguments": {"n": n}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()
}

#[tokio::test]
async fn err1_a_reused_id_is_rejected_and_the_first_request_is_answered_over_http() {
    let (_scratch, pid_file, server) = freezable().await;
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    for (id, other) in [(json!(1000), json!("1000")), (json!("x"), json!("y"))] {
        let frozen = Frozen::new(&pid_file).await;
        // The head of the stream arrives after the gateway has waited for the backend, so the call is in flight from
        // here on.
        let (_, mut first) = client.open(echo(id.clone(), 1)).await;
        let second = client.post(echo(id.clone(), 2)).await.json();
        assert_eq!(second["error"]["code"], -32600, "{second}");
        assert_eq!(second["id"], id);
        let (_, mut another) = client.open(echo(other.clone(), 3)).await;
        drop(frozen);
        let first = first.next().await.expect("an answer");
        assert_eq!((&first["id"], &first["result"]["structuredContent"]), (&id, &json!({"n": 1})));
        let another = another.next().await.expect("an answer");
        assert_eq!((&another["id"], &another["result"]["structuredContent"]), (&other, &json!({"n": 3})));
        // The id is free again after its response.
        eventually("the id is free", || async {
            client.post(echo(id.clone(), 4)).await.json()["error"].is_null().then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn err1_a_reused_id_is_rejected_and_the_first_request_is_answered_over_stdio() {
    let (_scratch, pid_file, server) = freezable().await;
    let client = Client::stdio(json!({ "mcpServers": { "a": server } })).connected("2025-11-25").await;
    client.await_tool("a_echo").await;
    let frozen = Frozen::new(&pid_file).await;
    client.write(&echo(json!("x"), 1)).await;
    client.write(&echo(json!("x"), 2)).await;
    let mut answers = Vec::new();
    let mut frozen = Some(frozen);
    while answers.len() < 2 {
        let message = client.message().await;
        if message["id"] == "x" {
            answers.push(message);
            frozen.take();
        }
    }
    assert_eq!(answers[0]["error"]["code"], -32600, "{answers:?}");
    assert_eq!(answers[1]["result"]["structuredContent"], json!({"n": 1}), "{answers:?}");
}

#[tokio::test]
async fn sess1_two_sessions_may_use_the_same_request_id() {
    let (_scratch, pid_file, server) = freezable().await;
    let gateway = Gateway::with_servers(json!({ "a": server })).await;
    let client = gateway.client_seeing("a_echo").await;
    let other: Client = gateway.client().await;
    let frozen = Frozen::new(&pid_file).await;
    let (_, mut one) = client.open(echo(json!(7), 1)).await;
    let (_, mut two) = other.open(echo(json!(7), 2)).await;
    drop(frozen);
    assert_eq!(one.next().await.expect("an answer")["result"]["structuredContent"], json!({"n": 1}));
    assert_eq!(two.next().await.expect("an answer")["result"]["structuredContent"], json!({"n": 2}));
}
