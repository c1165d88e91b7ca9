//! The command line: the output before anything runs.
//!
//! Configuration problems are reported together, and no server starts if there is one. Help and version go to stdout.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{Gateway, Scratch, fixture, goblin, output};

fn command(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = goblin(scratch.path());
    command.args(arguments).env_remove("XDG_CONFIG_HOME").env("HOME", scratch.path());
    command.current_dir(scratch.path()).stdin(Stdio::null());
    command
}

/// Returns a server that records its start.
fn traced(scratch: &Scratch) -> Value {
    json!({ "command": fixture(), "args": ["--start-log", scratch.path().join("started")] })
}

fn was_started(scratch: &Scratch) -> bool {
    scratch.path().join("started").exists()
}

#[tokio::test]
async fn config_with_problems_is_rejected_and_no_server_starts() {
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
        let (code, stdout, stderr) = output(command(&scratch, &[verb, "--config", &shown])).await;
        assert_eq!(code, Some(2), "{stderr}");
        assert_eq!(stdout, "", "stdout may carry the protocol");
        assert!(stderr.contains("4 problems in ") && stderr.contains("nothing was started"), "{stderr}");
        for (path, fragment) in [
            ("gateway.prot", "did you mean \"port\"?"),
            ("policies.defaultTimeout", "must be a duration"),
            ("mcpServers.neither", ""),
            ("fold-it", "another id"),
        ] {
            let line = stderr.lines().find(|line| line.contains(path)).unwrap_or_else(|| panic!("{path}: {stderr}"));
            assert!(line.contains(fragment) && line.starts_with(&format!("{shown}:")), "{path}: {line}");
        }
    }
    assert!(!was_started(&scratch));
}

#[tokio::test]
async fn config_that_cannot_be_read_is_rejected() {
    let scratch = Scratch::new();
    let broken = scratch.write("broken.json", "{ \"mcpServers\": { ").display().to_string();
    for path in ["/nowhere/goblin.json", &broken] {
        let (code, _, stderr) = output(command(&scratch, &["serve", "--port", "0", "--config", path])).await;
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(path), "{stderr}");
    }
}

#[tokio::test]
async fn help_and_version_are_printed_to_stdout_and_usage_errors_to_stderr() {
    let scratch = Scratch::new();
    for (arguments, fragment) in [
        (&["--help"][..], "GOBLIN_CONFIG"),
        (&["help"], "serve"),
        (&["serve", "--help"], "--port"),
        (&["stdio", "--help"], "--config"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        let (code, stdout, stderr) = output(command(&scratch, arguments)).await;
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(stdout.contains(fragment), "{arguments:?}: {stdout}");
    }
    for arguments in [&[][..], &["dance"], &["serve", "--prot", "1"]] {
        let (code, stdout, stderr) = output(command(&scratch, arguments)).await;
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
        let (code, _, stderr) = output(command(&scratch, arguments)).await;
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("token"), "{stderr}");
    }
    assert!(!was_started(&scratch));
}

#[tokio::test]
async fn web1_the_default_address_is_loopback_3000() {
    let gateway = goblin_config::Gateway::default();
    assert_eq!((gateway.host.as_str(), gateway.port), ("127.0.0.1", 3000));
}

#[tokio::test]
async fn web1_the_gateway_listens_on_the_configured_host() {
    let gateway = Gateway::start(json!({ "gateway": { "host": "127.0.0.2" }, "mcpServers": {} })).await;
    assert_eq!(gateway.address.ip().to_string(), "127.0.0.2");
    assert_ne!(gateway.address.port(), 0);
    assert_eq!(gateway.client().await.request("ping", json!({})).await["result"], json!({}));
}

#[tokio::test]
async fn web1_a_taken_port_is_reported_with_the_process_that_listens_there() {
    let scratch = Scratch::new();
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = occupied.local_addr().expect("an address").port();
    let config = json!({ "gateway": { "port": port }, "mcpServers": { "a": traced(&scratch) } });
    let config = scratch.write("goblin.json", &config.to_string()).display().to_string();
    let (code, _, stderr) = output(command(&scratch, &["serve", "--config", &config])).await;
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains(&format!("127.0.0.1:{port}")), "{stderr}");
    if cfg!(target_os = "linux") {
        assert!(stderr.contains(&format!("(pid {}) listens there", std::process::id())), "{stderr}");
    }
    assert!(stderr.contains(&format!("goblin serve --config {config} --port ")), "{stderr}");
    assert!(!was_started(&scratch));
}

#[tokio::test]
async fn web1_a_port_of_another_gateway_is_reported_with_its_url_and_pid() {
    let scratch = Scratch::new();
    let config = scratch.write("goblin.json", &json!({ "mcpServers": {} }).to_string()).display().to_string();
    let first = Gateway::of(command(&scratch, &["serve", "--port", "0", "--config", &config])).await;
    let port = first.address.port().to_string();
    let (code, _, stderr) = output(command(&scratch, &["serve", "--config", &config, "--port", &port])).await;
    assert_eq!(code, Some(1), "{stderr}");
    let pid = first.child.id().expect("the process runs");
    assert!(stderr.contains(&first.url()) && stderr.contains(&format!("(pid {pid})")), "{stderr}");
}

#[tokio::test]
async fn web1_an_address_of_another_machine_is_reported() {
    let scratch = Scratch::new();
    let config = json!({ "gateway": { "token": "s3cret-token-0123" }, "mcpServers": {} });
    let config = scratch.write("goblin.json", &config.to_string()).display().to_string();
    let (code, _, stderr) = output(command(&scratch, &["serve", "--config", &config, "--host", "192.0.2.1"])).await;
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("this machine does not have the address 192.0.2.1"), "{stderr}");
}

#[tokio::test]
async fn a_mistyped_command_or_flag_gets_the_nearest_one_as_a_suggestion() {
    let scratch = Scratch::new();
    for (arguments, nearest) in [
        (&["serv"][..], "serve"),
        (&["chekc"], "check"),
        (&["serve", "--prot", "1"], "--port"),
        (&["stdio", "--standalon"], "--standalone"),
        (&["check", "--conect"], "--connect"),
    ] {
        let (code, _, stderr) = output(command(&scratch, arguments)).await;
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("similar") && stderr.contains(&format!("'{nearest}'")), "{arguments:?}: {stderr}");
    }
}

/// Returns the commands in the output of `--help`.
async fn commands(scratch: &Scratch) -> Vec<String> {
    let (_, help, _) = output(command(scratch, &["-h"])).await;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<_> = listed.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    assert!(commands.contains(&"serve".to_owned()) && commands.contains(&"man".to_owned()), "{help}");
    commands
}

#[tokio::test]
async fn completions_and_manual_pages_know_every_command() {
    let scratch = Scratch::new();
    let commands = commands(&scratch).await;
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, stderr) = output(command(&scratch, &["completions", shell])).await;
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{shell}");
        // The script calls the program like this to complete a first word.
        let registration = format!("GOBLIN_COMPLETE={shell}");
        assert!(script.replace('"', "").contains(&registration), "{shell}: {script}");
        let mut completion = command(&scratch, &["--", "goblin", ""]);
        completion.env("GOBLIN_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "1").env("_CLAP_IFS", "\n");
        let (code, answer, stderr) = output(completion).await;
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{shell}");
        for command in &commands {
            assert!(answer.lines().any(|line| line.starts_with(command.as_str())), "{shell} does not know {command}");
        }
    }
    let (code, page, _) = output(command(&scratch, &["man"])).await;
    assert!(code == Some(0) && page.contains(".TH goblin 1") && page.contains("GOBLIN_CONFIG"), "{page}");
    let (code, _, stderr) = output(command(&scratch, &["man", "--out", "pages/man1"])).await;
    assert_eq!(code, Some(0), "{stderr}");
    for command in commands.iter().filter(|command| *command != "help") {
        let page = scratch.path().join(format!("pages/man1/goblin-{command}.1"));
        assert!(std::fs::read_to_string(&page).is_ok_and(|page| page.contains(".SH")), "{}", page.display());
    }
}

#[tokio::test]
async fn config_is_never_taken_from_the_working_directory() {
    let scratch = Scratch::new();
    let project = scratch.path().join("project");
    std::fs::create_dir(&project).expect("a directory");
    let text = json!({ "mcpServers": { "a": traced(&scratch) } }).to_string();
    std::fs::write(project.join("goblin.json"), text).expect("room");
    let mut command = command(&scratch, &["stdio"]);
    command.current_dir(&project);
    let (code, stdout, stderr) = output(command).await;
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    let project = project.canonicalize().expect("a path");
    assert!(stderr.contains(&format!("running its own gateway for {}:", project.display())), "{stderr}");
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
        // The problem in the output identifies the file.
        let (code, _, stderr) = output(command).await;
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
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the server has ended with the command");
}
