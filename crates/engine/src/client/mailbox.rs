//! The state of one client that outlives its streams.
//!
//! A mailbox holds the messages that belong to no call, the open server requests, the pending resource updates and the
//! replay buffer. Each session has one, and each stream of the client reads from it. List changes are kept as version
//! numbers, not as events: a client without an open stream misses nothing, and a burst produces one notification. The
//! queue of messages is bounded. If it is full, [`Mailbox::post`] returns `false` and the caller counts the loss.

pub(crate) mod replay;
pub(crate) mod server_requests;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use bytes::Bytes;
use goblin_config::exposure::Profile;
use goblin_subscriptions::count::SubscriptionCount;
use goblin_subscriptions::updates::{DeliveryCounts, DeliveryOptions, Update, Updates};
use goblin_subscriptions::{ClientId, Subscriber};
use goblin_wire::Method;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::caller::{Introduction, Level, SessionId};
use crate::client::mailbox::replay::{KEPT_FOR, Replay};
use crate::client::mailbox::server_requests::ServerRequests;

/// The limits, in messages and in bytes, of the queue that waits for a stream of the client.
const MAX_QUEUED: usize = 256;
const MAX_QUEUED_BYTES: usize = 1024 * 1024;
/// The largest number of tools that a client can have revealed on its own list.
const MAX_REVEALED_TOOLS: usize = 64;
/// The stored level of a client that set none.
const NO_LEVEL: u8 = u8::MAX;

/// The versions of the lists that clients are notified of. A greater number means that the list changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListVersions {
    pub tools: u64,
    pub prompts: u64,
    pub resources: u64,
    /// The version of the whole catalog.
    pub catalog: u64,
}

pub struct Mailbox {
    pub id: ClientId,
    /// The session of the client, or the name under which a stream without a session is listed.
    session: Option<SessionId>,
    /// The name, version and abilities that the client sent.
    pub introduction: Introduction,
    pub asks: Arc<ServerRequests>,
    pub replay: Replay,
    pub updates: Updates,
    /// The number of subscriptions of the client.
    pub subscriptions: Arc<SubscriptionCount>,
    /// The registries that keep subscriptions or tasks of the client.
    holders: Mutex<Vec<Weak<dyn ClientRegistry>>>,
    told: Mutex<AnnouncedVersions>,
    waiting: Mutex<MailboxQueue>,
    /// Notified when a stream of the client has something to read, and when the mailbox closes.
    bell: Notify,
    /// The profile of the client, if it has one. It limits which resources the client can see.
    scope: OnceLock<Arc<Profile>>,
    /// The tools that the client had described. They are on its tool list from then on.
    revealed: Mutex<VecDeque<Box<str>>>,
    /// The number of open streams that carry messages of no call.
    streams: AtomicUsize,
    /// The number of live [`EvictionGuard`]s.
    holds: AtomicUsize,
    level: AtomicU8,
}

/// The list versions that were announced to the client.
///
/// A notification has no acknowledgement. One that was written just before its stream broke is lost. A new stream that
/// does not resume from an event therefore repeats the recent notifications.
struct AnnouncedVersions {
    /// The versions of the last notification. [`Mailbox::tell_again`] and [`Mailbox::doubt`] set them back.
    last: ListVersions,
    /// The versions that were announced at least [`KEPT_FOR`] ago. The gateway takes them as received.
    sure: ListVersions,
    /// The newest versions ever announced, and the time of that. A repeated notification does not change the time, or
    /// the repetition would never end.
    newest: ListVersions,
    at: Instant,
}

/// A registry that keeps subscriptions or tasks of clients.
pub(crate) trait ClientRegistry: Send + Sync {
    /// Removes everything that belongs to the client of `mailbox`, which is closed.
    fn release(&self, mailbox: &Mailbox);

    /// Queues an update for each subscription of the client, which may have missed some.
    fn tell_missed(&self, mailbox: &Mailbox);
}

/// A guard for something that exists for one client alone, such as a link. A session with a live guard is not evicted.
pub struct EvictionGuard(Arc<Mailbox>);

impl Drop for EvictionGuard {
    fn drop(&mut self) {
        self.0.holds.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct MailboxQueue {
    messages: VecDeque<Bytes>,
    bytes: usize,
    /// The client is gone, and the queue accepts no more messages.
    closed: bool,
}

impl Mailbox {
    /// Creates the mailbox of a client that knows the lists at the versions `now`.
    pub fn new(introduction: Introduction, now: ListVersions, replay: Replay) -> Mailbox {
        Mailbox {
            id: ClientId::next(),
            session: None,
            introduction,
            asks: Arc::default(),
            replay,
            updates: Updates::default(),
            subscriptions: Arc::default(),
            holders: Mutex::default(),
            told: Mutex::new(AnnouncedVersions { last: now, sure: now, newest: now, at: Instant::now() }),
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
    pub(crate) fn session_name(&self) -> String {
        self.session.map(SessionId::short).unwrap_or_default()
    }

    /// Returns the notifications that are due if the lists are at the versions `now`, and counts them as announced.
    pub fn take_due(&self, now: ListVersions) -> Vec<Bytes> {
        let mut told = self.told.lock();
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

    /// Makes the announcements of the last [`KEPT_FOR`] due again. Called for a new stream that names no last event.
    pub(crate) fn tell_again(&self) {
        let mut told = self.told.lock();
        if told.at.elapsed() < KEPT_FOR {
            told.last = told.sure;
        }
    }

    /// Makes a notification for each list due again, because the client may have missed all of them.
    pub fn doubt(&self) {
        // No list is ever at this version, so each differs from it.
        let never = u64::MAX;
        self.told.lock().last = ListVersions { tools: never, prompts: never, resources: never, catalog: never };
    }

    /// Returns a guard for something that exists for this client alone.
    pub fn hold(self: &Arc<Mailbox>) -> EvictionGuard {
        self.holds.fetch_add(1, Ordering::Relaxed);
        EvictionGuard(Arc::clone(self))
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.holds.load(Ordering::Relaxed) > 0 || self.subscriptions.count() > 0
    }

    /// Reports whether the client supports the notification of a deleted resource, an extension of the protocol.
    pub(crate) fn knows_deletion(&self) -> bool {
        self.introduction.abilities.subscriptions
    }

    /// Returns the lowest level of log messages that the client receives.
    pub fn level(&self) -> Level {
        self.asked_level().unwrap_or(Level::DEFAULT)
    }

    /// Returns the level that the client set, or `None` if it set none.
    pub(crate) fn asked_level(&self) -> Option<Level> {
        Level::ALL.get(usize::from(self.level.load(Ordering::Relaxed))).copied()
    }

    pub fn set_level(&self, level: Level) {
        self.level.store(level as u8, Ordering::Relaxed);
    }

    /// Queues a message that belongs to no call for the next stream of the client. Returns `false` if the queue is full
    /// or the client is gone.
    pub fn post(&self, message: Bytes) -> bool {
        let mut waiting = self.waiting.lock();
        let full = waiting.messages.len() >= MAX_QUEUED || waiting.bytes + message.len() > MAX_QUEUED_BYTES;
        if waiting.closed || full {
            return false;
        }
        waiting.bytes += message.len();
        // The queue may keep the message for a while. A slice of the read buffer would keep the whole buffer alive, so
        // copy it.
        waiting.messages.push_back(Bytes::copy_from_slice(&message));
        drop(waiting);
        self.bell.notify_waiters();
        true
    }

    pub(crate) fn try_next(&self) -> Option<Bytes> {
        let mut waiting = self.waiting.lock();
        let message = waiting.messages.pop_front()?;
        waiting.bytes -= message.len();
        Some(message)
    }

    /// Restricts the client to the resources that `profile` shows.
    pub(crate) fn confine(&self, profile: Arc<Profile>) {
        // The profile of a client never changes, so a second call has no effect.
        let _ = self.scope.set(profile);
    }

    pub fn profile(&self) -> Option<&Arc<Profile>> {
        self.scope.get()
    }

    /// Reports whether the client may receive updates of the exposed URI `uri`.
    pub(crate) fn may_hear_of(&self, uri: &str) -> bool {
        self.profile().is_none_or(|profile| profile.resources.admits(uri))
    }

    /// Adds a tool to the client's own list and queues a `list_changed` notification. Removes the oldest tool if there
    /// are more than [`MAX_REVEALED_TOOLS`].
    pub fn reveal(&self, tool: &str) {
        let mut revealed = self.revealed.lock();
        if revealed.iter().any(|known| &**known == tool) {
            return;
        }
        if revealed.len() >= MAX_REVEALED_TOOLS {
            revealed.pop_front();
        }
        revealed.push_back(tool.into());
        drop(revealed);
        // A client with a full queue has more urgent messages to read, so losing this notification is acceptable.
        self.post(goblin_wire::notification(&Method::ToolsChanged, None));
    }

    pub fn revealed(&self) -> Vec<Box<str>> {
        self.revealed.lock().iter().cloned().collect()
    }

    /// Queues an update of a resource for the client's streams.
    pub fn update(&self, update: &Update<'_>) {
        if self.updates.put(update, Instant::now()) {
            self.bell.notify_waiters();
        }
    }

    /// Changes the pace of one subscription, also for its updates that are already queued.
    pub fn set_pace(&self, receipt: &Arc<DeliveryCounts>, uri: &str, pace: DeliveryOptions) {
        if self.updates.set_pace(receipt, uri, pace, Instant::now()) {
            self.bell.notify_waiters();
        }
    }

    /// Returns the next message that belongs to no call, or all updates that are due. Waits until there is one. Only
    /// the owner of a stream may call it. It is cancel-safe.
    pub async fn next(&self) -> Vec<Bytes> {
        loop {
            // Register before the check, or a notification between the check and the wait is lost.
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

    /// Registers `holder`, which keeps something for this client. Returns `false` if the client is already gone.
    pub(crate) fn hold_for(&self, holder: &Arc<dyn ClientRegistry>) -> bool {
        let mut holders = self.holders.lock();
        let holder = Arc::downgrade(holder);
        if !holders.iter().any(|other| other.ptr_eq(&holder)) {
            holders.retain(|holder| holder.strong_count() > 0);
            holders.push(holder);
        }
        drop(holders);
        // Check after the registration. A concurrent `close` either finds the holder, or this check finds the mailbox
        // closed.
        !self.is_closed()
    }

    /// Queues one update of each subscribed resource, because the client may have missed some.
    pub(crate) fn tell_missed(&self) {
        for holder in self.holders() {
            holder.tell_missed(self);
        }
    }

    fn holders(&self) -> Vec<Arc<dyn ClientRegistry>> {
        self.holders.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Counts a stream that carries messages of no call: `true` when it opens, `false` when it ends.
    pub(crate) fn count_stream(&self, begun: bool) {
        match begun {
            true => self.streams.fetch_add(1, Ordering::Relaxed),
            false => self.streams.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Returns the number of open streams that carry messages of no call.
    pub(crate) fn open_streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub fn has_stream(&self) -> bool {
        self.open_streams() > 0
    }

    /// Discards everything kept for the client and wakes all waiting tasks, because the client is gone.
    pub fn close(&self) {
        let mut waiting = self.waiting.lock();
        *waiting = MailboxQueue { closed: true, ..MailboxQueue::default() };
        drop(waiting);
        self.asks.close();
        self.replay.close();
        self.updates.close();
        self.bell.notify_waiters();
        // The holders come last. Their `release` must find the mailbox closed.
        for holder in self.holders() {
            holder.release(self);
        }
        self.holders.lock().clear();
    }

    pub fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    /// Waits until the mailbox is closed.
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
        Mailbox::new(Introduction::default(), ListVersions::default(), Replay::new(1))
    }

    #[test]
    fn reg8_each_changed_list_is_told_once() {
        let mailbox = mailbox();
        assert!(mailbox.take_due(ListVersions { catalog: 9, ..ListVersions::default() }).is_empty());
        let now = ListVersions { tools: 5, resources: 1, ..ListVersions::default() };
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
            let mut told = mailbox.told.lock();
            told.at = told.at.checked_sub(KEPT_FOR).expect("the clock is older than that");
        };
        let tools = ListVersions { tools: 1, ..ListVersions::default() };
        mailbox.tell_again();
        assert!(mailbox.take_due(ListVersions::default()).is_empty(), "nothing was told");
        assert_eq!(mailbox.take_due(tools).len(), 1);
        for _ in 0..2 {
            mailbox.tell_again();
            assert_eq!(mailbox.take_due(tools).len(), 1);
        }
        long_ago();
        mailbox.tell_again();
        assert!(mailbox.take_due(tools).is_empty(), "it is known by now");
        let prompts = ListVersions { prompts: 1, ..tools };
        assert_eq!(mailbox.take_due(prompts).len(), 1);
        mailbox.tell_again();
        assert_eq!(mailbox.take_due(prompts).len(), 1, "of the prompts alone");
    }

    #[tokio::test]
    async fn what_belongs_to_no_call_waits_for_a_stream_within_bounds() {
        let mailbox = mailbox();
        let taken = (0..MAX_QUEUED + 9).filter(|_| mailbox.post(Bytes::from_static(b"x"))).count();
        assert_eq!(taken, MAX_QUEUED);
        for _ in 0..taken {
            assert_eq!(mailbox.next().await, ["x"]);
        }
        assert!(mailbox.next().now_or_never().is_none());
        assert!(!mailbox.post(vec![b'x'; MAX_QUEUED_BYTES + 1].into()));
        assert!(mailbox.closed().now_or_never().is_none());
        mailbox.close();
        mailbox.closed().await;
        assert!(!mailbox.post(Bytes::from_static(b"x")));
    }
}
