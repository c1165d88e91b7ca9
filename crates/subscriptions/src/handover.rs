//! Moves the subscriptions of a table to the table of another link, with the knowledge that the deletion of a resource
//! depends on.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::table::{ResourceEntry, SubscriptionTable};
use crate::{Notice, OfferedResources, Subscriber, Subscription};

/// The subscriptions that left a table.
pub struct DrainedSubscriptions<S> {
    pub subscriptions: Vec<Arc<Subscription<S>>>,
    /// The resources with a history that matters.
    known: HashMap<Arc<str>, KnownResource>,
}

/// The history of a resource, as in [`ResourceEntry`].
#[derive(Clone, Copy, PartialEq, Eq)]
struct KnownResource {
    was_listed: bool,
    is_missing: bool,
}

impl<S> DrainedSubscriptions<S> {
    pub fn is_empty(&self) -> bool {
        self.subscriptions.is_empty()
    }
}

impl<S: Subscriber> SubscriptionTable<S> {
    /// Removes and returns all subscriptions, for the table of another link. Waiting requests receive `Pending`.
    pub fn drain(&mut self) -> DrainedSubscriptions<S> {
        self.link_down(self.link);
        let known = self.resources.iter().map(|(native, resource)| {
            let &ResourceEntry { was_listed, is_missing, .. } = resource;
            (Arc::clone(native), KnownResource { was_listed, is_missing })
        });
        let known = known.filter(|(_, known)| known.was_listed || known.is_missing).collect();
        let subscriptions = std::mem::take(&mut self.clients).into_values().flatten().collect();
        *self = SubscriptionTable { link: self.link + 1, ..SubscriptionTable::new(self.max_resources) };
        DrainedSubscriptions { subscriptions, known }
    }

    /// Takes over the subscriptions of another table. The clients are notified of possibly missed updates when the
    /// backend has confirmed the subscriptions.
    pub fn restore(&mut self, drained: DrainedSubscriptions<S>, offers: &dyn OfferedResources) -> Vec<Notice<S>> {
        let DrainedSubscriptions { subscriptions, known } = drained;
        let mut natives = HashSet::new();
        for subscription in subscriptions {
            match &subscription.pattern {
                Some(pattern) => {
                    let profile = || subscription.profile.load_full();
                    let existing = self.pattern_of(&subscription);
                    let id = existing.unwrap_or_else(|| {
                        self.patterns.insert(Arc::clone(&subscription.name.native), Arc::clone(pattern), profile())
                    });
                    self.add_subscription(&subscription);
                    self.patterns.all.get_mut(&id).into_iter().for_each(|pattern_entry| pattern_entry.is_stale = true);
                }
                None => {
                    let native = &subscription.name.native;
                    let entry = self.resources.entry(Arc::clone(native));
                    let resource = entry.or_insert_with(|| ResourceEntry::new(Arc::clone(native)));
                    // The other table entered it only because the resource was offered or forwarded.
                    resource.was_offered |= !subscription.is_forwarded;
                    if let Some(known) = known.get(native) {
                        resource.was_listed |= known.was_listed;
                        resource.is_missing |= known.is_missing;
                    }
                    natives.insert(Arc::clone(native));
                    self.add_subscription(&subscription);
                }
            }
        }
        // A missing resource stays missing until the backend offers it.
        let is_present = |native: &&Arc<str>| {
            let resource = self.resources.get(*native);
            resource.is_some_and(|resource| !resource.is_missing || resource.is_offered(offers))
        };
        let present: Vec<_> = natives.iter().filter(is_present).collect();
        let mut notices: Vec<_> = present.into_iter().flat_map(|native| self.revive(native)).collect();
        notices.extend(self.extend_patterns(offers, offers.listed()));
        notices.extend(self.settle_idle_patterns());
        notices
    }
}

#[cfg(test)]
mod tests {
    use crate::UpstreamReply;
    use crate::fixture::TableFixture;

    #[test]
    fn d10_another_table_knows_which_resources_were_listed_and_which_are_missing() {
        let mut fixture = TableFixture::new();
        fixture.relist(&["t:1", "t:2"]);
        // A dropped entry would count as a cancelled request.
        let mut entries = Vec::new();
        for uri in ["t:1", "t:2"] {
            entries.push(fixture.subscribe(0, uri));
            fixture.reply(&format!("+{uri}"), UpstreamReply::Done);
        }
        fixture.relist(&["t:1"]);
        assert_eq!(fixture.mark_deleted("t:2"), ["t:2"]);
        let drained = fixture.table.drain();
        fixture.relist(&[]);
        fixture.table.restore(drained, &fixture.listed);
        fixture.link_up(true);
        fixture.reply("+t:1", UpstreamReply::Done);
        assert!(fixture.next_request().is_none(), "a missing resource stays missing");
        assert_eq!(fixture.relist(&[]).1, ["t:1"], "a template does not keep it");
        assert_eq!(fixture.mark_deleted("t:1"), ["t:1"]);
        fixture.relist(&["t:2"]);
        assert_eq!(fixture.reply("+t:2", UpstreamReply::Done), 1, "it is back");
    }
}
