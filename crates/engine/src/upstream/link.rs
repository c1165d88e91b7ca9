//! One connection to a backend over any transport.
//!
//! Calls use a link directly; its supervisor opens and closes it. The link creates the ids of upstream requests:
//! two clients may use the same ids and progress tokens, so neither is ever sent to a backend. The protocol version of
//! a link is fixed once, by the handshake or by `server/discover`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;
use goblin_config::Server;
use goblin_wire::json::{self, quote};
use goblin_wire::listen::ListenFilter;
use goblin_wire::mirrored::{self, HeaderSource, MirrorHeaders};
use goblin_wire::units::duration;
use goblin_wire::{Dialect, Hello, Id, Method, Notification, Outcome, Response, trace};
use tokio::sync::watch;

use crate::client::call::Call;
use crate::client::caller::Level;
use crate::upstream::files::FilesServer;
use crate::upstream::http::HttpLink;
use crate::upstream::listen::ListenHandle;
use crate::upstream::problem::{BackendProblem, ConnectionKind};
use crate::upstream::request_meta::{declaring_tasks, own_params};
use crate::upstream::sse::SseLink;
use crate::upstream::stdio::StdioLink;

/// The longest wait for the acknowledgement of a notification stream.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(10);

/// The log level of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkLevel {
    /// The gateway does not set it.
    Fixed,
    /// The gateway sets it. `None` before the first answer of the backend.
    Set(Option<Level>),
}

impl LinkLevel {
    /// Reports whether nothing has to be awaited before the backend sends the messages of this level.
    fn includes(self, wanted: Level) -> bool {
        match self {
            LinkLevel::Fixed => true,
            LinkLevel::Set(level) => level.is_some_and(|level| level <= wanted),
        }
    }
}

/// A connection to a backend, with the protocol version it speaks.
pub struct Link {
    wire: LinkTransport,
    protocol: OnceLock<LinkProtocol>,
    /// The id of the next request.
    next: Arc<AtomicU64>,
    /// The log level of the backend on this link.
    pub(crate) level: watch::Sender<LinkLevel>,
}

/// The transport of a link.
pub enum LinkTransport {
    Stdio(StdioLink),
    Http(HttpLink),
    Sse(SseLink),
    /// Implemented by the gateway itself, without a connection.
    Files(FilesServer),
}

/// The protocol version of a link and what the gateway's own requests declare.
struct LinkProtocol {
    dialect: Dialect,
    /// The capabilities that the gateway's own requests declare, in versions that declare them per request.
    declared: String,
}

/// The reason why a request got no response.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{reason}")]
    Closed {
        reason: String,
        /// Whether the backend may have received the request.
        sent: bool,
    },
    #[error("its queue is full")]
    Overloaded,
    /// The backend forgot the session and did not process the request. The request may be sent again over the next
    /// link.
    #[error("it forgot the session")]
    SessionLost,
    #[error("{0}")]
    Protocol(String),
    /// The backend rejected the request, because it needs a login or another one.
    #[error("it needs a login")]
    LoginNeeded,
    /// The backend rejected the request, because the login lacks a permission that this request needs.
    #[error("the login lacks a permission")]
    ScopeMissing,
    /// The backend demands a pause before the next request.
    #[error("{reason}")]
    Busy { reason: String, retry_after: Duration },
    /// The backend answered a request for a notification stream with an error.
    #[error("{error}")]
    Rejected {
        code: Option<i64>,
        /// The JSON-RPC error object.
        error: String,
    },
}

/// The reason why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    Lost(String),
    /// The backend is reachable but has forgotten the session.
    Forgotten,
}

impl LinkEnd {
    pub(crate) fn reason(&self) -> String {
        match self {
            LinkEnd::Lost(reason) => reason.clone(),
            LinkEnd::Forgotten => LinkError::SessionLost.to_string(),
        }
    }
}

impl LinkError {
    pub(crate) fn too_large() -> LinkError {
        LinkError::Protocol("its answer is larger than maxMessageSize".to_owned())
    }
}

impl Link {
    pub fn new(wire: LinkTransport) -> Link {
        let level = watch::Sender::new(LinkLevel::Fixed);
        Link { wire, protocol: OnceLock::new(), next: Arc::new(AtomicU64::new(1)), level }
    }

    /// Waits until the backend knows that a client wants the messages of this level.
    pub(crate) async fn await_level(&self, wanted: Level) {
        // Cannot fail: `self` holds the sender.
        let _ = self.level.subscribe().wait_for(|level| level.includes(wanted)).await;
    }

    /// Returns the transport's name in the configuration.
    pub fn transport(&self) -> &'static str {
        match &self.wire {
            LinkTransport::Stdio(_) => "stdio",
            LinkTransport::Http(_) => "http",
            LinkTransport::Sse(_) => "sse",
            LinkTransport::Files(_) => "files",
        }
    }

    /// Returns the id of the backend's process, if the gateway started one.
    pub(crate) fn process_id(&self) -> Option<u32> {
        match &self.wire {
            LinkTransport::Stdio(link) => link.process_id(),
            LinkTransport::Http(_) | LinkTransport::Sse(_) | LinkTransport::Files(_) => None,
        }
    }

    pub fn wire(&self) -> &LinkTransport {
        &self.wire
    }

    /// Returns the protocol version. Before the handshake, returns the newest version with a handshake.
    pub fn dialect(&self) -> Dialect {
        self.protocol.get().map_or(Dialect::NEWEST_WITH_HANDSHAKE, |protocol| protocol.dialect)
    }

    /// Reports whether requests over this link repeat tool arguments in headers.
    pub(crate) fn repeats_arguments(&self) -> bool {
        matches!(self.wire, LinkTransport::Http(_)) && !self.dialect().has_handshake()
    }

    /// Returns a new id for an upstream request. A link never returns the same id twice.
    pub fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request with `id` and waits for its response. Dropping the future removes the
    /// request from the link's open requests.
    pub fn request(
        &self,
        id: u64,
        body: Bytes,
        header_source: HeaderSource<'_>,
        call: Option<&Arc<Call>>,
    ) -> impl Future<Output = Result<Response, LinkError>> {
        match &self.wire {
            LinkTransport::Stdio(link) => Either::Right(Either::Left(link.request(id, body, call))),
            LinkTransport::Http(link) => {
                let mut headers = self.headers(header_source);
                match call {
                    Some(call) => headers.extend(trace::headers(&call.request)),
                    None => headers.extend(link.via(header_source.method)),
                }
                Either::Left(link.request(id, body, headers, call))
            }
            LinkTransport::Sse(link) => Either::Right(Either::Right(Either::Left(link.request(id, body, call)))),
            LinkTransport::Files(link) => {
                let answered =
                    async move { link.request(body).await.map_err(|reason| LinkError::Protocol(reason.to_owned())) };
                Either::Right(Either::Right(Either::Right(answered)))
            }
        }
    }

    /// Returns the headers that repeat parts of a request. Versions with a handshake have none.
    fn headers(&self, header_source: HeaderSource<'_>) -> MirrorHeaders {
        match self.dialect().has_handshake() {
            true => MirrorHeaders::new(),
            false => mirrored::headers(header_source),
        }
    }

    /// Reports whether the gateway itself is the server.
    pub fn is_built_in(&self) -> bool {
        matches!(self.wire, LinkTransport::Files(_))
    }

    /// Sends a notification to the backend. Does nothing over HTTP in a version without a handshake: there the only
    /// notification is a cancellation, and dropping the request's connection cancels it.
    pub async fn notify(&self, body: Bytes) -> Result<(), LinkError> {
        match &self.wire {
            LinkTransport::Stdio(link) => link.notify(body).await,
            LinkTransport::Http(_) if !self.dialect().has_handshake() => Ok(()),
            LinkTransport::Http(link) => link.notify(body, MirrorHeaders::new()).await,
            LinkTransport::Sse(link) => link.notify(body).await,
            LinkTransport::Files(_) => Ok(()),
        }
    }

    /// Forwards a client's notification that the protocol does not define. Unlike [`Link::notify`], sends it over HTTP in
    /// every version.
    pub async fn forward_notification(&self, notification: &Notification) -> Result<(), LinkError> {
        let body = notification.raw.bytes().clone();
        match &self.wire {
            LinkTransport::Http(link) => {
                let headers = self.headers(HeaderSource { method: &notification.method, name: None, mirrors: None });
                link.notify(body, headers).await
            }
            _ => self.notify(body).await,
        }
    }

    /// Sends a request of the gateway itself and waits for the response.
    pub async fn query(&self, method: &Method, params: &str) -> Result<Response, LinkError> {
        match self.protocol.get().filter(|protocol| !protocol.dialect.has_handshake()) {
            Some(protocol) => {
                self.query_without_meta(method, &own_params(protocol.dialect, &protocol.declared, params)).await
            }
            None => self.query_without_meta(method, params).await,
        }
    }

    /// Sends a request without the `_meta` members that versions without a handshake require.
    async fn query_without_meta(&self, method: &Method, params: &str) -> Result<Response, LinkError> {
        let (id, name) = (self.next_id(), header_name(method, params));
        let header_source = HeaderSource { method, name: name.as_deref(), mirrors: None };
        self.request(id, goblin_wire::request(&Id::from(id), method, params), header_source, None).await
    }

    /// Opens a notification stream, on a link without a handshake. The link handles messages of the stream like any
    /// other unsolicited message. Returns an error if the backend does not acknowledge the stream within
    /// `LISTEN_TIMEOUT`.
    pub async fn listen(&self, filter: &ListenFilter) -> Result<ListenHandle, LinkError> {
        let params = format!(r#"{{"notifications":{}}}"#, filter.to_json());
        let Some(protocol) = self.protocol.get().filter(|protocol| !protocol.dialect.has_handshake()) else {
            return Err(LinkError::Protocol("this connection has no notification streams".to_owned()));
        };
        let declared =
            if filter.tasks.is_empty() { protocol.declared.clone() } else { declaring_tasks(&protocol.declared) };
        let (id, params) = (self.next_id(), own_params(protocol.dialect, &declared, &params));
        let body = goblin_wire::request(&Id::from(id), &Method::Listen, &params);
        let header_source = HeaderSource { method: &Method::Listen, name: None, mirrors: None };
        let listen = async {
            match &self.wire {
                LinkTransport::Stdio(link) => link.listen(id, body).await,
                LinkTransport::Http(link) => link.listen(id, body, self.headers(header_source)).await,
                LinkTransport::Sse(_) | LinkTransport::Files(_) => {
                    Err(LinkError::Protocol("this connection has no notification streams".to_owned()))
                }
            }
        };
        let timed_out = |_| LinkError::Protocol(format!("no acknowledgement within {}", duration(LISTEN_TIMEOUT)));
        tokio::time::timeout(LISTEN_TIMEOUT, listen).await.map_err(timed_out)?
    }

    /// Waits until the connection ends and returns the reason.
    pub async fn closed(&self) -> LinkEnd {
        match &self.wire {
            LinkTransport::Stdio(link) => link.closed().await,
            LinkTransport::Http(link) => link.closed().await,
            LinkTransport::Sse(link) => link.closed().await,
            // A directory never closes the connection. A removed root answers its calls with errors.
            LinkTransport::Files(_) => std::future::pending().await,
        }
    }

    /// Returns an explanation for a handshake that got no response within `timeout`.
    pub fn explain_timeout(&self, timeout: Duration) -> String {
        let problem = |kind| BackendProblem::Silent { timeout, kind }.to_string();
        match &self.wire {
            LinkTransport::Stdio(link) => match link.stray_line() {
                Some(line) => BackendProblem::StrayOutput { timeout, line: &line }.to_string(),
                None => problem(ConnectionKind::Pipe),
            },
            LinkTransport::Sse(link) if !link.has_endpoint() => BackendProblem::NoEndpoint { timeout }.to_string(),
            LinkTransport::Http(_) | LinkTransport::Sse(_) => problem(ConnectionKind::Url),
            LinkTransport::Files(_) => format!("no answer within {}", duration(timeout)),
        }
    }

    /// Closes the connection in the way its transport defines.
    pub async fn close(&self) {
        match &self.wire {
            LinkTransport::Stdio(link) => link.close().await,
            LinkTransport::Http(link) => link.close().await,
            LinkTransport::Sse(link) => link.close(),
            LinkTransport::Files(link) => link.close(),
        }
    }

    /// Performs the handshake and declares `capabilities`. An error is final for this link; a second attempt would fail
    /// the same way.
    pub async fn initialize(&self, capabilities: &str) -> Result<Hello, LinkError> {
        let params = format!(
            r#"{{"protocolVersion":"{}","capabilities":{capabilities},"clientInfo":{{"name":"goblin","version":"{}"}}}}"#,
            Dialect::NEWEST_WITH_HANDSHAKE,
            env!("CARGO_PKG_VERSION"),
        );
        if let LinkTransport::Sse(link) = &self.wire {
            link.open(Arc::clone(&self.next)).await?;
        }
        let answer = self.query_without_meta(&Method::Initialize, &params).await?;
        let hello = read_hello(&answer).map_err(LinkError::Protocol)?;
        self.set_dialect(hello.dialect, String::new());
        self.notify(goblin_wire::notification(&Method::Initialized, None)).await?;
        if let LinkTransport::Http(link) = &self.wire {
            link.open_get_stream().await;
        }
        Ok(hello)
    }

    /// Sends `server/discover` in the newest version without a handshake. Returns the response unread;
    /// [`era::interpret`](super::era::interpret) interprets it.
    pub async fn discover(&self, capabilities: &str) -> Result<Response, LinkError> {
        let dialect = Dialect::NEWEST;
        let (id, method) = (self.next_id(), Method::Discover);
        let body = goblin_wire::request(&Id::from(id), &method, &own_params(dialect, capabilities, "{}"));
        let header_source = HeaderSource { method: &method, name: None, mirrors: None };
        match &self.wire {
            LinkTransport::Http(link) => {
                let mut headers = mirrored::headers(header_source);
                headers.extend(link.via(&method));
                link.request(id, body, headers, None).await
            }
            _ => self.request(id, body, header_source, None).await,
        }
    }

    /// Fixes the protocol version. `declared` holds the capabilities for the gateway's own requests, in versions that
    /// declare them per request.
    pub fn set_dialect(&self, dialect: Dialect, declared: String) {
        self.protocol.get_or_init(|| LinkProtocol { dialect, declared });
        if let LinkTransport::Http(link) = &self.wire {
            link.set_dialect(dialect);
        }
    }
}

/// Returns the tool, prompt or URI that a request of the gateway names.
fn header_name(method: &Method, params: &str) -> Option<String> {
    let key = match method {
        Method::ResourcesRead => "uri",
        Method::ToolsCall | Method::PromptsGet => "name",
        _ => return None,
    };
    let at = json::member(params, json::whole(params), key)?;
    json::string(params, at).map(Into::into)
}

/// Returns the capabilities to declare on a shared link: those that the gateway can relay, even if some clients lack
/// them. Roots are declared only if the configuration lists any.
pub(crate) fn shared_capabilities(config: &Server) -> String {
    let parts = [
        (config.declare.sampling, r#""sampling":{"context":{},"tools":{}}"#),
        (config.declare.elicitation, r#""elicitation":{"form":{},"url":{}}"#),
        (!config.roots.is_empty(), r#""roots":{}"#),
    ];
    let parts: Vec<_> = parts.iter().filter(|(is_declared, _)| *is_declared).map(|(_, part)| *part).collect();
    format!("{{{}}}", parts.join(","))
}

/// Reads the response to `initialize`.
fn read_hello(answer: &Response) -> Result<Hello, String> {
    let text = answer.raw.as_str();
    let result = match answer.outcome {
        Outcome::Result(span) => span,
        Outcome::Error(span) => return Err(BackendProblem::HandshakeRejected(span.get(text)).to_string()),
    };
    let string = |of, key| json::member(text, of, key).and_then(|span| json::string(text, span));
    let version = string(result, "protocolVersion").ok_or("its handshake names no protocolVersion")?;
    let dialect = Dialect::parse(&version).filter(|dialect| dialect.has_handshake());
    let dialect = dialect
        .ok_or_else(|| format!("it speaks protocol version {}, which this gateway does not know", quote(&version)))?;
    Ok(Hello::read(text, result, dialect))
}
