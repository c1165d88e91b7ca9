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
    pub fn with_totals(all: &Arc<UpdateTotals>) -> DeliveryCounts {
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
    pub delivery: DeliveryOptions,
    pub counts: &'a Arc<DeliveryCounts>,
    /// Whether the message reports the deletion of the resource.
    pub is_deletion: bool,
    /// The resource to update instead if more than [`MAX_PENDING_INSIDE`] updates inside it are pending.
    pub enclosing: Option<UpdateScope<'a>>,
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
    next_allowed: HashMap<Arc<str>, Instant>,
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
    counts: Arc<DeliveryCounts>,
    is_deletion: bool,
    enclosing: Option<Arc<str>>,
}

impl Updates {
    /// Queues an update. Returns `false` if it replaced a pending one of the same URI or the client is gone.
    pub fn put(&self, update: &Update<'_>, now: Instant) -> bool {
        let mut queue = self.queue.lock();
        if queue.closed {
            return false;
        }
        let Some(scope) = update.enclosing else { return queue.put(update, now) };
        let is_pending = queue.pending.contains_key(update.uri);
        let is_in_scope = |pending: &PendingUpdate| pending.enclosing.as_ref() == Some(scope.uri);
        if is_pending || queue.pending.values().filter(|pending| is_in_scope(pending)).count() < MAX_PENDING_INSIDE {
            return queue.put(update, now);
        }
        let before = queue.pending.len();
        queue.pending.retain(|_, pending| !is_in_scope(pending));
        update.counts.count_coalesced(before - queue.pending.len());
        let UpdateScope { native, uri, message } = scope;
        queue.put(&Update { native, uri, message, is_deletion: false, enclosing: None, ..*update }, now)
    }

    /// Changes the delivery options of the subscription to `uri` with these counts. Returns `true` if an update of it
    /// is pending.
    pub fn set_delivery(
        &self,
        counts: &Arc<DeliveryCounts>,
        uri: &str,
        delivery: DeliveryOptions,
        now: Instant,
    ) -> bool {
        let mut queue = self.queue.lock();
        if let Some(until) = queue.next_allowed.get_mut(uri) {
            *until = (*until).min(now + delivery.min_interval);
        }
        let own = queue.pending.values_mut().filter(|pending| Arc::ptr_eq(&pending.counts, counts));
        own.map(|pending| {
            pending.due = pending.due.min(now + delivery.min_interval.max(delivery.batch));
            pending.min_interval = delivery.min_interval;
            pending.priority = delivery.priority;
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
        queue.next_allowed.retain(|_, until| *until > now);
        for (uri, pending) in &due {
            pending.counts.count_delivered();
            let has_room = pending.enclosing.is_none() || queue.next_allowed.len() < MAX_UPDATE_TIMES_INSIDE;
            if has_room && !pending.min_interval.is_zero() {
                queue.next_allowed.insert(Arc::clone(uri), now + pending.min_interval);
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
    pub fn discard(&self, counts: &Arc<DeliveryCounts>, uri: &str, is_wanted: impl Fn(&str) -> bool) {
        let mut queue = self.queue.lock();
        let is_own = |pending: &PendingUpdate| Arc::ptr_eq(&pending.counts, counts);
        queue.pending.retain(|_, pending| !is_own(pending) || is_wanted(&pending.native));
        queue.next_allowed.remove(uri);
    }

    /// Removes the pending updates of hidden resources, but no reports of deletions. `is_own` selects the subscriptions by
    /// their counts. `is_shown` is given the backend's URI.
    pub fn discard_hidden(&self, is_own: impl Fn(&Arc<DeliveryCounts>) -> bool, is_shown: impl Fn(&str) -> bool) {
        let mut queue = self.queue.lock();
        queue.pending.retain(|_, pending| pending.is_deletion || !is_own(&pending.counts) || is_shown(&pending.native));
    }

    pub fn len(&self) -> usize {
        self.queue.lock().pending.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Discards all pending updates, because the client is gone, and counts them as dropped.
    pub fn close(&self) {
        let old = std::mem::replace(&mut *self.queue.lock(), UpdateQueue { closed: true, ..UpdateQueue::default() });
        for pending in old.pending.values() {
            pending.counts.all.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl UpdateQueue {
    fn put(&mut self, update: &Update<'_>, now: Instant) -> bool {
        if let Some(pending) = self.pending.get_mut(update.uri) {
            pending.message = update.message.clone();
            pending.is_deletion = update.is_deletion;
            pending.priority = pending.priority.max(update.delivery.priority);
            if update.enclosing.is_none() {
                // A subscription names this URI itself, so an update of the containing resource no longer replaces this
                // one.
                pending.enclosing = None;
            }
            update.counts.count_coalesced(1);
            return false;
        }
        let batched = match update.delivery.batch.is_zero() {
            true => now,
            // A flush that is already planned does not delay updates with a shorter batch time.
            false => {
                let latest = now + update.delivery.batch;
                *self.flush.insert(self.flush.map_or(latest, |flush| flush.min(latest)))
            }
        };
        // The client may have several subscriptions that match the URI. The shorter interval wins.
        let spaced =
            self.next_allowed.get(update.uri).map_or(now, |until| (*until).min(now + update.delivery.min_interval));
        let pending = PendingUpdate {
            native: Arc::clone(update.native),
            message: update.message.clone(),
            due: batched.max(spaced),
            min_interval: update.delivery.min_interval,
            priority: update.delivery.priority,
            counts: Arc::clone(update.counts),
            is_deletion: update.is_deletion,
            enclosing: update.enclosing.map(|scope| Arc::clone(scope.uri)),
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
        counts: Arc<DeliveryCounts>,
        now: Instant,
    }

    impl QueueFixture {
        fn new() -> QueueFixture {
            QueueFixture { updates: Updates::default(), counts: Arc::default(), now: Instant::now() }
        }

        fn put(&self, uri: &str, text: &'static str, delivery: DeliveryOptions) -> bool {
            let (uri, message) = (Arc::from(uri), Bytes::from_static(text.as_bytes()));
            self.updates.put(&self.update(&uri, &message, delivery), self.now)
        }

        fn update<'a>(&'a self, uri: &'a Arc<str>, message: &'a Bytes, delivery: DeliveryOptions) -> Update<'a> {
            let counts = &self.counts;
            Update { native: uri, uri, message, delivery, counts, is_deletion: false, enclosing: None }
        }

        fn put_inside(&self, uri: &str, delivery: DeliveryOptions) -> bool {
            let (uri, message) = (Arc::from(uri), Bytes::from_static(b"part"));
            let (parent, parent_message) = (Arc::from("s/"), Bytes::from_static(b"whole"));
            let enclosing = Some(UpdateScope { native: &parent, uri: &parent, message: &parent_message });
            self.updates.put(&Update { enclosing, ..self.update(&uri, &message, delivery) }, self.now)
        }

        fn take(&self) -> Vec<Bytes> {
            self.updates.take_due(self.now)
        }

        fn counts(&self) -> (u32, u32) {
            let load = |count: &AtomicU32| count.load(Ordering::Relaxed);
            (load(&self.counts.delivered), load(&self.counts.coalesced))
        }
    }

    const fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn sub5_a_newer_update_replaces_an_unwritten_one() {
        let fixture = QueueFixture::new();
        assert!(fixture.put("a", "a1", DeliveryOptions::default()));
        assert!(fixture.put("b", "b1", DeliveryOptions::default()));
        assert!(!fixture.put("a", "a2", DeliveryOptions::default()));
        assert_eq!(fixture.take(), ["a2", "b1"]);
        assert!(fixture.take().is_empty());
        assert!(fixture.put("a", "a3", DeliveryOptions::default()));
        assert_eq!(fixture.take(), ["a3"]);
        assert_eq!(fixture.counts(), (3, 1));
    }

    #[test]
    fn subx3_updates_of_a_uri_are_spaced_and_the_last_is_never_lost() {
        let mut fixture = QueueFixture::new();
        let delivery = DeliveryOptions { min_interval: millis(100), ..DeliveryOptions::default() };
        fixture.put("a", "a1", delivery);
        assert_eq!(fixture.take(), ["a1"]);
        fixture.now += millis(10);
        fixture.put("a", "a2", delivery);
        fixture.put("a", "a3", delivery);
        fixture.put("b", "b1", delivery);
        assert_eq!(fixture.take(), ["b1"]);
        assert_eq!(fixture.updates.next_due(), Some(fixture.now + millis(90)));
        fixture.now += millis(90);
        assert_eq!(fixture.take(), ["a3"]);
        assert_eq!(fixture.updates.next_due(), None);
    }

    #[test]
    fn subx3_updates_are_gathered_into_one_flush() {
        let mut fixture = QueueFixture::new();
        let delivery = DeliveryOptions { batch: millis(50), ..DeliveryOptions::default() };
        fixture.put("a", "a1", delivery);
        fixture.now += millis(40);
        fixture.put("b", "b1", delivery);
        assert!(fixture.take().is_empty());
        fixture.now += millis(10);
        assert_eq!(fixture.take(), ["a1", "b1"]);
        fixture.put("c", "c1", delivery);
        assert!(fixture.take().is_empty());
    }

    #[test]
    fn subx3_the_interval_of_an_update_is_that_of_its_subscription() {
        let fixture = QueueFixture::new();
        fixture.put("a", "by pattern", DeliveryOptions { min_interval: millis(1000), ..DeliveryOptions::default() });
        assert_eq!(fixture.take(), ["by pattern"]);
        fixture.put("a", "by name", DeliveryOptions::default());
        assert_eq!(fixture.take(), ["by name"]);
    }

    #[test]
    fn sub11_subx3_a_shorter_interval_releases_a_waiting_update() {
        let fixture = QueueFixture::new();
        let delivery = DeliveryOptions { min_interval: millis(1000), ..DeliveryOptions::default() };
        fixture.put("a", "a1", delivery);
        assert_eq!(fixture.take(), ["a1"]);
        fixture.put("a", "a2", delivery);
        assert!(fixture.take().is_empty());
        assert!(!fixture.updates.set_delivery(&Arc::default(), "b", DeliveryOptions::default(), fixture.now));
        assert!(fixture.updates.set_delivery(&fixture.counts, "a", DeliveryOptions::default(), fixture.now));
        assert_eq!(fixture.take(), ["a2"]);
        fixture.put("a", "a3", DeliveryOptions::default());
        assert_eq!(fixture.take(), ["a3"]);
    }

    #[test]
    fn sub11_subx3_a_shorter_batch_time_releases_a_gathered_update() {
        let mut fixture = QueueFixture::new();
        let [long, short] =
            [1000, 10].map(|time| DeliveryOptions { batch: millis(time), ..DeliveryOptions::default() });
        fixture.put("a", "a1", long);
        assert!(fixture.updates.set_delivery(&fixture.counts, "a", short, fixture.now));
        fixture.now += millis(10);
        assert_eq!(fixture.take(), ["a1"]);
        fixture.put("a", "a2", short);
        fixture.now += millis(10);
        assert_eq!(fixture.take(), ["a2"]);
    }

    #[test]
    fn subx4_updates_of_higher_priority_are_sent_first() {
        let fixture = QueueFixture::new();
        for (uri, text, priority) in [("a", "a", 0), ("b", "b", 5), ("c", "c", -1), ("d", "d", 5)] {
            fixture.put(uri, text, DeliveryOptions { priority, ..DeliveryOptions::default() });
        }
        assert_eq!(fixture.take(), ["b", "d", "a", "c"]);
    }

    #[test]
    fn sub18_too_many_sub_resource_updates_fold_into_one_of_the_resource() {
        let fixture = QueueFixture::new();
        let put = |number: usize| fixture.put_inside(&format!("s/{number}"), DeliveryOptions::default());
        for number in 0..MAX_PENDING_INSIDE {
            assert!(put(number));
        }
        assert!(!put(0), "a pending update is not new");
        put(MAX_PENDING_INSIDE);
        assert_eq!(fixture.updates.len(), 1);
        assert_eq!(fixture.take(), ["whole"]);
    }

    #[test]
    fn sub18_a_sub_resource_with_its_own_subscription_is_not_folded() {
        let fixture = QueueFixture::new();
        for number in 0..MAX_PENDING_INSIDE {
            fixture.put_inside(&format!("s/{number}"), DeliveryOptions::default());
        }
        fixture.put("s/0", "by name", DeliveryOptions::default());
        fixture.put_inside("s/x", DeliveryOptions::default());
        fixture.put_inside("s/y", DeliveryOptions::default());
        assert_eq!(fixture.take(), ["by name", "whole"]);
    }

    #[test]
    fn subx3_remembered_update_times_of_sub_resources_are_bounded() {
        let fixture = QueueFixture::new();
        let delivery = DeliveryOptions { min_interval: millis(1000), ..DeliveryOptions::default() };
        for number in 0..2 * MAX_UPDATE_TIMES_INSIDE {
            fixture.put_inside(&format!("s/{number}"), delivery);
            assert_eq!(fixture.take().len(), 1);
        }
        assert_eq!(fixture.updates.queue.lock().next_allowed.len(), MAX_UPDATE_TIMES_INSIDE);
    }

    #[test]
    fn use9_pending_updates_of_hidden_resources_are_dropped_and_deletions_stay() {
        let fixture = QueueFixture::new();
        for uri in ["shown", "hidden", "deleted"] {
            fixture.put(uri, "updated", DeliveryOptions::default());
        }
        let (uri, message) = (Arc::from("deleted"), Bytes::from_static(b"deleted"));
        let update = fixture.update(&uri, &message, DeliveryOptions::default());
        fixture.updates.put(&Update { is_deletion: true, ..update }, fixture.now);
        fixture.updates.discard_hidden(|_| false, |_| false);
        assert_eq!(fixture.updates.len(), 3, "the updates of other subscriptions stay");
        fixture.updates.discard_hidden(|counts| Arc::ptr_eq(counts, &fixture.counts), |native| native == "shown");
        assert_eq!(fixture.take(), ["updated", "deleted"]);
    }

    #[test]
    fn pending_updates_of_an_ended_subscription_are_dropped() {
        let fixture = QueueFixture::new();
        fixture.put("a", "a", DeliveryOptions::default());
        fixture.put("b", "b", DeliveryOptions::default());
        fixture.updates.discard(&Arc::default(), "a", |_| false);
        fixture.updates.discard(&fixture.counts, "a", |native| native == "b");
        assert_eq!(fixture.take(), ["b"]);
        fixture.updates.close();
        assert!(!fixture.put("a", "a", DeliveryOptions::default()));
    }
}
