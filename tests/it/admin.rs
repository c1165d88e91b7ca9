//! What probes see: alive, ready, and what is not theirs to see.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Answer, Client, Gateway, eventually, fixture_server};
use crate::support::logged;

/// A probe names no host we know, comes from anywhere and has no token.
const FOREIGN: [(&str, &str); 2] = [("host", "10.0.0.7:8080"), ("origin", "http://evil.example")];

async fn readyz(client: &Client) -> (StatusCode, Value) {
    let answer = client.send(Method::GET, "/readyz", &[], "").await;
    (answer.status, serde_json::from_str(&answer.body).expect("JSON"))
}

/// The answer of a gateway that is ready.
async fn ready(client: &Client) -> Value {
    eventually("it is ready", || async {
        let (status, body) = readyz(client).await;
        assert_eq!(status == StatusCode::OK, body["ready"] == true, "{body}");
        (status == StatusCode::OK).then_some(body)
    })
    .await
}

fn assert_told_to_nobody_else(answer: &Answer) {
    assert!(!answer.headers.contains_key("access-control-allow-origin"), "{answer:?}");
}

#[tokio::test]
async fn probes_need_no_token_and_any_host_will_do() {
    let gateway = Gateway::start(json!({ "gateway": { "token": "s3cret" }, "mcpServers": {} })).await;
    let client = Client::new(gateway.address);
    ready(&client).await;
    for headers in [&[][..], &FOREIGN] {
        let alive = client.send(Method::GET, "/healthz", headers, "").await;
        assert_eq!((alive.status, alive.body.as_str()), (StatusCode::OK, "ok\n"));
        assert_told_to_nobody_else(&alive);
        let ready = client.send(Method::GET, "/readyz", headers, "").await;
        let none = r#"{"ready":true,"servers":{"total":0,"ready":0,"starting":0,"failed":0}}"#;
        assert_eq!((ready.status, ready.body.as_str()), (StatusCode::OK, none));
        assert_told_to_nobody_else(&ready);
    }
    for path in
        ["/metrics", "/api/subscriptions", "/healthz/", "/healthz/x", "/readyz/../metrics", "//healthz", "/HEALTHZ"]
    {
        let answer = client.send(Method::GET, path, &[], "").await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn only_get_and_head_are_answered() {
    let gateway = Gateway::with_servers(json!({})).await;
    let client = Client::new(gateway.address);
    ready(&client).await;
    for path in ["/healthz", "/readyz", "/metrics", "/api/subscriptions"] {
        let head = client.send(Method::HEAD, path, &[], "").await;
        assert_eq!((head.status, head.body.as_str()), (StatusCode::OK, ""), "{path}");
        for verb in [Method::POST, Method::PUT, Method::DELETE] {
            let answer = client.send(verb.clone(), path, &[], "{}").await;
            assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{verb} {path}");
        }
    }
}

#[tokio::test]
async fn sess2_ready_means_that_what_is_offered_is_listed() {
    let servers =
        json!({ "a": fixture_server(&[]), "b": fixture_server(&[]), "bad": { "command": "no-such-program" } });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client().await;
    let body = ready(&client).await;
    let line = logged(&gateway, &["ready", "servers=3", "took="]).await;
    // Under load a server may take longer than is waited for; then the log names it.
    if !line.contains("waiting=") {
        assert_eq!(body["servers"], json!({"total": 3, "ready": 2, "starting": 0, "failed": 1}));
        let names = client.tool_names().await;
        assert!(["a_echo", "b_echo"].iter().all(|name| names.iter().any(|known| known == name)), "{names:?}");
    }
}

#[tokio::test]
async fn sess2_one_server_that_never_answers_does_not_hold_the_gateway_back() {
    let servers = json!({ "hanging": fixture_server(&["--hang-handshake"]), "good": fixture_server(&[]) });
    let gateway = Gateway::with_servers(servers).await;
    let client = gateway.client_seeing("good_echo").await;
    let body = ready(&client).await;
    assert_eq!(body["servers"], json!({"total": 2, "ready": 1, "starting": 1, "failed": 0}));
    logged(&gateway, &["ready", "servers=2", "waiting=\"hanging\""]).await;
}
