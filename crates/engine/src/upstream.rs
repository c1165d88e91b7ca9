//! One MCP server behind the gateway.
//!
//! A [`Backend`] is the handle that the rest of the gateway shares. It publishes the last listing and, in a
//! [`LinkSlot`], the link and its state, which a supervisor owns. Calls go over the link directly, not through the
//! supervisor. A backend that lost its connection keeps its listing. A call makes its supervisor connect at once and
//! waits for that attempt. If each client has a link of its own, calls use that link and the shared link only fetches
//! the lists.

pub mod availability;
pub(crate) mod call;
mod capacity;
mod cause;
pub mod child;
pub mod descriptors;
pub(crate) mod dial;
pub(crate) mod era;
pub(crate) mod events;
pub(crate) mod fetch;
pub(crate) mod files;
pub mod guard;
pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod inbound;
pub(crate) mod levels;
pub(crate) mod link;
pub(crate) mod links;
pub(crate) mod listen;
pub(crate) mod listen_message;
pub(crate) mod lister;
pub(crate) mod listing_cache;
pub(crate) mod listing_view;
pub(crate) mod lists;
pub mod login;
pub(crate) mod open_requests;
pub(crate) mod predecessor;
pub mod problem;
pub(crate) mod refresh;
pub(crate) mod request_meta;
pub(crate) mod server_request;
pub(crate) mod sse;
pub(crate) mod stdio;
pub(crate) mod subscriptions;
pub(crate) mod supervisor;
pub(crate) mod tasks;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use goblin_catalog::Upstream;
use goblin_catalog::known_uris::KnownUris;
use goblin_catalog::listing::{List, Listing};
use goblin_catalog::resources::ResourceTable;
use goblin_config::oauth::login_command;
use goblin_config::{Policies, Server, ServerId};
use goblin_telemetry::meter::{Meter, OutcomeCounts};
use goblin_wire::json::{Span, Splice};
use goblin_wire::mirror::Mirrors;
use goblin_wire::{Dialect, Error, Method, Request, Response};
use parking_lot::{Mutex, MutexGuard};

use crate::client::call::Call;
use crate::client::caller::{Caller, SessionId};
use crate::client::subscriptions::{DrainedSubscriptions, Subscription};
use crate::upstream::capacity::Capacity;
use crate::upstream::events::{BackendEvents, ExposedUris};
use crate::upstream::fetch::SkippedTool;
use crate::upstream::inbound::LinkOwner;
use crate::upstream::link::LinkError;
use crate::upstream::links::{LinkSlot, LinkTable, ListenerGuard};
use crate::upstream::lists::LinkLists;
use crate::upstream::login::BackendLogin;
use crate::upstream::problem::public;
use crate::upstream::subscriptions::{ManagerContext, SubscriptionManager};

/// The longest wait of a subscription for the first lists of the client's own link.
const FIRST_LISTS_TIMEOUT: Duration = Duration::from_secs(5);

/// The shared handle of one backend.
pub struct Backend {
    pub id: ServerId,
    /// The configuration that this handle was published with. See [`Backend::with_surface`].
    pub config: Arc<Server>,
    pub events: Arc<BackendEvents>,
    pub meter: Arc<Meter>,
    /// The link that clients share, or that only fetches the lists if each client has a link of its own.
    pub shared: Arc<LinkSlot>,
    /// The other links. `None` in tests without a supervisor.
    links: Option<Arc<LinkTable>>,
    context: ManagerContext,
    /// Limits the calls in progress.
    calls: Arc<Capacity>,
    known_uris: Arc<Mutex<KnownUris>>,
    /// The backend that replaces this one after a reload, once it is ready.
    pub successor: ArcSwapOption<Backend>,
}

/// The state of the connection to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendState {
    Starting,
    Ready,
    /// Not connected. Holds the reason.
    Lost(String),
    /// Not connected, because the backend needs a login. Holds the reason.
    LoginNeeded(String),
    Stopped,
}

impl BackendState {
    /// Reports whether no further attempt follows, not even for a call.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            BackendState::Starting | BackendState::Ready | BackendState::Lost(_) | BackendState::LoginNeeded(_) => {
                false
            }
            BackendState::Stopped => true,
        }
    }
}

/// Subscriptions that move from a replaced backend to its successor.
pub struct SubscriptionHandover {
    /// The client that owns them, if it has its own link. `None` for subscriptions over the shared link.
    pub client: Option<LinkOwner>,
    pub subscriptions: DrainedSubscriptions,
}

/// The reason why a call ended without a response from the backend.
#[derive(Debug)]
pub enum CallEnd {
    Failed(Error),
    /// Cancelled by the client or by the end of its session. No response is sent.
    Cancelled,
}

impl From<Error> for CallEnd {
    fn from(error: Error) -> CallEnd {
        CallEnd::Failed(error)
    }
}

/// A client's request, translated for the backend.
#[derive(Clone)]
pub struct OutgoingRequest<'a> {
    pub request: &'a Request,
    /// Replaces exposed names and URIs with native ones.
    pub edits: Splice,
    /// The position of the client's progress token. The gateway writes its own token there.
    pub progress_token_at: Option<Span>,
    /// The native name of the tool or prompt, or the URI of the resource.
    pub name: Option<&'a str>,
    /// The tool arguments that HTTP headers repeat, if the tool declares any.
    pub mirrors: Option<&'a Mirrors>,
    pub tasks: TaskPolicy,
}

/// Whether a backend may answer a call with a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskPolicy {
    /// The client accepts tasks. The request declares this, in versions that declare capabilities per request.
    pub accepted: bool,
    /// The tool only runs as a task. The request then requests one, in versions that have such a request member.
    pub required: bool,
}

/// A response of the backend and the protocol version of the link it came over.
#[derive(Debug)]
pub struct BackendResponse {
    pub response: Response,
    pub dialect: Dialect,
}

impl Backend {
    pub fn new(id: ServerId, config: Arc<Server>, policies: &Policies, events: BackendEvents) -> Backend {
        let live = Arc::new(ArcSwap::new(Arc::clone(&config)));
        let context = ManagerContext {
            events: Arc::new(events),
            lists: Arc::new(LinkLists::new(Arc::clone(&live))),
            config: live,
            max_upstream: policies.subscriptions.upstream,
        };
        Backend {
            id,
            config,
            events: Arc::clone(&context.events),
            meter: Arc::default(),
            shared: Arc::new(LinkSlot::shared(Arc::new(SubscriptionManager::new(context.clone())))),
            links: None,
            known_uris: Arc::new(Mutex::new(KnownUris::new(&context.events.observe().memory))),
            context,
            calls: Capacity::new(policies.max_in_flight_per_backend),
            successor: ArcSwapOption::empty(),
        }
    }

    /// Applies a configuration of the same connection. Returns the handle that replaces this one: it shares the links,
    /// the calls and the subscriptions. The old handle stays valid for catalogs with the old names and filters.
    pub(crate) fn with_surface(&self, config: Arc<Server>) -> Backend {
        self.context.config.store(Arc::clone(&config));
        if let Some(links) = &self.links {
            links.capacity.resize(config.max_clients);
        }
        self.managers().for_each(|manager| manager.on_configured());
        Backend {
            id: self.id.clone(),
            config,
            events: Arc::clone(&self.events),
            meter: Arc::clone(&self.meter),
            shared: Arc::clone(&self.shared),
            links: self.links.clone(),
            context: self.context.clone(),
            calls: Arc::clone(&self.calls),
            known_uris: Arc::clone(&self.known_uris),
            successor: ArcSwapOption::empty(),
        }
    }

    /// Reports whether `other` is a handle of the same links.
    pub fn shares_links(&self, other: &Backend) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Returns the listing of the shared link.
    pub fn listing(&self) -> Arc<Listing> {
        self.lists().listing()
    }

    /// Returns the lists of the shared link.
    pub(crate) fn lists(&self) -> &Arc<LinkLists> {
        &self.context.lists
    }

    /// Returns the lists that a client sees: those of its own link if it has them, otherwise those of the shared link.
    pub(crate) fn lists_of(&self, caller: &Caller) -> Arc<LinkLists> {
        let own = self.client_links().and_then(|links| links.lists_of(caller));
        own.unwrap_or_else(|| Arc::clone(self.lists()))
    }

    /// Returns the transport of the current link. Returns `None` if the backend is not connected.
    pub fn transport(&self) -> Option<&'static str> {
        self.shared.transport()
    }

    /// Returns the id of the process that clients share. Returns `None` if the backend has no running process.
    pub(crate) fn process_id(&self) -> Option<u32> {
        self.shared.link()?.process_id()
    }

    pub fn state(&self) -> BackendState {
        self.shared.state()
    }

    /// Waits until the first attempt to connect has ended. Returns the state.
    pub async fn first_attempt(&self) -> BackendState {
        self.shared.first_attempt().await
    }

    /// Reports whether each client has a link of its own.
    pub(crate) fn is_per_client(&self) -> bool {
        self.client_links().is_some()
    }

    /// Returns the last listing of the client's own link.
    pub(crate) fn own_listing(&self, caller: &Caller) -> Option<Arc<Listing>> {
        self.client_links()?.lists_of(caller).map(|lists| lists.listing())
    }

    /// Reports whether the gateway has dropped the server, because of a loop.
    pub(crate) fn is_dropped(&self) -> bool {
        self.links.as_ref().is_some_and(|links| links.dropped.is_set())
    }

    /// Reports whether the client's own link is connected.
    pub(crate) fn has_own_link(&self, caller: &Caller) -> bool {
        self.client_links().is_some_and(|links| links.link_of(caller).is_some())
    }

    /// Connects the client's own link in the background and returns its lists. Returns `None` if clients share a link,
    /// or if the limit of clients is reached.
    pub(crate) fn connect_own(&self, call: &Call) -> Option<Arc<LinkLists>> {
        let slot = self.client_links()?.slot_of(call).ok()?;
        slot.request();
        Some(Arc::clone(slot.lists()))
    }

    /// Keeps the client's own link connected until the guard is dropped, although no call uses it.
    pub(crate) fn hold_own(&self, call: &Call) -> Option<ListenerGuard> {
        Some(self.client_links()?.slot_of(call).ok()?.hold())
    }

    /// Returns the login at the backend. Returns `None` if the backend needs none.
    pub(crate) fn login(&self) -> Option<&Arc<BackendLogin>> {
        self.links.as_ref()?.dialer.login.as_ref()
    }

    /// Returns the links of single clients. Returns `None` if clients share one link.
    fn client_links(&self) -> Option<&Arc<LinkTable>> {
        self.links.as_ref().filter(|links| links.is_per_client())
    }

    /// Returns the lists that failed in the last fetch, each with the reason.
    pub(crate) fn failed_lists(&self) -> Vec<(List, String)> {
        self.lists().failed()
    }

    /// Returns the tools that are not offered because of their definition.
    pub fn skipped_tools(&self) -> Vec<SkippedTool> {
        self.lists().skipped_tools()
    }

    /// Reports whether the lists change with every fetch.
    pub(crate) fn has_unstable_lists(&self) -> bool {
        self.lists().is_unstable()
    }

    /// Waits until the first listing is complete or the first attempt has failed.
    pub async fn settled(&self) {
        self.lists().settled().await;
    }

    /// Waits until there is a listing of this run or of an earlier one, or the first attempt has failed.
    pub(crate) async fn listed(&self) {
        self.lists().listed().await;
    }

    pub(crate) fn has_settled(&self) -> bool {
        self.lists().has_settled()
    }

    /// Reports whether the published listing comes from an earlier connection or from the cache.
    pub(crate) fn is_stale(&self) -> bool {
        self.lists().is_stale()
    }

    /// Reports whether lists are being fetched or are marked for a fetch.
    pub(crate) fn is_refreshing(&self) -> bool {
        self.lists().is_refreshing()
    }

    /// Returns the manager that keeps the subscriptions of the calling client. If clients have their own links,
    /// connects the client's link first. A link that cannot connect now is no error: the manager makes the
    /// supervisor of that link dial again later.
    pub(crate) async fn manager_for(&self, call: &Call) -> Result<Arc<SubscriptionManager>, Error> {
        let Some(links) = self.client_links() else {
            // A lost shared link keeps the subscription pending. The request only makes the next attempt start now.
            self.shared.request();
            return Ok(Arc::clone(&self.shared.subscriptions));
        };
        let slot = links.slot_of(call)?;
        match slot.await_link(None).await {
            Ok(_) | Err(Error::BackendUnavailable { .. }) if !slot.state().is_final() => {
                // A pattern covers the listed resources, so wait for the first lists.
                let _ = tokio::time::timeout(FIRST_LISTS_TIMEOUT, slot.lists().settled()).await;
                Ok(Arc::clone(&slot.subscriptions))
            }
            Ok(_) | Err(Error::BackendUnavailable { .. }) => Err(self.shared.unavailable()),
            Err(error) => Err(error),
        }
    }

    /// Returns the manager for `session` without connecting a link. Returns `None` if the client has no link of its
    /// own yet.
    pub(crate) fn existing_manager(&self, session: Option<SessionId>) -> Option<Arc<SubscriptionManager>> {
        match (self.client_links(), session) {
            (Some(links), Some(session)) => links.manager(session),
            _ => Some(Arc::clone(&self.shared.subscriptions)),
        }
    }

    /// Reports whether the backend can notify of resource updates, or the gateway polls it for them.
    pub(crate) fn can_notify(&self) -> bool {
        let hello = self.listing().hello.clone();
        self.config.poll.is_some() || hello.is_none_or(|hello| hello.capabilities.subscribe)
    }

    /// Returns every subscription to this backend's resources, each with its status.
    pub fn subscriptions(&self) -> Vec<(Arc<Subscription>, &'static str)> {
        self.managers().flat_map(|manager| manager.all()).collect()
    }

    pub(crate) fn subscription_count(&self) -> usize {
        self.managers().map(|manager| manager.count()).sum()
    }

    pub(crate) fn managers(&self) -> impl Iterator<Item = Arc<SubscriptionManager>> {
        let clients = self.client_links().map(|links| links.managers()).unwrap_or_default();
        std::iter::once(Arc::clone(&self.shared.subscriptions)).chain(clients)
    }

    /// Removes and returns all subscriptions, for the backend that replaces this one.
    pub fn hand_over(&self) -> Vec<SubscriptionHandover> {
        let clients = self.client_links().map(|links| links.hand_over()).unwrap_or_default();
        let shared = SubscriptionHandover { client: None, subscriptions: self.shared.subscriptions.hand_over() };
        std::iter::once(shared).chain(clients).filter(|handover| !handover.subscriptions.is_empty()).collect()
    }

    /// Adds subscriptions from the replaced backend. Shared subscriptions end here if clients now have their own links:
    /// the gateway dials such a link only for a client that makes a call. Subscriptions of a client that cannot have a
    /// link end as well.
    pub(crate) fn take_over(&self, handovers: Vec<SubscriptionHandover>) {
        if !handovers.is_empty() {
            // An earlier listing of this backend was not compared with these subscriptions, so fetch it again.
            self.lists().mark(&[List::Resources]);
        }
        let shared = &self.shared.subscriptions;
        for SubscriptionHandover { client, subscriptions } in handovers {
            let manager = match self.client_links() {
                None => Some(Arc::clone(shared)),
                Some(links) => client.and_then(|client| links.successor_manager(&client)),
            };
            match manager {
                Some(manager) => manager.take_over(subscriptions),
                None => shared.announce_deleted(subscriptions.subscriptions),
            }
        }
    }

    /// Applies the profiles in force to all subscriptions.
    pub(crate) fn apply_profiles(&self) {
        self.managers().for_each(|manager| manager.apply_profiles());
    }

    /// Ends all subscriptions. The gateway calls this when the server is removed from the configuration.
    pub(crate) fn close_subscriptions(&self) {
        self.managers().for_each(|manager| manager.close());
    }

    /// Returns the number of client calls in progress.
    pub(crate) fn calls_in_flight(&self) -> usize {
        self.calls.in_use()
    }

    /// Applies new limits of calls and subscriptions.
    pub(crate) fn set_limits(&self, policies: &Policies) {
        self.managers().for_each(|manager| manager.set_max_upstream(policies.subscriptions.upstream));
        self.calls.resize(policies.max_in_flight_per_backend);
    }

    /// Remembers a URI that the backend returned in a result.
    pub fn remember(&self, native: &str) {
        self.events.remember(&self.known_uris, native);
    }

    /// Publishes the names of this backend's resources in a new catalog, which has it as its `source`.
    pub(crate) fn set_uris(&self, table: Arc<ResourceTable>, source: usize) {
        let known = Arc::clone(&self.known_uris);
        self.events.uris.store(Some(Arc::new(ExposedUris { table, source, known })));
    }

    /// Returns the URIs that the backend returned in results.
    pub fn known_uris(&self) -> MutexGuard<'_, KnownUris> {
        self.known_uris.lock()
    }

    /// Checks that the backend answers, with a request of the gateway itself.
    pub async fn ping(&self) -> Result<(), Error> {
        let link = self.shared.link().ok_or_else(|| self.shared.unavailable())?;
        let method = if link.dialect().has_handshake() { Method::Ping } else { Method::Discover };
        link.query(&method, "{}").await.map(drop).map_err(|error| self.explain(error))
    }

    /// Reports whether the backend is known to speak protocol versions with a handshake and versions without one.
    pub(crate) fn has_both_eras(&self) -> bool {
        let lists_both = self.listing().hello.as_ref().is_some_and(|hello| hello.lists_handshake);
        lists_both || self.links.as_ref().is_some_and(|links| links.has_calls_only())
    }

    /// Returns the number of clients that have a link of their own. Returns `None` if clients share one link.
    pub fn own_links(&self) -> Option<usize> {
        self.client_links().map(|links| links.count())
    }

    /// Reports whether the server was listed in a version without a handshake.
    pub(crate) fn is_modern(&self) -> bool {
        self.listing().hello.as_ref().is_some_and(|hello| !hello.dialect.has_handshake())
    }

    /// Forwards a client's notification over the client's own link. Does nothing if clients share a link.
    pub(crate) fn notify_own_link(&self, session: SessionId, notification: &Bytes) {
        if let Some(links) = self.client_links() {
            links.notify(session, notification);
        }
    }

    /// Makes the client's own link send the new log level, which the client stores.
    pub(crate) fn level_changed(&self, session: SessionId) {
        if let Some(links) = self.client_links() {
            links.level_changed(session);
        }
    }

    fn explain(&self, error: LinkError) -> Error {
        let server = self.id.to_string();
        match error {
            LinkError::Closed { reason, sent } => Error::BackendUnavailable { server, reason: public(&reason), sent },
            LinkError::Overloaded => Error::Overloaded { server },
            LinkError::LoginNeeded => login_error(&server, false),
            LinkError::ScopeMissing => login_error(&server, true),
            LinkError::SessionLost => {
                Error::BackendUnavailable { server, reason: "it keeps forgetting the session".to_owned(), sent: false }
            }
            LinkError::Protocol(reason)
            | LinkError::Busy { reason, .. }
            | LinkError::Rejected { error: reason, .. } => Error::BackendProtocol { server, reason: public(&reason) },
        }
    }
}

/// Returns the error for a call to a backend that needs a login.
pub(crate) fn login_error(server: &str, lacks_permission: bool) -> Error {
    let command = login_command(server);
    Error::LoginNeeded { server: server.to_owned(), command, lacks_permission }
}

impl Upstream for Backend {
    type Calls = OutcomeCounts;

    fn id(&self) -> &ServerId {
        &self.id
    }

    fn config(&self) -> &Arc<Server> {
        &self.config
    }

    fn known_uris(&self) -> MutexGuard<'_, KnownUris> {
        Backend::known_uris(self)
    }

    fn calls_of(&self, tool: &str) -> Arc<OutcomeCounts> {
        self.meter.tool(tool)
    }
}
