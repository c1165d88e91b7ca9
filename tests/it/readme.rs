//! The README as a new user follows it. Each command of its `sh` blocks is copied and run in order by a real shell.
//!
//! The test replaces some commands. `cargo run --release --` and `goblin` are the binary under test, and the port is a
//! free one. `npx` runs the packages that are installed for the tests. `claude` and `code` are scripts that record
//! their arguments, which are then compared with the running gateway. `cargo install` and `cargo xtask test` are
//! skipped.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::harness::{GOBLIN, Scratch, TIMEOUT, signal};
use crate::sdk::tool;

const WRITTEN_URL: &str = "http://127.0.0.1:3000/mcp";

const README: &str = include_str!("../../README.md");
const CONNECT: &str = include_str!("../../docs/connect.md");

/// Returns the fenced blocks of a page in one language, in order.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(fence) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if fence == language {
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

fn commands() -> Vec<String> {
    blocks(README, "sh")
        .iter()
        .flat_map(|block| block.lines())
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A user's machine: a home directory, a project, and the programs on the path.
struct Machine {
    scratch: Scratch,
    bin: PathBuf,
    project: PathBuf,
}

impl Machine {
    fn new() -> Machine {
        let scratch = Scratch::new();
        let (bin, project) = (scratch.path().join("bin"), scratch.path().join("project"));
        for directory in [&bin, &project, &project.join("notes"), &project.join(".cursor")] {
            std::fs::create_dir_all(directory).expect("a directory");
        }
        std::fs::write(project.join("hello.txt"), "hello\n").expect("room");
        let machine = Machine { bin, project, scratch };
        machine.program("goblin", &format!("exec '{GOBLIN}' \"$@\""));
        let cargo = format!(
            "case \"$*\" in\n\
             'run --release -- serve') exec '{GOBLIN}' serve --port 0 ;;\n\
             'install --path crates/goblin'|'xtask test') ;;\n\
             *) echo \"no such command: cargo $*\" >&2; exit 9 ;;\nesac"
        );
        machine.program("cargo", &cargo);
        let modules = tool("node_modules");
        let npx = format!(
            "[ \"$1\" = -y ] && shift\npackage=\"$1\"; shift\n\
             case \"$package\" in\n\
             @modelcontextprotocol/inspector) exec node '{0}/@modelcontextprotocol/inspector/clients/launcher/build/index.js' \"$@\" ;;\n\
             @modelcontextprotocol/server-everything@*) exec node '{0}/@modelcontextprotocol/server-everything/dist/index.js' \"$@\" ;;\n\
             *) echo \"no such package: $package\" >&2; exit 9 ;;\nesac",
            modules.display()
        );
        machine.program("npx", &npx);
        for client in ["claude", "code"] {
            let path = machine.recorded_arguments(client);
            machine.program(client, &format!("printf '%s\\n' \"$@\" >'{}'", path.display()));
        }
        machine
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.bin.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("room for a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("our own file");
    }

    /// Returns the file with the arguments of a recording script, one per line.
    fn recorded_arguments(&self, client: &str) -> PathBuf {
        self.scratch.path().join(format!("{client}.arguments"))
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let path = format!("{}:{}", self.bin.display(), std::env::var("PATH").unwrap_or_default());
        command.args(["-c", line]).current_dir(&self.project).env("PATH", path).env("HOME", self.scratch.path());
        for variable in ["GOBLIN_CONFIG", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        command
    }

    async fn run(&self, line: &str) -> String {
        let output =
            tokio::time::timeout(TIMEOUT, self.shell(line).output()).await.expect("the process ends").expect("sh runs");
        let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "`{line}` failed: {stdout}{stderr}");
        format!("{stdout}{stderr}")
    }

    /// Starts a command that serves. Returns its endpoint.
    async fn serve(&self, line: &str) -> (Child, String) {
        // The command replaces the shell, so that both end together.
        let mut child = self.shell(&format!("exec {line}")).stderr(Stdio::piped()).spawn().expect("sh runs");
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let found = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some((_, url)) = line.split_once("listening on ") {
                    return url.trim().to_owned();
                }
            }
            panic!("`{line}` did not listen")
        };
        let url = tokio::time::timeout(TIMEOUT, found).await.expect("the gateway listens");
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        (child, url)
    }
}

/// Asserts that an MCP gateway responds at this URL.
async fn assert_answers(url: &str) {
    let address = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/mcp")).expect("an endpoint");
    let answer = Client::new(address.parse().expect("an address")).initialize("2025-11-25").await;
    assert_eq!(answer["result"]["serverInfo"]["name"], "goblin", "{answer}");
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[tokio::test]
async fn every_command_of_the_readme_works_as_described() {
    let machine = Machine::new();
    // A configuration to import, like a new user would have.
    let cursor = r#"{ "mcpServers": { "hello": { "url": "http://127.0.0.1:9/mcp" } } }"#;
    std::fs::write(machine.project.join(".cursor/mcp.json"), cursor).expect("room");
    let configuration = machine.scratch.path().join(".config/goblin/goblin.json");
    let mut running: Option<(Child, String)> = None;
    let mut seen = 0;
    for command in commands() {
        seen += 1;
        let line = match &running {
            Some((_, url)) => command.replace(WRITTEN_URL, url),
            None => command.clone(),
        };
        match command.as_str() {
            "cargo run --release -- serve" => running = Some(machine.serve(&line).await),
            "cargo xtask test" | "cargo install --path crates/goblin" => drop(machine.run(&line).await),
            "goblin import" => {
                let output = machine.run(&line).await;
                assert!(output.contains("hello") && output.contains("127.0.0.1:9/mcp"), "{output}");
                assert!(!configuration.exists(), "nothing is written before a person agrees");
            }
            "goblin check --connect" => {
                let output = machine.run(&line).await;
                assert!(output.contains("everything") && output.contains("2025-11-25"), "{output}");
            }
            add if add.starts_with("goblin add ") => {
                machine.run(&line).await;
                let name = add.split(' ').nth(2).expect("a name");
                assert!(read(&configuration).contains(name), "{add}");
            }
            "goblin remove notes" => {
                machine.run(&line).await;
                let restored = read(&configuration);
                assert!(!restored.contains("notes") && restored.contains("everything"), "{restored}");
            }
            inspect if inspect.starts_with("npx ") || inspect.starts_with("goblin tools ") => {
                let output = machine.run(&line).await;
                assert!(output.contains("files_read"), "{output}");
            }
            client if client.starts_with("claude ") || client.starts_with("code ") => {
                machine.run(&line).await;
                let url = &running.as_ref().expect("a gateway runs by now").1;
                let name = client.split(' ').next().expect("a program");
                let arguments = read(&machine.recorded_arguments(name));
                assert!(arguments.contains(url.as_str()), "{client}: {arguments}");
                assert_answers(url).await;
            }
            other => panic!("the README has an untested command: {other}"),
        }
    }
    assert!(seen >= 10, "{seen} commands are not the README's");
    let (mut gateway, _) = running.expect("the first command serves");
    signal(gateway.id().expect("the process runs"), "INT");
    let status = tokio::time::timeout(TIMEOUT, gateway.wait())
        .await
        .expect("the process ends")
        .expect("the exit status is known");
    assert!(status.success(), "Ctrl-C ends the gateway: {status}");
}

#[test]
fn the_snippets_for_clients_are_json_and_name_the_endpoint() {
    for page in [README, CONNECT] {
        let snippets = blocks(page, "json");
        assert!(snippets.len() >= 5, "{snippets:?}");
        for snippet in snippets {
            let value: Value = serde_json::from_str(&snippet).unwrap_or_else(|error| panic!("{error}: {snippet}"));
            let keys = ["/mcpServers", "/servers", "/context_servers", "/mcp/servers"];
            let servers = keys.iter().find_map(|key| value.pointer(key)).expect("servers");
            let goblin = &servers["goblin"];
            let is_http = goblin["url"] == WRITTEN_URL || goblin["httpUrl"] == WRITTEN_URL;
            let is_stdio = goblin["command"] == "goblin" && goblin["args"][0] == "stdio";
            assert!(is_http || is_stdio, "{snippet}");
        }
    }
}
