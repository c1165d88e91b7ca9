//! The official conformance suite as a client, run against a server directly and through the gateway. No check that
//! passes directly may fail or be absent through the gateway. `goblin-conformance compare` plays and compares.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::Semaphore;

use crate::harness::GOBLIN;

/// The time limit of one comparison, which takes about 15 s on a quiet machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);
/// The suite expects some responses within half a second. At most two runs are therefore active at a time, the cores of
/// a small machine.
static SIDE_BY_SIDE: Semaphore = Semaphore::const_new(2);

pub fn program() -> PathBuf {
    let beside = PathBuf::from(GOBLIN).with_file_name("goblin-conformance");
    assert!(beside.exists(), "build it first: cargo build --workspace, or test with cargo xtask test");
    beside
}

/// Runs the program with these arguments and returns its report.
pub async fn report(arguments: &[&str]) -> Value {
    let _place = SIDE_BY_SIDE.acquire().await.expect("the semaphore is never closed");
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let output =
        tokio::time::timeout(RUN_TIMEOUT, command.output()).await.expect("the process ends").expect("the command runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let mut report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    report["stderr"] = stderr.into();
    report
}

/// Compares a server of an SDK with the same server behind a gateway that uses the era `protocol` towards it. All
/// checks must pass directly. Returns the findings of the gateway.
async fn compare(server: &str, protocol: &str, options: &[&str], at_least: u64) -> Value {
    let arguments = ["compare", "--json", "--gateway", GOBLIN, "--server", server, "--protocol", protocol];
    let mut findings = report(&[&arguments, options].concat()).await;
    let run = format!("{server} {protocol} {options:?}");
    let direct = &findings["direct"];
    assert_eq!((&direct["failed"], &direct["accepted"]), (&json!(0), &json!(true)), "{run}, directly: {findings:#}");
    assert!(direct["passed"].as_u64() >= Some(at_least), "{run}: too few checks ran directly: {direct}");
    let through = findings["through"][0].take();
    let log = findings["stderr"].as_str().unwrap_or_default();
    assert_eq!(through["unexplained"], json!([]), "{run}: {through:#}\n{log}");
    assert_eq!(through["needless"], json!([]), "{run}: these checks pass now and should leave the list");
    through
}

/// Runs everything that the suite has for this version.
#[tokio::test]
async fn srv2_the_requirements_of_2025_11_25_pass_through_the_gateway() {
    let through = compare("rust", "legacy", &["--requirements", "2025-11-25"], 75).await;
    assert_eq!(through["accepted"], true, "{through:#}");
}

/// Runs everything that the suite has for this version, and the tasks extension.
#[tokio::test]
async fn srv2_the_requirements_of_2026_07_28_pass_through_the_gateway() {
    let through = compare("rust", "auto", &["--requirements", "2026-07-28"], 190).await;
    assert_eq!(through["accepted"], true, "{through:#}");
}

#[tokio::test]
async fn srv2_the_suite_passes_between_all_versions() {
    let cases: [(&str, &[&str], u64); 6] = [
        ("legacy", &["--spec-version", "2025-03-26"], 3),
        ("legacy", &["--spec-version", "2025-06-18"], 50),
        ("modern", &["--spec-version", "2025-11-25"], 75),
        ("legacy", &["--spec-version", "2026-07-28"], 145),
        ("match-client", &["--stable"], 40),
        ("auto", &["--stable", "--spec-version", "2025-06-18"], 20),
    ];
    for (protocol, options, at_least) in cases {
        compare("rust", protocol, options, at_least).await;
    }
}

/// `cargo xtask conformance` runs all SDKs. This one declares no `listChanged`.
#[tokio::test]
async fn srv2_a_server_without_list_changed_passes_the_suite() {
    compare("py1", "auto", &["--spec-version", "2025-11-25"], 75).await;
}
