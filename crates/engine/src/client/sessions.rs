//! The table of all sessions, and of the calls without one.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use goblin_config::exposure::ProfileName;
use goblin_telemetry::{Event, Observe};
use goblin_wire::{Dialect, Error, Limit};
use parking_lot::RwLock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::call::Call;
use crate::client::caller::{Caller, Introduction, Level, Principal, RunId, SessionId, random_epoch};
use crate::client::eviction::{EvictionCandidate, EvictionQueue};
use crate::client::levels::Levels;
use crate::client::pending::{OpenCall, OpenCallCount, OpenCallGuard, OpenCalls};
use crate::client::replay::{Replay, ReplayMemory};
use crate::client::stateless_clients::StatelessClients;
use crate::client::{Activity, Client, ListVersions};

/// The interval at which the timeouts of calls are checked.
const TICK: Duration = Duration::from_millis(100);
/// The idle timeout of a session that has lost its stream and still has subscriptions or links of its own.
const LOST_STREAM_TIMEOUT: Duration = Duration::from_secs(120);
/// The number of scans for a session to evict in one handshake.
const MAX_SCANS: usize = 2;
/// The reason that the event of an evicted session reports.
const EVICTED: &str = "evicted to make room for a new client (gateway.maxSessions)";

/// The session of a client.
impl Client {
    pub fn caller(&self) -> Caller {
        Caller {
            session: self.session,
            principal: Principal::Anonymous,
            profile: self.profile.clone(),
            dialect: self.dialect,
            level: Some(self.level()),
            client_capabilities: Arc::clone(&self.introduction.client_capabilities),
            is_gateway: self.is_gateway.load(Ordering::Relaxed),
            program: self.introduction.program.clone(),
        }
    }

    /// Records that the client is another gateway.
    pub(crate) fn mark_as_gateway(&self) {
        self.is_gateway.store(true, Ordering::Relaxed);
    }

    /// Returns the time at which the session was opened.
    pub fn opened(&self) -> SystemTime {
        self.activity.opened
    }

    /// Records activity of the client.
    pub fn touch(&self) {
        self.activity.last_seen.store(micros(self.activity.begin.elapsed()), Ordering::Relaxed);
    }

    /// Records that the client sent a request after the handshake.
    pub(crate) fn note_request(&self) {
        self.activity.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports whether eviction would cost the client only the session itself.
    fn holds_nothing(&self) -> bool {
        self.is_unused() && !self.is_holding() && !self.has_open_requests()
    }

    /// Registers a reader that resumes the stream of a call. The session is not idle until the guard is dropped.
    pub(crate) fn register_reader(self: &Arc<Client>) -> Presence {
        self.activity.readers.fetch_add(1, Ordering::Relaxed);
        Presence { client: Arc::clone(self), kind: PresenceKind::Reader }
    }

    /// Returns a guard for something that exists for this client alone, such as a link. A session with a live guard is
    /// not evicted.
    pub(crate) fn hold(self: &Arc<Client>) -> Presence {
        self.activity.holds.fetch_add(1, Ordering::Relaxed);
        Presence { client: Arc::clone(self), kind: PresenceKind::Hold }
    }

    /// Reports whether the client has neither an open stream nor an open request.
    fn is_unused(&self) -> bool {
        !self.has_stream() && self.activity.readers.load(Ordering::Relaxed) == 0 && self.calls.is_empty()
    }

    /// Returns the number of requests after the handshake.
    pub(crate) fn requests(&self) -> u64 {
        self.activity.requests.load(Ordering::Relaxed)
    }

    /// Returns the time since the client's last activity. It is zero while the client has an open stream or request.
    pub fn idle(&self) -> Duration {
        if self.is_unused() { self.time_since_activity() } else { Duration::ZERO }
    }

    fn time_since_activity(&self) -> Duration {
        let last_seen = Duration::from_micros(self.activity.last_seen.load(Ordering::Relaxed));
        self.activity.begin.elapsed().saturating_sub(last_seen)
    }

    /// Reports whether the client has ever opened a session stream.
    pub(crate) fn had_stream(&self) -> bool {
        self.activity.had_stream.load(Ordering::Relaxed)
    }

    /// Reports whether the client had a session stream and has none now.
    fn has_lost_stream(&self) -> bool {
        !self.has_stream() && self.had_stream()
    }
}

/// A guard that counts one use of a client.
pub(crate) struct Presence {
    pub client: Arc<Client>,
    kind: PresenceKind,
}

/// The counter that a [`Presence`] decrements. Streams also count among those of all clients.
enum PresenceKind {
    /// A session stream.
    Stream(Arc<AtomicUsize>),
    /// A stream that counts only among those of all clients.
    Listen(Arc<AtomicUsize>),
    /// A client that reads the stream of a call.
    Reader,
    /// Something that exists for the client alone.
    Hold,
}

impl Drop for Presence {
    fn drop(&mut self) {
        let activity = &self.client.activity;
        if matches!(self.kind, PresenceKind::Stream(_) | PresenceKind::Reader) {
            self.client.touch();
        }
        let (own, all) = match &self.kind {
            PresenceKind::Stream(all) => (Some(&activity.streams), Some(all)),
            PresenceKind::Listen(all) => (None, Some(all)),
            PresenceKind::Reader => (Some(&activity.readers), None),
            PresenceKind::Hold => (Some(&activity.holds), None),
        };
        for counter in own.into_iter().chain(all.map(|all| &**all)) {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A permit for one session. It counts towards `gateway.maxSessions` until it is dropped.
pub struct SessionPermit {
    _permit: OwnedSemaphorePermit,
}

/// An entry of the table. Others may keep the session after its end, but the permit is returned at once.
struct SessionEntry {
    client: Arc<Client>,
    _place: SessionPermit,
}

#[derive(Default)]
struct SessionTable {
    open: HashMap<SessionId, SessionEntry>,
    /// The sessions that the last scan found for eviction.
    victims: EvictionQueue<SessionId>,
}

/// The table of all sessions, and of the calls without a session.
pub struct Sessions {
    table: RwLock<SessionTable>,
    room: Arc<Semaphore>,
    pub levels: Arc<Levels>,
    /// The calls without a session.
    stateless_calls: Arc<OpenCalls>,
    pub(crate) stateless_clients: StatelessClients,
    observe: Arc<Observe>,
    call_count: Arc<OpenCallCount>,
    streams: Arc<AtomicUsize>,
    /// The byte count of all replay buffers.
    replay_memory: Arc<ReplayMemory>,
    node: RunId,
    max: usize,
    idle_timeout: Duration,
    begin: Instant,
}

impl Sessions {
    pub fn new(max: usize, idle_timeout: Duration, observe: Arc<Observe>) -> Sessions {
        let max = max.min(Semaphore::MAX_PERMITS);
        let call_count = Arc::<OpenCallCount>::default();
        let replay_memory = Arc::new(ReplayMemory::new(&observe.memory));
        Sessions {
            table: RwLock::default(),
            room: Arc::new(Semaphore::new(max)),
            levels: Arc::default(),
            stateless_calls: Arc::new(OpenCalls::new(&call_count)),
            stateless_clients: StatelessClients::default(),
            observe,
            call_count,
            streams: Arc::default(),
            replay_memory,
            node: RunId::random(),
            max,
            idle_timeout,
            begin: Instant::now(),
        }
    }

    /// Returns a place for a new session. If none is free, evicts the least recently active session that holds nothing.
    /// `is_held` reports whether another component keeps something for a session. Returns an error if no session can be
    /// evicted.
    pub fn reserve(&self, is_held: impl Fn(&Client) -> bool) -> Result<SessionPermit, Error> {
        let acquire = || Arc::clone(&self.room).try_acquire_owned().map(|_permit| SessionPermit { _permit });
        if let Ok(place) = acquire() {
            return Ok(place);
        }
        self.observe.limit_hit(Limit::MaxSessions);
        // Another handshake may take the place of the evicted session. In that case evict the next one.
        while self.evict(&is_held) {
            if let Ok(place) = acquire() {
                return Ok(place);
            }
        }
        Err(Error::LimitExceeded { limit: Limit::MaxSessions.as_str(), value: self.max })
    }

    /// Ends the least recently active session that holds nothing. Returns `false` if there is none.
    fn evict(&self, is_held: &impl Fn(&Client) -> bool) -> bool {
        let last_seen = |client: &Client| client.activity.last_seen.load(Ordering::Relaxed);
        let is_free = |client: &Client| client.holds_nothing() && !is_held(client);
        let mut table = self.table.write();
        for _ in 0..MAX_SCANS {
            while let Some(victim) = table.victims.pop() {
                let is_due = |entry: &SessionEntry| last_seen(&entry.client) == victim.since && is_free(&entry.client);
                if table.open.get(&victim.key).is_some_and(is_due) {
                    let ended = table.open.remove(&victim.key);
                    drop(table);
                    return self.finish(ended, EVICTED);
                }
            }
            let SessionTable { open, victims } = &mut *table;
            let candidate = |(id, entry): (&SessionId, &SessionEntry)| {
                let is_new = entry.client.requests() == 0;
                let candidate = EvictionCandidate { key: *id, is_new, since: last_seen(&entry.client) };
                is_free(&entry.client).then_some(candidate)
            };
            if !victims.refill(self.max, Instant::now(), || open.iter().filter_map(candidate).collect()) {
                return false;
            }
        }
        false
    }

    /// Returns a new session id.
    pub fn new_id(&self) -> SessionId {
        SessionId::new(self.node)
    }

    /// Creates a session and adds it to the table.
    pub fn open(
        &self,
        place: SessionPermit,
        profile: Option<ProfileName>,
        dialect: Dialect,
        introduction: Introduction,
        lists: ListVersions,
    ) -> Arc<Client> {
        let id = self.new_id();
        let client =
            Client::new(dialect, introduction, lists, Replay::with_memory(random_epoch(), &self.replay_memory));
        let client = Arc::new(Client {
            calls: Arc::new(OpenCalls::new(&self.call_count)),
            activity: Activity::new(self.begin, SystemTime::now(), micros(self.begin.elapsed())),
            ..client.with_session(id, profile)
        });
        let entry = SessionEntry { client: Arc::clone(&client), _place: place };
        self.levels.add(None);
        self.table.write().open.insert(id, entry);
        self.observe.emit(&Event::SessionOpened { session: &id.short(), version: dialect.as_str() });
        client
    }

    /// Returns the session with this id and records activity of its client.
    pub fn find(&self, id: SessionId) -> Option<Arc<Client>> {
        let table = self.table.read();
        let client = Arc::clone(&table.open.get(&id)?.client);
        // Record the activity under the lock. `end_idle` checks it again under the same lock.
        client.touch();
        Some(client)
    }

    /// Returns all sessions in no particular order.
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.table.read().open.values().map(|entry| Arc::clone(&entry.client)).collect()
    }

    /// Returns the number of sessions, including places that are reserved for a handshake.
    pub fn len(&self) -> usize {
        self.max - self.room.available_permits()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a function that reports whether a client is connected: a session is open, or a place is reserved.
    pub(crate) fn presence(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let (room, max) = (Arc::clone(&self.room), self.max);
        Arc::new(move || room.available_permits() < max)
    }

    /// Returns the number of resource updates that no stream has taken yet.
    pub fn updates_waiting(&self) -> usize {
        self.table.read().open.values().map(|entry| entry.client.updates.len()).sum()
    }

    /// Ends a session, cancels its calls and discards everything kept for it.
    pub fn end(&self, client: &Client, reason: &str) {
        if let Some(id) = client.session {
            self.end_if(id, reason, |_| true);
        }
    }

    /// Ends a session if `is_due` holds under the lock. Returns whether it ended the session.
    fn end_if(&self, id: SessionId, reason: &str, is_due: impl FnOnce(&Client) -> bool) -> bool {
        let mut table = self.table.write();
        let is_due = table.open.get(&id).is_some_and(|entry| is_due(&entry.client));
        let ended = if is_due { table.open.remove(&id) } else { None };
        drop(table);
        self.finish(ended, reason)
    }

    /// Ends the session of an entry that left the table. Returns `false` if there is none.
    fn finish(&self, ended: Option<SessionEntry>, reason: &str) -> bool {
        let Some(SessionEntry { client, .. }) = ended else { return false };
        client.close();
        client.calls.close(reason);
        // The level of a closed client does not change any more.
        self.levels.remove(client.requested_level());
        self.observe.emit(&Event::SessionEnded { session: &client.session_name(), reason });
        true
    }

    /// Registers a call without a session. The number of connections bounds the number of such calls.
    pub(crate) fn admit_stateless(&self, call: &Arc<Call>) -> Result<OpenCallGuard, Error> {
        self.stateless_calls.admit(None, OpenCall::Call(Arc::clone(call)), usize::MAX)
    }

    pub fn end_all(&self, reason: &str) {
        self.stateless_calls.close(reason);
        let ids: Vec<_> = self.table.read().open.keys().copied().collect();
        for id in ids {
            self.end_if(id, reason, |_| true);
        }
    }

    /// Ends all open server requests, because no client can answer any more.
    pub(crate) fn close_server_requests(&self) {
        for entry in self.table.read().open.values() {
            entry.client.close_requests();
        }
        self.stateless_calls.calls().iter().for_each(|call| call.client.close_requests());
    }

    /// Sets the log level of a session, unless it has ended. Its level would then never be removed from [`Levels`].
    pub fn set_level(&self, client: &Client, level: Level) {
        let state = client.state.lock();
        if !state.closed {
            let before = client.requested_level();
            client.level.store(level as u8, Ordering::Relaxed);
            self.levels.replace(before, level);
        }
    }

    /// Opens a session stream. If several are open, the replay buffer decides which one receives an event.
    pub(crate) fn open_stream(&self, client: &Arc<Client>) -> Presence {
        client.activity.had_stream.store(true, Ordering::Relaxed);
        client.activity.streams.fetch_add(1, Ordering::Relaxed);
        self.streams.fetch_add(1, Ordering::Relaxed);
        Presence { client: Arc::clone(client), kind: PresenceKind::Stream(Arc::clone(&self.streams)) }
    }

    /// Counts a stream of a client without a session.
    pub(crate) fn open_listen_stream(&self, client: &Arc<Client>) -> Presence {
        self.streams.fetch_add(1, Ordering::Relaxed);
        Presence { client: Arc::clone(client), kind: PresenceKind::Listen(Arc::clone(&self.streams)) }
    }

    /// Returns the number of open streams. A stream counts until it is closed, even if its session has ended.
    pub(crate) fn open_streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Returns the number of calls without an answer.
    pub(crate) fn open_calls(&self) -> usize {
        self.call_count.open()
    }

    /// Returns all calls without an answer.
    pub(crate) fn list_open_calls(&self) -> Vec<Arc<Call>> {
        let table = self.table.read();
        let calls = table.open.values().flat_map(|entry| entry.client.calls.calls());
        calls.chain(self.stateless_calls.calls()).collect()
    }

    /// Ends all idle sessions and discards old replay events. Forgets idle clients without a session.
    pub(crate) fn sweep(&self) {
        self.end_idle(self.idle());
        self.stateless_clients.remove_idle(self.idle_timeout);
    }

    fn idle(&self) -> Vec<SessionId> {
        let table = self.table.read();
        let idle = table.open.iter().filter(|(_, entry)| {
            entry.client.replay.discard_old(Instant::now());
            self.is_idle(&entry.client)
        });
        idle.map(|(id, _)| *id).collect()
    }

    /// Ends the sessions that are still idle. A client may have returned since the list was made.
    fn end_idle(&self, idle: Vec<SessionId>) {
        for id in idle {
            self.end_if(id, "idle", |client| self.is_idle(client));
        }
    }

    fn is_idle(&self, client: &Client) -> bool {
        client.time_since_activity() >= self.idle_timeout_of(client) && client.is_unused()
    }

    /// Returns the idle timeout of a session.
    fn idle_timeout_of(&self, client: &Client) -> Duration {
        let is_costly = client.has_lost_stream() && client.is_holding();
        if is_costly { self.idle_timeout.min(LOST_STREAM_TIMEOUT) } else { self.idle_timeout }
    }

    /// Checks the timeouts of all open calls every [`TICK`]. Sleeps while no call is open. Never returns.
    pub(crate) async fn check_timeouts_periodically(&self) {
        loop {
            self.call_count.wait_for_call().await;
            tokio::time::sleep(TICK).await;
            let now = Instant::now();
            self.stateless_calls.check_timeouts(now);
            for entry in self.table.read().open.values() {
                entry.client.calls.check_timeouts(now);
            }
        }
    }

    /// Calls [`sweep`](Sessions::sweep) periodically. Never returns.
    pub async fn sweep_periodically(&self) {
        let interval = (self.idle_timeout / 10).clamp(Duration::from_millis(50), LOST_STREAM_TIMEOUT / 10);
        loop {
            tokio::time::sleep(interval).await;
            self.sweep();
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
