//! The HTTP side of a bridge: sends message bodies and reads messages from the responses.
//!
//! Invariant: the token and the client's messages go only to the gateway that the user meant (see [`GatewayConnection`]).

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use goblin_config::mask;
use goblin_config::secret::Secret;
use goblin_wire::framing::{Frame, SseEvent};
use goblin_wire::headers::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID, VIA};
use goblin_wire::via::{self, GatewayId};
use goblin_wire::{Dialect, Error};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method as Verb, Request, StatusCode, Uri};
use http_body_util::Full;

use crate::address;
use crate::authorization::{Authorization, AuthorizedClient};
use crate::bridge::MAX_MESSAGE;
use crate::connect::{ProxyEnvironment, RequestError, ResponseBody, WholeBodyError};
use crate::events::{EventStream, is_event_stream};
use crate::runtime::GatewayRecord;

const JSON_OR_STREAM: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
pub(crate) const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

pub type GatewayResponse = http::Response<ResponseBody>;

/// The connection to the gateway. A gateway that was found by its record is trusted while the record's lock is held.
/// After that, another program may listen on its port; it gets neither the token nor a message of the client.
pub struct GatewayConnection {
    target: ArcSwap<GatewayTarget>,
    /// Finds the gateway that replaced one that ended. `None` if the user gave the URL.
    successor: Option<Box<dyn Fn() -> Option<GatewayTarget> + Send + Sync>>,
    /// Names the gateways that started this process. `None` if there are none.
    via: Option<HeaderValue>,
}

pub(crate) struct GatewayTarget {
    client: AuthorizedClient,
    uri: Uri,
    /// The URL without secrets, for messages.
    url: String,
    authorization: Option<HeaderValue>,
    record: Option<GatewayRecord>,
}

impl GatewayTarget {
    /// Makes a target for a URL, which belongs to the gateway that wrote `record` if there is one.
    pub(crate) fn new(
        url: &str,
        token: Option<&Secret>,
        record: Option<GatewayRecord>,
    ) -> anyhow::Result<GatewayTarget> {
        let (client, uri) = address::client(url, &ProxyEnvironment::from_process())?;
        let authorization = match token {
            Some(token) => {
                let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
                let mut value = value
                    .map_err(|_| anyhow::anyhow!("the token contains characters that are not allowed in a header"))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(GatewayTarget {
            client: AuthorizedClient::new(client, None),
            uri,
            url: mask::url(url),
            authorization,
            record,
        })
    }

    /// Adds the token of a login to each request, instead of a fixed one.
    pub(crate) fn with_login(self, login: Arc<dyn Authorization>) -> GatewayTarget {
        let client = AuthorizedClient::new(self.client.plain().clone(), Some(login));
        GatewayTarget { client, authorization: None, ..self }
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

    fn is_alive(&self) -> bool {
        self.record.as_ref().is_none_or(GatewayRecord::is_alive)
    }
}

impl GatewayConnection {
    pub(crate) fn to(target: GatewayTarget) -> GatewayConnection {
        GatewayConnection { target: ArcSwap::from_pointee(target), successor: None, via: None }
    }

    /// Creates a connection that switches to the successor once the gateway has ended.
    pub(crate) fn to_successors(
        target: GatewayTarget,
        successor: impl Fn() -> Option<GatewayTarget> + Send + Sync + 'static,
    ) -> GatewayConnection {
        GatewayConnection { successor: Some(Box::new(successor)), ..GatewayConnection::to(target) }
    }

    /// Names these gateways in every message, so that one of them recognises a connection to itself.
    pub fn naming(self, gateways: &[GatewayId]) -> GatewayConnection {
        let via = HeaderValue::try_from(via::header_value(gateways)).ok();
        GatewayConnection { via: via.filter(|value| !value.is_empty()), ..self }
    }

    pub fn url(&self) -> String {
        self.target.load().url.clone()
    }

    /// Returns the gateway to send to. Switches to the successor if the current gateway has ended.
    fn current(&self) -> Result<Arc<GatewayTarget>, RequestError> {
        let target = self.target.load_full();
        if target.is_alive() {
            return Ok(target);
        }
        match self.successor.as_ref().and_then(|successor| successor()) {
            Some(successor) => {
                self.target.store(Arc::new(successor));
                Ok(self.target.load_full())
            }
            None => {
                let (origin, cause) = (Arc::from(target.url.as_str()), "the gateway is no longer running".to_owned());
                Err(RequestError::NotSent { origin, cause })
            }
        }
    }

    pub async fn post(&self, body: Bytes, session: &HeaderMap) -> Result<GatewayResponse, RequestError> {
        let target = self.current()?;
        let build = || {
            let mut request = target.request(Verb::POST, body.clone(), session);
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            request.headers_mut().insert(ACCEPT, JSON_OR_STREAM);
            request.headers_mut().extend(self.via.clone().map(|via| (VIA, via)));
            request
        };
        target.client.send(build).await
    }

    /// Reports whether the current gateway still runs. A gateway at a given URL always counts as running.
    pub fn is_alive(&self) -> bool {
        self.target.load().is_alive()
    }

    /// Opens a stream: the one with the event `after`, or the notification stream if `after` is `None`.
    pub async fn get(&self, session: &HeaderMap, after: Option<&HeaderValue>) -> Result<GatewayResponse, RequestError> {
        let target = self.current()?;
        let build = || {
            let mut request = target.request(Verb::GET, Bytes::new(), session);
            request.headers_mut().insert(ACCEPT, STREAM);
            request.headers_mut().extend(after.map(|id| (LAST_EVENT_ID, id.clone())));
            request
        };
        target.client.send(build).await
    }

    /// Sends a request to another route of the gateway, outside of any session.
    pub(crate) async fn send_to(
        &self,
        verb: Verb,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<GatewayResponse, RequestError> {
        let target = self.current()?;
        let mut request = target.request(verb, body, headers);
        let route = address::route(&target.uri.to_string(), path).parse();
        *request.uri_mut() = route.map_err(|error: http::uri::InvalidUri| {
            let (origin, cause) = (Arc::from(target.url.as_str()), format!("{path} is not a path: {error}"));
            RequestError::NotSent { origin, cause }
        })?;
        target.client.plain().request(request).await
    }

    pub async fn delete(&self, session: &HeaderMap) -> Result<GatewayResponse, RequestError> {
        let target = self.current()?;
        target.client.send(|| target.request(Verb::DELETE, Bytes::new(), session)).await
    }

    /// Returns the session id in a response to `initialize`.
    pub(crate) fn session_of(response: &GatewayResponse) -> Option<HeaderValue> {
        response.headers().get(SESSION_ID).cloned()
    }

    /// Returns the headers that all later messages of a session carry.
    pub(crate) fn session_headers(session: Option<HeaderValue>, version: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.extend(session.map(|session| (SESSION_ID, session)));
        let dialect = version.and_then(Dialect::parse).filter(|dialect| dialect.has_version_header());
        headers.extend(dialect.map(|dialect| (PROTOCOL_VERSION, HeaderValue::from_static(dialect.as_str()))));
        headers
    }

    /// Returns the error for a response with a failing HTTP status. Includes the message of the body if there is one.
    pub fn rejection_error(&self, status: StatusCode, message: Option<&str>) -> Error {
        let cure = match (status, message) {
            (StatusCode::UNAUTHORIZED, _) => "pass its token with --token-file FILE or the variable GOBLIN_TOKEN",
            (StatusCode::FORBIDDEN, _) => "add the host of this URL to its gateway.allowedHosts",
            (_, Some(message)) => message,
            (_, None) => "is there an MCP endpoint at this URL?",
        };
        let (server, reason) = (self.url(), format!("the gateway answered HTTP {status}; {cure}"));
        match status {
            // The gateway works, but denies access to this client.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Error::BackendUnavailable { server, reason, sent: false }
            }
            _ if message.is_some() => Error::BackendUnavailable { server, reason, sent: false },
            _ => Error::BackendProtocol { server, reason },
        }
    }
}

/// The reason why no message follows.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the connection was lost before the answer")]
    Lost,
    /// One message was too large. A stream continues after it.
    #[error("the answer is larger than {}", goblin_wire::units::bytes(MAX_MESSAGE as u64))]
    TooLarge,
}

/// The messages of one response, one after the other.
pub enum ResponseMessages {
    Stream(EventStream),
    /// A response that is one message.
    Whole(ResponseBody),
}

impl ResponseMessages {
    pub fn new(response: GatewayResponse) -> ResponseMessages {
        match is_event_stream(response.headers()) {
            true => ResponseMessages::Stream(EventStream::new(response.into_body(), MAX_MESSAGE)),
            false => ResponseMessages::Whole(response.into_body()),
        }
    }

    pub fn is_stream(&self) -> bool {
        matches!(self, ResponseMessages::Stream(_))
    }

    /// Returns the next event, or `None` at the end. A response that is no stream is one event without an id.
    pub async fn next(&mut self) -> Result<Option<SseEvent>, BodyError> {
        let data = match self {
            ResponseMessages::Stream(stream) => match stream.next().await {
                Ok(Some(Frame::Whole(event))) => return Ok(Some(event)),
                Ok(Some(Frame::TooLong { .. })) => return Err(BodyError::TooLarge),
                Ok(None) => return Ok(None),
                Err(_) => return Err(BodyError::Lost),
            },
            ResponseMessages::Whole(body) => body.whole(MAX_MESSAGE).await.map_err(|error| match error {
                WholeBodyError::Broken(_) => BodyError::Lost,
                WholeBodyError::TooLong => BodyError::TooLarge,
            })?,
        };
        let is_message = !data.iter().all(u8::is_ascii_whitespace);
        Ok(is_message.then(|| SseEvent { data, ..SseEvent::default() }))
    }

    /// Returns the next event that carries a message.
    pub(crate) async fn next_message(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            match self.next().await? {
                Some(event) if event.data.is_empty() => {}
                event => return Ok(event.map(|event| event.data)),
            }
        }
    }
}
