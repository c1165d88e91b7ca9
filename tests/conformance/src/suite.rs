//! Runs the official suite with the Node that is installed next to it.
//!
//! The suite writes its results to a temporary directory, which [`Report`] reads. The exit code alone cannot
//! distinguish failed checks from a suite that did not run.

use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, bail};

use crate::client;
use crate::report::Report;

/// The number of output lines to show if the suite does not run.
const SHOWN_LINES: usize = 20;
/// The variable that names this program to the suite.
const PROGRAM: &str = "GOBLIN_CONFORMANCE_PROGRAM";

#[derive(Clone, Copy)]
pub enum Edition {
    Newest,
    Stable,
}

/// The side of the connection that the suite plays.
pub enum Side {
    /// The suite plays the client of the server at this URL.
    Client { url: String },
    /// The suite plays a server and judges its client: this program, or the gateway in front of it.
    Server {
        gateway: Option<PathBuf>,
        /// The protocol version of this program, if it differs from the suite's.
        client_version: Option<String>,
    },
}

pub struct Suite {
    /// The directory of the packages that `cargo xtask tools` installed.
    pub tools: PathBuf,
    pub edition: Edition,
    pub side: Side,
    /// The suite's options that choose scenarios.
    pub selection: Vec<String>,
}

impl Suite {
    pub fn run(&self) -> Result<Report> {
        let packages = self.tools.join("node_modules");
        let program = packages.join("@modelcontextprotocol").join(match self.edition {
            Edition::Newest => "conformance/dist/index.js",
            Edition::Stable => "conformance-stable/dist/index.js",
        });
        if !program.exists() {
            bail!("the suite is not in {}; run `cargo xtask tools`", self.tools.display());
        }
        let results = Results::create()?;
        let node = packages.join(".bin/node");
        let mut command = match &self.side {
            Side::Client { url } => against_server(&node, &program, url),
            Side::Server { gateway, client_version } => {
                against_client(&node, &program, gateway.as_deref(), client_version.as_deref())?
            }
        };
        command.args(&self.selection).arg("--output-dir").arg(&results.directory).stdin(Stdio::null());
        let output = command.output().context("cannot start node; run `cargo xtask tools`")?;
        let report = Report::read(&results.directory, self.side.prefix(), output.status.success())?;
        // The suite also exits with 1 if checks fail. If there are no results, it did not start.
        if report.scenarios.is_empty() && !output.status.success() {
            bail!("the suite did not run: {}\n{}", output.status, last_lines(&output));
        }
        if matches!(self.side, Side::Server { .. }) && !output.status.success() {
            eprintln!("{}", results.client_output()?);
        }
        Ok(report)
    }
}

impl Side {
    /// Returns the prefix of the suite's result directories.
    fn prefix(&self) -> &'static str {
        match self {
            Side::Client { .. } => "server-",
            Side::Server { .. } => "",
        }
    }
}

fn against_server(node: &Path, program: &Path, url: &str) -> Command {
    let mut command = Command::new(node);
    command.arg(program).args(["server", "--url", url]);
    command
}

fn against_client(
    node: &Path,
    program: &Path,
    gateway: Option<&Path>,
    client_version: Option<&str>,
) -> Result<Command> {
    let mut command = secluded(node);
    // The suite starts its client with a shell. The variable protects special characters of the path.
    command.arg(program).args(["client", "--command", &format!("\"${PROGRAM}\" client")]);
    command.env(PROGRAM, env::current_exe().context("the path of this program is unknown")?);
    command.envs(gateway.map(|gateway| (client::GATEWAY, gateway)));
    command.envs(client_version.map(|client_version| (client::CLIENT_VERSION, client_version)));
    Ok(command)
}

/// Returns a command in a network namespace of its own, if the system permits one. The suite's servers listen on all
/// interfaces.
fn secluded(program: &Path) -> Command {
    let attempt = Command::new("unshare").args(["-rn", "ip", "link", "set", "lo", "up"]).output();
    if !attempt.is_ok_and(|output| output.status.success()) {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]).arg(program);
    command
}

fn last_lines(output: &process::Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

/// A directory for this run, removed at its end.
struct Results {
    directory: PathBuf,
}

impl Results {
    fn create() -> Result<Results> {
        let directory = env::temp_dir().join(format!("goblin-conformance-{}", process::id()));
        remove(&directory);
        fs::create_dir(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
        Ok(Results { directory })
    }

    /// Returns the stderr of the suite's clients, which includes the gateway's log.
    fn client_output(&self) -> Result<String> {
        output_below(&self.directory)
    }
}

/// Returns the stderr in a directory of results. A scenario with a `/` in its name has a directory in another one.
fn output_below(directory: &Path) -> Result<String> {
    let mut output = String::new();
    for entry in fs::read_dir(directory).context("cannot list the results")? {
        let directory = entry.context("cannot list the results")?.path();
        let path = directory.join("stderr.txt");
        output += &match path.exists() {
            true => fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?,
            false if directory.is_dir() => output_below(&directory)?,
            false => String::new(),
        };
    }
    Ok(output)
}

impl Drop for Results {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

fn remove(directory: &Path) {
    // A leftover directory is below the one for temporary files.
    let _ = fs::remove_dir_all(directory);
}
