//! Assembly and supervision: the one file that knows everybody.
//!
//! Starting is carrying out the plan from the empty configuration; so is every later change. Stopping goes from the
//! outside in: no new work, open calls within `grace`, then links and processes.

mod accept;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail};
use indexmap::IndexMap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::admin::configuration::Configuration;
use crate::admin::events::MOST_READERS;
use crate::admin::permit::Permit;
use crate::admin::readiness::{self, Cell, Readiness};
use crate::admin::{self, Admin};
use crate::backend::Backend;
use crate::backend::actor::{self, Surroundings};
use crate::backend::ask::Translate;
use crate::backend::connect::ProxyEnvironment;
use crate::catalog::directory::Directory;
use crate::config::admin::{AdminSettings, Listen};
use crate::config::diff::{Plan, diff};
use crate::config::exposure::ProfileName;
use crate::config::{Config, Gateway, Server, ServerId};
use crate::front::gate::Gate;
use crate::front::http::Audience;
use crate::front::{http, stdio};
use crate::observe::{Event, Observe};
use crate::router::Router;
use crate::session::Sessions;
use crate::session::desk::Desk;

/// Connections beyond the sessions: a client may hold a few.
const CONNECTIONS_PER_SESSION: usize = 4;

/// A gateway that runs: backends, catalog and desk, without a front.
pub struct App {
    started: SystemTime,
    configuration: watch::Sender<Configuration>,
    permit: Permit,
    readiness: Arc<Cell>,
    desk: Arc<Desk>,
    directory: Arc<Directory>,
    pub observe: Arc<Observe>,
    config: Config,
    running: IndexMap<ServerId, Running>,
    /// The actors of servers that were removed or replaced and may not be through with it.
    leaving: Vec<JoinHandle<()>>,
    surroundings: Surroundings,
    stop_fronts: watch::Sender<bool>,
    background: Vec<JoinHandle<()>>,
    stop_catalog: watch::Sender<bool>,
}

struct Running {
    backend: Arc<Backend>,
    stop: watch::Sender<bool>,
    actor: JoinHandle<()>,
}

impl App {
    /// Starts everything `config` names. Nothing is waited for: a backend joins when it comes.
    pub fn start(config: Config, exe: PathBuf, proxies: ProxyEnvironment, observe: Arc<Observe>) -> App {
        let directory = Arc::new(Directory::new(&config));
        let gateway = &config.gateway;
        let sessions = Sessions::new(gateway.max_sessions, gateway.session_idle_timeout, Arc::clone(&observe));
        let router = Arc::new(Router::new(Arc::clone(&directory), config.policies.clone(), Arc::clone(&observe)));
        let surroundings = Surroundings {
            policies: config.policies.clone(),
            observe: Arc::clone(&observe),
            exe,
            proxies,
            translate: Arc::clone(&router) as Arc<dyn Translate>,
            bell: Arc::clone(&directory.bell),
            level: sessions.levels.watch(),
        };
        let desk = Arc::new(Desk::new(sessions, router, config.policies.clone()));
        let mut app = App {
            started: SystemTime::now(),
            configuration: watch::Sender::new(Configuration::new(String::new(), &config)),
            permit: Permit::new(&config.gateway),
            readiness: Arc::default(),
            desk,
            directory,
            observe,
            config: Config::empty(),
            running: IndexMap::new(),
            leaving: Vec::new(),
            surroundings,
            stop_fronts: watch::Sender::new(false),
            background: Vec::new(),
            stop_catalog: watch::Sender::new(false),
        };
        app.spawn_background();
        let plan = diff(&app.config, &config);
        app.apply(&plan, config);
        app.spawn_settling();
        app
    }

    fn spawn_background(&mut self) {
        let (directory, observe, stop) =
            (Arc::clone(&self.directory), Arc::clone(&self.observe), self.stop_catalog.subscribe());
        self.background.push(tokio::spawn(async move { directory.run(&observe, stop).await }));
        let desk = Arc::clone(&self.desk);
        self.background.push(tokio::spawn(async move { desk.sessions.keep_swept().await }));
        let desk = Arc::clone(&self.desk);
        self.background.push(tokio::spawn(async move { desk.sessions.keep_time().await }));
        let desk = Arc::clone(&self.desk);
        self.background.push(tokio::spawn(async move { desk.keep_park().await }));
    }

    /// Says when the servers have settled.
    fn spawn_settling(&mut self) {
        let (directory, observe, cell) =
            (Arc::clone(&self.directory), Arc::clone(&self.observe), Arc::clone(&self.readiness));
        self.background.push(tokio::spawn(async move {
            let (took, waiting) = readiness::settle(&directory).await;
            let names: Vec<_> = waiting.iter().map(ServerId::as_str).collect();
            let (servers, names) = (directory.backends().len(), names.join(", "));
            if cell.become_ready(took, waiting) {
                observe.emit(&Event::Ready { took, servers, waiting: &names });
            }
        }));
    }

    /// Makes the running backends what `config` says; `plan` is the difference.
    fn apply(&mut self, plan: &Plan, config: Config) {
        self.leaving.retain(|actor| !actor.is_finished());
        for id in &plan.stop {
            self.stop_backend(id, Backend::close_subscriptions);
        }
        for (id, server) in &plan.start {
            self.start_backend(id, server);
        }
        for change in &plan.change {
            let handed = self.stop_backend(&change.id, Backend::hand_over);
            self.start_backend(&change.id, &change.server).take_over(handed.unwrap_or_default());
        }
        self.config = config;
        let order = |id: &ServerId| self.config.servers.get_index_of(id).unwrap_or(usize::MAX);
        self.running.sort_by(|one, _, other, _| order(one).cmp(&order(other)));
        self.directory.set_backends(self.running.values().map(|running| Arc::clone(&running.backend)).collect());
    }

    /// Stops a backend. `settle` comes first: what stops takes its subscriptions with it.
    fn stop_backend<T>(&mut self, id: &ServerId, settle: impl FnOnce(&Backend) -> T) -> Option<T> {
        let running = self.running.shift_remove(id)?;
        let settled = settle(&running.backend);
        running.stop.send_replace(true);
        self.leaving.push(running.actor);
        Some(settled)
    }

    fn start_backend(&mut self, id: &ServerId, server: &Arc<Server>) -> Arc<Backend> {
        let stop = watch::Sender::new(false);
        let (backend, actor) =
            actor::start(id.clone(), Arc::clone(server), self.surroundings.clone(), stop.subscribe());
        self.running.insert(id.clone(), Running { backend: Arc::clone(&backend), stop, actor });
        backend
    }

    /// Replaces the configuration of the servers while running. The gateway's own settings stay as they began.
    pub fn reload(&mut self, config: Config) {
        let plan = diff(&self.config, &config);
        self.apply(&plan, config);
    }

    /// What is offered, and by whom.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// The running backends, in the order of the configuration.
    pub fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.running.values().map(|running| &running.backend)
    }

    /// Whether it is ready to be used, now and from now on.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.watch()
    }

    /// Serves HTTP on `listener` until `shutdown` ends, then stops everything in order; when it ends a second time
    /// before that is done, at once.
    pub async fn serve_http(self, listener: TcpListener, mut shutdown: impl AsyncFnMut()) -> Result<()> {
        let accepting = self.accept_http(listener)?;
        shutdown().await;
        let (desk, observe, grace) = (Arc::clone(&self.desk), Arc::clone(&self.observe), self.config.gateway.grace);
        observe.emit(&Event::ShuttingDown { open: desk.sessions.open_calls(), grace });
        let drained = async move {
            let is_late = tokio::time::timeout(grace, accepting).await.is_err();
            // Calls whose connection was lost are open too: nobody can come back for them, so they are not waited for.
            if is_late || desk.sessions.open_calls() > 0 {
                desk.tell_cut(&observe);
            }
        };
        self.end(drained, shutdown()).await
    }

    /// Who may change something; before anybody is served.
    pub fn set_permit(&mut self, permit: Permit) {
        self.permit = permit;
    }

    /// Serves HTTP on `listener` in a task of its own, which ends when the fronts are stopped and their work is done.
    pub fn accept_http(&self, listener: TcpListener) -> Result<JoinHandle<()>> {
        let address = listener.local_addr().context("the listener has no address")?;
        let settings = &self.config.admin;
        let has_operators = settings.enabled && settings.listen.is_none();
        let admin = self.admin();
        let operators = if has_operators { admin::routes(&admin) } else { admin::probes(&admin) };
        let gate = Gate::new(&self.config.gateway);
        let accepting = self.accept(listener, Audience::Clients, gate, http::routes().merge(operators));
        self.observe.emit(&Event::Listening { url: &format!("http://{address}/mcp") });
        Ok(accepting)
    }

    /// Serves operators on an address of their own, until everything stops.
    pub fn accept_operators(&mut self, listener: TcpListener, listen: &Listen) {
        let gateway = Gateway { host: listen.host.clone(), ..self.config.gateway.clone() };
        let gate = match listen.is_loopback() {
            true => Gate::new(&gateway),
            false => Gate::with_admin_token(&gateway, self.permit.token().clone()),
        };
        let routes = http::routes().merge(admin::routes(&self.admin()));
        let accepting = self.accept(listener, Audience::Operators, gate, routes);
        self.background.push(accepting);
    }

    fn admin(&self) -> Arc<Admin> {
        Arc::new(Admin {
            desk: Arc::clone(&self.desk),
            observe: Arc::clone(&self.observe),
            readiness: self.readiness(),
            configuration: self.configuration.subscribe(),
            commands: None,
            permit: self.permit.clone(),
            started: self.started,
            readers: Arc::new(Semaphore::new(MOST_READERS)),
        })
    }

    fn accept(&self, listener: TcpListener, audience: Audience, gate: Gate, routes: axum::Router) -> JoinHandle<()> {
        let front = Arc::new(http::Front {
            desk: Arc::clone(&self.desk),
            audience,
            profile: None,
            gate: Arc::new(gate),
            observe: Arc::clone(&self.observe),
            max_body_size: self.config.gateway.max_body_size,
            streams: Arc::default(),
            stop: self.stop_fronts.subscribe(),
        });
        let most = self.config.gateway.max_sessions.saturating_mul(CONNECTIONS_PER_SESSION);
        tokio::spawn(accept::accept(listener, front, routes, most, self.stop_fronts.subscribe()))
    }

    /// Serves one client of `profile` on `input` and `output` until the input or `shutdown` ends, then stops everything in order; when
    /// `shutdown` ends a second time before that is done, at once.
    pub async fn serve_stdio(
        self,
        profile: Option<ProfileName>,
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Unpin + Send + 'static,
        mut shutdown: impl AsyncFnMut(),
    ) -> Result<()> {
        let front = stdio::Front {
            desk: Arc::clone(&self.desk),
            profile,
            observe: Arc::clone(&self.observe),
            max_message_size: self.config.policies.max_message_size,
            grace: self.config.gateway.grace,
            stop: self.stop_fronts.subscribe(),
        };
        let mut readiness = self.readiness();
        let serving = async {
            // The client has started us this moment, and many never list again: what they see first should be all. The
            // sender is ours, and outlives the wait.
            let _ = readiness.wait_for(|readiness| *readiness != Readiness::Starting).await;
            stdio::serve(front, input, output).await;
        };
        tokio::pin!(serving);
        let is_over = tokio::select! {
            () = &mut serving => true,
            () = shutdown() => false,
        };
        let drained = async {
            if !is_over {
                serving.await;
            }
        };
        self.end(drained, shutdown()).await
    }

    /// Stops: no new work, what is open until `drained`, then the rest. `hurry` ends it at once; the guards end the
    /// processes.
    async fn end(self, drained: impl Future<Output = ()>, hurry: impl Future<Output = ()>) -> Result<()> {
        let begin = Instant::now();
        self.readiness.stop();
        self.stop_fronts.send_replace(true);
        self.desk.sessions.close_asks();
        let in_order = async {
            drained.await;
            let drained_in = begin.elapsed();
            let observe = Arc::clone(&self.observe);
            self.stop().await;
            let took = begin.elapsed();
            observe.emit(&Event::Stopped { took, drained_in, closed_in: took.saturating_sub(drained_in) });
        };
        tokio::select! {
            biased;
            () = in_order => Ok(()),
            () = hurry => bail!("ended at once by a second signal; open calls were cut"),
        }
    }

    /// Ends sessions, links and processes.
    pub async fn stop(mut self) {
        self.desk.sessions.end_all("the gateway stops");
        for running in self.running.values() {
            running.stop.send_replace(true);
        }
        let running = std::mem::take(&mut self.running).into_values().map(|running| running.actor);
        for actor in running.chain(self.leaving) {
            // A panic has been reported by the runtime; the process group ends with its guard.
            let _ = actor.await;
        }
        self.stop_catalog.send_replace(true);
        for task in self.background {
            task.abort();
        }
    }
}

/// Binds the address that the configuration names.
pub async fn bind(gateway: &Gateway) -> std::io::Result<TcpListener> {
    let host = gateway.host.trim_start_matches('[').trim_end_matches(']');
    TcpListener::bind((host, gateway.port)).await
}

/// Binds the address of operators, where they have one.
pub async fn bind_admin(settings: &AdminSettings) -> Result<Option<(TcpListener, Listen)>> {
    let Some(listen) = settings.listen.clone().filter(|_| settings.enabled) else { return Ok(None) };
    let bound = TcpListener::bind((listen.host.as_str(), listen.port)).await;
    Ok(Some((bound.with_context(|| format!("cannot listen on {listen} (admin.listen)"))?, listen)))
}
