//! Notification streams of clients without a session.

use bytes::Bytes;
use futures_util::Stream;
use goblin_wire::json::Pieces;
use tokio::sync::watch;

use crate::front::body::KEEP_ALIVE;
use crate::front::stream::{KEEP_ALIVE_EVERY, ListChanges, all_events};
use crate::session::listening::ListenSubscription;
use crate::upstream::supervisor::stopped;

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
