//! An acknowledged notification stream of a 2026-07-28 backend (`subscriptions/listen`).

use goblin_wire::listen::Filter;
use tokio::sync::oneshot;

/// A stream that the backend has acknowledged. Its drop closes it.
pub struct Listen {
    /// The part of the filter that the backend will tell of.
    pub honoured: Filter,
    /// Resolves when the stream is over; an error means that its link is.
    pub over: oneshot::Receiver<Over>,
    /// Held by the reader of the stream's counterpart: gone, the stream is closed.
    pub hold: oneshot::Sender<()>,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Over {
    /// The backend said so.
    Ended,
    /// It broke off.
    Lost(String),
}
