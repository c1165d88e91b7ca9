//! One connection to a backend, whatever it runs over.
//!
//! A link is used directly by the calls that go over it; the backend's actor owns its life. It mints the ids of what goes
//! upstream: two clients may use the same ids and progress tokens, so neither ever travels further than here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::backend::files::FilesLink;
use crate::backend::http::HttpLink;
use crate::backend::listen::{Filter, Listen};
use crate::backend::sse::SseLink;
use crate::backend::stdio::StdioLink;
use crate::backend::trouble::{Place, Trouble};
use crate::config::Server;
use crate::lane::Call;
use crate::protocol::dialect::Dialect;
use crate::protocol::json::{self, quote};
use crate::protocol::method::Method;
use crate::protocol::{Id, Outcome, Response};

pub enum Link {
    Stdio(StdioLink),
    Http(HttpLink),
    Sse(SseLink),
    /// Served by ourselves.
    Files(FilesLink),
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
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Lost(String),
    /// The backend is there, but does not know our session any more.
    Forgotten,
}

/// What the backend said of itself in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub dialect: Dialect,
    pub capabilities: Capabilities,
    pub instructions: Option<String>,
    /// `name` and `version` of `serverInfo`, for people.
    pub software: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    pub subscribe: bool,
    /// Whose changes it tells of.
    pub tools_change: bool,
    pub prompts_change: bool,
    pub resources_change: bool,
    pub completions: bool,
    pub logging: bool,
}

impl Link {
    /// The type of server it was made for, as configurations call it.
    pub fn transport(&self) -> &'static str {
        match self {
            Link::Stdio(_) => "stdio",
            Link::Http(_) => "http",
            Link::Sse(_) => "sse",
            Link::Files(_) => "files",
        }
    }

    /// Whether it refused the handshake as a server of HTTP+SSE refuses that of Streamable HTTP.
    pub fn may_be_sse(&self) -> bool {
        matches!(self, Link::Http(link) if link.may_be_sse())
    }

    /// The next id for a request upstream; never used twice on one link.
    pub fn next_id(&self) -> u64 {
        match self {
            Link::Stdio(link) => link.next_id(),
            Link::Http(link) => link.next_id(),
            Link::Sse(link) => link.next_id(),
            Link::Files(link) => link.next_id(),
        }
    }

    /// Sends a request that carries `id` and waits for its answer. Dropping the future frees the slot.
    pub async fn request(&self, id: u64, body: Bytes, call: Option<&Arc<Call>>) -> Result<Response, LinkError> {
        match self {
            Link::Stdio(link) => link.request(id, body, call).await,
            Link::Http(link) => link.request(id, body, call).await,
            Link::Sse(link) => link.request(id, body, call).await,
            Link::Files(link) => link.request(id, body, call).await,
        }
    }

    pub async fn notify(&self, body: Bytes) -> Result<(), LinkError> {
        match self {
            Link::Stdio(link) => link.notify(body).await,
            Link::Http(link) => link.notify(body).await,
            Link::Sse(link) => link.notify(body).await,
            Link::Files(link) => link.notify(body).await,
        }
    }

    /// A request of the gateway itself.
    pub async fn ask(&self, method: &Method, params: &str) -> Result<Response, LinkError> {
        let id = self.next_id();
        self.request(id, crate::protocol::request(&Id::from(id), method, params), None).await
    }

    pub async fn listen(&self, _filter: &Filter) -> Result<Listen, LinkError> {
        Err(LinkError::Overloaded)
    }

    /// Waits until the connection is gone; tells why.
    pub async fn closed(&self) -> End {
        match self {
            Link::Stdio(link) => End::Lost(link.closed().await),
            Link::Http(link) => link.closed().await,
            Link::Sse(link) => link.closed().await,
            Link::Files(link) => End::Lost(link.closed().await),
        }
    }

    /// Why there may have been no answer to the handshake.
    pub fn silence(&self, patience: Duration) -> String {
        let trouble = |place| Trouble::Silent { patience, place }.to_string();
        match self {
            Link::Stdio(link) => match link.babble() {
                Some(line) => Trouble::Babbles { patience, line: &line }.to_string(),
                None => trouble(Place::Pipe),
            },
            Link::Sse(link) if !link.has_endpoint() => Trouble::NoEndpoint { patience }.to_string(),
            Link::Http(_) | Link::Sse(_) => trouble(Place::Url),
            Link::Files(_) => format!("no answer within {patience:?}"),
        }
    }

    /// Ends the connection in the orderly way of its transport.
    pub async fn close(&self) {
        match self {
            Link::Stdio(link) => link.close().await,
            Link::Http(link) => link.close().await,
            Link::Sse(link) => link.close(),
            Link::Files(link) => link.close(),
        }
    }

    /// The handshake, declaring `capabilities`. What is refused here would be refused again: the reason is for people.
    pub async fn initialize(&self, capabilities: &str) -> Result<Hello, LinkError> {
        let params = format!(
            r#"{{"protocolVersion":"{}","capabilities":{capabilities},"clientInfo":{{"name":"goblin","version":"{}"}}}}"#,
            Dialect::NEWEST_WITH_HANDSHAKE,
            env!("CARGO_PKG_VERSION"),
        );
        if let Link::Sse(link) = self {
            link.open().await?;
        }
        let answer = self.ask(&Method::Initialize, &params).await?;
        let hello = Hello::read(&answer).map_err(LinkError::Protocol)?;
        if let Link::Http(link) = self {
            link.speak(hello.dialect);
        }
        self.notify(crate::protocol::notification(&Method::Initialized, None)).await?;
        if let Link::Http(link) = self {
            link.listen();
        }
        Ok(hello)
    }
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

impl Hello {
    /// The lists whose changes it tells of.
    pub fn told_lists(&self) -> Filter {
        let Capabilities { tools_change, prompts_change, resources_change, .. } = self.capabilities;
        Filter { tools: tools_change, prompts: prompts_change, resources: resources_change, ..Filter::default() }
    }

    fn read(answer: &Response) -> Result<Hello, String> {
        let text = answer.raw.as_str();
        let result = match answer.outcome {
            Outcome::Result(span) => span,
            Outcome::Error(span) => return Err(format!("it refused the handshake: {}", span.get(text))),
        };
        let word = |of, key| json::member(text, of, key).and_then(|span| json::string(text, span));
        let version = word(result, "protocolVersion").ok_or("its handshake names no protocolVersion")?;
        let dialect = Dialect::parse(&version).ok_or_else(|| {
            format!("it speaks protocol version {}, which this gateway does not know", quote(&version))
        })?;
        let software = json::member(text, result, "serverInfo").map_or_else(String::new, |info| {
            let part = |key| word(info, key).unwrap_or_default();
            format!("{} {}", part("name"), part("version")).trim().to_owned()
        });
        Ok(Hello {
            dialect,
            capabilities: Capabilities::read(text, json::member(text, result, "capabilities")),
            instructions: word(result, "instructions").filter(|words| !words.trim().is_empty()).map(Into::into),
            software,
        })
    }
}

impl Capabilities {
    fn read(text: &str, span: Option<json::Span>) -> Capabilities {
        let Some(span) = span else { return Capabilities::default() };
        let object = |of, key| json::member(text, of, key).filter(|value| value.get(text).starts_with('{'));
        let resources = object(span, "resources");
        let truth = |of, key| json::member(text, of, key).is_some_and(|value| value.get(text) == "true");
        let changes = |key| object(span, key).is_some_and(|part| truth(part, "listChanged"));
        Capabilities {
            tools: object(span, "tools").is_some(),
            prompts: object(span, "prompts").is_some(),
            resources: resources.is_some(),
            subscribe: resources.is_some_and(|resources| truth(resources, "subscribe")),
            tools_change: changes("tools"),
            prompts_change: changes("prompts"),
            resources_change: changes("resources"),
            completions: object(span, "completions").is_some(),
            logging: object(span, "logging").is_some(),
        }
    }
}
