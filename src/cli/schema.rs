//! `goblin schema`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

#[derive(Debug, Args)]
pub struct Schema {}

pub fn run(_arguments: &Schema) -> Result<ExitCode> {
    bail!("not there yet")
}
