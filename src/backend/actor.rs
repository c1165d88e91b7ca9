//! The life of one backend: dial, shake hands, list, listen, and begin again.
//!
//! Owns the connection and the right to publish link, listing and state. A backend that is down, slow or hangs delays
//! nobody but its own callers: each has its own actor, and nothing waits for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::backend::ask::Translate;
use crate::backend::child::Command;
use crate::backend::connect::{HttpClient, ProxyEnvironment};
use crate::backend::ear::Ear;
use crate::backend::files::FilesLink;
use crate::backend::health::Health;
use crate::backend::http::HttpLink;
use crate::backend::inbox::List;
use crate::backend::link::{End, Hello, Link, LinkError, shared_capabilities};
use crate::backend::listing::{self, Listing};
use crate::backend::sse::SseLink;
use crate::backend::stdio::StdioLink;
use crate::backend::trouble::{self, Trouble};
use crate::backend::{Backend, State};
use crate::caller::Level;
use crate::config::secret::Secret;
use crate::config::{HttpKind, Policies, Server, ServerId, Transport};
use crate::observe::{Event, Observe};
use crate::protocol::method::Method;

/// At least this long between two fetches of the lists: a storm of changes costs a few fetches a second, not thousands.
const REFRESH_INTERVAL: Duration = Duration::from_millis(300);

/// Lists that come within this time are published together.
const LISTS_TOGETHER: Duration = Duration::from_millis(500);
/// A list that could not be fetched is tried again after this.
const LIST_RETRY: Duration = Duration::from_secs(30);
/// A session that was forgotten sooner than this was a short one; the second in a row counts as a failure.
const SHORTEST_SESSION: Duration = Duration::from_secs(1);

/// What every actor needs from outside.
#[derive(Clone)]
pub struct Surroundings {
    pub policies: Policies,
    pub observe: Arc<Observe>,
    /// Our own executable, which is also the guard of child processes.
    pub exe: PathBuf,
    pub proxies: ProxyEnvironment,
    pub translate: Arc<dyn Translate>,
    /// Rung when a listing changed.
    pub bell: Arc<Notify>,
    /// The lowest log level any client asked for.
    pub level: watch::Receiver<Option<Level>>,
}

/// Starts a backend. It lives until the sender of `stop` says so or is gone.
pub fn start(
    id: ServerId,
    config: Arc<Server>,
    surroundings: Surroundings,
    stop: watch::Receiver<bool>,
) -> (Arc<Backend>, JoinHandle<()>) {
    let most_calls = surroundings.policies.max_in_flight_per_backend;
    let (observe, translate) = (Arc::clone(&surroundings.observe), Arc::clone(&surroundings.translate));
    let backend = Arc::new(Backend::new(id, config, most_calls, observe, translate));
    let actor = Actor {
        backend: Arc::clone(&backend),
        surroundings,
        stop,
        health: Health::default(),
        short_sessions: 0,
        told: None,
        has_dialled: false,
        found_sse: false,
        client: None,
    };
    (backend, tokio::spawn(actor.run()))
}

struct Actor {
    backend: Arc<Backend>,
    surroundings: Surroundings,
    stop: watch::Receiver<bool>,
    health: Health,
    /// How many sessions in a row were forgotten at once.
    short_sessions: u32,
    /// The last failure that was told, since there was a connection.
    told: Option<String>,
    has_dialled: bool,
    /// The last connection to a URL of unsaid kind was HTTP+SSE.
    found_sse: bool,
    client: Option<HttpClient>,
}

/// Why the actor leaves a connection.
enum Left {
    Stopped,
    Lost(End),
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

impl Actor {
    async fn run(mut self) {
        loop {
            let left = match self.connect().await {
                Ok(Some((link, hello))) => {
                    let begin = Instant::now();
                    let left = self.serve(&link, &hello).await;
                    let left = self.judge(left, begin.elapsed());
                    self.backend.link.store(None);
                    if let Left::Lost(End::Lost(reason)) = &left {
                        // Before the link is closed, which may take its time: nobody shall wait for a lost backend.
                        self.publish_state(State::Lost(reason.clone()));
                        self.emit(&Event::BackendLost { server: self.backend.id.as_str(), reason });
                        self.told = Some(trouble::gist(reason).to_owned());
                    }
                    link.close().await;
                    left
                }
                Ok(None) => Left::Stopped,
                Err(reason) => Left::Lost(End::Lost(reason)),
            };
            let pause = match left {
                Left::Stopped => break,
                // The backend lives, it only forgot us.
                Left::Lost(End::Forgotten) => continue,
                Left::Lost(End::Lost(reason)) => self.after_loss(reason),
            };
            tokio::select! {
                () = stopped(&mut self.stop) => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.publish_state(State::Stopped);
    }

    /// A backend that forgets every session at once cannot be used; dialling again without a pause would go on for ever.
    fn judge(&mut self, left: Left, lasted: Duration) -> Left {
        let is_short = matches!(left, Left::Lost(End::Forgotten)) && lasted < SHORTEST_SESSION;
        self.short_sessions = if is_short { self.short_sessions.saturating_add(1) } else { 0 };
        match self.short_sessions {
            0 | 1 => left,
            _ => Left::Lost(End::Lost("it forgets every session at once".to_owned())),
        }
    }

    fn after_loss(&mut self, reason: String) -> Duration {
        let pause = self.health.failed(Instant::now(), jitter());
        let repeated = self.told.as_deref() == Some(trouble::gist(&reason));
        self.told = Some(trouble::gist(&reason).to_owned());
        let server = self.backend.id.as_str();
        self.emit(&Event::BackendFailed { server, reason: &reason, retry_in: pause, repeated });
        self.backend.refreshing.store(false, Ordering::Release);
        self.publish_state(State::Lost(reason));
        self.backend.settled.send_replace(true);
        pause
    }

    /// A link with its handshake done, or nothing when we were told to stop.
    async fn connect(&mut self) -> Result<Option<(Arc<Link>, Arc<Hello>)>, String> {
        let begin = Instant::now();
        if std::mem::replace(&mut self.has_dialled, true) {
            self.backend.meter.restarted();
        }
        let first = self.first_way();
        let shaken = match self.shake_hands(first).await {
            Err(failure) if failure.may_be_sse && self.is_kind_unsaid() => self
                .shake_hands(Way::Sse)
                .await
                .map_err(|second| Trouble::NeitherWay(&failure.reason, &second.reason).to_string())?,
            shaken => shaken.map_err(|failure| failure.reason)?,
        };
        let Some((link, hello)) = shaken else { return Ok(None) };
        self.found_sse = matches!(link, Link::Sse(_));
        self.health.connected(Instant::now());
        self.told = None;
        let (server, transport, version) = (self.backend.id.as_str(), link.transport(), hello.dialect.as_str());
        self.emit(&Event::BackendReady { server, transport, version, took: begin.elapsed() });
        Ok(Some((Arc::new(link), Arc::new(hello))))
    }

    fn is_kind_unsaid(&self) -> bool {
        matches!(self.backend.config.transport, Transport::Http { kind: HttpKind::Unsaid, .. })
    }

    /// What worked last time comes first, once: after a failure the other has its turn again.
    fn first_way(&mut self) -> Way {
        let found_sse = std::mem::take(&mut self.found_sse);
        match &self.backend.config.transport {
            Transport::Http { kind: HttpKind::Sse, .. } => Way::Sse,
            Transport::Http { kind: HttpKind::Unsaid, .. } if found_sse => Way::Sse,
            _ => Way::Usual,
        }
    }

    async fn shake_hands(&mut self, way: Way) -> Result<Option<(Link, Hello)>, Failure> {
        let link = self.dial(way).map_err(|reason| Failure { reason, may_be_sse: false })?;
        let patience = self.surroundings.policies.start_timeout;
        let declared = shared_capabilities(&self.backend.config);
        let hello = tokio::select! {
            () = stopped(&mut self.stop) => None,
            hello = tokio::time::timeout(patience, link.initialize(&declared)) => Some(hello),
        };
        let reason = match hello {
            Some(Ok(Ok(hello))) => return Ok(Some((link, hello))),
            Some(Ok(Err(error))) => Some(error.to_string()),
            Some(Err(_)) => Some(link.silence(patience)),
            None => None,
        };
        link.close().await;
        let may_be_sse = link.may_be_sse();
        reason.map_or(Ok(None), |reason| Err(Failure { reason, may_be_sse }))
    }

    fn dial(&mut self, way: Way) -> Result<Link, String> {
        let limit = self.surroundings.policies.max_message_size;
        let inbox = Arc::clone(&self.backend.inbox);
        let ear = || {
            let patience = self.surroundings.policies.ask_timeout;
            Arc::new(Ear::shared(Arc::clone(&inbox), &self.backend.config, patience))
        };
        match &self.backend.config.transport {
            Transport::Stdio { command, args, env, cwd } => {
                let command = Command {
                    program: command.clone(),
                    args: args.clone(),
                    env: env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect(),
                    cwd: cwd.clone(),
                };
                let link = StdioLink::start(&self.surroundings.exe, &command, limit, ear(), self.told.is_some());
                link.map(Link::Stdio).map_err(|error| error.to_string())
            }
            Transport::Http { url, headers, ca, kind: _ } => {
                let url: http::Uri = url.parse().map_err(|error| format!("url: {error}"))?;
                let client = match &self.client {
                    Some(client) => client.clone(),
                    None => {
                        let client = HttpClient::new(&url, ca.as_deref(), &self.surroundings.proxies);
                        self.client.insert(client.map_err(|error| error.to_string())?).clone()
                    }
                };
                let (headers, ear) = (header_map(headers)?, ear());
                Ok(match way {
                    Way::Usual => Link::Http(HttpLink::new(client, url, headers, limit, ear)),
                    Way::Sse => Link::Sse(SseLink::new(client, url, headers, limit, ear)),
                })
            }
            Transport::Files(files) => {
                FilesLink::open(files, inbox).map(Link::Files).map_err(|error| error.to_string())
            }
        }
    }

    /// Keeps the listing fresh until the connection ends.
    async fn serve(&mut self, link: &Arc<Link>, hello: &Arc<Hello>) -> Left {
        self.backend.refreshing.store(true, Ordering::Release);
        // What was marked before is part of the first fetch.
        self.backend.inbox.take_changes();
        self.backend.link.store(Some(Arc::clone(link)));
        self.publish_state(State::Ready);
        let mut wanted = List::ALL.to_vec();
        let mut level = self.surroundings.level.clone();
        level.mark_changed();
        loop {
            if !wanted.is_empty() {
                let mut stop = self.stop.clone();
                tokio::select! {
                    biased;
                    () = stopped(&mut stop) => return Left::Stopped,
                    end = link.closed() => return Left::Lost(end),
                    refreshed = self.refresh(link, hello, &wanted) => {
                        if let Err(reason) = refreshed {
                            return Left::Lost(End::Lost(reason));
                        }
                    }
                }
                wanted.clear();
            }
            let fetched = tokio::time::Instant::now();
            let due = async {
                self.backend.inbox.changes().await;
                tokio::time::sleep_until(fetched + REFRESH_INTERVAL).await;
            };
            let mut stop = self.stop.clone();
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return Left::Stopped,
                end = link.closed() => return Left::Lost(end),
                () = due => {
                    self.backend.refreshing.store(true, Ordering::Release);
                    wanted = self.backend.inbox.take_changes();
                }
                Ok(()) = level.changed() => {
                    let lowest = *level.borrow_and_update();
                    self.set_level(link, hello, lowest);
                }
            }
        }
    }

    /// Fetches `lists` side by side and publishes them together; but one that takes long hides no other. A list that fails
    /// keeps its last entries; where the connection broke, that is the error: over HTTP nothing else might notice, and the
    /// list would stay as it was for good.
    async fn refresh(&self, link: &Link, hello: &Arc<Hello>, lists: &[List]) -> Result<(), String> {
        let fetch = async |list: List| {
            let offered = list.is_offered(hello);
            (list, if offered { self.fetch(link, list).await } else { Ok(Some(Vec::new())) })
        };
        let mut fetches: FuturesUnordered<_> = lists.iter().map(|list| fetch(*list)).collect();
        let mut fetched = Vec::new();
        let together = tokio::time::Instant::now() + LISTS_TOGETHER;
        loop {
            tokio::select! {
                next = fetches.next() => match next {
                    Some((list, fresh)) => fetched.extend(fresh?.map(|fresh| (list, fresh))),
                    None => break,
                },
                () = tokio::time::sleep_until(together), if !fetched.is_empty() => {
                    self.publish(hello, std::mem::take(&mut fetched));
                }
            }
        }
        self.publish(hello, fetched);
        self.backend.refreshing.store(false, Ordering::Release);
        self.backend.settled.send_replace(true);
        Ok(())
    }

    /// Publishes fresh lists where they differ. Nobody but this actor does, so nothing comes between reading and writing.
    fn publish(&self, hello: &Arc<Hello>, fetched: Vec<(List, Vec<listing::Definition>)>) {
        let mut listing = Listing::clone(&self.backend.listing());
        let mut differs = listing.hello.as_ref() != Some(hello);
        listing.hello = Some(Arc::clone(hello));
        for (list, fresh) in fetched {
            if **listing.get(list) != fresh {
                listing.set(list, fresh);
                differs = true;
            }
        }
        if differs {
            self.backend.listing.store(Arc::new(listing));
            self.surroundings.bell.notify_one();
        }
    }

    async fn fetch(&self, link: &Link, list: List) -> Result<Option<Vec<listing::Definition>>, String> {
        match listing::fetch(link, list, self.surroundings.policies.start_timeout).await {
            Ok(entries) => {
                self.backend.set_failed(list, None);
                Ok(Some(entries))
            }
            Err(LinkError::Closed { reason, .. }) => Err(reason),
            // The link says so itself.
            Err(LinkError::SessionLost) => Ok(None),
            Err(error) => {
                let (server, method, reason) = (self.backend.id.as_str(), list.method(), error.to_string());
                self.emit(&Event::BackendListFailed { server, method: method.as_str(), reason: &reason });
                self.backend.set_failed(list, Some(reason));
                let inbox = Arc::clone(&self.backend.inbox);
                tokio::spawn(async move {
                    tokio::time::sleep(LIST_RETRY).await;
                    inbox.mark(&[list]);
                });
                Ok(None)
            }
        }
    }

    fn set_level(&self, link: &Arc<Link>, hello: &Hello, lowest: Option<Level>) {
        let Some(level) = lowest.filter(|_| hello.capabilities.logging) else { return };
        let link = Arc::clone(link);
        let params = format!(r#"{{"level":"{}"}}"#, level.as_str());
        let patience = self.surroundings.policies.start_timeout;
        tokio::spawn(async move { tokio::time::timeout(patience, link.ask(&Method::SetLevel, &params)).await });
    }

    fn publish_state(&self, state: State) {
        self.backend.state.send_replace(state);
    }

    fn emit(&self, event: &Event<'_>) {
        self.surroundings.observe.emit(event);
    }
}

/// Waits for the word to stop.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody is left who could say it.
    let _ = stop.wait_for(|stop| *stop).await;
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

fn jitter() -> f64 {
    let mut byte = [0];
    let random = getrandom::fill(&mut byte).is_ok();
    if random { f64::from(byte[0]) / 255.0 } else { 0.5 }
}
