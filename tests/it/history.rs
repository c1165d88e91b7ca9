//! The history of ended calls and the logs of servers, over the admin API.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::admin_client::{bearer, get_admin};
use crate::client::Client;
use crate::harness::{Gateway, eventually, fixture_server};

async fn get_json(client: &Client, path: &str) -> Value {
    let answer = get_admin(client, path).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
    serde_json::from_str(&answer.body).expect("JSON")
}

async fn call(client: &Client, name: &str, arguments: Value) -> String {
    let params = json!({ "name": name, "arguments": arguments });
    client.post(json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}).to_string()).await.body
}

fn names(list: &Value) -> Vec<&str> {
    let calls = list["calls"].as_array().expect("calls");
    calls.iter().map(|call| call["name"].as_str().unwrap_or_default()).collect()
}

#[tokio::test]
async fn use6_ended_calls_are_listed_newest_first_and_filtered() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    client.await_tool("b_echo").await;
    call(&client, "a_echo", json!({ "text": "a secret argument" })).await;
    call(&client, "b_fail", json!({})).await;
    call(&client, "no\u{1b}[2Jtool", json!({})).await;
    client.post(json!({"jsonrpc": "2.0", "id": 8, "method": "tools/list"}).to_string()).await;
    let list = get_json(&client, "/api/calls").await;
    assert_eq!((&list["total"], names(&list)), (&json!(3), vec!["no[2Jtool", "b_fail", "a_echo"]), "{list}");
    let [unknown, failed, echo] = [0, 1, 2].map(|index| list["calls"][index].clone());
    assert_eq!((&unknown["outcome"], &unknown["code"]), (&json!("error"), &json!("TOOL_NOT_FOUND")), "{unknown}");
    assert_eq!((&failed["outcome"], &failed["server"]), (&json!("tool_error"), &json!("b")), "{failed}");
    assert!(failed["error"].as_str().is_some_and(|text| !text.is_empty()), "{failed}");
    assert_eq!((&echo["outcome"], &echo["server"], &echo["client"]), (&json!("ok"), &json!("a"), &json!("test")));
    assert_eq!((&echo["method"], &echo["seq"]), (&json!("tools/call"), &json!(1)));
    assert!(echo["requestBytes"].as_u64() > Some(50) && echo["responseBytes"].as_u64() > Some(50), "{echo}");
    assert!(!list.to_string().contains("secret"), "no argument is kept: {list}");
    for (query, expected) in [
        ("server=a", vec!["a_echo"]),
        ("outcome=failed", vec!["no[2Jtool", "b_fail"]),
        ("outcome=tool_error&server=b", vec!["b_fail"]),
        ("client=test&limit=1", vec!["no[2Jtool"]),
        ("client=other", vec![]),
        ("tool=a_echo", vec!["a_echo"]),
        ("after=2", vec!["no[2Jtool"]),
        ("after=3", vec![]),
        ("after=99", vec!["no[2Jtool", "b_fail", "a_echo"]),
    ] {
        let list = get_json(&client, &format!("/api/calls?{query}")).await;
        assert_eq!(names(&list), expected, "{query}");
    }
    for (query, status, hint) in [
        ("server=c", 404, "there is no server"),
        ("outcome=bad", 400, "tool_error"),
        ("wait=61", 400, "0 to 60"),
        ("after=x", 400, "number"),
        ("servr=a", 400, "server=SERVER"),
        ("limit=1&limit=2", 400, "each once"),
    ] {
        let answer = get_admin(&client, &format!("/api/calls?{query}")).await;
        assert!(answer.status.as_u16() == status && answer.body.contains(hint), "{query}: {answer:?}");
    }
}

/// The number of readers that may wait at the same time.
const MAX_READERS: usize = 16;

#[tokio::test]
async fn use6_waiting_requests_return_the_next_matching_call() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    call(&client, "a_echo", json!({})).await;
    let readers = (0..MAX_READERS).map(|_| {
        let reader = Client::new(gateway.address);
        tokio::spawn(async move {
            // The probe below may have the place of this reader for a moment.
            eventually("the reader gets a place and an answer", || async {
                let answer = get_admin(&reader, "/api/calls?after=1&wait=60&outcome=failed").await;
                let list = || serde_json::from_str::<Value>(&answer.body).expect("JSON");
                (answer.status == StatusCode::OK).then(list)
            })
            .await
        })
    });
    let readers: Vec<_> = readers.collect();
    eventually("all readers wait", || async {
        let probe = get_admin(&client, "/api/calls?after=1&wait=1&outcome=failed").await;
        (probe.status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    call(&client, "a_echo", json!({})).await;
    call(&client, "a_fail", json!({})).await;
    for reader in readers {
        let list = reader.await.expect("no panic");
        assert_eq!((&list["total"], names(&list)), (&json!(3), vec!["a_fail"]), "{list}");
    }
}

#[tokio::test]
async fn use6_a_reader_learns_how_many_calls_are_gone() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    for _ in 0..1010 {
        call(&client, "a_echo", json!({})).await;
    }
    for (query, missed, kept) in
        [("after=0", json!(10), 1000), ("after=4", json!(6), 1000), ("after=1000", json!(null), 10)]
    {
        let list = get_json(&client, &format!("/api/calls?{query}")).await;
        assert_eq!((&list["missed"], names(&list).len()), (&missed, kept), "{query}");
    }
}

#[tokio::test]
async fn hard8_calls_show_no_secret_of_a_uri() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let uri = "https://u:pw@h.example/?token=hidden#part";
    for method in ["resources/read", "resources/subscribe", "resources/unsubscribe"] {
        let request = json!({ "jsonrpc": "2.0", "id": 8, "method": method, "params": { "uri": uri } });
        client.post(request.to_string()).await;
    }
    let reference = json!({ "type": "ref/resource", "uri": uri });
    let params = json!({ "ref": reference, "argument": { "name": "n", "value": "" } });
    let request = json!({ "jsonrpc": "2.0", "id": 9, "method": "completion/complete", "params": params });
    client.post(request.to_string()).await;
    let list = get_json(&client, "/api/calls").await;
    let shown = "https://***@h.example/?***";
    assert_eq!(names(&list), [shown; 4], "{list}");
    for secret in ["pw", "hidden", "part"] {
        assert!(!list.to_string().contains(secret), "{secret}: {list}");
    }
    for tool in
        ["https%3A%2F%2F***%40h.example%2F%3F***", "https%3A%2F%2Fu%3Apw%40h.example%2F%3Ftoken%3Dhidden%23part"]
    {
        assert_eq!(names(&get_json(&client, &format!("/api/calls?tool={tool}")).await), [shown; 4], "{tool}");
    }
}

#[tokio::test]
async fn hard4_a_long_result_is_recorded() {
    let gateway = Gateway::with_servers(json!({ "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    call(&client, "a_echo", json!({ "text": "x".repeat(1 << 20) })).await;
    let list = get_json(&client, "/api/calls").await;
    assert_eq!((names(&list), &list["calls"][0]["outcome"]), (vec!["a_echo"], &json!("ok")));
    assert!(list["calls"][0]["responseBytes"].as_u64() > Some(1 << 20));
}

#[tokio::test]
async fn use6_an_inner_call_of_a_meta_tool_is_listed_under_its_own_name() {
    let gateway = Gateway::start(json!({ "mcpServers": { "a": fixture_server(&[]) }, "metaTools": true })).await;
    let client = gateway.client_seeing("a_echo").await;
    call(&client, "call_tool", json!({ "name": "a_echo", "arguments": { "text": "hi" } })).await;
    let list = get_json(&client, "/api/calls").await;
    assert_eq!((names(&list), &list["calls"][0]["server"]), (vec!["a_echo"], &json!("a")), "{list}");
}

#[tokio::test]
async fn use7_the_log_of_a_server_has_its_stderr_and_outlives_a_restart() {
    let loud = json!({ "command": "sh", "args": ["-c", "echo first-\u{1b}[31mline >&2; exec sleep 1000"] });
    let gateway = Gateway::with_servers(json!({ "loud": loud, "a": fixture_server(&[]) })).await;
    let client = gateway.client_seeing("a_echo").await;
    let lines = async || {
        let list = get_json(&client, "/api/logs?server=loud").await;
        let events = list["events"].as_array().expect("events").clone();
        assert!(events.iter().all(|event| event["server"] == "loud"), "{list}");
        events.iter().filter(|event| event["message"] == "first-line").count()
    };
    eventually("the line is in the log", || async { (lines().await == 1).then_some(()) }).await;
    let restart = bearer(client.address).await;
    let answer = client.send(Method::POST, "/api/servers/loud/restart", &[("authorization", &restart)], "").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    eventually("the line of the second start is in the log", || async { (lines().await == 2).then_some(()) }).await;
    let list = get_json(&client, "/api/logs?server=a&level=info&limit=1").await;
    assert_eq!(list["events"].as_array().map(Vec::len), Some(1), "{list}");
    let after = format!("/api/logs?server=loud&after={}&wait=60", list["last"]);
    let reader = Client::new(gateway.address);
    let waiting = tokio::spawn(async move { get_json(&reader, &after).await });
    let answer = client.send(Method::POST, "/api/servers/loud/restart", &[("authorization", &restart)], "").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let newer = waiting.await.expect("no panic");
    let events = newer["events"].as_array().expect("events");
    let is_newer = |event: &Value| event["server"] == "loud" && event["seq"].as_u64() > list["last"].as_u64();
    assert!(!events.is_empty() && events.iter().all(is_newer), "{newer}");
}

#[tokio::test]
async fn hard7_calls_and_logs_need_the_admin_token() {
    const CLIENT: &str = "s3cret-0123456789";
    let config = json!({ "mcpServers": { "a": fixture_server(&[]) }, "gateway": { "token": CLIENT } });
    let gateway = Gateway::start(config).await;
    let client = Client::new(gateway.address);
    let of_client = format!("Bearer {CLIENT}");
    for path in ["/api/calls", "/api/logs", "/api/logs?server=a", "/api/calls?wait=60"] {
        for headers in [&[][..], &[("authorization", of_client.as_str())]] {
            let answer = client.send(Method::GET, path, headers, "").await;
            assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path} {headers:?}");
        }
        let path = path.trim_end_matches("?wait=60");
        assert_eq!(get_admin(&client, path).await.status, StatusCode::OK, "{path}");
    }
}
