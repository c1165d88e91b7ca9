//! A limit of things in use at once, which a reload can change.
//!
//! A larger limit holds at once. A smaller one ends nothing: it holds once enough of the things in use have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use goblin_telemetry::worker;
use tokio::sync::Semaphore;

/// The largest limit. It fits into one request for permits.
const MAX_LIMIT: usize = u32::MAX as usize >> 3;

pub(crate) struct Capacity {
    permits: Arc<Semaphore>,
    /// The configured limit.
    limit: AtomicUsize,
    /// The number of permits, free or in use. It stays above a smaller limit until permits are returned.
    total: AtomicUsize,
}

impl Capacity {
    pub(crate) fn new(limit: usize) -> Arc<Capacity> {
        let limit = limit.min(MAX_LIMIT);
        let permits = Arc::new(Semaphore::new(limit));
        Arc::new(Capacity { permits, limit: AtomicUsize::new(limit), total: AtomicUsize::new(limit) })
    }

    pub(crate) fn permits(&self) -> &Arc<Semaphore> {
        &self.permits
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Acquire)
    }

    /// Returns the number of permits in use.
    pub(crate) fn in_use(&self) -> usize {
        self.total.load(Ordering::Acquire).saturating_sub(self.permits.available_permits())
    }

    /// Changes the limit. Only the supervisor of the backends calls this, under its lock.
    pub(crate) fn resize(self: &Arc<Capacity>, limit: usize) {
        let limit = limit.min(MAX_LIMIT);
        self.limit.store(limit, Ordering::Release);
        let grown = |total: usize| (total < limit).then_some(limit);
        match self.total.fetch_update(Ordering::AcqRel, Ordering::Acquire, grown) {
            Ok(total) => self.permits.add_permits(limit - total),
            Err(total) if total > limit => drop(worker::spawn(Arc::clone(self).shrink())),
            Err(_) => {}
        }
    }

    /// Removes permits until the limit holds. The semaphore is fair, so later users wait until the surplus is gone.
    async fn shrink(self: Arc<Capacity>) {
        loop {
            let surplus = self.total.load(Ordering::Acquire).saturating_sub(self.limit());
            let count = surplus.min(self.permits.available_permits().max(1));
            let Ok(count) = u32::try_from(count) else { return };
            if count == 0 {
                return;
            }
            let Ok(permits) = Arc::clone(&self.permits).acquire_many_owned(count).await else { return };
            // The limit may have grown meanwhile. The permits then stay.
            let shrunk = |total: usize| total.checked_sub(count as usize).filter(|total| *total >= self.limit());
            if self.total.fetch_update(Ordering::AcqRel, Ordering::Acquire, shrunk).is_ok() {
                permits.forget();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn use9_a_smaller_limit_holds_once_enough_uses_have_ended() {
        let capacity = Capacity::new(3);
        let mut used: Vec<_> = (0..3).map(|_| capacity.permits().try_acquire().expect("a permit")).collect();
        capacity.resize(1);
        tokio::task::yield_now().await;
        assert_eq!((capacity.limit(), capacity.in_use()), (1, 3));
        used.truncate(1);
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        assert_eq!(capacity.in_use(), 1);
        assert!(capacity.permits().try_acquire().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn use9_a_limit_that_grows_again_before_it_holds_keeps_all_permits() {
        let capacity = Capacity::new(3);
        let used: Vec<_> = (0..3).map(|_| capacity.permits().try_acquire().expect("a permit")).collect();
        capacity.resize(1);
        tokio::task::yield_now().await;
        capacity.resize(4);
        drop(used);
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        assert_eq!((capacity.limit(), capacity.in_use(), capacity.permits().available_permits()), (4, 0, 4));
    }
}
