//! The first start by a new user, without any configuration.
//!
//! The gateway serves the working directory, but never a whole disk or home directory. It prints instructions only to a
//! terminal.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;

use crate::harness::{Gateway, Scratch, TIMEOUT, eventually, fixture_server, goblin, output};
use crate::terminal::Terminal;

/// Returns a command without any configuration, in a fresh project directory.
fn new_user(scratch: &Scratch, arguments: &[&str]) -> Command {
    let project = scratch.path().join("project");
    std::fs::create_dir_all(&project).expect("a directory");
    let mut command = goblin(scratch.path());
    command.args(arguments).env("HOME", scratch.path()).env_remove("XDG_CONFIG_HOME").current_dir(project);
    command.stdin(Stdio::null());
    command
}

#[tokio::test]
async fn without_a_configuration_the_working_directory_is_served() {
    let scratch = Scratch::new();
    let command = new_user(&scratch, &["serve", "--port", "0"]);
    std::fs::write(scratch.path().join("project/hello.txt"), "hello").expect("room");
    let gateway = Gateway::of(command).await;
    let client = gateway.client().await;
    let listed = || async {
        let resources = client.list("resources/list", "resources").await;
        resources
            .iter()
            .any(|resource| resource["uri"].as_str().is_some_and(|uri| uri.ends_with("/hello.txt")))
            .then_some(())
    };
    eventually("its files are listed", listed).await;
    // The operators' token is in the same directory.
    let mut files = std::fs::read_dir(scratch.path().join("goblin")).expect("records").flatten();
    let record = files.find(|file| file.path().extension().is_some_and(|it| it == "json")).expect("a record");
    let record: Value =
        serde_json::from_slice(&std::fs::read(record.path()).expect("the test owns the file")).expect("JSON");
    let project = scratch.path().join("project").canonicalize().expect("a path");
    assert_eq!(record["directory"], project.to_str().expect("text"));
    assert!(record["config"].is_null(), "{record}");
}

#[tokio::test]
async fn a_whole_disk_or_home_is_not_served() {
    let scratch = Scratch::new();
    let home = scratch.path().to_owned();
    for (directory, fragment) in [("/".into(), "the whole disk"), (home, "your whole home directory")] {
        for verb in [&["serve", "--port", "0"][..], &["stdio"], &["check"]] {
            let mut command = new_user(&scratch, verb);
            command.current_dir(&directory);
            let (code, stdout, stderr) = output(command).await;
            assert_eq!(code, Some(2), "{verb:?}: {stderr}");
            let output = if verb == ["check"] { stdout } else { stderr };
            for fragment in [fragment, "GOBLIN_CONFIG", "goblin import"] {
                assert!(output.contains(fragment), "{verb:?}: {output}");
            }
        }
    }
}

#[tokio::test]
async fn a_terminal_shows_the_offered_entries_and_how_to_connect() {
    let scratch = Scratch::new();
    let servers = json!({ "a": fixture_server(&[]), "gone": { "command": "/nowhere/server" } });
    let config = json!({ "gateway": { "port": 0 }, "mcpServers": servers });
    let config = scratch.write("goblin.json", &config.to_string()).display().to_string();
    let mut command = new_user(&scratch, &["serve", "--config", &config]);
    let terminal = Terminal::of(&mut command);
    let mut child = command.spawn().expect("goblin starts");
    let shown = terminal.await_text("Ctrl-C").await;
    for fragment in [
        "goblin.json",
        "http://127.0.0.1:",
        "2 prompts, 9 resources, 3 templates",
        "not found",
        "claude mcp add --transport http goblin http://127.0.0.1:",
        "code --add-mcp '{\"name\":\"goblin\",\"type\":\"http\",",
        ".cursor/mcp.json",
        "@modelcontextprotocol/inspector",
    ] {
        assert!(shown.contains(fragment), "{fragment}: {shown}");
    }
    assert!(!shown.contains("INFO"), "the log hides the message: {shown}");
    child.kill().await.expect("the process can be killed");
}

#[tokio::test]
async fn a_configured_log_level_applies_below_the_banner_too() {
    let scratch = Scratch::new();
    let config = json!({ "gateway": { "port": 0 }, "log": { "level": "info" }, "mcpServers": {} });
    let config = scratch.write("goblin.json", &config.to_string()).display().to_string();
    let mut command = new_user(&scratch, &["serve", "--config", &config]);
    let terminal = Terminal::of(&mut command);
    let mut child = command.spawn().expect("goblin starts");
    terminal.await_text("listening on").await;
    child.kill().await.expect("the process can be killed");
}

#[tokio::test]
async fn the_banner_hides_the_token_and_quiet_hides_the_banner() {
    let scratch = Scratch::new();
    let config = json!({ "gateway": { "port": 0, "token": "s3cret-token-0123" }, "mcpServers": {} });
    let config = scratch.write("goblin.json", &config.to_string()).display().to_string();
    let mut command = new_user(&scratch, &["serve", "--config", &config, "--log-level", "debug"]);
    let terminal = Terminal::of(&mut command);
    let mut child = command.spawn().expect("goblin starts");
    let shown = terminal.await_text("Ctrl-C").await;
    assert!(shown.contains("Authorization: Bearer $TOKEN") && shown.contains("gateway.token"), "{shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
    child.kill().await.expect("the process can be killed");

    let mut command = new_user(&scratch, &["serve", "--config", &config, "--quiet"]);
    let terminal = Terminal::of(&mut command);
    let mut child = command.spawn().expect("goblin starts");
    let shown = terminal.await_text("catalog published").await;
    assert!(!shown.contains("claude"), "{shown}");
    child.kill().await.expect("the process can be killed");
}

#[tokio::test]
async fn a_piped_stdout_receives_no_output() {
    let scratch = Scratch::new();
    let mut command = new_user(&scratch, &["serve", "--port", "0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("goblin starts");
    let pid = child.id().expect("the process runs");
    let record = || async { std::fs::read_dir(scratch.path().join("goblin")).ok()?.next().map(|_| ()) };
    eventually("the gateway listens", record).await;
    let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(child.stderr.take().expect("piped")));
    while let Ok(Some(line)) = lines.next_line().await {
        if line.contains("listening on") {
            break;
        }
    }
    crate::harness::signal(pid, "TERM");
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let ended = tokio::time::timeout(TIMEOUT, child.wait_with_output())
        .await
        .expect("the process ends")
        .expect("the command ran");
    assert_eq!(String::from_utf8(ended.stdout).expect("text"), "");
    assert_eq!(ended.status.code(), Some(0));
}
