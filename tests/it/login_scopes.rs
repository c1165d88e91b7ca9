//! Permissions: a call that needs another scope, and the login that asks for both.

use serde_json::{Value, json};

use crate::client::{Client, text_of};
use crate::harness::eventually;
use crate::login_browser::Browser;
use crate::login_support::{COMMAND, LoginHome, await_state, needs_login, recovers_in_time, scopes, state};

/// The limit of logins that ask for the same permissions.
const MAX_STEP_UPS: usize = 2;

/// Returns the scopes of the last authorization request, without those that only keep a login alive.
async fn requested(home: &LoginHome) -> Vec<String> {
    let last = home.server.recorded("authorizations").await.pop().expect("a login");
    let all = last["scope"].as_str().expect("scopes").split(' ').map(str::to_owned);
    let mut scopes: Vec<_> = all.filter(|scope| scope != "offline_access").collect();
    scopes.sort();
    scopes
}

async fn administers(client: &Client) -> Value {
    serde_json::from_str(&text_of(&client.try_call("p_admin", json!({})).await)).expect("JSON")
}

#[tokio::test]
async fn oauth1_a_call_that_lacks_a_permission_asks_for_the_union_of_scopes() {
    let home = LoginHome::logged_in().await;
    assert_eq!(requested(&home).await, ["read"]);
    let (gateway, client) = home.ready_gateway().await;
    let message = needs_login(&client, "p_admin").await;
    assert!(message.contains("more permissions"), "{message}");
    // The other tools still work, and no refresh was tried: it cannot add a scope.
    assert_eq!(state(&gateway).await, "ready");
    assert_eq!(scopes(&client).await, ["read"]);
    assert_eq!(home.server.count("refreshes").await, 0);
    home.log_in().await;
    assert_eq!(requested(&home).await, ["admin", "read"]);
    await_state(&gateway, "ready").await;
    client.await_tool("p_admin").await;
    assert_eq!(administers(&client).await["administers"], "ada");
    assert_eq!(home.server.calls("admin").await, 1);
    assert_eq!(scopes(&client).await, ["admin", "read"]);
}

#[tokio::test]
async fn oauth1_a_refreshed_token_keeps_the_union_of_scopes() {
    let home = LoginHome::logged_in().await;
    let (_gateway, client) = home.ready_gateway().await;
    needs_login(&client, "p_admin").await;
    home.log_in().await;
    client.await_tool("p_admin").await;
    home.server.expire_tokens().await;
    assert_eq!(administers(&client).await["administers"], "ada");
    assert_eq!(home.server.count("refreshes").await, 1);
}

#[tokio::test]
async fn oauth1_a_server_that_needs_more_permissions_to_connect_waits_for_another_login() {
    let home = LoginHome::logged_in().await;
    home.server.set(json!({ "neededScope": "admin" })).await;
    let gateway = home.gateway().await;
    let status = await_state(&gateway, "login_needed").await;
    let reason = status["reason"].as_str().expect("a reason");
    assert!(reason.contains("lacks a permission") && reason.contains(COMMAND), "{status}");
    home.log_in().await;
    assert_eq!(requested(&home).await, ["admin", "read"]);
    recovers_in_time(&gateway).await;
    assert_eq!(scopes(&gateway.client_seeing("p_whoami").await).await, ["admin", "read"]);
}

#[tokio::test]
async fn oauth1_a_permission_that_is_never_granted_ends_in_a_refusal() {
    let home = LoginHome::logged_in().await;
    // The authorization server does not know this scope, so no login can have it.
    home.server.set(json!({ "neededScope": "unknown" })).await;
    let gateway = home.gateway().await;
    for _ in 0..MAX_STEP_UPS {
        await_state(&gateway, "login_needed").await;
        let login = home.begin(&[]).await;
        Browser::default().visit(&login.url).await;
        assert_eq!(login.end().await.code, Some(0));
    }
    await_state(&gateway, "login_needed").await;
    let before = home.server.counters().await;
    let ran = home.refused_login(&[]).await;
    assert!(ran.code != Some(0) && ran.stderr.contains("still lacks a permission"), "{ran:?}");
    let after = home.server.counters().await;
    assert_eq!(before["authorizations"], after["authorizations"], "{after}");
    assert!(after["forbidden"].as_u64() <= Some(20), "{after}");
}

#[tokio::test]
async fn oauth2_a_list_that_lacks_a_permission_leaves_the_tools_usable() {
    let home = LoginHome::logged_in().await;
    home.server.set(json!({ "promptsScope": "admin" })).await;
    let (gateway, client) = home.ready_gateway().await;
    assert!(home.server.count("forbidden").await > 0);
    assert_eq!(scopes(&client).await, ["read"]);
    assert_eq!(state(&gateway).await, "ready");
    // The list of prompts is the one that asks for more.
    home.log_in().await;
    assert_eq!(requested(&home).await, ["admin", "read"]);
    eventually("the prompt is listed", || async {
        let answer = client.request("prompts/list", json!({})).await;
        answer.to_string().contains("p_greeting").then_some(())
    })
    .await;
}
