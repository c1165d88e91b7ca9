//! `cargo xtask bench`: release builds, then goblin-bench against the gateway just built.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::{cargo, run as run_command, target_directory};

pub fn run(root: &Path, arguments: &[String]) -> Result<()> {
    // One after the other: what is measured shall have the features that users get, not those of the yardsticks too.
    for package in ["goblin-gateway", "goblin-bench"] {
        run_command(&mut cargo(root, &["build", "--release", "--package", package, "--bins"]))?;
    }
    let release = target_directory(root).join("release");
    let mut bench = Command::new(release.join("goblin-bench"));
    bench.current_dir(root).arg("run").arg("--goblin").arg(release.join("goblin")).args(arguments);
    run_command(&mut bench)
}
