//! The configuration that a command works with: a file, or the working directory where there is none.

use std::path::{Path, PathBuf};

use crate::cli::style::warn;
use crate::config::file::{LoadError, Located};
use crate::config::{self, Config};

/// A configuration and where it is from.
pub struct Given {
    pub config: Config,
    pub from: From,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    File(PathBuf),
    /// There is no file, so this directory is served.
    Directory(PathBuf),
}

pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The configuration, or everything that is wrong with it. Warnings are printed.
pub fn load(flag: Option<&Path>) -> Result<Given, String> {
    let path = match config::locate(flag, &environment) {
        Located::At(path) => path,
        Located::Nowhere(searched) => return working_directory().map_err(|refused| format!("{searched}\n{refused}")),
    };
    match config::load(&path, &environment) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                warn(&warning.to_string());
            }
            Ok(Given { config: loaded.config, from: From::File(path) })
        }
        Err(problem) => Err(explain(&path, &problem)),
    }
}

/// Serving a whole disk or everything a person owns is never what was meant.
fn working_directory() -> Result<Given, String> {
    let directory = std::env::current_dir().map_err(|error| format!("there is no working directory: {error}"))?;
    let home = environment("HOME").map(PathBuf::from).and_then(|home| home.canonicalize().ok());
    let whole = match directory.canonicalize().unwrap_or_else(|_| directory.clone()) {
        real if real.parent().is_none() => Some("the whole disk"),
        real if Some(&real) == home.as_ref() => Some("your whole home directory"),
        _ => None,
    };
    match whole {
        Some(whole) => Err(format!(
            "without a configuration the working directory is served, but {} is {whole}\n\
             go to a project first (cd my-project), or take over the servers you have: goblin import",
            directory.display()
        )),
        None => Ok(Given { config: Config::of_directory(directory.clone()), from: From::Directory(directory) }),
    }
}

pub fn explain(path: &Path, problem: &LoadError) -> String {
    match problem {
        LoadError::Problems(problems) => {
            let count = problems.iter().count();
            let noun = if count == 1 { "problem" } else { "problems" };
            format!("{count} {noun} in {}, nothing was started\n{problems}", path.display())
        }
        other => other.to_string(),
    }
}
