//! Requests without a session. Each carries its client's version and capabilities. Only suspended calls and tasks
//! outlive the answer.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use goblin_config::exposure::ProfileName;
use goblin_wire::extensions::SUBSCRIPTIONS;

use goblin_wire::json::{self, Span};
use goblin_wire::modern::{FRESHNESS, IDENTITY, SERVER_INFO, TASKS};
use goblin_wire::{Dialect, Error, Method, Request, UnknownCapabilities};

use crate::client::Client;
use crate::client::call::Call;
use crate::client::caller::{Caller, ClientCapabilities, Introduction, Principal, program};
use crate::client::outcome::CallOutcome;
use crate::client::pending::OnDrop;
use crate::client::stateless_clients::{OpenCallUse, OpenStreamUse, RecentClient};
use crate::dispatcher::listening::ListenSubscription;
use crate::dispatcher::{Begun, CAPABILITIES, Dispatcher, EXTENSION, check_client_info, optional_object, parse_level};
use crate::router::lists::requested_list;
use crate::router::state::RequestState;

/// The client of a request without a session.
#[derive(Clone)]
pub enum StatelessClient {
    /// An HTTP client. Nothing connects one of its requests with another.
    Http {
        profile: Option<ProfileName>,
        /// The decoded header `Mcp-Name` of a request with an unknown method.
        name_header: Option<Box<str>>,
        /// The clients with the same description.
        recent: Arc<RecentClient>,
        /// Whether the client is another gateway.
        is_gateway: bool,
    },
    /// The client at the other end of a pipe. All requests on the pipe are its own.
    Stdio(Arc<Client>),
}

impl StatelessClient {
    /// Returns the client of a request. Over HTTP, each request has a client of its own.
    fn client(&self, caller: &Caller) -> Arc<Client> {
        match self {
            StatelessClient::Stdio(client) => Arc::clone(client),
            StatelessClient::Http { .. } => Arc::new(Client::stateless(self.introduction(caller))),
        }
    }

    /// Returns the introduction of a client that exists for one request or stream.
    pub(crate) fn introduction(&self, caller: &Caller) -> Introduction {
        let client_capabilities = Arc::clone(&caller.client_capabilities);
        match self {
            StatelessClient::Stdio(_) => Introduction { client_capabilities, ..Introduction::default() },
            StatelessClient::Http { recent, .. } => recent.introduction(client_capabilities),
        }
    }

    /// Counts an open call until the guard is dropped.
    fn open_call(&self) -> Option<OpenCallUse> {
        match self {
            StatelessClient::Stdio(_) => None,
            StatelessClient::Http { recent, .. } => Some(recent.open_call()),
        }
    }

    /// Counts an open stream of `client` until the guard is dropped.
    pub(crate) fn open_stream(&self, client: &Client) -> Option<OpenStreamUse> {
        match self {
            StatelessClient::Stdio(_) => None,
            StatelessClient::Http { recent, .. } => Some(recent.open_stream(client)),
        }
    }

    pub(crate) fn profile(&self) -> Option<&ProfileName> {
        match self {
            StatelessClient::Http { profile, .. } => profile.as_ref(),
            StatelessClient::Stdio(client) => client.profile.as_ref(),
        }
    }

    fn name_header(&self) -> Option<Box<str>> {
        match self {
            StatelessClient::Http { name_header, .. } => name_header.clone(),
            StatelessClient::Stdio(_) => None,
        }
    }
}

impl Dispatcher {
    /// Begins a request without a session, except `subscriptions/listen`. [`check_meta`] must have accepted it.
    pub fn begin_stateless(self: &Arc<Dispatcher>, sender: &StatelessClient, request: Request) -> Result<Begun, Error> {
        // Only known methods read the caller, so that an unknown method is reported before an invalid caller.
        let ready = |result: Bytes| Ok(Begun::Ready(goblin_wire::reply(&request.id, result).into()));
        match &request.method {
            Method::Discover => ready(self.discover_result(&self.caller(sender, &request)?).into()),
            Method::ToolsList | Method::PromptsList | Method::ResourcesList | Method::TemplatesList => {
                let caller = self.caller(sender, &request)?;
                self.begin_stateless_list(sender, caller, request)
            }
            Method::ToolsCall
            | Method::PromptsGet
            | Method::ResourcesRead
            | Method::Complete
            | Method::TasksGet
            | Method::TasksUpdate
            | Method::TasksCancel => {
                let caller = self.caller(sender, &request)?;
                let request = self.router.unwrap_call(&caller, &request).unwrap_or(request);
                self.begin_stateless_call(sender, caller, request)
            }
            // Legacy servers do not agree on the error for an unknown method, but a modern client needs one with a
            // status of its own. A modern client cannot know a method of a legacy server anyway.
            Method::Other(_)
                if self.router.sole_backend(sender.profile()).is_some_and(|backend| backend.is_modern()) =>
            {
                self.begin_stateless_call(sender, self.caller(sender, &request)?, request)
            }
            other => Err(Error::MethodNotFound(other.to_string())),
        }
    }

    /// Answers a list request, or begins it as a call if it has to wait.
    fn begin_stateless_list(&self, sender: &StatelessClient, caller: Caller, request: Request) -> Result<Begun, Error> {
        match requested_list(&request.method) {
            Some(list) if self.router.is_list_ready(&caller, &request) => {
                Ok(Begun::Ready(self.router.list(None, &caller, &request, list)?.into()))
            }
            _ => self.begin_stateless_call(sender, caller, request),
        }
    }

    /// Begins a `subscriptions/listen` stream.
    pub fn listen(
        self: &Arc<Dispatcher>,
        sender: &StatelessClient,
        request: &Request,
    ) -> Result<ListenSubscription, Error> {
        // The stream outlives a reload, and a new rule may then select the lists of this program.
        let caller = Caller { program: program_of(request), ..self.caller(sender, request)? };
        ListenSubscription::begin(self, sender, caller, request)
    }

    /// Returns the caller of a request. Returns an error if its `_meta` is too long or not valid.
    fn caller(&self, sender: &StatelessClient, request: &Request) -> Result<Caller, Error> {
        check_client_info(&self.router.observe, request.params.known_meta.capabilities.into_iter())?;
        let has_rules = self.router.catalogs.has_client_rules();
        caller(sender, request, has_rules)
    }

    fn discover_result(&self, caller: &Caller) -> String {
        let tasks = if self.router.offers_tasks() { format!(r#","{TASKS}":{{}}"#) } else { String::new() };
        let UnknownCapabilities { experimental, extensions, others } =
            self.unknown_capabilities(caller.profile.as_ref());
        format!(
            concat!(
                r#"{{"resultType":"complete","supportedVersions":["{}"],"capabilities":{{{},"extensions":{{"{}":{}{}{}}}{}{}}}{}{},"#,
                r#""_meta":{{"{}":{}}}}}"#
            ),
            Dialect::NEWEST,
            CAPABILITIES,
            SUBSCRIPTIONS,
            EXTENSION,
            tasks,
            extensions,
            optional_object("experimental", &experimental),
            others,
            self.instructions(caller.profile.as_ref(), caller.program.as_deref()),
            FRESHNESS,
            SERVER_INFO,
            IDENTITY,
        )
    }

    fn begin_stateless_call(
        &self,
        sender: &StatelessClient,
        caller: Caller,
        mut request: Request,
    ) -> Result<Begun, Error> {
        // A token is a string or a number. Ignore anything else.
        let is_token =
            |at: &Span| at.get(request.raw.as_str()).starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'));
        let token = request.params.known_meta.progress_token.filter(is_token).map(|at| at.slice(request.raw.bytes()));
        if let Some(id) = self.suspended_id(&caller, &request)? {
            return self.resume(id, &request, token);
        }
        let client = sender.client(&caller);
        let level = caller.level;
        let is_list = requested_list(&request.method).is_some();
        let record = if is_list { None } else { self.open_record(&mut request) };
        let mut call = Call::new(caller, client, request, token);
        call.name_header = sender.name_header();
        let call = Arc::new(call);
        let admitted = self.check_memory().and_then(|()| self.sessions.admit_stateless(&call));
        let guard = admitted.inspect_err(|error| {
            self.router.record_end(&call, Instant::now(), None, &mut CallOutcome::of_error(error));
        })?;
        let open = sender.open_call();
        if level.is_some() {
            self.sessions.levels.add(level);
        }
        let levels = Arc::clone(&self.sessions.levels);
        Ok(Begun::Pending(self.dispatch(call, record, OnDrop::Cancel, move || {
            if level.is_some() {
                levels.remove(level);
            }
            drop((guard, open));
        })))
    }

    /// Returns the id of the suspended call that this request resumes. Returns an error if its `requestState` is not
    /// valid.
    fn suspended_id(&self, caller: &Caller, request: &Request) -> Result<Option<u128>, Error> {
        let Some(at) = request.params.request_state else { return Ok(None) };
        let token = json::string(request.raw.as_str(), at).ok_or(Error::StaleState)?;
        Ok(match self.router.states.open(&token, caller, request)? {
            RequestState::Suspended(id) => Some(id),
            RequestState::Native { .. } | RequestState::Restart => None,
        })
    }
}

fn caller(sender: &StatelessClient, request: &Request, has_rules: bool) -> Result<Caller, Error> {
    let (text, meta) = (request.raw.as_str(), &request.params.known_meta);
    let level = match meta.level.map(|at| json::string(text, at)) {
        None => None,
        Some(Some(name)) => Some(parse_level(&name)?),
        Some(None) => return Err(Error::InvalidParams("the log level must be a string".to_owned())),
    };
    Ok(Caller {
        session: match sender {
            StatelessClient::Http { .. } => None,
            StatelessClient::Stdio(client) => client.session,
        },
        principal: Principal::Anonymous,
        profile: sender.profile().cloned(),
        dialect: Dialect::NEWEST,
        level,
        client_capabilities: ClientCapabilities::read_shared(text, meta.capabilities),
        is_gateway: matches!(sender, StatelessClient::Http { is_gateway: true, .. }),
        program: if has_rules { program_of(request) } else { None },
    })
}

/// Returns the name of the client program in lower case.
fn program_of(request: &Request) -> Option<Arc<str>> {
    request.params.known_meta.client_info.and_then(|info| program(request.raw.as_str(), info))
}

/// Checks `_meta` of a request without a session. Returns an error if a required entry is missing.
pub(crate) fn check_meta(request: &Request) -> Result<(), Error> {
    let (text, meta) = (request.raw.as_str(), &request.params.known_meta);
    let missing = |entry: &str| Err(Error::MissingMeta(format!("_meta must have {entry}")));
    match (meta.version, meta.capabilities) {
        (Some(version), _) if json::string(text, version).is_none() => missing("the protocol version as a string"),
        (_, Some(capabilities)) if capabilities.get(text).starts_with('{') => Ok(()),
        _ => missing("io.modelcontextprotocol/clientCapabilities, an object"),
    }
}

/// Returns an error unless the request names a version that works without a handshake.
pub(crate) fn check_version(request: &Request) -> Result<(), Error> {
    let requested =
        request.params.known_meta.version.and_then(|at| json::string(request.raw.as_str(), at)).unwrap_or_default();
    if Dialect::parse(&requested).is_some_and(|dialect| !dialect.has_handshake()) {
        return Ok(());
    }
    Err(Error::UnsupportedVersion { requested: requested.into_owned() })
}
