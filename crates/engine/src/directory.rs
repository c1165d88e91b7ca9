//! Where the current catalog hangs: one task may publish, everybody may read.
//!
//! The catalogs before it are kept for a while, so that a client in the middle of a long list can finish it. The clients of
//! each profile have a catalog of their own, made from the same listings and published with the whole one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use tokio::sync::{Notify, watch};

use crate::upstream::Backend;
use crate::upstream::actor::stopped;
use goblin_catalog::listing::List;
use crate::client::caller::Caller;
use goblin_catalog::build::{Terms, build};
use goblin_catalog::profile::narrow;
use goblin_catalog::{Cursor, LongPages, Page};
use goblin_config::Config;
use goblin_config::exposure::{Exposure, Profile, ProfileName};
use crate::client::mailbox::Versions;
use goblin_wire::memory::{Kind, Reservation};
use goblin_wire::limits::Limit;
use goblin_telemetry::{Event, Observe};
use goblin_wire::error::Error;
use goblin_telemetry::worker;

pub type Catalog = goblin_catalog::Catalog<Backend>;
pub type Source = goblin_catalog::Source<Backend>;
pub type View<'a> = goblin_catalog::View<'a, Backend>;
pub type Entry = goblin_catalog::Entry<Backend>;
pub type Names = goblin_catalog::Names<Backend>;

/// How many catalogs have pages that are kept after them, and for how long. While servers start one catalog follows the
/// other, and a client that lists meanwhile may be slow.
const KEPT: usize = 16;
const KEPT_FOR: Duration = Duration::from_secs(60);
/// The bytes of all pages that one shelf keeps. The oldest go first, and their cursors are refused.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;
/// Listings that change within this time are published together.
const GATHER: Duration = Duration::from_millis(20);

pub struct Directory {
    /// For clients without a profile.
    whole: Shelf,
    profiles: HashMap<ProfileName, (Arc<Profile>, Shelf)>,
    /// For clients of a profile that is not there.
    nothing: Shelf,
    /// How often a list was there to be sent, and how often it had to be made.
    pub pages: PageCounts,
    /// The running backends, in the order of the configuration.
    roster: ArcSwap<Vec<Arc<Backend>>>,
    /// Rung when a listing or the roster changed.
    pub bell: Arc<Notify>,
}

/// Pages of lists that clients were given.
#[derive(Debug, Default)]
pub struct PageCounts {
    pub ready: AtomicU64,
    pub made: AtomicU64,
}

/// The pages of a catalog that was replaced, for the clients that have seen the first of several. Nothing else of the
/// catalog is kept: it would keep whole listings.
struct KeptPages {
    version: u64,
    replaced: Instant,
    pages: LongPages,
    reserved: Reservation,
}

/// The catalogs of the clients that see the same.
struct Shelf {
    terms: Terms,
    current: ArcSwap<Catalog>,
    before: Mutex<VecDeque<KeptPages>>,
    versions: watch::Sender<Versions>,
}

impl Directory {
    pub fn new(config: &Config) -> Directory {
        let mut seed = [0; 4];
        // Cursors of an earlier run must not be taken for ours. Without a random source they might; that is all.
        let _ = getrandom::fill(&mut seed);
        let version = u64::from(u32::from_ne_bytes(seed)) << 24;
        let shelf =
            |exposure: &Exposure| Shelf::new(version, Terms { exposure: exposure.clone(), ..Terms::new(config) });
        let profiles = config.profiles.iter();
        Directory {
            whole: shelf(&config.exposure),
            profiles: profiles
                .map(|(name, profile)| (name.clone(), (Arc::clone(profile), shelf(&profile.exposure))))
                .collect(),
            nothing: shelf(&Exposure::default()),
            pages: PageCounts::default(),
            roster: ArcSwap::default(),
            bell: Arc::default(),
        }
    }

    pub fn has_profile(&self, name: &str) -> bool {
        self.profiles.contains_key(name)
    }

    /// What a profile shows.
    pub fn profile(&self, name: Option<&ProfileName>) -> Option<Arc<Profile>> {
        self.profiles.get(name?).map(|(profile, _)| Arc::clone(profile))
    }

    /// All there is.
    pub fn catalog(&self) -> Guard<Arc<Catalog>> {
        self.whole.current.load()
    }

    /// All there is for the clients of a profile.
    pub fn catalog_of(&self, profile: Option<&ProfileName>) -> Guard<Arc<Catalog>> {
        self.shelf(profile).current.load()
    }

    pub fn watch(&self) -> watch::Receiver<Versions> {
        self.watch_of(None)
    }

    pub fn watch_of(&self, profile: Option<&ProfileName>) -> watch::Receiver<Versions> {
        self.shelf(profile).versions.subscribe()
    }

    fn shelf(&self, profile: Option<&ProfileName>) -> &Shelf {
        match profile {
            None => &self.whole,
            Some(name) => self.profiles.get(name).map_or(&self.nothing, |(_, shelf)| shelf),
        }
    }

    pub fn backends(&self) -> Arc<Vec<Arc<Backend>>> {
        self.roster.load_full()
    }

    pub fn set_backends(&self, backends: Vec<Arc<Backend>>) {
        self.roster.store(Arc::new(backends));
        self.bell.notify_one();
    }

    /// One page of a list, from the catalog the client began with.
    pub fn page(&self, caller: &Caller, list: List, cursor: Option<&str>) -> Result<Bytes, Error> {
        let page = self.shelf(caller.profile.as_ref()).page(caller, list, cursor);
        let count = if page.as_ref().is_ok_and(|page| page.was_made) { &self.pages.ready } else { &self.pages.made };
        count.fetch_add(1, Ordering::Relaxed);
        page.map(|page| page.json)
    }

    /// Waits until the catalog holds the listings that the backends have now, or newer ones.
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
        let roster = self.roster.load();
        let holds = |(source, backend): (&Source, &Arc<Backend>)| {
            Arc::ptr_eq(&source.backend, backend) && Arc::ptr_eq(&source.listing, &backend.listing())
        };
        catalog.sources.len() == roster.len() && catalog.sources.iter().zip(roster.iter()).all(holds)
    }

    /// Publishes a catalog whenever the bell rings, and makes it searchable, until told to stop.
    pub async fn run(self: &Arc<Directory>, observe: &Arc<Observe>, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = stopped(&mut stop) => {}
            () = self.publish_all(observe) => {}
            () = self.index_all() => {}
        }
    }

    /// Builds beside the worker threads, because backends choose how much they list. Nothing else publishes.
    async fn publish_all(self: &Arc<Directory>, observe: &Arc<Observe>) {
        loop {
            self.bell.notified().await;
            let (directory, observe) = (Arc::clone(self), Arc::clone(observe));
            worker::offload(move || directory.publish(&observe)).await;
            tokio::time::sleep(GATHER).await;
        }
    }

    /// Builds the indexes of each catalog, so that questions need not wait; where catalogs come faster than that, of the
    /// newest. What nobody has ever searched waits for its first question, and so do the catalogs of profiles.
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
        let roster = self.roster.load();
        let source = |backend: &Arc<Backend>| Source { backend: Arc::clone(backend), listing: backend.listing() };
        let version = self.whole.current.load().version + 1;
        let catalog = build(version, &self.whole.terms, roster.iter().map(source).collect());
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
        let narrowed = self.profiles.values().map(|(profile, shelf)| (shelf, narrow(&catalog, profile, &shelf.terms)));
        let narrowed: Vec<_> = narrowed.collect();
        let whole = (&self.whole, catalog);
        // All of them before anybody is told: whoever hears of one version may look into any catalog.
        let changes: Vec<_> =
            narrowed.into_iter().chain([whole]).map(|(shelf, catalog)| (shelf, shelf.put(catalog, observe))).collect();
        for (shelf, changed) in changes {
            shelf.tell(changed);
        }
    }
}

/// Which lists are not as they were.
struct Changed {
    tools: bool,
    prompts: bool,
    resources: bool,
}

impl Shelf {
    fn new(version: u64, terms: Terms) -> Shelf {
        let current = ArcSwap::from_pointee(build(version, &terms, Vec::new()));
        Shelf { terms, current, before: Mutex::default(), versions: watch::Sender::default() }
    }

    fn page(&self, caller: &Caller, list: List, cursor: Option<&str>) -> Result<Page, Error> {
        let Some(cursor) = cursor else { return self.first_page(caller, list).ok_or(Error::InvalidCursor) };
        let (catalog, cursor) = (self.current.load(), cursor.parse::<Cursor>()?);
        let page = |catalog: &Catalog| {
            let ours = catalog.version == cursor.version && cursor.list == list;
            if ours { catalog.view(caller.dialect).find_page(list, cursor.page) } else { None }
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

    /// Returns the first page. The pages that follow are kept when the catalog is replaced.
    fn first_page(&self, caller: &Caller, list: List) -> Option<Page> {
        loop {
            let catalog = self.current.load();
            let view = catalog.view(caller.dialect);
            let page = view.find_page(list, 0)?;
            if !view.is_long(list) {
                return Some(page);
            }
            // A catalog that was replaced meanwhile may have left without these pages. Under the lock none is replaced.
            let _before = self.before();
            if self.current.load().version == catalog.version {
                return Some(page);
            }
        }
    }

    /// Puts a catalog in the place of the one before it. Under the lock: whoever does not find a version where the current
    /// one is finds it among those before.
    fn put(&self, mut catalog: Catalog, observe: &Observe) -> Changed {
        let old = self.current.load_full();
        catalog.inherit(&old);
        let changed = |list| old.definitions(list) != catalog.definitions(list);
        let (tools, prompts) = (changed(List::Tools), changed(List::Prompts));
        let resources = changed(List::Resources) || changed(List::Templates);
        // Makes what is missing of lists that clients have begun, without the lock.
        let _ = old.long_pages();
        let mut before = self.before();
        self.current.store(Arc::new(catalog));
        before.retain(|kept| kept.replaced.elapsed() < KEPT_FOR);
        let (pages, version) = (old.long_pages(), old.version);
        let bytes = pages.bytes();
        if bytes > 0 && bytes <= MAX_KEPT_BYTES {
            let reserved = observe.memory.hold(Kind::Listings, bytes);
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
        // Many pages take their time to be freed, and nobody waits for the lock meanwhile.
        drop(outdated);
        Changed { tools, prompts, resources }
    }

    fn tell(&self, changed: Changed) {
        self.versions.send_modify(|versions| {
            versions.tools += u64::from(changed.tools);
            versions.prompts += u64::from(changed.prompts);
            versions.resources += u64::from(changed.resources);
            versions.catalog += 1;
        });
    }

    fn before(&self) -> MutexGuard<'_, VecDeque<KeptPages>> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::client::lane::Call;
    use goblin_wire::json;

    fn next_cursor(page: &Bytes) -> Option<String> {
        let text = std::str::from_utf8(page).expect("text");
        let cursor = json::member(text, json::whole(text), "nextCursor")?;
        json::string(text, cursor).map(std::borrow::Cow::into_owned)
    }

    #[test]
    fn res11_a_list_goes_on_from_where_it_was_begun_in_whatever_moment_the_catalog_changes() {
        let mut config = Config::empty();
        config.policies.page_size = 5;
        let directory = Directory::new(&config);
        let (shelf, caller, is_over) = (&directory.whole, Call::example().caller, AtomicBool::new(false));
        let read_all = || {
            let (mut pages, mut cursor) = (0, None);
            loop {
                let page = shelf.page(&caller, List::Tools, cursor.as_deref())?;
                (pages, cursor) = (pages + 1, next_cursor(&page.json));
                if cursor.is_none() {
                    return Ok::<usize, Error>(pages);
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in (2..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    shelf.put(build(version, &shelf.terms, Vec::new()), &Observe::default());
                }
            });
            let outcomes: Vec<_> = (0..1_000).map(|_| read_all()).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(outcomes.iter().all(|pages| matches!(pages, Ok(3))), "the gateway's own tools, five a page");
        });
    }
}
