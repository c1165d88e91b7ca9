//! Fetches the lists of one backend over its shared link, and publishes the listing.
//!
//! Only the lister writes the listing of its [`Backend`]. A list changes only after a complete fetch. A lost backend
//! keeps its listing.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use goblin_catalog::listing::{Definition, List, Listing};
use goblin_telemetry::{Event, worker};
use goblin_wire::Hello;

use crate::upstream::Backend;
use crate::upstream::fetch::{
    self, FetchBudget, FetchedList, ListingError, MAX_LIST_BYTES, SkippedTool, remove_misannotated,
};
use crate::upstream::link::{Link, LinkError};
use crate::upstream::subscriptions::SETTLED_AFTER;
use crate::upstream::supervisor::BackendDeps;

/// The shortest time between two fetches of the lists. A burst of change notifications costs a few fetches per second.
const REFRESH_INTERVAL: Duration = Duration::from_millis(300);

/// Lists that arrive within this time are published together.
const PUBLISH_DELAY: Duration = Duration::from_secs(2);
/// The time after which a failed list is fetched again.
const LIST_RETRY: Duration = Duration::from_secs(30);
/// The number of skipped tools that one listing reports in the log. The status shows all of them.
const MAX_REPORTED_TOOLS: usize = 100;

pub(crate) struct Lister<'a> {
    pub backend: &'a Backend,
    pub deps: &'a BackendDeps,
    pub link: &'a Arc<Link>,
    pub hello: &'a Arc<Hello>,
}

impl Lister<'_> {
    /// Fetches all lists, then the changed ones. Returns the reason when a fetch finds that the connection broke.
    pub(crate) async fn run(&self) -> String {
        let (backend, started) = (self.backend, Instant::now());
        let mut wanted = List::ALL.to_vec();
        let mut fetched = tokio::time::Instant::now();
        let mut needs_refetch = false;
        loop {
            if !wanted.is_empty() {
                match self.refresh(&wanted, started.elapsed() >= SETTLED_AFTER).await {
                    Ok(refetch) => needs_refetch |= refetch,
                    Err(reason) => return reason,
                }
                wanted.clear();
                fetched = tokio::time::Instant::now();
            }
            let failed: Vec<_> = backend.failed_lists().into_iter().map(|(list, _)| list).collect();
            let due = async {
                backend.events.wait_for_changes().await;
                tokio::time::sleep_until(fetched + REFRESH_INTERVAL).await;
            };
            tokio::select! {
                biased;
                () = due => {
                    backend.refreshing.store(true, Ordering::Release);
                    wanted = backend.events.take_changes();
                }
                () = tokio::time::sleep_until((started + SETTLED_AFTER).into()), if needs_refetch => {
                    needs_refetch = false;
                    backend.events.mark(&[List::Resources, List::Templates]);
                }
                () = tokio::time::sleep_until(fetched + LIST_RETRY), if !failed.is_empty() => {
                    backend.events.mark(&failed);
                }
            }
        }
    }

    /// Fetches `lists` concurrently and publishes them together. Lists that arrive before a slow one are published
    /// after [`PUBLISH_DELAY`]. A list that fails keeps its last entries.
    ///
    /// Returns an error if the connection broke: over HTTP nothing else may notice the break, and the list would stay
    /// stale. Returns `true` if a manager needs a second fetch once the connection has settled.
    async fn refresh(&self, lists: &[List], is_settled: bool) -> Result<bool, String> {
        self.backend.managers().for_each(|manager| manager.on_listing_started());
        let budget = FetchBudget::new(&self.deps.observe.memory);
        let fetch = async |list: List| {
            if list.is_offered(self.hello) {
                return (list, self.fetch(list, &budget).await);
            }
            self.backend.set_failed(list, None);
            (list, Ok(Some(budget.empty_list())))
        };
        let mut fetches: FuturesUnordered<_> = lists.iter().map(|list| fetch(*list)).collect();
        let mut fetched = Vec::new();
        let mut needs_refetch = false;
        let publish_at = tokio::time::Instant::now() + PUBLISH_DELAY;
        loop {
            tokio::select! {
                next = fetches.next() => match next {
                    Some((list, fresh)) => fetched.extend(fresh?.map(|fresh| (list, fresh))),
                    None => break,
                },
                () = tokio::time::sleep_until(publish_at), if !fetched.is_empty() => {
                    needs_refetch |= self.publish(std::mem::take(&mut fetched), is_settled).await;
                }
            }
        }
        needs_refetch |= self.publish(fetched, is_settled).await;
        self.backend.refreshing.store(false, Ordering::Release);
        self.backend.settled.send_replace(true);
        Ok(needs_refetch)
    }

    /// Publishes the fetched lists that differ from the current ones. Only this task writes the listing, so reading
    /// and storing it without a lock is safe. If this future is dropped before `on_listing` completes, the managers
    /// compare the next lists with the ones they know.
    async fn publish(&self, fetched: Vec<(List, FetchedList)>, is_settled: bool) -> bool {
        let mut listing = Listing::clone(&self.backend.listing());
        let mut differs = listing.hello.as_ref() != Some(self.hello);
        let has = |wanted: List| fetched.iter().any(|(list, _)| *list == wanted);
        let (has_resources, has_templates) = (has(List::Resources), has(List::Templates));
        listing.hello = Some(Arc::clone(self.hello));
        for (list, fresh) in fetched {
            if **listing.get(list) == fresh.entries {
                continue;
            }
            let before = listing.clone();
            listing.set(list, fresh.entries, fresh.reserved);
            differs = true;
            // The lists of one fetch fit together. Lists of earlier fetches may have left too little space.
            if listing.weight() > MAX_LIST_BYTES {
                listing = before;
                self.report_failed_list(list, ListingError::too_large());
            }
        }
        if differs {
            self.backend.set_listing(listing);
            self.deps.listing_changed.notify_one();
        }
        if !has_resources && !has_templates {
            return false;
        }
        let mut needs_refetch = false;
        for manager in self.backend.managers().collect::<Vec<_>>() {
            needs_refetch |= manager.on_listing(is_settled, has_resources).await;
        }
        needs_refetch
    }

    /// Fetches one list. Returns `None` if the list keeps its last entries, and an error if the connection broke.
    async fn fetch(&self, list: List, budget: &FetchBudget) -> Result<Option<FetchedList>, String> {
        match fetch::fetch(self.link, list, self.deps.policies.start_timeout, budget).await {
            Ok(mut fetched) => {
                self.backend.set_failed(list, None);
                if list == List::Tools {
                    let Some(tools) = self.remove_uncallable(fetched.entries).await else { return Ok(None) };
                    fetched.entries = tools;
                }
                Ok(Some(fetched))
            }
            Err(ListingError::Failed(LinkError::Closed { reason, .. })) => Err(reason),
            // The link reports the lost session itself, through `Link::closed`.
            Err(ListingError::Failed(LinkError::SessionLost)) => Ok(None),
            Err(error) => {
                self.report_failed_list(list, error);
                Ok(None)
            }
        }
    }

    /// Reports that a list keeps its last entries. The lister fetches the list again after [`LIST_RETRY`].
    fn report_failed_list(&self, list: List, error: ListingError) {
        let reason = match error {
            ListingError::Failed(link_error) => link_error.to_string(),
            ListingError::TooLarge { limit, reason } => {
                self.deps.observe.limit_hit(limit);
                reason
            }
        };
        let (server, method) = (self.backend.id.as_str(), list.method());
        self.emit(&Event::BackendListFailed { server, method: method.as_str(), reason: &reason });
        self.backend.set_failed(list, Some(reason));
        if list == List::Resources {
            self.backend.managers().for_each(|manager| manager.on_listing_failed());
        }
    }

    /// Removes the tools that must not be called over this link. Reports each of them once. Returns `None` if the
    /// gateway shuts down.
    async fn remove_uncallable(&self, mut tools: Vec<Definition>) -> Option<Vec<Definition>> {
        let (mut skipped, mut fresh) = (Vec::new(), Vec::new());
        if self.link.repeats_arguments() {
            let before = self.backend.skipped_tools();
            (tools, skipped, fresh) = worker::offload(move || {
                let skipped = remove_misannotated(&mut tools);
                let before: HashSet<_> = before.iter().collect();
                let fresh: Vec<_> =
                    skipped.iter().filter(|tool| !before.contains(tool)).take(MAX_REPORTED_TOOLS).cloned().collect();
                (tools, skipped, fresh)
            })
            .await?;
        }
        self.backend.set_skipped_tools(skipped);
        for SkippedTool { tool, reason } in &fresh {
            self.emit(&Event::ToolOmitted { server: self.backend.id.as_str(), tool, reason });
        }
        Some(tools)
    }

    fn emit(&self, event: &Event<'_>) {
        self.deps.observe.emit(event);
    }
}
