//! The subscribed files, each with the state in which it was last seen.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::path::RelativePath;
use crate::tree::{FileFacts, FileKind, FileTree, StopFlag, TreeEntry};
use crate::watch::ChangedPaths;

/// The coarsest step of file system clocks. A file that changed this recently may change again without a new timestamp.
const CLOCK_STEP: Duration = Duration::from_millis(20);

/// The subscribed files by the path in the subscription, which may contain links. The register limits their number.
#[derive(Default)]
pub(crate) struct FileSubscriptions(Mutex<SubscribedFiles>);

#[derive(Default)]
struct SubscribedFiles {
    snapshots: HashMap<RelativePath, FileSnapshot>,
    /// At least one path is, or was, a link or leads through one.
    has_links: bool,
}

/// The state of a file when it was last seen.
#[derive(Clone, Debug)]
struct FileSnapshot {
    /// The last real path of the file, with links resolved.
    real: RelativePath,
    /// The metadata of the file. `None` if it does not exist or is not served.
    facts: Option<FileFacts>,
    is_settled: bool,
}

/// The change of a subscribed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileChange {
    Updated,
    /// The file is gone or no longer served.
    Ended,
}

impl FileSnapshot {
    fn of(entry: &TreeEntry) -> FileSnapshot {
        let (real, facts) = (entry.path.clone(), Some(entry.facts));
        let (seconds, nanoseconds) = entry.facts.changed;
        let changed = UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or_default(), nanoseconds);
        let now = SystemTime::now();
        // A file system with another clock may report a time in the future.
        let distance = now.duration_since(changed).unwrap_or_else(|ahead| ahead.duration());
        FileSnapshot { real, facts, is_settled: distance > CLOCK_STEP }
    }

    /// Reads the current state of a file. If it is gone, keeps its last real path.
    fn scan(tree: &FileTree, path: &RelativePath, before: &RelativePath) -> FileSnapshot {
        match tree.find(path) {
            Ok(entry) if entry.facts.kind == FileKind::File => FileSnapshot::of(&entry),
            _ => FileSnapshot { real: before.clone(), facts: None, is_settled: true },
        }
    }

    /// Reports whether the file may have changed between `self` and `now`.
    fn differs(&self, now: &FileSnapshot, is_written: bool) -> bool {
        self.facts != now.facts || (now.facts.is_some() && (is_written || !self.is_settled))
    }
}

impl FileSubscriptions {
    /// Adds a file. Returns `false` if it is already subscribed. A file that was gone counts as seen: the gateway
    /// subscribes again because it knows of the return.
    pub(crate) fn insert(&self, path: RelativePath, entry: &TreeEntry) -> bool {
        let mut files = self.0.lock();
        files.has_links |= path != entry.path;
        let is_new = !files.snapshots.contains_key(&path);
        let snapshot = files.snapshots.entry(path).or_insert_with(|| FileSnapshot::of(entry));
        if snapshot.facts.is_none() {
            *snapshot = FileSnapshot::of(entry);
        }
        is_new
    }

    pub(crate) fn remove(&self, path: &RelativePath) {
        let mut files = self.0.lock();
        files.snapshots.remove(path);
        files.has_links &= !files.snapshots.is_empty();
    }

    /// Reports whether a path may lead through a link. If so, a change of any file may concern a subscription.
    pub(crate) fn has_links(&self) -> bool {
        self.0.lock().has_links
    }

    /// Reports whether a write to this path may concern a subscription.
    pub(crate) fn is_wanted(&self, path: &RelativePath) -> bool {
        let files = self.0.lock();
        files.has_links || files.snapshots.contains_key(path)
    }

    /// Returns the directories that contain the files, by their subscribed and their real paths.
    pub(crate) fn directories(&self) -> HashSet<RelativePath> {
        let files = self.0.lock();
        files.snapshots.iter().flat_map(|(path, snapshot)| path.above().chain(snapshot.real.above())).collect()
    }

    /// Checks the files that may have changed. Returns those that have.
    pub(crate) fn scan(
        &self,
        tree: &FileTree,
        changed: &ChangedPaths,
        stop: &StopFlag,
    ) -> Vec<(RelativePath, FileChange)> {
        let candidates: Vec<_> = {
            let files = self.0.lock();
            let is_candidate = |path: &RelativePath, real: &RelativePath| path != real || changed.contains(path);
            let candidates = files.snapshots.iter().filter(|(path, snapshot)| is_candidate(path, &snapshot.real));
            candidates.map(|(path, snapshot)| (path.clone(), snapshot.real.clone())).collect()
        };
        let check = |(path, real): (RelativePath, RelativePath)| {
            let now = FileSnapshot::scan(tree, &path, &real);
            let is_written = changed.is_written(&path) || changed.is_written(&now.real);
            let change = self.update(&path, now, is_written)?;
            Some((path, change))
        };
        candidates.into_iter().take_while(|_| !stop.is_set()).filter_map(check).collect()
    }

    /// Records the state of a file. Returns its change, if any. Ignores a file that was unsubscribed meanwhile.
    fn update(&self, path: &RelativePath, now: FileSnapshot, is_written: bool) -> Option<FileChange> {
        let mut files = self.0.lock();
        let before = files.snapshots.get_mut(path)?;
        let change = if now.facts.is_some() { FileChange::Updated } else { FileChange::Ended };
        let (differs, is_link) = (before.differs(&now, is_written), now.real != *path);
        *before = now;
        files.has_links |= is_link;
        differs.then_some(change)
    }
}
