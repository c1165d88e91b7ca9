//! The links of one backend: the slot of each link, and the table of the links beside the shared one.
//!
//! A backend that gives each client its own link (`"session": "per-client"`) connects the link at the client's first
//! list or call: a process or a session of its own, with the capabilities that the client declared. Messages on that
//! link go to that client alone, and no other client uses it. The link fetches its own lists, which the client gets.
//! The listing of the shared link serves clients whose own link is not connected.
//!
//! A shared backend without a handshake may have a second link with one. A server may support both protocol
//! generations while one of its tools works in only one of them, because server requests differ. The gateway therefore
//! serves a client in its own generation if possible. The second link is connected when the first such client makes a
//! call. It carries only calls; lists and subscriptions stay with the first link. While it is unreachable, its calls
//! use the first link.

mod subscriptions;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use goblin_config::Sharing;
use goblin_telemetry::meter::Meter;
use goblin_telemetry::{Event, worker};
use goblin_wire::Error;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};

use crate::client::Client;
use crate::client::call::Call;
use crate::client::caller::{Caller, Introduction, RunId, SessionId};
use crate::upstream::capacity::Capacity;
use crate::upstream::dial::BackendDialer;
use crate::upstream::inbound::LinkOwner;
use crate::upstream::link::Link;
use crate::upstream::listing_cache::CachedListing;
use crate::upstream::lists::LinkLists;
use crate::upstream::predecessor::PredecessorEnd;
use crate::upstream::problem::public;
use crate::upstream::subscriptions::{ManagerContext, SubscriptionManager};
use crate::upstream::supervisor::dropped::DropMark;
use crate::upstream::supervisor::{BackendDeps, LinkPolicy, Supervisor};
use crate::upstream::{BackendState, login_error};

/// The limit of a client's queued notifications. Further ones are dropped and counted.
const MAX_QUEUED_NOTIFICATIONS: usize = 64;
/// The longest wait of a call for an attempt to connect, and for the result of the attempt.
const LINK_TIMEOUT: Duration = Duration::from_secs(5);
/// The idle time after which a link of clients without a session is closed.
const UNUSED_AFTER: Duration = Duration::from_secs(300);
/// The number of references to a link that no call uses: one of its supervisor, one in its slot.
const IDLE_REFERENCES: usize = 2;

/// One link of a backend, connected or not. Only its supervisor publishes the link and the state.
pub struct LinkSlot {
    /// The subscriptions over the link. A second link has those of the first link and sends no requests for them.
    pub subscriptions: Arc<SubscriptionManager>,
    /// The client that the link belongs to. `None` if clients share it.
    pub owner: Option<LinkOwner>,
    link: ArcSwapOption<Link>,
    status: watch::Sender<LinkStatus>,
    /// The client's notifications for the backend.
    notifications: mpsc::Sender<Bytes>,
    /// Notified when the client requests another log level.
    pub level: Notify,
    created: Instant,
    /// The time at which a call last requested the link, in milliseconds since `created`.
    used: AtomicU64,
    /// The number of notification streams that need the link.
    listeners: Arc<AtomicUsize>,
}

/// Keeps a link connected for a notification stream.
pub(crate) struct ListenerGuard(Arc<AtomicUsize>);

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The state of a link, and the demand for it.
#[derive(Clone)]
struct LinkStatus {
    state: BackendState,
    /// Whether a call or a subscription needs the link, which is not connected.
    is_requested: bool,
    /// Whether an attempt to connect is under way.
    is_connecting: bool,
    /// The time of the next attempt without a request.
    retry_at: Option<Instant>,
    /// The number of failed attempts. A waiting call compares it to learn that its attempt has failed.
    failures: u64,
    /// The error of the last attempt.
    error: Option<Error>,
}

impl LinkStatus {
    /// Records that a call or a subscription needs the link. Reports whether that is new.
    fn request(&mut self) -> bool {
        let may_connect = match self.state {
            BackendState::Starting | BackendState::Lost(_) => true,
            BackendState::Ready | BackendState::LoginNeeded(_) | BackendState::Stopped => false,
        };
        may_connect && !std::mem::replace(&mut self.is_requested, true)
    }
}

impl LinkSlot {
    /// Creates the slot of a link that clients share.
    pub(crate) fn shared(subscriptions: Arc<SubscriptionManager>) -> LinkSlot {
        LinkSlot::new(subscriptions, None, mpsc::channel(1).0)
    }

    fn new(
        subscriptions: Arc<SubscriptionManager>,
        owner: Option<LinkOwner>,
        notifications: mpsc::Sender<Bytes>,
    ) -> LinkSlot {
        let status = LinkStatus {
            state: BackendState::Starting,
            is_requested: false,
            is_connecting: false,
            retry_at: None,
            failures: 0,
            error: None,
        };
        LinkSlot {
            subscriptions,
            owner,
            link: ArcSwapOption::empty(),
            status: watch::Sender::new(status),
            notifications,
            level: Notify::new(),
            created: Instant::now(),
            used: AtomicU64::new(0),
            listeners: Arc::default(),
        }
    }

    pub(crate) fn state(&self) -> BackendState {
        self.status.borrow().state.clone()
    }

    /// Returns the lists of the link.
    pub(crate) fn lists(&self) -> &Arc<LinkLists> {
        self.subscriptions.lists()
    }

    /// Returns the link, if it is connected.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.link.load_full()
    }

    /// Returns the transport of the link. Returns `None` if it is not connected.
    pub(crate) fn transport(&self) -> Option<&'static str> {
        self.link.load().as_ref().map(|link| link.transport())
    }

    /// Waits until the first attempt to connect has ended. Returns the state.
    pub(crate) async fn first_attempt(&self) -> BackendState {
        // `self` owns the sender, so the channel cannot close during the wait.
        let _ = self.status.subscribe().wait_for(|status| status.state != BackendState::Starting).await;
        self.state()
    }

    /// Waits for the link that follows `old`, at most [`LINK_TIMEOUT`] for the attempt and as long for its result. The
    /// first attempt of a client's own link is awaited to its end, because the client's call is its cause.
    pub(crate) async fn await_link(&self, old: Option<&Arc<Link>>) -> Result<Arc<Link>, Error> {
        let next = self.next_link(old);
        if self.owner.is_some() && self.state() == BackendState::Starting {
            return next.await;
        }
        let mut status = self.status.subscribe();
        let timeout = async {
            let attempt = status.wait_for(|status| status.is_connecting);
            let _ = tokio::time::timeout(LINK_TIMEOUT, attempt).await;
            tokio::time::sleep(LINK_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            link = next => link,
            () = timeout => Err(self.unavailable()),
        }
    }

    /// Waits for the link that follows `old`. Requests the link, and returns an error if the attempt fails. All
    /// waiting calls share one attempt and its result. The state remains [`BackendState::Ready`] while the supervisor
    /// of a shared link replaces a forgotten session.
    async fn next_link(&self, old: Option<&Arc<Link>>) -> Result<Arc<Link>, Error> {
        let mut status = self.status.subscribe();
        let mut seen_failures = None;
        loop {
            let LinkStatus { state, failures, error, .. } = status.borrow_and_update().clone();
            if let Some(link) = self.link().filter(|link| !old.is_some_and(|old| Arc::ptr_eq(old, link))) {
                return Ok(link);
            }
            if state.is_final() || matches!(state, BackendState::LoginNeeded(_)) {
                return Err(self.unavailable());
            }
            // In the state `Ready` the link has ended, and its supervisor is about to notice or to replace it.
            if state != BackendState::Ready {
                if *seen_failures.get_or_insert(failures) != failures {
                    return Err(error.unwrap_or_else(|| self.unavailable()));
                }
                self.request_after(failures);
            }
            if status.changed().await.is_err() {
                return Err(self.unavailable());
            }
        }
    }

    /// Returns the error for a call that has no link.
    pub(crate) fn unavailable(&self) -> Error {
        let LinkStatus { state, is_connecting, retry_at, .. } = self.status.borrow().clone();
        match state {
            BackendState::Starting => self.unavailable_error("it is starting", ""),
            BackendState::Ready => self.unavailable_error("it is reconnecting", ""),
            BackendState::Lost(reason) if is_connecting => {
                self.unavailable_error(&reason, "; the next attempt is under way")
            }
            BackendState::Lost(reason) => self.failure_error(&reason, retry_at),
            BackendState::LoginNeeded(_) => login_error(self.subscriptions.events().server(), false),
            BackendState::Stopped => self.unavailable_error("it was stopped", ""),
        }
    }

    /// Returns the error for a call after a failed attempt. It names the time of the next one.
    pub(crate) fn failure_error(&self, reason: &str, retry_at: Option<Instant>) -> Error {
        let pause = retry_at.map(|at| at.saturating_duration_since(Instant::now()).as_secs_f64().ceil());
        match pause {
            Some(seconds) => {
                self.unavailable_error(reason, &format!("; the next attempt comes in {seconds} s, or with a call"))
            }
            None => self.unavailable_error(reason, "; the next attempt comes with a call"),
        }
    }

    fn unavailable_error(&self, reason: &str, outlook: &str) -> Error {
        let server = self.subscriptions.events().server().to_owned();
        Error::BackendUnavailable { server, reason: public(reason) + outlook, sent: false }
    }

    /// Requests the link from its supervisor, unless it is connected or requested, or there is no further attempt.
    pub(crate) fn request(&self) {
        self.status.send_if_modified(LinkStatus::request);
    }

    /// Requests the link, unless an attempt has failed since `failures` was read. The waiting call gets that failure,
    /// so a request would trigger an attempt that no call needs.
    fn request_after(&self, failures: u64) {
        self.status.send_if_modified(|status| status.failures == failures && status.request());
    }

    /// Waits until a call needs the link.
    pub(crate) async fn requested(&self) {
        // `self` owns the sender, so the channel cannot close during the wait.
        let _ = self.status.subscribe().wait_for(|status| status.is_requested).await;
    }

    /// Waits until a call or a subscription needs the client's link. A subscription waits for `pause_ends`.
    pub(crate) async fn requested_by_owner(&self, pause_ends: Instant) {
        let subscribed = async {
            self.subscriptions.subscribed().await;
            tokio::time::sleep_until(pause_ends.into()).await;
        };
        tokio::select! {
            biased;
            () = self.requested() => {}
            // A subscribed client needs the link for updates, even if it makes no call.
            () = subscribed => self.request(),
        }
    }

    /// Publishes a connected link.
    pub(crate) fn publish_link(&self, link: &Arc<Link>) {
        self.link.store(Some(Arc::clone(link)));
        self.status.send_modify(|status| {
            status.state = BackendState::Ready;
            (status.is_requested, status.is_connecting) = (false, false);
            (status.retry_at, status.error) = (None, None);
        });
    }

    /// Removes the link, which has ended. The state is published separately.
    pub(crate) fn remove_link(&self) {
        self.link.store(None);
    }

    /// Publishes a state without a link. A request for the link stays.
    pub(crate) fn publish(&self, state: BackendState) {
        self.status.send_modify(|status| {
            (status.state, status.is_connecting) = (state, false);
            (status.retry_at, status.error) = (None, None);
        });
    }

    /// Publishes that an attempt to connect starts.
    pub(crate) fn publish_attempt(&self) {
        self.status.send_modify(|status| status.is_connecting = true);
    }

    /// Publishes the time of the next attempt after a lost connection.
    pub(crate) fn publish_retry(&self, retry_at: Instant) {
        self.status.send_modify(|status| status.retry_at = Some(retry_at));
    }

    /// Publishes that an attempt failed. The calls that wait for it get `error`.
    pub(crate) fn publish_failure(&self, reason: String, error: Error, retry_at: Option<Instant>) {
        self.status.send_modify(|status| {
            let (state, failures) = (BackendState::Lost(reason), status.failures + 1);
            let (is_requested, is_connecting, error) = (false, false, Some(error));
            *status = LinkStatus { state, is_requested, is_connecting, retry_at, failures, error };
        });
    }

    /// Publishes that the backend needs a login. The waiting calls get the error, and further ones get it at once.
    pub(crate) fn publish_login_needed(&self, reason: String) {
        // One change: an observer must not see a lost server in between.
        self.status.send_modify(|status| {
            let (state, failures) = (BackendState::LoginNeeded(reason), status.failures + 1);
            let (is_requested, is_connecting) = (false, false);
            *status = LinkStatus { state, is_requested, is_connecting, retry_at: None, failures, error: None };
        });
    }

    /// Keeps a link of clients without a session connected until the guard is dropped.
    pub(crate) fn hold(&self) -> ListenerGuard {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        ListenerGuard(Arc::clone(&self.listeners))
    }

    fn touch(&self) {
        let used = self.created.elapsed().as_millis();
        self.used.store(u64::try_from(used).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Waits until the client of this link is gone, or a link of clients without a session is idle. Waits for ever if
    /// clients share the link.
    pub(crate) async fn abandoned(&self) {
        match &self.owner {
            Some(LinkOwner { caller: Caller { session: Some(_), .. }, client, .. }) => client.closed().await,
            Some(owner) => tokio::select! {
                () = owner.client.closed() => {}
                () = self.unused() => {}
            },
            None => std::future::pending().await,
        }
    }

    /// Waits until no call used the link for a while and it has no subscriptions.
    async fn unused(&self) {
        loop {
            tokio::time::sleep(UNUSED_AFTER / 5).await;
            let used = self.created + Duration::from_millis(self.used.load(Ordering::Relaxed));
            let is_in_use = matches!(&*self.link.load(), Some(link) if Arc::strong_count(link) > IDLE_REFERENCES);
            let is_needed = self.listeners.load(Ordering::Relaxed) > 0 || !self.subscriptions.is_empty();
            if !is_in_use && !is_needed && used.elapsed() >= UNUSED_AFTER {
                return;
            }
        }
    }
}

/// The links of one backend beside its shared link, and the dependencies of their supervisors.
pub(crate) struct LinkTable {
    pub context: ManagerContext,
    pub meter: Arc<Meter>,
    pub deps: BackendDeps,
    pub dialer: BackendDialer,
    /// The file of the listing, if it is cached.
    pub cached: Option<Arc<CachedListing>>,
    pub stop: watch::Receiver<bool>,
    /// The end of the backend that this one replaces. Links connect after it.
    pub predecessor: PredecessorEnd,
    /// Limits the links of clients that are connecting, connected or closing. Each of them may be a process.
    pub capacity: Arc<Capacity>,
    /// Whether the gateway has dropped the server.
    pub dropped: DropMark,
    /// Each supervisor in the table holds a receiver, so the channel closes when the last of them ends.
    pub alive: watch::Sender<()>,
    links: Mutex<LinkIndex>,
    run: RunId,
}

#[derive(Default)]
struct LinkIndex {
    by_session: HashMap<SessionId, Arc<LinkSlot>>,
    /// The links of clients without a session, by their capabilities. Nothing else distinguishes them, so those with
    /// equal capabilities share one link. A server request on that link goes to the call that is alone there.
    by_capabilities: HashMap<Box<str>, Arc<LinkSlot>>,
    /// The second link of a shared backend.
    calls_only: Option<Arc<LinkSlot>>,
}

impl LinkIndex {
    fn find(&self, caller: &Caller) -> Option<&Arc<LinkSlot>> {
        match &caller.session {
            Some(session) => self.by_session.get(session),
            None => self.by_capabilities.get(&caller.client_capabilities.raw),
        }
    }

    fn clients(&self) -> impl Iterator<Item = &Arc<LinkSlot>> {
        self.by_session.values().chain(self.by_capabilities.values())
    }
}

impl LinkTable {
    pub(crate) fn new(
        context: ManagerContext,
        meter: Arc<Meter>,
        deps: BackendDeps,
        stop: watch::Receiver<bool>,
        predecessor: PredecessorEnd,
    ) -> LinkTable {
        let (config, cache) = (context.config.load_full(), deps.cache.as_ref());
        let dialer = BackendDialer::new(context.events.server(), Arc::clone(&config), &deps);
        let cached = cache.and_then(|cache| {
            let login = dialer.login.as_ref().map(|login| Arc::clone(&login.login));
            CachedListing::new(cache, context.events.server(), &config, login, &deps.observe)
        });
        LinkTable {
            cached,
            capacity: Capacity::new(config.max_clients),
            dropped: DropMark::default(),
            dialer,
            context,
            meter,
            deps,
            stop,
            predecessor,
            alive: watch::Sender::new(()),
            links: Mutex::default(),
            run: RunId::random(),
        }
    }

    /// Publishes the listing of an earlier run, if there is one and no newer listing is known.
    pub(crate) async fn publish_cached(&self) {
        let Some(cached) = self.cached.as_ref().filter(|_| self.context.lists.listing().hello.is_none()) else {
            return;
        };
        let Some(listing) = cached.load().await else { return };
        self.context.lists.set_kept(Arc::new(listing));
        cached.set_stored(self.context.lists.listing());
        self.deps.listing_changed.notify_one();
    }

    /// Returns the number of clients' links that are connecting, connected or closing.
    pub(crate) fn count(&self) -> usize {
        self.capacity.in_use()
    }

    pub(crate) fn is_per_client(&self) -> bool {
        self.context.config.load().session == Sharing::PerClient
    }

    pub(crate) fn full_error(&self) -> Error {
        Error::LimitExceeded { limit: "maxClients", value: self.capacity.limit() }
    }

    /// Returns the caller's own link, if it is connected.
    pub(crate) fn link_of(&self, caller: &Caller) -> Option<Arc<Link>> {
        let slot = self.links.lock().find(caller).cloned()?;
        slot.touch();
        slot.link()
    }

    /// Returns the lists of the caller's own link. Returns `None` if the link has fetched none, or ends because the
    /// gateway dropped the server.
    pub(crate) fn lists_of(&self, caller: &Caller) -> Option<Arc<LinkLists>> {
        if self.dropped.is_set() {
            return None;
        }
        let slot = self.links.lock().find(caller).cloned()?;
        Some(Arc::clone(slot.lists())).filter(|lists| lists.listing().hello.is_some())
    }

    /// Returns the slot of the caller's own link. Starts its supervisor if there is none. Returns an error if the limit
    /// of clients is reached.
    pub(crate) fn slot_of(self: &Arc<LinkTable>, call: &Call) -> Result<Arc<LinkSlot>, Error> {
        let caller = &call.caller;
        let slot = self.find_or_start(caller, |id| {
            let client = match caller.session {
                Some(_) => Arc::clone(&call.client),
                // The link outlives the call, so it needs a client of its own.
                None => {
                    let client_capabilities = Arc::clone(&caller.client_capabilities);
                    let introduction = Introduction { client_capabilities, ..Introduction::default() };
                    Arc::new(Client::stateless(introduction))
                }
            };
            LinkOwner { caller: caller.clone(), client, id }
        })?;
        slot.touch();
        Ok(slot)
    }

    fn find_or_start(
        self: &Arc<LinkTable>,
        caller: &Caller,
        owner: impl FnOnce(SessionId) -> LinkOwner,
    ) -> Result<Arc<LinkSlot>, Error> {
        self.dropped.check(self.context.events.server())?;
        let mut links = self.links.lock();
        if let Some(slot) = links.find(caller) {
            return Ok(Arc::clone(slot));
        }
        let id = match caller.session {
            Some(session) => session,
            None if links.by_capabilities.len() < self.capacity.limit() => SessionId::new(self.run),
            None => return Err(self.full_error()),
        };
        let (notifications, queued) = mpsc::channel(MAX_QUEUED_NOTIFICATIONS);
        let lists = Arc::new(LinkLists::new(Arc::clone(&self.context.config)));
        // A reload may have changed the limit since the backend was created.
        let max_upstream = self.deps.policies.load().subscriptions.upstream;
        let context = ManagerContext { lists, max_upstream, ..self.context.clone() };
        let subscriptions = Arc::new(SubscriptionManager::new(context));
        let slot = Arc::new(LinkSlot::new(subscriptions, Some(owner(id)), notifications));
        match caller.session {
            Some(session) => links.by_session.insert(session, Arc::clone(&slot)),
            None => links.by_capabilities.insert(caller.client_capabilities.raw.clone(), Arc::clone(&slot)),
        };
        // Release the lock before the spawn. A runtime that shuts down drops the supervisor at once, and its `Drop`
        // takes this lock.
        drop(links);
        worker::spawn(Supervisor::new(self, &slot, LinkPolicy::Client(queued)).run());
        Ok(slot)
    }

    /// Reports whether the backend may accept a second link, with a handshake.
    pub(crate) fn may_have_calls_only(&self) -> bool {
        self.dialer.may_have_second_link() && self.dialer.eras.may_support_both(Instant::now())
    }

    /// Reports whether the second link is connected.
    pub(crate) fn has_calls_only(&self) -> bool {
        self.links.lock().calls_only.as_ref().is_some_and(|slot| slot.link.load().is_some())
    }

    /// Returns the slot of the second link of a shared backend. Starts its supervisor if there is none. An earlier
    /// supervisor ended because the server rejected the handshake. The server may have been replaced since.
    pub(crate) fn calls_only(self: &Arc<LinkTable>, shared: &LinkSlot) -> Arc<LinkSlot> {
        let mut links = self.links.lock();
        if let Some(slot) = &links.calls_only {
            return Arc::clone(slot);
        }
        let slot = Arc::new(LinkSlot::shared(Arc::clone(&shared.subscriptions)));
        links.calls_only = Some(Arc::clone(&slot));
        // As in `find_or_start`.
        drop(links);
        worker::spawn(Supervisor::new(self, &slot, LinkPolicy::CallsOnly).run());
        slot
    }

    /// Removes the entry of a supervisor that ends. The next call starts another.
    pub(crate) fn remove(&self, slot: &LinkSlot) {
        let mut links = self.links.lock();
        let removed = match slot.owner.as_ref().map(|owner| &owner.caller) {
            Some(Caller { session: Some(session), .. }) => links.by_session.remove(session),
            Some(caller) => links.by_capabilities.remove(&caller.client_capabilities.raw),
            None => links.calls_only.take(),
        };
        drop(links);
        drop(removed);
    }

    /// Queues a client's notification for its link. Ignores the notification if the link is neither connected nor
    /// requested.
    pub(crate) fn notify(&self, session: SessionId, notification: &Bytes) {
        let Some(slot) = self.find(session) else { return };
        let is_expected = {
            let status = slot.status.borrow();
            status.state == BackendState::Ready || status.is_requested
        };
        if is_expected && slot.notifications.try_send(notification.clone()).is_err() {
            let events = &self.context.events;
            events.emit(&Event::ReplyDropped { server: events.server() });
        }
    }

    /// Makes the client's own link send the new log level, which the client stores.
    pub(crate) fn level_changed(&self, session: SessionId) {
        if let Some(slot) = self.find(session) {
            slot.level.notify_one();
        }
    }

    fn find(&self, session: SessionId) -> Option<Arc<LinkSlot>> {
        self.links.lock().by_session.get(&session).cloned()
    }
}
