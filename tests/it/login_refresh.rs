//! The refresh of tokens: once for all calls, before they expire, and with a bounded number of attempts.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{eventually, fixture_server, servers_only};
use crate::home::Home;
use crate::login_server::LoginServer;
use crate::login_support::{
    LoginHome, assert_login_needed, await_state, needs_login, recovers_in_time, scopes, scopes_of, state,
};
use crate::support::assert_error;

/// The number of calls at once.
const CALLS: usize = 64;
/// The interval of calls that wait for a refresh. Each call succeeds, or the test fails.
const CALL_INTERVAL: Duration = Duration::from_millis(100);

#[tokio::test]
async fn oauth3_an_expired_token_is_refreshed_once_and_the_call_reaches_the_tool_once() {
    let home = LoginHome::logged_in().await;
    let (_gateway, client) = home.ready_gateway().await;
    for round in 1..=3 {
        home.server.expire_tokens().await;
        assert_eq!(scopes(&client).await, ["read"]);
        let counters = home.server.counters().await;
        let found = (&counters["refreshes"], &counters["refreshErrors"], &counters["calls"]["whoami"]);
        assert_eq!(found, (&json!(round), &json!(0), &json!(round)), "{counters}");
    }
    assert_eq!(home.server.count("authorizations").await, 1);
}

#[tokio::test]
async fn oauth3_concurrent_calls_share_one_refresh() {
    let home = LoginHome::logged_in().await;
    let (gateway, client) = home.ready_gateway().await;
    assert_eq!(scopes(&client).await, ["read"]);
    home.server.expire_tokens().await;
    // A slow answer lets all calls arrive before the refresh ends.
    home.server.set(json!({ "delayAfter": 200 })).await;
    let clients: Vec<Client> = join_all((0..4).map(|_| gateway.client())).await;
    let calls = (0..CALLS).map(|index| clients[index % clients.len()].try_call("p_whoami", json!({})));
    for answer in join_all(calls).await {
        assert_eq!(scopes_of(&answer), ["read"]);
    }
    let counters = home.server.counters().await;
    let found = (&counters["refreshes"], &counters["calls"]["whoami"], &counters["reusedTokens"]);
    assert_eq!(found, (&json!(1), &json!(CALLS + 1), &json!(0)), "{counters}");
}

#[tokio::test]
async fn oauth3_a_token_is_refreshed_before_it_expires() {
    let home = LoginHome::new().await;
    // The gateway counts in whole seconds, so a shorter lifetime could end before the refresh.
    home.server.set(json!({ "lifetime": 10 })).await;
    home.log_in().await;
    let (gateway, client) = home.ready_gateway().await;
    let rejected = home.server.count("unauthorized").await;
    let mut calls = tokio::time::interval(CALL_INTERVAL);
    while home.server.count("refreshes").await == 0 {
        calls.tick().await;
        assert_eq!(scopes(&client).await, ["read"]);
    }
    let counters = home.server.counters().await;
    let found = (&counters["refreshErrors"], &counters["reusedTokens"], &counters["unauthorized"]);
    assert_eq!(found, (&json!(0), &json!(0), &json!(rejected)), "{counters}");
    assert_eq!(state(&gateway).await, "ready");
}

#[tokio::test]
async fn oauth3_a_broken_token_endpoint_is_tried_again_later() {
    for fault in ["500", "html"] {
        let home = LoginHome::logged_in().await;
        let (gateway, client) = home.ready_gateway().await;
        home.server.set(json!({ "token": fault, "expireAll": true })).await;
        let answer = client.try_call("p_whoami", json!({})).await;
        assert_error(&answer, 1503, "BACKEND_UNAVAILABLE");
        for _ in 0..5 {
            client.try_call("p_whoami", json!({})).await;
        }
        // A fault of the authorization server is no reason to log in again.
        assert_ne!(state(&gateway).await, "login_needed", "{fault}");
        let requests = home.server.recorded("tokens").await.len();
        assert!(requests <= 8, "{fault}: {requests} requests for tokens");
        home.server.set(json!({ "token": null })).await;
        eventually("the token is refreshed", || async {
            let answer = client.try_call("p_whoami", json!({})).await;
            (answer["error"].is_null()).then(|| assert_eq!(scopes_of(&answer), ["read"]))
        })
        .await;
        assert_eq!(home.server.count("authorizations").await, 1);
    }
}

#[tokio::test]
async fn oauth3_a_token_endpoint_that_hangs_blocks_no_other_server() {
    let server = LoginServer::start().await;
    let servers = json!({ "p": server.entry(), "a": fixture_server(&[]) });
    let home = LoginHome { home: Home::new(&servers_only(json!({ "mcpServers": servers }))), server };
    home.log_in().await;
    let (gateway, client) = home.ready_gateway().await;
    client.await_tool("a_echo").await;
    home.server.set(json!({ "token": "hang", "expireAll": true })).await;
    let before = home.server.count("tokenRequests").await;
    let hanging = gateway.client().await;
    let call = tokio::spawn(async move { hanging.try_call("p_whoami", json!({})).await });
    home.server.reaches("tokenRequests", before + 1).await;
    let begun = Instant::now();
    for _ in 0..20 {
        client.call("a_echo", json!({})).await;
    }
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    assert!(!call.is_finished());
    assert_ne!(state(&gateway).await, "login_needed");
    call.abort();
    assert_eq!(home.server.count("tokenRequests").await, before + 1, "one refresh at a time");
}

#[tokio::test]
async fn oauth3_a_revoked_login_is_needed_again_without_a_loop() {
    let home = LoginHome::logged_in().await;
    let (gateway, client) = home.ready_gateway().await;
    home.server.revoke_tokens().await;
    let before = home.server.counters().await;
    for _ in 0..6 {
        needs_login(&client, "p_whoami").await;
    }
    let status = await_state(&gateway, "login_needed").await;
    let after = home.server.counters().await;
    let grown = |name: &str| after[name].as_u64().expect("a count") - before[name].as_u64().expect("a count");
    assert!(grown("tokenRequests") <= 2, "{before} {after} {status}");
    assert!(grown("unauthorized") <= 12, "{before} {after} {status}");
    assert_eq!(grown("authorizations"), 0);
    home.log_in().await;
    recovers_in_time(&gateway).await;
    assert_eq!(scopes(&client).await, ["read"]);
}

#[tokio::test]
async fn oauth3_a_revoked_login_is_remembered_by_the_next_gateway() {
    let home = LoginHome::logged_in().await;
    let (mut gateway, client) = home.ready_gateway().await;
    home.server.revoke_tokens().await;
    needs_login(&client, "p_whoami").await;
    await_state(&gateway, "login_needed").await;
    gateway.terminate().await;
    let before = home.server.count("tokenRequests").await;
    let next = home.gateway().await;
    await_state(&next, "login_needed").await;
    let tried = home.server.count("tokenRequests").await - before;
    assert!(tried <= 1, "{tried} requests for tokens with a revoked login");
}

#[tokio::test]
async fn oauth3_a_server_that_rejects_every_token_gets_few_requests() {
    let home = LoginHome::logged_in().await;
    let (gateway, client) = home.ready_gateway().await;
    home.server.set(json!({ "rejectAll": true })).await;
    let before = home.server.counters().await;
    for _ in 0..6 {
        assert_login_needed(&client.try_call("p_whoami", json!({})).await);
    }
    await_state(&gateway, "login_needed").await;
    let after = home.server.counters().await;
    let grown = |name: &str| after[name].as_u64().expect("a count") - before[name].as_u64().expect("a count");
    assert!(grown("tokenRequests") <= 3, "{before} {after}");
    assert!(grown("unauthorized") <= 16, "{before} {after}");
    home.server.set(json!({ "rejectAll": false })).await;
    home.log_in().await;
    recovers_in_time(&gateway).await;
    assert_eq!(scopes(&client).await, ["read"]);
}

/// The authorization server handles the refresh and the answer is lost. The used token is then reused once, and the
/// server revokes the login. The gateway cannot prevent this, but reports it.
#[tokio::test]
async fn oauth3_a_lost_answer_ends_in_a_login_and_not_in_a_loop() {
    let home = LoginHome::logged_in().await;
    let (gateway, client) = home.ready_gateway().await;
    home.server.set(json!({ "token": "drop", "expireAll": true })).await;
    let before = home.server.count("tokenRequests").await;
    client.try_call("p_whoami", json!({})).await;
    let lost = home.server.recorded("tokens").await.pop().expect("a refresh");
    assert_eq!((&lost["handled"], &lost["answered"]), (&json!(true), &json!(false)), "{lost}");
    home.server.set(json!({ "token": null })).await;
    eventually("the login is needed", || async {
        let answer = client.try_call("p_whoami", json!({})).await;
        (answer["error"]["code"] == 1407).then_some(())
    })
    .await;
    await_state(&gateway, "login_needed").await;
    let requests = home.server.count("tokenRequests").await - before;
    assert!(requests <= 4, "{requests} requests for tokens");
    home.log_in().await;
    assert_eq!(scopes(&client).await, ["read"]);
}

#[tokio::test]
async fn oauth3_a_stop_waits_for_the_refresh_and_stores_it() {
    let home = LoginHome::logged_in().await;
    let (mut gateway, _client) = home.ready_gateway().await;
    home.server.set(json!({ "delayAfter": 500, "expireAll": true })).await;
    let before = home.server.count("tokenRequests").await;
    let caller = gateway.client().await;
    let call = tokio::spawn(async move { caller.try_call("p_whoami", json!({})).await });
    home.server.reaches("tokenRequests", before + 1).await;
    assert!(gateway.terminate().await.success());
    // The call may have failed with the gateway.
    call.abort();
    home.server.set(json!({ "delayAfter": 0 })).await;
    let (_next, client) = home.ready_gateway().await;
    assert_eq!(scopes(&client).await, ["read"]);
    let counters: Value = home.server.counters().await;
    assert_eq!((&counters["reusedTokens"], &counters["refreshErrors"]), (&json!(0), &json!(0)), "{counters}");
}

#[tokio::test]
async fn oauth3_a_call_that_its_client_cancels_does_not_end_the_refresh() {
    let home = LoginHome::logged_in().await;
    let (gateway, client) = home.ready_gateway().await;
    home.server.set(json!({ "delayAfter": 300, "expireAll": true })).await;
    let before = home.server.count("tokenRequests").await;
    let caller = gateway.client().await;
    let id = caller.begin_call("p_whoami", "{}").await;
    home.server.reaches("tokenRequests", before + 1).await;
    caller.cancel(id).await;
    assert_eq!(scopes(&client).await, ["read"]);
    let counters = home.server.counters().await;
    let found = (&counters["refreshes"], &counters["reusedTokens"]);
    assert_eq!(found, (&json!(1), &json!(0)), "{counters}");
}
