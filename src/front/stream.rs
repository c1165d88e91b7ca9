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
use crate::lane::Said;
use crate::mailbox::Versions;
use crate::observe::{Event, Observe};
use crate::protocol::error::Error;
use crate::protocol::json::Pieces;
use crate::protocol::{self, Message};
use crate::session::desk::Pending;
use crate::session::{self, Session};

pub const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(15);

/// A call that outlives its connection. A lost connection is no cancellation: when this is dropped before the answer,
/// the call is finished without a reader.
pub struct Carried {
    pending: Option<Pending>,
    session: Arc<Session>,
    observe: Arc<Observe>,
    /// Its connection was lost already.
    is_detached: bool,
}

/// What a call has for its client next.
pub enum Next {
    Said(Said),
    /// The answer takes its time. Told once.
    Slow,
    /// The answer; nothing when the call was cancelled.
    Answer(Option<Pieces>),
}

impl Carried {
    pub fn new(pending: Pending, session: Arc<Session>, observe: Arc<Observe>) -> Carried {
        Carried { pending: Some(pending), session, observe, is_detached: false }
    }

    /// Messages first: what the backend said before its answer reaches the client before it.
    pub async fn next(&mut self) -> Next {
        let Some(pending) = &mut self.pending else { return Next::Answer(None) };
        tokio::select! {
            biased;
            said = pending.call.lane.next() => said.map_or(Next::Slow, Next::Said),
            answer = &mut pending.answer => {
                match pending.call.lane.try_next() {
                    Some(said) => {
                        // The lane was filled while the answer came; keep the answer for later.
                        pending.answer = Box::pin(std::future::ready(answer));
                        Next::Said(said)
                    }
                    None => {
                        self.pending = None;
                        Next::Answer(answer)
                    }
                }
            }
        }
    }

    /// Something that this call said had no room on its way to the client.
    pub fn tell_dropped(&self) {
        self.observe.emit(&Event::MessageDropped { session: &self.session.id.short() });
    }

    /// The answer alone. What comes before it has nowhere to go but the stream of the session, which an ask may take.
    pub async fn answer(mut self) -> Option<Pieces> {
        loop {
            match self.next().await {
                Next::Answer(answer) => return answer,
                Next::Said(Said::Ask(ask)) => self.ask_elsewhere(ask),
                Next::Said(Said::Note(_)) | Next::Slow => {}
            }
        }
    }

    /// An ask that this call's own way to the client cannot take. Where the session has no stream either, it is answered
    /// for the client.
    fn ask_elsewhere(&self, ask: Bytes) {
        let mailbox = &self.session.mailbox;
        if mailbox.has_stream() && mailbox.post(ask.clone()) {
            return;
        }
        let Ok(Message::Request(ask)) = Message::parse(ask) else { return };
        let error = Error::ClientUnavailable { reason: "it has no open stream to be asked on".to_owned() };
        let answer = protocol::error_reply(Some(&ask.id), &error.to_json()).concat();
        if let Ok(Message::Response(answer)) = Message::parse(answer) {
            mailbox.asks.answer(answer);
        }
    }

    /// The answer came, and nobody is there to read it.
    pub fn tell_unread(&self) {
        self.observe.emit(&Event::AnswerWithoutReader { session: &self.session.id.short() });
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
                Ok(Next::Said(said)) => Some((event(said.bytes().into()), (Some(carried), None))),
                Ok(Next::Answer(Some(answer))) => Some((event(answer), (None, None))),
                Ok(Next::Answer(None)) => None,
            }
        })
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let pending = self.pending.take().filter(|_| !self.is_detached);
        let Some(pending) = pending else { return };
        let (session, observe) = (Arc::clone(&self.session), Arc::clone(&self.observe));
        let rest = Carried { pending: Some(pending), session, observe, is_detached: true };
        let (session, observe) = (self.session.id.short(), Arc::clone(&self.observe));
        tokio::spawn(async move {
            if rest.answer().await.is_some() {
                observe.emit(&Event::AnswerWithoutReader { session: &session });
            }
        });
    }
}

/// Tells one client of changed lists, but not more often than [`NOTIFY_INTERVAL`].
pub struct Changes {
    versions: watch::Receiver<Versions>,
    quiet_until: Instant,
}

impl Changes {
    pub fn new(mut versions: watch::Receiver<Versions>) -> Changes {
        // Whatever changed before is due at once.
        versions.mark_changed();
        Changes { versions, quiet_until: Instant::now() }
    }

    /// Waits for notifications that are due; nothing when there will be none any more.
    pub async fn due(&mut self, session: &Session) -> Option<Vec<Bytes>> {
        loop {
            tokio::time::sleep_until(self.quiet_until).await;
            self.versions.changed().await.ok()?;
            let now = *self.versions.borrow_and_update();
            let due = session.mailbox.take_due(now);
            if !due.is_empty() {
                self.quiet_until = Instant::now() + NOTIFY_INTERVAL;
                return Some(due);
            }
        }
    }
}

/// What belongs to no call, in the order it is due; nothing when there will be none any more. Cancel-safe.
pub async fn unasked(session: &Session, changes: &mut Changes) -> Option<Vec<Bytes>> {
    tokio::select! {
        biased;
        message = session.mailbox.next() => Some(vec![message]),
        due = changes.due(session) => due,
    }
}

/// Several messages as events.
pub fn all_events(messages: Vec<Bytes>) -> Bytes {
    messages.into_iter().flat_map(|message| event(message.into())).collect()
}

/// The stream of a session: what changed, until the client goes, another stream takes its place, or we stop.
pub struct SessionStream {
    pub hold: session::Stream,
    pub changes: Changes,
    pub stop: watch::Receiver<bool>,
}

impl SessionStream {
    pub fn into_events(self) -> impl Stream<Item = Bytes> + Send + 'static {
        futures_util::stream::unfold(self, async |mut stream| Some((stream.next().await?, stream)))
    }

    async fn next(&mut self) -> Option<Bytes> {
        let session = Arc::clone(&self.hold.session);
        tokio::select! {
            biased;
            () = stopped(&mut self.stop) => None,
            () = self.hold.replaced() => None,
            messages = unasked(&session, &mut self.changes) => messages.map(all_events),
            () = tokio::time::sleep(KEEP_ALIVE_EVERY) => Some(KEEP_ALIVE),
        }
    }
}
