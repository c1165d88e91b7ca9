//! The log levels that clients set. Clients share a backend, so the backend gets one level for all. The gateway then
//! filters its log messages for each client that set a level.
//!
//! A session without a level gets all messages that the backend sends by itself. If another client sets a level, the
//! backend's own selection is lost. The backend then gets the lowest level, so such a session misses no message.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use crate::client::caller::Level;

/// The level that the clients together want from a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WantedLevel {
    /// No client receives log messages. The level of a backend need not change.
    #[default]
    Any,
    /// No client set a level, and at least one session receives log messages.
    OfBackend,
    /// The lowest level that a client needs.
    AtLeast(Level),
}

#[derive(Default)]
pub struct Levels {
    /// The number of clients at each level. It changes only while `wanted` is locked.
    counts: [AtomicUsize; Level::ALL.len()],
    /// The number of sessions without a level. It changes only while `wanted` is locked.
    unset: AtomicUsize,
    wanted: watch::Sender<WantedLevel>,
}

impl Levels {
    pub fn watch(&self) -> watch::Receiver<WantedLevel> {
        self.wanted.subscribe()
    }

    /// Adds a session. `None` means that it sets no level.
    pub fn add(&self, level: Option<Level>) {
        self.update(|| {
            self.count(level).fetch_add(1, Ordering::Relaxed);
        });
    }

    /// Removes a session that has this level.
    pub fn remove(&self, level: Option<Level>) {
        self.update(|| {
            self.count(level).fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Replaces the level of a session.
    pub fn replace(&self, before: Option<Level>, after: Level) {
        self.update(|| {
            self.count(before).fetch_sub(1, Ordering::Relaxed);
            self.count(Some(after)).fetch_add(1, Ordering::Relaxed);
        });
    }

    fn count(&self, level: Option<Level>) -> &AtomicUsize {
        level.map_or(&self.unset, |level| &self.counts[level as usize])
    }

    fn update(&self, change: impl FnOnce()) {
        self.wanted.send_if_modified(|current| {
            change();
            let wanted = self.wanted();
            std::mem::replace(current, wanted) != wanted
        });
    }

    fn wanted(&self) -> WantedLevel {
        let is_set = |level: &Level| self.counts[*level as usize].load(Ordering::Relaxed) > 0;
        match (Level::ALL.into_iter().find(is_set), self.unset.load(Ordering::Relaxed)) {
            (Some(lowest), 0) => WantedLevel::AtLeast(lowest),
            (Some(_), _) => WantedLevel::AtLeast(Level::LOWEST),
            (None, 0) => WantedLevel::Any,
            (None, _) => WantedLevel::OfBackend,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_requested_log_level_counts() {
        let levels = Levels::default();
        let wanted = levels.watch();
        levels.add(Some(Level::Warning));
        levels.add(Some(Level::Info));
        assert_eq!(*wanted.borrow(), WantedLevel::AtLeast(Level::Info));
        levels.replace(Some(Level::Info), Level::Error);
        assert_eq!(*wanted.borrow(), WantedLevel::AtLeast(Level::Warning));
        levels.remove(Some(Level::Warning));
        levels.remove(Some(Level::Error));
        assert_eq!(*wanted.borrow(), WantedLevel::Any);
    }

    #[test]
    fn a_session_without_a_level_loses_nothing_to_the_level_of_another() {
        let levels = Levels::default();
        let wanted = levels.watch();
        levels.add(None);
        assert_eq!(*wanted.borrow(), WantedLevel::OfBackend);
        levels.add(None);
        levels.replace(None, Level::Error);
        assert_eq!(*wanted.borrow(), WantedLevel::AtLeast(Level::LOWEST));
        levels.remove(None);
        assert_eq!(*wanted.borrow(), WantedLevel::AtLeast(Level::Error));
        levels.add(None);
        levels.remove(Some(Level::Error));
        assert_eq!(*wanted.borrow(), WantedLevel::OfBackend);
    }
}
