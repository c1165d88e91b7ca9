//! The readiness of the gateway. It becomes ready once after the start and stops once at the end.
//!
//! The gateway is ready when every server has settled: its first listing is in the catalog, or its first attempt
//! failed. After [`SETTLE_TIMEOUT`] the gateway becomes ready without the remaining servers, because one may never
//! respond.

use std::time::{Duration, Instant};

use goblin_admin::api::ServerCounts;
use goblin_telemetry::{Event, Observe};
use tokio::sync::watch;

use crate::catalog_store::CatalogStore;
use crate::upstream::availability::Availability;

/// The time limit for servers to settle.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

goblin_wire::labels! {
    /// The state of the gateway from start to stop. `Stopping` is final.
    Readiness {
        Starting = "starting",
        Ready = "ready",
        Stopping = "stopping",
    }
}

impl Readiness {
    pub fn is_ready(&self) -> bool {
        *self == Readiness::Ready
    }
}

/// Waits until the servers have settled or the time limit expires. Then marks the gateway as ready and reports the
/// unsettled servers.
pub(crate) async fn settle(catalogs: &CatalogStore, readiness: &watch::Sender<Readiness>, observe: &Observe) {
    let begin = Instant::now();
    let backends = catalogs.backends();
    let settled = async {
        for backend in backends.iter() {
            backend.settled().await;
        }
        catalogs.caught_up().await;
    };
    // A timeout is not an error. The event reports the unsettled servers.
    let _ = tokio::time::timeout(SETTLE_TIMEOUT, settled).await;
    let waiting = backends.iter().filter(|backend| !backend.has_settled()).map(|backend| backend.id.as_str());
    let (took, waiting) = (begin.elapsed(), waiting.collect::<Vec<_>>().join(", "));
    if become_ready(readiness) {
        observe.emit(&Event::Ready { took, servers: catalogs.backends().len(), waiting: &waiting });
    }
}

/// Marks the gateway as ready, unless it is stopping. Reports whether it was still starting.
fn become_ready(readiness: &watch::Sender<Readiness>) -> bool {
    readiness.send_if_modified(|readiness| {
        let was_starting = *readiness == Readiness::Starting;
        if was_starting {
            *readiness = Readiness::Ready;
        }
        was_starting
    })
}

/// Counts the servers in each state.
pub(super) fn count(servers: impl Iterator<Item = Availability>) -> ServerCounts {
    let mut counts = ServerCounts::default();
    for server in servers {
        counts.total += 1;
        *match server {
            Availability::Ready => &mut counts.ready,
            Availability::Starting => &mut counts.starting,
            Availability::Failed => &mut counts.failed,
        } += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_counted_by_availability() {
        let states = [Availability::Ready, Availability::Failed, Availability::Ready, Availability::Starting];
        assert_eq!(count(states.into_iter()), ServerCounts { total: 4, ready: 2, starting: 1, failed: 1 });
    }

    #[test]
    fn a_stopping_gateway_never_becomes_ready_again() {
        let readiness = watch::Sender::new(Readiness::Starting);
        assert!(become_ready(&readiness));
        assert!(!become_ready(&readiness), "the gateway becomes ready once");
        assert!(readiness.borrow().is_ready());
        readiness.send_replace(Readiness::Stopping);
        assert!(!become_ready(&readiness));
        assert!(!readiness.borrow().is_ready());
    }
}
