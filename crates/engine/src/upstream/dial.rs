//! How a backend is reached: from its configuration to a link with its handshake done.
//!
//! One [`Dialler`] per backend, for the link that lists and for those of single clients. It owns what they have in
//! common: the HTTP client with its pool, which of the two transports a URL turned out to speak, and with which generation
//! of the protocol the backend was found. Who dials decides when, how often, with which ear and what is declared.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::upstream::actor::Surroundings;
use crate::upstream::child::Command;
use goblin_client::connect::{HttpClient, ProxyEnvironment};
use crate::upstream::ear::Ear;
use crate::upstream::era::{self, Eras, For, Greet, Said};
use goblin_files::FilesServer;
use crate::upstream::http::HttpLink;
use crate::upstream::link::{Link, LinkError, Wire};
use goblin_wire::hello::Hello;
use crate::upstream::sse::SseLink;
use crate::upstream::stdio::StdioLink;
use crate::upstream::trouble::Trouble;
use goblin_config::secret::Secret;
use goblin_config::{HttpKind, Protocol, Server, Transport};

/// How long a process may be silent before it is begun with a handshake as well.
const SILENCE: Duration = Duration::from_secs(10);

pub struct Dialler {
    config: Arc<Server>,
    exe: PathBuf,
    proxies: ProxyEnvironment,
    /// Of one message.
    limit: usize,
    /// For a handshake.
    patience: Duration,
    client: OnceLock<HttpClient>,
    /// The last connection to a URL of unsaid kind was HTTP+SSE.
    found_sse: AtomicBool,
    pub eras: Eras,
}

/// What is said in a handshake, and who hears what is said after it.
pub struct Greeting<'a, E> {
    pub capabilities: &'a str,
    /// A fresh one: two ways may be tried, and each has its own link.
    pub ear: E,
    pub whom: For,
    /// The try before this one failed.
    pub is_retry: bool,
}

/// What a server is taken for; over pipes that shows only in what is said.
#[derive(Clone, Copy)]
enum Way {
    /// Streamable HTTP, with sessions.
    Usual,
    Sse,
    /// Streamable HTTP, without.
    Sessionless,
}

/// Why there was no handshake.
struct Failure {
    reason: String,
    may_be_sse: bool,
    /// Somebody answered, and did not want it.
    is_refusal: bool,
    /// Its process ended.
    is_end: bool,
}

impl Failure {
    fn new(reason: String) -> Failure {
        Failure { reason, may_be_sse: false, is_refusal: false, is_end: false }
    }
}

/// What came of asking a backend what it is.
enum Asked {
    Hello(Hello),
    /// It needs a handshake, over another connection.
    HandshakeNeeded,
    Failed(String),
}

type Shaken = (Arc<Link>, Arc<Hello>);
/// Nothing when nobody waits for it any more.
type Dialled = Result<Option<(Link, Hello)>, Failure>;

impl Dialler {
    pub fn new(config: Arc<Server>, surroundings: &Surroundings) -> Dialler {
        Dialler {
            eras: Eras::new(config.protocol),
            config,
            exe: surroundings.exe.clone(),
            proxies: surroundings.proxies.clone(),
            limit: surroundings.policies.max_message_size,
            patience: surroundings.policies.start_timeout,
            client: OnceLock::new(),
            found_sse: AtomicBool::new(false),
        }
    }

    /// A link that can be used; nothing when `given_up` came first. Then, and when it failed, nothing is left of it.
    pub async fn dial<E: Fn() -> Ear>(
        &self,
        greeting: Greeting<'_, E>,
        given_up: impl Future<Output = ()>,
    ) -> Result<Option<Shaken>, String> {
        tokio::pin!(given_up);
        let dialled = match self.greet(greeting.whom) {
            Greet::WithoutHandshake => self.dial_without_handshake(&greeting, &mut given_up).await,
            Greet::Ask => self.dial_and_ask(&greeting, &mut given_up).await,
            Greet::WithHandshake => match self.dial_with_handshake(&greeting, &mut given_up).await {
                // It is not what it was taken for.
                Err(failure) if failure.is_refusal && greeting.whom != For::HandshakeOnly && self.may_ask() => {
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

    fn greet(&self, whom: For) -> Greet {
        if self.may_ask() { self.eras.greet(whom, Instant::now()) } else { Greet::WithHandshake }
    }

    /// Two kinds of servers have a handshake always.
    pub fn may_ask(&self) -> bool {
        let is_old = matches!(self.config.transport, Transport::Files(_) | Transport::Http { kind: HttpKind::Sse, .. });
        !is_old && self.config.protocol != Protocol::Legacy
    }

    fn is_kind_unsaid(&self) -> bool {
        matches!(self.config.transport, Transport::Http { kind: HttpKind::Unsaid, .. })
    }

    /// What worked last time comes first.
    fn first_way(&self) -> Way {
        match &self.config.transport {
            Transport::Http { kind: HttpKind::Sse, .. } => Way::Sse,
            Transport::Http { kind: HttpKind::Unsaid, .. } if self.found_sse.load(Ordering::Relaxed) => Way::Sse,
            _ => Way::Usual,
        }
    }

    async fn dial_with_handshake<E: Fn() -> Ear>(
        &self,
        greeting: &Greeting<'_, E>,
        given_up: &mut (impl Future<Output = ()> + Unpin),
    ) -> Dialled {
        let shaken = match self.shake_hands(self.first_way(), greeting, given_up).await {
            Err(failure) if failure.may_be_sse && self.is_kind_unsaid() => {
                let second = self.shake_hands(Way::Sse, greeting, given_up).await;
                second.map_err(|second| {
                    let reason = Trouble::NeitherWay(&failure.reason, &second.reason).to_string();
                    Failure { reason, ..failure }
                })
            }
            shaken => shaken,
        };
        // After a failure the other way has its turn again.
        let is_sse = matches!(&shaken, Ok(Some((link, _))) if matches!(link.wire(), Wire::Sse(_)));
        self.found_sse.store(is_sse, Ordering::Relaxed);
        if matches!(shaken, Ok(Some(_))) {
            self.eras.shaken();
        }
        shaken
    }

    async fn shake_hands<E: Fn() -> Ear>(
        &self,
        way: Way,
        greeting: &Greeting<'_, E>,
        given_up: &mut (impl Future<Output = ()> + Unpin),
    ) -> Dialled {
        let link = self.connect(way, greeting).map_err(Failure::new)?;
        let hello = tokio::select! {
            () = given_up => None,
            hello = tokio::time::timeout(self.patience, link.initialize(greeting.capabilities)) => Some(hello),
        };
        // One that has done without may end, or say nothing, when it hears of a handshake.
        let (is_process, is_known) = (matches!(link.wire(), Wire::Stdio(_)), self.eras.has_done_without());
        let mut failure = match hello {
            Some(Ok(Ok(hello))) => return Ok(Some((link, hello))),
            Some(Ok(Err(error))) => {
                let is_end = is_process && matches!(error, LinkError::Closed { .. });
                let is_refusal = matches!(error, LinkError::Protocol(_)) && is_evidence(&link) || is_end && is_known;
                Some(Failure { is_end, is_refusal, ..Failure::new(error.to_string()) })
            }
            Some(Err(_)) => {
                let is_refusal = is_process && is_known;
                Some(Failure { is_refusal, ..Failure::new(link.silence(self.patience)) })
            }
            None => None,
        };
        link.close().await;
        failure.iter_mut().for_each(|failure| failure.may_be_sse = may_be_sse(&link));
        failure.map_or(Ok(None), Err)
    }

    /// As the configuration wants it, whatever else the backend may speak.
    async fn dial_without_handshake<E: Fn() -> Ear>(
        &self,
        greeting: &Greeting<'_, E>,
        given_up: &mut (impl Future<Output = ()> + Unpin),
    ) -> Dialled {
        let link = self.connect(Way::Sessionless, greeting).map_err(Failure::new)?;
        let asked = tokio::select! {
            () = given_up => None,
            said = tokio::time::timeout(self.patience, discover(&link, greeting.capabilities)) => Some(said),
        };
        let reason = match asked {
            Some(Ok(Ok(Said::Hello(hello)))) => {
                return Ok(Some(without_handshake(link, *hello, greeting.capabilities)));
            }
            Some(Ok(Ok(Said::Otherwise(said) | Said::Unknown(said)))) => Trouble::Undiscovered(&said).to_string(),
            Some(Ok(Ok(Said::Foreign(said)))) => Trouble::NeedsHandshake(&said).to_string(),
            Some(Ok(Err(LinkError::Protocol(said)))) if is_evidence(&link) => {
                Trouble::NeedsHandshake(&said).to_string()
            }
            Some(Ok(Err(error))) => error.to_string(),
            Some(Err(_)) => link.silence(self.patience),
            None => String::new(),
        };
        link.close().await;
        if reason.is_empty() { Ok(None) } else { Err(Failure::new(reason)) }
    }

    /// Asks the backend what it is; one that does not know the question has its handshake.
    async fn dial_and_ask<E: Fn() -> Ear>(
        &self,
        greeting: &Greeting<'_, E>,
        given_up: &mut (impl Future<Output = ()> + Unpin),
    ) -> Dialled {
        let link = self.connect(Way::Sessionless, greeting).map_err(Failure::new)?;
        let asked = tokio::select! {
            () = &mut *given_up => None,
            asked = tokio::time::timeout(self.patience, self.ask(&link, greeting.capabilities)) => Some(asked),
        };
        let reason = match asked {
            Some(Ok(Asked::Hello(hello))) if hello.dialect.has_handshake() => {
                self.eras.needs_handshake(Instant::now());
                return Ok(Some((link, hello)));
            }
            Some(Ok(Asked::Hello(hello))) => {
                self.eras.does_without();
                return Ok(Some(without_handshake(link, hello, greeting.capabilities)));
            }
            Some(Ok(Asked::HandshakeNeeded)) => {
                link.close().await;
                // What a process says when it is started again is no news.
                let (capabilities, ear, whom) = (greeting.capabilities, &greeting.ear, greeting.whom);
                let again = Greeting { capabilities, ear, whom, is_retry: true };
                let shaken = self.dial_with_handshake(&again, given_up).await;
                match &shaken {
                    Ok(Some(_)) => self.eras.needs_handshake(Instant::now()),
                    Err(failure) if failure.is_end => self.eras.ends_anyway(),
                    _ => {}
                }
                return shaken;
            }
            Some(Ok(Asked::Failed(reason))) => Some(reason),
            Some(Err(_)) => Some(link.silence(self.patience)),
            None => None,
        };
        link.close().await;
        reason.map_or(Ok(None), |reason| Err(Failure::new(reason)))
    }

    async fn ask(&self, link: &Link, capabilities: &str) -> Asked {
        match link.wire() {
            Wire::Stdio(_) => self.ask_process(link, capabilities).await,
            _ => match discover(link, capabilities).await {
                Err(LinkError::Protocol(reason)) if !is_evidence(link) => Asked::Failed(reason),
                Err(LinkError::Protocol(_)) => Asked::HandshakeNeeded,
                Err(error) => Asked::Failed(error.to_string()),
                Ok(said) => understand(said),
            },
        }
    }

    /// A process may be slow to start, and a few never answer what they do not know: after a while the handshake is begun
    /// as well, and the first good answer decides.
    async fn ask_process(&self, link: &Link, capabilities: &str) -> Asked {
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
                        Ok(Said::Foreign(_)) => return shaken_hands(shaken.await),
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
            // Some end when the first thing they hear is no handshake.
            Err(LinkError::Closed { .. }) => Asked::HandshakeNeeded,
            Err(error) => Asked::Failed(error.to_string()),
            Ok(Said::Foreign(_)) => shaken_hands(link.initialize(capabilities).await),
            Ok(said) => understand(said),
        }
    }

    fn connect<E: Fn() -> Ear>(&self, way: Way, greeting: &Greeting<'_, E>) -> Result<Link, String> {
        let ear = Arc::new((greeting.ear)());
        match &self.config.transport {
            Transport::Stdio { .. } => {
                let command = Command::of(&self.config.transport).expect("it starts a process");
                let link = StdioLink::start(&self.exe, command, self.limit, ear, greeting.is_retry);
                link.map(|link| Link::new(Wire::Stdio(link))).map_err(|error| Trouble::Unstartable(&error).to_string())
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
                let headers = header_map(headers)?;
                Ok(Link::new(match way {
                    Way::Usual => Wire::Http(HttpLink::new(client, url, headers, self.limit, ear)),
                    Way::Sessionless => Wire::Http(HttpLink::sessionless(client, url, headers, self.limit, ear)),
                    Way::Sse => Wire::Sse(SseLink::new(client, url, headers, self.limit, ear)),
                }))
            }
            Transport::Files(files) => {
                let link = FilesServer::open(files, ear);
                link.map(|link| Link::new(Wire::Files(link))).map_err(|error| error.to_string())
            }
        }
    }
}

/// Asks a backend what it is, once more where it wants the question put otherwise.
async fn discover(link: &Link, capabilities: &str) -> Result<Said, LinkError> {
    match era::judge(&link.discover(capabilities).await?) {
        Said::Otherwise(_) => link.discover(capabilities).await.map(|answer| era::judge(&answer)),
        said => Ok(said),
    }
}

fn understand(said: Said) -> Asked {
    match said {
        Said::Hello(hello) => Asked::Hello(*hello),
        Said::Otherwise(said) => Asked::Failed(Trouble::Undiscovered(&said).to_string()),
        Said::Foreign(_) | Said::Unknown(_) => Asked::HandshakeNeeded,
    }
}

fn shaken_hands(shaken: Result<Hello, LinkError>) -> Asked {
    shaken.map_or_else(|error| Asked::Failed(error.to_string()), Asked::Hello)
}

fn without_handshake(link: Link, hello: Hello, capabilities: &str) -> (Link, Hello) {
    link.speak(hello.dialect, capabilities.to_owned());
    (link, hello)
}

fn may_be_sse(link: &Link) -> bool {
    matches!(link.wire(), Wire::Http(link) if link.may_be_sse())
}

/// Whether a refusal tells which generation of the protocol a server speaks. No permission and no health say nothing.
fn is_evidence(link: &Link) -> bool {
    let Wire::Http(link) = link.wire() else { return true };
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
