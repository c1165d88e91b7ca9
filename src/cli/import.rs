//! `goblin import`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

#[derive(Debug, Args)]
pub struct Import {}

pub fn run(_arguments: &Import) -> Result<ExitCode> {
    bail!("not there yet")
}
