//! How a backend is reached: from its configuration to a link with its handshake done.
//!
//! One [`Dialler`] per backend, for the link that lists and for those of single clients. It owns what they have in
//! common: the HTTP client with its pool, and which of the two transports a URL turned out to speak. Who dials decides
//! when, how often, with which ear and what is declared.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::backend::actor::Surroundings;
use crate::backend::child::Command;
use crate::backend::connect::{HttpClient, ProxyEnvironment};
use crate::backend::ear::Ear;
use crate::backend::files::FilesLink;
use crate::backend::http::HttpLink;
use crate::backend::link::{Hello, Link};
use crate::backend::sse::SseLink;
use crate::backend::stdio::StdioLink;
use crate::backend::trouble::Trouble;
use crate::config::secret::Secret;
use crate::config::{HttpKind, Server, Transport};

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
}

/// What is said in a handshake, and who hears what is said after it.
pub struct Greeting<'a, E> {
    pub capabilities: &'a str,
    /// A fresh one: two ways may be tried, and each has its own link.
    pub ear: E,
    /// The try before this one failed.
    pub is_retry: bool,
}

/// What a URL is taken for; it means nothing to other servers.
#[derive(Clone, Copy)]
enum Way {
    Usual,
    Sse,
}

/// Why there was no handshake.
struct Failure {
    reason: String,
    may_be_sse: bool,
}

type Shaken = (Arc<Link>, Arc<Hello>);

impl Dialler {
    pub fn new(config: Arc<Server>, surroundings: &Surroundings) -> Dialler {
        Dialler {
            config,
            exe: surroundings.exe.clone(),
            proxies: surroundings.proxies.clone(),
            limit: surroundings.policies.max_message_size,
            patience: surroundings.policies.start_timeout,
            client: OnceLock::new(),
            found_sse: AtomicBool::new(false),
        }
    }

    /// A link with its handshake done; nothing when `given_up` came first. Then, and when it failed, nothing is left of it.
    pub async fn dial<E: Fn() -> Ear>(
        &self,
        greeting: Greeting<'_, E>,
        given_up: impl Future<Output = ()>,
    ) -> Result<Option<Shaken>, String> {
        tokio::pin!(given_up);
        let shaken = match self.shake_hands(self.first_way(), &greeting, &mut given_up).await {
            Err(failure) if failure.may_be_sse && self.is_kind_unsaid() => self
                .shake_hands(Way::Sse, &greeting, &mut given_up)
                .await
                .map_err(|second| Trouble::NeitherWay(&failure.reason, &second.reason).to_string()),
            shaken => shaken.map_err(|failure| failure.reason),
        };
        // After a failure the other way has its turn again.
        let is_sse = shaken.as_ref().is_ok_and(|shaken| matches!(shaken, Some((Link::Sse(_), _))));
        self.found_sse.store(is_sse, Ordering::Relaxed);
        Ok(shaken?.map(|(link, hello)| (Arc::new(link), Arc::new(hello))))
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

    async fn shake_hands<E: Fn() -> Ear>(
        &self,
        way: Way,
        greeting: &Greeting<'_, E>,
        given_up: impl Future<Output = ()>,
    ) -> Result<Option<(Link, Hello)>, Failure> {
        let link = self.connect(way, greeting).map_err(|reason| Failure { reason, may_be_sse: false })?;
        let hello = tokio::select! {
            () = given_up => None,
            hello = tokio::time::timeout(self.patience, link.initialize(greeting.capabilities)) => Some(hello),
        };
        let reason = match hello {
            Some(Ok(Ok(hello))) => return Ok(Some((link, hello))),
            Some(Ok(Err(error))) => Some(error.to_string()),
            Some(Err(_)) => Some(link.silence(self.patience)),
            None => None,
        };
        link.close().await;
        let may_be_sse = link.may_be_sse();
        reason.map_or(Ok(None), |reason| Err(Failure { reason, may_be_sse }))
    }

    fn connect<E: Fn() -> Ear>(&self, way: Way, greeting: &Greeting<'_, E>) -> Result<Link, String> {
        let ear = Arc::new((greeting.ear)());
        match &self.config.transport {
            Transport::Stdio { command, args, env, cwd } => {
                let command = Command {
                    program: command.clone(),
                    args: args.clone(),
                    env: env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
                    cwd: cwd.clone(),
                };
                let link = StdioLink::start(&self.exe, &command, self.limit, ear, greeting.is_retry);
                link.map(Link::Stdio).map_err(|error| error.to_string())
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
                Ok(match way {
                    Way::Usual => Link::Http(HttpLink::new(client, url, headers, self.limit, ear)),
                    Way::Sse => Link::Sse(SseLink::new(client, url, headers, self.limit, ear)),
                })
            }
            Transport::Files(files) => {
                let link = FilesLink::open(files, ear);
                link.map(Link::Files).map_err(|error| error.to_string())
            }
        }
    }
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
