//! The official conformance suite as a client, run against a server directly and through the gateway. No check that
//! passes directly may fail or be absent through the gateway.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;

use crate::harness::{GOBLIN, Gateway};

/// The time limit of one run, which takes about 15 s on a quiet machine.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);
/// The suite expects some responses within half a second. At most two runs are therefore active at a time, the cores of
/// a small machine.
static SIDE_BY_SIDE: Semaphore = Semaphore::const_new(2);
const EXPECTED: &str = include_str!("../conformance/expected-failures.txt");
/// The expected failures of 2026-07-28 clients with a 2025-11-25 server.
const EXPECTED_NEW_TO_OLD: &str = include_str!("../conformance/expected-failures-new-to-old.txt");

pub fn program() -> PathBuf {
    let beside = PathBuf::from(GOBLIN).with_file_name("goblin-conformance");
    assert!(beside.exists(), "build it first: cargo build --workspace, or test with cargo xtask test");
    beside
}

/// The server that the suite requires.
struct Server {
    _process: Child,
    url: String,
}

impl Server {
    async fn start() -> Server {
        let mut command = Command::new(program());
        command.arg("serve").stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().expect("the process starts");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let line = lines.next_line().await.expect("the line can be read").expect("the process prints its address");
        let url = line.split_whitespace().last().expect("a URL").to_owned();
        Server { _process: process, url }
    }
}

/// Returns every check of a run with this outcome as `SCENARIO CHECK`. Repeated checks are numbered.
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
    report(&[&["run", "--json", "--url", url], options].concat()).await
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

/// Starts a server for the suite, and a gateway that uses the era `protocol` towards it.
async fn stage(protocol: &str) -> (Server, Gateway) {
    let server = Server::start().await;
    let entry = json!({ "url": server.url, "protocol": protocol });
    let gateway = Gateway::start(json!({ "namespacing": "none", "mcpServers": { "suite": entry } })).await;
    gateway.client_seeing("test_simple_text").await;
    (server, gateway)
}

/// Runs the suite directly and through the gateway, and compares the outcomes.
async fn compare(protocol: &str, options: &[&str], at_least: usize, expected: &'static str) -> Value {
    let (server, gateway) = stage(protocol).await;
    let direct = run(&server.url, options).await;
    let through = run(&gateway.url(), options).await;
    assert_eq!(
        (&direct["failed"], &direct["accepted"]),
        (&json!(0), &json!(true)),
        "{protocol} {options:?}, directly: {direct:#}"
    );
    let (wanted, got) = (checks(&direct, "passed"), checks(&through, "passed"));
    assert!(wanted.len() >= at_least, "{protocol} {options:?}: only {} checks ran directly", wanted.len());
    let expected = Expected::parse(expected);
    let failed = checks(&through, "failed");
    let bad: Vec<_> = failed.iter().filter(|check| !expected.failing.contains(check.as_str())).collect();
    let passed_now = |check: &&String| !failed.contains(*check) && !expected.absent.contains(check.as_str());
    let missing: Vec<_> = wanted.difference(&got).filter(passed_now).collect();
    assert!(
        bad.is_empty() && missing.is_empty(),
        "{protocol} {options:?} failed: {bad:#?}, missing: {missing:#?}, report: {through:#}"
    );
    let needless: Vec<_> = expected.lines().filter(|check| got.contains(*check)).collect();
    assert!(needless.is_empty(), "{protocol} {options:?}: these pass now and should leave the list: {needless:?}");
    through
}

/// The checks that pass directly but not through the gateway.
struct Expected {
    failing: BTreeSet<&'static str>,
    /// Checks that the suite does not reach.
    absent: BTreeSet<&'static str>,
}

impl Expected {
    fn parse(text: &'static str) -> Expected {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let (absent, failing): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("absent "));
        let absent = absent.into_iter().filter_map(|line| line.strip_prefix("absent "));
        Expected { failing: failing.into_iter().collect(), absent: absent.collect() }
    }

    fn lines(&self) -> impl Iterator<Item = &'static str> {
        self.failing.iter().chain(&self.absent).copied()
    }
}

/// Runs everything that the suite has for this version.
#[tokio::test]
async fn srv2_the_requirements_of_2025_11_25_pass_through_the_gateway() {
    let through = compare("legacy", &["--requirements", "2025-11-25"], 75, EXPECTED).await;
    assert_eq!(through["accepted"], true, "{through:#}");
}

/// The suite runs more than the version requires, so its own verdict counts instead of each check.
#[tokio::test]
async fn srv2_the_requirements_of_2026_07_28_pass_through_the_gateway() {
    let (_server, gateway) = stage("auto").await;
    let through = run(&gateway.url(), &["--requirements", "2026-07-28"]).await;
    assert_eq!(through["accepted"], true, "{through:#}");
    assert!(through["passed"].as_u64() >= Some(145), "{through:#}");
}

#[tokio::test]
async fn srv2_the_suite_passes_between_all_versions() {
    let cases: [(&str, &[&str], usize, &str); 7] = [
        ("legacy", &["--spec-version", "2025-03-26"], 3, EXPECTED),
        ("legacy", &["--spec-version", "2025-06-18"], 50, EXPECTED),
        ("auto", &["--spec-version", "2026-07-28"], 145, EXPECTED),
        ("modern", &["--spec-version", "2025-11-25"], 75, EXPECTED),
        ("legacy", &["--spec-version", "2026-07-28"], 145, EXPECTED_NEW_TO_OLD),
        ("match-client", &["--stable"], 40, EXPECTED),
        ("auto", &["--stable", "--spec-version", "2025-06-18"], 20, EXPECTED),
    ];
    for (protocol, options, at_least, expected) in cases {
        compare(protocol, options, at_least, expected).await;
    }
}
