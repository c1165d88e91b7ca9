//! The directory of the cached listings: its key, its files and its size.
//!
//! The directory belongs to one user, and other users have no access. Several gateways may use it at the same time. All
//! functions wait for the disk.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use aws_lc_rs::hmac;
use goblin_wire::units;
use rustix::fs::OFlags;
use rustix::io::Errno;

/// The limit of bytes of all files together. The oldest ones are removed first.
pub(super) const MAX_CACHE_BYTES: u64 = 64 << 20;
const KEY_FILE: &str = "key";
const KEY_LENGTH: usize = 32;
/// The bits of a file's mode that give access to other users.
const OTHERS: u32 = 0o077;

pub(super) struct Directory {
    path: PathBuf,
    key: OnceLock<hmac::Key>,
}

/// The reason why a file was not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("there is no file")]
    Missing,
    /// The gateway did not write this file: its type, its owner, its mode or its length is different.
    #[error("{0}")]
    Foreign(String),
    #[error(transparent)]
    Failed(#[from] io::Error),
}

impl Directory {
    pub(super) fn new(path: PathBuf) -> Directory {
        Directory { path, key: OnceLock::new() }
    }

    /// Returns the key of all hashes. Creates the directory and the key if they do not exist.
    pub(super) fn key(&self) -> io::Result<&hmac::Key> {
        if let Some(key) = self.key.get() {
            return Ok(key);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path)?;
        let found = std::fs::symlink_metadata(&self.path)?;
        if !found.is_dir() || !is_private(&found) {
            return Err(io::Error::other(format!("{} is not private (chmod 700)", self.path.display())));
        }
        let path = self.path.join(KEY_FILE);
        let bytes = match read_key(&path) {
            Ok(bytes) => bytes,
            Err(ReadError::Missing) => self.create_key(&path)?,
            Err(ReadError::Foreign(_)) => {
                std::fs::remove_file(&path)?;
                self.create_key(&path)?
            }
            // Other gateways use the key, so a failure must not replace it.
            Err(ReadError::Failed(error)) => return Err(error),
        };
        Ok(self.key.get_or_init(|| hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }

    /// Creates the key. If another gateway creates it at the same time, returns that one.
    fn create_key(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut key = [0; KEY_LENGTH];
        getrandom::fill(&mut key).map_err(io::Error::other)?;
        let unfinished = self.write_unfinished(&[&key])?;
        let linked = std::fs::hard_link(&unfinished, path);
        // A leftover counts as an old file and is removed later.
        let _ = std::fs::remove_file(&unfinished);
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => read_key(path).map_err(io::Error::other),
        }
    }

    /// Reads a file and records the use. The time of the last use decides which files are removed first.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>, ReadError> {
        let (file, bytes) = read_private(&self.path.join(name), MAX_CACHE_BYTES)?;
        // A failure is harmless.
        let _ = file.set_modified(SystemTime::now());
        Ok(bytes)
    }

    /// Replaces a file. Removes old files first, so that the directory never exceeds [`MAX_CACHE_BYTES`].
    pub(super) fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        let path = self.path.join(name);
        self.make_room(parts.iter().map(|part| part.len() as u64).sum(), &path)?;
        let unfinished = self.write_unfinished(parts)?;
        std::fs::rename(&unfinished, &path).inspect_err(|_| drop(std::fs::remove_file(&unfinished)))
    }

    /// Removes a file, if it exists.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        remove(&self.path.join(name))
    }

    /// Writes a new file under a temporary name and returns its path.
    fn write_unfinished(&self, parts: &[&[u8]]) -> io::Result<PathBuf> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let path = self.path.join(format!("{}.new", hex(&random)));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = parts.iter().try_for_each(|part| file.write_all(part));
        written.inspect_err(|_| drop(std::fs::remove_file(&path))).map(|()| path)
    }

    /// Removes the oldest files until a new one of `length` bytes fits. The file that it replaces goes last.
    fn make_room(&self, length: u64, replaced: &Path) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let found = match entry.metadata() {
                // Another gateway has removed the file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            if entry.file_name() != KEY_FILE {
                let (path, used) = (entry.path(), found.modified().unwrap_or(SystemTime::UNIX_EPOCH));
                files.push((path == replaced, used, found.len(), path));
            }
        }
        files.sort();
        let mut total = length + files.iter().map(|(_, _, length, _)| length).sum::<u64>();
        for (_, _, length, path) in files {
            if total <= MAX_CACHE_BYTES {
                break;
            }
            if remove(&path).is_ok() {
                total -= length;
            }
        }
        match total <= MAX_CACHE_BYTES {
            true => Ok(()),
            false => Err(io::Error::other(format!("the listing does not fit into {}", units::bytes(MAX_CACHE_BYTES)))),
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn read_key(path: &Path) -> Result<Vec<u8>, ReadError> {
    let (_, bytes) = read_private(path, KEY_LENGTH as u64)?;
    match bytes.len() == KEY_LENGTH {
        true => Ok(bytes),
        false => Err(ReadError::Foreign(format!("{} has another length", path.display()))),
    }
}

/// Reads a file that only this user can access, of at most `max` bytes. Follows no link and waits for no other process.
fn read_private(path: &Path, max: u64) -> Result<(File, Vec<u8>), ReadError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ReadError::Missing),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
            return Err(ReadError::Foreign(format!("{} is a link", path.display())));
        }
        Err(error) => return Err(error.into()),
    };
    let found = file.metadata()?;
    if !found.is_file() || !is_private(&found) {
        return Err(ReadError::Foreign(format!("{} is not private (chmod 600)", path.display())));
    }
    let mut bytes = Vec::new();
    (&file).take(max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max {
        true => Err(ReadError::Foreign(format!("{} has more than {}", path.display(), units::bytes(max)))),
        false => Ok((file, bytes)),
    }
}

fn is_private(found: &Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw() && found.mode() & OTHERS == 0
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
