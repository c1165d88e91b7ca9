//! Handles the messages that a backend sends on one link other than responses: notifications and server requests.
//!
//! A message on the stream of a call belongs to that call. Any other message belongs to the client that owns the link,
//! or to the only client with calls in flight on a shared link, or to the only client that ever sent a call over it.
//! The recipient is never guessed: if there is none or more than one, a log message goes to the gateway's log and a
//! server request is rejected.
//!
//! Links call this module from their reading tasks, so no function here waits.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use goblin_catalog::listing::List;
use goblin_config::{Declare, Root, Server};
use goblin_telemetry::Event;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::memory::BufferKind;
use goblin_wire::params::{cancelled, related_task};
use goblin_wire::{Error, Id, MalformedMessage, Method, Notification, Request};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::client::Client;
use crate::client::call::Call;
use crate::client::caller::{Caller, ClientCapabilities, Level, SessionId};
use crate::upstream::events::BackendEvents;
use crate::upstream::files::Host;
use crate::upstream::lists::LinkLists;
use crate::upstream::server_request::{self, Recipient};
use crate::upstream::subscriptions::SubscriptionManager;
use crate::upstream::supervisor::LivePolicies;

/// The limit of open server requests per link. Further requests are rejected.
const MAX_SERVER_REQUESTS: usize = 256;
/// The number of recent server request ids that a link remembers. The oldest is forgotten first.
const MAX_RECENT_IDS: usize = 1024;

/// The handler of incoming messages of one link.
pub struct InboundHandler {
    pub events: Arc<BackendEvents>,
    /// The subscriptions over this link.
    pub subscriptions: Arc<SubscriptionManager>,
    /// The client that owns the link. `None` if clients share it.
    own: Option<LinkOwner>,
    declare: Declare,
    /// The configured roots, with which a shared link answers `roots/list`.
    roots: Vec<Root>,
    policies: LivePolicies,
    requests: Mutex<InboundRequests>,
    /// Limits the server requests that wait for a response or for its delivery.
    capacity: Arc<Semaphore>,
}

/// The server requests of one link.
struct InboundRequests {
    /// The open ones by the backend's ids. Sending a reason on the channel cancels the request. `None` once the link
    /// has ended.
    open: Option<HashMap<Id, oneshot::Sender<String>>>,
    recent: RecentIds,
}

/// Hashes of the ids of recent server requests. Hashes, because an id can be long.
#[derive(Default)]
struct RecentIds {
    state: RandomState,
    ids: VecDeque<u64>,
}

impl RecentIds {
    fn record(&mut self, id: &Id) {
        if self.ids.len() >= MAX_RECENT_IDS {
            self.ids.pop_front();
        }
        self.ids.push_back(self.state.hash_one(id));
    }

    fn contains(&self, id: &Id) -> bool {
        self.ids.contains(&self.state.hash_one(id))
    }
}

/// A server request that is registered under the backend's id.
pub(crate) struct InboundRequest {
    pub cancelled: oneshot::Receiver<String>,
    /// The slot of the request. Held until the response is sent.
    _permit: OwnedSemaphorePermit,
}

/// A client that owns a link.
#[derive(Clone)]
pub struct LinkOwner {
    pub caller: Caller,
    pub client: Arc<Client>,
    /// The client's session, or an id of the link if the client has none.
    pub id: SessionId,
}

/// The client that a message belongs to.
pub enum Attribution {
    /// One client. The message belongs to one of these calls of the client.
    Calls(SmallVec<[Arc<Call>; 2]>),
    /// The only client that ever sent a call over the link. It has no open call.
    Client(LinkOwner),
    None,
    /// Several clients have calls on the shared link.
    Ambiguous,
}

impl Attribution {
    /// Returns the owner of a message that came on the stream of `call`.
    pub fn of(call: Option<&Arc<Call>>) -> Attribution {
        call.map_or(Attribution::None, |call| Attribution::Calls(SmallVec::from_elem(Arc::clone(call), 1)))
    }

    /// Determines the owner from all open calls of a link. Stops at the first call of a second client.
    pub fn among<'a>(calls: impl Iterator<Item = &'a Arc<Call>> + Clone) -> Attribution {
        let Some(first) = calls.clone().next() else { return Attribution::None };
        let same = |call: &Arc<Call>| call.origin == first.origin;
        if calls.clone().all(same) { Attribution::Calls(calls.cloned().collect()) } else { Attribution::Ambiguous }
    }
}

/// Sends messages back over a link.
pub trait ReplySink: Send + Sync {
    /// Queues a message without waiting. Drops and reports the message if the queue is full.
    fn send_or_drop(&self, message: Bytes);

    /// Sends a response that the backend waits for. Waits for space in the queue, as a request does.
    fn answer(&self, message: Bytes) -> BoxFuture<'_, ()>;
}

impl InboundHandler {
    /// Creates the handler of a link. `own` is the client that owns it.
    pub fn new(
        subscriptions: Arc<SubscriptionManager>,
        config: &Server,
        own: Option<LinkOwner>,
        policies: LivePolicies,
    ) -> InboundHandler {
        let requests = InboundRequests { open: Some(HashMap::new()), recent: RecentIds::default() };
        let capacity = Arc::new(Semaphore::new(MAX_SERVER_REQUESTS));
        InboundHandler {
            events: Arc::clone(subscriptions.events()),
            subscriptions,
            roots: if own.is_some() { Vec::new() } else { config.roots.clone() },
            own,
            declare: config.declare,
            policies,
            requests: Mutex::new(requests),
            capacity,
        }
    }

    /// Creates the handler of an arbitrary link, for tests.
    #[cfg(test)]
    pub fn example() -> InboundHandler {
        let server = goblin_config::ServerId::new("a").expect("a valid id");
        let transport = goblin_config::Transport::Files(goblin_config::Files::at("/".into()));
        let config = Arc::new(Server::new("a", transport, Default::default()));
        let policies = goblin_config::Policies::default();
        let events = BackendEvents::new(server.clone(), Arc::default(), Arc::default(), Arc::default());
        let backend = crate::upstream::Backend::new(server, Arc::clone(&config), &policies, events);
        let policies = Arc::new(arc_swap::ArcSwap::from_pointee(policies));
        InboundHandler::new(Arc::clone(&backend.shared.subscriptions), &config, None, policies)
    }

    /// Returns the timeout for a client's response to a server request that starts now.
    pub(crate) fn response_timeout(&self) -> Option<Duration> {
        self.policies.load().ask_timeout
    }

    /// Returns the lists of the link.
    pub(crate) fn lists(&self) -> &LinkLists {
        self.subscriptions.lists()
    }

    pub fn server(&self) -> &str {
        self.events.server()
    }

    pub fn emit(&self, event: &Event<'_>) {
        self.events.emit(event);
    }

    /// Charges a message of the backend to the memory account until its last slice is dropped.
    pub fn charge(&self, message: Bytes) -> Bytes {
        self.events.observe().memory.hold_message(BufferKind::Answers, message)
    }

    /// Counts and reports bytes that are not a valid message.
    pub(crate) fn report_malformed(&self, malformed: &MalformedMessage, reason: &str) {
        self.events.observe().count_limit(&malformed.error);
        self.emit(&Event::InvalidOutput { server: self.server(), reason });
    }

    /// Handles a notification other than progress. Calls `attribution` only for notifications that need an owner.
    pub fn on_notification(&self, notification: &Notification, attribution: impl FnOnce() -> Attribution) {
        match &notification.method {
            Method::ToolsChanged => self.lists().announce(&[List::Tools]),
            Method::PromptsChanged => self.lists().announce(&[List::Prompts]),
            Method::ResourcesChanged => self.lists().announce(&[List::Resources, List::Templates]),
            Method::Cancelled => self.cancel_request(notification),
            Method::LogMessage => self.on_log_message(notification, attribution()),
            // On a client's own link the last arm forwards it to that client.
            Method::ElicitationComplete if self.own.is_none() => self.events.on_elicitation_complete(notification),
            Method::ResourceUpdated => self.subscriptions.on_update(notification),
            Method::TaskStatus | Method::TaskChanged => {
                if !self.events.tasks.on_notification(&self.events, self.own_session(), notification) {
                    self.report_undelivered(notification);
                }
            }
            _ => {
                if !self.forward(notification, attribution()) {
                    self.report_undelivered(notification);
                }
            }
        }
    }

    /// Handles progress of `call`. Restarts the call's idle timeout, and forwards the notification if the client sent a
    /// progress token.
    pub(crate) fn on_progress(&self, notification: &Notification, call: &Call) {
        let (Some(token), Some(at)) = (call.record_activity(), notification.params.progress_token) else { return };
        let mut edits = Splice::new();
        edits.replace(at, token);
        self.expose_related_task(notification.raw.as_str(), notification.params.whole, &mut edits);
        if !call.offer(json::single_line(edits.apply(notification.raw.bytes()))) {
            self.emit(&Event::ProgressDropped { server: self.server() });
        }
    }

    /// Forwards a log message if the client's log level includes it. A message without a clear owner goes to the
    /// gateway's log.
    fn on_log_message(&self, notification: &Notification, attribution: Attribution) {
        let level = notification.params.level.and_then(|span| json::string(notification.raw.as_str(), span));
        let level = level.and_then(|name| Level::parse(&name)).unwrap_or(Level::Emergency);
        let min_level = match (&attribution, &self.own) {
            (Attribution::Calls(calls), _) => calls.first().map_or(Some(Level::LOWEST), |call| call.caller.level),
            (Attribution::Client(owner), _) | (_, Some(owner)) => {
                owner.caller.dialect.has_server_requests().then(|| owner.client.level())
            }
            (Attribution::None | Attribution::Ambiguous, None) => {
                return self.emit(&Event::BackendLog { server: self.server(), line: notification.raw.as_str() });
            }
        };
        if min_level.is_some_and(|min_level| level >= min_level) && !self.forward(notification, attribution) {
            self.emit(&Event::LogDropped { server: self.server() });
        }
    }

    /// Forwards a notification unchanged except for task ids. Returns whether a queue accepted it.
    fn forward(&self, notification: &Notification, attribution: Attribution) -> bool {
        let mut edits = Splice::new();
        self.expose_related_task(notification.raw.as_str(), notification.params.whole, &mut edits);
        let message = json::single_line(edits.apply(notification.raw.bytes()));
        // The version of a client without server requests has no notification of a call except these. It may know
        // others by an extension.
        let accepts = |call: &Arc<Call>| {
            call.caller.dialect.has_server_requests()
                || matches!(notification.method, Method::LogMessage | Method::Other(_))
        };
        match (&attribution, &self.own) {
            (Attribution::Calls(calls), _) => {
                calls.iter().filter(|call| accepts(call)).any(|call| call.offer(message.clone()))
            }
            // A client without server requests has no stream for messages outside of a call, so the message would stay
            // in its queue for ever.
            (Attribution::Client(owner), _) | (_, Some(owner)) => {
                owner.caller.dialect.has_server_requests() && owner.client.post(message)
            }
            (Attribution::None | Attribution::Ambiguous, None) => false,
        }
    }

    /// Returns the session of the client that owns the link.
    fn own_session(&self) -> Option<SessionId> {
        self.own.as_ref().and_then(|client| client.caller.session)
    }

    /// Replaces the native id of a related task with the id that the client sees.
    pub(crate) fn expose_related_task(&self, text: &str, params: Option<Span>, edits: &mut Splice) {
        let Some(at) = params.and_then(|params| related_task(text, params)) else { return };
        let id = json::string(text, at);
        let id = id.and_then(|native| self.events.tasks.exposed_id(self.events.id(), self.own_session(), &native));
        if let Some(id) = id {
            edits.replace(at, quote(&id));
        }
    }

    /// Returns the edit that replaces the task id in a client's response with the native one.
    pub(crate) fn restore_related_task(&self, text: &str, result: Span) -> Splice {
        let mut edits = Splice::new();
        let Some(at) = related_task(text, result) else { return edits };
        if let Some(native) = json::string(text, at).and_then(|id| self.events.tasks.native_id(self.events.id(), &id)) {
            edits.replace(at, quote(&native));
        }
        edits
    }

    fn report_undelivered(&self, notification: &Notification) {
        let event = Event::BackendNotification { server: self.server(), method: notification.method.as_str() };
        self.emit(&event);
    }

    /// Handles a server request: answers it, rejects it, or relays it to its client.
    pub fn on_request(
        self: &Arc<InboundHandler>,
        request: Request,
        attribution: Attribution,
        reply_sink: Arc<dyn ReplySink>,
    ) {
        if request.method == Method::Ping {
            return reply_sink.send_or_drop(goblin_wire::reply(&request.id_as_written(), "{}").concat());
        }
        if request.method == Method::RootsList && self.own.is_none() && !self.roots.is_empty() {
            return reply_sink.send_or_drop(goblin_wire::reply(&request.id_as_written(), roots(&self.roots)).concat());
        }
        self.requests.lock().recent.record(&request.id);
        let opened = match self.add_request(&request.id) {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                // The backend repeated the request on a resumed stream, or reused the id against the protocol. A
                // rejection would answer the open request, so only report it.
                let (server, method) = (self.server(), request.method.as_str());
                return self.emit(&Event::ServerRequestRejected { server, method, reason: "its id is in use" });
            }
            Err(error) => return reply_sink.send_or_drop(self.rejection(&request, &error)),
        };
        match self.recipient(&request, attribution) {
            Ok(recipient) => server_request::relay(self, request, recipient, opened, reply_sink),
            Err(error) => self.reject(&request, &error, &*reply_sink),
        }
    }

    /// Handles a server request on a resumed stream. A server may repeat a request that another client answered
    /// earlier. That client's call may be over, and a different client may now be alone on the link, so such a request
    /// is rejected.
    pub(crate) fn on_replayed_request(
        self: &Arc<InboundHandler>,
        request: Request,
        attribution: Attribution,
        reply_sink: Arc<dyn ReplySink>,
    ) {
        let requests = self.requests.lock();
        let is_open = requests.open.as_ref().is_some_and(|open| open.contains_key(&request.id));
        let is_repeated = requests.recent.contains(&request.id) && !is_open;
        drop(requests);
        if is_repeated && self.own.is_none() {
            let reason = "the server repeated an earlier request, and its client is no longer known".to_owned();
            return reply_sink.send_or_drop(self.rejection(&request, &Error::ClientUnavailable { reason }));
        }
        self.on_request(request, attribution, reply_sink);
    }

    /// Rejects a registered server request.
    pub(crate) fn reject(&self, request: &Request, error: &Error, reply_sink: &dyn ReplySink) {
        self.remove_request(&request.id);
        reply_sink.send_or_drop(self.rejection(request, error));
    }

    /// Reports a rejection and returns the error response.
    pub(crate) fn rejection(&self, request: &Request, error: &Error) -> Bytes {
        let (server, method, reason) = (self.server(), request.method.as_str(), error.to_string());
        self.emit(&Event::ServerRequestRejected { server, method, reason: &reason });
        goblin_wire::error_reply(Some(&request.id_as_written()), &error.to_json()).concat()
    }

    /// Returns the client for a server request. Returns an error if the client is unclear or lacks the capability.
    fn recipient(&self, request: &Request, attribution: Attribution) -> Result<Recipient, Error> {
        let unavailable = |reason: &str| Error::ClientUnavailable { reason: reason.to_owned() };
        let own = self.own.as_ref();
        let (attribution, owner) = match attribution {
            Attribution::Client(client) => (Attribution::None, Some(own.cloned().unwrap_or(client))),
            attribution => (attribution, own.cloned()),
        };
        let recipient = match (attribution, owner) {
            (Attribution::Calls(calls), _) => {
                let first = calls.first().ok_or_else(|| unavailable("no client has a call on this connection"))?;
                let (client, client_capabilities) =
                    (Arc::clone(&first.client), Arc::clone(&first.caller.client_capabilities));
                let dialect = first.caller.dialect;
                Recipient { client, client_capabilities, dialect, is_own: own.is_some(), calls }
            }
            (_, Some(owner)) if !owner.caller.dialect.has_server_requests() => {
                return Err(unavailable(
                    "it receives server requests only in the result of a call, and this request names no call",
                ));
            }
            (_, Some(owner)) => Recipient {
                client: owner.client,
                client_capabilities: owner.caller.client_capabilities,
                dialect: owner.caller.dialect,
                calls: SmallVec::new(),
                is_own: own.is_some(),
            },
            (Attribution::None | Attribution::Client(_), None) => {
                return Err(unavailable("no client has a call on this connection"));
            }
            (Attribution::Ambiguous, None) => {
                return Err(unavailable(
                    "several clients share this connection and the request does not identify its client; \
                     give each client its own connection with \"session\": \"per-client\" in the gateway's configuration",
                ));
            }
        };
        self.check_declared(request)?;
        check_capability(request, &recipient.client_capabilities).map(|()| recipient)
    }

    /// Returns an error if the gateway did not declare the capability for this request on the link.
    fn check_declared(&self, request: &Request) -> Result<(), Error> {
        let missing = match request.method {
            Method::Sample if !self.declare.sampling => "sampling",
            Method::Elicit if !self.declare.elicitation => "elicitation",
            // The roots of one client must not apply to another client's calls.
            Method::RootsList if self.own.is_none() => "roots",
            _ => return Ok(()),
        };
        Err(Error::MethodNotFound(format!("{} (this connection does not declare {missing})", request.method)))
    }

    /// Registers a server request under the backend's id. Returns `None` if the id is in use, and an error if the limit
    /// is reached or the link has ended.
    fn add_request(&self, id: &Id) -> Result<Option<InboundRequest>, Error> {
        let (cancel, cancelled) = oneshot::channel();
        let mut requests = self.requests.lock();
        let closed = || Error::ClientUnavailable { reason: "the connection ended".to_owned() };
        let open = requests.open.as_mut().ok_or_else(closed)?;
        if open.contains_key(id) {
            return Ok(None);
        }
        let permit = Arc::clone(&self.capacity).try_acquire_owned();
        let _permit =
            permit.map_err(|_| Error::LimitExceeded { limit: "serverRequests", value: MAX_SERVER_REQUESTS })?;
        open.insert(id.clone(), cancel);
        Ok(Some(InboundRequest { cancelled, _permit }))
    }

    pub(crate) fn remove_request(&self, id: &Id) {
        if let Some(open) = &mut self.requests.lock().open {
            open.remove(id);
        }
    }

    /// Handles the cancellation of a server request by the backend.
    fn cancel_request(&self, notification: &Notification) {
        let Some((id, reason)) = cancelled(notification, "the server cancelled the request") else { return };
        let cancel = self.requests.lock().open.as_mut().and_then(|open| open.remove(&id));
        if let Some(cancel) = cancel {
            // An error means that the relaying task has already ended.
            let _ = cancel.send(reason.into_owned());
        }
    }

    /// Drops all open server requests, because the link has ended and no response can be sent.
    pub fn close(&self) {
        drop(self.requests.lock().open.take());
    }
}

/// Returns an error if the client did not declare the capability for a server request. Unknown methods pass: the client
/// decides on them. An elicitation in the other mode than the declared one has invalid params, as the protocol says.
pub(crate) fn check_capability(request: &Request, client_capabilities: &ClientCapabilities) -> Result<(), Error> {
    let text = request.raw.as_str();
    let member = |key| request.params.whole.and_then(|params| json::member(text, params, key));
    let missing = match request.method {
        Method::Sample if !client_capabilities.sampling => "sampling",
        Method::Sample if member("tools").is_some() && !client_capabilities.sampling_tools => "sampling.tools",
        Method::Elicit => {
            let is_url = member("mode").is_some_and(|mode| json::string(text, mode).is_some_and(|mode| mode == "url"));
            let (has_mode, has_other, mode) = match is_url {
                true => (client_capabilities.elicitation_url, client_capabilities.elicitation_form, "elicitation.url"),
                false => {
                    (client_capabilities.elicitation_form, client_capabilities.elicitation_url, "elicitation.form")
                }
            };
            match (has_mode, has_other) {
                (true, _) => return Ok(()),
                (false, true) => return Err(Error::InvalidParams(format!("the client does not declare {mode}"))),
                (false, false) => mode,
            }
        }
        Method::RootsList if !client_capabilities.roots => "roots",
        _ => return Ok(()),
    };
    Err(Error::MethodNotFound(format!("{} (the client does not declare {missing})", request.method)))
}

fn roots(roots: &[Root]) -> String {
    let root = |root: &Root| {
        let name = root.name.as_ref().map(|name| format!(r#","name":{}"#, quote(name))).unwrap_or_default();
        format!(r#"{{"uri":{}{name}}}"#, quote(&root.uri))
    };
    format!(r#"{{"roots":[{}]}}"#, roots.iter().map(root).collect::<Vec<_>>().join(","))
}

impl Host for InboundHandler {
    fn server(&self) -> &str {
        InboundHandler::server(self)
    }

    fn emit(&self, event: &Event<'_>) {
        InboundHandler::emit(self, event);
    }

    fn resources_changed(&self) {
        self.lists().mark(&[List::Resources]);
    }

    fn updated(&self, notification: &Notification) {
        self.subscriptions.on_update(notification);
    }

    fn ended(&self, uri: &str) {
        self.subscriptions.on_end(uri);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn attribution_of_a_server_request_stops_at_the_second_client() {
        let first_call = Arc::new(Call::example());
        let mut calls = vec![Arc::clone(&first_call), first_call];
        let inspected = Cell::new(0);
        let among = |calls: &[Arc<Call>]| {
            inspected.set(0);
            Attribution::among(calls.iter().inspect(|_| inspected.set(inspected.get() + 1)))
        };
        assert!(matches!(among(&[]), Attribution::None));
        assert!(matches!(among(&calls), Attribution::Calls(calls) if calls.len() == 2));
        calls.extend((0..1000).map(|_| Arc::new(Call::example())));
        assert!(matches!(among(&calls), Attribution::Ambiguous));
        assert!(inspected.get() <= 4, "{} calls inspected", inspected.get());
    }

    #[test]
    fn open_server_requests_are_limited_and_have_unique_ids() {
        let inbound = InboundHandler::example();
        let mut open: Vec<_> =
            (0..MAX_SERVER_REQUESTS as u64).map(|id| inbound.add_request(&Id::from(id)).ok().flatten()).collect();
        assert!(open.iter().all(Option::is_some));
        assert!(matches!(inbound.add_request(&Id::from(0)), Ok(None)));
        let full = || matches!(inbound.add_request(&Id::from(999)), Err(Error::LimitExceeded { .. }));
        assert!(full());
        inbound.remove_request(&Id::from(0));
        assert!(full(), "its response is not sent yet");
        open.pop();
        assert!(matches!(inbound.add_request(&Id::from(999)), Ok(Some(_))));
        inbound.close();
        assert!(inbound.add_request(&Id::from(1000)).is_err());
    }
}
