//! The first lists of a client while the gateway starts (USE-4).
//!
//! The servers wait for a file before they answer, so a test decides when a server has started.

use std::path::Path;

use serde_json::{Value, json};

use crate::client::{Client, NEWEST_LEGACY};
use crate::harness::{Gateway, Scratch, fixture_server};
use crate::support::{path_text, scripted_server};

/// Returns the fixture that starts when the file `gate` exists.
fn gated(gate: &Path) -> Value {
    let script = format!("while [ ! -e '{}' ]; do sleep 0.02; done; exec \"$@\"", path_text(gate));
    scripted_server(&script, &[])
}

/// Returns a configuration whose lists wait for servers until they have settled.
fn patient(servers: Value) -> Value {
    json!({ "gateway": { "startWait": "10m" }, "mcpServers": servers })
}

fn names(answer: &Value) -> Vec<&str> {
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    tools.iter().filter_map(|tool| tool["name"].as_str()).collect()
}

fn has(answer: &Value, name: &str) -> bool {
    names(answer).contains(&name)
}

#[tokio::test]
async fn use4_the_first_list_over_stdio_waits_for_a_starting_server_and_the_handshake_does_not() {
    let scratch = Scratch::new();
    let gate = scratch.path().join("gate");
    let config = patient(json!({ "good": fixture_server(&[]), "slow": gated(&gate) }));
    let client = Client::stdio(config).connected(NEWEST_LEGACY).await;
    let id = client.begin("tools/list", json!({})).await;
    client.request("ping", json!({})).await;
    std::fs::write(&gate, "").expect("a file");
    let answer = client.answer_to(id).await;
    assert!(has(&answer, "good_echo") && has(&answer, "slow_echo"), "{:?}", names(&answer));
}

#[tokio::test]
async fn use4_the_first_list_over_http_waits_for_a_starting_server() {
    let scratch = Scratch::new();
    let gate = scratch.path().join("gate");
    let gateway = Gateway::start(patient(json!({ "slow": gated(&gate) }))).await;
    let client = gateway.client().await;
    let id = client.begin("tools/list", json!({})).await;
    gateway.client().await.request("ping", json!({})).await;
    std::fs::write(&gate, "").expect("a file");
    let answer = client.answer_to(id).await;
    assert!(has(&answer, "slow_echo"), "{:?}", names(&answer));
}

#[tokio::test]
async fn use4_a_failed_server_delays_no_list() {
    let servers = json!({ "good": fixture_server(&[]), "bad": { "command": "no-such-program" } });
    let client = Client::stdio(patient(servers)).connected(NEWEST_LEGACY).await;
    let answer = client.request("tools/list", json!({})).await;
    assert!(has(&answer, "good_echo"), "{:?}", names(&answer));
}

#[tokio::test]
async fn use4_without_a_start_wait_the_list_has_the_known_entries() {
    let config =
        json!({ "gateway": { "startWait": "0s" }, "mcpServers": { "hanging": fixture_server(&["--hang-handshake"]) } });
    let client = Client::stdio(config).connected(NEWEST_LEGACY).await;
    let answer = client.request("tools/list", json!({})).await;
    assert!(!has(&answer, "hanging_echo"), "{:?}", names(&answer));
}

#[tokio::test]
async fn use4_a_client_of_a_profile_waits_only_for_the_servers_of_the_profile() {
    let mut config = patient(json!({ "good": fixture_server(&[]), "hanging": fixture_server(&["--hang-handshake"]) }));
    config["profiles"] = json!({ "some": { "servers": ["good"] } });
    let gateway = Gateway::start(config).await;
    let client = Client::new(gateway.address).at("/mcp/p/some").connected(NEWEST_LEGACY).await;
    let answer = client.request("tools/list", json!({})).await;
    assert!(has(&answer, "good_echo"), "{:?}", names(&answer));
}

#[tokio::test]
async fn use4_a_call_right_after_the_start_waits_for_its_server() {
    let scratch = Scratch::new();
    let gate = scratch.path().join("gate");
    let client = Client::stdio(patient(json!({ "slow": gated(&gate) }))).connected(NEWEST_LEGACY).await;
    let id = client.begin_call("slow_echo", json!({ "text": "hi" })).await;
    client.request("ping", json!({})).await;
    std::fs::write(&gate, "").expect("a file");
    let answer = client.answer_to(id).await;
    assert!(answer["result"]["content"].is_array(), "{answer}");
}

#[tokio::test]
async fn use4_a_client_that_lists_at_once_gets_the_tools_of_its_own_link() {
    // The process that starts first has one more tool, so the shared and the own connection list different tools.
    let scratch = Scratch::new();
    let mark = scratch.path().join("first");
    let script =
        format!(r#"if mkdir '{}' 2>/dev/null; then exec "$@" --tools 1; else exec "$@"; fi"#, path_text(&mark));
    let mut server = scripted_server(&script, &[]);
    server["session"] = json!("per-client");
    let client = Client::stdio(patient(json!({ "a": server }))).connected(NEWEST_LEGACY).await;
    let answer = client.request("tools/list", json!({})).await;
    assert!(has(&answer, "a_echo"), "{:?}", names(&answer));
    // Both processes start at once, and either may get the mark. The own link decides which tools the client sees.
    let own = client.request("tools/list", json!({})).await;
    assert_eq!(names(&answer), names(&own), "the first list is the list of the own link");
}
