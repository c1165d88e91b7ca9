//! The parts of an earlier backend that its successor continues, and the end of the earlier one.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use goblin_catalog::listing::Listing;
use goblin_telemetry::meter::Meter;
use tokio::sync::watch;

use crate::upstream::Backend;
use crate::upstream::events::ExposedUris;

/// The parts of an earlier backend that its successor continues.
#[derive(Default)]
pub(crate) struct Predecessor {
    pub meter: Arc<Meter>,
    pub uris: Arc<ArcSwapOption<ExposedUris>>,
    /// The last listing. It is stale until the successor has fetched its lists.
    pub listing: Option<Arc<Listing>>,
    pub end: PredecessorEnd,
}

impl Predecessor {
    /// Returns what the successor of a backend continues in any case: its counters and its published names.
    pub(crate) fn of(old: &Backend) -> Predecessor {
        let (meter, uris) = (Arc::clone(&old.meter), Arc::clone(&old.events.uris));
        Predecessor { meter, uris, ..Predecessor::default() }
    }
}

/// The end of the processes of a predecessor. Without a receiver, the successor need not wait for it.
#[derive(Clone, Default)]
pub(crate) struct PredecessorEnd(Option<watch::Receiver<()>>);

impl PredecessorEnd {
    /// Returns the end that comes when the sender is dropped.
    pub(crate) fn new() -> (watch::Sender<()>, PredecessorEnd) {
        let (running, end) = watch::channel(());
        (running, PredecessorEnd(Some(end)))
    }

    /// Waits until the processes have ended.
    pub(crate) async fn reached(&self) {
        let Some(mut end) = self.0.clone() else { return };
        while end.changed().await.is_ok() {}
    }
}
