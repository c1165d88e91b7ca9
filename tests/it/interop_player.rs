//! Starts the servers of five SDK generations, lets their clients play the features, and lists their known limits.
//!
//! `interop` uses it with the gateway between client and server, and `interop_direct` without.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::harness::TIMEOUT;
use crate::interop_features::{Era, Verdicts, read};
use crate::interop_rmcp_client;
use crate::interop_rmcp_server::RmcpServer;
use crate::sdk::{self, Sdk, tool};

/// The time limit for all features of one client. Each feature has a shorter one.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Maker {
    Python1,
    Python2,
    TypeScript1,
    TypeScript2,
    Rust,
}

impl Maker {
    pub const ALL: [Maker; 5] = [Maker::Python1, Maker::Python2, Maker::TypeScript1, Maker::TypeScript2, Maker::Rust];

    pub fn name(self) -> &'static str {
        match self {
            Maker::Python1 => "Python 1.x",
            Maker::Python2 => "Python 2.x",
            Maker::TypeScript1 => "TypeScript 1.x",
            Maker::TypeScript2 => "TypeScript 2.x",
            Maker::Rust => "Rust",
        }
    }

    pub fn supports(self, era: Era) -> bool {
        era == Era::Legacy || !matches!(self, Maker::Python1 | Maker::TypeScript1)
    }

    /// Returns the reason if a client of this SDK does not support a feature.
    pub fn client_lacks(self, era: Era, feature: &str) -> Option<&'static str> {
        match (feature, era, self) {
            ("cancellation", _, Maker::Python1) => Some("sends no cancellation to the server"),
            ("tasks", Era::Legacy, Maker::Python2 | Maker::TypeScript2 | Maker::Rust) => {
                Some("has no tasks of 2025-11-25")
            }
            ("tasks", Era::Modern, Maker::TypeScript2) => Some("rejects results of the kind `task`"),
            _ => None,
        }
    }

    /// Returns the reason if a server of this SDK does not support a feature.
    pub fn server_lacks(self, era: Era, feature: &str) -> Option<&'static str> {
        match (feature, era, self) {
            ("tasks", Era::Legacy, Maker::Python2 | Maker::TypeScript2 | Maker::Rust) => {
                Some("has no tasks of 2025-11-25")
            }
            ("not_found", Era::Legacy, Maker::TypeScript2) => Some("says -32602 where older versions have -32002"),
            _ => None,
        }
    }

    /// Reports whether a client of this SDK shows the same outcome for any behaviour of the server.
    pub fn hides(self, feature: &str) -> bool {
        // This SDK turns the code -32002 into -32602 itself.
        self == Maker::TypeScript2 && feature == "not_found"
    }

    fn sdk(self) -> Option<Sdk> {
        match self {
            Maker::Python1 => Some(Sdk::Python1),
            Maker::Python2 => Some(Sdk::Python2),
            Maker::TypeScript1 => Some(Sdk::TypeScript1),
            Maker::TypeScript2 => Some(Sdk::TypeScript2),
            Maker::Rust => None,
        }
    }

    /// Returns the server's program and its arguments. Returns `None` for the Rust SDK, because its server runs in this
    /// process.
    fn server_program(self) -> Option<Vec<String>> {
        let (program, script) = match self {
            Maker::Python1 => (tool("py1/bin/python").display().to_string(), "server.py"),
            Maker::Python2 => (tool("py2/bin/python").display().to_string(), "server.py"),
            Maker::TypeScript1 => ("node".to_owned(), "server-v1.mjs"),
            Maker::TypeScript2 => ("node".to_owned(), "server-v2.mjs"),
            Maker::Rust => return None,
        };
        let script = Path::new(crate::harness::ROOT).join("tests/clients").join(script);
        Some(vec![program, script.display().to_string()])
    }

    /// Returns a server entry of the configuration that starts the server over stdio.
    pub fn stdio_entry(self) -> Value {
        let program = self.server_program().unwrap_or_else(|| panic!("{} is served over HTTP only", self.name()));
        json!({"command": program[0], "args": [program[1], "stdio"]})
    }

    /// Returns the command that starts the server over stdio.
    pub fn stdio_command(self) -> Vec<String> {
        let mut program = self.server_program().unwrap_or_else(|| panic!("{} is served over HTTP only", self.name()));
        program.push("stdio".to_owned());
        program
    }

    /// Plays all features. The client answers every server request with `mark`.
    pub async fn play(self, era: Era, over: Over<'_>, mark: &str) -> Verdicts {
        let Some(sdk) = self.sdk() else {
            let Over::Http(url) = over else { panic!("{} is played over HTTP only", self.name()) };
            return interop_rmcp_client::play(url, era, mark).await;
        };
        let mut command = sdk.command();
        command.args(["--era", era.name(), "--answer", mark, "--features", "all"]);
        match over {
            Over::Http(url) => command.args(["http", url]),
            Over::Stdio(server) => {
                let program = server.server_program().expect("a program");
                command.args(["stdio", "--"]).args(program).arg("stdio")
            }
        };
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
        let output = tokio::time::timeout(RUN_TIMEOUT, output).await.expect("an end").expect("the command runs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.lines().rev().take(5).collect::<Vec<_>>().join(" / ");
        read(&String::from_utf8_lossy(&output.stdout), &format!("no verdict; the last lines: {last}"))
    }
}

/// Plays a script and returns the client's report.
pub async fn play_script(client: Maker, era: Era, over: sdk::Over<'_>, steps: &[Value]) -> Value {
    const MARK: &str = "mark";
    let Some(sdk) = client.sdk() else {
        let sdk::Over::Http(url) = over else { panic!("{} is played over HTTP only", client.name()) };
        return interop_rmcp_client::play_script(url, era, MARK, steps).await;
    };
    let playing = match era {
        Era::Legacy => sdk.begin_answering(MARK, over, steps),
        Era::Modern => sdk.begin_modern(MARK, over, steps),
    };
    let report = playing.report().await;
    let mut whole = report.whole().clone();
    whole["lostProgress"] = json!(report.lost_progress());
    whole
}

/// The server that a client connects to.
#[derive(Clone, Copy, Debug)]
pub enum Over<'a> {
    Http(&'a str),
    /// A server process that the client starts.
    Stdio(Maker),
}

/// A server over HTTP that ends with the test.
pub enum HttpServer {
    Program { _process: Child, url: String },
    Rmcp(RmcpServer),
}

impl HttpServer {
    pub async fn start(maker: Maker) -> HttpServer {
        if maker.server_program().is_none() {
            return HttpServer::Rmcp(RmcpServer::start().await);
        }
        HttpServer::start_program(maker, "http").await
    }

    /// Starts a server over HTTP+SSE.
    pub async fn start_sse(maker: Maker) -> HttpServer {
        HttpServer::start_program(maker, "sse").await
    }

    async fn start_program(maker: Maker, transport: &str) -> HttpServer {
        let program = maker.server_program().expect("a program");
        let mut command = Command::new(&program[0]);
        command.arg(&program[1]).arg(transport).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{maker:?} does not start: {error}"));
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let line = tokio::time::timeout(TIMEOUT, lines.next_line()).await.expect("an address in time");
        let line = line.expect("the line can be read").unwrap_or_else(|| panic!("{maker:?} does not listen"));
        let url = line.strip_prefix("listening ").expect("the process prints its address").to_owned();
        HttpServer::Program { _process: process, url }
    }

    pub fn url(&self) -> &str {
        match self {
            HttpServer::Program { url, .. } => url,
            HttpServer::Rmcp(server) => &server.url,
        }
    }
}
