//! Whether a connection has work, and since when it has none.
//!
//! A peer that neither finishes a request nor sends one must not hold its connection for ever. One look now and then costs
//! less than a timer for every request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::Notify;

use crate::front::body::Body;

/// Stands in `waiting_since` while there is work.
const BUSY: u64 = u64::MAX;

pub struct Attention {
    /// The beginning of the clock, the same for all connections.
    begin: Instant,
    /// Microseconds from the beginning to the start of the connection.
    opened: u64,
    /// Microseconds from the beginning to the moment since which we wait for a whole request.
    waiting_since: AtomicU64,
    /// The same for the moment in which the head of a request began to arrive; 0 where none has.
    head_since: AtomicU64,
    /// Notified when the connection shall make room for another.
    evict: Notify,
}

impl Attention {
    /// Starts the attention of a connection that opens now.
    pub fn new(begin: Instant) -> Arc<Attention> {
        let opened = micros(begin.elapsed());
        let (waiting_since, head_since) = (AtomicU64::new(opened), AtomicU64::new(0));
        Arc::new(Attention { begin, opened, waiting_since, head_since, evict: Notify::new() })
    }

    /// Returns since when the connection waits for a request, `None` while it has one.
    pub fn idle_since(&self) -> Option<u64> {
        Some(self.waiting_since.load(Ordering::Relaxed)).filter(|since| *since != BUSY)
    }

    /// Returns whether no request has arrived, given the answer of [`idle_since`](Attention::idle_since).
    pub fn is_new(&self, idle_since: u64) -> bool {
        idle_since == self.opened
    }

    /// Asks the connection to close if it is idle.
    pub fn evict(&self) {
        self.evict.notify_one();
    }

    /// Waits until the connection is asked to close.
    pub async fn evicted(&self) {
        self.evict.notified().await;
    }

    /// Bytes have come. While we wait for a request, the first ones begin its head.
    pub fn hear(&self) {
        let waits = self.waiting_since.load(Ordering::Relaxed) != BUSY;
        if waits && self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.now().max(1), Ordering::Relaxed);
        }
    }

    /// A request is there; it is work until the answer has been written.
    pub fn begin_work(self: &Arc<Attention>) -> Work {
        self.waiting_since.store(BUSY, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        Work(Arc::clone(self))
    }

    /// Whether the peer has sent nothing for `idle`, or not finished the head of a request within `head`.
    pub fn is_lost(&self, idle: Duration, head: Duration) -> bool {
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

/// A request being answered.
pub struct Work(Arc<Attention>);

impl Drop for Work {
    fn drop(&mut self) {
        self.0.waiting_since.store(self.0.now(), Ordering::Relaxed);
    }
}

/// A body whose writing is work.
pub struct Attended {
    pub body: Body,
    pub work: Work,
}

impl http_body::Body for Attended {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_connection_without_work_is_idle() {
        let attention = Attention::new(Instant::now());
        assert!(attention.idle_since().is_some_and(|since| attention.is_new(since)));
        let (none, long) = (Duration::ZERO, Duration::from_secs(60));
        assert!(attention.is_lost(none, long) && !attention.is_lost(long, none));
        attention.hear();
        assert!(attention.is_lost(long, none) && !attention.is_lost(long, long));
        let work = attention.begin_work();
        attention.hear();
        assert!(!attention.is_lost(none, none) && attention.idle_since().is_none());
        while attention.now() == attention.opened {
            std::hint::spin_loop();
        }
        drop(work);
        assert!(attention.idle_since().is_some_and(|since| !attention.is_new(since)));
        assert!(attention.is_lost(none, long) && !attention.is_lost(long, none));
    }
}
