//! The conformance servers, one per SDK, as child processes.
//!
//! The Rust server is this program. The others are in `servers/` and use the packages that `cargo xtask tools`
//! installs. Every server prints `listening URL` first.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/servers");

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Sdk {
    /// The crate `rmcp`
    Rust,
    /// TypeScript 1.x
    Ts1,
    /// TypeScript 2.x
    Ts2,
    /// Python 1.x, without `listChanged`
    Py1,
    /// Python 2.x
    Py2,
}

impl Sdk {
    /// Returns the name on the command line and in the lists of expected failures.
    pub fn name(self) -> &'static str {
        match self {
            Sdk::Rust => "rust",
            Sdk::Ts1 => "ts1",
            Sdk::Ts2 => "ts2",
            Sdk::Py1 => "py1",
            Sdk::Py2 => "py2",
        }
    }

    /// Returns whether the SDK supports 2026-07-28.
    pub fn is_modern(self) -> bool {
        matches!(self, Sdk::Rust | Sdk::Ts2 | Sdk::Py2)
    }

    /// Returns the command of the server. `tools` is the directory of the installed suite.
    fn command(self, tools: &Path) -> Result<Command> {
        let script = |program: PathBuf, name: &str| {
            let mut command = Command::new(program);
            command.arg(Path::new(SOURCES).join(name)).arg("http").env("PYTHONDONTWRITEBYTECODE", "1");
            command
        };
        let node = || tools.join("node_modules/.bin/node");
        let python = |environment: &str| tools.join("..").join(environment).join("bin/python");
        Ok(match self {
            Sdk::Rust => {
                let mut command = Command::new(env::current_exe().context("the path of this program is unknown")?);
                command.arg("serve");
                command
            }
            Sdk::Ts1 => script(node(), "ts1.mjs"),
            Sdk::Ts2 => script(node(), "ts2.mjs"),
            Sdk::Py1 => script(python("py1"), "py1.py"),
            Sdk::Py2 => script(python("py2"), "py2.py"),
        })
    }
}

/// A running server. Dropping it kills the process.
pub struct RunningServer {
    _process: Child,
    pub url: String,
}

impl RunningServer {
    pub async fn start(sdk: Sdk, tools: &Path) -> Result<RunningServer> {
        let mut command = sdk.command(tools)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let program = command.as_std().get_program().display().to_string();
        let mut process =
            command.spawn().with_context(|| format!("cannot start {program}; run `cargo xtask tools`"))?;
        let mut lines = BufReader::new(process.stdout.take().context("stdout is a pipe")?).lines();
        let line = lines.next_line().await?.with_context(|| format!("{program} ended without listening"))?;
        let url = line.split_whitespace().last().unwrap_or_default().to_owned();
        Ok(RunningServer { _process: process, url })
    }
}
