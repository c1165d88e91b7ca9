//! The upstream side of [`SubscriptionTable`]: the requests to the backend, and the effect of its responses and
//! connections.
//!
//! The owner of the link calls [`next_request`](SubscriptionTable::next_request), sends the request, and reports the
//! result with [`handle_reply`](SubscriptionTable::handle_reply). Each request carries the number of its connection. A
//! response over an earlier connection is ignored.

use std::sync::Arc;

use crate::pattern_index::PatternId;
use crate::table::{LinkState, ResourceEntry, SubscriptionTable, UpstreamState};
use crate::{Notice, SubscribeOutcome, Subscriber, UpstreamReply, UpstreamRequest};

impl<S: Subscriber> SubscriptionTable<S> {
    /// Handles a new connection and returns its number. Subscribers may have missed updates. If the backend does not
    /// support subscriptions, they are notified at once. `is_listed` is true if the backend's list is known, and with
    /// it the coverage of patterns.
    pub fn link_up(&mut self, can_subscribe: bool, is_listed: bool) -> (u64, Vec<Notice<S>>) {
        self.link += 1;
        self.upstream = if can_subscribe { LinkState::Up } else { LinkState::Unsupported };
        self.dirty.clear();
        let mut notices = Vec::new();
        for pattern_entry in self.patterns.all.values_mut() {
            pattern_entry.open.clear();
            pattern_entry.rejected.clear();
            pattern_entry.rejection = None;
        }
        for (native, resource) in &mut self.resources {
            resource.is_uncertain = false;
            if !can_subscribe {
                resource.state = UpstreamState::Tracked;
                resource.is_new = false;
                if !resource.is_missing && std::mem::take(&mut resource.is_stale) {
                    notices.extend(resource.notices());
                }
                continue;
            }
            resource.state = UpstreamState::Off;
            if !resource.is_missing {
                self.dirty.push_back(Arc::clone(native));
                for id in &resource.patterns {
                    self.patterns.all.get_mut(id).map(|pattern_entry| pattern_entry.open.insert(Arc::clone(native)));
                }
            }
        }
        // The subscribers of other patterns are notified once, when all covered resources are settled.
        for pattern_entry in
            self.patterns.all.values_mut().filter(|pattern_entry| is_listed && pattern_entry.open.is_empty())
        {
            if std::mem::take(&mut pattern_entry.is_stale) {
                notices.extend(pattern_entry.notices());
            }
        }
        (self.link, notices)
    }

    /// Handles the loss of connection `link`. Waiting requests receive `Pending`, and the gateway subscribes again
    /// later.
    pub fn link_down(&mut self, link: u64) {
        if link != self.link {
            return;
        }
        self.link += 1;
        self.upstream = LinkState::Down;
        self.dirty.clear();
        self.resources.retain(|_, resource| resource.is_wanted());
        for resource in self.resources.values_mut() {
            resource.state = UpstreamState::Off;
            resource.is_stale = true;
            resource.is_uncertain = false;
            resource.subscribers.settle(&SubscribeOutcome::Pending);
        }
        for pattern_entry in self.patterns.all.values_mut() {
            pattern_entry.open.clear();
            pattern_entry.is_stale = true;
            pattern_entry.subscribers.settle(&SubscribeOutcome::Pending);
        }
    }

    /// Handles possibly missed updates on a connection that is still open. Resources with open requests are reported
    /// when their response arrives.
    pub fn mark_stale(&mut self) -> Vec<Notice<S>> {
        let is_active = |resource: &&ResourceEntry<S>| {
            matches!(resource.state, UpstreamState::On | UpstreamState::Tracked) && !resource.is_missing
        };
        let mut notices: Vec<_> = self.resources.values().filter(is_active).flat_map(ResourceEntry::notices).collect();
        for pattern_entry in self.patterns.all.values_mut() {
            pattern_entry.is_stale |= !pattern_entry.open.is_empty();
            if !pattern_entry.is_stale {
                notices.extend(pattern_entry.notices());
            }
        }
        notices
    }

    /// Returns the next request to send upstream, if any.
    pub fn next_request(&mut self) -> Option<UpstreamRequest> {
        while let Some(native) = self.dirty.pop_front() {
            let Some(resource) = self.resources.get_mut(&native) else { continue };
            let subscribes = match (resource.is_wanted(), resource.state) {
                (true, UpstreamState::Off | UpstreamState::Rejected) if !resource.is_missing => true,
                (false, _) if resource.may_be_on() => false,
                (false, UpstreamState::Off | UpstreamState::Tracked | UpstreamState::Rejected) => {
                    self.resources.remove(&native);
                    continue;
                }
                _ => continue,
            };
            if subscribes {
                resource.state = UpstreamState::Subscribing;
            } else {
                // A late response to an earlier subscribe may set this flag again while the unsubscribe is in flight.
                (resource.state, resource.is_uncertain) = (UpstreamState::Unsubscribing, false);
            }
            return Some(UpstreamRequest { native, subscribes, link: self.link });
        }
        None
    }

    /// Handles the response to a request. Returns the clients to notify of a possible change.
    pub fn handle_reply(&mut self, request: &UpstreamRequest, reply: UpstreamReply) -> Vec<Notice<S>> {
        if request.link != self.link {
            return Vec::new();
        }
        let native = &request.native;
        let Some(resource) = self.resources.get_mut(native) else { return Vec::new() };
        if !request.subscribes {
            // Any response to an unsubscribe means that the backend received it.
            resource.state = UpstreamState::Off;
            self.reconcile(native, false);
            return Vec::new();
        }
        let (state, outcome) = match reply {
            UpstreamReply::Done => (UpstreamState::On, SubscribeOutcome::Subscribed),
            UpstreamReply::Unknown => (UpstreamState::Tracked, SubscribeOutcome::Tracked),
            UpstreamReply::Rejected(response) => (UpstreamState::Rejected, SubscribeOutcome::Rejected(response)),
            UpstreamReply::Failed(reason) => (UpstreamState::Rejected, SubscribeOutcome::Failed(reason)),
            UpstreamReply::Late(after) => (UpstreamState::Rejected, SubscribeOutcome::Late(after)),
        };
        resource.state = state;
        match outcome {
            SubscribeOutcome::Late(_) => resource.is_uncertain = true,
            SubscribeOutcome::Subscribed => resource.is_uncertain = false,
            _ => {}
        }
        self.settle_all(native, &outcome)
    }

    /// Handles a positive response that arrived after its timeout. The subscription becomes active if it is wanted, and
    /// is cancelled otherwise.
    pub fn handle_late_reply(&mut self, request: &UpstreamRequest) -> Vec<Notice<S>> {
        if request.link != self.link || !request.subscribes {
            return Vec::new();
        }
        let native = &request.native;
        let unwanted = || ResourceEntry::new(Arc::clone(native));
        let resource = self.resources.entry(Arc::clone(native)).or_insert_with(unwanted);
        if !matches!(resource.state, UpstreamState::Off | UpstreamState::Rejected) {
            // Another request is in flight. The backend may have processed that one first.
            resource.is_uncertain |=
                matches!(resource.state, UpstreamState::Subscribing | UpstreamState::Unsubscribing);
            return Vec::new();
        }
        resource.state = UpstreamState::On;
        resource.is_uncertain = false;
        self.settle_all(native, &SubscribeOutcome::Subscribed)
    }

    /// Records the outcome of a subscribe for the resource and for the patterns that cover it.
    fn settle_all(&mut self, native: &Arc<str>, outcome: &SubscribeOutcome) -> Vec<Notice<S>> {
        let mut notices = self.settle(native, outcome);
        notices.extend(self.settle_patterns(native, outcome));
        self.reconcile(native, true);
        notices
    }

    /// Sends the outcome to the waiting clients of a resource. A rejection ends the subscriptions that these requests
    /// created.
    fn settle(&mut self, native: &str, outcome: &SubscribeOutcome) -> Vec<Notice<S>> {
        let Some(resource) = self.resources.get_mut(native) else { return Vec::new() };
        let rejected = resource.subscribers.settle(outcome);
        if std::mem::take(&mut resource.is_returning) && outcome.is_rejection() {
            resource.is_missing = true;
        }
        let must_notify = !outcome.is_rejection() && std::mem::take(&mut resource.is_stale);
        let notices = if must_notify { resource.notices().collect() } else { Vec::new() };
        for subscription in rejected {
            self.end(&subscription);
        }
        notices
    }

    /// Records the outcome for the patterns that cover the resource.
    fn settle_patterns(&mut self, native: &str, outcome: &SubscribeOutcome) -> Vec<Notice<S>> {
        let Some(resource) = self.resources.get_mut(native) else { return Vec::new() };
        let is_new = std::mem::take(&mut resource.is_new) && !outcome.is_rejection();
        let (native, ids) = (Arc::clone(&resource.native), resource.patterns.clone());
        let mut notices = Vec::new();
        for id in ids {
            let Some(pattern_entry) = self.patterns.all.get_mut(&id) else { continue };
            let was_open = pattern_entry.open.remove(&native);
            if outcome.is_rejection() {
                pattern_entry.rejected.insert(Arc::clone(&native));
                pattern_entry.rejection.get_or_insert_with(|| outcome.clone());
            } else {
                pattern_entry.rejected.remove(&native);
                if is_new && !pattern_entry.is_stale {
                    notices.extend(pattern_entry.subscribers.notices(&native));
                }
            }
            if was_open {
                notices.extend(self.settle_pattern(id));
            }
        }
        notices
    }

    /// Settles a pattern if none of its requests is open. The outcome is a rejection only if the backend rejected every
    /// covered resource.
    pub(super) fn settle_pattern(&mut self, id: PatternId) -> Vec<Notice<S>> {
        let Some(pattern_entry) = self.patterns.all.get_mut(&id).filter(|pattern_entry| pattern_entry.open.is_empty())
        else {
            return Vec::new();
        };
        if let Some(rejection) = pattern_entry.full_rejection() {
            let rejected = pattern_entry.subscribers.settle(&rejection);
            for subscription in rejected {
                self.end(&subscription);
            }
            return Vec::new();
        }
        pattern_entry.subscribers.settle(&SubscribeOutcome::Subscribed);
        if std::mem::take(&mut pattern_entry.is_stale) { pattern_entry.notices().collect() } else { Vec::new() }
    }

    /// Compares the wanted state with the actual state after a response, and queues a request if they differ.
    fn reconcile(&mut self, native: &Arc<str>, was_subscribe: bool) {
        let Some(resource) = self.resources.get(native) else { return };
        match (resource.is_wanted(), resource.state) {
            (false, _) if resource.may_be_on() => self.dirty.push_back(Arc::clone(native)),
            // After a rejection, the remaining subscribers wait for the next connection.
            (true, UpstreamState::Off | UpstreamState::Rejected)
                if !was_subscribe || resource.subscribers.has_waiting() =>
            {
                self.dirty.push_back(Arc::clone(native));
            }
            (false, _) => drop(self.resources.remove(native)),
            _ => {}
        }
    }
}
