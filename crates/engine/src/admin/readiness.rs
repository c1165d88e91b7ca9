//! The readiness of the gateway. It becomes ready once after the start and stops once at the end.
//!
//! The gateway is ready when every server has settled: its first listing is in the catalog, or its first attempt
//! failed. After `gateway.startWait` the gateway becomes ready without the remaining servers, because one may never
//! respond.

use std::time::{Duration, Instant};

use goblin_admin::api::ServerCounts;
use goblin_telemetry::{Event, Observe};
use tokio::sync::watch;

use crate::catalog_store::CatalogStore;
use crate::upstream::availability::Availability;

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

/// The state of the gateway as operators see it, with counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverallState {
    /// The word: `starting`, `ready`, `degraded` or `stopping`.
    pub state: &'static str,
    /// The word with its counts, such as `starting 3/16` or `degraded: 2 failed`.
    pub summary: String,
}

impl OverallState {
    /// Computes the state from the readiness and the number of servers in each state. A ready gateway is degraded while
    /// servers have failed: it serves the others.
    pub fn new(readiness: Readiness, servers: ServerCounts) -> OverallState {
        let ServerCounts { total, ready, starting, failed, login_needed } = servers;
        let counts = [(failed, "failed"), (login_needed, "without login"), (starting, "starting")];
        let counts = counts.iter().filter(|(count, _)| *count > 0).map(|(count, state)| format!("{count} {state}"));
        let counts = counts.collect::<Vec<_>>().join(", ");
        let (state, summary) = match readiness {
            Readiness::Stopping => ("stopping", "stopping".to_owned()),
            Readiness::Starting => ("starting", format!("starting {}/{total}", ready + failed + login_needed)),
            Readiness::Ready if failed + login_needed > 0 => ("degraded", format!("degraded: {counts}")),
            Readiness::Ready if starting > 0 => ("ready", format!("ready, {counts}")),
            Readiness::Ready => ("ready", "ready".to_owned()),
        };
        OverallState { state, summary }
    }
}

/// Waits until the servers have settled, at most `limit`. Then marks the gateway as ready and reports the unsettled
/// servers.
pub(crate) async fn settle(
    catalogs: &CatalogStore,
    readiness: &watch::Sender<Readiness>,
    observe: &Observe,
    limit: Duration,
) {
    let begin = Instant::now();
    let backends = catalogs.backends();
    let settled = async {
        for backend in backends.iter() {
            backend.settled().await;
        }
        catalogs.caught_up().await;
    };
    // A timeout is not an error. The event reports the unsettled servers.
    let _ = tokio::time::timeout(limit, settled).await;
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
pub fn count(servers: impl Iterator<Item = Availability>) -> ServerCounts {
    let mut counts = ServerCounts::default();
    for server in servers {
        counts.total += 1;
        *match server {
            Availability::Ready => &mut counts.ready,
            Availability::Starting => &mut counts.starting,
            Availability::Failed | Availability::Misconfigured => &mut counts.failed,
            Availability::LoginNeeded => &mut counts.login_needed,
        } += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_counted_by_availability() {
        use Availability::{Failed, LoginNeeded, Misconfigured, Ready, Starting};
        let states = [Ready, Failed, Ready, Starting, Misconfigured, LoginNeeded];
        let expected = ServerCounts { total: 6, ready: 2, starting: 1, failed: 2, login_needed: 1 };
        assert_eq!(count(states.into_iter()), expected);
    }

    #[test]
    fn use3_the_overall_state_has_counts() {
        let servers = |ready, starting, failed| ServerCounts {
            total: ready + starting + failed,
            ready,
            starting,
            failed,
            login_needed: 0,
        };
        let without_login =
            |servers: ServerCounts| ServerCounts { login_needed: 1, total: servers.total + 1, ..servers };
        for (readiness, servers, state, summary) in [
            (Readiness::Starting, servers(0, 0, 0), "starting", "starting 0/0"),
            (Readiness::Starting, servers(2, 13, 1), "starting", "starting 3/16"),
            (Readiness::Ready, servers(0, 0, 0), "ready", "ready"),
            (Readiness::Ready, servers(16, 0, 0), "ready", "ready"),
            (Readiness::Ready, servers(15, 1, 0), "ready", "ready, 1 starting"),
            (Readiness::Ready, servers(14, 0, 2), "degraded", "degraded: 2 failed"),
            (Readiness::Ready, servers(12, 1, 3), "degraded", "degraded: 3 failed, 1 starting"),
            (Readiness::Starting, without_login(servers(2, 1, 0)), "starting", "starting 3/4"),
            (Readiness::Ready, without_login(servers(2, 0, 0)), "degraded", "degraded: 1 without login"),
            (
                Readiness::Ready,
                without_login(servers(2, 1, 3)),
                "degraded",
                "degraded: 3 failed, 1 without login, 1 starting",
            ),
            (Readiness::Stopping, servers(1, 1, 1), "stopping", "stopping"),
        ] {
            assert_eq!(OverallState::new(readiness, servers), OverallState { state, summary: summary.to_owned() });
        }
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
