//! The life of one backend: dial, shake hands, list, listen, and begin again.
//!
//! Owns the connection and the right to publish link, listing and state. A backend that is down, slow or hangs delays
//! nobody but its own callers: each has its own actor, and nothing waits for it.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::upstream::ask::Translate;
use goblin_client::connect::ProxyEnvironment;
use crate::upstream::dial::{Dialler, Greeting};
use crate::upstream::ear::Ear;
use crate::upstream::era::For;
use crate::upstream::health::{self, Health};
use goblin_catalog::listing::{Definition, List, Listing};
use crate::upstream::link::{End, Link, LinkError, shared_capabilities};
use goblin_wire::hello::Hello;
use crate::upstream::listing::{
    self, Budget, Fetched, LeftOut, MAX_LIST_BYTES, Refused, leave_out_misannotated,
};
use crate::upstream::own::OwnLinks;
use crate::upstream::register::SETTLED_AFTER;
use crate::upstream::trouble;
use crate::upstream::twin::Twin;
use crate::upstream::{Backend, State};
use crate::client::caller::Level;
use goblin_config::{Policies, Server, ServerId, Sharing};
use goblin_telemetry::meter::Meter;
use goblin_telemetry::{Event, Observe};
use goblin_wire::method::Method;
use goblin_telemetry::worker;

/// At least this long between two fetches of the lists: a storm of changes costs a few fetches a second, not thousands.
const REFRESH_INTERVAL: Duration = Duration::from_millis(300);

/// Lists that come within this time are published together.
const LISTS_TOGETHER: Duration = Duration::from_secs(2);
/// A list that could not be fetched is tried again after this.
const LIST_RETRY: Duration = Duration::from_secs(30);
/// How many of the tools that a listing leaves out are reported in the log. The status shows all.
const MAX_REPORTED: usize = 100;
/// A session that was forgotten sooner than this was a short one; the second in a row counts as a failure.
pub(super) const SHORTEST_SESSION: Duration = Duration::from_secs(1);

/// What every actor needs from outside.
#[derive(Clone)]
pub struct Surroundings {
    pub policies: Policies,
    pub observe: Arc<Observe>,
    /// Our own executable, which is also the guard of child processes.
    pub exe: PathBuf,
    pub proxies: ProxyEnvironment,
    pub translate: Arc<dyn Translate>,
    /// Rung when a listing changed.
    pub bell: Arc<Notify>,
    /// The lowest log level any client asked for.
    pub level: watch::Receiver<Option<Level>>,
}

/// Starts a backend, which goes on with `meter`. It lives until the sender of `stop` says so or is gone.
pub fn start(
    id: ServerId,
    config: Arc<Server>,
    meter: Arc<Meter>,
    surroundings: Surroundings,
    stop: watch::Receiver<bool>,
) -> (Arc<Backend>, JoinHandle<()>) {
    let dialler = Arc::new(Dialler::new(Arc::clone(&config), &surroundings));
    let (observe, translate) = (Arc::clone(&surroundings.observe), Arc::clone(&surroundings.translate));
    let mut backend = Backend::new(id, config, &surroundings.policies, observe, translate);
    backend.meter = meter;
    if backend.config.session == Sharing::PerClient {
        let patience = surroundings.policies.ask_timeout;
        backend.own = Some(OwnLinks::new(&backend, Arc::clone(&dialler), patience, stop.clone()));
    }
    if backend.config.session == Sharing::Shared {
        backend.twin = Some(Twin::new(surroundings.clone(), Arc::clone(&dialler), stop.clone()));
    }
    let backend = Arc::new(backend);
    let actor = Actor::new(Arc::clone(&backend), surroundings, dialler, stop);
    (backend, worker::spawn(actor.run()))
}

pub struct Actor {
    backend: Arc<Backend>,
    surroundings: Surroundings,
    dialler: Arc<Dialler>,
    stop: watch::Receiver<bool>,
    health: Health,
    /// How many sessions in a row were forgotten at once.
    short_sessions: u32,
    /// The last failure that was told, since there was a connection.
    told: Option<String>,
    has_dialled: bool,
    /// For whom the link is: all, or only the calls of clients that want another one.
    whom: For,
}

/// Why the actor leaves a connection.
enum Left {
    Stopped,
    Lost(End),
}

impl Actor {
    fn new(
        backend: Arc<Backend>,
        surroundings: Surroundings,
        dialler: Arc<Dialler>,
        stop: watch::Receiver<bool>,
    ) -> Actor {
        let (health, short_sessions, told, has_dialled, whom) = (Health::default(), 0, None, false, For::All);
        Actor { backend, surroundings, dialler, stop, health, short_sessions, told, has_dialled, whom }
    }

    /// Of a link beside another, which lists and subscribes already.
    pub fn beside(
        backend: Arc<Backend>,
        surroundings: Surroundings,
        dialler: Arc<Dialler>,
        stop: watch::Receiver<bool>,
    ) -> Actor {
        Actor { whom: For::HandshakeOnly, ..Actor::new(backend, surroundings, dialler, stop) }
    }

    pub async fn run(mut self) {
        loop {
            let left = match self.connect().await {
                Ok(Some((link, hello))) => {
                    let begin = Instant::now();
                    let left = match self.whom {
                        For::HandshakeOnly => self.serve_calls(&link, &hello).await,
                        For::All | For::WithHandshake => self.serve_all(&link, &hello).await,
                    };
                    let left = self.judge(left, begin.elapsed());
                    self.backend.link.store(None);
                    if let Left::Lost(End::Lost(reason)) = &left {
                        // Before the link is closed, which may take its time: nobody shall wait for a lost backend.
                        self.publish_state(State::Lost(reason.clone()));
                        self.emit(&Event::BackendLost { server: self.backend.id.as_str(), reason });
                        self.told = Some(trouble::gist(reason).to_owned());
                    }
                    link.close().await;
                    left
                }
                Ok(None) => Left::Stopped,
                Err(reason) => Left::Lost(End::Lost(reason)),
            };
            let pause = match left {
                Left::Stopped => break,
                // It has no other side; whoever asks again later begins anew.
                _ if self.whom == For::HandshakeOnly && !self.dialler.eras.may_have_both(Instant::now()) => break,
                // The backend lives, it only forgot us.
                Left::Lost(End::Forgotten) => continue,
                Left::Lost(End::Lost(reason)) => self.after_loss(reason),
            };
            tokio::select! {
                () = stopped(&mut self.stop) => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.publish_state(State::Stopped);
        if let Some(own) = &self.backend.own {
            own.ended().await;
        }
        if let Some(twin) = &self.backend.twin {
            twin.ended().await;
        }
    }

    /// Keeps listing and subscriptions until the connection ends.
    async fn serve_all(&mut self, link: &Arc<Link>, hello: &Arc<Hello>) -> Left {
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

    /// Lends the link to calls, until the connection ends.
    async fn serve_calls(&mut self, link: &Arc<Link>, hello: &Hello) -> Left {
        self.backend.link.store(Some(Arc::clone(link)));
        self.publish_state(State::Ready);
        let mut level = self.surroundings.level.clone();
        level.mark_changed();
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut self.stop) => return Left::Stopped,
                end = link.closed() => return Left::Lost(end),
                Ok(()) = level.changed() => {
                    let lowest = *level.borrow_and_update();
                    self.set_level(link, hello, lowest);
                }
            }
        }
    }

    /// A backend that forgets every session at once cannot be used; dialling again without a pause would go on for ever.
    fn judge(&mut self, left: Left, lasted: Duration) -> Left {
        let is_short = matches!(left, Left::Lost(End::Forgotten)) && lasted < SHORTEST_SESSION;
        self.short_sessions = if is_short { self.short_sessions.saturating_add(1) } else { 0 };
        match self.short_sessions {
            0 | 1 => left,
            _ => Left::Lost(End::Lost("it forgets every session at once".to_owned())),
        }
    }

    fn after_loss(&mut self, reason: String) -> Duration {
        let pause = self.health.failed(Instant::now(), health::jitter());
        let repeated = self.told.as_deref() == Some(trouble::gist(&reason));
        self.told = Some(trouble::gist(&reason).to_owned());
        let server = self.backend.id.as_str();
        self.emit(&Event::BackendFailed { server, reason: &reason, retry_in: pause, repeated });
        self.backend.refreshing.store(false, Ordering::Release);
        self.publish_state(State::Lost(reason));
        self.backend.settled.send_replace(true);
        pause
    }

    /// A link with its handshake done, or nothing when we were told to stop.
    async fn connect(&mut self) -> Result<Option<(Arc<Link>, Arc<Hello>)>, String> {
        let begin = Instant::now();
        if std::mem::replace(&mut self.has_dialled, true) {
            self.backend.meter.restarted();
        }
        let (register, config) = (&self.backend.register, &self.backend.config);
        let patience = self.surroundings.policies.ask_timeout;
        let greeting = Greeting {
            capabilities: &shared_capabilities(config),
            ear: || Ear::shared(Arc::clone(register), config, patience),
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

    /// Keeps the listing fresh until the connection ends.
    async fn serve(&mut self, link: &Arc<Link>, hello: &Arc<Hello>) -> Left {
        self.backend.refreshing.store(true, Ordering::Release);
        // What was marked before is part of the first fetch.
        self.backend.inbox.take_changes();
        let begin = Instant::now();
        self.backend.link.store(Some(Arc::clone(link)));
        self.publish_state(State::Ready);
        let mut wanted = List::ALL.to_vec();
        let mut level = self.surroundings.level.clone();
        level.mark_changed();
        let mut fetched = tokio::time::Instant::now();
        let mut is_early = false;
        loop {
            if !wanted.is_empty() {
                let mut stop = self.stop.clone();
                tokio::select! {
                    biased;
                    () = stopped(&mut stop) => return Left::Stopped,
                    end = link.closed() => return Left::Lost(end),
                    refreshed = self.refresh(link, hello, &wanted, begin.elapsed() >= SETTLED_AFTER) => match refreshed {
                        Ok(was_early) => is_early |= was_early,
                        Err(reason) => return Left::Lost(End::Lost(reason)),
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
                () = stopped(&mut stop) => return Left::Stopped,
                end = link.closed() => return Left::Lost(end),
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

    /// Fetches `lists` side by side and publishes them together; but one that takes long hides no other. A list that fails
    /// keeps its last entries; where the connection broke, that is the error: over HTTP nothing else might notice, and the
    /// list would stay as it was for good. Tells whether the backend was asked too early to have them all.
    async fn refresh(&self, link: &Link, hello: &Arc<Hello>, lists: &[List], is_settled: bool) -> Result<bool, String> {
        self.backend.list_begins();
        let budget = Budget::new(&self.surroundings.observe.memory);
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

    /// Publishes fresh lists where they differ. Nobody but this actor does, so nothing comes between reading and writing.
    /// Dropped before subscriptions know of the lists, the next lists are compared with what they knew.
    async fn publish(&self, hello: &Arc<Hello>, fetched: Vec<(List, Fetched)>, is_settled: bool) -> bool {
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
            // The lists of this fetch fit together. Those of another fetch may have left too little room.
            if listing.weight() > MAX_LIST_BYTES {
                listing = before;
                self.list_refused(list, Refused::too_large());
            }
        }
        if differs {
            self.backend.set_listing(listing);
            self.surroundings.bell.notify_one();
        }
        (has_resources || has_templates) && self.backend.relisted(is_settled, has_resources).await
    }

    async fn fetch(&self, link: &Link, list: List, budget: &Budget) -> Result<Option<Fetched>, String> {
        match listing::fetch(link, list, self.surroundings.policies.start_timeout, budget).await {
            Ok(mut fetched) => {
                self.backend.set_failed(list, None);
                if list == List::Tools {
                    let Some(tools) = self.leave_out(link, fetched.entries).await else { return Ok(None) };
                    fetched.entries = tools;
                }
                Ok(Some(fetched))
            }
            Err(Refused::Failed(LinkError::Closed { reason, .. })) => Err(reason),
            // The link says so itself.
            Err(Refused::Failed(LinkError::SessionLost)) => Ok(None),
            Err(refused) => {
                self.list_refused(list, refused);
                Ok(None)
            }
        }
    }

    /// Reports that a list keeps its last entries. The list is fetched again after [`LIST_RETRY`].
    fn list_refused(&self, list: List, refused: Refused) {
        let reason = match refused {
            Refused::Failed(error) => error.to_string(),
            Refused::TooLarge { limit, reason } => {
                self.surroundings.observe.limit_hit(limit);
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

    /// Returns the tools but those that must not be called over this link, and reports those that were not reported before.
    /// Returns `None` if the gateway shuts down.
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
        for LeftOut { tool, reason } in &fresh {
            self.emit(&Event::ToolLeftOut { server: self.backend.id.as_str(), tool, reason });
        }
        Some(tools)
    }

    fn set_level(&self, link: &Arc<Link>, hello: &Hello, lowest: Option<Level>) {
        // A link that only lists has no calls, so nobody's log lines either.
        let lowest = lowest.filter(|_| self.backend.own.is_none() && hello.dialect.has_handshake());
        let Some(level) = lowest.filter(|_| hello.capabilities.logging) else { return };
        let link = Arc::clone(link);
        let params = format!(r#"{{"level":"{}"}}"#, level.as_str());
        let patience = self.surroundings.policies.start_timeout;
        worker::spawn(async move { tokio::time::timeout(patience, link.ask(&Method::SetLevel, &params)).await });
    }

    fn publish_state(&self, state: State) {
        self.backend.state.send_replace(state);
    }

    fn emit(&self, event: &Event<'_>) {
        self.surroundings.observe.emit(event);
    }
}

/// Waits for the word to stop.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody is left who could say it.
    let _ = stop.wait_for(|stop| *stop).await;
}
