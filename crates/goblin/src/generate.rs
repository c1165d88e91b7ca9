//! `goblin completions` and `goblin man`. Both are generated from the argument definitions, so they cannot become
//! stale.
//!
//! A completion script runs the program with the variable [`COMPLETING`]. The completions therefore match the installed
//! version and include the names of a running gateway (see [`crate::catalog::complete`]).

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command, CommandFactory};
use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};
use clap_complete::{CompleteEnv, Shell};

use crate::cli::Cli;
use crate::style::print;

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell to print the script for
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write goblin.1 and a page for every command to this directory, instead of printing goblin.1
    #[arg(long, value_name = "DIRECTORY")]
    pub out: Option<PathBuf>,
}

/// The variable that a completion script sets to the name of its shell when it requests completions.
const COMPLETING: &str = "GOBLIN_COMPLETE";

const SHELLS: Shells<'static> = Shells(&[&WholeWords, &Elvish, &Fish, &Powershell, &Zsh]);

pub(crate) fn completions(arguments: &Completions) -> Result<ExitCode> {
    let name = arguments.shell.to_string();
    let shell = SHELLS.completer(&name).with_context(|| format!("there is no completion script for {name}"))?;
    let mut script = Vec::new();
    shell.write_registration(COMPLETING, "goblin", "goblin", "goblin", &mut script)?;
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints completions and exits the process if a completion script requests them. Does nothing otherwise.
pub(crate) fn answer_completion_script() {
    CompleteEnv::with_factory(Cli::command).var(COMPLETING).shells(SHELLS).complete();
}

/// The completer for bash. Bash also splits words at `:` and `=`, so the script joins the parts of a URI or a
/// `key=value`. It removes the part before the last of these characters from each answer, because bash keeps that part.
/// It offers flags only after a `-`.
struct WholeWords;

const BASH: &str = include_str!("completions.bash");

impl EnvCompleter for WholeWords {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        variable: &str,
        _name: &str,
        _bin: &str,
        _completer: &str,
        script: &mut dyn Write,
    ) -> std::io::Result<()> {
        script.write_all(BASH.replace("VARIABLE", variable).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        arguments: Vec<OsString>,
        directory: Option<&Path>,
        answer: &mut dyn Write,
    ) -> std::io::Result<()> {
        Bash.write_complete(command, arguments, directory, answer)
    }
}

pub(crate) fn man(arguments: &Man) -> Result<ExitCode> {
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
