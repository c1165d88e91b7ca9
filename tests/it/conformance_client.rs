//! The official conformance suite as a server, behind the gateway: what it judges is how the gateway speaks to servers.

use futures_util::future::join_all;
use serde_json::json;

use crate::conformance::report;
use crate::harness::GOBLIN;

/// A scenario, and how many checks of it must pass.
type Scene = (&'static str, usize);

/// The server and the client of every scene speak these versions; the gateway is in between.
async fn play(version: &str, spoken: &str, scenes: &[Scene]) {
    let plays = scenes.iter().map(|(scenario, at_least)| async move {
        let scene = ["--scenario", scenario, "--spec-version", version, "--spoken", spoken];
        let report = report(&[&["run-client", "--json", "--gateway", GOBLIN], &scene[..]].concat()).await;
        let passed = report["passed"].as_u64().expect("a count") as usize;
        let is_good = report["accepted"] == json!(true) && passed >= *at_least;
        (!is_good).then(|| format!("{scenario}: {}\n{report:#}", report["told"].as_str().unwrap_or_default()))
    });
    let bad: Vec<_> = join_all(plays).await.into_iter().flatten().collect();
    assert!(bad.is_empty(), "{version} by {spoken}: {}", bad.join("\n"));
}

/// Skills are an extension that the gateway does not know: its clients cannot list them, so there is nothing to check but
/// that it does not read them of its own accord.
const SKILLS: [Scene; 4] = [
    ("sep-2640-client-no-prefetch", 0),
    ("sep-2640-client-verify-digest", 0),
    ("sep-2640-client-verify-size", 0),
    ("sep-2640-client-verify-frontmatter", 0),
];

const LEGACY: [Scene; 5] = [
    ("initialize", 1),
    ("tools_call", 2),
    ("elicitation-sep1034-client-defaults", 5),
    ("sse-retry", 3),
    ("json-schema-2020-12-preservation", 9),
];

const MODERN: [Scene; 8] = [
    ("tools_call", 2),
    ("request-metadata", 7),
    ("sep-2322-client-request-state", 5),
    ("http-standard-headers", 10),
    ("http-custom-headers", 18),
    ("http-invalid-tool-headers", 12),
    ("json-schema-ref-no-deref", 1),
    ("json-schema-2020-12-preservation", 9),
];

#[tokio::test]
async fn srv2_servers_of_2025_06_18() {
    play("2025-06-18", "2025-06-18", &[("initialize", 1), ("tools_call", 2)]).await;
}

#[tokio::test]
async fn srv2_servers_of_2025_11_25() {
    play("2025-11-25", "2025-11-25", &[&LEGACY[..], &SKILLS].concat()).await;
}

#[tokio::test]
async fn srv2_servers_of_2026_07_28() {
    play("2026-07-28", "2026-07-28", &[&MODERN[..], &SKILLS].concat()).await;
}

#[tokio::test]
async fn srv2_servers_of_2026_07_28_for_clients_of_2025_11_25() {
    play("2026-07-28", "2025-11-25", &MODERN).await;
}

#[tokio::test]
async fn srv2_servers_of_2025_11_25_for_clients_of_2026_07_28() {
    play("2025-11-25", "2026-07-28", &LEGACY).await;
}
