//! `goblin add` and `goblin remove`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

#[derive(Debug, Args)]
pub struct Add {}

#[derive(Debug, Args)]
pub struct Remove {}

pub fn add(_arguments: &Add) -> Result<ExitCode> {
    bail!("not there yet")
}

pub fn remove(_arguments: &Remove) -> Result<ExitCode> {
    bail!("not there yet")
}
