//! [`StreamPlan`] decides which notification streams to open on a link without sessions. It does no I/O and has no
//! clock.
//!
//! The filter of a stream cannot change. The base stream therefore holds most URIs, and a small delta stream holds the
//! recent ones. A new URI repeats only the delta. To replace a stream, the caller opens its successor and closes the
//! old one after the acknowledgement, so no notification is lost. One stream is opened at a time; URIs that arrive
//! meanwhile go into the next one. After [`MERGE_AFTER`] both merge into a new base without the unwanted URIs. After the
//! last URI this takes only [`CLOSE_AFTER`]. If the new base is not open [`DROP_AFTER`] the last URI, the old streams are
//! closed without it.

#[cfg(test)]
mod model;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use goblin_wire::listen::ListenFilter;

/// A delta with this many URIs is merged into the base.
pub(crate) const MAX_DELTA_URIS: usize = 64;
/// The longest life of a delta, and the longest time that unwanted URIs stay on a stream.
pub(crate) const MERGE_AFTER: Duration = Duration::from_secs(10);
/// The longest time that unwanted URIs stay on a stream when no URI is wanted any more.
pub(crate) const CLOSE_AFTER: Duration = Duration::from_secs(1);
/// The time after which such a stream is closed even if its successor is not open. Notifications may then be lost.
pub(crate) const DROP_AFTER: Duration = Duration::from_millis(1500);

type Uris = BTreeSet<Arc<str>>;

/// The purpose of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRole {
    Base,
    Delta,
}

/// The next action of the caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamAction {
    /// Open a stream, then call [`StreamPlan::opened`] or [`StreamPlan::failed`].
    Open(StreamRole, ListenFilter),
    /// Close all streams, because nothing is wanted any more.
    Close,
    /// Close all open streams, because no URI is wanted any more and their successor is late. A stream that is being
    /// opened stays. Call [`StreamPlan::next`] again.
    Drop,
}

/// The outcome for the URIs of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamOutcome {
    /// The URIs that are on an open stream.
    pub served: Vec<Arc<str>>,
    /// The URIs that the backend does not serve. The plan no longer wants them.
    pub unserved: Vec<Arc<str>>,
}

/// The wanted URIs and the streams that serve them.
#[derive(Debug)]
pub(crate) struct StreamPlan {
    /// The lists that the base subscribes to.
    lists: ListenFilter,
    wanted: Uris,
    /// The wanted URIs that are neither on a lasting stream nor on the one being opened.
    waiting: Uris,
    base: Option<Uris>,
    delta: Option<Uris>,
    opening: Option<(StreamRole, Uris)>,
    merge_at: Option<Instant>,
    /// The time of [`StreamAction::Drop`], if no URI is wanted.
    drop_at: Option<Instant>,
    /// A merge failed. Until the next attempt, new URIs go into the delta without regard to its size.
    has_merge_failed: bool,
}

impl StreamPlan {
    /// Creates a plan. `lists` is a filter without URIs.
    pub(crate) fn new(lists: ListenFilter) -> StreamPlan {
        StreamPlan {
            lists,
            wanted: Uris::new(),
            waiting: Uris::new(),
            base: None,
            delta: None,
            opening: None,
            merge_at: None,
            drop_at: None,
            has_merge_failed: false,
        }
    }

    /// Forgets all streams and all wanted URIs. The caller must add the URIs again.
    pub(crate) fn reset(&mut self) {
        *self = StreamPlan::new(std::mem::take(&mut self.lists));
    }

    /// Adds a URI. Returns `true` if an open stream serves it already. Otherwise [`StreamPlan::opened`] or
    /// [`StreamPlan::failed`] returns it later.
    pub(crate) fn add(&mut self, uri: &Arc<str>) -> bool {
        self.wanted.insert(Arc::clone(uri));
        self.drop_at = None;
        let has = |uris: &Option<Uris>| uris.as_ref().is_some_and(|uris| uris.contains(uri));
        let (in_base, in_delta) = (has(&self.base), has(&self.delta));
        let (is_served, is_opening) = match &self.opening {
            // The new base replaces both streams, and one of them may be the only one with this URI.
            Some((StreamRole::Base, uris)) => (false, uris.contains(uri)),
            Some((StreamRole::Delta, uris)) => (in_base, uris.contains(uri)),
            None => (in_base || in_delta, false),
        };
        if !is_served && !is_opening {
            self.waiting.insert(Arc::clone(uri));
        }
        is_served
    }

    /// Removes a URI. It stays on its stream until the next merge.
    pub(crate) fn remove(&mut self, uri: &str, now: Instant) {
        self.wanted.remove(uri);
        self.waiting.remove(uri);
        let opening = self.opening.as_ref().map(|(_, uris)| uris);
        if self.streams().chain(opening).any(|uris| uris.contains(uri)) {
            self.merge_within(now);
        }
    }

    fn streams(&self) -> impl Iterator<Item = &Uris> {
        self.base.iter().chain(&self.delta)
    }

    fn serves_unwanted(&self) -> bool {
        self.streams().any(|uris| !uris.is_subset(&self.wanted))
    }

    /// Schedules a merge, unless an earlier one is scheduled.
    fn merge_within(&mut self, now: Instant) {
        let is_last = self.wanted.is_empty() && !self.has_merge_failed;
        let at = now + if is_last { CLOSE_AFTER } else { MERGE_AFTER };
        self.merge_at = Some(self.merge_at.map_or(at, |earlier| earlier.min(at)));
        if self.wanted.is_empty() {
            self.drop_at.get_or_insert(now + DROP_AFTER);
        }
    }

    /// Returns the time at which to call [`next`](StreamPlan::next) if nothing else happens before.
    pub(crate) fn due(&self) -> Option<Instant> {
        let merge_at = self.merge_at.filter(|_| self.opening.is_none());
        let drop_at = self.drop_at.filter(|_| self.wanted.is_empty() && self.serves_unwanted());
        merge_at.into_iter().chain(drop_at).min()
    }

    /// Returns the next action, if any.
    pub(crate) fn next(&mut self, now: Instant) -> Option<StreamAction> {
        if self.wanted.is_empty() && self.serves_unwanted() && self.drop_at.is_some_and(|at| at <= now) {
            (self.base, self.delta, self.merge_at, self.has_merge_failed) = (None, None, None, false);
            return Some(StreamAction::Drop);
        }
        if self.opening.is_some() {
            return None;
        }
        if self.base.is_none() && self.delta.is_some() && self.is_idle() {
            self.reset();
            return Some(StreamAction::Close);
        }
        if self.base.is_none() {
            return (!self.is_idle()).then(|| self.open(StreamRole::Base, self.wanted.clone()));
        }
        let is_due = self.merge_at.is_some_and(|at| at <= now);
        let delta_uris: Uris = self.delta.iter().flatten().filter(|uri| self.wanted.contains(*uri)).cloned().collect();
        let delta_uris = &delta_uris | &self.waiting;
        if is_due && self.delta.is_none() && self.waiting.is_empty() && !self.serves_unwanted() {
            // The unwanted URIs are wanted again, so no merge is needed.
            self.merge_at = None;
            return None;
        }
        if is_due && self.is_idle() {
            self.reset();
            return Some(StreamAction::Close);
        }
        if is_due || delta_uris.len() >= MAX_DELTA_URIS && !self.waiting.is_empty() && !self.has_merge_failed {
            return Some(self.open(StreamRole::Base, self.wanted.clone()));
        }
        (!self.waiting.is_empty()).then(|| self.open(StreamRole::Delta, delta_uris))
    }

    /// Reports whether no list and no URI is wanted.
    fn is_idle(&self) -> bool {
        self.wanted.is_empty() && self.lists.is_empty()
    }

    fn open(&mut self, role: StreamRole, uris: Uris) -> StreamAction {
        self.waiting.clear();
        let lists = if role == StreamRole::Base { self.lists.clone() } else { ListenFilter::default() };
        let filter = ListenFilter { uris: uris.clone(), ..lists };
        self.opening = Some((role, uris));
        StreamAction::Open(role, filter)
    }

    /// Records the acknowledgement of the stream that was being opened. A base replaces both streams and a delta
    /// replaces the delta; the caller closes the old ones. The caller also closes a new stream that serves nothing.
    pub(crate) fn opened(&mut self, acknowledged: &ListenFilter, now: Instant) -> StreamOutcome {
        let Some((role, requested)) = self.opening.take() else { return StreamOutcome::default() };
        let (served, unserved): (Uris, Uris) = requested.into_iter().partition(|uri| acknowledged.uris.contains(uri));
        self.wanted.retain(|uri| !unserved.contains(uri));
        let settled =
            StreamOutcome { served: served.iter().cloned().collect(), unserved: unserved.into_iter().collect() };
        match role {
            StreamRole::Base => {
                if acknowledged.is_empty() {
                    // A second attempt would get the same answer.
                    self.lists = ListenFilter::default();
                }
                (self.base, self.delta) = ((!acknowledged.is_empty()).then_some(served), None);
                (self.merge_at, self.has_merge_failed) = (None, false);
                if self.serves_unwanted() {
                    self.merge_within(now);
                }
            }
            StreamRole::Delta => {
                self.delta = (!served.is_empty()).then_some(served);
                self.merge_within(now);
            }
        }
        settled
    }

    /// Records that the stream could not be opened. After a failed merge, the new URIs go into a delta at once and are
    /// merged later.
    pub(crate) fn failed(&mut self, now: Instant) -> StreamOutcome {
        let Some((role, requested)) = self.opening.take() else { return StreamOutcome::default() };
        let is_served = |uri: &Arc<str>| self.streams().any(|uris| uris.contains(uri));
        let (served, unserved): (Uris, Uris) = requested.into_iter().partition(is_served);
        let served = served.into_iter().collect();
        if role == StreamRole::Base && self.base.is_some() {
            self.waiting.extend(unserved.intersection(&self.wanted).cloned());
            (self.merge_at, self.has_merge_failed) = (Some(now + MERGE_AFTER), true);
            return StreamOutcome { served, unserved: Vec::new() };
        }
        self.wanted.retain(|uri| !unserved.contains(uri));
        StreamOutcome { served, unserved: unserved.into_iter().collect() }
    }
}
