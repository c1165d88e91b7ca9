//! Several processes share one login: refreshes at once, and kills during a refresh.
//!
//! The authorization server rotates refresh tokens. A token that is used twice ends the whole login, so one race would
//! show. `cargo xtask soak` runs the tests with larger counts.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::client::{Client, call};
use crate::harness::{Gateway, eventually, signal};
use crate::login_support::{LoginHome, await_state, scopes_of};
use crate::support::raw_post;

/// The gateways that share one login.
const PROCESSES: usize = 8;

/// Returns a count from the environment, which `cargo xtask soak` sets.
fn count(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

/// Starts gateways with the same configuration and the same vault.
async fn gateways(home: &LoginHome) -> Vec<(Gateway, Client)> {
    join_all((0..PROCESSES).map(|_| home.ready_gateway())).await
}

#[tokio::test]
async fn oauth3_many_processes_refresh_at_once_and_lose_no_login() {
    let rounds = count("GOBLIN_SOAK_ROUNDS", 3);
    let home = LoginHome::logged_in().await;
    let gateways = gateways(&home).await;
    let before = home.server.counters().await;
    for round in 1..=rounds {
        home.server.expire_tokens().await;
        let calls = gateways.iter().map(|(_, client)| client.try_call("p_whoami", json!({})));
        for answer in join_all(calls).await {
            assert_eq!(scopes_of(&answer), ["read"], "round {round}");
        }
    }
    let after = home.server.counters().await;
    let grown = |name: &str| after[name].as_u64().expect("a count") - before[name].as_u64().expect("a count");
    assert_eq!((grown("reusedTokens"), grown("refreshErrors"), grown("authorizations")), (0, 0, 0), "{after}");
    assert_eq!(grown("refreshes"), rounds as u64, "each round has one refresh for all processes: {after}");
    eprintln!("{rounds} rounds of {PROCESSES} processes: {} refreshes, 0 logins lost", grown("refreshes"));
}

#[tokio::test]
async fn oauth3_tokens_that_expire_for_all_processes_are_refreshed_once() {
    let home = LoginHome::new().await;
    home.server.set(json!({ "lifetime": 3 })).await;
    home.log_in().await;
    let gateways = gateways(&home).await;
    let before = home.server.count("refreshes").await;
    let mut rounds = tokio::time::interval(Duration::from_millis(200));
    while home.server.count("refreshes").await < before + 2 {
        rounds.tick().await;
        for answer in join_all(gateways.iter().map(|(_, client)| client.try_call("p_whoami", json!({})))).await {
            assert_eq!(scopes_of(&answer), ["read"]);
        }
    }
    let counters = home.server.counters().await;
    assert_eq!((&counters["reusedTokens"], &counters["refreshErrors"]), (&json!(0), &json!(0)), "{counters}");
}

/// The state of the login after a kill.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Kept,
    /// The authorization server had handled a refresh whose tokens were never used.
    Lost,
}

/// Returns the last handled request for tokens, after all of them have been handled or rejected.
async fn last_issue(home: &LoginHome) -> Value {
    let mut tokens = eventually("no request for tokens is open", || async {
        let tokens = home.server.recorded("tokens").await;
        tokens.iter().all(|token| token["closed"] == true).then_some(tokens)
    })
    .await;
    tokens.retain(|token| token["handled"] == true);
    tokens.pop().expect("a login")
}

/// Reports whether the MCP server has ever received this token.
async fn was_used(home: &LoginHome, access: &str) -> bool {
    let bearer = format!("Bearer {access}");
    let requests = home.server.recorded("requests").await;
    requests.iter().any(|request| request["headers"].as_array().expect("a list").iter().any(|it| *it == bearer))
}

/// Kills a gateway at this time after a call that needs a refresh, and starts another one.
async fn kill_during_refresh(home: &LoginHome, after: Duration) -> Outcome {
    let (mut gateway, client) = home.ready_gateway().await;
    home.server.set(json!({ "expireAll": true })).await;
    let _call = raw_post(&client, &call(1, "p_whoami", "{}")).await;
    tokio::time::sleep(after).await;
    signal(gateway.child.id().expect("the process runs"), "KILL");
    gateway.child.wait().await.expect("the process ends");
    let issued = last_issue(home).await;
    let begun = home.server.count("tokenRequests").await;
    let next = home.gateway().await;
    let client = next.client_seeing("p_whoami").await;
    let answer = client.try_call("p_whoami", json!({})).await;
    let requests = home.server.count("tokenRequests").await - begun;
    assert!(requests <= 3, "a loop: {requests} requests for tokens after a kill at {after:?}");
    if answer["error"].is_null() {
        assert_eq!(scopes_of(&answer), ["read"]);
        return Outcome::Kept;
    }
    assert_eq!(answer["error"]["code"], 1407, "a silent loss after a kill at {after:?}: {answer}");
    await_state(&next, "login_needed").await;
    assert_eq!(issued["grant"], "refresh_token", "no refresh was handled before the kill at {after:?}: {issued}");
    let access = issued["access"].as_str().expect("a token");
    assert!(!was_used(home, access).await, "the refreshed token was in use before it was lost, after {after:?}");
    home.log_in().await;
    Outcome::Lost
}

#[tokio::test]
async fn oauth3_a_kill_during_a_refresh_never_loses_a_login_silently() {
    let kills = count("GOBLIN_SOAK_KILLS", 20);
    let home = LoginHome::logged_in().await;
    let mut lost = 0;
    // The authorization server needs 4 ms before and after it issues the tokens.
    home.server.set(json!({ "delayBefore": 4, "delayAfter": 4 })).await;
    for kill in 0..kills {
        // The kills are spread over the rejected call, the refresh, the writes that follow, and the repeated call.
        let after = Duration::from_micros(kill as u64 * 7919 % 60_000);
        lost += usize::from(kill_during_refresh(&home, after).await == Outcome::Lost);
    }
    let counters = home.server.counters().await;
    let logins = counters["authorizations"].as_u64().expect("a count");
    assert_eq!(logins, 1 + lost as u64, "each loss is cured by one login: {counters}");
    eprintln!("{kills} kills: {lost} answers lost on the way, {} logins kept", kills - lost);
}
