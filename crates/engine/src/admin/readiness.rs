//! The readiness of the gateway. It becomes ready once after the start and stops once at the end.
//!
//! The gateway is ready when every server has settled: its first listing is in the catalog, or its first attempt
//! failed. After [`SETTLE_TIMEOUT`] the gateway becomes ready without the remaining servers, because one may never
//! respond.

use std::time::{Duration, Instant};

use goblin_admin::api::ServerCounts;
use goblin_config::ServerId;
use tokio::sync::watch;

use crate::catalog_store::CatalogStore;
use crate::upstream::availability::Availability;

/// The time limit for servers to settle.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// The state of the gateway from start to stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    #[default]
    Starting,
    /// The gateway is ready after `took`. The servers in `waiting` had not settled by then.
    Ready {
        took: Duration,
        waiting: Vec<ServerId>,
    },
    Stopping,
}

impl Readiness {
    pub fn is_ready(&self) -> bool {
        matches!(self, Readiness::Ready { .. })
    }
}

/// The shared readiness state. `Stopping` is final: a start that finishes later has no effect.
#[derive(Debug, Default)]
pub struct SharedReadiness(watch::Sender<Readiness>);

impl SharedReadiness {
    pub fn watch(&self) -> watch::Receiver<Readiness> {
        self.0.subscribe()
    }

    /// Marks the gateway as ready. Reports whether it was still starting.
    pub(crate) fn become_ready(&self, took: Duration, waiting: Vec<ServerId>) -> bool {
        self.0.send_if_modified(|readiness| {
            let was_starting = *readiness == Readiness::Starting;
            if was_starting {
                *readiness = Readiness::Ready { took, waiting };
            }
            was_starting
        })
    }

    pub fn stop(&self) {
        self.0.send_replace(Readiness::Stopping);
    }
}

/// Waits until the servers have settled or the time limit expires. Returns the elapsed time and the unsettled servers.
pub async fn settle(directory: &CatalogStore) -> (Duration, Vec<ServerId>) {
    let begin = Instant::now();
    let backends = directory.backends();
    let settled = async {
        for backend in backends.iter() {
            backend.settled().await;
        }
        directory.caught_up().await;
    };
    // A timeout is not an error. The unsettled servers are returned.
    let _ = tokio::time::timeout(SETTLE_TIMEOUT, settled).await;
    let waiting = backends.iter().filter(|backend| !backend.has_settled()).map(|backend| backend.id.clone());
    (begin.elapsed(), waiting.collect())
}

/// Counts servers by their state.
pub(crate) fn count(states: impl Iterator<Item = Availability>) -> ServerCounts {
    let mut counts = ServerCounts::default();
    for state in states {
        counts.total += 1;
        *match state {
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
    fn servers_are_counted_by_standing() {
        let standings = [Availability::Ready, Availability::Failed, Availability::Ready, Availability::Starting];
        assert_eq!(count(standings.into_iter()), ServerCounts { total: 4, ready: 2, starting: 1, failed: 1 });
    }

    #[test]
    fn stopping_is_for_good() {
        let cell = SharedReadiness::default();
        assert!(!cell.watch().borrow().is_ready());
        assert!(cell.become_ready(Duration::ZERO, Vec::new()));
        assert!(!cell.become_ready(Duration::ZERO, Vec::new()), "it is ready once");
        assert!(cell.watch().borrow().is_ready());
        cell.stop();
        assert!(!cell.become_ready(Duration::ZERO, Vec::new()));
        assert!(!cell.watch().borrow().is_ready());
    }
}
