//! No process is left behind, whichever process is killed and however stubborn the children are (P9, F25).
//!
//! The tests use real process trees with wrappers and daemons, and read `/proc`.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{Gateway, Scratch, fixture_server, goblin, servers_only, signal};
use crate::support::{await_call, await_exit, is_alive, next_pid_in, parent, path_text, pid_in, scripted_server};

/// A wrapper like `npx` around a server that ignores the end of its input and SIGTERM. The wrapper has another child.
struct Family {
    _scratch: Scratch,
    server_file: PathBuf,
    sibling_file: PathBuf,
    config: Value,
}

/// The process ids.
#[derive(Clone, Copy, Debug)]
struct Members {
    guard: u32,
    wrapper: u32,
    server: u32,
    sibling: u32,
}

impl Family {
    fn new() -> Family {
        let scratch = Scratch::new();
        let (server_file, sibling_file) = (scratch.path().join("server"), scratch.path().join("sibling"));
        let script = format!(r#"sleep 600 & echo $! > '{}'; "$@"; exit $?"#, sibling_file.display());
        let config =
            scripted_server(&script, &["--ignore-eof", "--ignore-term", "--pid-file", path_text(&server_file)]);
        Family { _scratch: scratch, server_file, sibling_file, config: json!({ "a": config }) }
    }

    async fn members(&self) -> Members {
        let server = pid_in(&self.server_file).await;
        self.members_around(server).await
    }

    async fn members_around(&self, server: u32) -> Members {
        let sibling = pid_in(&self.sibling_file).await;
        let wrapper = parent(server);
        let members = Members { guard: parent(wrapper), wrapper, server, sibling };
        assert!(members.all().into_iter().all(is_alive), "{members:?}");
        members
    }
}

impl Members {
    fn all(self) -> [u32; 4] {
        [self.guard, self.wrapper, self.server, self.sibling]
    }
}

async fn await_exits(pids: impl IntoIterator<Item = u32>) {
    for pid in pids {
        await_exit(pid).await;
    }
}

fn assert_all_ended(pids: &[u32]) {
    let alive: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
    assert!(alive.is_empty(), "{alive:?} of {pids:?}");
}

#[tokio::test]
async fn f25_no_stubborn_child_outlives_a_stopped_gateway() {
    let family = Family::new();
    let mut gateway = Gateway::with_servers(family.config.clone()).await;
    gateway.client_seeing("a_echo").await;
    let members = family.members().await;
    assert_eq!(parent(members.guard), gateway.child.id().expect("the process runs"));
    assert!(gateway.terminate().await.success());
    assert_all_ended(&members.all());
}

#[tokio::test]
async fn f25_no_stubborn_child_outlives_a_stopped_stdio_gateway() {
    let family = Family::new();
    let client = Client::stdio(json!({ "mcpServers": family.config.clone() })).connected("2025-06-18").await;
    client.await_tool("a_echo").await;
    let members = family.members().await;
    assert!(client.close().await.success());
    assert_all_ended(&members.all());
}

#[tokio::test]
async fn p9_no_process_outlives_a_killed_gateway() {
    let family = Family::new();
    let gateway = Gateway::with_servers(family.config.clone()).await;
    gateway.client_seeing("a_echo").await;
    let members = family.members().await;
    signal(gateway.child.id().expect("the process runs"), "KILL");
    await_exits(members.all()).await;
}

#[tokio::test]
async fn p9_no_process_outlives_a_killed_relative_and_the_backend_restarts() {
    for (index, name) in ["guard", "wrapper", "server"].into_iter().enumerate() {
        // The output of a failed test names the case.
        eprintln!("killed: {name}");
        let family = Family::new();
        let gateway = Gateway::with_servers(family.config.clone()).await;
        let client = gateway.client_seeing("a_echo").await;
        let members = family.members().await;
        signal(members.all()[index], "KILL");
        await_exits(members.all()).await;
        let server = next_pid_in(&family.server_file, members.server).await;
        await_call(&client, "a_echo").await;
        assert!(is_alive(server), "{name}");
    }
}

#[tokio::test]
async fn f25_a_gateway_that_stops_during_a_handshake_leaves_no_process() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let arguments = ["--hang-handshake", "--ignore-eof", "--ignore-term", "--pid-file", path_text(&file)];
    let mut gateway = Gateway::with_servers(json!({ "a": fixture_server(&arguments) })).await;
    let server = pid_in(&file).await;
    let guard = parent(server);
    assert!(gateway.terminate().await.success());
    assert!(!is_alive(server) && !is_alive(guard));
}

/// A server beside a daemon that its script started. The daemon has its own session, ignores SIGTERM and has a child.
struct Daemon {
    scratch: Scratch,
    daemon_file: PathBuf,
    server_file: PathBuf,
    config: Value,
}

impl Daemon {
    fn new() -> Daemon {
        let scratch = Scratch::new();
        let (daemon_file, server_file) = (scratch.path().join("daemon"), scratch.path().join("server"));
        let daemon = r#"trap "" TERM; sleep 600 & echo $! > "$0.child"; echo $$ > "$0"; wait"#;
        // The subshell ends at once, so the daemon has lost its parent while the server runs.
        let script = format!(r#"(setsid sh -c '{daemon}' '{}' &); "$@"; exit $?"#, daemon_file.display());
        let config = json!({ "a": scripted_server(&script, &["--pid-file", path_text(&server_file)]) });
        Daemon { scratch, daemon_file, server_file, config }
    }

    /// Returns the daemon and its child.
    async fn pids(&self) -> [u32; 2] {
        let pids = [pid_in(&self.daemon_file).await, pid_in(&self.daemon_file.with_extension("child")).await];
        assert!(pids.into_iter().all(is_alive), "{pids:?}");
        pids
    }

    async fn gateway(&self) -> Gateway {
        let config = servers_only(json!({ "mcpServers": self.config }));
        let path = self.scratch.write("goblin.json", &config.to_string());
        let mut command = goblin(self.scratch.path());
        command.args(["serve", "--port", "0", "--log-level", "debug", "--config"]).arg(path);
        Gateway::of(command).await
    }
}

#[tokio::test]
async fn p9_a_daemon_of_a_server_does_not_outlive_a_stopped_gateway() {
    let daemon = Daemon::new();
    let mut gateway = daemon.gateway().await;
    gateway.client_seeing("a_echo").await;
    let pids = daemon.pids().await;
    assert!(gateway.terminate().await.success());
    assert_all_ended(&pids);
}

#[tokio::test]
async fn p9_a_daemon_of_a_server_does_not_outlive_a_killed_gateway() {
    let daemon = Daemon::new();
    let gateway = daemon.gateway().await;
    gateway.client_seeing("a_echo").await;
    let pids = daemon.pids().await;
    signal(gateway.child.id().expect("the process runs"), "KILL");
    await_exits(pids).await;
}

#[tokio::test]
async fn p9_a_daemon_of_a_server_ends_when_the_server_crashes() {
    let daemon = Daemon::new();
    let gateway = daemon.gateway().await;
    let client = gateway.client_seeing("a_echo").await;
    let (pids, server) = (daemon.pids().await, pid_in(&daemon.server_file).await);
    signal(server, "KILL");
    await_exits(pids).await;
    next_pid_in(&daemon.server_file, server).await;
    await_call(&client, "a_echo").await;
}

#[tokio::test]
async fn p9_a_daemon_of_a_server_ends_when_the_server_is_removed() {
    let daemon = Daemon::new();
    let gateway = daemon.gateway().await;
    gateway.client_seeing("a_echo").await;
    let pids = daemon.pids().await;
    daemon.scratch.write("goblin.json", &servers_only(json!({ "mcpServers": {} })).to_string());
    signal(gateway.child.id().expect("the process runs"), "HUP");
    await_exits(pids).await;
}
