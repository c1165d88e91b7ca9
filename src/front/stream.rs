//! Streams of events to HTTP clients: one per call that has something to say before its answer, and one per session for
//! what belongs to no call.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::actor::stopped;
use crate::front::NOTIFY_INTERVAL;
use crate::front::body::{KEEP_ALIVE, event};
use crate::mailbox::Versions;
use crate::observe::{Event, Observe};
use crate::protocol::json::Pieces;
use crate::session::desk::Pending;
use crate::session::{self, Session};

pub const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// A call that outlives its connection. A lost connection is no cancellation: when this is dropped before the answer,
/// the call is finished without a reader.
pub struct Carried {
    pending: Option<Pending>,
    session: Arc<Session>,
    observe: Arc<Observe>,
}

/// What a call has for its client next.
pub enum Next {
    Message(Bytes),
    /// The answer takes its time. Told once.
    Slow,
    /// The answer; nothing when the call was cancelled.
    Answer(Option<Pieces>),
}

impl Carried {
    pub fn new(pending: Pending, session: Arc<Session>, observe: Arc<Observe>) -> Carried {
        Carried { pending: Some(pending), session, observe }
    }

    /// Messages first: what the backend said before its answer reaches the client before it.
    pub async fn next(&mut self) -> Next {
        let Some(pending) = &mut self.pending else { return Next::Answer(None) };
        tokio::select! {
            biased;
            said = pending.call.lane.next() => said.map_or(Next::Slow, Next::Message),
            answer = &mut pending.answer => {
                match pending.call.lane.try_next() {
                    Some(message) => {
                        // The lane was filled while the answer came; keep the answer for later.
                        pending.answer = Box::pin(std::future::ready(answer));
                        Next::Message(message)
                    }
                    None => {
                        self.pending = None;
                        Next::Answer(answer)
                    }
                }
            }
        }
    }

    /// The rest of the call as events, `first` before all else.
    pub fn into_events(self, first: Option<Bytes>) -> impl Stream<Item = Bytes> + Send + 'static {
        let first = first.map(|message| event(message.into()));
        futures_util::stream::unfold((Some(self), first), async |(carried, first)| {
            let mut carried = carried?;
            if let Some(first) = first {
                return Some((first, (Some(carried), None)));
            }
            match tokio::time::timeout(KEEP_ALIVE_EVERY, carried.next()).await {
                Err(_) | Ok(Next::Slow) => Some((KEEP_ALIVE, (Some(carried), None))),
                Ok(Next::Message(message)) => Some((event(message.into()), (Some(carried), None))),
                Ok(Next::Answer(Some(answer))) => Some((event(answer), (None, None))),
                Ok(Next::Answer(None)) => None,
            }
        })
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        let (session, observe) = (self.session.id.short(), Arc::clone(&self.observe));
        tokio::spawn(async move {
            if pending.answer.await.is_some() {
                observe.emit(&Event::AnswerWithoutReader { session: &session });
            }
        });
    }
}

/// The stream of a session: what changed, until the client goes, another stream takes its place, or we stop.
pub struct SessionStream {
    pub hold: session::Stream,
    pub versions: watch::Receiver<Versions>,
    pub stop: watch::Receiver<bool>,
}

impl SessionStream {
    pub fn into_events(mut self) -> impl Stream<Item = Bytes> + Send + 'static {
        // Whatever changed while no stream was open is due at once.
        self.versions.mark_changed();
        let state = (self, Instant::now());
        futures_util::stream::unfold(state, async |(mut stream, quiet_until)| {
            let bytes = stream.next(quiet_until).await?;
            Some((bytes, (stream, Instant::now() + NOTIFY_INTERVAL)))
        })
    }

    async fn next(&mut self, quiet_until: Instant) -> Option<Bytes> {
        loop {
            let changed = async {
                tokio::time::sleep_until(quiet_until).await;
                self.versions.changed().await
            };
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => return None,
                () = self.hold.replaced() => return None,
                changed = changed => changed.ok()?,
                () = tokio::time::sleep(KEEP_ALIVE_EVERY) => return Some(KEEP_ALIVE),
            }
            let now = *self.versions.borrow_and_update();
            let due = self.hold.session.mailbox.take_due(now);
            if !due.is_empty() {
                return Some(due.into_iter().flat_map(|message| event(message.into())).collect());
            }
        }
    }
}
