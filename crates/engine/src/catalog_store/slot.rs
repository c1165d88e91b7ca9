//! The current catalog of a group of clients, and the pages of earlier ones.
//!
//! The pages of earlier catalogs are kept for a while, so that a client can finish reading a long list.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use goblin_catalog::listing::List;
use goblin_catalog::{Cursor, LongPages, Page};
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
const KEPT_FOR: Duration = Duration::from_secs(60);
/// The maximum number of bytes of kept pages per slot. The oldest pages go first, and their cursors are rejected.
const MAX_KEPT_BYTES: usize = 64 * 1024 * 1024;

/// The current catalog of a group of clients, and the kept pages of earlier ones.
pub(super) struct CatalogSlot {
    pub current: ArcSwap<Catalog>,
    pub versions: watch::Sender<ListVersions>,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ListChangeFlags {
    tools: bool,
    prompts: bool,
    resources: bool,
}

impl ListChangeFlags {
    pub(super) fn between(old: &Catalog, new: &Catalog) -> ListChangeFlags {
        let changed = |list| old.definitions(list) != new.definitions(list);
        ListChangeFlags {
            tools: changed(List::Tools),
            prompts: changed(List::Prompts),
            resources: changed(List::Resources) || changed(List::Templates),
        }
    }
}

impl CatalogSlot {
    pub(super) fn new(catalog: Arc<Catalog>, versions: ListVersions) -> CatalogSlot {
        let current = ArcSwap::new(catalog);
        CatalogSlot { current, versions: watch::Sender::new(versions), before: Mutex::default() }
    }

    pub(super) fn page(&self, dialect: Dialect, list: List, cursor: Option<&str>) -> Result<Page, Error> {
        let Some(cursor) = cursor else { return self.first_page(dialect, list).ok_or(Error::InvalidCursor) };
        let (catalog, cursor) = (self.current.load(), cursor.parse::<Cursor>()?);
        let page = |catalog: &Catalog| {
            let is_current = catalog.version == cursor.version && cursor.list == list;
            if is_current { catalog.view(dialect).find_page(list, cursor.page) } else { None }
        };
        let earlier = || {
            let before = self.before();
            let fresh = before.iter().filter(|kept| kept.replaced.elapsed() < KEPT_FOR);
            let mut kept = fresh.filter(|kept| kept.version == cursor.version && cursor.list == list);
            let json = kept.find_map(|kept| kept.pages.get(dialect, list, cursor.page))?;
            Some(Page { json, was_made: true })
        };
        page(&catalog).or_else(earlier).ok_or(Error::InvalidCursor)
    }

    /// Returns the first page. Ensures that the following pages are kept when the catalog is replaced.
    fn first_page(&self, dialect: Dialect, list: List) -> Option<Page> {
        loop {
            let catalog = self.current.load();
            let view = catalog.view(dialect);
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

    /// Notifies the watchers of this slot.
    pub(super) fn notify_watchers(&self, changed: ListChangeFlags) {
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use bytes::Bytes;
    use goblin_catalog::build::{CatalogSettings, build};
    use goblin_config::Config;
    use goblin_wire::json;

    use super::*;

    fn next_cursor(page: &Bytes) -> Option<String> {
        let text = std::str::from_utf8(page).expect("text");
        let cursor = json::member(text, json::whole(text), "nextCursor")?;
        json::string(text, cursor).map(std::borrow::Cow::into_owned)
    }

    #[test]
    fn res11_a_page_sequence_completes_while_the_catalog_changes() {
        let mut config = Config::default();
        config.policies.page_size = 5;
        let settings = CatalogSettings::new(&config);
        let catalog = |version| Arc::new(build(version, &settings, Vec::new()));
        let (slot, is_over) = (CatalogSlot::new(catalog(1), ListVersions::default()), AtomicBool::new(false));
        let read_all = || {
            let (mut pages, mut cursor) = (0, None);
            loop {
                let page = slot.page(Dialect::NEWEST, List::Tools, cursor.as_deref())?;
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
