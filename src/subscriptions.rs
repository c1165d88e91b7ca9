//! Who wants to know of which resource, over one link.
//!
//! [`Interests`] answers three questions, each at the cost of what it touches: who must hear of an update, what must be
//! said upstream, and what ends with a client. It does no I/O. The first who wants a URI makes it wanted upstream, the last
//! who leaves makes it unwanted; one request per URI is on its way at a time, and after each answer what is wanted and what
//! is so are compared again. So no interleaving leaves the upstream wrong.

pub mod glob;
pub mod id;
pub mod selection;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwapOption;
use tokio::sync::oneshot;

use crate::caller::SessionId;
use crate::mailbox::Mailbox;
use crate::mailbox::tally::Place;
use crate::mailbox::updates::{Pace, Receipt};
use crate::protocol::Response;
use crate::subscriptions::id::SubscriptionId;

/// A client, by its mailbox: what a subscription holds has no other's address.
type Key = usize;

fn key(mailbox: &Mailbox) -> Key {
    std::ptr::from_ref(mailbox).addr()
}

/// A resource under both its names.
#[derive(Debug, PartialEq, Eq)]
pub struct Name {
    pub native: Arc<str>,
    pub exposed: Arc<str>,
}

/// One client's wish to hear of one resource.
pub struct Subscription {
    pub id: SubscriptionId,
    pub client: SessionId,
    pub mailbox: Arc<Mailbox>,
    pub name: Arc<Name>,
    pub created: SystemTime,
    pub receipt: Arc<Receipt>,
    /// Nothing where it is as plain as the protocol has it.
    pace: ArcSwapOption<Pace>,
    _place: Place,
}

impl Subscription {
    pub fn pace(&self) -> Pace {
        self.pace.load().as_deref().copied().unwrap_or_default()
    }

    fn set_pace(&self, pace: Pace) {
        self.pace.store((pace != Pace::default()).then(|| Arc::new(pace)));
    }
}

/// What is to be subscribed.
pub struct Wish {
    pub client: SessionId,
    pub mailbox: Arc<Mailbox>,
    pub native: Arc<str>,
    pub exposed: Arc<str>,
    pub pace: Pace,
}

/// How a subscription stands.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The backend tells of changes.
    Subscribed,
    /// The backend cannot be asked to; what it says of its own accord is passed on.
    Tracked,
    /// The backend is not connected; it will be asked when it is.
    Pending,
    /// The backend refused. There is no subscription.
    Refused(Arc<Response>),
    /// The request failed on its way, for this reason. There is no subscription.
    Failed(Arc<str>),
}

/// A subscription that was entered.
pub struct Entry {
    pub subscription: Arc<Subscription>,
    pub standing: Standing,
}

pub enum Standing {
    Settled(Outcome),
    /// The backend is being asked.
    Asked(oneshot::Receiver<Outcome>),
}

/// Something to say upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub native: Arc<str>,
    pub subscribes: bool,
    /// Which connection it is for: an answer over one that is gone means nothing.
    link: u64,
}

/// What the backend made of a [`Job`].
#[derive(Clone, Debug)]
pub enum Reply {
    Done,
    /// It does not know the method.
    Unknown,
    Refused(Arc<Response>),
    Failed(Arc<str>),
}

/// Subscriptions whose clients must be told that something may have changed.
pub type Missed = Vec<Arc<Subscription>>;

#[derive(Default)]
pub struct Interests {
    topics: HashMap<Arc<str>, Topic>,
    clients: HashMap<Key, Vec<Arc<Subscription>>>,
    /// Topics to compare with the upstream.
    dirty: VecDeque<Arc<str>>,
    /// Counts connections.
    link: u64,
    upstream: Upstream,
}

/// What can be said upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Upstream {
    #[default]
    Down,
    /// Connected, but it has no subscriptions.
    Deaf,
    Up,
}

struct Topic {
    name: Arc<Name>,
    subscribers: HashMap<Key, Arc<Subscription>>,
    state: State,
    /// Updates may have been missed: subscribers are told so once, when the backend listens again.
    is_stale: bool,
    waiting: Vec<Waiting>,
}

struct Waiting {
    client: Key,
    /// It was entered for this, and goes if this is refused.
    is_new: bool,
    outcome: oneshot::Sender<Outcome>,
}

/// How a URI stands upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Off,
    Asking,
    On,
    Ending,
    /// It cannot be asked for.
    Tracked,
}

impl Interests {
    /// Enters a wish. One that a client has already keeps its id; how it wants it now stands. `place` is asked for room.
    pub fn subscribe<E>(&mut self, wish: Wish, place: impl FnOnce() -> Result<Place, E>) -> Result<Entry, E> {
        let client = key(&wish.mailbox);
        let known = self.topics.get(&wish.native).and_then(|topic| topic.subscribers.get(&client)).cloned();
        let is_new = known.is_none();
        let (native, pace) = (Arc::clone(&wish.native), wish.pace);
        let subscription = match known {
            Some(known) => known,
            None => self.enter(wish, place()?),
        };
        subscription.set_pace(pace);
        let standing = self.standing(&native, client, is_new);
        Ok(Entry { subscription, standing })
    }

    fn enter(&mut self, wish: Wish, place: Place) -> Arc<Subscription> {
        let topic = self.topics.entry(Arc::clone(&wish.native)).or_insert_with(|| Topic {
            name: Arc::new(Name { native: Arc::clone(&wish.native), exposed: wish.exposed }),
            subscribers: HashMap::new(),
            state: State::Off,
            is_stale: false,
            waiting: Vec::new(),
        });
        let created = SystemTime::now();
        let subscription = Arc::new(Subscription {
            id: SubscriptionId::new(created),
            client: wish.client,
            mailbox: wish.mailbox,
            name: Arc::clone(&topic.name),
            created,
            receipt: Arc::default(),
            pace: ArcSwapOption::empty(),
            _place: place,
        });
        let client = key(&subscription.mailbox);
        topic.subscribers.insert(client, Arc::clone(&subscription));
        self.clients.entry(client).or_default().push(Arc::clone(&subscription));
        subscription
    }

    fn standing(&mut self, native: &Arc<str>, client: Key, is_new: bool) -> Standing {
        let Some(topic) = self.topics.get_mut(native) else { return Standing::Settled(Outcome::Pending) };
        match (self.upstream, topic.state) {
            (Upstream::Down, _) => {
                topic.is_stale = true;
                Standing::Settled(Outcome::Pending)
            }
            (Upstream::Deaf, _) | (_, State::Tracked) => {
                topic.state = State::Tracked;
                Standing::Settled(Outcome::Tracked)
            }
            (Upstream::Up, State::On) => Standing::Settled(Outcome::Subscribed),
            (Upstream::Up, state) => {
                let (outcome, settled) = oneshot::channel();
                topic.waiting.push(Waiting { client, is_new, outcome });
                if state == State::Off {
                    self.dirty.push_back(Arc::clone(native));
                }
                Standing::Asked(settled)
            }
        }
    }

    /// Ends a client's wish for a URI; gives it back if there was one.
    pub fn unsubscribe(&mut self, mailbox: &Mailbox, native: &str) -> Option<Arc<Subscription>> {
        self.end(key(mailbox), native)
    }

    fn end(&mut self, client: Key, native: &str) -> Option<Arc<Subscription>> {
        let subscription = self.leave(client, native)?;
        if let Some(own) = self.clients.get_mut(&client) {
            own.retain(|other| !Arc::ptr_eq(other, &subscription));
            if own.is_empty() {
                self.clients.remove(&client);
            }
        }
        Some(subscription)
    }

    /// Ends all that a client wants.
    pub fn release(&mut self, mailbox: &Mailbox) -> Vec<Arc<Subscription>> {
        let client = key(mailbox);
        let own = self.clients.remove(&client).unwrap_or_default();
        for subscription in &own {
            self.leave(client, &subscription.name.native);
        }
        own
    }

    fn leave(&mut self, client: Key, native: &str) -> Option<Arc<Subscription>> {
        let topic = self.topics.get_mut(native)?;
        let subscription = topic.subscribers.remove(&client)?;
        topic.waiting.retain(|waiting| waiting.client != client);
        if topic.subscribers.is_empty() {
            let native = Arc::clone(&topic.name.native);
            match topic.state {
                State::Off | State::Tracked => drop(self.topics.remove(&native)),
                State::On => self.dirty.push_back(native),
                // Compared when the answer is there.
                State::Asking | State::Ending => {}
            }
        }
        Some(subscription)
    }

    /// Nobody waits any more for how a client's wish for a URI stands: one that was entered for this goes, unless the client
    /// wishes it a second time.
    pub fn withdraw(&mut self, mailbox: &Mailbox, native: &str) {
        let client = key(mailbox);
        let Some(topic) = self.topics.get_mut(native) else { return };
        let is_over = |waiting: &Waiting| waiting.client == client && waiting.outcome.is_closed();
        let was_new = topic.waiting.iter().any(|waiting| is_over(waiting) && waiting.is_new);
        topic.waiting.retain(|waiting| !is_over(waiting));
        match topic.waiting.iter_mut().find(|waiting| waiting.client == client) {
            Some(other) => other.is_new |= was_new,
            None if was_new => drop(self.end(client, native)),
            None => {}
        }
    }

    /// Whether a client wants something that `native` is inside of.
    pub fn wants_outer(&self, mailbox: &Mailbox, native: &str) -> bool {
        let client = key(mailbox);
        outer(native).any(|uri| self.topics.get(uri).is_some_and(|topic| topic.subscribers.contains_key(&client)))
    }

    /// All subscriptions of a client.
    pub fn of(&self, mailbox: &Mailbox) -> &[Arc<Subscription>] {
        self.clients.get(&key(mailbox)).map_or(&[], Vec::as_slice)
    }

    /// All subscriptions, with how each stands.
    pub fn all(&self) -> impl Iterator<Item = (&Arc<Subscription>, &'static str)> {
        self.topics.values().flat_map(|topic| {
            let state = match topic.state {
                State::On => "subscribed",
                State::Tracked => "tracked",
                State::Off | State::Asking | State::Ending => "pending",
            };
            topic.subscribers.values().map(move |subscription| (subscription, state))
        })
    }

    /// Who must hear of an update of `native`: those who want it, and those who want something it is inside of. A client
    /// that wants several of these is told once, for the nearest.
    pub fn affected(&self, native: &str) -> Vec<&Arc<Subscription>> {
        let mut found: Vec<&Arc<Subscription>> = Vec::new();
        for uri in std::iter::once(native).chain(outer(native)) {
            let Some(topic) = self.topics.get(uri) else { continue };
            match found.is_empty() {
                true => found.extend(topic.subscribers.values()),
                false => {
                    let already: HashSet<_> = found.iter().map(|subscription| key(&subscription.mailbox)).collect();
                    let others = topic.subscribers.values();
                    found.extend(others.filter(|subscription| !already.contains(&key(&subscription.mailbox))));
                }
            }
        }
        if found.iter().any(|subscription| subscription.pace().priority != 0) {
            found.sort_by_key(|subscription| std::cmp::Reverse(subscription.pace().priority));
        }
        found
    }

    /// The connection is there. Whoever was subscribed before may have missed something; where nothing can be asked for,
    /// they are told at once.
    pub fn link_up(&mut self, can_subscribe: bool) -> Missed {
        self.link += 1;
        self.upstream = if can_subscribe { Upstream::Up } else { Upstream::Deaf };
        self.dirty.clear();
        let mut missed = Vec::new();
        for (native, topic) in &mut self.topics {
            if can_subscribe {
                topic.state = State::Off;
                self.dirty.push_back(Arc::clone(native));
            } else {
                topic.state = State::Tracked;
                if std::mem::take(&mut topic.is_stale) {
                    missed.extend(topic.subscribers.values().cloned());
                }
            }
        }
        missed
    }

    /// The connection is gone. Who waits for an answer has a subscription that will be asked for again.
    pub fn link_down(&mut self) {
        self.link += 1;
        self.upstream = Upstream::Down;
        self.dirty.clear();
        self.topics.retain(|_, topic| !topic.subscribers.is_empty());
        for topic in self.topics.values_mut() {
            topic.state = State::Off;
            topic.is_stale = true;
            for waiting in topic.waiting.drain(..) {
                // Whoever left meanwhile needs no answer.
                let _ = waiting.outcome.send(Outcome::Pending);
            }
        }
    }

    /// What to say upstream next, if anything.
    pub fn next_job(&mut self) -> Option<Job> {
        while let Some(native) = self.dirty.pop_front() {
            let Some(topic) = self.topics.get_mut(&native) else { continue };
            let is_wanted = !topic.subscribers.is_empty();
            let subscribes = match (is_wanted, topic.state) {
                (true, State::Off) => true,
                (false, State::On) => false,
                (false, State::Off | State::Tracked) => {
                    self.topics.remove(&native);
                    continue;
                }
                _ => continue,
            };
            topic.state = if subscribes { State::Asking } else { State::Ending };
            return Some(Job { native, subscribes, link: self.link });
        }
        None
    }

    /// The answer to a job. Tells who must hear that something may have changed.
    pub fn answered(&mut self, job: &Job, reply: Reply) -> Missed {
        if job.link != self.link {
            return Vec::new();
        }
        let Some(topic) = self.topics.get_mut(&job.native) else { return Vec::new() };
        let mut missed = Vec::new();
        if job.subscribes {
            let (state, outcome) = match reply {
                Reply::Done => (State::On, Outcome::Subscribed),
                Reply::Unknown => (State::Tracked, Outcome::Tracked),
                Reply::Refused(response) => (State::Off, Outcome::Refused(response)),
                Reply::Failed(reason) => (State::Off, Outcome::Failed(reason)),
            };
            topic.state = state;
            let waiting = std::mem::take(&mut topic.waiting);
            if matches!(outcome, Outcome::Refused(_) | Outcome::Failed(_)) {
                self.refuse(&job.native, &waiting);
            } else if std::mem::take(&mut topic.is_stale) {
                missed.extend(topic.subscribers.values().cloned());
            }
            for waiting in waiting {
                let _ = waiting.outcome.send(outcome.clone());
            }
        } else {
            // Whatever it said: it was told.
            topic.state = State::Off;
        }
        self.compare(&job.native, job.subscribes);
        missed
    }

    /// Those who were entered for what was refused have no subscription.
    fn refuse(&mut self, native: &str, waiting: &[Waiting]) {
        for waiting in waiting.iter().filter(|waiting| waiting.is_new) {
            self.end(waiting.client, native);
        }
    }

    /// After an answer: is it as it is wanted?
    fn compare(&mut self, native: &Arc<str>, was_asked: bool) {
        let Some(topic) = self.topics.get(native) else { return };
        let is_wanted = !topic.subscribers.is_empty();
        match (is_wanted, topic.state) {
            (false, State::On) => self.dirty.push_back(Arc::clone(native)),
            // Who is left after a refusal waits for the next connection.
            (true, State::Off) if !was_asked || !topic.waiting.is_empty() => self.dirty.push_back(Arc::clone(native)),
            (false, _) => drop(self.topics.remove(native)),
            _ => {}
        }
    }

    pub fn is_empty(&self) -> bool {
        self.topics.is_empty() && self.clients.is_empty()
    }
}

/// What `native` is inside of, nearest first: every beginning of it that ends in `/`, or behind which it goes on with `/`,
/// `?` or `#`.
fn outer(native: &str) -> impl Iterator<Item = &str> {
    let ends = native.char_indices().rev().filter(|(_, character)| matches!(character, '/' | '?' | '#'));
    ends.flat_map(|(at, character)| {
        let with = (character == '/').then(|| &native[..=at]).filter(|with| with.len() < native.len());
        with.into_iter().chain(std::iter::once(&native[..at]))
    })
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests;
