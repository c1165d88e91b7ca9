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
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use crate::backend::dial::Dialler;
use crate::backend::ear::Client;
use crate::backend::inbox::Inbox;
use crate::backend::link::Link;
use crate::backend::own::keeper::Keeper;
use crate::backend::register::{Home, Register};
use crate::backend::{Backend, HandedOver};
use crate::caller::{Abilities, SessionId};
use crate::config::{Declare, Server};
use crate::lane::Call;
use crate::observe::Event;
use crate::protocol::error::Error;
use crate::protocol::json;
use crate::subscriptions::Subscription;

/// How many notifications of a client may wait for its link. Full: the next is dropped and counted.
const MOST_TOLD: usize = 64;

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
            keepers: watch::Sender::new(()),
        }))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        most(&self.0.config) - self.0.room.available_permits()
    }

    /// The link of a client, where it is up.
    pub fn up(&self, session: SessionId) -> Option<Arc<Link>> {
        let own = self.0.find(session)?;
        match &*own.standing.borrow() {
            Standing::Up(link) => Some(Arc::clone(link)),
            _ => None,
        }
    }

    /// The link of the client whose call this is: the one it has, unless that is `old`, or a new one.
    pub async fn link(&self, session: SessionId, call: &Call, old: Option<&Arc<Link>>) -> Result<Arc<Link>, Error> {
        let client = || Client { caller: call.caller.clone(), mailbox: Arc::clone(&call.mailbox) };
        let own = self.find_or_begin(session, client);
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
        let own = Arc::new(OwnLink { client: client.clone(), register, standing, told, level: Notify::new() });
        clients.insert(session, Arc::clone(&own));
        // A runtime that shuts down drops the keeper here, and a keeper that is dropped takes this lock.
        drop(clients);
        tokio::spawn(Keeper::new(&self.0, session, client, &own, heard).run());
        own
    }
}

impl Shared {
    fn find(&self, session: SessionId) -> Option<Arc<OwnLink>> {
        self.clients().get(&session).cloned()
    }

    fn unavailable(&self, reason: &str) -> Error {
        Error::BackendUnavailable { server: self.inbox.server().to_owned(), reason: reason.to_owned(), sent: false }
    }

    /// No code that holds this lock can panic.
    fn clients(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<OwnLink>>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnLink {
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
