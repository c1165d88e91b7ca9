//! How many subscriptions there are, of one client and of all, and how many there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Debug, Default)]
pub struct Tally {
    count: AtomicUsize,
    /// Of the updates for them.
    pub fates: Arc<Fates>,
}

/// What became of updates.
#[derive(Debug, Default)]
pub struct Fates {
    /// Written to the client's stream.
    pub delivered: AtomicU64,
    /// A newer one took its place before it was written.
    pub coalesced: AtomicU64,
    /// The client was gone before it was written.
    pub dropped: AtomicU64,
}

impl Tally {
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Room for one more, unless there are `most`.
    fn enter(self: &Arc<Tally>, most: usize) -> Option<Entered> {
        let grown = |count: usize| (count < most).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown).ok()?;
        Some(Entered(Arc::clone(self)))
    }
}

struct Entered(Arc<Tally>);

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place among the subscriptions of one client and of all; given back when dropped.
pub struct Place {
    _own: Entered,
    all: Entered,
}

/// Which limit leaves no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Client,
    All,
    /// For what patterns want of one backend.
    Upstream,
}

impl Place {
    pub fn new((own, most): (&Arc<Tally>, usize), (all, most_in_all): (&Arc<Tally>, usize)) -> Result<Place, Full> {
        let own = own.enter(most).ok_or(Full::Client)?;
        let all = all.enter(most_in_all).ok_or(Full::All)?;
        Ok(Place { _own: own, all })
    }

    /// Where the updates of all subscriptions are counted.
    pub fn fates(&self) -> &Arc<Fates> {
        &self.all.0.fates
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub8_exactly_so_many_fit_and_a_refused_one_leaves_no_trace() {
        let (own, other, all) = (Arc::default(), Arc::default(), Arc::default());
        let enter = |own| Place::new((own, 2), (&all, 3));
        let places: Vec<_> = (0..2).map(|_| enter(&own).map_err(drop)).collect();
        assert_eq!(enter(&own).map(drop), Err(Full::Client));
        let last = enter(&other);
        assert!(last.is_ok());
        assert_eq!(enter(&other).map(drop), Err(Full::All));
        assert_eq!((own.count(), other.count(), all.count()), (2, 1, 3));
        drop((places, last));
        assert_eq!((own.count(), other.count(), all.count()), (0, 0, 0));
    }
}
