//! Handles the messages of clients, independent of the transport.
//!
//! A transport calls [`Dispatcher::begin`] for each request of a client. Requests that need no backend are answered at
//! once. The others become a [`PendingCall`], which the transport polls for messages and for the answer.
//!
//! A call over Streamable HTTP is not a task, because a task per call costs more than the few calls that need one. A
//! task takes over only if the connection is lost. The transports with one channel for all answers spawn each call.
//!
//! The gateway always declares `resources.subscribe`. Capabilities are fixed at the handshake, and servers come and go.

pub(crate) mod cut;
pub(crate) mod listening;
pub(crate) mod recorder;
pub(crate) mod stateless;
pub(crate) mod suspended;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use goblin_config::exposure::{MetaListing, ProfileName};
use goblin_telemetry::{Event, Observe};
use goblin_wire::extensions::{META_TOOLS, SUBSCRIPTIONS, declares};
use goblin_wire::json::{self, Pieces, Span};
use goblin_wire::modern::IDENTITY;
use goblin_wire::params::{cancelled, required};
use goblin_wire::{Dialect, Era, Error, Limit, Method, Notification, Request, Response, UnknownCapabilities};

use crate::client::Client;
use crate::client::call::{Call, Reply};
use crate::client::caller::{Caller, Introduction, Level};
use crate::client::outcome::CallOutcome;
use crate::client::pending::{OnDrop, OpenCall, PendingCall};
use crate::client::sessions::{SessionPermit, Sessions};
use crate::dispatcher::recorder::{CallRecord, CallRecorder};
use crate::dispatcher::suspended::SuspendedCalls;
use crate::router::lists::requested_list;
use crate::router::{NotificationSender, Router, sole_server};
use crate::upstream::supervisor::LivePolicies;

/// The subscription options beyond the protocol. Clients set them in `_meta` under `dev.goblin/`.
pub(crate) const EXTENSION: &str = concat!(
    r#"{"version":1,"options":["pattern","fields","minIntervalMs","batchMs","priority"],"#,
    r#""patterns":["glob","template"]}"#
);

/// The capabilities that clients of all versions learn.
const CAPABILITIES: &str = concat!(
    r#""tools":{"listChanged":true},"prompts":{"listChanged":true},"#,
    r#""resources":{"subscribe":true,"listChanged":true},"completions":{},"logging":{}"#
);

/// The capability that declares tasks, with a trailing comma.
const TASKS: &str = r#""tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}},"#;

/// The reason of a cancellation in which the client gives none.
pub(crate) const CANCELLED: &str = "the client cancelled the request";

/// The limit in bytes of the capabilities, name and version that a client sends.
pub(crate) const MAX_CLIENT_INFO: usize = 16 * 1024;

pub struct Dispatcher {
    pub sessions: Sessions,
    pub router: Arc<Router>,
    pub(crate) policies: LivePolicies,
    pub(crate) suspended: SuspendedCalls,
    /// The outputs of call records. `None` if audit and tracing are disabled.
    pub recorder: Option<CallRecorder>,
}

/// The outcome of beginning a request.
pub enum Begun {
    /// The answer, if no backend was needed.
    Ready(Reply),
    /// A call that is on its way to a backend.
    Pending(PendingCall),
}

impl Dispatcher {
    pub fn new(sessions: Sessions, router: Arc<Router>) -> Dispatcher {
        let policies = Arc::clone(&router.policies);
        Dispatcher { sessions, router, policies, suspended: SuspendedCalls::default(), recorder: None }
    }

    /// Returns the largest number of open requests per client.
    pub(crate) fn max_in_flight(&self) -> usize {
        self.policies.load().max_in_flight
    }

    /// Returns a dispatcher without backends that has room for `max` sessions, for tests.
    #[cfg(test)]
    pub fn example(max: usize) -> Dispatcher {
        let observe = Arc::new(goblin_telemetry::Observe::default());
        let catalogs = Arc::new(crate::catalog_store::CatalogStore::new(
            &goblin_config::Config::default(),
            &goblin_client::lineage::Lineage::of_process(None).id,
        ));
        let router = Router::new(catalogs, LivePolicies::default(), Arc::clone(&observe));
        Dispatcher::new(Sessions::new(max, std::time::Duration::from_secs(60), observe), Arc::new(router))
    }

    /// Returns a place for a new session. Evicts a session that holds nothing if necessary.
    pub fn reserve(&self) -> Result<SessionPermit, Error> {
        let has_tasks = |id| self.router.tasks.has_tasks_of(id);
        self.sessions.reserve(|client| client.session.is_some_and(has_tasks))
    }

    /// Creates a session and the answer to `initialize`. Calls `place` last, so that an invalid request evicts no
    /// session.
    pub fn initialize(
        &self,
        request: &Request,
        profile: Option<&ProfileName>,
        place: impl FnOnce() -> Result<SessionPermit, Error>,
    ) -> Result<(Arc<Client>, Pieces), Error> {
        let text = request.raw.as_str();
        let requested = required(text, request.params.protocol_version, "protocolVersion")?;
        let dialect = Dialect::negotiate(&requested);
        let client_info = [request.params.capabilities, request.params.client_info];
        check_client_info(&self.router.observe, client_info.into_iter().flatten())?;
        let introduction = Introduction::read(text, &request.params);
        let program = introduction.program.clone();
        let versions = self.router.catalogs.profile_versions(profile, program.as_deref());
        let session = self.sessions.open(place()?, profile.cloned(), dialect, introduction, versions);
        if let Some(profile) = self.router.catalogs.live_profile(profile) {
            session.confine(profile);
        }
        let asks_for_meta = request.params.capabilities.is_some_and(|at| declares(text, at, META_TOOLS));
        let instructions = self.instructions(profile, program.as_deref());
        let result = self.initialize_result(profile, dialect, asks_for_meta, &instructions);
        Ok((session, goblin_wire::reply(&request.id, result)))
    }

    fn initialize_result(
        &self,
        profile: Option<&ProfileName>,
        dialect: Dialect,
        asks_for_meta: bool,
        instructions: &str,
    ) -> String {
        let tasks = if dialect.has_tasks() && self.router.offers_tasks() { TASKS } else { "" };
        let UnknownCapabilities { experimental, extensions, others } = self.unknown_capabilities(profile);
        let extensions = optional_object("extensions", &extensions);
        format!(
            concat!(
                r#"{{"protocolVersion":"{}","capabilities":{{{},{}"experimental":{{"{}":{}{}{}}}{}{}}},"#,
                r#""serverInfo":{}{}}}"#
            ),
            dialect,
            CAPABILITIES,
            tasks,
            SUBSCRIPTIONS,
            EXTENSION,
            self.meta_tools(profile, asks_for_meta),
            experimental,
            extensions,
            others,
            IDENTITY,
            instructions,
        )
    }

    /// Returns the member with the name prefix of the meta tools. It is empty if they are off, unless the client asks
    /// for it: the gateway's own commands call them in any case.
    fn meta_tools(&self, profile: Option<&ProfileName>, asks_for_meta: bool) -> String {
        let catalog = self.router.catalogs.profile_catalog(profile);
        if catalog.meta.listing == MetaListing::Never && !asks_for_meta {
            return String::new();
        }
        format!(r#","{META_TOOLS}":{{"prefix":{}}}"#, json::quote(catalog.meta.prefix()))
    }

    /// Returns the unknown capabilities of the only server. They may concern methods that no version defines, which only
    /// reach an only server.
    fn unknown_capabilities(&self, profile: Option<&ProfileName>) -> UnknownCapabilities {
        let catalog = self.router.catalogs.profile_catalog(profile);
        let source = sole_server(&catalog).map(|source| catalog.source(source));
        source.and_then(|source| source.listing.hello.as_ref()).map(|hello| hello.unknown.clone()).unwrap_or_default()
    }

    /// Returns the member with the instructions for the model. It is empty if there are none.
    fn instructions(&self, profile: Option<&ProfileName>, program: Option<&str>) -> String {
        let catalog = self.router.catalogs.profile_catalog(profile);
        let instructions = &catalog.lists_for(program).instructions;
        instructions.as_deref().map(|text| format!(r#","instructions":{text}"#)).unwrap_or_default()
    }

    /// Begins a request of a session.
    pub fn begin(self: &Arc<Dispatcher>, session: &Arc<Client>, request: Request) -> Begun {
        session.note_request();
        let caller = session.caller();
        match self.answer_at_once(session, &caller, &request) {
            Some(Ok(answer)) => Begun::Ready(answer.into()),
            Some(Err(error)) => Begun::Ready(self.router.error(&request, &caller, &error)),
            None => self.begin_call(session, caller, request),
        }
    }

    /// Answers a request that needs no backend. Returns `None` for the others.
    fn answer_at_once(&self, session: &Client, caller: &Caller, request: &Request) -> Option<Result<Pieces, Error>> {
        let done = || Some(Ok(goblin_wire::reply(&request.id, "{}")));
        match &request.method {
            Method::Ping => done(),
            Method::ToolsList | Method::PromptsList | Method::ResourcesList | Method::TemplatesList => {
                let list = requested_list(&request.method)?;
                let is_ready = self.router.is_list_ready(caller, request);
                is_ready.then(|| self.router.list(Some(session), caller, request, list))
            }
            Method::SetLevel => match read_level(request) {
                Ok(level) => {
                    self.sessions.set_level(session, level);
                    if let Some(id) = session.session {
                        self.router.catalogs.backends().iter().for_each(|backend| backend.level_changed(id));
                    }
                    // The client may call at once, so the answer waits for the backends.
                    None
                }
                Err(error) => Some(Err(error)),
            },
            Method::Initialize => {
                Some(Err(Error::InvalidRequest("this session is already initialized; open another session".to_owned())))
            }
            Method::ToolsCall
            | Method::PromptsGet
            | Method::ResourcesRead
            | Method::Complete
            | Method::Subscribe
            | Method::Unsubscribe
            | Method::Other(_) => None,
            Method::TasksList if caller.dialect.has_tasks() => Some(self.router.list_tasks(caller, request)),
            Method::TasksGet | Method::TasksResult | Method::TasksCancel if caller.dialect.has_tasks() => None,
            other => Some(Err(Error::MethodNotFound(other.to_string()))),
        }
    }

    /// Returns an error if the memory limit is reached and the gateway accepts no new work.
    pub(crate) fn check_memory(&self) -> Result<(), Error> {
        self.router.observe.memory.check().map_err(|full| {
            self.router.observe.limit_hit(full.limit);
            full.into()
        })
    }

    fn begin_call(self: &Arc<Dispatcher>, session: &Arc<Client>, caller: Caller, request: Request) -> Begun {
        if let Err(error) = self.check_memory() {
            return Begun::Ready(self.reject(&Call::new(caller, Arc::clone(session), request, None), &error));
        }
        let mut request = self.router.unwrap_call(&caller, &request).unwrap_or(request);
        let list = requested_list(&request.method);
        let record = if list.is_none() { self.open_record(&mut request) } else { None };
        let token = request.params.known_meta.progress_token;
        let token = token.map(|at| at.slice(request.raw.bytes()));
        let call = Arc::new(Call::new(caller, Arc::clone(session), request, token));
        let open = OpenCall::Call(Arc::clone(&call));
        let guard = match session.calls.admit(Some(&call.request.id), open, self.max_in_flight()) {
            Ok(guard) => guard,
            // A list needs no backend. The client gets the one that is known.
            Err(_) if list.is_some() => return Begun::Ready(self.known_list(&call)),
            Err(error) => return Begun::Ready(self.reject(&call, &error)),
        };
        let session = Arc::clone(session);
        Begun::Pending(self.dispatch(call, record, OnDrop::Detach(None), move || {
            session.touch();
            drop(guard);
        }))
    }

    /// Returns the answer to a call that does not begin, and records its end.
    fn reject(&self, call: &Call, error: &Error) -> Reply {
        let reply = self.router.error(&call.request, &call.caller, error);
        self.router.record_end(call, Instant::now(), Some(&reply), &mut CallOutcome::of_error(error));
        reply
    }

    /// Answers a list request from the lists that are known.
    fn known_list(&self, call: &Call) -> Reply {
        let Call { caller, request, client, .. } = call;
        let list = requested_list(&request.method).ok_or_else(|| Error::MethodNotFound(request.method.to_string()));
        match list.and_then(|list| self.router.list(Some(client), caller, request, list)) {
            Ok(answer) => answer.into(),
            Err(error) => self.router.error(request, caller, &error),
        }
    }

    /// Opens the record of a call. Returns `None` if audit and tracing are disabled.
    pub(crate) fn open_record(&self, request: &mut Request) -> Option<Box<CallRecord>> {
        self.recorder.as_ref().map(|recorder| recorder.open(request))
    }

    /// Dispatches a call to the router. Calls `done` after its end.
    pub(crate) fn dispatch(
        &self,
        call: Arc<Call>,
        record: Option<Box<CallRecord>>,
        on_drop: OnDrop,
        done: impl FnOnce() + Send + 'static,
    ) -> PendingCall {
        let (router, active) = (Arc::clone(&self.router), Arc::clone(&call));
        let begun = Instant::now();
        let answer = Box::pin(async move {
            // A panic in one call must not end the process, and the client must get an answer.
            let caught = AssertUnwindSafe(router.dispatch(&active)).catch_unwind().await;
            let answer = caught.unwrap_or_else(|_| Some(router.panic_reply(&active)));
            active.finish();
            if let Some(upstream) = active.upstream() {
                router.observe.overhead.add(begun.elapsed().saturating_sub(upstream));
            }
            let mut outcome = CallOutcome::find(&active.request, answer.as_ref(), &router.observe.memory).await;
            if let Some(record) = record {
                record.close(&router, &active, &outcome);
            }
            router.record_end(&active, begun, answer.as_ref(), &mut outcome);
            done();
            answer
        });
        PendingCall::new(call, answer, on_drop, &self.router.observe)
    }

    /// Delivers the response to a server request. Reports a response that matches none.
    pub(crate) fn handle_response(&self, session: &Client, response: Response) {
        if !session.answer(response) {
            self.router.observe.emit(&Event::ReplyWithoutRequest { session: &session.session_name() });
        }
    }

    /// Handles a notification of a session.
    pub fn handle_notification(&self, session: &Client, notification: &Notification) {
        match notification.method {
            Method::Progress => {
                session.progress(notification.clone());
            }
            Method::Cancelled => {
                if let Some((id, reason)) = cancelled(notification, CANCELLED) {
                    session.calls.cancel(&id, &reason);
                }
            }
            Method::RootsChanged | Method::TaskStatus | Method::Other(_) => {
                let (session, profile) = (session.session, session.profile.as_ref());
                let sender = NotificationSender { session, profile, era: Era::Legacy };
                self.router.forward_notification(sender, notification);
            }
            _ => {}
        }
    }
}

/// Returns an object as a member with a leading comma. `members` is empty or has a leading comma.
pub(crate) fn optional_object(key: &str, members: &str) -> String {
    members.strip_prefix(',').map(|members| format!(r#","{key}":{{{members}}}"#)).unwrap_or_default()
}

/// Returns an error if a client describes itself in more than [`MAX_CLIENT_INFO`] bytes, since its session keeps them.
pub(crate) fn check_client_info(observe: &Observe, parts: impl Iterator<Item = Span>) -> Result<(), Error> {
    let length: usize = parts.map(|span| span.range().len()).sum();
    if length <= MAX_CLIENT_INFO {
        return Ok(());
    }
    observe.limit_hit(Limit::ClientInfoBytes);
    Err(Error::LimitExceeded { limit: Limit::ClientInfoBytes.as_str(), value: MAX_CLIENT_INFO })
}

fn read_level(request: &Request) -> Result<Level, Error> {
    let name = required(request.raw.as_str(), request.params.level, "level")?;
    parse_level(&name)
}

pub(crate) fn parse_level(name: &str) -> Result<Level, Error> {
    Level::parse(name).ok_or_else(|| {
        let known: Vec<_> = Level::ALL.iter().map(|level| level.as_str()).collect();
        Error::InvalidParams(format!("unknown level {}; use one of {}", json::quote(name), known.join(", ")))
    })
}
