//! Connects to a backend: from its configuration to an initialized link.
//!
//! Each backend has one [`BackendDialer`], for the link that fetches the lists and for the links of single clients. The
//! dialer owns the state that these links share: the HTTP client with its pool, the transport that a URL turned out to
//! use, and the protocol generation of the backend. The caller decides when and how often to dial, which capabilities
//! to declare and which [`InboundHandler`] handles incoming messages.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use goblin_client::authorization::{Authorization, AuthorizedClient};
use goblin_client::connect::{HttpClient, ProxyEnvironment};
use goblin_client::lineage::{self, Lineage};
use goblin_config::secret::Secret;
use goblin_config::{HttpKind, Protocol, Server, Transport};
use goblin_oauth::ServerLogin;
use goblin_wire::{Hello, via};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::upstream::child::ChildCommand;
use crate::upstream::era::{self, DiscoverReply, HandshakeMode, KnownEras, LinkScope};
use crate::upstream::files::FilesServer;
use crate::upstream::http::HttpLink;
use crate::upstream::http::peer::HttpPeer;
use crate::upstream::inbound::InboundHandler;
use crate::upstream::link::{Link, LinkError, LinkTransport};
use crate::upstream::login::BackendLogin;
use crate::upstream::problem::BackendProblem;
use crate::upstream::sse::SseLink;
use crate::upstream::stdio::StdioLink;
use crate::upstream::supervisor::{BackendDeps, LivePolicies};

/// The time that a process may leave `server/discover` unanswered before the dialer also sends `initialize`.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens links to one backend and remembers what worked.
pub(crate) struct BackendDialer {
    config: Arc<Server>,
    exe: PathBuf,
    proxies: ProxyEnvironment,
    policies: LivePolicies,
    lineage: Arc<Lineage>,
    client: OnceLock<HttpClient>,
    /// Whether the last connection to a URL of unspecified kind used HTTP+SSE.
    found_sse: AtomicBool,
    pub eras: KnownEras,
    /// The login at the backend, if it may have one.
    pub login: Option<Arc<BackendLogin>>,
}

/// The parameters of one attempt: the declared capabilities and the handler of incoming messages.
pub(crate) struct DialParams<'a, E> {
    pub capabilities: &'a str,
    /// Creates a handler. Called once per link, because one attempt may try two transports.
    pub inbound: E,
    pub scope: LinkScope,
    /// Whether the previous attempt failed.
    pub is_retry: bool,
}

/// The transport to try. A stdio backend ignores it.
#[derive(Clone, Copy)]
enum DialMethod {
    /// Streamable HTTP with sessions.
    Streamable,
    Sse,
    /// Streamable HTTP without sessions.
    Sessionless,
}

/// The reason why a handshake failed.
struct HandshakeError {
    reason: String,
    may_be_sse: bool,
    /// The server answered and rejected the handshake.
    is_rejection: bool,
    /// The server's process ended.
    is_exit: bool,
    /// The server rejected the connection, because it needs a login.
    needs_login: bool,
}

/// The reason why there is no link.
pub(crate) enum DialError {
    Failed(String),
    LoginNeeded,
}

impl HandshakeError {
    fn new(reason: String) -> HandshakeError {
        HandshakeError { reason, may_be_sse: false, is_rejection: false, is_exit: false, needs_login: false }
    }

    fn login_needed() -> HandshakeError {
        HandshakeError { needs_login: true, ..HandshakeError::new(LinkError::LoginNeeded.to_string()) }
    }
}

/// The outcome of `server/discover`.
enum DiscoverOutcome {
    Hello(Hello),
    /// The backend needs a handshake over a new connection.
    HandshakeNeeded,
    LoginNeeded,
    Failed(String),
}

type ReadyLink = (Arc<Link>, Arc<Hello>);
/// `None` if the caller gave up first.
type DialResult = Result<Option<(Link, Hello)>, HandshakeError>;

impl BackendDialer {
    pub(crate) fn new(server: &str, config: Arc<Server>, deps: &BackendDeps) -> BackendDialer {
        BackendDialer {
            login: deps
                .vault
                .as_ref()
                .and_then(|vault| BackendLogin::of(server, &config, vault, &deps.proxies, &deps.observe)),
            eras: KnownEras::new(config.protocol),
            config,
            exe: deps.exe.clone(),
            proxies: deps.proxies.clone(),
            policies: Arc::clone(&deps.policies),
            lineage: Arc::clone(&deps.lineage),
            client: OnceLock::new(),
            found_sse: AtomicBool::new(false),
        }
    }

    /// Returns the login at the backend, if it may have one.
    pub(crate) fn server_login(&self) -> Option<&ServerLogin> {
        self.login.as_ref().map(|login| &*login.login)
    }

    /// Returns an initialized link. Returns `None` if `abort` resolves first. In that case, and on an error, the
    /// connection is already closed.
    pub(crate) async fn dial<E: Fn() -> InboundHandler>(
        &self,
        params: DialParams<'_, E>,
        abort: impl Future<Output = ()>,
    ) -> Result<Option<ReadyLink>, DialError> {
        tokio::pin!(abort);
        let outcome = match self.handshake_mode(params.scope) {
            HandshakeMode::WithoutHandshake => self.dial_without_handshake(&params, &mut abort).await,
            HandshakeMode::Discover => self.dial_and_discover(&params, &mut abort).await,
            HandshakeMode::WithHandshake => match self.dial_with_handshake(&params, &mut abort).await {
                // The backend rejects the handshake, so it may be of the newer generation: send `server/discover`
                // instead.
                Err(failure)
                    if failure.is_rejection && params.scope != LinkScope::HandshakeOnly && self.may_discover() =>
                {
                    self.eras.record_handshake_rejected(Instant::now());
                    self.dial_and_discover(&params, &mut abort).await
                }
                Err(failure) if failure.is_rejection => {
                    self.eras.record_handshake_rejected(Instant::now());
                    Err(failure)
                }
                outcome => outcome,
            },
        };
        let outcome = outcome.map_err(|failure| match failure.needs_login {
            true => DialError::LoginNeeded,
            false => DialError::Failed(failure.reason),
        })?;
        Ok(outcome.map(|(link, hello)| (Arc::new(link), Arc::new(hello))))
    }

    fn handshake_timeout(&self) -> Duration {
        self.policies.load().start_timeout
    }

    fn handshake_mode(&self, scope: LinkScope) -> HandshakeMode {
        if self.may_discover() { self.eras.handshake_mode(scope, Instant::now()) } else { HandshakeMode::WithHandshake }
    }

    /// Reports whether the backend may receive `server/discover`. File backends, HTTP+SSE and servers configured
    /// as legacy always use the handshake.
    pub(crate) fn may_discover(&self) -> bool {
        let is_legacy =
            matches!(self.config.transport, Transport::Files(_) | Transport::Http { kind: HttpKind::Sse, .. });
        !is_legacy && self.config.protocol != Protocol::Legacy
    }

    /// Reports whether clients of the other era may get a second link. Over stdio it would be a second process with a
    /// state of its own (D17).
    pub(crate) fn may_have_second_link(&self) -> bool {
        self.may_discover() && matches!(self.config.transport, Transport::Http { .. })
    }

    fn is_kind_unspecified(&self) -> bool {
        matches!(self.config.transport, Transport::Http { kind: HttpKind::Unspecified, .. })
    }

    /// Returns the transport to try first: the one that worked last time.
    fn first_method(&self) -> DialMethod {
        match &self.config.transport {
            Transport::Http { kind: HttpKind::Sse, .. } => DialMethod::Sse,
            Transport::Http { kind: HttpKind::Unspecified, .. } if self.found_sse.load(Ordering::Relaxed) => {
                DialMethod::Sse
            }
            _ => DialMethod::Streamable,
        }
    }

    /// Connects with a handshake. If the kind of the URL is unspecified and the server rejects Streamable HTTP like one
    /// that only supports HTTP+SSE, tries that transport as well.
    async fn dial_with_handshake<E: Fn() -> InboundHandler>(
        &self,
        params: &DialParams<'_, E>,
        abort: &mut (impl Future<Output = ()> + Unpin),
    ) -> DialResult {
        let outcome = match self.perform_handshake(self.first_method(), params, abort).await {
            Err(failure) if failure.may_be_sse && self.is_kind_unspecified() => {
                let second = self.perform_handshake(DialMethod::Sse, params, abort).await;
                second.map_err(|second| {
                    if second.needs_login {
                        return second;
                    }
                    let reason = BackendProblem::NeitherTransport(&failure.reason, &second.reason).to_string();
                    HandshakeError { reason, ..failure }
                })
            }
            outcome => outcome,
        };
        // After a failure, the next attempt starts with Streamable HTTP again.
        let is_sse = matches!(&outcome, Ok(Some((link, _))) if matches!(link.wire(), LinkTransport::Sse(_)));
        self.found_sse.store(is_sse, Ordering::Relaxed);
        if matches!(outcome, Ok(Some(_))) {
            self.eras.record_handshake();
        }
        outcome
    }

    /// Opens one link and performs the handshake. Closes the link if the handshake fails.
    async fn perform_handshake<E: Fn() -> InboundHandler>(
        &self,
        method: DialMethod,
        params: &DialParams<'_, E>,
        abort: &mut (impl Future<Output = ()> + Unpin),
    ) -> DialResult {
        let link = self.connect(method, params).map_err(HandshakeError::new)?;
        let hello = tokio::select! {
            () = abort => None,
            hello = tokio::time::timeout(self.handshake_timeout(), link.initialize(params.capabilities)) => Some(hello),
        };
        // A process that once worked without a handshake may exit or stay silent on `initialize`. Both count as a
        // rejection.
        let (is_process, is_known) =
            (matches!(link.wire(), LinkTransport::Stdio(_)), self.eras.has_worked_without_handshake());
        let mut failure = match hello {
            Some(Ok(Ok(hello))) => return Ok(Some((link, hello))),
            Some(Ok(Err(LinkError::LoginNeeded | LinkError::ScopeMissing))) => Some(HandshakeError::login_needed()),
            Some(Ok(Err(error))) => {
                let is_exit = is_process && matches!(error, LinkError::Closed { .. });
                let is_rejection =
                    matches!(error, LinkError::Protocol(_)) && is_conclusive(&link) || is_exit && is_known;
                Some(HandshakeError { is_exit, is_rejection, ..HandshakeError::new(error.to_string()) })
            }
            Some(Err(_)) => {
                let is_rejection = is_process && is_known;
                Some(HandshakeError {
                    is_rejection,
                    ..HandshakeError::new(link.explain_timeout(self.handshake_timeout()))
                })
            }
            None => None,
        };
        link.close().await;
        failure.iter_mut().for_each(|failure| failure.may_be_sse = may_be_sse(&link));
        failure.map_or(Ok(None), Err)
    }

    /// Connects without a handshake, because the configuration demands it.
    async fn dial_without_handshake<E: Fn() -> InboundHandler>(
        &self,
        params: &DialParams<'_, E>,
        abort: &mut (impl Future<Output = ()> + Unpin),
    ) -> DialResult {
        let link = self.connect(DialMethod::Sessionless, params).map_err(HandshakeError::new)?;
        let reply = tokio::select! {
            () = abort => None,
            reply = tokio::time::timeout(self.handshake_timeout(), discover(&link, params.capabilities)) => Some(reply),
        };
        let reason = match reply {
            Some(Ok(Ok(DiscoverReply::Hello(hello)))) => {
                return Ok(Some(ready_without_handshake(link, *hello, params.capabilities)));
            }
            Some(Ok(Ok(DiscoverReply::Rejected(details) | DiscoverReply::UnknownVersions(details)))) => {
                BackendProblem::DiscoverRejected(&details).to_string()
            }
            Some(Ok(Ok(DiscoverReply::Legacy(details)))) => BackendProblem::NeedsHandshake(&details).to_string(),
            Some(Ok(Err(LinkError::Protocol(details)))) if is_conclusive(&link) => {
                BackendProblem::NeedsHandshake(&details).to_string()
            }
            Some(Ok(Err(LinkError::LoginNeeded | LinkError::ScopeMissing))) => {
                link.close().await;
                return Err(HandshakeError::login_needed());
            }
            Some(Ok(Err(error))) => error.to_string(),
            Some(Err(_)) => link.explain_timeout(self.handshake_timeout()),
            None => String::new(),
        };
        link.close().await;
        if reason.is_empty() { Ok(None) } else { Err(HandshakeError::new(reason)) }
    }

    /// Sends `server/discover` and connects without a handshake if the backend supports that. A backend that does not
    /// know the method gets a handshake.
    async fn dial_and_discover<E: Fn() -> InboundHandler>(
        &self,
        params: &DialParams<'_, E>,
        abort: &mut (impl Future<Output = ()> + Unpin),
    ) -> DialResult {
        let link = self.connect(DialMethod::Sessionless, params).map_err(HandshakeError::new)?;
        let reply = tokio::select! {
            () = &mut *abort => None,
            reply = tokio::time::timeout(self.handshake_timeout(), self.probe(&link, params.capabilities)) => Some(reply),
        };
        let failure = match reply {
            Some(Ok(DiscoverOutcome::Hello(hello))) if hello.dialect.has_handshake() => {
                self.eras.record_handshake_needed(Instant::now());
                return Ok(Some((link, hello)));
            }
            Some(Ok(DiscoverOutcome::Hello(hello))) => {
                self.eras.record_discovered();
                return Ok(Some(ready_without_handshake(link, hello, params.capabilities)));
            }
            Some(Ok(DiscoverOutcome::HandshakeNeeded)) => {
                link.close().await;
                // The process starts a second time and repeats its output, so log that output as a retry.
                let (capabilities, inbound, scope) = (params.capabilities, &params.inbound, params.scope);
                let retry = DialParams { capabilities, inbound, scope, is_retry: true };
                let outcome = self.dial_with_handshake(&retry, abort).await;
                match &outcome {
                    Ok(Some(_)) => self.eras.record_handshake_needed(Instant::now()),
                    Err(failure) if failure.is_exit => self.eras.record_exit(),
                    _ => {}
                }
                return outcome;
            }
            Some(Ok(DiscoverOutcome::LoginNeeded)) => Some(HandshakeError::login_needed()),
            Some(Ok(DiscoverOutcome::Failed(reason))) => Some(HandshakeError::new(reason)),
            Some(Err(_)) => Some(HandshakeError::new(link.explain_timeout(self.handshake_timeout()))),
            None => None,
        };
        link.close().await;
        failure.map_or(Ok(None), Err)
    }

    /// Sends `server/discover` and, over pipes, possibly `initialize` on the same link.
    async fn probe(&self, link: &Link, capabilities: &str) -> DiscoverOutcome {
        match link.wire() {
            LinkTransport::Stdio(_) => self.probe_process(link, capabilities).await,
            _ => match discover(link, capabilities).await {
                Err(LinkError::LoginNeeded | LinkError::ScopeMissing) => DiscoverOutcome::LoginNeeded,
                Err(LinkError::Protocol(reason)) if !is_conclusive(link) => DiscoverOutcome::Failed(reason),
                Err(LinkError::Protocol(_)) => DiscoverOutcome::HandshakeNeeded,
                Err(error) => DiscoverOutcome::Failed(error.to_string()),
                Ok(reply) => discover_outcome(reply),
            },
        }
    }

    /// Sends `server/discover` to a process. After [`DISCOVER_TIMEOUT`], also sends `initialize`, because some
    /// processes start slowly and a few never answer an unknown method. The first successful response decides.
    async fn probe_process(&self, link: &Link, capabilities: &str) -> DiscoverOutcome {
        let discovered = discover(link, capabilities);
        tokio::pin!(discovered);
        let discover_timeout = if self.eras.has_worked_without_handshake() {
            self.handshake_timeout()
        } else {
            DISCOVER_TIMEOUT.min(self.handshake_timeout() / 2)
        };
        let reply = tokio::select! {
            reply = &mut discovered => reply,
            () = tokio::time::sleep(discover_timeout) => {
                let initialized = link.initialize(capabilities);
                tokio::pin!(initialized);
                tokio::select! {
                    reply = &mut discovered => match reply {
                        Ok(DiscoverReply::Legacy(_)) => return handshake_outcome(initialized.await),
                        reply => reply,
                    },
                    hello = &mut initialized => match hello {
                        Err(LinkError::Protocol(_)) => discovered.await,
                        hello => return handshake_outcome(hello),
                    },
                }
            }
        };
        match reply {
            // Some processes exit if the first message is not `initialize`.
            Err(LinkError::Closed { .. }) => DiscoverOutcome::HandshakeNeeded,
            Err(error) => DiscoverOutcome::Failed(error.to_string()),
            Ok(DiscoverReply::Legacy(_)) => handshake_outcome(link.initialize(capabilities).await),
            Ok(reply) => discover_outcome(reply),
        }
    }

    /// Creates a link without sending anything. A stdio link starts its process here.
    fn connect<E: Fn() -> InboundHandler>(
        &self,
        method: DialMethod,
        params: &DialParams<'_, E>,
    ) -> Result<Link, String> {
        let inbound = Arc::new((params.inbound)());
        match &self.config.transport {
            Transport::Stdio { .. } => {
                let command = ChildCommand::of(&self.config.transport).expect("a stdio transport starts a process");
                let command = command.with_variable(lineage::VARIABLE, self.lineage.variable());
                let link = StdioLink::start(
                    &self.exe,
                    command,
                    self.policies.load().max_message_size,
                    inbound,
                    params.is_retry,
                );
                link.map(|link| Link::new(LinkTransport::Stdio(link)))
                    .map_err(|error| BackendProblem::CannotStart(&error).to_string())
            }
            Transport::Http { url, headers, ca, kind: _, oauth: _ } => {
                let url: http::Uri = url.value().parse().map_err(|error| format!("url: {error}"))?;
                let client = match self.client.get() {
                    Some(client) => client.clone(),
                    None => {
                        let client = HttpClient::new(&url, ca.as_deref(), &self.proxies);
                        let client = client.map_err(|error| error.to_string())?;
                        self.client.get_or_init(|| client).clone()
                    }
                };
                let via = via::header_value(std::slice::from_ref(&self.lineage.id));
                let via = HeaderValue::try_from(via).expect("an id has only letters and digits");
                let limit = self.policies.load().max_message_size;
                let login = self.login.as_ref().map(|login| Arc::clone(&login.login) as Arc<dyn Authorization>);
                let client = AuthorizedClient::new(client, login);
                let peer = HttpPeer::new(client, url, header_map(headers)?, via, limit, inbound);
                Ok(Link::new(match method {
                    DialMethod::Streamable => LinkTransport::Http(HttpLink::new(peer)),
                    DialMethod::Sessionless => LinkTransport::Http(HttpLink::sessionless(peer)),
                    DialMethod::Sse => LinkTransport::Sse(SseLink::new(peer)),
                }))
            }
            Transport::Files(files) => {
                let link = FilesServer::open(files, inbound);
                link.map(|link| Link::new(LinkTransport::Files(link))).map_err(|error| error.to_string())
            }
            // The plan of a reload starts no such server.
            Transport::Misconfigured(misconfiguration) => Err(misconfiguration.reason()),
        }
    }
}

/// Sends `server/discover`, a second time if the backend understood it but rejected its form.
async fn discover(link: &Link, capabilities: &str) -> Result<DiscoverReply, LinkError> {
    match era::interpret(&link.discover(capabilities).await?) {
        DiscoverReply::Rejected(_) => link.discover(capabilities).await.map(|answer| era::interpret(&answer)),
        reply => Ok(reply),
    }
}

fn discover_outcome(reply: DiscoverReply) -> DiscoverOutcome {
    match reply {
        DiscoverReply::Hello(hello) => DiscoverOutcome::Hello(*hello),
        DiscoverReply::Rejected(details) => {
            DiscoverOutcome::Failed(BackendProblem::DiscoverRejected(&details).to_string())
        }
        DiscoverReply::Legacy(_) | DiscoverReply::UnknownVersions(_) => DiscoverOutcome::HandshakeNeeded,
    }
}

fn handshake_outcome(result: Result<Hello, LinkError>) -> DiscoverOutcome {
    result.map_or_else(|error| DiscoverOutcome::Failed(error.to_string()), DiscoverOutcome::Hello)
}

fn ready_without_handshake(link: Link, hello: Hello, capabilities: &str) -> (Link, Hello) {
    link.set_dialect(hello.dialect, capabilities.to_owned());
    (link, hello)
}

fn may_be_sse(link: &Link) -> bool {
    matches!(link.wire(), LinkTransport::Http(link) if link.may_be_sse())
}

/// Reports whether an error response shows which protocol generation a server speaks. Statuses such as 401 or 503 show
/// nothing about that.
fn is_conclusive(link: &Link) -> bool {
    let LinkTransport::Http(link) = link.wire() else { return true };
    let conclusive =
        [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
    link.rejection_status().is_none_or(|status| conclusive.contains(&status))
}

fn header_map(headers: &[(String, Secret)]) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::try_from(name).map_err(|error| format!("header {name}: {error}"))?;
        let mut value = HeaderValue::try_from(value.expose()).map_err(|error| format!("header {name}: {error}"))?;
        value.set_sensitive(true);
        map.append(name, value);
    }
    Ok(map)
}
