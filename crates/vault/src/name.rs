//! The names of entries, and the names of their files.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use crate::{MAX_NAME_BYTES, VaultError};

/// The end of the name of a file with an entry.
const ENTRY: &str = ".entry";
const LOCK: &str = ".lock";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    Secret,
    Login,
}

/// The name of an entry: of a secret, or of a server with a login. Any text of 1 to [`MAX_NAME_BYTES`] bytes. The file
/// name has only its hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryName(String);

impl EntryName {
    pub fn new(text: &str) -> Result<EntryName, VaultError> {
        match text.len() {
            1..=MAX_NAME_BYTES => Ok(EntryName(text.to_owned())),
            _ => Err(VaultError::Name),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The place of an entry: the hash of its kind and name. The hash is part of the file name and is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryAddress {
    kind: EntryKind,
    hash: [u8; 32],
}

impl EntryAddress {
    pub fn new(kind: EntryKind, name: &EntryName) -> EntryAddress {
        let mut hash = Sha256::new();
        hash.update(kind.word());
        hash.update([0]);
        hash.update(&name.0);
        EntryAddress { kind, hash: hash.finalize().into() }
    }

    /// Returns the address of a file with an entry of this kind. Returns `None` for any other file name.
    pub(crate) fn of_file(kind: EntryKind, file_name: &str) -> Option<EntryAddress> {
        let digits = file_name.strip_prefix(kind.word())?.strip_prefix('-')?.strip_suffix(ENTRY)?;
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() || !digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(EntryAddress { kind, hash })
    }

    pub(crate) fn kind(&self) -> EntryKind {
        self.kind
    }

    /// Returns the bytes that are authenticated with an entry.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        [self.kind.word().as_bytes(), b"\0", &self.hash].concat()
    }

    pub(crate) fn entry_file(&self) -> String {
        format!("{}-{}{ENTRY}", self.kind.word(), hex(&self.hash))
    }

    pub(crate) fn lock_file(&self) -> String {
        format!("{}-{}{LOCK}", self.kind.word(), hex(&self.hash))
    }
}

impl EntryKind {
    fn word(self) -> &'static str {
        match self {
            EntryKind::Secret => "secret",
            EntryKind::Login => "login",
        }
    }
}

pub(crate) fn is_entry_file(file_name: &str) -> bool {
    file_name.ends_with(ENTRY)
}

pub(crate) fn is_lock_file(file_name: &str) -> bool {
    file_name.ends_with(LOCK)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
