//! What a backend offers now, as subscriptions look at it: by URI, and within what the configuration lets through.

use std::sync::{Arc, OnceLock};

use crate::backend::inbox::Inbox;
use crate::backend::listing::{Definition, Listing};
use crate::config::Server;
use crate::protocol::template::Template;
use crate::subscriptions::Offers;

pub struct Offered {
    config: Arc<Server>,
    listing: Arc<Listing>,
    /// The listed resources in the order of their URIs; made when the first is looked for.
    order: OnceLock<Vec<usize>>,
    templates: OnceLock<Vec<Template>>,
}

impl Offered {
    pub fn new(config: Arc<Server>, listing: Arc<Listing>) -> Offered {
        Offered { config, listing, order: OnceLock::new(), templates: OnceLock::new() }
    }

    /// Whether the backend has listed anything at all, be it nothing.
    pub fn is_listed(&self) -> bool {
        self.listing.hello.is_some()
    }

    /// Returns whether the filter of the server admits a URI.
    pub fn admits(&self, native: &str) -> bool {
        self.config.resources.filter.admits(native)
    }

    pub fn definition(&self, native: &str) -> Option<&Definition> {
        let all = &self.listing.resources;
        let order = self.order.get_or_init(|| {
            let mut order: Vec<usize> = (0..all.len()).collect();
            order.sort_by_key(|index| &all[*index].native);
            order
        });
        let at = order.binary_search_by_key(&native, |index| &*all[*index].native).ok()?;
        Some(&all[order[at]]).filter(|_| self.admits(native))
    }

    /// The listed URIs that were not listed `before`.
    pub fn came_since<'a>(&'a self, before: &'a Offered) -> impl Iterator<Item = &'a str> + 'a {
        let is_same = Arc::ptr_eq(&self.listing.resources, &before.listing.resources);
        let listed = if is_same { None } else { Some(self.listed()) };
        listed.into_iter().flatten().filter(|native| before.definition(native).is_none())
    }

    fn listed(&self) -> impl Iterator<Item = &str> {
        let natives = self.listing.resources.iter().map(|definition| &*definition.native);
        natives.filter(|native| self.admits(native))
    }

    fn has_template(&self, native: &str) -> bool {
        let admitted = |definition: &&Definition| self.admits(&definition.native);
        let parse = |definition: &Definition| Template::parse(&definition.native).ok();
        let all = || self.listing.templates.iter().filter(admitted).filter_map(parse).collect();
        let templates = self.templates.get_or_init(all);
        templates.iter().any(|template| template.matches_lenient(native).is_some())
    }
}

/// The same, under the names that clients know.
pub struct Exposed<'a> {
    pub offered: &'a Offered,
    pub inbox: &'a Inbox,
}

impl Offers for Exposed<'_> {
    fn listed(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.offered.listed())
    }

    fn has(&self, native: &str) -> bool {
        self.offered.definition(native).is_some() || self.offered.admits(native) && self.offered.has_template(native)
    }

    fn expose(&self, native: &str) -> Arc<str> {
        self.inbox.expose_listed(native).into()
    }
}
