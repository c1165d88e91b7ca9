//! The resources and templates that a backend offers, for subscriptions: found by URI and filtered by the
//! configuration.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use goblin_catalog::listing::{Definition, List, Listing};
use goblin_config::Server;
use goblin_config::exposure::Profile;
use goblin_subscriptions::OfferedResources;
use goblin_subscriptions::pattern::Pattern;
use goblin_wire::template::index::TemplateIndex;
use goblin_wire::template::{MAX_MATCH_STEPS, MatchBudget, Template};

use crate::upstream::events::BackendEvents;
use crate::upstream::fetch::SHORT_LIST;

/// The number of exhaustive template lookups before the remaining subscribed resources count as not offered.
const TEMPLATE_LOOKUPS: usize = 4;

/// An immutable view of one listing. Indexes are built on first use.
pub(crate) struct ListingView {
    config: Arc<Server>,
    listing: Arc<Listing>,
    /// The indexes of the listed resources, sorted by URI.
    order: OnceLock<Vec<usize>>,
    templates: OnceLock<(Vec<Template>, TemplateIndex)>,
}

impl ListingView {
    pub(crate) fn new(config: Arc<Server>, listing: Arc<Listing>) -> ListingView {
        ListingView { config, listing, order: OnceLock::new(), templates: OnceLock::new() }
    }

    /// Returns a view of the same listing with this configuration.
    pub(crate) fn with_config(self: &Arc<ListingView>, config: Arc<Server>) -> Arc<ListingView> {
        match Arc::ptr_eq(&self.config, &config) {
            true => Arc::clone(self),
            false => Arc::new(ListingView::new(config, Arc::clone(&self.listing))),
        }
    }

    pub(crate) fn listing(&self) -> &Arc<Listing> {
        &self.listing
    }

    fn resources(&self) -> &Arc<Vec<Definition>> {
        self.listing.get(List::Resources)
    }

    /// Reports whether the backend has completed a listing, which may be empty.
    pub(crate) fn is_listed(&self) -> bool {
        self.listing.hello.is_some()
    }

    /// Reports whether the server's filter admits a URI.
    pub(crate) fn admits(&self, native: &str) -> bool {
        self.config.resources.filter.admits(native)
    }

    pub(crate) fn definition(&self, native: &str) -> Option<&Definition> {
        let (all, order) = (self.resources(), self.order());
        let at = order.binary_search_by_key(&native, |index| &*all[*index].native).ok()?;
        Some(&all[order[at]]).filter(|_| self.admits(native))
    }

    /// Returns the indexes of the listed resources, sorted by URI.
    fn order(&self) -> &[usize] {
        self.order.get_or_init(|| {
            let all = self.resources();
            let mut order: Vec<usize> = (0..all.len()).collect();
            order.sort_by_key(|index| &all[*index].native);
            order
        })
    }

    /// Returns the admitted URIs that were not listed `before`. Walks both sorted lists once, because both may be long.
    pub(crate) fn added_since<'a>(&'a self, before: &'a ListingView) -> impl Iterator<Item = &'a str> + 'a {
        let is_same = Arc::ptr_eq(self.resources(), before.resources());
        let current = if is_same { &[] } else { self.order() };
        let mut old = before.order().iter().map(|index| &*before.resources()[*index].native).peekable();
        let natives = current.iter().map(|index| &*self.resources()[*index].native);
        let is_new = move |native: &&str| {
            while old.next_if(|old| old < native).is_some() {}
            old.peek() != Some(native)
        };
        natives.filter(is_new).filter(|native| self.admits(native))
    }

    fn listed(&self) -> impl Iterator<Item = &str> {
        let natives = self.resources().iter().map(|definition| &*definition.native);
        natives.filter(|native| self.admits(native))
    }

    /// Reports whether the list is too long for matching patterns on a worker thread.
    pub(crate) fn is_long(&self) -> bool {
        self.resources().len() > SHORT_LIST
    }

    /// Returns the indexes of the listed resources that match one of the patterns.
    fn covered(&self, patterns: &[Arc<Pattern>]) -> Vec<usize> {
        let is_covered = |native: &str| patterns.iter().any(|pattern| pattern.matches(native));
        let indexes = self.resources().iter().enumerate();
        let covered = indexes.filter(|(_, resource)| is_covered(&resource.native) && self.admits(&resource.native));
        covered.map(|(index, _)| index).collect()
    }

    /// Reports whether a profile shows a URI of the backend.
    pub(crate) fn is_shown(&self, events: &BackendEvents, native: &str, profile: &Profile) -> bool {
        let exposed = || match self.definition(native) {
            Some(_) => events.expose_listed(native),
            None => events.expose_unlisted(native),
        };
        profile.shows_server(events.server()) && profile.resources.admits(&exposed())
    }

    fn has_template(&self, native: &str, budget: &mut MatchBudget) -> bool {
        let admitted = |definition: &&Definition| self.admits(&definition.native);
        let parse = |definition: &Definition| Template::parse(&definition.native).ok();
        let (templates, index) = self.templates.get_or_init(|| {
            let all = self.listing.get(List::Templates).iter().filter(admitted).filter_map(parse).collect::<Vec<_>>();
            let index = TemplateIndex::new(all.iter().enumerate());
            (all, index)
        });
        index.candidates(native).any(|number| {
            let template = &templates[number];
            template.matches_within(native, budget) || template.matches_widened(native, budget)
        })
    }
}

/// The listed resources that patterns match, computed without a lock and outside of the worker threads.
pub(crate) struct PatternMatches {
    offered: Arc<ListingView>,
    before: Arc<ListingView>,
    /// Indexes into the list.
    listed: Vec<usize>,
    /// Those in `listed` that were not listed before.
    added: Vec<usize>,
}

impl PatternMatches {
    pub(crate) fn find(
        patterns: &[Arc<Pattern>],
        offered: Arc<ListingView>,
        before: Arc<ListingView>,
    ) -> PatternMatches {
        let listed = offered.covered(patterns);
        let resources = offered.resources();
        let added = listed.iter().copied().filter(|index| before.definition(&resources[*index].native).is_none());
        PatternMatches { added: added.collect(), listed, offered, before }
    }

    /// Reports whether the lists are still the ones that were compared.
    pub(crate) fn is_current(&self, offered: &Arc<ListingView>, before: &Arc<ListingView>) -> bool {
        Arc::ptr_eq(&self.offered, offered) && Arc::ptr_eq(&self.before, before)
    }

    pub(crate) fn added(&self) -> impl Iterator<Item = &str> {
        self.natives(&self.added)
    }

    fn natives<'a>(&'a self, indexes: &'a [usize]) -> impl Iterator<Item = &'a str> {
        indexes.iter().map(|index| &*self.offered.resources()[*index].native)
    }
}

/// The offers of a backend under their exposed names.
pub(crate) struct ExposedListing<'a> {
    pub offered: &'a ListingView,
    pub events: &'a BackendEvents,
    /// If present, the listed resources are limited to these.
    pub covered: Option<&'a PatternMatches>,
    /// The steps left for matching templates, over all resources. Once they are used up, a resource counts as not
    /// offered and the backend is asked for it.
    budget: RefCell<MatchBudget>,
}

impl<'a> ExposedListing<'a> {
    pub(crate) fn new(
        offered: &'a ListingView,
        events: &'a BackendEvents,
        covered: Option<&'a PatternMatches>,
    ) -> ExposedListing<'a> {
        let budget = RefCell::new(MatchBudget::new(TEMPLATE_LOOKUPS * MAX_MATCH_STEPS));
        ExposedListing { offered, events, covered, budget }
    }
}

impl OfferedResources for ExposedListing<'_> {
    fn listed(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self.covered {
            Some(covered) => Box::new(covered.natives(&covered.listed)),
            None => Box::new(self.offered.listed()),
        }
    }

    fn lists(&self, native: &str) -> bool {
        self.offered.definition(native).is_some()
    }

    fn has(&self, native: &str) -> bool {
        let has_template = || self.offered.has_template(native, &mut self.budget.borrow_mut());
        self.lists(native) || self.offered.admits(native) && has_template()
    }

    fn is_shown(&self, native: &str, profile: &Profile) -> bool {
        self.offered.is_shown(self.events, native, profile)
    }
}
