//! A second link, with a handshake, to a backend that works without one.
//!
//! A server may support both protocol generations while one of its tools works in only one of them, because server
//! requests differ. The gateway therefore serves a client in its own generation if possible. The twin is a second
//! handle of the same backend, connected with a handshake when the first such client makes a call. It carries only
//! calls; lists and subscriptions stay with the first link. A backend that rejects the handshake has no twin for a
//! while. While the twin is unreachable, its calls use the first link.

use std::sync::Arc;
use std::time::{Duration, Instant};

use goblin_telemetry::worker;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::upstream::actor::{Actor, BackendDeps};
use crate::upstream::dial::Dialler;
use crate::upstream::link::Link;
use crate::upstream::{Backend, BackendState};

/// The time that a call waits for the first connection of the twin.
const FIRST_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The second link of one backend, connected on demand.
pub(crate) struct CallsOnlyLink {
    deps: BackendDeps,
    dialler: Arc<Dialler>,
    stop: watch::Receiver<bool>,
    begun: Mutex<Option<RunningLink>>,
}

struct RunningLink {
    backend: Arc<Backend>,
    task: JoinHandle<()>,
}

impl CallsOnlyLink {
    pub(crate) fn new(deps: BackendDeps, dialler: Arc<Dialler>, stop: watch::Receiver<bool>) -> CallsOnlyLink {
        CallsOnlyLink { deps, dialler, stop, begun: Mutex::default() }
    }

    /// Reports whether the backend may support a handshake as well.
    pub(crate) fn may_be(&self) -> bool {
        self.dialler.may_ask() && self.dialler.eras.may_have_both(Instant::now())
    }

    /// Reports whether the twin is connected.
    pub(crate) fn is_up(&self) -> bool {
        self.begun.lock().as_ref().is_some_and(|begun| begun.backend.link.load().is_some())
    }

    /// Returns the twin's link, if it is connected. Starts the twin if necessary.
    pub(crate) fn link(&self, first: &Backend) -> Option<Arc<Link>> {
        self.begin(first).link.load_full()
    }

    /// Waits for the twin's link that follows `old`. Returns `None` if the twin is unreachable.
    pub(crate) async fn next_link(&self, first: &Backend, old: Option<&Arc<Link>>) -> Option<Arc<Link>> {
        let backend = self.begin(first);
        let mut state = backend.watch_state();
        let is_begun = state.wait_for(|state| *state != BackendState::Starting);
        tokio::time::timeout(FIRST_CONNECT_TIMEOUT, is_begun).await.ok()?.ok()?;
        backend.next_link(old).await.ok()
    }

    /// Returns the twin's backend. Starts its actor if there is none.
    fn begin(&self, first: &Backend) -> Arc<Backend> {
        let mut begun = self.begun.lock();
        // An actor that ended was rejected by the server. The server may have been replaced since, so start again.
        if let Some(begun) = begun.as_ref().filter(|begun| !begun.task.is_finished()) {
            return Arc::clone(&begun.backend);
        }
        let backend = Arc::new(first.beside(&self.deps.policies));
        let actor =
            Actor::beside(Arc::clone(&backend), self.deps.clone(), Arc::clone(&self.dialler), self.stop.clone());
        *begun = Some(RunningLink { backend: Arc::clone(&backend), task: worker::spawn(actor.run()) });
        backend
    }

    /// Waits until the twin's actor has ended. It ends when the backend is stopped.
    pub(crate) async fn ended(&self) {
        let begun = self.begun.lock().take();
        if let Some(begun) = begun {
            // A panic of the actor was already reported.
            let _ = begun.task.await;
        }
    }
}
