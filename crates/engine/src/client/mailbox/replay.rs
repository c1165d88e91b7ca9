//! What was written to a client's streams, kept for a while: a stream may be cut with the last of it unread.
//!
//! Every event of a stream gets an id when it is written, `STREAM-EPOCH-SEQ`. The epoch is another for every client and
//! with every start of the gateway, so an id from elsewhere is known as such. A client that comes back with the last id it
//! has seen gets what followed on that stream. Where nothing can follow it is told so, never given an empty success:
//!
//! - an id that is none of ours, or after which the stream of the session has lost something, is a [`Gap`]
//! - the answer of a call that is not kept any more is [`Resumed::Lost`]; what else is missing of a call's stream is
//!   progress and log lines, which may be dropped, so the rest of it is given
//! - the stream of a call that was read to its end is [`Resumed::Spent`]
//!
//! Bounds: [`MOST_EVENTS`] and [`MOST_BYTES`] for all streams of a client together, and [`KEPT_FOR`]. What goes first is the
//! oldest [`Kind::Note`]: what a client waits for must not give way to what it can do without. An ask is kept until its call
//! is over. All clients together keep [`MOST_KEPT`]; beyond that each has [`FEWEST_BYTES`], and what is larger is not kept at
//! all. Of the streams that are over are known those of which the last event is kept, and [`MOST_OVER`] besides; open
//! ones are as many as the client has calls.

use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use goblin_wire::memory::{self, Memory};
use goblin_wire::Id;
use goblin_wire::json::{Pieces, single_line};

/// How many events, and how many bytes of them, are kept for a client. The newest is kept whatever its size, unless there are
/// too many clients.
const MOST_EVENTS: usize = 256;
const MOST_BYTES: usize = 1024 * 1024;
/// How many bytes are kept for all clients together, and how many for each where that is not enough.
const MOST_KEPT: usize = 256 * 1024 * 1024;
const FEWEST_BYTES: usize = 64 * 1024;
/// How many streams are known after their end though nothing of it is kept.
const MOST_OVER: usize = 32;
/// How long an event is kept, and so the answer of a call whose stream was cut.
pub const KEPT_FOR: Duration = Duration::from_secs(120);
/// How long a client shall wait before it comes back.
const RETRY: Duration = Duration::from_secs(1);

/// Room for what stands around a message, for ids of the usual length.
const FRAME: usize = 64;
const EVENT_END: &[u8] = b"\n\n";

/// The stream that belongs to no call.
pub const SESSION_STREAM: u64 = 0;

pub struct Replay {
    epoch: u32,
    ring: Mutex<Ring>,
    /// Rung when a stream that somebody follows has grown, ended or changed hands.
    bell: Notify,
    /// Rung when a stream has changed hands.
    hands: Notify,
}

/// The bytes that all clients keep together. They count towards `gateway.maxMemory`.
#[derive(Default)]
pub struct Kept {
    bytes: AtomicUsize,
    memory: Arc<Memory>,
}

impl Kept {
    pub fn new(memory: &Arc<Memory>) -> Kept {
        Kept { bytes: AtomicUsize::new(0), memory: Arc::clone(memory) }
    }

    /// Returns how many bytes a client may keep that has as many more to keep. A part of the memory is left for others:
    /// what is kept here is of less use than new work.
    fn most(&self, more: usize) -> usize {
        let most = MOST_KEPT.min(self.memory.max() / 4);
        let is_full = self.bytes.load(Ordering::Relaxed) + more > most || self.memory.check().is_err();
        if is_full { FEWEST_BYTES } else { MOST_BYTES }
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        // A large event counts itself, also while it is on its way to the client.
        if bytes < memory::SMALL {
            self.memory.add(memory::Kind::Replay, bytes);
        }
    }

    fn sub(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if bytes < memory::SMALL {
            self.memory.sub(memory::Kind::Replay, bytes);
        }
    }

    fn hold(&self, event: Bytes) -> Bytes {
        self.memory.hold_message(memory::Kind::Replay, event)
    }
}

#[derive(Default)]
struct Ring {
    events: VecDeque<Event>,
    bytes: usize,
    kept: Arc<Kept>,
    /// The last sequence number that was given.
    last: u64,
    streams: HashMap<u64, Stream>,
    last_stream: u64,
    /// The streams that are over, the oldest first.
    over: VecDeque<u64>,
    closed: bool,
}

struct Event {
    stream: u64,
    seq: u64,
    kind: Kind,
    /// On one line. What goes to many clients is one text that they share; the id of each stands before it when it is read.
    message: Bytes,
    at: Instant,
}

/// What an event is to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Progress or a log line of a call; and all that is on the stream of the session, which is kept without holes.
    Note,
    /// Of a call.
    Ask,
    /// Of a call.
    Answer,
}

#[derive(Default)]
struct Stream {
    /// What it answers; nothing for the stream of the session.
    requests: SmallVec<[Id; 1]>,
    /// How many of these have no answer yet.
    open: usize,
    /// Its last event.
    last: u64,
    /// The last of its events that is not kept any more.
    forgotten: u64,
    /// The last of its events that a reader was given.
    read: u64,
    is_over: bool,
    /// Who reads it: the last to come. Whoever began the stream of a call is none.
    reader: u64,
}

/// What the client names cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap;

/// What became of the stream that a client comes back to.
#[derive(Debug, PartialEq, Eq)]
pub enum Resumed {
    Reader(Reader),
    /// It is over, and the client has seen all of it.
    Spent,
    /// It is over, and the answer is not kept any more: to this request, or to all of a batch.
    Lost(SmallVec<[Id; 1]>),
}

/// What a reader of a stream finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// All that followed, ready to be written.
    Events(Bytes),
    Nothing,
    /// There will be no more, or none for this reader.
    Over,
}

/// One who reads a stream that others have read before.
#[derive(Debug, PartialEq, Eq)]
pub struct Reader {
    pub stream: u64,
    /// Something after the last event it has is gone.
    pub has_gap: bool,
    /// What was gone when it came. What goes later, before it was read, ends it.
    forgotten: u64,
    /// The last event it has.
    seq: u64,
    number: u64,
}

impl Replay {
    pub fn new(epoch: u32) -> Replay {
        Replay::among(epoch, &Arc::default())
    }

    /// One of several.
    pub fn among(epoch: u32, kept: &Arc<Kept>) -> Replay {
        let ring = Mutex::new(Ring { kept: Arc::clone(kept), ..Ring::default() });
        Replay { epoch, ring, bell: Notify::new(), hands: Notify::new() }
    }

    /// Begins the stream of a call, or of all calls of a batch.
    pub fn begin<'a>(&self, requests: impl IntoIterator<Item = &'a Id>) -> u64 {
        let requests: SmallVec<_> = requests.into_iter().map(Id::detached).collect();
        let mut ring = self.lock();
        ring.last_stream += 1;
        let stream = ring.last_stream;
        if !ring.closed {
            ring.streams.insert(stream, Stream { open: requests.len(), requests, ..Stream::default() });
        }
        stream
    }

    /// An event without a message, from which on the stream of a call can be resumed; it also says when to come back. It
    /// is not kept: nothing is missed without it.
    pub fn prime(&self, stream: u64) -> Bytes {
        self.priming(&mut self.lock(), stream)
    }

    fn priming(&self, ring: &mut Ring, stream: u64) -> Bytes {
        ring.last += 1;
        let (id, retry) = (self.event_id(stream, ring.last), RETRY.as_millis());
        format!("id: {id}\nretry: {retry}\ndata: \n\n").into()
    }

    /// A message as the next event of a stream.
    pub fn event(&self, stream: u64, kind: Kind, message: Pieces) -> Bytes {
        let mut event = BytesMut::with_capacity(message.len() + FRAME);
        let mut ring = self.lock();
        ring.last += 1;
        let seq = ring.last;
        self.begin_event(&mut event, stream, seq);
        let begin = event.len();
        for piece in message.into_line() {
            event.extend_from_slice(&piece);
        }
        let end = event.len();
        event.extend_from_slice(EVENT_END);
        let event = ring.kept.hold(event.freeze());
        let is_followed = ring.keep(Event { stream, seq, kind, message: event.slice(begin..end), at: Instant::now() });
        drop(ring);
        if is_followed {
            self.bell.notify_waiters();
        }
        event
    }

    /// The same on the stream of the session, for whoever reads that.
    pub fn keep(&self, message: Bytes) {
        let message = single_line(message);
        let mut ring = self.lock();
        let message = ring.kept.hold(message);
        ring.last += 1;
        let (stream, seq) = (SESSION_STREAM, ring.last);
        ring.keep(Event { stream, seq, kind: Kind::Note, message, at: Instant::now() });
        drop(ring);
        self.bell.notify_waiters();
    }

    /// The last event of a call was written.
    pub fn finish(&self, stream: u64) {
        self.lock().finish(stream);
        self.bell.notify_waiters();
    }

    /// Takes the stream of the session from where whoever read it so far stopped. Where nothing waits there, also gives an
    /// event to begin with, as [`prime`](Replay::prime) does; its id must not be beyond that of anything unread.
    pub fn take_session(&self) -> (Reader, Option<Bytes>) {
        let mut ring = self.lock();
        if ring.closed {
            // It reads that it is over.
            return (Stream::default().take(SESSION_STREAM), None);
        }
        let stream = ring.streams.entry(SESSION_STREAM).or_default();
        let reader = stream.take(SESSION_STREAM);
        let is_read = stream.last <= reader.seq;
        let first = is_read.then(|| self.priming(&mut ring, SESSION_STREAM));
        drop(ring);
        self.tell_hands();
        (reader, first)
    }

    /// Takes over a stream from its last known event. Whoever read it so far reads it no more.
    pub fn resume(&self, last_event_id: &str) -> Result<Resumed, Gap> {
        let (stream, seq) = self.parse(last_event_id).ok_or(Gap)?;
        let mut ring = self.lock();
        if ring.closed || seq > ring.last {
            return Err(Gap);
        }
        let known = match stream {
            // It is always there, also when nothing was ever written to it.
            SESSION_STREAM => ring.streams.entry(stream).or_default(),
            _ => ring.streams.get_mut(&stream).ok_or(Gap)?,
        };
        if known.is_over && seq >= known.last {
            return Ok(Resumed::Spent);
        }
        let has_gap = seq < known.forgotten;
        if has_gap && stream == SESSION_STREAM {
            return Err(Gap);
        }
        if known.is_over && known.forgotten == known.last {
            return Ok(Resumed::Lost(known.requests.clone()));
        }
        let reader = Reader { has_gap, seq, ..known.take(stream) };
        drop(ring);
        self.tell_hands();
        Ok(Resumed::Reader(reader))
    }

    fn tell_hands(&self) {
        self.hands.notify_waiters();
        self.bell.notify_waiters();
    }

    /// Waits until another takes over the stream of a call from the one who began it.
    pub async fn taken(&self, stream: u64) {
        loop {
            // First, so that nothing comes unseen between the look and the wait.
            let rung = self.hands.notified();
            if self.is_taken(stream) {
                return;
            }
            rung.await;
        }
    }

    fn is_taken(&self, stream: u64) -> bool {
        self.lock().streams.get(&stream).is_some_and(|stream| stream.reader > 0)
    }

    /// What followed on the stream of `reader`; it counts as read.
    pub fn read(&self, reader: &mut Reader) -> Next {
        let mut ring = self.lock();
        let Ring { streams, events, .. } = &mut *ring;
        let Some(stream) = streams.get_mut(&reader.stream) else { return Next::Over };
        let is_behind = reader.seq < stream.forgotten && reader.forgotten < stream.forgotten;
        if stream.reader != reader.number || is_behind {
            return Next::Over;
        }
        if stream.last <= reader.seq {
            return if stream.is_over { Next::Over } else { Next::Nothing };
        }
        // From the end: a reader that keeps up has all but the last.
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
        // All of it was gone before the reader came.
        if found.is_empty() { Next::Nothing } else { Next::Events(found.freeze()) }
    }

    /// Waits until a stream that somebody follows has grown, ended or changed hands.
    pub fn rung(&self) -> Notified<'_> {
        self.bell.notified()
    }

    /// Waits for what follows; nothing when it is over. Cancel-safe.
    pub async fn follow(&self, reader: &mut Reader) -> Option<Bytes> {
        loop {
            let rung = self.bell.notified();
            match self.read(reader) {
                Next::Events(events) => return Some(events),
                Next::Over => return None,
                Next::Nothing => rung.await,
            }
        }
    }

    /// Forgets what is older than [`KEPT_FOR`], but for the asks of open calls.
    pub fn forget_old(&self, now: Instant) {
        self.lock().forget_old(now);
    }

    /// The client is gone.
    pub fn close(&self) {
        let mut ring = self.lock();
        while !ring.events.is_empty() {
            ring.forget(0);
        }
        *ring = Ring { closed: true, last: ring.last, last_stream: ring.last_stream, ..Ring::default() };
        drop(ring);
        self.tell_hands();
    }

    fn event_id(&self, stream: u64, seq: u64) -> impl fmt::Display {
        let epoch = self.epoch;
        fmt::from_fn(move |formatter| write!(formatter, "{stream}-{epoch:07x}-{seq}"))
    }

    /// What stands before a message.
    fn begin_event(&self, event: &mut BytesMut, stream: u64, seq: u64) {
        write!(event, "id: {}\nevent: message\ndata: ", self.event_id(stream, seq))
            .expect("memory takes all that is written");
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

impl Drop for Replay {
    fn drop(&mut self) {
        self.close();
    }
}

impl Stream {
    /// Another reads it from now on.
    fn take(&mut self, stream: u64) -> Reader {
        self.reader += 1;
        let (seq, forgotten) = (self.read.max(self.forgotten), self.forgotten);
        Reader { stream, has_gap: false, forgotten, seq, number: self.reader }
    }
}

impl Ring {
    /// Keeps an event; tells whether somebody follows its stream.
    fn keep(&mut self, event: Event) -> bool {
        if self.closed {
            return false;
        }
        let length = event.message.len();
        let most = self.kept.most(length);
        self.make_room(length, most);
        let stream = self.streams.entry(event.stream).or_default();
        stream.last = event.seq;
        let is_followed = stream.reader > 0;
        if length > most && most == FEWEST_BYTES {
            stream.forgotten = event.seq;
            return is_followed;
        }
        self.bytes += length;
        self.kept.add(length);
        self.events.push_back(event);
        is_followed
    }

    fn make_room(&mut self, length: usize, most: usize) {
        while !self.events.is_empty() && (self.events.len() >= MOST_EVENTS || self.bytes + length > most) {
            let first = self.events.iter().position(|event| event.kind == Kind::Note);
            self.forget(first.unwrap_or_default());
        }
    }

    fn forget(&mut self, index: usize) {
        let Some(event) = self.events.remove(index) else { return };
        self.bytes -= event.message.len();
        self.kept.sub(event.message.len());
        if let Some(stream) = self.streams.get_mut(&event.stream) {
            stream.forgotten = stream.forgotten.max(event.seq);
        }
    }

    fn forget_old(&mut self, now: Instant) {
        let mut index = 0;
        while let Some(event) = self.events.get(index).filter(|event| now.duration_since(event.at) >= KEPT_FOR) {
            let is_open = self.streams.get(&event.stream).is_some_and(|stream| !stream.is_over);
            match event.kind {
                Kind::Ask if is_open => index += 1,
                Kind::Note | Kind::Ask | Kind::Answer => self.forget(index),
            }
        }
        self.trim_over();
    }

    fn finish(&mut self, number: u64) {
        let Some(stream) = self.streams.get_mut(&number).filter(|stream| !stream.is_over) else { return };
        stream.open = stream.open.saturating_sub(1);
        if stream.open > 0 {
            return;
        }
        stream.is_over = true;
        self.over.push_back(number);
        self.trim_over();
    }

    /// Of those of which the end is not kept, the oldest are forgotten.
    fn trim_over(&mut self) {
        let Ring { over, streams, .. } = self;
        let is_gone = |stream: Option<&Stream>| stream.is_none_or(|stream| stream.forgotten == stream.last);
        let gone = over.iter().filter(|number| is_gone(streams.get(number))).count();
        let mut surplus = gone.saturating_sub(MOST_OVER);
        over.retain(|number| {
            let goes = surplus > 0 && is_gone(streams.get(number));
            if goes {
                surplus -= 1;
                streams.remove(number);
            }
            !goes
        });
    }
}

#[cfg(test)]
mod tests;
