//! Calls and notification streams of clients without a session.
//!
//! A call is bound to the stream of its request. If the client closes that stream, the call is cancelled. A request
//! from the backend also ends the stream: the desk suspends the call, and the client resumes it with another request.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use goblin_telemetry::worker;
use goblin_wire::Id;
use goblin_wire::json::Pieces;
use tokio::sync::watch;

use crate::client::lane::Said;
use crate::front::body::{KEEP_ALIVE, event};
use crate::front::stream::{Changes, KEEP_ALIVE_EVERY, all_events};
use crate::router::Reply;
use crate::session::desk::{Desk, Next, Pending};
use crate::session::listening::Listening;
use crate::upstream::actor::stopped;

/// An open call. Dropping it before the answer cancels the call.
pub(crate) struct Visit {
    desk: Arc<Desk>,
    /// The id of the request to answer: the one that began the call, or the one that resumed it.
    id: Id,
    pending: Option<Pending>,
    /// The messages that precede the answer and were not written yet.
    notes: VecDeque<Bytes>,
    answer: Option<Reply>,
}

/// An event of the call for its client.
pub(crate) enum Word {
    Note(Bytes),
    /// The answer takes long. Returned once.
    Slow,
    /// The answer. `None` if the call was cancelled.
    Answer(Option<Reply>),
}

impl Visit {
    pub(crate) fn new(desk: &Arc<Desk>, id: Id, pending: Pending) -> Visit {
        Visit { desk: Arc::clone(desk), id, pending: Some(pending), notes: VecDeque::new(), answer: None }
    }

    /// Waits for the next event. It is cancel-safe.
    pub(crate) async fn next(&mut self) -> Word {
        loop {
            if let Some(note) = self.notes.pop_front() {
                return Word::Note(note);
            }
            if let Some(answer) = self.answer.take() {
                return Word::Answer(Some(answer));
            }
            let Some(pending) = &mut self.pending else { return Word::Answer(None) };
            match pending.next().await {
                Next::Said(Said::Note(note)) => return Word::Note(note),
                Next::Said(Said::Ask(ask)) => self.park(ask),
                Next::Slow => return Word::Slow,
                Next::Answer(answer) => {
                    self.pending = None;
                    return Word::Answer(answer);
                }
            }
        }
    }

    /// Suspends the call, because its backend sent a request to the client. The answer lists all requests that are
    /// queued.
    fn park(&mut self, ask: Bytes) {
        let Some(pending) = self.pending.take() else { return };
        let mut asks = vec![ask];
        while let Some(said) = pending.call.lane.try_next() {
            match said {
                Said::Ask(ask) => asks.push(ask),
                Said::Note(note) => self.notes.push_back(note),
            }
        }
        match self.desk.park(pending, &self.id, asks) {
            Ok(reply) => self.answer = Some(reply),
            Err(pending) => self.pending = Some(pending),
        }
    }

    /// Cancels the call at the request of the client.
    pub(crate) fn cancel(self, reason: &str) {
        if let Some(pending) = &self.pending {
            pending.call.cancel(reason);
        }
    }

    /// Reports a message that was dropped.
    pub(crate) fn tell_dropped(&self) {
        let client = self.pending.as_ref().and_then(|pending| pending.call.caller.session);
        self.desk.sessions.tell_dropped(client);
    }

    /// Puts back a message that [`next`](Visit::next) yielded and the caller did not write.
    pub(crate) fn give_back(&mut self, note: Bytes) {
        self.notes.push_front(note);
    }

    /// Converts the rest of the call to an event stream.
    pub(crate) fn into_events(self) -> impl Stream<Item = Bytes> + Send + 'static {
        futures_util::stream::unfold(Some(self), async |visit| {
            let mut visit = visit?;
            let word = tokio::select! {
                biased;
                word = visit.next() => word,
                () = tokio::time::sleep(KEEP_ALIVE_EVERY) => Word::Slow,
            };
            match word {
                Word::Note(note) => Some((event(note.into()), Some(visit))),
                Word::Slow => Some((KEEP_ALIVE, Some(visit))),
                Word::Answer(answer) => Some((event(answer?.pieces), None)),
            }
        })
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(mut pending) = self.pending.take() {
            pending.call.cancel("the client closed the stream of its request");
            // The task keeps polling the call, so that the backend receives the cancellation.
            worker::spawn(async move { while !matches!(pending.next().await, Next::Answer(_)) {} });
        }
    }
}

/// A `subscriptions/listen` stream. It ends when the client closes it or the gateway stops.
pub(crate) struct Told {
    listening: Listening,
    changes: Changes,
    stop: watch::Receiver<bool>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Begins,
    Goes,
    Over,
}

impl Told {
    pub(crate) fn new(changes: Changes, listening: Listening, stop: watch::Receiver<bool>) -> Told {
        Told { listening, changes, stop, stage: Stage::Begins }
    }

    /// Waits for the next messages. Returns `None` after the last one, which is the answer. It is cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Vec<Bytes>> {
        match self.stage {
            Stage::Begins => {
                let acknowledgement = self.listening.acknowledgement().await;
                self.stage = Stage::Goes;
                Some(vec![acknowledgement])
            }
            Stage::Goes => {
                let listening = &self.listening;
                let messages = tokio::select! {
                    biased;
                    () = stopped(&mut self.stop) => None,
                    due = self.changes.due(&listening.mailbox) => due,
                    messages = listening.mailbox.next() => Some(messages),
                };
                let Some(messages) = messages else {
                    return self.end().map(|answer| vec![answer.concat()]);
                };
                Some(messages.into_iter().filter_map(|message| listening.told(message)).collect())
            }
            Stage::Over => None,
        }
    }

    /// Ends the stream. Returns its answer the first time, and `None` afterwards.
    pub(crate) fn end(&mut self) -> Option<Pieces> {
        let is_first = std::mem::replace(&mut self.stage, Stage::Over) != Stage::Over;
        is_first.then(|| self.listening.end())
    }

    pub(crate) fn into_events(self) -> impl Stream<Item = Bytes> + Send + 'static {
        futures_util::stream::unfold(self, async |mut told| {
            loop {
                let messages = tokio::select! {
                    biased;
                    messages = told.next() => messages?,
                    () = tokio::time::sleep(KEEP_ALIVE_EVERY) => return Some((KEEP_ALIVE, told)),
                };
                if !messages.is_empty() {
                    return Some((all_events(messages), told));
                }
            }
        })
    }
}
