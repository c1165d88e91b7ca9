//! Assembly and supervision: the one file that knows everybody.
//!
//! Starting is carrying out the plan from the empty configuration; so is every later change. Stopping goes from the
//! outside in: no new work, open calls within `grace`, then links and processes.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use indexmap::IndexMap;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::backend::Backend;
use crate::backend::actor::{self, Surroundings, stopped};
use crate::backend::connect::ProxyEnvironment;
use crate::catalog::directory::Directory;
use crate::config::diff::{Plan, diff};
use crate::config::{Config, Gateway, Server, ServerId};
use crate::front::attention::{Attended, Attention};
use crate::front::gate::Gate;
use crate::front::io::Impatient;
use crate::front::{http, stdio};
use crate::observe::{Event, Observe};
use crate::router::Router;
use crate::session::Sessions;
use crate::session::desk::Desk;

/// Header bytes that one request may have.
const LARGEST_HEAD: usize = 16 * 1024;
/// How long a client may take to send the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may idle between two requests. It must outlast the pools of clients: one that reuses a connection
/// in the moment we close it loses its request.
const IDLE_PATIENCE: Duration = Duration::from_secs(120);
/// How often both are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Connections beyond the sessions: a client may hold a few.
const CONNECTIONS_PER_SESSION: usize = 4;
/// After a failed accept, for instance for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A gateway that runs: backends, catalog and desk, without a front.
pub struct App {
    desk: Arc<Desk>,
    directory: Arc<Directory>,
    pub observe: Arc<Observe>,
    config: Config,
    running: IndexMap<ServerId, Running>,
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
        let directory = Arc::new(Directory::new(config.policies.page_size));
        let gateway = &config.gateway;
        let sessions = Sessions::new(gateway.max_sessions, gateway.session_idle_timeout, Arc::clone(&observe));
        let surroundings = Surroundings {
            policies: config.policies.clone(),
            observe: Arc::clone(&observe),
            exe,
            proxies,
            bell: Arc::clone(&directory.bell),
            level: sessions.levels.watch(),
        };
        let router = Router::new(Arc::clone(&directory), config.policies.clone(), Arc::clone(&observe));
        let desk = Arc::new(Desk::new(sessions, Arc::new(router), config.policies.clone()));
        let mut app = App {
            desk,
            directory,
            observe,
            config: Config::empty(),
            running: IndexMap::new(),
            surroundings,
            stop_fronts: watch::Sender::new(false),
            background: Vec::new(),
            stop_catalog: watch::Sender::new(false),
        };
        app.spawn_background();
        let plan = diff(&app.config, &config);
        app.apply(&plan, config);
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
    }

    /// Makes the running backends what `config` says; `plan` is the difference.
    fn apply(&mut self, plan: &Plan, config: Config) {
        let ended: Vec<_> = plan.stop.iter().chain(plan.change.iter().map(|change| &change.id)).cloned().collect();
        for id in ended {
            if let Some(running) = self.running.shift_remove(&id) {
                running.stop.send_replace(true);
                self.background.push(running.actor);
            }
        }
        let started = plan.start.iter().map(|(id, server)| (id, server));
        for (id, server) in started.chain(plan.change.iter().map(|change| (&change.id, &change.server))) {
            self.start_backend(id, server);
        }
        self.config = config;
        let order = |id: &ServerId| self.config.servers.get_index_of(id).unwrap_or(usize::MAX);
        self.running.sort_by(|one, _, other, _| order(one).cmp(&order(other)));
        self.directory.set_backends(self.running.values().map(|running| Arc::clone(&running.backend)).collect());
    }

    fn start_backend(&mut self, id: &ServerId, server: &Arc<Server>) {
        let stop = watch::Sender::new(false);
        let (backend, actor) =
            actor::start(id.clone(), Arc::clone(server), self.surroundings.clone(), stop.subscribe());
        self.running.insert(id.clone(), Running { backend, stop, actor });
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

    /// Serves HTTP on `listener` until `shutdown` ends, then stops everything.
    pub async fn serve_http(self, listener: TcpListener, shutdown: impl Future<Output = ()>) -> Result<()> {
        let address = listener.local_addr().context("the listener has no address")?;
        let front = Arc::new(http::Front {
            desk: Arc::clone(&self.desk),
            gate: Gate::new(&self.config.gateway),
            observe: Arc::clone(&self.observe),
            max_body_size: self.config.gateway.max_body_size,
            stop: self.stop_fronts.subscribe(),
        });
        self.observe.emit(&Event::Listening { url: &format!("http://{address}/mcp") });
        let most = self.config.gateway.max_sessions.saturating_mul(CONNECTIONS_PER_SESSION);
        let accepting = tokio::spawn(accept(listener, front, most, self.stop_fronts.subscribe()));
        shutdown.await;
        self.observe.emit(&Event::ShuttingDown);
        self.stop_fronts.send_replace(true);
        let grace = self.config.gateway.grace;
        if tokio::time::timeout(grace, accepting).await.is_err() {
            self.observe.emit(&Event::CallsCut { count: self.desk.sessions.open_calls() });
        }
        self.stop().await;
        Ok(())
    }

    /// Serves one client on `input` and `output` until the input or `shutdown` ends, then stops everything.
    pub async fn serve_stdio(
        self,
        input: impl AsyncRead + Unpin,
        output: impl AsyncWrite + Unpin + Send + 'static,
        shutdown: impl Future<Output = ()>,
    ) {
        let front = stdio::Front {
            desk: Arc::clone(&self.desk),
            observe: Arc::clone(&self.observe),
            max_message_size: self.config.policies.max_message_size,
            grace: self.config.gateway.grace,
            stop: self.stop_fronts.subscribe(),
        };
        let serving = stdio::serve(front, input, output);
        tokio::pin!(serving);
        tokio::select! {
            () = &mut serving => {}
            () = shutdown => {
                self.stop_fronts.send_replace(true);
                serving.await;
            }
        }
        self.stop().await;
    }

    /// Ends sessions, links and processes.
    pub async fn stop(mut self) {
        self.desk.sessions.end_all("the gateway stops");
        for running in self.running.values() {
            running.stop.send_replace(true);
        }
        for running in std::mem::take(&mut self.running).into_values() {
            // A panic has been reported by the runtime; the process group ends with its guard.
            let _ = running.actor.await;
        }
        self.stop_catalog.send_replace(true);
        for task in self.background {
            task.abort();
        }
    }
}

/// Binds the address that the configuration names.
pub async fn bind(gateway: &Gateway) -> Result<TcpListener> {
    let host = gateway.host.trim_start_matches('[').trim_end_matches(']');
    let bound = TcpListener::bind((host, gateway.port)).await;
    bound.with_context(|| {
        let Gateway { host, port, .. } = gateway;
        format!("cannot listen on {host}:{port}; is another program using the port? choose another with --port")
    })
}

/// Accepts connections until told to stop, then waits for those that have work.
async fn accept(listener: TcpListener, front: Arc<http::Front>, most: usize, mut stop: watch::Receiver<bool>) {
    let routes = http::routes();
    let room = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let open = watch::Sender::new(());
    loop {
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut stop) => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Beyond the bound connections are closed at once: a peer that sees it can try again later.
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let (front, routes, stop, open) = (Arc::clone(&front), routes.clone(), stop.clone(), open.subscribe());
        tokio::spawn(async move {
            serve_connection(stream, front, routes, stop).await;
            drop((permit, open));
        });
    }
    drop(listener);
    open.closed().await;
}

async fn serve_connection(
    stream: TcpStream,
    front: Arc<http::Front>,
    routes: axum::Router,
    mut stop: watch::Receiver<bool>,
) {
    // Small answers must not wait for an acknowledgement; where it cannot be set they just are slower.
    let _ = stream.set_nodelay(true);
    let attention = Attention::new();
    let service = hyper::service::service_fn(|request| {
        let (front, routes, work) = (Arc::clone(&front), &routes, attention.begin_work());
        async move {
            let response = front.serve(request, routes).await;
            Ok::<_, Infallible>(response.map(|body| Attended { body, work }))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(Impatient::new(stream, Arc::clone(&attention))), service);
    tokio::pin!(connection);
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        tokio::select! {
            biased;
            // What a peer does to its own connection is no concern of anybody else.
            _ = &mut connection => return,
            () = stopped(&mut stop) => break,
            _ = look.tick() => {
                if attention.is_lost(IDLE_PATIENCE, HEAD_PATIENCE) {
                    return;
                }
            }
        }
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
