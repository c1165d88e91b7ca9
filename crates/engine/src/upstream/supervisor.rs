//! Connects one link of a backend, serves it and connects it again after a loss.
//!
//! Each link has one supervisor, which owns the connection and alone publishes it in its [`LinkSlot`]. No other task
//! waits for it, so a slow or hanging backend delays only its own callers. The [`LinkPolicy`] decides when the link is
//! connected and what is done with it. When the backend stops, or the client of the link has disconnected, the
//! supervisor closes the link and ends.

pub(crate) mod dropped;
mod login;
mod notifications;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use goblin_client::connect::ProxyEnvironment;
use goblin_client::lineage::Lineage;
use goblin_config::{Policies, Server, ServerId};
use goblin_telemetry::{Event, Observe, worker};
use goblin_vault::Vault;
use goblin_wire::via::{ViaProblem, refusal};
use goblin_wire::{Error, Hello};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinHandle;

use crate::client::levels::WantedLevel;
use crate::client::sessions::Presence;
use crate::upstream::dial::{DialError, DialParams};
use crate::upstream::era::LinkScope;
use crate::upstream::events::BackendEvents;
use crate::upstream::health::{self, Health};
use crate::upstream::inbound::InboundHandler;
use crate::upstream::levels::{follow_level, set_own_level};
use crate::upstream::link::{Link, LinkEnd, shared_capabilities};
use crate::upstream::links::{LinkSlot, LinkTable};
use crate::upstream::lister::{Lister, ListerEnd};
use crate::upstream::listing_cache::ListingCache;
use crate::upstream::predecessor::Predecessor;
use crate::upstream::request_meta::own_capabilities;
use crate::upstream::supervisor::login::{AwaitedLogin, LoginMark, login_changed};
use crate::upstream::supervisor::notifications::forward_notifications;
use crate::upstream::tasks::TaskTable;
use crate::upstream::{Backend, BackendState, problem};

/// A session is short if the backend forgets it sooner. A client's own link pauses after one short session, a shared
/// link after two in a row.
const MIN_SESSION: Duration = Duration::from_secs(1);
/// The longest wait of a client's new link for a permit. Another client's link that is closing may still hold it.
const LINK_PERMIT_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest delay of a client's new link by the request that sets its log level.
const SET_LEVEL_TIMEOUT: Duration = Duration::from_secs(5);

/// The policies in force. A reload replaces them for new calls, sessions, subscriptions and connections.
pub(crate) type LivePolicies = Arc<ArcSwap<Policies>>;

/// The dependencies that all supervisors share.
#[derive(Clone)]
pub(crate) struct BackendDeps {
    pub policies: LivePolicies,
    pub observe: Arc<Observe>,
    /// The gateway's own executable, which also runs as the guard of child processes.
    pub exe: PathBuf,
    pub proxies: ProxyEnvironment,
    /// The id of this gateway, and the gateways that started it.
    pub lineage: Arc<Lineage>,
    /// The tasks of all clients.
    pub tasks: Arc<TaskTable>,
    /// The store of logins. `None` if this user has no directory for it.
    pub vault: Option<Arc<Vault>>,
    /// The listings of earlier runs, unless the configuration turns them off.
    pub cache: Option<Arc<ListingCache>>,
    /// Notified when a listing changed.
    pub listing_changed: Arc<Notify>,
    /// The log level that the clients want.
    pub level: watch::Receiver<WantedLevel>,
    /// Reports whether a client is connected.
    pub has_clients: Arc<dyn Fn() -> bool + Send + Sync>,
}

/// Starts the supervisor of a backend's shared link and returns the backend's handle. The supervisor runs until `stop`
/// is `true` or its sender is dropped.
pub(crate) fn start(
    id: ServerId,
    config: Arc<Server>,
    predecessor: Predecessor,
    deps: BackendDeps,
    stop: watch::Receiver<bool>,
) -> (Arc<Backend>, JoinHandle<()>) {
    let Predecessor { meter, uris, listing, end } = predecessor;
    let events = BackendEvents::new(id.clone(), Arc::clone(&deps.observe), uris, Arc::clone(&deps.tasks));
    let mut backend = Backend::new(id, config, &deps.policies.load(), events);
    backend.meter = meter;
    if let Some(listing) = listing {
        backend.lists().set_kept(listing);
    }
    let table = Arc::new(LinkTable::new(backend.context.clone(), Arc::clone(&backend.meter), deps, stop, end));
    backend.links = Some(Arc::clone(&table));
    let backend = Arc::new(backend);
    let supervisor = Supervisor::new(&table, &backend.shared, LinkPolicy::Shared);
    (backend, worker::spawn(supervisor.run()))
}

/// The purpose of a link.
pub(crate) enum LinkPolicy {
    /// The link is always connected. It fetches the lists and keeps the subscriptions of the clients that share it.
    Shared,
    /// The second link. It carries the calls of clients with a handshake, beside a shared link without one. The
    /// supervisor ends if the backend rejects the handshake.
    CallsOnly,
    /// The link belongs to one client and is connected on demand. Holds the client's notifications for the backend.
    Client(mpsc::Receiver<Bytes>),
}

pub(crate) struct Supervisor {
    table: Arc<LinkTable>,
    slot: Arc<LinkSlot>,
    policy: LinkPolicy,
    health: Health,
    /// The earliest time of the next attempt.
    pause_ends: Instant,
    /// The number of short sessions in a row.
    short_sessions: u32,
    /// The last failure since the last successful connection.
    last_failure: Option<String>,
    /// The reason for which the gateway last dropped the server.
    last_drop: Option<ViaProblem>,
    has_dialled: bool,
    /// The login with which the last attempt began.
    used_login: Option<String>,
    /// The login for which the next attempt waits.
    awaited_login: Option<AwaitedLogin>,
    /// Held by all supervisors except the one of the shared link, which waits for the others.
    _alive: Option<watch::Receiver<()>>,
}

/// A connected link.
pub(crate) struct ConnectedLink {
    pub link: Arc<Link>,
    pub hello: Arc<Hello>,
    /// The login of the connection.
    login: LoginMark,
    since: Instant,
    /// The permit of a client's link, and the guard that keeps the client's session.
    _permit: Option<(OwnedSemaphorePermit, Presence)>,
}

/// The reason why a supervisor has no link.
enum LinkExit {
    /// The backend stops, the client of the link has disconnected, or its link is idle.
    Stopped,
    /// There was no attempt, because of a limit.
    NotAttempted(Error),
    /// The attempt failed.
    Failed(String),
    /// The connection was lost.
    Lost(String),
    /// The backend is reachable but has forgotten the session.
    Forgotten,
    /// The server rejected the connection, because it needs a login.
    LoginNeeded,
    /// The gateway must not use the server.
    Dropped(ViaProblem),
}

impl From<ListerEnd> for LinkExit {
    fn from(end: ListerEnd) -> LinkExit {
        match end {
            ListerEnd::Lost(reason) => LinkExit::Lost(reason),
            ListerEnd::LoginNeeded => LinkExit::LoginNeeded,
            ListerEnd::Dropped(problem) => LinkExit::Dropped(problem),
        }
    }
}

/// Releases waiting calls and the entry in the table, however the supervisor ends.
impl Drop for Supervisor {
    fn drop(&mut self) {
        self.slot.publish(BackendState::Stopped);
        if !matches!(self.policy, LinkPolicy::Shared) {
            self.table.remove(&self.slot);
        }
        if self.slot.owner.is_some() {
            // A caller may have found this subscription manager just before. Close it, so that no subscription is added
            // without a supervisor.
            self.slot.subscriptions.close();
            self.settle_lists();
        }
    }
}

impl Supervisor {
    pub(crate) fn new(table: &Arc<LinkTable>, slot: &Arc<LinkSlot>, policy: LinkPolicy) -> Supervisor {
        let is_shared = matches!(policy, LinkPolicy::Shared);
        Supervisor {
            table: Arc::clone(table),
            slot: Arc::clone(slot),
            policy,
            health: Health::default(),
            pause_ends: Instant::now(),
            short_sessions: 0,
            last_failure: None,
            last_drop: None,
            has_dialled: false,
            used_login: None,
            awaited_login: None,
            _alive: (!is_shared).then(|| table.alive.subscribe()),
        }
    }

    /// Connects and serves until the supervisor must end. The supervisor of the shared link then waits for the others,
    /// and for the predecessor. Its end therefore means that no process of this server or of an earlier one is left.
    pub(crate) async fn run(mut self) {
        if !matches!(self.policy, LinkPolicy::Shared) {
            return self.run_attempts().await;
        }
        let table = Arc::clone(&self.table);
        let login = table.dialer.server_login();
        if let Some(login) = login {
            login.load().await;
        }
        table.publish_cached().await;
        tokio::select! {
            () = self.run_attempts() => {}
            never = login::keep(login) => match never {},
        }
        table.alive.closed().await;
        table.predecessor.reached().await;
        if let Some(login) = login {
            login.finish().await;
        }
    }

    /// Connects and serves until the supervisor must end.
    async fn run_attempts(&mut self) {
        while self.next_attempt().await {
            let exit = match self.connect().await {
                Ok(connected) => self.run_link(connected).await,
                Err(exit) => exit,
            };
            if self.handle_exit(exit).is_break() {
                break;
            }
        }
        self.slot.publish(BackendState::Stopped);
    }

    /// Waits until the next attempt is due. Returns `false` if the supervisor must end. A link that clients share is
    /// due after the pause, or earlier when a call needs it. A client's own link is due when a call or a subscription
    /// needs it.
    async fn next_attempt(&mut self) -> bool {
        let awaited_login = self.awaited_login.take();
        let due = async {
            self.table.predecessor.reached().await;
            if let Some(awaited) = awaited_login {
                self.login_done(awaited).await;
            }
            match self.policy {
                LinkPolicy::Shared | LinkPolicy::CallsOnly => tokio::select! {
                    () = tokio::time::sleep_until(self.pause_ends.into()) => {}
                    () = self.slot.requested() => self.demand_due().await,
                },
                LinkPolicy::Client(_) => self.slot.requested_by_owner(self.pause_ends).await,
            }
        };
        tokio::select! {
            biased;
            () = self.ended() => false,
            () = due => true,
        }
    }

    /// Waits until an attempt for a call may start. A pause that ends earlier shortens the wait.
    async fn demand_due(&self) {
        let due = self.health.demand_due(Instant::now()).min(self.pause_ends);
        tokio::time::sleep_until(due.into()).await;
    }

    /// Waits until the backend stops, the client of the link has disconnected, its link is idle or the gateway drops
    /// the server. The links that clients share remain for further attempts.
    fn ended(&self) -> impl Future<Output = ()> + use<> {
        let (mut stop, slot, table) = (self.table.stop.clone(), Arc::clone(&self.slot), Arc::clone(&self.table));
        async move {
            tokio::select! {
                () = stopped(&mut stop) => {}
                () = slot.abandoned() => {}
                () = table.dropped.dropped(), if slot.owner.is_some() => {}
            }
        }
    }

    /// Connects the link. A client's link also gets its log level before calls use it.
    async fn connect(&mut self) -> Result<ConnectedLink, LinkExit> {
        let started = Instant::now();
        let ended = self.ended();
        tokio::pin!(ended);
        let permit = tokio::select! {
            biased;
            () = &mut ended => return Err(LinkExit::Stopped),
            permit = self.acquire_permit() => permit.map_err(LinkExit::NotAttempted)?,
        };
        self.health.attempted(Instant::now());
        self.slot.publish_attempt();
        if std::mem::replace(&mut self.has_dialled, true) && self.slot.owner.is_none() {
            self.table.meter.count_restart();
        }
        let login = self.begin_with_login();
        let (slot, config) = (&self.slot, &self.table.context.config.load_full());
        let params = DialParams {
            capabilities: &match &slot.owner {
                Some(owner) => own_capabilities(&owner.caller.client_capabilities.raw, config.declare),
                None => shared_capabilities(config),
            },
            inbound: || {
                let policies = Arc::clone(&self.table.deps.policies);
                InboundHandler::new(Arc::clone(&slot.subscriptions), config, slot.owner.clone(), policies)
            },
            scope: match (&self.policy, &slot.owner) {
                (LinkPolicy::CallsOnly, _) => LinkScope::HandshakeOnly,
                (_, Some(owner)) if owner.caller.dialect.has_handshake() => LinkScope::WithHandshake,
                _ => LinkScope::All,
            },
            is_retry: self.last_failure.is_some(),
        };
        let (link, hello) = match self.table.dialer.dial(params, &mut ended).await {
            Ok(dialled) => dialled.ok_or(LinkExit::Stopped)?,
            Err(DialError::LoginNeeded) => return Err(LinkExit::LoginNeeded),
            Err(DialError::Failed(reason)) if reason.contains(&refusal(&self.table.deps.lineage.id)) => {
                self.on_dropped(ViaProblem::Loop);
                return Err(LinkExit::Dropped(ViaProblem::Loop));
            }
            Err(DialError::Failed(reason)) => return Err(LinkExit::Failed(reason)),
        };
        let _permit = permit.zip(slot.owner.as_ref().map(|owner| owner.client.hold()));
        let connected = ConnectedLink { link, hello, login, since: Instant::now(), _permit };
        self.health.connected(connected.since);
        self.last_failure = None;
        self.report_connected(&connected, started.elapsed());
        if let Some(owner) = &self.slot.owner {
            tokio::select! {
                // `serve` checks the same condition again.
                () = &mut ended => {}
                _ = tokio::time::timeout(SET_LEVEL_TIMEOUT, set_own_level(owner, &connected)) => {}
            }
        }
        Ok(connected)
    }

    /// Waits until a client's link may connect: the shared link has its lists or has failed, earlier failures are long
    /// enough ago, and there is a permit. Returns an error if no permit
    /// becomes free. A link that clients share needs no permit.
    async fn acquire_permit(&self) -> Result<Option<OwnedSemaphorePermit>, Error> {
        if self.slot.owner.is_none() {
            return Ok(None);
        }
        // The shared link finds a loop first. Until then, a link of a client could lead to another one.
        self.table.context.lists.settled().await;
        self.demand_due().await;
        let slot = Arc::clone(self.table.capacity.permits()).acquire_owned();
        match tokio::time::timeout(LINK_PERMIT_TIMEOUT, slot).await {
            Ok(Ok(permit)) => Ok(Some(permit)),
            _ => Err(self.table.full_error()),
        }
    }

    /// Serves a link until it ends, publishes the end and closes the link.
    async fn run_link(&mut self, connected: ConnectedLink) -> LinkExit {
        let exit = self.serve(&connected).await;
        let exit = self.classify_exit(exit, connected.since.elapsed());
        self.slot.remove_link();
        // Publish the end before closing the link, which can take seconds. Calls must fail at once.
        self.publish_end(&exit, connected.since.elapsed());
        connected.link.close().await;
        exit
    }

    /// Publishes the link and does the work of its policy until the link ends.
    async fn serve(&mut self, connected: &ConnectedLink) -> LinkExit {
        let ConnectedLink { link, hello, .. } = connected;
        let ended = self.ended();
        let (table, slot, policy) = (&self.table, &self.slot, &mut self.policy);
        let subscriptions = &slot.subscriptions;
        let keeps_subscriptions = !matches!(policy, LinkPolicy::CallsOnly);
        if keeps_subscriptions {
            subscriptions.discard_checks();
            subscriptions.lists().prepare();
            subscriptions.link_up(hello.capabilities.subscribe);
        }
        slot.publish_link(link);
        let shared = &table.context.lists;
        let lister = Lister {
            lists: subscriptions.lists(),
            shared: slot.owner.as_ref().map(|_| &**shared),
            subscriptions,
            config: &table.context.config,
            deps: &table.deps,
            link,
            hello,
            cache: table.cached.as_ref(),
        };
        let work = async {
            match policy {
                LinkPolicy::Shared => {
                    tokio::select! {
                        biased;
                        end = lister.run() => end.into(),
                        never = subscriptions.keep(link, hello) => match never {},
                        never = follow_level(table, connected) => match never {},
                    }
                }
                LinkPolicy::CallsOnly => match follow_level(table, connected).await {},
                LinkPolicy::Client(notifications) => tokio::select! {
                    end = lister.run() => end.into(),
                    () = forward_notifications(slot, notifications, connected) => LinkExit::Stopped,
                    never = subscriptions.keep(link, hello) => match never {},
                },
            }
        };
        let exit = tokio::select! {
            biased;
            () = ended => LinkExit::Stopped,
            end = link.closed() => match end {
                LinkEnd::Lost(reason) => LinkExit::Lost(reason),
                LinkEnd::Forgotten => LinkExit::Forgotten,
            },
            // The server may treat another account differently, so connect again.
            () = login_changed(table.dialer.server_login(), &connected.login) => LinkExit::Forgotten,
            exit = work => exit,
        };
        if keeps_subscriptions {
            subscriptions.link_down();
        }
        exit
    }

    /// Turns the second short session in a row into a loss. A backend that forgets every session at once is unusable,
    /// and the supervisor would reconnect without a pause for ever. A client's own link pauses after the first one.
    fn classify_exit(&mut self, exit: LinkExit, lasted: Duration) -> LinkExit {
        let is_short = matches!(exit, LinkExit::Forgotten) && lasted < MIN_SESSION;
        self.short_sessions = if is_short { self.short_sessions.saturating_add(1) } else { 0 };
        match self.short_sessions {
            2.. if self.slot.owner.is_none() => LinkExit::Lost("it forgets every session immediately".to_owned()),
            _ => exit,
        }
    }

    /// Publishes and reports the end of a connection. A link that clients share stays [`BackendState::Ready`] while it
    /// replaces a forgotten session.
    fn publish_end(&mut self, exit: &LinkExit, lasted: Duration) {
        let (server, session) =
            (self.table.context.events.server(), self.slot.owner.as_ref().map(|owner| owner.id.short()));
        match (exit, session.as_deref()) {
            (LinkExit::Lost(reason), None) => {
                self.table.meter.record_failure(reason);
                self.slot.publish(BackendState::Lost(reason.clone()));
                self.emit(&Event::BackendLost { server, reason });
                self.last_failure = Some(reason.clone());
            }
            (LinkExit::Lost(reason), Some(session)) => {
                self.emit(&Event::ClientLinkLost { server, session, reason });
                self.record_failure(reason.clone());
                self.publish_lost(reason);
            }
            (LinkExit::Forgotten, Some(session)) => {
                let reason = "it forgot the session";
                self.emit(&Event::ClientLinkLost { server, session, reason });
                // The backend is alive, so no pause is due. Forgetting a new session at once counts as a failure.
                if lasted < MIN_SESSION {
                    self.record_failure(reason.to_owned());
                }
                self.publish_lost(reason);
            }
            (LinkExit::Dropped(problem), _) => self.on_dropped(*problem),
            (LinkExit::Stopped, Some(session)) => {
                self.slot.publish(BackendState::Stopped);
                self.emit(&Event::ClientLinkEnded { server, session });
            }
            _ => {}
        }
    }

    /// Decides whether there is another attempt, and computes the pause before it.
    fn handle_exit(&mut self, exit: LinkExit) -> ControlFlow<()> {
        let is_client = self.slot.owner.is_some();
        match exit {
            LinkExit::Stopped => return ControlFlow::Break(()),
            // The backend rejects the handshake, so this second link cannot exist. A later call starts a supervisor.
            _ if matches!(self.policy, LinkPolicy::CallsOnly)
                && !self.table.dialer.eras.may_support_both(Instant::now()) =>
            {
                return ControlFlow::Break(());
            }
            LinkExit::NotAttempted(error) => {
                self.drop_notifications();
                self.slot.publish_failure(error.to_string(), error, None);
                self.settle_lists();
            }
            LinkExit::Failed(reason) if is_client => self.on_own_failure(reason),
            // `publish_end` has done the rest.
            LinkExit::Lost(_) if is_client => {}
            LinkExit::LoginNeeded => self.on_login_needed(),
            // `on_dropped` has done the rest.
            LinkExit::Dropped(_) => {}
            // The backend is alive and only forgot the session, so reconnect without a pause.
            LinkExit::Forgotten => {}
            LinkExit::Failed(reason) => {
                self.table.meter.record_failure(&reason);
                self.on_failure(&reason);
                let error = self.slot.failure_error(&reason, Some(self.pause_ends));
                self.slot.publish_failure(reason, error, Some(self.pause_ends));
                self.settle_shared_lists();
            }
            LinkExit::Lost(reason) => {
                self.on_failure(&reason);
                self.slot.publish_retry(self.pause_ends);
                self.settle_shared_lists();
            }
        }
        ControlFlow::Continue(())
    }

    /// Reports a failure of a link that clients share.
    fn on_failure(&mut self, reason: &str) {
        // A repetition is logged at a lower level.
        let repeated = self.last_failure.as_deref().map(problem::stable_part) == Some(problem::stable_part(reason));
        let pause = self.record_failure(reason.to_owned());
        let server = self.table.context.events.server();
        self.emit(&Event::BackendFailed { server, reason, retry_in: pause, repeated });
        if matches!(self.policy, LinkPolicy::Shared) {
            self.slot.lists().set_refreshing(false);
        }
    }

    /// Releases the clients that wait for the lists of the shared link.
    fn settle_shared_lists(&self) {
        if matches!(self.policy, LinkPolicy::Shared) {
            self.slot.lists().set_settled();
        }
    }

    /// Releases the clients that wait for the lists of a link that is not connected.
    fn settle_lists(&self) {
        self.slot.lists().set_refreshing(false);
        self.slot.lists().set_settled();
    }

    /// Reports a failed attempt to connect a client's own link.
    fn on_own_failure(&mut self, reason: String) {
        let repeated = self.last_failure.as_deref() == Some(&*reason);
        if let Some(owner) = &self.slot.owner {
            let (server, session) = (self.table.context.events.server(), &*owner.id.short());
            self.emit(&Event::ClientLinkFailed { server, session, reason: &reason, repeated });
        }
        let error = self.slot.failure_error(&reason, None);
        self.table.meter.record_failure(&reason);
        self.record_failure(reason.clone());
        self.drop_notifications();
        self.slot.publish_failure(reason, error, None);
        self.settle_lists();
    }

    /// Records a failure. Returns the pause before the next attempt.
    fn record_failure(&mut self, reason: String) -> Duration {
        let now = Instant::now();
        let pause = self.health.failed(now, health::jitter());
        self.pause_ends = now + pause;
        self.last_failure = Some(reason);
        pause
    }

    fn publish_lost(&mut self, reason: &str) {
        self.table.meter.record_failure(reason);
        self.drop_notifications();
        self.slot.publish(BackendState::Lost(reason.to_owned()));
    }

    fn report_connected(&self, connected: &ConnectedLink, took: Duration) {
        let server = self.table.context.events.server();
        match &self.slot.owner {
            Some(owner) => self.emit(&Event::ClientLinkOpened { server, session: &owner.id.short(), took }),
            None => {
                let (transport, version) = (connected.link.transport(), connected.hello.dialect.as_str());
                self.emit(&Event::BackendReady { server, transport, version, took });
            }
        }
    }

    fn emit(&self, event: &Event<'_>) {
        self.table.deps.observe.emit(event);
    }
}

/// Waits until `stop` is `true`.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which also stops the supervisor.
    let _ = stop.wait_for(|stop| *stop).await;
}
