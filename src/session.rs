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
pub mod visit;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::caller::{Caller, Introduction, Level, Node, Principal, SessionId, random_epoch};
use crate::config::exposure::ProfileName;
use crate::lane::Call;
use crate::mailbox::replay::{Kept, Replay};
use crate::mailbox::{Mailbox, Versions};
use crate::observe::{Event, Observe};
use crate::protocol::Id;
use crate::protocol::dialect::Dialect;
use crate::protocol::error::Error;
use crate::session::inflight::{Inflight, Pulse, Ticket};
use crate::session::levels::Levels;

/// How exactly the deadlines of calls are kept.
const TICK: Duration = Duration::from_millis(100);
/// A client whose stream was cut has this long to come back to what is held for it alone.
const CUT_PATIENCE: Duration = Duration::from_secs(120);

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
    /// Milliseconds from then to the last sign of the client.
    last_seen: AtomicU64,
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
        self.last_seen.store(millis(self.begin.elapsed()), Ordering::Relaxed);
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
        let last_seen = Duration::from_millis(self.last_seen.load(Ordering::Relaxed));
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

    /// Room for a session that is about to begin.
    pub fn reserve(&self) -> Result<Place, Error> {
        let permit = Arc::clone(&self.room).try_acquire_owned();
        permit
            .map(|_permit| Place { _permit })
            .map_err(|_| Error::LimitExceeded { limit: "maxSessions", value: self.most })
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
        let session = Arc::new(Session {
            id: self.mint(),
            profile,
            dialect,
            mailbox: Arc::new(Mailbox::new(introduction, lists, Replay::among(random_epoch(), &self.kept))),
            inflight: Arc::new(Inflight::new(Arc::clone(&self.pulse))),
            level: Mutex::default(),
            had_stream: AtomicBool::new(false),
            all_streams: Arc::clone(&self.streams),
            readers: AtomicUsize::new(0),
            opened: SystemTime::now(),
            begin: self.begin,
            last_seen: AtomicU64::new(millis(self.begin.elapsed())),
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

    fn end_if(&self, id: SessionId, reason: &str, is_due: impl FnOnce(&Session) -> bool) {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        let is_due = sessions.get(&id).is_some_and(|open| is_due(&open.session));
        let ended = if is_due { sessions.remove(&id) } else { None };
        drop(sessions);
        let Some(Open { session, .. }) = ended else { return };
        session.mailbox.close();
        session.inflight.close(reason);
        let wish = std::mem::replace(
            &mut *session.level.lock().unwrap_or_else(PoisonError::into_inner),
            Wish { level: None, ended: true },
        );
        self.levels.replace(wish.level, None);
        self.observe.emit(&Event::SessionEnded { session: &id.short(), reason });
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions(most: usize, idle: Duration) -> Sessions {
        Sessions::new(most, idle, Arc::default())
    }

    fn open(sessions: &Sessions) -> Arc<Session> {
        let place = sessions.reserve().expect("there is room");
        sessions.open(place, None, Dialect::V2025_11_25, Introduction::default(), Versions::default())
    }

    #[test]
    fn sess1_exactly_so_many_sessions_fit() {
        let sessions = sessions(3, Duration::from_secs(60));
        let ids: std::collections::HashSet<_> = (0..3).map(|_| open(&sessions).id).collect();
        assert_eq!(ids.len(), 3);
        let refused = || matches!(sessions.reserve(), Err(Error::LimitExceeded { limit: "maxSessions", value: 3 }));
        assert!(refused());
        sessions.end(*ids.iter().next().expect("there are some"), "test");
        let place = sessions.reserve().expect("the room of the ended one");
        assert!(refused() && sessions.len() == 3, "a place without a session counts");
        drop(place);
        assert_eq!(sessions.len(), 2);
    }

    #[test]
    fn only_what_is_idle_is_swept() {
        let sessions = sessions(9, Duration::ZERO);
        let (idle, streaming) = (open(&sessions), open(&sessions));
        let stream = streaming.open_stream();
        sessions.sweep();
        assert!(sessions.find(idle.id).is_none());
        assert!(sessions.find(streaming.id).is_some());
        drop(stream);
        sessions.sweep();
        assert!(sessions.is_empty());
    }

    #[test]
    fn sess2_whoever_reads_the_rest_of_a_call_is_not_idle() {
        let sessions = sessions(9, Duration::ZERO);
        let session = open(&sessions);
        let present = session.enter_reader();
        assert!(!session.mailbox.has_stream());
        sessions.sweep();
        assert!(sessions.find(session.id).is_some());
        drop(present);
        sessions.sweep();
        assert!(sessions.is_empty());
    }

    #[test]
    fn sess2_a_cut_session_that_holds_something_has_less_time() {
        let check = |idle: u64, cut: bool, holds: bool, expected: u64| {
            let sessions = sessions(9, Duration::from_secs(idle));
            let session = open(&sessions);
            assert_eq!(sessions.patience(&session), Duration::from_secs(idle));
            let hold = holds.then(|| session.mailbox.hold());
            if cut {
                let stream = session.open_stream();
                assert_eq!(sessions.patience(&session), Duration::from_secs(idle), "its stream is open");
                drop(stream);
            }
            assert_eq!(sessions.patience(&session), Duration::from_secs(expected), "{idle} {cut} {holds}");
            drop(hold);
            assert_eq!(sessions.patience(&session), Duration::from_secs(idle), "it holds nothing any more");
        };
        check(1800, true, true, 120);
        check(1800, true, false, 1800);
        check(1800, false, true, 1800);
        check(60, true, true, 60);
    }

    #[test]
    fn sess2_whoever_comes_back_in_the_moment_of_the_sweep_stays() {
        let sessions = sessions(9, Duration::ZERO);
        let session = open(&sessions);
        let idle = sessions.idle();
        assert_eq!(idle, [session.id]);
        let stream = session.open_stream();
        sessions.end_idle(idle);
        assert!(sessions.find(session.id).is_some());
        drop(stream);
        sessions.sweep();
        assert!(sessions.is_empty());
    }
}
