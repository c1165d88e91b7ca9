//! Third-party programs that `cargo xtask tools` installs: clients of the official SDKs, which play a script and print
//! a report, and reference servers. `tests/clients/README.md` describes scripts and reports.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::harness::{GOBLIN, Scratch, TIMEOUT, eventually, servers_only};

/// Returns a file or directory below `target/tools`.
pub fn tool(path: &str) -> PathBuf {
    let path = Path::new(crate::harness::ROOT).join("target/tools").join(path);
    assert!(path.exists(), "{} is missing: run `cargo xtask test`, which installs it", path.display());
    path
}

/// Returns the program of a reference server, for node.
pub fn reference_program(name: &str) -> String {
    tool(&format!("node_modules/@modelcontextprotocol/{name}/dist/index.js")).display().to_string()
}

/// Returns a stdio server entry of the configuration: a reference server with `arguments`.
pub fn reference_server(name: &str, arguments: &[&str]) -> Value {
    let program = reference_program(name);
    let mut args = vec![program.as_str()];
    args.extend(arguments);
    json!({ "command": "node", "args": args })
}

/// The clients, one for each major version of an SDK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sdk {
    Python1,
    Python2,
    TypeScript1,
    TypeScript2,
}

impl Sdk {
    pub const ALL: [Sdk; 4] = [Sdk::Python1, Sdk::Python2, Sdk::TypeScript1, Sdk::TypeScript2];

    /// Returns the command of the client, without arguments.
    pub fn command(self) -> Command {
        let clients = Path::new(crate::harness::ROOT).join("tests/clients");
        let (program, script) = match self {
            Sdk::Python1 => (tool("py1/bin/python"), "client.py"),
            Sdk::Python2 => (tool("py2/bin/python"), "client.py"),
            Sdk::TypeScript1 => (PathBuf::from("node"), "client-v1.mjs"),
            Sdk::TypeScript2 => (PathBuf::from("node"), "client-v2.mjs"),
        };
        // The check here gives a clear message if the packages are missing.
        tool("node_modules");
        let mut command = Command::new(program);
        command.arg(clients.join(script));
        command
    }

    /// Starts to play `steps` against a server at `url`.
    pub fn begin_over_http(self, url: &str, steps: &[Value]) -> Playing {
        self.begin(&[], Over::Http(url), steps)
    }

    /// Starts to play `steps` over HTTP+SSE. `url` is that of the stream.
    pub fn begin_over_sse(self, url: &str, steps: &[Value]) -> Playing {
        self.begin(&[], Over::Sse(url), steps)
    }

    /// Starts to play `steps` against a new `goblin stdio`.
    pub fn begin_over_stdio(self, config: &Value, steps: &[Value]) -> Playing {
        self.begin(&[], Over::Goblin(config), steps)
    }

    /// Starts a client that answers every server request with this mark.
    pub fn begin_answering(self, mark: &str, over: Over<'_>, steps: &[Value]) -> Playing {
        self.begin(&["--answer", mark], over, steps)
    }

    /// Starts such a client in the modern era.
    pub fn begin_modern(self, mark: &str, over: Over<'_>, steps: &[Value]) -> Playing {
        self.begin(&["--era", "modern", "--answer", mark], over, steps)
    }

    fn begin(self, switches: &[&str], over: Over<'_>, steps: &[Value]) -> Playing {
        let scratch = Scratch::new();
        let script = scratch.write("script.json", &json!(steps).to_string());
        let mut command = self.command();
        // `goblin stdio` inherits the variable and must not use the cache of the user.
        command.args(switches).env("XDG_CACHE_HOME", scratch.path().join("cache"));
        match over {
            Over::Http(url) => command.args(["http", url]).arg(script),
            Over::Sse(url) => command.args(["sse", url]).arg(script),
            Over::Goblin(config) => {
                let config = scratch.write("goblin.json", &servers_only(config.clone()).to_string());
                command.arg("stdio").arg(script).args(["--", GOBLIN, "stdio", "--config"]).arg(config)
            }
            Over::Program(program) => command.arg("stdio").arg(script).arg("--").args(program),
            Over::Command(program) => command.arg("stdio").arg(script).arg("--").args(program),
        };
        Playing::start(self, command, scratch)
    }
}

/// The server that a client connects to.
#[derive(Clone, Copy, Debug)]
pub enum Over<'a> {
    Http(&'a str),
    /// HTTP+SSE. The URL is that of the stream.
    Sse(&'a str),
    /// A new `goblin stdio` with this configuration.
    Goblin(&'a Value),
    /// Any program that implements the protocol.
    Program(&'a [&'a str]),
    Command(&'a [String]),
}

/// A running client.
pub struct Playing {
    sdk: Sdk,
    child: Child,
    scratch: Scratch,
}

impl Playing {
    fn start(sdk: Sdk, mut command: Command, scratch: Scratch) -> Playing {
        let stderr = std::fs::File::create(scratch.path().join("stderr")).expect("a scratch file");
        let report = std::fs::File::create(scratch.path().join("stdout")).expect("a scratch file");
        command.env_remove("GOBLIN_CONFIG").stdin(Stdio::null()).stdout(report).stderr(stderr).kill_on_drop(true);
        let child = command.spawn().unwrap_or_else(|error| panic!("{sdk:?} does not start: {error}"));
        Playing { sdk, child, scratch }
    }

    fn written(&self, name: &str) -> String {
        std::fs::read(self.scratch.path().join(name))
            .map_or(String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Waits until this step has been played.
    pub async fn step_is_done(&self, index: usize) {
        let stderr = format!("client: step {index} ");
        eventually(&format!("{:?} has played step {index}", self.sdk), || async {
            self.written("stderr").contains(&stderr).then_some(())
        })
        .await;
    }

    /// Waits for the end and returns the client's report.
    pub async fn report(mut self) -> Report {
        let mut stderr = String::new();
        let status = loop {
            if let Ok(status) = tokio::time::timeout(TIMEOUT, self.child.wait()).await {
                break status.expect("the exit status is known");
            }
            // A script is long, so the timeout applies to each step.
            let so_far = self.written("stderr");
            assert!(so_far.len() > stderr.len(), "{:?} does not end: {so_far}", self.sdk);
            stderr = so_far;
        };
        assert!(status.success(), "{:?}: {status}: {}", self.sdk, self.written("stderr"));
        let text = self.written("stdout");
        let report = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{:?}: {error}: {text}", self.sdk));
        Report { sdk: self.sdk, report, stderr: self.written("stderr") }
    }
}

/// The report of a client.
pub struct Report {
    pub sdk: Sdk,
    report: Value,
    stderr: String,
}

impl Report {
    pub fn whole(&self) -> &Value {
        &self.report
    }

    pub fn member(&self, name: &str) -> &Value {
        &self.report[name]
    }

    /// Returns the outcome of a step.
    pub fn step(&self, index: usize) -> &Value {
        &self.report["steps"][index]
    }

    /// Returns the outcome of the first step of this kind.
    pub fn first(&self, kind: &str) -> &Value {
        let steps = self.report["steps"].as_array().expect("steps");
        steps.iter().find(|step| step["do"] == kind).unwrap_or_else(|| panic!("{:?}: no {kind}", self.sdk))
    }

    /// Returns one member of all entries of the first list of this kind.
    pub fn listed(&self, kind: &str, list: &str, member: &str) -> Vec<String> {
        let step = self.first(kind);
        let entries = step["result"][list].as_array().unwrap_or_else(|| panic!("{:?}: {step}", self.sdk));
        entries.iter().map(|entry| entry[member].as_str().expect("text").to_owned()).collect()
    }

    /// Returns the params of each server request of this method that the client answered.
    pub fn server_requests(&self, method: &str) -> Vec<&Value> {
        let all = self.report["asks"].as_array().expect("asks").iter().filter(|request| request["method"] == method);
        all.map(|request| &request["params"]).collect()
    }

    /// Returns the notifications of a method. Progress is reported separately.
    pub fn notifications(&self, method: &str) -> Vec<&Value> {
        let all = self.report["notifications"].as_array().expect("notifications");
        all.iter().filter(|notification| notification["method"] == method).collect()
    }

    /// Returns the progress of a step.
    pub fn progress(&self, step: usize) -> Vec<(f64, f64)> {
        let all = self.report["progress"].as_array().expect("progress").iter().filter(|entry| entry["step"] == step);
        let number = |entry: &Value, name: &str| entry[name].as_f64().expect("a number");
        all.map(|entry| (number(entry, "progress"), number(entry, "total"))).collect()
    }

    /// Returns the number of progress notifications that the SDK could not assign. The TypeScript SDKs remove a call
    /// when they read its response, before they handle notifications of the same read. This happens without a gateway
    /// too.
    pub fn lost_progress(&self) -> usize {
        self.stderr.matches("Received a progress notification for an unknown token").count()
    }
}

#[test]
#[should_panic(expected = "run `cargo xtask test`, which installs it")]
fn a_missing_tool_is_reported_with_its_cure() {
    tool("no-such-tool");
}
