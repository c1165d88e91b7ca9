//! Runs the backends and applies changes of the configuration to them.
//!
//! A server keeps its connection, its calls and its subscriptions unless a change affects the connection. Such a server
//! is replaced after its successor has connected and fetched its lists, however long that takes. A replaced or removed
//! server gets no new calls. Its open calls have the grace period to end. A restart ends the processes of a server before
//! it starts the next ones.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use goblin_admin::api::Reloaded;
use goblin_config::diff::{Depth, ServerChange, depth, diff, live};
use goblin_config::{Config, Server, ServerId};
use goblin_telemetry::meter::Meter;
use goblin_telemetry::{Event, worker};
use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use crate::catalog_store::CatalogStore;
use crate::upstream::availability::MisconfiguredServer;
use crate::upstream::predecessor::{Predecessor, PredecessorEnd};
use crate::upstream::supervisor::{self, BackendDeps, stopped};
use crate::upstream::{Backend, BackendState};

/// The time in which a call that already found its server in an old catalog can still be sent.
const STALE_CATALOG_TIME: Duration = Duration::from_secs(1);
/// The interval at which backends are polled for the end of their calls or for their readiness.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct BackendSupervisor {
    catalogs: Arc<CatalogStore>,
    deps: BackendDeps,
    grace: Duration,
    state: Mutex<SupervisorState>,
    /// Set when the gateway stops. Draining servers then end at once.
    stopping: watch::Sender<bool>,
}

/// The state of the running servers.
struct SupervisorState {
    config: Config,
    /// Whether no configuration was applied yet.
    is_first: bool,
    running: IndexMap<ServerId, Running>,
    /// The meters of all configured servers. A disabled server keeps its counts until it is enabled again.
    meters: HashMap<ServerId, Arc<Meter>>,
    /// The tasks that end removed or replaced servers.
    draining: Vec<JoinHandle<()>>,
}

struct Running {
    backend: Arc<Backend>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    successor: Option<Box<Successor>>,
}

/// A backend that replaces another when it is ready.
struct Successor {
    running: Running,
    waiting: AbortHandle,
}

impl BackendSupervisor {
    pub(super) fn new(catalogs: Arc<CatalogStore>, deps: BackendDeps, grace: Duration) -> Arc<BackendSupervisor> {
        let state = Mutex::new(SupervisorState {
            config: Config::default(),
            is_first: true,
            running: IndexMap::new(),
            meters: HashMap::new(),
            draining: Vec::new(),
        });
        Arc::new(BackendSupervisor { catalogs, deps, grace, state, stopping: watch::Sender::new(false) })
    }

    /// Changes the running servers to match `config`. Returns which servers were started, changed and stopped.
    pub(super) fn apply(self: &Arc<BackendSupervisor>, mut config: Config) -> Reloaded {
        let mut state = self.state.lock();
        let plan = diff(&state.config, &config);
        self.report_misconfigured(&config, &plan.keep);
        for id in &plan.keep {
            // The next diff starts from the entry that the server runs with.
            if let (Some(new), Some(old)) = (config.servers.get_mut(id), state.config.servers.get(id)) {
                *new = Arc::clone(old);
            }
        }
        state.draining.retain(|draining| !draining.is_finished());
        for id in &plan.stop {
            if let Some(running) = state.running.shift_remove(id) {
                running.backend.close_subscriptions();
                state.draining.push(self.drain(running));
            }
        }
        for (id, server) in &plan.start {
            let meter = Arc::clone(state.meters.entry(id.clone()).or_default());
            let running = self.start(id, server, Predecessor { meter, ..Predecessor::default() });
            state.running.insert(id.clone(), running);
        }
        for change in &plan.change {
            self.change(&mut state, change);
        }
        let ids = |ids: &mut dyn Iterator<Item = &ServerId>| ids.map(ServerId::to_string).collect::<Vec<_>>();
        let started = ids(&mut plan.start.iter().map(|(id, _)| id));
        let changed = ids(&mut plan.change.iter().map(|change| &change.id));
        let unchanged = state.running.len() - started.len() - changed.len();
        let stopped = ids(&mut plan.stop.iter());
        state.meters.retain(|id, _| config.servers.contains_key(id));
        // The settings of the first configuration are in force from the start.
        let settings = if state.is_first { Vec::new() } else { live(&state.config, &config) };
        state.config = config;
        state.is_first = false;
        if settings.is_empty() {
            self.publish_backends(&mut state);
        } else {
            self.apply_policies(&state);
            let backends = state.backends_in_order();
            self.catalogs.set_views(&state.config, backends);
        }
        let settings = settings.into_iter().map(str::to_owned).collect();
        Reloaded { started, changed, stopped, unchanged, settings }
    }

    /// Applies the policies of a new configuration.
    fn apply_policies(&self, state: &SupervisorState) {
        let policies = &state.config.policies;
        self.deps.policies.store(Arc::new(policies.clone()));
        let successors = state.running.values().filter_map(|running| running.successor.as_ref());
        let successors = successors.map(|successor| &successor.running);
        for running in state.running.values().chain(successors) {
            running.backend.set_limits(policies);
        }
    }

    /// Publishes the misconfigured servers and reports those with new problems. The servers in `kept` run with their
    /// previous entry.
    fn report_misconfigured(&self, config: &Config, kept: &[ServerId]) {
        let enabled = config.servers.iter().filter(|(_, server)| server.enabled);
        let misconfigured: Vec<_> = enabled
            .filter_map(|(id, server)| {
                let misconfiguration = server.misconfiguration()?.clone();
                Some(MisconfiguredServer { id: id.clone(), misconfiguration, is_running: kept.contains(id) })
            })
            .collect();
        let known = self.catalogs.misconfigured();
        for server in misconfigured.iter().filter(|server| !server.is_among(&known)) {
            let (id, reason) = (server.id.as_str(), server.misconfiguration.reason());
            let is_running = server.is_running;
            self.deps.observe.emit(&Event::ServerMisconfigured { server: id, reason: &reason, is_running });
        }
        self.catalogs.set_misconfigured(misconfigured);
    }

    /// Ends a server with its open calls and starts it again after its processes have ended. The successor keeps the
    /// lists until it has fetched its own. Returns `false` if the server is not running.
    pub(super) fn restart(self: &Arc<BackendSupervisor>, id: &ServerId) -> bool {
        let mut state = self.state.lock();
        let Some(server) = state.config.servers.get(id).cloned() else { return false };
        let Some(old) = state.running.shift_remove(id) else { return false };
        let (running, end) = PredecessorEnd::new();
        let listing = Some(old.backend.listing()).filter(|listing| listing.hello.is_some());
        let predecessor = Predecessor { listing, end, ..Predecessor::of(&old.backend) };
        let new = self.start(id, &server, predecessor);
        new.backend.meter.count_restart();
        new.backend.take_over(old.backend.hand_over());
        state.running.insert(id.clone(), new);
        state.draining.push(self.end_before(old, running));
        self.publish_backends(&mut state);
        true
    }

    /// Ends a server. Drops `running` when its tasks have ended, or after the grace period.
    fn end_before(&self, old: Running, running: watch::Sender<()>) -> JoinHandle<()> {
        let (grace, tasks) = (self.grace, join_all(old.end()));
        worker::spawn(async move {
            tokio::pin!(tasks);
            let is_late = tokio::time::timeout(grace, &mut tasks).await.is_err();
            drop(running);
            if is_late {
                tasks.await;
            }
        })
    }

    fn start(&self, id: &ServerId, server: &Arc<Server>, predecessor: Predecessor) -> Running {
        let (stop, server, deps) = (watch::Sender::new(false), Arc::clone(server), self.deps.clone());
        let (backend, task) = supervisor::start(id.clone(), server, predecessor, deps, stop.subscribe());
        Running { backend, stop, task, successor: None }
    }

    fn change(self: &Arc<BackendSupervisor>, state: &mut SupervisorState, change: &ServerChange) {
        let Some(running) = state.running.get_mut(&change.id) else { return };
        // A waiting successor has an outdated configuration.
        let superseded = running.successor.take();
        state.draining.extend(superseded.map(|superseded| superseded.stop()).into_iter().flatten());
        running.backend.successor.store(None);
        match depth(&running.backend.config, &change.server) {
            Depth::Surface => {
                running.backend = Arc::new(running.backend.with_surface(Arc::clone(&change.server)));
                // The change may be meant as the cure of a failure.
                running.backend.shared.request();
                return;
            }
            Depth::Connection => {}
        }
        let new = self.start(&change.id, &change.server, Predecessor::of(&running.backend));
        if running.backend.state() == BackendState::Ready {
            running.backend.successor.store(Some(Arc::clone(&new.backend)));
            let waiting = worker::spawn(promote_when_ready(
                Arc::downgrade(self),
                Arc::clone(&running.backend),
                Arc::clone(&new.backend),
            ));
            running.successor = Some(Box::new(Successor { running: new, waiting: waiting.abort_handle() }));
        } else {
            let old = std::mem::replace(running, new);
            state.draining.push(self.drain(old));
        }
    }

    /// Moves the subscriptions of a draining server to its replacement. Closes them if there is none.
    fn hand_over(&self, old: &Backend) {
        match self.state.lock().running.get(&old.id) {
            Some(running) => running.backend.take_over(old.hand_over()),
            None => old.close_subscriptions(),
        }
    }

    /// Replaces a server by its successor, unless another change has replaced the successor meanwhile.
    fn promote(self: &Arc<BackendSupervisor>, successor: &Arc<Backend>) {
        let mut state = self.state.lock();
        let Some(running) = state.running.get_mut(&successor.id) else { return };
        let is_expected = |waiting: &Successor| Arc::ptr_eq(&waiting.running.backend, successor);
        let Some(waiting) = running.successor.take_if(|waiting| is_expected(waiting)) else { return };
        let old = std::mem::replace(running, waiting.running);
        state.draining.push(self.drain(old));
        self.publish_backends(&mut state);
    }

    /// Publishes the running backends to the catalog store.
    fn publish_backends(&self, state: &mut SupervisorState) {
        self.catalogs.set_backends(state.backends_in_order());
    }

    /// Ends a server after its open calls. Its subscriptions stay until the catalog leads to the replacement. Handing
    /// them over sends an update for each, which covers changes before that moment.
    fn drain(self: &Arc<BackendSupervisor>, mut running: Running) -> JoinHandle<()> {
        let successor = running.successor.take();
        let supervisor = Arc::clone(self);
        let mut stopping = self.stopping.subscribe();
        worker::spawn(async move {
            if let Some(successor) = successor {
                for task in successor.stop() {
                    // The runtime has already reported a panic.
                    let _ = task.await;
                }
            }
            let drained = async {
                supervisor.catalogs.caught_up().await;
                // The handover applies changed profiles, which may take long. Do most of that without the lock.
                let backend = Arc::clone(&running.backend);
                worker::offload(move || backend.apply_profiles()).await;
                supervisor.hand_over(&running.backend);
                tokio::time::sleep(STALE_CATALOG_TIME).await;
                while running.backend.calls_in_flight() > 0 {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            };
            tokio::select! {
                () = drained => {}
                () = tokio::time::sleep(supervisor.grace + STALE_CATALOG_TIME) => {}
                () = stopped(&mut stopping) => {}
            }
            drop(supervisor);
            for task in running.end() {
                let _ = task.await;
            }
        })
    }

    /// Ends all servers, including draining ones, and waits for their tasks.
    pub(super) async fn stop(&self) {
        self.stopping.send_replace(true);
        let (running, draining) = {
            let SupervisorState { running, draining, .. } = &mut *self.state.lock();
            (std::mem::take(running), std::mem::take(draining))
        };
        let ending: Vec<_> = running.into_values().flat_map(Running::end).collect();
        for task in ending.into_iter().chain(draining) {
            // The runtime has already reported a panic. The guard of the process group ends the processes.
            let _ = task.await;
        }
    }
}

impl SupervisorState {
    /// Sorts the running backends in the order of the configuration, and returns them.
    fn backends_in_order(&mut self) -> Vec<Arc<Backend>> {
        let SupervisorState { config, running, .. } = self;
        let order = |id: &ServerId| config.servers.get_index_of(id).unwrap_or(usize::MAX);
        running.sort_by(|one, _, other, _| order(one).cmp(&order(other)));
        running.values().map(|running| Arc::clone(&running.backend)).collect()
    }
}

impl Running {
    /// Signals the backend to stop. Returns the tasks to wait for.
    fn end(self) -> Vec<JoinHandle<()>> {
        self.stop.send_replace(true);
        let mut ending = self.successor.map(|successor| successor.stop()).unwrap_or_default();
        ending.push(self.task);
        ending
    }
}

impl Successor {
    /// Stops the successor, because it is not needed any more. Returns the tasks to wait for.
    fn stop(self) -> Vec<JoinHandle<()>> {
        self.waiting.abort();
        self.running.end()
    }
}

/// Waits until `new` is ready or `old` is not any more, then replaces `old`. Readiness has several conditions that may
/// come and go, so it polls them.
async fn promote_when_ready(supervisor: Weak<BackendSupervisor>, old: Arc<Backend>, new: Arc<Backend>) {
    // The backend is connected and has fetched all lists.
    let is_serving = || new.state() == BackendState::Ready && new.listing().hello.is_some() && !new.is_refreshing();
    while old.state() == BackendState::Ready && !is_serving() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    if let Some(supervisor) = supervisor.upgrade() {
        supervisor.promote(&new);
    }
}
