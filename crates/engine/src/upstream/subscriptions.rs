//! Keeps the subscriptions over one link and connects them with the backend.
//!
//! [`SubscriptionTable`] decides; this module acts. [`keep`](SubscriptionManager::keep) sends the subscribe and
//! unsubscribe requests while a link is connected. An update from the backend goes into the queue of every subscribed
//! client. A subscription outlives links. It ends with its client, by an unsubscribe, or when its server is removed
//! from the configuration.
//!
//! Lock order: `state` comes before `held`, before the fields that a subscription has seen, and before the update
//! queue of a client.

mod listening;
mod plan;
mod selective;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use goblin_catalog::listing::List;
use goblin_config::Server;
use goblin_config::lists::Unlisted;
use goblin_subscriptions::count::{LimitReached, SubscriptionPermit};
use goblin_subscriptions::id::SubscriptionId;
use goblin_subscriptions::pattern::Pattern;
use goblin_subscriptions::updates::{Update, UpdateScope};
use goblin_subscriptions::{ClientId, ResourceName, SubscribeOutcome, SubscribeStatus};
use goblin_telemetry::{Event, worker};
use goblin_wire::json::{self, Splice, quote};
use goblin_wire::{Method, Notification};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::client::subscriptions::{
    AffectedSubscription, Notice, SubscribeRequest, Subscription, SubscriptionEntry, SubscriptionTable,
};
use crate::client::{Client, ClientRegistry};
use crate::upstream::events::BackendEvents;
use crate::upstream::listing_view::{ExposedListing, ListingView, PatternMatches};
use crate::upstream::lists::LinkLists;
use crate::upstream::subscriptions::selective::DeferredUpdates;
use crate::upstream::subscriptions::upkeep::ReadQueue;

/// The parts of a backend that a manager uses. All but the lists are those of every manager of the backend.
#[derive(Clone)]
pub struct ManagerContext {
    pub events: Arc<BackendEvents>,
    pub config: Arc<Server>,
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

    /// Handles `notifications/resources/updated` from the backend.
    pub fn on_update(&self, notification: &Notification) {
        let text = notification.raw.as_str();
        let Some(at) = notification.params.uri else { return };
        let Some(native) = json::string(text, at) else { return };
        let update = notification.params.whole.map(|params| (text, params));
        self.distribute(&native, update, |exposed| {
            let mut edits = Splice::new();
            edits.replace(at, quote(exposed));
            json::single_line(edits.apply(notification.raw.bytes()))
        });
    }

    /// Puts an update of `native` into the queue of every subscribed client. Updates for selected fields wait for the
    /// next listing if the fields are unknown.
    fn distribute(&self, native: &str, update: Option<(&str, json::Span)>, message: impl FnOnce(&str) -> Bytes) {
        let offered = self.context.lists.view();
        if !offered.admits(native) {
            return;
        }
        let state = self.state();
        let affected = state.table.affected(native);
        if affected.is_empty() {
            return;
        }
        // Usually a client subscribed to exactly this resource, so its name can be shared.
        let name = match affected.iter().find(|affected| *affected.subscription.name.native == *native) {
            Some(exact) => Arc::clone(&exact.subscription.name),
            None => {
                Arc::new(ResourceName { native: native.into(), exposed: self.context.events.expose(native).into() })
            }
        };
        let message = message(&name.exposed);
        let event =
            Event::UpdateReceived { server: self.context.events.server(), uri: &name.exposed, count: affected.len() };
        let (mut notified, mut deferred) = (NotifiedClients::default(), Vec::new());
        for affected in &affected {
            match self.decide(affected, native, update, &offered) {
                selective::UpdateDecision::Deliver if notified.is_first(affected) => {
                    queue_update(affected, &name, &message)
                }
                selective::UpdateDecision::Deliver | selective::UpdateDecision::Suppress => {}
                selective::UpdateDecision::AwaitListing => deferred.push(affected),
            }
        }
        if deferred.into_iter().any(|affected| notified.is_first(affected)) {
            self.held().hold(&name.native, &message);
            self.context.lists.mark(&[List::Resources]);
        }
        self.context.events.emit(&event);
    }

    /// Sends an update for each notice, because a change may have been missed. Each client gets one update per
    /// resource. Requires the lock: it keeps the updates in order, and no client receives an update after its
    /// unsubscribe.
    fn send_updates(&self, _state: &ManagerState, notices: &[Notice]) {
        let mut notified = HashSet::new();
        for Notice { subscription, name } in notices {
            if notified.insert((subscription.subscriber.id, Arc::as_ptr(name))) {
                queue_update(
                    &AffectedSubscription { subscription, enclosing: None, is_next: false },
                    name,
                    &updated(&name.exposed),
                );
            }
        }
    }

    /// Notifies subscribers that resources were deleted. Clients without support for deletions get a marked update.
    fn send_deletions(&self, _state: &ManagerState, notices: &[Notice]) {
        for Notice { subscription, name } in notices {
            subscription.forget(&name.native);
            let message = if subscription.subscriber.declares_subscriptions() {
                deleted(&name.exposed)
            } else {
                marked_deleted(&name.exposed)
            };
            queue_update(&AffectedSubscription { subscription, enclosing: None, is_next: false }, name, &message);
        }
    }

    /// Marks the link as connected. Call this before the link is published: a client that subscribes then must not get
    /// a stale status.
    pub fn link_up(&self, can_subscribe: bool) {
        // A polled resource needs no subscribe request, but its first read takes the same path. New subscriptions wait
        // for that read.
        let sends_requests = can_subscribe || self.context.config.poll.is_some();
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

    /// Sends one update per subscription, because notifications may have been lost on a connection that continues.
    pub fn notify_all(&self) {
        let mut state = self.state();
        let notices = state.table.mark_stale();
        self.send_updates(&state, &notices);
    }

    /// Discards pending deletion checks, because a new connection fetches the lists. The next listing decides anew.
    pub(crate) fn discard_checks(&self) {
        self.reads().set_suspects(Vec::new());
    }

    /// Prepares for a listing: it will decide the updates that are held until now.
    pub(crate) fn on_listing_started(&self) {
        self.held().assign_to_listing();
    }

    /// Delivers the held updates, because without a listing their fields cannot be compared.
    pub fn on_listing_failed(&self) {
        let updates = self.held().take();
        let state = self.state();
        for (native, message) in updates {
            let affected = state.table.affected(&native);
            let mut notified = NotifiedClients::default();
            let selective = affected.iter().filter(|affected| affected.subscription.is_selective());
            for affected in selective.filter(|affected| notified.is_first(affected)) {
                queue_update(affected, &self.name_of(affected, &native), &message);
            }
        }
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
        let relisted = match &covered {
            // Patterns that were added meanwhile were matched against this list when they were added.
            Some(covered) => state.table.handle_listing(&exposed, covered.added()),
            None => state.table.handle_listing(&exposed, offered.added_since(&before)),
        };
        if has_resources {
            self.deliver_changed_fields(&state.table, &offered);
        }
        self.send_updates(&state, &relisted.notices);
        drop(state);
        let needs_refetch = stage == ListingStage::Early && !relisted.suspects.is_empty();
        if stage == ListingStage::Complete {
            self.reads().set_suspects(relisted.suspects);
        }
        self.wakeup.notify_one();
        needs_refetch
    }

    /// Closes the manager and returns all subscriptions, for the manager that replaces it.
    pub fn hand_over(&self) -> Vec<Arc<Subscription>> {
        let mut state = self.state();
        state.is_closed = true;
        state.table.drain()
    }

    /// Adds subscriptions of a replaced manager. Drops those of clients that have disconnected.
    pub(crate) fn take_over(self: &Arc<SubscriptionManager>, subscriptions: Vec<Arc<Subscription>>) {
        let clients: Vec<_> = subscriptions.iter().map(|subscription| Arc::clone(&subscription.subscriber)).collect();
        let mut names: HashMap<Arc<str>, bool> = HashMap::new();
        for subscription in &subscriptions {
            *names.entry(Arc::clone(&subscription.name.native)).or_insert(true) &= subscription.is_forwarded;
        }
        let mut state = self.state();
        // Load under the lock, for the same reason as in `add`.
        let offered = self.context.lists.view();
        let exposed = self.exposed(&offered);
        let notices = state.table.restore(subscriptions, &exposed);
        self.send_updates(&state, &notices);
        // A resource that the new configuration hides counts as deleted, and so does one that it no longer forwards.
        let is_rejecting = self.context.config.unlisted == Unlisted::Reject;
        let is_hidden =
            |(native, is_forwarded): &(&Arc<str>, &bool)| !offered.admits(native) || **is_forwarded && is_rejecting;
        for (native, _) in names.iter().filter(is_hidden) {
            let hidden = state.table.mark_hidden(native, &exposed);
            self.send_deletions(&state, &hidden.deleted);
        }
        drop(state);
        for client in clients.iter().filter(|client| !self.watch_client(client)) {
            self.state().table.release(client);
        }
        self.wakeup.notify_one();
    }

    /// Closes the manager and notifies the clients that their resources were deleted.
    pub fn close(&self) {
        self.announce_deleted(self.hand_over());
    }

    /// Notifies the clients of these subscriptions that their resources were deleted.
    pub(crate) fn announce_deleted(&self, subscriptions: Vec<Arc<Subscription>>) {
        let notices =
            subscriptions.into_iter().map(|subscription| Notice { name: Arc::clone(&subscription.name), subscription });
        self.send_deletions(&self.state(), &notices.collect::<Vec<_>>());
    }

    fn name_of(&self, affected: &AffectedSubscription<'_>, native: &Arc<str>) -> Arc<ResourceName> {
        match affected.subscription.name.native == *native {
            true => Arc::clone(&affected.subscription.name),
            false => Arc::new(ResourceName {
                native: Arc::clone(native),
                exposed: self.context.events.expose(native).into(),
            }),
        }
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

/// Ensures that a client gets an update once, even if several of its subscriptions match.
#[derive(Default)]
struct NotifiedClients(HashSet<ClientId>);

impl NotifiedClients {
    fn is_first(&mut self, affected: &AffectedSubscription<'_>) -> bool {
        let subscription = affected.subscription;
        // Most clients have a single matching subscription, and the set does not store them.
        let has_several = affected.is_next || subscription.is_selective();
        !has_several || self.0.insert(subscription.subscriber.id)
    }
}

/// Queues an update for its client.
fn queue_update(affected: &AffectedSubscription<'_>, name: &Arc<ResourceName>, message: &Bytes) {
    let subscription = affected.subscription;
    // A pattern, or a resource that contains others, may match resources that the client must not see.
    if subscription.name.native != name.native && !subscription.subscriber.can_see_resource(&name.exposed) {
        return;
    }
    let whole = affected.enclosing.map_or_else(Bytes::new, |enclosing| updated(&enclosing.exposed));
    subscription.subscriber.update(&Update {
        native: &name.native,
        uri: &name.exposed,
        message,
        delivery: subscription.delivery(),
        counts: &subscription.counts,
        enclosing: affected.enclosing.map(|enclosing| UpdateScope {
            native: &enclosing.native,
            uri: &enclosing.exposed,
            message: &whole,
        }),
    });
}

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
            name: Arc::clone(&subscription.name),
            subscription: Arc::clone(subscription),
        };
        let notices: Vec<_> = state.table.subscriptions_of(client).iter().map(notice).collect();
        self.send_updates(&state, &notices);
    }
}

/// Returns an update notification of the gateway itself.
fn updated(exposed: &str) -> Bytes {
    goblin_wire::notification(&Method::ResourceUpdated, Some(&format!(r#"{{"uri":{}}}"#, quote(exposed))))
}

/// Returns a marked update, for a client without support for deletions. The client reads the resource and gets an
/// error.
fn marked_deleted(exposed: &str) -> Bytes {
    let params = format!(r#"{{"uri":{},"_meta":{{"dev.goblin/deleted":true}}}}"#, quote(exposed));
    goblin_wire::notification(&Method::ResourceUpdated, Some(&params))
}

/// Returns a deletion notification, for a client that supports it.
fn deleted(exposed: &str) -> Bytes {
    goblin_wire::notification(&Method::ResourceDeleted, Some(&format!(r#"{{"uri":{}}}"#, quote(exposed))))
}
