//! The effect of a changed profile on the subscriptions of its clients.
//!
//! The owner of the table checks each update against the profile in force, so a hidden resource sends nothing from the
//! moment of the change. This module then reports the resources that the change hides as deleted, and those that it
//! shows again as changed. Patterns cover what the new profile shows. A subscription to a hidden resource stays, also
//! at the backend.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use goblin_config::exposure::Profile;

use crate::pattern_index::{PatternId, shows_same};
use crate::table::SubscriptionTable;
use crate::{ClientId, Notice, OfferedResources, Subscriber, Subscription};

/// The effects of changed profiles.
pub struct VisibilityOutcome<S> {
    /// The subscriptions with a changed profile. Those of one client are together.
    pub changed: Vec<Arc<Subscription<S>>>,
    /// Resources that a client sees no longer.
    pub hidden: Vec<Notice<S>>,
    /// Clients to notify of a possible change.
    pub notices: Vec<Notice<S>>,
}

/// The resources that become hidden when clients move from the first entry of a pattern to the second. There may be
/// many resources and many clients, so the filters are evaluated once per resource.
type HiddenByMove = HashMap<(PatternId, PatternId), Vec<Arc<str>>>;

impl<S: Subscriber> SubscriptionTable<S> {
    /// Reports whether a client has another profile than the one with which its subscriptions were entered.
    pub fn has_changed_profiles(&self) -> bool {
        self.clients.values().any(|own| own.iter().any(|subscription| changed_profile(subscription).is_some()))
    }

    /// Applies the current profiles of all clients.
    pub fn apply_profiles(&mut self, offers: &dyn OfferedResources) -> VisibilityOutcome<S> {
        let mut outcome = VisibilityOutcome { changed: Vec::new(), hidden: Vec::new(), notices: Vec::new() };
        let (mut left, mut hidden) = (Vec::new(), HiddenByMove::new());
        let all: Vec<_> = self.clients.values().flatten().cloned().collect();
        for subscription in all {
            let Some(profile) = changed_profile(&subscription) else { continue };
            match &subscription.pattern {
                None => self.apply_profile(&subscription, &profile, offers, &mut outcome),
                Some(_) => left.extend(self.move_pattern(&subscription, &profile, offers, &mut hidden, &mut outcome)),
            }
            outcome.changed.push(subscription);
        }
        if !left.is_empty() {
            // Patterns cover the new resources before the old entries release theirs, so that the backend keeps the
            // subscriptions that both have.
            outcome.notices.extend(self.extend_patterns(offers, offers.listed()));
            left.into_iter().for_each(|(id, client)| self.remove_from_pattern(id, client));
            outcome.notices.extend(self.settle_idle_patterns());
        }
        outcome
    }

    /// Applies a new profile to the subscription of a single resource.
    fn apply_profile(
        &self,
        subscription: &Arc<Subscription<S>>,
        profile: &Arc<Profile>,
        offers: &dyn OfferedResources,
        outcome: &mut VisibilityOutcome<S>,
    ) {
        let native = &subscription.name.native;
        let is_hidden = !offers.is_shown(native, profile);
        subscription.profile.store(Some(Arc::clone(profile)));
        let was_hidden = subscription.is_hidden.swap(is_hidden, Ordering::Relaxed);
        let notice = Notice { subscription: Arc::clone(subscription), native: Arc::clone(native) };
        match (was_hidden, is_hidden) {
            // The client knows already that the resource is deleted.
            _ if self.is_missing(native) => {}
            (false, true) => outcome.hidden.push(notice),
            (true, false) => outcome.notices.push(notice),
            (true, true) | (false, false) => {}
        }
    }

    /// Enters the subscription of a pattern under a new profile. Returns the client and the pattern's entry for the
    /// old profile, from which the caller removes the client.
    fn move_pattern(
        &mut self,
        subscription: &Arc<Subscription<S>>,
        profile: &Arc<Profile>,
        offers: &dyn OfferedResources,
        hidden: &mut HiddenByMove,
        outcome: &mut VisibilityOutcome<S>,
    ) -> Option<(PatternId, ClientId)> {
        let (client, pattern) = (subscription.subscriber.id(), subscription.pattern.as_ref()?);
        let old = self.pattern_of(subscription)?;
        subscription.profile.store(Some(Arc::clone(profile)));
        let new = self.patterns.find(pattern, &subscription.name.native, Some(profile)).unwrap_or_else(|| {
            let native = Arc::clone(&subscription.name.native);
            self.patterns.insert(native, Arc::clone(pattern), Some(Arc::clone(profile)))
        });
        if old == new {
            return None;
        }
        let listed = &self.patterns.all.get(&old)?.listed;
        let hidden = hidden
            .entry((old, new))
            .or_insert_with(|| listed.iter().filter(|native| !offers.is_shown(native, profile)).cloned().collect());
        // A subscription of the client to the resource itself reports the same.
        let is_reported = |native: &&Arc<str>| self.find(&subscription.subscriber, native).is_some();
        let unreported = hidden.iter().filter(|native| !is_reported(native));
        outcome.hidden.extend(
            unreported.map(|native| Notice { subscription: Arc::clone(subscription), native: Arc::clone(native) }),
        );
        let pattern_entry = self.patterns.all.get_mut(&new)?;
        pattern_entry.subscribers.insert(subscription);
        pattern_entry.is_stale = true;
        Some((old, client))
    }
}

/// Returns the profile of the client if it differs from that of the subscription.
fn changed_profile<S: Subscriber>(subscription: &Subscription<S>) -> Option<Arc<Profile>> {
    let current = subscription.subscriber.profile()?;
    let entered = subscription.profile.load();
    let is_same = entered.as_ref().is_some_and(|entered| shows_same(entered, &current));
    (!is_same).then_some(current)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use goblin_config::Filter;
    use goblin_config::exposure::Profile;
    use goblin_config::glob::Glob;
    use goblin_config::uri_filter::UriFilter;

    use super::*;
    use crate::UpstreamReply;
    use crate::fixture::{TableFixture, TestListing, glob, names};

    const BOTH: &str = "x+**";
    const ONLY_A: &str = "x+d:a";

    fn set_profile(fixture: &TableFixture, client: usize, allow: &str) {
        let allow = vec![Glob::new(allow).expect("a glob")];
        let resources = UriFilter::new(Filter { allow, deny: Vec::new() });
        let profile = Profile { resources, ..Profile::default() };
        fixture.clients[client].profile.store(Some(Arc::new(profile)));
    }

    /// Applies the profiles. Returns the hidden names and those of the other notices.
    fn apply(fixture: &mut TableFixture) -> (Vec<String>, Vec<String>) {
        assert!(fixture.table.has_changed_profiles());
        let outcome = fixture.table.apply_profiles(&fixture.listed);
        assert!(!fixture.table.has_changed_profiles());
        (names(&outcome.hidden), names(&outcome.notices))
    }

    fn done(fixture: &mut TableFixture) -> Vec<String> {
        let mut requests = Vec::new();
        while let Some((text, request)) = fixture.next_request() {
            requests.push(text);
            fixture.table.handle_reply(&request, UpstreamReply::Done);
        }
        requests.sort();
        requests
    }

    fn empty() -> (Vec<String>, Vec<String>) {
        (Vec::new(), Vec::new())
    }

    #[test]
    fn use9_a_profile_that_hides_a_resource_deletes_it_for_its_clients_alone() {
        let mut fixture = TableFixture::new();
        fixture.relist(&["d:a", "d:b"]);
        set_profile(&fixture, 0, BOTH);
        let entries: Vec<_> = [(0, "d:b"), (1, "d:b")].map(|(client, uri)| fixture.subscribe(client, uri)).into();
        assert_eq!(done(&mut fixture), ["+d:b"]);
        assert!(!fixture.table.has_changed_profiles());
        set_profile(&fixture, 0, ONLY_A);
        assert_eq!(apply(&mut fixture), (vec!["d:b".to_owned()], vec![]));
        assert_eq!(done(&mut fixture), [""; 0], "the subscription stays at the backend");
        set_profile(&fixture, 0, "x+other");
        assert_eq!(apply(&mut fixture), empty(), "the client knows");
        set_profile(&fixture, 0, BOTH);
        assert_eq!(apply(&mut fixture), (vec![], vec!["d:b".to_owned()]));
        drop(entries);
    }

    #[test]
    fn use9_a_pattern_covers_what_the_new_profile_shows() {
        let mut fixture = TableFixture::new();
        fixture.relist(&["d:a", "d:b"]);
        set_profile(&fixture, 0, ONLY_A);
        set_profile(&fixture, 1, BOTH);
        let entries: Vec<_> =
            [0, 1].map(|client| fixture.subscribe_to(client, "d:*", Some(glob("d:*"))).expect("room")).into();
        assert_eq!(done(&mut fixture), ["+d:a", "+d:b"]);
        // The wider profile is that of the other client, so both share one entry.
        set_profile(&fixture, 0, BOTH);
        assert_eq!(apply(&mut fixture), (vec![], vec!["d:*".to_owned(); 2]));
        assert_eq!(fixture.table.patterns.all.len(), 1);
        // Both lose sight of one resource. Nobody else wants it.
        (0..2).for_each(|client| set_profile(&fixture, client, ONLY_A));
        assert_eq!(apply(&mut fixture), (vec!["d:b".to_owned(); 2], vec!["d:*".to_owned(); 2]));
        assert_eq!(done(&mut fixture), ["-d:b"], "the other resource is not subscribed to again");
        // A later subscribe finds the same subscription.
        let again = fixture.subscribe_to(0, "d:*", Some(glob("d:*"))).expect("room");
        assert_eq!(again.subscription.id, entries[0].subscription.id);
        assert!(fixture.unsubscribe(0, "d:*") && fixture.unsubscribe(1, "d:*"));
        assert_eq!(done(&mut fixture), ["-d:a"]);
        assert!(fixture.table.is_empty());
    }

    /// A list that counts the evaluations of filters.
    struct CountingListing<'a> {
        listed: &'a TestListing,
        evaluations: Cell<usize>,
    }

    impl OfferedResources for CountingListing<'_> {
        fn listed(&self) -> Box<dyn Iterator<Item = &str> + '_> {
            self.listed.listed()
        }

        fn lists(&self, native: &str) -> bool {
            self.listed.lists(native)
        }

        fn has(&self, native: &str) -> bool {
            self.listed.has(native)
        }

        fn is_shown(&self, native: &str, profile: &Profile) -> bool {
            self.evaluations.set(self.evaluations.get() + 1);
            self.listed.is_shown(native, profile)
        }
    }

    #[test]
    fn use9_the_filters_of_a_new_profile_are_evaluated_once_for_all_clients_of_a_pattern() {
        const LISTED: [&str; 4] = ["d:a", "d:b", "d:c", "d:d"];
        let mut fixture = TableFixture::new();
        fixture.relist(&LISTED);
        for client in 0..3 {
            set_profile(&fixture, client, BOTH);
            fixture.subscribe_to(client, "d:*", Some(glob("d:*"))).expect("room");
        }
        (0..3).for_each(|client| set_profile(&fixture, client, ONLY_A));
        let listing = CountingListing { listed: &fixture.listed, evaluations: Cell::new(0) };
        let outcome = fixture.table.apply_profiles(&listing);
        assert_eq!(outcome.hidden.len(), 3 * 3, "each client gets each deletion");
        // Once for the hidden resources, and once for those that the pattern covers now.
        assert_eq!(listing.evaluations.get(), 2 * LISTED.len());
    }
}
