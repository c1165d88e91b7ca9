//! Whether the gateway is ready to be used, as a value: decided once at the start, taken back once at the end.
//!
//! Ready means that every server has settled: its first listing is in the catalog, or its first attempt has failed. One
//! that never answers must not hold the others back, so after [`SETTLE_PATIENCE`] the rest is not waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use goblin_admin::api::ServerCounts;
use crate::upstream::Backend;
use crate::upstream::standing::Standing;
use crate::directory::Directory;
use goblin_config::ServerId;

/// How long servers are waited for.
pub const SETTLE_PATIENCE: Duration = Duration::from_secs(3);

/// Where the gateway is in its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    #[default]
    Starting,
    /// After this time; some servers may not have been waited for.
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

/// The one cell that holds it. Stopping is for good: a start that ends later changes nothing.
#[derive(Debug, Default)]
pub struct Cell(watch::Sender<Readiness>);

impl Cell {
    pub fn watch(&self) -> watch::Receiver<Readiness> {
        self.0.subscribe()
    }

    /// Tells whether this made it ready.
    pub fn become_ready(&self, took: Duration, waiting: Vec<ServerId>) -> bool {
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

/// Waits until the servers have settled, or long enough; tells how long it took and which were not waited for.
pub async fn settle(directory: &Directory) -> (Duration, Vec<ServerId>) {
    let begin = Instant::now();
    let backends = directory.backends();
    let settled = async {
        for backend in backends.iter() {
            backend.settled().await;
        }
        directory.caught_up().await;
    };
    // Whoever has not settled by then is named.
    let _ = tokio::time::timeout(SETTLE_PATIENCE, settled).await;
    let waiting = backends.iter().filter(|backend| !backend.has_settled()).map(|backend| backend.id.clone());
    (begin.elapsed(), waiting.collect())
}

/// How many servers stand how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    pub ready: usize,
    pub starting: usize,
    pub failed: usize,
}

impl Servers {
    pub fn count(backends: &[Arc<Backend>]) -> Servers {
        backends.iter().map(|backend| Standing::of(backend)).collect()
    }

    pub fn total(self) -> usize {
        self.ready + self.starting + self.failed
    }
}

impl From<Servers> for ServerCounts {
    fn from(servers: Servers) -> ServerCounts {
        let Servers { ready, starting, failed } = servers;
        ServerCounts { total: servers.total(), ready, starting, failed }
    }
}

impl FromIterator<Standing> for Servers {
    fn from_iter<I: IntoIterator<Item = Standing>>(standings: I) -> Servers {
        let mut servers = Servers::default();
        for standing in standings {
            *match standing {
                Standing::Ready => &mut servers.ready,
                Standing::Starting => &mut servers.starting,
                Standing::Failed => &mut servers.failed,
            } += 1;
        }
        servers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_counted_by_standing() {
        let standings = [Standing::Ready, Standing::Failed, Standing::Ready, Standing::Starting];
        let servers: Servers = standings.into_iter().collect();
        assert_eq!(servers, Servers { ready: 2, starting: 1, failed: 1 });
        assert_eq!(servers.total(), 4);
    }

    #[test]
    fn stopping_is_for_good() {
        let cell = Cell::default();
        assert!(!cell.watch().borrow().is_ready());
        assert!(cell.become_ready(Duration::ZERO, Vec::new()));
        assert!(!cell.become_ready(Duration::ZERO, Vec::new()), "it is ready once");
        assert!(cell.watch().borrow().is_ready());
        cell.stop();
        assert!(!cell.become_ready(Duration::ZERO, Vec::new()));
        assert!(!cell.watch().borrow().is_ready());
    }
}
