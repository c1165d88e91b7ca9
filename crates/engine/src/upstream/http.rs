//! A backend over Streamable HTTP: one POST per message, answers as JSON or as an event stream, and a GET stream for what
//! it says of its own accord.
//!
//! - `body`: bodies of answers.
//! - `listen`: the GET stream.
//! - `mirrored`: what headers repeat of a request.
//! - `news`: a stream that was asked for, in versions without sessions.
//! - `resume`: an answer in a stream, and the rest of one that ended too early.
//! - `trail`: how far a stream was heard.
//!
//! A link is one session. When the backend forgets the session (404), the link is over and the actor dials a new one; the
//! request that met the 404 was not handled, so it may be sent again. Nothing else is ever sent twice.
//!
//! In versions without sessions a link is no more than where requests go: no GET stream, no DELETE, nothing to resume, and
//! who hangs up has cancelled.

pub(super) mod body;
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
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method as Verb, Request as HttpRequest, Response as HttpResponse, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use tokio::sync::{Semaphore, watch};

use goblin_client::connect::{HttpClient, Received, RequestError};
use crate::upstream::ear::{Ear, Mouth, Whose};
use crate::upstream::http::body::{ASIDE, LONGEST_REFUSAL, is_session_unknown, is_stream, parse_answer, whole_body};
use crate::upstream::http::listen::keep_listening;
use goblin_wire::mirrored::Repeated;
use crate::upstream::http::resume::Awaited;
use crate::upstream::link::{End, LinkError};
use crate::upstream::open::{OpenCalls, beyond_limit, is_answer, request_of};
use crate::upstream::trouble::Trouble;
use crate::client::lane::Call;
use goblin_telemetry::Event;
use goblin_wire::dialect::Dialect;
use goblin_wire::framing::Frame;
use goblin_wire::method::Method;
use goblin_wire::{Id, Malformed, Message, Notification, Request, Response};
use goblin_telemetry::worker;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_OR_STREAM: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// What may be on its way to the backend at once that nobody waits for. Full: the next is dropped.
pub(super) const MOST_ASIDES: usize = 64;
/// How long the GET stream is waited for. Some servers send the head of an answer with the first event only.
const STREAM_PATIENCE: Duration = Duration::from_millis(500);

pub struct HttpLink {
    shared: Arc<Shared>,
}

struct Shared {
    client: HttpClient,
    url: Uri,
    ear: Arc<Ear>,
    open: OpenCalls,
    asides: Arc<Semaphore>,
    limit: usize,
    has_sessions: bool,
    /// The configured headers and ours that never change.
    headers: HeaderMap,
    /// The same with what the handshake settled, once it has.
    settled: OnceLock<HeaderMap>,
    session: OnceLock<HeaderValue>,
    dialect: OnceLock<Dialect>,
    next: AtomicU64,
    /// The status of the first refusal that named no request.
    refused: OnceLock<StatusCode>,
    /// Whether the GET stream is open, or was tried in vain.
    tried_stream: watch::Sender<bool>,
    /// The link is used though that is not known yet.
    is_deaf: AtomicBool,
    closed: watch::Sender<Option<End>>,
}

impl HttpLink {
    pub fn new(client: HttpClient, url: Uri, headers: HeaderMap, limit: usize, ear: Arc<Ear>) -> HttpLink {
        HttpLink { shared: Arc::new(Shared::new(client, url, headers, limit, ear)) }
    }

    /// For a version without sessions.
    pub fn sessionless(client: HttpClient, url: Uri, headers: HeaderMap, limit: usize, ear: Arc<Ear>) -> HttpLink {
        let mut shared = Shared { has_sessions: false, ..Shared::new(client, url, headers, limit, ear) };
        let version = HeaderValue::from_static(Dialect::NEWEST_WITHOUT_HANDSHAKE.as_str());
        shared.headers.insert(PROTOCOL_VERSION, version);
        HttpLink { shared: Arc::new(shared) }
    }

    pub fn next_id(&self) -> u64 {
        self.shared.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether it refused the handshake as a server does that knows only HTTP+SSE. No permission and no health say nothing.
    pub fn may_be_sse(&self) -> bool {
        let tells = [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
        self.shared.dialect.get().is_none() && self.refused().is_some_and(|status| tells.contains(&status))
    }

    /// The status of the first refusal that named no request.
    pub fn refused(&self) -> Option<StatusCode> {
        self.shared.refused.get().copied()
    }

    /// The version is settled, by a handshake or without.
    pub fn speak(&self, dialect: Dialect) {
        self.shared.dialect.get_or_init(|| dialect);
        if !self.shared.has_sessions {
            self.shared.settled.get_or_init(|| self.shared.headers.clone());
        }
    }

    /// The handshake is over: opens the GET stream, for as long as the link lives. Returns when it is open or will not be
    /// soon, so that nothing is asked for whose changes would not be heard.
    pub async fn listen_to_get(&self) {
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
        if tokio::time::timeout(STREAM_PATIENCE, tried.wait_for(|tried| *tried)).await.is_err() {
            self.shared.is_deaf.store(true, Ordering::Relaxed);
        }
    }

    /// `headers` are those of this request alone. The request leaves when this is called.
    pub fn request(
        &self,
        id: u64,
        body: Bytes,
        headers: Repeated,
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

    async fn answer(
        &self,
        id: u64,
        response: HttpResponse<Received>,
        call: Option<&Arc<Call>>,
    ) -> Result<Response, LinkError> {
        // Boxed, as all that is rare: what a call's future holds is moved with it.
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
            return Box::pin(Awaited::new(&self.shared, id, call).answer(response.into_body())).await;
        }
        let body = whole_body(response.into_body(), self.shared.limit).await?;
        parse_answer(id, body, &self.shared.ear)
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

    pub async fn closed(&self) -> End {
        self.shared.closed().await
    }

    /// Tells the backend that the session is over; it may not care.
    pub async fn close(&self) {
        let lost = self.shared.closed.borrow().is_some();
        self.shared.close(End::Lost("the gateway closed it".to_owned()));
        if !lost && self.shared.session.get().is_some() {
            let request = self.shared.build(Verb::DELETE, Bytes::new());
            let _ = tokio::time::timeout(ASIDE, self.shared.client.request(request)).await;
        }
    }
}

impl Shared {
    fn new(client: HttpClient, url: Uri, mut headers: HeaderMap, limit: usize, ear: Arc<Ear>) -> Shared {
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(ACCEPT, JSON_OR_STREAM);
        Shared {
            client,
            url,
            ear,
            open: OpenCalls::default(),
            asides: Arc::new(Semaphore::new(MOST_ASIDES)),
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

    /// A GET: for the standing stream, or for the rest of the stream in which this event was the last one heard.
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

    async fn post(&self, body: Bytes) -> Result<HttpResponse<Received>, LinkError> {
        self.post_with(body, Repeated::new()).await
    }

    fn post_with(
        &self,
        body: Bytes,
        headers: Repeated,
    ) -> impl Future<Output = Result<HttpResponse<Received>, LinkError>> {
        let mut request = self.build(Verb::POST, body);
        for (name, value) in headers {
            request.headers_mut().insert(name, value);
        }
        self.client.request(request).map_err(|error| self.unreachable(&error))
    }

    /// Where not even a connection can be made, the backend is gone.
    fn unreachable(&self, error: &RequestError) -> LinkError {
        let reason = error.to_string();
        let sent = !error.is_safe_to_retry();
        if !sent {
            self.close(End::Lost(reason.clone()));
        }
        LinkError::Closed { reason, sent }
    }

    fn close(&self, end: End) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(end);
            first
        });
        self.ear.close();
    }

    async fn closed(&self) -> End {
        let mut closed = self.closed.subscribe();
        match closed.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(End::Forgotten),
            Err(_) => End::Lost("it was closed".to_owned()),
        }
    }

    fn lose_session(&self) -> LinkError {
        self.close(End::Forgotten);
        LinkError::SessionLost
    }

    /// An answer that is no success. A JSON-RPC error in it passes as it is; the rest is ours to explain.
    async fn refusal(&self, id: u64, response: HttpResponse<Received>) -> Result<Response, LinkError> {
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), LONGEST_REFUSAL).collect().await;
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
            // It handled the request, whatever the status and its words.
            Some(answer) if names_request => return Ok(answer),
            _ if self.session.get().is_some() && is_session_unknown(status, &body) => return Err(self.lose_session()),
            // Who does without sessions names what it refuses. It is another server now, and did nothing for this one.
            _ if !self.has_sessions && self.dialect.get().is_some() && is_other_server(status) => {
                return Err(self.lose_session());
            }
            // Who speaks this transport takes a POST. It is another server now, and to be dialled anew.
            _ if status == StatusCode::METHOD_NOT_ALLOWED => {
                self.close(End::Lost(Trouble::Refused(status).to_string()));
            }
            Some(answer) if answer.id.is_none() => return Ok(answer),
            _ => {}
        }
        Err(LinkError::Protocol(Trouble::Refused(status).to_string()))
    }

    /// One event on the stream of a request; tells the answer when it is that.
    fn on_event(
        shared: &Arc<Shared>,
        id: u64,
        event: Frame<goblin_wire::framing::Event>,
        call: Option<&Arc<Call>>,
    ) -> Result<Option<Response>, LinkError> {
        let Some(data) = shared.data(event)? else { return Ok(None) };
        match Message::parse(data) {
            Ok(Message::Response(answer)) if answer.id.as_ref().and_then(Id::as_u64) == Some(id) => {
                return Ok(Some(answer));
            }
            Ok(Message::Notification(notification)) => shared.on_notification(&notification, || Whose::of(call)),
            Ok(Message::Request(ask)) => Shared::on_ask(shared, ask, Whose::of(call)),
            Err(malformed) if shared.answers(&malformed, id) => return Err(shared.refuse(&malformed)),
            other => Shared::on_other(shared, other),
        }
        Ok(None)
    }

    /// Returns whether this is the answer to the request `id`, beyond a limit.
    fn answers(&self, malformed: &Malformed, id: u64) -> bool {
        malformed.is_answer && malformed.id.as_ref().and_then(Id::as_u64) == Some(id)
    }

    fn refuse(&self, malformed: &Malformed) -> LinkError {
        self.ear.report_malformed(malformed, &malformed.error.to_string());
        beyond_limit(malformed).unwrap_or_else(|| LinkError::Protocol(malformed.error.to_string()))
    }

    /// What an event on the stream of a request says; nothing where it only gives an id.
    fn data(&self, event: Frame<goblin_wire::framing::Event>) -> Result<Option<Bytes>, LinkError> {
        match event {
            Frame::Whole(event) => Ok(Some(event.data).filter(|data| !data.is_empty()).map(|data| self.ear.hold(data))),
            Frame::TooLong { head } => {
                self.ear.emit(&Event::BackendTooLong { server: self.ear.server() });
                match is_answer(&head) {
                    true => Err(LinkError::Protocol("its answer is larger than maxMessageSize".to_owned())),
                    false => Ok(None),
                }
            }
        }
    }

    /// Progress names its call, whatever stream it comes on; some servers say it on the standing one.
    fn on_notification(&self, notification: &Notification, whose: impl FnOnce() -> Whose) {
        if notification.method != Method::Progress {
            return self.ear.hear(notification, whose);
        }
        match request_of(notification).and_then(|id| self.open.get(id)) {
            Some(call) => self.ear.hear_progress(notification, &call),
            None => self.ear.emit(&Event::ProgressDropped { server: self.ear.server() }),
        }
    }

    fn on_ask(shared: &Arc<Shared>, ask: Request, whose: Whose) {
        if !shared.has_sessions {
            return shared.ear.emit(&unasked(shared.ear.server(), &ask));
        }
        shared.ear.take_ask(ask, whose, Arc::new(Aside(Arc::clone(shared))));
    }

    fn on_replayed_ask(shared: &Arc<Shared>, ask: Request) {
        shared.ear.take_replayed_ask(ask, shared.open.whose(), Arc::new(Aside(Arc::clone(shared))));
    }

    /// What belongs to no stream of a call.
    fn on_other(shared: &Arc<Shared>, message: Result<Message, goblin_wire::Malformed>) {
        let server = shared.ear.server();
        match message {
            Ok(Message::Request(ask)) => Shared::on_ask(shared, ask, shared.open.whose()),
            Ok(Message::Response(_)) => shared.ear.emit(&Event::AnswerWithoutCall { server }),
            Ok(Message::Notification(notification)) => shared.on_notification(&notification, || shared.open.whose()),
            Err(malformed) => {
                shared.ear.report_malformed(&malformed, &malformed.error.to_string());
            }
        }
    }
}

/// What a server asks in a version in which it may not: nobody could answer it.
pub(super) fn unasked<'a>(server: &'a str, ask: &'a Request) -> Event<'a> {
    let reason = "in this protocol version servers ask nothing of their own accord";
    Event::BackendAskRefused { server, method: ask.method.as_str(), reason }
}

/// Says something that nobody waits for.
struct Aside(Arc<Shared>);

impl Mouth for Aside {
    fn say(&self, message: Bytes) {
        let Ok(permit) = Arc::clone(&self.0.asides).try_acquire_owned() else {
            return self.0.ear.emit(&Event::AsideDropped { server: self.0.ear.server() });
        };
        let shared = Arc::clone(&self.0);
        worker::spawn(async move {
            let _ = tokio::time::timeout(ASIDE, shared.post(message)).await;
            drop(permit);
        });
    }

    fn answer(&self, message: Bytes) -> BoxFuture<'_, ()> {
        let Aside(shared) = self;
        Box::pin(async move {
            if tokio::time::timeout(ASIDE, shared.post(message)).await.is_err() {
                shared.ear.emit(&Event::AsideDropped { server: shared.ear.server() });
            }
        })
    }
}

/// A refusal that one without sessions would have explained.
fn is_other_server(status: StatusCode) -> bool {
    matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::GONE)
}

/// Whether a refusal of a stream may be another answer soon. A server that has not noticed yet that our last connection
/// is gone says 409.
fn is_passing(status: StatusCode) -> bool {
    let passing = [StatusCode::REQUEST_TIMEOUT, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
    status.is_server_error() || passing.contains(&status)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use goblin_client::connect::ProxyEnvironment;
    use goblin_wire::framing;

    fn link(address: &str) -> HttpLink {
        let url: Uri = format!("http://{address}/mcp").parse().expect("a url");
        let client = HttpClient::new(&url, None, &ProxyEnvironment::default()).expect("a client");
        HttpLink::new(client, url, HeaderMap::new(), 1024, Arc::new(Ear::example()))
    }

    #[tokio::test]
    async fn ask_on_the_stream_of_a_request_of_our_own_is_no_clients() {
        let shared = link("127.0.0.1:9").shared;
        let call = Arc::new(Call::example());
        let _entered = shared.open.enter(1, &call);
        let ask = |id: u64, call| {
            let data = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"vendor/ask"}"#);
            let event = Frame::Whole(framing::Event { data, ..framing::Event::default() });
            assert!(matches!(Shared::on_event(&shared, id, event, call), Ok(None)));
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

    /// However much else is on its way to a backend that takes its time.
    #[tokio::test]
    async fn ask_an_answer_is_not_dropped_for_want_of_room() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let mouth = Aside(link(&listener.local_addr().expect("it is bound").to_string()).shared);
        (0..MOST_ASIDES).for_each(|_| mouth.say(Bytes::from_static(b"aside")));
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
            () = mouth.answer(Bytes::from_static(b"answer")) => panic!("nobody has answered the POST"),
            heard = tokio::time::timeout(Duration::from_secs(10), heard) => heard.expect("the answer comes"),
        }
    }
}
