//! `goblin schema`: prints the JSON schema of the configuration, for editors.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use goblin_config::schema;

use crate::style::print;

#[derive(Debug, Args)]
pub(crate) struct Schema {}

pub(crate) fn run(_arguments: &Schema) -> Result<ExitCode> {
    print(schema::text())?;
    Ok(ExitCode::SUCCESS)
}
