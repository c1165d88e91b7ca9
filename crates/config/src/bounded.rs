//! Reads regular files within a size limit and a time limit.
//!
//! A pipe or device in place of a file could deliver data forever or never, and opening a device may have side effects.
//! A network disk may never respond. Every file that the user or another program names is therefore read here.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use rustix::fs::OFlags;

/// The time limit for reading one file.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("not a regular file")]
    NotRegular,
    #[error("the file is larger than {}", goblin_wire::units::bytes(*.0))]
    TooLarge(u64),
    #[error("the disk did not return the file within {}", goblin_wire::units::duration(READ_TIMEOUT))]
    TooSlow,
}

impl ReadError {
    pub fn is_not_found(&self) -> bool {
        matches!(self, ReadError::Io(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Returns the bytes of a regular file with at most `max` bytes. Follows symbolic links.
pub fn read(path: &Path, max: u64) -> Result<Vec<u8>, ReadError> {
    let path = path.to_owned();
    within(READ_TIMEOUT, move || read_open(&path, max).map(|(bytes, _)| bytes))?
}

/// Runs `work` on its own thread. Returns an error if the work takes longer than [`READ_TIMEOUT`]. The thread is then
/// left running, because a blocked disk operation cannot be interrupted.
pub(crate) fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ReadError> {
    within(READ_TIMEOUT, work)
}

fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Result<T, ReadError> {
    let (sender, receiver) = sync_channel(1);
    // After the time limit the receiver is gone, and the result is dropped.
    std::thread::Builder::new().name("read".to_owned()).spawn(move || drop(sender.send(work())))?;
    receiver.recv_timeout(limit).map_err(|_| ReadError::TooSlow)
}

/// Returns the bytes and the open file. Applies no time limit.
pub(crate) fn read_open(path: &Path, max: u64) -> Result<(Vec<u8>, File), ReadError> {
    // Check before opening, because opening a device may have side effects.
    if !path.metadata()?.is_file() {
        return Err(ReadError::NotRegular);
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut options = OpenOptions::new();
    let mut file = options.read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    // Check the open file, because another file may have replaced the path since the first check.
    if !file.metadata()?.is_file() {
        return Err(ReadError::NotRegular);
    }
    let mut bytes = Vec::new();
    (&mut file).take(max + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > max {
        true => Err(ReadError::TooLarge(max)),
        false => Ok((bytes, file)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_exceeds_its_time_limit_returns_an_error() {
        let (_open, never) = sync_channel::<()>(1);
        let stuck = within(Duration::from_millis(1), move || never.recv().is_ok());
        assert_eq!(stuck.unwrap_err().to_string(), "the disk did not return the file within 5 s");
        assert_eq!(in_time(|| 7).unwrap(), 7);
    }

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let path = std::env::temp_dir().join(format!("goblin-bounded-{}", std::process::id()));
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert_eq!(read(&path, 3).unwrap_err().to_string(), "the file is larger than 3 B");
        std::fs::remove_file(&path).unwrap();
        assert!(read(&path, 3).unwrap_err().is_not_found());
        for special in ["/", "/dev/null", "/dev/zero"] {
            assert!(matches!(read(Path::new(special), 3), Err(ReadError::NotRegular)), "{special}");
        }
    }
}
