//! One connection to a backend, whatever it runs over.
//!
//! A link is used directly by the calls that go over it; the backend's actor owns its life. It mints the ids of what goes
//! upstream: two clients may use the same ids and progress tokens, so neither ever travels further than here.
//!
//! It knows in which version it speaks, since its handshake or since it was found to do without one.

use goblin_wire::mirrored::About;
use goblin_wire::hello::Hello;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::Either;

use goblin_files::FilesServer;
use crate::upstream::http::HttpLink;
use goblin_wire::mirrored::{self, Repeated};
use crate::upstream::listen::Listen;
use goblin_wire::listen::Filter;
use crate::upstream::sse::SseLink;
use crate::upstream::stamp::{declaring_tasks, own_params};
use crate::upstream::stdio::StdioLink;
use crate::upstream::trouble::{Place, Trouble};
use goblin_config::Server;
use crate::client::lane::Call;
use goblin_wire::dialect::Dialect;
use goblin_wire::json::{self, quote};
use goblin_wire::method::Method;
use goblin_wire::{Id, Outcome, Response, trace};

/// How long the acknowledgement of a stream of news is waited for.
const LISTEN_PATIENCE: Duration = Duration::from_secs(10);

pub struct Link {
    wire: Wire,
    voice: OnceLock<Voice>,
}

/// What it runs over.
pub enum Wire {
    Stdio(StdioLink),
    Http(HttpLink),
    Sse(SseLink),
    /// Served by ourselves.
    Files(FilesServer),
}

/// How the gateway speaks on a link.
struct Voice {
    dialect: Dialect,
    /// What its own requests declare, where every request does.
    declared: String,
}

/// Why a link gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LinkError {
    #[error("{reason}")]
    Closed {
        reason: String,
        /// Whether the backend may have got the request.
        sent: bool,
    },
    #[error("its queue is full")]
    Overloaded,
    /// The backend does not know our session any more, so it did nothing. The same request may go over the next link.
    #[error("it forgot the session")]
    SessionLost,
    #[error("{0}")]
    Protocol(String),
    /// It answered a request for a stream of news with an error.
    #[error("{error}")]
    Refused {
        code: Option<i64>,
        /// The JSON-RPC error object.
        error: String,
    },
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Lost(String),
    /// The backend is there, but does not know our session any more.
    Forgotten,
}

impl Link {
    pub fn new(wire: Wire) -> Link {
        Link { wire, voice: OnceLock::new() }
    }

    /// The type of server it was made for, as configurations call it.
    pub fn transport(&self) -> &'static str {
        match &self.wire {
            Wire::Stdio(_) => "stdio",
            Wire::Http(_) => "http",
            Wire::Sse(_) => "sse",
            Wire::Files(_) => "files",
        }
    }

    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// The version it speaks.
    pub fn dialect(&self) -> Dialect {
        self.voice.get().map_or(Dialect::NEWEST_WITH_HANDSHAKE, |voice| voice.dialect)
    }

    /// Whether arguments may be repeated in headers here.
    pub fn repeats_arguments(&self) -> bool {
        matches!(self.wire, Wire::Http(_)) && !self.dialect().has_handshake()
    }

    /// The next id for a request upstream; never used twice on one link.
    pub fn next_id(&self) -> u64 {
        match &self.wire {
            Wire::Stdio(link) => link.next_id(),
            Wire::Http(link) => link.next_id(),
            Wire::Sse(link) => link.next_id(),
            Wire::Files(link) => link.next_id(),
        }
    }

    /// Sends a request that carries `id` and waits for its answer. Dropping the future frees the slot.
    pub fn request(
        &self,
        id: u64,
        body: Bytes,
        about: About<'_>,
        call: Option<&Arc<Call>>,
    ) -> impl Future<Output = Result<Response, LinkError>> {
        match &self.wire {
            Wire::Stdio(link) => Either::Right(Either::Left(link.request(id, body, call))),
            Wire::Http(link) => {
                let mut headers = self.headers(about);
                if let Some(call) = call {
                    headers.extend(trace::headers(&call.request));
                }
                Either::Left(link.request(id, body, headers, call))
            }
            Wire::Sse(link) => Either::Right(Either::Right(Either::Left(link.request(id, body, call)))),
            Wire::Files(link) => {
                let answered = async move { link.request(body).await.map_err(|reason| LinkError::Protocol(reason.to_owned())) };
                Either::Right(Either::Right(Either::Right(answered)))
            },
        }
    }

    /// What is repeated of a request in headers.
    fn headers(&self, about: About<'_>) -> Repeated {
        match self.dialect().has_handshake() {
            true => Repeated::new(),
            false => mirrored::headers(about),
        }
    }

    /// Tells the backend something. Where requests say all there is, there is nothing to tell but the end of one, and over
    /// HTTP that is told by hanging up.
    pub async fn notify(&self, body: Bytes) -> Result<(), LinkError> {
        match &self.wire {
            Wire::Stdio(link) => link.notify(body).await,
            Wire::Http(_) if !self.dialect().has_handshake() => Ok(()),
            Wire::Http(link) => link.notify(body).await,
            Wire::Sse(link) => link.notify(body).await,
            Wire::Files(_) => Ok(()),
        }
    }

    /// A request of the gateway itself.
    pub async fn ask(&self, method: &Method, params: &str) -> Result<Response, LinkError> {
        match self.voice.get().filter(|voice| !voice.dialect.has_handshake()) {
            Some(voice) => self.ask_plainly(method, &own_params(voice.dialect, &voice.declared, params)).await,
            None => self.ask_plainly(method, params).await,
        }
    }

    async fn ask_plainly(&self, method: &Method, params: &str) -> Result<Response, LinkError> {
        let (id, name) = (self.next_id(), named(method, params));
        let about = About { method, name: name.as_deref(), mirrors: None };
        self.request(id, goblin_wire::request(&Id::from(id), method, params), about, None).await
    }

    /// Opens a stream of news, on a link without a handshake. What comes on it is heard as if nobody had asked.
    pub async fn listen(&self, filter: &Filter) -> Result<Listen, LinkError> {
        let params = format!(r#"{{"notifications":{}}}"#, filter.to_json());
        let Some(voice) = self.voice.get().filter(|voice| !voice.dialect.has_handshake()) else {
            return Err(LinkError::Protocol("this connection has no streams of news".to_owned()));
        };
        let declared = if filter.tasks.is_empty() { voice.declared.clone() } else { declaring_tasks(&voice.declared) };
        let (id, params) = (self.next_id(), own_params(voice.dialect, &declared, &params));
        let body = goblin_wire::request(&Id::from(id), &Method::Listen, &params);
        let about = About { method: &Method::Listen, name: None, mirrors: None };
        let listen = async {
            match &self.wire {
                Wire::Stdio(link) => link.listen(id, body).await,
                Wire::Http(link) => link.listen(id, body, self.headers(about)).await,
                Wire::Sse(_) | Wire::Files(_) => {
                    Err(LinkError::Protocol("this connection has no streams of news".to_owned()))
                }
            }
        };
        let late = |_| LinkError::Protocol(format!("no acknowledgement within {LISTEN_PATIENCE:?}"));
        tokio::time::timeout(LISTEN_PATIENCE, listen).await.map_err(late)?
    }

    /// Waits until the connection is gone; tells why.
    pub async fn closed(&self) -> End {
        match &self.wire {
            Wire::Stdio(link) => End::Lost(link.closed().await),
            Wire::Http(link) => link.closed().await,
            Wire::Sse(link) => link.closed().await,
            // A directory does not hang up. A root that vanished answers its calls with errors.
            Wire::Files(_) => std::future::pending().await,
        }
    }

    /// Why there may have been no answer to the handshake.
    pub fn silence(&self, patience: Duration) -> String {
        let trouble = |place| Trouble::Silent { patience, place }.to_string();
        match &self.wire {
            Wire::Stdio(link) => match link.babble() {
                Some(line) => Trouble::Babbles { patience, line: &line }.to_string(),
                None => trouble(Place::Pipe),
            },
            Wire::Sse(link) if !link.has_endpoint() => Trouble::NoEndpoint { patience }.to_string(),
            Wire::Http(_) | Wire::Sse(_) => trouble(Place::Url),
            Wire::Files(_) => format!("no answer within {patience:?}"),
        }
    }

    /// Ends the connection in the orderly way of its transport.
    pub async fn close(&self) {
        match &self.wire {
            Wire::Stdio(link) => link.close().await,
            Wire::Http(link) => link.close().await,
            Wire::Sse(link) => link.close(),
            Wire::Files(link) => link.close(),
        }
    }

    /// The handshake, declaring `capabilities`. What is refused here would be refused again: the reason is for people.
    pub async fn initialize(&self, capabilities: &str) -> Result<Hello, LinkError> {
        let params = format!(
            r#"{{"protocolVersion":"{}","capabilities":{capabilities},"clientInfo":{{"name":"goblin","version":"{}"}}}}"#,
            Dialect::NEWEST_WITH_HANDSHAKE,
            env!("CARGO_PKG_VERSION"),
        );
        if let Wire::Sse(link) = &self.wire {
            link.open().await?;
        }
        let answer = self.ask_plainly(&Method::Initialize, &params).await?;
        let hello = read_hello(&answer).map_err(LinkError::Protocol)?;
        self.speak(hello.dialect, String::new());
        self.notify(goblin_wire::notification(&Method::Initialized, None)).await?;
        if let Wire::Http(link) = &self.wire {
            link.listen_to_get().await;
        }
        Ok(hello)
    }

    /// Asks what the backend is, in the words of a version without a handshake; whatever it answers.
    pub async fn discover(&self, capabilities: &str) -> Result<Response, LinkError> {
        let dialect = Dialect::NEWEST_WITHOUT_HANDSHAKE;
        let (id, method) = (self.next_id(), Method::Discover);
        let body = goblin_wire::request(&Id::from(id), &method, &own_params(dialect, capabilities, "{}"));
        let about = About { method: &method, name: None, mirrors: None };
        match &self.wire {
            Wire::Http(link) => link.request(id, body, mirrored::headers(about), None).await,
            _ => self.request(id, body, about, None).await,
        }
    }

    /// What it speaks is settled; its own requests declare `capabilities` where every request does.
    pub fn speak(&self, dialect: Dialect, declared: String) {
        self.voice.get_or_init(|| Voice { dialect, declared });
        if let Wire::Http(link) = &self.wire {
            link.speak(dialect);
        }
    }
}

/// What a request of our own names.
fn named(method: &Method, params: &str) -> Option<String> {
    let key = match method {
        Method::ResourcesRead => "uri",
        Method::ToolsCall | Method::PromptsGet => "name",
        _ => return None,
    };
    let at = json::member(params, json::whole(params), key)?;
    json::string(params, at).map(Into::into)
}

/// What is declared on a link that clients share: what the gateway can relay, whether or not this client or that can do it,
/// and roots where the configuration has them.
pub fn shared_capabilities(config: &Server) -> String {
    let parts = [
        (config.declare.sampling, r#""sampling":{"context":{},"tools":{}}"#),
        (config.declare.elicitation, r#""elicitation":{"form":{},"url":{}}"#),
        (!config.roots.is_empty(), r#""roots":{}"#),
    ];
    let parts: Vec<_> = parts.iter().filter(|(is_declared, _)| *is_declared).map(|(_, part)| *part).collect();
    format!("{{{}}}", parts.join(","))
}

/// From the answer to `initialize`.
fn read_hello(answer: &Response) -> Result<Hello, String> {
    let text = answer.raw.as_str();
    let result = match answer.outcome {
        Outcome::Result(span) => span,
        Outcome::Error(span) => return Err(Trouble::RefusedHandshake(span.get(text)).to_string()),
    };
    let word = |of, key| json::member(text, of, key).and_then(|span| json::string(text, span));
    let version = word(result, "protocolVersion").ok_or("its handshake names no protocolVersion")?;
    let dialect = Dialect::parse(&version).filter(|dialect| dialect.has_handshake());
    let dialect = dialect.ok_or_else(|| {
        format!("it speaks protocol version {}, which this gateway does not know", quote(&version))
    })?;
    Ok(Hello::read(text, result, dialect))
}
