use super::*;

fn sessions(max: usize, idle: Duration) -> Sessions {
    Sessions::new(max, idle, Arc::default())
}

fn open(sessions: &Sessions) -> Arc<Client> {
    let place = sessions.reserve(|_| false).expect("there is room");
    sessions.open(place, None, Dialect::V2025_11_25, Introduction::default(), ListVersions::default())
}

fn id_of(client: &Client) -> SessionId {
    client.session.expect("each client has a session")
}

#[test]
fn sess1_the_number_of_sessions_is_limited() {
    let sessions = sessions(3, Duration::from_secs(60));
    let streams: Vec<_> = (0..3).map(|_| sessions.open_stream(&open(&sessions))).collect();
    let ids: std::collections::HashSet<_> = streams.iter().map(|stream| stream.client.session).collect();
    assert_eq!(ids.len(), 3);
    let reserve = || sessions.reserve(|_| false);
    let is_rejected = || matches!(reserve(), Err(Error::LimitExceeded { limit: "maxSessions", value: 3 }));
    assert!(is_rejected());
    sessions.end(&streams[0].client, "test");
    let place = reserve().expect("the place of the ended session");
    assert!(is_rejected() && sessions.len() == 3, "a place without a session counts");
    drop(place);
    assert_eq!(sessions.len(), 2);
}

#[test]
fn hard5_only_a_session_that_holds_nothing_is_evicted() {
    let sessions = sessions(6, Duration::from_secs(60));
    let [streaming, calling, reading, subscribed, requested, idle] = std::array::from_fn(|_| open(&sessions));
    let stream = sessions.open_stream(&streaming);
    let guard = calling.calls.admit(None, OpenCall::Call(Arc::new(Call::example())), 1);
    let presence = reading.register_reader();
    let hold = subscribed.hold();
    let request = requested.open_request();
    // `is_held` replaces the table of tasks, which is not part of the sessions.
    let reserve = || sessions.reserve(|session| id_of(session) == id_of(&idle));
    assert!(reserve().is_err());
    let place = sessions.reserve(|_| false).expect("the idle session makes room");
    assert!(sessions.find(id_of(&idle)).is_none() && reserve().is_err());
    drop((place, stream, guard, presence, hold, request));
    let places: Vec<_> = (0..6).map_while(|_| reserve().ok()).collect();
    assert_eq!((places.len(), sessions.all().len()), (6, 0), "each of them is evicted in the end");
    let counts = sessions.observe.limit_counts();
    assert!(counts.contains(&("maxSessions", 8)), "six evictions and two rejections: {counts:?}");
}

#[test]
fn hard5_the_least_recently_active_session_is_evicted_and_new_ones_first() {
    let sessions = sessions(8, Duration::from_secs(60));
    let opened: Vec<_> = (0..8).map(|_| open(&sessions)).collect();
    let set = |index: usize, since: u64, requested: bool| {
        opened[index].activity.last_seen.store(since, Ordering::Relaxed);
        opened[index].activity.requests.store(requested.into(), Ordering::Relaxed);
    };
    for index in 0..8 {
        set(index, 100 - index as u64, index > 2);
    }
    let next = || {
        let before: Vec<_> = opened.iter().filter(|session| sessions.is_open(id_of(session))).collect();
        let place = sessions.reserve(|_| false).expect("each session makes room");
        let evicted = before.iter().position(|session| !sessions.is_open(id_of(session)));
        std::mem::forget(place);
        evicted.map(|index| opened.iter().position(|session| id_of(session) == id_of(before[index])))
    };
    assert_eq!(next(), Some(Some(2)), "three of eight are new: the oldest of them is evicted");
    assert_eq!(next(), Some(Some(7)), "two of eight are new: the least recently active is evicted");
    assert_eq!(next(), Some(Some(6)));
}

impl Sessions {
    /// Reports whether a session is open, without recording activity.
    fn is_open(&self, id: SessionId) -> bool {
        self.all().iter().any(|session| id_of(session) == id)
    }
}

/// A flood of handshakes must not scan all sessions for each handshake.
#[test]
fn hard5_a_flood_of_handshakes_is_served_from_few_scans() {
    let sessions = sessions(2000, Duration::from_secs(60));
    let scanned = AtomicUsize::new(0);
    for _ in 0..6000 {
        let count = |_: &Client| {
            scanned.fetch_add(1, Ordering::Relaxed);
            false
        };
        let place = sessions.reserve(count).expect("new sessions make room");
        sessions.open(place, None, Dialect::V2025_11_25, Introduction::default(), ListVersions::default());
    }
    let checks = scanned.load(Ordering::Relaxed);
    // There are 4,000 evictions, each checked once, and one scan of 2,000 sessions for every 125 of them.
    assert_eq!((checks, sessions.len()), (4000 + 4000 / 125 * 2000, 2000));
}

#[test]
fn only_an_idle_session_is_swept() {
    let sessions = sessions(9, Duration::ZERO);
    let (idle, streaming) = (open(&sessions), open(&sessions));
    let stream = sessions.open_stream(&streaming);
    sessions.sweep();
    assert!(sessions.find(id_of(&idle)).is_none());
    assert!(sessions.find(id_of(&streaming)).is_some());
    drop(stream);
    sessions.sweep();
    assert!(sessions.is_empty());
}

#[test]
fn sess2_a_session_with_a_reader_is_not_idle() {
    let sessions = sessions(9, Duration::ZERO);
    let session = open(&sessions);
    let presence = session.register_reader();
    assert!(!session.has_stream());
    sessions.sweep();
    assert!(sessions.find(id_of(&session)).is_some());
    drop(presence);
    sessions.sweep();
    assert!(sessions.is_empty());
}

#[test]
fn sess2_a_cut_session_with_holds_has_a_shorter_idle_timeout() {
    let check = |idle: u64, lost: bool, holds: bool, expected: u64| {
        let sessions = sessions(9, Duration::from_secs(idle));
        let session = open(&sessions);
        assert_eq!(sessions.idle_timeout_of(&session), Duration::from_secs(idle));
        let hold = holds.then(|| session.hold());
        if lost {
            let stream = sessions.open_stream(&session);
            assert_eq!(sessions.idle_timeout_of(&session), Duration::from_secs(idle), "its stream is open");
            drop(stream);
        }
        assert_eq!(sessions.idle_timeout_of(&session), Duration::from_secs(expected), "{idle} {lost} {holds}");
        drop(hold);
        assert_eq!(sessions.idle_timeout_of(&session), Duration::from_secs(idle), "it holds nothing");
    };
    check(1800, true, true, 120);
    check(1800, true, false, 1800);
    check(1800, false, true, 1800);
    check(60, true, true, 60);
}

#[test]
fn sess2_a_session_that_reconnects_during_the_sweep_stays() {
    let sessions = sessions(9, Duration::ZERO);
    let session = open(&sessions);
    let idle = sessions.idle();
    assert_eq!(idle, [id_of(&session)]);
    let stream = sessions.open_stream(&session);
    sessions.end_idle(idle);
    assert!(sessions.find(id_of(&session)).is_some());
    drop(stream);
    sessions.sweep();
    assert!(sessions.is_empty());
}
