//! Connects to a backend: from its configuration to an initialized link.
//!
//! Each backend has one [`Dialler`], for the link that fetches the lists and for the links of single clients. The
//! dialler owns the state that these links share: the HTTP client with its pool, the transport that a URL turned out to
//! use, and the protocol generation of the backend. The caller decides when and how often to dial, which capabilities
//! to declare and which [`InboundHandler`] handles incoming messages.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use goblin_client::connect::{HttpClient, ProxyEnvironment};
use goblin_config::secret::Secret;
use goblin_config::{HttpKind, Protocol, Server, Transport};
use goblin_wire::Hello;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::upstream::child::ChildCommand;
use crate::upstream::era::{self, DiscoverReply, HandshakeMode, KnownEras, LinkScope};
use crate::upstream::files::FilesServer;
use crate::upstream::http::HttpLink;
use crate::upstream::http::peer::HttpPeer;
use crate::upstream::inbound::InboundHandler;
use crate::upstream::link::{Link, LinkError, LinkTransport};
use crate::upstream::problem::BackendProblem;
use crate::upstream::sse::SseLink;
use crate::upstream::stdio::StdioLink;
use crate::upstream::supervisor::BackendDeps;

/// The time that a process may leave `server/discover` unanswered before the dialler also sends `initialize`.
const SILENCE: Duration = Duration::from_secs(10);

/// Opens links to one backend and remembers what worked.
pub(crate) struct Dialler {
    config: Arc<Server>,
    exe: PathBuf,
    proxies: ProxyEnvironment,
    /// The largest message, in bytes.
    limit: usize,
    /// The timeout of a handshake.
    patience: Duration,
    client: OnceLock<HttpClient>,
    /// Whether the last connection to a URL of unspecified kind used HTTP+SSE.
    found_sse: AtomicBool,
    pub eras: KnownEras,
}

/// The parameters of one attempt: the declared capabilities and the handler of incoming messages.
pub(crate) struct DialParams<'a, E> {
    pub capabilities: &'a str,
    /// Creates a handler. Called once per link, because one attempt may try two transports.
    pub inbound: E,
    pub whom: LinkScope,
    /// Whether the previous attempt failed.
    pub is_retry: bool,
}

/// The transport to try. A stdio backend ignores it.
#[derive(Clone, Copy)]
enum DialMethod {
    /// Streamable HTTP with sessions.
    Usual,
    Sse,
    /// Streamable HTTP without sessions.
    Sessionless,
}

/// The reason why a handshake failed.
struct HandshakeError {
    reason: String,
    may_be_sse: bool,
    /// The server answered and rejected the handshake.
    is_refusal: bool,
    /// The server's process ended.
    is_end: bool,
}

impl HandshakeError {
    fn new(reason: String) -> HandshakeError {
        HandshakeError { reason, may_be_sse: false, is_refusal: false, is_end: false }
    }
}

/// The outcome of `server/discover`.
enum DiscoverOutcome {
    Hello(Hello),
    /// The backend needs a handshake over a new connection.
    HandshakeNeeded,
    Failed(String),
}

type ReadyLink = (Arc<Link>, Arc<Hello>);
/// `None` if the caller gave up first.
type DialResult = Result<Option<(Link, Hello)>, HandshakeError>;

impl Dialler {
    pub(crate) fn new(config: Arc<Server>, deps: &BackendDeps) -> Dialler {
        Dialler {
            eras: KnownEras::new(config.protocol),
            config,
            exe: deps.exe.clone(),
            proxies: deps.proxies.clone(),
            limit: deps.policies.max_message_size,
            patience: deps.policies.start_timeout,
            client: OnceLock::new(),
            found_sse: AtomicBool::new(false),
        }
    }

    /// Returns an initialized link. Returns `None` if `given_up` resolves first. In that case, and on an error, the
    /// connection is already closed.
    pub(crate) async fn dial<E: Fn() -> InboundHandler>(
        &self,
        greeting: DialParams<'_, E>,
        given_up: impl Future<Output = ()>,
    ) -> Result<Option<ReadyLink>, String> {
        tokio::pin!(given_up);
        let dialled = match self.greet(greeting.whom) {
            HandshakeMode::WithoutHandshake => self.dial_without_handshake(&greeting, &mut given_up).await,
            HandshakeMode::Ask => self.dial_and_ask(&greeting, &mut given_up).await,
            HandshakeMode::WithHandshake => match self.dial_with_handshake(&greeting, &mut given_up).await {
                // The backend rejects the handshake, so it may be of the newer generation: send `server/discover`
                // instead.
                Err(failure) if failure.is_refusal && greeting.whom != LinkScope::HandshakeOnly && self.may_ask() => {
                    self.eras.refuses_handshake(Instant::now());
                    self.dial_and_ask(&greeting, &mut given_up).await
                }
                Err(failure) if failure.is_refusal => {
                    self.eras.refuses_handshake(Instant::now());
                    Err(failure)
                }
                dialled => dialled,
            },
        };
        let dialled = dialled.map_err(|failure| failure.reason)?;
        Ok(dialled.map(|(link, hello)| (Arc::new(link), Arc::new(hello))))
    }

    fn greet(&self, whom: LinkScope) -> HandshakeMode {
        if self.may_ask() { self.eras.greet(whom, Instant::now()) } else { HandshakeMode::WithHandshake }
    }

    /// Reports whether the backend may be asked with `server/discover`. File backends, HTTP+SSE and servers configured
    /// as legacy always use the handshake.
    pub(crate) fn may_ask(&self) -> bool {
        let is_old = matches!(self.config.transport, Transport::Files(_) | Transport::Http { kind: HttpKind::Sse, .. });
        !is_old && self.config.protocol != Protocol::Legacy
    }

    fn is_kind_unsaid(&self) -> bool {
        matches!(self.config.transport, Transport::Http { kind: HttpKind::Unspecified, .. })
    }

    /// Returns the transport to try first: the one that worked last time.
    fn first_way(&self) -> DialMethod {
        match &self.config.transport {
            Transport::Http { kind: HttpKind::Sse, .. } => DialMethod::Sse,
            Transport::Http { kind: HttpKind::Unspecified, .. } if self.found_sse.load(Ordering::Relaxed) => {
                DialMethod::Sse
            }
            _ => DialMethod::Usual,
        }
    }

    /// Connects with a handshake. If the kind of the URL is unspecified and the server rejects Streamable HTTP like one
    /// that only supports HTTP+SSE, tries that transport as well.
    async fn dial_with_handshake<E: Fn() -> InboundHandler>(
        &self,
        greeting: &DialParams<'_, E>,
        given_up: &mut (impl Future<Output = ()> + Unpin),
    ) -> DialResult {
        let shaken = match self.shake_hands(self.first_way(), greeting, given_up).await {
            Err(failure) if failure.may_be_sse && self.is_kind_unsaid() => {
                let second = self.shake_hands(DialMethod::Sse, greeting, given_up).await;
                second.map_err(|second| {
                    let reason = BackendProblem::NeitherWay(&failure.reason, &second.reason).to_string();
                    HandshakeError { reason, ..failure }
                })
            }
            shaken => shaken,
        };
        // After a failure, the next attempt starts with Streamable HTTP again.
        let is_sse = matches!(&shaken, Ok(Some((link, _))) if matches!(link.wire(), LinkTransport::Sse(_)));
        self.found_sse.store(is_sse, Ordering::Relaxed);
        if matches!(shaken, Ok(Some(_))) {
            self.eras.shaken();
        }
        shaken
    }

    /// Opens one link and performs the handshake. Closes the link if the handshake fails.
    async fn shake_hands<E: Fn() -> InboundHandler>(
        &self,
        way: DialMethod,
        greeting: &DialParams<'_, E>,
        given_up: &mut (impl Future<Output = ()> + Unpin),
    ) -> DialResult {
        let link = self.connect(way, greeting).map_err(HandshakeError::new)?;
        let hello = tokio::select! {
            () = given_up => None,
            hello = tokio::time::timeout(self.patience, link.initialize(greeting.capabilities)) => Some(hello),
        };
        // A process that once worked without a handshake may exit or stay silent on `initialize`. Both count as a
        // rejection.
        let (is_process, is_known) = (matches!(link.wire(), LinkTransport::Stdio(_)), self.eras.has_done_without());
        let mut failure = match hello {
            Some(Ok(Ok(hello))) => return Ok(Some((link, hello))),
            Some(Ok(Err(error))) => {
                let is_end = is_process && matches!(error, LinkError::Closed { .. });
                let is_refusal = matches!(error, LinkError::Protocol(_)) && is_evidence(&link) || is_end && is_known;
                Some(HandshakeError { is_end, is_refusal, ..HandshakeError::new(error.to_string()) })
            }
            Some(Err(_)) => {
                let is_refusal = is_process && is_known;
                Some(HandshakeError { is_refusal, ..HandshakeError::new(link.silence(self.patience)) })
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
        greeting: &DialParams<'_, E>,
        given_up: &mut (impl Future<Output = ()> + Unpin),
    ) -> DialResult {
        let link = self.connect(DialMethod::Sessionless, greeting).map_err(HandshakeError::new)?;
        let asked = tokio::select! {
            () = given_up => None,
            said = tokio::time::timeout(self.patience, discover(&link, greeting.capabilities)) => Some(said),
        };
        let reason = match asked {
            Some(Ok(Ok(DiscoverReply::Hello(hello)))) => {
                return Ok(Some(without_handshake(link, *hello, greeting.capabilities)));
            }
            Some(Ok(Ok(DiscoverReply::Otherwise(said) | DiscoverReply::Unknown(said)))) => {
                BackendProblem::Undiscovered(&said).to_string()
            }
            Some(Ok(Ok(DiscoverReply::Foreign(said)))) => BackendProblem::NeedsHandshake(&said).to_string(),
            Some(Ok(Err(LinkError::Protocol(said)))) if is_evidence(&link) => {
                BackendProblem::NeedsHandshake(&said).to_string()
            }
            Some(Ok(Err(error))) => error.to_string(),
            Some(Err(_)) => link.silence(self.patience),
            None => String::new(),
        };
        link.close().await;
        if reason.is_empty() { Ok(None) } else { Err(HandshakeError::new(reason)) }
    }

    /// Sends `server/discover` and connects without a handshake if the backend supports that. A backend that does not
    /// know the method gets a handshake.
    async fn dial_and_ask<E: Fn() -> InboundHandler>(
        &self,
        greeting: &DialParams<'_, E>,
        given_up: &mut (impl Future<Output = ()> + Unpin),
    ) -> DialResult {
        let link = self.connect(DialMethod::Sessionless, greeting).map_err(HandshakeError::new)?;
        let asked = tokio::select! {
            () = &mut *given_up => None,
            asked = tokio::time::timeout(self.patience, self.ask(&link, greeting.capabilities)) => Some(asked),
        };
        let reason = match asked {
            Some(Ok(DiscoverOutcome::Hello(hello))) if hello.dialect.has_handshake() => {
                self.eras.needs_handshake(Instant::now());
                return Ok(Some((link, hello)));
            }
            Some(Ok(DiscoverOutcome::Hello(hello))) => {
                self.eras.does_without();
                return Ok(Some(without_handshake(link, hello, greeting.capabilities)));
            }
            Some(Ok(DiscoverOutcome::HandshakeNeeded)) => {
                link.close().await;
                // The process starts a second time and repeats its output, so log that output as a retry.
                let (capabilities, inbound, whom) = (greeting.capabilities, &greeting.inbound, greeting.whom);
                let again = DialParams { capabilities, inbound, whom, is_retry: true };
                let shaken = self.dial_with_handshake(&again, given_up).await;
                match &shaken {
                    Ok(Some(_)) => self.eras.needs_handshake(Instant::now()),
                    Err(failure) if failure.is_end => self.eras.ends_anyway(),
                    _ => {}
                }
                return shaken;
            }
            Some(Ok(DiscoverOutcome::Failed(reason))) => Some(reason),
            Some(Err(_)) => Some(link.silence(self.patience)),
            None => None,
        };
        link.close().await;
        reason.map_or(Ok(None), |reason| Err(HandshakeError::new(reason)))
    }

    /// Sends `server/discover` and, over pipes, possibly `initialize` on the same link.
    async fn ask(&self, link: &Link, capabilities: &str) -> DiscoverOutcome {
        match link.wire() {
            LinkTransport::Stdio(_) => self.ask_process(link, capabilities).await,
            _ => match discover(link, capabilities).await {
                Err(LinkError::Protocol(reason)) if !is_evidence(link) => DiscoverOutcome::Failed(reason),
                Err(LinkError::Protocol(_)) => DiscoverOutcome::HandshakeNeeded,
                Err(error) => DiscoverOutcome::Failed(error.to_string()),
                Ok(said) => understand(said),
            },
        }
    }

    /// Sends `server/discover` to a process. After [`SILENCE`], also sends `initialize`, because some processes start
    /// slowly and a few never answer an unknown method. The first successful response decides.
    async fn ask_process(&self, link: &Link, capabilities: &str) -> DiscoverOutcome {
        let discovered = discover(link, capabilities);
        tokio::pin!(discovered);
        let silence = if self.eras.has_done_without() { self.patience } else { SILENCE.min(self.patience / 2) };
        let said = tokio::select! {
            said = &mut discovered => said,
            () = tokio::time::sleep(silence) => {
                let shaken = link.initialize(capabilities);
                tokio::pin!(shaken);
                tokio::select! {
                    said = &mut discovered => match said {
                        Ok(DiscoverReply::Foreign(_)) => return shaken_hands(shaken.await),
                        said => said,
                    },
                    hello = &mut shaken => match hello {
                        Err(LinkError::Protocol(_)) => discovered.await,
                        hello => return shaken_hands(hello),
                    },
                }
            }
        };
        match said {
            // Some processes exit if the first message is not `initialize`.
            Err(LinkError::Closed { .. }) => DiscoverOutcome::HandshakeNeeded,
            Err(error) => DiscoverOutcome::Failed(error.to_string()),
            Ok(DiscoverReply::Foreign(_)) => shaken_hands(link.initialize(capabilities).await),
            Ok(said) => understand(said),
        }
    }

    /// Creates a link without sending anything. A stdio link starts its process here.
    fn connect<E: Fn() -> InboundHandler>(
        &self,
        way: DialMethod,
        greeting: &DialParams<'_, E>,
    ) -> Result<Link, String> {
        let inbound = Arc::new((greeting.inbound)());
        match &self.config.transport {
            Transport::Stdio { .. } => {
                let command = ChildCommand::of(&self.config.transport).expect("it starts a process");
                let link = StdioLink::start(&self.exe, command, self.limit, inbound, greeting.is_retry);
                link.map(|link| Link::new(LinkTransport::Stdio(link)))
                    .map_err(|error| BackendProblem::Unstartable(&error).to_string())
            }
            Transport::Http { url, headers, ca, kind: _ } => {
                let url: http::Uri = url.parse().map_err(|error| format!("url: {error}"))?;
                let client = match self.client.get() {
                    Some(client) => client.clone(),
                    None => {
                        let client = HttpClient::new(&url, ca.as_deref(), &self.proxies);
                        let client = client.map_err(|error| error.to_string())?;
                        self.client.get_or_init(|| client).clone()
                    }
                };
                let peer = HttpPeer::new(client, url, header_map(headers)?, self.limit, inbound);
                Ok(Link::new(match way {
                    DialMethod::Usual => LinkTransport::Http(HttpLink::new(peer)),
                    DialMethod::Sessionless => LinkTransport::Http(HttpLink::sessionless(peer)),
                    DialMethod::Sse => LinkTransport::Sse(SseLink::new(peer)),
                }))
            }
            Transport::Files(files) => {
                let link = FilesServer::open(files, inbound);
                link.map(|link| Link::new(LinkTransport::Files(link))).map_err(|error| error.to_string())
            }
        }
    }
}

/// Sends `server/discover`, a second time if the backend understood it but rejected its form.
async fn discover(link: &Link, capabilities: &str) -> Result<DiscoverReply, LinkError> {
    match era::judge(&link.discover(capabilities).await?) {
        DiscoverReply::Otherwise(_) => link.discover(capabilities).await.map(|answer| era::judge(&answer)),
        said => Ok(said),
    }
}

fn understand(said: DiscoverReply) -> DiscoverOutcome {
    match said {
        DiscoverReply::Hello(hello) => DiscoverOutcome::Hello(*hello),
        DiscoverReply::Otherwise(said) => DiscoverOutcome::Failed(BackendProblem::Undiscovered(&said).to_string()),
        DiscoverReply::Foreign(_) | DiscoverReply::Unknown(_) => DiscoverOutcome::HandshakeNeeded,
    }
}

fn shaken_hands(shaken: Result<Hello, LinkError>) -> DiscoverOutcome {
    shaken.map_or_else(|error| DiscoverOutcome::Failed(error.to_string()), DiscoverOutcome::Hello)
}

fn without_handshake(link: Link, hello: Hello, capabilities: &str) -> (Link, Hello) {
    link.speak(hello.dialect, capabilities.to_owned());
    (link, hello)
}

fn may_be_sse(link: &Link) -> bool {
    matches!(link.wire(), LinkTransport::Http(link) if link.may_be_sse())
}

/// Reports whether an error response shows which protocol generation a server speaks. Statuses such as 401 or 503 show
/// nothing about that.
fn is_evidence(link: &Link) -> bool {
    let LinkTransport::Http(link) = link.wire() else { return true };
    let tells =
        [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED];
    link.refused().is_none_or(|status| tells.contains(&status))
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
