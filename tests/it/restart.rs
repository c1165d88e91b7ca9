//! Restarts of single servers: one process after the other, and the lists stay.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::admin_client::bearer;
use crate::client::Client;
use crate::harness::{Gateway, Scratch, eventually};
use crate::retry::status_of;
use crate::support::{await_call, path_text, scripted_server};

const LIST_CHANGED: &str = "notifications/tools/list_changed";

async fn restart(gateway: &Gateway) {
    let token = bearer(gateway.address).await;
    let headers = [("authorization", token.as_str())];
    let answer = Client::new(gateway.address).send(Method::POST, "/api/servers/a/restart", &headers, "").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
}

/// Starts a gateway whose listings come only from connections.
async fn gateway_with(server: Value) -> Gateway {
    let config = json!({ "gateway": { "listingCache": false }, "mcpServers": { "a": server } });
    Gateway::start(config).await
}

async fn assert_listed(client: &Client) {
    let names = client.tool_names().await;
    assert!(names.iter().any(|name| name == "a_echo"), "{names:?}");
}

#[tokio::test]
async fn use8_d17_a_restart_starts_the_next_process_after_the_last_one_has_ended() {
    let scratch = Scratch::new();
    let log = scratch.path().join("log");
    // The process needs a while to end.
    let script = format!(r#"trap "" TERM; echo start >>'{0}'; "$@"; sleep 0.3; echo end >>'{0}'"#, path_text(&log));
    let gateway = gateway_with(scripted_server(&script, &[])).await;
    gateway.client_seeing("a_echo").await;
    let client = Client::new(gateway.address).listening(json!({})).await;
    assert_listed(&client).await;
    client.drain();
    let lines = || std::fs::read_to_string(&log).expect("the process has started");
    for restarts in 1..=2 {
        restart(&gateway).await;
        eventually("the next process is ready", || async {
            assert_listed(&client).await;
            let status = status_of(&gateway).await;
            let is_next = lines().matches("start").count() == restarts + 1;
            (is_next && status["state"] == "ready" && status["stale"] == false).then_some(())
        })
        .await;
    }
    assert_eq!(lines(), "start\nend\nstart\nend\nstart\n");
    // A known change is the fence: its notification comes after those of the restarts.
    client.call("a_change_tools", json!({})).await;
    client.notification(LIST_CHANGED).await;
    let messages = client.pending_messages().await;
    assert!(!messages.iter().any(|message| message["method"] == LIST_CHANGED), "{messages:?}");
}

#[tokio::test]
async fn use8_a_second_restart_waits_for_the_process_before_the_first() {
    let scratch = Scratch::new();
    let log = scratch.path().join("log");
    let script = format!(r#"trap "" TERM; echo start >>'{0}'; "$@"; sleep 0.3; echo end >>'{0}'"#, path_text(&log));
    let gateway = gateway_with(scripted_server(&script, &[])).await;
    let client = gateway.client_seeing("a_echo").await;
    restart(&gateway).await;
    restart(&gateway).await;
    await_call(&client, "a_echo").await;
    let lines = std::fs::read_to_string(&log).expect("the process has started");
    assert_eq!(lines, "start\nend\nstart\n", "no process starts before the end of the last one");
}

#[tokio::test]
async fn use8_d14_a_restart_that_fails_keeps_the_lists() {
    let scratch = Scratch::new();
    let script = format!(r#"[ -e '{}' ] && exit 3; exec "$@""#, path_text(&scratch.path().join("broken")));
    let gateway = gateway_with(scripted_server(&script, &[])).await;
    let client = gateway.client_seeing("a_echo").await;
    scratch.write("broken", "");
    restart(&gateway).await;
    let status = eventually("the restart has failed", || async {
        let status = status_of(&gateway).await;
        (status["state"] == "failed").then_some(status)
    })
    .await;
    assert_eq!(status["stale"], true, "{status}");
    assert_listed(&client).await;
    std::fs::remove_file(scratch.path().join("broken")).expect("the server is broken");
    client.call("a_echo", json!({})).await;
}
