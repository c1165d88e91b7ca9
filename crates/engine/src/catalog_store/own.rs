//! The catalogs of clients with links of their own (D21).
//!
//! A client's own link may list other entries than the shared link. The client then has a slot of its own here. Clients
//! whose lists are equal share one catalog. A client keeps its last own listing while its link is lost.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use goblin_catalog::listing::Listing;
use goblin_config::exposure::ProfileName;
use goblin_telemetry::Observe;
use parking_lot::{Mutex, RwLock};

use crate::catalog_store::slot::{CatalogSlot, ListChangeFlags};
use crate::catalog_store::{Catalog, Source};
use crate::client::caller::{Caller, SessionId};
use crate::client::{Client, ClientRegistry};
use crate::upstream::Backend;

/// The limit of groups of clients without a session. Further groups get the catalog of the shared links.
const MAX_GROUPS: usize = 256;
/// The idle time after which the catalog of a group is dropped.
const UNUSED_AFTER: Duration = Duration::from_secs(600);

/// The slots of all clients with links of their own.
#[derive(Default)]
pub(super) struct OwnCatalogs {
    /// Whether a client has ever had a slot. Gateways without such clients check only this.
    is_used: AtomicBool,
    table: RwLock<OwnTable>,
    /// The catalogs of the last publication that differ from the one of the shared links.
    variants: Mutex<Vec<Variant>>,
}

#[derive(Default)]
struct OwnTable {
    sessions: HashMap<SessionId, Arc<OwnCatalog>>,
    /// The slots of clients without a session. Those with equal capabilities share their links.
    groups: Vec<Arc<OwnCatalog>>,
}

/// The catalog of one client, or of a group of clients without a session.
pub(super) struct OwnCatalog {
    caller: Caller,
    pub slot: CatalogSlot,
    state: Mutex<OwnState>,
}

struct OwnState {
    /// The listings of own links that the catalog contains.
    listings: Vec<OwnListing>,
    /// Whether the catalog differs from the one of the shared links.
    is_variant: bool,
    /// The time of the last use.
    used: Instant,
}

struct OwnListing {
    backend: Arc<Backend>,
    listing: Arc<Listing>,
}

/// A catalog with other listings than those of the shared links.
struct Variant {
    /// The version of the whole catalog that it was made from.
    base: u64,
    profile: Option<ProfileName>,
    replacements: Vec<Replacement>,
    catalog: Arc<Catalog>,
}

/// A listing of an own link that differs from the one of the shared link.
struct Replacement {
    /// The index of the source.
    source: usize,
    listing: Arc<Listing>,
}

impl Replacement {
    fn is_same(&self, other: &Replacement) -> bool {
        self.source == other.source
            && (Arc::ptr_eq(&self.listing, &other.listing) || self.listing.is_same(&other.listing))
    }
}

impl OwnCatalog {
    fn serves(&self, caller: &Caller) -> bool {
        let (own, other) = (&self.caller, caller);
        own.profile == other.profile && own.client_capabilities.raw == other.client_capabilities.raw
    }

    /// Reports whether the catalog contains this listing of the client's own link.
    fn contains(&self, listing: &Arc<Listing>) -> bool {
        self.state.lock().listings.iter().any(|own| Arc::ptr_eq(&own.listing, listing))
    }

    /// Updates the listings of the client's own links. A running backend without a link for the client keeps the last
    /// one. Returns those that differ from the listings of the shared links, and whether any listing is new.
    fn update(&self, sources: &[Source]) -> (Vec<Replacement>, bool) {
        let mut state = self.state.lock();
        let last = std::mem::take(&mut state.listings);
        let (mut differing, mut is_new) = (Vec::new(), false);
        for (index, source) in sources.iter().enumerate().filter(|(_, source)| source.backend.is_per_client()) {
            let before = last.iter().find(|own| Arc::ptr_eq(&own.backend, &source.backend)).map(|own| &own.listing);
            let kept = || before.filter(|_| !source.backend.is_dropped()).cloned();
            let listing = source.backend.own_listing(&self.caller).or_else(kept);
            let Some(listing) = listing else { continue };
            is_new |= before.is_none_or(|before| !Arc::ptr_eq(before, &listing));
            if !listing.is_same(&source.listing) {
                differing.push(Replacement { source: index, listing: Arc::clone(&listing) });
            }
            state.listings.push(OwnListing { backend: Arc::clone(&source.backend), listing });
        }
        (differing, is_new)
    }

    /// Replaces the catalog. The pages of a catalog of the shared links are kept elsewhere.
    fn put(&self, catalog: Arc<Catalog>, is_variant: bool, observe: &Observe) {
        let was_variant = std::mem::replace(&mut self.state.lock().is_variant, is_variant);
        match was_variant {
            true => self.slot.put(catalog, observe),
            false => self.slot.current.store(catalog),
        }
    }
}

impl OwnCatalogs {
    /// Returns the slot of a client. Returns `None` if the client has none.
    pub(super) fn find(&self, caller: &Caller) -> Option<Arc<OwnCatalog>> {
        if !self.is_used.load(Ordering::Acquire) {
            return None;
        }
        let table = self.table.read();
        match caller.session {
            Some(session) => table.sessions.get(&session).cloned(),
            None => {
                let own = table.groups.iter().find(|own| own.serves(caller))?;
                own.state.lock().used = Instant::now();
                Some(Arc::clone(own))
            }
        }
    }

    /// Adds a slot for a client, with the catalog and the versions that the client has so far. Returns `false` if the
    /// client is gone or there are too many groups.
    pub(super) fn add(
        &self,
        caller: &Caller,
        client: &Client,
        registry: &Arc<dyn ClientRegistry>,
        start: impl FnOnce() -> CatalogSlot,
    ) -> bool {
        let own = || {
            let state = OwnState { listings: Vec::new(), is_variant: false, used: Instant::now() };
            Arc::new(OwnCatalog { caller: caller.clone(), slot: start(), state: Mutex::new(state) })
        };
        let mut table = self.table.write();
        match caller.session {
            Some(session) => {
                table.sessions.entry(session).or_insert_with(own);
            }
            None => {
                let is_recent = |own: &OwnCatalog| own.state.lock().used.elapsed() < UNUSED_AFTER;
                table.groups.retain(|own| own.slot.versions.receiver_count() > 0 || is_recent(own));
                if table.groups.len() >= MAX_GROUPS {
                    return false;
                }
                if !table.groups.iter().any(|own| own.serves(caller)) {
                    table.groups.push(own());
                }
            }
        }
        drop(table);
        self.is_used.store(true, Ordering::Release);
        // `release` removes the slot of a client that closes from now on. A client that is closed has no other use.
        if let (Some(session), false) = (caller.session, client.register(registry)) {
            self.remove(session);
            return false;
        }
        true
    }

    pub(super) fn remove(&self, session: SessionId) {
        let removed = self.table.write().sessions.remove(&session);
        drop(removed);
    }

    /// Reports whether a stream watches the own catalog of a client of this profile.
    pub(super) fn is_watched(&self, profile: &ProfileName) -> bool {
        let table = self.table.read();
        let mut all = table.sessions.values().chain(&table.groups);
        all.any(|own| own.caller.profile.as_ref() == Some(profile) && own.slot.versions.receiver_count() > 0)
    }

    /// Reports whether the client's catalog contains this listing of its own link.
    pub(super) fn contains(&self, caller: &Caller, listing: &Arc<Listing>) -> bool {
        self.find(caller).is_some_and(|own| own.contains(listing))
    }

    /// Frees the outdated pages of all clients. Reports whether other pages are kept.
    pub(super) fn free_outdated_pages(&self) -> bool {
        let table = self.table.read();
        let slots = table.sessions.values().chain(&table.groups).map(|own| own.slot.free_outdated_pages());
        // Every slot frees its pages.
        slots.fold(false, |has_pages, kept| has_pages | kept)
    }

    /// Replaces the catalogs of all clients. `shared` returns the catalog of the shared links for a client, and `make`
    /// builds one with other listings. Returns the slots that have changed.
    pub(super) fn publish(
        &self,
        base: &Catalog,
        shared: impl Fn(&Caller) -> Arc<Catalog>,
        make: impl Fn(&Caller, Vec<Source>) -> Catalog,
        observe: &Observe,
    ) -> Vec<(Arc<OwnCatalog>, ListChangeFlags)> {
        if !self.is_used.load(Ordering::Acquire) {
            return Vec::new();
        }
        let all: Vec<_> = {
            let table = self.table.read();
            table.sessions.values().chain(&table.groups).cloned().collect()
        };
        let mut variants = self.variants.lock();
        // A variant that no client used in this publication is dropped at the end.
        let mut before = std::mem::take(&mut *variants);
        before.retain(|variant| variant.base == base.version);
        let (mut changes, mut compared) = (Vec::new(), Vec::<(Arc<Catalog>, Arc<Catalog>, ListChangeFlags)>::new());
        for own in all {
            let (differing, is_new) = own.update(&base.sources);
            let is_variant = !differing.is_empty();
            let catalog = match is_variant {
                true => Variant::find_or_make(&mut variants, &mut before, (base, &own.caller), differing, &make),
                false => shared(&own.caller),
            };
            let old = own.slot.current.load_full();
            if Arc::ptr_eq(&old, &catalog) {
                // A request may wait for the new listing.
                changes.extend(is_new.then(|| (own, ListChangeFlags::default())));
                continue;
            }
            // Many clients move from one catalog to the same other one.
            let known = compared.iter().find(|(from, to, _)| Arc::ptr_eq(from, &old) && Arc::ptr_eq(to, &catalog));
            let flags = known.map(|(.., flags)| flags.clone()).unwrap_or_else(|| {
                let flags = ListChangeFlags::between(&old, &catalog);
                compared.push((Arc::clone(&old), Arc::clone(&catalog), flags.clone()));
                flags
            });
            own.put(catalog, is_variant, observe);
            changes.push((own, flags));
        }
        changes
    }
}

impl Variant {
    /// Returns the catalog of a client with these differing listings: one of this publication, one of the last, or a
    /// new one.
    fn find_or_make(
        variants: &mut Vec<Variant>,
        before: &mut Vec<Variant>,
        (base, caller): (&Catalog, &Caller),
        replacements: Vec<Replacement>,
        make: impl Fn(&Caller, Vec<Source>) -> Catalog,
    ) -> Arc<Catalog> {
        if let Some(variant) = variants.iter().find(|variant| variant.is_for(caller, &replacements)) {
            return Arc::clone(&variant.catalog);
        }
        let variant = match before.iter().position(|variant| variant.is_for(caller, &replacements)) {
            Some(index) => before.swap_remove(index),
            None => {
                let catalog = Arc::new(make(caller, replace(&base.sources, &replacements)));
                Variant { base: base.version, profile: caller.profile.clone(), replacements, catalog }
            }
        };
        let catalog = Arc::clone(&variant.catalog);
        variants.push(variant);
        catalog
    }

    fn is_for(&self, caller: &Caller, replacements: &[Replacement]) -> bool {
        self.profile == caller.profile
            && self.replacements.len() == replacements.len()
            && self.replacements.iter().zip(replacements).all(|(one, other)| one.is_same(other))
    }
}

/// Returns the sources with some listings replaced.
fn replace(sources: &[Source], replacements: &[Replacement]) -> Vec<Source> {
    let mut sources = sources.to_vec();
    for Replacement { source, listing } in replacements {
        sources[*source].listing = Arc::clone(listing);
    }
    sources
}
