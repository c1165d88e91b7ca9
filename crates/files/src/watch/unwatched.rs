//! The replacement for systems without a watcher. It cannot be opened, so the tree is polled.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};

use crate::watch::PathChange;

pub(crate) type WatchedDirectories = Infallible;
pub(crate) struct DirectoryWatch(Infallible);
pub(crate) struct WatchHandle(Infallible);

pub(crate) type ChangeHint<'a> = Option<(&'a Path, PathChange)>;

impl DirectoryWatch {
    pub(crate) fn open() -> io::Result<DirectoryWatch> {
        Err(io::Error::other("files are watched on Linux only"))
    }

    pub(crate) fn handle(&self) -> WatchHandle {
        match self.0 {}
    }

    pub(crate) async fn read(&self, _note: impl FnMut(ChangeHint<'_>)) -> io::Result<()> {
        match self.0 {}
    }

    pub(crate) fn adopt(&mut self, watched: WatchedDirectories) -> bool {
        match watched {}
    }
}

impl WatchHandle {
    pub(crate) fn watch(&self, _paths: Vec<PathBuf>) -> io::Result<WatchedDirectories> {
        match self.0 {}
    }
}
