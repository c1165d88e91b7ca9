//! Runs the official suite with the Node that is installed beside it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::report::Report;

/// How much of its output is shown when the suite breaks down.
const SHOWN_LINES: usize = 20;

pub enum Edition {
    Newest,
    Stable,
}

pub struct Suite {
    /// Where `cargo xtask tools` has put the packages.
    pub tools: PathBuf,
    pub edition: Edition,
    pub url: String,
    /// The options by which the suite chooses its scenarios.
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
        let mut command = Command::new(packages.join(".bin/node"));
        command.arg(program).args(["server", "--url", &self.url]).args(&self.selection);
        command.arg("--output-dir").arg(&results.directory).stdin(Stdio::null());
        let output = command.output().context("cannot start node; run `cargo xtask tools`")?;
        let report = Report::read(&results.directory)?;
        // It exits with 1 when checks fail, too. Without any results it has refused to begin.
        if report.scenarios.is_empty() && !output.status.success() {
            bail!("the suite did not run: {}\n{}", output.status, last_lines(&output));
        }
        Ok(report)
    }
}

fn last_lines(output: &process::Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

/// A directory of this run alone, removed at its end.
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
}

impl Drop for Results {
    fn drop(&mut self) {
        remove(&self.directory);
    }
}

fn remove(directory: &Path) {
    // What cannot be removed lies in the directory for temporary files.
    let _ = fs::remove_dir_all(directory);
}
