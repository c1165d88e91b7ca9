//! Fetches the lists of a backend over one link, and publishes the listing of the link.
//!
//! Only the lister writes the listing of its [`LinkLists`]. A list changes only after a complete fetch. A lost backend
//! keeps its listing. The lister fetches a list again when the server announces a change. If the server cannot do that,
//! or has not done it yet, the [schedule](super::refresh) decides.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use goblin_catalog::listing::{Definition, List, Listing};
use goblin_config::lists::Refresh;
use goblin_telemetry::{Event, worker};
use goblin_wire::Hello;
use goblin_wire::via::ViaProblem;

use crate::upstream::events::BackendEvents;
use crate::upstream::fetch::{
    self, FetchBudget, FetchedList, ListingError, MAX_LIST_BYTES, SkippedTool, remove_misannotated,
};
use crate::upstream::link::{Link, LinkError};
use crate::upstream::listing_cache::CachedListing;
use crate::upstream::lists::{Announcements, LinkLists};
use crate::upstream::problem::BackendProblem;
use crate::upstream::refresh::{self, FetchChange, FetchOutcome};
use crate::upstream::subscriptions::{ListingStage, LiveServer, SETTLED_AFTER, SubscriptionManager};
use crate::upstream::supervisor::BackendDeps;

/// The shortest time between two fetches of the lists. A burst of change notifications costs a few fetches per second.
const FETCH_INTERVAL: Duration = Duration::from_millis(300);

/// Lists that arrive within this time are published together.
const PUBLISH_DELAY: Duration = Duration::from_secs(2);
/// The time after which a failed list is fetched again. It doubles with each failure, up to the second time.
const LIST_RETRY: Duration = Duration::from_secs(30);
const MAX_LIST_RETRY: Duration = Duration::from_secs(600);
/// The number of skipped tools that one listing reports in the log. The status shows all of them.
const MAX_REPORTED_TOOLS: usize = 100;

pub(crate) struct Lister<'a> {
    pub lists: &'a LinkLists,
    /// The lists of the shared link, if this link belongs to one client.
    pub shared: Option<&'a LinkLists>,
    pub subscriptions: &'a SubscriptionManager,
    pub config: &'a LiveServer,
    pub deps: &'a BackendDeps,
    pub link: &'a Arc<Link>,
    pub hello: &'a Arc<Hello>,
    /// The file of the listing, if it is cached.
    pub cache: Option<&'a Arc<CachedListing>>,
}

/// The lists that are fetched again without an announcement.
struct RefreshedLists {
    lists: Vec<List>,
    /// Whether only tool calls cause a refresh, because the server declares announcements for all these lists.
    needs_call: bool,
}

/// The kind of one fetch.
#[derive(Clone, Copy)]
struct FetchKind {
    stage: ListingStage,
    /// Whether the fetch covers all refreshed lists.
    is_refresh: bool,
    /// Whether the schedule caused the fetch, and not an announcement or a new link.
    is_scheduled: bool,
}

/// The summary of one fetch.
struct FetchSummary {
    outcome: FetchOutcome,
    /// The subscriptions need a second fetch once the connection has settled.
    needs_refetch: bool,
}

/// The reason why a lister ended.
pub(crate) enum ListerEnd {
    /// The connection broke.
    Lost(String),
    /// The server rejected a list, because it needs a login.
    LoginNeeded,
    /// The gateway must not use the server.
    Dropped(ViaProblem),
}

/// Ends the refreshes of a link when its lister ends. The listing stays.
struct RefreshGuard<'a>(&'a LinkLists);

impl Drop for RefreshGuard<'_> {
    fn drop(&mut self) {
        self.0.connection_ended();
        self.0.stop_refreshes();
    }
}

impl Lister<'_> {
    /// Fetches all lists, then the changed ones. Returns when a fetch finds that the connection broke or that the gateway
    /// must not use the server.
    pub(crate) async fn run(&self) -> ListerEnd {
        let (lists, started) = (self.lists, Instant::now());
        let mut can_announce = lists.watch_announcements();
        let _guard = RefreshGuard(lists);
        let mut wanted = List::ALL.to_vec();
        let mut fetched = tokio::time::Instant::now();
        let (mut needs_refetch, mut retry, mut is_scheduled) = (false, LIST_RETRY, false);
        loop {
            let RefreshedLists { lists: refreshed, needs_call } =
                self.refreshed_lists(*can_announce.borrow_and_update());
            match self.refresh_interval().filter(|_| !refreshed.is_empty()) {
                Some(interval) => lists.start_refreshes(interval, needs_call),
                None => lists.stop_refreshes(),
            }
            if !wanted.is_empty() {
                let is_refresh = !refreshed.is_empty() && refreshed.iter().all(|list| wanted.contains(list));
                let is_settled = started.elapsed() >= SETTLED_AFTER;
                let stage = if is_settled { ListingStage::Complete } else { ListingStage::Early };
                match self.fetch_lists(&wanted, FetchKind { stage, is_refresh, is_scheduled }).await {
                    Ok(summary) => needs_refetch |= summary.needs_refetch,
                    Err(end) => return end,
                }
                wanted.clear();
                fetched = tokio::time::Instant::now();
            }
            let failed: Vec<_> = lists.failed().into_iter().map(|(list, _)| list).collect();
            // The schedule covers refreshed lists, unless it waits for a call.
            let is_covered = |list: &List| !needs_call && refreshed.contains(list);
            let failed: Vec<_> = failed.into_iter().filter(|list| !is_covered(list)).collect();
            let marked = async {
                lists.wait_for_marks().await;
                tokio::time::sleep_until(fetched + FETCH_INTERVAL).await;
            };
            is_scheduled = false;
            tokio::select! {
                biased;
                () = marked => {
                    lists.set_refreshing(true);
                    wanted = lists.take_marks();
                }
                () = tokio::time::sleep_until((started + SETTLED_AFTER).into()), if needs_refetch => {
                    needs_refetch = false;
                    lists.mark(&[List::Resources, List::Templates]);
                }
                () = tokio::time::sleep_until(fetched + retry), if !failed.is_empty() => {
                    retry = (2 * retry).min(MAX_LIST_RETRY);
                    lists.mark(&failed);
                }
                () = lists.refresh_due(|| self.has_clients()), if !refreshed.is_empty() => {
                    (wanted, is_scheduled) = (refreshed, true);
                }
                () = lists.reconfigured() => {}
                // The lists own the sender, so the channel cannot close.
                _ = can_announce.changed() => {}
            }
            if failed.is_empty() {
                retry = LIST_RETRY;
            }
        }
    }

    /// Returns the time between two refreshes without a cause. Returns `None` if the configuration disables refreshes.
    fn refresh_interval(&self) -> Option<Duration> {
        match self.config.load().refresh {
            Refresh::Auto => Some(refresh::REFRESH_INTERVAL),
            Refresh::Every(interval) => Some(interval),
            Refresh::Never => None,
        }
    }

    /// Returns the lists that need refreshes: those whose changes the server does not announce, and those without any
    /// announcement so far. A configured interval covers all lists.
    fn refreshed_lists(&self, can_announce: bool) -> RefreshedLists {
        let announcements = |list: &List| match list.is_announced(self.hello) && can_announce {
            true if self.link.is_built_in() => Announcements::Sent,
            true => self.lists.announcements(*list),
            false => Announcements::Missing,
        };
        let offered = List::ALL.into_iter().filter(|list| list.is_offered(self.hello));
        let (lists, needs_call): (Vec<_>, _) = match self.config.load().refresh {
            Refresh::Never => (Vec::new(), false),
            Refresh::Every(_) => (offered.collect(), false),
            Refresh::Auto => {
                let lists: Vec<_> = offered.filter(|list| announcements(list) != Announcements::Sent).collect();
                let needs_call = lists.iter().all(|list| announcements(list) == Announcements::Unknown);
                (lists, needs_call)
            }
        };
        RefreshedLists { lists, needs_call }
    }

    fn has_clients(&self) -> bool {
        self.shared.is_some() || (self.deps.has_clients)()
    }

    /// Fetches `lists` and publishes them. Records a refresh in the schedule.
    async fn fetch_lists(&self, lists: &[List], kind: FetchKind) -> Result<FetchSummary, ListerEnd> {
        self.subscriptions.on_listing_started();
        if kind.is_refresh {
            self.lists.refresh_started();
        }
        let summary = self.fetch_all(lists, kind).await?;
        self.lists.set_refreshing(false);
        self.lists.fetch_ended();
        self.lists.set_settled();
        if let Some(cache) = self.cache.filter(|_| self.lists.failed().is_empty()) {
            cache.store(self.lists.listing());
        }
        if kind.is_refresh {
            self.lists.refresh_ended(summary.outcome);
        }
        Ok(summary)
    }

    /// Fetches `lists` concurrently and publishes them together. Lists that arrive before a slow one are published
    /// after [`PUBLISH_DELAY`]. A list that fails keeps its last entries.
    ///
    /// Returns an error if the connection broke: over HTTP nothing else may notice the break, and the list would stay
    /// stale. Also returns an error if the gateway must not use the server. Nothing of that fetch is published.
    async fn fetch_all(&self, lists: &[List], kind: FetchKind) -> Result<FetchSummary, ListerEnd> {
        let budget = FetchBudget::new(&self.deps.observe.memory);
        let fetch = async |list: List| {
            if list.is_offered(self.hello) {
                return (list, self.fetch(list, &budget).await);
            }
            self.lists.set_failed(list, None);
            (list, Ok(Some(budget.empty_list())))
        };
        let mut fetches: FuturesUnordered<_> = lists.iter().map(|list| fetch(*list)).collect();
        let mut fetched = Vec::new();
        let mut summary = FetchSummary { outcome: FetchOutcome::unchanged(), needs_refetch: false };
        let publish_at = tokio::time::Instant::now() + PUBLISH_DELAY;
        loop {
            tokio::select! {
                next = fetches.next() => match next {
                    Some((list, fresh)) => match fresh? {
                        Some(fresh) => fetched.push((list, fresh)),
                        None => summary.outcome.change = summary.outcome.change.max(FetchChange::Failed),
                    },
                    None => break,
                },
                () = tokio::time::sleep_until(publish_at), if !fetched.is_empty() => {
                    self.publish(std::mem::take(&mut fetched), kind, &mut summary).await?;
                }
            }
        }
        self.publish(fetched, kind, &mut summary).await?;
        summary.outcome.retry_after = budget.retry_after();
        if budget.is_exceeded() {
            summary.outcome.change = FetchChange::TooLarge;
        }
        Ok(summary)
    }

    /// Publishes the fetched lists that differ from the current ones. Only this task writes the listing, so reading
    /// and storing it without a lock is safe. If this future is dropped before `on_listing` completes, the manager
    /// compares the next lists with the ones it knows. Returns an error if the lists together name too many gateways.
    async fn publish(
        &self,
        fetched: Vec<(List, FetchedList)>,
        kind: FetchKind,
        summary: &mut FetchSummary,
    ) -> Result<(), ListerEnd> {
        let mut listing = Listing::clone(&self.lists.listing());
        let (mut differs, mut has_new_via) = (listing.hello.as_ref() != Some(self.hello), false);
        let has = |wanted: List| fetched.iter().any(|(list, _)| *list == wanted);
        let (has_resources, has_templates) = (has(List::Resources), has(List::Templates));
        listing.hello = Some(self.shared_hello());
        let shared = self.shared.map(LinkLists::listing);
        for (list, fresh) in fetched {
            let outcome = &mut summary.outcome;
            outcome.ttl = [outcome.ttl, fresh.ttl].into_iter().flatten().min();
            has_new_via |= listing.set_via(list, fresh.via);
            if **listing.get(list) == fresh.entries {
                self.lists.set_fetched(list);
                continue;
            }
            let before = listing.clone();
            match &shared {
                // Equal lists share their memory, and their clients share one catalog.
                Some(shared) if **shared.get(list) == fresh.entries => listing.share(list, shared),
                _ => listing.set(list, fresh.entries, fresh.reserved),
            }
            (differs, outcome.change) = (true, outcome.change.max(FetchChange::Changed));
            if kind.is_scheduled {
                self.lists.set_unannounced(list);
            }
            // The lists of one fetch fit together. Lists of earlier fetches may have left too little space.
            if listing.weight() > MAX_LIST_BYTES {
                listing = before;
                self.report_failed_list(list, ListingError::too_large());
                outcome.change = FetchChange::TooLarge;
            } else {
                self.lists.set_fetched(list);
            }
        }
        // Each list was checked for a loop. Their order says nothing about the gateway behind the server.
        if let Err(problem @ ViaProblem::TooManyGateways) = listing.via.check(&self.deps.lineage.id) {
            return Err(ListerEnd::Dropped(problem));
        }
        if differs || has_new_via {
            self.lists.set_listing(listing);
            self.deps.listing_changed.notify_one();
        }
        if has_resources || has_templates {
            // A server that announces a change may have hidden and then deleted a resource, so its lists are checked.
            let stage = if kind.is_refresh && !differs { ListingStage::Unchanged } else { kind.stage };
            summary.needs_refetch |= self.subscriptions.on_listing(stage, has_resources).await;
        }
        Ok(())
    }

    /// Returns the server's description. Uses the one of the shared link if both are equal.
    fn shared_hello(&self) -> Arc<Hello> {
        let shared = self.shared.and_then(|shared| shared.listing().hello.clone());
        shared.filter(|shared| shared == self.hello).unwrap_or_else(|| Arc::clone(self.hello))
    }

    /// Fetches one list. Returns `None` if the list keeps its last entries. Returns an error if the connection broke or
    /// the gateway must not use the server.
    async fn fetch(&self, list: List, budget: &FetchBudget) -> Result<Option<FetchedList>, ListerEnd> {
        let (timeout, own) = (self.deps.policies.load().start_timeout, &self.deps.lineage.id);
        match fetch::fetch(self.link, list, timeout, budget, own).await {
            Ok(mut fetched) => {
                self.lists.set_failed(list, None);
                if list == List::Tools {
                    let Some(tools) = self.remove_uncallable(fetched.entries).await else { return Ok(None) };
                    fetched.entries = tools;
                }
                Ok(Some(fetched))
            }
            Err(ListingError::Failed(LinkError::Closed { reason, .. })) => Err(ListerEnd::Lost(reason)),
            Err(ListingError::Failed(LinkError::LoginNeeded)) => Err(ListerEnd::LoginNeeded),
            Err(ListingError::Failed(LinkError::ScopeMissing)) if self.is_essential(list) => {
                Err(ListerEnd::LoginNeeded)
            }
            Err(ListingError::Dropped(problem)) => Err(ListerEnd::Dropped(problem)),
            // The link reports the lost session itself, through `Link::closed`.
            Err(ListingError::Failed(LinkError::SessionLost)) => Ok(None),
            Err(error) => {
                budget.note_failure(&error);
                self.report_failed_list(list, error);
                Ok(None)
            }
        }
    }

    /// Reports whether the server is useless without this list. Another list may need a permission that nobody wants.
    fn is_essential(&self, list: List) -> bool {
        list == List::Tools || !List::Tools.is_offered(self.hello)
    }

    /// Reports that a list keeps its last entries. The lister fetches the list again later.
    fn report_failed_list(&self, list: List, error: ListingError) {
        let reason = match error {
            ListingError::Failed(link_error) => link_error.to_string(),
            ListingError::Endless(reason) => reason,
            ListingError::Dropped(problem) => BackendProblem::Dropped(problem).to_string(),
            ListingError::TooLarge { limit, reason } => {
                self.deps.observe.limit_hit(limit);
                reason
            }
        };
        let (server, method) = (self.events().server(), list.method());
        self.emit(&Event::BackendListFailed { server, method: method.as_str(), reason: &reason });
        self.lists.set_failed(list, Some(reason));
        if list == List::Resources {
            self.subscriptions.on_listing_failed();
        }
    }

    /// Removes the tools that must not be called over this link. Reports each of them once. Returns `None` if the
    /// gateway shuts down.
    async fn remove_uncallable(&self, mut tools: Vec<Definition>) -> Option<Vec<Definition>> {
        let (mut skipped, mut fresh) = (Vec::new(), Vec::new());
        if self.link.repeats_arguments() {
            let before = self.lists.skipped_tools();
            (tools, skipped, fresh) = worker::offload(move || {
                let skipped = remove_misannotated(&mut tools);
                let before: HashSet<_> = before.iter().collect();
                let fresh: Vec<_> =
                    skipped.iter().filter(|tool| !before.contains(tool)).take(MAX_REPORTED_TOOLS).cloned().collect();
                (tools, skipped, fresh)
            })
            .await?;
        }
        self.lists.set_skipped_tools(skipped);
        for SkippedTool { tool, reason } in &fresh {
            self.emit(&Event::ToolOmitted { server: self.events().server(), tool, reason });
        }
        Some(tools)
    }

    fn events(&self) -> &BackendEvents {
        self.subscriptions.events()
    }

    fn emit(&self, event: &Event<'_>) {
        self.deps.observe.emit(event);
    }
}
