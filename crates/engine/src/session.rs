//! The sessions of clients and the handling of their messages.
//!
//! [`Sessions`] is the table of all sessions. [`Dispatcher`](dispatcher::Dispatcher) handles the messages of a session for every
//! transport. It answers a request from the catalog snapshot if possible. Other requests become a
//! [`PendingCall`](dispatcher::Pending) call.
//!
//! Lock order: `Sessions::victims` comes before `Sessions::sessions`.

pub(crate) mod cut;
pub(crate) mod dispatcher;
pub(crate) mod eviction;
pub(crate) mod levels;
pub(crate) mod listening;
pub(crate) mod recorder;
pub(crate) mod stateless;
pub(crate) mod suspended;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use goblin_config::exposure::ProfileName;
use goblin_telemetry::{Event, Observe};
use goblin_wire::{Dialect, Error, Limit};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::call::Call;
use crate::client::caller::{Caller, Introduction, Level, Principal, RunId, SessionId, random_epoch};
use crate::client::mailbox::replay::{Replay, ReplayMemory};
use crate::client::mailbox::{ListVersions, Mailbox};
use crate::client::pending::{OpenCall, OpenCallCount, OpenCallGuard, OpenCalls};
use crate::session::eviction::{EvictionCandidate, EvictionQueue};
use crate::session::levels::Levels;

/// The interval at which the timeouts of calls are checked.
const TICK: Duration = Duration::from_millis(100);
/// The idle timeout of a session that has lost its stream and still has subscriptions or links of its own.
const LOST_STREAM_TIMEOUT: Duration = Duration::from_secs(120);
/// The number of scans for a session to evict in one handshake.
const MAX_SCANS: usize = 2;
/// The reason that the event of an evicted session reports.
const EVICTED: &str = "evicted to make room for a new client (gateway.maxSessions)";

pub struct Session {
    pub id: SessionId,
    pub profile: Option<ProfileName>,
    pub dialect: Dialect,
    pub mailbox: Arc<Mailbox>,
    pub calls: Arc<OpenCalls>,
    level: Mutex<LevelSetting>,
    /// The client has opened a session stream before.
    had_stream: AtomicBool,
    /// The number of open streams of all sessions.
    all_streams: Arc<AtomicUsize>,
    /// The number of readers that resumed the stream of a call.
    readers: AtomicUsize,
    pub opened: SystemTime,
    /// The time at which the session table was created.
    begin: Instant,
    /// The microseconds from `begin` to the client's last activity.
    last_seen: AtomicU64,
    /// The client sent a request after the handshake.
    has_requested: AtomicBool,
}

/// The log level that a client set.
#[derive(Default)]
struct LevelSetting {
    level: Option<Level>,
    /// The session has ended. A level set now would never be removed from [`Levels`].
    ended: bool,
}

impl Session {
    pub fn caller(&self) -> Caller {
        Caller {
            session: Some(self.id),
            principal: Principal::Anonymous,
            profile: self.profile.clone(),
            dialect: self.dialect,
            level: Some(self.mailbox.level()),
            abilities: Arc::clone(&self.mailbox.introduction.abilities),
        }
    }

    /// Records activity of the client.
    pub fn touch(&self) {
        self.last_seen.store(micros(self.begin.elapsed()), Ordering::Relaxed);
    }

    /// Records that the client sent a request after the handshake.
    pub(crate) fn note_request(&self) {
        if !self.has_requested.load(Ordering::Relaxed) {
            self.has_requested.store(true, Ordering::Relaxed);
        }
    }

    /// Reports whether eviction would cost the client only the session itself.
    fn holds_nothing(&self) -> bool {
        self.is_unused() && !self.mailbox.is_holding() && self.mailbox.asks.is_empty()
    }

    /// Opens a session stream. If several are open, the replay buffer decides which one receives an event.
    pub fn open_stream(self: &Arc<Session>) -> SessionStreamGuard {
        self.had_stream.store(true, Ordering::Relaxed);
        self.mailbox.count_stream(true);
        SessionStreamGuard { session: Arc::clone(self), _counted: StreamCountGuard::new(&self.all_streams) }
    }

    /// Registers a reader that resumes the stream of a call. The session is not idle until the guard is dropped.
    pub(crate) fn enter_reader(self: &Arc<Session>) -> CallReaderGuard {
        self.readers.fetch_add(1, Ordering::Relaxed);
        CallReaderGuard { session: Arc::clone(self) }
    }

    /// Reports whether the client has neither an open stream nor an open request.
    fn is_unused(&self) -> bool {
        !self.mailbox.has_stream() && self.readers.load(Ordering::Relaxed) == 0 && self.calls.is_empty()
    }

    /// Returns the time since the client's last activity. It is zero while the client has an open stream or request.
    pub fn idle(&self) -> Duration {
        if self.is_unused() { self.silence() } else { Duration::ZERO }
    }

    fn silence(&self) -> Duration {
        let last_seen = Duration::from_micros(self.last_seen.load(Ordering::Relaxed));
        self.begin.elapsed().saturating_sub(last_seen)
    }

    /// Reports whether the client has ever opened a session stream.
    pub(crate) fn had_stream(&self) -> bool {
        self.had_stream.load(Ordering::Relaxed)
    }

    /// Reports whether the client had a session stream and has none now.
    fn is_cut(&self) -> bool {
        !self.mailbox.has_stream() && self.had_stream()
    }
}

/// A guard for a client that reads the stream of a call. It keeps the session from being idle.
pub(crate) struct CallReaderGuard {
    pub session: Arc<Session>,
}

impl Drop for CallReaderGuard {
    fn drop(&mut self) {
        self.session.touch();
        self.session.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A guard for an open session stream.
pub struct SessionStreamGuard {
    pub session: Arc<Session>,
    _counted: StreamCountGuard,
}

impl Drop for SessionStreamGuard {
    fn drop(&mut self) {
        self.session.touch();
        self.session.mailbox.count_stream(false);
    }
}

/// A guard that counts one open stream.
pub(crate) struct StreamCountGuard(Arc<AtomicUsize>);

impl StreamCountGuard {
    fn new(all: &Arc<AtomicUsize>) -> StreamCountGuard {
        all.fetch_add(1, Ordering::Relaxed);
        StreamCountGuard(Arc::clone(all))
    }
}

impl Drop for StreamCountGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A permit for one session. It counts towards `gateway.maxSessions` until it is dropped.
pub struct SessionPermit {
    _permit: OwnedSemaphorePermit,
}

/// An entry of the table. Others may keep the session after its end, but the permit is returned at once.
struct SessionEntry {
    session: Arc<Session>,
    _place: SessionPermit,
}

/// The table of all sessions, and of the calls without a session.
pub struct Sessions {
    sessions: RwLock<HashMap<SessionId, SessionEntry>>,
    room: Arc<Semaphore>,
    /// The sessions that the last scan found for eviction.
    victims: Mutex<EvictionQueue<SessionId>>,
    pub levels: Arc<Levels>,
    /// The calls without a session.
    visits: Arc<OpenCalls>,
    observe: Arc<Observe>,
    pulse: Arc<OpenCallCount>,
    streams: Arc<AtomicUsize>,
    /// The byte count of all replay buffers.
    kept: Arc<ReplayMemory>,
    node: RunId,
    most: usize,
    idle_timeout: Duration,
    begin: Instant,
}

impl Sessions {
    pub fn new(most: usize, idle_timeout: Duration, observe: Arc<Observe>) -> Sessions {
        let most = most.min(Semaphore::MAX_PERMITS);
        let pulse = Arc::<OpenCallCount>::default();
        let kept = Arc::new(ReplayMemory::new(&observe.memory));
        Sessions {
            sessions: RwLock::default(),
            room: Arc::new(Semaphore::new(most)),
            victims: Mutex::default(),
            levels: Arc::default(),
            visits: Arc::new(OpenCalls::new(Arc::clone(&pulse))),
            observe,
            pulse,
            streams: Arc::default(),
            kept,
            node: RunId::random(),
            most,
            idle_timeout,
            begin: Instant::now(),
        }
    }

    /// Returns a place for a new session. If none is free, evicts the least recently active session that holds nothing.
    /// `is_held` reports whether another component keeps something for a session. Returns an error if no session can be
    /// evicted.
    pub fn reserve(&self, is_held: impl Fn(&Session) -> bool) -> Result<SessionPermit, Error> {
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
        Err(Error::LimitExceeded { limit: Limit::MaxSessions.as_str(), value: self.most })
    }

    /// Ends the least recently active session that holds nothing. Returns `false` if there is none.
    fn evict(&self, is_held: &impl Fn(&Session) -> bool) -> bool {
        let victims = || self.victims.lock();
        let is_free = |session: &Session| session.holds_nothing() && !is_held(session);
        for _ in 0..MAX_SCANS {
            loop {
                // This is a separate statement, so that the lock is released before the session ends.
                let victim = victims().pop();
                let Some(victim) = victim else { break };
                let is_due =
                    |session: &Session| session.last_seen.load(Ordering::Relaxed) == victim.since && is_free(session);
                if self.end_if(victim.key, EVICTED, is_due) {
                    return true;
                }
            }
            if !victims().refill(self.most, Instant::now(), || self.candidates(is_free)) {
                return false;
            }
        }
        false
    }

    fn candidates(&self, is_free: impl Fn(&Session) -> bool) -> Vec<EvictionCandidate<SessionId>> {
        let sessions = self.sessions.read();
        let candidate = |open: &SessionEntry| {
            let since = open.session.last_seen.load(Ordering::Relaxed);
            let is_new = !open.session.has_requested.load(Ordering::Relaxed);
            is_free(&open.session).then_some(EvictionCandidate { key: open.session.id, is_new, since })
        };
        sessions.values().filter_map(candidate).collect()
    }

    /// Returns a new session id.
    pub fn mint(&self) -> SessionId {
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
    ) -> Arc<Session> {
        let id = self.mint();
        let mailbox = Mailbox::new(introduction, lists, Replay::among(random_epoch(), &self.kept));
        let session = Arc::new(Session {
            id,
            profile,
            dialect,
            mailbox: Arc::new(mailbox.of_session(id)),
            calls: Arc::new(OpenCalls::new(Arc::clone(&self.pulse))),
            level: Mutex::default(),
            had_stream: AtomicBool::new(false),
            all_streams: Arc::clone(&self.streams),
            readers: AtomicUsize::new(0),
            opened: SystemTime::now(),
            begin: self.begin,
            last_seen: AtomicU64::new(micros(self.begin.elapsed())),
            has_requested: AtomicBool::new(false),
        });
        let open = SessionEntry { session: Arc::clone(&session), _place: place };
        self.sessions.write().insert(session.id, open);
        self.observe.emit(&Event::SessionOpened { session: &session.id.short(), version: dialect.as_str() });
        session
    }

    /// Returns the session with this id and records activity of its client.
    pub fn find(&self, id: SessionId) -> Option<Arc<Session>> {
        let sessions = self.sessions.read();
        let session = Arc::clone(&sessions.get(&id)?.session);
        // Record the activity under the lock. `end_idle` checks it again under the same lock.
        session.touch();
        Some(session)
    }

    /// Returns all sessions in no particular order.
    pub fn all(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.read();
        sessions.values().map(|open| Arc::clone(&open.session)).collect()
    }

    /// Returns the number of sessions, including places that are reserved for a handshake.
    pub fn len(&self) -> usize {
        self.most - self.room.available_permits()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of resource updates that no stream has taken yet.
    pub fn updates_waiting(&self) -> usize {
        let sessions = self.sessions.read();
        sessions.values().map(|open| open.session.mailbox.updates.len()).sum()
    }

    /// Ends a session, cancels its calls and discards everything kept for it.
    pub fn end(&self, id: SessionId, reason: &str) {
        self.end_if(id, reason, |_| true);
    }

    /// Ends a session if `is_due` holds under the lock. Returns whether it ended the session.
    fn end_if(&self, id: SessionId, reason: &str, is_due: impl FnOnce(&Session) -> bool) -> bool {
        let mut sessions = self.sessions.write();
        let is_due = sessions.get(&id).is_some_and(|open| is_due(&open.session));
        let ended = if is_due { sessions.remove(&id) } else { None };
        drop(sessions);
        let Some(SessionEntry { session, .. }) = ended else { return false };
        session.mailbox.close();
        session.calls.close(reason);
        let wish = std::mem::replace(&mut *session.level.lock(), LevelSetting { level: None, ended: true });
        self.levels.replace(wish.level, None);
        self.observe.emit(&Event::SessionEnded { session: &id.short(), reason });
        true
    }

    /// Registers a call without a session. The number of connections bounds the number of such calls.
    pub(crate) fn admit_visit(&self, call: &Arc<Call>) -> Result<OpenCallGuard, Error> {
        self.visits.admit(None, OpenCall::Call(Arc::clone(call)), usize::MAX)
    }

    pub fn end_all(&self, reason: &str) {
        self.visits.close(reason);
        let ids: Vec<_> = self.sessions.read().keys().copied().collect();
        for id in ids {
            self.end(id, reason);
        }
    }

    /// Ends all open server requests, because no client can answer any more.
    pub(crate) fn close_asks(&self) {
        for open in self.sessions.read().values() {
            open.session.mailbox.asks.close();
        }
        self.visits.calls().iter().for_each(|call| call.mailbox.asks.close());
    }

    /// Reports a response that matches no open server request.
    fn tell_unasked(&self, session: &Session) {
        self.observe.emit(&Event::AnswerWithoutAsk { session: &session.id.short() });
    }

    pub fn set_level(&self, session: &Session, level: Level) {
        let mut wish = session.level.lock();
        if !wish.ended {
            session.mailbox.set_level(level);
            self.levels.replace(wish.level.replace(level), Some(level));
        }
    }

    /// Counts a stream of a client without a session.
    pub(crate) fn count_stream(&self) -> StreamCountGuard {
        StreamCountGuard::new(&self.streams)
    }

    /// Returns the number of open streams. A stream counts until it is closed, even if its session has ended.
    pub(crate) fn open_streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Returns the number of calls without an answer.
    pub(crate) fn open_calls(&self) -> usize {
        self.pulse.open()
    }

    /// Returns all calls without an answer, each with its session if it has one.
    pub(crate) fn each_open_call(&self) -> Vec<(Option<SessionId>, Arc<Call>)> {
        let sessions = self.sessions.read();
        let calls = |session: &Arc<Session>| {
            let id = session.id;
            session.calls.calls().into_iter().map(move |call| (Some(id), call))
        };
        let visits = self.visits.calls().into_iter().map(|call| (call.caller.session, call));
        sessions.values().map(|open| &open.session).flat_map(calls).chain(visits).collect()
    }

    /// Ends all idle sessions and discards old replay events.
    pub(crate) fn sweep(&self) {
        self.end_idle(self.idle());
    }

    fn idle(&self) -> Vec<SessionId> {
        let sessions = self.sessions.read();
        let idle = sessions.values().map(|open| &open.session).filter(|session| {
            session.mailbox.replay.forget_old(Instant::now());
            self.is_idle(session)
        });
        idle.map(|session| session.id).collect()
    }

    /// Ends the sessions that are still idle. A client may have returned since the list was made.
    fn end_idle(&self, idle: Vec<SessionId>) {
        for id in idle {
            self.end_if(id, "idle", |session| self.is_idle(session));
        }
    }

    fn is_idle(&self, session: &Session) -> bool {
        session.silence() >= self.patience(session) && session.is_unused()
    }

    /// Returns the idle timeout of a session.
    fn patience(&self, session: &Session) -> Duration {
        let is_dear = session.is_cut() && session.mailbox.is_holding();
        if is_dear { self.idle_timeout.min(LOST_STREAM_TIMEOUT) } else { self.idle_timeout }
    }

    /// Checks the timeouts of all open calls every [`TICK`]. Sleeps while no call is open. Never returns.
    pub(crate) async fn keep_time(&self) {
        loop {
            self.pulse.begun().await;
            tokio::time::sleep(TICK).await;
            let now = Instant::now();
            self.visits.check_timeouts(now);
            for open in self.sessions.read().values() {
                open.session.calls.check_timeouts(now);
            }
        }
    }

    /// Calls [`sweep`](Sessions::sweep) periodically. Never returns.
    pub async fn keep_swept(&self) {
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
