//! One MCP server behind the gateway.
//!
//! A [`Backend`] is the handle everybody shares: it publishes the link, the last listing and the state that the backend's
//! actor owns, and carries calls over the link without passing through the actor. A lost backend keeps its listing; calls
//! are refused at once instead of queued. Where each client has its own link, calls go over that one, and the actor's is
//! for listing only.

pub mod actor;
pub mod ask;
pub mod child;
pub mod connect;
pub mod dial;
pub mod ear;
pub mod era;
pub mod files;
pub mod guard;
pub mod handed;
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
pub mod stdio;
pub mod trouble;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::backend::ask::Translate;
use crate::backend::ear::Client;
use crate::backend::handed::Handed;
use crate::backend::inbox::{Inbox, List};
use crate::backend::link::{About, Link, LinkError};
use crate::backend::listen::{Filter, Listen};
use crate::backend::listing::{LeftOut, Listing};
use crate::backend::offered::Offered;
use crate::backend::own::OwnLinks;
use crate::backend::register::{Home, Register};
use crate::backend::stamp::Stamped;
use crate::caller::SessionId;
use crate::config::{Policies, Server, ServerId};
use crate::lane::{Call, End, Patience, SLOW_AFTER};
use crate::observe::Observe;
use crate::observe::meter::{Asked, Ending, Meter};
use crate::protocol::dialect::Dialect;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Span, Splice, quote};
use crate::protocol::method::Method;
use crate::protocol::mirror::Mirrors;
use crate::protocol::{Id, Outcome, Request, Response};
use crate::subscriptions::Subscription;

/// How long a call waits for room at a busy backend.
const SLOT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a call waits for the list of tools after it was refused for its headers.
const REFRESH_PATIENCE: Duration = Duration::from_secs(5);
/// How long a call waits for the session after a forgotten one.
const REDIAL_PATIENCE: Duration = Duration::from_secs(10);

/// The code of a request whose headers are not what its body says.
const HEADER_MISMATCH: &str = "-32020";

pub struct Backend {
    pub id: ServerId,
    pub config: Arc<Server>,
    pub inbox: Arc<Inbox>,
    pub meter: Arc<Meter>,
    link: ArcSwapOption<Link>,
    /// Of single clients, where each has its own.
    own: Option<OwnLinks>,
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
        let most_calls = policies.max_in_flight_per_backend;
        let home = Home {
            inbox: Arc::clone(&inbox),
            config: Arc::clone(&config),
            offered: Arc::new(ArcSwap::from_pointee(Offered::new(Arc::clone(&config), Arc::default()))),
            most_upstream: policies.subscriptions.upstream,
        };
        Backend {
            register: Arc::new(Register::new(home.clone())),
            home,
            inbox,
            id,
            config,
            meter: Arc::default(),
            link: ArcSwapOption::empty(),
            own: None,
            listing: ArcSwap::default(),
            failed_lists: Mutex::default(),
            left_out: Mutex::default(),
            refreshing: AtomicBool::new(true),
            state: watch::Sender::new(State::Starting),
            settled: watch::Sender::new(false),
            slots: Semaphore::new(most_calls),
            most_calls,
            handed: Mutex::default(),
        }
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

    /// Tells those before.
    fn set_left_out(&self, left_out: Vec<LeftOut>) -> Vec<LeftOut> {
        std::mem::replace(&mut self.left_out.lock().unwrap_or_else(PoisonError::into_inner), left_out)
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
        match (&self.own, call.caller.session) {
            (Some(own), Some(session)) => {
                match own.link(session, call, None).await {
                    Ok(_) | Err(Error::BackendUnavailable { .. }) => {}
                    Err(error) => return Err(error),
                }
                own.register(session).ok_or_else(|| self.unavailable())
            }
            _ => Ok(Arc::clone(&self.register)),
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
    fn relisted(&self, is_settled: bool, has_resources: bool) -> bool {
        self.registers().filter(|register| register.relisted(is_settled, has_resources)).count() > 0
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

    /// Sends a client's request and waits for its answer within `patience`.
    pub async fn call(
        &self,
        outgoing: &Outgoing<'_>,
        call: &Arc<Call>,
        patience: Patience,
    ) -> Result<Answered, CallEnd> {
        let ended = self.call_uncounted(outgoing, call, patience).await;
        self.meter.ended(Asked::from(&call.request.method), ending(&ended));
        ended
    }

    async fn call_uncounted(
        &self,
        outgoing: &Outgoing<'_>,
        call: &Arc<Call>,
        patience: Patience,
    ) -> Result<Answered, CallEnd> {
        // The link first: what waits for one of its own takes no other client's room.
        let link = match self.link_now(call) {
            Some(link) => link,
            None => Box::pin(self.link_after(None, call)).await?,
        };
        let _slot = self.slot().await?;
        match self.carry(&link, outgoing, call, patience).await? {
            Err(error) if self.may_go_again(&error, call) => {
                // Boxed, as all that is rare: what a call's future holds is moved with it.
                let link = Box::pin(self.link_after(Some(&link), call)).await?;
                let again = Box::pin(self.carry(&link, outgoing, call, patience)).await?;
                again.map_err(|error| self.explain(error).into())
            }
            Ok(answered) if link.repeats_arguments() && is_header_mismatch(&answered.response) => {
                Box::pin(self.carry_refreshed(&link, outgoing, call, patience, answered)).await
            }
            answer => answer.map_err(|error| self.explain(error).into()),
        }
    }

    /// Sends a call again that was refused for its headers: its tool may not be what it was. A refusal is not work, so it
    /// happens once only.
    async fn carry_refreshed(
        &self,
        link: &Arc<Link>,
        outgoing: &Outgoing<'_>,
        call: &Arc<Call>,
        patience: Patience,
        refused: Answered,
    ) -> Result<Answered, CallEnd> {
        self.inbox.mark(&[List::Tools]);
        let mut settled = self.settled.subscribe();
        let refreshed = async { while self.is_refreshing() && settled.changed().await.is_ok() {} };
        tokio::select! {
            // When it takes too long, what is known by then decides.
            _ = tokio::time::timeout(REFRESH_PATIENCE, refreshed) => {}
            end = call.ended() => return Err(self.cut(end, call).1),
        }
        let listing = self.listing();
        let tool = listing
            .tools
            .iter()
            .find(|tool| outgoing.request.method == Method::ToolsCall && Some(&*tool.native) == outgoing.name);
        let Some(Ok(mirrors)) = tool.map(|tool| Mirrors::read(tool.raw.as_str())) else { return Ok(refused) };
        let again = Outgoing { edits: outgoing.edits.clone(), mirrors: Some(&mirrors), ..*outgoing };
        self.carry(link, &again, call, patience).await?.map_err(|error| self.explain(error).into())
    }

    async fn slot(&self) -> Result<SemaphorePermit<'_>, Error> {
        if let Ok(permit) = self.slots.try_acquire() {
            return Ok(permit);
        }
        match tokio::time::timeout(SLOT_PATIENCE, self.slots.acquire()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(Error::Overloaded { server: self.id.to_string() }),
        }
    }

    async fn carry(
        &self,
        link: &Arc<Link>,
        outgoing: &Outgoing<'_>,
        call: &Arc<Call>,
        patience: Patience,
    ) -> Result<Result<Answered, LinkError>, CallEnd> {
        if let Some(end) = call.end_so_far() {
            return Err(self.cut(end, call).1);
        }
        let id = link.next_id();
        let upstream = Id::from(id);
        let Outgoing { request, name, mirrors, .. } = *outgoing;
        let dialect = link.dialect();
        let mut edits = outgoing.edits.clone();
        edits.append(self.stamped(outgoing, call, upstream.token()).edits(dialect));
        let body = request.rekeyed(&upstream, edits);
        let about = About { method: &request.method, name, mirrors: mirrors.map(|mirrors| (mirrors, request)) };
        let begun = call.start_clock(patience);
        tokio::select! {
            biased;
            answer = link.request(id, body, about, Some(call)) => {
                if answer.is_ok() {
                    self.meter.took(Asked::from(&request.method), begun.elapsed());
                }
                Ok(answer.map(|response| Answered { response, dialect }))
            }
            end = call.ended() => {
                let (reason, end) = self.cut(end, call);
                tell_cancelled(link, id, &reason);
                Err(end)
            }
        }
    }

    fn stamped<'a>(&self, outgoing: &Outgoing<'a>, call: &'a Call, token: Bytes) -> Stamped<'a> {
        Stamped {
            request: outgoing.request,
            caller: &call.caller,
            level: call.mailbox.asked_level(),
            declare: self.config.declare,
            token: outgoing.progress_token_at.map(|at| (at, token)),
            tasks: outgoing.tasks,
        }
    }

    /// Opens a stream of news for the sake of a client's request, where its link has any.
    pub async fn listen(&self, call: &Call, filter: &Filter) -> Result<Listen, LinkError> {
        let closed = || LinkError::Closed { reason: "it is not connected".to_owned(), sent: false };
        self.link_now(call).ok_or_else(closed)?.listen(filter).await
    }

    /// A call that ends without its answer: what the backend is told, and what its client.
    pub fn cut(&self, end: End, call: &Call) -> (String, CallEnd) {
        match end {
            End::Cancelled(reason) => (reason, CallEnd::Cancelled),
            End::Late(after) => {
                let (server, method) = (self.id.to_string(), call.request.method.to_string());
                ("the gateway's time-out".to_owned(), Error::Timeout { server, method, after }.into())
            }
        }
    }

    /// The client's own links, where it has a session and the backend gives it one.
    fn own(&self, call: &Call) -> Option<(&OwnLinks, SessionId)> {
        self.own.as_ref().zip(call.caller.session)
    }

    /// The link of a call, where it is up.
    fn link_now(&self, call: &Call) -> Option<Arc<Link>> {
        match self.own(call) {
            Some((own, session)) => own.up(session),
            None => self.link.load_full(),
        }
    }

    /// The link of a call that has none, or none but `old`, which is over.
    async fn link_after(&self, old: Option<&Arc<Link>>, call: &Call) -> Result<Arc<Link>, CallEnd> {
        let link = async {
            match self.own(call) {
                Some((own, session)) => own.link(session, call, old).await,
                None => self.next_link(old).await,
            }
        };
        tokio::select! {
            biased;
            link = link => Ok(link?),
            end = call.ended() => Err(self.cut(end, call).1),
            never = tell_slow(call) => match never {},
        }
    }

    /// Whether a call that was certainly not handled goes over the next link. One that clients share is not waited for
    /// when it was lost; one of the client's own is, since nothing but a call has it dialled again.
    fn may_go_again(&self, error: &LinkError, call: &Call) -> bool {
        match error {
            LinkError::SessionLost => true,
            LinkError::Closed { sent, .. } => !sent && self.own(call).is_some(),
            LinkError::Overloaded | LinkError::Protocol(_) | LinkError::Refused { .. } => false,
        }
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

    /// The link after `old`, where the backend only forgot the session and is being dialled again.
    async fn next_link(&self, old: Option<&Arc<Link>>) -> Result<Arc<Link>, Error> {
        let mut state = self.state.subscribe();
        let fresh = async {
            loop {
                let is_ready = *state.borrow_and_update() == State::Ready;
                match self.link.load_full() {
                    Some(link) if !old.is_some_and(|old| Arc::ptr_eq(old, &link)) => return Some(link),
                    _ if is_ready => state.changed().await.ok()?,
                    _ => return None,
                }
            }
        };
        tokio::time::timeout(REDIAL_PATIENCE, fresh).await.ok().flatten().ok_or_else(|| self.unavailable())
    }

    fn unavailable(&self) -> Error {
        let reason = match &*self.state.borrow() {
            State::Starting => "it is starting".to_owned(),
            State::Ready => "it is reconnecting".to_owned(),
            State::Lost(reason) => reason.clone(),
            State::Stopped => "it was stopped".to_owned(),
        };
        Error::BackendUnavailable { server: self.id.to_string(), reason, sent: false }
    }

    fn explain(&self, error: LinkError) -> Error {
        let server = self.id.to_string();
        match error {
            LinkError::Closed { reason, sent } => Error::BackendUnavailable { server, reason, sent },
            LinkError::Overloaded => Error::Overloaded { server },
            LinkError::SessionLost => {
                Error::BackendUnavailable { server, reason: "it keeps forgetting the session".to_owned(), sent: false }
            }
            LinkError::Protocol(reason) | LinkError::Refused { error: reason, .. } => {
                Error::BackendProtocol { server, reason }
            }
        }
    }
}

fn ending(ended: &Result<Answered, CallEnd>) -> Ending {
    match ended {
        Ok(answered) => match answered.response.outcome {
            Outcome::Result(_) => Ending::Ok,
            Outcome::Error(_) => Ending::Error,
        },
        Err(CallEnd::Cancelled) => Ending::Cancelled,
        Err(CallEnd::Failed(error)) => match error {
            Error::Timeout { .. } => Ending::Timeout,
            Error::Overloaded { .. } => Ending::Overloaded,
            Error::BackendUnavailable { .. } => Ending::Unavailable,
            Error::BackendProtocol { .. } => Ending::Protocol,
            _ => Ending::Error,
        },
    }
}

fn is_header_mismatch(response: &Response) -> bool {
    let text = response.raw.as_str();
    let Outcome::Error(error) = response.outcome else { return false };
    json::member(text, error, "code").is_some_and(|code| code.get(text) == HEADER_MISMATCH)
}

/// Tells the reader of a call in time that it takes its time: the call's clock begins only when it goes out.
async fn tell_slow(call: &Call) -> Infallible {
    tokio::time::sleep(SLOW_AFTER).await;
    call.lane.tell_slow();
    std::future::pending().await
}

/// On the side: nobody waits for it, and a backend that cannot take it has other troubles.
fn tell_cancelled(link: &Arc<Link>, id: u64, reason: &str) {
    let params = format!(r#"{{"requestId":{id},"reason":{}}}"#, quote(reason));
    let message = crate::protocol::notification(&Method::Cancelled, Some(&params));
    let link = Arc::clone(link);
    tokio::spawn(async move { link.notify(message).await });
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::backend::connect::{HttpClient, ProxyEnvironment};
    use crate::backend::ear::Ear;
    use crate::backend::http::HttpLink;
    use crate::backend::link::Wire;

    /// It forgot the session and does not come back: its caller hears that in its own time.
    #[tokio::test(start_paused = true)]
    async fn route3_a_call_that_is_late_before_it_goes_out_again_is_answered() {
        let id = ServerId::new("a").expect("a valid id");
        let transport = crate::config::Transport::Files(crate::config::Files::at("/".into()));
        let config = Arc::new(Server::new("a", transport, Default::default()));
        let backend = Backend::new(id, config, &Policies::default(), Arc::default(), Arc::new(()));
        backend.state.send_replace(State::Ready);
        let call = Arc::new(Call::example());
        let patience = Patience { idle: Some(Duration::ZERO), most: None };
        call.start_clock(patience);
        call.look_at_clock(Instant::now());
        let is_late = |end: CallEnd| matches!(end, CallEnd::Failed(Error::Timeout { .. }));
        assert!(backend.link_after(None, &call).await.is_err_and(is_late));
        let url: ::http::Uri = "http://127.0.0.1:9/mcp".parse().expect("a url");
        let client = HttpClient::new(&url, None, &ProxyEnvironment::default()).expect("a client");
        let link = HttpLink::new(client, url, Default::default(), 1, Arc::new(Ear::example()));
        let link = Arc::new(Link::new(Wire::Http(link)));
        let (edits, progress_token_at) = (Splice::new(), None);
        let outgoing = Outgoing {
            request: &call.request,
            edits,
            progress_token_at,
            name: None,
            mirrors: None,
            tasks: Tasks::default(),
        };
        assert!(backend.carry(&link, &outgoing, &call, patience).await.is_err_and(is_late));
    }
}
