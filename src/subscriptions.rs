//! Who wants to know of which resource, over one link.
//!
//! [`Interests`] answers three questions, each at the cost of what it touches: who must hear of an update, what must be
//! said upstream, and what ends with a client. It does no I/O. The first who wants a URI makes it wanted upstream, the last
//! who leaves makes it unwanted; one request per URI is on its way at a time, and after each answer what is wanted and what
//! is so are compared again. So no interleaving leaves the upstream wrong.

pub mod id;

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
mod tests {
    use super::*;
    use crate::caller::Node;
    use crate::mailbox::replay::Replay;
    use crate::mailbox::tally::Tally;

    #[test]
    fn sub18_a_uri_is_inside_of_its_beginnings_at_a_boundary() {
        let check = |native: &str, expected: &[&str]| assert_eq!(outer(native).collect::<Vec<_>>(), expected);
        check("a:b/c", &["a:b/", "a:b"]);
        check("a:b/", &["a:b"]);
        check("a:b?q#f", &["a:b?q", "a:b"]);
        check("a:b", &[]);
    }

    /// Interests with clients that are numbered.
    struct Stage {
        interests: Interests,
        clients: Vec<(SessionId, Arc<Mailbox>)>,
        tally: Arc<Tally>,
    }

    impl Stage {
        fn new() -> Stage {
            let client =
                |_| (SessionId::new(Node::random()), Arc::new(Mailbox::new(Default::default(), Replay::new(0))));
            let mut interests = Interests::default();
            interests.link_up(true);
            Stage { interests, clients: (0..3).map(client).collect(), tally: Arc::default() }
        }

        fn subscribe(&mut self, client: usize, uri: &str) -> Entry {
            let (id, mailbox) = &self.clients[client];
            let (native, exposed) = (Arc::from(uri), Arc::from(format!("x+{uri}")));
            let wish = Wish { client: *id, mailbox: Arc::clone(mailbox), native, exposed, pace: Pace::default() };
            let tally = &self.tally;
            let place = || Place::new((tally, 99), (&Arc::default(), 99));
            self.interests.subscribe(wish, place).unwrap_or_else(|full| panic!("{full:?}"))
        }

        fn unsubscribe(&mut self, client: usize, uri: &str) -> bool {
            self.interests.unsubscribe(&self.clients[client].1, uri).is_some()
        }

        /// The next job as `+uri` or `-uri`.
        fn job(&mut self) -> Option<(String, Job)> {
            let job = self.interests.next_job()?;
            Some((format!("{}{}", if job.subscribes { '+' } else { '-' }, job.native), job))
        }

        fn answer(&mut self, expected: &str, reply: Reply) -> usize {
            let (text, job) = self.job().expect("a job");
            assert_eq!(text, expected);
            self.interests.answered(&job, reply).len()
        }
    }

    fn settled(mut entry: Entry) -> String {
        let outcome = match &mut entry.standing {
            Standing::Settled(outcome) => outcome.clone(),
            Standing::Asked(asked) => asked.try_recv().expect("it is settled"),
        };
        format!("{outcome:?}").chars().take_while(|character| character.is_alphabetic()).collect()
    }

    #[test]
    fn sub2_sub12_the_first_subscribes_and_the_last_unsubscribes() {
        let mut stage = Stage::new();
        let (one, two) = (stage.subscribe(0, "a"), stage.subscribe(1, "a"));
        assert_eq!(stage.answer("+a", Reply::Done), 0);
        assert_eq!((settled(one), settled(two)), ("Subscribed".to_owned(), "Subscribed".to_owned()));
        assert!(stage.unsubscribe(0, "a"));
        assert!(stage.job().is_none() && !stage.unsubscribe(0, "a"));
        assert!(stage.unsubscribe(1, "a"));
        stage.answer("-a", Reply::Done);
        assert!(stage.interests.is_empty() && stage.tally.count() == 0);
    }

    #[test]
    fn sub10_a_refusal_reaches_all_who_wait_and_leaves_nothing() {
        let mut stage = Stage::new();
        let (one, two) = (stage.subscribe(0, "a"), stage.subscribe(1, "a"));
        stage.answer("+a", Reply::Failed("no".into()));
        assert_eq!((settled(one), settled(two)), ("Failed".to_owned(), "Failed".to_owned()));
        assert!(stage.interests.is_empty() && stage.job().is_none());
    }

    #[test]
    fn sub9_what_cannot_be_asked_for_is_tracked() {
        let mut stage = Stage::new();
        let entry = stage.subscribe(0, "a");
        stage.answer("+a", Reply::Unknown);
        assert_eq!(settled(entry), "Tracked");
        assert_eq!(stage.interests.affected("a").len(), 1);
        assert!(stage.unsubscribe(0, "a") && stage.job().is_none() && stage.interests.is_empty());
        stage.interests.link_up(false);
        assert_eq!(settled(stage.subscribe(0, "b")), "Tracked");
        assert!(stage.job().is_none());
    }

    #[test]
    fn sub2_whoever_changes_their_mind_while_the_backend_is_asked_ends_up_right() {
        let mut stage = Stage::new();
        stage.subscribe(0, "a");
        let (_, asking) = stage.job().expect("a job");
        stage.unsubscribe(0, "a");
        assert!(stage.job().is_none(), "one request at a time");
        stage.interests.answered(&asking, Reply::Done);
        let (text, ending) = stage.job().expect("it is not wanted");
        assert_eq!(text, "-a");
        let entry = stage.subscribe(1, "a");
        assert!(stage.job().is_none());
        stage.interests.answered(&ending, Reply::Done);
        stage.answer("+a", Reply::Done);
        assert_eq!(settled(entry), "Subscribed");
    }

    #[test]
    fn sub16_after_a_loss_all_is_asked_for_again_and_told_once() {
        let mut stage = Stage::new();
        stage.subscribe(0, "a");
        stage.answer("+a", Reply::Done);
        stage.interests.link_down();
        assert_eq!(settled(stage.subscribe(1, "a")), "Pending");
        assert_eq!(settled(stage.subscribe(1, "b")), "Pending");
        assert!(stage.job().is_none());
        assert!(stage.interests.link_up(true).is_empty());
        let told: usize = (0..2)
            .map(|_| {
                let (_, job) = stage.job().expect("a job");
                stage.interests.answered(&job, Reply::Done).len()
            })
            .sum();
        assert_eq!(told, 3);
        assert!(stage.job().is_none());
    }

    #[test]
    fn sub16_an_answer_over_a_connection_that_is_gone_means_nothing() {
        let mut stage = Stage::new();
        let entry = stage.subscribe(0, "a");
        let (_, old) = stage.job().expect("a job");
        stage.interests.link_down();
        assert_eq!(settled(entry), "Pending");
        stage.interests.link_up(true);
        assert!(stage.interests.answered(&old, Reply::Done).is_empty());
        assert_eq!(stage.answer("+a", Reply::Done), 1);
    }

    #[test]
    fn sub5_a_client_hears_an_update_once_however_many_of_its_wishes_match() {
        let mut stage = Stage::new();
        stage.subscribe(0, "a:b");
        stage.subscribe(0, "a:b/c");
        stage.subscribe(1, "a:b/");
        stage.subscribe(2, "a:x");
        let who = |uri: &str| {
            let mut who: Vec<_> =
                stage.interests.affected(uri).iter().map(|found| found.name.native.to_string()).collect();
            who.sort();
            who.join(" ")
        };
        assert_eq!(who("a:b/c"), "a:b/ a:b/c");
        assert_eq!(who("a:b/d"), "a:b a:b/");
        assert_eq!(who("a:bc"), "");
        assert_eq!(who("a:x"), "a:x");
    }

    #[test]
    fn sub7_the_end_of_a_client_ends_what_it_alone_wanted() {
        let mut stage = Stage::new();
        for (client, uri) in [(0, "a"), (0, "b"), (1, "b")] {
            stage.subscribe(client, uri);
        }
        stage.answer("+a", Reply::Done);
        stage.answer("+b", Reply::Done);
        let gone = Arc::clone(&stage.clients[0].1);
        assert_eq!(stage.interests.release(&gone).len(), 2);
        stage.answer("-a", Reply::Done);
        assert!(stage.job().is_none());
        assert_eq!(stage.interests.affected("b").len(), 1);
    }

    #[test]
    fn sub11_twice_is_once_and_the_newer_wish_stands() {
        let mut stage = Stage::new();
        let first = stage.subscribe(0, "a").subscription.id;
        stage.answer("+a", Reply::Done);
        let again = stage.subscribe(0, "a");
        assert_eq!(again.subscription.id, first);
        assert_eq!(settled(again), "Subscribed");
        assert_eq!(stage.tally.count(), 1);
        assert!(stage.job().is_none());
        assert_eq!(stage.interests.of(&stage.clients[0].1).len(), 1);
        assert!(stage.interests.of(&stage.clients[1].1).is_empty());
    }
}
