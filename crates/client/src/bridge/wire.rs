//! The HTTP side of a bridge: bodies out, messages in.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method as Verb, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Full};

use crate::connect::{HttpClient, ProxyEnvironment, Received, RequestError};
use crate::address;
use crate::bridge::LARGEST_MESSAGE;
use crate::runtime::Record;
use goblin_config::mask;
use goblin_config::secret::Secret;
use goblin_wire::dialect::Dialect;
use goblin_wire::error::Error;
use goblin_wire::framing::{Event, Events, Frame};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON_OR_STREAM: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

pub type Response = http::Response<Received>;

/// Where the gateway is. One that was found by its record is trusted for as long as the record says that it lives: whoever
/// listens on its port afterwards may be anybody, and gets neither the token nor a word of the client.
pub struct Wire {
    target: ArcSwap<Target>,
    /// Finds the gateway that took the place of one that ended; none where the URL was given.
    successor: Option<Box<dyn Fn() -> Option<Target> + Send + Sync>>,
}

pub struct Target {
    client: HttpClient,
    uri: Uri,
    /// As it may be shown.
    url: String,
    authorization: Option<HeaderValue>,
    record: Option<Record>,
}

impl Target {
    pub fn new(url: &str, token: Option<&Secret>, proxies: &ProxyEnvironment) -> anyhow::Result<Target> {
        let (client, uri) = address::client(url, proxies)?;
        let authorization = match token {
            Some(token) => {
                let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
                let mut value = value.map_err(|_| anyhow::anyhow!("the token holds characters that no header can"))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Target { client, uri, url: mask::url(url), authorization, record: None })
    }

    /// Makes a target for a URL of the gateway that wrote this record.
    pub fn of_record(
        url: &str,
        record: Record,
        token: Option<&Secret>,
        proxies: &ProxyEnvironment,
    ) -> anyhow::Result<Target> {
        let target = Target::new(url, token, proxies)?;
        Ok(Target { record: Some(record), ..target })
    }

    fn request(&self, verb: Verb, body: Bytes, session: &HeaderMap) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = verb;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = session.clone();
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, authorization.clone());
        }
        request
    }

    fn lives(&self) -> bool {
        self.record.as_ref().is_none_or(Record::lives)
    }
}

impl Wire {
    pub fn to(target: Target) -> Wire {
        Wire { target: ArcSwap::from_pointee(target), successor: None }
    }

    /// To a gateway that may be followed by another.
    pub fn to_successors(target: Target, successor: impl Fn() -> Option<Target> + Send + Sync + 'static) -> Wire {
        Wire { target: ArcSwap::from_pointee(target), successor: Some(Box::new(successor)) }
    }

    pub fn url(&self) -> String {
        self.target.load().url.clone()
    }

    /// The gateway to speak to now.
    fn current(&self) -> Result<Arc<Target>, RequestError> {
        let target = self.target.load_full();
        if target.lives() {
            return Ok(target);
        }
        match self.successor.as_ref().and_then(|successor| successor()) {
            Some(successor) => {
                self.target.store(Arc::new(successor));
                Ok(self.target.load_full())
            }
            None => {
                let (origin, cause) = (Arc::from(target.url.as_str()), "it is not running any more".to_owned());
                Err(RequestError::NotSent { origin, cause })
            }
        }
    }

    pub async fn post(&self, body: Bytes, session: &HeaderMap) -> Result<Response, RequestError> {
        let target = self.current()?;
        let mut request = target.request(Verb::POST, body, session);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(ACCEPT, JSON_OR_STREAM);
        target.client.request(request).await
    }

    /// Whether there may be an answer from where messages go to.
    pub fn lives(&self) -> bool {
        self.target.load().lives()
    }

    /// Opens a stream: the one that the event of this id was on, or the one of what is said unasked.
    pub async fn get(&self, session: &HeaderMap, after: Option<&HeaderValue>) -> Result<Response, RequestError> {
        let target = self.current()?;
        let mut request = target.request(Verb::GET, Bytes::new(), session);
        request.headers_mut().insert(ACCEPT, STREAM);
        request.headers_mut().extend(after.map(|id| (LAST_EVENT_ID, id.clone())));
        target.client.request(request).await
    }

    /// What is at the URL, for a gateway that is asked how it is.
    pub async fn fetch(&self) -> Result<Response, RequestError> {
        let target = self.current()?;
        let mut request = target.request(Verb::GET, Bytes::new(), &HeaderMap::new());
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        target.client.request(request).await
    }

    pub async fn delete(&self, session: &HeaderMap) -> Result<Response, RequestError> {
        let target = self.current()?;
        target.client.request(target.request(Verb::DELETE, Bytes::new(), session)).await
    }

    /// The session that an answer to `initialize` opened.
    pub fn session_of(response: &Response) -> Option<HeaderValue> {
        response.headers().get(SESSION_ID).cloned()
    }

    /// What every later message carries.
    pub fn session_headers(session: Option<HeaderValue>, version: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.extend(session.map(|session| (SESSION_ID, session)));
        let dialect = version.and_then(Dialect::parse).filter(|dialect| dialect.has_version_header());
        headers.extend(dialect.map(|dialect| (PROTOCOL_VERSION, HeaderValue::from_static(dialect.as_str()))));
        headers
    }

    /// What an answer that is no success means; `said` is what it says about that itself.
    pub fn refused(&self, status: StatusCode, said: Option<&str>) -> Error {
        let cure = match (status, said) {
            (StatusCode::UNAUTHORIZED, _) => "give its token by --token-file FILE or the variable GOBLIN_TOKEN",
            (StatusCode::FORBIDDEN, _) => "its gateway.allowedHosts must name the host of this URL",
            (_, Some(said)) => said,
            (_, None) => "is there an MCP endpoint at this URL?",
        };
        let (server, reason) = (self.url(), format!("it answered HTTP {status}; {cure}"));
        match status {
            // It speaks the protocol, and does not do so with us.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Error::BackendUnavailable { server, reason, sent: false }
            }
            _ if said.is_some() => Error::BackendUnavailable { server, reason, sent: false },
            _ => Error::BackendProtocol { server, reason },
        }
    }
}

/// Why nothing more comes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    #[error("the connection was lost before it answered")]
    Lost,
    /// A stream goes on behind it.
    #[error("its answer is larger than {LARGEST_MESSAGE} bytes")]
    TooLarge,
}

/// The messages of one answer, one by one.
pub struct Answers {
    body: Received,
    events: Option<Events>,
}

impl Answers {
    pub fn new(response: Response) -> Answers {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_stream = kind.get(..17).is_some_and(|start| start.eq_ignore_ascii_case("text/event-stream"));
        Answers { events: is_stream.then(|| Events::new(LARGEST_MESSAGE)), body: response.into_body() }
    }

    pub fn is_stream(&self) -> bool {
        self.events.is_some()
    }

    /// The next event; nothing at the end. An answer that is no stream is one event without an id.
    pub async fn next(&mut self) -> Result<Option<Event>, Broken> {
        let Some(events) = &mut self.events else { return self.whole().await };
        loop {
            match events.take() {
                Some(Frame::Whole(event)) => return Ok(Some(event)),
                Some(Frame::TooLong { .. }) => return Err(Broken::TooLarge),
                None => match next_data(&mut self.body).await? {
                    Some(data) => events.feed(&data),
                    None => return Ok(None),
                },
            }
        }
    }

    /// The next message, wherever it is in the stream.
    pub async fn next_message(&mut self) -> Result<Option<Bytes>, Broken> {
        loop {
            match self.next().await? {
                Some(event) if event.data.is_empty() => {}
                event => return Ok(event.map(|event| event.data)),
            }
        }
    }

    async fn whole(&mut self) -> Result<Option<Event>, Broken> {
        let mut whole = BytesMut::new();
        while let Some(data) = next_data(&mut self.body).await? {
            if whole.len() + data.len() > LARGEST_MESSAGE {
                return Err(Broken::TooLarge);
            }
            whole.extend_from_slice(&data);
        }
        let is_message = !whole.iter().all(u8::is_ascii_whitespace);
        Ok(is_message.then(|| Event { data: whole.freeze(), ..Event::default() }))
    }
}

async fn next_data(body: &mut Received) -> Result<Option<Bytes>, Broken> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|_| Broken::Lost)?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}
