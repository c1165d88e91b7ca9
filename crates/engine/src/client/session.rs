//! The clients: one session each, and what they may ask.
//!
//! [`Sessions`] is the book of all of them. [`Desk`] is where a session's messages are handled, whatever transport they
//! came over: what the snapshot can answer is answered at once, the rest becomes a [`Pending`] call.

pub mod account;
pub mod cut;
pub mod desk;
pub mod inflight;
pub mod levels;
pub mod listening;
pub mod park;
pub mod victims;
pub mod visit;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::caller::{Caller, Introduction, Level, Node, Principal, SessionId, random_epoch};
use goblin_config::exposure::ProfileName;
use crate::client::lane::Call;
use crate::client::mailbox::replay::{Kept, Replay};
use crate::client::mailbox::{Mailbox, Versions};
use goblin_wire::limits::Limit;
use goblin_telemetry::{Event, Observe};
use goblin_wire::Id;
use goblin_wire::dialect::Dialect;
use goblin_wire::error::Error;
use crate::client::session::inflight::{Inflight, Pulse, Ticket};
use crate::client::session::levels::Levels;
use crate::client::session::victims::{Candidate, Victims};

/// How exactly the deadlines of calls are kept.
const TICK: Duration = Duration::from_millis(100);
/// A client whose stream was cut has this long to come back to what is held for it alone.
const CUT_PATIENCE: Duration = Duration::from_secs(120);
/// How often a handshake scans the sessions for one to evict.
const MAX_SCANS: usize = 2;
/// The reason that the event of an evicted session reports.
const EVICTED: &str = "evicted to make room for a new client (gateway.maxSessions)";

pub struct Session {
    pub id: SessionId,
    pub profile: Option<ProfileName>,
    pub dialect: Dialect,
    pub mailbox: Arc<Mailbox>,
    pub inflight: Arc<Inflight>,
    level: Mutex<Wish>,
    /// A stream was opened at some time.
    had_stream: AtomicBool,
    /// How many are open, of all sessions together.
    all_streams: Arc<AtomicUsize>,
    /// Who reads the rest of a call's stream that was cut.
    readers: AtomicUsize,
    pub opened: SystemTime,
    /// When the book was begun.
    begin: Instant,
    /// Microseconds from then to the last sign of the client.
    last_seen: AtomicU64,
    /// The client sent a request after the handshake.
    has_requested: AtomicBool,
}

/// The log level a client asked for.
#[derive(Default)]
struct Wish {
    level: Option<Level>,
    /// The session is over: what is asked for now would never be taken back.
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

    /// The client was there just now.
    pub fn touch(&self) {
        self.last_seen.store(micros(self.begin.elapsed()), Ordering::Relaxed);
    }

    /// Records that the client sent a request after the handshake.
    pub fn note_request(&self) {
        if !self.has_requested.load(Ordering::Relaxed) {
            self.has_requested.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the client loses nothing but the session itself.
    fn holds_nothing(&self) -> bool {
        self.is_unused() && !self.mailbox.is_holding() && self.mailbox.asks.is_empty()
    }

    /// Begins a stream to the client. Which of several reads what, the replay decides.
    pub fn open_stream(self: &Arc<Session>) -> Stream {
        self.had_stream.store(true, Ordering::Relaxed);
        self.mailbox.count_stream(true);
        Stream { session: Arc::clone(self), _counted: Counted::new(&self.all_streams) }
    }

    /// Begins to read the rest of a call's stream.
    pub fn enter_reader(self: &Arc<Session>) -> Present {
        self.readers.fetch_add(1, Ordering::Relaxed);
        Present { session: Arc::clone(self) }
    }

    /// Whether the client has neither an open stream nor a request.
    fn is_unused(&self) -> bool {
        !self.mailbox.has_stream() && self.readers.load(Ordering::Relaxed) == 0 && self.inflight.is_empty()
    }

    /// How long nothing was seen of the client; one that reads or waits is there.
    pub fn idle(&self) -> Duration {
        if self.is_unused() { self.silence() } else { Duration::ZERO }
    }

    fn silence(&self) -> Duration {
        let last_seen = Duration::from_micros(self.last_seen.load(Ordering::Relaxed));
        self.begin.elapsed().saturating_sub(last_seen)
    }

    /// Whether the client has had a stream of the session.
    pub fn had_stream(&self) -> bool {
        self.had_stream.load(Ordering::Relaxed)
    }

    /// Whether the client had a stream and has none now.
    fn is_cut(&self) -> bool {
        !self.mailbox.has_stream() && self.had_stream()
    }
}

/// A client that reads something but the stream of its session, and so is there.
pub struct Present {
    pub session: Arc<Session>,
}

impl Drop for Present {
    fn drop(&mut self) {
        self.session.touch();
        self.session.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream's hold on its session.
pub struct Stream {
    pub session: Arc<Session>,
    _counted: Counted,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.session.touch();
        self.session.mailbox.count_stream(false);
    }
}

/// A stream among all that are open, for as long as this lives.
pub struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(all: &Arc<AtomicUsize>) -> Counted {
        all.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(all))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Room for one session. It counts from here on; dropping it gives the room back.
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

/// An entry of the book. The session may be held by others after its end, its place may not.
struct Open {
    session: Arc<Session>,
    _place: Place,
}

/// All sessions.
pub struct Sessions {
    sessions: RwLock<HashMap<SessionId, Open>>,
    room: Arc<Semaphore>,
    /// The sessions that the last scan found for eviction.
    victims: Mutex<Victims<SessionId>>,
    pub levels: Arc<Levels>,
    /// Calls without a session, each under a number of its own.
    visits: Arc<Inflight>,
    last_visit: AtomicU64,
    observe: Arc<Observe>,
    pulse: Arc<Pulse>,
    streams: Arc<AtomicUsize>,
    /// What is kept of the streams of all sessions.
    kept: Arc<Kept>,
    node: Node,
    most: usize,
    idle_timeout: Duration,
    begin: Instant,
}

impl Sessions {
    pub fn new(most: usize, idle_timeout: Duration, observe: Arc<Observe>) -> Sessions {
        let most = most.min(Semaphore::MAX_PERMITS);
        let pulse = Arc::<Pulse>::default();
        let kept = Arc::new(Kept::new(&observe.memory));
        Sessions {
            sessions: RwLock::default(),
            room: Arc::new(Semaphore::new(most)),
            victims: Mutex::default(),
            levels: Arc::default(),
            visits: Arc::new(Inflight::new(Arc::clone(&pulse))),
            last_visit: AtomicU64::new(0),
            observe,
            pulse,
            streams: Arc::default(),
            kept,
            node: Node::random(),
            most,
            idle_timeout,
            begin: Instant::now(),
        }
    }

    /// Returns a place for a session that is about to begin. If all places are taken, evicts the least recently active
    /// session that holds nothing; `is_held` reports what others keep for a session.
    pub fn reserve(&self, is_held: impl Fn(&Session) -> bool) -> Result<Place, Error> {
        let acquire = || Arc::clone(&self.room).try_acquire_owned().map(|_permit| Place { _permit });
        if let Ok(place) = acquire() {
            return Ok(place);
        }
        self.observe.limit_hit(Limit::MaxSessions);
        // Another handshake may take the place of the evicted session; then the next one is evicted.
        while self.evict(&is_held) {
            if let Ok(place) = acquire() {
                return Ok(place);
            }
        }
        Err(Error::LimitExceeded { limit: Limit::MaxSessions.as_str(), value: self.most })
    }

    /// Ends the least recently active session that holds nothing. Returns whether there was one.
    fn evict(&self, is_held: &impl Fn(&Session) -> bool) -> bool {
        let victims = || self.victims.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |session: &Session| session.holds_nothing() && !is_held(session);
        for _ in 0..MAX_SCANS {
            loop {
                // A statement of its own, so that the lock is free while the session ends.
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

    fn candidates(&self, is_free: impl Fn(&Session) -> bool) -> Vec<Candidate<SessionId>> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let candidate = |open: &Open| {
            let since = open.session.last_seen.load(Ordering::Relaxed);
            let is_new = !open.session.has_requested.load(Ordering::Relaxed);
            is_free(&open.session).then_some(Candidate { key: open.session.id, is_new, since })
        };
        sessions.values().filter_map(candidate).collect()
    }

    /// A name that no session has.
    pub fn mint(&self) -> SessionId {
        SessionId::new(self.node)
    }

    pub fn open(
        &self,
        place: Place,
        profile: Option<ProfileName>,
        dialect: Dialect,
        introduction: Introduction,
        lists: Versions,
    ) -> Arc<Session> {
        let id = self.mint();
        let mailbox = Mailbox::new(introduction, lists, Replay::among(random_epoch(), &self.kept));
        let session = Arc::new(Session {
            id,
            profile,
            dialect,
            mailbox: Arc::new(mailbox.of_session(id)),
            inflight: Arc::new(Inflight::new(Arc::clone(&self.pulse))),
            level: Mutex::default(),
            had_stream: AtomicBool::new(false),
            all_streams: Arc::clone(&self.streams),
            readers: AtomicUsize::new(0),
            opened: SystemTime::now(),
            begin: self.begin,
            last_seen: AtomicU64::new(micros(self.begin.elapsed())),
            has_requested: AtomicBool::new(false),
        });
        let open = Open { session: Arc::clone(&session), _place: place };
        self.sessions.write().unwrap_or_else(PoisonError::into_inner).insert(session.id, open);
        self.observe.emit(&Event::SessionOpened { session: &session.id.short(), version: dialect.as_str() });
        session
    }

    /// A session by its id; it counts as seen.
    pub fn find(&self, id: SessionId) -> Option<Arc<Session>> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let session = Arc::clone(&sessions.get(&id)?.session);
        // While the book is held: whoever ends the idle looks at this again.
        session.touch();
        Some(session)
    }

    /// All of them, in no order.
    pub fn all(&self) -> Vec<Arc<Session>> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.values().map(|open| Arc::clone(&open.session)).collect()
    }

    /// How many there are, with those that have a place and no handshake yet.
    pub fn len(&self) -> usize {
        self.most - self.room.available_permits()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Updates of resources that no stream of their client has taken yet.
    pub fn updates_waiting(&self) -> usize {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.values().map(|open| open.session.mailbox.updates.len()).sum()
    }

    /// Ends a session and all it holds.
    pub fn end(&self, id: SessionId, reason: &str) {
        self.end_if(id, reason, |_| true);
    }

    /// Ends a session if `is_due` still holds. Returns whether the session was ended.
    fn end_if(&self, id: SessionId, reason: &str, is_due: impl FnOnce(&Session) -> bool) -> bool {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        let is_due = sessions.get(&id).is_some_and(|open| is_due(&open.session));
        let ended = if is_due { sessions.remove(&id) } else { None };
        drop(sessions);
        let Some(Open { session, .. }) = ended else { return false };
        session.mailbox.close();
        session.inflight.close(reason);
        let wish = std::mem::replace(
            &mut *session.level.lock().unwrap_or_else(PoisonError::into_inner),
            Wish { level: None, ended: true },
        );
        self.levels.replace(wish.level, None);
        self.observe.emit(&Event::SessionEnded { session: &id.short(), reason });
        true
    }

    /// Enters a call without a session. How many there are is bounded by the connections and pipes they come over.
    pub fn admit_visit(&self, call: &Arc<Call>) -> Result<Ticket, Error> {
        let number = self.last_visit.fetch_add(1, Ordering::Relaxed);
        self.visits.admit(&Id::from(number), call, usize::MAX)
    }

    pub fn end_all(&self, reason: &str) {
        self.visits.close(reason);
        let ids: Vec<_> = self.sessions.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        for id in ids {
            self.end(id, reason);
        }
    }

    /// No client can answer any more, so no call need wait for that.
    pub fn close_asks(&self) {
        for open in self.sessions.read().unwrap_or_else(PoisonError::into_inner).values() {
            open.session.mailbox.asks.close();
        }
        self.visits.calls().iter().for_each(|call| call.mailbox.asks.close());
    }

    /// A client answered what nobody asks, or asks any more.
    fn tell_unasked(&self, session: &Session) {
        self.observe.emit(&Event::AnswerWithoutAsk { session: &session.id.short() });
    }

    /// Progress or a log line of a client without a session had no room on its way, or no way.
    pub fn tell_dropped(&self, client: Option<SessionId>) {
        let session = client.map_or_else(|| "none".to_owned(), |client| client.short());
        self.observe.emit(&Event::MessageDropped { session: &session });
    }

    pub fn set_level(&self, session: &Session, level: Level) {
        let mut wish = session.level.lock().unwrap_or_else(PoisonError::into_inner);
        if !wish.ended {
            session.mailbox.set_level(level);
            self.levels.replace(wish.level.replace(level), Some(level));
        }
    }

    /// A stream of a client without a session.
    pub fn count_stream(&self) -> Counted {
        Counted::new(&self.streams)
    }

    /// Streams that are open, also of sessions that have ended and whose stream has not yet.
    pub fn open_streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Calls of all sessions that have no answer yet.
    pub fn open_calls(&self) -> usize {
        self.pulse.open()
    }

    /// The same, each with its session where it has one.
    pub fn each_open_call(&self) -> Vec<(Option<SessionId>, Arc<Call>)> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let calls = |session: &Arc<Session>| {
            let id = session.id;
            session.inflight.calls().into_iter().map(move |call| (Some(id), call))
        };
        let visits = self.visits.calls().into_iter().map(|call| (call.caller.session, call));
        sessions.values().map(|open| &open.session).flat_map(calls).chain(visits).collect()
    }

    /// Ends sessions that have neither an open stream nor a request and were silent for too long.
    pub fn sweep(&self) {
        self.end_idle(self.idle());
    }

    fn idle(&self) -> Vec<SessionId> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        let idle = sessions.values().map(|open| &open.session).filter(|session| {
            session.mailbox.replay.forget_old(Instant::now());
            self.is_idle(session)
        });
        idle.map(|session| session.id).collect()
    }

    /// One whose client has come back meanwhile stays.
    fn end_idle(&self, idle: Vec<SessionId>) {
        for id in idle {
            self.end_if(id, "idle", |session| self.is_idle(session));
        }
    }

    fn is_idle(&self, session: &Session) -> bool {
        session.silence() >= self.patience(session) && session.is_unused()
    }

    /// How long a session may be silent.
    fn patience(&self, session: &Session) -> Duration {
        let is_dear = session.is_cut() && session.mailbox.is_holding();
        if is_dear { self.idle_timeout.min(CUT_PATIENCE) } else { self.idle_timeout }
    }

    /// Looks at the clock of every open call now and then, for as long as there are any; for ever.
    pub async fn keep_time(&self) {
        loop {
            self.pulse.begun().await;
            tokio::time::sleep(TICK).await;
            let now = Instant::now();
            self.visits.look_at_clock(now);
            for open in self.sessions.read().unwrap_or_else(PoisonError::into_inner).values() {
                open.session.inflight.look_at_clock(now);
            }
        }
    }

    /// Sweeps now and then, for ever.
    pub async fn keep_swept(&self) {
        let interval = (self.idle_timeout / 10).clamp(Duration::from_millis(50), CUT_PATIENCE / 10);
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
