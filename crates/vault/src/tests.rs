//! Tests of a vault in a directory of its own.

mod bounds;
mod entries;
mod keys;
mod privacy;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use goblin_config::secret::Secret;

use crate::{EntryAddress, EntryKind, EntryName, Vault};

/// A directory that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("goblin-vault-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        set_mode(&path, 0o700);
        Scratch(path)
    }

    fn directory(&self) -> PathBuf {
        self.0.join("state/vault")
    }

    /// Opens the vault as a new process would, without a key outside of the vault.
    fn vault(&self) -> Vault {
        Vault::new(self.directory(), &|_| None)
    }

    /// Opens the vault with `GOBLIN_KEY_FILE`.
    fn vault_with_key(&self, file: &Path) -> Vault {
        let file = file.to_str().unwrap().to_owned();
        Vault::new(self.directory(), &|name| (name == "GOBLIN_KEY_FILE").then(|| file.clone()))
    }

    fn entry_file(&self, text: &str) -> PathBuf {
        self.directory().join(EntryAddress::new(EntryKind::Secret, &name(text)).entry_file())
    }

    /// Returns the names of the files in the vault, sorted.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn name(text: &str) -> EntryName {
    EntryName::new(text).unwrap()
}

fn write(vault: &Vault, text: &str, value: &str) {
    vault.write(EntryKind::Secret, &name(text), &Secret::new(value)).unwrap();
}

/// Returns the value of a secret, or the message of the error.
fn read(vault: &Vault, text: &str) -> Result<Option<String>, String> {
    let found = vault.read(EntryKind::Secret, &name(text)).map_err(|error| error.to_string())?;
    Ok(found.map(|value| value.expose().to_owned()))
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o777
}

#[track_caller]
fn assert_mentions(message: &str, parts: &[&str]) {
    parts.iter().for_each(|part| assert!(message.contains(part), "no {part:?} in {message:?}"));
}
