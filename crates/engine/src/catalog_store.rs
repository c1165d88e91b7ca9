//! Publishes the current catalog. One task publishes, and all requests read.
//!
//! Each profile has its own catalog, made from the same listings and published together with the whole one. A client
//! with links of its own may have another catalog, made from the listings of these links.

mod own;
mod slot;
mod start;
#[cfg(test)]
mod tests;

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
use goblin_wire::via::GatewayId;
use tokio::sync::{Notify, watch};

use crate::catalog_store::own::OwnCatalogs;
use crate::catalog_store::slot::{CatalogSlot, KEPT_FOR, ListChangeFlags};
use crate::catalog_store::start::StartPhase;
use crate::client::caller::Caller;
use crate::client::{Client, ClientRegistry, ListVersions};
use crate::upstream::Backend;
use crate::upstream::availability::MisconfiguredServer;
use crate::upstream::supervisor::stopped;

pub type Catalog = goblin_catalog::Catalog<Backend>;
pub type Source = goblin_catalog::Source<Backend>;
pub type View<'a> = goblin_catalog::View<'a, Backend>;
pub type CatalogEntry = goblin_catalog::CatalogEntry<Backend>;
pub type NameTable = goblin_catalog::NameTable<Backend>;

/// Listings that change within this time are published together.
const GATHER: Duration = Duration::from_millis(20);
/// The number of removed profiles whose catalogs are kept although no stream watches them.
const MAX_REMOVED_PROFILES: usize = 100;

/// The current catalogs: one for each profile, one for clients without a profile, and those of clients with links of
/// their own.
pub struct CatalogStore {
    /// The id of this gateway.
    pub gateway: GatewayId,
    /// The catalog of clients without a profile.
    whole: CatalogSlot,
    /// The settings and the running backends. A reload replaces both at once, so that no catalog mixes old names with
    /// new rules.
    inputs: ArcSwap<CatalogInputs>,
    /// The empty catalog of clients with an unknown profile.
    empty: CatalogSlot,
    own: OwnCatalogs,
    /// Whether a backend gives each client a link of its own.
    has_client_links: AtomicBool,
    /// Whether a catalog has other lists for some client programs.
    has_client_rules: AtomicBool,
    /// The version of the newest catalog.
    version: AtomicU64,
    /// The version of the settings with which catalogs were published last.
    published: AtomicU64,
    start: StartPhase,
    /// Counters of pages that were ready and pages that had to be built.
    pub pages: PageCounts,
    /// The misconfigured servers, in the order of the configuration.
    misconfigured: ArcSwap<Vec<MisconfiguredServer>>,
    /// Notified when a listing or the list of backends changes.
    pub changed: Arc<Notify>,
}

/// The parts of the configuration that a catalog is made from.
#[derive(Clone)]
struct CatalogInputs {
    views: Arc<ViewSettings>,
    /// The running backends, in the order of the configuration.
    backends: Arc<Vec<Arc<Backend>>>,
}

/// The settings of all catalogs, and the profiles with their catalogs.
struct ViewSettings {
    /// A number that no other settings have.
    version: u64,
    whole: CatalogSettings,
    profiles: HashMap<ProfileName, ProfileCatalog>,
}

/// The catalog of the clients of a profile. Its slot outlives changes of the profile, so that sessions keep it.
struct ProfileCatalog {
    /// The rules of the next catalog. A removed profile admits nothing.
    profile: Arc<Profile>,
    /// The rules of the current catalog, shared with the clients of the profile.
    published: Arc<ArcSwap<Profile>>,
    settings: CatalogSettings,
    slot: Arc<CatalogSlot>,
    /// Whether the configuration no longer has the profile. Its clients see an empty catalog.
    is_removed: bool,
}

impl ViewSettings {
    /// Returns the settings of a configuration. Continues the slots of the profiles in `before`. `own` has the catalogs
    /// of clients with links of their own, whose streams may watch a removed profile.
    fn new(
        config: &Config,
        gateway: &GatewayId,
        version: u64,
        before: &HashMap<ProfileName, ProfileCatalog>,
        own: &OwnCatalogs,
    ) -> ViewSettings {
        let make = |name: &ProfileName, profile: Arc<Profile>, is_removed: bool| {
            let settings = catalog_settings(config, gateway, &profile.exposure);
            let (published, slot) = match before.get(name) {
                Some(known) => (Arc::clone(&known.published), Arc::clone(&known.slot)),
                None => (Arc::new(ArcSwap::new(Arc::clone(&profile))), Arc::new(empty_slot(version, &settings))),
            };
            (name.clone(), ProfileCatalog { profile, published, settings, slot, is_removed })
        };
        let current = config.profiles.iter().map(|(name, profile)| make(name, Arc::clone(profile), false));
        // The order matters: a stream that moves to an own catalog watches that one before it leaves this slot.
        let is_watched = |name: &ProfileName, catalog: &ProfileCatalog| {
            catalog.slot.versions.receiver_count() > 0 || own.is_watched(name)
        };
        let removed = before.iter().filter(|(name, _)| !config.profiles.contains_key(*name));
        let (watched, mut idle): (Vec<_>, Vec<_>) = removed.partition(|(name, catalog)| is_watched(name, catalog));
        for (_, dropped) in idle.split_off(idle.len().min(MAX_REMOVED_PROFILES)) {
            dropped.published.store(Arc::new(Profile::nothing()));
        }
        // A profile may come back while its sessions last.
        let kept = watched.into_iter().chain(idle);
        let kept = kept.map(|(name, _)| make(name, Arc::new(Profile::nothing()), true));
        let whole = catalog_settings(config, gateway, &config.exposure);
        ViewSettings { version, whole, profiles: current.chain(kept).collect() }
    }

    fn profile(&self, name: &str) -> Option<&ProfileCatalog> {
        self.profiles.get(name).filter(|catalog| !catalog.is_removed)
    }

    /// Returns the part of a catalog that clients of a profile see. Clients of an unknown profile see nothing.
    fn narrow(&self, whole: Catalog, profile: Option<&ProfileName>) -> Catalog {
        match profile.map(|name| self.profiles.get(name)) {
            None => whole,
            Some(Some(known)) => narrow(&whole, &known.profile, &known.settings),
            Some(None) => narrow(&whole, &Profile::nothing(), &self.whole),
        }
    }
}

/// Returns the settings of a catalog that clients with this exposure see.
fn catalog_settings(config: &Config, gateway: &GatewayId, exposure: &Exposure) -> CatalogSettings {
    CatalogSettings { exposure: exposure.clone(), gateway: Some(gateway.clone()), ..CatalogSettings::new(config) }
}

fn empty_slot(version: u64, settings: &CatalogSettings) -> CatalogSlot {
    CatalogSlot::new(Arc::new(build(version, settings, Vec::new())))
}

/// Counters of the list pages sent to clients.
#[derive(Debug, Default)]
pub struct PageCounts {
    pub ready: AtomicU64,
    pub made: AtomicU64,
}

impl CatalogStore {
    /// Returns a store with empty catalogs. `gateway` is the id of this gateway.
    pub fn new(config: &Config, gateway: &GatewayId) -> CatalogStore {
        let mut seed = [0; 4];
        // The seed makes cursors of an earlier run invalid. A failing random source only loses this check.
        let _ = getrandom::fill(&mut seed);
        let version = u64::from(u32::from_ne_bytes(seed)) << 24;
        let own = OwnCatalogs::default();
        let views = ViewSettings::new(config, gateway, version, &HashMap::new(), &own);
        let unknown = catalog_settings(config, gateway, &Exposure::default());
        // The first requests may come before the first publication.
        let mut exposures = config.profiles.values().map(|profile| &profile.exposure).chain([&config.exposure]);
        let has_client_rules = exposures.any(|exposure| !exposure.clients.is_empty());
        CatalogStore {
            gateway: gateway.clone(),
            whole: empty_slot(version, &views.whole),
            inputs: ArcSwap::from_pointee(CatalogInputs { views: Arc::new(views), backends: Arc::default() }),
            empty: empty_slot(version, &unknown),
            own,
            has_client_links: AtomicBool::new(false),
            has_client_rules: AtomicBool::new(has_client_rules),
            version: AtomicU64::new(version),
            // No catalog is published yet, not even an empty one.
            published: AtomicU64::new(u64::MAX),
            start: StartPhase::new(config.gateway.start_wait),
            pages: PageCounts::default(),
            misconfigured: ArcSwap::default(),
            changed: Arc::default(),
        }
    }

    pub(crate) fn has_profile(&self, name: &str) -> bool {
        self.inputs.load().views.profile(name).is_some()
    }

    /// Puts the settings of a configuration into force, together with its backends. Clients get `list_changed` if their
    /// lists change. Only one task calls this or [`CatalogStore::set_backends`].
    pub(crate) fn set_views(&self, config: &Config, backends: Vec<Arc<Backend>>) {
        let version = self.next_version();
        let views = ViewSettings::new(config, &self.gateway, version, &self.inputs.load().views.profiles, &self.own);
        self.set_inputs(Arc::new(views), backends);
    }

    /// Returns a profile's configuration.
    pub fn profile(&self, name: Option<&ProfileName>) -> Option<Arc<Profile>> {
        self.live_profile(name).map(|profile| profile.load_full())
    }

    /// Returns the configuration of a profile's catalog, which changes together with the catalog. An unknown profile
    /// admits nothing.
    pub(crate) fn live_profile(&self, name: Option<&ProfileName>) -> Option<Arc<ArcSwap<Profile>>> {
        let inputs = self.inputs.load();
        let known = inputs.views.profiles.get(name?).map(|catalog| Arc::clone(&catalog.published));
        Some(known.unwrap_or_else(|| Arc::new(ArcSwap::from_pointee(Profile::nothing()))))
    }

    /// Returns the catalog of clients without a profile and without links of their own.
    pub fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.whole.current.load()
    }

    /// Returns the catalog of the clients of a profile that have no links of their own.
    pub(crate) fn profile_catalog(&self, profile: Option<&ProfileName>) -> Guard<Arc<Catalog>> {
        self.with_slot(profile, |slot| slot.current.load())
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
        self.with_slot(profile, |slot| slot.versions.subscribe())
    }

    /// Returns the versions of a profile's lists for a client program.
    pub(crate) fn profile_versions(&self, profile: Option<&ProfileName>, program: Option<&str>) -> ListVersions {
        self.with_slot(profile, |slot| slot.versions_for(program))
    }

    /// Returns the versions of a client's lists.
    pub(crate) fn versions_of(&self, caller: &Caller) -> ListVersions {
        match self.own.find(caller) {
            Some(own) => own.slot.versions_for(caller.program.as_deref()),
            None => self.profile_versions(caller.profile.as_ref(), caller.program.as_deref()),
        }
    }

    /// Reports whether the lists of a client may depend on its program.
    pub(crate) fn has_client_rules(&self) -> bool {
        self.has_client_rules.load(Ordering::Acquire)
    }

    /// Returns a receiver for the changes of a client's lists. If the client gets a catalog of its own later, the
    /// receiver wakes once more, and the client must call this function again.
    pub(crate) fn watch_of(&self, caller: &Caller) -> watch::Receiver<ListVersions> {
        match self.own.find(caller) {
            Some(own) => own.slot.versions.subscribe(),
            None => self.watch_profile(caller.profile.as_ref()),
        }
    }

    fn with_slot<T>(&self, profile: Option<&ProfileName>, read: impl FnOnce(&CatalogSlot) -> T) -> T {
        match profile {
            None => read(&self.whole),
            Some(name) => {
                let inputs = self.inputs.load();
                read(inputs.views.profiles.get(name).map_or(&self.empty, |catalog| &*catalog.slot))
            }
        }
    }

    /// Gives a client a catalog of its own, if a backend gives each client a link of its own.
    pub(crate) fn add_own(self: &Arc<CatalogStore>, caller: &Caller, client: &Client) {
        if !self.has_client_links() || self.own.find(caller).is_some() {
            return;
        }
        let profile = caller.profile.as_ref();
        let registry: Arc<dyn ClientRegistry> = Arc::<CatalogStore>::clone(self);
        let start = || self.with_slot(profile, |slot| slot.successor());
        if !self.own.add(caller, client, &registry, start) {
            return;
        }
        // A call may have connected the client's own link before, so its lists may be known already.
        self.changed.notify_one();
        if client.has_stream() {
            // A stream of the client still watches the slot of the profile.
            self.with_slot(profile, |slot| slot.versions.send_modify(|_| {}));
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
        Arc::clone(&self.inputs.load().backends)
    }

    /// Returns the misconfigured servers.
    pub fn misconfigured(&self) -> Arc<Vec<MisconfiguredServer>> {
        self.misconfigured.load_full()
    }

    /// Returns the misconfigured servers that do not run and that a client may see.
    pub(crate) fn misconfigured_of(&self, caller: &Caller) -> Vec<MisconfiguredServer> {
        let profile = self.profile(caller.profile.as_ref());
        let is_visible = |server: &&MisconfiguredServer| match (&caller.profile, &profile) {
            (None, _) => true,
            (Some(_), Some(profile)) => profile.servers.iter().any(|glob| glob.matches(server.id.as_str())),
            (Some(_), None) => false,
        };
        self.misconfigured.load().iter().filter(|server| !server.is_running).filter(is_visible).cloned().collect()
    }

    pub(crate) fn set_misconfigured(&self, misconfigured: Vec<MisconfiguredServer>) {
        self.misconfigured.store(Arc::new(misconfigured));
    }

    /// Replaces the running backends. The settings stay.
    pub(crate) fn set_backends(&self, backends: Vec<Arc<Backend>>) {
        self.set_inputs(Arc::clone(&self.inputs.load().views), backends);
    }

    fn set_inputs(&self, views: Arc<ViewSettings>, backends: Vec<Arc<Backend>>) {
        self.has_client_links.store(backends.iter().any(|backend| backend.is_per_client()), Ordering::Release);
        self.inputs.store(Arc::new(CatalogInputs { views, backends: Arc::new(backends) }));
        self.changed.notify_one();
    }

    /// Returns one page of a list. A cursor continues in the catalog that the client began with. Returns an error if
    /// the cursor is invalid or the pages of that catalog are no longer kept.
    pub fn page(&self, caller: &Caller, list: List, cursor: Option<&str>) -> Result<Bytes, Error> {
        let viewer = caller.viewer();
        let shared = || self.with_slot(caller.profile.as_ref(), |slot| slot.page(viewer, list, cursor));
        let page = match self.own.find(caller) {
            // The client may have begun in the catalog of the shared links.
            Some(own) => own.slot.page(viewer, list, cursor).or_else(|_| shared()),
            None => shared(),
        };
        let count = if page.as_ref().is_ok_and(|page| page.was_made) { &self.pages.ready } else { &self.pages.made };
        count.fetch_add(1, Ordering::Relaxed);
        page.map(|page| page.json)
    }

    /// Waits until the catalog has the current listings of the backends, or newer ones.
    pub async fn caught_up(&self) {
        let mut versions = self.watch();
        while !self.is_current(&self.backends()) {
            if versions.changed().await.is_err() {
                return;
            }
        }
    }

    /// Reports whether the catalog has the current listings of `backends`, or newer ones.
    fn is_current(&self, backends: &[Arc<Backend>]) -> bool {
        let catalog = self.catalog();
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
    /// other task publishes. Frees the pages of earlier catalogs in time, also if no other catalog follows.
    async fn publish_all(self: &Arc<CatalogStore>, observe: &Arc<Observe>) {
        let mut has_pages = false;
        loop {
            tokio::select! {
                () = self.changed.notified() => {}
                () = tokio::time::sleep(KEPT_FOR), if has_pages => {
                    has_pages = self.free_outdated_pages();
                    continue;
                }
            }
            has_pages = true;
            let (catalogs, observe) = (Arc::clone(self), Arc::clone(observe));
            worker::offload(move || catalogs.publish(&observe)).await;
            tokio::time::sleep(GATHER).await;
        }
    }

    /// Reports whether pages are left that a client may still read.
    fn free_outdated_pages(&self) -> bool {
        let inputs = self.inputs.load_full();
        let slots = inputs.views.profiles.values().map(|profile| &*profile.slot).chain([&self.whole]);
        // Every slot frees its pages.
        let has_pages = slots.fold(false, |has_pages, slot| has_pages | slot.free_outdated_pages());
        self.own.free_outdated_pages() | has_pages
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
        let inputs = self.inputs.load_full();
        let CatalogInputs { views, backends } = &*inputs;
        let has_new_views = self.published.swap(views.version, Ordering::Relaxed) != views.version;
        if has_new_views || !self.is_current(backends) {
            self.publish_shared(&inputs, has_new_views, observe);
        }
        let base = self.whole.current.load_full();
        // A client with an unknown profile has the empty catalog, and no sources with own links.
        let shared = |caller: &Caller| self.with_slot(caller.profile.as_ref(), |slot| slot.current.load_full());
        let make = |caller: &Caller, sources: Vec<Source>| {
            // A reload may add the profile of a client after `views` was loaded.
            let whole = build(self.next_version(), &views.whole, sources);
            let mut catalog = views.narrow(whole, caller.profile.as_ref());
            catalog.inherit(&shared(caller));
            catalog
        };
        for (own, changed) in self.own.publish(&base, shared, make, observe) {
            own.slot.notify_watchers(&changed);
        }
    }

    /// Publishes the catalogs of clients without links of their own.
    fn publish_shared(&self, inputs: &CatalogInputs, has_new_views: bool, observe: &Observe) {
        let CatalogInputs { views, backends } = inputs;
        let source = |backend: &Arc<Backend>| Source { backend: Arc::clone(backend), listing: backend.listing() };
        let catalog = build(self.next_version(), &views.whole, backends.iter().map(source).collect());
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
        let narrow = |profile: &ProfileCatalog| narrow(&catalog, &profile.profile, &profile.settings);
        let narrowed: Vec<_> = views.profiles.values().map(|profile| (&*profile.slot, narrow(profile))).collect();
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
        let has_rules = changes.iter().any(|(slot, _)| slot.current.load().count_exposures() > 1);
        self.has_client_rules.store(has_rules, Ordering::Release);
        views.profiles.values().for_each(|profile| profile.published.store(Arc::clone(&profile.profile)));
        for (source, backend) in backends.iter().enumerate() {
            backend.set_uris(Arc::clone(&resources), source);
        }
        for (slot, changed) in changes {
            slot.notify_watchers(&changed);
        }
        if has_new_views {
            backends.iter().for_each(|backend| backend.apply_profiles());
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
