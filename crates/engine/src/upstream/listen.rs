//! A notification stream of a 2026-07-28 backend (`subscriptions/listen`), from its acknowledgement to its end.

use goblin_telemetry::worker;
use goblin_wire::listen::ListenFilter;
use tokio::sync::oneshot;

use crate::upstream::link::LinkError;

/// A stream that the backend has acknowledged. Dropping it closes the stream.
pub struct ListenHandle {
    /// The part of the filter that the backend acknowledged.
    pub acknowledged: ListenFilter,
    /// Resolves when the stream ends. An error means that the link ended.
    pub ended: oneshot::Receiver<ListenOutcome>,
    /// Closes the stream when dropped.
    pub close_guard: oneshot::Sender<()>,
}

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenOutcome {
    /// The backend ended the stream.
    Ended,
    /// The stream broke.
    Lost(String),
}

/// An event of a stream other than a notification.
pub(crate) enum ListenEvent {
    Acknowledged(ListenFilter),
    /// The backend ended the stream. The error applies if it did not acknowledge the stream before.
    Ended(LinkError),
    Lost(LinkError),
}

/// A requested stream over one transport. Dropping it ends the stream for the backend.
pub(crate) trait ListenSource: Send + 'static {
    /// Handles notifications until another event arrives. Dropping the future loses nothing.
    fn next(&mut self) -> impl Future<Output = ListenEvent> + Send;
}

/// Waits for the acknowledgement of a stream. Then a task runs the stream until it ends or its handle is dropped.
pub(crate) async fn listen(mut source: impl ListenSource) -> Result<ListenHandle, LinkError> {
    let acknowledged = match source.next().await {
        ListenEvent::Acknowledged(filter) => filter,
        ListenEvent::Ended(error) | ListenEvent::Lost(error) => return Err(error),
    };
    let ((report, ended), (close_guard, mut closed)) = (oneshot::channel(), oneshot::channel());
    worker::spawn(async move {
        let outcome = loop {
            tokio::select! {
                biased;
                event = source.next() => match event {
                    ListenEvent::Acknowledged(_) => {}
                    ListenEvent::Ended(_) => break ListenOutcome::Ended,
                    ListenEvent::Lost(error) => break ListenOutcome::Lost(error.to_string()),
                },
                _ = &mut closed => return,
            }
        };
        // The holder of the stream may no longer wait for its end.
        let _ = report.send(outcome);
    });
    Ok(ListenHandle { acknowledged, ended, close_guard })
}
