//! `cargo xtask test`: all checks in order, each with its time, up to the first that fails.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process::{cargo, output_of, run as run_command};
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
    if output_of(&mut cargo(root, &["deny", "--version"])).is_some() {
        suite.step("deny", || run_command(&mut cargo(root, &["deny", "check"])))?;
    } else {
        suite.skip("deny", "cargo-deny is not installed; cargo install --locked cargo-deny");
    }
    suite.step("build", || run_command(&mut cargo(root, &["build", "--workspace", "--bins"])))?;
    suite.step("test", || run_command(&mut cargo(root, &["test", "--workspace"])))?;
    suite.summarize();
    Ok(())
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

    fn skip(&mut self, name: &str, reason: &str) {
        eprintln!("--- {name}: skipped: {reason}");
        self.lines.push(format!("{name:8} skipped: {reason}"));
    }

    fn summarize(&self) {
        eprintln!("\n{}", self.lines.join("\n"));
        eprintln!("{:8} {:6.1} s: all checks passed", "total", self.total.as_secs_f32());
    }
}
