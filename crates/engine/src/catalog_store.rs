//! Publishes the current catalog. One task publishes, and all requests read.
//!
//! Each profile has its own catalog, made from the same listings and published together with the whole one. A client
//! with links of its own may have another catalog, made from the listings of these links.

mod own;
mod slot;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use goblin_catalog::build::{CatalogSettings, build};
use goblin_catalog::listing::{List, Listing};
use goblin_catalog::profile::narrow;
use goblin_config::Config;
use goblin_config::exposure::{Exposure, Profile, ProfileName};
use goblin_telemetry::{Event, Observe, worker};
use goblin_wire::Error;
use tokio::sync::{Notify, watch};

use crate::catalog_store::own::OwnCatalogs;
use crate::catalog_store::slot::{CatalogSlot, ListChangeFlags};
use crate::client::caller::Caller;
use crate::client::{Client, ClientRegistry, ListVersions};
use crate::upstream::Backend;
use crate::upstream::supervisor::stopped;

pub type Catalog = goblin_catalog::Catalog<Backend>;
pub type Source = goblin_catalog::Source<Backend>;
pub type View<'a> = goblin_catalog::View<'a, Backend>;
pub type CatalogEntry = goblin_catalog::CatalogEntry<Backend>;
pub type NameTable = goblin_catalog::NameTable<Backend>;

/// Listings that change within this time are published together.
const GATHER: Duration = Duration::from_millis(20);

/// The current catalogs: one for each profile, one for clients without a profile, and those of clients with links of
/// their own.
pub struct CatalogStore {
    /// The catalog of clients without a profile.
    whole: CatalogSlot,
    settings: CatalogSettings,
    profiles: HashMap<ProfileName, ProfileCatalog>,
    /// The empty catalog of clients with an unknown profile.
    empty: CatalogSlot,
    own: OwnCatalogs,
    /// Whether a backend gives each client a link of its own.
    has_client_links: AtomicBool,
    /// The version of the newest catalog.
    version: AtomicU64,
    /// Whether a catalog has been published.
    is_published: AtomicBool,
    /// Counters of pages that were ready and pages that had to be built.
    pub pages: PageCounts,
    /// The running backends, in the order of the configuration.
    backends: ArcSwap<Vec<Arc<Backend>>>,
    /// Notified when a listing or the list of backends changes.
    pub changed: Arc<Notify>,
}

/// The catalog of the clients of a profile.
struct ProfileCatalog {
    profile: Arc<Profile>,
    settings: CatalogSettings,
    slot: CatalogSlot,
}

/// Counters of the list pages sent to clients.
#[derive(Debug, Default)]
pub struct PageCounts {
    pub ready: AtomicU64,
    pub made: AtomicU64,
}

impl CatalogStore {
    pub fn new(config: &Config) -> CatalogStore {
        let mut seed = [0; 4];
        // The seed makes cursors of an earlier run invalid. A failing random source only loses this check.
        let _ = getrandom::fill(&mut seed);
        let version = u64::from(u32::from_ne_bytes(seed)) << 24;
        let settings =
            |exposure: &Exposure| CatalogSettings { exposure: exposure.clone(), ..CatalogSettings::new(config) };
        let slot = |settings: &CatalogSettings| {
            CatalogSlot::new(Arc::new(build(version, settings, Vec::new())), ListVersions::default())
        };
        let profile = |profile: &Arc<Profile>| {
            let settings = settings(&profile.exposure);
            ProfileCatalog { profile: Arc::clone(profile), slot: slot(&settings), settings }
        };
        let whole = settings(&config.exposure);
        CatalogStore {
            whole: slot(&whole),
            settings: whole,
            profiles: config.profiles.iter().map(|(name, config)| (name.clone(), profile(config))).collect(),
            empty: slot(&settings(&Exposure::default())),
            own: OwnCatalogs::default(),
            has_client_links: AtomicBool::new(false),
            version: AtomicU64::new(version),
            is_published: AtomicBool::new(false),
            pages: PageCounts::default(),
            backends: ArcSwap::default(),
            changed: Arc::default(),
        }
    }

    pub(crate) fn has_profile(&self, name: &str) -> bool {
        self.profiles.contains_key(name)
    }

    /// Returns a profile's configuration.
    pub fn profile(&self, name: Option<&ProfileName>) -> Option<Arc<Profile>> {
        self.profiles.get(name?).map(|catalog| Arc::clone(&catalog.profile))
    }

    /// Returns the catalog of clients without a profile and without links of their own.
    pub fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.whole.current.load()
    }

    /// Returns the catalog of the clients of a profile that have no links of their own.
    pub(crate) fn profile_catalog(&self, profile: Option<&ProfileName>) -> Guard<Arc<Catalog>> {
        self.slot(profile).current.load()
    }

    /// Returns the catalog of a client.
    pub(crate) fn catalog_of(&self, caller: &Caller) -> Guard<Arc<Catalog>> {
        match self.own.find(caller) {
            Some(own) => own.slot.current.load(),
            None => self.profile_catalog(caller.profile.as_ref()),
        }
    }

    pub fn watch(&self) -> watch::Receiver<ListVersions> {
        self.whole.versions.subscribe()
    }

    /// Returns a receiver for the changes of a profile's lists.
    pub(crate) fn watch_profile(&self, profile: Option<&ProfileName>) -> watch::Receiver<ListVersions> {
        self.slot(profile).versions.subscribe()
    }

    /// Returns the versions of a profile's lists.
    pub(crate) fn profile_versions(&self, profile: Option<&ProfileName>) -> ListVersions {
        *self.slot(profile).versions.borrow()
    }

    /// Returns a receiver for the changes of a client's lists. If the client gets a catalog of its own later, the
    /// receiver wakes once more, and the client must call this function again.
    pub(crate) fn watch_of(&self, caller: &Caller) -> watch::Receiver<ListVersions> {
        match self.own.find(caller) {
            Some(own) => own.slot.versions.subscribe(),
            None => self.slot(caller.profile.as_ref()).versions.subscribe(),
        }
    }

    fn slot(&self, profile: Option<&ProfileName>) -> &CatalogSlot {
        match profile {
            None => &self.whole,
            Some(name) => self.profiles.get(name).map_or(&self.empty, |catalog| &catalog.slot),
        }
    }

    /// Gives a client a catalog of its own, if a backend gives each client a link of its own.
    pub(crate) fn add_own(self: &Arc<CatalogStore>, caller: &Caller, client: &Client) {
        if !self.has_client_links() || self.own.find(caller).is_some() {
            return;
        }
        let slot = self.slot(caller.profile.as_ref());
        let registry: Arc<dyn ClientRegistry> = Arc::<CatalogStore>::clone(self);
        let start = || (slot.current.load_full(), *slot.versions.borrow());
        if !self.own.add(caller, client, &registry, start) {
            return;
        }
        // A call may have connected the client's own link before, so its lists may be known already.
        self.changed.notify_one();
        if client.has_stream() {
            // A stream of the client still watches the slot of the profile.
            slot.versions.send_modify(|_| {});
        }
    }

    /// Reports whether a backend gives each client a link of its own.
    pub(crate) fn has_client_links(&self) -> bool {
        self.has_client_links.load(Ordering::Acquire)
    }

    /// Reports whether a client's catalog contains this listing of its own link.
    pub(crate) fn contains_own(&self, caller: &Caller, listing: &Arc<Listing>) -> bool {
        self.own.contains(caller, listing)
    }

    pub fn backends(&self) -> Arc<Vec<Arc<Backend>>> {
        self.backends.load_full()
    }

    pub(crate) fn set_backends(&self, backends: Vec<Arc<Backend>>) {
        self.has_client_links.store(backends.iter().any(|backend| backend.is_per_client()), Ordering::Release);
        self.backends.store(Arc::new(backends));
        self.changed.notify_one();
    }

    /// Returns one page of a list. A cursor continues in the catalog that the client began with. Returns an error if
    /// the cursor is invalid or the pages of that catalog are no longer kept.
    pub fn page(&self, caller: &Caller, list: List, cursor: Option<&str>) -> Result<Bytes, Error> {
        let slot = self.slot(caller.profile.as_ref());
        let page = match self.own.find(caller) {
            // The client may have begun in the catalog of the shared links.
            Some(own) => {
                own.slot.page(caller.dialect, list, cursor).or_else(|_| slot.page(caller.dialect, list, cursor))
            }
            None => slot.page(caller.dialect, list, cursor),
        };
        let count = if page.as_ref().is_ok_and(|page| page.was_made) { &self.pages.ready } else { &self.pages.made };
        count.fetch_add(1, Ordering::Relaxed);
        page.map(|page| page.json)
    }

    /// Waits until the catalog has the current listings of the backends, or newer ones.
    pub async fn caught_up(&self) {
        let mut versions = self.watch();
        while !self.is_current() {
            if versions.changed().await.is_err() {
                return;
            }
        }
    }

    fn is_current(&self) -> bool {
        let catalog = self.catalog();
        let backends = self.backends.load();
        let has_current = |(source, backend): (&Source, &Arc<Backend>)| {
            Arc::ptr_eq(&source.backend, backend) && Arc::ptr_eq(&source.listing, &backend.listing())
        };
        catalog.sources.len() == backends.len() && catalog.sources.iter().zip(backends.iter()).all(has_current)
    }

    /// Publishes a catalog whenever a listing changes and builds its search indexes. Returns when `stop` is set.
    pub async fn run(self: &Arc<CatalogStore>, observe: &Arc<Observe>, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = stopped(&mut stop) => {}
            () = self.publish_all(observe) => {}
            () = self.index_all() => {}
        }
    }

    /// Publishes catalogs. Building runs outside the worker threads, because backends decide how much they list. No
    /// other task publishes.
    async fn publish_all(self: &Arc<CatalogStore>, observe: &Arc<Observe>) {
        loop {
            self.changed.notified().await;
            let (catalogs, observe) = (Arc::clone(self), Arc::clone(observe));
            worker::offload(move || catalogs.publish(&observe)).await;
            tokio::time::sleep(GATHER).await;
        }
    }

    /// Builds the search indexes of each new catalog in advance, so that searches need not wait. Skips catalogs that
    /// are replaced before their turn. Builds only indexes that a client has used before. Catalogs of profiles are
    /// indexed on first use.
    async fn index_all(&self) {
        let mut versions = self.watch();
        let mut before = self.whole.current.load_full();
        while versions.changed().await.is_ok() {
            let catalog = self.whole.current.load_full();
            let old = std::mem::replace(&mut before, Arc::clone(&catalog));
            let searched: Vec<_> = List::ALL.into_iter().filter(|list| old.has_index(*list)).collect();
            if searched.is_empty() {
                continue;
            }
            worker::offload(move || {
                for list in searched {
                    catalog.index_of(list);
                }
            })
            .await;
        }
    }

    /// Publishes the catalogs of the current listings.
    fn publish(&self, observe: &Observe) {
        // The first catalog is published even if there are no servers.
        let is_first = !self.is_published.swap(true, Ordering::Relaxed);
        if is_first || !self.is_current() {
            self.publish_shared(observe);
        }
        let base = self.whole.current.load_full();
        // A client with an unknown profile has the empty catalog, and no sources with own links.
        let shared = |caller: &Caller| self.slot(caller.profile.as_ref()).current.load_full();
        let make = |caller: &Caller, sources: Vec<Source>| {
            let whole = build(self.next_version(), &self.settings, sources);
            let mut catalog = match caller.profile.as_ref().and_then(|name| self.profiles.get(name)) {
                None => whole,
                Some(profile) => narrow(&whole, &profile.profile, &profile.settings),
            };
            catalog.inherit(&shared(caller));
            catalog
        };
        for (own, changed) in self.own.publish(&base, shared, make, observe) {
            own.slot.notify_watchers(changed);
        }
    }

    /// Publishes the catalogs of clients without links of their own.
    fn publish_shared(&self, observe: &Observe) {
        let backends = self.backends.load();
        let source = |backend: &Arc<Backend>| Source { backend: Arc::clone(backend), listing: backend.listing() };
        let catalog = build(self.next_version(), &self.settings, backends.iter().map(source).collect());
        for name in catalog.tools.contested.keys().chain(catalog.prompts.contested.keys()) {
            observe.emit(&Event::NameConflict { name });
        }
        observe.emit(&Event::CatalogPublished {
            version: catalog.number(),
            tools: catalog.tools.entries.len(),
            prompts: catalog.prompts.entries.len(),
            resources: catalog.resources.entries.len(),
            templates: catalog.resources.templates.len(),
            conflicts: catalog.tools.contested.len() + catalog.prompts.contested.len(),
        });
        let resources = Arc::clone(&catalog.resources);
        let narrowed = self.profiles.values().map(|profile| {
            let ProfileCatalog { profile, settings, slot } = profile;
            (slot, narrow(&catalog, profile, settings))
        });
        let narrowed: Vec<_> = narrowed.collect();
        let put = |(slot, mut catalog): (&'_ CatalogSlot, Catalog)| {
            let old = slot.current.load_full();
            catalog.inherit(&old);
            let changed = ListChangeFlags::between(&old, &catalog);
            slot.put(Arc::new(catalog), observe);
            changed
        };
        // Store all catalogs and names before sending any notification. A receiver of a new version may load any of
        // them.
        let all = narrowed.into_iter().chain([(&self.whole, catalog)]);
        let changes: Vec<_> = all.map(|(slot, catalog)| (slot, put((slot, catalog)))).collect();
        for (source, backend) in backends.iter().enumerate() {
            backend.set_uris(Arc::clone(&resources), source);
        }
        for (slot, changed) in changes {
            slot.notify_watchers(changed);
        }
    }

    fn next_version(&self) -> u64 {
        self.version.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The store keeps catalogs of clients with links of their own.
impl ClientRegistry for CatalogStore {
    fn release(&self, client: &Client) {
        if let Some(session) = client.session {
            self.own.remove(session);
        }
    }

    fn queue_missed_updates(&self, _client: &Client) {}
}
