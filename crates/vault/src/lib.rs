//! The vault: secrets and logins in encrypted files. SKELETON, the owner replaces the bodies and splits the file.
use goblin_config::secret::Secret;
use std::path::{Path, PathBuf};

/// The encrypted store of one user. Opens its files at each call, so that several processes share it. All calls block.
pub struct Vault {
    _directory: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Secret,
    Login,
}

/// The name of an entry: of a secret, or of a server with a login. Any text up to 256 bytes; the file name is derived.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    #[error("the vault cannot be used")]
    Placeholder,
}

/// Changes with each write of an entry, in this or another process. Cheap to read: metadata of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version(u64, u64);

/// Held while one process changes an entry. Released on drop and on the death of the process.
pub struct EntryLock;

impl EntryName {
    pub fn new(_text: &str) -> Result<EntryName, VaultError> {
        todo!()
    }
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Vault {
    /// `environment` finds the key: CREDENTIALS_DIRECTORY, GOBLIN_KEY_FILE.
    pub fn new(_directory: PathBuf, _environment: &dyn Fn(&str) -> Option<String>) -> Vault {
        todo!()
    }
    /// `$XDG_STATE_HOME/goblin/vault`, or below HOME.
    pub fn default_directory(_environment: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
        todo!()
    }
    pub fn directory(&self) -> &Path {
        todo!()
    }
    pub fn read(&self, _kind: EntryKind, _name: &EntryName) -> Result<Option<Secret>, VaultError> {
        todo!()
    }
    /// Durable when it returns: fsync of file and directory.
    pub fn write(&self, _kind: EntryKind, _name: &EntryName, _value: &Secret) -> Result<(), VaultError> {
        todo!()
    }
    /// Returns whether there was an entry.
    pub fn remove(&self, _kind: EntryKind, _name: &EntryName) -> Result<bool, VaultError> {
        todo!()
    }
    pub fn names(&self, _kind: EntryKind) -> Result<Vec<EntryName>, VaultError> {
        todo!()
    }
    pub fn version(&self, _kind: EntryKind, _name: &EntryName) -> Version {
        todo!()
    }
    /// Waits for the lock of an entry: a file of its own that is never renamed or removed.
    pub fn lock(&self, _kind: EntryKind, _name: &EntryName) -> Result<EntryLock, VaultError> {
        todo!()
    }
    /// Takes the lock of an entry if nobody holds it.
    pub fn try_lock(&self, _kind: EntryKind, _name: &EntryName) -> Result<Option<EntryLock>, VaultError> { todo!() }
    pub fn key_source(&self) -> Result<String, VaultError> {
        todo!()
    }
}
