//! Records whether a connection is busy, and since when it is idle.
//!
//! A peer that sends no request, or never finishes one, must not keep its connection forever. The server checks all
//! connections periodically, which costs less than a timer per request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// The value of `waiting_since` while a request is processed.
const BUSY: u64 = u64::MAX;

pub(crate) struct ConnectionActivity {
    /// The start of the clock, which all connections share.
    begin: Instant,
    /// The microseconds from `begin` to the start of the connection.
    opened: u64,
    /// The microseconds from `begin` to the time since which the connection waits for a request.
    waiting_since: AtomicU64,
    /// The microseconds from `begin` to the first byte of a request's head. 0 if none has arrived.
    head_since: AtomicU64,
    /// Notified when the connection must make room for another.
    evict: Notify,
}

impl ConnectionActivity {
    /// Creates the record of a connection that opens now.
    pub(crate) fn new(begin: Instant) -> Arc<ConnectionActivity> {
        let opened = micros(begin.elapsed());
        let (waiting_since, head_since) = (AtomicU64::new(opened), AtomicU64::new(0));
        Arc::new(ConnectionActivity { begin, opened, waiting_since, head_since, evict: Notify::new() })
    }

    /// Returns the time since which the connection waits for a request, or `None` while it processes one.
    pub(crate) fn idle_since(&self) -> Option<u64> {
        Some(self.waiting_since.load(Ordering::Relaxed)).filter(|since| *since != BUSY)
    }

    /// Reports whether the connection has had no request. `idle_since` is the result of
    /// [`idle_since`](ConnectionActivity::idle_since).
    pub(crate) fn is_new(&self, idle_since: u64) -> bool {
        idle_since == self.opened
    }

    /// Asks the connection to close if it is idle.
    pub(crate) fn evict(&self) {
        self.evict.notify_one();
    }

    /// Waits until the connection is asked to close.
    pub(crate) async fn evicted(&self) {
        self.evict.notified().await;
    }

    /// Records received bytes. If the connection is idle, the first of them begin the head of a request.
    pub(crate) fn record_bytes(&self) {
        let is_waiting = self.waiting_since.load(Ordering::Relaxed) != BUSY;
        if is_waiting && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.now().max(1), Ordering::Relaxed);
        }
    }

    /// Marks the connection as busy until the returned guard is dropped, which is after the response was written.
    pub(crate) fn begin_work(self: &Arc<ConnectionActivity>) -> BusyGuard {
        self.waiting_since.store(BUSY, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        BusyGuard(Arc::clone(self))
    }

    /// Reports whether the peer sent no request for `idle`, or did not finish the head of a request within `head`.
    pub(crate) fn is_timed_out(&self, idle: Duration, head: Duration) -> bool {
        let waiting_since = self.waiting_since.load(Ordering::Relaxed);
        let head_since = self.head_since.load(Ordering::Relaxed);
        let over = |since: u64, limit: Duration| self.now().saturating_sub(since) >= micros(limit);
        waiting_since != BUSY && (over(waiting_since, idle) || head_since != 0 && over(head_since, head))
    }

    fn now(&self) -> u64 {
        micros(self.begin.elapsed())
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(BUSY - 1)
}

/// A guard for a request that is being processed.
pub(crate) struct BusyGuard(Arc<ConnectionActivity>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.waiting_since.store(self.0.now(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_without_work_is_idle() {
        let activity = ConnectionActivity::new(Instant::now());
        assert!(activity.idle_since().is_some_and(|since| activity.is_new(since)));
        let (none, long) = (Duration::ZERO, Duration::from_secs(60));
        assert!(activity.is_timed_out(none, long) && !activity.is_timed_out(long, none));
        activity.record_bytes();
        assert!(activity.is_timed_out(long, none) && !activity.is_timed_out(long, long));
        let work = activity.begin_work();
        activity.record_bytes();
        assert!(!activity.is_timed_out(none, none) && activity.idle_since().is_none());
        while activity.now() == activity.opened {
            std::hint::spin_loop();
        }
        drop(work);
        assert!(activity.idle_since().is_some_and(|since| !activity.is_new(since)));
        assert!(activity.is_timed_out(none, long) && !activity.is_timed_out(long, none));
    }
}
