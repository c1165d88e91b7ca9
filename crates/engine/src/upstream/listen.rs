//! An acknowledged notification stream of a 2026-07-28 backend (`subscriptions/listen`).

use goblin_wire::listen::ListenFilter;
use tokio::sync::oneshot;

/// A stream that the backend has acknowledged. Dropping it closes the stream.
pub struct ListenHandle {
    /// The part of the filter that the backend acknowledged.
    pub honoured: ListenFilter,
    /// Resolves when the stream ends. An error means that the link ended.
    pub over: oneshot::Receiver<ListenOutcome>,
    /// Closes the stream when dropped.
    pub hold: oneshot::Sender<()>,
}

/// The end of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenOutcome {
    /// The backend ended the stream.
    Ended,
    /// The stream broke.
    Lost(String),
}
