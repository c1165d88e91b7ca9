//! `cargo xtask bench`: release builds, then goblin-bench against the gateway just built.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::{cargo, run as run_command, target_directory};

pub fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let mut build = vec!["build", "--release", "--workspace"];
    build.extend(["goblin", "goblin-bench", "goblin-bench-heap"].iter().flat_map(|name| ["--bin", name]));
    run_command(&mut cargo(root, &build))?;
    let release = target_directory(root).join("release");
    let mut bench = Command::new(release.join("goblin-bench"));
    bench.current_dir(root).arg("run").arg("--goblin").arg(release.join("goblin")).args(arguments);
    run_command(&mut bench)
}
