//! `cargo xtask test`: runs all checks in order, reports the time of each, and stops at the first failure.
//!
//! CI runs this task, so a local run gives the same verdict, except for advisories.

use std::num::NonZero;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process::{cargo, run as run_command};
use crate::{tidy, tools};

pub fn run(root: &Path) -> Result<()> {
    let mut suite = Suite::default();
    suite.step("tools", || tools::install(root))?;
    suite.step("tidy", || tidy::check(root))?;
    suite.step("fmt", || run_command(&mut cargo(root, &["fmt", "--all", "--check"])))?;
    suite.step("clippy", || {
        let arguments = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
        run_command(&mut cargo(root, &arguments))
    })?;
    suite.step("features", || {
        let arguments = ["clippy", "--package", "goblin-gateway", "--no-default-features", "--", "-D", "warnings"];
        run_command(&mut cargo(root, &arguments))
    })?;
    suite.step("deny", || {
        tools::install_cargo_tool(root, tools::CARGO_DENY)?;
        // Advisories need a network; hosted CI checks them.
        run_command(&mut cargo(root, &["deny", "--workspace", "check", "bans", "licenses", "sources"]))
    })?;
    suite.step("build", || run_command(&mut cargo(root, &["build", "--workspace", "--bins"])))?;
    suite
        .step("test", || run_command(cargo(root, &["test", "--workspace"]).env("RUST_TEST_THREADS", test_threads())))?;
    suite.summarize();
    Ok(())
}

/// Returns twice the number of cores, because the wire tests mostly wait for processes and timers.
fn test_threads() -> String {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    (2 * cores).to_string()
}

#[derive(Default)]
struct Suite {
    lines: Vec<String>,
    total: Duration,
}

impl Suite {
    fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        eprintln!("==> {name}");
        let start = Instant::now();
        let outcome = work();
        let time = start.elapsed();
        outcome.with_context(|| format!("{name} failed after {:.1} s", time.as_secs_f32()))?;
        eprintln!("<== {name}: ok, {:.1} s", time.as_secs_f32());
        self.lines.push(format!("{name:8} {:6.1} s", time.as_secs_f32()));
        self.total += time;
        Ok(())
    }

    fn summarize(&self) {
        eprintln!("\n{}", self.lines.join("\n"));
        eprintln!("{:8} {:6.1} s: all checks passed", "total", self.total.as_secs_f32());
    }
}
