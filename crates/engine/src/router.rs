//! Routes a request to its backend and translates the answer for the client.
//!
//! [`resolve`] is pure: it maps a view of the catalog and a request to a route or an error. [`Router::dispatch`] sends
//! the request along the route. The result passes unchanged, except for URIs and content that an older client cannot
//! parse (`content` in the catalog).
//!
//! A client and a link may be of different generations. `rounds` serves a legacy client of a modern backend, `inputs`
//! serves two modern peers, and `dispatcher::suspended` serves a modern client of a legacy backend.

mod arguments;
pub(crate) mod inputs;
pub(crate) mod introspection;
pub(crate) mod lists;
mod login;
mod rounds;
pub(crate) mod state;
pub(crate) mod subscribe;
pub(crate) mod tasks;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use goblin_catalog::resources::UriOwner;
use goblin_catalog::{content, uri};
use goblin_config::exposure::ProfileName;
use goblin_config::{Policies, ServerId};
use goblin_subscriptions::count::SubscriptionCount;
use goblin_telemetry::meter::{OutcomeCounts, ReadStatus};
use goblin_telemetry::{Event, Observe};
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::mirror::Mirrors;
use goblin_wire::params::required;
use goblin_wire::{Era, Error, Limit, Method, Mime, Notification, Outcome, Request, Response};

use crate::catalog_store::{Catalog, CatalogStore, View};
use crate::client::call::{Call, CallTimeouts, Reply};
use crate::client::caller::{Caller, SessionId};
use crate::client::ledger::{CallLedger, EndedCall};
use crate::client::outcome::CallOutcome;
use crate::router::inputs::Exchange;
use crate::router::lists::requested_list;
use crate::router::state::RequestStateCipher;
use crate::router::tasks::{TaskOutcome, declares_tasks};
use crate::upstream::call::outcome_label;
use crate::upstream::supervisor::LivePolicies;
use crate::upstream::tasks::TaskTable;
use crate::upstream::{Backend, BackendResponse, CallEnd, OutgoingRequest};

/// The longest time to wait for an unknown URI while lists are being fetched (D13).
const REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest delay of the answer to `logging/setLevel` by servers.
const SET_LEVEL_TIMEOUT: Duration = Duration::from_secs(1);

/// The code of a method that is not supported.
const METHOD_NOT_FOUND: i64 = -32601;
/// The codes of an invalid request.
const INVALID_REQUEST: i64 = -32600;
const PARSE_ERROR: i64 = -32700;

/// The reason why a request with an unknown method is rejected.
const UNROUTABLE: &str = "the gateway forwards an unknown method only if the client sees exactly one server";

/// The destination of a request, and its changes on the way there.
pub(crate) struct RequestRoute {
    pub source: usize,
    /// The replacement of exposed names and URIs by the backend's own.
    pub edits: Splice,
    pub timeouts: CallTimeouts,
    /// The MIME type in the definition of a resource to read.
    pub mime: Option<Mime>,
    pub target: RouteTarget,
}

/// The object of a request, as its backend knows it.
pub(crate) enum RouteTarget {
    /// The index of a tool in the catalog.
    Tool(usize),
    Prompt(usize),
    Uri(String),
    /// An object that the parameters do not name directly, such as a completion reference.
    Other,
}

impl RouteTarget {
    /// Returns the counters of call outcomes, which only tools have.
    fn outcome_counts<'a>(&self, catalog: &'a Catalog) -> Option<&'a OutcomeCounts> {
        match self {
            RouteTarget::Tool(index) => catalog.tools.entries[*index].calls.as_deref(),
            RouteTarget::Prompt(_) | RouteTarget::Uri(_) | RouteTarget::Other => None,
        }
    }

    fn name<'a>(&'a self, catalog: &'a Catalog) -> Option<&'a str> {
        match self {
            RouteTarget::Tool(index) => Some(&catalog.tools.entries[*index].native),
            RouteTarget::Prompt(index) => Some(&catalog.prompts.entries[*index].native),
            RouteTarget::Uri(uri) => Some(uri),
            RouteTarget::Other => None,
        }
    }

    /// Returns the arguments that headers must repeat at a modern HTTP backend, if the tool has any.
    fn mirrors<'a>(&self, catalog: &'a Catalog) -> Option<&'a Mirrors> {
        match self {
            RouteTarget::Tool(index) => {
                Some(&catalog.tools.entries[*index].mirrors).filter(|mirrors| !mirrors.is_empty())
            }
            RouteTarget::Prompt(_) | RouteTarget::Uri(_) | RouteTarget::Other => None,
        }
    }
}

/// The sender of a client's notification.
pub(crate) struct NotificationSender<'a> {
    pub session: Option<SessionId>,
    pub profile: Option<&'a ProfileName>,
    pub era: Era,
}

/// Routes the requests of all clients. It owns the tasks and the request states.
pub struct Router {
    pub catalogs: Arc<CatalogStore>,
    pub(crate) policies: LivePolicies,
    pub observe: Arc<Observe>,
    /// The counter of all clients' subscriptions.
    pub subscriptions: Arc<SubscriptionCount>,
    pub states: RequestStateCipher,
    /// The tasks of all clients.
    pub tasks: Arc<TaskTable>,
    /// The ended calls of all clients.
    pub(crate) ledger: CallLedger,
    /// Whether clients may log in at servers for all others, because only this machine can reach the gateway.
    pub(crate) offers_logins: bool,
}

impl Router {
    pub fn new(catalogs: Arc<CatalogStore>, policies: LivePolicies, observe: Arc<Observe>) -> Router {
        let (subscriptions, tasks) = (Arc::default(), Arc::default());
        let (states, ledger) = (RequestStateCipher::default(), CallLedger::new(&observe.memory));
        Router { catalogs, policies, observe, subscriptions, states, tasks, ledger, offers_logins: false }
    }

    /// Sends a request to its backend and returns the answer for the client. Returns `None` if the call was cancelled.
    pub async fn dispatch(&self, call: &Arc<Call>) -> Option<Reply> {
        let answer = match self.answer(call).await {
            Ok(answer) => answer,
            Err(CallEnd::Cancelled) => return None,
            Err(CallEnd::Failed(error @ Error::LoginNeeded { .. })) => Box::pin(self.login_reply(call, &error)).await,
            Err(CallEnd::Failed(error)) => self.error(&call.request, &call.caller, &error),
        };
        Some(answer)
    }

    /// Returns an error of the gateway as the answer to `request`.
    pub fn error(&self, request: &Request, caller: &Caller, error: &Error) -> Reply {
        let object = match request.method {
            Method::ResourcesRead => error.to_json_for_read(caller.dialect),
            _ => error.to_json(),
        };
        let pieces = goblin_wire::error_reply(Some(&request.id), &object);
        Reply { pieces, code: Some(error.class().code), is_error: true }
    }

    /// Returns the answer to a request with a handler that panicked, and reports the panic.
    pub(crate) fn panic_reply(&self, call: &Call) -> Reply {
        self.observe.emit(&Event::Panic { place: call.request.method.as_str() });
        self.error(&call.request, &call.caller, &Error::Internal("see the gateway's log".to_owned()))
    }

    /// Adds an ended call to the ledger, which takes the details of a failure. `answer` is `None` if the call was
    /// cancelled.
    pub(crate) fn record_end(&self, call: &Call, begun: Instant, answer: Option<&Reply>, outcome: &mut CallOutcome) {
        if matches!(call.request.method, Method::Subscribe | Method::Unsubscribe)
            && let Some(server) = self.server_of(call)
        {
            let _ = call.server.set(server);
        }
        if let Some(ended) = EndedCall::of(call, begun.elapsed(), answer, outcome) {
            self.ledger.add(ended);
        }
    }

    /// Returns the server of a call. If no router has found it, returns the one in the current catalog. Returns `None`
    /// if the catalog has no route for the call.
    pub fn server_of(&self, call: &Call) -> Option<ServerId> {
        if let Some(server) = call.server.get() {
            return Some(server.clone());
        }
        let catalog = self.catalogs.catalog_of(&call.caller);
        let (view, request) = (catalog.view(call.caller.dialect), &call.request);
        let source = match request.method {
            Method::Subscribe | Method::Unsubscribe => {
                find_resource(view, &required(request.raw.as_str(), request.params.uri, "uri").ok()?).ok()?.source
            }
            _ => resolve(view, &self.policies.load(), request).ok()?.source,
        };
        Some(catalog.source(source).backend.id.clone())
    }

    /// Answers one request. Requests about subscriptions, tasks and meta tools leave the common path early.
    async fn answer(&self, call: &Arc<Call>) -> Result<Reply, CallEnd> {
        let request = &call.request;
        match request.method {
            // Box rare futures, because a call's future is moved with all it holds.
            Method::Subscribe => return Ok(Box::pin(self.subscribe(call)).await?.into()),
            Method::Unsubscribe => return Ok(self.unsubscribe(call)?.into()),
            Method::SetLevel => {
                Box::pin(self.await_level(call)).await;
                return Ok(goblin_wire::reply(&request.id, "{}").into());
            }
            Method::TasksGet | Method::TasksResult | Method::TasksCancel | Method::TasksUpdate => {
                return Box::pin(self.task_request(call)).await;
            }
            Method::ToolsList | Method::PromptsList | Method::ResourcesList | Method::TemplatesList => {
                let list = requested_list(&request.method).expect("these methods request lists");
                return Ok(Box::pin(self.answer_list(call, list)).await?.into());
            }
            _ => {}
        }
        let found = self.look_up(|view| resolve(view, &self.policies.load(), request), call).await;
        let (catalog, mut route) = match found {
            Err(Error::ToolNotFound { name, candidates }) => {
                let meta = Box::pin(self.meta_result(call, &name)).await;
                let result = meta.ok_or(Error::ToolNotFound { name, candidates })?;
                return Ok(self.own_result(&call.caller, request, &result));
            }
            found => found?,
        };
        let backend = &catalog.source(route.source).backend;
        let _ = call.server.set(backend.id.clone());
        if backend.config.validate
            && let RouteTarget::Tool(tool) = route.target
            && let Some(result) = Box::pin(self.reject_arguments(&catalog, tool, call)).await
        {
            return Ok(self.own_result(&call.caller, request, &result));
        }
        self.open_state(Exchange { backend, caller: &call.caller, request }, &mut route.edits)?;
        let progress_token_at = request.params.known_meta.progress_token;
        let name = route.target.name(&catalog).or(call.name_header.as_deref());
        let mirrors = route.target.mirrors(&catalog);
        let options = self.task_options(call, &catalog, &route.target)?;
        self.restore_related_task(backend, request, &mut route.edits);
        let tasks = options.tasks;
        let outgoing = OutgoingRequest { request, edits: route.edits, progress_token_at, name, mirrors, tasks };
        let outcome = match backend.call(&outgoing, call, route.timeouts).await {
            Ok(answer) if call.caller.dialect.has_server_requests() && answer.dialect.has_result_types() => {
                Box::pin(self.run_input_rounds(call, backend, (&outgoing, route.timeouts), answer)).await
            }
            outcome => outcome,
        };
        if let Some(mime) = route.mime {
            let is_result = |answer: &BackendResponse| matches!(answer.response.outcome, Outcome::Result(_));
            let success = outcome.as_ref().is_ok_and(is_result);
            backend.meter.count_read(mime, if success { ReadStatus::Success } else { ReadStatus::Failure });
        }
        if let Some(counts) = route.target.outcome_counts(&catalog) {
            counts.add(outcome_label(&outcome));
        }
        let mut answer = outcome?;
        if options.may_contain_task(request, &answer) {
            answer = match Box::pin(self.handle_task_answer(call, backend, (options, route.timeouts), answer)).await? {
                TaskOutcome::Reply(reply) => return Ok(reply),
                TaskOutcome::Result(answer) => answer,
            };
        }
        if let Outcome::Error(error) = answer.response.outcome
            && call.caller.dialect.has_server_requests()
        {
            backend.events.remember_required(answer.response.raw.as_str(), error, &call.client);
        }
        Ok(self.translate(&catalog, route.source, request, &call.caller, &answer))
    }

    /// Returns the server that gets the messages with unknown methods, if there is one.
    pub(crate) fn sole_backend(&self, profile: Option<&ProfileName>) -> Option<Arc<Backend>> {
        let catalog = self.catalogs.profile_catalog(profile);
        sole_server(&catalog).map(|source| Arc::clone(&catalog.source(source).backend))
    }

    /// Forwards a notification that concerns the client alone, or has an unknown method, over the client's own links. An
    /// unknown one also passes the shared link of the only server: its receiver is certain, and a server that shares a
    /// link among clients treats them as one anyway.
    pub(crate) fn forward_notification(&self, sender: NotificationSender<'_>, notification: &Notification) {
        let NotificationSender { session, profile, era } = sender;
        let is_unknown = matches!(notification.method, Method::Other(_));
        // The modern era defines no such notification.
        if era == Era::Modern && !is_unknown {
            return;
        }
        if let Some(session) = session {
            let backends = self.catalogs.backends();
            backends.iter().for_each(|backend| backend.notify_own_link(session, notification.raw.bytes()));
        }
        if let Some(backend) = self.sole_backend(profile).filter(|_| is_unknown) {
            backend.notify_shared_link(era, notification);
        }
    }

    /// Waits until the servers know the log level of a client, at most [`SET_LEVEL_TIMEOUT`]. A server that answers later
    /// still gets the level.
    async fn await_level(&self, call: &Call) {
        let (backends, level) = (self.catalogs.backends(), call.client.level());
        let known = join_all(backends.iter().map(|backend| backend.await_level(call, level)));
        let _ = tokio::time::timeout(SET_LEVEL_TIMEOUT, known).await;
    }

    /// Returns an answer with a result of the gateway. `result` has the form of versions with sessions.
    pub(crate) fn own_result(&self, caller: &Caller, request: &Request, result: &str) -> Reply {
        let mut edits = Splice::new();
        if caller.dialect.has_result_types() {
            content::add_result_type(&request.method, result, json::whole(result), &mut edits);
        }
        goblin_wire::reply(&request.id, edits.apply(&Bytes::copy_from_slice(result.as_bytes()))).into()
    }

    /// Looks something up in the catalog. If it is not found, brings the lists up to date that may have it, and repeats
    /// the lookup.
    pub async fn look_up<T>(
        &self,
        find: impl Fn(View<'_>) -> Result<T, Error>,
        call: &Arc<Call>,
    ) -> Result<(Arc<Catalog>, T), Error> {
        let caller = &call.caller;
        let find_now = || {
            let catalog = Arc::clone(&self.catalogs.catalog_of(caller));
            let found = find(catalog.view(caller.dialect))?;
            Ok((catalog, found))
        };
        match find_now() {
            Err(error @ Error::LimitExceeded { .. }) => {
                self.observe.limit_hit(Limit::MatchSteps);
                Err(error)
            }
            Err(error @ (Error::ToolNotFound { .. } | Error::PromptNotFound { .. })) => {
                let is_own = |name: &str| self.catalogs.catalog_of(caller).meta.find(name).is_some();
                if matches!(&error, Error::ToolNotFound { name, .. } if is_own(name)) {
                    return Err(error);
                }
                Box::pin(self.refresh_missing(call, &error)).await;
                find_now()
            }
            Err(error @ Error::ResourceNotFound { .. }) => {
                Box::pin(self.refresh_missing(call, &error)).await;
                if self.is_refreshing() {
                    Box::pin(self.wait_for_refresh(|| !matches!(find_now(), Err(Error::ResourceNotFound { .. }))))
                        .await;
                }
                // Repeat the lookup even if no list is being fetched, because a new catalog may have been published
                // since.
                find_now()
            }
            settled => settled,
        }
    }

    /// Waits until all lists are fetched or `found` returns `true`, at most [`REFRESH_TIMEOUT`].
    async fn wait_for_refresh(&self, found: impl Fn() -> bool) {
        let mut versions = self.catalogs.watch();
        let settled = async {
            while self.is_refreshing() && !found() {
                if versions.changed().await.is_err() {
                    return;
                }
            }
        };
        // After the timeout, the caller uses the lists that are known by then.
        let _ = tokio::time::timeout(REFRESH_TIMEOUT, settled).await;
    }

    /// Reports whether a list is being fetched, or was fetched and is not in the catalog yet.
    fn is_refreshing(&self) -> bool {
        let catalog = self.catalogs.catalog();
        let stale = |source: &crate::catalog_store::Source| !Arc::ptr_eq(&source.listing, &source.backend.listing());
        self.catalogs.backends().iter().any(|backend| backend.is_refreshing()) || catalog.sources.iter().any(stale)
    }

    /// Returns the backend's answer for the client: mapped URIs, sealed state, and the result types of its version.
    fn translate(
        &self,
        catalog: &Catalog,
        source: usize,
        request: &Request,
        caller: &Caller,
        answer: &BackendResponse,
    ) -> Reply {
        let BackendResponse { response, dialect } = answer;
        let text = response.raw.as_str();
        let backend = &catalog.source(source).backend;
        let exchange = Exchange { backend, caller, request };
        match response.outcome {
            Outcome::Result(result) => {
                let expose = |native: &str| {
                    backend.remember(native);
                    catalog.resources.expose(source, native)
                };
                if matches!(request.method, Method::Other(_)) {
                    content::mentioned_uris(text, result).iter().for_each(|uri| backend.remember(uri));
                }
                let mut edits = content::edits(caller.dialect, &request.method, text, result, expose);
                match (caller.dialect.has_result_types(), dialect.has_result_types()) {
                    (true, true) => self.seal_state(exchange, (text, result), expose, &mut edits),
                    (true, false) => content::add_result_type(&request.method, text, result, &mut edits),
                    (false, has_kind) => content::remove_foreign(has_kind, &request.method, text, result, &mut edits),
                }
                // Skip the search in large results of backends that make no tasks.
                if dialect.has_tasks() && declares_tasks(catalog.source(source)) {
                    edits.append(self.expose_related_task((backend, caller), text, result));
                }
                response.rekeyed(&request.id, edits).into()
            }
            Outcome::Error(error) => {
                let mut edits = Splice::new();
                if request.method == Method::ResourcesRead && response.is_not_found() {
                    let uri = requested_uri(catalog, source, request, backend);
                    edits.replace(error, not_found(text, error, &uri, caller));
                }
                self.forward_error(exchange, response, edits)
            }
        }
    }

    /// Returns an error of a backend as the answer. If `edits` is empty, replaces a code that the client's version does
    /// not know.
    fn forward_error(&self, exchange: Exchange<'_>, response: &Response, mut edits: Splice) -> Reply {
        let Exchange { backend, caller, request } = exchange;
        let (text, error) = (response.raw.as_str(), response.outcome.span());
        let method = request.method.as_str();
        self.observe.emit(&Event::BackendError { server: backend.id.as_str(), method, error: error.get(text) });
        if let Some(reply) = self.convert_url_elicitation(exchange, response, error) {
            return reply;
        }
        let code_at = json::member(text, error, "code");
        let code = code_at.and_then(|code| code.get(text).parse().ok());
        // These codes must not become the HTTP status. An error of a tool does not concern `tools/call` itself. A
        // backend that rejects a request of the gateway does not reject the client's request.
        let is_in_band = |code: &i64| match *code {
            METHOD_NOT_FOUND => request.method == Method::ToolsCall,
            INVALID_REQUEST | PARSE_ERROR => true,
            _ => false,
        };
        let code = code.filter(|code| !is_in_band(code));
        if edits.is_empty()
            && let Some(code) = code_at
            && let Some(known) = caller.dialect.foreign_code(code.get(text))
        {
            edits.replace(code, known.to_string());
        }
        Reply { pieces: response.rekeyed(&request.id, edits), code, is_error: true }
    }
}

/// Returns the route of a request that a backend must answer. Returns an error if the catalog does not have its object.
pub(crate) fn resolve(view: View<'_>, policies: &Policies, request: &Request) -> Result<RequestRoute, Error> {
    let text = request.raw.as_str();
    match &request.method {
        Method::ToolsCall => {
            let at = request.params.name;
            let (index, entry) = view.tool(&required(text, at, "name")?)?;
            let config = &view.catalog.source(entry.source).backend.config;
            let idle = config.timeout_of(&entry.native, policies);
            let target = RouteTarget::Tool(index);
            Ok(RequestRoute { target, ..route(policies, entry.source, at, text, &entry.native, idle) })
        }
        Method::PromptsGet => {
            let at = request.params.name;
            let (index, entry) = view.prompt(&required(text, at, "name")?)?;
            let target = RouteTarget::Prompt(index);
            Ok(RequestRoute { target, ..plain_route(view, policies, entry.source, at, text, &entry.native) })
        }
        Method::ResourcesRead => {
            let at = request.params.uri;
            let UriOwner { source, native, mime, .. } = find_resource(view, &required(text, at, "uri")?)?;
            let plain = plain_route(view, policies, source, at, text, &native);
            Ok(RequestRoute { mime: Some(mime), target: RouteTarget::Uri(native), ..plain })
        }
        Method::Complete => resolve_completion(view, policies, request),
        Method::Other(method) => match sole_server(view.catalog) {
            Some(source) => Ok(plain_route(view, policies, source, None, text, "")),
            None => Err(Error::MethodNotFound(format!("{method} ({UNROUTABLE})"))),
        },
        other => Err(Error::MethodNotFound(other.to_string())),
    }
}

/// Returns the server that gets the messages with unknown methods: the only one that the client sees.
pub(crate) fn sole_server(catalog: &Catalog) -> Option<usize> {
    (catalog.sources.len() == 1).then_some(0)
}

/// Returns the owner of a URI. Returns an error if the URI is unknown, too long or has control characters.
pub(crate) fn find_resource(view: View<'_>, uri: &str) -> Result<UriOwner, Error> {
    const MAX_URI: usize = 8 * 1024;
    if uri.len() > MAX_URI {
        return Err(Error::InvalidParams(format!("uri must not be longer than {MAX_URI} bytes")));
    }
    if uri.contains(char::is_control) {
        return Err(Error::InvalidParams("uri must not contain control characters".to_owned()));
    }
    view.catalog.resources.find(&view.catalog.sources, uri)
}

/// Returns the route of a completion, which names a prompt or a template in `ref`.
fn resolve_completion(view: View<'_>, policies: &Policies, request: &Request) -> Result<RequestRoute, Error> {
    let text = request.raw.as_str();
    let reference = request.params.reference.ok_or_else(|| Error::InvalidParams("ref is missing".to_owned()))?;
    let member = |key| json::member(text, reference, key);
    match &*required(text, member("type"), "ref.type")? {
        "ref/prompt" => {
            let at = member("name");
            let (_, entry) = view.prompt(&required(text, at, "ref.name")?)?;
            Ok(plain_route(view, policies, entry.source, at, text, &entry.native))
        }
        "ref/resource" => {
            let at = member("uri");
            let uri = required(text, at, "ref.uri")?;
            let (source, native) = match view.catalog.resources.find_template(&uri) {
                Some(entry) => (entry.source, entry.native.to_string()),
                None => find_resource(view, &uri).map(|owner| (owner.source, owner.native))?,
            };
            Ok(plain_route(view, policies, source, at, text, &native))
        }
        other => Err(Error::InvalidParams(format!("ref.type {} is neither ref/prompt nor ref/resource", quote(other)))),
    }
}

/// Returns a route with the timeout of the server, or else the default one.
fn plain_route(
    view: View<'_>,
    policies: &Policies,
    source: usize,
    at: Option<Span>,
    text: &str,
    native: &str,
) -> RequestRoute {
    let config = &view.catalog.source(source).backend.config;
    let idle = config.timeout.map_or(policies.default_timeout, |timeout| timeout.duration());
    route(policies, source, at, text, native, idle)
}

/// Returns a route that replaces the name at `at` by `native`, unless they are equal.
fn route(
    policies: &Policies,
    source: usize,
    at: Option<Span>,
    text: &str,
    native: &str,
    idle: Option<Duration>,
) -> RequestRoute {
    let mut edits = Splice::new();
    if let Some(at) = at.filter(|at| json::string(text, *at) != Some(Cow::Borrowed(native))) {
        edits.replace(at, Bytes::from(quote(native)));
    }
    let timeouts = CallTimeouts { idle, total: policies.max_timeout };
    RequestRoute { source, edits, timeouts, mime: None, target: RouteTarget::Other }
}

/// Returns the canonical exposed form of the URI in `request`.
fn requested_uri(catalog: &Catalog, source: usize, request: &Request, backend: &Backend) -> String {
    let text = request.raw.as_str();
    let requested = request.params.uri.and_then(|at| json::string(text, at)).unwrap_or_default();
    match catalog.resources.find(&catalog.sources, &requested) {
        Ok(owner) if owner.source == source => catalog.resources.expose(source, &owner.native),
        _ => uri::expose(&backend.id.folded(), &requested),
    }
}

/// Returns the error for a resource that its backend does not find (D12). It has the backend's message, the code of the
/// client's version, `data.code` and the exposed `data.uri`.
fn not_found(text: &str, error: Span, uri: &str, caller: &Caller) -> String {
    let message = json::member(text, error, "message").map_or("\"Resource not found\"", |at| at.get(text));
    let mut data = format!(r#""code":"RESOURCE_NOT_FOUND","uri":{}"#, quote(uri));
    let members = json::member(text, error, "data").into_iter().flat_map(|data| json::members(text, data));
    for member in members.filter(|member| !matches!(&*member.key(text), "code" | "uri")) {
        data.push_str(&format!(",{}:{}", member.key.get(text), member.value.get(text)));
    }
    let other = json::member(text, error, "data").filter(|data| !data.get(text).starts_with('{'));
    if let Some(other) = other {
        data.push_str(&format!(r#","detail":{}"#, other.get(text)));
    }
    format!(r#"{{"code":{},"message":{message},"data":{{{data}}}}}"#, caller.dialect.resource_not_found_code())
}
