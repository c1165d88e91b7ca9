//! Nothing is left behind: whoever is killed, and however stubborn the children are (P9, F25).

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{Gateway, Scratch, StdioClient, fixture_server, signal};
use crate::support::{await_call, is_alive, is_gone, next_pid_in, parent, path_text, pid_in, scripted_server};

/// A wrapper, as `npx` is one, around a server that hears neither the end of its input nor SIGTERM, beside another child
/// of the wrapper.
struct Family {
    _scratch: Scratch,
    server_file: PathBuf,
    sibling_file: PathBuf,
    config: Value,
}

/// Process ids.
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

    async fn are_gone(self) {
        for pid in self.all() {
            is_gone(pid).await;
        }
    }
}

#[tokio::test]
async fn f25_stubborn_children_are_gone_when_the_gateway_has_stopped() {
    let family = Family::new();
    let mut gateway = Gateway::with_servers(family.config.clone()).await;
    gateway.client_seeing("a_echo").await;
    let members = family.members().await;
    assert_eq!(parent(members.guard), gateway.child.id().expect("it runs"));
    assert!(gateway.terminate().await.success());
    let alive: Vec<_> = members.all().into_iter().filter(|pid| is_alive(*pid)).collect();
    assert!(alive.is_empty(), "{alive:?} of {members:?}");
}

#[tokio::test]
async fn f25_stubborn_children_are_gone_when_the_stdio_gateway_has_stopped() {
    let family = Family::new();
    let mut client = StdioClient::initialized(json!({ "mcpServers": family.config.clone() }), "2025-06-18").await;
    client.await_tool("a_echo").await;
    let members = family.members().await;
    assert!(client.close().await.success());
    let alive: Vec<_> = members.all().into_iter().filter(|pid| is_alive(*pid)).collect();
    assert!(alive.is_empty(), "{alive:?} of {members:?}");
}

#[tokio::test]
async fn p9_nothing_outlives_a_gateway_that_was_killed() {
    let family = Family::new();
    let gateway = Gateway::with_servers(family.config.clone()).await;
    gateway.client_seeing("a_echo").await;
    let members = family.members().await;
    signal(gateway.child.id().expect("it runs"), "KILL");
    members.are_gone().await;
}

#[tokio::test]
async fn p9_nothing_outlives_a_guard_that_was_killed_and_the_backend_comes_back() {
    let family = Family::new();
    let gateway = Gateway::with_servers(family.config.clone()).await;
    let client = gateway.client_seeing("a_echo").await;
    let members = family.members().await;
    signal(members.guard, "KILL");
    members.are_gone().await;
    next_pid_in(&family.server_file, members.server).await;
    await_call(&client, "a_echo").await;
}

#[tokio::test]
async fn p9_nothing_outlives_a_server_that_was_killed_and_it_comes_back() {
    let family = Family::new();
    let gateway = Gateway::with_servers(family.config.clone()).await;
    let client = gateway.client_seeing("a_echo").await;
    let members = family.members().await;
    signal(members.server, "KILL");
    members.are_gone().await;
    let server = next_pid_in(&family.server_file, members.server).await;
    await_call(&client, "a_echo").await;
    assert!(is_alive(server));
}

#[tokio::test]
async fn p9_nothing_outlives_a_wrapper_that_was_killed() {
    let family = Family::new();
    let gateway = Gateway::with_servers(family.config.clone()).await;
    let client = gateway.client_seeing("a_echo").await;
    let members = family.members().await;
    signal(members.wrapper, "KILL");
    members.are_gone().await;
    await_call(&client, "a_echo").await;
}

#[tokio::test]
async fn f25_a_gateway_can_be_stopped_in_the_middle_of_a_handshake() {
    let scratch = Scratch::new();
    let file = scratch.path().join("pid");
    let arguments = ["--hang-handshake", "--ignore-eof", "--ignore-term", "--pid-file", path_text(&file)];
    let mut gateway = Gateway::with_servers(json!({ "a": fixture_server(&arguments) })).await;
    let server = pid_in(&file).await;
    let guard = parent(server);
    assert!(gateway.terminate().await.success());
    assert!(!is_alive(server) && !is_alive(guard));
}
