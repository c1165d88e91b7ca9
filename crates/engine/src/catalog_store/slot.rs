//! The current catalog of a group of clients, and the pages of earlier ones.
//!
//! The pages of earlier catalogs are kept for a while, so that a client can finish reading a long list.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use goblin_catalog::listing::List;
use goblin_catalog::{Cursor, EqualTools, LongPages, Page, Viewer};
use goblin_telemetry::Observe;
use goblin_wire::memory::{BufferKind, Reservation};
use goblin_wire::{Dialect, Error, Limit};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::catalog_store::Catalog;
use crate::client::ListVersions;

/// The number of replaced catalogs with kept pages, and the time that they are kept. Catalogs change in quick
/// succession while backends start, and a client may read a list slowly.
const KEPT: usize = 16;
pub(super) const KEPT_FOR: Duration = Duration::from_secs(60);
/// The maximum number of bytes of kept pages per slot. The oldest pages go first, and their cursors are rejected.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;

/// The current catalog of a group of clients, and the kept pages of earlier ones.
pub(super) struct CatalogSlot {
    pub current: ArcSwap<Catalog>,
    pub versions: watch::Sender<ListVersions>,
    tool_versions: Mutex<ToolVersions>,
    before: Mutex<VecDeque<KeptPages>>,
}

/// The versions of the listed tools.
///
/// Invariant: two exposures have the same version only if their lists are equal, and no list gets the version of an
/// earlier list that differs. A reload may move a client to another exposure, and the client compares the versions.
#[derive(Clone)]
struct ToolVersions {
    /// The version for each exposure. `CatalogSlot::versions` has that of the first.
    exposures: Vec<u64>,
    newest: u64,
    /// Whether the versions are those of the current catalog. A new catalog is in use before its versions.
    is_current: bool,
}

/// The pages of a replaced catalog, for clients that have read the first of several pages. The rest of the catalog is
/// dropped, because it would keep whole listings alive.
struct KeptPages {
    version: u64,
    replaced: Instant,
    pages: LongPages,
    reserved: Reservation,
}

/// The lists that differ from the previous catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListChangeFlags {
    /// The first equal list of tools for each exposure. Empty if the catalog is the same.
    tools: Vec<EqualTools>,
    prompts: bool,
    resources: bool,
}

impl ListChangeFlags {
    pub(super) fn between(old: &Catalog, new: &Catalog) -> ListChangeFlags {
        let tools = new.equal_tools(old);
        let (old, new) = (old.view(Dialect::NEWEST), new.view(Dialect::NEWEST));
        let changed = |list| old.definitions(list) != new.definitions(list);
        ListChangeFlags {
            tools,
            prompts: changed(List::Prompts),
            resources: changed(List::Resources) || changed(List::Templates),
        }
    }
}

impl CatalogSlot {
    pub(super) fn new(catalog: Arc<Catalog>) -> CatalogSlot {
        CatalogSlot {
            versions: watch::Sender::default(),
            tool_versions: Mutex::new(ToolVersions::new(&catalog)),
            current: ArcSwap::new(catalog),
            before: Mutex::default(),
        }
    }

    /// Returns a slot with the same catalog and versions. If the catalog is newer than the versions, the slot gets new
    /// versions, so that a client with the old ones is notified.
    pub(super) fn successor(&self) -> CatalogSlot {
        let (catalog, mut versions, mut tool_versions) = {
            let tool_versions = self.tool_versions.lock();
            (self.current.load_full(), *self.versions.borrow(), tool_versions.clone())
        };
        if !tool_versions.is_current {
            tool_versions.advance(&(0..catalog.count_exposures()).map(EqualTools::Now).collect::<Vec<_>>());
            versions.count(tool_versions.exposures[0], true, true);
        }
        CatalogSlot {
            current: ArcSwap::new(catalog),
            versions: watch::Sender::new(versions),
            tool_versions: Mutex::new(tool_versions),
            before: Mutex::default(),
        }
    }

    /// Returns the versions of the lists for a client program.
    pub(super) fn versions_for(&self, program: Option<&str>) -> ListVersions {
        let (mut versions, exposure) = (*self.versions.borrow(), self.current.load().exposure_of(program));
        if let Some(tools) = self.tool_versions.lock().exposures.get(exposure) {
            versions.tools = *tools;
        }
        versions
    }

    pub(super) fn page(&self, viewer: Viewer<'_>, list: List, cursor: Option<&str>) -> Result<Page, Error> {
        let Some(cursor) = cursor else { return self.first_page(viewer, list).ok_or(Error::InvalidCursor) };
        let (catalog, cursor) = (self.current.load(), cursor.parse::<Cursor>()?);
        let page = |catalog: &Catalog| {
            let is_current = catalog.version == cursor.version && cursor.list == list;
            if is_current { catalog.view_for(viewer).find_page(list, cursor.page) } else { None }
        };
        let earlier = || {
            let before = self.before();
            let fresh = before.iter().filter(|kept| kept.replaced.elapsed() < KEPT_FOR);
            let mut kept = fresh.filter(|kept| kept.version == cursor.version && cursor.list == list);
            let json = kept.find_map(|kept| kept.pages.get(viewer, list, cursor.page))?;
            Some(Page { json, was_made: true })
        };
        page(&catalog).or_else(earlier).ok_or(Error::InvalidCursor)
    }

    /// Returns the first page. Ensures that the following pages are kept when the catalog is replaced.
    fn first_page(&self, viewer: Viewer<'_>, list: List) -> Option<Page> {
        loop {
            let catalog = self.current.load();
            let view = catalog.view_for(viewer);
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
    pub(super) fn put(&self, catalog: Arc<Catalog>, observe: &Observe) {
        let old = self.current.load_full();
        // Builds the missing pages of begun lists, before taking the lock.
        let _ = old.long_pages();
        let mut before = self.before();
        {
            let mut tool_versions = self.tool_versions.lock();
            tool_versions.is_current = false;
            self.current.store(catalog);
        }
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
    }

    /// Frees the pages that no client may read any more. Reports whether other pages are kept.
    pub(super) fn free_outdated_pages(&self) -> bool {
        let mut before = self.before();
        let (kept, outdated): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut *before).into_iter().partition(|kept| kept.replaced.elapsed() < KEPT_FOR);
        *before = kept;
        let has_pages = !before.is_empty();
        drop(before);
        drop(outdated);
        has_pages
    }

    /// Notifies the watchers of this slot.
    pub(super) fn notify_watchers(&self, changed: &ListChangeFlags) {
        let mut tool_versions = self.tool_versions.lock();
        tool_versions.advance(&changed.tools);
        self.versions
            .send_modify(|versions| versions.count(tool_versions.exposures[0], changed.prompts, changed.resources));
    }

    fn before(&self) -> MutexGuard<'_, VecDeque<KeptPages>> {
        self.before.lock()
    }
}

impl ToolVersions {
    /// Returns the versions for a first catalog. The first exposure gets 0, as in new [`ListVersions`].
    fn new(catalog: &Catalog) -> ToolVersions {
        let version = |equal| match equal {
            EqualTools::Before(place) | EqualTools::Now(place) => place as u64,
        };
        let exposures: Vec<u64> = catalog.equal_tools(catalog).into_iter().map(version).collect();
        ToolVersions { newest: exposures.len() as u64, exposures, is_current: true }
    }

    /// Replaces the versions by those of the next catalog. A list that any exposure had before keeps its version.
    fn advance(&mut self, equals: &[EqualTools]) {
        self.is_current = true;
        if equals.is_empty() {
            return;
        }
        let next = |place: usize| self.newest + 1 + place as u64;
        let version = |equal: &EqualTools| match *equal {
            // A slot that was created just before may lack the version.
            EqualTools::Before(place) => self.exposures.get(place).copied().unwrap_or(next(place + equals.len())),
            EqualTools::Now(place) => next(place),
        };
        self.exposures = equals.iter().map(version).collect();
        self.newest = self.exposures.iter().copied().fold(self.newest, u64::max);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use goblin_catalog::EqualTools::{Before, Now};
    use goblin_catalog::build::{CatalogSettings, build};
    use goblin_config::Config;
    use goblin_config::exposure::MetaListing;
    use goblin_wire::json;

    use super::*;

    fn next_cursor(page: &Bytes) -> Option<String> {
        let text = std::str::from_utf8(page).expect("text");
        let cursor = json::member(text, json::whole(text), "nextCursor")?;
        json::string(text, cursor).map(std::borrow::Cow::into_owned)
    }

    #[test]
    fn use12_the_version_of_a_list_follows_it_to_another_exposure() {
        let settings = CatalogSettings::new(&Config::default());
        let mut versions = ToolVersions::new(&build(1, &settings, Vec::new()));
        let mut advance = |equal: &[EqualTools]| {
            versions.advance(equal);
            versions.exposures.clone()
        };
        assert_eq!(advance(&[Before(0), Now(1)]), [0, 3], "a rule adds an exposure");
        assert_eq!(advance(&[Now(0), Before(1)]), [4, 3]);
        assert_eq!(advance(&[Before(1), Before(0), Now(2)]), [3, 4, 7], "lists keep their versions at other places");
        assert_eq!(advance(&[Before(0), Before(0)]), [3, 3], "two equal lists");
        assert_eq!(advance(&[Now(0), Now(0)]), [8, 8], "no version returns");
        assert_eq!(advance(&[]), [8, 8]);
        assert_eq!(
            advance(&[Before(0), Before(5), Now(1)]).iter().collect::<BTreeSet<_>>().len(),
            3,
            "an unknown list"
        );
    }

    #[test]
    fn reg8_a_slot_that_takes_a_catalog_before_its_versions_has_other_versions() {
        let settings = CatalogSettings::new(&Config::default());
        let catalog = |version| Arc::new(build(version, &settings, Vec::new()));
        let slot = CatalogSlot::new(catalog(1));
        let of = |slot: &CatalogSlot| slot.versions_for(None);
        assert_eq!(of(&slot.successor()), of(&slot));
        slot.put(catalog(2), &Observe::default());
        let (early, known) = (of(&slot.successor()), of(&slot));
        assert!(early.tools != known.tools && early.prompts != known.prompts && early.resources != known.resources);
        slot.notify_watchers(&ListChangeFlags::default());
        assert_eq!(of(&slot.successor()), of(&slot));
    }

    #[test]
    fn res11_outdated_pages_are_freed() {
        let mut config = Config::default();
        config.policies.page_size = 5;
        config.meta_tools.enabled = MetaListing::Always;
        let settings = CatalogSettings::new(&config);
        let catalog = |version| Arc::new(build(version, &settings, Vec::new()));
        let (slot, observe) = (CatalogSlot::new(catalog(1)), Observe::default());
        let reserved = || slot.before().iter().map(|kept| kept.reserved.bytes()).sum::<usize>();
        let viewer = Viewer { dialect: Dialect::NEWEST, program: None };
        slot.page(viewer, List::Tools, None).expect("a list is begun");
        slot.put(catalog(2), &observe);
        assert!(slot.free_outdated_pages() && reserved() > 0, "a client may read them");
        slot.before().front_mut().expect("kept pages").replaced -= KEPT_FOR;
        assert!(!slot.free_outdated_pages());
        assert_eq!(reserved(), 0);
    }

    #[test]
    fn res11_a_page_sequence_completes_while_the_catalog_changes() {
        let mut config = Config::default();
        config.policies.page_size = 5;
        config.meta_tools.enabled = MetaListing::Always;
        let settings = CatalogSettings::new(&config);
        let catalog = |version| Arc::new(build(version, &settings, Vec::new()));
        let (slot, is_over) = (CatalogSlot::new(catalog(1)), AtomicBool::new(false));
        let viewer = Viewer { dialect: Dialect::NEWEST, program: None };
        let read_all = || {
            let (mut pages, mut cursor) = (0, None);
            loop {
                let page = slot.page(viewer, List::Tools, cursor.as_deref())?;
                (pages, cursor) = (pages + 1, next_cursor(&page.json));
                if cursor.is_none() {
                    return Ok::<usize, Error>(pages);
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in (2..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    slot.put(catalog(version), &Observe::default());
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
