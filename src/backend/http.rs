//! A backend over Streamable HTTP: one POST per message, answers as JSON or as an event stream, and a GET stream for what
//! it says of its own accord.
//!
//! A link is one session. When the backend forgets the session (404), the link is over and the actor dials a new one; the
//! request that met the 404 was not handled, so it may be sent again. Nothing else is ever sent twice.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Method as Verb, Request as HttpRequest, Response as HttpResponse, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::sync::{Semaphore, watch};

use crate::backend::connect::{HttpClient, RequestError};
use crate::backend::ear::{Ear, Mouth, Whose};
use crate::backend::inbox::List;
use crate::backend::link::{End, LinkError};
use crate::backend::open::OpenCalls;
use crate::backend::trouble::Trouble;
use crate::lane::Call;
use crate::observe::Event;
use crate::protocol::dialect::Dialect;
use crate::protocol::framing::{Events, Frame};
use crate::protocol::method::Method;
use crate::protocol::{Id, Message, Notification, Request, Response};

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const JSON_OR_STREAM: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// Notifications and the end of a session are sent on the side; nobody waits longer for them.
pub(super) const ASIDE: Duration = Duration::from_secs(5);
/// What may be on its way to the backend at once that nobody waits for. Full: the next is dropped.
pub(super) const MOST_ASIDES: usize = 64;
/// How much of a refusal is read to tell its reason.
pub(super) const LONGEST_REFUSAL: usize = 64 * 1024;
/// What may follow the answer on its stream before the connection is given up instead of reused.
const LONGEST_REST: usize = 64 * 1024;
const FIRST_RECONNECT: Duration = Duration::from_secs(1);
/// However soon a backend wants us back.
const FASTEST_RECONNECT: Duration = Duration::from_millis(500);
const SLOWEST_RECONNECT: Duration = Duration::from_secs(30);
/// Failed reconnects of the GET stream, one after another, after which the backend is taken for lost.
const RECONNECTS_BEFORE_LOST: u32 = 2;

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
    /// The configured headers and ours that never change.
    headers: HeaderMap,
    /// The same with what the handshake settled, once it has.
    settled: OnceLock<HeaderMap>,
    session: OnceLock<HeaderValue>,
    dialect: OnceLock<Dialect>,
    next: AtomicU64,
    /// The status of the first refusal that named no request.
    refused: OnceLock<StatusCode>,
    closed: watch::Sender<Option<End>>,
}

impl HttpLink {
    pub fn new(client: HttpClient, url: Uri, mut headers: HeaderMap, limit: usize, ear: Arc<Ear>) -> HttpLink {
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(ACCEPT, JSON_OR_STREAM);
        let shared = Shared {
            client,
            url,
            ear,
            open: OpenCalls::default(),
            asides: Arc::new(Semaphore::new(MOST_ASIDES)),
            limit,
            headers,
            settled: OnceLock::new(),
            session: OnceLock::new(),
            dialect: OnceLock::new(),
            next: AtomicU64::new(1),
            refused: OnceLock::new(),
            closed: watch::Sender::new(None),
        };
        HttpLink { shared: Arc::new(shared) }
    }

    pub fn next_id(&self) -> u64 {
        self.shared.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether it refused the handshake as a server does that knows only HTTP+SSE. No permission and no health say nothing.
    pub fn may_be_sse(&self) -> bool {
        let refused = self.shared.refused.get();
        let tells = [StatusCode::BAD_REQUEST, StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
        self.shared.dialect.get().is_none() && refused.is_some_and(|status| tells.contains(status))
    }

    /// The version that the handshake settled.
    pub fn speak(&self, dialect: Dialect) {
        self.shared.dialect.get_or_init(|| dialect);
    }

    /// The handshake is over: opens the GET stream, for as long as the link lives.
    pub fn listen(&self) {
        self.shared.settled.get_or_init(|| self.shared.headers_so_far());
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            let mut closed = shared.closed.subscribe();
            tokio::select! {
                () = keep_listening(&shared) => {}
                _ = closed.wait_for(Option::is_some) => {}
            }
        });
    }

    pub async fn request(&self, id: u64, body: Bytes, call: Option<&Arc<Call>>) -> Result<Response, LinkError> {
        let _entered = call.map(|call| self.shared.open.enter(id, call));
        let response = self.shared.post(body).await?;
        if !response.status().is_success() {
            return self.shared.refusal(id, response).await;
        }
        if self.shared.session.get().is_none()
            && let Some(session) = response.headers().get(SESSION_ID)
        {
            self.shared.session.get_or_init(|| session.clone());
        }
        if is_stream(response.headers()) {
            return Shared::answer_in_stream(&self.shared, id, response.into_body(), call).await;
        }
        let body = whole_body(response.into_body(), self.shared.limit).await?;
        parse_answer(id, body)
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
        let mut closed = self.shared.closed.subscribe();
        match closed.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(End::Forgotten),
            Err(_) => End::Lost("it was closed".to_owned()),
        }
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
    fn build(&self, verb: Verb, body: Bytes) -> HttpRequest<Full<Bytes>> {
        let mut request = HttpRequest::new(Full::new(body));
        *request.method_mut() = verb;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.settled.get().cloned().unwrap_or_else(|| self.headers_so_far());
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

    async fn post(&self, body: Bytes) -> Result<HttpResponse<Incoming>, LinkError> {
        self.client.request(self.build(Verb::POST, body)).await.map_err(|error| self.unreachable(&error))
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

    fn lose_session(&self) -> LinkError {
        self.close(End::Forgotten);
        LinkError::SessionLost
    }

    /// An answer that is no success. A JSON-RPC error in it passes as it is; the rest is ours to explain.
    async fn refusal(&self, id: u64, response: HttpResponse<Incoming>) -> Result<Response, LinkError> {
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
            // Who speaks this transport takes a POST. It is another server now, and to be dialled anew.
            _ if status == StatusCode::METHOD_NOT_ALLOWED => {
                self.close(End::Lost(Trouble::Refused(status).to_string()));
            }
            Some(answer) if answer.id.is_none() => return Ok(answer),
            _ => {}
        }
        Err(LinkError::Protocol(Trouble::Refused(status).to_string()))
    }

    async fn answer_in_stream(
        shared: &Arc<Shared>,
        id: u64,
        mut body: Incoming,
        call: Option<&Arc<Call>>,
    ) -> Result<Response, LinkError> {
        let mut events = Events::new(shared.limit);
        while let Some(frame) = body.frame().await {
            let frame = frame
                .map_err(|error| LinkError::Closed { reason: format!("its stream broke off: {error}"), sent: true })?;
            let Ok(data) = frame.into_data() else { continue };
            events.feed(&data);
            while let Some(event) = events.take() {
                let answer = Shared::on_event(shared, id, event, call)?;
                if let Some(answer) = answer {
                    tokio::spawn(finish(body));
                    return Ok(answer);
                }
            }
        }
        Err(LinkError::Closed { reason: "its stream ended without an answer".to_owned(), sent: true })
    }

    /// One event on the stream of a request; tells the answer when it is that.
    fn on_event(
        shared: &Arc<Shared>,
        id: u64,
        event: Frame<crate::protocol::framing::Event>,
        call: Option<&Arc<Call>>,
    ) -> Result<Option<Response>, LinkError> {
        let data = match event {
            Frame::Whole(event) if event.data.is_empty() => return Ok(None),
            Frame::Whole(event) => event.data,
            Frame::TooLong { .. } => {
                shared.ear.emit(&Event::BackendTooLong { server: shared.ear.server() });
                return Err(LinkError::Protocol("its answer is larger than maxMessageSize".to_owned()));
            }
        };
        match Message::parse(data) {
            Ok(Message::Response(answer)) if answer.id.as_ref().and_then(Id::as_u64) == Some(id) => {
                return Ok(Some(answer));
            }
            Ok(Message::Notification(notification)) => shared.on_notification(&notification, id, call),
            Ok(Message::Request(ask)) if call.is_some() => Shared::on_ask(shared, ask, Whose::of(call)),
            other => Shared::on_other(shared, other),
        }
        Ok(None)
    }

    fn on_notification(&self, notification: &Notification, id: u64, call: Option<&Arc<Call>>) {
        let Some(call) = call else { return self.ear.hear(notification, || Whose::Nobodys) };
        if notification.method != Method::Progress {
            return self.ear.hear(notification, || Whose::of(Some(call)));
        }
        let token = notification.params.progress_token.map(|span| notification.raw.get(span));
        if token.and_then(|token| token.parse().ok()) == Some(id) {
            self.ear.hear_progress(notification, call);
        } else {
            self.ear.emit(&Event::ProgressDropped { server: self.ear.server() });
        }
    }

    fn on_ask(shared: &Arc<Shared>, ask: Request, whose: Whose) {
        shared.ear.take_ask(ask, whose, Arc::new(Aside(Arc::clone(shared))));
    }

    /// What belongs to no stream of a call.
    fn on_other(shared: &Arc<Shared>, message: Result<Message, crate::protocol::Malformed>) {
        let server = shared.ear.server();
        match message {
            Ok(Message::Request(ask)) => Shared::on_ask(shared, ask, shared.open.whose()),
            Ok(Message::Response(_)) => shared.ear.emit(&Event::AnswerWithoutCall { server }),
            Ok(Message::Notification(notification)) => shared.ear.hear(&notification, || shared.open.whose()),
            Err(malformed) => {
                shared.ear.emit(&Event::BackendGarbage { server, reason: &malformed.error.to_string() });
            }
        }
    }
}

/// Says something that nobody waits for.
struct Aside(Arc<Shared>);

impl Mouth for Aside {
    fn say(&self, message: Bytes) {
        let Ok(permit) = Arc::clone(&self.0.asides).try_acquire_owned() else {
            return self.0.ear.emit(&Event::AsideDropped { server: self.0.ear.server() });
        };
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(ASIDE, shared.post(message)).await;
            drop(permit);
        });
    }
}

/// A body of at most `limit` bytes.
pub(super) async fn whole_body(mut body: Incoming, limit: usize) -> Result<Bytes, LinkError> {
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| LinkError::Closed { reason: format!("its answer broke off: {error}"), sent: true })?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > limit {
            return Err(LinkError::Protocol("its answer is larger than maxMessageSize".to_owned()));
        }
        // An answer in one piece, as most are, is not copied.
        if first.is_empty() && rest.is_empty() {
            let expected = hyper::body::Body::size_hint(&body).lower().min(limit as u64) as usize;
            if expected == 0 {
                first = data;
            } else {
                rest.reserve(data.len() + expected);
                rest.extend_from_slice(&data);
            }
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&first);
                first = Bytes::new();
            }
            rest.extend_from_slice(&data);
        }
    }
    Ok(if rest.is_empty() { first } else { rest.freeze() })
}

fn parse_answer(id: u64, body: Bytes) -> Result<Response, LinkError> {
    if body.trim_ascii_start().first() == Some(&b'<') {
        return Err(LinkError::Protocol(Trouble::WebPage.to_string()));
    }
    match Message::parse(body) {
        Ok(Message::Response(answer)) if answer.id.as_ref().is_none_or(|answered| answered.as_u64() == Some(id)) => {
            Ok(answer)
        }
        Ok(_) => Err(LinkError::Protocol("its answer belongs to another request".to_owned())),
        Err(malformed) => Err(LinkError::Protocol(format!("its answer is no message: {}", malformed.error))),
    }
}

pub(super) fn is_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.get(..17).is_some_and(|start| start.eq_ignore_ascii_case("text/event-stream"))
}

/// The protocol says 404. Servers built on the examples of the TypeScript SDK say 400 and name the session.
pub(super) fn is_session_unknown(status: StatusCode, body: &[u8]) -> bool {
    let names_session = || String::from_utf8_lossy(body).to_ascii_lowercase().contains("session");
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => true,
        StatusCode::BAD_REQUEST => names_session(),
        _ => false,
    }
}

/// Reads what follows the answer, so that the connection can be used again.
pub(super) async fn finish(body: Incoming) {
    let rest = http_body_util::Limited::new(body, LONGEST_REST).collect();
    let _ = tokio::time::timeout(ASIDE, rest).await;
}

/// Holds the GET stream open. Whatever was said between two streams is lost, so every list is fetched anew after a gap.
async fn keep_listening(shared: &Arc<Shared>) {
    let mut last_event_id: Option<String> = None;
    let mut pause = FIRST_RECONNECT;
    let mut failures = 0;
    loop {
        let mut request = shared.build(Verb::GET, Bytes::new());
        request.headers_mut().insert(ACCEPT, STREAM);
        request.headers_mut().remove(CONTENT_TYPE);
        if let Some(id) = last_event_id.as_deref().and_then(|id| HeaderValue::from_str(id).ok()) {
            request.headers_mut().insert(LAST_EVENT_ID, id);
        }
        match shared.client.request(request).await {
            Ok(response) if response.status().is_success() && is_stream(response.headers()) => {
                (pause, failures) = (FIRST_RECONNECT, 0);
                let retry = listen_once(shared, response.into_body(), &mut last_event_id).await;
                pause = retry.unwrap_or(pause);
                shared.ear.inbox.mark(&List::ALL);
            }
            Ok(response) if response.status() == StatusCode::NOT_FOUND && shared.session.get().is_some() => {
                shared.lose_session();
                return;
            }
            // It offers no such stream.
            Ok(response) if response.status().is_client_error() => return,
            Ok(_) => {}
            Err(error) => {
                failures += 1;
                if failures >= RECONNECTS_BEFORE_LOST && error.is_safe_to_retry() {
                    return shared.close(End::Lost(error.to_string()));
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(SLOWEST_RECONNECT);
    }
}

/// Hears one GET stream to its end; tells how long the backend wants us to wait before the next.
async fn listen_once(shared: &Arc<Shared>, mut body: Incoming, last_event_id: &mut Option<String>) -> Option<Duration> {
    let mut events = Events::new(shared.limit);
    let mut retry = None;
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        events.feed(&data);
        while let Some(event) = events.take() {
            let Frame::Whole(event) = event else {
                shared.ear.emit(&Event::BackendTooLong { server: shared.ear.server() });
                continue;
            };
            let asked = event.retry.map(Duration::from_millis);
            retry = asked.map(|asked| asked.clamp(FASTEST_RECONNECT, SLOWEST_RECONNECT)).or(retry);
            *last_event_id = event.id.or(last_event_id.take());
            if !event.data.is_empty() {
                Shared::on_other(shared, Message::parse(event.data));
            }
        }
    }
    retry
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_session_is_told_apart_from_a_bad_request() {
        assert!(is_session_unknown(StatusCode::NOT_FOUND, b""));
        assert!(is_session_unknown(StatusCode::GONE, b""));
        assert!(is_session_unknown(StatusCode::BAD_REQUEST, b"Bad Request: No valid Session ID provided"));
        assert!(!is_session_unknown(StatusCode::BAD_REQUEST, b"bad arguments"));
        assert!(!is_session_unknown(StatusCode::INTERNAL_SERVER_ERROR, b"session store down"));
    }

    #[test]
    fn an_answer_to_another_request_is_refused() {
        assert!(parse_answer(1, Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{}}"#)).is_ok());
        assert!(parse_answer(1, Bytes::from_static(br#"{"jsonrpc":"2.0","id":null,"error":{}}"#)).is_ok());
        assert!(parse_answer(1, Bytes::from_static(br#"{"jsonrpc":"2.0","id":2,"result":{}}"#)).is_err());
        assert!(parse_answer(1, Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)).is_err());
    }
}
