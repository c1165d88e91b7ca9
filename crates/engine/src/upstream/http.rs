//! A backend over Streamable HTTP. Each message is one POST, responses are JSON or an event stream, and a GET stream
//! carries unsolicited messages.
//!
//! - `body`: bodies of responses.
//! - `listen`: the GET stream.
//! - `news`: notification streams, in versions without sessions.
//! - `resume`: a response in a stream, and the rest of one that ended too early.
//! - `trail`: the position in a stream.
//!
//! A link is one session. If the backend forgets the session (404), the link ends and the gateway dials a new one. The
//! request that got the 404 was not processed, so it may be sent again. No other request is ever sent twice.
//!
//! In versions without sessions a link is only a destination for requests. It has no GET stream, no DELETE and nothing
//! to resume, and closing the connection cancels a request.

pub(crate) mod body;
mod listen;
mod news;
mod resume;
mod trail;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFutureExt};
use goblin_client::connect::{HttpClient, RequestError, ResponseBody};
use goblin_telemetry::{Event, worker};
use goblin_wire::framing::Frame;
use goblin_wire::mirrored::MirrorHeaders;
use goblin_wire::{Dialect, Id, MalformedMessage, Message, Method, Notification, Request, Response};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method as Verb, Request as HttpRequest, Response as HttpResponse, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use tokio::sync::{Semaphore, watch};

use crate::client::call::Call;
use crate::upstream::http::body::{ASIDE, MAX_ERROR_BODY, is_session_unknown, is_stream, parse_answer, whole_body};
use crate::upstream::http::listen::keep_listening;
use crate::upstream::http::resume::StreamedRequest;
use crate::upstream::inbound::{Attribution, InboundHandler, ReplySink};
use crate::upstream::link::{LinkEnd, LinkError};
use crate::upstream::open_requests::{OpenCalls, beyond_limit, is_answer, request_of};
use crate::upstream::problem::BackendProblem;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_OR_STREAM: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// The limit of background messages in progress. Further ones are dropped.
pub(crate) const MAX_BACKGROUND_MESSAGES: usize = 64;
/// The longest wait for the GET stream. Some servers send the response headers only with the first event.
const STREAM_TIMEOUT: Duration = Duration::from_millis(500);

/// A link over Streamable HTTP.
pub struct HttpLink {
    shared: Arc<HttpLinkInner>,
}

struct HttpLinkInner {
    client: HttpClient,
    url: Uri,
    inbound: Arc<InboundHandler>,
    open: OpenCalls,
    asides: Arc<Semaphore>,
    limit: usize,
    has_sessions: bool,
    /// The configured headers and the constant ones of the gateway.
    headers: HeaderMap,
    /// The headers after the handshake, which add the session and the version.
    settled: OnceLock<HeaderMap>,
    session: OnceLock<HeaderValue>,
    dialect: OnceLock<Dialect>,
    next: AtomicU64,
    /// The status of the first error response that named no request.
    refused: OnceLock<StatusCode>,
    /// Becomes `true` when the GET stream is open or an attempt has failed.
    tried_stream: watch::Sender<bool>,
    /// Whether the link went into use before the attempt to open the GET stream had finished.
    is_deaf: AtomicBool,
    closed: watch::Sender<Option<LinkEnd>>,
}

impl HttpLink {
    pub fn new(
        client: HttpClient,
        url: Uri,
        headers: HeaderMap,
        limit: usize,
        inbound: Arc<InboundHandler>,
    ) -> HttpLink {
        HttpLink { shared: Arc::new(HttpLinkInner::new(client, url, headers, limit, inbound)) }
    }

    /// Creates a link for a version without sessions.
    pub(crate) fn sessionless(
        client: HttpClient,
        url: Uri,
        headers: HeaderMap,
        limit: usize,
        inbound: Arc<InboundHandler>,
    ) -> HttpLink {
        let mut shared =
            HttpLinkInner { has_sessions: false, ..HttpLinkInner::new(client, url, headers, limit, inbound) };
        let version = HeaderValue::from_static(Dialect::NEWEST_WITHOUT_HANDSHAKE.as_str());
        shared.headers.insert(PROTOCOL_VERSION, version);
        HttpLink { shared: Arc::new(shared) }
    }

    pub fn next_id(&self) -> u64 {
        self.shared.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Reports whether the server rejected the handshake like one that only supports HTTP+SSE. Other statuses, such as
    /// 401 or 503, show nothing about that.
    pub(crate) fn may_be_sse(&self) -> bool {
        let tells = [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
        self.shared.dialect.get().is_none() && self.refused().is_some_and(|status| tells.contains(&status))
    }

    /// Returns the status of the first error response that named no request.
    pub fn refused(&self) -> Option<StatusCode> {
        self.shared.refused.get().copied()
    }

    /// Fixes the protocol version.
    pub fn speak(&self, dialect: Dialect) {
        self.shared.dialect.get_or_init(|| dialect);
        if !self.shared.has_sessions {
            self.shared.settled.get_or_init(|| self.shared.headers.clone());
        }
    }

    /// Opens the GET stream for the life of the link, after the handshake. Returns when the stream is open, has failed
    /// or is late. The gateway fetches the lists only after that, so it does not miss their changes.
    pub(crate) async fn listen_to_get(&self) {
        self.shared.settled.get_or_init(|| self.shared.headers_so_far());
        let shared = Arc::clone(&self.shared);
        worker::spawn(async move {
            let mut closed = shared.closed.subscribe();
            tokio::select! {
                () = keep_listening(&shared) => {}
                _ = closed.wait_for(Option::is_some) => {}
            }
        });
        let mut tried = self.shared.tried_stream.subscribe();
        if tokio::time::timeout(STREAM_TIMEOUT, tried.wait_for(|tried| *tried)).await.is_err() {
            self.shared.is_deaf.store(true, Ordering::Relaxed);
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
        let entered = call.map(|call| self.shared.open.enter(id, call));
        let posted = self.shared.post_with(body, headers);
        posted.and_then(move |response| self.answer(id, response, call)).map(move |answer| {
            if answer.is_ok() {
                self.shared.open.answered(id);
            }
            drop(entered);
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
            return Box::pin(self.shared.refusal(id, response)).await;
        }
        if self.shared.has_sessions
            && self.shared.session.get().is_none()
            && let Some(session) = response.headers().get(SESSION_ID)
        {
            self.shared.session.get_or_init(|| session.clone());
        }
        if is_stream(response.headers()) {
            return Box::pin(StreamedRequest::new(&self.shared, id, call).answer(response.into_body())).await;
        }
        let body = whole_body(response.into_body(), self.shared.limit).await?;
        parse_answer(id, body, &self.shared.inbound)
    }

    pub async fn notify(&self, body: Bytes) -> Result<(), LinkError> {
        let response = tokio::time::timeout(ASIDE, self.shared.post(body)).await;
        let response =
            response.map_err(|_| LinkError::Protocol("it did not take a notification in time".to_owned()))??;
        match response.status() {
            StatusCode::NOT_FOUND if self.shared.session.get().is_some() => Err(self.shared.lose_session()),
            status if status.is_success() => Ok(()),
            status => Err(LinkError::Protocol(format!("it answered a notification with HTTP {status}"))),
        }
    }

    pub async fn closed(&self) -> LinkEnd {
        self.shared.closed().await
    }

    /// Closes the link and ends the session with a DELETE. The outcome of the DELETE is ignored.
    pub async fn close(&self) {
        let lost = self.shared.closed.borrow().is_some();
        self.shared.close(LinkEnd::Lost("the gateway closed it".to_owned()));
        if !lost && self.shared.session.get().is_some() {
            let request = self.shared.build(Verb::DELETE, Bytes::new());
            let _ = tokio::time::timeout(ASIDE, self.shared.client.request(request)).await;
        }
    }
}

impl HttpLinkInner {
    fn new(
        client: HttpClient,
        url: Uri,
        mut headers: HeaderMap,
        limit: usize,
        inbound: Arc<InboundHandler>,
    ) -> HttpLinkInner {
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(ACCEPT, JSON_OR_STREAM);
        HttpLinkInner {
            client,
            url,
            inbound,
            open: OpenCalls::default(),
            asides: Arc::new(Semaphore::new(MAX_BACKGROUND_MESSAGES)),
            limit,
            has_sessions: true,
            headers,
            settled: OnceLock::new(),
            session: OnceLock::new(),
            dialect: OnceLock::new(),
            next: AtomicU64::new(1),
            refused: OnceLock::new(),
            tried_stream: watch::Sender::new(false),
            is_deaf: AtomicBool::new(false),
            closed: watch::Sender::new(None),
        }
    }

    fn build(&self, verb: Verb, body: Bytes) -> HttpRequest<Full<Bytes>> {
        let mut request = HttpRequest::new(Full::new(body));
        *request.method_mut() = verb;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.settled.get().cloned().unwrap_or_else(|| self.headers_so_far());
        request
    }

    /// Builds a GET for the standing stream, or for the rest of the stream after `last_event_id`.
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

    fn headers_so_far(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
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
        let mut request = self.build(Verb::POST, body);
        for (name, value) in headers {
            request.headers_mut().insert(name, value);
        }
        self.client.request(request).map_err(|error| self.unreachable(&error))
    }

    /// Returns the error for a failed request. Closes the link if not even a connection could be opened.
    fn unreachable(&self, error: &RequestError) -> LinkError {
        let reason = error.to_string();
        let sent = !error.is_safe_to_retry();
        if !sent {
            self.close(LinkEnd::Lost(reason.clone()));
        }
        LinkError::Closed { reason, sent }
    }

    fn close(&self, end: LinkEnd) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(end);
            first
        });
        self.inbound.close();
    }

    async fn closed(&self) -> LinkEnd {
        let mut closed = self.closed.subscribe();
        match closed.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(LinkEnd::Forgotten),
            Err(_) => LinkEnd::Lost("it was closed".to_owned()),
        }
    }

    fn lose_session(&self) -> LinkError {
        self.close(LinkEnd::Forgotten);
        LinkError::SessionLost
    }

    /// Interprets an error status. Returns a JSON-RPC error in the body as the response, and explains any other body.
    async fn refusal(&self, id: u64, response: HttpResponse<ResponseBody>) -> Result<Response, LinkError> {
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), MAX_ERROR_BODY).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let answer = match Message::parse(body.clone()) {
            Ok(Message::Response(answer)) => Some(answer),
            _ => None,
        };
        let named = answer.as_ref().and_then(|answer| answer.id.as_ref()).and_then(Id::as_u64);
        let names_request = named == Some(id);
        if !names_request {
            self.refused.get_or_init(|| status);
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
                self.close(LinkEnd::Lost(BackendProblem::Refused(status).to_string()));
            }
            Some(answer) if answer.id.is_none() => return Ok(answer),
            _ => {}
        }
        Err(LinkError::Protocol(BackendProblem::Refused(status).to_string()))
    }

    /// Handles one event on the stream of a request. Returns the response if the event holds it.
    fn on_event(
        shared: &Arc<HttpLinkInner>,
        id: u64,
        event: Frame<goblin_wire::framing::SseEvent>,
        call: Option<&Arc<Call>>,
    ) -> Result<Option<Response>, LinkError> {
        let Some(data) = shared.data(event)? else { return Ok(None) };
        match Message::parse(data) {
            Ok(Message::Response(answer)) if answer.id.as_ref().and_then(Id::as_u64) == Some(id) => {
                return Ok(Some(answer));
            }
            Ok(Message::Notification(notification)) => shared.on_notification(&notification, || Attribution::of(call)),
            Ok(Message::Request(ask)) => HttpLinkInner::on_ask(shared, ask, Attribution::of(call)),
            Err(malformed) if shared.answers(&malformed, id) => return Err(shared.refuse(&malformed)),
            other => HttpLinkInner::on_other(shared, other),
        }
        Ok(None)
    }

    /// Reports whether this is the response to the request `id` and exceeds a limit.
    fn answers(&self, malformed: &MalformedMessage, id: u64) -> bool {
        malformed.is_answer && malformed.id.as_ref().and_then(Id::as_u64) == Some(id)
    }

    fn refuse(&self, malformed: &MalformedMessage) -> LinkError {
        self.inbound.report_malformed(malformed, &malformed.error.to_string());
        beyond_limit(malformed).unwrap_or_else(|| LinkError::Protocol(malformed.error.to_string()))
    }

    /// Returns the data of an event on the stream of a request. Returns `None` for an event without data.
    fn data(&self, event: Frame<goblin_wire::framing::SseEvent>) -> Result<Option<Bytes>, LinkError> {
        match event {
            Frame::Whole(event) => {
                Ok(Some(event.data).filter(|data| !data.is_empty()).map(|data| self.inbound.hold(data)))
            }
            Frame::TooLong { head } => {
                self.inbound.emit(&Event::BackendTooLong { server: self.inbound.server() });
                match is_answer(&head) {
                    true => Err(LinkError::Protocol("its answer is larger than maxMessageSize".to_owned())),
                    false => Ok(None),
                }
            }
        }
    }

    /// Handles a notification. Progress names its call on any stream; some servers send it on the standing one.
    fn on_notification(&self, notification: &Notification, whose: impl FnOnce() -> Attribution) {
        if notification.method != Method::Progress {
            return self.inbound.hear(notification, whose);
        }
        match request_of(notification).and_then(|id| self.open.get(id)) {
            Some(call) => self.inbound.hear_progress(notification, &call),
            None => self.inbound.emit(&Event::ProgressDropped { server: self.inbound.server() }),
        }
    }

    /// Handles a server request. Versions without sessions have none, so it is only reported there.
    fn on_ask(shared: &Arc<HttpLinkInner>, ask: Request, whose: Attribution) {
        if !shared.has_sessions {
            return shared.inbound.emit(&unasked(shared.inbound.server(), &ask));
        }
        shared.inbound.take_ask(ask, whose, Arc::new(HttpReplySink(Arc::clone(shared))));
    }

    fn on_replayed_ask(shared: &Arc<HttpLinkInner>, ask: Request) {
        shared.inbound.take_replayed_ask(ask, shared.open.whose(), Arc::new(HttpReplySink(Arc::clone(shared))));
    }

    /// Handles a message outside of the stream of a call.
    fn on_other(shared: &Arc<HttpLinkInner>, message: Result<Message, goblin_wire::MalformedMessage>) {
        let server = shared.inbound.server();
        match message {
            Ok(Message::Request(ask)) => HttpLinkInner::on_ask(shared, ask, shared.open.whose()),
            Ok(Message::Response(_)) => shared.inbound.emit(&Event::AnswerWithoutCall { server }),
            Ok(Message::Notification(notification)) => shared.on_notification(&notification, || shared.open.whose()),
            Err(malformed) => {
                shared.inbound.report_malformed(&malformed, &malformed.error.to_string());
            }
        }
    }
}

/// Returns the event for a server request in a version without server requests. No client can answer it.
pub(crate) fn unasked<'a>(server: &'a str, ask: &'a Request) -> Event<'a> {
    let reason = "in this protocol version servers ask nothing of their own accord";
    Event::BackendAskRefused { server, method: ask.method.as_str(), reason }
}

/// Sends messages in the background. No caller waits for them.
struct HttpReplySink(Arc<HttpLinkInner>);

impl ReplySink for HttpReplySink {
    fn say(&self, message: Bytes) {
        let Ok(permit) = Arc::clone(&self.0.asides).try_acquire_owned() else {
            return self.0.inbound.emit(&Event::AsideDropped { server: self.0.inbound.server() });
        };
        let shared = Arc::clone(&self.0);
        worker::spawn(async move {
            let _ = tokio::time::timeout(ASIDE, shared.post(message)).await;
            drop(permit);
        });
    }

    fn answer(&self, message: Bytes) -> BoxFuture<'_, ()> {
        let HttpReplySink(shared) = self;
        Box::pin(async move {
            if tokio::time::timeout(ASIDE, shared.post(message)).await.is_err() {
                shared.inbound.emit(&Event::AsideDropped { server: shared.inbound.server() });
            }
        })
    }
}

/// Reports whether a status shows that the server was replaced. A server without sessions would have named the request.
fn is_other_server(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE)
}

/// Reports whether an error status of a stream is temporary. A server returns 409 while it has not noticed the end of
/// the previous connection.
fn is_passing(status: StatusCode) -> bool {
    let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || passing.contains(&status)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use goblin_client::connect::ProxyEnvironment;
    use goblin_wire::framing;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    fn link(address: &str) -> HttpLink {
        let url: Uri = format!("http://{address}/mcp").parse().expect("a url");
        let client = HttpClient::new(&url, None, &ProxyEnvironment::default()).expect("a client");
        HttpLink::new(client, url, HeaderMap::new(), 1024, Arc::new(InboundHandler::example()))
    }

    #[tokio::test]
    async fn ask_on_the_stream_of_a_request_of_our_own_is_no_clients() {
        let shared = link("127.0.0.1:9").shared;
        let call = Arc::new(Call::example());
        let _entered = shared.open.enter(1, &call);
        let ask = |id: u64, call| {
            let data = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"vendor/ask"}"#);
            let event = Frame::Whole(framing::SseEvent { data, ..framing::SseEvent::default() });
            assert!(matches!(HttpLinkInner::on_event(&shared, id, event, call), Ok(None)));
        };
        ask(2, None);
        assert!(call.lane.try_next().is_none());
        ask(1, Some(&call));
        assert!(call.lane.try_next().is_some());
    }

    #[tokio::test]
    async fn f6_what_is_too_long_fails_a_call_only_where_it_is_its_answer() {
        let shared = link("127.0.0.1:9").shared;
        let too_long = |head: &'static str| shared.data(Frame::TooLong { head: head.into() });
        assert!(too_long(r#"{"result":{"content":[{"type":"text","text":"xxx"#).is_err());
        assert!(matches!(too_long(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"#), Ok(None)));
    }

    /// The response is sent even if the limit of background messages to a slow backend is reached.
    #[tokio::test]
    async fn ask_an_answer_is_not_dropped_for_want_of_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let reply_sink = HttpReplySink(link(&listener.local_addr().expect("it is bound").to_string()).shared);
        (0..MAX_BACKGROUND_MESSAGES).for_each(|_| reply_sink.say(Bytes::from_static(b"aside")));
        let heard = async {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut bytes = Vec::new();
                while !bytes.ends_with(b"aside") && !bytes.ends_with(b"answer") {
                    stream.read_buf(&mut bytes).await.expect("a request");
                }
                if bytes.ends_with(b"answer") {
                    return;
                }
                open.push(stream);
            }
        };
        tokio::select! {
            () = reply_sink.answer(Bytes::from_static(b"answer")) => panic!("nobody has answered the POST"),
            heard = tokio::time::timeout(Duration::from_secs(10), heard) => heard.expect("the answer comes"),
        }
    }
}
