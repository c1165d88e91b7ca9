//! The log levels that clients set. Clients share a backend, so it gets the lowest level of all. The gateway then
//! filters its log messages for each client.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use crate::client::caller::Level;

#[derive(Default)]
pub struct Levels {
    /// The number of clients at each level. It changes only while `lowest` is locked.
    counts: [AtomicUsize; Level::ALL.len()],
    lowest: watch::Sender<Option<Level>>,
}

impl Levels {
    pub fn watch(&self) -> watch::Receiver<Option<Level>> {
        self.lowest.subscribe()
    }

    /// Replaces the level of one client. `None` means that the client sets no level.
    pub fn replace(&self, before: Option<Level>, after: Option<Level>) {
        self.lowest.send_if_modified(|current| {
            if let Some(before) = before {
                self.counts[before as usize].fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(after) = after {
                self.counts[after as usize].fetch_add(1, Ordering::Relaxed);
            }
            let is_set = |level: &Level| self.counts[*level as usize].load(Ordering::Relaxed) > 0;
            let lowest = Level::ALL.into_iter().find(is_set);
            std::mem::replace(current, lowest) != lowest
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_requested_log_level_counts() {
        let levels = Levels::default();
        let lowest = levels.watch();
        levels.replace(None, Some(Level::Warning));
        levels.replace(None, Some(Level::Debug));
        assert_eq!(*lowest.borrow(), Some(Level::Debug));
        levels.replace(Some(Level::Debug), Some(Level::Error));
        assert_eq!(*lowest.borrow(), Some(Level::Warning));
        levels.replace(Some(Level::Warning), None);
        levels.replace(Some(Level::Error), None);
        assert_eq!(*lowest.borrow(), None);
    }
}
