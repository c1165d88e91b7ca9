//! One look at the tree: finds the current state and reports the changes.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;

use goblin_wire::json::quote;
use goblin_wire::{Message, Method};

use crate::path::RelativePath;
use crate::tree::{FileKind, FileTree, LookupError, StopFlag};
use crate::watch::ChangedPaths;
use crate::watch::subscribed::FileChange;
use crate::watch::system::{WatchHandle, WatchedDirectories};
use crate::{FilesState, resources};

/// The tree as a look found it.
#[derive(Default)]
pub(crate) struct TreeSnapshot {
    /// The listed files.
    files: HashSet<RelativePath>,
    /// The root and the directories that contain listed files. Incomplete if there are too many to watch.
    directories: HashSet<RelativePath>,
}

/// The result of a look.
pub(crate) struct ScanResult {
    /// The new state of the tree. `None` if there was no reason to walk it.
    pub seen: Option<TreeSnapshot>,
    /// The watched directories, or the reason why they cannot be watched.
    pub watched: Option<io::Result<WatchedDirectories>>,
}

/// Checks the touched paths, or the whole tree, and reports changes. `handle` is `None` if the tree is polled.
pub(crate) fn scan(
    served: &FilesState,
    before: &TreeSnapshot,
    mut changed: ChangedPaths,
    handle: Option<&WatchHandle>,
    stop: &StopFlag,
) -> ScanResult {
    let FilesState { tree, host, watch, .. } = served;
    let is_other = |path: &RelativePath| before.differs(tree, path) || watch.subscribed.has_links();
    if changed.named().any(is_other) {
        changed.widen();
    }
    for (path, change) in watch.subscribed.scan(tree, &changed, stop) {
        match change {
            FileChange::Updated => notify_update(served, &path),
            FileChange::Ended => host.ended(&tree.root.uri(&path)),
        }
    }
    // If the ignore rules cannot be read, there is no list until they change again.
    let walked = changed.is_all().then(|| TreeSnapshot::walk(served, stop).ok()).flatten();
    let Some((seen, fingerprint)) = walked.filter(|_| !stop.is_set()) else {
        return ScanResult { seen: None, watched: None };
    };
    if watch.seen(fingerprint) {
        host.resources_changed();
    }
    let watched = handle.map(|handle| handle.watch(watch_paths(served, &seen)?));
    ScanResult { seen: Some(seen), watched }
}

impl TreeSnapshot {
    /// Walks the tree. Also returns the fingerprint of the list.
    fn walk(served: &FilesState, stop: &StopFlag) -> Result<(TreeSnapshot, u64), LookupError> {
        let mut seen = TreeSnapshot::default();
        seen.directories.insert(RelativePath::default());
        let listing = resources::each(&served.tree, served.max_listed, stop, |item| match item.kind {
            FileKind::File => drop(seen.files.insert(item.path.clone())),
            _ if seen.directories.len() <= served.max_listed => drop(seen.directories.insert(item.path.clone())),
            _ => {}
        })?;
        Ok((seen, listing.fingerprint))
    }

    /// Reports whether the file or directory with this name is not the one that was seen before.
    fn differs(&self, tree: &FileTree, path: &RelativePath) -> bool {
        let found = tree.find(path).ok().filter(|entry| entry.path == *path);
        match found.map(|entry| entry.facts.kind) {
            Some(FileKind::File) => !self.files.contains(path),
            // The directory may be another one with other files.
            Some(FileKind::Directory) => true,
            Some(FileKind::Link | FileKind::Other) | None => {
                self.files.contains(path) || self.directories.contains(path)
            }
        }
    }
}

/// Returns the directories to watch: those of the list, those of subscribed files, and those with rules for the tree.
fn watch_paths(served: &FilesState, seen: &TreeSnapshot) -> io::Result<Vec<PathBuf>> {
    let FilesState { tree, max_listed, .. } = served;
    let is_directory = |path: &RelativePath| {
        tree.find(path).is_ok_and(|entry| entry.path == *path && entry.facts.kind == FileKind::Directory)
    };
    let subscribed = served.watch.subscribed.directories();
    let others = subscribed.iter().filter(|path| !seen.directories.contains(path) && is_directory(path));
    // One more than the limit is enough to detect the excess.
    let directories: Vec<_> = seen.directories.iter().chain(others).take(max_listed + 1).collect();
    if directories.len() > *max_listed {
        return Err(io::Error::other("there are more directories than maxFiles"));
    }
    let directories = directories.into_iter().map(|path| tree.root.path().join(path.as_path()));
    Ok(directories.chain(tree.rule.places()).collect())
}

fn notify_update(served: &FilesState, path: &RelativePath) {
    let params = format!(r#"{{"uri":{}}}"#, quote(&served.tree.root.uri(path)));
    let updated = goblin_wire::notification(&Method::ResourceUpdated, Some(&params));
    if let Ok(Message::Notification(updated)) = Message::parse(updated) {
        served.host.updated(&updated);
    }
}
