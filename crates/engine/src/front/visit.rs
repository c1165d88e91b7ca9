//! A call without a session, and a stream of what such a client listens for.
//!
//! A call's stream is all there is of it: when the client goes away, the call is cancelled. What its backend asks is the
//! end of the stream too: the call waits at the desk, and its client comes back with another request.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::watch;

use crate::upstream::actor::stopped;
use crate::front::body::{KEEP_ALIVE, event};
use crate::front::stream::{Changes, KEEP_ALIVE_EVERY, all_events};
use crate::client::lane::Said;
use goblin_wire::Id;
use goblin_wire::json::Pieces;
use crate::router::Reply;
use crate::client::session::desk::{Desk, Next, Pending};
use crate::client::session::listening::Listening;
use goblin_telemetry::worker;

/// A call on its way. Its drop before the answer cancels it.
pub struct Visit {
    desk: Arc<Desk>,
    /// The request that is answered: the call's own, or the one that came back to it.
    id: Id,
    pending: Option<Pending>,
    /// Said before the answer, and not written yet.
    notes: VecDeque<Bytes>,
    answer: Option<Reply>,
}

/// What a call has for its client next.
pub enum Word {
    Note(Bytes),
    /// The answer takes its time. Told once.
    Slow,
    /// The answer; nothing when the call was cancelled.
    Answer(Option<Reply>),
}

impl Visit {
    pub fn new(desk: &Arc<Desk>, id: Id, pending: Pending) -> Visit {
        Visit { desk: Arc::clone(desk), id, pending: Some(pending), notes: VecDeque::new(), answer: None }
    }

    /// Cancel-safe.
    pub async fn next(&mut self) -> Word {
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

    /// Its backend asks something: the answer is what it asks, with all else that it has said by now.
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

    /// The client takes it back.
    pub fn cancel(self, reason: &str) {
        if let Some(pending) = &self.pending {
            pending.call.cancel(reason);
        }
    }

    /// Something that this call said had no room on its way to the client, or no way.
    pub fn tell_dropped(&self) {
        let client = self.pending.as_ref().and_then(|pending| pending.call.caller.session);
        self.desk.sessions.tell_dropped(client);
    }

    /// Gives back what [`next`](Visit::next) gave: it has not been written.
    pub fn give_back(&mut self, note: Bytes) {
        self.notes.push_front(note);
    }

    /// The rest of it as events.
    pub fn into_events(self) -> impl Stream<Item = Bytes> + Send + 'static {
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
            // Its backend is told in due course.
            worker::spawn(async move { while !matches!(pending.next().await, Next::Answer(_)) {} });
        }
    }
}

/// A stream of what a client listens for: until it goes, or we stop.
pub struct Told {
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
    pub fn new(changes: Changes, listening: Listening, stop: watch::Receiver<bool>) -> Told {
        Told { listening, changes, stop, stage: Stage::Begins }
    }

    pub fn id(&self) -> &Id {
        self.listening.id()
    }

    /// The next messages; nothing after the last, which is the answer. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<Bytes>> {
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

    /// The answer, when it is not the client that ends it. There is one, however many reasons to end there are.
    pub fn end(&mut self) -> Option<Pieces> {
        let is_first = std::mem::replace(&mut self.stage, Stage::Over) != Stage::Over;
        is_first.then(|| self.listening.end())
    }

    pub fn into_events(self) -> impl Stream<Item = Bytes> + Send + 'static {
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
