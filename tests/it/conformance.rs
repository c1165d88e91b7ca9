//! The official conformance suite, played against a server and through the gateway in front of it: no check that passes
//! directly may fail, or not come to pass, through the gateway.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::{GOBLIN, Gateway};

/// One run takes the suite a quarter of a minute on a quiet machine.
const RUN_PATIENCE: Duration = Duration::from_secs(300);
const EXPECTED: &str = include_str!("../conformance/expected-failures.txt");

fn program() -> PathBuf {
    let beside = PathBuf::from(GOBLIN).with_file_name("goblin-conformance");
    assert!(beside.exists(), "build it first: cargo build --workspace, or test with cargo xtask test");
    beside
}

/// The server that the suite asks for.
struct Server {
    _process: Child,
    url: String,
}

impl Server {
    async fn start() -> Server {
        let mut command = Command::new(program());
        command.arg("serve").stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let line = lines.next_line().await.expect("it can be read").expect("it says where");
        let url = line.split_whitespace().last().expect("a URL").to_owned();
        Server { _process: process, url }
    }
}

/// Every check of a run that has this outcome, as `SCENARIO CHECK`; those that come several times are numbered.
fn checks(report: &Value, outcome: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (scenario, outcomes) in report["scenarios"].as_object().expect("scenarios") {
        for check in outcomes[outcome].as_array().expect("checks") {
            let name = check["check"].as_str().expect("a name").rsplit('/').next().unwrap_or_default();
            let plain = format!("{scenario} {name}");
            let numbered = (2..).map(|number| format!("{plain} #{number}"));
            let free = std::iter::once(plain.clone()).chain(numbered).find(|name| !found.contains(name));
            found.insert(free.expect("numbers do not end"));
        }
    }
    found
}

async fn run(url: &str, options: &[&str]) -> Value {
    let mut command = Command::new(program());
    command.args(["run", "--json", "--url", url]).args(options);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = tokio::time::timeout(RUN_PATIENCE, command.output()).await.expect("it ends").expect("it runs");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Plays the suite both ways and compares.
async fn compare(options: &[&str], at_least: usize) {
    let server = Server::start().await;
    let config = json!({ "namespacing": "none", "mcpServers": { "suite": { "url": server.url } } });
    let gateway = Gateway::start(config).await;
    gateway.client_seeing("test_simple_text").await;
    let direct = run(&server.url, options).await;
    let through = run(&gateway.url(), options).await;
    assert_eq!(direct["failed"], 0, "the server itself passes: {direct:#}");
    let (wanted, got) = (checks(&direct, "passed"), checks(&through, "passed"));
    assert!(wanted.len() >= at_least, "only {} checks ran directly", wanted.len());
    let (failing, absent) = (expected(""), expected("absent "));
    let failed = checks(&through, "failed");
    let bad: Vec<_> = failed.iter().filter(|check| !failing.contains(check.as_str())).collect();
    let gone = |check: &&String| !failed.contains(*check) && !absent.contains(check.as_str());
    let missing: Vec<_> = wanted.difference(&got).filter(gone).collect();
    assert!(bad.is_empty() && missing.is_empty(), "failed: {bad:#?}, missing: {missing:#?}, report: {through:#}");
    let needless: Vec<_> = failing.iter().chain(&absent).filter(|check| got.contains(**check)).collect();
    assert!(needless.is_empty(), "these pass now and should leave the list: {needless:?}");
}

/// The lines of the list that begin so.
fn expected(beginning: &str) -> BTreeSet<&'static str> {
    let lines = EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let marked = |line: &&str| line.starts_with("absent ") == (beginning == "absent ");
    lines.filter(marked).filter_map(|line| line.strip_prefix(beginning)).collect()
}

#[tokio::test]
async fn srv2_the_suite_at_2025_03_26() {
    compare(&["--spec-version", "2025-03-26"], 3).await;
}

#[tokio::test]
async fn srv2_the_suite_at_2025_06_18() {
    compare(&["--spec-version", "2025-06-18"], 50).await;
}

#[tokio::test]
async fn srv2_the_suite_at_2025_11_25() {
    compare(&["--spec-version", "2025-11-25"], 75).await;
}

#[tokio::test]
async fn srv2_the_stable_suite() {
    compare(&["--stable"], 40).await;
}

#[tokio::test]
async fn srv2_the_stable_suite_at_2025_06_18() {
    compare(&["--stable", "--spec-version", "2025-06-18"], 20).await;
}
