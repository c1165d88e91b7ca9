//! Opens a vault: finds its key and compares it with the record of the vault.
//!
//! `vault.json` records the source of the key and a value that identifies the key. The first write creates it. Without
//! this record, a shell and a service with different keys would each write entries that the other cannot read.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::entry::EntryCipher;
use crate::key::{self, GENERATED_FILE, Key, KeyPlaces, KeySource};
use crate::name::is_entry_file;
use crate::{VaultError, Version, disk};

pub(crate) const RECORD_FILE: &str = "vault.json";
const FORMAT: u64 = 1;
pub(crate) const MAX_RECORD: u64 = 16 << 10;

/// An open vault: the cipher for its entries.
#[derive(Debug)]
pub(crate) struct OpenVault {
    pub(crate) cipher: EntryCipher,
    pub(crate) source: KeySource,
    /// The version of the record that the key was compared with.
    record: Version,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VaultRecord {
    format: u64,
    key: KeySource,
    check: String,
}

/// Decides what to do if the vault has no record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Create the record, and a key if there is none.
    Create,
    Reject,
}

impl OpenVault {
    /// Reports whether the vault still has the record that this key was compared with.
    pub(crate) fn is_current(&self, directory: &Path) -> bool {
        self.record == Version::of(&directory.join(RECORD_FILE))
    }

    pub(crate) fn open(directory: &Path, places: &KeyPlaces, missing: Missing) -> Result<OpenVault, VaultError> {
        let path = directory.join(RECORD_FILE);
        let record = Version::of(&path);
        match read_record(&path)? {
            Some(recorded) => OpenVault::compare(directory, places, recorded, record),
            None if missing == Missing::Reject || has_entries(directory)? && record == Version::of(&path) => {
                Err(VaultError::NoRecord(directory.to_owned()))
            }
            None => {
                let (key, source) = find_or_create(directory, places)?;
                let created = VaultRecord { format: FORMAT, key: source, check: key.check_value() };
                let text = serde_json::to_vec_pretty(&created).expect("a record has only texts and numbers");
                disk::create_once(directory, RECORD_FILE, &text)?;
                // Another process may have created another record first.
                OpenVault::open(directory, places, Missing::Reject)
            }
        }
    }

    fn compare(
        directory: &Path,
        places: &KeyPlaces,
        recorded: VaultRecord,
        record: Version,
    ) -> Result<OpenVault, VaultError> {
        let found = match places.find()? {
            Some(found) => Some(found),
            None => key::read_generated(directory)?,
        };
        let other = |found: Option<&KeySource>| VaultError::OtherKey {
            directory: directory.to_owned(),
            recorded: recorded.key.to_string(),
            found: found.map_or("no key was found".to_owned(), |source| format!("{source} has another key")),
            cure: recorded.key.cure(found, directory),
        };
        match found {
            None => Err(other(None)),
            Some((key, source)) if key.check_value() != recorded.check => Err(other(Some(&source))),
            Some((key, source)) => Ok(OpenVault { cipher: EntryCipher::new(&key), source, record }),
        }
    }
}

fn read_record(path: &Path) -> Result<Option<VaultRecord>, VaultError> {
    #[derive(Deserialize)]
    struct Format {
        format: u64,
    }
    let Some(bytes) = disk::read_private(path, MAX_RECORD)? else { return Ok(None) };
    let damaged = |_| VaultError::Damaged(path.to_owned());
    let Format { format } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if format > FORMAT {
        return Err(VaultError::NewerFormat { path: path.to_owned(), format });
    }
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

fn has_entries(directory: &Path) -> Result<bool, VaultError> {
    disk::list(directory, 1, is_entry_file).map(|names| !names.is_empty())
}

/// Returns the key for a new vault. If another process creates one at the same time, returns that one.
fn find_or_create(directory: &Path, places: &KeyPlaces) -> Result<(Key, KeySource), VaultError> {
    if let Some(found) = places.find()? {
        return Ok(found);
    }
    if let Some(found) = key::read_generated(directory)? {
        return Ok(found);
    }
    let no_random = |_| std::io::Error::other("the system has no random source");
    let key = Key::random().map_err(no_random);
    let key = key.map_err(|error| VaultError::disk("create", &directory.join(GENERATED_FILE), &error))?;
    disk::create_once(directory, GENERATED_FILE, key.to_line().as_bytes())?;
    key::read_generated(directory)?.ok_or_else(|| VaultError::NoRecord(directory.to_owned()))
}
