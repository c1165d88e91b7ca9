//! The vault: secrets and logins of one user in encrypted files.
//!
//! Each entry is one file, encrypted with AES-256-GCM. Several processes share a vault: they open its files at each
//! call, and each write replaces a whole file. The directory and its files must belong to the user alone.
//!
//! Nothing is created or read before the first call. The key is kept in memory once it was found. A failure is not kept,
//! so that a vault that was repaired works without a restart.

mod disk;
pub mod entry;
mod error;
pub mod key;
mod name;
mod open;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use goblin_config::secret::Secret;
use parking_lot::Mutex;

pub use crate::error::VaultError;
pub use crate::name::{EntryAddress, EntryKind, EntryName};

use crate::disk::OpenError;
use crate::entry::EntryFault;
use crate::key::{KeyPlaces, KeySource};
use crate::open::{Missing, OpenVault};

pub const MAX_NAME_BYTES: usize = 256;
pub const MAX_VALUE_BYTES: usize = 64 << 10;
pub const MAX_ENTRIES: usize = 10_000;
/// The maximum number of lock files. They are never removed, because another process may wait for one.
pub const MAX_LOCKS: usize = 2 * MAX_ENTRIES;

/// The encrypted store of one user. Opens its files at each call, so that several processes share it. All calls block.
pub struct Vault {
    directory: PathBuf,
    places: KeyPlaces,
    open: Mutex<Option<Arc<OpenVault>>>,
    /// Set once the directories above the vault were examined.
    is_examined: OnceLock<()>,
}

/// Changes with each write of an entry, in this or another process. Cheap to read: metadata of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version(u64, u64);

/// Held while one process changes an entry. Released on drop and on the death of the process.
#[derive(Debug)]
pub struct EntryLock {
    /// The file with the lock. Closing the file releases the lock.
    _file: File,
}

impl Vault {
    /// Creates a vault in a directory, which need not exist. `environment` finds the key: CREDENTIALS_DIRECTORY,
    /// GOBLIN_KEY_FILE.
    pub fn new(directory: PathBuf, environment: &dyn Fn(&str) -> Option<String>) -> Vault {
        let (open, is_examined) = (Mutex::default(), OnceLock::new());
        Vault { directory, places: KeyPlaces::of(environment), open, is_examined }
    }

    /// Returns `$XDG_STATE_HOME/goblin/vault`, or the directory below HOME.
    pub fn default_directory(environment: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
        let set = |name: &str| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let state = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")))?;
        Some(state.join("goblin/vault"))
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the value of an entry. Returns `None` if there is no entry.
    pub fn read(&self, kind: EntryKind, name: &EntryName) -> Result<Option<Secret>, VaultError> {
        let address = EntryAddress::new(kind, name);
        if !self.exists()? {
            return Ok(None);
        }
        self.read_at(&address).map(|found| found.map(|(_, value)| value))
    }

    /// Writes an entry. The entry is durable when the function returns: file and directory are synced. A failure leaves
    /// the old entry. An entry with a newer format is not replaced.
    pub fn write(&self, kind: EntryKind, name: &EntryName, value: &Secret) -> Result<(), VaultError> {
        if value.expose().len() > MAX_VALUE_BYTES {
            return Err(VaultError::TooLarge);
        }
        self.create()?;
        let open = self.open(Missing::Create)?;
        let address = EntryAddress::new(kind, name);
        let file = address.entry_file();
        if self.version(kind, name) == Version::default() && self.is_full(name::is_entry_file, MAX_ENTRIES)? {
            return Err(VaultError::Full(self.directory.clone()));
        }
        let path = self.directory.join(&file);
        let old = disk::read_private(&path, entry::MAX_FILE_BYTES as u64).ok().flatten();
        if let Some(format) = old.as_deref().and_then(entry::newer_format) {
            return Err(VaultError::NewerFormat { path, format: u64::from(format) });
        }
        disk::replace(&self.directory, &file, &open.cipher.seal(&address, name, value))
    }

    /// Removes an entry. Returns whether there was one. A damaged entry and an entry of another key can be removed too.
    pub fn remove(&self, kind: EntryKind, name: &EntryName) -> Result<bool, VaultError> {
        match self.exists()? {
            true => disk::remove(&self.directory, &EntryAddress::new(kind, name).entry_file()),
            false => Ok(false),
        }
    }

    /// Returns the names of all entries of a kind, in order.
    pub fn names(&self, kind: EntryKind) -> Result<Vec<EntryName>, VaultError> {
        if !self.exists()? {
            return Ok(Vec::new());
        }
        let is_wanted = |file: &str| EntryAddress::of_file(kind, file).is_some();
        let files = disk::list(&self.directory, MAX_ENTRIES, is_wanted)?;
        let mut names = Vec::with_capacity(files.len());
        for address in files.iter().filter_map(|file| EntryAddress::of_file(kind, file)) {
            // Another process may have removed the entry.
            names.extend(self.read_at(&address)?.map(|(name, _)| name));
        }
        names.sort();
        Ok(names)
    }

    /// Returns the version of an entry. Returns the default if there is no entry.
    pub fn version(&self, kind: EntryKind, name: &EntryName) -> Version {
        Version::of(&self.directory.join(EntryAddress::new(kind, name).entry_file()))
    }

    /// Waits for the lock of an entry: a file of its own that is never renamed or removed.
    pub fn lock(&self, kind: EntryKind, name: &EntryName) -> Result<EntryLock, VaultError> {
        let (file, path) = self.lock_file(kind, name)?;
        file.lock().map_err(|error| VaultError::disk("lock", &path, &error))?;
        Ok(EntryLock { _file: file })
    }

    /// Takes the lock of an entry. Returns `None` if another process or task holds it.
    pub fn try_lock(&self, kind: EntryKind, name: &EntryName) -> Result<Option<EntryLock>, VaultError> {
        let (file, path) = self.lock_file(kind, name)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(EntryLock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(VaultError::disk("lock", &path, &error)),
        }
    }

    /// Opens the lock file of an entry. Returns its path as well.
    fn lock_file(&self, kind: EntryKind, name: &EntryName) -> Result<(File, PathBuf), VaultError> {
        self.create()?;
        let path = self.directory.join(EntryAddress::new(kind, name).lock_file());
        let is_new = path.symlink_metadata().is_err();
        if is_new && self.is_full(name::is_lock_file, MAX_LOCKS)? {
            return Err(VaultError::TooManyLocks(self.directory.clone()));
        }
        let options = &mut OpenOptions::new();
        let file = disk::open_private(&path, options.write(true).create(true)).map_err(|error| match error {
            OpenError::Vault(error) => error,
            OpenError::Io(error) => VaultError::disk("open", &path, &error),
        })?;
        Ok((file, path))
    }

    /// Returns the place that the key comes from. Creates nothing: a vault without entries may have no key yet.
    pub fn key_source(&self) -> Result<String, VaultError> {
        match self.exists()? {
            true => self.open(Missing::Reject).map(|open| open.source.to_string()),
            false => Err(VaultError::NoRecord(self.directory.clone())),
        }
    }

    /// Reports whether the key is a file in the vault itself. A key in the vault protects no more than its mode does.
    pub fn has_generated_key(&self) -> Result<bool, VaultError> {
        match self.exists()? && disk::read_private(&self.directory.join(open::RECORD_FILE), open::MAX_RECORD)?.is_some()
        {
            true => self.open(Missing::Reject).map(|open| matches!(open.source, KeySource::Generated(_))),
            false => Ok(false),
        }
    }

    /// Returns the name and the value of the entry at an address.
    fn read_at(&self, address: &EntryAddress) -> Result<Option<(EntryName, Secret)>, VaultError> {
        let path = self.directory.join(address.entry_file());
        let Some(bytes) = disk::read_private(&path, entry::MAX_FILE_BYTES as u64)? else { return Ok(None) };
        let open = self.open(Missing::Reject)?;
        open.cipher.open(address, &bytes).map(Some).map_err(|fault| match fault {
            EntryFault::Damaged => VaultError::Damaged(path),
            EntryFault::NewerFormat(format) => VaultError::NewerFormat { path, format: u64::from(format) },
        })
    }

    /// Reports whether the directory exists. Returns an error if others can access or replace it.
    fn exists(&self) -> Result<bool, VaultError> {
        if !disk::check_directory(&self.directory)? {
            return Ok(false);
        }
        if self.is_examined.get().is_none() {
            disk::check_path(&self.directory)?;
            let _ = self.is_examined.set(());
        }
        Ok(true)
    }

    /// Creates the directory, if there is none.
    fn create(&self) -> Result<(), VaultError> {
        if !self.exists()? {
            disk::create_directory(&self.directory)?;
            self.exists()?;
        }
        Ok(())
    }

    fn open(&self, missing: Missing) -> Result<Arc<OpenVault>, VaultError> {
        if let Some(open) = self.open.lock().clone().filter(|open| open.is_current(&self.directory)) {
            return Ok(open);
        }
        let open = Arc::new(OpenVault::open(&self.directory, &self.places, missing)?);
        disk::remove_leftovers(&self.directory);
        *self.open.lock() = Some(Arc::clone(&open));
        Ok(open)
    }

    fn is_full(&self, is_counted: impl Fn(&str) -> bool, max: usize) -> Result<bool, VaultError> {
        disk::list(&self.directory, max, is_counted).map(|files| files.len() == max)
    }
}

impl fmt::Debug for Vault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Vault").field(&self.directory).finish()
    }
}
