//! Keeps the subscriptions over one link and connects them with the backend.
//!
//! [`SubscriptionTable`] decides; this module acts. [`keep`](SubscriptionManager::keep) sends the subscribe and
//! unsubscribe requests while a link is connected. An update from the backend goes into the queue of every subscribed
//! client. A subscription outlives links. It ends with its client, by an unsubscribe, or when its server is removed from
//! the configuration.
//!
//! Lock order: `table` comes before `held`, before the fields that a subscription has seen, and before the update
//! queue of a client.

mod listening;
mod plan;
mod selective;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use goblin_catalog::listing::List;
use goblin_config::Server;
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
use crate::upstream::subscriptions::selective::DeferredUpdates;
use crate::upstream::subscriptions::upkeep::ReadQueue;

/// The state that all registers of one backend share.
#[derive(Clone)]
pub struct ManagerContext {
    pub inbox: Arc<BackendEvents>,
    pub config: Arc<Server>,
    pub offered: Arc<ArcSwap<ListingView>>,
    /// The limit of resources that patterns may subscribe to upstream.
    pub most_upstream: usize,
}

/// The subscriptions over one link.
pub struct SubscriptionManager {
    home: ManagerContext,
    table: Mutex<ManagerState>,
    /// Notified when an upstream request may be due.
    bell: Notify,
    chores: Mutex<ReadQueue>,
    held: Mutex<DeferredUpdates>,
}

/// The state under the main lock of a register.
struct ManagerState {
    table: SubscriptionTable,
    /// The listing that `table` has processed last.
    told: Arc<ListingView>,
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
    /// The client is gone.
    Gone,
}

impl SubscriptionManager {
    pub fn new(home: ManagerContext) -> SubscriptionManager {
        let (table, told) = (SubscriptionTable::new(home.most_upstream), home.offered.load_full());
        SubscriptionManager {
            home,
            table: Mutex::new(ManagerState { table, told, link: 0, is_closed: false }),
            bell: Notify::new(),
            chores: Mutex::default(),
            held: Mutex::default(),
        }
    }

    pub fn inbox(&self) -> &Arc<BackendEvents> {
        &self.home.inbox
    }

    pub fn is_empty(&self) -> bool {
        self.book().table.is_empty()
    }

    /// Waits until there is a subscription. The owner of a disconnected link uses this to decide when to dial.
    pub async fn wanted(&self) {
        while self.book().table.is_empty() {
            self.bell.notified().await;
        }
    }

    /// Adds a subscription and waits for the backend's answer, at most for the timeout of one request. `place` reserves
    /// a slot within the client's limit. Dropping the future before the answer withdraws the subscription.
    pub async fn subscribe(
        self: &Arc<SubscriptionManager>,
        wish: SubscribeRequest,
        place: impl FnOnce() -> Result<SubscriptionPermit, LimitReached>,
    ) -> Result<SubscribeResult, SubscribeError> {
        let client = Arc::clone(&wish.subscriber);
        let covered = match &wish.pattern {
            Some(pattern) => self.find_covered(vec![Arc::clone(pattern)]).await,
            None => None,
        };
        let SubscriptionEntry { subscription, standing, .. } = self.enter(wish, covered, place)?;
        // If the client cancels the request, this guard withdraws the subscription.
        let _waiter = SubscribeGuard { register: self, subscription: &subscription };
        if !self.hold(&client) {
            self.book().table.end(&subscription);
            return Err(SubscribeError::Gone);
        }
        client.set_pace(&subscription.receipt, &subscription.name.exposed, subscription.pace());
        self.bell.notify_one();
        let outcome = match standing {
            SubscribeStatus::Settled(outcome) => outcome,
            // Wait only for the timeout of one request, however many earlier requests the backend must answer first.
            SubscribeStatus::Asked(mut asked) => match tokio::time::timeout(self.patience(), &mut asked).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) if client.is_closed() => return Err(SubscribeError::Gone),
                // The client unsubscribed while the subscribe was in progress. Its subscribe request still needs a
                // response.
                Ok(Err(_)) => SubscribeOutcome::Subscribed,
                Err(_) => {
                    asked.close();
                    asked.try_recv().ok().flatten().unwrap_or(SubscribeOutcome::Late(self.patience()))
                }
            },
        };
        Ok(SubscribeResult { subscription: Arc::clone(&subscription), outcome })
    }

    /// Matches patterns against a long list outside of the worker threads. Returns `None` for a short list.
    async fn find_covered(&self, patterns: Vec<Arc<Pattern>>) -> Option<PatternMatches> {
        let (offered, before) = (self.home.offered.load_full(), Arc::clone(&self.book().told));
        if patterns.is_empty() || !offered.is_long() {
            return None;
        }
        worker::compute(move || PatternMatches::find(&patterns, offered, before)).await
    }

    /// Adds a subscription to the table. Returns an error if the register is closed or a limit is reached.
    fn enter(
        &self,
        wish: SubscribeRequest,
        covered: Option<PatternMatches>,
        place: impl FnOnce() -> Result<SubscriptionPermit, LimitReached>,
    ) -> Result<SubscriptionEntry, SubscribeError> {
        let mut book = self.book();
        if book.is_closed {
            return Err(SubscribeError::Closed);
        }
        // Load under the lock: a later listing is then processed after this subscription was added.
        let offered = self.home.offered.load_full();
        let covered = covered.filter(|covered| covered.is_current(&offered, &book.told));
        let exposed = ExposedListing::new(&offered, &self.home.inbox, covered.as_ref());
        let entry = book.table.subscribe(wish, &exposed, place).map_err(SubscribeError::Full)?;
        if entry.subscription.is_selective() {
            self.note(&book.table, &entry.subscription, &offered);
        }
        self.tell(&book, &entry.notices);
        Ok(entry)
    }

    /// Registers for a notification when the client's session ends. Returns `false` if it has already ended.
    fn hold(self: &Arc<SubscriptionManager>, client: &Client) -> bool {
        let holder: Arc<dyn ClientRegistry> = Arc::<SubscriptionManager>::clone(self);
        client.register(&holder)
    }

    fn exposed<'a>(&'a self, offered: &'a ListingView) -> ExposedListing<'a> {
        ExposedListing::new(offered, &self.home.inbox, None)
    }

    /// Ends a client's subscription to the single resource `native`. Returns whether it existed.
    pub fn unsubscribe(&self, client: &Client, native: &str) -> bool {
        let found = self.book().table.find(client, native).cloned();
        found.is_some_and(|subscription| self.end(&subscription))
    }

    /// Ends all subscriptions of the client under this exposed name, to a resource or a pattern, listed or not.
    pub(crate) fn unsubscribe_exposed(&self, client: &Client, exposed: &str) -> bool {
        self.end_those(client, |subscription| &*subscription.name.exposed == exposed)
    }

    /// Ends the client's subscriptions to the pattern with this native form.
    pub(crate) fn unsubscribe_pattern(&self, client: &Client, native: &str) -> bool {
        self.end_those(client, |subscription| subscription.pattern.is_some() && &*subscription.name.native == native)
    }

    /// Ends the client's subscription with this id.
    pub(crate) fn unsubscribe_id(&self, client: &Client, id: SubscriptionId) -> bool {
        self.end_those(client, |subscription| subscription.id == id)
    }

    fn end_those(&self, client: &Client, is_meant: impl Fn(&Subscription) -> bool) -> bool {
        let found: Vec<_> = {
            let book = self.book();
            book.table.of(client).iter().filter(|subscription| is_meant(subscription)).cloned().collect()
        };
        found.iter().filter(|subscription| self.end(subscription)).count() > 0
    }

    fn end(&self, subscription: &Subscription) -> bool {
        let client = &subscription.subscriber;
        let mut book = self.book();
        let was_there = book.table.end(subscription);
        // Drop queued updates under the lock. Otherwise a new update for another subscription of the client could be
        // dropped with them.
        let (receipt, uri) = (&subscription.receipt, &subscription.name.exposed);
        client.updates.drop_of(receipt, uri, |native| book.table.wants(client, native));
        drop(book);
        self.bell.notify_one();
        was_there
    }

    /// Returns all subscriptions, each with its status.
    pub fn all(&self) -> Vec<(Arc<Subscription>, &'static str)> {
        let book = self.book();
        book.table.all().map(|(subscription, state)| (Arc::clone(subscription), state)).collect()
    }

    pub fn count(&self) -> usize {
        self.book().table.all().count()
    }

    /// Handles `notifications/resources/updated` from the backend.
    pub fn hear(&self, notification: &Notification) {
        let text = notification.raw.as_str();
        let Some(at) = notification.params.uri else { return };
        let Some(native) = json::string(text, at) else { return };
        let update = notification.params.whole.map(|params| (text, params));
        self.spread(&native, update, |exposed| {
            let mut edits = Splice::new();
            edits.replace(at, quote(exposed));
            json::single_line(edits.apply(notification.raw.bytes()))
        });
    }

    /// Puts an update of `native` into the queue of every subscribed client. Updates for selected fields wait for the
    /// next listing if the fields are unknown.
    fn spread(&self, native: &str, update: Option<(&str, json::Span)>, message: impl FnOnce(&str) -> Bytes) {
        let offered = self.home.offered.load();
        if !offered.admits(native) {
            return;
        }
        let book = self.book();
        let affected = book.table.affected(native);
        if affected.is_empty() {
            return;
        }
        // Usually a client subscribed to exactly this resource, so its name can be shared.
        let name = match affected.iter().find(|it| *it.subscription.name.native == *native) {
            Some(exact) => Arc::clone(&exact.subscription.name),
            None => Arc::new(ResourceName { native: native.into(), exposed: self.home.inbox.expose(native).into() }),
        };
        let message = message(&name.exposed);
        let event = Event::UpdateHeard { server: self.home.inbox.server(), uri: &name.exposed, count: affected.len() };
        let (mut once, mut asking) = (NotifiedClients::default(), Vec::new());
        for affected in &affected {
            match self.judge(affected, native, update, &offered) {
                selective::UpdateDecision::Deliver if once.is_first(affected) => put(affected, &name, &message),
                selective::UpdateDecision::Deliver | selective::UpdateDecision::Suppress => {}
                selective::UpdateDecision::AskListing => asking.push(affected),
            }
        }
        if asking.into_iter().any(|affected| once.is_first(affected)) {
            self.held().hold(&name.native, &message);
            self.home.inbox.mark(&[List::Resources]);
        }
        self.home.inbox.emit(&event);
    }

    /// Sends an update for each notice, because a change may have been missed. Each client gets one update per
    /// resource. Requires the lock: it keeps the updates in order, and no client receives an update after its
    /// unsubscribe.
    fn tell(&self, _book: &ManagerState, notices: &[Notice]) {
        let mut told = HashSet::new();
        for Notice { subscription, name } in notices {
            if told.insert((subscription.subscriber.id, Arc::as_ptr(name))) {
                put(
                    &AffectedSubscription { subscription, within: None, is_next: false },
                    name,
                    &updated(&name.exposed),
                );
            }
        }
    }

    /// Notifies subscribers that resources were deleted. Clients without support for deletions get a marked update.
    fn tell_deleted(&self, _book: &ManagerState, notices: &[Notice]) {
        for Notice { subscription, name } in notices {
            subscription.forget(&name.native);
            let message = if subscription.subscriber.supports_deletions() {
                deleted(&name.exposed)
            } else {
                marked_deleted(&name.exposed)
            };
            put(&AffectedSubscription { subscription, within: None, is_next: false }, name, &message);
        }
    }

    /// Marks the link as connected. Call this before the link is published: a client that subscribes then must not get
    /// a stale status.
    pub fn link_up(&self, can_subscribe: bool) {
        // A polled resource needs no subscribe request, but its first read takes the same path. New subscriptions wait
        // for that read.
        let can_ask = can_subscribe || self.home.config.poll.is_some();
        let mut book = self.book();
        let is_listed = self.home.offered.load().is_listed();
        let (link, notices) = book.table.link_up(can_ask, is_listed);
        book.link = link;
        self.tell(&book, &notices);
    }

    /// Marks the link as disconnected. Subscriptions stay and are sent again over the next link.
    pub fn link_down(&self) {
        let mut book = self.book();
        let link = book.link;
        book.table.link_down(link);
    }

    /// Sends one update per subscription, because notifications may have been lost on a connection that continues.
    pub fn doubt(&self) {
        let mut book = self.book();
        let notices = book.table.doubt();
        self.tell(&book, &notices);
    }

    /// Discards pending deletion checks, because a new connection fetches the lists. The next listing decides anew.
    pub(crate) fn list_connected(&self) {
        self.chores().suspect(Vec::new());
    }

    /// Prepares for a listing: it will decide the updates that are held until now.
    pub(crate) fn list_begins(&self) {
        self.held().ask();
    }

    /// Delivers the held updates, because without a listing their fields cannot be compared.
    pub fn list_failed(&self) {
        let asked = self.held().take();
        let book = self.book();
        for (native, message) in asked {
            let affected = book.table.affected(&native);
            let mut once = NotifiedClients::default();
            let selective = affected.iter().filter(|affected| affected.subscription.is_selective());
            for affected in selective.filter(|affected| once.is_first(affected)) {
                put(affected, &self.name_of(affected, &native), &message);
            }
        }
    }

    /// Processes a new listing. `is_settled` is `true` if the connection is old enough for the listing to be complete.
    /// `has_resources` is `false` for templates alone, which hold no fields of resources. Returns `true` if subscribed
    /// resources are missing and the connection has not settled: the caller must then fetch the list again.
    pub async fn relisted(&self, is_settled: bool, has_resources: bool) -> bool {
        let patterns = self.book().table.patterns();
        let covered = self.find_covered(patterns).await;
        self.tell_relisted(is_settled, has_resources, covered)
    }

    fn tell_relisted(&self, is_settled: bool, has_resources: bool, covered: Option<PatternMatches>) -> bool {
        let mut book = self.book();
        let offered = self.home.offered.load_full();
        let before = std::mem::replace(&mut book.told, Arc::clone(&offered));
        let covered = covered.filter(|covered| covered.is_current(&offered, &before));
        let exposed = ExposedListing::new(&offered, &self.home.inbox, covered.as_ref());
        let relisted = match &covered {
            // Patterns that were added meanwhile were matched against this list when they were added.
            Some(covered) => book.table.relisted(&exposed, covered.came()),
            None => book.table.relisted(&exposed, offered.came_since(&before)),
        };
        if has_resources {
            self.tell_news(&book.table, &offered);
        }
        self.tell(&book, &relisted.notices);
        drop(book);
        let is_early = !is_settled && !relisted.suspects.is_empty();
        if is_settled {
            self.chores().suspect(relisted.suspects);
        }
        self.bell.notify_one();
        is_early
    }

    /// Closes the register and returns all subscriptions, for the register that replaces it.
    pub fn hand_over(&self) -> Vec<Arc<Subscription>> {
        let mut book = self.book();
        book.is_closed = true;
        book.table.drain()
    }

    /// Adds subscriptions of a replaced register. Drops those of clients that are gone.
    pub(crate) fn take_over(self: &Arc<SubscriptionManager>, subscriptions: Vec<Arc<Subscription>>) {
        let clients: Vec<_> = subscriptions.iter().map(|subscription| Arc::clone(&subscription.subscriber)).collect();
        let names: HashSet<_> =
            subscriptions.iter().map(|subscription| Arc::clone(&subscription.name.native)).collect();
        let mut book = self.book();
        // Load under the lock, for the same reason as in `enter`.
        let offered = self.home.offered.load_full();
        let exposed = self.exposed(&offered);
        let notices = book.table.restore(subscriptions, &exposed);
        self.tell(&book, &notices);
        // A resource that the new configuration hides counts as deleted.
        for native in names.iter().filter(|native| !offered.admits(native)) {
            let hidden = book.table.vanished(native, &exposed);
            self.tell_deleted(&book, &hidden.deleted);
        }
        drop(book);
        for client in clients.iter().filter(|client| !self.hold(client)) {
            self.book().table.release(client);
        }
        self.bell.notify_one();
    }

    /// Closes the register and notifies the clients that their resources were deleted.
    pub fn close(&self) {
        self.disown(self.hand_over());
    }

    /// Notifies the clients of these subscriptions that their resources were deleted.
    pub(crate) fn disown(&self, subscriptions: Vec<Arc<Subscription>>) {
        let notices =
            subscriptions.into_iter().map(|subscription| Notice { name: Arc::clone(&subscription.name), subscription });
        self.tell_deleted(&self.book(), &notices.collect::<Vec<_>>());
    }

    fn name_of(&self, affected: &AffectedSubscription<'_>, native: &Arc<str>) -> Arc<ResourceName> {
        match affected.subscription.name.native == *native {
            true => Arc::clone(&affected.subscription.name),
            false => {
                Arc::new(ResourceName { native: Arc::clone(native), exposed: self.home.inbox.expose(native).into() })
            }
        }
    }

    /// Takes the lock. Code that holds one of these locks must not panic, so a poisoned lock is usable.
    fn book(&self) -> MutexGuard<'_, ManagerState> {
        self.table.lock()
    }

    fn chores(&self) -> MutexGuard<'_, ReadQueue> {
        self.chores.lock()
    }

    fn held(&self) -> MutexGuard<'_, DeferredUpdates> {
        self.held.lock()
    }
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
        let may_be_several = affected.is_next || subscription.is_selective();
        !may_be_several || self.0.insert(subscription.subscriber.id)
    }
}

/// Queues an update for its client.
fn put(affected: &AffectedSubscription<'_>, name: &Arc<ResourceName>, message: &Bytes) {
    let subscription = affected.subscription;
    // A pattern, or a resource that contains others, may match resources that the client must not see.
    if subscription.name.native != name.native && !subscription.subscriber.can_see_resource(&name.exposed) {
        return;
    }
    let whole = affected.within.map_or_else(Bytes::new, |within| updated(&within.exposed));
    subscription.subscriber.update(&Update {
        native: &name.native,
        uri: &name.exposed,
        message,
        pace: subscription.pace(),
        receipt: &subscription.receipt,
        inside: affected.within.map(|within| UpdateScope {
            native: &within.native,
            uri: &within.exposed,
            message: &whole,
        }),
    });
}

/// Withdraws the subscription when the future of `subscribe` is dropped.
struct SubscribeGuard<'a> {
    register: &'a SubscriptionManager,
    subscription: &'a Subscription,
}

impl Drop for SubscribeGuard<'_> {
    fn drop(&mut self) {
        self.register.book().table.withdraw(self.subscription);
        self.register.bell.notify_one();
    }
}

impl ClientRegistry for SubscriptionManager {
    fn release(&self, client: &Client) {
        let ended = self.book().table.release(client);
        self.bell.notify_one();
        self.home.inbox.emit(&Event::SubscriptionsReleased { server: self.home.inbox.server(), count: ended.len() });
    }

    fn queue_missed_updates(&self, client: &Client) {
        let book = self.book();
        let notice = |subscription: &Arc<Subscription>| Notice {
            name: Arc::clone(&subscription.name),
            subscription: Arc::clone(subscription),
        };
        let notices: Vec<_> = book.table.of(client).iter().map(notice).collect();
        self.tell(&book, &notices);
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
