//! `cargo xtask soak`: runs the tests of shared logins with their full counts against the release build.
//!
//! `cargo xtask test` runs the same tests with small counts. Each test prints one line of figures.

use std::path::Path;

use anyhow::Result;

use crate::process::{cargo, run as run_command};

/// The processes that are killed during a refresh of their login.
const KILLS: &str = "1000";
/// The refreshes that all processes begin at once.
const ROUNDS: &str = "200";

pub fn run(root: &Path) -> Result<()> {
    let arguments = ["test", "--release", "--package", "goblin-gateway", "--test", "it", "login_processes::"];
    let mut tests = cargo(root, &[&arguments[..], &["--", "--nocapture", "--test-threads=1"]].concat());
    run_command(tests.env("GOBLIN_SOAK_KILLS", KILLS).env("GOBLIN_SOAK_ROUNDS", ROUNDS))
}
