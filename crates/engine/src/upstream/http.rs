//! A backend over Streamable HTTP. Each message is one POST, responses are JSON or an event stream, and a GET stream
//! carries unsolicited messages.
//!
//! - `get_stream`: the GET stream.
//! - `messages`: messages of the backend in event streams.
//! - `listen`: notification streams, in versions without sessions.
//! - `peer`: the parts that HTTP+SSE shares.
//! - `resume`: a response in a stream, and the rest of one that ended too early.
//!
//! A link is one session. If the backend forgets the session (404), the link ends and the gateway dials a new one. The
//! request that got the 404 was not processed, so it may be sent again. No other request is ever sent twice.
//!
//! In versions without sessions a link is only a destination for requests. It has no GET stream, no DELETE and nothing
//! to resume, and closing the connection cancels a request.

mod get_stream;
mod listen;
mod messages;
pub(crate) mod peer;
mod resume;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt, TryFutureExt};
use goblin_client::connect::{ResponseBody, WholeBodyError};
use goblin_client::events::is_event_stream;
use goblin_telemetry::worker;
use goblin_wire::headers::{LAST_EVENT_ID, PROTOCOL_VERSION, SESSION_ID, VIA};
use goblin_wire::mirrored::MirrorHeaders;
use goblin_wire::units::duration;
use goblin_wire::{Dialect, Id, Message, Method, Response, via};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method as Verb, Request as HttpRequest, Response as HttpResponse, StatusCode};
use http_body_util::Full;
use tokio::sync::watch;

use crate::client::call::Call;
use crate::upstream::http::get_stream::keep_stream_open;
use crate::upstream::http::peer::{
    BACKGROUND_TIMEOUT, HttpPeer, error_body, is_session_unknown, request, response_in, retry_after, status_error,
};
use crate::upstream::http::resume::StreamedRequest;
use crate::upstream::inbound::InboundHandler;
use crate::upstream::link::{LinkEnd, LinkError};
use crate::upstream::open_requests::limit_error;
use crate::upstream::problem::BackendProblem;

pub(crate) const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_OR_STREAM: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
pub(crate) const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// The longest wait for the GET stream. Some servers send the response headers only with the first event.
const STREAM_TIMEOUT: Duration = Duration::from_millis(500);

/// A link over Streamable HTTP.
pub struct HttpLink {
    shared: Arc<HttpLinkInner>,
}

struct HttpLinkInner {
    /// The headers of the peer are the configured ones and the constant ones of the gateway.
    peer: HttpPeer,
    has_sessions: bool,
    /// The headers after the handshake, which add the session and the version.
    fixed_headers: OnceLock<HeaderMap>,
    session: OnceLock<HeaderValue>,
    dialect: OnceLock<Dialect>,
    /// The status of the first error response that named no request.
    rejection_status: OnceLock<StatusCode>,
    /// Becomes `true` when the GET stream is open or an attempt has failed.
    stream_attempted: watch::Sender<bool>,
    /// Whether the link went into use before the attempt to open the GET stream had finished.
    is_used_early: AtomicBool,
}

impl HttpLink {
    pub(crate) fn new(peer: HttpPeer) -> HttpLink {
        HttpLink { shared: Arc::new(HttpLinkInner::new(peer)) }
    }

    /// Creates a link for a version without sessions.
    pub(crate) fn sessionless(peer: HttpPeer) -> HttpLink {
        let mut shared = HttpLinkInner { has_sessions: false, ..HttpLinkInner::new(peer) };
        let version = HeaderValue::from_static(Dialect::NEWEST.as_str());
        shared.peer.headers.insert(PROTOCOL_VERSION, version);
        HttpLink { shared: Arc::new(shared) }
    }

    /// Reports whether the server rejected the handshake like one that only supports HTTP+SSE. Other statuses, such as
    /// 401 or 503, show nothing about that.
    pub(crate) fn may_be_sse(&self) -> bool {
        let conclusive = [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
        self.shared.dialect.get().is_none()
            && self.rejection_status().is_some_and(|status| conclusive.contains(&status))
    }

    /// Returns the status of the first error response that named no request.
    pub fn rejection_status(&self) -> Option<StatusCode> {
        self.shared.rejection_status.get().copied()
    }

    /// Returns the header that names this gateway, if requests of this method have it.
    pub(crate) fn via(&self, method: &Method) -> Option<(HeaderName, HeaderValue)> {
        via::names_sender(method).then(|| (VIA, self.shared.peer.via.clone()))
    }

    /// Fixes the protocol version.
    pub fn set_dialect(&self, dialect: Dialect) {
        self.shared.dialect.get_or_init(|| dialect);
        if !self.shared.has_sessions {
            self.shared.fixed_headers.get_or_init(|| self.shared.peer.headers.clone());
        }
    }

    /// Opens the GET stream for the life of the link, after the handshake. Returns when the stream is open, has failed
    /// or is late. The gateway fetches the lists only after that, so it does not miss their changes.
    pub(crate) async fn open_get_stream(&self) {
        self.shared.fixed_headers.get_or_init(|| self.shared.current_headers());
        let shared = Arc::clone(&self.shared);
        worker::spawn(async move {
            tokio::select! {
                () = keep_stream_open(&shared) => {}
                _ = shared.peer.open.closed() => {}
            }
        });
        let mut attempted = self.shared.stream_attempted.subscribe();
        if tokio::time::timeout(STREAM_TIMEOUT, attempted.wait_for(|attempted| *attempted)).await.is_err() {
            self.shared.is_used_early.store(true, Ordering::Relaxed);
        }
    }

    /// Sends a request when called and returns a future for the response. `headers` are the headers of this request
    /// alone.
    pub fn request(
        &self,
        id: u64,
        body: Bytes,
        headers: MirrorHeaders,
        call: Option<&Arc<Call>>,
    ) -> impl Future<Output = Result<Response, LinkError>> {
        let entry = call.map(|call| self.shared.peer.open.add(id, call));
        let response = self.shared.post_with(body, headers);
        response.and_then(move |response| self.answer(id, response, call)).map(move |answer| {
            if let (Some(entry), Ok(_)) = (entry, &answer) {
                entry.answered();
            }
            answer
        })
    }

    /// Reads the response to a request from an HTTP response.
    async fn answer(
        &self,
        id: u64,
        response: HttpResponse<ResponseBody>,
        call: Option<&Arc<Call>>,
    ) -> Result<Response, LinkError> {
        // Boxed because it is rare: an inlined future would make every call's future larger.
        if !response.status().is_success() {
            return Box::pin(self.shared.read_rejection(id, response)).await;
        }
        if self.shared.has_sessions
            && self.shared.session.get().is_none()
            && let Some(session) = response.headers().get(SESSION_ID)
        {
            self.shared.session.get_or_init(|| session.clone());
        }
        if is_event_stream(response.headers()) {
            return Box::pin(StreamedRequest::new(&self.shared, id, call).answer(response.into_body())).await;
        }
        let body = whole_body(response.into_body(), self.shared.peer.limit).await?;
        parse_answer(id, body, &self.shared.peer.inbound)
    }

    pub async fn notify(&self, body: Bytes, headers: MirrorHeaders) -> Result<(), LinkError> {
        let response = tokio::time::timeout(BACKGROUND_TIMEOUT, self.shared.post_with(body, headers)).await;
        let response = response.map_err(|_| {
            LinkError::Protocol(format!("it did not accept a notification within {}", duration(BACKGROUND_TIMEOUT)))
        })??;
        if let Some(error) = self.shared.peer.login_error(&response) {
            return Err(error);
        }
        match response.status() {
            StatusCode::NOT_FOUND if self.shared.session.get().is_some() => Err(self.shared.lose_session()),
            status if status.is_success() => Ok(()),
            status => Err(LinkError::Protocol(format!("it answered a notification with HTTP {status}"))),
        }
    }

    pub async fn closed(&self) -> LinkEnd {
        self.shared.peer.open.closed().await
    }

    /// Closes the link and ends the session with a DELETE. The outcome of the DELETE is ignored.
    pub async fn close(&self) {
        let was_open = self.shared.peer.open.end().is_none();
        self.shared.peer.open.close(LinkEnd::Lost("the gateway closed the connection".to_owned()));
        if was_open && self.shared.session.get().is_some() {
            let request = self.shared.peer.client.send(|| self.shared.build(Verb::DELETE, Bytes::new()));
            let _ = tokio::time::timeout(BACKGROUND_TIMEOUT, request).await;
        }
    }
}

impl HttpLinkInner {
    fn new(mut peer: HttpPeer) -> HttpLinkInner {
        peer.headers.insert(CONTENT_TYPE, JSON);
        peer.headers.insert(ACCEPT, JSON_OR_STREAM);
        HttpLinkInner {
            peer,
            has_sessions: true,
            fixed_headers: OnceLock::new(),
            session: OnceLock::new(),
            dialect: OnceLock::new(),
            rejection_status: OnceLock::new(),
            stream_attempted: watch::Sender::new(false),
            is_used_early: AtomicBool::new(false),
        }
    }

    fn build(&self, verb: Verb, body: Bytes) -> HttpRequest<Full<Bytes>> {
        let headers = self.fixed_headers.get().cloned().unwrap_or_else(|| self.current_headers());
        request(verb, &self.peer.url, headers, body)
    }

    /// Builds the request for the GET stream, or for the rest of the stream after `last_event_id`.
    fn stream_request(&self, last_event_id: Option<&HeaderValue>) -> HttpRequest<Full<Bytes>> {
        let mut request = self.build(Verb::GET, Bytes::new());
        let headers = request.headers_mut();
        headers.insert(ACCEPT, STREAM);
        headers.remove(CONTENT_TYPE);
        if let Some(id) = last_event_id {
            headers.insert(LAST_EVENT_ID, id.clone());
        }
        request
    }

    fn current_headers(&self) -> HeaderMap {
        let mut headers = self.peer.headers.clone();
        if let Some(session) = self.session.get() {
            headers.insert(SESSION_ID, session.clone());
        }
        if let Some(dialect) = self.dialect.get().filter(|dialect| dialect.has_version_header()) {
            headers.insert(PROTOCOL_VERSION, HeaderValue::from_static(dialect.as_str()));
        }
        headers
    }

    async fn post(&self, body: Bytes) -> Result<HttpResponse<ResponseBody>, LinkError> {
        self.post_with(body, MirrorHeaders::new()).await
    }

    fn post_with(
        &self,
        body: Bytes,
        headers: MirrorHeaders,
    ) -> impl Future<Output = Result<HttpResponse<ResponseBody>, LinkError>> {
        let build = move || {
            let mut request = self.build(Verb::POST, body.clone());
            for (name, value) in &headers {
                request.headers_mut().insert(name.clone(), value.clone());
            }
            request
        };
        self.peer.client.send(build).map_err(|error| self.peer.unreachable(&error))
    }

    fn lose_session(&self) -> LinkError {
        self.peer.open.close(LinkEnd::Forgotten);
        LinkError::SessionLost
    }

    /// Interprets an error status. Returns a JSON-RPC error in the body as the response, and explains any other body.
    async fn read_rejection(&self, id: u64, response: HttpResponse<ResponseBody>) -> Result<Response, LinkError> {
        if let Some(error) = self.peer.login_error(&response) {
            return Err(error);
        }
        let (status, retry_after) = (response.status(), retry_after(&response));
        let body = error_body(response).await;
        let answer = response_in(body.clone());
        let id_in_answer = answer.as_ref().and_then(|answer| answer.id.as_ref()).and_then(Id::as_u64);
        let names_request = id_in_answer == Some(id);
        if !names_request {
            self.rejection_status.get_or_init(|| status);
        }
        match answer {
            // A response with this id proves that the backend processed the request.
            Some(answer) if names_request => return Ok(answer),
            _ if self.session.get().is_some() && is_session_unknown(status, &body) => return Err(self.lose_session()),
            // A server without sessions names the request that it rejects. This server is a different one and did not
            // process the request.
            _ if !self.has_sessions && self.dialect.get().is_some() && is_other_server(status) => {
                return Err(self.lose_session());
            }
            // A server with this transport accepts POST. This server is a different one, so close the link and dial
            // again.
            _ if status == StatusCode::METHOD_NOT_ALLOWED => {
                self.peer.open.close(LinkEnd::Lost(BackendProblem::HttpStatus(status).to_string()));
            }
            Some(answer) if answer.id.is_none() => return Ok(answer),
            _ => {}
        }
        Err(status_error(status, retry_after))
    }
}

/// Reports whether a status shows that the server was replaced. A server without sessions would have named the request.
fn is_other_server(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE)
}

/// Reads a body of at most `limit` bytes. Returns an error if it is longer.
pub(crate) async fn whole_body(mut body: ResponseBody, limit: usize) -> Result<Bytes, LinkError> {
    body.whole(limit).await.map_err(|error| match error {
        WholeBodyError::Broken(error) => {
            LinkError::Closed { reason: format!("its answer was cut off: {error}"), sent: true }
        }
        WholeBodyError::TooLong => LinkError::too_large(),
    })
}

/// Parses the response to the request `id`.
fn parse_answer(id: u64, body: Bytes, inbound: &InboundHandler) -> Result<Response, LinkError> {
    if body.trim_ascii_start().first() == Some(&b'<') {
        return Err(LinkError::Protocol(BackendProblem::WebPage.to_string()));
    }
    match Message::parse(inbound.charge(body)) {
        Ok(Message::Response(answer))
            if answer.id.as_ref().is_none_or(|id_in_answer| id_in_answer.as_u64() == Some(id)) =>
        {
            Ok(answer)
        }
        Ok(_) => Err(LinkError::Protocol("its answer belongs to another request".to_owned())),
        Err(malformed) => Err(limit_error(&malformed).map_or_else(
            || LinkError::Protocol(format!("its answer is not a valid message: {}", malformed.error)),
            |error| {
                inbound.report_malformed(&malformed, &malformed.error.to_string());
                error
            },
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_another_request_is_rejected() {
        let parse = |body| parse_answer(1, body, &InboundHandler::example());
        assert!(parse(Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#)).is_ok());
        assert!(parse(Bytes::from_static(br#"{"jsonrpc":"2.0","id":null,"error":{}}"#)).is_ok());
        assert!(parse(Bytes::from_static(br#"{"jsonrpc":"2.0","id":2,"result":{}}"#)).is_err());
        assert!(parse(Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)).is_err());
    }
}
