//! Changes of the configuration file while the gateway runs.
//!
//! A reload affects only the changed servers. No call or subscription of another server is lost, and an invalid file
//! changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Scratch, eventually, fixture_server, goblin};
use crate::served::{Served, text};
use crate::subscriber::{UPDATED, states};
use crate::support::{await_exit, await_log, path_text, pid_in, started_and_alive};

#[tokio::test]
async fn a_changed_file_is_reloaded_and_adds_and_removes_servers() {
    let mut served = Served::start(json!({ "kept": fixture_server(&[]), "gone": fixture_server(&[]) })).await;
    let client = served.gateway.client_seeing("gone_echo").await;
    client.await_tool("kept_nonce").await;
    client.call("kept_change_tools", json!({})).await;
    served.put(&text(json!({ "new": fixture_server(&[]), "kept": fixture_server(&[]) })));
    client.await_tool("new_echo").await;
    eventually("the tools of the server are removed", || async {
        (!client.tool_names().await.iter().any(|name| name.starts_with("gone_"))).then_some(())
    })
    .await;
    client.await_tool("kept_added_0001").await;
    let status = served.status().await;
    assert_eq!(status["configuration"]["reloads"], 1, "{status}");
    assert_eq!(status["configuration"]["source"], path_text(&served.path));
    let ids: Vec<_> = status["servers"].as_array().expect("servers").iter().map(|server| &server["id"]).collect();
    assert_eq!(ids, ["kept", "new"], "in the order of the file");
    await_log(&served.gateway, &["configuration reloaded", "started=1", "stopped=1", "unchanged=1"]).await;
    assert!(served.gateway.terminate().await.success());
}

#[tokio::test]
async fn sighup_reloads_the_file_and_keeps_unchanged_servers_running() {
    let served = Served::start(json!({ "a": fixture_server(&[]) })).await;
    let client = served.gateway.client_seeing("a_echo").await;
    client.call("a_change_tools", json!({})).await;
    client.await_tool("a_added_0001").await;
    served.hang_up();
    served.reloads(1).await;
    client.await_tool("a_added_0001").await;
    await_log(&served.gateway, &["configuration reloaded", "started=0", "changed=0", "stopped=0", "unchanged=1"]).await;
}

#[tokio::test]
async fn an_invalid_file_changes_nothing_and_reports_the_problem() {
    let served = Served::start(json!({ "a": fixture_server(&[]) })).await;
    let client = served.gateway.client_seeing("a_echo").await;
    for (bad, fragments) in [
        ("{ \"mcpServers\": ".to_owned(), &["goblin.json"][..]),
        (text(json!({ "a": { "command": "" } })), &["mcpServers.a.command"]),
        (text(json!({ "a": { "command": "x", "tiemout": "1s" } })), &["tiemout", "timeout"]),
    ] {
        served.put(&bad);
        served.hang_up();
        let problem = served.is_rejected(fragments).await;
        await_log(&served.gateway, &["configuration not reloaded", fragments[0]]).await;
        assert_eq!(client.call_text("a_nonce", json!({"nonce": "still"})).await, "still", "{problem}");
    }
    std::fs::remove_file(&served.path).expect("the file exists");
    served.is_rejected(&["goblin.json", "No such file"]).await;
    served.put(&text(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) })));
    client.await_tool("b_echo").await;
    let status = served.reloads(1).await;
    assert_eq!(status["configuration"].get("problem"), None, "{status}");
}

#[tokio::test]
async fn a_reload_rejects_keys_that_need_a_restart_by_name() {
    let served = Served::start(json!({ "a": fixture_server(&[]) })).await;
    let client = served.gateway.client_seeing("a_echo").await;
    let wanted = json!({
        "gateway": { "maxSessions": 5, "grace": "1s" },
        "policies": { "pageSize": 3 },
        "exposure": "search",
        "mcpServers": { "b": fixture_server(&[]) },
    });
    served.put(&wanted.to_string());
    served.hang_up();
    let problem = served.is_rejected(&["gateway.maxSessions", "gateway.grace"]).await;
    assert!(!problem.contains("exposure") && !problem.contains("pageSize"), "a reload applies these: {problem}");
    assert!(problem.contains("restart"), "{problem}");
    assert!(!problem.contains("gateway.port"), "the flag sets the port, not the file: {problem}");
    assert!(client.tool_names().await.iter().all(|name| name.starts_with("a_")), "nothing is applied");
}

#[tokio::test]
async fn a_changed_server_serves_until_its_successor_is_ready_and_finishes_its_calls() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let marked = |mark: &str| {
        let mut server = fixture_server(&["--pid-file", path_text(&pid_file)]);
        server["env"] = json!({ "MARK": mark });
        json!({ "a": server })
    };
    let served = Served::start(marked("old")).await;
    let client = Arc::new(served.gateway.client_seeing("a_echo").await);
    let mark = async || client.call_text("a_env", json!({"name": "MARK"})).await;
    let old = pid_in(&pid_file).await;
    // A server that never starts replaces no other.
    served.put(&text(json!({ "a": { "command": "/nonexistent/server" } })));
    served.hang_up();
    served.reloads(1).await;
    await_log(&served.gateway, &["cannot connect to backend", "/nonexistent/server"]).await;
    assert_eq!(mark().await, "old");
    let lacking = served.status().await["servers"][0]["lacking"].to_string();
    assert!(lacking.contains("/nonexistent/server"), "{lacking}");
    // The call starts and ends at the old server, after the new one has taken over.
    let slow = {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.call_text("a_nonce", json!({"nonce": "slow", "delayMs": 4000})).await })
    };
    served.put(&text(marked("new")));
    served.hang_up();
    eventually("the new one serves", || async { (mark().await == "new").then_some(()) }).await;
    assert!(!slow.is_finished(), "the call must outlast the change");
    assert_eq!(slow.await.expect("the process ends"), "slow");
    await_exit(old).await;
}

/// The state that the sessions of the storm share.
#[derive(Default)]
struct Ledger {
    is_over: AtomicBool,
    calls: AtomicU64,
}

/// Runs one client, which calls the unchanged server until the storm is over.
async fn call_until_over(peer: Client, ledger: Arc<Ledger>, number: usize) -> Client {
    let mut round = 0;
    while !ledger.is_over.load(Ordering::Relaxed) {
        let nonce = format!("{number} {round}");
        assert_eq!(peer.call_text("steady_nonce", &json!({ "nonce": nonce }).to_string()).await, nonce);
        ledger.calls.fetch_add(1, Ordering::Relaxed);
        round += 1;
    }
    peer
}

/// Returns the file of a round: one constant server, one that changes each time, one that comes and goes. Some files
/// are invalid.
fn config_of_round(round: usize, log: &str) -> String {
    let mut servers = json!({
        "steady": fixture_server(&["--start-log", log]),
        "moving": fixture_server(&["--start-log", log, "--instructions", &(round / 2).to_string()]),
    });
    if round % 4 < 2 {
        servers["passing"] = fixture_server(&["--start-log", log]);
    }
    match round % 5 {
        3 => text(servers).replace("\"mcpServers\"", "\"mcpServers\" oops"),
        _ => text(servers),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_reloads_under_load_lose_no_call_and_no_subscription() {
    const CLIENTS: usize = 50;
    const ROUNDS: usize = 100;
    let scratch = Scratch::new();
    let log = scratch.path().join("starts");
    let served = Served::start(
        serde_json::from_str::<Value>(&config_of_round(0, path_text(&log))).expect("JSON")["mcpServers"].clone(),
    )
    .await;
    served.gateway.client_seeing("moving_echo").await.await_tool("steady_nonce").await;
    let ledger = Arc::<Ledger>::default();
    let mut sailing = Vec::new();
    for number in 0..CLIENTS {
        let peer = Client::new(served.gateway.address).listening(json!({})).await;
        for uri in ["steady+note:///alpha", "moving+note:///beta"] {
            peer.subscribe(uri).await;
        }
        sailing.push(tokio::spawn(call_until_over(peer, Arc::clone(&ledger), number)));
    }
    let (mut reloads, mut rejected) = (0, 0);
    for round in 1..=ROUNDS {
        served.put(&config_of_round(round, path_text(&log)));
        served.hang_up();
        if round % 5 == 3 {
            rejected += 1;
            served.is_rejected(&["goblin.json"]).await;
        } else {
            reloads += 1;
            eventually("the new file is applied", || async {
                let configuration = &served.status().await["configuration"];
                (configuration["reloads"].as_u64() >= Some(reloads) && configuration.get("problem").is_none())
                    .then_some(())
            })
            .await;
        }
    }
    ledger.is_over.store(true, Ordering::Relaxed);
    let mut peers = Vec::new();
    for peer in sailing {
        peers.push(peer.await.expect("no call failed"));
    }
    let calls = ledger.calls.load(Ordering::Relaxed);
    println!("{reloads} reloads, {rejected} rejected, {calls} calls");
    assert!(calls > CLIENTS as u64, "{calls}");
    eventually("every subscription is active", || async {
        let states = states(served.gateway.address).await;
        let is_whole = states.len() == 2 * CLIENTS && states.iter().all(|(_, state)| state == "subscribed");
        is_whole.then_some(())
    })
    .await;
    // The last file has all three servers.
    eventually("the previous servers have ended", || async { (started_and_alive(&log).len() == 3).then_some(()) })
        .await;
    assert_every_client_notified(&served, &mut peers).await;
    let mut gateway = served.gateway;
    assert!(gateway.terminate().await.success());
    assert_eq!(started_and_alive(&log).len(), 0, "no process remains");
}

/// Waits until every client has received an update of each of its subscriptions. Notifications of the changes may come
/// before.
async fn assert_every_client_notified(served: &Served, peers: &mut [Client]) {
    let driver = served.gateway.client_seeing("moving_touch").await;
    for (server, uri) in [("steady", "note:///alpha"), ("moving", "note:///beta")] {
        driver.call(&format!("{server}_touch"), json!({ "uri": uri, "count": 7 })).await;
        for peer in &mut *peers {
            let exposed = format!("{server}+{uri}");
            let is_last = |message: &Value| {
                let params = &message["params"];
                message["method"] == UPDATED && params["uri"] == exposed && !params["_meta"].is_null()
            };
            peer.receive("the update", is_last).await;
        }
    }
}

#[tokio::test]
async fn a_bridge_finds_the_gateway_after_a_reload() {
    let served = Served::start(json!({ "a": fixture_server(&[]) })).await;
    let client = served.gateway.client_seeing("a_echo").await;
    served.put(&text(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) })));
    served.hang_up();
    client.await_tool("b_echo").await;
    served.reloads(1).await;
    let mut command = goblin(served.scratch.path());
    command.args(["stdio", "--config"]).arg(&served.path).stdin(std::process::Stdio::null());
    let bridge = tokio::time::timeout(Duration::from_secs(60), command.output())
        .await
        .expect("the process ends")
        .expect("the command runs");
    let stderr = String::from_utf8_lossy(&bridge.stderr);
    assert!(!stderr.contains("running its own gateway"), "{stderr}");
}
