//! The clients of the gateway: their identity, their pending calls, and the state that outlives a stream.
//!
//! A [`Client`] holds the messages that belong to no call, the open server requests, the pending resource updates and
//! the replay buffer. Each stream of the client reads from it. List changes are kept as version numbers, not as events:
//! a client without an open stream misses nothing, and a burst produces one notification. The queue of messages is
//! bounded. If it is full, [`Client::post`] returns `false` and the caller counts the loss.

pub(crate) mod call;
pub(crate) mod call_name;
pub(crate) mod caller;
pub(crate) mod eviction;
pub(crate) mod input_request;
pub(crate) mod ledger;
pub(crate) mod levels;
pub(crate) mod outcome;
pub(crate) mod pending;
pub(crate) mod replay;
pub(crate) mod server_requests;
pub(crate) mod sessions;
pub(crate) mod stateless_clients;
pub(crate) mod subscriptions;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use bytes::Bytes;
use goblin_config::exposure::{Profile, ProfileName};
use goblin_subscriptions::count::SubscriptionCount;
use goblin_subscriptions::updates::{DeliveryCounts, DeliveryOptions, Update, Updates};
use goblin_subscriptions::{ClientId, Subscriber};
use goblin_wire::{Dialect, Method};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::caller::{Introduction, Level, SessionId};
use crate::client::pending::OpenCalls;
use crate::client::replay::{KEPT_FOR, Replay};
use crate::client::server_requests::ServerRequestTable;

/// The limits, in messages and in bytes, of the queue that waits for a stream of the client.
const MAX_QUEUED: usize = 256;
const MAX_QUEUED_BYTES: usize = 1024 * 1024;
/// The largest number of tools that a client can have revealed on its own list.
const MAX_REVEALED_TOOLS: usize = 64;
/// The stored level of a client that set none.
const NO_LEVEL: u8 = u8::MAX;

/// The versions of the lists that clients are notified of. Another number means that the list changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListVersions {
    pub tools: u64,
    pub prompts: u64,
    pub resources: u64,
    /// The version of the whole catalog.
    pub catalog: u64,
}

impl ListVersions {
    /// Counts a new catalog with this version of the listed tools, and with other prompts or resources.
    pub(crate) fn count(&mut self, tools: u64, has_other_prompts: bool, has_other_resources: bool) {
        self.tools = tools;
        self.prompts += u64::from(has_other_prompts);
        self.resources += u64::from(has_other_resources);
        self.catalog += 1;
    }
}

/// One client. A client without a session lives as long as one of its requests, or as long as its pipe.
pub struct Client {
    pub id: ClientId,
    /// The session of the client, or the name under which a client without one is listed.
    pub session: Option<SessionId>,
    pub profile: Option<ProfileName>,
    pub dialect: Dialect,
    /// The name, version and capabilities that the client sent.
    pub introduction: Introduction,
    /// The open requests of a client with a session or a pipe, by the client's ids.
    pub calls: Arc<OpenCalls>,
    pub replay: Replay,
    pub updates: Updates,
    /// The number of subscriptions of the client.
    pub subscriptions: Arc<SubscriptionCount>,
    /// The profile of the client, if it has one. It limits which resources the client can see. A reload replaces it.
    scope: OnceLock<Arc<ArcSwap<Profile>>>,
    state: Mutex<ClientState>,
    /// Notified when a stream of the client has something to read, and when the client is closed.
    wake: Notify,
    /// The log level that the client set. It changes only under the lock of `state`.
    level: AtomicU8,
    /// Whether the client is another gateway.
    is_gateway: AtomicBool,
    activity: Activity,
}

/// The state under the client's lock. No function calls another component while it holds that lock.
struct ClientState {
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
    announced: AnnouncedVersions,
    /// The tools that a meta tool described to the client. They are on its tool list from then on.
    revealed: VecDeque<Box<str>>,
    /// The registries that keep subscriptions or tasks of the client.
    registries: Vec<Weak<dyn ClientRegistry>>,
    requests: ServerRequestTable,
    /// The client is gone. The queue and the registries accept no more entries.
    closed: bool,
}

/// The use that a client makes of its session.
struct Activity {
    /// The time at which the session was opened.
    opened: SystemTime,
    /// The time at which the session table was created.
    begin: Instant,
    /// The microseconds from `begin` to the client's last activity.
    last_seen: AtomicU64,
    /// The number of requests after the handshake.
    requests: AtomicU64,
    /// The client has opened a session stream before.
    had_stream: AtomicBool,
    /// The number of open streams that carry messages of no call.
    streams: AtomicUsize,
    /// The number of readers that resumed the stream of a call.
    readers: AtomicUsize,
    /// The number of things, such as links, that exist for this client alone.
    holds: AtomicUsize,
}

impl Activity {
    fn new(begin: Instant, opened: SystemTime, last_seen: u64) -> Activity {
        Activity {
            opened,
            begin,
            last_seen: AtomicU64::new(last_seen),
            requests: AtomicU64::new(0),
            had_stream: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            readers: AtomicUsize::new(0),
            holds: AtomicUsize::new(0),
        }
    }
}

/// The list versions that were announced to the client.
///
/// A notification has no acknowledgement. One that was written just before its stream broke is lost. A new stream that
/// does not resume from an event therefore repeats the recent notifications.
struct AnnouncedVersions {
    /// The versions of the last notification. [`Client::reannounce_recent`] and [`Client::reannounce_all`] set them
    /// back.
    last: ListVersions,
    /// The versions that were announced at least [`KEPT_FOR`] ago. The gateway takes them as received.
    received: ListVersions,
    /// The newest versions ever announced, and the time of that. A repeated notification does not change the time, or
    /// the repetition would never end.
    newest: ListVersions,
    at: Instant,
}

/// A registry that keeps subscriptions or tasks of clients.
pub(crate) trait ClientRegistry: Send + Sync {
    /// Removes everything that belongs to `client`, which is closed.
    fn release(&self, client: &Client);

    /// Queues an update for each subscription of `client`, which may have missed some.
    fn queue_missed_updates(&self, client: &Client);
}

impl Client {
    /// Creates a client that knows the lists at the versions `now`.
    pub fn new(dialect: Dialect, introduction: Introduction, now: ListVersions, replay: Replay) -> Client {
        let begin = Instant::now();
        let state = ClientState {
            queue: VecDeque::new(),
            queued_bytes: 0,
            announced: AnnouncedVersions { last: now, received: now, newest: now, at: begin },
            revealed: VecDeque::new(),
            registries: Vec::new(),
            requests: ServerRequestTable::default(),
            closed: false,
        };
        Client {
            id: ClientId::next(),
            session: None,
            profile: None,
            dialect,
            introduction,
            calls: Arc::default(),
            replay,
            updates: Updates::default(),
            subscriptions: Arc::default(),
            scope: OnceLock::new(),
            state: Mutex::new(state),
            wake: Notify::new(),
            level: AtomicU8::new(NO_LEVEL),
            is_gateway: AtomicBool::new(false),
            activity: Activity::new(begin, SystemTime::UNIX_EPOCH, 0),
        }
    }

    /// Creates a client that receives only messages of its own requests.
    pub fn stateless(introduction: Introduction) -> Client {
        Client::new(Dialect::NEWEST, introduction, ListVersions::default(), Replay::new(0))
    }

    /// Returns the client under a session id.
    pub fn with_session(self, session: SessionId, profile: Option<ProfileName>) -> Client {
        Client { session: Some(session), profile, ..self }
    }

    /// Returns the short form of the session id, for people. It is empty for a client without a session.
    pub(crate) fn session_name(&self) -> String {
        self.session.map(SessionId::short).unwrap_or_default()
    }

    /// Returns the notifications that are due if the lists are at the versions `now`, and counts them as announced.
    pub fn take_due(&self, now: ListVersions) -> Vec<Bytes> {
        let mut state = self.state.lock();
        let announced = &mut state.announced;
        if announced.newest != now {
            if announced.at.elapsed() >= KEPT_FOR {
                announced.received = announced.newest;
            }
            announced.newest = now;
            announced.at = Instant::now();
        }
        let last = std::mem::replace(&mut announced.last, now);
        drop(state);
        let kinds = [
            (last.tools != now.tools, Method::ToolsChanged),
            (last.prompts != now.prompts, Method::PromptsChanged),
            (last.resources != now.resources, Method::ResourcesChanged),
        ];
        kinds.iter().filter(|(due, _)| *due).map(|(_, method)| goblin_wire::notification(method, None)).collect()
    }

    /// Makes the announcements of the last [`KEPT_FOR`] due again. Called for a new stream that names no last event.
    pub(crate) fn reannounce_recent(&self) {
        let announced = &mut self.state.lock().announced;
        if announced.at.elapsed() < KEPT_FOR {
            announced.last = announced.received;
        }
    }

    /// Makes a notification for each list due again, because the client may have missed all of them.
    pub fn reannounce_all(&self) {
        // No list is ever at this version, so each differs from it.
        let never = u64::MAX;
        let versions = ListVersions { tools: never, prompts: never, resources: never, catalog: never };
        self.state.lock().announced.last = versions;
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.activity.holds.load(Ordering::Relaxed) > 0 || self.subscriptions.count() > 0
    }

    /// Reports whether the client declared the extension of subscriptions. It then understands the notification of a
    /// deleted resource and the members in the result of a subscribe.
    pub(crate) fn declares_subscriptions(&self) -> bool {
        self.introduction.client_capabilities.subscriptions
    }

    /// Returns the lowest level of log messages that the client receives.
    pub fn level(&self) -> Level {
        self.requested_level().unwrap_or(Level::LOWEST)
    }

    /// Returns the level that the client set, or `None` if it set none.
    pub(crate) fn requested_level(&self) -> Option<Level> {
        Level::ALL.get(usize::from(self.level.load(Ordering::Relaxed))).copied()
    }

    /// Queues a message that belongs to no call for the next stream of the client. Returns `false` if the queue is full
    /// or the client is gone.
    pub fn post(&self, message: Bytes) -> bool {
        let mut state = self.state.lock();
        let is_full = state.queue.len() >= MAX_QUEUED || state.queued_bytes + message.len() > MAX_QUEUED_BYTES;
        if state.closed || is_full {
            return false;
        }
        state.queued_bytes += message.len();
        // The queue may keep the message for a while. A slice of the read buffer would keep the whole buffer alive, so
        // copy it.
        state.queue.push_back(Bytes::copy_from_slice(&message));
        drop(state);
        self.wake.notify_waiters();
        true
    }

    pub(crate) fn try_next(&self) -> Option<Bytes> {
        let mut state = self.state.lock();
        let message = state.queue.pop_front()?;
        state.queued_bytes -= message.len();
        Some(message)
    }

    /// Restricts the client to the resources that `profile` shows.
    pub(crate) fn confine(&self, profile: Arc<ArcSwap<Profile>>) {
        // A client never changes to another profile, so a second call has no effect.
        let _ = self.scope.set(profile);
    }

    /// Adds a tool to the client's own list and queues a `list_changed` notification. Removes the oldest tool if there
    /// are more than [`MAX_REVEALED_TOOLS`].
    pub fn reveal(&self, tool: &str) {
        let mut state = self.state.lock();
        let revealed = &mut state.revealed;
        if revealed.iter().any(|known| &**known == tool) {
            return;
        }
        if revealed.len() >= MAX_REVEALED_TOOLS {
            revealed.pop_front();
        }
        revealed.push_back(tool.into());
        drop(state);
        // A client with a full queue has more urgent messages to read, so losing this notification is acceptable.
        self.post(goblin_wire::notification(&Method::ToolsChanged, None));
    }

    pub fn revealed(&self) -> Vec<Box<str>> {
        self.state.lock().revealed.iter().cloned().collect()
    }

    /// Queues an update of a resource for the client's streams.
    pub fn update(&self, update: &Update<'_>) {
        if self.updates.put(update, Instant::now()) {
            self.wake.notify_waiters();
        }
    }

    /// Changes the delivery of one subscription, also for its updates that are already queued.
    pub fn set_delivery(&self, counts: &Arc<DeliveryCounts>, uri: &str, delivery: DeliveryOptions) {
        if self.updates.set_delivery(counts, uri, delivery, Instant::now()) {
            self.wake.notify_waiters();
        }
    }

    /// Returns the next message that belongs to no call, or all updates that are due. Waits until there is one. Only
    /// the owner of a stream may call it. It is cancel-safe.
    pub async fn next(&self) -> Vec<Bytes> {
        loop {
            // Register before the check, or a notification between the check and the wait is lost.
            let woken = self.wake.notified();
            if let Some(message) = self.try_next() {
                return vec![message];
            }
            let due = self.updates.take_due(Instant::now());
            if !due.is_empty() {
                return due;
            }
            match self.updates.next_due() {
                Some(due) => drop(tokio::time::timeout_at(due.into(), woken).await),
                None => woken.await,
            }
        }
    }

    /// Adds `registry`, which keeps something for this client. Returns `false` if the client is already gone.
    pub(crate) fn register(&self, registry: &Arc<dyn ClientRegistry>) -> bool {
        let mut state = self.state.lock();
        let registry = Arc::downgrade(registry);
        if !state.closed && !state.registries.iter().any(|other| other.ptr_eq(&registry)) {
            state.registries.retain(|registry| registry.strong_count() > 0);
            state.registries.push(registry);
        }
        !state.closed
    }

    /// Queues one update of each subscribed resource, because the client may have missed some.
    pub(crate) fn queue_missed_updates(&self) {
        let registries: Vec<_> = self.state.lock().registries.iter().filter_map(Weak::upgrade).collect();
        for registry in registries {
            registry.queue_missed_updates(self);
        }
    }

    /// Returns the number of open streams that carry messages of no call.
    pub(crate) fn open_streams(&self) -> usize {
        self.activity.streams.load(Ordering::Relaxed)
    }

    pub fn has_stream(&self) -> bool {
        self.open_streams() > 0
    }

    /// Discards everything kept for the client and wakes all waiting tasks, because the client is gone.
    pub fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let discarded = (std::mem::take(&mut state.queue), state.requests.close());
        state.queued_bytes = 0;
        let registries = std::mem::take(&mut state.registries);
        drop(state);
        drop(discarded);
        self.replay.close();
        self.updates.close();
        self.wake.notify_waiters();
        // The registries come last. Their `release` must find the client closed.
        for registry in registries.iter().filter_map(Weak::upgrade) {
            registry.release(self);
        }
    }

    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Waits until the client is closed.
    pub async fn closed(&self) {
        loop {
            let woken = self.wake.notified();
            if self.is_closed() {
                return;
            }
            woken.await;
        }
    }
}

impl Subscriber for Client {
    fn id(&self) -> ClientId {
        self.id
    }

    fn profile(&self) -> Option<Arc<Profile>> {
        self.scope.get().map(|scope| scope.load_full())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn client() -> Client {
        Client::stateless(Introduction::default())
    }

    #[test]
    fn reg8_each_changed_list_is_announced_once() {
        let client = client();
        assert!(client.take_due(ListVersions { catalog: 9, ..ListVersions::default() }).is_empty());
        let now = ListVersions { tools: 5, resources: 1, ..ListVersions::default() };
        assert_eq!(
            client.take_due(now),
            [
                r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
            ]
        );
        assert!(client.take_due(now).is_empty());
        client.reannounce_all();
        assert_eq!(client.take_due(now).len(), 3);
        assert!(client.take_due(now).is_empty());
    }

    #[test]
    fn sess2_a_recent_announcement_is_repeated_on_the_next_stream() {
        let client = client();
        let long_ago = || {
            let announced = &mut client.state.lock().announced;
            announced.at = announced.at.checked_sub(KEPT_FOR).expect("the clock is older than that");
        };
        let tools = ListVersions { tools: 1, ..ListVersions::default() };
        client.reannounce_recent();
        assert!(client.take_due(ListVersions::default()).is_empty(), "nothing was announced");
        assert_eq!(client.take_due(tools).len(), 1);
        for _ in 0..2 {
            client.reannounce_recent();
            assert_eq!(client.take_due(tools).len(), 1);
        }
        long_ago();
        client.reannounce_recent();
        assert!(client.take_due(tools).is_empty(), "the client has received it");
        let prompts = ListVersions { prompts: 1, ..tools };
        assert_eq!(client.take_due(prompts).len(), 1);
        client.reannounce_recent();
        assert_eq!(client.take_due(prompts).len(), 1, "only that of the prompts");
    }

    #[tokio::test]
    async fn messages_without_a_call_wait_for_a_stream_up_to_a_limit() {
        let client = client();
        let taken = (0..MAX_QUEUED + 9).filter(|_| client.post(Bytes::from_static(b"x"))).count();
        assert_eq!(taken, MAX_QUEUED);
        for _ in 0..taken {
            assert_eq!(client.next().await, ["x"]);
        }
        assert!(client.next().now_or_never().is_none());
        assert!(!client.post(vec![b'x'; MAX_QUEUED_BYTES + 1].into()));
        assert!(client.closed().now_or_never().is_none());
        client.close();
        client.closed().await;
        assert!(!client.post(Bytes::from_static(b"x")));
    }
}
