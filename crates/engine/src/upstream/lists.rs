//! The lists of one link: its last listing, the lists that changed since, and the progress of their fetches.
//!
//! Only the [`lister`](super::lister) of the link writes the listing. Other tasks mark changed lists, request a
//! refresh, and wait for the end of a fetch. No function here sends a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use goblin_catalog::listing::{List, Listing};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::upstream::fetch::SkippedTool;
use crate::upstream::listing_view::ListingView;
use crate::upstream::refresh::{FetchOutcome, RefreshReason, RefreshSchedule};
use crate::upstream::subscriptions::LiveServer;

/// The lists of one link.
pub struct LinkLists {
    config: LiveServer,
    /// The last listing, as subscriptions see it.
    view: ArcSwap<ListingView>,
    /// Whether the listing comes from the current connection.
    is_current: AtomicBool,
    /// The lists that were fetched over the current connection, one bit each.
    fetched: AtomicU8,
    defects: Mutex<ListDefects>,
    /// Whether the lister is fetching lists.
    is_refreshing: AtomicBool,
    progress: watch::Sender<FetchProgress>,
    /// The lists that the server announced as changed, one bit each.
    changed: AtomicU8,
    marked: Notify,
    /// The lists that the server has announced as changed at least once, one bit each.
    announced: AtomicU8,
    /// The lists that have changed without the announcement that the server declares, one bit each.
    unannounced: AtomicU8,
    /// Whether the link has a channel for announcements. The server may declare them and offer no such channel.
    can_announce: watch::Sender<bool>,
    /// Whether the link has lists that are refreshed without an announcement.
    has_refreshes: AtomicBool,
    /// Whether a tool was called since the last refresh.
    was_called: AtomicBool,
    schedule: Mutex<RefreshSchedule>,
    /// Notified when the schedule changed.
    rescheduled: Notify,
    /// Notified when the configuration changed.
    configured: Notify,
}

/// The progress of a link's fetches.
#[derive(Clone, Copy, Debug, Default)]
struct FetchProgress {
    /// Whether the first listing is complete or the first attempt has failed.
    has_settled: bool,
    /// Whether the listing of an earlier connection or run is published.
    has_kept: bool,
    /// The number of refreshes that have started, and of those that have ended.
    started: u64,
    ended: u64,
}

/// The announcements of a list whose server declares them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announcements {
    /// The list never changed.
    Unknown,
    /// The server announced a change.
    Sent,
    /// The list changed, and the server announced nothing.
    Missing,
}

/// The defects of the lists in the last fetch.
#[derive(Default)]
struct ListDefects {
    /// The lists that failed, each with the reason.
    failed: Vec<(List, String)>,
    /// The tools that cannot be called over this link because of their definition.
    skipped_tools: Vec<SkippedTool>,
}

/// A refresh that a client waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AwaitedRefresh {
    /// The number of ended refreshes after which the wait is over.
    number: u64,
}

impl LinkLists {
    pub(crate) fn new(config: LiveServer) -> LinkLists {
        LinkLists {
            view: ArcSwap::from_pointee(ListingView::new(config.load_full(), Arc::default())),
            config,
            is_current: AtomicBool::new(false),
            fetched: AtomicU8::new(0),
            defects: Mutex::default(),
            is_refreshing: AtomicBool::new(true),
            progress: watch::Sender::default(),
            changed: AtomicU8::new(0),
            marked: Notify::new(),
            announced: AtomicU8::new(0),
            unannounced: AtomicU8::new(0),
            can_announce: watch::Sender::new(true),
            has_refreshes: AtomicBool::new(false),
            was_called: AtomicBool::new(false),
            schedule: Mutex::new(RefreshSchedule::new(Instant::now())),
            rescheduled: Notify::new(),
            configured: Notify::new(),
        }
    }

    pub(crate) fn listing(&self) -> Arc<Listing> {
        Arc::clone(self.view.load().listing())
    }

    pub(crate) fn view(&self) -> Arc<ListingView> {
        self.view.load_full()
    }

    pub(crate) fn set_listing(&self, listing: Listing) {
        self.replace_listing(Arc::new(listing));
    }

    fn replace_listing(&self, listing: Arc<Listing>) {
        self.view.store(Arc::new(ListingView::new(self.config.load_full(), listing)));
        // The configuration may have changed meanwhile.
        self.update_view();
    }

    fn update_view(&self) {
        self.view.rcu(|view| view.with_config(self.config.load_full()));
    }

    /// Applies a new configuration to the view of the listing, and wakes the lister.
    pub(crate) fn on_configured(&self) {
        self.update_view();
        self.configured.notify_one();
    }

    /// Waits until the configuration changes.
    pub(crate) async fn reconfigured(&self) {
        self.configured.notified().await;
    }

    /// Reports whether the listing comes from an earlier connection or from the cache. An empty one does not count.
    pub(crate) fn is_stale(&self) -> bool {
        !self.is_current.load(Ordering::Acquire) && self.listing().hello.is_some()
    }

    /// Records that a list was fetched over the current connection.
    pub(crate) fn set_fetched(&self, list: List) {
        self.fetched.fetch_or(list.bit(), Ordering::AcqRel);
    }

    /// Records the end of a fetch. The listing is current unless it has entries of a list that was never fetched over
    /// the current connection.
    pub(crate) fn fetch_ended(&self) {
        let (listing, fetched) = (self.listing(), self.fetched.load(Ordering::Acquire));
        let is_own = |list: &List| fetched & list.bit() != 0 || listing.get(*list).is_empty();
        self.is_current.store(List::ALL.iter().all(is_own), Ordering::Release);
    }

    /// Records that the connection has ended. The listing stays.
    pub(crate) fn connection_ended(&self) {
        self.is_current.store(false, Ordering::Release);
        self.fetched.store(0, Ordering::Release);
    }

    /// Returns the lists that failed in the last fetch, each with the reason.
    pub(crate) fn failed(&self) -> Vec<(List, String)> {
        self.defects.lock().failed.clone()
    }

    pub(crate) fn set_failed(&self, list: List, reason: Option<String>) {
        let failed = &mut self.defects.lock().failed;
        failed.retain(|(other, _)| *other != list);
        failed.extend(reason.map(|reason| (list, reason)));
    }

    /// Returns the tools that are not offered because of their definition.
    pub(crate) fn skipped_tools(&self) -> Vec<SkippedTool> {
        self.defects.lock().skipped_tools.clone()
    }

    pub(crate) fn set_skipped_tools(&self, tools: Vec<SkippedTool>) {
        self.defects.lock().skipped_tools = tools;
    }

    /// Reports whether the lists change with every fetch, so that they are fetched less often.
    pub(crate) fn is_unstable(&self) -> bool {
        self.schedule.lock().is_unstable()
    }

    /// Waits until the first listing is complete or the first attempt has failed.
    pub(crate) async fn settled(&self) {
        // `self` owns the sender, so the channel cannot close during the wait.
        let _ = self.progress.subscribe().wait_for(|progress| progress.has_settled).await;
    }

    /// Waits until there is a listing of this run or of an earlier one, or the first attempt has failed.
    pub(crate) async fn listed(&self) {
        let is_listed = |progress: &FetchProgress| progress.has_settled || progress.has_kept;
        let _ = self.progress.subscribe().wait_for(is_listed).await;
    }

    /// Publishes the listing of an earlier connection or run. It stays stale until the first fetch.
    pub(crate) fn set_kept(&self, listing: Arc<Listing>) {
        self.replace_listing(listing);
        self.progress.send_modify(|progress| progress.has_kept = true);
    }

    pub(crate) fn has_settled(&self) -> bool {
        self.progress.borrow().has_settled
    }

    /// Records that the first listing is complete, or that an attempt to connect has failed.
    pub(crate) fn set_settled(&self) {
        self.progress.send_modify(|progress| progress.has_settled = true);
    }

    /// Records that the next listing counts as the first one, because a login has changed what the server offers.
    pub(crate) fn set_unsettled(&self) {
        self.progress.send_modify(|progress| progress.has_settled = false);
    }

    /// Reports whether lists are being fetched or are marked for a fetch.
    pub(crate) fn is_refreshing(&self) -> bool {
        self.is_refreshing.load(Ordering::Acquire) || self.has_marks()
    }

    pub(crate) fn set_refreshing(&self, is_refreshing: bool) {
        self.is_refreshing.store(is_refreshing, Ordering::Release);
    }

    /// Waits while lists are being fetched or are marked for a fetch.
    pub(crate) async fn refreshed(&self) {
        let mut progress = self.progress.subscribe();
        while self.is_refreshing() && progress.changed().await.is_ok() {}
    }

    /// Marks lists that the server announced as changed.
    pub(crate) fn announce(&self, lists: &[List]) {
        self.announced.fetch_or(bits(lists), Ordering::AcqRel);
        self.mark(lists);
    }

    /// Records that a list changed without the announcement that the server declares.
    pub(crate) fn set_unannounced(&self, list: List) {
        self.unannounced.fetch_or(list.bit(), Ordering::AcqRel);
    }

    /// Returns the announcements of a list so far. Its server declares them.
    pub(crate) fn announcements(&self, list: List) -> Announcements {
        let has = |lists: &AtomicU8| lists.load(Ordering::Acquire) & list.bit() != 0;
        match (has(&self.announced), has(&self.unannounced)) {
            (true, _) => Announcements::Sent,
            (false, true) => Announcements::Missing,
            (false, false) => Announcements::Unknown,
        }
    }

    /// Marks lists as changed and wakes the lister.
    pub(crate) fn mark(&self, lists: &[List]) {
        self.changed.fetch_or(bits(lists), Ordering::AcqRel);
        self.marked.notify_one();
    }

    fn has_marks(&self) -> bool {
        self.changed.load(Ordering::Acquire) != 0
    }

    /// Waits until a list is marked. Does not clear the marks.
    pub(crate) async fn wait_for_marks(&self) {
        while !self.has_marks() {
            self.marked.notified().await;
        }
    }

    /// Returns the marked lists and clears their marks.
    pub(crate) fn take_marks(&self) -> Vec<List> {
        let bits = self.changed.swap(0, Ordering::AcqRel);
        List::ALL.into_iter().filter(|list| bits & list.bit() != 0).collect()
    }

    /// Records whether the server has opened a channel for announcements, or has rejected it.
    pub(crate) fn set_can_announce(&self, can_announce: bool) {
        self.can_announce.send_if_modified(|current| std::mem::replace(current, can_announce) != can_announce);
    }

    /// Returns a receiver that reports whether the link has a channel for announcements.
    pub(crate) fn watch_announcements(&self) -> watch::Receiver<bool> {
        self.can_announce.subscribe()
    }

    /// Prepares for a new link, which fetches all lists.
    pub(crate) fn prepare(&self) {
        self.set_refreshing(true);
        // The first fetch covers all lists, so marks from before are obsolete.
        self.take_marks();
    }

    /// Starts the refreshes of a link, or applies new settings to them. `interval` is the time between two refreshes
    /// without a cause. If `needs_call` is set, only tool calls cause refreshes.
    pub(crate) fn start_refreshes(&self, interval: Duration, needs_call: bool) {
        let mut schedule = self.schedule.lock();
        match self.has_refreshes.load(Ordering::Acquire) {
            true => schedule.set_interval(interval),
            false => *schedule = RefreshSchedule::with_interval(Instant::now(), interval),
        }
        schedule.set_needs_call(needs_call);
        self.has_refreshes.store(true, Ordering::Release);
    }

    /// Ends the refreshes, because the link has ended or all its lists are announced.
    pub(crate) fn stop_refreshes(&self) {
        if !self.has_refreshes.swap(false, Ordering::AcqRel) {
            return;
        }
        // A waiting client gets the listing that is known.
        self.progress.send_modify(|progress| {
            progress.started += 1;
            progress.ended = progress.started;
        });
    }

    /// Records the end of a tool call, which may have changed the lists. Every call runs this.
    #[inline]
    pub(crate) fn note_call(&self) {
        if !self.has_refreshes.load(Ordering::Relaxed) || self.was_called.load(Ordering::Relaxed) {
            return;
        }
        if !self.was_called.swap(true, Ordering::AcqRel) {
            self.schedule.lock().call_ended(Instant::now());
            self.rescheduled.notify_one();
        }
    }

    /// Waits until the refreshed lists are due. `has_clients` reports whether a client is connected.
    pub(crate) async fn refresh_due(&self, has_clients: impl Fn() -> bool) {
        loop {
            let rescheduled = self.rescheduled.notified();
            let due = self.schedule.lock().next_due();
            tokio::select! {
                () = rescheduled => continue,
                () = tokio::time::sleep_until(due.into()) => {}
            }
            if self.schedule.lock().is_due(Instant::now(), &has_clients) {
                return;
            }
        }
    }

    /// Records the start of a refresh.
    pub(crate) fn refresh_started(&self) {
        self.progress.send_modify(|progress| progress.started += 1);
        let was_called = self.was_called.swap(false, Ordering::AcqRel);
        self.schedule.lock().started(Instant::now(), was_called);
    }

    /// Records the end of a refresh.
    pub(crate) fn refresh_ended(&self, outcome: FetchOutcome) {
        self.schedule.lock().ended(Instant::now(), outcome);
        self.progress.send_modify(|progress| progress.ended = progress.started);
    }

    /// Requests a refresh for a client. Returns `None` if the client need not wait for one: the server announces its
    /// changes, or the listing is recent, or the next refresh is too far away.
    pub(crate) fn request_refresh(&self, reason: RefreshReason) -> Option<AwaitedRefresh> {
        if !self.has_refreshes.load(Ordering::Acquire) {
            return None;
        }
        let was_called = self.was_called.load(Ordering::Acquire);
        let progress = *self.progress.borrow();
        let mut schedule = self.schedule.lock();
        if progress.started > progress.ended && !was_called && reason == RefreshReason::List {
            return Some(AwaitedRefresh { number: progress.started });
        }
        if !schedule.request(Instant::now(), reason, was_called) {
            return None;
        }
        drop(schedule);
        self.rescheduled.notify_one();
        Some(AwaitedRefresh { number: progress.started + 1 })
    }

    /// Waits for the end of a refresh.
    pub(crate) async fn await_refresh(&self, refresh: AwaitedRefresh) {
        let _ = self.progress.subscribe().wait_for(|progress| progress.ended >= refresh.number).await;
    }
}

fn bits(lists: &[List]) -> u8 {
    lists.iter().fold(0, |bits, list| bits | list.bit())
}

#[cfg(test)]
mod tests {
    use goblin_config::Server;

    use super::*;

    fn lists() -> LinkLists {
        let transport = goblin_config::Transport::Files(goblin_config::Files::at("/".into()));
        LinkLists::new(Arc::new(ArcSwap::from_pointee(Server::new("a", transport, Default::default()))))
    }

    #[tokio::test]
    async fn reg3_a_burst_of_notifications_is_one_change() {
        let lists = lists();
        for _ in 0..10_000 {
            lists.mark(&[List::Tools]);
        }
        lists.mark(&[List::Resources, List::Templates]);
        lists.wait_for_marks().await;
        assert_eq!(lists.take_marks(), [List::Tools, List::Resources, List::Templates]);
        assert!(lists.take_marks().is_empty());
    }

    #[test]
    fn d20_an_announcement_counts_more_than_a_change_without_one() {
        let lists = lists();
        assert_eq!(lists.announcements(List::Tools), Announcements::Unknown);
        lists.set_unannounced(List::Tools);
        assert_eq!(lists.announcements(List::Tools), Announcements::Missing);
        assert_eq!(lists.announcements(List::Prompts), Announcements::Unknown);
        lists.announce(&[List::Tools]);
        assert_eq!(lists.announcements(List::Tools), Announcements::Sent);
    }

    #[tokio::test]
    async fn d20_a_client_waits_for_a_fetch_that_starts_after_the_call() {
        let lists = lists();
        assert!(lists.request_refresh(RefreshReason::Miss).is_none(), "the server announces its changes");
        lists.start_refreshes(Duration::from_secs(60), false);
        lists.refresh_started();
        let joined = lists.request_refresh(RefreshReason::List).expect("a fetch is in progress");
        lists.note_call();
        let later = lists.request_refresh(RefreshReason::List).expect("the call may have changed the lists");
        lists.refresh_ended(FetchOutcome::unchanged());
        lists.await_refresh(joined).await;
        assert!(futures_util::FutureExt::now_or_never(lists.await_refresh(later)).is_none());
        lists.refresh_started();
        lists.refresh_ended(FetchOutcome::unchanged());
        lists.await_refresh(later).await;
    }
}
