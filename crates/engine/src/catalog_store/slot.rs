//! The current catalog of a group of clients, and the pages of earlier ones.
//!
//! The pages of earlier catalogs are kept for a while, so that a client can finish reading a long list.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use goblin_catalog::listing::List;
use goblin_catalog::{Cursor, LongPages, Page, Viewer};
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
    /// The version of the listed tools for each exposure. `versions` has that of the first.
    tool_versions: Mutex<Vec<u64>>,
    before: Mutex<VecDeque<KeptPages>>,
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
    /// The listed tools of each exposure. Empty if none differ.
    tools: Vec<bool>,
    prompts: bool,
    resources: bool,
}

impl ListChangeFlags {
    pub(super) fn between(old: &Catalog, new: &Catalog) -> ListChangeFlags {
        let tools = new.changed_tools(old);
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
    pub(super) fn new(catalog: Arc<Catalog>, versions: ListVersions) -> CatalogSlot {
        let tool_versions = Mutex::new(vec![versions.tools; catalog.count_exposures()]);
        let current = ArcSwap::new(catalog);
        CatalogSlot { current, versions: watch::Sender::new(versions), tool_versions, before: Mutex::default() }
    }

    /// Returns a slot with the same catalog and versions.
    pub(super) fn successor(&self) -> CatalogSlot {
        let slot = CatalogSlot::new(self.current.load_full(), *self.versions.borrow());
        CatalogSlot { tool_versions: Mutex::new(self.tool_versions.lock().clone()), ..slot }
    }

    /// Returns the versions of the lists for a client program.
    pub(super) fn versions_for(&self, program: Option<&str>) -> ListVersions {
        let (mut versions, exposure) = (*self.versions.borrow(), self.current.load().exposure_of(program));
        if let Some(tools) = self.tool_versions.lock().get(exposure) {
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
        self.current.store(catalog);
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
        let tools = self.count_changes(&changed.tools);
        self.versions.send_modify(|versions| {
            versions.tools = tools.unwrap_or(versions.tools);
            versions.prompts += u64::from(changed.prompts);
            versions.resources += u64::from(changed.resources);
            versions.catalog += 1;
        });
    }

    /// Counts changes of the listed tools. Returns the new version for the first exposure. If all lists changed, all
    /// versions become greater than any before: other exposures may have taken the places of the old ones, and a client
    /// compares the version of its new place with that of its old one.
    fn count_changes(&self, changed: &[bool]) -> Option<u64> {
        let mut tools = self.tool_versions.lock();
        if !changed.is_empty() && (changed.len() != tools.len() || changed.iter().all(|is_changed| *is_changed)) {
            let next = tools.iter().max().map_or(1, |newest| newest + 1);
            *tools = vec![next; changed.len()];
        } else {
            tools.iter_mut().zip(changed).for_each(|(version, changed)| *version += u64::from(*changed));
        }
        tools.first().copied()
    }

    fn before(&self) -> MutexGuard<'_, VecDeque<KeptPages>> {
        self.before.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
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
    fn use12_a_client_at_another_place_sees_a_new_version() {
        let settings = CatalogSettings::new(&Config::default());
        let catalog = Arc::new(build(1, &settings, Vec::new()));
        let slot = CatalogSlot::new(catalog, ListVersions::default());
        let count = |changed: &[bool]| {
            slot.count_changes(changed);
            slot.tool_versions.lock().clone()
        };
        assert_eq!(count(&[true, true]), [1, 1], "a rule adds a place");
        assert_eq!(count(&[true, false]), [2, 1]);
        // Another rule replaces the first. A client of the first place, which saw version 2, moves to the second.
        assert_eq!(count(&[true, true]), [3, 3]);
        assert_eq!(count(&[]), [3, 3]);
    }

    #[test]
    fn res11_outdated_pages_are_freed() {
        let mut config = Config::default();
        config.policies.page_size = 5;
        config.meta_tools.enabled = MetaListing::Always;
        let settings = CatalogSettings::new(&config);
        let catalog = |version| Arc::new(build(version, &settings, Vec::new()));
        let (slot, observe) = (CatalogSlot::new(catalog(1), ListVersions::default()), Observe::default());
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
        let (slot, is_over) = (CatalogSlot::new(catalog(1), ListVersions::default()), AtomicBool::new(false));
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
