//! The configuration file on disk: its location, its content and its trust.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use crate::bounded::{self, ReadError};
use crate::problem::{Fault, ProblemCollector, Problems};
use crate::secret::SecretLookup;
use crate::trust::{self, UntrustedPath};
use crate::{Config, Environment, Files, Namespacing, Server, ServerId, Transport};

/// The size limit of the file. A configuration is written by hand, so a larger file is the wrong one.
const MAX_SIZE: u64 = 4 << 20;

const READABLE_BY_ALL: u32 = 0o004;

/// The source of a configuration text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigOrigin {
    /// The file name shown in problems.
    pub file: String,
    /// An absolute path. Relative paths in the text start here.
    pub directory: PathBuf,
    /// The permission bits. `None` if the text is not from a file.
    pub mode: Option<u32>,
    /// The reason to distrust the file, if any.
    pub untrusted: Option<UntrustedPath>,
    /// The lookup for `${secret:NAME}`.
    pub secrets: SecretLookup,
}

impl ConfigOrigin {
    /// Returns the origin of a text that is not from a file. Its permissions are not checked.
    pub fn new(file: impl Into<String>, directory: impl Into<PathBuf>) -> ConfigOrigin {
        let (file, directory) = (file.into(), directory.into());
        ConfigOrigin { file, directory, mode: None, untrusted: None, secrets: SecretLookup::default() }
    }

    /// Returns the origin of a file that does not exist yet and will have this mode.
    pub(crate) fn of_new(path: &Path, mode: u32) -> Result<ConfigOrigin, LoadError> {
        let unreadable = |reason| LoadError::Read { path: path.to_owned(), reason };
        let requested = path.to_owned();
        let untrusted = bounded::in_time(move || trust::examine(&requested)).map_err(|error| error.of(path))?;
        let untrusted = untrusted.map_err(unreadable)?;
        let directory = directory(path).map_err(unreadable)?;
        Ok(ConfigOrigin { mode: Some(mode), untrusted, ..ConfigOrigin::new(path.display().to_string(), directory) })
    }

    /// Returns an error if another user can change the file, and could therefore run commands as this user.
    pub(crate) fn check_trust(&self) -> Result<(), Fault> {
        self.untrusted.as_ref().map_or(Ok(()), |untrusted| Err(untrusted.fault()))
    }

    pub(crate) fn is_world_readable(&self) -> bool {
        self.mode.is_some_and(|mode| mode & READABLE_BY_ALL != 0)
    }

    /// Returns a `chmod` command line that can be copied into a shell.
    pub(crate) fn chmod(&self, change: &str) -> String {
        format!("chmod {change} {}", trust::shell_path(&self.file))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read {}: {reason}", path.display())]
    Read { path: PathBuf, reason: io::Error },
    #[error("{} is larger than {} and cannot be a configuration", path.display(), goblin_wire::units::bytes(MAX_SIZE))]
    TooLarge { path: PathBuf },
    #[error("{} is not a regular file; the gateway reads the configuration more than once, so write it to a regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error(transparent)]
    Problems(#[from] Problems),
}

impl ReadError {
    fn of(self, path: &Path) -> LoadError {
        let path = path.to_owned();
        match self {
            ReadError::Io(reason) => LoadError::Read { path, reason },
            ReadError::NotRegular => LoadError::NotRegular { path },
            ReadError::TooLarge(_) => LoadError::TooLarge { path },
            ReadError::TooSlow => LoadError::Read { path, reason: io::Error::new(io::ErrorKind::TimedOut, self) },
        }
    }
}

pub fn read(path: &Path) -> Result<(String, ConfigOrigin), LoadError> {
    let requested = path.to_owned();
    let read = bounded::in_time(move || {
        let (bytes, file) = bounded::read_open(&requested, MAX_SIZE)?;
        let mode = file.metadata()?.permissions().mode();
        Ok((bytes, mode, trust::examine(&requested)?, directory(&requested)?))
    });
    let (bytes, mode, untrusted, directory) = read.and_then(|read| read).map_err(|error: ReadError| error.of(path))?;
    let origin = ConfigOrigin::new(path.display().to_string(), directory);
    let origin = ConfigOrigin { mode: Some(mode), untrusted, ..origin };
    match String::from_utf8(bytes) {
        Ok(text) => Ok((text, origin)),
        Err(error) => Err(LoadError::Problems(not_utf8(&error, &origin))),
    }
}

fn directory(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    Ok(absolute.parent().unwrap_or(Path::new("/")).to_owned())
}

fn not_utf8(error: &std::string::FromUtf8Error, origin: &ConfigOrigin) -> Problems {
    let valid = error.utf8_error().valid_up_to();
    let text = String::from_utf8_lossy(&error.as_bytes()[..valid]);
    let report = ProblemCollector::default();
    report.problem(valid, "", Fault::new("the file is not UTF-8 from here on"));
    report.finish(&text, &origin.file).err().expect("a problem was just reported")
}

impl Config {
    /// Returns the configuration that serves the files of one directory, for use without a configuration file.
    pub fn of_directory(root: PathBuf) -> Config {
        let mut config = Config::default();
        let id = ServerId::new("files").expect("the id is short and plain");
        let server = Server::new("files", Transport::Files(Files::at(root)), Namespacing::default());
        config.servers.insert(id, Arc::new(server));
        config
    }
}

/// The result of the search for the configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigSearch {
    /// A path that was requested, or a file that was found. A requested file may not exist; reading it reports that.
    At(PathBuf),
    Nowhere(SearchedLocations),
}

/// The locations that were tried without success, as phrases for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchedLocations(Vec<String>);

impl fmt::Display for SearchedLocations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no configuration: {}", self.0.join(", "))
    }
}

impl std::error::Error for SearchedLocations {}

pub(crate) fn locate(flag: Option<&Path>, environment: Environment<'_>) -> ConfigSearch {
    if let Some(path) = flag {
        return ConfigSearch::At(path.to_owned());
    }
    let mut searched = vec!["--config was not given".to_owned()];
    // An empty variable counts as unset, here and below.
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("GOBLIN_CONFIG") {
        return ConfigSearch::At(path);
    }
    searched.push("GOBLIN_CONFIG is not set".to_owned());
    let Some(path) = user_directory(environment).map(|directory| directory.join("goblin").join("goblin.json")) else {
        searched.push("neither XDG_CONFIG_HOME nor HOME is set".to_owned());
        return ConfigSearch::Nowhere(SearchedLocations(searched));
    };
    // A file that exists but cannot be accessed counts as found, so reading it reports the reason.
    if matches!(path.try_exists(), Ok(false)) {
        searched.push(format!("{} does not exist", path.display()));
        return ConfigSearch::Nowhere(SearchedLocations(searched));
    }
    ConfigSearch::At(path)
}

/// Returns the user's configuration directory. Ignores a relative `XDG_CONFIG_HOME`, as the XDG specification requires.
pub(crate) fn user_directory(environment: Environment<'_>) -> Option<PathBuf> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let xdg = set("XDG_CONFIG_HOME").filter(|directory| directory.is_absolute());
    xdg.or_else(|| set("HOME").map(|home| home.join(".config")))
}

/// Returns the path for writing a configuration. Searches like [`locate`], but the file need not exist.
pub fn target(flag: Option<&Path>, environment: Environment<'_>) -> Result<PathBuf, SearchedLocations> {
    match locate(flag, environment) {
        ConfigSearch::At(path) => Ok(path),
        ConfigSearch::Nowhere(searched) => {
            let directory = user_directory(environment).ok_or(searched)?;
            Ok(directory.join("goblin").join("goblin.json"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{ConfigSearch, LoadError, locate, read};

    /// A directory for one test, removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let directory = std::env::temp_dir().join(format!("goblin-file-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            Scratch(directory)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_configuration_is_located_by_flag_then_variable_then_home() {
        let scratch = Scratch::new("locate");
        let home = scratch.0.to_str().unwrap().to_owned();
        let file = scratch.0.join(".config/goblin/goblin.json");
        let with_home = |name: &str| (name == "HOME").then(|| home.clone());
        let all = |name: &str| (name == "GOBLIN_CONFIG").then(|| "/asked/for.json".to_owned()).or(with_home(name));

        assert_eq!(locate(Some(Path::new("x.json")), &all), ConfigSearch::At("x.json".into()));
        assert_eq!(locate(None, &all), ConfigSearch::At("/asked/for.json".into()));
        let ConfigSearch::Nowhere(searched) = locate(None, &with_home) else { panic!("nothing is there yet") };
        let expected = format!(
            "no configuration: --config was not given, GOBLIN_CONFIG is not set, {} does not exist",
            file.display()
        );
        assert_eq!(searched.to_string(), expected);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(locate(None, &with_home), ConfigSearch::At(file));
    }

    #[test]
    fn an_absolute_xdg_directory_is_used_and_a_relative_one_is_ignored() {
        let scratch = Scratch::new("xdg");
        let directory = scratch.0.join("goblin");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("goblin.json"), "{}").unwrap();
        let absolute = scratch.0.to_str().unwrap().to_owned();
        let environment = |name: &str| (name == "XDG_CONFIG_HOME").then(|| absolute.clone());
        assert_eq!(locate(None, &environment), ConfigSearch::At(directory.join("goblin.json")));
        let relative = |name: &str| (name == "XDG_CONFIG_HOME").then(|| "here".to_owned());
        let ConfigSearch::Nowhere(searched) = locate(None, &relative) else { panic!("relative is ignored") };
        assert!(searched.to_string().ends_with("neither XDG_CONFIG_HOME nor HOME is set"));
    }

    #[test]
    fn an_unreadable_file_returns_an_error_with_its_cause() {
        let scratch = Scratch::new("read");
        let missing = scratch.0.join("absent.json");
        let error = read(&missing).unwrap_err();
        assert!(matches!(error, LoadError::Read { .. }));
        assert!(error.to_string().starts_with(&format!("cannot read {}: ", missing.display())));

        let binary = scratch.0.join("binary.json");
        std::fs::write(&binary, b"{\n  \xff").unwrap();
        let expected = format!("{}:2:3: the file is not UTF-8 from here on", binary.display());
        assert_eq!(read(&binary).unwrap_err().to_string(), expected);

        let large = scratch.0.join("large.json");
        std::fs::write(&large, vec![b' '; (4 << 20) + 1]).unwrap();
        assert!(matches!(read(&large).unwrap_err(), LoadError::TooLarge { .. }));
    }
}
