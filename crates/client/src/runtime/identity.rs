//! Identifies the configuration of a gateway, so that another program can compare it with its own.
//!
//! Two programs agree if they read the same text of the same file, resolve its paths in the same directory, and have
//! the same values of its variables. Values are compared by salted hashes. A variable that is not set here counts as
//! equal, because clients often start their servers with few variables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::environment::Variables;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The configuration file, with symbolic links resolved.
    pub config: Option<PathBuf>,
    /// The directory that is served if there is no file.
    pub directory: Option<PathBuf>,
    /// The hash of the text and of the base directory of its relative paths.
    pub digest: Option<String>,
}

impl Identity {
    pub fn of_file(path: &Path, text: &str, base: &Path) -> Identity {
        let mut digest = Sha256::new();
        digest.update(real(base).as_os_str().as_encoded_bytes());
        digest.update([0]);
        digest.update(text.as_bytes());
        Identity { config: Some(real(path)), directory: None, digest: Some(hex(&digest.finalize())) }
    }

    pub fn of_directory(directory: &Path) -> Identity {
        Identity { config: None, directory: Some(real(directory)), digest: None }
    }

    /// Reports whether both name the same file or directory. The content may differ.
    pub fn is_same_place(&self, other: &Identity) -> bool {
        self.config == other.config && self.directory == other.directory
    }

    /// Returns the path of the file or directory, for messages.
    pub fn place(&self) -> String {
        match (&self.config, &self.directory) {
            (Some(path), _) | (None, Some(path)) => path.display().to_string(),
            (None, None) => "nothing".to_owned(),
        }
    }
}

/// Salted hashes of variables: their values can be compared but not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprints {
    salt: String,
    /// The hash of each variable. `None` if the variable was not set.
    variables: BTreeMap<String, Option<String>>,
}

impl Fingerprints {
    pub fn new(salt: [u8; 16], variables: &Variables) -> Fingerprints {
        Fingerprints { salt: hex(&salt), variables: BTreeMap::new() }.of(variables)
    }

    /// Returns the hashes of other values with the same salt.
    pub fn of(&self, variables: &Variables) -> Fingerprints {
        let salt = self.salt.clone();
        let fingerprint = |(name, value): (&String, &Option<String>)| {
            (name.clone(), value.as_ref().map(|value| fingerprint(&salt, name, value)))
        };
        Fingerprints { variables: variables.iter().map(fingerprint).collect(), salt }
    }

    /// Returns the variables that are set here to a different value.
    pub fn differing(&self, here: impl Fn(&str) -> Option<String>) -> Vec<&str> {
        let differs = |(name, theirs): (&'_ String, &Option<String>)| {
            here(name).is_some_and(|value| *theirs != Some(fingerprint(&self.salt, name, &value)))
        };
        let names = self.variables.iter().filter(|entry| differs(*entry));
        names.map(|(name, _)| name.as_str()).collect()
    }
}

fn fingerprint(salt: &str, name: &str, value: &str) -> String {
    let mut digest = Sha256::new();
    for part in [salt, name, value] {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    hex(&digest.finalize())
}

fn real(path: &Path) -> PathBuf {
    let absolute = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| absolute())
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_identity_depends_on_the_text_and_the_base_directory() {
        let one = Identity::of_file(Path::new("/a/goblin.json"), "{}", Path::new("/a"));
        assert_eq!(one, Identity::of_file(Path::new("/a/goblin.json"), "{}", Path::new("/a")));
        for other in [
            Identity::of_file(Path::new("/a/goblin.json"), "{ }", Path::new("/a")),
            Identity::of_file(Path::new("/a/goblin.json"), "{}", Path::new("/b")),
        ] {
            assert!(one.is_same_place(&other));
            assert_ne!(one, other);
        }
        assert!(!one.is_same_place(&Identity::of_directory(Path::new("/a"))));
    }

    #[test]
    fn variables_are_compared_by_value_and_an_absent_one_does_not_differ() {
        let there = [("A", Some("1")), ("B", Some("2")), ("UNSET", None)];
        let there = there.map(|(name, value)| (name.to_owned(), value.map(str::to_owned))).into();
        let fingerprints = Fingerprints::new([7; 16], &there);
        assert!(!serde_json::to_string(&fingerprints).unwrap().contains("\"1\""));
        for (here, expected) in [
            (&[("A", "1"), ("B", "2")][..], &[][..]),
            (&[("A", "1")], &[]),
            (&[], &[]),
            (&[("A", "2"), ("B", "2")], &["A"]),
            (&[("A", "x"), ("B", "y")], &["A", "B"]),
            (&[("UNSET", "now it is")], &["UNSET"]),
            (&[("ELSE", "does not matter")], &[]),
        ] {
            let lookup =
                |name: &str| here.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
            assert_eq!(fingerprints.differing(lookup), expected, "{here:?}");
        }
    }
}
