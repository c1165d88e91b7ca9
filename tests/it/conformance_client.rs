//! The official conformance suite as a server behind the gateway. It judges the gateway's behaviour as a client.

use futures_util::future::join_all;
use serde_json::json;

use crate::conformance::report;
use crate::harness::GOBLIN;

/// A scenario and the number of checks that must pass.
type Scene = (&'static str, usize);

/// Plays each scene through the gateway. The server uses `version`, and the client uses `client_version`.
async fn play(version: &str, client_version: &str, scenes: &[Scene]) {
    let plays = scenes.iter().map(|(scenario, at_least)| async move {
        let scene = ["--scenario", scenario, "--spec-version", version, "--client-version", client_version];
        let report = report(&[&["run-client", "--json", "--gateway", GOBLIN], &scene[..]].concat()).await;
        let passed = report["passed"].as_u64().expect("a count") as usize;
        let is_good = report["accepted"] == json!(true) && passed >= *at_least;
        (!is_good).then(|| format!("{scenario}: {}\n{report:#}", report["stderr"].as_str().unwrap_or_default()))
    });
    let bad: Vec<_> = join_all(plays).await.into_iter().flatten().collect();
    assert!(bad.is_empty(), "{version} by {client_version}: {}", bad.join("\n"));
}

/// Skills are an extension that the gateway does not support. Clients cannot list them through it. These scenes only
/// check that the gateway does not read them unprompted.
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
async fn srv2_clients_work_with_servers_of_all_versions() {
    let cases: [(&str, &str, &[Scene]); 5] = [
        ("2025-06-18", "2025-06-18", &[("initialize", 1), ("tools_call", 2)]),
        ("2025-11-25", "2025-11-25", &[&LEGACY[..], &SKILLS].concat()),
        ("2026-07-28", "2026-07-28", &[&MODERN[..], &SKILLS].concat()),
        ("2026-07-28", "2025-11-25", &MODERN),
        ("2025-11-25", "2026-07-28", &LEGACY),
    ];
    for (version, client_version, scenes) in cases {
        play(version, client_version, scenes).await;
    }
}

/// The scenarios of logins that 2025-11-25 requires.
const LOGIN_LEGACY: [Scene; 14] = [
    ("auth/metadata-default", 18),
    ("auth/metadata-var1", 18),
    ("auth/metadata-var2", 18),
    ("auth/metadata-var3", 18),
    ("auth/basic-cimd", 12),
    ("auth/scope-from-www-authenticate", 14),
    ("auth/scope-from-scopes-supported", 14),
    ("auth/scope-omitted-when-undefined", 14),
    ("auth/scope-step-up", 25),
    ("auth/scope-retry-limit", 10),
    ("auth/token-endpoint-auth-basic", 19),
    ("auth/token-endpoint-auth-post", 19),
    ("auth/token-endpoint-auth-none", 19),
    ("auth/pre-registration", 12),
];

/// The scenarios that 2026-07-28 requires in addition.
const LOGIN_MODERN: [Scene; 11] = [
    ("auth/resource-mismatch", 2),
    ("auth/offline-access-scope", 12),
    ("auth/offline-access-not-supported", 14),
    ("auth/authorization-server-migration", 29),
    ("auth/iss-supported", 14),
    ("auth/iss-not-advertised", 14),
    ("auth/iss-supported-missing", 8),
    ("auth/iss-wrong-issuer", 8),
    ("auth/iss-unexpected", 8),
    ("auth/iss-normalized", 8),
    ("auth/metadata-issuer-mismatch", 3),
];

/// Scenarios that no version requires.
const LOGIN_OPTIONAL: [Scene; 2] = [("auth/client-credentials-jwt", 8), ("auth/client-credentials-basic", 8)];

#[tokio::test]
async fn oauth1_the_login_scenarios_of_2025_11_25_pass_through_the_gateway() {
    play("2025-11-25", "2025-11-25", &LOGIN_LEGACY).await;
}

#[tokio::test]
async fn oauth1_the_login_scenarios_of_2026_07_28_pass_through_the_gateway() {
    let scenes = [&LOGIN_LEGACY[..], &LOGIN_MODERN].concat();
    assert_eq!(scenes.len(), 25);
    play("2026-07-28", "2026-07-28", &scenes).await;
}

#[tokio::test]
async fn oauth1_oauth4_optional_login_scenarios_pass_through_the_gateway() {
    let old = [("auth/2025-03-26-oauth-metadata-backcompat", 13), ("auth/2025-03-26-oauth-endpoint-fallback", 8)];
    play("2025-03-26", "2025-06-18", &old).await;
    play("2026-07-28", "2026-07-28", &LOGIN_OPTIONAL).await;
}
