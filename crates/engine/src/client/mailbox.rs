//! What must survive a stream: which changes a client has been told of, what waits for its next stream, what it was asked,
//! and what was written to streams that may have been cut.
//!
//! One per session. Changes are levels, not events: "the tools changed" is a version number, so a client without an open
//! stream misses nothing and a burst is told once. What belongs to no call waits in a queue; when that is full, the
//! message is refused and whoever had it counts that.

pub mod asks;
pub mod replay;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::Notify;

use crate::client::caller::{Introduction, Level, SessionId};
use goblin_subscriptions::{ClientId, Subscriber};
use goblin_config::exposure::Profile;
use crate::client::mailbox::asks::Asks;
use crate::client::mailbox::replay::{KEPT_FOR, Replay};
use goblin_subscriptions::tally::Tally;
use goblin_subscriptions::updates::{Pace, Receipt, Update, Updates};
use goblin_wire::method::Method;

/// How many messages, and how many bytes of them, may wait for a stream of the client.
const MOST_WAITING: usize = 256;
const MOST_WAITING_BYTES: usize = 1024 * 1024;
/// How many tools a client may have put on its own list.
const MOST_REVEALED: usize = 64;
/// Stands for the level of a client that asked for none.
const NO_LEVEL: u8 = u8::MAX;

/// The state of the three lists that clients are told of. A greater number means changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    pub tools: u64,
    pub prompts: u64,
    pub resources: u64,
    /// Of the catalog as a whole.
    pub catalog: u64,
}

pub struct Mailbox {
    pub id: ClientId,
    /// The session of the client, or the name under which a stream without a session is listed.
    session: Option<SessionId>,
    /// What the client said of itself.
    pub introduction: Introduction,
    pub asks: Arc<Asks>,
    pub replay: Replay,
    pub updates: Updates,
    /// How many subscriptions the client has.
    pub subscriptions: Arc<Tally>,
    /// Who keeps subscriptions of the client.
    holders: Mutex<Vec<Weak<dyn Holder>>>,
    told: Mutex<Told>,
    waiting: Mutex<Waiting>,
    /// Rung for whoever holds a stream of the client, and for whoever waits for the client's end.
    bell: Notify,
    /// What the client may know of, where it has a profile.
    scope: OnceLock<Arc<Profile>>,
    /// Tools that the client had described, and sees on its list since.
    revealed: Mutex<VecDeque<Box<str>>>,
    /// Streams that what belongs to no call can go on.
    streams: AtomicUsize,
    /// What others keep for this client alone.
    holds: AtomicUsize,
    level: AtomicU8,
}

/// What the client knows of the lists. Nobody says that a notification has arrived: one that was written to a stream just
/// before that broke is lost, so what was told lately is told again on a stream that does not go on from an event.
struct Told {
    /// What it was told.
    last: Versions,
    /// What it was told long enough ago.
    sure: Versions,
    /// The newest of all it was told, and when. What is told again is none, else it would be told for ever.
    newest: Versions,
    at: Instant,
}

/// Somebody who keeps subscriptions of clients.
pub trait Holder: Send + Sync {
    /// The client is gone.
    fn release(&self, mailbox: &Mailbox);

    /// The client may have missed updates.
    fn tell_missed(&self, mailbox: &Mailbox);
}

/// Something that is kept for a client alone: a subscription, a link. Its drop gives it up.
pub struct Hold(Arc<Mailbox>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// The client is gone.
    closed: bool,
}

impl Mailbox {
    /// For a client that will see the lists as of `now`.
    pub fn new(introduction: Introduction, now: Versions, replay: Replay) -> Mailbox {
        Mailbox {
            id: ClientId::next(),
            session: None,
            introduction,
            asks: Arc::default(),
            replay,
            updates: Updates::default(),
            subscriptions: Arc::default(),
            holders: Mutex::default(),
            told: Mutex::new(Told { last: now, sure: now, newest: now, at: Instant::now() }),
            waiting: Mutex::default(),
            bell: Notify::new(),
            scope: OnceLock::new(),
            revealed: Mutex::default(),
            streams: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
            level: AtomicU8::new(NO_LEVEL),
        }
    }

    /// Returns the mailbox of a session.
    pub fn of_session(self, session: SessionId) -> Mailbox {
        Mailbox { session: Some(session), ..self }
    }

    /// Returns the short form of the session id, for people. It is empty for a client without a session.
    pub fn session_name(&self) -> String {
        self.session.map(SessionId::short).unwrap_or_default()
    }

    /// The notifications that are due when the lists stand at `now`; they count as told.
    pub fn take_due(&self, now: Versions) -> Vec<Bytes> {
        let mut told = lock(&self.told);
        if told.newest != now {
            if told.at.elapsed() >= KEPT_FOR {
                told.sure = told.newest;
            }
            told.newest = now;
            told.at = Instant::now();
        }
        let last = std::mem::replace(&mut told.last, now);
        drop(told);
        let kinds = [
            (last.tools != now.tools, Method::ToolsChanged),
            (last.prompts != now.prompts, Method::PromptsChanged),
            (last.resources != now.resources, Method::ResourcesChanged),
        ];
        kinds.iter().filter(|(due, _)| *due).map(|(_, method)| goblin_wire::notification(method, None)).collect()
    }

    /// The client comes with a new stream and says nothing of what it has seen on the one before: what it was told in the
    /// last [`KEPT_FOR`] is due again.
    pub fn tell_again(&self) {
        let mut told = lock(&self.told);
        if told.at.elapsed() < KEPT_FOR {
            told.last = told.sure;
        }
    }

    /// What the client was told may not have reached it: all of it is due again.
    pub fn doubt(&self) {
        // No list is ever at this version, so each differs from it.
        let never = u64::MAX;
        lock(&self.told).last = Versions { tools: never, prompts: never, resources: never, catalog: never };
    }

    /// Something is kept for this client alone for as long as this lives.
    pub fn hold(self: &Arc<Mailbox>) -> Hold {
        self.holds.fetch_add(1, Ordering::Relaxed);
        Hold(Arc::clone(self))
    }

    pub fn is_holding(&self) -> bool {
        self.holds.load(Ordering::Relaxed) > 0 || self.subscriptions.count() > 0
    }

    /// Whether the client can be told of a deletion in so many words.
    pub fn knows_deletion(&self) -> bool {
        self.introduction.abilities.subscriptions
    }

    /// Log lines below this are not for this client.
    pub fn level(&self) -> Level {
        self.asked_level().unwrap_or(Level::DEFAULT)
    }

    /// The level that the client asked for, if it did.
    pub fn asked_level(&self) -> Option<Level> {
        Level::ALL.get(usize::from(self.level.load(Ordering::Relaxed))).copied()
    }

    pub fn set_level(&self, level: Level) {
        self.level.store(level as u8, Ordering::Relaxed);
    }

    /// Queues a message that belongs to no call, for the next stream of the client; tells whether it was taken.
    pub fn post(&self, message: Bytes) -> bool {
        let mut waiting = lock(&self.waiting);
        let full = waiting.messages.len() >= MOST_WAITING || waiting.bytes + message.len() > MOST_WAITING_BYTES;
        if waiting.closed || full {
            return false;
        }
        waiting.bytes += message.len();
        // A copy: it may be kept for a while, and shall not keep the whole buffer that it was read into.
        waiting.messages.push_back(Bytes::copy_from_slice(&message));
        drop(waiting);
        self.bell.notify_waiters();
        true
    }

    pub fn try_next(&self) -> Option<Bytes> {
        let mut waiting = lock(&self.waiting);
        let message = waiting.messages.pop_front()?;
        waiting.bytes -= message.len();
        Some(message)
    }

    /// Restricts the client to the resources that `profile` shows.
    pub fn confine(&self, profile: Arc<Profile>) {
        // The profile of a client never changes, so the first one stays.
        let _ = self.scope.set(profile);
    }

    /// Returns the profile of the client.
    pub fn profile(&self) -> Option<&Arc<Profile>> {
        self.scope.get()
    }

    /// Returns whether the client may receive updates of an exposed URI.
    pub fn may_hear_of(&self, uri: &str) -> bool {
        self.profile().is_none_or(|profile| profile.resources.admits(uri))
    }

    /// Puts a tool on the client's own list, and says that the list changed. Of too many the oldest goes.
    pub fn reveal(&self, tool: &str) {
        let mut revealed = lock(&self.revealed);
        if revealed.iter().any(|known| &**known == tool) {
            return;
        }
        if revealed.len() >= MOST_REVEALED {
            revealed.pop_front();
        }
        revealed.push_back(tool.into());
        drop(revealed);
        // Where there is no room for it the client has more to read than a list.
        self.post(goblin_wire::notification(&Method::ToolsChanged, None));
    }

    pub fn revealed(&self) -> Vec<Box<str>> {
        lock(&self.revealed).iter().cloned().collect()
    }

    /// Puts an update of a resource where it waits for the client's stream.
    pub fn update(&self, update: &Update<'_>) {
        if self.updates.put(update, Instant::now()) {
            self.bell.notify_waiters();
        }
    }

    /// The client wants updates for one of its subscriptions otherwise than before.
    pub fn set_pace(&self, receipt: &Arc<Receipt>, uri: &str, pace: Pace) {
        if self.updates.set_pace(receipt, uri, pace, Instant::now()) {
            self.bell.notify_waiters();
        }
    }

    /// The next message that belongs to no call, or all updates that are due. For the holder of a stream; cancel-safe.
    pub async fn next(&self) -> Vec<Bytes> {
        loop {
            // First, so that nothing comes unseen between the look and the wait.
            let rung = self.bell.notified();
            if let Some(message) = self.try_next() {
                return vec![message];
            }
            let due = self.updates.take_due(Instant::now());
            if !due.is_empty() {
                return due;
            }
            match self.updates.next_due() {
                Some(due) => drop(tokio::time::timeout_at(due.into(), rung).await),
                None => rung.await,
            }
        }
    }

    /// `holder` keeps subscriptions of this client, until the client is gone. Tells whether it is there.
    pub fn hold_for(&self, holder: &Arc<dyn Holder>) -> bool {
        let mut holders = lock(&self.holders);
        let holder = Arc::downgrade(holder);
        if !holders.iter().any(|other| other.ptr_eq(&holder)) {
            holders.retain(|holder| holder.strong_count() > 0);
            holders.push(holder);
        }
        drop(holders);
        // After it was entered: whoever closes the mailbox in this moment finds it, or we find the mailbox closed.
        !self.is_closed()
    }

    /// The client may have missed updates: one of each that it subscribed to is due.
    pub fn tell_missed(&self) {
        for holder in self.holders() {
            holder.tell_missed(self);
        }
    }

    fn holders(&self) -> Vec<Arc<dyn Holder>> {
        lock(&self.holders).iter().filter_map(Weak::upgrade).collect()
    }

    /// A stream of the client that takes what belongs to no call has begun, or ended.
    pub fn count_stream(&self, begun: bool) {
        match begun {
            true => self.streams.fetch_add(1, Ordering::Relaxed),
            false => self.streams.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// How many of them are open.
    pub fn open_streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub fn has_stream(&self) -> bool {
        self.open_streams() > 0
    }

    /// The client is gone: nobody is waited for, and nothing is kept.
    pub fn close(&self) {
        let mut waiting = lock(&self.waiting);
        *waiting = Waiting { closed: true, ..Waiting::default() };
        drop(waiting);
        self.asks.close();
        self.replay.close();
        self.updates.close();
        self.bell.notify_waiters();
        // Last, since it asks others: they find the mailbox closed.
        for holder in self.holders() {
            holder.release(self);
        }
        lock(&self.holders).clear();
    }

    pub fn is_closed(&self) -> bool {
        lock(&self.waiting).closed
    }

    /// Waits until the client is gone.
    pub async fn closed(&self) {
        loop {
            let rung = self.bell.notified();
            if self.is_closed() {
                return;
            }
            rung.await;
        }
    }
}

/// No code that holds these locks can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subscriber for Mailbox {
    fn id(&self) -> ClientId {
        self.id
    }

    fn profile(&self) -> Option<&Arc<Profile>> {
        Mailbox::profile(self)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn mailbox() -> Mailbox {
        Mailbox::new(Introduction::default(), Versions::default(), Replay::new(1))
    }

    #[test]
    fn reg8_each_changed_list_is_told_once() {
        let mailbox = mailbox();
        assert!(mailbox.take_due(Versions { catalog: 9, ..Versions::default() }).is_empty());
        let now = Versions { tools: 5, resources: 1, ..Versions::default() };
        assert_eq!(
            mailbox.take_due(now),
            [
                r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
            ]
        );
        assert!(mailbox.take_due(now).is_empty());
        mailbox.doubt();
        assert_eq!(mailbox.take_due(now).len(), 3);
        assert!(mailbox.take_due(now).is_empty());
    }

    #[test]
    fn sess2_what_was_told_lately_is_told_again_on_the_next_stream() {
        let mailbox = mailbox();
        let long_ago = || {
            let mut told = lock(&mailbox.told);
            told.at = told.at.checked_sub(KEPT_FOR).expect("the clock is older than that");
        };
        let tools = Versions { tools: 1, ..Versions::default() };
        mailbox.tell_again();
        assert!(mailbox.take_due(Versions::default()).is_empty(), "nothing was told");
        assert_eq!(mailbox.take_due(tools).len(), 1);
        for _ in 0..2 {
            mailbox.tell_again();
            assert_eq!(mailbox.take_due(tools).len(), 1);
        }
        long_ago();
        mailbox.tell_again();
        assert!(mailbox.take_due(tools).is_empty(), "it is known by now");
        let prompts = Versions { prompts: 1, ..tools };
        assert_eq!(mailbox.take_due(prompts).len(), 1);
        mailbox.tell_again();
        assert_eq!(mailbox.take_due(prompts).len(), 1, "of the prompts alone");
    }

    #[tokio::test]
    async fn what_belongs_to_no_call_waits_for_a_stream_within_bounds() {
        let mailbox = mailbox();
        let taken = (0..MOST_WAITING + 9).filter(|_| mailbox.post(Bytes::from_static(b"x"))).count();
        assert_eq!(taken, MOST_WAITING);
        for _ in 0..taken {
            assert_eq!(mailbox.next().await, ["x"]);
        }
        assert!(mailbox.next().now_or_never().is_none());
        assert!(!mailbox.post(vec![b'x'; MOST_WAITING_BYTES + 1].into()));
        assert!(mailbox.closed().now_or_never().is_none());
        mailbox.close();
        mailbox.closed().await;
        assert!(!mailbox.post(Bytes::from_static(b"x")));
    }
}
