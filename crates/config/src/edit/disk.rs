//! A file that is replaced whole: readers see the old text or the new one, and nothing in between.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// It may hold secrets, and names commands to run.
pub const NEW_MODE: u32 = 0o600;
const NEW_DIRECTORY_MODE: u32 = 0o700;

/// Writes `text` next to the file and renames it over, unless the file is not the one that the text was made from. A link
/// stays and its target is replaced; permissions stay.
pub fn replace(path: &Path, text: &str, is_unchanged: impl Fn() -> bool) -> Result<PathBuf> {
    let target = match path.canonicalize() {
        Ok(target) => target,
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => std::path::absolute(path)?,
        Err(error) => return Err(error),
    };
    let directory = target.parent().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it is no file"))?;
    DirBuilder::new().recursive(true).mode(NEW_DIRECTORY_MODE).create(directory)?;
    let mode = target.metadata().map_or(NEW_MODE, |metadata| metadata.permissions().mode() & 0o7777);
    let name = target.file_name().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "it is no file"))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.new", std::process::id()));
    let temporary = directory.join(temporary);
    let written = write(&temporary, text, mode).and_then(|()| {
        // Two of us take turns; where the file system has no locks, the look below still finds all but the closest race.
        let turn = File::open(directory)?;
        let _ = turn.lock();
        if !is_unchanged() {
            return Err(Error::other("it was changed meanwhile, run it again"));
        }
        std::fs::rename(&temporary, &target)
    });
    if let Err(error) = written {
        // The first failure is the one to tell.
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    Ok(target)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<()> {
    // A left-over of a process of the same number must not be followed nor trusted.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(NEW_MODE).open(path)?;
    file.write_all(text.as_bytes())?;
    // After the text, so that nobody reads it who could not read the old one; not left to the umask.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()
}
