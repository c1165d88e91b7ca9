//! The command line: what an operator sees before anything runs.

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{GOBLIN, Gateway, PATIENCE, Scratch, fixture};

fn command(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = Command::new(GOBLIN);
    command.args(arguments).env_remove("GOBLIN_CONFIG").env_remove("XDG_CONFIG_HOME").env("HOME", scratch.path());
    command.current_dir(scratch.path()).stdin(Stdio::null()).kill_on_drop(true);
    command
}

async fn run(mut command: Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } =
        tokio::time::timeout(PATIENCE, command.output()).await.expect("it ends").expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// A server that leaves a trace when it is started.
fn traced(scratch: &Scratch) -> Value {
    json!({ "command": fixture(), "args": ["--start-log", scratch.path().join("started")] })
}

fn was_started(scratch: &Scratch) -> bool {
    scratch.path().join("started").exists()
}

#[tokio::test]
async fn config_with_problems_is_refused_whole_and_nothing_is_started() {
    let scratch = Scratch::new();
    let config = json!({
        "gateway": { "prot": 1 },
        "policies": { "defaultTimeout": "soon" },
        "mcpServers": {
            "good": traced(&scratch),
            "neither": {},
            "Fold It": traced(&scratch),
            "fold it": traced(&scratch),
        },
    });
    let path = scratch.write("bad.json", &serde_json::to_string_pretty(&config).expect("JSON"));
    let shown = path.display().to_string();
    for verb in ["serve", "stdio"] {
        let (code, stdout, stderr) = run(command(&scratch, &[verb, "--config", &shown])).await;
        assert_eq!(code, Some(2), "{stderr}");
        assert_eq!(stdout, "", "stdout may carry the protocol");
        assert!(stderr.contains("4 problems in ") && stderr.contains("nothing was started"), "{stderr}");
        for (path, words) in [
            ("gateway.prot", "did you mean \"port\"?"),
            ("policies.defaultTimeout", "must be a duration"),
            ("mcpServers.neither", ""),
            ("fold-it", "another id"),
        ] {
            let line = stderr.lines().find(|line| line.contains(path)).unwrap_or_else(|| panic!("{path}: {stderr}"));
            assert!(line.contains(words) && line.starts_with(&format!("{shown}:")), "{path}: {line}");
        }
    }
    assert!(!was_started(&scratch));
}

#[tokio::test]
async fn config_that_cannot_be_read_is_refused() {
    let scratch = Scratch::new();
    let broken = scratch.write("broken.json", "{ \"mcpServers\": { ").display().to_string();
    for path in ["/nowhere/goblin.json", &broken] {
        let (code, _, stderr) = run(command(&scratch, &["serve", "--port", "0", "--config", path])).await;
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(path), "{stderr}");
    }
}

#[tokio::test]
async fn config_help_and_version_are_told_on_stdout() {
    let scratch = Scratch::new();
    for (arguments, words) in [
        (&["--help"][..], "GOBLIN_CONFIG"),
        (&["help"], "serve"),
        (&["serve", "--help"], "--port"),
        (&["stdio", "--help"], "--config"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        let (code, stdout, stderr) = run(command(&scratch, arguments)).await;
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(stdout.contains(words), "{arguments:?}: {stdout}");
    }
    for arguments in [&[][..], &["dance"], &["serve", "--prot", "1"]] {
        let (code, stdout, stderr) = run(command(&scratch, arguments)).await;
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(stderr.contains("Usage"), "{arguments:?}: {stderr}");
    }
}

#[tokio::test]
async fn web1_an_address_that_others_can_reach_needs_a_token() {
    let scratch = Scratch::new();
    let local = scratch.write("local.json", &json!({ "mcpServers": { "a": traced(&scratch) } }).to_string());
    let open = json!({ "gateway": { "host": "0.0.0.0" }, "mcpServers": { "a": traced(&scratch) } });
    let open = scratch.write("open.json", &open.to_string());
    let (local, open) = (local.display().to_string(), open.display().to_string());
    for arguments in [
        &["serve", "--port", "0", "--host", "0.0.0.0", "--config", &local][..],
        &["serve", "--port", "0", "--config", &open],
    ] {
        let (code, _, stderr) = run(command(&scratch, arguments)).await;
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("token"), "{stderr}");
    }
    assert!(!was_started(&scratch));
}

#[tokio::test]
async fn web1_the_default_address_is_loopback_3000() {
    let gateway = goblin::config::Gateway::default();
    assert_eq!((gateway.host.as_str(), gateway.port), ("127.0.0.1", 3000));
}

#[tokio::test]
async fn web1_it_listens_on_the_configured_host() {
    let gateway = Gateway::start(json!({ "gateway": { "host": "127.0.0.2" }, "mcpServers": {} })).await;
    assert_eq!(gateway.address.ip().to_string(), "127.0.0.2");
    assert_ne!(gateway.address.port(), 0);
    assert_eq!(gateway.client().await.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn web1_it_listens_on_the_configured_port_and_says_so_when_it_cannot() {
    let scratch = Scratch::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port();
    let config = json!({ "gateway": { "port": port }, "mcpServers": { "a": traced(&scratch) } });
    let config = scratch.write("goblin.json", &config.to_string()).display().to_string();
    let (code, _, stderr) = run(command(&scratch, &["serve", "--config", &config])).await;
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&format!("127.0.0.1:{port}")), "{stderr}");
    assert!(!was_started(&scratch));
}

#[tokio::test]
async fn config_is_never_taken_from_the_working_directory() {
    let scratch = Scratch::new();
    scratch.write("goblin.json", &json!({ "mcpServers": { "a": traced(&scratch) } }).to_string());
    let (code, stdout, stderr) = run(command(&scratch, &["stdio"])).await;
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert!(stderr.contains("no configuration") && stderr.contains("GOBLIN_CONFIG"), "{stderr}");
    assert!(!was_started(&scratch));
}

#[tokio::test]
async fn config_is_taken_from_flag_then_variable_then_directory() {
    let scratch = Scratch::new();
    let directory = scratch.path().join("xdg/goblin");
    std::fs::create_dir_all(&directory).expect("a directory");
    std::fs::write(directory.join("goblin.json"), r#"{ "by_directory": 1 }"#).expect("room");
    let variable = scratch.write("variable.json", r#"{ "by_variable": 1 }"#);
    let flag = scratch.write("flag.json", r#"{ "by_flag": 1 }"#).display().to_string();
    let xdg = scratch.path().join("xdg");
    for (arguments, variables, expected) in [
        (&["stdio", "-c", &flag][..], &[("GOBLIN_CONFIG", &*variable), ("XDG_CONFIG_HOME", &*xdg)][..], "by_flag"),
        (&["stdio"], &[("GOBLIN_CONFIG", &*variable), ("XDG_CONFIG_HOME", &*xdg)], "by_variable"),
        (&["stdio"], &[("XDG_CONFIG_HOME", &*xdg)], "by_directory"),
    ] {
        let mut command = command(&scratch, arguments);
        command.envs(variables.iter().copied());
        // Which file it was is told by what is wrong with it.
        let (code, _, stderr) = run(command).await;
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

#[tokio::test]
async fn web1_a_signal_ends_the_gateway_and_its_servers() {
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let mut gateway =
        Gateway::with_servers(json!({ "a": { "command": fixture(), "args": ["--pid-file", pid_file] } })).await;
    gateway.client_seeing("a_echo").await;
    let pid = std::fs::read_to_string(scratch.path().join("pid")).expect("a pid");
    assert_eq!(gateway.terminate().await.code(), Some(0));
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the server has ended with it");
}
