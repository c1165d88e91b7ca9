//! The set of paths that may have changed since the last look.

use std::collections::HashMap;

use tokio::time::Instant;

use crate::path::RelativePath;
use crate::watch::{MAX_WAIT, QUIET};

/// The size of the set above which the whole tree is checked, which costs no more by then.
const MAX_CHANGED_PATHS: usize = 1024;

/// The kinds of change that were reported for a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathChange {
    /// The content of the file changed.
    pub written: bool,
    /// The name was created or removed, or belongs to a directory.
    pub named: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ChangedPaths {
    paths: HashMap<RelativePath, PathChange>,
    is_all: bool,
    /// The times of the first and the last event.
    first_and_last: Option<(Instant, Instant)>,
}

impl ChangedPaths {
    pub(crate) fn add(&mut self, path: RelativePath, change: PathChange, now: Instant) {
        self.record_time(now);
        let known = self.paths.entry(path).or_default();
        *known = PathChange { written: known.written || change.written, named: known.named || change.named };
        if self.paths.len() > MAX_CHANGED_PATHS {
            self.is_all = true;
            self.paths.clear();
        }
    }

    /// Marks the whole tree as changed. Writes to single paths stay recorded, since a look alone may not detect them.
    pub(crate) fn add_all(&mut self, now: Instant) {
        self.record_time(now);
        self.is_all = true;
    }

    /// Extends the next look to the whole tree.
    pub(crate) fn widen(&mut self) {
        self.is_all = true;
    }

    fn record_time(&mut self, now: Instant) {
        let first = self.first_and_last.map_or(now, |(first, _)| first);
        self.first_and_last = Some((first, now));
    }

    /// Returns the time of the next look, or `None` if nothing changed.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.first_and_last.map(|(first, last)| (last + QUIET).min(first + MAX_WAIT))
    }

    pub(crate) fn is_all(&self) -> bool {
        self.is_all
    }

    pub(crate) fn contains(&self, path: &RelativePath) -> bool {
        self.is_all || self.paths.contains_key(path)
    }

    pub(crate) fn is_written(&self, path: &RelativePath) -> bool {
        self.paths.get(path).is_some_and(|change| change.written)
    }

    pub(crate) fn named(&self) -> impl Iterator<Item = &RelativePath> {
        self.paths.iter().filter(|(_, change)| change.named).map(|(path, _)| path)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    fn path(number: usize) -> RelativePath {
        RelativePath::from_plain(Path::new(&number.to_string())).expect("a plain name")
    }

    const WRITTEN: PathChange = PathChange { written: true, named: false };
    const NAMED: PathChange = PathChange { written: false, named: true };

    #[test]
    fn what_is_said_of_a_path_adds_up() {
        let (mut changed, now) = (ChangedPaths::default(), Instant::now());
        changed.add(path(1), WRITTEN, now);
        changed.add(path(1), NAMED, now);
        changed.add(path(2), WRITTEN, now);
        assert!(changed.is_written(&path(1)) && changed.is_written(&path(2)) && !changed.contains(&path(3)));
        assert_eq!(changed.named().collect::<Vec<_>>(), [&path(1)]);
        changed.add_all(now);
        changed.add(path(4), WRITTEN, now);
        assert!(changed.contains(&path(3)) && !changed.is_written(&path(3)));
        assert!(changed.is_written(&path(1)) && changed.is_written(&path(4)));
    }

    #[test]
    fn so_many_paths_are_kept_and_then_it_is_all() {
        let (mut changed, now) = (ChangedPaths::default(), Instant::now());
        for number in 0..MAX_CHANGED_PATHS {
            changed.add(path(number), NAMED, now);
        }
        assert!(!changed.is_all() && !changed.contains(&path(MAX_CHANGED_PATHS)));
        changed.add(path(MAX_CHANGED_PATHS), NAMED, now);
        assert!(changed.is_all() && changed.contains(&path(MAX_CHANGED_PATHS + 1)));
        for number in 0..=MAX_CHANGED_PATHS {
            changed.add(path(number), WRITTEN, now);
        }
        assert!(changed.is_all() && changed.paths.is_empty());
    }

    #[test]
    fn a_look_waits_for_quiet_but_not_for_ever() {
        let (mut changed, begin) = (ChangedPaths::default(), Instant::now());
        assert_eq!(changed.due(), None);
        for (after, due) in
            [(Duration::ZERO, QUIET), (QUIET / 2, QUIET + QUIET / 2), (MAX_WAIT, MAX_WAIT), (MAX_WAIT * 2, MAX_WAIT)]
        {
            changed.add(path(1), WRITTEN, begin + after);
            assert_eq!(changed.due(), Some(begin + due));
        }
    }
}
