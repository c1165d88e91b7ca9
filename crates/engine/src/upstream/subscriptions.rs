//! Keeps the subscriptions over one link and connects them with the backend.
//!
//! [`SubscriptionTable`] decides; this module acts. [`keep`](SubscriptionManager::keep) sends the subscribe and
//! unsubscribe requests while a link is connected. An update from the backend goes into the queue of every subscribed
//! client. A subscription outlives links. It ends with its client, by an unsubscribe, or when its server is removed
//! from the configuration.
//!
//! Lock order: `state` comes before `held`, before the fields that a subscription has seen, and before the update
//! queue of a client.

mod delivery;
mod listening;
mod plan;
mod selective;
#[cfg(test)]
mod tests;
mod upkeep;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use goblin_catalog::listing::List;
use goblin_config::Server;
use goblin_config::lists::Unlisted;
use goblin_subscriptions::count::{LimitReached, SubscriptionPermit};
use goblin_subscriptions::id::SubscriptionId;
use goblin_subscriptions::pattern::Pattern;
use goblin_subscriptions::{ClientId, SubscribeOutcome, SubscribeStatus};
use goblin_telemetry::{Event, worker};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::client::subscriptions::{
    DrainedSubscriptions, Notice, SubscribeRequest, Subscription, SubscriptionEntry, SubscriptionTable,
};
use crate::client::{Client, ClientRegistry};
use crate::upstream::events::BackendEvents;
use crate::upstream::listing_view::{ExposedListing, ListingView, PatternMatches};
use crate::upstream::lists::LinkLists;
use crate::upstream::subscriptions::selective::DeferredUpdates;
use crate::upstream::subscriptions::upkeep::ReadQueue;

/// The configuration of a server. A reload replaces it if the connection stays.
pub(crate) type LiveServer = Arc<ArcSwap<Server>>;

/// The parts of a backend that a manager uses. All but the lists are those of every manager of the backend.
#[derive(Clone)]
pub struct ManagerContext {
    pub events: Arc<BackendEvents>,
    pub config: LiveServer,
    /// The lists of the link.
    pub lists: Arc<LinkLists>,
    /// The limit of resources that patterns and forwarded URIs may subscribe to upstream.
    pub max_upstream: usize,
}

/// The subscriptions over one link.
pub struct SubscriptionManager {
    context: ManagerContext,
    state: Mutex<ManagerState>,
    /// Notified when an upstream request may be due.
    wakeup: Notify,
    reads: Mutex<ReadQueue>,
    held: Mutex<DeferredUpdates>,
}

/// The state under the main lock of a manager.
struct ManagerState {
    table: SubscriptionTable,
    /// The listing that `table` has processed last.
    last_listing: Arc<ListingView>,
    /// The number of the current link, or of the last one.
    link: u64,
    /// No subscription can be added any more: the server was replaced or removed.
    is_closed: bool,
}

/// A subscription and its status.
pub struct SubscribeResult {
    pub subscription: Arc<Subscription>,
    pub outcome: SubscribeOutcome,
}

/// The reason why a subscribe request failed.
#[derive(Debug)]
pub enum SubscribeError {
    Full(LimitReached),
    /// The server was replaced or removed.
    Closed,
    /// The client has disconnected.
    Disconnected,
}

impl SubscriptionManager {
    pub fn new(context: ManagerContext) -> SubscriptionManager {
        let (table, last_listing) = (SubscriptionTable::new(context.max_upstream), context.lists.view());
        SubscriptionManager {
            context,
            state: Mutex::new(ManagerState { table, last_listing, link: 0, is_closed: false }),
            wakeup: Notify::new(),
            reads: Mutex::default(),
            held: Mutex::default(),
        }
    }

    pub fn events(&self) -> &Arc<BackendEvents> {
        &self.context.events
    }

    /// Returns the lists of the link.
    pub(crate) fn lists(&self) -> &Arc<LinkLists> {
        &self.context.lists
    }

    pub fn is_empty(&self) -> bool {
        self.state().table.is_empty()
    }

    /// Reports whether no other client has a subscription over the link.
    pub(crate) fn serves_only(&self, client: ClientId) -> bool {
        self.state().table.all().all(|(subscription, _)| subscription.subscriber.id == client)
    }

    /// Waits until there is a subscription. The owner of a disconnected link uses this to decide when to dial.
    pub async fn subscribed(&self) {
        while self.state().table.is_empty() {
            self.wakeup.notified().await;
        }
    }

    /// Adds a subscription and waits for the backend's answer, at most for the timeout of one request. `reserve`
    /// reserves a slot within the client's limit. Dropping the future before the answer withdraws the subscription.
    pub async fn subscribe(
        self: &Arc<SubscriptionManager>,
        request: SubscribeRequest,
        reserve: impl FnOnce() -> Result<SubscriptionPermit, LimitReached>,
    ) -> Result<SubscribeResult, SubscribeError> {
        let client = Arc::clone(&request.subscriber);
        let covered = match &request.pattern {
            Some(pattern) => self.find_covered(vec![Arc::clone(pattern)]).await,
            None => None,
        };
        let SubscriptionEntry { subscription, status, .. } = self.add(request, covered, reserve)?;
        // If the client cancels the request, this guard withdraws the subscription.
        let _guard = SubscribeGuard { manager: self, subscription: &subscription };
        if !self.watch_client(&client) {
            self.state().table.end(&subscription);
            return Err(SubscribeError::Disconnected);
        }
        client.set_delivery(&subscription.counts, &subscription.name.exposed, subscription.delivery());
        self.wakeup.notify_one();
        let outcome = match status {
            SubscribeStatus::Settled(outcome) => outcome,
            // Wait only for the timeout of one request, however many earlier requests the backend must answer first.
            SubscribeStatus::InFlight(mut reply) => {
                match tokio::time::timeout(self.request_timeout(), &mut reply).await {
                    Ok(Ok(outcome)) => outcome,
                    Ok(Err(_)) if client.is_closed() => return Err(SubscribeError::Disconnected),
                    // The client unsubscribed while the subscribe was in progress. Its subscribe request still needs a
                    // response.
                    Ok(Err(_)) => SubscribeOutcome::Subscribed,
                    Err(_) => {
                        reply.close();
                        reply.try_recv().ok().flatten().unwrap_or(SubscribeOutcome::Late(self.request_timeout()))
                    }
                }
            }
        };
        Ok(SubscribeResult { subscription: Arc::clone(&subscription), outcome })
    }

    /// Matches patterns against a long list outside of the worker threads. Returns `None` for a short list.
    async fn find_covered(&self, patterns: Vec<Arc<Pattern>>) -> Option<PatternMatches> {
        let (offered, before) = (self.context.lists.view(), Arc::clone(&self.state().last_listing));
        if patterns.is_empty() || !offered.is_long() {
            return None;
        }
        worker::compute(move || PatternMatches::find(&patterns, offered, before)).await
    }

    /// Adds a subscription to the table. Returns an error if the manager is closed or a limit is reached.
    fn add(
        &self,
        request: SubscribeRequest,
        covered: Option<PatternMatches>,
        reserve: impl FnOnce() -> Result<SubscriptionPermit, LimitReached>,
    ) -> Result<SubscriptionEntry, SubscribeError> {
        let mut state = self.state();
        if state.is_closed {
            return Err(SubscribeError::Closed);
        }
        // Load under the lock: a later listing is then processed after this subscription was added.
        let offered = self.context.lists.view();
        let covered = covered.filter(|covered| covered.is_current(&offered, &state.last_listing));
        let exposed = ExposedListing::new(&offered, &self.context.events, covered.as_ref());
        let entry = state.table.subscribe(request, &exposed, reserve).map_err(SubscribeError::Full)?;
        if entry.subscription.is_selective() {
            self.record_baseline(&state.table, &entry.subscription, &offered);
        }
        self.send_updates(&state, &entry.notices);
        Ok(entry)
    }

    /// Registers for a notification when the client's session ends. Returns `false` if it has already ended.
    fn watch_client(self: &Arc<SubscriptionManager>, client: &Client) -> bool {
        let registry: Arc<dyn ClientRegistry> = Arc::<SubscriptionManager>::clone(self);
        client.register(&registry)
    }

    fn exposed<'a>(&'a self, offered: &'a ListingView) -> ExposedListing<'a> {
        ExposedListing::new(offered, &self.context.events, None)
    }

    /// Ends a client's subscription to the single resource `native`. Returns whether it existed.
    pub fn unsubscribe(&self, client: &Client, native: &str) -> bool {
        let found = self.state().table.find(client, native).cloned();
        found.is_some_and(|subscription| self.end(&subscription))
    }

    /// Ends all subscriptions of the client under this exposed name, to a resource or a pattern, listed or not.
    pub(crate) fn unsubscribe_exposed(&self, client: &Client, exposed: &str) -> bool {
        self.end_matching(client, |subscription| &*subscription.name.exposed == exposed)
    }

    /// Ends the client's subscriptions to the pattern with this native form.
    pub(crate) fn unsubscribe_pattern(&self, client: &Client, native: &str) -> bool {
        self.end_matching(client, |subscription| subscription.pattern.is_some() && &*subscription.name.native == native)
    }

    /// Ends the client's subscription with this id.
    pub(crate) fn unsubscribe_id(&self, client: &Client, id: SubscriptionId) -> bool {
        self.end_matching(client, |subscription| subscription.id == id)
    }

    fn end_matching(&self, client: &Client, matches: impl Fn(&Subscription) -> bool) -> bool {
        let found: Vec<_> = {
            let state = self.state();
            state.table.subscriptions_of(client).iter().filter(|subscription| matches(subscription)).cloned().collect()
        };
        found.iter().filter(|subscription| self.end(subscription)).count() > 0
    }

    fn end(&self, subscription: &Subscription) -> bool {
        let client = &subscription.subscriber;
        let mut state = self.state();
        let existed = state.table.end(subscription);
        // Drop queued updates under the lock. Otherwise a new update for another subscription of the client could be
        // dropped with them.
        let (counts, uri) = (&subscription.counts, &subscription.name.exposed);
        client.updates.discard(counts, uri, |native| state.table.wants(client, native));
        drop(state);
        self.wakeup.notify_one();
        existed
    }

    /// Returns all subscriptions, each with its status.
    pub fn all(&self) -> Vec<(Arc<Subscription>, &'static str)> {
        let state = self.state();
        state.table.all().map(|(subscription, state)| (Arc::clone(subscription), state)).collect()
    }

    pub fn count(&self) -> usize {
        self.state().table.all().count()
    }

    /// Marks the link as connected. Call this before the link is published: a client that subscribes then must not get
    /// a stale status.
    pub fn link_up(&self, can_subscribe: bool) {
        // A polled resource needs no subscribe request, but its first read takes the same path. New subscriptions wait
        // for that read.
        let sends_requests = can_subscribe || self.context.config.load().poll.is_some();
        let mut state = self.state();
        let is_listed = self.context.lists.view().is_listed();
        let (link, notices) = state.table.link_up(sends_requests, is_listed);
        state.link = link;
        self.send_updates(&state, &notices);
    }

    /// Marks the link as disconnected. Subscriptions stay and are sent again over the next link.
    pub fn link_down(&self) {
        let mut state = self.state();
        let link = state.link;
        state.table.link_down(link);
    }

    /// Prepares for a listing: it will decide the updates that are held until now.
    pub(crate) fn on_listing_started(&self) {
        self.held().assign_to_listing();
    }

    /// Processes a new listing. `has_resources` is `false` for templates alone, which hold no fields of resources.
    /// Returns `true` if subscribed resources are missing and the connection has not settled: the caller must then
    /// fetch the list again.
    pub async fn on_listing(&self, stage: ListingStage, has_resources: bool) -> bool {
        let patterns = self.state().table.patterns();
        let covered = self.find_covered(patterns).await;
        self.apply_listing(stage, has_resources, covered)
    }

    fn apply_listing(&self, stage: ListingStage, has_resources: bool, covered: Option<PatternMatches>) -> bool {
        let mut state = self.state();
        let offered = self.context.lists.view();
        let before = std::mem::replace(&mut state.last_listing, Arc::clone(&offered));
        let covered = covered.filter(|covered| covered.is_current(&offered, &before));
        let exposed = ExposedListing::new(&offered, &self.context.events, covered.as_ref());
        let mut relisted = match &covered {
            // Patterns that were added meanwhile were matched against this list when they were added.
            Some(covered) => state.table.handle_listing(&exposed, covered.added()),
            None => state.table.handle_listing(&exposed, offered.added_since(&before)),
        };
        if has_resources {
            self.deliver_changed_fields(&state.table, &offered);
        }
        self.send_updates(&state, &relisted.notices);
        if relisted.suspects.iter().any(|native| !offered.admits(native)) {
            self.mark_hidden(&mut state, &offered);
            relisted.suspects.retain(|native| offered.admits(native));
        }
        drop(state);
        let has_checks = !relisted.suspects.is_empty() || !relisted.doubtful.is_empty();
        match stage {
            ListingStage::Early => {}
            ListingStage::Complete => self.reads().set_suspects([relisted.suspects, relisted.doubtful].concat()),
            ListingStage::Unchanged => self.reads().add_suspects(relisted.doubtful),
        }
        self.wakeup.notify_one();
        stage == ListingStage::Early && has_checks
    }

    /// Applies the profiles in force to the subscriptions of their clients. The lists may be long, so call this outside
    /// of the worker threads.
    pub(crate) fn apply_profiles(&self) {
        let (patterns, before) = {
            let state = self.state();
            if !state.table.has_changed_profiles() {
                return;
            }
            (state.table.patterns(), Arc::clone(&state.last_listing))
        };
        // Match without the lock, because tasks of clients and backends wait for it.
        let covered = PatternMatches::find(&patterns, self.context.lists.view(), before);
        let mut state = self.state();
        let offered = self.context.lists.view();
        let covered = Some(covered).filter(|covered| covered.is_current(&offered, &state.last_listing));
        let exposed = ExposedListing::new(&offered, &self.context.events, covered.as_ref());
        let outcome = state.table.apply_profiles(&exposed);
        self.discard_hidden(&state, &outcome.changed, &offered);
        self.send_hidden(&state, &outcome.hidden);
        self.send_updates(&state, &outcome.notices);
        drop(state);
        self.wakeup.notify_one();
    }

    /// Closes the manager and returns all subscriptions, for the manager that replaces it.
    pub fn hand_over(&self) -> DrainedSubscriptions {
        // Only this table has the resources that a pattern covers. A changed profile may hide some of them.
        self.apply_profiles();
        self.drain()
    }

    fn drain(&self) -> DrainedSubscriptions {
        let mut state = self.state();
        state.is_closed = true;
        state.table.drain()
    }

    /// Adds subscriptions of a replaced manager. Drops those of clients that have disconnected. Reports the resources
    /// as deleted if this manager is closed.
    pub(crate) fn take_over(self: &Arc<SubscriptionManager>, drained: DrainedSubscriptions) {
        let subscriptions = drained.subscriptions.iter();
        let clients: Vec<_> = subscriptions.map(|subscription| Arc::clone(&subscription.subscriber)).collect();
        let mut state = self.state();
        if state.is_closed {
            drop(state);
            return self.announce_deleted(drained.subscriptions);
        }
        // Load under the lock, for the same reason as in `add`.
        let offered = self.context.lists.view();
        let exposed = self.exposed(&offered);
        let notices = state.table.restore(drained, &exposed);
        self.send_updates(&state, &notices);
        self.mark_hidden(&mut state, &offered);
        self.revive_forwarded(&mut state, &offered);
        drop(state);
        for client in clients.iter().filter(|client| !self.watch_client(client)) {
            self.state().table.release(client);
        }
        // The profiles may have changed since the other manager was closed.
        self.apply_profiles();
        self.wakeup.notify_one();
    }

    /// Applies a new configuration of the same connection. The lists are then fetched again, which finds the resources
    /// that the configuration no longer hides.
    pub(crate) fn on_configured(&self) {
        self.context.lists.on_configured();
        let mut state = self.state();
        let offered = self.context.lists.view();
        self.mark_hidden(&mut state, &offered);
        self.revive_forwarded(&mut state, &offered);
        state.table.filters_changed();
        drop(state);
        self.context.lists.mark(&[List::Resources]);
        self.wakeup.notify_one();
    }

    /// Revives the forwarded resources that the configuration shows again.
    fn revive_forwarded(&self, state: &mut ManagerState, offered: &ListingView) {
        if self.context.config.load().unlisted == Unlisted::Forward {
            let revived = state.table.revive_forwarded(|native| offered.admits(native));
            self.send_updates(state, &revived);
        }
    }

    /// Reports the subscribed resources as deleted that the configuration hides, and those that it no longer forwards.
    fn mark_hidden(&self, state: &mut ManagerState, offered: &ListingView) {
        let is_rejecting = self.context.config.load().unlisted == Unlisted::Reject;
        let is_hidden = |resource: &(&Arc<str>, bool)| !offered.admits(resource.0) || resource.1 && is_rejecting;
        let hidden = state.table.resources().filter(is_hidden).map(|(native, _)| Arc::clone(native));
        for native in hidden.collect::<Vec<_>>() {
            let hidden = state.table.mark_hidden(&native, &self.exposed(offered));
            self.send_deletions(state, hidden.deleted);
            self.send_updates(state, &hidden.notices);
        }
    }

    /// Closes the manager and notifies the clients that their resources were deleted.
    pub fn close(&self) {
        self.announce_deleted(self.drain().subscriptions);
    }

    fn state(&self) -> MutexGuard<'_, ManagerState> {
        self.state.lock()
    }

    fn reads(&self) -> MutexGuard<'_, ReadQueue> {
        self.reads.lock()
    }

    fn held(&self) -> MutexGuard<'_, DeferredUpdates> {
        self.held.lock()
    }
}

/// The meaning of a listing for subscribed resources that it does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListingStage {
    /// The connection is new, and the server may not have listed everything.
    Early,
    /// A missing resource may be deleted, so the gateway reads it.
    Complete,
    /// A refresh found the same lists as before, so nothing left the listing.
    Unchanged,
}

/// The age of a connection from which on its lists count as complete.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Withdraws the subscription when the future of `subscribe` is dropped.
struct SubscribeGuard<'a> {
    manager: &'a SubscriptionManager,
    subscription: &'a Subscription,
}

impl Drop for SubscribeGuard<'_> {
    fn drop(&mut self) {
        self.manager.state().table.withdraw(self.subscription);
        self.manager.wakeup.notify_one();
    }
}

impl ClientRegistry for SubscriptionManager {
    fn release(&self, client: &Client) {
        let ended = self.state().table.release(client);
        self.wakeup.notify_one();
        self.context
            .events
            .emit(&Event::SubscriptionsReleased { server: self.context.events.server(), count: ended.len() });
    }

    fn queue_missed_updates(&self, client: &Client) {
        let state = self.state();
        let notice = |subscription: &Arc<Subscription>| Notice {
            native: Arc::clone(&subscription.name.native),
            subscription: Arc::clone(subscription),
        };
        let notices: Vec<_> = state.table.subscriptions_of(client).iter().map(notice).collect();
        self.send_updates(&state, &notices);
    }
}
