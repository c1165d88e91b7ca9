//! Reads the response to a request from an event stream, and resumes a stream that ended too early.
//!
//! A backend may close the stream before the response, and the network may cut it. If an event had an id, the rest is
//! fetched by GET as often as necessary; nothing is posted twice. The caller limits the wait by dropping the future.
//! The GET stream is separate and continues meanwhile.
//!
//! Some servers replay the events of all streams, and some of those never send live events afterwards. On a resumed
//! stream, only the response and the progress of this request are therefore attributed to it. Other messages are
//! treated as if they arrived on the GET stream. A quiet stream is requested again.

use std::sync::Arc;
use std::time::Duration;

use goblin_client::connect::ResponseBody;
use goblin_client::events::{Backoff, EventStream, ResumePosition, STABLE_AFTER, is_event_stream, is_temporary};
use goblin_telemetry::worker;
use goblin_wire::framing::{Frame, SseEvent};
use goblin_wire::{Id, Message, Method, Response};
use http::Response as HttpResponse;
use tokio::time::{Instant, sleep, timeout};

use crate::client::call::Call;
use crate::upstream::http::HttpLinkInner;
use crate::upstream::http::peer::{BACKGROUND_TIMEOUT, error_body, finish, is_session_unknown};
use crate::upstream::link::LinkError;
use crate::upstream::open_requests::request_of;

/// The number of fruitless attempts in a row after which the request fails.
const MAX_FRUITLESS_ATTEMPTS: u32 = 3;
/// The longest time without an event on a resumed stream.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);
const FIRST_RECONNECT: Duration = Duration::from_secs(1);
/// The shortest pause before a reconnect, even if the backend asks for a shorter one.
const FASTEST_RECONNECT: Duration = Duration::from_millis(500);
const SLOWEST_RECONNECT: Duration = Duration::from_secs(30);
/// The number of events that are remembered. The oldest is forgotten first.
const MAX_REMEMBERED: usize = 1024;

/// Returns the position before the first event of a stream.
pub(super) fn start_position() -> ResumePosition {
    ResumePosition::new(FASTEST_RECONNECT..=SLOWEST_RECONNECT, MAX_REMEMBERED)
}

/// Returns the backoff of new connections for a stream.
pub(super) fn backoff() -> Backoff {
    Backoff::new(FIRST_RECONNECT, SLOWEST_RECONNECT)
}

/// A request with its response in a stream.
pub(super) struct StreamedRequest<'a> {
    shared: &'a Arc<HttpLinkInner>,
    id: u64,
    call: Option<&'a Arc<Call>>,
    position: ResumePosition,
    is_resumed: bool,
}

/// The outcome of reading one connection.
enum ReadOutcome {
    Answer(Response),
    /// The connection ended before the response.
    Ended {
        reason: String,
        /// Whether the connection sent an event that is not a repetition.
        has_new_event: bool,
    },
}

/// The reason why a stream could not be resumed.
enum ResumeError {
    Temporary(String),
    Permanent(String),
}

impl<'a> StreamedRequest<'a> {
    pub(super) fn new(shared: &'a Arc<HttpLinkInner>, id: u64, call: Option<&'a Arc<Call>>) -> StreamedRequest<'a> {
        StreamedRequest { shared, id, call, position: start_position(), is_resumed: false }
    }

    /// Reads the response from `body`, and resumes the stream if it ends too early.
    pub(super) async fn answer(mut self, body: ResponseBody) -> Result<Response, LinkError> {
        match self.read(body).await? {
            ReadOutcome::Answer(answer) => Ok(answer),
            ReadOutcome::Ended { reason, .. } if !self.shared.has_sessions || self.position.last().is_none() => {
                Err(lost_error(reason))
            }
            // Boxed because it is rare.
            ReadOutcome::Ended { reason, .. } => Box::pin(self.resume(reason)).await,
        }
    }

    /// Reads one connection to the response or to its end.
    async fn read(&mut self, body: ResponseBody) -> Result<ReadOutcome, LinkError> {
        let mut stream = EventStream::new(body, self.shared.peer.limit);
        let mut has_new_event = false;
        let reason = loop {
            let next = match self.is_resumed {
                true => timeout(IDLE_TIMEOUT, stream.next()).await,
                false => Ok(stream.next().await),
            };
            let event = match next {
                Ok(Ok(Some(event))) => event,
                Ok(Ok(None)) => break "its stream ended without an answer".to_owned(),
                Ok(Err(error)) => break format!("its stream was cut off: {error}"),
                Err(_) => {
                    break format!("its stream sent no event within {}", goblin_wire::units::duration(IDLE_TIMEOUT));
                }
            };
            // A repeated event without data shows that the backend still works on the request.
            if let Frame::Whole(event) = &event
                && !self.position.note(event)
                && !event.data.is_empty()
            {
                continue;
            }
            has_new_event = true;
            let answer = match self.is_resumed {
                true => self.on_replayed(event)?,
                false => HttpLinkInner::on_event(self.shared, self.id, event, self.call)?,
            };
            if let Some(answer) = answer {
                worker::spawn(finish(stream.into_body()));
                return Ok(ReadOutcome::Answer(answer));
            }
        };
        self.position.gap();
        self.is_resumed = true;
        Ok(ReadOutcome::Ended { reason, has_new_event })
    }

    /// Handles one event on a resumed stream. Returns the response if the event holds it.
    fn on_replayed(&self, event: Frame<SseEvent>) -> Result<Option<Response>, LinkError> {
        let Some(data) = self.shared.data(event)? else { return Ok(None) };
        match Message::parse(data) {
            Ok(Message::Response(answer)) if answer.id.as_ref().and_then(Id::as_u64) == Some(self.id) => {
                return Ok(Some(answer));
            }
            Ok(Message::Request(request)) => HttpLinkInner::on_replayed_request(self.shared, request),
            Err(malformed) if self.shared.is_response_to(&malformed, self.id) => {
                return Err(self.shared.malformed_error(&malformed));
            }
            // Progress of other calls already arrived on their own streams.
            Ok(Message::Notification(notification))
                if notification.method == Method::Progress && request_of(&notification) != Some(self.id) => {}
            other => HttpLinkInner::on_other(self.shared, other),
        }
        Ok(None)
    }

    /// Resumes a stream that ended for the reason `end_reason`.
    async fn resume(mut self, end_reason: String) -> Result<Response, LinkError> {
        let mut backoff = backoff();
        loop {
            let reason = match self.reopen(backoff.pause_from(self.position.retry())).await {
                Ok(body) => {
                    let started = Instant::now();
                    match self.read(body).await? {
                        ReadOutcome::Answer(answer) => return Ok(answer),
                        ReadOutcome::Ended { has_new_event, .. }
                            if has_new_event || started.elapsed() >= STABLE_AFTER =>
                        {
                            backoff.reset();
                            continue;
                        }
                        ReadOutcome::Ended { reason, .. } => reason,
                    }
                }
                Err(ResumeError::Temporary(reason)) => reason,
                Err(ResumeError::Permanent(reason)) => return Err(not_resumed(&end_reason, &reason)),
            };
            if backoff.attempts() == MAX_FRUITLESS_ATTEMPTS {
                return Err(not_resumed(&end_reason, &reason));
            }
        }
    }

    /// Requests the rest of the stream after a pause. Returns an error if the link ends first.
    async fn reopen(&self, pause: Duration) -> Result<ResponseBody, ResumeError> {
        let request = async {
            sleep(pause).await;
            self.shared.peer.client.send(|| self.shared.stream_request(self.position.last())).await
        };
        let response = tokio::select! {
            response = request => response.map_err(|error| ResumeError::Temporary(error.to_string()))?,
            end = self.shared.peer.open.closed() => return Err(ResumeError::Permanent(end.reason())),
        };
        match response.status() {
            status if status.is_success() && is_event_stream(response.headers()) => Ok(response.into_body()),
            status if is_temporary(status) => Err(ResumeError::Temporary(format!("it answered HTTP {status}"))),
            _ => Err(ResumeError::Permanent(self.explain_rejection(response).await)),
        }
    }

    async fn explain_rejection(&self, response: HttpResponse<ResponseBody>) -> String {
        let status = response.status();
        let body = timeout(BACKGROUND_TIMEOUT, error_body(response)).await.unwrap_or_default();
        if self.shared.session.get().is_some() && is_session_unknown(status, &body) {
            return self.shared.lose_session().to_string();
        }
        format!("it answered HTTP {status} instead of a stream")
    }
}

/// Returns an error for a request that the backend has received and may have acted on.
fn lost_error(reason: String) -> LinkError {
    LinkError::Closed { reason, sent: true }
}

fn not_resumed(end_reason: &str, reason: &str) -> LinkError {
    lost_error(format!("{end_reason}, and it could not be resumed: {reason}"))
}
