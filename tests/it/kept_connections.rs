//! Changes of a server's entry that do not affect its connection (USE-10).
//!
//! The process, the open calls and the subscriptions stay. Names, filters, limits and intervals change at once.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Scratch, eventually, fixture_server};
use crate::per_client::own_process;
use crate::served::{Served, text};
use crate::subscriber::UPDATED;
use crate::subscriptions_patterns::glob;
use crate::support::{assert_error, await_log, hold_call, path_text, release, starts};

const LIST_CHANGED: &str = "notifications/tools/list_changed";

/// A gateway with one server, which counts its starts.
struct Kept {
    served: Served,
    _scratch: Scratch,
    starts: PathBuf,
    reloads: u64,
}

impl Kept {
    async fn start(members: Value) -> Kept {
        let scratch = Scratch::new();
        let starts = scratch.path().join("starts");
        let served = Served::start(entry(&starts, members)).await;
        served.gateway.client_seeing("a_echo").await;
        Kept { served, _scratch: scratch, starts, reloads: 0 }
    }

    async fn client(&self) -> Client {
        Client::new(self.served.gateway.address).listening(json!({})).await
    }

    /// Replaces the other members of the server's entry and waits until a catalog with them is published.
    async fn change(&mut self, members: Value) {
        let version = async || self.served.status().await["catalog"]["version"].clone();
        let before = version().await;
        self.served.put(&text(entry(&self.starts, members)));
        self.served.hang_up();
        eventually("a new catalog is published", || async { (version().await != before).then_some(()) }).await;
        self.reloads += 1;
        self.served.reloads(self.reloads).await;
    }

    fn assert_kept(&self) {
        assert_eq!(starts(&self.starts), 1, "the process stays");
    }
}

fn entry(starts: &Path, members: Value) -> Value {
    let mut server = fixture_server(&["--resources", "2", "--start-log", path_text(starts)]);
    server.as_object_mut().expect("an object").extend(members.as_object().expect("an object").clone());
    json!({ "a": server })
}

fn deleted(uri: &str) -> Value {
    json!({ "uri": uri, "_meta": { "dev.goblin/deleted": true } })
}

#[tokio::test]
async fn use10_filters_and_names_change_while_calls_and_subscriptions_stay() {
    let mut kept = Kept::start(json!({})).await;
    let client = kept.client().await;
    client.subscribe("a+note:///alpha").await;
    let open = hold_call(&client).await;
    client.drain();
    kept.change(json!({ "tools": { "deny": ["fail"], "rename": { "echo": "repeat" } } })).await;
    client.notification(LIST_CHANGED).await;
    let names = client.tool_names().await;
    assert!(names.iter().any(|name| name == "repeat") && !names.iter().any(|name| name == "a_fail"), "{names:?}");
    assert_error(&client.try_call("a_fail", json!({})).await, -32602, "TOOL_NOT_FOUND");
    client.call("repeat", json!({})).await;
    release(&client).await;
    assert_eq!(client.text_of(open).await, "[]", "the open call ends as usual");
    client.touch("note:///alpha", 1).await;
    let updates = client.updates().await;
    assert_eq!(updates.len(), 1, "the change itself sends no update: {updates:?}");
    kept.change(json!({ "prefix": "b" })).await;
    client.await_tool("b_echo").await;
    client.call("b_touch", json!({"uri": "note:///alpha"})).await;
    assert_eq!(client.updated().await.json()["params"]["uri"], "a+note:///alpha", "under the name of the subscription");
    await_log(&kept.served.gateway, &["configuration reloaded", "changed=1"]).await;
    kept.assert_kept();
}

#[tokio::test]
async fn use10_a_new_timeout_applies_to_the_next_call() {
    let mut kept = Kept::start(json!({})).await;
    let client = kept.client().await;
    let patient = hold_call(&client).await;
    kept.change(json!({ "timeout": "100ms", "tools": { "timeouts": { "release": "60s" } } })).await;
    let call = async |delay: u64| client.try_call("a_nonce", json!({"nonce": "x", "delayMs": delay})).await;
    assert!(call(600_000).await.get("error").is_some(), "the new timeout applies");
    release(&client).await;
    assert_eq!(client.text_of(patient).await, "[]", "an open call keeps its timeout");
    kept.change(json!({ "timeout": "100ms", "tools": { "timeouts": { "nonce": "60s" } } })).await;
    assert!(call(300).await.get("result").is_some(), "the timeout of the tool applies");
    kept.assert_kept();
}

#[tokio::test]
async fn use10_a_hidden_resource_counts_as_deleted_until_it_is_shown_again() {
    let mut kept = Kept::start(json!({})).await;
    let (plain, pattern) = (kept.client().await, kept.client().await);
    plain.subscribe("a+note:///alpha").await;
    plain.subscribe("a+note:///beta").await;
    pattern.subscribe_with("a+note:///numbered/*", glob()).await;
    let hidden = json!({ "resources": { "deny": ["note:///alpha", "note:///numbered/0001"] } });
    kept.change(hidden).await;
    assert_eq!(plain.notification(UPDATED).await.json()["params"], deleted("a+note:///alpha"));
    assert_eq!(pattern.notification(UPDATED).await.json()["params"], deleted("a+note:///numbered/0001"));
    for uri in ["note:///alpha", "note:///numbered/0001"] {
        plain.touch(uri, 1).await;
    }
    plain.touch("note:///beta", 1).await;
    pattern.touch("note:///numbered/0002", 1).await;
    assert_eq!(plain.updated().await.json()["params"]["uri"], "a+note:///beta", "no update of a hidden resource");
    assert_eq!(pattern.updated().await.json()["params"]["uri"], "a+note:///numbered/0002");
    kept.change(json!({})).await;
    assert_eq!(plain.updated().await.json()["params"], json!({ "uri": "a+note:///alpha" }), "it is back");
    assert_eq!(pattern.updated().await.json()["params"]["uri"], "a+note:///numbered/0001");
    plain.touch("note:///alpha", 1).await;
    assert_eq!(plain.updated().await.json()["params"]["uri"], "a+note:///alpha");
    kept.assert_kept();
}

#[tokio::test]
async fn use10_a_reverted_change_keeps_the_first_process() {
    let mut kept = Kept::start(json!({})).await;
    let client = kept.client().await;
    kept.served.put(&text(json!({ "a": { "command": "/nonexistent/server" } })));
    kept.served.hang_up();
    kept.reloads += 1;
    await_log(&kept.served.gateway, &["cannot connect to backend", "/nonexistent/server"]).await;
    kept.change(json!({ "tools": { "deny": ["fail"] } })).await;
    client.notification(LIST_CHANGED).await;
    client.call("a_echo", json!({})).await;
    let mut status = kept.served.status().await["servers"][0].clone();
    // The last error stays, with its time.
    status.as_object_mut().expect("a server").remove("lastError").expect("the replacement failed");
    assert!(!status.to_string().contains("/nonexistent/server"), "{status}");
    kept.assert_kept();
}

#[tokio::test]
async fn use10_a_shorter_poll_interval_finds_the_next_change() {
    let mut kept = Kept::start(json!({ "poll": "1h" })).await;
    let client = kept.client().await;
    assert_eq!(client.call_text("a_toggle_quiet", "{}").await, "quiet");
    client.subscribe("a+note:///alpha").await;
    client.touch("note:///alpha", 1).await;
    kept.change(json!({ "poll": "100ms" })).await;
    assert_eq!(client.updated().await.json()["params"], json!({ "uri": "a+note:///alpha" }));
    kept.assert_kept();
}

#[tokio::test]
async fn use10_more_clients_may_connect_while_the_others_keep_their_processes() {
    let limited = |max: u64| {
        let mut server = own_process(&[]);
        server["maxClients"] = json!(max);
        json!({ "a": server })
    };
    let served = Served::start(limited(1)).await;
    let first = served.gateway.client_seeing("a_env").await;
    let pid = first.call_text("a_env", json!({"name": "ME"})).await;
    let second = served.gateway.client().await;
    let rejected = second.try_call("a_env", json!({"name": "ME"})).await;
    assert_eq!(rejected["error"]["data"]["limit"], "maxClients", "{rejected}");
    served.put(&text(limited(2)));
    served.hang_up();
    served.reloads(1).await;
    eventually("the second client has a process", || async {
        second.try_call("a_env", json!({"name": "ME"})).await.get("result").map(drop)
    })
    .await;
    assert_eq!(first.call_text("a_env", json!({"name": "ME"})).await, pid, "the first client keeps its process");
}
