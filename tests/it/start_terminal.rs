//! The start of `goblin serve` on a terminal (USE-2): a live line for each server, its result, and a summary.
//!
//! A server waits for a file before it answers, so a test decides when the server has started.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::harness::{Scratch, TIMEOUT, eventually, fixture_server, goblin, signal};
use crate::screen::Screen;
use crate::support::{path_text, scripted_server};
use crate::terminal::{fill, unread};

fn gated(gate: &Path) -> Value {
    let script = format!("while [ ! -e '{}' ]; do sleep 0.02; done; exec \"$@\"", path_text(gate));
    scripted_server(&script, &[])
}

/// Returns `goblin serve` with these servers. `flags` are more arguments.
fn serve(scratch: &Scratch, servers: Value, flags: &[&str]) -> Command {
    let config = json!({ "gateway": { "port": 0 }, "mcpServers": servers });
    let config = scratch.write("goblin.json", &config.to_string());
    let mut command = goblin(scratch.path());
    command.args(["serve", "--config"]).arg(config).args(flags);
    command
}

#[tokio::test]
async fn use2_each_server_has_a_live_line_until_its_result() {
    let scratch = Scratch::new();
    let gate = scratch.path().join("gate");
    let servers =
        json!({ "good": fixture_server(&[]), "slow": gated(&gate), "gone": { "command": "/nowhere/server" } });
    let screen = Screen::run(serve(&scratch, servers, &[]), 150, 60);
    screen
        .wait("slow has a live line", |text| line_of(text, "slow").is_some_and(|line| line.contains("connecting")))
        .await;
    let text = screen.shows("✗ gone").await;
    assert!(line_of(&text, "gone").is_some_and(|line| line.contains("not found")), "{text}");
    assert!(!text.contains("✓ slow"), "{text}");
    std::fs::write(&gate, "").expect("a file");
    let text = screen.shows("✓ slow").await;
    assert!(line_of(&text, "slow").is_some_and(|line| line.contains(" tools") && line.contains("2 prompts")), "{text}");
    let text = screen.shows("Press Ctrl-C to stop.").await;
    assert!(!text.contains("connecting"), "{text}");
    assert!(text.contains("of 3 servers ready"), "{text}");
    assert!(text.contains("1 failed: gone"), "{text}");
}

#[tokio::test]
async fn use2_a_failure_appears_once_on_a_terminal() {
    let scratch = Scratch::new();
    let unset = json!({ "command": "x", "env": { "TOKEN": "${NO_SUCH_VARIABLE}" } });
    let servers = json!({ "gone": { "command": "/nowhere/server" }, "unset": unset });
    let screen = Screen::run(serve(&scratch, servers, &[]), 150, 60);
    screen.shows("2 failed: gone, unset").await;
    drop(serve(&scratch, json!({ "gone": { "command": "/elsewhere/server" }, "unset": unset }), &[]));
    screen.shows("/elsewhere/server").await;
    screen.shows("reloaded: ").await;
    let text = screen.text();
    assert_eq!(text.matches("NO_SUCH_VARIABLE is not set").count(), 1, "{text}");
    assert_eq!([text.matches("/nowhere/server").count(), text.matches("/elsewhere/server").count()], [1, 1], "{text}");
    assert!(!text.contains("WARN"), "{text}");
    let log = Screen::run(
        serve(&scratch, json!({ "gone": { "command": "/nowhere/server" } }), &["--log-level", "warn"]),
        150,
        60,
    );
    log.shows("cannot connect to backend").await;
}

#[tokio::test]
async fn use2_the_log_does_not_tear_the_live_lines() {
    let scratch = Scratch::new();
    let gate = scratch.path().join("gate");
    let servers = json!({ "slow": gated(&gate), "gone": { "command": "/nowhere/server" } });
    let screen = Screen::run(serve(&scratch, servers, &["--log-level", "debug"]), 250, 60);
    let is_log = |line: &str| line.contains("DEBUG") || line.contains("INFO") || line.contains("WARN");
    let text = screen
        .wait("the log and a live line show", |text| {
            text.contains("cannot connect to backend")
                && line_of(text, "slow").is_some_and(|line| line.contains("connecting"))
        })
        .await;
    let torn: Vec<_> = text.lines().filter(|line| is_log(line) && line.contains("connecting, ")).collect();
    assert!(torn.is_empty(), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("connecting, ")).count(), 1, "{text}");
}

#[tokio::test]
async fn use2_an_interrupted_start_leaves_the_terminal_in_order() {
    let scratch = Scratch::new();
    let servers = json!({ "slow": gated(&scratch.path().join("gate")) });
    let mut screen = Screen::run(serve(&scratch, servers, &[]), 150, 40);
    screen.shows("connecting").await;
    signal(screen.child.id().expect("the process runs"), "INT");
    assert_eq!(screen.ended().await, Some(0));
    screen.hides("connecting").await;
}

#[tokio::test]
async fn use2_a_reload_reports_its_changes_and_shows_the_new_server() {
    let scratch = Scratch::new();
    let screen = Screen::run(serve(&scratch, json!({ "a": fixture_server(&[]) }), &[]), 150, 60);
    screen.shows("Press Ctrl-C to stop.").await;
    drop(serve(&scratch, json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) }), &[]));
    screen.shows("reloaded: 1 server started (b); 1 unchanged").await;
    screen.shows("✓ b").await;
}

#[tokio::test]
async fn use2_the_end_of_its_terminal_stops_the_gateway() {
    let scratch = Scratch::new();
    let mut screen = Screen::run(serve(&scratch, json!({ "a": fixture_server(&[]) }), &[]), 150, 60);
    let text = screen.shows("Press Ctrl-C to stop.").await;
    assert!(!text.contains("reloaded"), "{text}");
    signal(screen.child.id().expect("the process runs"), "HUP");
    assert_eq!(screen.ended().await, Some(0));
    assert!(!screen.text().contains("reloaded"), "{}", screen.text());
}

/// Waits until `goblin status` shows the text.
async fn status_shows(scratch: &Scratch, text: &str) {
    eventually(&format!("the status shows {text:?}"), || async {
        let output = goblin(scratch.path()).arg("status").output().await.expect("the command runs");
        String::from_utf8_lossy(&output.stdout).contains(text).then_some(())
    })
    .await;
}

async fn terminated(mut child: Child) -> Option<i32> {
    signal(child.id().expect("the process runs"), "TERM");
    let ended = tokio::time::timeout(TIMEOUT, child.wait()).await.expect("the process ends");
    ended.expect("the exit status is known").code()
}

#[tokio::test]
async fn use2_a_terminal_that_nobody_reads_delays_nothing() {
    let scratch = Scratch::new();
    let gate = scratch.path().join("gate");
    let mut command = serve(&scratch, json!({ "a": fixture_server(&[]), "slow": gated(&gate) }), &[]);
    let near = unread(&mut command);
    fill(&near);
    let child = command.spawn().expect("goblin starts");
    status_shows(&scratch, "1 of 2 ready").await;
    drop(serve(&scratch, json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) }), &[]));
    status_shows(&scratch, "2 of 2 ready").await;
    assert_eq!(terminated(child).await, Some(0));
}

#[tokio::test]
async fn use2_a_gateway_continues_after_its_terminal_is_gone() {
    let scratch = Scratch::new();
    let gate = scratch.path().join("gate");
    let mut command = serve(&scratch, json!({ "a": fixture_server(&[]), "slow": gated(&gate) }), &[]);
    let near = unread(&mut command);
    let child = command.spawn().expect("goblin starts");
    // Only the process keeps its side of the terminal open.
    drop(command);
    status_shows(&scratch, "1 of 2 ready").await;
    drop(near);
    std::fs::write(&gate, "").expect("a file");
    status_shows(&scratch, "2 of 2 ready").await;
    let servers = json!({ "a": fixture_server(&[]), "b": fixture_server(&[]), "c": fixture_server(&[]) });
    drop(serve(&scratch, servers, &[]));
    status_shows(&scratch, "3 of 3 ready").await;
    assert_eq!(terminated(child).await, Some(0));
}

#[tokio::test]
async fn use2_a_changed_server_that_does_not_start_is_reported() {
    let scratch = Scratch::new();
    let screen = Screen::run(serve(&scratch, json!({ "a": fixture_server(&[]) }), &[]), 150, 60);
    screen.shows("Press Ctrl-C to stop.").await;
    drop(serve(&scratch, json!({ "a": { "command": "/nowhere/server" } }), &[]));
    let text = screen.shows("✗ a  runs with its previous entry:").await;
    assert!(line_of(&text, "a").is_some(), "{text}");
    screen.shows("/nowhere/server").await;
}

#[tokio::test]
async fn use2_servers_that_start_late_get_another_summary() {
    let scratch = Scratch::new();
    let gate = scratch.path().join("gate");
    let mut servers = json!({ "a": fixture_server(&[]), "slow": gated(&gate) });
    servers["loud"] = scripted_server("echo $$ >&2; exit 3", &[]);
    let screen = Screen::run(serve(&scratch, servers, &[]), 150, 60);
    screen.shows(" still starting: ").await;
    std::fs::write(&gate, "").expect("a file");
    let is_last = |text: &str| text.contains("2 of 3 servers ready") && text.ends_with("1 failed: loud");
    let text = screen.wait("another summary is the last text", is_last).await;
    assert_eq!(text.matches("✗ loud").count(), 1, "the process writes another number each time: {text}");
}

#[tokio::test]
async fn use2_a_pipe_gets_no_live_lines_and_no_escape_codes() {
    let scratch = Scratch::new();
    let servers = json!({ "a": fixture_server(&[]), "gone": { "command": "/nowhere/server" } });
    let mut command = serve(&scratch, servers, &["--log-level", "debug"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("goblin starts");
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stderr.take().expect("piped")));
    let mut log = String::new();
    while !log.contains(" ready servers=") {
        log += &lines.next_line().await.expect("text").expect("the gateway becomes ready");
    }
    signal(child.id().expect("the process runs"), "TERM");
    while let Ok(Some(line)) = lines.next_line().await {
        log += &line;
    }
    let output = child.wait_with_output().await.expect("the command ran");
    assert!(output.stdout.is_empty(), "{:?}", String::from_utf8_lossy(&output.stdout));
    assert!(!log.contains('\x1b') && !log.contains('\r') && !log.contains("connecting, "), "{log}");
}

/// Returns the first line of a screen that has this server's mark and name.
fn line_of<'a>(screen: &'a str, server: &str) -> Option<&'a str> {
    screen.lines().find(|line| line.split_whitespace().nth(1) == Some(server))
}
