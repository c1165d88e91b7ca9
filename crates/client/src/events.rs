//! Reads the event streams of a server: their events, the position to resume from, and the pace of further attempts.
//! The bridge, the HTTP backends and the dashboard use it, each with its own limits.
//!
//! Every event with an id is a point to resume from: a GET with that id returns the events after it. Servers also end
//! connections on purpose, and the client returns after the time that `retry` names. The original request is never sent
//! again.
//!
//! Event ids should be unique in a session, and a server should continue after the given one. Some servers restart
//! their numbers on each connection, and some repeat the last event. An event therefore counts as repeated only if its
//! id and text are equal, and only after a gap.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use goblin_wire::framing::{Frame, SseDecoder, SseEvent};
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use hyper::body::Body;

use crate::connect::ResponseBody;

/// A stream or session that ends sooner than this counts as failed, and the next attempt waits longer.
pub const STABLE_AFTER: Duration = Duration::from_secs(1);
/// The longest usable id in bytes. Servers do not accept a longer header.
const MAX_EVENT_ID: usize = 4096;

/// Reports whether a response is an event stream.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    has_content_type(headers, "text/event-stream")
}

/// Reports whether the content type of a response is `kind`, with any parameters.
pub fn has_content_type(headers: &HeaderMap, kind: &str) -> bool {
    let found = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    found.get(..kind.len()).is_some_and(|start| start.eq_ignore_ascii_case(kind))
}

/// Reports whether the same request may succeed later. A server returns 409 while it has not noticed the end of the
/// previous connection.
pub fn is_temporary(status: StatusCode) -> bool {
    let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
    passing.contains(&status) || status.is_server_error()
}

/// The events of one response.
pub struct EventStream<B = ResponseBody> {
    body: B,
    events: SseDecoder,
}

impl<B: Body<Data = Bytes> + Unpin> EventStream<B> {
    /// Creates a stream that drops events with more than `limit` bytes.
    pub fn new(body: B, limit: usize) -> EventStream<B> {
        EventStream { body, events: SseDecoder::new(limit) }
    }

    /// Returns the next event, or `None` at the end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<Frame<SseEvent>>, B::Error> {
        loop {
            if let Some(event) = self.take() {
                return Ok(Some(event));
            }
            if !self.read().await? {
                return Ok(None);
            }
        }
    }

    /// Returns an event that has already arrived.
    pub fn take(&mut self) -> Option<Frame<SseEvent>> {
        self.events.take()
    }

    /// Waits for the next bytes, which may be a part of an event or a comment. Returns `false` at the end.
    pub async fn read(&mut self) -> Result<bool, B::Error> {
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        if let Some(data) = frame?.data_ref() {
            self.events.feed(data);
        }
        Ok(true)
    }

    /// Returns the rest of the response.
    pub fn into_body(self) -> B {
        self.body
    }
}

/// The position in a stream that may take several connections.
pub struct ResumePosition {
    last: Option<HeaderValue>,
    retry: Option<Duration>,
    /// The delays that the server may request by `retry`.
    retries: RangeInclusive<Duration>,
    /// Hashes of id and text of the last events, at most `capacity`.
    seen: VecDeque<u64>,
    capacity: usize,
    random: RandomState,
    has_gap: bool,
}

impl ResumePosition {
    /// Creates a position before the first event. It recognizes the last `capacity` events.
    pub fn new(retries: RangeInclusive<Duration>, capacity: usize) -> ResumePosition {
        let (seen, random) = (VecDeque::new(), RandomState::new());
        ResumePosition { last: None, retry: None, retries, seen, capacity, random, has_gap: false }
    }

    /// Advances to an event. Returns `false` if it repeats an earlier one.
    pub fn note(&mut self, event: &SseEvent) -> bool {
        if let Some(retry) = event.retry.map(Duration::from_millis) {
            self.retry = Some(retry.clamp(*self.retries.start(), *self.retries.end()));
        }
        let Some(id) = &event.id else { return true };
        let fingerprint = self.random.hash_one((id, &event.data));
        if self.has_gap && self.seen.contains(&fingerprint) {
            return false;
        }
        if self.seen.len() >= self.capacity {
            self.seen.pop_front();
        }
        self.seen.push_back(fingerprint);
        // The rules of event streams: an empty id clears the last one.
        match HeaderValue::from_bytes(id.as_bytes()) {
            Ok(id) if id.len() <= MAX_EVENT_ID => self.last = Some(id).filter(|id| !id.is_empty()),
            _ => tracing::debug!("an event has an id that is not a valid header value"),
        }
        true
    }

    /// Returns the id of the event to resume after: the last one that fits in a header.
    pub fn last(&self) -> Option<&HeaderValue> {
        self.last.as_ref()
    }

    /// Clears the position, because the server does not know it. Returns `true` if there was one.
    pub fn forget(&mut self) -> bool {
        self.last.take().is_some()
    }

    /// Records that the next events come over another connection.
    pub fn gap(&mut self) {
        self.has_gap = true;
    }

    /// Returns the delay that the server requested before the next connection.
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }
}

/// The delay before the next attempt. It doubles with each attempt up to a limit, and starts over after a success.
pub struct Backoff {
    first: Duration,
    longest: Duration,
    attempts: u32,
}

impl Backoff {
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, attempts: 0 }
    }

    /// Returns the number of delays since the last success.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Records a success.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }

    /// Returns the next delay.
    pub fn pause(&mut self) -> Duration {
        self.pause_from(None)
    }

    /// Returns the next delay of a series that begins with `first`, or with the usual delay if that is `None`.
    pub fn pause_from(&mut self, first: Option<Duration>) -> Duration {
        let factor = 1 << self.attempts.min(16);
        self.attempts = self.attempts.saturating_add(1);
        first.unwrap_or(self.first).saturating_mul(factor).min(self.longest)
    }

    /// Returns the delay after an attempt that `lasted` this long. It starts over after [`STABLE_AFTER`].
    pub fn after(&mut self, lasted: Duration) -> Duration {
        if lasted >= STABLE_AFTER {
            self.reset();
        }
        self.pause()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REMEMBERED: usize = 256;
    const SECOND: Duration = Duration::from_secs(1);

    fn position() -> ResumePosition {
        ResumePosition::new(SECOND / 2..=30 * SECOND, REMEMBERED)
    }

    fn event(id: &str, data: &str) -> SseEvent {
        SseEvent { id: Some(id.to_owned()), ..message(data) }
    }

    fn message(data: &str) -> SseEvent {
        SseEvent { data: data.to_owned().into(), ..SseEvent::default() }
    }

    #[test]
    fn what_was_told_is_known_again_behind_a_gap_only() {
        let mut position = position();
        assert!(position.note(&event("1", "")), "a priming event");
        assert!(position.note(&event("1", "a")), "with the id of the priming event");
        assert!(position.note(&event("1", "a")), "a server whose ids mean nothing");
        position.gap();
        assert!(!position.note(&event("1", "")));
        assert!(!position.note(&event("1", "a")));
        assert!(position.note(&event("1", "b")), "numbered anew");
        assert!(position.note(&event("2", "a")));
        assert!(!position.note(&event("1", "b")));
        assert_eq!(position.last().map(HeaderValue::as_bytes), Some(&b"2"[..]), "a repetition does not go back");
        assert!(position.note(&message("a")), "without an id nothing is known again");
    }

    #[test]
    fn exactly_so_many_are_remembered() {
        let mut position = position();
        for number in 0..=REMEMBERED {
            position.note(&event(&number.to_string(), "x"));
        }
        position.gap();
        assert_eq!(position.seen.len(), REMEMBERED);
        assert!(!position.note(&event("1", "x")));
        assert!(position.note(&event("0", "x")), "the oldest is forgotten");
        assert_eq!(position.seen.len(), REMEMBERED);
    }

    #[test]
    fn the_position_is_the_last_id_that_fits_in_a_header() {
        let after = |ids: &[&str]| {
            let mut position = position();
            for id in ids {
                position.note(&event(id, "x"));
            }
            position.note(&message("no id"));
            position.last().map(|id| id.as_bytes().to_vec())
        };
        assert_eq!(after(&[]), None);
        assert_eq!(after(&["1", "2/ü"]), Some("2/ü".into()));
        assert_eq!(after(&["1", ""]), None);
        assert_eq!(after(&["1", "a\u{7}"]), Some("1".into()));
        assert_eq!(after(&["1", &"x".repeat(MAX_EVENT_ID + 1)]), Some("1".into()));
    }

    #[test]
    fn the_server_says_how_long_to_wait_within_reason() {
        let mut position = position();
        assert_eq!(position.retry(), None);
        for (retry, expected) in [(2500, 2500), (0, 500), (u64::MAX, 30_000)] {
            position.note(&SseEvent { retry: Some(retry), ..SseEvent::default() });
            position.note(&event("1", "keeps what was asked for"));
            assert_eq!(position.retry(), Some(Duration::from_millis(expected)));
        }
    }

    #[test]
    fn what_does_not_last_is_tried_ever_more_seldom() {
        let mut backoff = Backoff::new(SECOND / 10, 5 * SECOND);
        let pauses: Vec<_> = (0..8).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.after(STABLE_AFTER), SECOND / 10);
        assert_eq!(backoff.pause_from(Some(SECOND)), 2 * SECOND);
        assert!((0..99).all(|_| backoff.pause() <= 5 * SECOND));
        assert_eq!(backoff.pause(), 5 * SECOND);
    }
}
