//! The configuration file on disk: where it is, what it holds, who may change it.

use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::Environment;
use crate::bounded::{self, ReadError};
use crate::problem::{Fault, Problems, Report};
use crate::trust::{self, Distrust};

/// A configuration is written by hand; more than this is the wrong file.
const MAX_SIZE: u64 = 4 << 20;

const READABLE_BY_ALL: u32 = 0o004;

/// Where a text came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// As shown in problems.
    pub file: String,
    /// Absolute; relative paths in the text start here.
    pub directory: PathBuf,
    /// The permission bits, if the text has a file.
    pub mode: Option<u32>,
    /// The reason why the file is not trusted.
    pub distrust: Option<Distrust>,
}

impl Origin {
    /// A text without a file of its own, whose permissions are not judged.
    pub fn new(file: impl Into<String>, directory: impl Into<PathBuf>) -> Origin {
        Origin { file: file.into(), directory: directory.into(), mode: None, distrust: None }
    }

    /// Of a file that is to be made, with this mode.
    pub(crate) fn of_new(path: &Path, mode: u32) -> Result<Origin, LoadError> {
        let unreadable = |reason| LoadError::Read { path: path.to_owned(), reason };
        let asked = path.to_owned();
        let distrust = bounded::in_time(move || trust::examine(&asked)).map_err(|error| error.of(path))?;
        let distrust = distrust.map_err(unreadable)?;
        let directory = directory(path).map_err(unreadable)?;
        Ok(Origin { mode: Some(mode), distrust, ..Origin::new(path.display().to_string(), directory) })
    }

    /// Returns an error if another user can change the file, and so run commands as this user.
    pub(crate) fn check_trust(&self) -> Result<(), Fault> {
        self.distrust.as_ref().map_or(Ok(()), |distrust| Err(distrust.fault()))
    }

    pub(crate) fn is_world_readable(&self) -> bool {
        self.mode.is_some_and(|mode| mode & READABLE_BY_ALL != 0)
    }

    /// A command line that can be copied into a shell.
    pub(crate) fn chmod(&self, change: &str) -> String {
        format!("chmod {change} {}", trust::shell_path(&self.file))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot read {}: {reason}", path.display())]
    Read { path: PathBuf, reason: io::Error },
    #[error("{} is larger than {MAX_SIZE} bytes, it cannot be a configuration", path.display())]
    TooLarge { path: PathBuf },
    #[error("{} is not a regular file; the gateway reads it more than once, so write the configuration to one", path.display())]
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

pub fn read(path: &Path) -> Result<(String, Origin), LoadError> {
    let asked = path.to_owned();
    let read = bounded::in_time(move || {
        let (bytes, file) = bounded::read_open(&asked, MAX_SIZE)?;
        let mode = file.metadata()?.permissions().mode();
        Ok((bytes, mode, trust::examine(&asked)?, directory(&asked)?))
    });
    let (bytes, mode, distrust, directory) = read.and_then(|read| read).map_err(|error: ReadError| error.of(path))?;
    let origin = Origin { file: path.display().to_string(), directory, mode: Some(mode), distrust };
    match String::from_utf8(bytes) {
        Ok(text) => Ok((text, origin)),
        Err(error) => Err(LoadError::Problems(not_utf8(&error, &origin))),
    }
}

fn directory(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    Ok(absolute.parent().unwrap_or(Path::new("/")).to_owned())
}

fn not_utf8(error: &std::string::FromUtf8Error, origin: &Origin) -> Problems {
    let valid = error.utf8_error().valid_up_to();
    let text = String::from_utf8_lossy(&error.as_bytes()[..valid]);
    let report = Report::default();
    report.problem(valid, "", Fault::new("the file is not UTF-8 from here on"));
    report.finish(&text, &origin.file).expect_err("a problem was just reported")
}

/// Where to read the configuration from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// Asked for, or there. A file that was asked for need not exist: reading it will tell.
    At(PathBuf),
    Nowhere(Searched),
}

/// The places that were tried in vain, as sentences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Searched(Vec<String>);

impl fmt::Display for Searched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "no configuration: {}", self.0.join(", "))
    }
}

impl std::error::Error for Searched {}

pub(crate) fn locate(flag: Option<&Path>, environment: Environment<'_>) -> Located {
    if let Some(path) = flag {
        return Located::At(path.to_owned());
    }
    let mut searched = vec!["--config was not given".to_owned()];
    // A variable that is set but empty counts as not set, here and below.
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set("GOBLIN_CONFIG") {
        return Located::At(path);
    }
    searched.push("GOBLIN_CONFIG is not set".to_owned());
    let Some(path) = user_directory(environment).map(|directory| directory.join("goblin").join("goblin.json")) else {
        searched.push("neither XDG_CONFIG_HOME nor HOME is set".to_owned());
        return Located::Nowhere(Searched(searched));
    };
    // A file that is there but hidden from us is found too, so that reading it tells why.
    if matches!(path.try_exists(), Ok(false)) {
        searched.push(format!("{} does not exist", path.display()));
        return Located::Nowhere(Searched(searched));
    }
    Located::At(path)
}

/// The directory of the user's configurations. The XDG rules: a relative one is to be ignored.
pub(crate) fn user_directory(environment: Environment<'_>) -> Option<PathBuf> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let xdg = set("XDG_CONFIG_HOME").filter(|directory| directory.is_absolute());
    xdg.or_else(|| set("HOME").map(|home| home.join(".config")))
}

/// Where a configuration is written: as in [`locate`], whether it is there or not.
pub fn target(flag: Option<&Path>, environment: Environment<'_>) -> Result<PathBuf, Searched> {
    match locate(flag, environment) {
        Located::At(path) => Ok(path),
        Located::Nowhere(searched) => {
            let directory = user_directory(environment).ok_or(searched)?;
            Ok(directory.join("goblin").join("goblin.json"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{LoadError, Located, locate, read};

    /// A directory of its own for each test, removed at the end.
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
    fn flag_then_variable_then_home() {
        let scratch = Scratch::new("locate");
        let home = scratch.0.to_str().unwrap().to_owned();
        let file = scratch.0.join(".config/goblin/goblin.json");
        let with_home = |name: &str| (name == "HOME").then(|| home.clone());
        let all = |name: &str| (name == "GOBLIN_CONFIG").then(|| "/asked/for.json".to_owned()).or(with_home(name));

        assert_eq!(locate(Some(Path::new("x.json")), &all), Located::At("x.json".into()));
        assert_eq!(locate(None, &all), Located::At("/asked/for.json".into()));
        let Located::Nowhere(searched) = locate(None, &with_home) else { panic!("nothing is there yet") };
        let expected = format!(
            "no configuration: --config was not given, GOBLIN_CONFIG is not set, {} does not exist",
            file.display()
        );
        assert_eq!(searched.to_string(), expected);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(locate(None, &with_home), Located::At(file));
    }

    #[test]
    fn xdg_directory_wins_when_absolute() {
        let scratch = Scratch::new("xdg");
        let directory = scratch.0.join("goblin");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("goblin.json"), "{}").unwrap();
        let absolute = scratch.0.to_str().unwrap().to_owned();
        let environment = |name: &str| (name == "XDG_CONFIG_HOME").then(|| absolute.clone());
        assert_eq!(locate(None, &environment), Located::At(directory.join("goblin.json")));
        let relative = |name: &str| (name == "XDG_CONFIG_HOME").then(|| "here".to_owned());
        let Located::Nowhere(searched) = locate(None, &relative) else { panic!("relative is ignored") };
        assert!(searched.to_string().ends_with("neither XDG_CONFIG_HOME nor HOME is set"));
    }

    #[test]
    fn unreadable_files_say_why() {
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
