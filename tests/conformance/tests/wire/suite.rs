//! What the suite says of the server.

use std::process::Command;

use serde_json::{Value, json};

use super::client::{PROGRAM, Server};

/// Runs the suite and gives its report.
fn run(options: &[&str]) -> Value {
    let server = Server::start();
    let mut command = Command::new(PROGRAM);
    let output = command.args(["run", "--json", "--url", &server.url]).args(options).output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{options:?}: {error}: {told}"))
}

#[test]
fn the_server_passes_the_suite() {
    let check = |options: &[&str], scenarios: usize| {
        let report = run(options);
        let outcomes = report["scenarios"].as_object().expect("scenarios by name");
        assert_eq!(outcomes.len(), scenarios, "{options:?}");
        let is_bad = |outcome: &Value| outcome["failed"] != json!([]) || outcome["warned"] != json!([]);
        let bad: Vec<_> = outcomes.iter().filter(|(_, outcome)| is_bad(outcome)).collect();
        assert!(bad.is_empty(), "{options:?}: {bad:#?}");
        assert!(report["passed"].as_u64().expect("a count") >= scenarios as u64, "{options:?}");
    };
    check(&["--stable"], 32);
    check(&["--spec-version", "2025-03-26"], 1);
    check(&["--spec-version", "2025-06-18"], 27);
    // Each scenario in the newest version that has it, and the extensions.
    check(&[], 65);
}

#[test]
fn a_run_that_cannot_begin_says_why() {
    let check = |options: &[&str], expected: &str| {
        let mut command = Command::new(PROGRAM);
        let output = command.args(["run", "--url", "http://127.0.0.1:9/mcp"]).args(options).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {told}");
        assert!(told.contains(expected), "{options:?}: {told}");
    };
    check(&["--tools", "/nowhere"], "run `cargo xtask tools`");
    check(&["--spec-version", "1999-01-01"], "1999-01-01");
}

#[test]
fn a_server_that_is_not_there_fails_its_checks() {
    let options = ["run", "--json", "--url", "http://127.0.0.1:9/mcp", "--scenario", "ping"];
    let output = Command::new(PROGRAM).args(options).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["failed"], 1, "{report:#}");
    assert_eq!(report["scenarios"]["ping"]["failed"][0]["check"], "ping/Ping", "{report:#}");
}
