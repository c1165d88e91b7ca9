//! `cargo xtask fuzz-smoke`: shows that each fuzz target still builds and survives a short run.
//!
//! It finds little: real fuzzing takes hours. It is not part of `test`, since cargo-fuzz and a nightly toolchain are
//! more than a contributor needs to have.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::process::{output_of, run};

pub fn smoke(root: &Path, seconds: u32) -> Result<()> {
    if !root.join("fuzz/Cargo.toml").is_file() {
        eprintln!("fuzz-smoke: skipped: there is no fuzz/Cargo.toml");
        return Ok(());
    }
    if output_of(&mut fuzz(root, &["--version"])).is_none() {
        eprintln!("fuzz-smoke: skipped: it needs a nightly toolchain and cargo-fuzz");
        eprintln!("            rustup toolchain install nightly && cargo install --locked cargo-fuzz");
        return Ok(());
    }
    let targets = output_of(&mut fuzz(root, &["list"])).context("cargo fuzz list failed")?;
    let targets: Vec<&str> = targets.split_whitespace().collect();
    if targets.is_empty() {
        bail!("fuzz/Cargo.toml has no targets");
    }
    for target in &targets {
        eprintln!("==> fuzz {target}, {seconds} s");
        let limit = format!("-max_total_time={seconds}");
        let (corpus, seeds) = (format!("fuzz/corpus/{target}"), format!("fuzz/seeds/{target}"));
        std::fs::create_dir_all(root.join(&corpus)).with_context(|| format!("cannot make {corpus}"))?;
        run(&mut fuzz(root, &["run", target, &corpus, &seeds, "--", &limit]))
            .with_context(|| format!("fuzz target {target} failed"))?;
    }
    eprintln!("fuzz-smoke: {} targets, ok", targets.len());
    Ok(())
}

/// By rustup, not by the cargo that started us: that one belongs to the toolchain of the workspace.
fn fuzz(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(root).args(["run", "nightly", "cargo", "fuzz"]).args(arguments);
    command
}
