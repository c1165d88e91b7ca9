//! Reads the response to a request across several connections. An event that arrives twice is forwarded once.

use std::time::{Duration, Instant};

use bytes::Bytes;
use goblin_wire::Error;

use crate::bridge::Bridge;
use crate::bridge::session::{GatewaySession, backoff};
use crate::bridge::wire::{BodyError, ResponseMessages};
use crate::events::{Backoff, ResumePosition, STABLE_AFTER, is_temporary};

/// How many resumptions in a row may bring nothing before the request fails.
const MAX_FAILED_RESUMES: usize = 6;
/// The longest delay that a gateway may request by `retry`.
const MAX_RETRY: Duration = Duration::from_secs(600);
/// The number of events that are remembered, to drop duplicates.
const REMEMBERED: usize = 256;

/// Returns the position before the first event of a stream.
pub(crate) fn start() -> ResumePosition {
    ResumePosition::new(Duration::ZERO..=MAX_RETRY, REMEMBERED)
}

/// Returns the delay before the next connection: `pause`, or the gateway's `retry` if that is longer.
pub(crate) fn pause(position: &ResumePosition, pause: Duration) -> Duration {
    pause.max(position.retry().unwrap_or_default())
}

/// The response to a request, across as many connections as it takes.
pub(crate) struct ResponseStream<'a> {
    session: &'a GatewaySession,
    answers: ResponseMessages,
    position: ResumePosition,
    backoff: Backoff,
    opened: Instant,
    failed_resumes: usize,
}

impl<'a> ResponseStream<'a> {
    pub(crate) fn new(answers: ResponseMessages, session: &'a GatewaySession) -> ResponseStream<'a> {
        ResponseStream {
            session,
            answers,
            position: start(),
            backoff: backoff(),
            opened: Instant::now(),
            failed_resumes: 0,
        }
    }

    /// Returns the next message that is not a duplicate. Returns `None` at the end of a connection.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        while let Some(event) = self.answers.next().await? {
            if !self.position.note(&event) {
                continue;
            }
            self.failed_resumes = 0;
            if !event.data.is_empty() {
                return Ok(Some(event.data));
            }
        }
        Ok(None)
    }

    /// Opens a new connection after the last one ended with the reason `cut`. Returns an error if the stream cannot
    /// continue.
    pub(crate) async fn resume(&mut self, bridge: &Bridge, cut: &str) -> Result<(), Error> {
        let ended = |why: &str| bridge.unavailable(format!("{cut}; {why}"), true);
        let Some(last) = self.position.last().cloned() else { return Err(bridge.unavailable(cut.to_owned(), true)) };
        self.position.gap();
        loop {
            if self.opened.elapsed() >= STABLE_AFTER {
                self.failed_resumes = 0;
            }
            if self.failed_resumes == MAX_FAILED_RESUMES {
                return Err(ended("all attempts to resume it failed"));
            }
            let pause = pause(&self.position, self.backoff.after(self.opened.elapsed()));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = bridge.session_renewed(self.session) => return Err(ended("its session has ended")),
            }
            self.failed_resumes += 1;
            self.opened = Instant::now();
            match bridge.wire.get(&self.session.headers, Some(&last)).await {
                Ok(response) if is_temporary(response.status()) => {}
                Ok(response) => {
                    let status = response.status();
                    let answers = ResponseMessages::new(response);
                    if !status.is_success() || !answers.is_stream() {
                        return Err(ended(&format!("the gateway does not resume it: HTTP {status}")));
                    }
                    self.answers = answers;
                    return Ok(());
                }
                Err(error) if bridge.wire.is_alive() => tracing::debug!(%error, "a stream cannot be resumed yet"),
                Err(error) => return Err(bridge.unreachable(&error)),
            }
        }
    }
}
