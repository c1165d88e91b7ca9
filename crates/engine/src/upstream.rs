//! One MCP server behind the gateway.
//!
//! A [`Backend`] is the handle everybody shares: it publishes the link, the last listing and the state that the backend's
//! actor owns, and carries calls over the link without passing through the actor. A lost backend keeps its listing; calls
//! are refused at once instead of queued. Where each client has its own link, calls go over that one, and the actor's is
//! for listing only.

pub mod actor;
pub mod ask;
pub mod call;
pub mod child;
pub mod descriptors;
pub mod dial;
pub mod ear;
pub mod era;
pub mod guard;
pub mod health;
pub mod http;
pub mod inbox;
pub mod link;
pub mod listen;
pub mod listing;
pub mod news;
pub mod offered;
pub mod open;
pub mod own;
pub mod register;
pub mod sse;
pub mod stamp;
pub mod standing;
pub mod stdio;
pub mod trouble;
pub mod twin;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use tokio::sync::{Semaphore, watch};

use crate::upstream::ask::Translate;
use crate::upstream::ear::Client;
use goblin_catalog::handed::Handed;
use crate::upstream::inbox::Inbox;
use goblin_catalog::listing::List;
use crate::upstream::link::{Link, LinkError};
use crate::upstream::listing::LeftOut;
use goblin_catalog::listing::Listing;
use crate::upstream::offered::Offered;
use crate::upstream::own::OwnLinks;
use crate::upstream::register::{Home, Register};
use crate::upstream::trouble::public;
use crate::upstream::twin::Twin;
use crate::client::caller::SessionId;
use goblin_config::{Policies, Server, ServerId};
use crate::client::lane::Call;
use goblin_telemetry::Observe;
use goblin_wire::limits::Limit;
use goblin_telemetry::meter::{Endings, Meter};
use goblin_catalog::Upstream;
use goblin_wire::dialect::Dialect;
use goblin_wire::error::Error;
use goblin_wire::json::{Span, Splice};
use goblin_wire::method::Method;
use goblin_wire::mirror::Mirrors;
use goblin_wire::{Request, Response};
use crate::client::subscriptions::Subscription;

pub struct Backend {
    pub id: ServerId,
    pub config: Arc<Server>,
    pub inbox: Arc<Inbox>,
    pub meter: Arc<Meter>,
    link: ArcSwapOption<Link>,
    /// Of single clients, where each has its own.
    own: Option<OwnLinks>,
    /// For clients with a handshake, where the link does without and clients share it.
    twin: Option<Twin>,
    /// The subscriptions of clients that share the link.
    pub register: Arc<Register>,
    listing: ArcSwap<Listing>,
    home: Home,
    /// The lists that could not be fetched the last time, and why.
    failed_lists: Mutex<Vec<(List, String)>>,
    /// The tools that its link does not let us call.
    left_out: Mutex<Vec<LeftOut>>,
    /// Lists are being fetched.
    refreshing: AtomicBool,
    state: watch::Sender<State>,
    /// The first listing was fetched, or the first attempt has failed.
    settled: watch::Sender<bool>,
    slots: Semaphore,
    most_calls: usize,
    handed: Mutex<Handed>,
    /// Takes its place once it can.
    pub successor: ArcSwapOption<Backend>,
}

/// Where a backend is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Starting,
    Ready,
    /// Not connected, and why.
    Lost(String),
    Stopped,
}

/// Subscriptions that another backend is to keep.
pub struct HandedOver {
    /// Whose own they are, where it has its own link.
    pub client: Option<Client>,
    pub subscriptions: Vec<Arc<Subscription>>,
}

/// How a call ended without an answer of the backend.
#[derive(Debug)]
pub enum CallEnd {
    Failed(Error),
    /// By the client, or with its session; nobody wants an answer.
    Cancelled,
}

impl From<Error> for CallEnd {
    fn from(error: Error) -> CallEnd {
        CallEnd::Failed(error)
    }
}

/// A client's request in the words of the backend.
#[derive(Clone)]
pub struct Outgoing<'a> {
    pub request: &'a Request,
    /// Names and URIs turned native.
    pub edits: Splice,
    /// Where the client's progress token stands; ours takes its place.
    pub progress_token_at: Option<Span>,
    /// What it is about, as the backend knows it: a tool, a prompt, a resource.
    pub name: Option<&'a str>,
    /// The arguments that headers repeat, of a tool that has any.
    pub mirrors: Option<&'a Mirrors>,
    pub tasks: Tasks,
}

/// Whether a call may be answered with a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// It may, because its client can be given one: that is declared where requests declare such things.
    pub welcome: bool,
    /// It must, because its tool makes nothing else: one is asked for where requests ask for them.
    pub required: bool,
}

/// An answer of the backend, and the version it was given in.
#[derive(Debug)]
pub struct Answered {
    pub response: Response,
    pub dialect: Dialect,
}

impl Backend {
    pub fn new(
        id: ServerId,
        config: Arc<Server>,
        policies: &Policies,
        observe: Arc<Observe>,
        translate: Arc<dyn Translate>,
    ) -> Backend {
        let inbox = Arc::new(Inbox::new(id.clone(), observe, translate));
        let home = Home {
            inbox,
            offered: Arc::new(ArcSwap::from_pointee(Offered::new(Arc::clone(&config), Arc::default()))),
            config,
            most_upstream: policies.subscriptions.upstream,
        };
        Backend::at(id, home, policies)
    }

    fn at(id: ServerId, home: Home, policies: &Policies) -> Backend {
        let most_calls = policies.max_in_flight_per_backend;
        let handed = Mutex::new(Handed::new(&home.inbox.observe().memory));
        Backend {
            id,
            config: Arc::clone(&home.config),
            inbox: Arc::clone(&home.inbox),
            meter: Arc::default(),
            link: ArcSwapOption::empty(),
            own: None,
            twin: None,
            register: Arc::new(Register::new(home.clone())),
            listing: ArcSwap::default(),
            home,
            failed_lists: Mutex::default(),
            left_out: Mutex::default(),
            refreshing: AtomicBool::new(true),
            state: watch::Sender::new(State::Starting),
            settled: watch::Sender::new(false),
            slots: Semaphore::new(most_calls),
            most_calls,
            handed,
            successor: ArcSwapOption::empty(),
        }
    }

    /// The same backend once more, for calls over another link.
    fn beside(&self, policies: &Policies) -> Backend {
        let (meter, register) = (Arc::clone(&self.meter), Arc::clone(&self.register));
        Backend { meter, register, ..Backend::at(self.id.clone(), self.home.clone(), policies) }
    }

    pub fn listing(&self) -> Arc<Listing> {
        self.listing.load_full()
    }

    /// What it is reached over now; nothing while it is not.
    pub fn transport(&self) -> Option<&'static str> {
        self.link.load().as_ref().map(|link| link.transport())
    }

    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    pub fn watch_state(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    /// The lists that it did not give when they were last asked for, and why.
    pub fn failed_lists(&self) -> Vec<(List, String)> {
        self.failed_lists.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The tools that are not offered because of how they are defined.
    pub fn left_out(&self) -> Vec<LeftOut> {
        self.left_out.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_left_out(&self, left_out: Vec<LeftOut>) {
        *self.left_out.lock().unwrap_or_else(PoisonError::into_inner) = left_out;
    }

    fn set_failed(&self, list: List, reason: Option<String>) {
        let mut failed = self.failed_lists.lock().unwrap_or_else(PoisonError::into_inner);
        failed.retain(|(other, _)| *other != list);
        failed.extend(reason.map(|reason| (list, reason)));
    }

    /// Waits until its first listing was fetched or its first attempt has failed.
    pub async fn settled(&self) {
        // The sender is ours, so it is there as long as we are.
        let _ = self.settled.subscribe().wait_for(|settled| *settled).await;
    }

    pub fn has_settled(&self) -> bool {
        *self.settled.borrow()
    }

    /// Whether its lists may be about to change.
    pub fn is_refreshing(&self) -> bool {
        self.refreshing.load(Ordering::Acquire) || self.inbox.has_changes()
    }

    /// The subscriptions over the link of the client whose call this is; where it has its own, that is begun first. One that
    /// cannot be begun now will be, for the sake of what is subscribed.
    pub async fn register_for(&self, call: &Call) -> Result<Arc<Register>, Error> {
        match &self.own {
            Some(own) => {
                let session = own.client_of(&call.caller);
                match own.link(session, call, None).await {
                    Ok(_) | Err(Error::BackendUnavailable { .. }) => {}
                    Err(error) => return Err(error),
                }
                own.register(session).ok_or_else(|| self.unavailable())
            }
            None => Ok(Arc::clone(&self.register)),
        }
    }

    /// The same where there is one already.
    pub fn known_register(&self, session: Option<SessionId>) -> Option<Arc<Register>> {
        match (&self.own, session) {
            (Some(own), Some(session)) => own.register(session),
            _ => Some(Arc::clone(&self.register)),
        }
    }

    /// Whether it tells of its resources, or is asked about them now and then.
    pub fn can_tell(&self) -> bool {
        let hello = self.listing().hello.clone();
        self.config.poll.is_some() || hello.is_none_or(|hello| hello.capabilities.subscribe)
    }

    /// Every subscription to something of this backend, with how it stands.
    pub fn subscriptions(&self) -> Vec<(Arc<Subscription>, &'static str)> {
        self.registers().flat_map(|register| register.all()).collect()
    }

    /// How many there are.
    pub fn count_of_subscriptions(&self) -> usize {
        self.registers().map(|register| register.count()).sum()
    }

    fn registers(&self) -> impl Iterator<Item = Arc<Register>> {
        std::iter::once(Arc::clone(&self.register)).chain(self.own.iter().flat_map(OwnLinks::registers))
    }

    /// Publishes what it offers.
    fn set_listing(&self, listing: Listing) {
        let listing = Arc::new(listing);
        self.home.offered.store(Arc::new(Offered::new(Arc::clone(&self.config), Arc::clone(&listing))));
        self.listing.store(listing);
    }

    /// What it offers is about to be listed.
    fn list_begins(&self) {
        self.registers().for_each(|register| register.list_begins());
    }

    /// The connection over which it lists is another.
    fn list_connected(&self) {
        self.registers().for_each(|register| register.list_connected());
    }

    /// It has listed its resources, or its templates alone; `is_settled` when it was connected long enough to have them all.
    /// Tells whether it was asked too early.
    async fn relisted(&self, is_settled: bool, has_resources: bool) -> bool {
        let mut is_early = false;
        for register in self.registers().collect::<Vec<_>>() {
            is_early |= register.relisted(is_settled, has_resources).await;
        }
        is_early
    }

    fn list_failed(&self) {
        self.registers().for_each(|register| register.list_failed());
    }

    /// All subscriptions, for the backend that takes this one's place.
    pub fn hand_over(&self) -> Vec<HandedOver> {
        let own = self.own.iter().flat_map(OwnLinks::hand_over);
        let shared = HandedOver { client: None, subscriptions: self.register.hand_over() };
        std::iter::once(shared).chain(own).filter(|handed| !handed.subscriptions.is_empty()).collect()
    }

    /// Takes them over. Whose were shared, and can be so no more, are gone: nobody can dial for a client that did not call.
    pub fn take_over(&self, handed: Vec<HandedOver>) {
        if !handed.is_empty() {
            // What it listed before was not compared with what is subscribed.
            self.inbox.mark(&[List::Resources]);
        }
        for HandedOver { client, subscriptions } in handed {
            match (&self.own, client) {
                (None, _) => self.register.take_over(subscriptions),
                (Some(own), Some(client)) => own.take_over(&client, subscriptions),
                (Some(_), None) => self.register.disown(subscriptions),
            }
        }
    }

    /// It is taken from the configuration: what was subscribed is gone.
    pub fn close_subscriptions(&self) {
        self.registers().for_each(|register| register.close());
    }

    /// Calls of clients that it works on.
    pub fn calls_in_flight(&self) -> usize {
        self.most_calls - self.slots.available_permits()
    }

    /// Remembers a URI that it handed out; `normalise` gives the form of the URI under which other spellings are found.
    pub fn remember(&self, native: &str, normalise: impl Fn(&str) -> String) {
        if self.handed().remember(native, normalise) {
            self.inbox.observe().limit_hit(Limit::KnownUriBytes);
        }
    }

    /// URIs it handed out in results.
    pub fn handed(&self) -> MutexGuard<'_, Handed> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks whether it is there, on behalf of nobody.
    pub async fn ping(&self) -> Result<(), Error> {
        let link = self.link.load_full().ok_or_else(|| self.unavailable())?;
        let question = if link.dialect().has_handshake() { Method::Ping } else { Method::Discover };
        link.ask(&question, "{}").await.map(drop).map_err(|error| self.explain(error))
    }

    /// Whether it is known to speak versions with a handshake and versions without.
    pub fn has_both_eras(&self) -> bool {
        let lists_both = self.listing().hello.as_ref().is_some_and(|hello| hello.lists_handshake);
        lists_both || self.twin.as_ref().is_some_and(Twin::is_up)
    }

    /// How many clients have a link of their own; nothing where they share one.
    pub fn own_links(&self) -> Option<usize> {
        self.own.as_ref().map(OwnLinks::count)
    }

    /// Passes a notification of a client on over its own link, where it has one.
    pub fn tell_own(&self, session: SessionId, notification: &Bytes) {
        if let Some(own) = &self.own {
            own.tell(session, notification);
        }
    }

    /// A client asked for another log level; its mailbox knows which.
    pub fn level_changed(&self, session: SessionId) {
        if let Some(own) = &self.own {
            own.level_changed(session);
        }
    }

    fn unavailable(&self) -> Error {
        let reason = match &*self.state.borrow() {
            State::Starting => "it is starting".to_owned(),
            State::Ready => "it is reconnecting".to_owned(),
            State::Lost(reason) => public(reason),
            State::Stopped => "it was stopped".to_owned(),
        };
        Error::BackendUnavailable { server: self.id.to_string(), reason, sent: false }
    }

    fn explain(&self, error: LinkError) -> Error {
        let server = self.id.to_string();
        match error {
            LinkError::Closed { reason, sent } => Error::BackendUnavailable { server, reason: public(&reason), sent },
            LinkError::Overloaded => Error::Overloaded { server },
            LinkError::SessionLost => {
                Error::BackendUnavailable { server, reason: "it keeps forgetting the session".to_owned(), sent: false }
            }
            LinkError::Protocol(reason) | LinkError::Refused { error: reason, .. } => {
                Error::BackendProtocol { server, reason: public(&reason) }
            }
        }
    }
}
impl Upstream for Backend {
    type Calls = Endings;

    fn id(&self) -> &ServerId {
        &self.id
    }

    fn config(&self) -> &Server {
        &self.config
    }

    fn handed(&self) -> MutexGuard<'_, Handed> {
        Backend::handed(self)
    }

    fn calls_of(&self, tool: &str) -> Arc<Endings> {
        self.meter.tool(tool)
    }
}

