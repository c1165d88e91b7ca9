//! The pending resource updates of one client: at most one per URI.
//!
//! An update only means "read again", so a newer one replaces an older one of the same URI that was not written yet.
//! The client's subscriptions therefore bound the queue, however many updates the backends send. More than
//! [`MAX_PENDING_INSIDE`] updates inside one subscribed resource are replaced by one update of the resource itself.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use indexmap::IndexMap;
use parking_lot::Mutex;

use crate::count::UpdateTotals;

/// The largest number of pending updates inside one subscribed resource.
const MAX_PENDING_INSIDE: usize = 64;
/// The size at which the table of update times accepts no more URIs inside a subscribed resource. Nothing else limits
/// their number. If the table is full, the next update of such a URI may come before its interval has passed.
const MAX_UPDATE_TIMES_INSIDE: usize = 1024;

/// The delivery options of a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryOptions {
    /// The client receives at most one update of a URI in this time.
    pub min_interval: Duration,
    /// Updates are collected for this long and sent together.
    pub batch: Duration,
    /// Updates of a greater priority are sent first.
    pub priority: i8,
}

/// The number of updates by outcome, for one subscription.
#[derive(Debug, Default)]
pub struct DeliveryCounts {
    pub delivered: AtomicU32,
    pub coalesced: AtomicU32,
    /// The same counts for all subscriptions.
    all: Arc<UpdateTotals>,
}

impl DeliveryCounts {
    pub fn among(all: &Arc<UpdateTotals>) -> DeliveryCounts {
        DeliveryCounts { all: Arc::clone(all), ..DeliveryCounts::default() }
    }

    fn count_delivered(&self) {
        self.delivered.fetch_add(1, Ordering::Relaxed);
        self.all.delivered.fetch_add(1, Ordering::Relaxed);
    }

    fn count_coalesced(&self, count: usize) {
        self.coalesced.fetch_add(u32::try_from(count).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.all.coalesced.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// An update for one client.
pub struct Update<'a> {
    /// The URI at the backend.
    pub native: &'a Arc<str>,
    /// The URI that clients know.
    pub uri: &'a Arc<str>,
    pub message: &'a Bytes,
    pub pace: DeliveryOptions,
    pub receipt: &'a Arc<DeliveryCounts>,
    /// The resource to update instead if more than [`MAX_PENDING_INSIDE`] updates inside it are pending.
    pub inside: Option<UpdateScope<'a>>,
}

/// The subscribed resource or pattern that contains the URI of an update.
#[derive(Clone, Copy)]
pub struct UpdateScope<'a> {
    pub native: &'a Arc<str>,
    pub uri: &'a Arc<str>,
    pub message: &'a Bytes,
}

#[derive(Default)]
pub struct Updates {
    queue: Mutex<UpdateQueue>,
}

#[derive(Default)]
struct UpdateQueue {
    pending: IndexMap<Arc<str>, PendingUpdate>,
    /// The earliest time of the next update, for each URI with an interval.
    told: HashMap<Arc<str>, Instant>,
    /// The time at which the collected updates are sent.
    flush: Option<Instant>,
    closed: bool,
}

struct PendingUpdate {
    native: Arc<str>,
    message: Bytes,
    due: Instant,
    min_interval: Duration,
    priority: i8,
    receipt: Arc<DeliveryCounts>,
    inside: Option<Arc<str>>,
}

impl Updates {
    /// Queues an update. Returns `false` if it replaced a pending one of the same URI or the client is gone.
    pub fn put(&self, update: &Update<'_>, now: Instant) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed {
            return false;
        }
        let Some(whole) = update.inside else { return queue.put(update, now) };
        let is_there = queue.pending.contains_key(update.uri);
        let of_parent = |pending: &PendingUpdate| pending.inside.as_ref() == Some(whole.uri);
        if is_there || queue.pending.values().filter(|pending| of_parent(pending)).count() < MAX_PENDING_INSIDE {
            return queue.put(update, now);
        }
        let before = queue.pending.len();
        queue.pending.retain(|_, pending| !of_parent(pending));
        update.receipt.count_coalesced(before - queue.pending.len());
        let UpdateScope { native, uri, message } = whole;
        queue.put(&Update { native, uri, message, inside: None, ..*update }, now)
    }

    /// Changes the pace of the subscription to `uri` with this receipt. Returns `true` if an update of it is pending.
    pub fn set_pace(&self, receipt: &Arc<DeliveryCounts>, uri: &str, pace: DeliveryOptions, now: Instant) -> bool {
        let mut queue = self.queue.lock();
        if let Some(until) = queue.told.get_mut(uri) {
            *until = (*until).min(now + pace.min_interval);
        }
        let own = queue.pending.values_mut().filter(|pending| Arc::ptr_eq(&pending.receipt, receipt));
        own.map(|pending| {
            pending.due = pending.due.min(now + pace.min_interval.max(pace.batch));
            pending.min_interval = pace.min_interval;
            pending.priority = pace.priority;
        })
        .count()
            > 0
    }

    /// Removes and returns the updates that are due, in the order of their priority, and counts them as delivered.
    pub fn take_due(&self, now: Instant) -> Vec<Bytes> {
        let mut queue = self.queue.lock();
        if queue.flush.is_some_and(|flush| flush <= now) {
            queue.flush = None;
        }
        let mut due: Vec<_> = queue.pending.extract_if(.., |_, pending| pending.due <= now).collect();
        if due.is_empty() {
            return Vec::new();
        }
        queue.told.retain(|_, until| *until > now);
        for (uri, pending) in &due {
            pending.receipt.count_delivered();
            let has_room = pending.inside.is_none() || queue.told.len() < MAX_UPDATE_TIMES_INSIDE;
            if has_room && !pending.min_interval.is_zero() {
                queue.told.insert(Arc::clone(uri), now + pending.min_interval);
            }
        }
        drop(queue);
        // The sort is stable, so updates of equal priority keep their order.
        due.sort_by_key(|(_, pending)| std::cmp::Reverse(pending.priority));
        due.into_iter().map(|(_, pending)| pending.message).collect()
    }

    /// Returns the earliest time at which an update is due, or `None` if none is pending.
    pub fn next_due(&self) -> Option<Instant> {
        self.queue.lock().pending.values().map(|pending| pending.due).min()
    }

    /// Removes the pending updates of the ended subscription to `uri`. Keeps an update if `is_wanted`, which is given
    /// the backend's URI, reports that another subscription needs it.
    pub fn drop_of(&self, receipt: &Arc<DeliveryCounts>, uri: &str, is_wanted: impl Fn(&str) -> bool) {
        let mut queue = self.queue.lock();
        let is_own = |pending: &PendingUpdate| Arc::ptr_eq(&pending.receipt, receipt);
        queue.pending.retain(|_, pending| !is_own(pending) || is_wanted(&pending.native));
        queue.told.remove(uri);
    }

    pub fn len(&self) -> usize {
        self.queue.lock().pending.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Discards all pending updates, because the client is gone, and counts them as dropped.
    pub fn close(&self) {
        let left = std::mem::replace(&mut *self.queue.lock(), UpdateQueue { closed: true, ..UpdateQueue::default() });
        for pending in left.pending.values() {
            pending.receipt.all.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl UpdateQueue {
    fn put(&mut self, update: &Update<'_>, now: Instant) -> bool {
        if let Some(pending) = self.pending.get_mut(update.uri) {
            pending.message = update.message.clone();
            pending.priority = pending.priority.max(update.pace.priority);
            if update.inside.is_none() {
                // A subscription names this URI itself, so an update of the containing resource no longer replaces this
                // one.
                pending.inside = None;
            }
            update.receipt.count_coalesced(1);
            return false;
        }
        let gathered = match update.pace.batch.is_zero() {
            true => now,
            // A flush that is already planned does not delay updates with a shorter batch time.
            false => {
                let latest = now + update.pace.batch;
                *self.flush.insert(self.flush.map_or(latest, |flush| flush.min(latest)))
            }
        };
        // The client may have several subscriptions that match the URI. The shorter interval wins.
        let spaced = self.told.get(update.uri).map_or(now, |until| (*until).min(now + update.pace.min_interval));
        let pending = PendingUpdate {
            native: Arc::clone(update.native),
            message: update.message.clone(),
            due: gathered.max(spaced),
            min_interval: update.pace.min_interval,
            priority: update.pace.priority,
            receipt: Arc::clone(update.receipt),
            inside: update.inside.map(|whole| Arc::clone(whole.uri)),
        };
        self.pending.insert(Arc::clone(update.uri), pending);
        true
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test has to begin at some instant")]

    use super::*;

    struct QueueFixture {
        updates: Updates,
        receipt: Arc<DeliveryCounts>,
        now: Instant,
    }

    impl QueueFixture {
        fn new() -> QueueFixture {
            QueueFixture { updates: Updates::default(), receipt: Arc::default(), now: Instant::now() }
        }

        fn put(&self, uri: &str, text: &'static str, pace: DeliveryOptions) -> bool {
            let (uri, message) = (Arc::from(uri), Bytes::from_static(text.as_bytes()));
            let receipt = &self.receipt;
            let update = Update { native: &uri, uri: &uri, message: &message, pace, receipt, inside: None };
            self.updates.put(&update, self.now)
        }

        fn put_inside(&self, uri: &str, pace: DeliveryOptions) -> bool {
            let (uri, message) = (Arc::from(uri), Bytes::from_static(b"part"));
            let (parent, instead) = (Arc::from("s/"), Bytes::from_static(b"whole"));
            let inside = Some(UpdateScope { native: &parent, uri: &parent, message: &instead });
            let update = Update { native: &uri, uri: &uri, message: &message, pace, receipt: &self.receipt, inside };
            self.updates.put(&update, self.now)
        }

        fn take(&self) -> Vec<Bytes> {
            self.updates.take_due(self.now)
        }

        fn counts(&self) -> (u32, u32) {
            let load = |count: &AtomicU32| count.load(Ordering::Relaxed);
            (load(&self.receipt.delivered), load(&self.receipt.coalesced))
        }
    }

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn sub5_a_newer_update_takes_the_place_of_one_that_was_not_written() {
        let desk = QueueFixture::new();
        assert!(desk.put("a", "a1", DeliveryOptions::default()));
        assert!(desk.put("b", "b1", DeliveryOptions::default()));
        assert!(!desk.put("a", "a2", DeliveryOptions::default()));
        assert_eq!(desk.take(), ["a2", "b1"]);
        assert!(desk.take().is_empty());
        assert!(desk.put("a", "a3", DeliveryOptions::default()));
        assert_eq!(desk.take(), ["a3"]);
        assert_eq!(desk.counts(), (3, 1));
    }

    #[test]
    fn subx3_updates_of_a_uri_are_spaced_and_the_last_is_never_lost() {
        let mut desk = QueueFixture::new();
        let pace = DeliveryOptions { min_interval: millis(100), ..DeliveryOptions::default() };
        desk.put("a", "a1", pace);
        assert_eq!(desk.take(), ["a1"]);
        desk.now += millis(10);
        desk.put("a", "a2", pace);
        desk.put("a", "a3", pace);
        desk.put("b", "b1", pace);
        assert_eq!(desk.take(), ["b1"]);
        assert_eq!(desk.updates.next_due(), Some(desk.now + millis(90)));
        desk.now += millis(90);
        assert_eq!(desk.take(), ["a3"]);
        assert_eq!(desk.updates.next_due(), None);
    }

    #[test]
    fn subx3_updates_are_gathered_into_one_flush() {
        let mut desk = QueueFixture::new();
        let pace = DeliveryOptions { batch: millis(50), ..DeliveryOptions::default() };
        desk.put("a", "a1", pace);
        desk.now += millis(40);
        desk.put("b", "b1", pace);
        assert!(desk.take().is_empty());
        desk.now += millis(10);
        assert_eq!(desk.take(), ["a1", "b1"]);
        desk.put("c", "c1", pace);
        assert!(desk.take().is_empty());
    }

    #[test]
    fn subx3_an_interval_is_that_of_the_subscription_it_is_told_for() {
        let desk = QueueFixture::new();
        desk.put("a", "by pattern", DeliveryOptions { min_interval: millis(1000), ..DeliveryOptions::default() });
        assert_eq!(desk.take(), ["by pattern"]);
        desk.put("a", "by name", DeliveryOptions::default());
        assert_eq!(desk.take(), ["by name"]);
    }

    #[test]
    fn sub11_subx3_what_waits_does_so_no_longer_than_is_wanted_now() {
        let desk = QueueFixture::new();
        let pace = DeliveryOptions { min_interval: millis(1000), ..DeliveryOptions::default() };
        desk.put("a", "a1", pace);
        assert_eq!(desk.take(), ["a1"]);
        desk.put("a", "a2", pace);
        assert!(desk.take().is_empty());
        assert!(!desk.updates.set_pace(&Arc::default(), "b", DeliveryOptions::default(), desk.now));
        assert!(desk.updates.set_pace(&desk.receipt, "a", DeliveryOptions::default(), desk.now));
        assert_eq!(desk.take(), ["a2"]);
        desk.put("a", "a3", DeliveryOptions::default());
        assert_eq!(desk.take(), ["a3"]);
    }

    #[test]
    fn sub11_subx3_what_is_gathered_for_longer_holds_nothing_back_that_is_gathered_for_less() {
        let mut desk = QueueFixture::new();
        let [long, short] =
            [1000, 10].map(|time| DeliveryOptions { batch: millis(time), ..DeliveryOptions::default() });
        desk.put("a", "a1", long);
        assert!(desk.updates.set_pace(&desk.receipt, "a", short, desk.now));
        desk.now += millis(10);
        assert_eq!(desk.take(), ["a1"]);
        desk.put("a", "a2", short);
        desk.now += millis(10);
        assert_eq!(desk.take(), ["a2"]);
    }

    #[test]
    fn subx4_the_more_important_comes_first() {
        let desk = QueueFixture::new();
        for (uri, text, priority) in [("a", "a", 0), ("b", "b", 5), ("c", "c", -1), ("d", "d", 5)] {
            desk.put(uri, text, DeliveryOptions { priority, ..DeliveryOptions::default() });
        }
        assert_eq!(desk.take(), ["b", "d", "a", "c"]);
    }

    #[test]
    fn sub18_too_many_inside_one_resource_are_folded_into_it() {
        let desk = QueueFixture::new();
        let put = |number: usize| desk.put_inside(&format!("s/{number}"), DeliveryOptions::default());
        for number in 0..MAX_PENDING_INSIDE {
            assert!(put(number));
        }
        assert!(!put(0), "one that waits is no new one");
        put(MAX_PENDING_INSIDE);
        assert_eq!(desk.updates.len(), 1);
        assert_eq!(desk.take(), ["whole"]);
    }

    #[test]
    fn sub18_what_is_wanted_by_its_own_name_is_not_folded() {
        let desk = QueueFixture::new();
        for number in 0..MAX_PENDING_INSIDE {
            desk.put_inside(&format!("s/{number}"), DeliveryOptions::default());
        }
        desk.put("s/0", "by name", DeliveryOptions::default());
        desk.put_inside("s/x", DeliveryOptions::default());
        desk.put_inside("s/y", DeliveryOptions::default());
        assert_eq!(desk.take(), ["by name", "whole"]);
    }

    #[test]
    fn subx3_what_was_told_of_things_inside_is_remembered_within_bounds() {
        let desk = QueueFixture::new();
        let pace = DeliveryOptions { min_interval: millis(1000), ..DeliveryOptions::default() };
        for number in 0..2 * MAX_UPDATE_TIMES_INSIDE {
            desk.put_inside(&format!("s/{number}"), pace);
            assert_eq!(desk.take().len(), 1);
        }
        assert_eq!(desk.updates.queue.lock().told.len(), MAX_UPDATE_TIMES_INSIDE);
    }

    #[test]
    fn what_is_not_wanted_any_more_is_not_told() {
        let desk = QueueFixture::new();
        desk.put("a", "a", DeliveryOptions::default());
        desk.put("b", "b", DeliveryOptions::default());
        desk.updates.drop_of(&Arc::default(), "a", |_| false);
        desk.updates.drop_of(&desk.receipt, "a", |native| native == "b");
        assert_eq!(desk.take(), ["b"]);
        desk.updates.close();
        assert!(!desk.put("a", "a", DeliveryOptions::default()));
    }
}
