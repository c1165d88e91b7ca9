//! [`SubscriptionTable`]: the subscriptions of all clients, and the resulting requests to the backend. This module does
//! no I/O.
//!
//! The first subscription to a URI makes the gateway subscribe upstream, and the end of the last one makes it
//! unsubscribe. At most one request per URI is in flight. After each response the table compares the wanted state with
//! the actual state again. No interleaving therefore leaves a wrong state upstream. A pattern counts as a subscriber of
//! each listed resource that it covers.

use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::count::{LimitReached, SubscriptionPermit};
use crate::glob::MAX_URI;
use crate::pattern::Pattern;
use crate::pattern_index::{PatternId, PatternIndex};
use crate::subscribers::Subscribers;
use crate::{
    AffectedSubscription, ClientId, Notice, OfferedResources, SubscribeOutcome, SubscribeRequest, SubscribeStatus,
    Subscriber, Subscription, SubscriptionEntry,
};

/// The table of all subscriptions over one link.
pub struct SubscriptionTable<S> {
    pub(crate) resources: HashMap<Arc<str>, ResourceEntry<S>>,
    pub(crate) patterns: PatternIndex<S>,
    pub(crate) clients: HashMap<ClientId, Vec<Arc<Subscription<S>>>>,
    /// The resources to compare with the upstream state.
    pub(crate) dirty: VecDeque<Arc<str>>,
    /// The number of the current connection.
    pub(crate) link: u64,
    pub(crate) upstream: LinkState,
    /// The maximum number of resources. Beyond it, patterns cover no further resources.
    pub(crate) max_resources: usize,
    /// Whether the next listing compares all its resources with the patterns, and not only the new ones.
    pub(crate) matches_all: bool,
}

/// The state of the connection to the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Down,
    /// Connected, but the backend does not support subscriptions.
    Unsupported,
    Up,
}

/// A resource with at least one subscriber or covering pattern.
pub(crate) struct ResourceEntry<S> {
    /// The backend's URI.
    pub native: Arc<str>,
    pub subscribers: Subscribers<S>,
    /// The patterns that cover the resource.
    pub patterns: Vec<PatternId>,
    pub state: UpstreamState,
    /// True if updates may have been missed. The subscribers are notified once, when the backend has confirmed the
    /// subscription.
    pub is_stale: bool,
    /// True if the resource appeared after the patterns that cover it. Their subscribers are notified when the backend
    /// has confirmed the subscription.
    pub is_new: bool,
    /// True if the backend may have a subscription although `state` differs. A response was late, or the gateway
    /// subscribes again.
    pub is_uncertain: bool,
    /// True if the backend has offered the resource, by list or template, since the first subscription.
    pub was_offered: bool,
    /// True if only the list shows that the resource exists: the list had it before, or a read did not find it. A
    /// template that matches the URI does not count then.
    pub was_listed: bool,
    /// True if the backend offered the resource and it is now deleted.
    pub is_missing: bool,
    /// True if a read must show whether the resource exists. The backend reported its end, or a change although it is
    /// missing.
    pub is_doubtful: bool,
    /// True if a client subscribes to a missing resource that is not listed. A rejection makes it missing again.
    pub is_returning: bool,
}

/// The state of a URI upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamState {
    Off,
    Subscribing,
    On,
    Unsubscribing,
    /// The backend does not support subscribing.
    Tracked,
    /// The backend rejected the request, but subscribers remain. The gateway subscribes again over the next connection.
    Rejected,
}

impl<S: Subscriber> ResourceEntry<S> {
    pub(crate) fn new(native: Arc<str>) -> ResourceEntry<S> {
        ResourceEntry {
            native,
            subscribers: Subscribers::default(),
            patterns: Vec::new(),
            state: UpstreamState::Off,
            is_stale: false,
            is_new: false,
            is_uncertain: false,
            was_offered: false,
            was_listed: false,
            is_missing: false,
            is_doubtful: false,
            is_returning: false,
        }
    }

    pub(crate) fn status(&self) -> &'static str {
        match self.state {
            _ if self.is_missing => "missing",
            UpstreamState::On => "subscribed",
            UpstreamState::Tracked => "tracked",
            UpstreamState::Rejected => "rejected",
            UpstreamState::Off | UpstreamState::Subscribing | UpstreamState::Unsubscribing => "pending",
        }
    }

    /// Requests another subscribe, although the backend may still have the subscription.
    pub(crate) fn resubscribe(&mut self) {
        self.is_uncertain |= self.state == UpstreamState::On;
        self.state = UpstreamState::Off;
    }

    /// Reports whether the backend may need an unsubscribe when the resource is no longer wanted.
    pub(crate) fn may_be_on(&self) -> bool {
        self.state == UpstreamState::On
            || self.is_uncertain && !matches!(self.state, UpstreamState::Subscribing | UpstreamState::Unsubscribing)
    }

    /// Reports whether the backend offers the resource, according to its lists.
    pub(crate) fn is_offered(&self, offers: &dyn OfferedResources) -> bool {
        offers.lists(&self.native) || !self.was_listed && offers.has(&self.native)
    }

    pub(crate) fn is_wanted(&self) -> bool {
        !self.subscribers.is_empty() || !self.patterns.is_empty()
    }

    /// Returns notices about the resource for all subscribers.
    pub(crate) fn notices(&self) -> impl Iterator<Item = Notice<S>> {
        self.subscribers.notices(&self.native)
    }
}

impl<S: Subscriber> SubscriptionTable<S> {
    pub fn new(max_resources: usize) -> SubscriptionTable<S> {
        SubscriptionTable {
            resources: HashMap::new(),
            patterns: PatternIndex::default(),
            clients: HashMap::new(),
            dirty: VecDeque::new(),
            link: 0,
            upstream: LinkState::Down,
            max_resources,
            matches_all: false,
        }
    }

    /// Makes the next listing compare all its resources with the patterns, because other filters apply to it.
    pub fn filters_changed(&mut self) {
        self.matches_all = true;
    }

    /// Sets the limit of resources. Existing ones stay.
    pub fn set_max_resources(&mut self, max: usize) {
        self.max_resources = max;
    }

    /// Adds a subscription. An existing subscription of the client keeps its id and takes the new options. `permit`
    /// reserves room for a new one. Returns an error if there is no room.
    pub fn subscribe(
        &mut self,
        mut request: SubscribeRequest<S>,
        offers: &dyn OfferedResources,
        permit: impl FnOnce() -> Result<SubscriptionPermit, LimitReached>,
    ) -> Result<SubscriptionEntry<S>, LimitReached> {
        let client = request.subscriber.id();
        let options = std::mem::take(&mut request.options);
        let existing = self.find_existing(&request);
        let is_new = existing.is_none();
        let subscription = match existing {
            Some(existing) => existing,
            None => self.create_subscription(request, offers, permit()?)?,
        };
        subscription.set_options(options);
        let notices = match &subscription.pattern {
            // The client may know that the resource is back, but the other subscribers do not.
            None if self.is_missing(&subscription.name.native) => self.try_revive(&subscription.name.native, offers),
            _ => Vec::new(),
        };
        let status = match self.pattern_of(&subscription) {
            Some(id) => self.pattern_status(id, client, is_new),
            None => self.resource_status(&subscription.name.native, client, is_new),
        };
        Ok(SubscriptionEntry { subscription, status, notices })
    }

    /// Returns the client's existing subscription, if any.
    fn find_existing(&self, request: &SubscribeRequest<S>) -> Option<Arc<Subscription<S>>> {
        let Some(pattern) = &request.pattern else { return self.find(&request.subscriber, &request.native).cloned() };
        let is_same = |subscription: &&Arc<Subscription<S>>| {
            let kind = subscription.pattern.as_ref().map(|pattern| pattern.kind());
            kind == Some(pattern.kind()) && subscription.name.native == request.native
        };
        self.subscriptions_of(&request.subscriber).iter().find(is_same).cloned()
    }

    pub(crate) fn pattern_of(&self, subscription: &Subscription<S>) -> Option<PatternId> {
        let pattern = subscription.pattern.as_deref()?;
        self.patterns.find(pattern, &subscription.name.native, subscription.profile.load().as_ref())
    }

    fn create_subscription(
        &mut self,
        request: SubscribeRequest<S>,
        offers: &dyn OfferedResources,
        permit: SubscriptionPermit,
    ) -> Result<Arc<Subscription<S>>, LimitReached> {
        let profile = request.subscriber.profile();
        let native = &request.native;
        let subscribers = match &request.pattern {
            Some(pattern) => {
                let existing = self.patterns.find(pattern, native, profile.as_ref());
                let id = match existing {
                    Some(id) => id,
                    None => self.add_pattern(Arc::clone(native), pattern, profile.as_ref(), offers)?,
                };
                self.patterns.all.get(&id).map(|pattern_entry| &pattern_entry.subscribers)
            }
            None => {
                // The number of offered resources is bounded by the backend, that of forwarded ones only by this.
                let is_known = self.resources.contains_key(native);
                if request.is_forwarded && !is_known && self.resources.len() >= self.max_resources {
                    return Err(LimitReached::Upstream);
                }
                let was_listed = offers.lists(native);
                let was_offered = was_listed || offers.has(native);
                let resource =
                    self.resources.entry(Arc::clone(native)).or_insert_with(|| ResourceEntry::new(Arc::clone(native)));
                resource.was_offered |= was_offered;
                resource.was_listed |= was_listed;
                Some(&resource.subscribers)
            }
        };
        let name = subscribers.map_or_else(|| request.name(), |subscribers| subscribers.name_for(&request));
        let subscription = Arc::new(Subscription::new(request, name, permit, profile));
        self.add_subscription(&subscription);
        Ok(subscription)
    }

    /// Returns the subscribers of the pattern or resource of a subscription.
    fn subscribers(&mut self, subscription: &Subscription<S>) -> Option<&mut Subscribers<S>> {
        if subscription.pattern.is_none() {
            return self.resources.get_mut(&subscription.name.native).map(|resource| &mut resource.subscribers);
        }
        let id = self.pattern_of(subscription)?;
        self.patterns.all.get_mut(&id).map(|pattern_entry| &mut pattern_entry.subscribers)
    }

    pub(crate) fn add_subscription(&mut self, subscription: &Arc<Subscription<S>>) {
        if let Some(subscribers) = self.subscribers(subscription) {
            subscribers.insert(subscription);
            self.clients.entry(subscription.subscriber.id()).or_default().push(Arc::clone(subscription));
        }
    }

    fn resource_status(&mut self, native: &Arc<str>, client: ClientId, is_new: bool) -> SubscribeStatus {
        let Some(resource) = self.resources.get_mut(native) else {
            return SubscribeStatus::Settled(SubscribeOutcome::Pending);
        };
        match (self.upstream, resource.state) {
            (LinkState::Down, _) => {
                resource.is_stale = true;
                SubscribeStatus::Settled(SubscribeOutcome::Pending)
            }
            (LinkState::Unsupported, _) | (_, UpstreamState::Tracked) => {
                resource.state = UpstreamState::Tracked;
                SubscribeStatus::Settled(SubscribeOutcome::Tracked)
            }
            (LinkState::Up, UpstreamState::On) => SubscribeStatus::Settled(SubscribeOutcome::Subscribed),
            (LinkState::Up, state) => {
                if matches!(state, UpstreamState::Off | UpstreamState::Rejected) {
                    self.dirty.push_back(Arc::clone(native));
                }
                SubscribeStatus::InFlight(resource.subscribers.wait(client, is_new))
            }
        }
    }

    fn pattern_status(&mut self, id: PatternId, client: ClientId, is_new: bool) -> SubscribeStatus {
        let Some(pattern_entry) = self.patterns.all.get_mut(&id) else {
            return SubscribeStatus::Settled(SubscribeOutcome::Pending);
        };
        match self.upstream {
            LinkState::Down => {
                pattern_entry.is_stale = true;
                SubscribeStatus::Settled(SubscribeOutcome::Pending)
            }
            LinkState::Unsupported => SubscribeStatus::Settled(SubscribeOutcome::Tracked),
            LinkState::Up if pattern_entry.open.is_empty() => SubscribeStatus::Settled(SubscribeOutcome::Subscribed),
            LinkState::Up => SubscribeStatus::InFlight(pattern_entry.subscribers.wait(client, is_new)),
        }
    }

    /// Returns all patterns with subscribers.
    pub fn patterns(&self) -> Vec<Arc<Pattern>> {
        self.patterns.all.values().map(|pattern_entry| Arc::clone(&pattern_entry.pattern)).collect()
    }

    /// Returns the client's subscription to the single resource `native`.
    pub fn find(&self, subscriber: &S, native: &str) -> Option<&Arc<Subscription<S>>> {
        self.resources.get(native)?.subscribers.get(subscriber.id())
    }

    /// Ends a subscription. Returns whether it existed.
    pub fn end(&mut self, subscription: &Subscription<S>) -> bool {
        let client = subscription.subscriber.id();
        let Some(own) = self.clients.get_mut(&client) else { return false };
        let Some(at) = own.iter().position(|other| std::ptr::eq(&**other, subscription)) else { return false };
        let ended = own.swap_remove(at);
        if own.is_empty() {
            self.clients.remove(&client);
        }
        self.remove_subscription(client, &ended);
        true
    }

    /// Ends all subscriptions of a client and returns them.
    pub fn release(&mut self, subscriber: &S) -> Vec<Arc<Subscription<S>>> {
        let client = subscriber.id();
        let own = self.clients.remove(&client).unwrap_or_default();
        for subscription in &own {
            self.remove_subscription(client, subscription);
        }
        own
    }

    /// Removes a client from the subscribers of a pattern or resource. Removes it if it has no other subscribers.
    fn remove_subscription(&mut self, client: ClientId, subscription: &Subscription<S>) {
        if let Some(id) = self.pattern_of(subscription) {
            return self.remove_from_pattern(id, client);
        }
        if let Some(subscribers) = self.subscribers(subscription) {
            subscribers.remove(client);
            self.prune(&subscription.name.native);
        }
    }

    /// Removes a client from the subscribers of a pattern. Removes the pattern if it has no other subscribers.
    pub(crate) fn remove_from_pattern(&mut self, id: PatternId, client: ClientId) {
        let Some(pattern_entry) = self.patterns.all.get_mut(&id) else { return };
        pattern_entry.subscribers.remove(client);
        let removed = if pattern_entry.subscribers.is_empty() { self.patterns.remove(id) } else { None };
        for native in removed.map(|pattern_entry| pattern_entry.listed).unwrap_or_default() {
            if let Some(resource) = self.resources.get_mut(&native) {
                resource.patterns.retain(|other| *other != id);
            }
            self.prune(&native);
        }
    }

    /// Removes a resource without subscribers. If the backend may have the subscription, the resource stays until the
    /// subscription is ended upstream.
    pub(crate) fn prune(&mut self, native: &str) {
        let Some(resource) = self.resources.get(native).filter(|resource| !resource.is_wanted()) else { return };
        match resource.state {
            _ if resource.may_be_on() => self.dirty.push_back(Arc::clone(&resource.native)),
            UpstreamState::Off | UpstreamState::On | UpstreamState::Tracked | UpstreamState::Rejected => {
                drop(self.resources.remove(native))
            }
            // `reconcile` runs when the response arrives.
            UpstreamState::Subscribing | UpstreamState::Unsubscribing => {}
        }
    }

    /// Handles a cancelled subscribe request. Ends the subscription that the request created, unless another request of
    /// the client waits for it.
    pub fn withdraw(&mut self, subscription: &Subscription<S>) {
        let client = subscription.subscriber.id();
        if self.subscribers(subscription).is_some_and(|subscribers| subscribers.withdraw(client)) {
            self.end(subscription);
        }
    }

    /// Reports whether an update of `native` concerns a client.
    pub fn wants(&self, subscriber: &S, native: &str) -> bool {
        let client = subscriber.id();
        let in_resource = |uri: &str| self.resources.get(uri).is_some_and(|resource| resource.subscribers.has(client));
        let in_pattern = |id: PatternId| {
            self.patterns.all.get(&id).is_some_and(|pattern_entry| pattern_entry.subscribers.has(client))
        };
        let in_enclosing_pattern = |uri: &str| {
            let resource = self.resources.get(uri);
            resource.is_some_and(|resource| resource.patterns.iter().any(|id| in_pattern(*id)))
        };
        in_resource(native)
            || self.patterns.matching(native).any(in_pattern)
            || enclosing(native).any(|uri| in_resource(uri) || in_enclosing_pattern(uri))
    }

    /// Returns all subscriptions of a client.
    pub fn subscriptions_of(&self, subscriber: &S) -> &[Arc<Subscription<S>>] {
        self.clients.get(&subscriber.id()).map_or(&[], Vec::as_slice)
    }

    /// Iterates over the URIs of the subscribed resources. Each comes with whether all its subscriptions are forwarded.
    pub fn resources(&self) -> impl Iterator<Item = (&Arc<str>, bool)> {
        let is_forwarded = |resource: &ResourceEntry<S>| {
            let mut subscriptions = resource.subscribers.all().peekable();
            subscriptions.peek().is_some() && subscriptions.all(|subscription| subscription.is_forwarded)
        };
        self.resources.iter().map(move |(native, resource)| (native, is_forwarded(resource)))
    }

    /// Iterates over all subscriptions with their status.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<Subscription<S>>, &'static str)> {
        let resources = self.resources.values().flat_map(|resource| {
            let state = resource.status();
            resource.subscribers.all().map(move |subscription| (subscription, state))
        });
        let patterns = self.patterns.all.values().flat_map(|pattern_entry| {
            let state = match self.upstream {
                LinkState::Down => "pending",
                _ if !pattern_entry.open.is_empty() => "pending",
                _ if pattern_entry.is_partial() => "partial",
                LinkState::Unsupported => "tracked",
                LinkState::Up => "subscribed",
            };
            pattern_entry.subscribers.all().map(move |subscription| (subscription, state))
        });
        resources.chain(patterns)
    }

    /// Returns the listed resources that a pattern covers. Returns the single resource of a subscription without a
    /// pattern.
    pub fn covered(&self, subscription: &Subscription<S>) -> Vec<Arc<str>> {
        match self.pattern_of(subscription).and_then(|id| self.patterns.all.get(&id)) {
            Some(pattern_entry) => pattern_entry.listed.iter().cloned().collect(),
            None => vec![Arc::clone(&subscription.name.native)],
        }
    }

    /// Reports whether changes of the backend's lists matter: to a pattern, or to subscribers of a deleted resource.
    pub fn wants_list(&self) -> bool {
        !self.patterns.all.is_empty() || self.resources.values().any(|resource| resource.is_missing)
    }

    pub(crate) fn is_missing(&self, native: &str) -> bool {
        self.resources.get(native).is_some_and(|resource| resource.is_missing)
    }

    /// Records that the backend reported a change of a resource. Returns `true` if the resource is missing: a listing
    /// must then show whether it is back.
    pub fn note_change(&mut self, native: &str) -> bool {
        let Some(resource) = self.resources.get_mut(native).filter(|resource| resource.is_missing) else {
            return false;
        };
        !std::mem::replace(&mut resource.is_doubtful, true)
    }

    /// Records that the backend reported the end of a resource. Returns `true` if a listing must follow.
    pub fn note_end(&mut self, native: &str) -> bool {
        let resource = self.resources.get_mut(native).filter(|resource| !resource.is_missing);
        resource.is_some_and(|resource| !std::mem::replace(&mut resource.is_doubtful, true))
    }

    /// Returns the resources with a confirmed subscription that are not deleted.
    pub fn active_resources(&self) -> Vec<Arc<str>> {
        let active =
            self.resources.values().filter(|resource| resource.state == UpstreamState::On && !resource.is_missing);
        active.filter(|resource| resource.is_wanted()).map(|resource| Arc::clone(&resource.native)).collect()
    }

    /// Returns the subscriptions that an update of `native` concerns: to the resource, to a pattern that covers it, or
    /// to an enclosing resource. Only the closest subscription of each client counts. If it selects fields, it may
    /// suppress the update, so the client's next subscription follows. An update of a missing resource concerns only
    /// enclosing resources, because the return of the resource is notified once.
    pub fn affected(&self, native: &str) -> Vec<AffectedSubscription<'_, S>> {
        let mut found = AffectedSet::default();
        let resource = self.resources.get(native);
        let is_missing = resource.is_some_and(|resource| resource.is_missing);
        if let Some(resource) = resource.filter(|_| !is_missing) {
            found.add(resource.subscribers.all(), None);
        }
        let matching = self.patterns.matching(native).filter(|_| !is_missing);
        for pattern_entry in matching.filter_map(|id| self.patterns.all.get(&id)) {
            let is_listed = pattern_entry.listed.contains(native);
            found.add(pattern_entry.subscribers.all(), (!is_listed).then_some(&pattern_entry.native));
        }
        for resource in enclosing(native).filter_map(|uri| self.resources.get(uri)) {
            found.add(resource.subscribers.all(), Some(&resource.native));
            for pattern_entry in resource.patterns.iter().filter_map(|id| self.patterns.all.get(id)) {
                found.add(pattern_entry.subscribers.all(), Some(&resource.native));
            }
        }
        let mut found = found.affected;
        if found.iter().any(|affected| affected.subscription.delivery().priority != 0) {
            found.sort_by_key(|affected| std::cmp::Reverse(affected.subscription.delivery().priority));
        }
        found
    }

    pub fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.clients.is_empty() && self.patterns.all.is_empty()
    }
}

/// The subscriptions that an update concerns, without duplicates per client.
struct AffectedSet<'a, S> {
    affected: Vec<AffectedSubscription<'a, S>>,
    /// The clients of `affected`. The value is true if the client is notified without a comparison of fields. Filled
    /// when the second group arrives, because most updates have only one.
    clients: HashMap<ClientId, bool>,
}

impl<S> Default for AffectedSet<'_, S> {
    fn default() -> Self {
        AffectedSet { affected: Vec::new(), clients: HashMap::new() }
    }
}

impl<'a, S: Subscriber> AffectedSet<'a, S> {
    fn add(&mut self, subscribers: impl Iterator<Item = &'a Arc<Subscription<S>>>, enclosing: Option<&'a Arc<str>>) {
        if self.affected.is_empty() {
            self.affected.extend(subscribers.map(|subscription| AffectedSubscription {
                subscription,
                enclosing,
                is_next: false,
            }));
            return;
        }
        if self.clients.is_empty() {
            let client_entry = |affected: &AffectedSubscription<'_, S>| {
                (affected.subscription.subscriber.id(), !affected.subscription.is_selective())
            };
            self.clients.extend(self.affected.iter().map(client_entry));
        }
        for subscription in subscribers {
            let is_unconditional = !subscription.is_selective();
            let is_next = match self.clients.entry(subscription.subscriber.id()) {
                Slot::Vacant(slot) => {
                    slot.insert(is_unconditional);
                    false
                }
                Slot::Occupied(slot) if *slot.get() => continue,
                Slot::Occupied(mut slot) => {
                    slot.insert(is_unconditional);
                    true
                }
            };
            self.affected.push(AffectedSubscription { subscription, enclosing, is_next });
        }
    }
}

/// Returns the URIs that enclose `native`, closest first. These are the prefixes that end in `/`, or that are followed
/// by `/`, `?` or `#`.
///
/// Looking up all prefixes takes quadratic time. A URI longer than [`MAX_URI`] therefore has no enclosing URIs.
pub(crate) fn enclosing(native: &str) -> impl Iterator<Item = &str> {
    let native = if native.len() > MAX_URI { "" } else { native };
    let ends = native.char_indices().rev().filter(|(_, character)| matches!(character, '/' | '?' | '#'));
    ends.flat_map(|(at, character)| {
        let with = (character == '/').then(|| &native[..=at]).filter(|with| with.len() < native.len());
        with.into_iter().chain(std::iter::once(&native[..at]))
    })
}
