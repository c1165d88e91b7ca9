//! Counts the subscriptions of each client and of all clients, and enforces the two limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A count of subscriptions, either of one client or of all clients.
#[derive(Debug, Default)]
pub struct Tally {
    count: AtomicUsize,
    /// The counts of updates for these subscriptions.
    pub fates: Arc<Fates>,
}

/// The number of updates by outcome.
#[derive(Debug, Default)]
pub struct Fates {
    /// Updates that were written to the client's stream.
    pub delivered: AtomicU64,
    /// Updates that a newer one of the same resource replaced before they were written.
    pub coalesced: AtomicU64,
    /// Updates that were pending when the client left.
    pub dropped: AtomicU64,
}

impl Tally {
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts one more subscription. Returns `None` if there are `most` already.
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

/// One subscription's share of the client's limit and of the global limit. Dropping it returns both.
pub struct Place {
    _own: Entered,
    all: Entered,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Client,
    All,
    /// The limit of resources that patterns may subscribe to at one backend.
    Upstream,
}

impl Place {
    /// Counts one subscription. Each argument is a counter and its limit.
    pub fn new((own, most): (&Arc<Tally>, usize), (all, most_in_all): (&Arc<Tally>, usize)) -> Result<Place, Full> {
        let own = own.enter(most).ok_or(Full::Client)?;
        let all = all.enter(most_in_all).ok_or(Full::All)?;
        Ok(Place { _own: own, all })
    }

    /// Returns the counters for the updates of all subscriptions.
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
