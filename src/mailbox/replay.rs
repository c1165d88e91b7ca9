//! What was written to a client's streams, kept for a while: a stream may be cut with the last of it unread.
//!
//! Every event of a stream gets an id when it is written, `STREAM-EPOCH-SEQ`. The epoch is another with every start of the
//! gateway, so an id from another life is known as such. A client that comes back with the last id it has seen gets what
//! followed on that stream; where some of that is gone, it is told so ([`Gap`]), never given an empty success.
//!
//! Bounds: [`MOST_EVENTS`] and [`MOST_BYTES`] for all streams of a client together, the oldest goes first, and [`KEPT_FOR`].

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use crate::protocol::json::Pieces;

/// How many events, and how many bytes of them, are kept for a client. The newest is kept whatever its size.
const MOST_EVENTS: usize = 256;
const MOST_BYTES: usize = 1024 * 1024;
/// How long an event is kept, and so the answer of a call whose stream was cut.
pub const KEPT_FOR: Duration = Duration::from_secs(120);
/// How long a client shall wait before it comes back.
const RETRY: Duration = Duration::from_secs(1);

/// The stream that belongs to no call.
pub const SESSION_STREAM: u64 = 0;

pub struct Replay {
    epoch: u32,
    ring: Mutex<Ring>,
    /// Rung when a stream that somebody may follow has grown, ended or changed hands.
    bell: Notify,
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Event>,
    bytes: usize,
    /// The last sequence number that was given.
    last: u64,
    streams: HashMap<u64, Stream>,
    last_stream: u64,
    closed: bool,
}

struct Event {
    stream: u64,
    seq: u64,
    bytes: Bytes,
    at: Instant,
}

#[derive(Default)]
struct Stream {
    /// The last of its events that is not kept any more.
    forgotten: u64,
    /// How many of its events are kept.
    kept: usize,
    is_over: bool,
    /// Who reads it: the last to come.
    reader: u64,
}

/// What the client names cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap;

/// What a reader of a stream finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Events(Vec<Bytes>),
    Nothing,
    /// There will be no more, or none for this reader.
    Over,
}

/// One who reads a stream from where it was cut.
#[derive(Debug, PartialEq, Eq)]
pub struct Reader {
    pub stream: u64,
    /// The last event it has.
    seq: u64,
    number: u64,
}

impl Replay {
    pub fn new(epoch: u32) -> Replay {
        Replay { epoch, ring: Mutex::default(), bell: Notify::new() }
    }

    /// Begins the stream of a call.
    pub fn begin(&self) -> u64 {
        let mut ring = self.lock();
        ring.last_stream += 1;
        let stream = ring.last_stream;
        ring.streams.insert(stream, Stream::default());
        stream
    }

    /// An event without a message, from which on the stream can be resumed; it also says when to come back.
    pub fn prime(&self, stream: u64) -> Bytes {
        let mut event = BytesMut::new();
        let retry = RETRY.as_millis();
        self.write(stream, |id| {
            write!(event, "id: {id}\nretry: {retry}\ndata: \n\n").expect("writing to memory cannot fail");
            event.freeze()
        })
    }

    /// A message as the next event of a stream.
    pub fn event(&self, stream: u64, message: Pieces) -> Bytes {
        self.write(stream, |id| {
            let mut event = BytesMut::with_capacity(message.len() + 64);
            write!(event, "id: {id}\nevent: message\ndata: ").expect("writing to memory cannot fail");
            for piece in message.into_line() {
                event.extend_from_slice(&piece);
            }
            event.extend_from_slice(b"\n\n");
            event.freeze()
        })
    }

    fn write(&self, stream: u64, event: impl FnOnce(&str) -> Bytes) -> Bytes {
        let mut ring = self.lock();
        ring.last += 1;
        let seq = ring.last;
        let bytes = event(&format!("{stream}-{:07x}-{seq}", self.epoch));
        if !ring.closed {
            ring.keep(Event { stream, seq, bytes: bytes.clone(), at: Instant::now() });
        }
        drop(ring);
        self.bell.notify_waiters();
        bytes
    }

    /// The last event of a stream was written.
    pub fn finish(&self, stream: u64) {
        let mut ring = self.lock();
        if let Some(stream) = ring.streams.get_mut(&stream) {
            stream.is_over = true;
        }
        ring.drop_if_spent(stream);
        drop(ring);
        self.bell.notify_waiters();
    }

    /// Takes over a stream from its last known event. Whoever read it so far reads it no more.
    pub fn resume(&self, last_event_id: &str) -> Result<Reader, Gap> {
        let (stream, seq) = self.parse(last_event_id).ok_or(Gap)?;
        let mut ring = self.lock();
        if seq > ring.last {
            return Err(Gap);
        }
        let known = match stream {
            // It is always there, also when nothing on it is kept.
            SESSION_STREAM => ring.streams.entry(stream).or_default(),
            _ => ring.streams.get_mut(&stream).ok_or(Gap)?,
        };
        if seq < known.forgotten {
            return Err(Gap);
        }
        known.reader += 1;
        let number = known.reader;
        drop(ring);
        self.bell.notify_waiters();
        Ok(Reader { stream, seq, number })
    }

    /// Whether another has taken over the stream of a call from the one who began it.
    pub fn is_taken(&self, stream: u64) -> bool {
        self.lock().streams.get(&stream).is_some_and(|stream| stream.reader > 0)
    }

    /// Waits until another takes over the stream of a call.
    pub async fn taken(&self, stream: u64) {
        loop {
            let rung = self.bell.notified();
            if self.is_taken(stream) {
                return;
            }
            rung.await;
        }
    }

    /// What followed on the stream of `reader`; it counts as read.
    pub fn read(&self, reader: &mut Reader) -> Next {
        let ring = self.lock();
        let Some(stream) = ring.streams.get(&reader.stream) else { return Next::Over };
        if stream.reader != reader.number || reader.seq < stream.forgotten || ring.closed {
            return Next::Over;
        }
        let follows = |event: &&Event| event.stream == reader.stream && event.seq > reader.seq;
        let events: Vec<_> = ring.events.iter().filter(follows).map(|event| (event.seq, event.bytes.clone())).collect();
        match events.last() {
            Some((seq, _)) => {
                reader.seq = *seq;
                Next::Events(events.into_iter().map(|(_, bytes)| bytes).collect())
            }
            None if stream.is_over => Next::Over,
            None => Next::Nothing,
        }
    }

    /// Waits for what follows; nothing when it is over. Cancel-safe.
    pub async fn follow(&self, reader: &mut Reader) -> Option<Vec<Bytes>> {
        loop {
            let rung = self.bell.notified();
            match self.read(reader) {
                Next::Events(events) => return Some(events),
                Next::Over => return None,
                Next::Nothing => rung.await,
            }
        }
    }

    /// Forgets what is older than [`KEPT_FOR`].
    pub fn forget_old(&self, now: Instant) {
        let mut ring = self.lock();
        while ring.events.front().is_some_and(|event| now.duration_since(event.at) >= KEPT_FOR) {
            ring.forget_first();
        }
    }

    /// The client is gone.
    pub fn close(&self) {
        let mut ring = self.lock();
        *ring = Ring { closed: true, last: ring.last, last_stream: ring.last_stream, ..Ring::default() };
        drop(ring);
        self.bell.notify_waiters();
    }

    fn parse(&self, id: &str) -> Option<(u64, u64)> {
        let mut parts = id.split('-');
        let stream = parts.next()?.parse().ok()?;
        let epoch = u32::from_str_radix(parts.next()?, 16).ok()?;
        let seq = parts.next()?.parse().ok()?;
        (epoch == self.epoch && parts.next().is_none()).then_some((stream, seq))
    }

    /// No code that holds this lock can panic.
    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn keep(&mut self, event: Event) {
        while !self.events.is_empty()
            && (self.events.len() >= MOST_EVENTS || self.bytes + event.bytes.len() > MOST_BYTES)
        {
            self.forget_first();
        }
        self.bytes += event.bytes.len();
        self.streams.entry(event.stream).or_default().kept += 1;
        self.events.push_back(event);
    }

    fn forget_first(&mut self) {
        let Some(event) = self.events.pop_front() else { return };
        self.bytes -= event.bytes.len();
        if let Some(stream) = self.streams.get_mut(&event.stream) {
            stream.kept -= 1;
            stream.forgotten = event.seq;
        }
        self.drop_if_spent(event.stream);
    }

    /// Nothing can be replayed of a stream that is over and of which nothing is kept.
    fn drop_if_spent(&mut self, number: u64) {
        if self.streams.get(&number).is_some_and(|stream| stream.is_over && stream.kept == 0) {
            self.streams.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn text(bytes: &Bytes) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn id_of(event: &Bytes) -> String {
        text(event).lines().next().and_then(|line| line.strip_prefix("id: ")).expect("an id").to_owned()
    }

    fn read(replay: &Replay, reader: &mut Reader) -> Vec<String> {
        match replay.read(reader) {
            Next::Events(events) => events.iter().map(text).collect(),
            Next::Nothing => Vec::new(),
            Next::Over => vec!["over".to_owned()],
        }
    }

    #[test]
    fn sess2_what_followed_on_a_stream_is_replayed_and_nothing_of_another() {
        let replay = Replay::new(0xab);
        let (one, two) = (replay.begin(), replay.begin());
        let primed = replay.prime(one);
        assert_eq!(text(&primed), "id: 1-00000ab-1\nretry: 1000\ndata: \n\n");
        replay.prime(two);
        let first = replay.event(one, "{\n1}".to_owned().into());
        assert_eq!(text(&first), "id: 1-00000ab-3\nevent: message\ndata: { 1}\n\n");
        replay.event(two, "{2}".to_owned().into());
        let last = replay.event(one, "{3}".to_owned().into());
        replay.finish(one);
        let mut reader = replay.resume(&id_of(&primed)).expect("all is kept");
        assert_eq!(read(&replay, &mut reader), [text(&first), text(&last)]);
        assert_eq!(read(&replay, &mut reader), ["over"]);
        let mut reader = replay.resume(&id_of(&last)).expect("all is kept");
        assert_eq!(read(&replay, &mut reader), ["over"]);
    }

    #[test]
    fn sess2_what_is_gone_or_never_was_is_a_gap() {
        let replay = Replay::new(7);
        let stream = replay.begin();
        let first = id_of(&replay.prime(stream));
        for wrong in ["", "x", "1", "1-0000008-1", "9-0000007-1", "1-0000007-99", "1-0000007-1-1", "-1-7-1"] {
            assert_eq!(replay.resume(wrong), Err(Gap), "{wrong}");
        }
        for _ in 0..MOST_EVENTS {
            replay.event(SESSION_STREAM, "{}".to_owned().into());
        }
        assert!(replay.resume(&first).is_ok(), "nothing of this stream after it was lost");
        let second = id_of(&replay.event(stream, "{}".to_owned().into()));
        replay.finish(stream);
        assert!(replay.resume(&first).is_ok());
        replay.forget_old(Instant::now() + KEPT_FOR);
        assert_eq!(replay.resume(&second), Err(Gap), "its stream is over and forgotten");
        assert_eq!(replay.resume("0-0000007-2"), Err(Gap));
        assert_eq!(replay.lock().streams.len(), 1);
        assert_eq!(replay.lock().bytes, 0);
    }

    #[test]
    fn sess2_exactly_so_much_is_kept_and_always_the_newest() {
        let replay = Replay::new(7);
        for _ in 0..2 * MOST_EVENTS {
            replay.event(SESSION_STREAM, "{}".to_owned().into());
        }
        assert_eq!(replay.lock().events.len(), MOST_EVENTS);
        replay.event(SESSION_STREAM, "x".repeat(2 * MOST_BYTES).into());
        assert_eq!(replay.lock().events.len(), 1);
        replay.event(SESSION_STREAM, "{}".to_owned().into());
        assert_eq!(replay.lock().events.len(), 1);
    }

    #[tokio::test]
    async fn sess2_the_last_to_come_reads_and_hears_what_comes_later() {
        let replay = Replay::new(7);
        let stream = replay.begin();
        let id = id_of(&replay.prime(stream));
        assert!(!replay.is_taken(stream));
        let mut first = replay.resume(&id).expect("it is kept");
        replay.taken(stream).await;
        let mut second = replay.resume(&id).expect("it is kept");
        assert_eq!(replay.follow(&mut first).await, None);
        assert!(replay.follow(&mut second).now_or_never().is_none());
        replay.event(stream, "{}".to_owned().into());
        assert_eq!(replay.follow(&mut second).await.map(|events| events.len()), Some(1));
        replay.close();
        assert_eq!(replay.follow(&mut second).await, None);
        assert_eq!(replay.resume(&id), Err(Gap));
    }
}
