//! The answer to one request in a stream of events, and the rest of that stream when it ends too early.
//!
//! A backend may close the stream before the answer, and any network may cut it. Where an event on it had an id, the rest
//! is fetched by GET, again and again: nothing is posted twice. Whoever waits for the answer decides for how long, by
//! dropping the future. The standing stream is another one and goes on meanwhile.
//!
//! Some servers replay the events of all streams, and some of those never send anything live behind them. So a resumed
//! stream tells for certain only what names this request, its answer and its progress; the rest is heard as if it came on
//! the standing stream. And it is asked for again when it is quiet.

use std::sync::Arc;
use std::time::Duration;

use http::Response as HttpResponse;
use http_body_util::{BodyExt, Collected, Limited};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use goblin_client::connect::Received;
use crate::upstream::http::body::{ASIDE, LONGEST_REFUSAL, finish, is_session_unknown, is_stream};
use crate::upstream::http::trail::Trail;
use crate::upstream::http::{Shared, is_passing};
use crate::upstream::link::{End, LinkError};
use crate::upstream::open::request_of;
use crate::client::lane::Call;
use goblin_wire::framing::{Event, Events, Frame};
use goblin_wire::method::Method;
use goblin_wire::{Id, Message, Response};
use goblin_telemetry::worker;

/// Attempts in a row that brought nothing, after which there is nothing to be had.
const MOST_IN_VAIN: u32 = 3;
/// Some servers answer with an empty stream when they have forgotten the event. One that stays open for longer is real.
const PROMPTLY: Duration = Duration::from_secs(1);
/// How long a resumed stream may bring no event.
const QUIET: Duration = Duration::from_secs(15);

/// A request whose answer comes in a stream.
pub(super) struct Awaited<'a> {
    shared: &'a Arc<Shared>,
    id: u64,
    call: Option<&'a Arc<Call>>,
    trail: Trail,
    is_resumed: bool,
}

enum Heard {
    Answer(Response),
    /// The connection ended before it, for this reason.
    Stopped {
        reason: String,
        /// Whether there was any event that is not a repetition.
        brought_news: bool,
    },
}

/// Why there is no stream to go on with.
enum Refused {
    ForNow(String),
    ForGood(String),
}

impl<'a> Awaited<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, id: u64, call: Option<&'a Arc<Call>>) -> Awaited<'a> {
        Awaited { shared, id, call, trail: Trail::default(), is_resumed: false }
    }

    pub(super) async fn answer(mut self, body: Received) -> Result<Response, LinkError> {
        match self.hear(body).await? {
            Heard::Answer(answer) => Ok(answer),
            Heard::Stopped { reason, .. } if !self.shared.has_sessions || self.trail.position().is_none() => {
                Err(lost(reason))
            }
            // Boxed, as all that is rare.
            Heard::Stopped { reason, .. } => Box::pin(self.resume(reason)).await,
        }
    }

    async fn hear(&mut self, mut body: Received) -> Result<Heard, LinkError> {
        let mut events = Events::new(self.shared.limit);
        let mut brought_news = false;
        let mut last_event = Instant::now();
        let reason = loop {
            let frame = match self.is_resumed {
                true => timeout_at(last_event + QUIET, body.frame()).await,
                false => Ok(body.frame().await),
            };
            let data = match frame {
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
                Ok(Some(Err(error))) => break format!("its stream broke off: {error}"),
                Ok(None) => break "its stream ended without an answer".to_owned(),
                Err(_) => break "its stream is quiet".to_owned(),
            };
            events.feed(&data);
            while let Some(event) = events.take() {
                last_event = Instant::now();
                if let Frame::Whole(event) = &event
                    && !self.trail.note(event)
                {
                    continue;
                }
                brought_news = true;
                let answer = match self.is_resumed {
                    true => self.on_replayed(event)?,
                    false => Shared::on_event(self.shared, self.id, event, self.call)?,
                };
                if let Some(answer) = answer {
                    worker::spawn(finish(body));
                    return Ok(Heard::Answer(answer));
                }
            }
        };
        self.trail.gap();
        self.is_resumed = true;
        Ok(Heard::Stopped { reason, brought_news })
    }

    /// One event on a resumed stream; tells the answer when it is that.
    fn on_replayed(&self, event: Frame<Event>) -> Result<Option<Response>, LinkError> {
        let Some(data) = self.shared.data(event)? else { return Ok(None) };
        match Message::parse(data) {
            Ok(Message::Response(answer)) if answer.id.as_ref().and_then(Id::as_u64) == Some(self.id) => {
                return Ok(Some(answer));
            }
            Ok(Message::Request(ask)) => Shared::on_replayed_ask(self.shared, ask),
            Err(malformed) if self.shared.answers(&malformed, self.id) => return Err(self.shared.refuse(&malformed)),
            // That of other calls was told on their own streams.
            Ok(Message::Notification(notification))
                if notification.method == Method::Progress && request_of(&notification) != Some(self.id) => {}
            other => Shared::on_other(self.shared, other),
        }
        Ok(None)
    }

    /// Fetches the rest of a stream that stopped for this reason.
    async fn resume(mut self, stopped: String) -> Result<Response, LinkError> {
        let mut in_vain = 0;
        loop {
            let reason = match self.reopen(in_vain).await {
                Ok(body) => {
                    let begun = Instant::now();
                    match self.hear(body).await? {
                        Heard::Answer(answer) => return Ok(answer),
                        Heard::Stopped { brought_news, .. } if brought_news || begun.elapsed() >= PROMPTLY => {
                            in_vain = 0;
                            continue;
                        }
                        Heard::Stopped { reason, .. } => reason,
                    }
                }
                Err(Refused::ForNow(reason)) => reason,
                Err(Refused::ForGood(reason)) => return Err(not_resumed(&stopped, &reason)),
            };
            in_vain += 1;
            if in_vain == MOST_IN_VAIN {
                return Err(not_resumed(&stopped, &reason));
            }
        }
    }

    /// Asks for the rest of the stream when the backend wants to be asked, unless the link is lost by then.
    async fn reopen(&self, in_vain: u32) -> Result<Received, Refused> {
        let request = async {
            sleep(self.trail.pause(in_vain)).await;
            self.shared.client.request(self.shared.stream_request(self.trail.position())).await
        };
        let response = tokio::select! {
            response = request => response.map_err(|error| Refused::ForNow(error.to_string()))?,
            end = self.shared.closed() => return Err(Refused::ForGood(match end {
                End::Lost(reason) => reason,
                End::Forgotten => LinkError::SessionLost.to_string(),
            })),
        };
        match response.status() {
            status if status.is_success() && is_stream(response.headers()) => Ok(response.into_body()),
            status if is_passing(status) => Err(Refused::ForNow(format!("it answered HTTP {status}"))),
            _ => Err(Refused::ForGood(self.refusal(response).await)),
        }
    }

    async fn refusal(&self, response: HttpResponse<Received>) -> String {
        let status = response.status();
        let body = timeout(ASIDE, Limited::new(response.into_body(), LONGEST_REFUSAL).collect()).await;
        let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
        if self.shared.session.get().is_some() && is_session_unknown(status, &body) {
            return self.shared.lose_session().to_string();
        }
        format!("it answered HTTP {status}, which is no stream")
    }
}

/// The backend has the request, and may have acted on it.
fn lost(reason: String) -> LinkError {
    LinkError::Closed { reason, sent: true }
}

fn not_resumed(stopped: &str, reason: &str) -> LinkError {
    lost(format!("{stopped}, and it could not be resumed: {reason}"))
}
