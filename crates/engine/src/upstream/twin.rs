//! The other side of a backend that does without a handshake, for clients that have one.
//!
//! A server may know both generations of the protocol, and one of its tools work in only one of them: what asks something
//! of the client does so in quite different ways. So a client is served in its own generation where that can be. The twin
//! is the same backend once more, dialled with a handshake when the first such client calls. It carries calls and nothing
//! else: lists and subscriptions stay with the first link. A backend that refuses the handshake has no twin for a while,
//! and while the twin cannot be reached its calls go over the first link too.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::upstream::actor::{Actor, Surroundings};
use crate::upstream::dial::Dialler;
use crate::upstream::link::Link;
use crate::upstream::{Backend, State};
use goblin_telemetry::worker;

/// How long a call waits for a twin that is being started for the first time.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

pub struct Twin {
    surroundings: Surroundings,
    dialler: Arc<Dialler>,
    stop: watch::Receiver<bool>,
    begun: Mutex<Option<Begun>>,
}

struct Begun {
    backend: Arc<Backend>,
    task: JoinHandle<()>,
}

impl Twin {
    pub fn new(surroundings: Surroundings, dialler: Arc<Dialler>, stop: watch::Receiver<bool>) -> Twin {
        Twin { surroundings, dialler, stop, begun: Mutex::default() }
    }

    /// Whether the backend may have another side.
    pub fn may_be(&self) -> bool {
        self.dialler.may_ask() && self.dialler.eras.may_have_both(Instant::now())
    }

    /// Whether there is one.
    pub fn is_up(&self) -> bool {
        self.lock().as_ref().is_some_and(|begun| begun.backend.link.load().is_some())
    }

    /// Its link, where it is up. It is begun where it was not.
    pub fn link(&self, first: &Backend) -> Option<Arc<Link>> {
        self.begin(first).link.load_full()
    }

    /// The same, waited for a while; after `old`, which is over.
    pub async fn next_link(&self, first: &Backend, old: Option<&Arc<Link>>) -> Option<Arc<Link>> {
        let backend = self.begin(first);
        let mut state = backend.watch_state();
        let is_begun = state.wait_for(|state| *state != State::Starting);
        tokio::time::timeout(FIRST_PATIENCE, is_begun).await.ok()?.ok()?;
        backend.next_link(old).await.ok()
    }

    fn begin(&self, first: &Backend) -> Arc<Backend> {
        let mut begun = self.lock();
        // One that was refused has ended by itself; it may be another server now.
        if let Some(begun) = begun.as_ref().filter(|begun| !begun.task.is_finished()) {
            return Arc::clone(&begun.backend);
        }
        let backend = Arc::new(first.beside(&self.surroundings.policies));
        let actor = Actor::beside(
            Arc::clone(&backend),
            self.surroundings.clone(),
            Arc::clone(&self.dialler),
            self.stop.clone(),
        );
        *begun = Some(Begun { backend: Arc::clone(&backend), task: worker::spawn(actor.run()) });
        backend
    }

    /// Waits for its end, which the word to stop brings.
    pub async fn ended(&self) {
        let begun = self.lock().take();
        if let Some(begun) = begun {
            // A panic there has been reported.
            let _ = begun.task.await;
        }
    }

    /// No code that holds this lock can panic.
    fn lock(&self) -> MutexGuard<'_, Option<Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
