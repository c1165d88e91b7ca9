//! A stream of the gateway that outlives the connections it comes over.
//!
//! Each event that has an id is a place to go on from: where a connection ends, a GET with that id brings what follows.
//! Goblin and others also end connections on purpose, to be asked again after the time that `retry` names. A request is
//! never sent again. What comes twice, because a gateway repeats the event that was named, is handed on once.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use crate::bridge::Bridge;
use crate::bridge::keeper::{LASTING, Pace, Session};
use crate::bridge::wire::{Answers, Broken};
use goblin_wire::error::Error;
use goblin_wire::framing::Event;

/// How often in a row a stream is asked for that brings nothing, before its request fails.
const MOST_IN_VAIN: usize = 6;
/// No gateway may ask us to stay away longer than this.
const LONGEST_RETRY: Duration = Duration::from_secs(600);
/// Events of a stream that are remembered, so that none is handed on twice.
const REMEMBERED: usize = 256;

/// How far a stream has come.
#[derive(Default)]
pub struct Trail {
    last: Option<HeaderValue>,
    retry: Duration,
    /// Fingerprints of id and message.
    seen: VecDeque<u64>,
    random: RandomState,
}

impl Trail {
    /// Goes on to this event. Gives its message, unless it has none or was there before.
    pub fn follow(&mut self, event: Event) -> Step {
        if let Some(retry) = event.retry {
            self.retry = Duration::from_millis(retry).min(LONGEST_RETRY);
        }
        let Some(id) = event.id else { return Step::of(event.data) };
        let fingerprint = self.random.hash_one((&id, &event.data));
        if self.seen.contains(&fingerprint) {
            return Step::Again;
        }
        if self.seen.len() == REMEMBERED {
            self.seen.pop_front();
        }
        self.seen.push_back(fingerprint);
        // By the rules of event streams an empty one takes the last one back.
        match HeaderValue::try_from(id.into_bytes()) {
            Ok(id) => self.last = Some(id).filter(|id| !id.is_empty()),
            Err(_) => tracing::debug!("an event has an id that no header can carry"),
        }
        Step::of(event.data)
    }

    /// Where to go on from.
    pub fn last(&self) -> Option<&HeaderValue> {
        self.last.as_ref()
    }

    /// Begins anew; tells whether there was a place to go on from.
    pub fn forget(&mut self) -> bool {
        self.last.take().is_some()
    }

    /// How long to wait, where it would be `pause` for lack of other wishes.
    pub fn pause(&self, pause: Duration) -> Duration {
        pause.max(self.retry)
    }
}

/// What an event brings.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Message(Bytes),
    /// A place to go on from, or a wish.
    Mark,
    Again,
}

impl Step {
    fn of(data: Bytes) -> Step {
        if data.is_empty() { Step::Mark } else { Step::Message(data) }
    }
}

/// Whether the same may go well a little later.
pub fn is_passing(status: StatusCode) -> bool {
    let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
    passing.contains(&status) || status.is_server_error()
}

/// The answer to a request, over as many connections as it takes.
pub struct Stream<'a> {
    session: &'a Session,
    answers: Answers,
    trail: Trail,
    pace: Pace,
    opened: Instant,
    in_vain: usize,
}

impl<'a> Stream<'a> {
    pub fn new(answers: Answers, session: &'a Session) -> Stream<'a> {
        let (trail, pace) = (Trail::default(), Pace::default());
        Stream { session, answers, trail, pace, opened: Instant::now(), in_vain: 0 }
    }

    /// The next message that was not there yet; nothing at the end of a connection.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Broken> {
        while let Some(event) = self.answers.next().await? {
            let step = self.trail.follow(event);
            if step != Step::Again {
                self.in_vain = 0;
            }
            if let Step::Message(message) = step {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Goes on after the connection ended because of `cut`, or tells why that is the end of it.
    pub async fn resume(&mut self, bridge: &Bridge, cut: &str) -> Result<(), Error> {
        let ended = |why: &str| bridge.unavailable(format!("{cut}; {why}"), true);
        let Some(last) = self.trail.last().cloned() else { return Err(bridge.unavailable(cut.to_owned(), true)) };
        loop {
            if self.opened.elapsed() >= LASTING {
                self.in_vain = 0;
            }
            if self.in_vain == MOST_IN_VAIN {
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
                    let answers = Answers::new(response);
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

    fn event(id: Option<&str>, data: &str) -> Event {
        Event { id: id.map(str::to_owned), data: Bytes::copy_from_slice(data.as_bytes()), ..Event::default() }
    }

    fn message(data: &str) -> Step {
        Step::Message(Bytes::copy_from_slice(data.as_bytes()))
    }

    #[test]
    fn a_trail_ends_at_the_newest_event_and_takes_none_twice() {
        let mut trail = Trail::default();
        for (id, data, step, last) in [
            (None, "a", message("a"), None),
            (Some("0"), "", Step::Mark, Some("0")),
            (Some("1"), "b", message("b"), Some("1")),
            (None, "b", message("b"), Some("1")),
            (Some("2"), "c", message("c"), Some("2")),
            (Some("1"), "b", Step::Again, Some("2")),
            // A gateway that counts each connection from the beginning shall lose nothing by that.
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
        let mut trail = Trail::default();
        for number in 0..=REMEMBERED {
            assert_eq!(trail.follow(event(Some(&number.to_string()), "x")), message("x"));
        }
        assert_eq!(trail.seen.len(), REMEMBERED);
        assert_eq!(trail.follow(event(Some("1"), "x")), Step::Again);
        assert_eq!(trail.follow(event(Some("0"), "x")), message("x"));
    }

    #[test]
    fn the_gateway_may_ask_for_a_longer_pause_but_not_for_ever() {
        let mut trail = Trail::default();
        let second = Duration::from_secs(1);
        assert_eq!(trail.pause(second), second);
        for (retry, pause) in [(10, second), (3000, 3 * second), (u64::MAX, LONGEST_RETRY)] {
            trail.follow(Event { retry: Some(retry), ..Event::default() });
            assert_eq!(trail.pause(second), pause, "{retry}");
        }
    }
}
