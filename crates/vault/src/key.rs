//! The key of a vault: 32 bytes from systemd, from a file that the user names, or from a file that the vault creates.
//!
//! The first source that exists is used. A source with an unusable key is an error, the next source is not tried.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use goblin_config::{bounded, trust};
use rustix::fs::{StatVfsMountFlags, statvfs};
use serde::{Deserialize, Serialize};

use crate::name::hex;
use crate::{VaultError, disk};

/// The name of the systemd credential.
pub const CREDENTIAL: &str = "goblin.key";
/// The variable with the path of a key file.
pub const KEY_FILE_VARIABLE: &str = "GOBLIN_KEY_FILE";
const CREDENTIALS_VARIABLE: &str = "CREDENTIALS_DIRECTORY";
/// The file in the vault with the key that the vault created.
pub(crate) const GENERATED_FILE: &str = "key";
const KEY_LENGTH: usize = 32;
/// The size limit of a file with a key.
const MAX_KEY_FILE: u64 = 1024;
const CURE: &str = "create a key: openssl rand -hex 32";

/// A key of 256 bits. Other keys are derived from it, it encrypts nothing itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; KEY_LENGTH]);

/// The place that a key comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "path", rename_all = "camelCase")]
pub(crate) enum KeySource {
    Credential(PathBuf),
    File(PathBuf),
    Generated(PathBuf),
}

/// The places of keys outside of the vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyPlaces {
    credential: Option<PathBuf>,
    file: Option<PathBuf>,
}

impl Key {
    /// Reads a key: 32 bytes, or their text in hex or base64 with an optional line end. Returns the flaw otherwise.
    pub fn parse(bytes: &[u8]) -> Result<Key, &'static str> {
        let key = if bytes.len() == KEY_LENGTH && !bytes.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            bytes.to_vec()
        } else {
            let text = std::str::from_utf8(bytes).map_err(|_| "the content is neither 32 bytes nor a text")?;
            let text = text.trim_ascii_end();
            match text.len() {
                0 => return Err("the file is empty"),
                64 => from_hex(text),
                _ => from_base64(text),
            }
            .ok_or("the text is not a key of 32 bytes in hex or base64")?
        };
        let key: [u8; KEY_LENGTH] = key.try_into().map_err(|_| "the key has not 32 bytes")?;
        if key.iter().all(|byte| *byte == key[0]) {
            return Err("all bytes of the key are equal");
        }
        Ok(Key(key))
    }

    /// Returns a new random key.
    pub(crate) fn random() -> Result<Key, aws_lc_rs::error::Unspecified> {
        let mut key = [0; KEY_LENGTH];
        aws_lc_rs::rand::fill(&mut key).map(|()| Key(key))
    }

    /// Returns a key for one purpose.
    pub(crate) fn derive(&self, purpose: &[u8]) -> [u8; KEY_LENGTH] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), purpose);
        tag.as_ref().try_into().expect("a tag of SHA-256 has 32 bytes")
    }

    /// Returns the text that identifies this key. The key cannot be computed from it.
    pub(crate) fn check_value(&self) -> String {
        hex(&self.derive(b"goblin vault check")[..16])
    }

    /// Returns the content of a key file.
    pub(crate) fn to_line(&self) -> String {
        format!("{}\n", hex(&self.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[key]")
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::Credential(path) => write!(formatter, "the systemd credential {}", path.display()),
            KeySource::File(path) => write!(formatter, "the key file {} ({KEY_FILE_VARIABLE})", path.display()),
            KeySource::Generated(path) => write!(formatter, "the generated key file {}", path.display()),
        }
    }
}

impl KeySource {
    /// Returns the instruction for using a vault that was encrypted with this key, when another key or none was found.
    pub(crate) fn cure(&self, found: Option<&KeySource>, directory: &Path) -> String {
        let quoted = |path: &Path| trust::shell_path(&path.to_string_lossy());
        // The key that was found takes precedence over the recorded one.
        let remove = match found {
            Some(KeySource::Credential(_)) => Some(format!("remove the credential {CREDENTIAL} from the service")),
            Some(KeySource::File(_)) => Some(format!("unset {KEY_FILE_VARIABLE}")),
            Some(KeySource::Generated(_)) | None => None,
        };
        let restore = match self {
            KeySource::Credential(_) => Some(format!(
                "run the command with the credential {CREDENTIAL}, or set {KEY_FILE_VARIABLE} to a file with the same key"
            )),
            KeySource::File(path) => Some(format!("set {KEY_FILE_VARIABLE}={}", quoted(path))),
            KeySource::Generated(path) if path.exists() && remove.is_some() => None,
            KeySource::Generated(path) => Some(format!("restore {} from a backup", path.display())),
        };
        let is_other_file = matches!((self, found), (KeySource::File(_), Some(KeySource::File(_))));
        let steps: Vec<String> = remove.filter(|_| !is_other_file).into_iter().chain(restore).collect();
        let anew =
            format!("if the key is lost, remove the vault and set its secrets again: rm -r {}", quoted(directory));
        format!("{}; {anew}", steps.join(" and "))
    }

    fn error(&self, flaw: impl Into<String>, cure: impl Into<String>) -> VaultError {
        VaultError::Key { place: self.to_string(), flaw: flaw.into(), cure: cure.into() }
    }
}

impl KeyPlaces {
    pub(crate) fn of(environment: &dyn Fn(&str) -> Option<String>) -> KeyPlaces {
        let set = |name: &str| environment(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let credentials = set(CREDENTIALS_VARIABLE).filter(|path| path.is_absolute());
        KeyPlaces {
            credential: credentials.map(|directory| directory.join(CREDENTIAL)),
            file: set(KEY_FILE_VARIABLE).map(absolute),
        }
    }

    /// Returns the key of the first source outside of the vault.
    pub(crate) fn find(&self) -> Result<Option<(Key, KeySource)>, VaultError> {
        let credential = self.credential.clone().filter(|path| path.symlink_metadata().is_ok());
        let source = credential.map(KeySource::Credential).or_else(|| self.file.clone().map(KeySource::File));
        source.map(|source| read_outside(&source).map(|key| (key, source))).transpose()
    }
}

/// Reads a key that systemd, a container or the user provides. It may be a link or belong to root.
fn read_outside(source: &KeySource) -> Result<Key, VaultError> {
    let (KeySource::Credential(path) | KeySource::File(path) | KeySource::Generated(path)) = source;
    let bytes = bounded::read(path, MAX_KEY_FILE).map_err(|error| source.error(error.to_string(), CURE))?;
    match trust::examine(path) {
        Ok(None) => {}
        Ok(Some(untrusted)) => {
            let (flaw, cure) = untrusted.flaw_and_cure();
            return Err(source.error(flaw, cure));
        }
        Err(error) => return Err(source.error(error.to_string(), CURE)),
    }
    let found = path.metadata().map_err(|error| source.error(error.to_string(), CURE))?;
    // The owner of a mounted secret cannot change its mode.
    let is_mounted = statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY));
    if disk::is_mine(&found) && found.mode() & 0o007 != 0 && !is_mounted {
        let quoted = trust::shell_path(&path.to_string_lossy());
        let flaw = format!("others can read it (mode {:03o})", found.mode() & 0o777);
        return Err(source.error(flaw, format!("chmod 600 {quoted}")));
    }
    Key::parse(&bytes).map_err(|flaw| source.error(flaw, CURE))
}

/// Reads the key that the vault created. Returns `None` if there is none.
pub(crate) fn read_generated(directory: &Path) -> Result<Option<(Key, KeySource)>, VaultError> {
    let path = directory.join(GENERATED_FILE);
    let Some(bytes) = disk::read_private(&path, MAX_KEY_FILE)? else { return Ok(None) };
    let source = KeySource::Generated(path);
    let key = Key::parse(&bytes).map_err(|flaw| source.error(flaw, "restore it from a backup"))?;
    Ok(Some((key, source)))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect()
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.strip_suffix('=').unwrap_or(text);
    STANDARD_NO_PAD.decode(text).or_else(|_| URL_SAFE_NO_PAD.decode(text)).ok()
}
