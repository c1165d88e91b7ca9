//! The reasons why the vault cannot be used. No message has a secret or a part of a key.

use std::io;
use std::path::{Path, PathBuf};

use crate::{MAX_ENTRIES, MAX_LOCKS, MAX_NAME_BYTES, MAX_VALUE_BYTES};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    #[error("the name of an entry has 1 to {MAX_NAME_BYTES} bytes")]
    Name,
    #[error("the value of an entry has at most {MAX_VALUE_BYTES} bytes")]
    TooLarge,
    #[error("the vault {} has {MAX_ENTRIES} entries, no more fit (remove some: goblin secret remove NAME)", .0.display())]
    Full(PathBuf),
    #[error("the vault {} has {MAX_LOCKS} lock files (stop all gateways, then remove its files *.lock)", .0.display())]
    TooManyLocks(PathBuf),
    /// Others can read or change a file or directory.
    #[error("the vault is not private: {flaw} ({cure})")]
    Exposed { flaw: String, cure: String },
    #[error("cannot {action} {}: {reason}", .path.display())]
    Disk { action: &'static str, path: PathBuf, reason: String },
    #[error(
        "the vault file {} is damaged or was written with another key (restore it from a backup, or remove it: rm {})",
        .0.display(), goblin_config::trust::shell_path(&.0.to_string_lossy())
    )]
    Damaged(PathBuf),
    #[error(
        "the vault file {} has format {format}, a newer goblin wrote it (update this goblin)", .path.display()
    )]
    NewerFormat { path: PathBuf, format: u64 },
    #[error(
        "the vault {} has entries, but the file vault.json is missing (restore it from a backup, or remove the vault \
         and set its secrets again: rm -r {})",
        .0.display(), goblin_config::trust::shell_path(&.0.to_string_lossy())
    )]
    NoRecord(PathBuf),
    /// A file has no usable key.
    #[error("{place} has no usable key: {flaw} ({cure})")]
    Key { place: String, flaw: String, cure: String },
    #[error("{recorded} encrypted the vault {}, but {found} ({cure})", .directory.display())]
    OtherKey { directory: PathBuf, recorded: String, found: String, cure: String },
}

impl VaultError {
    pub(crate) fn disk(action: &'static str, path: &Path, error: &io::Error) -> VaultError {
        VaultError::Disk { action, path: path.to_owned(), reason: error.to_string() }
    }
}
