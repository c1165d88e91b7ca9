//! Replaces a file atomically: readers see the old text or the new text, never a mix.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The mode of a new file. Only the owner has access, because the file may hold secrets and names commands to run.
pub(crate) const NEW_MODE: u32 = 0o600;
const NEW_DIRECTORY_MODE: u32 = 0o700;

/// Writes `text` to a temporary file next to the target and renames it over the target. Returns an error if
/// `is_unchanged` returns `false` before the rename. Replaces the target of a symbolic link, not the link. Keeps the
/// file's permissions.
pub(crate) fn replace(path: &Path, text: &str, is_unchanged: impl Fn() -> bool) -> Result<PathBuf> {
    let target = match path.canonicalize() {
        Ok(target) => target,
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => std::path::absolute(path)?,
        Err(error) => return Err(error),
    };
    let directory =
        target.parent().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "the path does not name a file"))?;
    DirBuilder::new().recursive(true).mode(NEW_DIRECTORY_MODE).create(directory)?;
    let mode = target.metadata().map_or(NEW_MODE, |metadata| metadata.permissions().mode() & 0o7777);
    let name =
        target.file_name().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "the path does not name a file"))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.new", std::process::id()));
    let temporary = directory.join(temporary);
    let written = write(&temporary, text, mode).and_then(|()| {
        // The lock serializes two goblin processes. The check below still detects most races if the file system has
        // no locks.
        let directory_file = File::open(directory)?;
        let _ = directory_file.lock();
        if !is_unchanged() {
            return Err(Error::other("the file was changed in the meantime, run the command again"));
        }
        std::fs::rename(&temporary, &target)
    });
    if let Err(error) = written {
        // Return the first failure, not a failure to clean up.
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(target)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    // A leftover file of an earlier process with the same id must be neither followed nor trusted.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(NEW_MODE).open(path)?;
    file.write_all(text.as_bytes())?;
    // Set the mode after writing, so the temporary file is never more readable than the old one. The umask does not
    // apply.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}
