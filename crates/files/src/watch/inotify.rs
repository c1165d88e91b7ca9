//! Watches directories with inotify on Linux.
//!
//! This module calls the system directly. No released version of the usual crate `notify` can suppress the event for an
//! opened file. Each walk of the tree would therefore cause two events per directory.
//!
//! A watch belongs to a directory, not to its name. Each look therefore requests all watches again by name. A watched
//! directory keeps its number. A number with another name belongs to a directory that was moved.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::watch::PathChange;

/// The size of the read buffer, enough for some hundred events.
const BUFFER: usize = 16 << 10;

/// The watched directories by their watch number.
pub(crate) type WatchedDirectories = HashMap<i32, PathBuf>;

pub(crate) struct DirectoryWatch {
    hints: AsyncFd<Arc<OwnedFd>>,
    watched: WatchedDirectories,
}

/// A handle for the blocking thread.
pub(crate) struct WatchHandle(Arc<OwnedFd>);

/// A changed path. `None` if the system lost events because its queue was full.
pub(crate) type ChangeHint<'a> = Option<(&'a Path, PathChange)>;

impl DirectoryWatch {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for the sake of those who replace the descriptor; nobody can here"
    )]
    pub(crate) fn open() -> io::Result<DirectoryWatch> {
        let hints = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(|error| match error {
            Errno::MFILE => io::Error::other("too many programs watch files; raise fs.inotify.max_user_instances"),
            error => error.into(),
        });
        let hints = Arc::new(hints?);
        Ok(DirectoryWatch {
            hints: AsyncFd::with_interest(hints, Interest::READABLE)?,
            watched: WatchedDirectories::new(),
        })
    }

    pub(crate) fn handle(&self) -> WatchHandle {
        WatchHandle(Arc::clone(self.hints.get_ref()))
    }

    /// Waits for events and passes them to `note`. It is cancel-safe.
    pub(crate) async fn read(&self, mut note: impl FnMut(ChangeHint<'_>)) -> io::Result<()> {
        let mut ready = self.hints.readable().await?;
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(self.hints.get_ref(), &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => self.note(&event, &mut note),
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    return Ok(());
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if reader.is_buffer_empty() {
                return Ok(());
            }
        }
    }

    fn note(&self, event: &inotify::Event<'_>, note: &mut impl FnMut(ChangeHint<'_>)) {
        let flags = event.events();
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return note(None);
        }
        // The next look handles events of directories that are not known yet, or not any more.
        let Some(directory) = self.watched.get(&event.wd()) else { return };
        let of_content = ReadFlags::MODIFY | ReadFlags::ATTRIB;
        let change = PathChange {
            written: flags.contains(ReadFlags::MODIFY),
            named: flags.contains(ReadFlags::ISDIR) || !flags.intersects(of_content) || event.file_name().is_none(),
        };
        match event.file_name() {
            Some(name) => note(Some((&directory.join(OsStr::from_bytes(name.to_bytes())), change))),
            None => note(Some((directory, change))),
        }
    }

    /// Replaces the set of watched directories. Returns whether one of them is new or has a new name.
    pub(crate) fn adopt(&mut self, watched: WatchedDirectories) -> bool {
        for number in self.watched.keys().filter(|number| !watched.contains_key(number)) {
            // An error means that the directory is gone, and its watch with it.
            let _ = inotify::remove_watch(self.hints.get_ref(), *number);
        }
        let has_new = watched.iter().any(|(number, path)| self.watched.get(number) != Some(path));
        self.watched = watched;
        has_new
    }
}

impl WatchHandle {
    /// Adds a watch for each directory. Returns an error if the system has no watches left.
    pub(crate) fn watch(&self, paths: Vec<PathBuf>) -> io::Result<WatchedDirectories> {
        let flags = WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MODIFY
            | WatchFlags::MOVE
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            | WatchFlags::EXCL_UNLINK;
        let mut watched = WatchedDirectories::with_capacity(paths.len());
        for path in paths {
            match inotify::add_watch(&self.0, &path, flags) {
                Ok(number) => drop(watched.insert(number, path)),
                // The directory is gone or unreadable. Events of its parent report later changes.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => {}
                Err(Errno::NOSPC) => {
                    let text = "the system has no file watches left; raise fs.inotify.max_user_watches";
                    return Err(io::Error::other(text));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(watched)
    }
}
