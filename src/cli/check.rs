//! `goblin check`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

#[derive(Debug, Args)]
pub struct Check {}

pub async fn run(_arguments: Check) -> Result<ExitCode> {
    bail!("not there yet")
}
