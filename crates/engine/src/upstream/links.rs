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
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::client::Client;
use crate::client::call::Call;
use crate::client::caller::{Caller, Introduction, RunId, SessionId};
use crate::client::subscriptions::Subscription;
use crate::upstream::dial::BackendDialer;
use crate::upstream::inbound::LinkOwner;
use crate::upstream::link::Link;
use crate::upstream::lists::LinkLists;
use crate::upstream::problem::public;
use crate::upstream::subscriptions::{ManagerContext, SubscriptionManager};
use crate::upstream::supervisor::{BackendDeps, LinkPolicy, Supervisor};
use crate::upstream::{BackendState, SubscriptionHandover};

/// The limit of a client's queued notifications. Further ones are dropped and counted.
const MAX_QUEUED_NOTIFICATIONS: usize = 64;
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

/// The state of a link, and the demand for a client's own link.
#[derive(Clone)]
struct LinkStatus {
    state: BackendState,
    /// Whether a call or a subscription needs a client's link that is not connected.
    is_requested: bool,
    /// The number of failed attempts. A waiting call compares it to learn that its attempt has failed.
    failures: u64,
    /// The error of the last attempt.
    error: Option<Error>,
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
        let status = LinkStatus { state: BackendState::Starting, is_requested: false, failures: 0, error: None };
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

    /// Waits for the link that follows `old`. Returns an error at once if a shared link is lost, because its supervisor
    /// connects it again by itself. It remains [`BackendState::Ready`] while it replaces a forgotten session. Requests
    /// a client's own link, and returns an error if that attempt fails.
    pub(crate) async fn next_link(&self, old: Option<&Arc<Link>>) -> Result<Arc<Link>, Error> {
        let mut status = self.status.subscribe();
        let mut seen_failures = None;
        loop {
            let LinkStatus { state, is_requested, failures, error } = status.borrow_and_update().clone();
            if let Some(link) = self.link().filter(|link| !old.is_some_and(|old| Arc::ptr_eq(old, link))) {
                return Ok(link);
            }
            match state {
                // The link has ended, and its supervisor is about to notice or to replace it.
                BackendState::Ready => {}
                BackendState::Stopped => return Err(self.unavailable()),
                _ if self.owner.is_none() => return Err(self.unavailable()),
                _ if is_requested => seen_failures = seen_failures.or(Some(failures)),
                _ => match error.filter(|_| seen_failures.is_some_and(|seen| seen != failures)) {
                    Some(error) => return Err(error),
                    None => {
                        seen_failures = Some(failures);
                        self.request();
                    }
                },
            }
            if status.changed().await.is_err() {
                return Err(self.unavailable());
            }
        }
    }

    /// Returns the error for a call that has no link.
    pub(crate) fn unavailable(&self) -> Error {
        match &self.status.borrow().state {
            BackendState::Starting => self.unavailable_error("it is starting"),
            BackendState::Ready => self.unavailable_error("it is reconnecting"),
            BackendState::Lost(reason) => self.unavailable_error(reason),
            BackendState::Stopped => self.unavailable_error("it was stopped"),
        }
    }

    pub(crate) fn unavailable_error(&self, reason: &str) -> Error {
        let server = self.subscriptions.events().server().to_owned();
        Error::BackendUnavailable { server, reason: public(reason), sent: false }
    }

    /// Requests a client's link from its supervisor, unless it is already connected or requested.
    pub(crate) fn request(&self) {
        self.status.send_if_modified(|status| {
            let is_disconnected = !matches!(status.state, BackendState::Ready | BackendState::Stopped);
            is_disconnected && !std::mem::replace(&mut status.is_requested, true)
        });
    }

    /// Waits until a call or a subscription needs the client's link. A subscription waits for `pause_ends`.
    pub(crate) async fn requested(&self, pause_ends: Instant) {
        let mut status = self.status.subscribe();
        let subscribed = async {
            self.subscriptions.subscribed().await;
            tokio::time::sleep_until(pause_ends.into()).await;
        };
        tokio::select! {
            biased;
            // `self` owns the sender, so the channel cannot close during the wait.
            _ = status.wait_for(|status| status.is_requested) => {}
            // A subscribed client needs the link for updates, even if it makes no call.
            () = subscribed => self.request(),
        }
    }

    /// Publishes a connected link.
    pub(crate) fn publish_link(&self, link: &Arc<Link>) {
        self.link.store(Some(Arc::clone(link)));
        self.status.send_modify(|status| {
            *status =
                LinkStatus { state: BackendState::Ready, is_requested: false, error: None, failures: status.failures };
        });
    }

    /// Removes the link, which has ended. The state is published separately.
    pub(crate) fn remove_link(&self) {
        self.link.store(None);
    }

    /// Publishes a state without a link.
    pub(crate) fn publish(&self, state: BackendState) {
        self.status.send_modify(|status| {
            *status = LinkStatus { state, is_requested: false, error: None, failures: status.failures };
        });
    }

    /// Publishes that an attempt to connect a client's link failed.
    pub(crate) fn publish_failure(&self, error: Error) {
        let state = BackendState::Lost(error.to_string());
        self.status.send_modify(|status| {
            *status = LinkStatus { state, is_requested: false, error: Some(error), failures: status.failures + 1 };
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
    pub stop: watch::Receiver<bool>,
    /// Limits the links of clients that are connecting, connected or closing. Each of them may be a process.
    pub capacity: Arc<Semaphore>,
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
    ) -> LinkTable {
        LinkTable {
            dialer: BackendDialer::new(Arc::clone(&context.config), &deps),
            capacity: Arc::new(Semaphore::new(context.config.max_clients.min(Semaphore::MAX_PERMITS))),
            context,
            meter,
            deps,
            stop,
            alive: watch::Sender::new(()),
            links: Mutex::default(),
            run: RunId::random(),
        }
    }

    /// Returns the number of clients' links that are connecting, connected or closing.
    pub(crate) fn count(&self) -> usize {
        self.max_clients() - self.capacity.available_permits()
    }

    fn max_clients(&self) -> usize {
        self.context.config.max_clients.min(Semaphore::MAX_PERMITS)
    }

    pub(crate) fn is_per_client(&self) -> bool {
        self.context.config.session == Sharing::PerClient
    }

    pub(crate) fn full_error(&self) -> Error {
        Error::LimitExceeded { limit: "maxClients", value: self.context.config.max_clients }
    }

    /// Returns the caller's own link, if it is connected.
    pub(crate) fn link_of(&self, caller: &Caller) -> Option<Arc<Link>> {
        let slot = self.links.lock().find(caller).cloned()?;
        slot.touch();
        slot.link()
    }

    /// Returns the lists of the caller's own link. Returns `None` if the link has fetched none.
    pub(crate) fn lists_of(&self, caller: &Caller) -> Option<Arc<LinkLists>> {
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
        let mut links = self.links.lock();
        if let Some(slot) = links.find(caller) {
            return Ok(Arc::clone(slot));
        }
        let id = match caller.session {
            Some(session) => session,
            None if links.by_capabilities.len() < self.max_clients() => SessionId::new(self.run),
            None => return Err(self.full_error()),
        };
        let (notifications, queued) = mpsc::channel(MAX_QUEUED_NOTIFICATIONS);
        let lists = Arc::new(LinkLists::new(Arc::clone(&self.context.config)));
        let context = ManagerContext { lists, ..self.context.clone() };
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

    /// Returns the subscriptions of a client. Returns `None` if the client has made no call yet.
    pub(crate) fn manager(&self, session: SessionId) -> Option<Arc<SubscriptionManager>> {
        self.find(session).map(|slot| Arc::clone(&slot.subscriptions))
    }

    pub(crate) fn managers(&self) -> Vec<Arc<SubscriptionManager>> {
        self.links.lock().clients().map(|slot| Arc::clone(&slot.subscriptions)).collect()
    }

    /// Removes and returns the subscriptions of all clients, for the backend that replaces this one.
    pub(crate) fn hand_over(&self) -> Vec<SubscriptionHandover> {
        let clients: Vec<_> = self.links.lock().clients().cloned().collect();
        let handover = |slot: Arc<LinkSlot>| SubscriptionHandover {
            client: slot.owner.clone(),
            subscriptions: slot.subscriptions.hand_over(),
        };
        clients.into_iter().map(handover).collect()
    }

    /// Adds the subscriptions of one client and so makes its supervisor connect.
    pub(crate) fn take_over(self: &Arc<LinkTable>, client: &LinkOwner, subscriptions: Vec<Arc<Subscription>>) {
        if client.caller.session.is_some()
            && let Ok(slot) = self.find_or_start(&client.caller, |_| client.clone())
        {
            slot.subscriptions.take_over(subscriptions);
        }
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
