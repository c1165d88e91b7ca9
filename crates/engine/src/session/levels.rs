//! The log levels that clients set. Clients share a backend, so it gets the lowest level of all. The gateway then
//! filters its log messages for each client.

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::client::caller::Level;

#[derive(Default)]
pub struct Levels {
    counts: Mutex<[usize; Level::ALL.len()]>,
    lowest: watch::Sender<Option<Level>>,
}

impl Levels {
    pub fn watch(&self) -> watch::Receiver<Option<Level>> {
        self.lowest.subscribe()
    }

    /// Replaces the level of one client. `None` means that the client sets no level.
    pub fn replace(&self, before: Option<Level>, after: Option<Level>) {
        let mut counts = self.counts.lock();
        if let Some(before) = before {
            counts[before as usize] -= 1;
        }
        if let Some(after) = after {
            counts[after as usize] += 1;
        }
        let lowest = Level::ALL.into_iter().find(|level| counts[*level as usize] > 0);
        self.lowest.send_if_modified(|current| std::mem::replace(current, lowest) != lowest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_wish_counts() {
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
