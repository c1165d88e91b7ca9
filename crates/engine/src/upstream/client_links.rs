//! The links of single clients, for a backend that gives each client its own (`"session": "per-client"`).
//!
//! A client's first call connects its link: a process or a session of its own, with the capabilities that the client
//! declared. Messages on that link go to that client alone, and no other client uses it. A [`ClientLinkTask`] task per client
//! owns the link; this module holds the table of clients and the interface for calls.
//!
//! These links do not fetch lists. All clients are offered the listing of the backend's one control link.

mod task;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use goblin_config::{Declare, Server};
use goblin_telemetry::{Event, worker};
use goblin_wire::{Error, json};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::client::call::Call;
use crate::client::caller::{Abilities, Caller, Introduction, RunId, SessionId};
use crate::client::mailbox::replay::Replay;
use crate::client::mailbox::{ListVersions, Mailbox};
use crate::client::subscriptions::Subscription;
use crate::upstream::client_links::task::ClientLinkTask;
use crate::upstream::dial::Dialler;
use crate::upstream::events::BackendEvents;
use crate::upstream::inbound::LinkOwner;
use crate::upstream::link::Link;
use crate::upstream::problem::public;
use crate::upstream::subscriptions::{ManagerContext, SubscriptionManager};
use crate::upstream::{Backend, SubscriptionHandover};

/// The limit of a client's queued notifications. Further ones are dropped and counted.
const MAX_QUEUED_NOTIFICATIONS: usize = 64;

/// The idle time after which a link of clients without a session is closed.
const UNUSED_AFTER: Duration = Duration::from_secs(300);
/// The number of references to a link that no call uses: one of its keeper, one in `standing`.
const HOLDERS: usize = 2;

/// The links of all clients of one backend. Cheap to clone; clones share the state.
#[derive(Clone)]
pub(crate) struct ClientLinks(Arc<ClientLinksInner>);

struct ClientLinksInner {
    config: Arc<Server>,
    inbox: Arc<BackendEvents>,
    home: ManagerContext,
    dialler: Arc<Dialler>,
    /// The timeout for responses to server requests.
    patience: Option<Duration>,
    stop: watch::Receiver<bool>,
    /// Limits the links that are connecting, connected or closing. Each of them may be a process.
    room: Arc<Semaphore>,
    clients: Mutex<HashMap<SessionId, Arc<ClientLink>>>,
    /// Clients without a session, by their capabilities. Nothing else distinguishes them, so those with equal
    /// capabilities share one link under an id made here. A server request on that link goes to the call that is alone
    /// there.
    kinds: Mutex<HashMap<Box<str>, SessionId>>,
    node: RunId,
    /// Each keeper holds a receiver, so the channel closes when the last keeper ends.
    keepers: watch::Sender<()>,
}

/// The link of one client, connected or not.
struct ClientLink {
    client: LinkOwner,
    register: Arc<SubscriptionManager>,
    standing: watch::Sender<ClientLinkState>,
    told: mpsc::Sender<Bytes>,
    /// Notified when the client requests another log level.
    level: Notify,
    /// The time at which a call last requested the link.
    used: Mutex<Instant>,
}

/// The state of one client's link. Calls change `Down` to `InnerCall`; only the keeper makes other changes.
#[derive(Clone)]
enum ClientLinkState {
    Down {
        /// The number of failed attempts. A waiting call compares it to learn that its attempt has failed.
        failures: u64,
        /// The error of the last attempt.
        error: Option<Error>,
    },
    /// A call or a subscription needs the link.
    Wanted {
        failures: u64,
    },
    Up(Arc<Link>),
    /// The client is gone or the backend stops.
    Over,
}

impl ClientLinks {
    pub(crate) fn new(
        backend: &Backend,
        dialler: Arc<Dialler>,
        patience: Option<Duration>,
        stop: watch::Receiver<bool>,
    ) -> ClientLinks {
        ClientLinks(Arc::new(ClientLinksInner {
            config: Arc::clone(&backend.config),
            inbox: Arc::clone(&backend.inbox),
            home: backend.home.clone(),
            dialler,
            patience,
            stop,
            room: Arc::new(Semaphore::new(most(&backend.config))),
            clients: Mutex::default(),
            kinds: Mutex::default(),
            node: RunId::random(),
            keepers: watch::Sender::new(()),
        }))
    }

    /// Returns the id of the link that serves this caller. Callers without a session share an id per set of
    /// capabilities.
    pub(crate) fn client_of(&self, caller: &Caller) -> SessionId {
        caller.session.unwrap_or_else(|| {
            let mut kinds = self.0.kinds();
            if let Some(known) = kinds.get(&caller.abilities.raw) {
                return *known;
            }
            let session = SessionId::new(self.0.node);
            if kinds.len() < most(&self.0.config) {
                kinds.insert(caller.abilities.raw.clone(), session);
            }
            session
        })
    }

    /// Returns the number of links that are connecting, connected or closing.
    pub(crate) fn count(&self) -> usize {
        most(&self.0.config) - self.0.room.available_permits()
    }

    /// Returns the link of a client, if it is connected.
    pub(crate) fn up(&self, session: SessionId) -> Option<Arc<Link>> {
        let own = self.0.find(session)?;
        own.touch();
        match &*own.standing.borrow() {
            ClientLinkState::Up(link) => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// Returns the client's link, and connects it if necessary. A link that is `old` has ended, so the call waits for
    /// its successor. Returns an error if the attempt fails or the limit of clients is reached.
    pub(crate) async fn link(
        &self,
        session: SessionId,
        call: &Call,
        old: Option<&Arc<Link>>,
    ) -> Result<Arc<Link>, Error> {
        if call.caller.session.is_none() && !self.0.kinds().values().any(|known| *known == session) {
            return Err(Error::LimitExceeded { limit: "maxClients", value: self.0.config.max_clients });
        }
        let own = self.find_or_begin(session, || client(call));
        own.touch();
        let mut standing = own.standing.subscribe();
        let mut known = None;
        loop {
            let now = standing.borrow_and_update().clone();
            match now {
                ClientLinkState::Up(link) if !old.is_some_and(|old| Arc::ptr_eq(old, &link)) => return Ok(link),
                // The link has ended, and its keeper is about to notice.
                ClientLinkState::Up(_) => {}
                ClientLinkState::Wanted { failures } => known = known.or(Some(failures)),
                ClientLinkState::Down { failures, error } => {
                    match error.filter(|_| known.is_some_and(|it| it != failures)) {
                        Some(error) => return Err(error),
                        None => {
                            known = Some(failures);
                            own.want();
                        }
                    }
                }
                ClientLinkState::Over => return Err(self.0.unavailable("it was stopped")),
            }
            if standing.changed().await.is_err() {
                return Err(self.0.unavailable("it was stopped"));
            }
        }
    }

    /// Returns the subscriptions of a client. Returns `None` if the client has made no call yet.
    pub(crate) fn register(&self, session: SessionId) -> Option<Arc<SubscriptionManager>> {
        self.0.find(session).map(|own| Arc::clone(&own.register))
    }

    pub(crate) fn registers(&self) -> Vec<Arc<SubscriptionManager>> {
        self.0.clients().values().map(|own| Arc::clone(&own.register)).collect()
    }

    /// Removes and returns the subscriptions of all clients, for the backend that replaces this one.
    pub(crate) fn hand_over(&self) -> Vec<SubscriptionHandover> {
        let clients: Vec<_> = self.0.clients().values().cloned().collect();
        let known_uris = clients.iter().map(|own| {
            let subscriptions = own.register.hand_over();
            SubscriptionHandover { client: Some(own.client.clone()), subscriptions }
        });
        known_uris.collect()
    }

    /// Adds the subscriptions of one client and so makes its keeper connect.
    pub(crate) fn take_over(&self, client: &LinkOwner, subscriptions: Vec<Arc<Subscription>>) {
        let Some(session) = client.caller.session else { return };
        self.find_or_begin(session, || client.clone()).register.take_over(subscriptions);
    }

    /// Queues a client's notification for its link. Ignores the notification if the link is neither connected nor
    /// requested.
    pub(crate) fn tell(&self, session: SessionId, notification: &Bytes) {
        let Some(own) = self.0.find(session) else { return };
        let is_there = matches!(*own.standing.borrow(), ClientLinkState::Up(_) | ClientLinkState::Wanted { .. });
        if is_there && own.told.try_send(notification.clone()).is_err() {
            self.0.inbox.emit(&Event::AsideDropped { server: self.0.inbox.server() });
        }
    }

    /// Makes the link send the client's new log level, which is stored in the client's mailbox.
    pub(crate) fn level_changed(&self, session: SessionId) {
        if let Some(own) = self.0.find(session) {
            own.level.notify_one();
        }
    }

    /// Waits until all keepers have ended. They end when the backend is stopped.
    pub(crate) async fn ended(&self) {
        self.0.keepers.closed().await;
    }

    /// Returns the link of a client. Starts its keeper if there is none.
    fn find_or_begin(&self, session: SessionId, client: impl FnOnce() -> LinkOwner) -> Arc<ClientLink> {
        let mut clients = self.0.clients();
        if let Some(own) = clients.get(&session) {
            return Arc::clone(own);
        }
        let (told, heard) = mpsc::channel(MAX_QUEUED_NOTIFICATIONS);
        let standing = watch::Sender::new(ClientLinkState::Down { failures: 0, error: None });
        let register = Arc::new(SubscriptionManager::new(self.0.home.clone()));
        let client = client();
        let (level, used) = (Notify::new(), Mutex::new(Instant::now()));
        let own = Arc::new(ClientLink { client: client.clone(), register, standing, told, level, used });
        clients.insert(session, Arc::clone(&own));
        // Release the lock before the spawn. A runtime that shuts down drops the keeper at once, and its `Drop` takes
        // this lock.
        drop(clients);
        worker::spawn(ClientLinkTask::new(&self.0, session, client, &own, heard).run());
        own
    }
}

impl ClientLinksInner {
    fn find(&self, session: SessionId) -> Option<Arc<ClientLink>> {
        self.clients().get(&session).cloned()
    }

    fn unavailable(&self, reason: &str) -> Error {
        Error::BackendUnavailable { server: self.inbox.server().to_owned(), reason: public(reason), sent: false }
    }

    fn kinds(&self) -> MutexGuard<'_, HashMap<Box<str>, SessionId>> {
        self.kinds.lock()
    }

    /// Takes the lock. Code that holds it cannot panic, so a poisoned lock is usable.
    fn clients(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<ClientLink>>> {
        self.clients.lock()
    }
}

impl ClientLink {
    fn touch(&self) {
        *self.used.lock() = Instant::now();
    }

    /// Waits until a link of clients without a session is idle: no call used it for a while and it has no
    /// subscriptions. Waits for ever if the client has a session, because the end of the session ends the link.
    async fn unused(&self) {
        if self.client.caller.session.is_some() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(UNUSED_AFTER / 5).await;
            let since = *self.used.lock();
            let is_lent =
                matches!(&*self.standing.borrow(), ClientLinkState::Up(link) if Arc::strong_count(link) > HOLDERS);
            if !is_lent && since.elapsed() >= UNUSED_AFTER && self.register.is_empty() {
                return;
            }
        }
    }

    /// Requests the link from its keeper, unless it is already connected or requested.
    fn want(&self) {
        self.standing.send_if_modified(|standing| match *standing {
            ClientLinkState::Down { failures, .. } => {
                *standing = ClientLinkState::Wanted { failures };
                true
            }
            _ => false,
        });
    }
}

/// Returns the client to connect a link for.
fn client(call: &Call) -> LinkOwner {
    let mailbox = match call.caller.session {
        Some(_) => Arc::clone(&call.mailbox),
        // The link outlives the call, so it cannot use the call's mailbox.
        None => {
            let abilities = Arc::clone(&call.caller.abilities);
            let introduction = Introduction { abilities, ..Introduction::default() };
            Arc::new(Mailbox::new(introduction, ListVersions::default(), Replay::new(0)))
        }
    };
    LinkOwner { caller: call.caller.clone(), mailbox }
}

fn most(config: &Server) -> usize {
    config.max_clients.min(Semaphore::MAX_PERMITS)
}

/// Returns the capabilities to declare on a client's own link: those of the client without those that the configuration
/// disables.
fn capabilities(abilities: &Abilities, declare: Declare) -> String {
    let text = &*abilities.raw;
    let is_left_out = |key: &str| match key {
        "sampling" => !declare.sampling,
        "elicitation" => !declare.elicitation,
        _ => false,
    };
    let members = json::members(text, json::whole(text)).filter(|member| !is_left_out(&member.key(text)));
    let members: Vec<_> =
        members.map(|member| format!("{}:{}", member.key.get(text), member.value.get(text))).collect();
    format!("{{{}}}", members.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ask_a_client_s_own_link_declares_what_the_client_declared_less_what_is_left_out() {
        let all =
            r#"{"x":{"odd":1.0}, "sampling" : {"tools":{}},"roots":{},"elicitation":{"url":{}},"experimental":{}}"#;
        let check = |raw: &str, sampling, elicitation, expected: &str| {
            let abilities = Abilities { raw: raw.into(), ..Abilities::default() };
            assert_eq!(capabilities(&abilities, Declare { sampling, elicitation }), expected, "{raw}");
        };
        check("", true, true, "{}");
        check("{}", false, false, "{}");
        check(r#"{"sampling":{}}"#, false, true, "{}");
        check(r#"{"\u0073ampling":{}}"#, false, true, "{}");
        check(all, false, false, r#"{"x":{"odd":1.0},"roots":{},"experimental":{}}"#);
        check(all, false, true, r#"{"x":{"odd":1.0},"roots":{},"elicitation":{"url":{}},"experimental":{}}"#);
        check(all, true, true, &all.replace(", ", ",").replace(" : ", ":"));
    }
}
