//! The results of the suite for this server.
//!
//! Every scenario must pass without a warning. The tests also check the errors of the runner itself.

use std::process::Command;

use serde_json::{Value, json};

use super::client::{PROGRAM, Server};

/// Runs the suite and returns its report.
fn run(options: &[&str]) -> Value {
    let server = Server::start();
    let mut command = Command::new(PROGRAM);
    let output =
        command.args(["run", "--json", "--url", &server.url]).args(options).output().expect("the process starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{options:?}: {error}: {stderr}"))
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
    // Scenarios of 2026-07-28 in that version, older ones in 2025-11-25, and the extensions.
    check(&[], 65);
    // All scenarios that apply to 2026-07-28, in that version, and the tasks extension.
    check(&["--requirements", "2026-07-28"], 50);
}

#[test]
fn a_run_that_cannot_start_reports_its_cause() {
    let check = |options: &[&str], expected: &str| {
        let mut command = Command::new(PROGRAM);
        let output = command.args(["run", "--url", "http://127.0.0.1:9/mcp"]).args(options).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {stderr}");
        assert!(stderr.contains(expected), "{options:?}: {stderr}");
    };
    check(&["--tools", "/nowhere"], "run `cargo xtask tools`");
    check(&["--spec-version", "1999-01-01"], "1999-01-01");
}

#[test]
fn an_unreachable_server_fails_its_checks() {
    let options = ["run", "--json", "--url", "http://127.0.0.1:9/mcp", "--scenario", "ping"];
    let output = Command::new(PROGRAM).args(options).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["failed"], 1, "{report:#}");
    assert_eq!(report["scenarios"]["ping"]["failed"][0]["check"], "ping/Ping", "{report:#}");
}

/// Lets the suite play a server. Returns its report and the client's stderr.
fn run_client(options: &[&str]) -> (Value, String) {
    let output =
        Command::new(PROGRAM).args(["run-client", "--json"]).args(options).output().expect("the process starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!(output.status.success(), report["accepted"] == true, "{options:?}: {report:#}");
    (report, stderr)
}

#[test]
fn the_client_passes_its_scenarios() {
    let check = |scenario, version, expected| {
        let (report, stderr) = run_client(&["--scenario", scenario, "--spec-version", version]);
        let is_good = report["accepted"] == true && report["passed"] == expected;
        assert!(is_good, "{scenario} at {version}: {report:#}\n{stderr}");
    };
    check("initialize", "2025-06-18", 1);
    check("tools_call", "2025-11-25", 2);
    check("elicitation-sep1034-client-defaults", "2025-11-25", 5);
    check("sse-retry", "2025-11-25", 3);
    check("tools_call", "2026-07-28", 2);
    check("sep-2322-client-request-state", "2026-07-28", 5);
    check("http-standard-headers", "2026-07-28", 9);
    check("http-custom-headers", "2026-07-28", 18);
    check("json-schema-ref-no-deref", "2026-07-28", 1);
    check("json-schema-2020-12-preservation", "2026-07-28", 9);
    check("sep-2640-client-no-prefetch", "2025-11-25", 1);
    check("sep-2640-client-verify-digest", "2026-07-28", 1);
}

#[test]
fn a_faulty_client_is_not_accepted() {
    // The client calls every listed tool, also the invalid ones, and the suite counts that as failures.
    let (report, _) = run_client(&["--scenario", "http-invalid-tool-headers", "--spec-version", "2026-07-28"]);
    assert_eq!((&report["accepted"], &report["failed"]), (&json!(false), &json!(11)), "{report:#}");
    // The client exits with an error, which no check shows.
    let scene = ["--scenario", "sep-2640-client-no-prefetch", "--spec-version", "2025-11-25"];
    let (report, stderr) = run_client(&[&scene[..], &["--gateway", "/nowhere/goblin"]].concat());
    assert_eq!((&report["accepted"], &report["failed"]), (&json!(false), &json!(0)), "{report:#}");
    assert!(stderr.contains("cannot start /nowhere/goblin"), "{stderr}");
}
