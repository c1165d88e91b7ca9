//! Drops a server that leads back to this gateway, or that may hide such a loop.
//!
//! A verdict on one link counts for the whole backend. A link of a client to a looped server is a client of this gateway
//! again, which would get such a link as well, and so on. [`DropMark`] therefore ends the links of single clients and
//! prevents new ones.

use std::time::{Duration, Instant};

use goblin_catalog::listing::Listing;
use goblin_telemetry::Event;
use goblin_wire::Error;
use goblin_wire::via::ViaProblem;
use tokio::sync::watch;

use crate::upstream::health;
use crate::upstream::problem::BackendProblem;
use crate::upstream::supervisor::Supervisor;

/// The time that the shared link has to find the loop again after the pause, before clients get links of their own.
const RECHECK_TIME: Duration = Duration::from_secs(10);

/// The last verdict on a backend.
#[derive(Debug, Default)]
pub(crate) struct DropMark(watch::Sender<Option<Verdict>>);

#[derive(Clone, Copy, Debug)]
struct Verdict {
    problem: ViaProblem,
    expires: Instant,
}

impl Verdict {
    fn is_in_force(&self) -> bool {
        Instant::now() < self.expires
    }
}

impl DropMark {
    fn set(&self, problem: ViaProblem, pause_ends: Instant) {
        self.0.send_replace(Some(Verdict { problem, expires: pause_ends + RECHECK_TIME }));
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.borrow().as_ref().is_some_and(Verdict::is_in_force)
    }

    /// Returns an error if clients get no links of their own.
    pub(crate) fn check(&self, server: &str) -> Result<(), Error> {
        match *self.0.borrow() {
            Some(verdict) if verdict.is_in_force() => {
                let reason = BackendProblem::Dropped(verdict.problem).to_string();
                Err(Error::BackendUnavailable { server: server.to_owned(), reason, sent: false })
            }
            _ => Ok(()),
        }
    }

    /// Waits until the backend is dropped.
    pub(crate) async fn dropped(&self) {
        // `self` owns the sender, so the channel cannot close during the wait.
        let _ = self.0.subscribe().wait_for(|verdict| verdict.as_ref().is_some_and(Verdict::is_in_force)).await;
    }
}

impl Supervisor {
    /// Drops the server. Removes the lists of the link, and the memory with them. There is another attempt after a
    /// pause, because another gateway may have cut the loop by then.
    pub(super) fn on_dropped(&mut self, problem: ViaProblem) {
        let reason = BackendProblem::Dropped(problem).to_string();
        let now = Instant::now();
        let pause = self.health.dropped(now, health::jitter());
        self.pause_ends = now + pause;
        self.table.dropped.set(problem, self.pause_ends);
        self.slot.lists().set_listing(Listing::default());
        if let Some(cached) = &self.table.cached {
            cached.forbid();
        }
        self.table.deps.listing_changed.notify_one();
        self.table.meter.record_failure(&reason);
        let repeated = self.last_drop.replace(problem) == Some(problem) && self.health.drops() > 1;
        let server = self.table.context.events.server();
        self.emit(&Event::BackendFailed { server, reason: &reason, retry_in: pause, repeated });
        self.drop_notifications();
        let error = self.slot.failure_error(&reason, Some(self.pause_ends));
        self.last_failure = Some(reason.clone());
        self.slot.publish_failure(reason, error, Some(self.pause_ends));
        self.settle_lists();
    }
}
