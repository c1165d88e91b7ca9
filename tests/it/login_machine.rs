//! Logins without a person: client credentials with a secret or with a private key.

use serde_json::{Value, json};

use crate::client::{Client, text_of};
use crate::harness::Gateway;
use crate::login_server::{LoginServer, MACHINE_SECRET};
use crate::login_support::{LoginHome, await_state};

fn with_secret(server: &LoginServer) -> Value {
    let oauth = json!({ "grant": "client_credentials", "clientId": "machine", "clientSecret": MACHINE_SECRET, "scopes": "read" });
    json!({ "url": server.url, "oauth": oauth })
}

fn with_key(server: &LoginServer) -> Value {
    let oauth = json!({
        "grant": "client_credentials", "clientId": "machine-key", "privateKey": server.machine_key, "keyId": "machine-1",
        "scopes": ["read", "admin"],
    });
    json!({ "url": server.url, "oauth": oauth })
}

async fn holder(client: &Client) -> Value {
    serde_json::from_str(&text_of(&client.try_call("p_whoami", json!({})).await)).expect("JSON")
}

async fn gateway_with(entry: fn(&LoginServer) -> Value) -> (LoginHome, Gateway, Client) {
    let server = LoginServer::start().await;
    let entry = entry(&server);
    let home = LoginHome::with(server, entry);
    let (gateway, client) = home.ready_gateway().await;
    (home, gateway, client)
}

#[tokio::test]
async fn oauth4_a_secret_logs_in_without_a_person() {
    let (home, _gateway, client) = gateway_with(with_secret).await;
    let holder = holder(&client).await;
    assert_eq!((&holder["subject"], &holder["scopes"]), (&json!("machine"), &json!(["read"])), "{holder}");
    let tokens = home.server.recorded("tokens").await;
    for token in &tokens {
        let found = (&token["grant"], &token["resource"], &token["error"]);
        assert_eq!(found, (&json!("client_credentials"), &json!(home.server.url), &Value::Null), "{tokens:?}");
    }
    assert_eq!(home.server.count("registrations").await, 0);
}

#[tokio::test]
async fn oauth4_a_private_key_logs_in_without_a_person() {
    let (home, _gateway, client) = gateway_with(with_key).await;
    assert_eq!(holder(&client).await["subject"], "machine-key");
    assert!(client.try_call("p_admin", json!({})).await["error"].is_null());
    let tokens = home.server.recorded("tokens").await;
    assert!(!tokens.is_empty() && tokens.iter().all(|token| token["method"] == "private_key_jwt"), "{tokens:?}");
}

#[tokio::test]
async fn oauth4_another_token_replaces_an_expired_one() {
    for entry in [with_secret, with_key] {
        let (home, _gateway, client) = gateway_with(entry).await;
        let before = home.server.recorded("tokens").await.len();
        home.server.expire_tokens().await;
        assert!(holder(&client).await["subject"].as_str().is_some_and(|subject| subject.starts_with("machine")));
        assert_eq!(home.server.recorded("tokens").await.len(), before + 1);
        assert_eq!(home.server.calls("whoami").await, 1);
    }
}

#[tokio::test]
async fn oauth4_a_command_cannot_log_in_a_machine() {
    let server = LoginServer::start().await;
    let entry = with_secret(&server);
    let home = LoginHome::with(server, entry);
    let ran = home.refused_login(&[]).await;
    assert!(ran.code == Some(2) && ran.stderr.contains("logs in by itself"), "{ran:?}");
    assert!(!ran.stderr.contains(MACHINE_SECRET), "{ran:?}");
}

#[tokio::test]
async fn oauth4_a_rejected_secret_is_reported_and_not_tried_in_a_loop() {
    let server = LoginServer::start().await;
    let mut entry = with_secret(&server);
    entry["oauth"]["clientSecret"] = json!("canary-wrong-secret-0123456789");
    let home = LoginHome::with(server, entry);
    let gateway = home.gateway().await;
    // No command cures this, so the server has failed.
    let status = await_state(&gateway, "failed").await;
    assert!(status["reason"].as_str().is_some_and(|reason| reason.contains("invalid_client")), "{status}");
    assert!(!gateway.log().iter().any(|line| line.contains("canary-wrong-secret")), "{:?}", gateway.log());
    let requests = home.server.count("tokenRequests").await;
    assert!(requests <= 6, "{requests} requests for tokens");
}
