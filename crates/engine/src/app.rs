//! Assembles and supervises the gateway. This is the only module that knows all parts.
//!
//! The start is a reload from the empty configuration, and every later change is a reload too. The shutdown goes from
//! the outside in. First the gateway accepts no new work. Then open calls have `gateway.grace` to end. Links and
//! processes end last.

mod accept;
mod connections;
pub mod listener;
mod machine;
pub mod operate;
pub mod socket;
mod supervisor;
mod telemetry;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail};
use arc_swap::ArcSwap;
use futures_util::future::{JoinAll, join_all};
use goblin_admin::api::Reloaded;
use goblin_client::connect::ProxyEnvironment;
use goblin_client::environment::environment;
use goblin_client::lineage::Lineage;
use goblin_config::admin::{AdminSettings, ListenAddress};
use goblin_config::exposure::ProfileName;
use goblin_config::{Config, Gateway, ServerId};
use goblin_telemetry::worker::{self, Watchdog};
use goblin_telemetry::{Event, Observe};
use goblin_vault::Vault;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;

use crate::admin::changes::{AdminCommand, MAX_QUEUED_COMMANDS};
use crate::admin::configuration::Configuration;
use crate::admin::events::MAX_READERS;
use crate::admin::permit::AdminAccess;
use crate::admin::readiness::{self, Readiness};
use crate::admin::{self, Admin};
use crate::app::connections::Connections;
use crate::app::listener::{Listener, Listeners};
use crate::app::operate::{CommandExecutor, ConfigSource};
use crate::app::supervisor::BackendSupervisor;
use crate::catalog_store::CatalogStore;
use crate::client::sessions::Sessions;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::recorder::CallRecorder;
use crate::front::gate::Gate;
use crate::front::http::AddressRole;
use crate::front::{http, stdio};
use crate::router::Router;
use crate::upstream::listing_cache::ListingCache;
use crate::upstream::supervisor::BackendDeps;
use crate::upstream::{Backend, descriptors};

/// A running gateway: backends, catalog and dispatcher. It serves clients when a front is started.
pub struct App {
    started: SystemTime,
    permit: AdminAccess,
    /// The addresses for clients serve the admin API too.
    serves_admin: bool,
    /// The separate address for operators, if there is one.
    admin_address: Option<SocketAddr>,
    readiness: Arc<watch::Sender<Readiness>>,
    dispatcher: Arc<Dispatcher>,
    pub observe: Arc<Observe>,
    /// The client connections of all listeners.
    connections: Arc<Connections>,
    gateway: Gateway,
    supervisor: Arc<BackendSupervisor>,
    /// The listings of earlier runs, unless the configuration turns them off.
    listing_cache: Option<Arc<ListingCache>>,
    configuration: Arc<watch::Sender<Configuration>>,
    executor: Option<CommandExecutor>,
    commands: mpsc::Sender<AdminCommand>,
    stop_fronts: watch::Sender<bool>,
    background: Vec<JoinHandle<()>>,
    stop_catalog: watch::Sender<bool>,
    /// The task that exports traces, if a collector is configured.
    exporter: Option<JoinHandle<()>>,
    _watchdog: Option<Watchdog>,
}

impl App {
    /// Starts all servers of `config` in a gateway without a configuration file.
    pub fn start(config: Config, exe: PathBuf, proxies: ProxyEnvironment, observe: Arc<Observe>) -> App {
        App::start_as(Lineage::of_process(None), config, exe, proxies, observe)
    }

    /// Starts all servers of `config`. Returns at once: a backend joins the catalog when it is ready. `lineage` is the id
    /// of this gateway with those of its ancestors.
    pub fn start_as(
        lineage: Lineage,
        config: Config,
        exe: PathBuf,
        proxies: ProxyEnvironment,
        observe: Arc<Observe>,
    ) -> App {
        let catalogs = Arc::new(CatalogStore::new(&config, &lineage.id));
        let gateway = &config.gateway;
        observe.memory.set_max(gateway.max_memory.unwrap_or_else(machine::default_max));
        let sessions = Sessions::new(gateway.max_sessions, gateway.session_idle_timeout, Arc::clone(&observe));
        let policies = Arc::new(ArcSwap::from_pointee(config.policies.clone()));
        let mut router = Router::new(Arc::clone(&catalogs), Arc::clone(&policies), Arc::clone(&observe));
        router.offers_logins = gateway.is_local();
        let router = Arc::new(router);
        let vault = Vault::default_directory(&environment).map(|path| Arc::new(Vault::new(path, &environment)));
        let cache = gateway.listing_cache.then(|| ListingCache::of(environment)).flatten().map(Arc::new);
        let deps = BackendDeps {
            policies,
            observe: Arc::clone(&observe),
            exe,
            proxies,
            lineage: Arc::new(lineage),
            tasks: Arc::clone(&router.tasks),
            vault,
            cache: cache.clone(),
            listing_changed: Arc::clone(&catalogs.changed),
            level: sessions.levels.watch(),
            has_clients: sessions.presence(),
        };
        let stop_catalog = watch::Sender::new(false);
        let (spans, exporter) = telemetry::start(&config.telemetry, &deps.proxies, &observe, &stop_catalog).unzip();
        let mut dispatcher = Dispatcher::new(sessions, router);
        dispatcher.recorder = CallRecorder::new(config.log.audit, spans);
        let supervisor = BackendSupervisor::new(catalogs, deps, gateway.grace);
        let (commands, waiting) = mpsc::channel(MAX_QUEUED_COMMANDS);
        observe.feed().set_servers(config.servers.keys().map(ServerId::as_str));
        let configuration = Arc::new(watch::Sender::new(Configuration::new(&config)));
        let executor = CommandExecutor {
            supervisor: Arc::clone(&supervisor),
            observe: Arc::clone(&observe),
            source: None,
            commands: waiting,
            config: config.clone(),
            overrides: BTreeMap::new(),
            published: Arc::clone(&configuration),
        };
        let watchdog = Watchdog::start(Arc::clone(&observe));
        let max_connections = connections::bound(gateway.max_sessions, config.servers.len(), descriptors::raise());
        let connections = Connections::new(max_connections, Arc::clone(&observe));
        let mut app = App {
            started: SystemTime::now(),
            permit: AdminAccess::new(&config.gateway, &config.admin),
            serves_admin: config.admin.enabled && config.admin.listen.is_none(),
            admin_address: None,
            readiness: Arc::new(watch::Sender::new(Readiness::Starting)),
            dispatcher: Arc::new(dispatcher),
            observe,
            connections,
            gateway: config.gateway.clone(),
            supervisor,
            listing_cache: cache,
            configuration,
            executor: Some(executor),
            commands,
            stop_fronts: watch::Sender::new(false),
            background: Vec::new(),
            stop_catalog,
            exporter,
            _watchdog: watchdog,
        };
        app.spawn_background();
        app.supervisor.apply(config);
        app.spawn_settling();
        app
    }

    /// Sets the source from which the configuration is reloaded. `shown` is its name for operators.
    pub fn set_source(&mut self, shown: String, source: ConfigSource) {
        self.configuration.send_modify(|configuration| configuration.status.source = shown);
        if let Some(executor) = &mut self.executor {
            executor.source = Some(source);
        }
    }

    fn spawn_background(&mut self) {
        if let Some(cache) = self.listing_cache.clone() {
            self.background.push(worker::spawn(async move { cache.run().await }));
        }
        let (catalogs, observe, stop) =
            (Arc::clone(self.catalogs()), Arc::clone(&self.observe), self.stop_catalog.subscribe());
        self.background.push(worker::spawn(async move { catalogs.run(&observe, stop).await }));
        let dispatcher = Arc::clone(&self.dispatcher);
        self.background.push(worker::spawn(async move { dispatcher.sessions.sweep_periodically().await }));
        let dispatcher = Arc::clone(&self.dispatcher);
        self.background.push(worker::spawn(async move { dispatcher.sessions.check_timeouts_periodically().await }));
        let dispatcher = Arc::clone(&self.dispatcher);
        self.background.push(worker::spawn(async move { dispatcher.remove_expired_periodically().await }));
    }

    /// Starts a task that reports when the servers have settled, and marks the gateway as ready.
    fn spawn_settling(&mut self) {
        let (catalogs, observe, readiness) =
            (Arc::clone(self.catalogs()), Arc::clone(&self.observe), Arc::clone(&self.readiness));
        let limit = self.gateway.start_wait;
        self.background.push(worker::spawn(async move {
            readiness::settle(&catalogs, &readiness, &observe, limit).await;
        }));
    }

    /// Replaces the configuration of the servers. The settings of the gateway itself do not change.
    pub fn reload(&mut self, config: Config) -> Reloaded {
        self.supervisor.apply(config)
    }

    pub fn catalogs(&self) -> &Arc<CatalogStore> {
        &self.dispatcher.router.catalogs
    }

    /// Returns the running backends in the order of the configuration.
    pub fn backends(&self) -> Arc<Vec<Arc<Backend>>> {
        self.catalogs().backends()
    }

    /// Returns a receiver of the gateway's readiness.
    pub fn readiness(&self) -> watch::Receiver<Readiness> {
        self.readiness.subscribe()
    }

    /// Serves HTTP on `listeners` until the first `shutdown` future completes, then stops everything in order. If a
    /// second one completes before that is done, stops at once.
    pub async fn serve_http(mut self, listeners: impl Into<Listeners>, mut shutdown: impl AsyncFnMut()) -> Result<()> {
        let accepting = self.accept_http(listeners)?;
        self.operate(shutdown()).await;
        let (dispatcher, observe, grace) =
            (Arc::clone(&self.dispatcher), Arc::clone(&self.observe), self.gateway.grace);
        observe.emit(&Event::ShuttingDown { open: dispatcher.sessions.open_calls(), grace });
        let drained = async move {
            let is_late = tokio::time::timeout(grace, accepting).await.is_err();
            // Calls with a lost connection are open too. No client can resume them after the shutdown, so they are not
            // waited for.
            if is_late || dispatcher.sessions.open_calls() > 0 {
                dispatcher.log_cut_calls(&observe);
            }
        };
        self.end(drained, shutdown()).await
    }

    /// Sets the permissions of operators. Must be called before a listener starts.
    pub fn set_permit(&mut self, permit: AdminAccess) {
        self.permit = permit;
    }

    /// Runs the executor, which reloads the configuration and executes commands, until `end` completes.
    async fn operate(&mut self, end: impl Future<Output = ()>) {
        let Some(executor) = self.executor.take() else { return end.await };
        tokio::select! {
            () = end => {}
            () = executor.run() => {}
        }
    }

    /// Starts a task for each listener. It ends when the fronts are stopped and their connections have closed.
    pub fn accept_http(&self, listeners: impl Into<Listeners>) -> Result<JoinAll<JoinHandle<()>>> {
        let admin = self.admin();
        let admin_routes = if self.serves_admin { admin::routes(&admin) } else { admin::probes(&admin) };
        let routes = http::routes().merge(admin_routes);
        let Listeners { tcp, socket } = listeners.into();
        let mut accepting = Vec::new();
        if let Some(listener) = tcp {
            let address = listener.local_addr().context("the listener has no address")?;
            let gate = Gate::new(&self.gateway);
            accepting.push(self.accept(Listener::Tcp(listener), AddressRole::Clients, gate, routes.clone()));
            self.observe.emit(&Event::Listening { url: &format!("http://{address}/mcp") });
        }
        if let Some(listener) = socket {
            let url = format!("unix:{}", listener.path().display());
            let gate = Gate::without_token(&self.gateway);
            accepting.push(self.accept(Listener::Socket(listener), AddressRole::Clients, gate, routes));
            self.observe.emit(&Event::Listening { url: &url });
        }
        if let Some(address) = self.admin_address {
            self.observe.emit(&Event::Listening { url: &format!("http://{address}/api") });
        }
        Ok(join_all(accepting))
    }

    /// Serves operators on a separate address until the gateway stops. Must be called before `accept_http`, which
    /// reports it.
    pub fn accept_operators(&mut self, listener: TcpListener, listen: &ListenAddress) {
        self.admin_address = listener.local_addr().ok();
        let gateway = Gateway { host: listen.host.clone(), ..self.gateway.clone() };
        let gate = match listen.is_loopback() {
            true => Gate::new(&gateway),
            false => Gate::with_admin_token(&gateway, self.permit.token().clone()),
        };
        let routes = http::routes().merge(admin::routes(&self.admin()));
        let accepting = self.accept(Listener::Tcp(listener), AddressRole::Operators, gate, routes);
        self.background.push(accepting);
    }

    fn admin(&self) -> Arc<Admin> {
        Arc::new(Admin {
            dispatcher: Arc::clone(&self.dispatcher),
            observe: Arc::clone(&self.observe),
            readiness: self.readiness(),
            configuration: self.configuration.subscribe(),
            commands: self.commands.clone(),
            permit: self.permit.clone(),
            started: self.started,
            readers: Arc::new(Semaphore::new(MAX_READERS)),
        })
    }

    fn accept(&self, listener: Listener, role: AddressRole, gate: Gate, routes: axum::Router) -> JoinHandle<()> {
        let front = Arc::new(http::HttpFront {
            dispatcher: Arc::clone(&self.dispatcher),
            role,
            profile: None,
            gate: Arc::new(gate),
            observe: Arc::clone(&self.observe),
            max_body_size: self.gateway.max_body_size,
            streams: Arc::default(),
            stop: self.stop_fronts.subscribe(),
        });
        let connections = Arc::clone(&self.connections);
        worker::spawn(accept::accept(listener, front, routes, connections, self.stop_fronts.subscribe()))
    }

    /// Serves one client of `profile` on `input` and `output` until the input ends or a `shutdown` future completes.
    /// Then stops everything in order. If another `shutdown` future completes before that is done, stops at once.
    pub async fn serve_stdio(
        mut self,
        profile: Option<ProfileName>,
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Unpin + Send + 'static,
        mut shutdown: impl AsyncFnMut(),
    ) -> Result<()> {
        let front = stdio::StdioFront {
            dispatcher: Arc::clone(&self.dispatcher),
            profile,
            observe: Arc::clone(&self.observe),
            max_message_size: self.dispatcher.policies.load().max_message_size,
            grace: self.gateway.grace,
            stop: self.stop_fronts.subscribe(),
        };
        let serving = stdio::serve(front, input, output);
        tokio::pin!(serving);
        let mut is_over = false;
        self.operate(async {
            tokio::select! {
                () = &mut serving => is_over = true,
                () = shutdown() => {}
            }
        })
        .await;
        let drained = async {
            if !is_over {
                serving.await;
            }
        };
        self.end(drained, shutdown()).await
    }

    /// Stops the gateway: accepts no new work, waits for `drained`, then ends the rest. If `abort` completes, returns
    /// at once, and the guards end the processes.
    async fn end(self, drained: impl Future<Output = ()>, abort: impl Future<Output = ()>) -> Result<()> {
        let begin = Instant::now();
        self.readiness.send_replace(Readiness::Stopping);
        self.stop_fronts.send_replace(true);
        self.dispatcher.sessions.close_server_requests();
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
            () = abort => bail!("ended at once by a second signal; open calls were cut"),
        }
    }

    /// Ends all sessions, links and processes.
    pub async fn stop(self) {
        self.dispatcher.sessions.end_all("the gateway is shutting down");
        self.supervisor.stop().await;
        if let Some(cache) = &self.listing_cache {
            cache.flush().await;
        }
        self.stop_catalog.send_replace(true);
        if let Some(exporter) = self.exporter {
            telemetry::finish(exporter).await;
        }
        for task in self.background {
            task.abort();
        }
    }
}

/// Binds the address of the gateway.
pub async fn bind(gateway: &Gateway) -> std::io::Result<TcpListener> {
    let host = gateway.host.trim_start_matches('[').trim_end_matches(']');
    TcpListener::bind((host, gateway.port)).await
}

/// Binds the address for operators. Returns `None` if there is no separate one.
pub async fn bind_admin(settings: &AdminSettings) -> Result<Option<(TcpListener, ListenAddress)>> {
    let Some(listen) = settings.listen.clone().filter(|_| settings.enabled) else { return Ok(None) };
    let bound = TcpListener::bind((listen.host.as_str(), listen.port)).await;
    Ok(Some((bound.with_context(|| format!("cannot listen on {listen} (admin.listen)"))?, listen)))
}
