//! The upstream side of [`SubscriptionTable`]: the requests to the backend, and the effect of its responses and connections.
//!
//! The owner of the link calls [`next_job`](Interests::next_job), sends the request, and reports the result with
//! [`answered`](Interests::answered). Each job carries the number of its connection. A response over an earlier
//! connection is ignored.

use std::sync::Arc;

use crate::pattern_index::PatternId;
use crate::table::{LinkState, ResourceEntry, SubscriptionTable, UpstreamState};
use crate::{Notice, ResourceName, SubscribeOutcome, Subscriber, Subscription, UpstreamReply, UpstreamRequest};

impl<S: Subscriber> SubscriptionTable<S> {
    /// Handles a new connection and returns its number. Subscribers may have missed updates. If the backend does not
    /// support subscriptions, they are notified at once. `is_listed` is true if the backend's list is known, and with
    /// it the coverage of patterns.
    pub fn link_up(&mut self, can_subscribe: bool, is_listed: bool) -> (u64, Vec<Notice<S>>) {
        self.link += 1;
        self.upstream = if can_subscribe { LinkState::Up } else { LinkState::Deaf };
        self.dirty.clear();
        let mut notices = Vec::new();
        for cover in self.covers.values_mut() {
            cover.open.clear();
            cover.refused.clear();
            cover.refusal = None;
        }
        for (native, topic) in &mut self.topics {
            topic.is_doubtful = false;
            if !can_subscribe {
                topic.state = UpstreamState::Tracked;
                topic.is_news = false;
                if !topic.is_missing && std::mem::take(&mut topic.is_stale) {
                    notices.extend(topic.notices());
                }
                continue;
            }
            topic.state = UpstreamState::Off;
            if !topic.is_missing {
                self.dirty.push_back(Arc::clone(native));
                for id in &topic.covers {
                    self.covers.get_mut(*id).map(|cover| cover.open.insert(Arc::clone(native)));
                }
            }
        }
        // The subscribers of other patterns are notified once, when all covered resources are settled.
        for cover in self.covers.values_mut().filter(|cover| is_listed && cover.open.is_empty()) {
            if std::mem::take(&mut cover.is_stale) {
                notices.extend(cover.notices());
            }
        }
        (self.link, notices)
    }

    /// Handles the loss of connection `link`. Waiting requests receive `PendingUpdate`, and the gateway subscribes again
    /// later.
    pub fn link_down(&mut self, link: u64) {
        if link != self.link {
            return;
        }
        self.link += 1;
        self.upstream = LinkState::Down;
        self.dirty.clear();
        self.topics.retain(|_, topic| topic.is_wanted());
        for topic in self.topics.values_mut() {
            topic.state = UpstreamState::Off;
            topic.is_stale = true;
            topic.is_doubtful = false;
            topic.audience.settle(&SubscribeOutcome::Pending);
        }
        for cover in self.covers.values_mut() {
            cover.open.clear();
            cover.is_stale = true;
            cover.audience.settle(&SubscribeOutcome::Pending);
        }
    }

    /// Handles possibly missed updates on a connection that is still open. Resources with open requests are reported
    /// when their response arrives.
    pub fn doubt(&mut self) -> Vec<Notice<S>> {
        let heard = |topic: &&ResourceEntry<S>| {
            matches!(topic.state, UpstreamState::On | UpstreamState::Tracked) && !topic.is_missing
        };
        let mut notices: Vec<_> = self.topics.values().filter(heard).flat_map(ResourceEntry::notices).collect();
        for cover in self.covers.values_mut() {
            cover.is_stale |= !cover.open.is_empty();
            if !cover.is_stale {
                notices.extend(cover.notices());
            }
        }
        notices
    }

    /// Returns the next request to send upstream, if any.
    pub fn next_job(&mut self) -> Option<UpstreamRequest> {
        while let Some(native) = self.dirty.pop_front() {
            let Some(topic) = self.topics.get_mut(&native) else { continue };
            let subscribes = match (topic.is_wanted(), topic.state) {
                (true, UpstreamState::Off | UpstreamState::Refused) if !topic.is_missing => true,
                (false, _) if topic.may_be_on() => false,
                (false, UpstreamState::Off | UpstreamState::Tracked | UpstreamState::Refused) => {
                    self.topics.remove(&native);
                    continue;
                }
                _ => continue,
            };
            if subscribes {
                topic.state = UpstreamState::Asking;
            } else {
                // A late response to an earlier subscribe may set this flag again while the unsubscribe is in flight.
                (topic.state, topic.is_doubtful) = (UpstreamState::Ending, false);
            }
            return Some(UpstreamRequest { native, subscribes, link: self.link });
        }
        None
    }

    /// Handles the response to a job. Returns the clients to notify of a possible change.
    pub fn answered(&mut self, job: &UpstreamRequest, reply: UpstreamReply) -> Vec<Notice<S>> {
        if job.link != self.link {
            return Vec::new();
        }
        let native = &job.native;
        let Some(topic) = self.topics.get_mut(native) else { return Vec::new() };
        if !job.subscribes {
            // Any response to an unsubscribe means that the backend received it.
            topic.state = UpstreamState::Off;
            self.compare(native, false);
            return Vec::new();
        }
        let (state, outcome) = match reply {
            UpstreamReply::Done => (UpstreamState::On, SubscribeOutcome::Subscribed),
            UpstreamReply::Unknown => (UpstreamState::Tracked, SubscribeOutcome::Tracked),
            UpstreamReply::Refused(response) => (UpstreamState::Refused, SubscribeOutcome::Refused(response)),
            UpstreamReply::Failed(reason) => (UpstreamState::Refused, SubscribeOutcome::Failed(reason)),
            UpstreamReply::Late(after) => (UpstreamState::Refused, SubscribeOutcome::Late(after)),
        };
        topic.state = state;
        match outcome {
            SubscribeOutcome::Late(_) => topic.is_doubtful = true,
            SubscribeOutcome::Subscribed => topic.is_doubtful = false,
            _ => {}
        }
        let mut notices = self.settle(native, &outcome);
        notices.extend(self.settle_covers(native, &outcome));
        self.compare(native, true);
        notices
    }

    /// Handles a positive response that arrived after its timeout. The subscription becomes active if it is wanted, and
    /// is cancelled otherwise.
    pub fn answered_late(&mut self, job: &UpstreamRequest) -> Vec<Notice<S>> {
        if job.link != self.link || !job.subscribes {
            return Vec::new();
        }
        let native = &job.native;
        let unwanted = || ResourceEntry::new(ResourceName { native: Arc::clone(native), exposed: Arc::clone(native) });
        let topic = self.topics.entry(Arc::clone(native)).or_insert_with(unwanted);
        if !matches!(topic.state, UpstreamState::Off | UpstreamState::Refused) {
            // Another request is in flight. The backend may have processed that one first.
            topic.is_doubtful |= matches!(topic.state, UpstreamState::Asking | UpstreamState::Ending);
            return Vec::new();
        }
        topic.state = UpstreamState::On;
        topic.is_doubtful = false;
        let mut notices = self.settle(native, &SubscribeOutcome::Subscribed);
        notices.extend(self.settle_covers(native, &SubscribeOutcome::Subscribed));
        self.compare(native, true);
        notices
    }

    /// Sends the outcome to the waiting clients of a resource. A refusal ends the subscriptions that these requests
    /// created.
    fn settle(&mut self, native: &str, outcome: &SubscribeOutcome) -> Vec<Notice<S>> {
        let Some(topic) = self.topics.get_mut(native) else { return Vec::new() };
        let entered = topic.audience.settle(outcome);
        if !outcome.is_refusal() {
            return if std::mem::take(&mut topic.is_stale) { topic.notices().collect() } else { Vec::new() };
        }
        let ended: Vec<_> = entered.iter().filter_map(|client| topic.audience.get(*client).cloned()).collect();
        self.end_all(&ended);
        Vec::new()
    }

    fn end_all(&mut self, ended: &[Arc<Subscription<S>>]) {
        for subscription in ended {
            self.end(subscription);
        }
    }

    /// Records the outcome for the patterns that cover the resource.
    fn settle_covers(&mut self, native: &str, outcome: &SubscribeOutcome) -> Vec<Notice<S>> {
        let Some(topic) = self.topics.get_mut(native) else { return Vec::new() };
        let is_news = std::mem::take(&mut topic.is_news) && !outcome.is_refusal();
        let (name, ids) = (Arc::clone(&topic.name), topic.covers.clone());
        let mut notices = Vec::new();
        for id in ids {
            let Some(cover) = self.covers.get_mut(id) else { continue };
            let was_open = cover.open.remove(native);
            if outcome.is_refusal() {
                cover.refused.insert(Arc::clone(&name.native));
                cover.refusal.get_or_insert_with(|| outcome.clone());
            } else {
                cover.refused.remove(native);
                if is_news && !cover.is_stale {
                    let subscribers = cover.audience.all().map(Arc::clone);
                    notices.extend(subscribers.map(|subscription| Notice { subscription, name: Arc::clone(&name) }));
                }
            }
            if was_open {
                notices.extend(self.settle_cover(id));
            }
        }
        notices
    }

    /// Settles a pattern if none of its requests is open. The outcome is a refusal only if the backend refused every
    /// covered resource.
    pub(super) fn settle_cover(&mut self, id: PatternId) -> Vec<Notice<S>> {
        let Some(cover) = self.covers.get_mut(id).filter(|cover| cover.open.is_empty()) else { return Vec::new() };
        if let Some(refusal) = cover.whole_refusal() {
            let entered = cover.audience.settle(&refusal);
            let ended: Vec<_> = entered.iter().filter_map(|client| cover.audience.get(*client).cloned()).collect();
            self.end_all(&ended);
            return Vec::new();
        }
        cover.audience.settle(&SubscribeOutcome::Subscribed);
        if std::mem::take(&mut cover.is_stale) { cover.notices().collect() } else { Vec::new() }
    }

    /// Compares the wanted state with the actual state after a response, and queues a request if they differ.
    fn compare(&mut self, native: &Arc<str>, was_asked: bool) {
        let Some(topic) = self.topics.get(native) else { return };
        match (topic.is_wanted(), topic.state) {
            (false, _) if topic.may_be_on() => self.dirty.push_back(Arc::clone(native)),
            // After a refusal, the remaining subscribers wait for the next connection.
            (true, UpstreamState::Off | UpstreamState::Refused) if !was_asked || topic.audience.is_waited_for() => {
                self.dirty.push_back(Arc::clone(native));
            }
            (false, _) => drop(self.topics.remove(native)),
            _ => {}
        }
    }
}
