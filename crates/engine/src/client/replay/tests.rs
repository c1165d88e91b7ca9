use futures_util::FutureExt;
use smallvec::smallvec;

use super::*;

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn id_of(event: &Bytes) -> String {
    text(event).lines().next().and_then(|line| line.strip_prefix("id: ")).expect("an id").to_owned()
}

fn write(replay: &Replay, stream: u64) -> Bytes {
    write_as(replay, stream, ReplayEventKind::Message)
}

fn write_as(replay: &Replay, stream: u64, kind: ReplayEventKind) -> Bytes {
    replay.event(stream, kind, "{}".to_owned().into())
}

fn begin(replay: &Replay) -> u64 {
    replay.begin([&Id::from(5)])
}

fn resume(replay: &Replay, id: &str) -> ReplayReader {
    match replay.resume(id) {
        Ok(StreamResumeOutcome::Reader(reader)) => reader,
        other => panic!("{id}: {other:?}"),
    }
}

fn read(replay: &Replay, reader: &mut ReplayReader) -> Vec<String> {
    match replay.read(reader) {
        ReplayRead::Events(events) => text(&events).split_inclusive("\n\n").map(str::to_owned).collect(),
        ReplayRead::Nothing => Vec::new(),
        ReplayRead::Ended => vec!["ended".to_owned()],
    }
}

#[test]
fn sess2_a_resumed_stream_replays_its_later_events_and_none_of_other_streams() {
    let replay = Replay::new(0xab);
    let (one, two) = (begin(&replay), begin(&replay));
    let primed = replay.prime(one);
    assert_eq!(text(&primed), "id: 1-00000ab-1\nretry: 1000\ndata: \n\n");
    replay.prime(two);
    let first = replay.event(one, ReplayEventKind::Message, "{\n1}".to_owned().into());
    assert_eq!(text(&first), "id: 1-00000ab-3\nevent: message\ndata: { 1}\n\n");
    write(&replay, two);
    let last = write(&replay, one);
    replay.finish(one);
    let mut reader = resume(&replay, &id_of(&primed));
    assert_eq!(read(&replay, &mut reader), [text(&first), text(&last)]);
    assert_eq!(read(&replay, &mut reader), ["ended"]);
    assert_eq!(replay.resume(&id_of(&last)), Ok(StreamResumeOutcome::Complete));
}

#[test]
fn a_message_to_many_clients_is_stored_once() {
    let message = Bytes::from(b"{\"sent\":\"to all\"}".to_vec());
    for epoch in [1, 2] {
        let replay = Replay::new(epoch);
        let (mut reader, _) = replay.take_session();
        replay.keep(message.clone());
        assert_eq!(replay.ring.lock().events[0].message.as_ptr(), message.as_ptr());
        let event = format!("id: 0-000000{epoch}-2\nevent: message\ndata: {{\"sent\":\"to all\"}}\n\n");
        assert_eq!(read(&replay, &mut reader), [event]);
    }
}

#[test]
fn sess2_an_unknown_event_id_is_a_gap() {
    let replay = Replay::new(7);
    replay.prime(begin(&replay));
    for wrong in ["", "x", "1", "1-0000008-1", "9-0000007-1", "1-0000007-99", "1-0000007-1-1", "-1-7-1"] {
        assert_eq!(replay.resume(wrong), Err(ResumeGap), "{wrong}");
    }
    replay.close();
    assert_eq!(replay.resume("1-0000007-1"), Err(ResumeGap));
}

#[test]
fn sess2_a_removed_event_of_the_session_stream_is_a_gap() {
    let replay = Replay::new(7);
    let (_, primed) = replay.take_session();
    let primed = id_of(&primed.expect("there is nothing to read"));
    let ids: Vec<_> = (0..=MAX_EVENTS).map(|_| id_of(&write(&replay, SESSION_STREAM))).collect();
    assert_eq!(replay.resume(&primed), Err(ResumeGap));
    assert_eq!(read(&replay, &mut resume(&replay, &ids[0])).len(), MAX_EVENTS);
    replay.discard_old(Instant::now() + KEPT_FOR);
    assert_eq!(replay.resume(&ids[0]), Err(ResumeGap));
    assert!(read(&replay, &mut resume(&replay, &ids[MAX_EVENTS])).is_empty());
    assert_eq!(replay.ring.lock().bytes, 0);
}

#[test]
fn sess2_an_answer_is_replayed_after_its_earlier_events_are_removed() {
    let replay = Replay::new(7);
    let stream = begin(&replay);
    let primed = id_of(&replay.prime(stream));
    write(&replay, stream);
    for _ in 0..MAX_EVENTS {
        write(&replay, SESSION_STREAM);
    }
    let answer = write(&replay, stream);
    replay.finish(stream);
    let mut reader = resume(&replay, &primed);
    assert!(reader.has_gap);
    assert_eq!(read(&replay, &mut reader), [text(&answer)]);
    replay.discard_old(Instant::now() + KEPT_FOR);
    assert_eq!(replay.resume(&primed), Ok(StreamResumeOutcome::Lost(smallvec![Id::from(5)])));
    assert_eq!(replay.resume(&id_of(&answer)), Ok(StreamResumeOutcome::Complete));
}

#[test]
fn sess2_replay_is_limited_and_keeps_the_newest_events() {
    let replay = Replay::new(7);
    for _ in 0..2 * MAX_EVENTS {
        write(&replay, SESSION_STREAM);
    }
    assert_eq!(replay.ring.lock().events.len(), MAX_EVENTS);
    replay.event(SESSION_STREAM, ReplayEventKind::Message, "x".repeat(2 * MAX_BYTES).into());
    assert_eq!(replay.ring.lock().events.len(), 1);
    write(&replay, SESSION_STREAM);
    assert_eq!(replay.ring.lock().events.len(), 1);
    let open = begin(&replay);
    for _ in 0..2 * MAX_ENDED_STREAMS {
        replay.finish(begin(&replay));
    }
    replay.finish(open + 1);
    assert_eq!(replay.ring.lock().streams.len(), MAX_ENDED_STREAMS + 2, "with the open stream and the session stream");
}

#[test]
fn sess2_a_new_session_stream_continues_after_the_last_read_event() {
    let replay = Replay::new(7);
    let (mut first, primed) = replay.take_session();
    assert!(primed.is_some());
    let read_before = write(&replay, SESSION_STREAM);
    assert_eq!(read(&replay, &mut first), [text(&read_before)]);
    let unread = write(&replay, SESSION_STREAM);
    let (mut second, primed) = replay.take_session();
    assert_eq!(primed, None, "its id would be greater than that of the unread event");
    assert_eq!(read(&replay, &mut first), ["ended"]);
    assert_eq!(read(&replay, &mut second), [text(&unread)]);
    assert_eq!(read(&replay, &mut resume(&replay, &id_of(&read_before))), [text(&unread)]);
}

#[tokio::test]
async fn sess2_only_the_newest_reader_of_a_stream_receives_its_later_events() {
    let replay = Replay::new(7);
    let stream = begin(&replay);
    let id = id_of(&replay.prime(stream));
    assert!(replay.taken(stream).now_or_never().is_none());
    let mut first = resume(&replay, &id);
    replay.taken(stream).await;
    let mut second = resume(&replay, &id);
    assert_eq!(replay.follow(&mut first).await, None);
    let (received, ()) = tokio::join!(replay.follow(&mut second), async { drop(write(&replay, stream)) });
    assert!(received.is_some_and(|events| events.ends_with(b"data: {}\n\n")));
    assert!(replay.follow(&mut second).now_or_never().is_none());
    let (end, ()) = tokio::join!(replay.follow(&mut second), async { replay.finish(stream) });
    assert_eq!(end, None);
}

#[test]
fn sess2_a_reader_behind_the_kept_events_ends() {
    let replay = Replay::new(7);
    let stream = begin(&replay);
    let mut reader = resume(&replay, &id_of(&replay.prime(stream)));
    for _ in 0..=MAX_EVENTS {
        write(&replay, stream);
    }
    assert_eq!(read(&replay, &mut reader), ["ended"]);
}

#[test]
fn sess2_answers_and_server_requests_are_not_displaced_by_notifications() {
    let replay = Replay::new(7);
    let (one, two, noisy) = (begin(&replay), begin(&replay), begin(&replay));
    let primed = [one, two].map(|stream| id_of(&replay.prime(stream)));
    let answer = write_as(&replay, one, ReplayEventKind::Answer);
    replay.finish(one);
    write(&replay, two);
    let request = write_as(&replay, two, ReplayEventKind::Request);
    for _ in 0..2 * MAX_EVENTS {
        write(&replay, noisy);
        write(&replay, SESSION_STREAM);
    }
    assert_eq!(replay.ring.lock().events.len(), MAX_EVENTS);
    assert_eq!(read(&replay, &mut resume(&replay, &primed[0])), [text(&answer)]);
    let mut reader = resume(&replay, &primed[1]);
    assert!(reader.has_gap, "the message before it was discarded");
    assert_eq!(read(&replay, &mut reader), [text(&request)]);
    let last = write_as(&replay, two, ReplayEventKind::Answer);
    assert_eq!(read(&replay, &mut reader), [text(&last)]);
}

#[test]
fn sess2_a_server_request_is_kept_until_its_call_ends() {
    let replay = Replay::new(7);
    let stream = begin(&replay);
    let primed = id_of(&replay.prime(stream));
    write(&replay, stream);
    let request = write_as(&replay, stream, ReplayEventKind::Request);
    write(&replay, stream);
    let later = Instant::now() + KEPT_FOR;
    replay.discard_old(later);
    let mut reader = resume(&replay, &primed);
    assert_eq!(read(&replay, &mut reader), [text(&request)]);
    assert!(read(&replay, &mut reader).is_empty());
    assert!(read(&replay, &mut resume(&replay, &id_of(&request))).is_empty(), "later events were discarded");
    replay.finish(stream);
    replay.discard_old(later);
    assert_eq!(replay.ring.lock().bytes, 0);
}

#[test]
fn sess2_every_kept_answer_can_be_resumed() {
    let replay = Replay::new(7);
    let calls: Vec<_> = (0..MAX_EVENTS)
        .map(|_| {
            let stream = begin(&replay);
            let primed = id_of(&replay.prime(stream));
            write_as(&replay, stream, ReplayEventKind::Answer);
            replay.finish(stream);
            primed
        })
        .collect();
    for primed in &calls {
        assert_eq!(read(&replay, &mut resume(&replay, primed)).len(), 1);
    }
    // Streams that ended without an event do not displace streams with a kept answer.
    for _ in 0..2 * MAX_EVENTS {
        replay.finish(begin(&replay));
    }
    assert_eq!(replay.ring.lock().streams.len(), MAX_ENDED_STREAMS + MAX_EVENTS);
    assert!(matches!(replay.resume(&calls[0]), Ok(StreamResumeOutcome::Reader(_))));
    replay.discard_old(Instant::now() + KEPT_FOR);
    assert_eq!(replay.ring.lock().streams.len(), MAX_ENDED_STREAMS);
}

#[test]
fn sess2_replay_memory_has_a_total_limit_and_a_minimum_per_client() {
    let memory = Arc::new(ReplayMemory::default());
    let replay = Replay::with_memory(7, &memory);
    let (small, large) = (begin(&replay), begin(&replay));
    let primed = id_of(&replay.prime(large));
    let write = |stream, length: usize| {
        replay.event(stream, ReplayEventKind::Answer, "x".repeat(length).into());
        replay.ring.lock().bytes
    };
    let other_bytes = MAX_TOTAL_BYTES;
    memory.bytes.fetch_add(other_bytes, Ordering::Relaxed);
    let bytes = (0..2 * MIN_BYTES / 1024).map(|_| write(small, 1024)).max();
    assert!(bytes.is_some_and(|max| max <= MIN_BYTES && max > MIN_BYTES - 2 * 1024), "{bytes:?}");
    write(large, MIN_BYTES + 1);
    replay.finish(large);
    assert!(matches!(replay.resume(&primed), Ok(StreamResumeOutcome::Lost(_))), "the loss is reported");
    memory.bytes.fetch_sub(other_bytes, Ordering::Relaxed);
    let bytes = write(small, MIN_BYTES + 1);
    assert!(bytes > MIN_BYTES);
    assert_eq!(memory.bytes.load(Ordering::Relaxed), bytes);
    drop(replay);
    assert_eq!(memory.bytes.load(Ordering::Relaxed), 0);
}
