//! `goblin completions` and `goblin man`: both made from the definition of the arguments, so neither can be stale.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::cli::style::print;

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell to print it for
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct Man {
    /// Write goblin.1 and a page for every command here instead of printing goblin.1
    #[arg(long, value_name = "DIRECTORY")]
    pub out: Option<PathBuf>,
}

pub fn completions(arguments: &Completions) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "goblin", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

pub fn man(arguments: &Man) -> Result<ExitCode> {
    let Some(directory) = &arguments.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        print(&String::from_utf8_lossy(&page))?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("cannot write to {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}
