//! The subscriptions over one link, and the way between them and the backend.
//!
//! [`Interests`] decides, this acts: what must be said upstream is said by [`keep`](Register::keep) for as long as a link
//! is there; what the backend says of a resource goes into the mailbox of everybody who wants to know. A subscription
//! outlives links. It ends with its client, when the client says so, or when its server is taken from the configuration.

mod listening;
mod plan;
mod selective;
#[cfg(test)]
mod tests;
mod upkeep;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::Notify;

use goblin_subscriptions::ClientId;
use crate::upstream::inbox::Inbox;
use goblin_catalog::listing::List;
use crate::upstream::offered::{Covered, Exposed, Offered};
use crate::upstream::register::selective::Held;
use crate::upstream::register::upkeep::Chores;
use goblin_config::Server;
use goblin_subscriptions::tally::{Full, Place};
use goblin_subscriptions::updates::{Update, Whole};
use crate::client::mailbox::{Holder, Mailbox};
use goblin_telemetry::Event;
use goblin_wire::json::{self, Splice, quote};
use goblin_wire::method::Method;
use goblin_wire::Notification;
use goblin_subscriptions::id::SubscriptionId;
use crate::client::subscriptions::Interests;
use goblin_subscriptions::pattern::Pattern;
use goblin_subscriptions::{Name, Outcome, Standing};
use crate::client::subscriptions::Wish;
use crate::client::subscriptions::Subscription;
use crate::client::subscriptions::Notice;
use crate::client::subscriptions::Entry;
use crate::client::subscriptions::Affected;
use goblin_telemetry::worker;

/// What all registers of one backend share.
#[derive(Clone)]
pub struct Home {
    pub inbox: Arc<Inbox>,
    pub config: Arc<Server>,
    pub offered: Arc<ArcSwap<Offered>>,
    /// Resources that patterns may subscribe to.
    pub most_upstream: usize,
}

pub struct Register {
    home: Home,
    interests: Mutex<Book>,
    /// Rung when something is to be said upstream.
    bell: Notify,
    chores: Mutex<Chores>,
    held: Mutex<Held>,
}

struct Book {
    interests: Interests,
    /// What the backend offered when the interests were last told.
    told: Arc<Offered>,
    /// The number of the link that is up, or was last.
    link: u64,
    /// Another one keeps these subscriptions, or nobody does: the server is not what it was.
    is_closed: bool,
}

/// A subscription, and how it stands.
pub struct Subscribed {
    pub subscription: Arc<Subscription>,
    pub outcome: Outcome,
}

/// Why there is no subscription.
#[derive(Debug)]
pub enum Unsubscribable {
    Full(Full),
    /// The server was replaced or removed.
    Closed,
    /// The client is gone.
    Gone,
}

impl Register {
    pub fn new(home: Home) -> Register {
        let (interests, told) = (Interests::new(home.most_upstream), home.offered.load_full());
        Register {
            home,
            interests: Mutex::new(Book { interests, told, link: 0, is_closed: false }),
            bell: Notify::new(),
            chores: Mutex::default(),
            held: Mutex::default(),
        }
    }

    pub fn inbox(&self) -> &Arc<Inbox> {
        &self.home.inbox
    }

    pub fn is_empty(&self) -> bool {
        self.book().interests.is_empty()
    }

    /// Waits until somebody wants something. For whoever has no link to say it on.
    pub async fn wanted(&self) {
        while self.book().interests.is_empty() {
            self.bell.notified().await;
        }
    }

    /// Enters a wish and waits until it stands or falls. `place` is asked for room.
    pub async fn subscribe(
        self: &Arc<Register>,
        wish: Wish,
        place: impl FnOnce() -> Result<Place, Full>,
    ) -> Result<Subscribed, Unsubscribable> {
        let mailbox = Arc::clone(&wish.subscriber);
        let covered = match &wish.pattern {
            Some(pattern) => self.find_covered(vec![Arc::clone(pattern)]).await,
            None => None,
        };
        let Entry { subscription, standing, .. } = self.enter(wish, covered, place)?;
        // Dropped before it is answered, the client has cancelled it.
        let _waiter = Waiter { register: self, subscription: &subscription };
        if !self.hold(&mailbox) {
            self.book().interests.end(&subscription);
            return Err(Unsubscribable::Gone);
        }
        mailbox.set_pace(&subscription.receipt, &subscription.name.exposed, subscription.pace());
        self.bell.notify_one();
        let outcome = match standing {
            Standing::Settled(outcome) => outcome,
            // Not longer than for one answer, however many others the backend must answer first.
            Standing::Asked(mut asked) => match tokio::time::timeout(self.patience(), &mut asked).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) if mailbox.is_closed() => return Err(Unsubscribable::Gone),
                // Its client ended it while the backend was asked, and waits for this answer too.
                Ok(Err(_)) => Outcome::Subscribed,
                Err(_) => {
                    asked.close();
                    asked.try_recv().ok().flatten().unwrap_or(Outcome::Late(self.patience()))
                }
            },
        };
        Ok(Subscribed { subscription: Arc::clone(&subscription), outcome })
    }

    /// Compares patterns with a long list beside the worker threads. Returns `None` for a short list.
    async fn find_covered(&self, patterns: Vec<Arc<Pattern>>) -> Option<Covered> {
        let (offered, before) = (self.home.offered.load_full(), Arc::clone(&self.book().told));
        if patterns.is_empty() || !offered.is_long() {
            return None;
        }
        worker::compute(move || Covered::find(&patterns, offered, before)).await
    }

    fn enter(
        &self,
        wish: Wish,
        covered: Option<Covered>,
        place: impl FnOnce() -> Result<Place, Full>,
    ) -> Result<Entry, Unsubscribable> {
        let mut book = self.book();
        if book.is_closed {
            return Err(Unsubscribable::Closed);
        }
        // Loaded under the lock: a listing that comes after is told to the interests as they are then.
        let offered = self.home.offered.load_full();
        let covered = covered.filter(|covered| covered.is_current(&offered, &book.told));
        let exposed = Exposed::new(&offered, &self.home.inbox, covered.as_ref());
        let entry = book.interests.subscribe(wish, &exposed, place).map_err(Unsubscribable::Full)?;
        if entry.subscription.is_selective() {
            self.note(&book.interests, &entry.subscription, &offered);
        }
        self.tell(&book, &entry.notices);
        Ok(entry)
    }

    /// The end of the client will be told to us; tells whether it is there.
    fn hold(self: &Arc<Register>, mailbox: &Mailbox) -> bool {
        let holder: Arc<dyn Holder> = Arc::<Register>::clone(self);
        mailbox.hold_for(&holder)
    }

    fn exposed<'a>(&'a self, offered: &'a Offered) -> Exposed<'a> {
        Exposed::new(offered, &self.home.inbox, None)
    }

    /// Ends a client's subscription to the one resource `native`; tells whether there was one.
    pub fn unsubscribe(&self, mailbox: &Mailbox, native: &str) -> bool {
        let found = self.book().interests.find(mailbox, native).cloned();
        found.is_some_and(|subscription| self.end(&subscription))
    }

    /// Ends all that the client subscribed to under this name, resource or pattern, whether it is offered or not.
    pub fn unsubscribe_exposed(&self, mailbox: &Mailbox, exposed: &str) -> bool {
        self.end_those(mailbox, |subscription| &*subscription.name.exposed == exposed)
    }

    /// The same by the pattern as the backend knows it.
    pub fn unsubscribe_pattern(&self, mailbox: &Mailbox, native: &str) -> bool {
        self.end_those(mailbox, |subscription| subscription.pattern.is_some() && &*subscription.name.native == native)
    }

    /// The same by the subscription's own name.
    pub fn unsubscribe_id(&self, mailbox: &Mailbox, id: SubscriptionId) -> bool {
        self.end_those(mailbox, |subscription| subscription.id == id)
    }

    fn end_those(&self, mailbox: &Mailbox, is_meant: impl Fn(&Subscription) -> bool) -> bool {
        let found: Vec<_> = {
            let book = self.book();
            book.interests.of(mailbox).iter().filter(|subscription| is_meant(subscription)).cloned().collect()
        };
        found.iter().filter(|subscription| self.end(subscription)).count() > 0
    }

    fn end(&self, subscription: &Subscription) -> bool {
        let mailbox = &subscription.subscriber;
        let mut book = self.book();
        let was_there = book.interests.end(subscription);
        // Under the lock, so that no update of another of the client's subscriptions is taken for one of this.
        let (receipt, uri) = (&subscription.receipt, &subscription.name.exposed);
        mailbox.updates.drop_of(receipt, uri, |native| book.interests.wants(mailbox, native));
        drop(book);
        self.bell.notify_one();
        was_there
    }

    /// All subscriptions, each with how it stands.
    pub fn all(&self) -> Vec<(Arc<Subscription>, &'static str)> {
        let book = self.book();
        book.interests.all().map(|(subscription, state)| (Arc::clone(subscription), state)).collect()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.book().interests.all().count()
    }

    /// The backend says that a resource changed.
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

    /// Puts an update of `native` into the mailbox of everybody who wants it.
    fn spread(&self, native: &str, update: Option<(&str, json::Span)>, message: impl FnOnce(&str) -> Bytes) {
        let offered = self.home.offered.load();
        if !offered.admits(native) {
            return;
        }
        let book = self.book();
        let affected = book.interests.affected(native);
        if affected.is_empty() {
            return;
        }
        // What it is about is what most of them asked for, more often than not.
        let name = match affected.iter().find(|it| *it.subscription.name.native == *native) {
            Some(exact) => Arc::clone(&exact.subscription.name),
            None => Arc::new(Name { native: native.into(), exposed: self.home.inbox.expose(native).into() }),
        };
        let message = message(&name.exposed);
        let event = Event::UpdateHeard { server: self.home.inbox.server(), uri: &name.exposed, count: affected.len() };
        let (mut once, mut asking) = (Once::default(), Vec::new());
        for affected in &affected {
            match self.judge(affected, native, update, &offered) {
                selective::Verdict::Deliver if once.is_first(affected) => put(affected, &name, &message),
                selective::Verdict::Deliver | selective::Verdict::Suppress => {}
                selective::Verdict::AskListing => asking.push(affected),
            }
        }
        if asking.into_iter().any(|affected| once.is_first(affected)) {
            self.held().hold(&name.native, &message);
            self.home.inbox.mark(&[List::Resources]);
        }
        self.home.inbox.emit(&event);
    }

    /// Whatever may have been missed is told as an update, each client once of each resource. Under the lock, as all that
    /// is told: in the order in which it was found, and to nobody who has ended the subscription meanwhile.
    fn tell(&self, _book: &Book, notices: &[Notice]) {
        let mut told = HashSet::new();
        for Notice { subscription, name } in notices {
            if told.insert((subscription.subscriber.id, Arc::as_ptr(name))) {
                put(&Affected { subscription, within: None, is_next: false }, name, &updated(&name.exposed));
            }
        }
    }

    /// Resources are gone.
    fn tell_deleted(&self, _book: &Book, notices: &[Notice]) {
        for Notice { subscription, name } in notices {
            subscription.forget(&name.native);
            let message = if subscription.subscriber.knows_deletion() {
                deleted(&name.exposed)
            } else {
                marked_deleted(&name.exposed)
            };
            put(&Affected { subscription, within: None, is_next: false }, name, &message);
        }
    }

    /// A link is there. To be called before anybody else can know of it: who subscribes then shall not be told otherwise.
    pub fn link_up(&self, can_subscribe: bool) {
        // What is read from time to time is asked for in a way: what it was like is known before that stands.
        let can_ask = can_subscribe || self.home.config.poll.is_some();
        let mut book = self.book();
        let is_listed = self.home.offered.load().is_listed();
        let (link, notices) = book.interests.link_up(can_ask, is_listed);
        book.link = link;
        self.tell(&book, &notices);
    }

    pub fn link_down(&self) {
        let mut book = self.book();
        let link = book.link;
        book.interests.link_down(link);
    }

    /// The backend was not heard for a while, over a connection that goes on: whoever wants updates is told once.
    pub fn doubt(&self) {
        let mut book = self.book();
        let notices = book.interests.doubt();
        self.tell(&book, &notices);
    }

    /// The connection over which the backend lists is another: whether anything is gone is found out anew.
    pub fn list_connected(&self) {
        self.chores().suspect(Vec::new());
    }

    /// The backend is about to list what it offers.
    pub fn list_begins(&self) {
        self.held().ask();
    }

    /// The backend could not list what it offers, so nobody can know what is news.
    pub fn list_failed(&self) {
        let asked = self.held().take();
        let book = self.book();
        for (native, message) in asked {
            let affected = book.interests.affected(&native);
            let mut once = Once::default();
            let selective = affected.iter().filter(|affected| affected.subscription.is_selective());
            for affected in selective.filter(|affected| once.is_first(affected)) {
                put(affected, &self.name_of(affected, &native), &message);
            }
        }
    }

    /// The backend has listed what it offers. `is_settled`: it has had the time to do so completely. `has_resources`: not
    /// its templates alone, which say nothing of fields. Tells whether it should be asked again when it has had that time:
    /// something is missed that it may have forgotten to list.
    pub async fn relisted(&self, is_settled: bool, has_resources: bool) -> bool {
        let patterns = self.book().interests.patterns();
        let covered = self.find_covered(patterns).await;
        self.tell_relisted(is_settled, has_resources, covered)
    }

    fn tell_relisted(&self, is_settled: bool, has_resources: bool, covered: Option<Covered>) -> bool {
        let mut book = self.book();
        let offered = self.home.offered.load_full();
        let before = std::mem::replace(&mut book.told, Arc::clone(&offered));
        let covered = covered.filter(|covered| covered.is_current(&offered, &before));
        let exposed = Exposed::new(&offered, &self.home.inbox, covered.as_ref());
        let relisted = match &covered {
            // A pattern that came meanwhile was compared with this list when it came.
            Some(covered) => book.interests.relisted(&exposed, covered.came()),
            None => book.interests.relisted(&exposed, offered.came_since(&before)),
        };
        if has_resources {
            self.tell_news(&book.interests, &offered);
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

    /// Gives up all subscriptions, for whoever keeps them from now on.
    pub fn hand_over(&self) -> Vec<Arc<Subscription>> {
        let mut book = self.book();
        book.is_closed = true;
        book.interests.drain()
    }

    /// Takes them over from another; the clients that are still there keep them.
    pub fn take_over(self: &Arc<Register>, subscriptions: Vec<Arc<Subscription>>) {
        let mailboxes: Vec<_> = subscriptions.iter().map(|subscription| Arc::clone(&subscription.subscriber)).collect();
        let names: HashSet<_> =
            subscriptions.iter().map(|subscription| Arc::clone(&subscription.name.native)).collect();
        let mut book = self.book();
        // Loaded under the lock, as for one that is entered.
        let offered = self.home.offered.load_full();
        let exposed = self.exposed(&offered);
        let notices = book.interests.restore(subscriptions, &exposed);
        self.tell(&book, &notices);
        // What the configuration hides from now on does not exist any more.
        for native in names.iter().filter(|native| !offered.admits(native)) {
            let hidden = book.interests.vanished(native, &exposed);
            self.tell_deleted(&book, &hidden.deleted);
        }
        drop(book);
        for mailbox in mailboxes.iter().filter(|mailbox| !self.hold(mailbox)) {
            self.book().interests.release(mailbox);
        }
        self.bell.notify_one();
    }

    /// The server is no more: all that was subscribed is gone.
    pub fn close(&self) {
        self.disown(self.hand_over());
    }

    /// Tells the clients of these that what they subscribed to is gone.
    pub fn disown(&self, subscriptions: Vec<Arc<Subscription>>) {
        let notices =
            subscriptions.into_iter().map(|subscription| Notice { name: Arc::clone(&subscription.name), subscription });
        self.tell_deleted(&self.book(), &notices.collect::<Vec<_>>());
    }

    fn name_of(&self, affected: &Affected<'_>, native: &Arc<str>) -> Arc<Name> {
        match affected.subscription.name.native == *native {
            true => Arc::clone(&affected.subscription.name),
            false => Arc::new(Name { native: Arc::clone(native), exposed: self.home.inbox.expose(native).into() }),
        }
    }

    /// No code that holds these locks is meant to panic.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.interests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chores(&self) -> MutexGuard<'_, Chores> {
        self.chores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long after a connection a list is believed to be complete.
pub const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Sees that a client is told once of an update that affects several of its subscriptions.
#[derive(Default)]
struct Once(HashSet<ClientId>);

impl Once {
    fn is_first(&mut self, affected: &Affected<'_>) -> bool {
        let subscription = affected.subscription;
        // Most have one, and nothing is remembered of them.
        let may_be_several = affected.is_next || subscription.is_selective();
        !may_be_several || self.0.insert(subscription.subscriber.id)
    }
}

/// Puts an update where it waits for one client.
fn put(affected: &Affected<'_>, name: &Arc<Name>, message: &Bytes) {
    let subscription = affected.subscription;
    // A pattern may cover more than its client may know of, and so may what is inside a resource.
    if subscription.name.native != name.native && !subscription.subscriber.may_hear_of(&name.exposed) {
        return;
    }
    let whole = affected.within.map_or_else(Bytes::new, |within| updated(&within.exposed));
    subscription.subscriber.update(&Update {
        native: &name.native,
        uri: &name.exposed,
        message,
        pace: subscription.pace(),
        receipt: &subscription.receipt,
        inside: affected.within.map(|within| Whole { native: &within.native, uri: &within.exposed, message: &whole }),
    });
}

/// Somebody who waits for how a wish stands.
struct Waiter<'a> {
    register: &'a Register,
    subscription: &'a Subscription,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.register.book().interests.withdraw(self.subscription);
        self.register.bell.notify_one();
    }
}

impl Holder for Register {
    fn release(&self, mailbox: &Mailbox) {
        let ended = self.book().interests.release(mailbox);
        self.bell.notify_one();
        self.home.inbox.emit(&Event::SubscriptionsReleased { server: self.home.inbox.server(), count: ended.len() });
    }

    fn tell_missed(&self, mailbox: &Mailbox) {
        let book = self.book();
        let notice = |subscription: &Arc<Subscription>| Notice {
            name: Arc::clone(&subscription.name),
            subscription: Arc::clone(subscription),
        };
        let notices: Vec<_> = book.interests.of(mailbox).iter().map(notice).collect();
        self.tell(&book, &notices);
    }
}

/// An update of our own.
fn updated(exposed: &str) -> Bytes {
    goblin_wire::notification(&Method::ResourceUpdated, Some(&format!(r#"{{"uri":{}}}"#, quote(exposed))))
}

/// A deletion, for a client that knows none: it looks, and finds nothing.
fn marked_deleted(exposed: &str) -> Bytes {
    let params = format!(r#"{{"uri":{},"_meta":{{"dev.goblin/deleted":true}}}}"#, quote(exposed));
    goblin_wire::notification(&Method::ResourceUpdated, Some(&params))
}

/// The same for one that does.
fn deleted(exposed: &str) -> Bytes {
    goblin_wire::notification(&Method::ResourceDeleted, Some(&format!(r#"{{"uri":{}}}"#, quote(exposed))))
}
