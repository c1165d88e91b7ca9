//! The format of a file with an entry: a mark, a format number, a nonce, and the encrypted name and value.
//!
//! The mark, the format and the address of the entry are authenticated. A file in the place of another one is therefore
//! rejected. Each write uses a new random nonce.

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use goblin_config::secret::Secret;

use crate::key::Key;
use crate::name::{EntryAddress, EntryName};
use crate::{MAX_NAME_BYTES, MAX_VALUE_BYTES};

/// The first bytes of each entry.
const MARK: &[u8; 4] = b"GBLV";
/// The format that this version writes.
pub const FORMAT: u8 = 1;
const HEAD: usize = MARK.len() + 1;
const NONCE_LENGTH: usize = 12;
const TAG_LENGTH: usize = 16;
const NAME_LENGTH: usize = size_of::<u16>();
/// The size of the largest file.
pub(crate) const MAX_FILE_BYTES: usize =
    HEAD + NONCE_LENGTH + NAME_LENGTH + MAX_NAME_BYTES + MAX_VALUE_BYTES + TAG_LENGTH;

/// Encrypts and decrypts entries with one key.
pub struct EntryCipher {
    key: RandomizedNonceKey,
}

/// The reason why a file is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFault {
    Damaged,
    NewerFormat(u8),
}

impl EntryCipher {
    pub fn new(key: &Key) -> EntryCipher {
        let key = RandomizedNonceKey::new(&AES_256_GCM, &key.derive(b"goblin vault entries"));
        EntryCipher { key: key.expect("the key has the length of the algorithm") }
    }

    /// Returns the file of an entry. The caller checks the length of the value.
    pub fn seal(&self, address: &EntryAddress, name: &EntryName, value: &Secret) -> Vec<u8> {
        let length = u16::try_from(name.as_str().len()).expect("a name has at most MAX_NAME_BYTES bytes");
        let mut sealed = length.to_be_bytes().to_vec();
        sealed.extend_from_slice(name.as_str().as_bytes());
        sealed.extend_from_slice(value.expose().as_bytes());
        let mut file = [&MARK[..], &[FORMAT]].concat();
        let nonce = self.key.seal_in_place_append_tag(authenticated(&file, address), &mut sealed);
        file.extend_from_slice(nonce.expect("an entry is far shorter than the algorithm's bound").as_ref());
        file.append(&mut sealed);
        file
    }

    /// Returns the name and the value in the file of an entry.
    pub fn open(&self, address: &EntryAddress, file: &[u8]) -> Result<(EntryName, Secret), EntryFault> {
        let (head, rest) = file.split_at_checked(HEAD).ok_or(EntryFault::Damaged)?;
        if let Some(format) = newer_format(file) {
            return Err(EntryFault::NewerFormat(format));
        }
        if head != [&MARK[..], &[FORMAT]].concat() {
            return Err(EntryFault::Damaged);
        }
        self.decrypt(address, head, rest).ok_or(EntryFault::Damaged)
    }

    fn decrypt(&self, address: &EntryAddress, head: &[u8], rest: &[u8]) -> Option<(EntryName, Secret)> {
        let (nonce, sealed) = rest.split_at_checked(NONCE_LENGTH)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let plain = self.key.open_in_place(nonce, authenticated(head, address), &mut sealed).ok()?;
        let (length, plain) = plain.split_first_chunk::<NAME_LENGTH>()?;
        let (name, value) = plain.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        let name = EntryName::new(std::str::from_utf8(name).ok()?).ok()?;
        let is_own = EntryAddress::new(address.kind(), &name) == *address;
        let value = std::str::from_utf8(value).ok().filter(|value| is_own && value.len() <= MAX_VALUE_BYTES)?;
        Some((name, Secret::new(value)))
    }
}

/// Returns the format of a file that a newer version wrote.
pub(crate) fn newer_format(file: &[u8]) -> Option<u8> {
    let format = file.strip_prefix(MARK)?.first()?;
    (*format > FORMAT).then_some(*format)
}

fn authenticated(head: &[u8], address: &EntryAddress) -> Aad<Vec<u8>> {
    Aad::from([head, &address.bytes()].concat())
}

impl fmt::Debug for EntryCipher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("EntryCipher")
    }
}
