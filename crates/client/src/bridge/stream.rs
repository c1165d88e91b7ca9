//! Reads one stream of the gateway across several connections.
//!
//! Every event with an id is a point to resume from: a GET with that id returns the events after it. Goblin and other
//! servers also end connections on purpose, and the client returns after the time that `retry` names. The original
//! request is never sent again. An event that arrives twice is forwarded once.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use bytes::Bytes;
use goblin_wire::Error;
use goblin_wire::framing::SseEvent;
use http::{HeaderValue, StatusCode};

use crate::bridge::Bridge;
use crate::bridge::session::{Backoff, GatewaySession, LASTING};
use crate::bridge::wire::{BodyError, ResponseMessages};

/// How many resumptions in a row may bring nothing before the request fails.
const MAX_FRUITLESS_RESUMES: usize = 6;
/// The longest delay that a gateway may request by `retry`.
const MAX_RETRY: Duration = Duration::from_secs(600);
/// The number of events that are remembered, to drop duplicates.
const REMEMBERED: usize = 256;

/// The position in a stream.
#[derive(Default)]
pub(crate) struct StreamPosition {
    last: Option<HeaderValue>,
    retry: Duration,
    /// Hashes of event id and message.
    seen: VecDeque<u64>,
    random: RandomState,
}

impl StreamPosition {
    /// Advances to this event. Returns its message, unless the event has none or is a duplicate.
    pub(crate) fn follow(&mut self, event: SseEvent) -> EventContent {
        if let Some(retry) = event.retry {
            self.retry = Duration::from_millis(retry).min(MAX_RETRY);
        }
        let Some(id) = event.id else { return EventContent::of(event.data) };
        let fingerprint = self.random.hash_one((&id, &event.data));
        if self.seen.contains(&fingerprint) {
            return EventContent::Again;
        }
        if self.seen.len() == REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(fingerprint);
        // The rules of event streams: an empty id clears the last one.
        match HeaderValue::try_from(id.into_bytes()) {
            Ok(id) => self.last = Some(id).filter(|id| !id.is_empty()),
            Err(_) => tracing::debug!("an event has an id that no header can carry"),
        }
        EventContent::of(event.data)
    }

    /// Returns the id of the event to resume after.
    pub(crate) fn last(&self) -> Option<&HeaderValue> {
        self.last.as_ref()
    }

    /// Clears the position. Returns `true` if there was one.
    pub(crate) fn forget(&mut self) -> bool {
        self.last.take().is_some()
    }

    /// Returns the delay before the next connection: `pause`, or the gateway's `retry` if that is longer.
    pub(crate) fn pause(&self, pause: Duration) -> Duration {
        pause.max(self.retry)
    }
}

/// The content of an event.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EventContent {
    Message(Bytes),
    /// An event without a message: it only sets the position or the delay.
    Mark,
    Again,
}

impl EventContent {
    fn of(data: Bytes) -> EventContent {
        if data.is_empty() { EventContent::Mark } else { EventContent::Message(data) }
    }
}

/// Reports whether the same request may succeed later.
pub(crate) fn is_passing(status: StatusCode) -> bool {
    let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
    passing.contains(&status) || status.is_server_error()
}

/// The response to a request, across as many connections as it takes.
pub(crate) struct ResponseStream<'a> {
    session: &'a GatewaySession,
    answers: ResponseMessages,
    trail: StreamPosition,
    pace: Backoff,
    opened: Instant,
    in_vain: usize,
}

impl<'a> ResponseStream<'a> {
    pub(crate) fn new(answers: ResponseMessages, session: &'a GatewaySession) -> ResponseStream<'a> {
        let (trail, pace) = (StreamPosition::default(), Backoff::default());
        ResponseStream { session, answers, trail, pace, opened: Instant::now(), in_vain: 0 }
    }

    /// Returns the next message that is not a duplicate. Returns `None` at the end of a connection.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        while let Some(event) = self.answers.next().await? {
            let step = self.trail.follow(event);
            if step != EventContent::Again {
                self.in_vain = 0;
            }
            if let EventContent::Message(message) = step {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Opens a new connection after the last one ended with the reason `cut`. Returns an error if the stream cannot
    /// continue.
    pub(crate) async fn resume(&mut self, bridge: &Bridge, cut: &str) -> Result<(), Error> {
        let ended = |why: &str| bridge.unavailable(format!("{cut}; {why}"), true);
        let Some(last) = self.trail.last().cloned() else { return Err(bridge.unavailable(cut.to_owned(), true)) };
        loop {
            if self.opened.elapsed() >= LASTING {
                self.in_vain = 0;
            }
            if self.in_vain == MAX_FRUITLESS_RESUMES {
                return Err(ended("it was asked again and again to go on, in vain"));
            }
            let pause = self.trail.pause(self.pace.after(self.opened.elapsed()));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = bridge.is_renewed(self.session) => return Err(ended("its session is over")),
            }
            self.in_vain += 1;
            self.opened = Instant::now();
            match bridge.wire.get(&self.session.headers, Some(&last)).await {
                Ok(response) if is_passing(response.status()) => {}
                Ok(response) => {
                    let status = response.status();
                    let answers = ResponseMessages::new(response);
                    if !status.is_success() || !answers.is_stream() {
                        return Err(ended(&format!("it does not go on with it: HTTP {status}")));
                    }
                    self.answers = answers;
                    return Ok(());
                }
                Err(error) if bridge.wire.lives() => tracing::debug!(%error, "a stream cannot be resumed yet"),
                Err(error) => return Err(bridge.unreachable(&error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: Option<&str>, data: &str) -> SseEvent {
        SseEvent { id: id.map(str::to_owned), data: Bytes::copy_from_slice(data.as_bytes()), ..SseEvent::default() }
    }

    fn message(data: &str) -> EventContent {
        EventContent::Message(Bytes::copy_from_slice(data.as_bytes()))
    }

    #[test]
    fn a_trail_ends_at_the_newest_event_and_takes_none_twice() {
        let mut trail = StreamPosition::default();
        for (id, data, step, last) in [
            (None, "a", message("a"), None),
            (Some("0"), "", EventContent::Mark, Some("0")),
            (Some("1"), "b", message("b"), Some("1")),
            (None, "b", message("b"), Some("1")),
            (Some("2"), "c", message("c"), Some("2")),
            (Some("1"), "b", EventContent::Again, Some("2")),
            // A gateway may number the events of each connection from the start. No message may be lost then.
            (Some("1"), "d", message("d"), Some("1")),
            (Some("un\u{7}fit"), "e", message("e"), Some("1")),
            (Some(""), "f", message("f"), None),
        ] {
            assert_eq!(trail.follow(event(id, data)), step, "{id:?} {data}");
            assert_eq!(trail.last().map(HeaderValue::as_bytes), last.map(str::as_bytes), "{id:?} {data}");
        }
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut trail = StreamPosition::default();
        for number in 0..=REMEMBERED {
            assert_eq!(trail.follow(event(Some(&number.to_string()), "x")), message("x"));
        }
        assert_eq!(trail.seen.len(), REMEMBERED);
        assert_eq!(trail.follow(event(Some("1"), "x")), EventContent::Again);
        assert_eq!(trail.follow(event(Some("0"), "x")), message("x"));
    }

    #[test]
    fn the_gateway_may_ask_for_a_longer_pause_but_not_for_ever() {
        let mut trail = StreamPosition::default();
        let second = Duration::from_secs(1);
        assert_eq!(trail.pause(second), second);
        for (retry, pause) in [(10, second), (3000, 3 * second), (u64::MAX, MAX_RETRY)] {
            trail.follow(SseEvent { retry: Some(retry), ..SseEvent::default() });
            assert_eq!(trail.pause(second), pause, "{retry}");
        }
    }
}
