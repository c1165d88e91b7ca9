//! The actor of one backend: connects, initializes, fetches the lists and reconnects after a loss.
//!
//! The actor owns the connection. It alone publishes the link, the listing and the state of its [`Backend`]. Each
//! backend has its own actor and no other task waits for it, so a slow or hanging backend delays only its own callers.
//! A lost backend keeps its listing. A list changes only after a complete fetch.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use goblin_catalog::listing::{Definition, List, Listing};
use goblin_client::connect::ProxyEnvironment;
use goblin_config::{Policies, Server, ServerId, Sharing};
use goblin_telemetry::meter::Meter;
use goblin_telemetry::{Event, Observe, worker};
use goblin_wire::{Hello, Method};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::client::caller::Level;
use crate::upstream::calls_only::CallsOnlyLink;
use crate::upstream::client_links::ClientLinks;
use crate::upstream::dial::{DialParams, Dialler};
use crate::upstream::era::LinkScope;
use crate::upstream::events::{BackendEvents, ExposedUris};
use crate::upstream::fetch::{
    self, FetchBudget, FetchedList, ListingError, MAX_LIST_BYTES, SkippedTool, leave_out_misannotated,
};
use crate::upstream::health::{self, Health};
use crate::upstream::inbound::InboundHandler;
use crate::upstream::link::{Link, LinkEnd, LinkError, shared_capabilities};
use crate::upstream::server_request::Translate;
use crate::upstream::subscriptions::SETTLED_AFTER;
use crate::upstream::{Backend, BackendState, problem};

/// The shortest time between two fetches of the lists. A burst of change notifications costs a few fetches per second.
const REFRESH_INTERVAL: Duration = Duration::from_millis(300);

/// Lists that arrive within this time are published together.
const LISTS_TOGETHER: Duration = Duration::from_secs(2);
/// The time after which a failed list is fetched again.
const LIST_RETRY: Duration = Duration::from_secs(30);
/// The number of left-out tools that one listing reports in the log. The status shows all of them.
const MAX_REPORTED: usize = 100;
/// A session that the backend forgets sooner than this is short. The second short session in a row counts as a failure.
pub(crate) const MIN_SESSION: Duration = Duration::from_secs(1);

/// The dependencies that all actors share.
#[derive(Clone)]
pub(crate) struct BackendDeps {
    pub policies: Policies,
    pub observe: Arc<Observe>,
    /// The gateway's own executable, which also runs as the guard of child processes.
    pub exe: PathBuf,
    pub proxies: ProxyEnvironment,
    pub translate: Arc<dyn Translate>,
    /// Notified when a listing changed.
    pub bell: Arc<Notify>,
    /// The lowest log level that a client requested.
    pub level: watch::Receiver<Option<Level>>,
}

/// Starts the actor of a backend and returns the backend's handle. `meter` and `uris` are those of a replaced backend.
/// The actor runs until `stop` is `true` or its sender is dropped.
pub(crate) fn start(
    id: ServerId,
    config: Arc<Server>,
    meter: Arc<Meter>,
    uris: Arc<ArcSwapOption<ExposedUris>>,
    deps: BackendDeps,
    stop: watch::Receiver<bool>,
) -> (Arc<Backend>, JoinHandle<()>) {
    let dialler = Arc::new(Dialler::new(Arc::clone(&config), &deps));
    let inbox = BackendEvents::new(id.clone(), Arc::clone(&deps.observe), uris, Arc::clone(&deps.translate));
    let mut backend = Backend::new(id, config, &deps.policies, inbox);
    backend.meter = meter;
    if backend.config.session == Sharing::PerClient {
        let patience = deps.policies.ask_timeout;
        backend.own = Some(ClientLinks::new(&backend, Arc::clone(&dialler), patience, stop.clone()));
    }
    if backend.config.session == Sharing::Shared {
        backend.calls_only = Some(CallsOnlyLink::new(deps.clone(), Arc::clone(&dialler), stop.clone()));
    }
    let backend = Arc::new(backend);
    let actor = Actor::new(Arc::clone(&backend), deps, dialler, stop);
    (backend, worker::spawn(actor.run()))
}

pub(crate) struct Actor {
    backend: Arc<Backend>,
    deps: BackendDeps,
    dialler: Arc<Dialler>,
    stop: watch::Receiver<bool>,
    health: Health,
    /// The number of short sessions in a row.
    short_sessions: u32,
    /// The last failure that was reported since the last successful connection. A repetition of it is logged at a lower
    /// level.
    told: Option<String>,
    has_dialled: bool,
    /// The clients that the link serves: all of them, or only the calls of clients with a handshake.
    whom: LinkScope,
}

/// The reason why the actor leaves a connection.
enum DisconnectReason {
    Stopped,
    Lost(LinkEnd),
}

impl Actor {
    fn new(backend: Arc<Backend>, deps: BackendDeps, dialler: Arc<Dialler>, stop: watch::Receiver<bool>) -> Actor {
        let (health, short_sessions, told, has_dialled, whom) = (Health::default(), 0, None, false, LinkScope::All);
        Actor { backend, deps, dialler, stop, health, short_sessions, told, has_dialled, whom }
    }

    /// Creates the actor of a second link that carries only calls. The first link fetches the lists and keeps the
    /// subscriptions.
    pub(crate) fn beside(
        backend: Arc<Backend>,
        deps: BackendDeps,
        dialler: Arc<Dialler>,
        stop: watch::Receiver<bool>,
    ) -> Actor {
        Actor { whom: LinkScope::HandshakeOnly, ..Actor::new(backend, deps, dialler, stop) }
    }

    /// Connects and serves until the actor is stopped. After a loss, waits for the pause that [`Health`] returns and
    /// connects again.
    pub(crate) async fn run(mut self) {
        loop {
            let left = match self.connect().await {
                Ok(Some((link, hello))) => {
                    let begin = Instant::now();
                    let left = match self.whom {
                        LinkScope::HandshakeOnly => self.serve_calls(&link, &hello).await,
                        LinkScope::All | LinkScope::WithHandshake => self.serve_all(&link, &hello).await,
                    };
                    let left = self.judge(left, begin.elapsed());
                    self.backend.link.store(None);
                    if let DisconnectReason::Lost(LinkEnd::Lost(reason)) = &left {
                        // Publish the loss before closing the link, which can take seconds. Calls must fail at once.
                        self.publish_state(BackendState::Lost(reason.clone()));
                        self.emit(&Event::BackendLost { server: self.backend.id.as_str(), reason });
                        self.told = Some(problem::gist(reason).to_owned());
                    }
                    link.close().await;
                    left
                }
                Ok(None) => DisconnectReason::Stopped,
                Err(reason) => DisconnectReason::Lost(LinkEnd::Lost(reason)),
            };
            let pause = match left {
                DisconnectReason::Stopped => break,
                // The backend refuses the handshake, so this second link cannot exist. A later call starts a new actor.
                _ if self.whom == LinkScope::HandshakeOnly && !self.dialler.eras.may_have_both(Instant::now()) => break,
                // The backend is alive and only forgot the session, so reconnect without a pause.
                DisconnectReason::Lost(LinkEnd::Forgotten) => continue,
                DisconnectReason::Lost(LinkEnd::Lost(reason)) => self.after_loss(reason),
            };
            tokio::select! {
                () = stopped(&mut self.stop) => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.publish_state(BackendState::Stopped);
        if let Some(own) = &self.backend.own {
            own.ended().await;
        }
        if let Some(calls_only) = &self.backend.calls_only {
            calls_only.ended().await;
        }
    }

    /// Keeps the listing and the subscriptions up to date until the connection ends.
    async fn serve_all(&mut self, link: &Arc<Link>, hello: &Arc<Hello>) -> DisconnectReason {
        let register = Arc::clone(&self.backend.register);
        self.backend.list_connected();
        register.link_up(hello.capabilities.subscribe);
        let left = tokio::select! {
            left = self.serve(link, hello) => left,
            never = register.keep(link, hello) => match never {},
        };
        register.link_down();
        left
    }

    /// Publishes the link for calls and forwards log levels until the connection ends.
    async fn serve_calls(&mut self, link: &Arc<Link>, hello: &Hello) -> DisconnectReason {
        self.backend.link.store(Some(Arc::clone(link)));
        self.publish_state(BackendState::Ready);
        let mut level = self.deps.level.clone();
        level.mark_changed();
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => return DisconnectReason::Stopped,
                end = link.closed() => return DisconnectReason::Lost(end),
                Ok(()) = level.changed() => {
                    let lowest = *level.borrow_and_update();
                    self.set_level(link, hello, lowest);
                }
            }
        }
    }

    /// Turns the second short session in a row into a loss. A backend that forgets every session at once is unusable,
    /// and the actor would reconnect without a pause for ever.
    fn judge(&mut self, left: DisconnectReason, lasted: Duration) -> DisconnectReason {
        let is_short = matches!(left, DisconnectReason::Lost(LinkEnd::Forgotten)) && lasted < MIN_SESSION;
        self.short_sessions = if is_short { self.short_sessions.saturating_add(1) } else { 0 };
        match self.short_sessions {
            0 | 1 => left,
            _ => DisconnectReason::Lost(LinkEnd::Lost("it forgets every session at once".to_owned())),
        }
    }

    /// Records and reports a failure. Returns the pause before the next attempt.
    fn after_loss(&mut self, reason: String) -> Duration {
        let pause = self.health.failed(Instant::now(), health::jitter());
        let repeated = self.told.as_deref() == Some(problem::gist(&reason));
        self.told = Some(problem::gist(&reason).to_owned());
        let server = self.backend.id.as_str();
        self.emit(&Event::BackendFailed { server, reason: &reason, retry_in: pause, repeated });
        self.backend.refreshing.store(false, Ordering::Release);
        self.publish_state(BackendState::Lost(reason));
        self.backend.settled.send_replace(true);
        pause
    }

    /// Returns an initialized link. Returns `None` if the actor was stopped first.
    async fn connect(&mut self) -> Result<Option<(Arc<Link>, Arc<Hello>)>, String> {
        let begin = Instant::now();
        if std::mem::replace(&mut self.has_dialled, true) {
            self.backend.meter.restarted();
        }
        let (register, config) = (&self.backend.register, &self.backend.config);
        let patience = self.deps.policies.ask_timeout;
        let greeting = DialParams {
            capabilities: &shared_capabilities(config),
            inbound: || InboundHandler::shared(Arc::clone(register), config, patience),
            whom: self.whom,
            is_retry: self.told.is_some(),
        };
        let Some((link, hello)) = self.dialler.dial(greeting, stopped(&mut self.stop)).await? else { return Ok(None) };
        self.health.connected(Instant::now());
        self.told = None;
        let (server, transport, version) = (self.backend.id.as_str(), link.transport(), hello.dialect.as_str());
        self.emit(&Event::BackendReady { server, transport, version, took: begin.elapsed() });
        Ok(Some((link, hello)))
    }

    /// Fetches all lists, then the changed ones, until the connection ends.
    async fn serve(&mut self, link: &Arc<Link>, hello: &Arc<Hello>) -> DisconnectReason {
        self.backend.refreshing.store(true, Ordering::Release);
        // The first fetch covers all lists, so marks from before are obsolete.
        self.backend.inbox.take_changes();
        let begin = Instant::now();
        self.backend.link.store(Some(Arc::clone(link)));
        self.publish_state(BackendState::Ready);
        let mut wanted = List::ALL.to_vec();
        let mut level = self.deps.level.clone();
        level.mark_changed();
        let mut fetched = tokio::time::Instant::now();
        let mut is_early = false;
        loop {
            if !wanted.is_empty() {
                let mut stop = self.stop.clone();
                tokio::select! {
                    biased;
                    () = stopped(&mut stop) => return DisconnectReason::Stopped,
                    end = link.closed() => return DisconnectReason::Lost(end),
                    refreshed = self.refresh(link, hello, &wanted, begin.elapsed() >= SETTLED_AFTER) => match refreshed {
                        Ok(was_early) => is_early |= was_early,
                        Err(reason) => return DisconnectReason::Lost(LinkEnd::Lost(reason)),
                    },
                }
                wanted.clear();
                fetched = tokio::time::Instant::now();
            }
            let failed: Vec<_> = self.backend.failed_lists().into_iter().map(|(list, _)| list).collect();
            let due = async {
                self.backend.inbox.changes().await;
                tokio::time::sleep_until(fetched + REFRESH_INTERVAL).await;
            };
            let mut stop = self.stop.clone();
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return DisconnectReason::Stopped,
                end = link.closed() => return DisconnectReason::Lost(end),
                () = due => {
                    self.backend.refreshing.store(true, Ordering::Release);
                    wanted = self.backend.inbox.take_changes();
                }
                () = tokio::time::sleep_until((begin + SETTLED_AFTER).into()), if is_early => {
                    is_early = false;
                    self.backend.inbox.mark(&[List::Resources, List::Templates]);
                }
                () = tokio::time::sleep_until(fetched + LIST_RETRY), if !failed.is_empty() => {
                    self.backend.inbox.mark(&failed);
                }
                Ok(()) = level.changed() => {
                    let lowest = *level.borrow_and_update();
                    self.set_level(link, hello, lowest);
                }
            }
        }
    }

    /// Fetches `lists` concurrently and publishes them together. Lists that arrive before a slow one are published
    /// after [`LISTS_TOGETHER`]. A list that fails keeps its last entries.
    ///
    /// Returns an error if the connection broke: over HTTP nothing else may notice the break, and the list would stay
    /// stale. Returns `true` if a register needs a second fetch once the connection has settled.
    async fn refresh(&self, link: &Link, hello: &Arc<Hello>, lists: &[List], is_settled: bool) -> Result<bool, String> {
        self.backend.list_begins();
        let budget = FetchBudget::new(&self.deps.observe.memory);
        let fetch = async |list: List| {
            if list.is_offered(hello) {
                return (list, self.fetch(link, list, &budget).await);
            }
            self.backend.set_failed(list, None);
            (list, Ok(Some(budget.nothing())))
        };
        let mut fetches: FuturesUnordered<_> = lists.iter().map(|list| fetch(*list)).collect();
        let mut fetched = Vec::new();
        let mut is_early = false;
        let together = tokio::time::Instant::now() + LISTS_TOGETHER;
        loop {
            tokio::select! {
                next = fetches.next() => match next {
                    Some((list, fresh)) => fetched.extend(fresh?.map(|fresh| (list, fresh))),
                    None => break,
                },
                () = tokio::time::sleep_until(together), if !fetched.is_empty() => {
                    is_early |= self.publish(hello, std::mem::take(&mut fetched), is_settled).await;
                }
            }
        }
        is_early |= self.publish(hello, fetched, is_settled).await;
        self.backend.refreshing.store(false, Ordering::Release);
        self.backend.settled.send_replace(true);
        Ok(is_early)
    }

    /// Publishes the fetched lists that differ from the current ones. Only this actor writes the listing, so reading
    /// and storing it without a lock is safe. If this future is dropped before `relisted` completes, the registers
    /// compare the next lists with the ones they know.
    async fn publish(&self, hello: &Arc<Hello>, fetched: Vec<(List, FetchedList)>, is_settled: bool) -> bool {
        let mut listing = Listing::clone(&self.backend.listing());
        let mut differs = listing.hello.as_ref() != Some(hello);
        let has = |wanted: List| fetched.iter().any(|(list, _)| *list == wanted);
        let (has_resources, has_templates) = (has(List::Resources), has(List::Templates));
        listing.hello = Some(Arc::clone(hello));
        for (list, fresh) in fetched {
            if **listing.get(list) == fresh.entries {
                continue;
            }
            let before = listing.clone();
            listing.set(list, fresh.entries, fresh.reserved);
            differs = true;
            // The lists of one fetch fit together. Lists of earlier fetches may have left too little space.
            if listing.weight() > MAX_LIST_BYTES {
                listing = before;
                self.list_refused(list, ListingError::too_large());
            }
        }
        if differs {
            self.backend.set_listing(listing);
            self.deps.bell.notify_one();
        }
        (has_resources || has_templates) && self.backend.relisted(is_settled, has_resources).await
    }

    /// Fetches one list. Returns `None` if the list keeps its last entries, and an error if the connection broke.
    async fn fetch(&self, link: &Link, list: List, budget: &FetchBudget) -> Result<Option<FetchedList>, String> {
        match fetch::fetch(link, list, self.deps.policies.start_timeout, budget).await {
            Ok(mut fetched) => {
                self.backend.set_failed(list, None);
                if list == List::Tools {
                    let Some(tools) = self.leave_out(link, fetched.entries).await else { return Ok(None) };
                    fetched.entries = tools;
                }
                Ok(Some(fetched))
            }
            Err(ListingError::Failed(LinkError::Closed { reason, .. })) => Err(reason),
            // The link reports the lost session itself, through `Link::closed`.
            Err(ListingError::Failed(LinkError::SessionLost)) => Ok(None),
            Err(refused) => {
                self.list_refused(list, refused);
                Ok(None)
            }
        }
    }

    /// Reports that a list keeps its last entries. The actor fetches the list again after [`LIST_RETRY`].
    fn list_refused(&self, list: List, refused: ListingError) {
        let reason = match refused {
            ListingError::Failed(error) => error.to_string(),
            ListingError::TooLarge { limit, reason } => {
                self.deps.observe.limit_hit(limit);
                reason
            }
        };
        let (server, method) = (self.backend.id.as_str(), list.method());
        self.emit(&Event::BackendListFailed { server, method: method.as_str(), reason: &reason });
        self.backend.set_failed(list, Some(reason));
        if list == List::Resources {
            self.backend.list_failed();
        }
    }

    /// Removes the tools that must not be called over this link. Reports each of them once. Returns `None` if the
    /// gateway shuts down.
    async fn leave_out(&self, link: &Link, mut tools: Vec<Definition>) -> Option<Vec<Definition>> {
        let (mut left_out, mut fresh) = (Vec::new(), Vec::new());
        if link.repeats_arguments() {
            let before = self.backend.left_out();
            (tools, left_out, fresh) = worker::offload(move || {
                let left_out = leave_out_misannotated(&mut tools);
                let before: HashSet<_> = before.iter().collect();
                let fresh: Vec<_> =
                    left_out.iter().filter(|it| !before.contains(it)).take(MAX_REPORTED).cloned().collect();
                (tools, left_out, fresh)
            })
            .await?;
        }
        self.backend.set_left_out(left_out);
        for SkippedTool { tool, reason } in &fresh {
            self.emit(&Event::ToolLeftOut { server: self.backend.id.as_str(), tool, reason });
        }
        Some(tools)
    }

    /// Sends the lowest requested log level to the backend, in the background.
    fn set_level(&self, link: &Arc<Link>, hello: &Hello, lowest: Option<Level>) {
        // A link that only fetches lists carries no calls, so no client receives its log messages.
        let lowest = lowest.filter(|_| self.backend.own.is_none() && hello.dialect.has_handshake());
        let Some(level) = lowest.filter(|_| hello.capabilities.logging) else { return };
        let link = Arc::clone(link);
        let params = format!(r#"{{"level":"{}"}}"#, level.as_str());
        let patience = self.deps.policies.start_timeout;
        worker::spawn(async move { tokio::time::timeout(patience, link.ask(&Method::SetLevel, &params)).await });
    }

    fn publish_state(&self, state: BackendState) {
        self.backend.state.send_replace(state);
    }

    fn emit(&self, event: &Event<'_>) {
        self.deps.observe.emit(event);
    }
}

/// Waits until `stop` is `true`.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which also stops the actor.
    let _ = stop.wait_for(|stop| *stop).await;
}
