//! The commands `calls`, `logs`, `restart`, `enable` and `disable` against a running gateway.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::client::Client;
use crate::harness::{Deadline, Gateway, Scratch, TIMEOUT, eventually, fixture_server, signal};
use crate::home::Home;

/// A command that follows a list with `--json`.
struct Follower {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    stderr: Arc<Mutex<Vec<String>>>,
}

impl Follower {
    fn start(home: &Home, arguments: &[&str]) -> Follower {
        let mut command = home.goblin(&[arguments, &["--follow", "--json"]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("goblin starts");
        let lines = BufReader::new(child.stdout.take().expect("the stream is piped")).lines();
        let stderr = gather(child.stderr.take().expect("the stream is piped"));
        Follower { child, lines, stderr }
    }

    /// Returns the next entry.
    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(TIMEOUT, self.lines.next_line()).await;
        let line = line.unwrap_or_else(|_| panic!("no entry arrives: {:?}", self.stderr()));
        let line = line.expect("stdout is text").unwrap_or_else(|| panic!("the command ended: {:?}", self.stderr()));
        serde_json::from_str(&line).expect("JSON")
    }

    /// Returns the next entry for which `is_wanted` returns `true`.
    async fn find(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let entry = self.next().await;
            if is_wanted(&entry) {
                return entry;
            }
        }
    }

    fn stderr(&self) -> Vec<String> {
        self.stderr.lock().expect("no test panics here").clone()
    }

    fn pid(&self) -> u32 {
        self.child.id().expect("the process runs")
    }

    /// Interrupts the command and asserts that it ends without an error.
    async fn interrupt(mut self) {
        signal(self.pid(), "INT");
        let status = tokio::time::timeout(TIMEOUT, self.child.wait()).await.expect("the process ends");
        assert_eq!(status.expect("the exit status is known").code(), Some(0), "{:?}", self.stderr());
    }
}

fn gather(stream: impl AsyncRead + Unpin + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let kept: Arc<Mutex<Vec<String>>> = Arc::default();
    let (gathered, mut lines) = (Arc::clone(&kept), BufReader::new(stream).lines());
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            gathered.lock().expect("no test panics here").push(line);
        }
    });
    kept
}

/// Ends the gateway and starts another one at the same port.
async fn restart(home: &Home, gateway: &mut Gateway, tool: &str) -> Client {
    let port = gateway.address.port();
    gateway.terminate().await;
    *gateway = Gateway::of(home.serve(port)).await;
    gateway.client_seeing(tool).await
}

fn servers(servers: Value) -> Home {
    Home::new(&json!({ "mcpServers": servers }))
}

#[tokio::test]
async fn use6_calls_are_printed_and_filtered() {
    let home = servers(json!({ "a": fixture_server(&[]), "b": fixture_server(&[]) }));
    let (_gateway, client) = home.gateway("a_echo").await;
    client.await_tool("b_echo").await;
    client.call("a_echo", json!({})).await;
    client.try_call("b_fail", json!({})).await;
    let ran = home.run(&["calls"]).await;
    let lines: Vec<Vec<_>> = ran.text().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((ran.code, lines.len()), (Some(0), 3), "{ran:?}");
    assert_eq!(lines[0], ["TIME", "OUTCOME", "TOOK", "SIZE", "CLIENT", "NAME", "ERROR"]);
    assert!(lines[1].contains(&"ok") && lines[1].contains(&"a_echo"), "{ran:?}");
    assert!(lines[2].contains(&"tool_error") && lines[2].contains(&"b_fail"), "{ran:?}");
    for (arguments, expected) in [
        (&["calls", "--json", "--failed"][..], "b_fail"),
        (&["calls", "--json", "--server", "a"], "a_echo"),
        (&["calls", "--json", "-n", "1"], "b_fail"),
    ] {
        assert_eq!(home.run(arguments).await.json()["name"], expected, "{arguments:?}");
    }
    let ran = home.run(&["calls", "--server", "c"]).await;
    assert!(ran.code == Some(2) && ran.stderr.contains("there is no server `c`"), "{ran:?}");
}

#[tokio::test]
async fn use6_followed_calls_survive_a_restart_of_the_gateway() {
    let home = servers(json!({ "a": fixture_server(&[]) }));
    let (mut gateway, client) = home.gateway("a_echo").await;
    client.call("a_echo", json!({})).await;
    let mut follower = Follower::start(&home, &["calls"]);
    assert_eq!(follower.next().await["name"], "a_echo");
    client.try_call("a_fail", json!({})).await;
    let failed = follower.next().await;
    assert_eq!((&failed["name"], &failed["seq"]), (&json!("a_fail"), &json!(2)), "{failed}");
    let client = restart(&home, &mut gateway, "a_echo").await;
    client.call("a_echo", json!({})).await;
    let first = follower.next().await;
    assert_eq!((&first["name"], &first["seq"]), (&json!("a_echo"), &json!(1)), "{first}");
    client.try_call("a_fail", json!({})).await;
    assert_eq!(follower.next().await["seq"], 2);
    follower.interrupt().await;
}

#[tokio::test]
async fn use6_a_follower_reports_how_many_calls_it_missed() {
    const CALLS: u64 = 1100;
    let home = servers(json!({ "a": fixture_server(&[]) }));
    let (_gateway, client) = home.gateway("a_echo").await;
    client.call("a_echo", json!({})).await;
    let mut follower = Follower::start(&home, &["calls"]);
    assert_eq!(follower.next().await["seq"], 1);
    signal(follower.pid(), "STOP");
    for _ in 0..CALLS {
        client.call("a_echo", json!({})).await;
    }
    signal(follower.pid(), "CONT");
    let mut printed = 1;
    loop {
        printed += 1;
        if follower.next().await["seq"] == CALLS + 1 {
            break;
        }
    }
    // A request that was open while the process stood may have timed out, which is another warning.
    let is_missed = |line: &String| line.contains("missed");
    let warning = eventually("a warning is printed", || async { follower.stderr().into_iter().find(is_missed) }).await;
    let expected = format!("{} calls missed", CALLS + 1 - printed);
    assert!(warning.contains(&expected), "{expected}: {warning}");
    follower.interrupt().await;
}

#[tokio::test]
async fn use7_the_log_of_a_server_is_printed_and_followed_across_a_restart_of_the_gateway() {
    let loud = json!({ "command": "sh", "args": ["-c", "echo line-of-$$ >&2; exec sleep 1000"] });
    let home = servers(json!({ "loud": loud, "a": fixture_server(&[]) }));
    let (mut gateway, _client) = home.gateway("a_echo").await;
    let mut follower = Follower::start(&home, &["logs", "loud"]);
    let is_line = |entry: &Value| entry["message"].as_str().is_some_and(|text| text.starts_with("line-of-"));
    let first = follower.find(is_line).await;
    assert_eq!((&first["server"], &first["kind"]), (&json!("loud"), &json!("backend_stderr")), "{first}");
    let ran = home.run(&["logs", "loud"]).await;
    let message = first["message"].as_str().expect("text");
    let row = ran.text().lines().find(|line| line.ends_with(message)).unwrap_or_else(|| panic!("{message}: {ran:?}"));
    assert!(row.contains("  stderr  loud"), "{row}");
    restart(&home, &mut gateway, "a_echo").await;
    let second = follower.find(is_line).await;
    assert_ne!(second["message"], first["message"], "the process of the next gateway");
    follower.interrupt().await;
    let ran = home.run(&["logs", "quiet"]).await;
    assert!(ran.code == Some(2) && ran.stderr.contains("there is no server `quiet`"), "{ran:?}");
}

#[tokio::test]
async fn use7_debug_events_are_followed_without_another_reader() {
    let home = servers(json!({ "a": fixture_server(&[]) }));
    let (gateway, _client) = home.gateway("a_echo").await;
    let mut follower = Follower::start(&home, &["logs", "--level", "debug"]);
    let is_debug = |entry: &Value| entry["kind"] == "session_opened";
    // The first sessions may open before the command follows.
    let sessions = async {
        let deadline = Deadline::new();
        loop {
            gateway.client().await;
            deadline.pause("a debug event is followed").await;
        }
    };
    let entry = tokio::select! {
        entry = follower.find(is_debug) => entry,
        () = sessions => unreachable!("the loop has no end"),
    };
    assert_eq!(entry["level"], "debug");
    follower.interrupt().await;
    let ran = home.run(&["logs", "--json"]).await;
    let is_clean = ran.text().lines().all(|line| !line.contains("session_opened"));
    assert!(is_clean, "without a level, the output does not depend on readers: {ran:?}");
}

#[tokio::test]
async fn use8_a_server_is_restarted_disabled_and_enabled() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let fixture = fixture_server(&["--pid-file", pid_file.to_str().expect("text")]);
    let home = servers(json!({ "a": fixture, "bad": { "command": "no-such-program" } }));
    let (_gateway, client) = home.gateway("a_echo").await;
    let pid = || std::fs::read_to_string(&pid_file).expect("the server has written its pid");
    let first = pid();
    let check = async |arguments: &[&str], code: i32, text: &str| {
        let ran = home.run(arguments).await;
        assert!(ran.code == Some(code), "{arguments:?}: {ran:?}");
        let printed = if code == 0 { ran.text() } else { &ran.stderr };
        assert!(printed.contains(text), "{arguments:?}: {ran:?}");
    };
    check(&["restart", "a"], 0, "a is ready\n").await;
    assert_ne!(pid(), first, "another process");
    client.call("a_echo", json!({})).await;
    check(&["disable", "a"], 0, "a is disabled; this lasts until").await;
    assert!(!client.try_call("a_echo", json!({})).await["error"].is_null());
    check(&["enable", "a"], 0, "a is ready; this lasts until").await;
    client.await_tool("a_echo").await;
    client.call("a_echo", json!({})).await;
    check(&["restart", "bad"], 1, "goblin logs bad shows its output").await;
    check(&["restart", "c"], 2, "there is no server c").await;
}
