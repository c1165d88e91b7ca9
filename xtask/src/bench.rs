//! `cargo xtask bench`: makes release builds, then runs goblin-bench against the fresh gateway.
//!
//! All further arguments go to goblin-bench.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::{cargo, run as run_command, target_directory};

pub fn run(root: &Path, arguments: &[String]) -> Result<()> {
    // Builds one package at a time. A common build would unify features and measure a gateway that users do not get.
    for package in ["goblin-gateway", "goblin-bench"] {
        run_command(&mut cargo(root, &["build", "--release", "--package", package, "--bins"]))?;
    }
    let release = target_directory(root).join("release");
    let mut bench = Command::new(release.join("goblin-bench"));
    bench.current_dir(root).arg("run").arg("--goblin").arg(release.join("goblin")).args(arguments);
    run_command(&mut bench)
}
