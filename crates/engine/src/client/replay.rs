//! A buffer of the events written to a client's streams, for clients that resume a broken stream.
//!
//! Every event gets an id when it is written: `STREAM-EPOCH-SEQ`. The epoch differs for each client and each start of
//! the gateway, so foreign ids are detected. A client that reconnects with its last event id receives the events that
//! follow on the same stream. If none can follow, [`Replay::resume`] reports why instead of returning an empty stream:
//!
//! - [`ResumeGap`]: the id is foreign, or the session stream has lost an event after it.
//! - [`StreamResumeOutcome::Lost`]: the call ended, and its answer was discarded. A loss of progress and log messages
//!   alone is no error, and the rest of the stream is replayed.
//! - [`StreamResumeOutcome::Complete`]: the stream of the call ended, and the client has all of it.
//!
//! The buffer is bounded by [`MAX_EVENTS`], [`MAX_BYTES`] and [`KEPT_FOR`] for all streams of a client together. It
//! discards the oldest [`ReplayEventKind::Message`] first, because a client can do without those. A server request is
//! kept until its call ends. All clients together keep [`MAX_TOTAL_BYTES`]. Beyond that each client keeps
//! [`MIN_BYTES`], and larger events are not kept. The buffer remembers each ended stream
//! whose last event it keeps, and at most [`MAX_ENDED_STREAMS`] other ended streams. The number of open calls bounds the open streams.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use goblin_wire::Id;
use goblin_wire::json::{Pieces, single_line};
use goblin_wire::memory::{self, Memory};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The limits, in events and in bytes, of the buffer of a client. The newest event is kept even if it is larger, unless
/// all clients together have reached [`MAX_TOTAL_BYTES`].
const MAX_EVENTS: usize = 256;
const MAX_BYTES: usize = 1024 * 1024;
/// The limit in bytes of all clients together, and the share that each client keeps beyond it.
const MAX_TOTAL_BYTES: usize = 256 * 1024 * 1024;
const MIN_BYTES: usize = 64 * 1024;
/// The number of ended streams that are remembered although their last event was discarded.
const MAX_ENDED_STREAMS: usize = 32;
/// The time for which an event is kept, and with it the answer of a call with a broken stream.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(120);
/// The time that the gateway asks a client to wait before it reconnects.
const RETRY: Duration = Duration::from_secs(1);

/// The usual length of the text around a message in an event.
const FRAME: usize = 64;
const EVENT_END: &[u8] = b"\n\n";

/// The number of the stream that belongs to no call.
pub(crate) const SESSION_STREAM: u64 = 0;

pub struct Replay {
    epoch: u32,
    ring: Mutex<ReplayBuffer>,
    /// Notified when a stream with a reader has grown, has ended or has a new reader.
    changed: Notify,
    /// Notified when a stream has a new reader.
    reader_changed: Notify,
}

/// The bytes in the buffers of all clients. They count towards `gateway.maxMemory`.
#[derive(Default)]
pub struct ReplayMemory {
    bytes: AtomicUsize,
    memory: Arc<Memory>,
}

impl ReplayMemory {
    pub fn new(memory: &Arc<Memory>) -> ReplayMemory {
        ReplayMemory { bytes: AtomicUsize::new(0), memory: Arc::clone(memory) }
    }

    /// Returns the limit of a client that adds `more` bytes. The buffers use at most a quarter of the memory limit,
    /// because new requests matter more.
    fn limit(&self, more: usize) -> usize {
        let max = MAX_TOTAL_BYTES.min(self.memory.max() / 4);
        let is_full = self.bytes.load(Ordering::Relaxed) + more > max || self.memory.check().is_err();
        if is_full { MIN_BYTES } else { MAX_BYTES }
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // A large event already counts until its last slice is dropped.
        if bytes < memory::SMALL {
            self.memory.add(memory::BufferKind::Replay, bytes);
        }
    }

    fn sub(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if bytes < memory::SMALL {
            self.memory.sub(memory::BufferKind::Replay, bytes);
        }
    }

    fn hold(&self, event: Bytes) -> Bytes {
        self.memory.hold_message(memory::BufferKind::Replay, event)
    }
}

#[derive(Default)]
struct ReplayBuffer {
    events: VecDeque<ReplayEvent>,
    bytes: usize,
    memory: Arc<ReplayMemory>,
    /// The last sequence number that was assigned.
    last: u64,
    streams: HashMap<u64, ReplayStream>,
    last_stream: u64,
    /// The ended streams, the oldest first.
    ended: VecDeque<u64>,
    closed: bool,
}

struct ReplayEvent {
    stream: u64,
    seq: u64,
    kind: ReplayEventKind,
    /// The message on one line. Clients that receive the same message share these bytes. The event id is added on
    /// reading.
    message: Bytes,
    at: Instant,
}

/// The role of an event. It decides which events are discarded first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayEventKind {
    /// Progress or a log message of a call, or any event of the session stream, which must have no gaps.
    Message,
    /// A server request during a call.
    Request,
    /// The response of a call.
    Answer,
}

#[derive(Default)]
struct ReplayStream {
    /// The requests that the stream answers. Empty for the session stream.
    requests: SmallVec<[Id; 1]>,
    /// The number of requests without a response.
    open: usize,
    /// The sequence number of the last event.
    last: u64,
    /// The sequence number of the last event that was discarded.
    discarded: u64,
    /// The sequence number of the last event that a reader received.
    read: u64,
    is_over: bool,
    /// The number of the current reader, the last one that took the stream. 0 while the original HTTP response is used.
    reader: u64,
}

/// The error for an event id that cannot be resumed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeGap;

/// The outcome of resuming a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamResumeOutcome {
    Reader(ReplayReader),
    /// The stream ended, and the client has all of it.
    Complete,
    /// The stream ended, but its last event was discarded. Holds the ids of its requests: one, or all of a batch.
    Lost(SmallVec<[Id; 1]>),
}

/// The outcome of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum ReplayRead {
    /// All events since the last read, ready to be written.
    Events(Bytes),
    Nothing,
    /// The stream ended, or another reader took it over.
    Ended,
}

/// The position of a client that resumed a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct ReplayReader {
    pub stream: u64,
    /// An event after the position was discarded before the reader began.
    pub has_gap: bool,
    /// The last discarded event when the reader began. If an unread event is discarded later, the reader ends.
    discarded: u64,
    /// The last event that the reader received.
    seq: u64,
    number: u64,
}

impl Replay {
    pub fn new(epoch: u32) -> Replay {
        Replay::with_memory(epoch, &Arc::default())
    }

    /// Creates a buffer that counts its bytes in `memory`, which all clients share.
    pub fn with_memory(epoch: u32, memory: &Arc<ReplayMemory>) -> Replay {
        let ring = Mutex::new(ReplayBuffer { memory: Arc::clone(memory), ..ReplayBuffer::default() });
        Replay { epoch, ring, changed: Notify::new(), reader_changed: Notify::new() }
    }

    /// Begins the stream of a call, or of all calls of a batch, and returns its number.
    pub fn begin<'a>(&self, requests: impl IntoIterator<Item = &'a Id>) -> u64 {
        let requests: SmallVec<_> = requests.into_iter().map(Id::detached).collect();
        let mut ring = self.ring.lock();
        ring.last_stream += 1;
        let stream = ring.last_stream;
        if !ring.closed {
            ring.streams.insert(stream, ReplayStream { open: requests.len(), requests, ..ReplayStream::default() });
        }
        stream
    }

    /// Returns an event without a message, from which the client can resume the stream. It also sets the client's retry
    /// time. The buffer does not keep it.
    pub fn prime(&self, stream: u64) -> Bytes {
        self.prime_event(&mut self.ring.lock(), stream)
    }

    fn prime_event(&self, ring: &mut ReplayBuffer, stream: u64) -> Bytes {
        ring.last += 1;
        let (id, retry) = (self.event_id(stream, ring.last), RETRY.as_millis());
        format!("id: {id}\nretry: {retry}\ndata: \n\n").into()
    }

    /// Adds a message to a stream and returns it as an event, ready to be written.
    pub fn event(&self, stream: u64, kind: ReplayEventKind, message: Pieces) -> Bytes {
        let mut event = BytesMut::with_capacity(message.len() + FRAME);
        let mut ring = self.ring.lock();
        ring.last += 1;
        let seq = ring.last;
        self.begin_event(&mut event, stream, seq);
        let begin = event.len();
        for piece in message.into_line() {
            event.extend_from_slice(&piece);
        }
        let end = event.len();
        event.extend_from_slice(EVENT_END);
        let event = ring.memory.hold(event.freeze());
        let is_followed =
            ring.keep(ReplayEvent { stream, seq, kind, message: event.slice(begin..end), at: Instant::now() });
        drop(ring);
        if is_followed {
            self.changed.notify_waiters();
        }
        event
    }

    /// Adds a message to the session stream. Its reader finds it there.
    pub fn keep(&self, message: Bytes) {
        let message = single_line(message);
        let mut ring = self.ring.lock();
        let message = ring.memory.hold(message);
        ring.last += 1;
        let (stream, seq) = (SESSION_STREAM, ring.last);
        ring.keep(ReplayEvent { stream, seq, kind: ReplayEventKind::Message, message, at: Instant::now() });
        drop(ring);
        self.changed.notify_waiters();
    }

    /// Counts one answered request of the stream. The stream ends when all its requests are answered.
    pub fn finish(&self, stream: u64) {
        self.ring.lock().finish(stream);
        self.changed.notify_waiters();
    }

    /// Returns a reader of the session stream that begins at the last event read. If no event is unread, also returns a
    /// first event as [`prime`](Replay::prime) does. The id of that event must not be greater than the id of an unread
    /// one.
    pub(crate) fn take_session(&self) -> (ReplayReader, Option<Bytes>) {
        let mut ring = self.ring.lock();
        if ring.closed {
            // This reader finds that the stream has ended.
            return (ReplayStream::default().take(SESSION_STREAM), None);
        }
        let stream = ring.streams.entry(SESSION_STREAM).or_default();
        let reader = stream.take(SESSION_STREAM);
        let is_read = stream.last <= reader.seq;
        let first = is_read.then(|| self.prime_event(&mut ring, SESSION_STREAM));
        drop(ring);
        self.notify_new_reader();
        (reader, first)
    }

    /// Returns a reader of the stream that `last_event_id` names. The previous reader of that stream ends.
    pub fn resume(&self, last_event_id: &str) -> Result<StreamResumeOutcome, ResumeGap> {
        let (stream, seq) = self.parse(last_event_id).ok_or(ResumeGap)?;
        let mut ring = self.ring.lock();
        if ring.closed || seq > ring.last {
            return Err(ResumeGap);
        }
        let known = match stream {
            // The session stream always exists, even if nothing was written to it.
            SESSION_STREAM => ring.streams.entry(stream).or_default(),
            _ => ring.streams.get_mut(&stream).ok_or(ResumeGap)?,
        };
        if known.is_over && seq >= known.last {
            return Ok(StreamResumeOutcome::Complete);
        }
        let has_gap = seq < known.discarded;
        if has_gap && stream == SESSION_STREAM {
            return Err(ResumeGap);
        }
        if known.is_over && known.discarded == known.last {
            return Ok(StreamResumeOutcome::Lost(known.requests.clone()));
        }
        let reader = ReplayReader { has_gap, seq, ..known.take(stream) };
        drop(ring);
        self.notify_new_reader();
        Ok(StreamResumeOutcome::Reader(reader))
    }

    fn notify_new_reader(&self) {
        self.reader_changed.notify_waiters();
        self.changed.notify_waiters();
    }

    /// Waits until a resuming client takes over the stream of a call.
    pub async fn taken(&self, stream: u64) {
        loop {
            // Register before the check, or a notification between the check and the wait is lost.
            let woken = self.reader_changed.notified();
            if self.is_taken(stream) {
                return;
            }
            woken.await;
        }
    }

    fn is_taken(&self, stream: u64) -> bool {
        self.ring.lock().streams.get(&stream).is_some_and(|stream| stream.reader > 0)
    }

    /// Returns the unread events of the reader's stream and advances the reader.
    pub fn read(&self, reader: &mut ReplayReader) -> ReplayRead {
        let mut ring = self.ring.lock();
        let ReplayBuffer { streams, events, .. } = &mut *ring;
        let Some(stream) = streams.get_mut(&reader.stream) else { return ReplayRead::Ended };
        let is_behind = reader.seq < stream.discarded && reader.discarded < stream.discarded;
        if stream.reader != reader.number || is_behind {
            return ReplayRead::Ended;
        }
        if stream.last <= reader.seq {
            return if stream.is_over { ReplayRead::Ended } else { ReplayRead::Nothing };
        }
        // Search from the end, because a reader is usually only a few events behind.
        let first = events.len() - events.iter().rev().take_while(|event| event.seq > reader.seq).count();
        let follows = || events.range(first..).filter(|event| event.stream == reader.stream);
        let mut found = BytesMut::with_capacity(follows().map(|event| event.message.len() + FRAME).sum());
        for event in follows() {
            self.begin_event(&mut found, event.stream, event.seq);
            found.extend_from_slice(&event.message);
            found.extend_from_slice(EVENT_END);
        }
        reader.seq = stream.last;
        stream.read = stream.last;
        // The unread events were discarded before the reader began.
        if found.is_empty() { ReplayRead::Nothing } else { ReplayRead::Events(found.freeze()) }
    }

    /// Returns a future that completes when a stream with a reader has grown, has ended or has a new reader.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Waits for the next events. Returns `None` when the stream has ended for this reader. It is cancel-safe.
    pub async fn follow(&self, reader: &mut ReplayReader) -> Option<Bytes> {
        loop {
            let woken = self.changed.notified();
            match self.read(reader) {
                ReplayRead::Events(events) => return Some(events),
                ReplayRead::Ended => return None,
                ReplayRead::Nothing => woken.await,
            }
        }
    }

    /// Discards events older than [`KEPT_FOR`], except the server requests of open calls.
    pub(crate) fn discard_old(&self, now: Instant) {
        self.ring.lock().discard_old(now);
    }

    /// Discards all events and ends all readers, because the client is gone.
    pub fn close(&self) {
        let mut ring = self.ring.lock();
        while !ring.events.is_empty() {
            ring.discard(0);
        }
        *ring =
            ReplayBuffer { closed: true, last: ring.last, last_stream: ring.last_stream, ..ReplayBuffer::default() };
        drop(ring);
        self.notify_new_reader();
    }

    fn event_id(&self, stream: u64, seq: u64) -> impl fmt::Display {
        let epoch = self.epoch;
        fmt::from_fn(move |formatter| write!(formatter, "{stream}-{epoch:07x}-{seq}"))
    }

    /// Writes the text that precedes a message in an event.
    fn begin_event(&self, event: &mut BytesMut, stream: u64, seq: u64) {
        write!(event, "id: {}\nevent: message\ndata: ", self.event_id(stream, seq))
            .expect("a write to memory cannot fail");
    }

    fn parse(&self, id: &str) -> Option<(u64, u64)> {
        let mut parts = id.split('-');
        let stream = parts.next()?.parse().ok()?;
        let epoch = u32::from_str_radix(parts.next()?, 16).ok()?;
        let seq = parts.next()?.parse().ok()?;
        (epoch == self.epoch && parts.next().is_none()).then_some((stream, seq))
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.close();
    }
}

impl ReplayStream {
    /// Registers a new reader that begins at the last event read. The previous reader ends.
    fn take(&mut self, stream: u64) -> ReplayReader {
        self.reader += 1;
        let (seq, discarded) = (self.read.max(self.discarded), self.discarded);
        ReplayReader { stream, has_gap: false, discarded, seq, number: self.reader }
    }
}

impl ReplayBuffer {
    /// Adds an event to the buffer. Returns whether its stream has a reader.
    fn keep(&mut self, event: ReplayEvent) -> bool {
        if self.closed {
            return false;
        }
        let length = event.message.len();
        let max = self.memory.limit(length);
        self.make_room(length, max);
        let stream = self.streams.entry(event.stream).or_default();
        stream.last = event.seq;
        let is_followed = stream.reader > 0;
        if length > max && max == MIN_BYTES {
            stream.discarded = event.seq;
            return is_followed;
        }
        self.bytes += length;
        self.memory.add(length);
        self.events.push_back(event);
        is_followed
    }

    fn make_room(&mut self, length: usize, max: usize) {
        while !self.events.is_empty() && (self.events.len() >= MAX_EVENTS || self.bytes + length > max) {
            let first = self.events.iter().position(|event| event.kind == ReplayEventKind::Message);
            self.discard(first.unwrap_or_default());
        }
    }

    fn discard(&mut self, index: usize) {
        let Some(event) = self.events.remove(index) else { return };
        self.bytes -= event.message.len();
        self.memory.sub(event.message.len());
        if let Some(stream) = self.streams.get_mut(&event.stream) {
            stream.discarded = stream.discarded.max(event.seq);
        }
    }

    fn discard_old(&mut self, now: Instant) {
        let mut index = 0;
        while let Some(event) = self.events.get(index).filter(|event| now.duration_since(event.at) >= KEPT_FOR) {
            let is_open = self.streams.get(&event.stream).is_some_and(|stream| !stream.is_over);
            match event.kind {
                ReplayEventKind::Request if is_open => index += 1,
                ReplayEventKind::Message | ReplayEventKind::Request | ReplayEventKind::Answer => self.discard(index),
            }
        }
        self.trim_ended();
    }

    fn finish(&mut self, number: u64) {
        let Some(stream) = self.streams.get_mut(&number).filter(|stream| !stream.is_over) else { return };
        stream.open = stream.open.saturating_sub(1);
        if stream.open > 0 {
            return;
        }
        stream.is_over = true;
        self.ended.push_back(number);
        self.trim_ended();
    }

    /// Removes the oldest ended streams with a discarded last event if there are more than [`MAX_ENDED_STREAMS`].
    fn trim_ended(&mut self) {
        let ReplayBuffer { ended, streams, .. } = self;
        let is_discarded = |stream: Option<&ReplayStream>| stream.is_none_or(|stream| stream.discarded == stream.last);
        let discarded = ended.iter().filter(|number| is_discarded(streams.get(number))).count();
        let mut surplus = discarded.saturating_sub(MAX_ENDED_STREAMS);
        ended.retain(|number| {
            let is_surplus = surplus > 0 && is_discarded(streams.get(number));
            if is_surplus {
                surplus -= 1;
                streams.remove(number);
            }
            !is_surplus
        });
    }
}

#[cfg(test)]
mod tests;
