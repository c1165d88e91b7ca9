//! The files of a vault: private to the user, replaced as a whole, durable.

use std::fs::{DirBuilder, File, FileTimes, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use goblin_config::trust;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::name::hex;
use crate::{VaultError, Version};

/// The access of users other than the owner.
const OTHERS: u32 = 0o077;
/// The end of the name of a temporary file.
const TEMPORARY: &str = ".new";
/// The age at which the temporary file of a killed process is removed.
const LEFTOVER_AGE: Duration = Duration::from_secs(600);
/// The maximum number of temporary files that one call removes.
const MAX_REMOVALS: usize = 100;

/// Reports whether the directory exists. Returns an error if others can access it.
pub(crate) fn check_directory(path: &Path) -> Result<bool, VaultError> {
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(VaultError::disk("open the vault", path, &error)),
    };
    if !found.is_dir() {
        let kind = if found.is_symlink() { "a link" } else { "no directory" };
        let cure = format!("move it away: mv {0} {0}.old", shell(path));
        return Err(VaultError::Exposed { flaw: format!("{} is {kind}", path.display()), cure });
    }
    check_access(path, &found, "700").map(|()| true)
}

/// Returns an error if another user can replace the directory.
pub(crate) fn check_path(path: &Path) -> Result<(), VaultError> {
    match trust::examine(path).map_err(|error| VaultError::disk("examine", path, &error))? {
        None => Ok(()),
        Some(untrusted) => {
            let (flaw, cure) = untrusted.flaw_and_cure();
            Err(VaultError::Exposed { flaw, cure })
        }
    }
}

pub(crate) fn create_directory(path: &Path) -> Result<(), VaultError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
    created.map_err(|error| VaultError::disk("create the vault", path, &error))
}

/// Reads a file that only this user can access. Follows no link. Returns `None` if there is no file.
pub(crate) fn read_private(path: &Path, max: u64) -> Result<Option<Vec<u8>>, VaultError> {
    let fault = |error: &io::Error| VaultError::disk("read", path, error);
    let file = match open_private(path, OpenOptions::new().read(true)) {
        Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(OpenError::Io(error)) => return Err(fault(&error)),
        Err(OpenError::Vault(error)) => return Err(error),
        Ok(file) => file,
    };
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(|error| fault(&error))?;
    match bytes.len() as u64 > max {
        true => Err(VaultError::Damaged(path.to_owned())),
        false => Ok(Some(bytes)),
    }
}

pub(crate) enum OpenError {
    Io(io::Error),
    Vault(VaultError),
}

/// Opens a regular file that only this user can access. Follows no link.
pub(crate) fn open_private(path: &Path, options: &mut OpenOptions) -> Result<File, OpenError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(path).map_err(|error| {
        match Errno::from_io_error(&error) == Some(Errno::LOOP) {
            true => OpenError::Vault(irregular(path, "a link")),
            false => OpenError::Io(error),
        }
    })?;
    let found = file.metadata().map_err(OpenError::Io)?;
    if !found.is_file() {
        return Err(OpenError::Vault(irregular(path, "no regular file")));
    }
    check_access(path, &found, "600").map_err(OpenError::Vault)?;
    Ok(file)
}

fn irregular(path: &Path, kind: &str) -> VaultError {
    let cure = format!("remove it: rm -r {}", shell(path));
    VaultError::Exposed { flaw: format!("{} is {kind}", path.display()), cure }
}

fn check_access(path: &Path, found: &Metadata, mode: &str) -> Result<(), VaultError> {
    if !is_mine(found) {
        let flaw = format!("{} belongs to another user ({})", path.display(), found.uid());
        let cure = format!("as root: chown {} {}", user(), shell(path));
        return Err(VaultError::Exposed { flaw, cure });
    }
    if found.mode() & OTHERS != 0 {
        let flaw = format!("others can access {} (mode {:03o})", path.display(), found.mode() & 0o777);
        return Err(VaultError::Exposed { flaw, cure: format!("chmod {mode} {}", shell(path)) });
    }
    Ok(())
}

pub(crate) fn is_mine(found: &Metadata) -> bool {
    found.uid() == user()
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn shell(path: &Path) -> String {
    trust::shell_path(&path.to_string_lossy())
}

/// Replaces a file. The new bytes are on the disk when the function returns. A failure leaves the old file. The time of
/// the new file is later than that of the old one, so that their versions differ.
pub(crate) fn replace(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), VaultError> {
    let path = directory.join(name);
    let older = path.symlink_metadata().ok().and_then(|found| found.modified().ok());
    let earliest = older.and_then(|older| older.checked_add(Duration::from_micros(1)));
    let modified = earliest.map_or_else(SystemTime::now, |earliest| earliest.max(SystemTime::now()));
    let fault = |error: io::Error| VaultError::disk("write", &path, &error);
    let unfinished = Unfinished::write(directory, bytes, modified).map_err(fault)?;
    std::fs::rename(&unfinished.0, &path).map_err(fault)?;
    sync(directory)
}

/// Creates a file with these bytes. Keeps the file if there is one already.
pub(crate) fn create_once(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), VaultError> {
    let path = directory.join(name);
    let fault = |error: io::Error| VaultError::disk("write", &path, &error);
    let unfinished = Unfinished::write(directory, bytes, SystemTime::now()).map_err(fault)?;
    match std::fs::hard_link(&unfinished.0, &path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(fault(error)),
        _ => sync(directory),
    }
}

/// Removes a file. Reports whether there was one.
pub(crate) fn remove(directory: &Path, name: &str) -> Result<bool, VaultError> {
    let path = directory.join(name);
    match std::fs::remove_file(&path) {
        Ok(()) => sync(directory).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(VaultError::disk("remove", &path, &error)),
    }
}

/// Makes the names of the files durable.
fn sync(directory: &Path) -> Result<(), VaultError> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|error| VaultError::disk("write", directory, &error))
}

/// A temporary file with durable bytes. Dropping the value removes the file, if it still has this name.
struct Unfinished(PathBuf);

impl Unfinished {
    fn write(directory: &Path, bytes: &[u8], modified: SystemTime) -> io::Result<Unfinished> {
        let mut random = [0; 8];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| io::Error::other("the system has no random source"))?;
        let path = directory.join(format!("{}{TEMPORARY}", hex(&random)));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let unfinished = Unfinished(path);
        file.write_all(bytes)?;
        file.set_times(FileTimes::new().set_modified(modified))?;
        file.sync_all()?;
        Ok(unfinished)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // A renamed file is no longer here.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Removes old temporary files of killed processes. Failures are ignored, because such files are harmless.
pub(crate) fn remove_leftovers(directory: &Path) {
    let is_leftover = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(TEMPORARY));
        let is_ours = name.is_some_and(|name| name.len() == 16 && name.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let is_old = |found: Metadata| {
            let age = found.modified().ok().and_then(|modified| modified.elapsed().ok());
            found.is_file() && age.is_some_and(|age| age > LEFTOVER_AGE)
        };
        is_ours && path.symlink_metadata().is_ok_and(is_old)
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let leftovers = entries.map(|entry| entry.path()).filter(|path| is_leftover(path)).take(MAX_REMOVALS);
    leftovers.collect::<Vec<_>>().iter().for_each(|path| drop(std::fs::remove_file(path)));
}

/// Returns the names of the files in the directory that `is_wanted` accepts, at most `max`.
pub(crate) fn list(directory: &Path, max: usize, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, VaultError> {
    let fault = |error: io::Error| VaultError::disk("list", directory, &error);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(fault)? {
        let name = entry.map_err(fault)?.file_name();
        if let Some(name) = name.to_str().filter(|name| is_wanted(name)) {
            names.push(name.to_owned());
            if names.len() == max {
                break;
            }
        }
    }
    Ok(names)
}

impl Version {
    /// Returns the version of a file. Returns the default if there is no file.
    pub(crate) fn of(path: &Path) -> Version {
        let Ok(found) = path.symlink_metadata() else { return Version::default() };
        let modified = found.mtime().cast_unsigned().wrapping_mul(1_000_000_000);
        Version(found.ino(), modified.wrapping_add(found.mtime_nsec().cast_unsigned()))
    }
}
