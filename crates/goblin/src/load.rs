//! Loads the configuration of a command: a file, or the working directory if there is no file.
//!
//! Finding and parsing are separate steps. A bridge to a running gateway must know which configuration applies, but it
//! needs neither its content nor the variables in it.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use goblin_client::environment::{Variables, environment};
use goblin_client::runtime::identity::Identity;
use goblin_config::Config;
use goblin_config::file::{self, ConfigOrigin, ConfigSearch, LoadError};
use goblin_config::problem::Problem;

use crate::style::{plural, warn};
use crate::vault::UsedSecrets;

/// A valid configuration and its origin.
pub(crate) struct SourcedConfig {
    pub config: Config,
    pub from: ConfigLocation,
    pub warnings: Vec<Problem>,
    pub identity: Identity,
    pub variables: Variables,
    pub secrets: UsedSecrets,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ConfigLocation {
    File(PathBuf),
    /// The working directory, which is served if there is no file.
    Directory(PathBuf),
}

/// A configuration that is not parsed yet.
pub(crate) enum RawConfig {
    File { path: PathBuf, text: String, origin: ConfigOrigin },
    Directory(PathBuf),
}

/// The reason why there is no usable configuration.
pub(crate) enum ConfigError {
    /// There is no file, and the working directory must not be served instead.
    Nothing(String),
    File {
        path: PathBuf,
        problem: LoadError,
    },
}

/// Loads the configuration and prints its warnings. Returns a message with all problems if it is not valid.
pub(crate) fn load(flag: Option<&Path>) -> Result<SourcedConfig, String> {
    let given = find(flag).and_then(RawConfig::parse).map_err(|error| error.to_string())?;
    for warning in &given.warnings {
        warn(&warning.to_string());
    }
    Ok(given)
}

pub(crate) fn find(flag: Option<&Path>) -> Result<RawConfig, ConfigError> {
    match goblin_config::locate(flag, &environment) {
        ConfigSearch::At(path) => match file::read(&path) {
            Ok((text, origin)) => Ok(RawConfig::File { path, text, origin }),
            Err(problem) => Err(ConfigError::File { path, problem }),
        },
        ConfigSearch::Nowhere(searched) => {
            working_directory().map_err(|reason| ConfigError::Nothing(format!("{searched}\n{reason}")))
        }
    }
}

impl RawConfig {
    pub(crate) fn identity(&self) -> Identity {
        match self {
            RawConfig::File { path, text, origin } => Identity::of_file(path, text, &origin.directory),
            RawConfig::Directory(directory) => Identity::of_directory(directory),
        }
    }

    pub(crate) fn parse(self) -> Result<SourcedConfig, ConfigError> {
        self.parse_with(UsedSecrets::default())
    }

    /// Parses the configuration and records the secrets that it uses, also if it is not valid.
    pub(crate) fn parse_with(self, secrets: UsedSecrets) -> Result<SourcedConfig, ConfigError> {
        let identity = self.identity();
        match self {
            RawConfig::Directory(directory) => Ok(SourcedConfig {
                config: Config::of_directory(directory.clone()),
                from: ConfigLocation::Directory(directory),
                warnings: Vec::new(),
                identity,
                variables: Variables::new(),
                secrets,
            }),
            RawConfig::File { path, text, origin } => {
                let looked_up = RefCell::new(Variables::new());
                let note = |name: &str| {
                    let value = environment(name);
                    looked_up.borrow_mut().insert(name.to_owned(), value.clone());
                    value
                };
                let origin = ConfigOrigin { secrets: secrets.lookup(), ..origin };
                let parsed = goblin_config::parse(&text, &origin, &note);
                if !secrets.is_empty() {
                    // Two programs with different state directories have different secrets.
                    note("XDG_STATE_HOME");
                }
                match parsed {
                    Ok(loaded) => Ok(SourcedConfig {
                        config: loaded.config,
                        from: ConfigLocation::File(path),
                        warnings: loaded.warnings,
                        identity,
                        variables: looked_up.into_inner(),
                        secrets,
                    }),
                    Err(problems) => Err(ConfigError::File { path, problem: problems.into() }),
                }
            }
        }
    }
}

/// Returns the working directory. Rejects the root and the home directory: the user would not mean to serve all of it.
fn working_directory() -> Result<RawConfig, String> {
    let directory =
        std::env::current_dir().map_err(|error| format!("cannot determine the working directory: {error}"))?;
    let home = environment("HOME").map(PathBuf::from).and_then(|home| home.canonicalize().ok());
    let whole = match directory.canonicalize().unwrap_or_else(|_| directory.clone()) {
        real if real.parent().is_none() => Some("the whole disk"),
        real if Some(&real) == home.as_ref() => Some("your whole home directory"),
        _ => None,
    };
    match whole {
        Some(whole) => Err(format!(
            "without a configuration, goblin serves the working directory, but {} is {whole}\n\
             change to a project first (cd my-project), or import your servers: goblin import",
            directory.display()
        )),
        None => Ok(RawConfig::Directory(directory)),
    }
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConfigError::Nothing(reason) => formatter.write_str(reason),
            ConfigError::File { path, problem: LoadError::Problems(problems) } => {
                let count = plural(problems.iter().count(), "problem");
                write!(formatter, "{count} in {}, nothing was started\n{problems}", path.display())
            }
            ConfigError::File { problem, .. } => problem.fmt(formatter),
        }
    }
}
