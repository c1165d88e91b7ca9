//! Claude Code, Gemini CLI and opencode against a gateway, over HTTP and stdio.
//!
//! Each program reads the documented configuration and reports which servers it reached. It runs in an empty home
//! directory, without an account. Two of its servers do not exist, so a report that is always good fails the tests.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::process::Command;

use crate::harness::{GOBLIN, Gateway, ROOT, Scratch, fixture_server, output};
use crate::sdk::tool;
use crate::support::path_text;

/// The timeout of a connection in Claude Code and Gemini CLI. The default of Gemini CLI, 5 s, is short for a busy
/// machine. opencode always waits for 30 s.
const CLIENT_TIMEOUT_MS: u64 = 60_000;

/// A gateway, and the home directory of a user with one client.
struct User {
    home: Scratch,
    gateway: Gateway,
    /// Reserves a port where nothing listens.
    closed: TcpSocket,
}

impl User {
    async fn new() -> User {
        let gateway = Gateway::with_servers(json!({ "server1": fixture_server(&[]) })).await;
        let home = Scratch::new();
        let config = json!({ "mcpServers": { "server1": fixture_server(&[]) } });
        home.write("goblin.json", &config.to_string());
        std::fs::create_dir(home.path().join("project")).expect("a directory");
        let closed = TcpSocket::new_v4().expect("a socket");
        closed.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
        User { home, gateway, closed }
    }

    /// Returns a URL where no gateway listens.
    fn closed_url(&self) -> String {
        format!("http://{}/mcp", self.closed.local_addr().expect("an address"))
    }

    /// Returns the arguments of a `goblin stdio` with this configuration file.
    fn stdio(&self, config: &str) -> [String; 3] {
        ["stdio".to_string(), "--config".to_string(), path_text(&self.home.path().join(config)).to_string()]
    }

    /// Returns a stdio entry in the format that most clients share.
    fn stdio_entry(&self, config: &str) -> Value {
        json!({ "command": GOBLIN, "args": self.stdio(config), "timeout": CLIENT_TIMEOUT_MS })
    }

    /// Runs a client in the project directory. Returns everything that it prints.
    async fn run(&self, program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let home = self.home.path();
        let mut command = Command::new(program);
        command.args(arguments).current_dir(home.join("project")).stdin(Stdio::null()).kill_on_drop(true);
        // The account and the settings of the developer must not matter.
        command.env_clear().env("PATH", std::env::var_os("PATH").expect("a path"));
        command.env("HOME", home).env("TMPDIR", home).env("LANG", "C.UTF-8").envs(variables.iter().copied());
        let (code, stdout, stderr) = output(command).await;
        assert_eq!(code, Some(0), "{arguments:?}: {stdout}{stderr}");
        stdout + &stderr
    }
}

/// Checks the report of a client. Each server has one line with its name, and with one of these marks.
fn check_report(report: &str, connected: &str, failed: &str) {
    let servers = [("goblin", connected), ("goblin-stdio", connected), ("absent", failed), ("broken", failed)];
    for (name, mark) in servers {
        let names_it = |line: &&str| line.split_whitespace().any(|word| word.trim_end_matches(':') == name);
        let lines: Vec<&str> = report.lines().filter(names_it).collect();
        assert!(matches!(lines[..], [line] if line.contains(mark)), "{name} without {mark:?}: {report}");
    }
}

/// Returns a file of the installed clients.
fn installed(path: &str) -> PathBuf {
    tool(&format!("ai-clients/node_modules/{path}"))
}

fn claude_code() -> PathBuf {
    let system = if cfg!(target_os = "macos") { "darwin" } else { "linux" };
    let processor = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    installed(&format!("@anthropic-ai/claude-code-{system}-{processor}/claude"))
}

#[tokio::test]
async fn http3_claude_code_connects_over_http_and_stdio() {
    let user = User::new().await;
    let servers = json!({
        "goblin-stdio": user.stdio_entry("goblin.json"),
        "absent": { "type": "http", "url": user.closed_url() },
        "broken": user.stdio_entry("missing.json"),
    });
    user.home.write(".claude.json", &json!({ "mcpServers": servers }).to_string());
    let timeout = CLIENT_TIMEOUT_MS.to_string();
    let variables = [
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
        ("DISABLE_AUTOUPDATER", "1"),
        ("MCP_TIMEOUT", timeout.as_str()),
    ];
    let program = claude_code();
    let add = ["mcp", "add", "--transport", "http", "goblin", &user.gateway.url()];
    user.run(&program, &add, &variables).await;
    let report = user.run(&program, &["mcp", "list"], &variables).await;
    check_report(&report, "✔ Connected", "✘ Failed to connect");
}

#[tokio::test]
async fn http3_gemini_cli_connects_over_http_and_stdio() {
    let user = User::new().await;
    let settings = json!({
        "general": { "enableAutoUpdate": false, "enableAutoUpdateNotification": false },
        "privacy": { "usageStatisticsEnabled": false },
        "mcpServers": {
            "goblin": { "httpUrl": user.gateway.url(), "timeout": CLIENT_TIMEOUT_MS },
            "goblin-stdio": user.stdio_entry("goblin.json"),
            "absent": { "httpUrl": user.closed_url() },
            "broken": user.stdio_entry("missing.json"),
        },
    });
    user.home.write(".gemini/settings.json", &settings.to_string());
    let program = installed("@google/gemini-cli/bundle/gemini.js");
    // A directory without trust disables all servers.
    let variables = [("GEMINI_CLI_TRUST_WORKSPACE", "true")];
    let report = user.run(Path::new("node"), &[path_text(&program), "mcp", "list"], &variables).await;
    check_report(&report, " - Connected", " - Disconnected");
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[tokio::test]
async fn http3_opencode_connects_over_http_and_stdio() {
    let user = User::new().await;
    let stdio = |config: &str| {
        let command = [vec![GOBLIN.to_string()], user.stdio(config).to_vec()].concat();
        json!({ "type": "local", "command": command })
    };
    let servers = json!({
        "goblin": { "type": "remote", "url": user.gateway.url() },
        "goblin-stdio": stdio("goblin.json"),
        "absent": { "type": "remote", "url": user.closed_url() },
        "broken": stdio("missing.json"),
    });
    let settings = json!({ "autoupdate": false, "mcp": { "servers": servers } });
    user.home.write(".config/opencode/opencode.json", &settings.to_string());
    let variables = [
        ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
        ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1"),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
    ];
    let program = installed("opencode-linux-x64-baseline/bin/opencode");
    let report = user.run(&program, &["mcp", "list"], &variables).await;
    check_report(&report, "connected", "failed");
}

#[test]
fn the_documented_versions_are_those_of_the_tests() {
    let read = |path: &str| std::fs::read_to_string(Path::new(ROOT).join(path)).expect("the file exists");
    let manifest: Value = serde_json::from_str(&read("tests/ai-clients/package.json")).expect("JSON");
    let page = read("docs/connect.md");
    let version = |list: &str, package: &str| manifest[list][package].as_str().expect("a version").to_string();
    for (client, version) in [
        ("Claude Code", version("optionalDependencies", "@anthropic-ai/claude-code-linux-x64")),
        ("Gemini CLI", version("dependencies", "@google/gemini-cli")),
        ("opencode", version("optionalDependencies", "opencode-linux-x64-baseline")),
    ] {
        let row = format!("| {client} | {version} |");
        assert!(page.contains(&row), "docs/connect.md has no row {row:?}");
    }
}
