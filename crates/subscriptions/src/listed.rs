//! The effect of the backend's lists on subscriptions. Patterns cover new resources, and missing resources may be
//! deleted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use goblin_config::exposure::Profile;

use crate::count::LimitReached;
use crate::pattern::Pattern;
use crate::pattern_index::PatternId;
use crate::subscribers::Subscribers;
use crate::table::{LinkState, ResourceEntry, SubscriptionTable, UpstreamState};
use crate::{ClientId, Notice, OfferedResources, Subscriber, Subscription};

/// The effects of a new resource list.
pub struct RelistOutcome<S> {
    /// Clients to notify of a possible change.
    pub notices: Vec<Notice<S>>,
    /// Resources that were offered and are no longer. They count as deleted if they cannot be read either.
    pub suspects: Vec<Arc<str>>,
    /// Resources that are not listed and that the backend has reported on. A read shows whether they exist.
    pub doubtful: Vec<Arc<str>>,
}

/// The effects of a deleted resource.
pub struct RemovalOutcome<S> {
    /// Clients to notify of the deletion.
    pub deleted: Vec<Notice<S>>,
    /// Clients to notify of a possible change, because this was the last resource that their pattern waited for.
    pub notices: Vec<Notice<S>>,
}

impl<S: Subscriber> SubscriptionTable<S> {
    /// Adds a pattern of the clients of `profile`, with the listed resources that it covers now.
    pub(super) fn add_pattern(
        &mut self,
        native: Arc<str>,
        pattern: &Arc<Pattern>,
        profile: Option<&Arc<Profile>>,
        offers: &dyn OfferedResources,
    ) -> Result<PatternId, LimitReached> {
        let is_shown = |native: &str| profile.is_none_or(|profile| offers.is_shown(native, profile));
        let is_covered = |native: &&str| pattern.matches(native) && is_shown(native);
        let listed: HashSet<&str> = offers.listed().filter(is_covered).collect();
        let fresh = listed.iter().filter(|native| !self.resources.contains_key(**native)).count();
        if fresh > 0 && self.resources.len() + fresh > self.max_resources {
            return Err(LimitReached::Upstream);
        }
        let id = self.patterns.insert(native, Arc::clone(pattern), profile.cloned());
        for native in listed {
            self.attach(id, native);
        }
        Ok(id)
    }

    /// Makes a pattern cover one more listed resource. Queues a subscribe request unless the resource has a
    /// subscription.
    fn attach(&mut self, id: PatternId, native: &str) {
        let existing = self.resources.get_key_value(native).map(|(native, _)| Arc::clone(native));
        let native = existing.unwrap_or_else(|| Arc::from(native));
        let resource =
            self.resources.entry(Arc::clone(&native)).or_insert_with(|| ResourceEntry::new(Arc::clone(&native)));
        let Some(pattern_entry) = self.patterns.all.get_mut(&id) else { return };
        if !pattern_entry.listed.insert(Arc::clone(&native)) {
            return;
        }
        resource.patterns.push(id);
        (resource.was_offered, resource.was_listed) = (true, true);
        match (self.upstream, resource.state) {
            (LinkState::Up, UpstreamState::On | UpstreamState::Tracked) | (LinkState::Down, _) => {}
            (LinkState::Unsupported, _) => resource.state = UpstreamState::Tracked,
            (LinkState::Up, state) => {
                pattern_entry.open.insert(Arc::clone(&native));
                if matches!(state, UpstreamState::Off | UpstreamState::Rejected) {
                    self.dirty.push_back(native);
                }
            }
        }
    }

    /// Handles a complete listing of the backend. `added` has the URIs that the previous listing did not have. Only
    /// these are compared with the patterns, because there may be many, unless the filters changed.
    pub fn handle_listing<'a>(
        &mut self,
        offers: &'a dyn OfferedResources,
        added: impl Iterator<Item = &'a str> + 'a,
    ) -> RelistOutcome<S> {
        let mut outcome = RelistOutcome { notices: Vec::new(), suspects: Vec::new(), doubtful: Vec::new() };
        let mut returned = Vec::new();
        for (native, resource) in &mut self.resources {
            let (is_listed, is_offered) = (offers.lists(native), resource.is_offered(offers));
            resource.was_listed |= is_listed;
            resource.was_offered |= is_offered;
            resource.is_doubtful &= !is_listed;
            match (is_offered, resource.is_missing) {
                (true, true) => returned.push(Arc::clone(native)),
                (false, false) if resource.was_offered => outcome.suspects.push(Arc::clone(native)),
                _ if resource.is_doubtful => outcome.doubtful.push(Arc::clone(native)),
                _ => {}
            }
        }
        for native in returned {
            outcome.notices.extend(self.revive(&native));
        }
        outcome.notices.extend(self.extend_patterns(offers, Box::new(added)));
        outcome.notices.extend(self.settle_idle_patterns());
        outcome
    }

    /// Makes patterns cover the new resources of a listing, up to the limit. If an earlier listing exceeded the limit,
    /// all resources are tried again.
    pub(super) fn extend_patterns<'a>(
        &mut self,
        offers: &'a dyn OfferedResources,
        added: Box<dyn Iterator<Item = &'a str> + 'a>,
    ) -> Vec<Notice<S>> {
        let mut notices = Vec::new();
        if self.patterns.all.is_empty() {
            return notices;
        }
        let were_truncated = self
            .patterns
            .all
            .values_mut()
            .filter_map(|pattern_entry| std::mem::take(&mut pattern_entry.is_truncated).then_some(()));
        let matches_all = were_truncated.count() > 0 || std::mem::take(&mut self.matches_all);
        let natives = if matches_all { offers.listed() } else { added };
        for native in natives {
            let is_fresh = |id: &PatternId| {
                let pattern_entry = self.patterns.all.get(id);
                pattern_entry.is_some_and(|pattern_entry| {
                    !pattern_entry.listed.contains(native) && pattern_entry.shows(native, offers)
                })
            };
            let fresh: Vec<_> = self.patterns.matching(native).filter(is_fresh).collect();
            for id in fresh {
                if !self.resources.contains_key(native) && self.resources.len() >= self.max_resources {
                    self.patterns
                        .all
                        .get_mut(&id)
                        .into_iter()
                        .for_each(|pattern_entry| pattern_entry.is_truncated = true);
                    continue;
                }
                self.attach(id, native);
                notices.extend(self.announce(id, native));
            }
        }
        notices
    }

    /// Notifies the subscribers of a pattern of a new resource. If a subscribe request is open, the notification
    /// follows when the backend has responded.
    fn announce(&mut self, id: PatternId, native: &str) -> Vec<Notice<S>> {
        let (Some(pattern_entry), Some(resource)) = (self.patterns.all.get(&id), self.resources.get_mut(native)) else {
            return Vec::new();
        };
        if pattern_entry.is_stale {
            return Vec::new();
        }
        if pattern_entry.open.contains(native) {
            resource.is_new = true;
            return Vec::new();
        }
        pattern_entry.subscribers.notices(&resource.native).collect()
    }

    /// Handles the return of a deleted resource. Subscribes again and notifies the subscribers when the backend has
    /// confirmed.
    pub(super) fn revive(&mut self, native: &Arc<str>) -> Vec<Notice<S>> {
        let Some(resource) = self.resources.get_mut(native) else { return Vec::new() };
        (resource.is_missing, resource.is_doubtful) = (false, false);
        resource.is_stale = true;
        match (self.upstream, resource.state) {
            (LinkState::Unsupported, _) | (_, UpstreamState::Tracked) => {
                resource.is_stale = false;
                return resource.notices().collect();
            }
            (LinkState::Up, UpstreamState::On | UpstreamState::Off | UpstreamState::Rejected) => {
                resource.resubscribe();
                self.dirty.push_back(Arc::clone(native));
            }
            // The notification follows with the response or the next connection.
            (LinkState::Up, UpstreamState::Subscribing | UpstreamState::Unsubscribing) | (LinkState::Down, _) => {}
        }
        Vec::new()
    }

    /// Handles the return of hidden resources whose subscriptions are all forwarded. No listing announces these.
    pub fn revive_forwarded(&mut self, is_shown: impl Fn(&str) -> bool) -> Vec<Notice<S>> {
        let is_back = |(native, is_forwarded): &(&Arc<str>, bool)| {
            *is_forwarded && is_shown(native) && self.resources[*native].is_missing
        };
        let back: Vec<_> = self.resources().filter(is_back).map(|(native, _)| Arc::clone(native)).collect();
        back.iter().flat_map(|native| self.revive(native)).collect()
    }

    /// Handles the subscribe request of a client to a missing resource. The response of the backend shows whether the
    /// resource is back.
    pub(super) fn try_revive(&mut self, native: &Arc<str>, offers: &dyn OfferedResources) -> Vec<Notice<S>> {
        if let Some(resource) = self.resources.get_mut(native) {
            resource.is_returning = !offers.lists(native);
        }
        self.revive(native)
    }

    /// Handles a resource that is not listed but was read. If it was missing, it is back.
    pub fn mark_readable(&mut self, native: &str) -> Vec<Notice<S>> {
        let Some(resource) = self.resources.get_mut(native) else { return Vec::new() };
        resource.is_doubtful = false;
        if !resource.is_missing {
            return Vec::new();
        }
        let (native, resource) = (Arc::clone(&resource.native), &*resource);
        // No listing announces the return to the subscribers of a pattern.
        let patterns = self.patterns.matching(&native).filter_map(|id| self.patterns.all.get(&id));
        let notices = patterns.flat_map(|pattern_entry| pattern_entry.subscribers.notices(&native));
        let is_other = |notice: &Notice<S>| !resource.subscribers.has(notice.subscription.subscriber.id());
        let mut notices: Vec<_> = notices.filter(is_other).collect();
        notices.extend(self.revive(&native));
        notices
    }

    /// Marks a suspect as deleted, because it could not be read. Returns the clients to notify.
    pub fn mark_deleted(&mut self, native: &str, offers: &dyn OfferedResources) -> RemovalOutcome<S> {
        let is_offered = match self.resources.get_mut(native) {
            Some(resource) => {
                // A read after the report of the backend counts more than a template.
                resource.was_listed |= std::mem::take(&mut resource.is_doubtful);
                resource.is_offered(offers)
            }
            None => true,
        };
        if is_offered {
            return RemovalOutcome { deleted: Vec::new(), notices: Vec::new() };
        }
        self.delete(native)
    }

    /// Marks a resource as deleted, unless it is already. Returns the clients to notify.
    fn delete(&mut self, native: &str) -> RemovalOutcome<S> {
        let mut outcome = RemovalOutcome { deleted: Vec::new(), notices: Vec::new() };
        // A client that waits for the backend's response receives that first. The next listing reports the suspect
        // again.
        let is_deletable = |resource: &&mut ResourceEntry<S>| {
            resource.was_offered && !resource.is_missing && !resource.subscribers.has_waiting()
        };
        let Some(resource) = self.resources.get_mut(native).filter(is_deletable) else { return outcome };
        resource.is_missing = true;
        let deleted = Arc::clone(&resource.native);
        let patterns = std::mem::take(&mut resource.patterns);
        let mut notified: HashMap<ClientId, Arc<Subscription<S>>> = HashMap::new();
        // The client knows the resource under the name of its own subscription, so that one precedes patterns.
        let mut notify = |subscribers: &Subscribers<S>| {
            for subscription in subscribers.all() {
                notified.entry(subscription.subscriber.id()).or_insert_with(|| Arc::clone(subscription));
            }
        };
        notify(&resource.subscribers);
        for id in patterns {
            let Some(pattern_entry) = self.patterns.all.get_mut(&id) else { continue };
            pattern_entry.listed.remove(native);
            pattern_entry.rejected.remove(native);
            notify(&pattern_entry.subscribers);
            if pattern_entry.open.remove(native) {
                outcome.notices.extend(self.settle_pattern(id));
            }
        }
        self.prune(native);
        let notified = notified.into_values().map(|subscription| Notice { subscription, native: Arc::clone(&deleted) });
        outcome.deleted.extend(notified);
        outcome
    }

    /// Marks a resource as deleted that the configuration hides, whether the backend offered it or not.
    pub fn mark_hidden(&mut self, native: &str, offers: &dyn OfferedResources) -> RemovalOutcome<S> {
        if offers.has(native) {
            return RemovalOutcome { deleted: Vec::new(), notices: Vec::new() };
        }
        if let Some(resource) = self.resources.get_mut(native) {
            resource.was_offered = true;
        }
        self.delete(native)
    }

    /// Settles all patterns without open requests, and returns notices for those that may have missed updates.
    pub(super) fn settle_idle_patterns(&mut self) -> Vec<Notice<S>> {
        if self.upstream == LinkState::Down {
            return Vec::new();
        }
        let ids: Vec<_> = self.patterns.all.keys().copied().collect();
        ids.into_iter().flat_map(|id| self.settle_pattern(id)).collect()
    }
}
