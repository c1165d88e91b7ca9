//! The links of single clients, where a backend gives each its own (`"session": "per-client"`).
//!
//! A client's first call dials: its own process or its own session, with the capabilities that the client declared. What
//! the backend says on that link is for that client alone, and no other ever uses it. Each client that has called has a
//! [`Keeper`], which owns the link and all that happens to it; here is the book of them, and what calls see of it.
//!
//! Deliberately absent: the listing. All clients are offered what the backend's one control link lists.

mod keeper;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::upstream::dial::Dialler;
use crate::upstream::ear::Client;
use crate::upstream::inbox::Inbox;
use crate::upstream::link::Link;
use crate::upstream::own::keeper::Keeper;
use crate::upstream::register::{Home, Register};
use crate::upstream::trouble::public;
use crate::upstream::{Backend, HandedOver};
use crate::client::caller::{Abilities, Caller, Introduction, Node, SessionId};
use goblin_config::{Declare, Server};
use crate::client::lane::Call;
use crate::client::mailbox::replay::Replay;
use crate::client::mailbox::{Mailbox, Versions};
use goblin_telemetry::Event;
use goblin_wire::error::Error;
use goblin_wire::json;
use crate::client::subscriptions::Subscription;
use goblin_telemetry::worker;

/// How many notifications of a client may wait for its link. Full: the next is dropped and counted.
const MOST_TOLD: usize = 64;

/// How long a link of clients without a session is kept for the next of them.
const UNUSED_AFTER: Duration = Duration::from_secs(300);
/// Who holds a link that no call has: its keeper, and the place where calls find it.
const HOLDERS: usize = 2;

/// Cheap to clone; clones share all.
#[derive(Clone)]
pub struct OwnLinks(Arc<Shared>);

struct Shared {
    config: Arc<Server>,
    inbox: Arc<Inbox>,
    home: Home,
    dialler: Arc<Dialler>,
    /// For asks.
    patience: Option<Duration>,
    stop: watch::Receiver<bool>,
    /// For links that are dialled, up or being closed: each may be a process.
    room: Arc<Semaphore>,
    clients: Mutex<HashMap<SessionId, Arc<OwnLink>>>,
    /// Clients without a session, by what they can do: nothing else tells one from another, so those that can do the same
    /// are one client here, under a name of ours. What is asked on its link reaches the call that alone is open there.
    kinds: Mutex<HashMap<Box<str>, SessionId>>,
    node: Node,
    /// Every keeper holds a receiver, by which it is waited for.
    keepers: watch::Sender<()>,
}

/// The link of one client, whether there is one now or not.
struct OwnLink {
    client: Client,
    register: Arc<Register>,
    standing: watch::Sender<Standing>,
    told: mpsc::Sender<Bytes>,
    /// Rung when the client asks for another log level.
    level: Notify,
    /// When a call last asked for it.
    used: Mutex<Instant>,
}

/// Where the link of one client is in its life. Calls turn `Down` into `Wanted`; all else is the keeper's.
#[derive(Clone)]
enum Standing {
    Down {
        /// How many tries failed so far: who waits for one knows by it whether that one is over.
        failures: u64,
        /// Why the last did.
        error: Option<Error>,
    },
    /// A call waits for it.
    Wanted {
        failures: u64,
    },
    Up(Arc<Link>),
    /// The client is gone, or the backend stops.
    Over,
}

impl OwnLinks {
    pub fn new(
        backend: &Backend,
        dialler: Arc<Dialler>,
        patience: Option<Duration>,
        stop: watch::Receiver<bool>,
    ) -> OwnLinks {
        OwnLinks(Arc::new(Shared {
            config: Arc::clone(&backend.config),
            inbox: Arc::clone(&backend.inbox),
            home: backend.home.clone(),
            dialler,
            patience,
            stop,
            room: Arc::new(Semaphore::new(most(&backend.config))),
            clients: Mutex::default(),
            kinds: Mutex::default(),
            node: Node::random(),
            keepers: watch::Sender::new(()),
        }))
    }

    /// The client whose link serves this caller.
    pub fn client_of(&self, caller: &Caller) -> SessionId {
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

    /// How many there are.
    pub fn count(&self) -> usize {
        most(&self.0.config) - self.0.room.available_permits()
    }

    /// The link of a client, where it is up.
    pub fn up(&self, session: SessionId) -> Option<Arc<Link>> {
        let own = self.0.find(session)?;
        own.touch();
        match &*own.standing.borrow() {
            Standing::Up(link) => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// The link of the client whose call this is: the one it has, unless that is `old`, or a new one.
    pub async fn link(&self, session: SessionId, call: &Call, old: Option<&Arc<Link>>) -> Result<Arc<Link>, Error> {
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
                Standing::Up(link) if !old.is_some_and(|old| Arc::ptr_eq(old, &link)) => return Ok(link),
                // Its keeper is about to notice the end.
                Standing::Up(_) => {}
                Standing::Wanted { failures } => known = known.or(Some(failures)),
                Standing::Down { failures, error } => match error.filter(|_| known.is_some_and(|it| it != failures)) {
                    Some(error) => return Err(error),
                    None => {
                        known = Some(failures);
                        own.want();
                    }
                },
                Standing::Over => return Err(self.0.unavailable("it was stopped")),
            }
            if standing.changed().await.is_err() {
                return Err(self.0.unavailable("it was stopped"));
            }
        }
    }

    /// The subscriptions of a client that has called.
    pub fn register(&self, session: SessionId) -> Option<Arc<Register>> {
        self.0.find(session).map(|own| Arc::clone(&own.register))
    }

    pub fn registers(&self) -> Vec<Arc<Register>> {
        self.0.clients().values().map(|own| Arc::clone(&own.register)).collect()
    }

    /// The subscriptions of every client, for the backend that takes the place of this one.
    pub fn hand_over(&self) -> Vec<HandedOver> {
        let clients: Vec<_> = self.0.clients().values().cloned().collect();
        let handed = clients.iter().map(|own| {
            let subscriptions = own.register.hand_over();
            HandedOver { client: Some(own.client.clone()), subscriptions }
        });
        handed.collect()
    }

    /// Takes those of one client over. Its link is dialled for their sake.
    pub fn take_over(&self, client: &Client, subscriptions: Vec<Arc<Subscription>>) {
        let Some(session) = client.caller.session else { return };
        self.find_or_begin(session, || client.clone()).register.take_over(subscriptions);
    }

    /// Passes a notification of a client on, where it has a link or is about to have one.
    pub fn tell(&self, session: SessionId, notification: &Bytes) {
        let Some(own) = self.0.find(session) else { return };
        let is_there = matches!(*own.standing.borrow(), Standing::Up(_) | Standing::Wanted { .. });
        if is_there && own.told.try_send(notification.clone()).is_err() {
            self.0.inbox.emit(&Event::AsideDropped { server: self.0.inbox.server() });
        }
    }

    /// A client asked for another log level; its mailbox knows which.
    pub fn level_changed(&self, session: SessionId) {
        if let Some(own) = self.0.find(session) {
            own.level.notify_one();
        }
    }

    /// Waits until all of them have ended, which the word to stop makes them do.
    pub async fn ended(&self) {
        self.0.keepers.closed().await;
    }

    fn find_or_begin(&self, session: SessionId, client: impl FnOnce() -> Client) -> Arc<OwnLink> {
        let mut clients = self.0.clients();
        if let Some(own) = clients.get(&session) {
            return Arc::clone(own);
        }
        let (told, heard) = mpsc::channel(MOST_TOLD);
        let standing = watch::Sender::new(Standing::Down { failures: 0, error: None });
        let register = Arc::new(Register::new(self.0.home.clone()));
        let client = client();
        let (level, used) = (Notify::new(), Mutex::new(Instant::now()));
        let own = Arc::new(OwnLink { client: client.clone(), register, standing, told, level, used });
        clients.insert(session, Arc::clone(&own));
        // A runtime that shuts down drops the keeper here, and a keeper that is dropped takes this lock.
        drop(clients);
        worker::spawn(Keeper::new(&self.0, session, client, &own, heard).run());
        own
    }
}

impl Shared {
    fn find(&self, session: SessionId) -> Option<Arc<OwnLink>> {
        self.clients().get(&session).cloned()
    }

    fn unavailable(&self, reason: &str) -> Error {
        Error::BackendUnavailable { server: self.inbox.server().to_owned(), reason: public(reason), sent: false }
    }

    fn kinds(&self) -> MutexGuard<'_, HashMap<Box<str>, SessionId>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No code that holds this lock can panic.
    fn clients(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<OwnLink>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnLink {
    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Waits until a link of clients without a session is of no use: no call has it or asked for it for a while, and nobody
    /// is subscribed over it. For ever where it is a session's, which ends it.
    async fn unused(&self) {
        if self.client.caller.session.is_some() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(UNUSED_AFTER / 5).await;
            let since = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
            let is_lent = matches!(&*self.standing.borrow(), Standing::Up(link) if Arc::strong_count(link) > HOLDERS);
            if !is_lent && since.elapsed() >= UNUSED_AFTER && self.register.is_empty() {
                return;
            }
        }
    }

    /// A call waits for the link.
    fn want(&self) {
        self.standing.send_if_modified(|standing| match *standing {
            Standing::Down { failures, .. } => {
                *standing = Standing::Wanted { failures };
                true
            }
            _ => false,
        });
    }
}

/// The client that a call begins a link for.
fn client(call: &Call) -> Client {
    let mailbox = match call.caller.session {
        Some(_) => Arc::clone(&call.mailbox),
        // Not the call's own: the link outlives it.
        None => {
            let abilities = Arc::clone(&call.caller.abilities);
            let introduction = Introduction { abilities, ..Introduction::default() };
            Arc::new(Mailbox::new(introduction, Versions::default(), Replay::new(0)))
        }
    };
    Client { caller: call.caller.clone(), mailbox }
}

fn most(config: &Server) -> usize {
    config.max_clients.min(Semaphore::MAX_PERMITS)
}

/// What is declared on a client's own link: what the client declared, less what the configuration leaves out.
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
