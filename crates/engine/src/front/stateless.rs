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

use crate::client::call::CallMessage;
use crate::front::body::{KEEP_ALIVE, event};
use crate::front::stream::{KEEP_ALIVE_EVERY, ListChanges, all_events};
use crate::router::Reply;
use crate::session::dispatcher::{Dispatcher, PendingCall, PendingCallEvent};
use crate::session::listening::ListenSubscription;
use crate::upstream::supervisor::stopped;

/// An open call. Dropping it before the answer cancels the call.
pub(crate) struct StatelessCall {
    dispatcher: Arc<Dispatcher>,
    /// The id of the request to answer: the one that began the call, or the one that resumed it.
    id: Id,
    pending: Option<PendingCall>,
    /// The messages that precede the answer and were not written yet.
    notes: VecDeque<Bytes>,
    answer: Option<Reply>,
}

/// An event of the call for its client.
pub(crate) enum CallEvent {
    Note(Bytes),
    /// The answer takes long. Returned once.
    Slow,
    /// The answer. `None` if the call was cancelled.
    Answer(Option<Reply>),
}

impl StatelessCall {
    pub(crate) fn new(dispatcher: &Arc<Dispatcher>, id: Id, pending: PendingCall) -> StatelessCall {
        StatelessCall {
            dispatcher: Arc::clone(dispatcher),
            id,
            pending: Some(pending),
            notes: VecDeque::new(),
            answer: None,
        }
    }

    /// Waits for the next event. It is cancel-safe.
    pub(crate) async fn next(&mut self) -> CallEvent {
        loop {
            if let Some(note) = self.notes.pop_front() {
                return CallEvent::Note(note);
            }
            if let Some(answer) = self.answer.take() {
                return CallEvent::Answer(Some(answer));
            }
            let Some(pending) = &mut self.pending else { return CallEvent::Answer(None) };
            match pending.next().await {
                PendingCallEvent::Said(CallMessage::Note(note)) => return CallEvent::Note(note),
                PendingCallEvent::Said(CallMessage::Ask(ask)) => self.suspended(ask),
                PendingCallEvent::Slow => return CallEvent::Slow,
                PendingCallEvent::Answer(answer) => {
                    self.pending = None;
                    return CallEvent::Answer(answer);
                }
            }
        }
    }

    /// Suspends the call, because its backend sent a request to the client. The answer lists all requests that are
    /// queued.
    fn suspended(&mut self, ask: Bytes) {
        let Some(pending) = self.pending.take() else { return };
        let mut asks = vec![ask];
        while let Some(said) = pending.call.lane.try_next() {
            match said {
                CallMessage::Ask(ask) => asks.push(ask),
                CallMessage::Note(note) => self.notes.push_back(note),
            }
        }
        match self.dispatcher.suspended(pending, &self.id, asks) {
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
        self.dispatcher.sessions.tell_dropped(client);
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
                () = tokio::time::sleep(KEEP_ALIVE_EVERY) => CallEvent::Slow,
            };
            match word {
                CallEvent::Note(note) => Some((event(note.into()), Some(visit))),
                CallEvent::Slow => Some((KEEP_ALIVE, Some(visit))),
                CallEvent::Answer(answer) => Some((event(answer?.pieces), None)),
            }
        })
    }
}

impl Drop for StatelessCall {
    fn drop(&mut self) {
        if let Some(mut pending) = self.pending.take() {
            pending.call.cancel("the client closed the stream of its request");
            // The task keeps polling the call, so that the backend receives the cancellation.
            worker::spawn(async move { while !matches!(pending.next().await, PendingCallEvent::Answer(_)) {} });
        }
    }
}

/// A `subscriptions/listen` stream. It ends when the client closes it or the gateway stops.
pub(crate) struct ListenStream {
    listening: ListenSubscription,
    changes: ListChanges,
    stop: watch::Receiver<bool>,
    stage: ListenPhase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListenPhase {
    Begins,
    Goes,
    Over,
}

impl ListenStream {
    pub(crate) fn new(
        changes: ListChanges,
        listening: ListenSubscription,
        stop: watch::Receiver<bool>,
    ) -> ListenStream {
        ListenStream { listening, changes, stop, stage: ListenPhase::Begins }
    }

    /// Waits for the next messages. Returns `None` after the last one, which is the answer. It is cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Vec<Bytes>> {
        match self.stage {
            ListenPhase::Begins => {
                let acknowledgement = self.listening.acknowledgement().await;
                self.stage = ListenPhase::Goes;
                Some(vec![acknowledgement])
            }
            ListenPhase::Goes => {
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
            ListenPhase::Over => None,
        }
    }

    /// Ends the stream. Returns its answer the first time, and `None` afterwards.
    pub(crate) fn end(&mut self) -> Option<Pieces> {
        let is_first = std::mem::replace(&mut self.stage, ListenPhase::Over) != ListenPhase::Over;
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
