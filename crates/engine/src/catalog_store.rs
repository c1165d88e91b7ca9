//! Publishes the current catalog. One task publishes, and all requests read.
//!
//! The pages of earlier catalogs are kept for a while, so that a client can finish reading a long list. Each profile
//! has its own catalog, made from the same listings and published together with the whole one.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use goblin_catalog::build::{CatalogSettings, build};
use goblin_catalog::listing::List;
use goblin_catalog::profile::narrow;
use goblin_catalog::{Cursor, LongPages, Page};
use goblin_config::Config;
use goblin_config::exposure::{Exposure, Profile, ProfileName};
use goblin_telemetry::{Event, Observe, worker};
use goblin_wire::memory::{BufferKind, Reservation};
use goblin_wire::{Error, Limit};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use crate::client::ListVersions;
use crate::client::caller::Caller;
use crate::upstream::Backend;
use crate::upstream::supervisor::stopped;

pub type Catalog = goblin_catalog::Catalog<Backend>;
pub type Source = goblin_catalog::Source<Backend>;
pub type View<'a> = goblin_catalog::View<'a, Backend>;
pub type CatalogEntry = goblin_catalog::CatalogEntry<Backend>;
pub type NameTable = goblin_catalog::NameTable<Backend>;

/// The number of replaced catalogs with kept pages, and the time that they are kept. Catalogs change in quick
/// succession while backends start, and a client may read a list slowly.
const KEPT: usize = 16;
const KEPT_FOR: Duration = Duration::from_secs(60);
/// The maximum number of bytes of kept pages per slot. The oldest pages go first, and their cursors are rejected.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;
/// Listings that change within this time are published together.
const GATHER: Duration = Duration::from_millis(20);

/// The current catalogs, one for each profile and one for clients without a profile.
pub struct CatalogStore {
    /// The catalog of clients without a profile.
    whole: CatalogSlot,
    profiles: HashMap<ProfileName, (Arc<Profile>, CatalogSlot)>,
    /// The empty catalog of clients with an unknown profile.
    empty: CatalogSlot,
    /// Counters of pages that were ready and pages that had to be built.
    pub pages: PageCounts,
    /// The running backends, in the order of the configuration.
    backends: ArcSwap<Vec<Arc<Backend>>>,
    /// Notified when a listing or the list of backends changes.
    pub changed: Arc<Notify>,
}

/// Counters of the list pages sent to clients.
#[derive(Debug, Default)]
pub struct PageCounts {
    pub ready: AtomicU64,
    pub made: AtomicU64,
}

/// The pages of a replaced catalog, for clients that have read the first of several pages. The rest of the catalog is
/// dropped, because it would keep whole listings alive.
struct KeptPages {
    version: u64,
    replaced: Instant,
    pages: LongPages,
    reserved: Reservation,
}

/// The current catalog of a group of clients, and the kept pages of earlier ones.
struct CatalogSlot {
    settings: CatalogSettings,
    current: ArcSwap<Catalog>,
    before: Mutex<VecDeque<KeptPages>>,
    versions: watch::Sender<ListVersions>,
}

impl CatalogStore {
    pub fn new(config: &Config) -> CatalogStore {
        let mut seed = [0; 4];
        // The seed makes cursors of an earlier run invalid. A failing random source only loses this check.
        let _ = getrandom::fill(&mut seed);
        let version = u64::from(u32::from_ne_bytes(seed)) << 24;
        let slot = |exposure: &Exposure| {
            CatalogSlot::new(version, CatalogSettings { exposure: exposure.clone(), ..CatalogSettings::new(config) })
        };
        let profiles = config.profiles.iter();
        CatalogStore {
            whole: slot(&config.exposure),
            profiles: profiles
                .map(|(name, profile)| (name.clone(), (Arc::clone(profile), slot(&profile.exposure))))
                .collect(),
            empty: slot(&Exposure::default()),
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
        self.profiles.get(name?).map(|(profile, _)| Arc::clone(profile))
    }

    /// Returns the catalog of clients without a profile.
    pub fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.whole.current.load()
    }

    /// Returns the catalog of the clients of a profile.
    pub(crate) fn catalog_of(&self, profile: Option<&ProfileName>) -> Guard<Arc<Catalog>> {
        self.slot(profile).current.load()
    }

    pub fn watch(&self) -> watch::Receiver<ListVersions> {
        self.watch_of(None)
    }

    pub(crate) fn watch_of(&self, profile: Option<&ProfileName>) -> watch::Receiver<ListVersions> {
        self.slot(profile).versions.subscribe()
    }

    fn slot(&self, profile: Option<&ProfileName>) -> &CatalogSlot {
        match profile {
            None => &self.whole,
            Some(name) => self.profiles.get(name).map_or(&self.empty, |(_, slot)| slot),
        }
    }

    pub fn backends(&self) -> Arc<Vec<Arc<Backend>>> {
        self.backends.load_full()
    }

    pub(crate) fn set_backends(&self, backends: Vec<Arc<Backend>>) {
        self.backends.store(Arc::new(backends));
        self.changed.notify_one();
    }

    /// Returns one page of a list. A cursor continues in the catalog that the client began with. Returns an error if
    /// the cursor is invalid or the pages of that catalog are no longer kept.
    pub fn page(&self, caller: &Caller, list: List, cursor: Option<&str>) -> Result<Bytes, Error> {
        let page = self.slot(caller.profile.as_ref()).page(caller, list, cursor);
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

    fn publish(&self, observe: &Observe) {
        let backends = self.backends.load();
        let source = |backend: &Arc<Backend>| Source { backend: Arc::clone(backend), listing: backend.listing() };
        let version = self.whole.current.load().version + 1;
        let catalog = build(version, &self.whole.settings, backends.iter().map(source).collect());
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
        let narrowed = self.profiles.values().map(|(profile, slot)| (slot, narrow(&catalog, profile, &slot.settings)));
        let narrowed: Vec<_> = narrowed.collect();
        let whole = (&self.whole, catalog);
        // Store all catalogs and names before sending any notification. A receiver of a new version may load any of
        // them.
        let changes: Vec<_> =
            narrowed.into_iter().chain([whole]).map(|(slot, catalog)| (slot, slot.put(catalog, observe))).collect();
        for (source, backend) in backends.iter().enumerate() {
            backend.set_uris(Arc::clone(&resources), source);
        }
        for (slot, changed) in changes {
            slot.notify_watchers(changed);
        }
    }
}

/// The lists that differ from the previous catalog.
struct ListChangeFlags {
    tools: bool,
    prompts: bool,
    resources: bool,
}

impl CatalogSlot {
    fn new(version: u64, settings: CatalogSettings) -> CatalogSlot {
        let current = ArcSwap::from_pointee(build(version, &settings, Vec::new()));
        CatalogSlot { settings, current, before: Mutex::default(), versions: watch::Sender::default() }
    }

    fn page(&self, caller: &Caller, list: List, cursor: Option<&str>) -> Result<Page, Error> {
        let Some(cursor) = cursor else { return self.first_page(caller, list).ok_or(Error::InvalidCursor) };
        let (catalog, cursor) = (self.current.load(), cursor.parse::<Cursor>()?);
        let page = |catalog: &Catalog| {
            let is_current = catalog.version == cursor.version && cursor.list == list;
            if is_current { catalog.view(caller.dialect).find_page(list, cursor.page) } else { None }
        };
        let earlier = || {
            let before = self.before();
            let fresh = before.iter().filter(|kept| kept.replaced.elapsed() < KEPT_FOR);
            let mut kept = fresh.filter(|kept| kept.version == cursor.version && cursor.list == list);
            let json = kept.find_map(|kept| kept.pages.get(caller.dialect, list, cursor.page))?;
            Some(Page { json, was_made: true })
        };
        page(&catalog).or_else(earlier).ok_or(Error::InvalidCursor)
    }

    /// Returns the first page. Ensures that the following pages are kept when the catalog is replaced.
    fn first_page(&self, caller: &Caller, list: List) -> Option<Page> {
        loop {
            let catalog = self.current.load();
            let view = catalog.view(caller.dialect);
            let page = view.find_page(list, 0)?;
            if !view.is_long(list) {
                return Some(page);
            }
            // `put` may have replaced the catalog before this list was begun, and then did not keep its pages. `put`
            // replaces a catalog only under this lock.
            let _before = self.before();
            if self.current.load().version == catalog.version {
                return Some(page);
            }
        }
    }

    /// Replaces the current catalog and keeps the pages of the old one. Both happen under the lock. A reader that does
    /// not find a version as the current one finds it among the kept pages.
    fn put(&self, mut catalog: Catalog, observe: &Observe) -> ListChangeFlags {
        let old = self.current.load_full();
        catalog.inherit(&old);
        let changed = |list| old.definitions(list) != catalog.definitions(list);
        let (tools, prompts) = (changed(List::Tools), changed(List::Prompts));
        let resources = changed(List::Resources) || changed(List::Templates);
        // Builds the missing pages of begun lists, before taking the lock.
        let _ = old.long_pages();
        let mut before = self.before();
        self.current.store(Arc::new(catalog));
        before.retain(|kept| kept.replaced.elapsed() < KEPT_FOR);
        let (pages, version) = (old.long_pages(), old.version);
        let bytes = pages.bytes();
        if bytes > 0 && bytes <= MAX_KEPT_BYTES {
            let reserved = observe.memory.hold(BufferKind::Listings, bytes);
            before.push_front(KeptPages { version, replaced: Instant::now(), pages, reserved });
        }
        let mut sum = 0;
        let fit = before.iter().take_while(|kept| {
            sum += kept.reserved.bytes();
            sum <= MAX_KEPT_BYTES
        });
        let fit = fit.count();
        if fit < before.len() || bytes > MAX_KEPT_BYTES {
            observe.limit_hit(Limit::ListBytes);
        }
        let outdated = before.split_off(fit.min(KEPT));
        drop(before);
        // Freeing many pages takes time, so this happens after the lock is released.
        drop(outdated);
        ListChangeFlags { tools, prompts, resources }
    }

    /// Notifies the watchers of this slot.
    fn notify_watchers(&self, changed: ListChangeFlags) {
        self.versions.send_modify(|versions| {
            versions.tools += u64::from(changed.tools);
            versions.prompts += u64::from(changed.prompts);
            versions.resources += u64::from(changed.resources);
            versions.catalog += 1;
        });
    }

    fn before(&self) -> MutexGuard<'_, VecDeque<KeptPages>> {
        self.before.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use goblin_wire::json;

    use super::*;
    use crate::client::call::Call;

    fn next_cursor(page: &Bytes) -> Option<String> {
        let text = std::str::from_utf8(page).expect("text");
        let cursor = json::member(text, json::whole(text), "nextCursor")?;
        json::string(text, cursor).map(std::borrow::Cow::into_owned)
    }

    #[test]
    fn res11_a_page_sequence_completes_while_the_catalog_changes() {
        let mut config = Config::default();
        config.policies.page_size = 5;
        let catalogs = CatalogStore::new(&config);
        let (slot, caller, is_over) = (&catalogs.whole, Call::example().caller, AtomicBool::new(false));
        let read_all = || {
            let (mut pages, mut cursor) = (0, None);
            loop {
                let page = slot.page(&caller, List::Tools, cursor.as_deref())?;
                (pages, cursor) = (pages + 1, next_cursor(&page.json));
                if cursor.is_none() {
                    return Ok::<usize, Error>(pages);
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in (2..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    slot.put(build(version, &slot.settings, Vec::new()), &Observe::default());
                }
            });
            let outcomes: Vec<_> = (0..1_000).map(|_| read_all()).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(
                outcomes.iter().all(|pages| matches!(pages, Ok(3))),
                "the gateway's own tools, with five tools per page"
            );
        });
    }
}
