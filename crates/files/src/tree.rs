//! Access to the files below one directory, and to nothing outside of it.
//!
//! The root is opened once. Each further step opens one plain name in an open directory without following links.
//! Replacing a directory by a link meanwhile therefore gains an attacker nothing. Links in a path of a client are
//! resolved by cap-std within the root, and the rule is applied to the target again. Walks do not follow links. Only
//! regular files are opened. The type is checked before, because opening a device may have effects, and again
//! afterwards on the handle.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use crate::path::{RelativePath, RootPath};
use crate::rule::{Exclusion, Rule, RuleLayers};

/// The depth below which directories are not walked.
const MAX_DEPTH: usize = 64;
/// The number of names after which a walk ends.
const MAX_NAMES: usize = 1_000_000;

pub(crate) struct FileTree {
    directory: Dir,
    pub root: RootPath,
    pub rule: Rule,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FileKind {
    File,
    Directory,
    Link,
    /// A pipe, socket or device.
    Other,
}

/// The metadata of a file. If two of them differ, the content may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    pub kind: FileKind,
    pub size: u64,
    /// The modification time in seconds since 1970.
    pub modified: i64,
    /// The time of the last change to content or metadata, in seconds since 1970 and nanoseconds. Programs cannot set
    /// it.
    pub changed: (i64, u32),
    inode: u64,
}

/// The reason why there is no file at a path.
#[derive(Debug)]
pub(crate) enum LookupError {
    NotFound,
    /// The path is excluded. The answer is the same whether a file exists or not.
    Excluded(Exclusion),
    /// A link leads out of the root.
    Outside,
    Failed(io::Error),
}

/// An existing file or directory: a name in an open directory. The root is `.` in itself.
pub(crate) struct TreeEntry {
    parent: Dir,
    name: OsString,
    /// The real path, with links resolved.
    pub path: RelativePath,
    pub facts: FileFacts,
    /// The rules that apply in the parent directory.
    layers: RuleLayers,
}

/// The end of a descent.
enum Descent {
    Found(Box<TreeEntry>),
    Link,
}

/// A file or directory on a walk.
pub(crate) struct WalkEntry<'a> {
    directory: &'a Dir,
    name: &'a OsStr,
    pub path: &'a RelativePath,
    pub kind: FileKind,
}

/// The next step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkStep {
    /// Continue, and enter the item if it is a directory.
    Into,
    /// Continue without entering the item.
    Past,
    End,
}

/// A flag that is set when no caller waits for the work any more, because the caller's guard is dropped.
pub(crate) struct StopFlag(Weak<()>);

impl StopFlag {
    pub(crate) fn new(guard: &Arc<()>) -> StopFlag {
        StopFlag(Arc::downgrade(guard))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl From<io::Error> for LookupError {
    fn from(error: io::Error) -> LookupError {
        let named_wrongly = error.kind() == io::ErrorKind::InvalidFilename;
        if named_wrongly || is_absent(&error) { LookupError::NotFound } else { LookupError::Failed(error) }
    }
}

impl From<rustix::io::Errno> for LookupError {
    fn from(error: rustix::io::Errno) -> LookupError {
        io::Error::from(error).into()
    }
}

impl FileTree {
    /// Opens the root. `hidden` and `ignored` are the settings of the configuration.
    pub(crate) fn open(root: &Path, hidden: bool, ignored: bool) -> io::Result<FileTree> {
        let configured = std::path::absolute(root)?;
        let path = root.canonicalize()?;
        let directory = Dir::open_ambient_dir(&path, ambient_authority())?;
        let rule = Rule::new(path.clone(), hidden, ignored);
        Ok(FileTree { directory, root: RootPath::new(path, configured), rule })
    }

    /// Returns the file or directory at a path of a client. Follows links within the root.
    pub(crate) fn find(&self, path: &RelativePath) -> Result<TreeEntry, LookupError> {
        if let Descent::Found(entry) = self.descend(path)? {
            return Ok(*entry);
        }
        let target = self.directory.canonicalize(path.as_path()).map_err(|error| {
            // The error of cap-std for a path that leads outside has no errno.
            let leads_out = error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none();
            if leads_out { LookupError::Outside } else { error.into() }
        })?;
        let target = RelativePath::from_plain(&target).ok_or(LookupError::Outside)?;
        match self.descend(&target)? {
            Descent::Found(entry) => Ok(*entry),
            // A link was created at this path meanwhile.
            Descent::Link => Err(LookupError::NotFound),
        }
    }

    /// Opens one directory after another until the end of the path or the first link.
    fn descend(&self, path: &RelativePath) -> Result<Descent, LookupError> {
        self.rule.check_names(path.as_path()).map_err(LookupError::Excluded)?;
        let mut entry = self.root_entry()?;
        for name in path.as_path() {
            let parent = open_directory(&entry.parent, &entry.name)?;
            self.rule.enter(&mut entry.layers, &parent, entry.path.as_path()).map_err(LookupError::Failed)?;
            let path = entry.path.join(name);
            let check_path = |is_directory| {
                self.rule.check_path(&entry.layers, path.as_path(), is_directory).map_err(LookupError::Excluded)
            };
            let facts = match facts(&parent, name) {
                Ok(facts) => facts,
                Err(error) => {
                    // A missing name gets the answer of an existing one, so that a client cannot probe excluded names.
                    check_path(true).and_then(|()| check_path(false))?;
                    return Err(error.into());
                }
            };
            check_path(facts.kind == FileKind::Directory)?;
            if facts.kind == FileKind::Link {
                return Ok(Descent::Link);
            }
            entry = TreeEntry { parent, name: name.to_owned(), path, facts, layers: entry.layers };
        }
        Ok(Descent::Found(Box::new(entry)))
    }

    fn root_entry(&self) -> Result<TreeEntry, LookupError> {
        let name = OsString::from(".");
        let facts = facts(&self.directory, &name)?;
        let parent = self.directory.try_clone()?;
        let layers = self.rule.above().map_err(LookupError::Failed)?;
        Ok(TreeEntry { parent, name, path: RelativePath::default(), facts, layers })
    }

    /// Visits everything below `entry` in path order, or `entry` itself if it is a file. Returns `false` if something was
    /// omitted: an unreadable directory, or names beyond the limits.
    pub(crate) fn walk(
        &self,
        entry: &TreeEntry,
        stop: &StopFlag,
        mut visit: impl FnMut(&WalkEntry<'_>) -> WalkStep,
    ) -> bool {
        match entry.facts.kind {
            FileKind::Directory => {}
            FileKind::File => {
                visit(&WalkEntry {
                    directory: &entry.parent,
                    name: &entry.name,
                    path: &entry.path,
                    kind: FileKind::File,
                });
                return true;
            }
            FileKind::Link | FileKind::Other => return true,
        }
        let mut walk =
            TreeWalk { rule: &self.rule, layers: entry.layers.clone(), frames: Vec::new(), names: 0, whole: true };
        walk.enter(&entry.parent, &entry.name, entry.path.clone());
        while let Some(frame) = walk.frames.last_mut() {
            let Some((name, kind)) = frame.names.next() else {
                walk.leave();
                continue;
            };
            if stop.is_set() {
                return false;
            }
            let path = frame.path.join(&name);
            if self.rule.check_path(&walk.layers, path.as_path(), kind == FileKind::Directory).is_err() {
                continue;
            }
            match visit(&WalkEntry { directory: &frame.directory, name: &name, path: &path, kind }) {
                WalkStep::Into if kind == FileKind::Directory => {
                    let directory = Arc::clone(&frame.directory);
                    walk.enter(&directory, &name, path);
                }
                WalkStep::Into | WalkStep::Past => {}
                WalkStep::End => return walk.whole,
            }
        }
        walk.whole
    }
}

impl TreeEntry {
    /// Opens the file for reading. Returns an error if it is not a regular file.
    pub(crate) fn open(&self) -> io::Result<File> {
        open_file(&self.parent, &self.name)
    }
}

impl WalkEntry<'_> {
    pub(crate) fn open(&self) -> io::Result<File> {
        open_file(self.directory, self.name)
    }

    pub(crate) fn facts(&self) -> io::Result<FileFacts> {
        Ok(facts(self.directory, self.name)?)
    }

    pub(crate) fn name(&self) -> &OsStr {
        self.name
    }
}

/// The state of a walk.
struct TreeWalk<'a> {
    rule: &'a Rule,
    layers: RuleLayers,
    frames: Vec<WalkFrame>,
    /// The number of names read so far.
    names: usize,
    whole: bool,
}

/// A directory that is being walked.
struct WalkFrame {
    directory: Arc<Dir>,
    path: RelativePath,
    names: std::vec::IntoIter<(OsString, FileKind)>,
}

impl TreeWalk<'_> {
    fn enter(&mut self, parent: &Dir, name: &OsStr, path: RelativePath) {
        if self.frames.len() == MAX_DEPTH {
            self.whole = false;
            return;
        }
        let opened = open_directory(parent, name).map_err(io::Error::from).and_then(|directory| {
            let names = self.read(&directory)?;
            self.rule.enter(&mut self.layers, &directory, path.as_path())?;
            Ok((directory, names))
        });
        match opened {
            Ok((directory, names)) => {
                self.frames.push(WalkFrame { directory: Arc::new(directory), path, names: names.into_iter() });
            }
            Err(_) => self.whole = false,
        }
    }

    fn leave(&mut self) {
        if let Some(frame) = self.frames.pop() {
            self.rule.leave(&mut self.layers, frame.path.as_path());
        }
    }

    /// Returns the files and directories in a directory, sorted by name.
    fn read(&mut self, directory: &Dir) -> io::Result<Vec<(OsString, FileKind)>> {
        let mut names = Vec::new();
        for entry in directory.entries()? {
            if self.names >= MAX_NAMES {
                self.whole = false;
                break;
            }
            self.names += 1;
            let entry = entry?;
            let (name, file_type) = (entry.file_name(), entry.file_type()?);
            // Some file systems do not report the type with the name.
            let kind = match (file_type.is_file(), file_type.is_dir(), file_type.is_symlink()) {
                (true, _, _) => FileKind::File,
                (_, true, _) => FileKind::Directory,
                (_, _, true) => FileKind::Link,
                _ => facts(directory, &name).map_or(FileKind::Other, |facts| facts.kind),
            };
            if matches!(kind, FileKind::File | FileKind::Directory) {
                names.push((name, kind));
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

impl FileFacts {
    fn read(stat: &Stat) -> FileFacts {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Directory,
            FileType::Symlink => FileKind::Link,
            _ => FileKind::Other,
        };
        FileFacts {
            kind,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            modified: stat.st_mtime,
            changed: (stat.st_ctime, u32::try_from(stat.st_ctime_nsec).unwrap_or_default()),
            inode: stat.st_ino,
        }
    }
}

fn facts(directory: &Dir, name: &OsStr) -> rustix::io::Result<FileFacts> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map(|stat| FileFacts::read(&stat))
}

/// Opens a directory in `parent`. Fails if it is a link.
fn open_directory(parent: &Dir, name: &OsStr) -> rustix::io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map(|handle| Dir::from_std_file(handle.into()))
}

/// Opens a regular file in `parent`. Fails if it is a link.
pub(crate) fn open_file(parent: &Dir, name: &OsStr) -> io::Result<File> {
    if facts(parent, name)?.kind != FileKind::File {
        return Err(not_regular());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::openat(parent, name, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

pub(crate) fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Reports whether the error means that there is no regular file with this name, and not that it cannot be read.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput)
}
