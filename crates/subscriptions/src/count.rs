//! Counts the subscriptions of each client and of all clients, and enforces the two limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A count of subscriptions, either of one client or of all clients.
#[derive(Debug, Default)]
pub struct SubscriptionCount {
    count: AtomicUsize,
    /// The counts of updates for these subscriptions.
    pub totals: Arc<UpdateTotals>,
}

/// The number of updates by outcome.
#[derive(Debug, Default)]
pub struct UpdateTotals {
    /// Updates that were written to the client's stream.
    pub delivered: AtomicU64,
    /// Updates that a newer one of the same resource replaced before they were written.
    pub coalesced: AtomicU64,
    /// Updates that were pending when the client left.
    pub dropped: AtomicU64,
}

impl SubscriptionCount {
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts one more subscription. Returns `None` if there are `max` already.
    fn acquire(self: &Arc<SubscriptionCount>, max: usize) -> Option<CountGuard> {
        let increment = |count: usize| (count < max).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment).ok()?;
        Some(CountGuard(Arc::clone(self)))
    }
}

struct CountGuard(Arc<SubscriptionCount>);

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One subscription's share of the client's limit and of the global limit. Dropping it returns both.
pub struct SubscriptionPermit {
    _own: CountGuard,
    all: CountGuard,
}

/// The limit that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    Client,
    All,
    /// The limit of resources that patterns and forwarded URIs may subscribe to at one backend.
    Upstream,
}

impl SubscriptionPermit {
    /// Counts one subscription. Each argument is a counter and its limit.
    pub fn new(
        (own, max): (&Arc<SubscriptionCount>, usize),
        (all, max_total): (&Arc<SubscriptionCount>, usize),
    ) -> Result<SubscriptionPermit, LimitReached> {
        let own = own.acquire(max).ok_or(LimitReached::Client)?;
        let all = all.acquire(max_total).ok_or(LimitReached::All)?;
        Ok(SubscriptionPermit { _own: own, all })
    }

    /// Returns the counters for the updates of all subscriptions.
    pub fn totals(&self) -> &Arc<UpdateTotals> {
        &self.all.0.totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub8_subscriptions_are_limited_and_a_rejected_one_leaves_no_trace() {
        let (own, other, all) = (Arc::default(), Arc::default(), Arc::default());
        let acquire = |own| SubscriptionPermit::new((own, 2), (&all, 3));
        let permits: Vec<_> = (0..2).map(|_| acquire(&own).map_err(drop)).collect();
        assert_eq!(acquire(&own).map(drop), Err(LimitReached::Client));
        let last = acquire(&other);
        assert!(last.is_ok());
        assert_eq!(acquire(&other).map(drop), Err(LimitReached::All));
        assert_eq!((own.count(), other.count(), all.count()), (2, 1, 3));
        drop((permits, last));
        assert_eq!((own.count(), other.count(), all.count()), (0, 0, 0));
    }
}
