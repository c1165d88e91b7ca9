//! A backend over HTTP+SSE, the transport of 2024-11-05. A GET stream names the URL for POSTs and carries all messages
//! of the backend.
//!
//! The stream is the session. When it ends, the link ends and open requests fail as sent; the gateway dials again. A
//! POST that finds the session forgotten was not processed, and its request may be sent again. No other request is ever
//! sent twice.
//!
//! A peer that vanished leaves the stream open and silent. Any bytes, even comments, prove that the peer is alive.
//! After [`SILENCE`] without bytes and without open requests, which have timeouts of their own, the link sends a ping.

mod endpoint;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use goblin_client::connect::{HttpClient, RequestError, ResponseBody};
use goblin_telemetry::{Event, worker};
use goblin_wire::framing::{self, Frame, SseDecoder};
use goblin_wire::{Id, Message, Method, Response};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method as Verb, Request as HttpRequest, Response as HttpResponse, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::client::call::Call;
use crate::upstream::http::MAX_BACKGROUND_MESSAGES;
use crate::upstream::http::body::{ASIDE, MAX_ERROR_BODY, finish, is_session_unknown, is_stream, whole_body};
use crate::upstream::inbound::{InboundHandler, ReplySink};
use crate::upstream::link::{LinkEnd, LinkError};
use crate::upstream::open_requests::OpenRequests;
use crate::upstream::problem::BackendProblem;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
/// The time without bytes and open requests after which the link sends a ping.
const SILENCE: Duration = Duration::from_secs(30);
/// The time that the backend has to send any bytes after a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// After the end of the stream, the time for which a POST may still report the fate of its request.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// A link over HTTP+SSE.
pub struct SseLink {
    shared: Arc<SseLinkInner>,
}

struct SseLinkInner {
    client: HttpClient,
    url: Uri,
    /// The configured headers.
    headers: HeaderMap,
    /// The URL for messages, once the stream has named it.
    endpoint: OnceLock<Uri>,
    inbound: Arc<InboundHandler>,
    open: OpenRequests,
    limit: usize,
    next: AtomicU64,
    asides: Arc<Semaphore>,
    closed: watch::Sender<Option<LinkEnd>>,
}

impl SseLink {
    pub fn new(
        client: HttpClient,
        url: Uri,
        headers: HeaderMap,
        limit: usize,
        inbound: Arc<InboundHandler>,
    ) -> SseLink {
        let shared = SseLinkInner {
            client,
            url,
            headers,
            endpoint: OnceLock::new(),
            open: OpenRequests::new(Arc::clone(&inbound)),
            inbound,
            limit,
            next: AtomicU64::new(1),
            asides: Arc::new(Semaphore::new(MAX_BACKGROUND_MESSAGES)),
            closed: watch::Sender::new(None),
        };
        SseLink { shared: Arc::new(shared) }
    }

    pub fn next_id(&self) -> u64 {
        self.shared.next_id()
    }

    /// Opens the stream and waits for its `endpoint` event. From then on a task reads the stream for the life of the
    /// link.
    pub async fn open(&self) -> Result<(), LinkError> {
        let (endpoint, body, events) = self.shared.open_stream().await?;
        self.shared.endpoint.get_or_init(|| endpoint);
        let shared = Arc::clone(&self.shared);
        worker::spawn(async move {
            let mut closed = shared.closed.subscribe();
            tokio::select! {
                end = hear(&shared, body, events) => shared.close(end),
                _ = closed.wait_for(Option::is_some) => {}
            }
        });
        Ok(())
    }

    pub(crate) fn has_endpoint(&self) -> bool {
        self.shared.endpoint.get().is_some()
    }

    pub async fn request(&self, id: u64, body: Bytes, call: Option<&Arc<Call>>) -> Result<Response, LinkError> {
        self.shared.request(id, body, call).await
    }

    pub async fn notify(&self, body: Bytes) -> Result<(), LinkError> {
        let taken = timeout(ASIDE, Arc::clone(&self.shared).post(body)).await;
        let late = |_| LinkError::Protocol("it did not take a notification in time".to_owned());
        taken.map_err(late)?.map(drop)
    }

    pub async fn closed(&self) -> LinkEnd {
        let mut closed = self.shared.closed.subscribe();
        match closed.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(LinkEnd::Forgotten),
            Err(_) => LinkEnd::Lost("it was closed".to_owned()),
        }
    }

    /// Closes the link. The transport has no message for that; closing the stream is enough.
    pub fn close(&self) {
        self.shared.close(LinkEnd::Lost("the gateway closed it".to_owned()));
    }
}

impl SseLinkInner {
    fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn build(&self, verb: Verb, url: &Uri, body: Bytes) -> HttpRequest<Full<Bytes>> {
        let mut request = HttpRequest::new(Full::new(body));
        *request.method_mut() = verb;
        *request.uri_mut() = url.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// Opens the GET stream and reads up to its `endpoint` event. Returns the rest of the stream as well.
    async fn open_stream(&self) -> Result<(Uri, ResponseBody, SseDecoder), LinkError> {
        let mut request = self.build(Verb::GET, &self.url, Bytes::new());
        request.headers_mut().insert(ACCEPT, STREAM);
        let response = self.client.request(request).await.map_err(|error| self.unreachable(&error))?;
        let protocol = |trouble: BackendProblem<'_>| LinkError::Protocol(trouble.to_string());
        if !response.status().is_success() {
            return Err(protocol(BackendProblem::Refused(response.status())));
        }
        if !is_stream(response.headers()) {
            return Err(protocol(BackendProblem::NoStream));
        }
        let mut body = response.into_body();
        let mut events = SseDecoder::new(self.limit);
        loop {
            let frame = body.frame().await.transpose().map_err(|error| self.fail(broken(&error)))?;
            let frame = frame.ok_or_else(|| self.fail("its stream ended before it named an endpoint".to_owned()))?;
            events.feed(frame.data_ref().unwrap_or(&Bytes::new()));
            while let Some(event) = events.take() {
                let Frame::Whole(event) = event else { continue };
                if event.name.as_deref() == Some("endpoint") {
                    let endpoint = endpoint::resolve(&self.url, &String::from_utf8_lossy(&event.data));
                    return Ok((endpoint.map_err(LinkError::Protocol)?, body, events));
                }
            }
        }
    }

    /// Sends a request and waits for its response.
    async fn request(
        self: &Arc<SseLinkInner>,
        id: u64,
        body: Bytes,
        call: Option<&Arc<Call>>,
    ) -> Result<Response, LinkError> {
        let (slot, mut answered) = self.open.enter(id, call).ok_or_else(|| self.lost(false))?;
        let mut post = Box::pin(Arc::clone(self).post(body));
        // The response may arrive on the stream before the POST is acknowledged.
        let answer = tokio::select! {
            biased;
            answer = &mut answered => match answer {
                Ok(Ok(answer)) => {
                    worker::spawn(timeout(ASIDE, post));
                    Ok(answer)
                }
                lost => match timeout(self.last_words(), post).await {
                    Ok(Err(error)) => Err(error),
                    _ => lost.unwrap_or_else(|_| Err(self.lost(true))),
                },
            },
            taken = &mut post => match taken? {
                None => answered.await.unwrap_or_else(|_| Err(self.lost(true))),
                Some(answer) if answer.id.as_ref().is_none_or(|named| named.as_u64() == Some(id)) => Ok(answer),
                Some(_) => Err(LinkError::Protocol("its answer belongs to another request".to_owned())),
            },
        };
        drop(slot);
        answer
    }

    /// Posts one message. The response usually comes on the stream; some servers return it in the POST's response
    /// instead.
    async fn post(self: Arc<SseLinkInner>, body: Bytes) -> Result<Option<Response>, LinkError> {
        let endpoint = self.endpoint.get().ok_or_else(|| self.lost(false))?;
        let mut request = self.build(Verb::POST, endpoint, body);
        request.headers_mut().insert(CONTENT_TYPE, JSON);
        request.headers_mut().insert(ACCEPT, JSON);
        let response = self.client.request(request).await.map_err(|error| self.unreachable(&error))?;
        if !response.status().is_success() {
            return self.refusal(response).await;
        }
        if !is_json(response.headers()) {
            finish(response.into_body()).await;
            return Ok(None);
        }
        let body = self.inbound.hold(whole_body(response.into_body(), self.limit).await?);
        match Message::parse(body) {
            Ok(Message::Response(response)) => Ok(Some(response)),
            Err(malformed) if malformed.is_answer => {
                self.open.on_malformed(&malformed);
                self.inbound.report_malformed(&malformed, &malformed.error.to_string());
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Interprets an error status. Returns a JSON-RPC response in the body, if there is one.
    async fn refusal(&self, response: HttpResponse<ResponseBody>) -> Result<Option<Response>, LinkError> {
        let status = response.status();
        let body = timeout(ASIDE, Limited::new(response.into_body(), MAX_ERROR_BODY).collect()).await;
        let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
        match response_in(body.clone()) {
            Some(answer) if answer.id.is_some() => Ok(Some(answer)),
            _ if is_session_unknown(status, &body) => {
                self.close(LinkEnd::Forgotten);
                Err(LinkError::SessionLost)
            }
            Some(answer) => Ok(Some(answer)),
            None => Err(LinkError::Protocol(BackendProblem::Refused(status).to_string())),
        }
    }

    /// Returns the error for a failed POST. Closes the link if not even a connection could be opened.
    fn unreachable(&self, error: &RequestError) -> LinkError {
        if error.is_safe_to_retry() {
            return self.fail(error.to_string());
        }
        LinkError::Closed { reason: error.to_string(), sent: true }
    }

    /// Closes the link for a failure before a request was sent.
    fn fail(&self, reason: String) -> LinkError {
        self.close(LinkEnd::Lost(reason.clone()));
        LinkError::Closed { reason, sent: false }
    }

    /// Returns the time to wait for a POST after the end of the stream. A backend that forgot the session is alive and
    /// rejects every POST, so its answer is worth a longer wait.
    fn last_words(&self) -> Duration {
        let forgotten = matches!(*self.closed.borrow(), Some(LinkEnd::Forgotten));
        if forgotten { ASIDE } else { LAST_WORDS }
    }

    fn lost(&self, sent: bool) -> LinkError {
        let reason = match &*self.closed.borrow() {
            Some(LinkEnd::Forgotten) if !sent => return LinkError::SessionLost,
            Some(LinkEnd::Forgotten) => LinkError::SessionLost.to_string(),
            Some(LinkEnd::Lost(reason)) => reason.clone(),
            None => "the connection was lost".to_owned(),
        };
        LinkError::Closed { reason, sent }
    }

    fn close(&self, end: LinkEnd) {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            closed.get_or_insert(end);
            first
        });
        self.open.close(&self.lost(true));
    }

    fn on_event(self: &Arc<SseLinkInner>, event: Frame<framing::SseEvent>) {
        let event = match event {
            Frame::Whole(event) => event,
            Frame::TooLong { head } => return self.open.on_too_long(&head),
        };
        if event.data.is_empty() || event.name.is_some_and(|name| name != "message") {
            return;
        }
        match Message::parse(self.inbound.hold(event.data)) {
            Ok(Message::Response(response)) => self.open.on_response(response),
            Ok(Message::Notification(notification)) => self.open.on_notification(&notification),
            Ok(Message::Request(ask)) => self.open.on_ask(ask, Arc::new(SseReplySink(Arc::clone(self)))),
            Err(malformed) => {
                self.open.on_malformed(&malformed);
                self.inbound.report_malformed(&malformed, &malformed.error.to_string());
            }
        }
    }

    async fn ping(self: Arc<SseLinkInner>) {
        let id = self.next_id();
        let body = goblin_wire::request(&Id::from(id), &Method::Ping, "{}");
        // Any response is a sign of life. The reader of the stream notices a missing one.
        let _ = timeout(PING_TIMEOUT, self.request(id, body, None)).await;
    }
}

/// Sends messages in the background. No caller waits for them.
struct SseReplySink(Arc<SseLinkInner>);

impl ReplySink for SseReplySink {
    fn say(&self, message: Bytes) {
        let shared = &self.0;
        match Arc::clone(&shared.asides).try_acquire_owned() {
            Ok(permit) => {
                let said = timeout(ASIDE, Arc::clone(shared).post(message));
                worker::spawn(async move {
                    let _ = said.await;
                    drop(permit);
                });
            }
            Err(_) => shared.inbound.emit(&Event::AsideDropped { server: shared.inbound.server() }),
        }
    }

    fn answer(&self, message: Bytes) -> BoxFuture<'_, ()> {
        let SseReplySink(shared) = self;
        Box::pin(async move {
            if timeout(ASIDE, Arc::clone(shared).post(message)).await.is_err() {
                shared.inbound.emit(&Event::AsideDropped { server: shared.inbound.server() });
            }
        })
    }
}

/// Reads the stream to its end and returns the reason.
async fn hear<B: Body<Data = Bytes> + Unpin>(shared: &Arc<SseLinkInner>, mut body: B, mut events: SseDecoder) -> LinkEnd
where
    B::Error: std::error::Error,
{
    let mut pinged = false;
    loop {
        while let Some(event) = events.take() {
            shared.on_event(event);
        }
        match timeout(if pinged { PING_TIMEOUT } else { SILENCE }, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                pinged = false;
                events.feed(frame.data_ref().unwrap_or(&Bytes::new()));
            }
            Ok(Some(Err(error))) => return LinkEnd::Lost(broken(&error)),
            Ok(None) => return LinkEnd::Lost("its stream ended".to_owned()),
            Err(_) if pinged => {
                return LinkEnd::Lost(format!("its stream is silent, and it answered no ping within {PING_TIMEOUT:?}"));
            }
            Err(_) if shared.open.is_empty() => {
                pinged = true;
                worker::spawn(Arc::clone(shared).ping());
            }
            Err(_) => {}
        }
    }
}

fn broken(error: &impl std::error::Error) -> String {
    format!("its stream broke off: {error}")
}

fn response_in(body: Bytes) -> Option<Response> {
    match Message::parse(body) {
        Ok(Message::Response(response)) => Some(response),
        _ => None,
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.get(..16).is_some_and(|start| start.eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use futures_util::stream::unfold;
    use goblin_client::connect::ProxyEnvironment;
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;

    use super::*;

    fn link() -> SseLink {
        let url: Uri = "http://127.0.0.1:9/sse".parse().expect("a url");
        let client = HttpClient::new(&url, None, &ProxyEnvironment::default()).expect("a client");
        SseLink::new(client, url, HeaderMap::new(), 1024, Arc::new(InboundHandler::example()))
    }

    #[tokio::test(start_paused = true)]
    async fn f7_a_stream_is_silent_for_long_only_while_something_is_open() {
        let shared = link().shared;
        let begin = tokio::time::Instant::now();
        let (sender, receiver) = mpsc::channel::<&'static [u8]>(1);
        let frames = unfold(receiver, async |mut receiver| {
            let bytes = receiver.recv().await?;
            Some((Ok::<_, hyper::Error>(hyper::body::Frame::data(Bytes::from_static(bytes))), receiver))
        });
        let body = StreamBody::new(Box::pin(frames));
        let hearing = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move { hear(&shared, body, SseDecoder::new(1024)).await }
        });
        let busy = shared.open.enter(7, None).expect("it is open");
        tokio::time::sleep(10 * SILENCE).await;
        assert!(!hearing.is_finished(), "the call's own deadline counts");
        drop(busy);
        sender.send(b": a comment\n\n").await.expect("it is heard");
        let heard = begin.elapsed();
        let LinkEnd::Lost(reason) = hearing.await.expect("no panic") else { panic!("forgotten") };
        assert!(reason.contains("silent"), "{reason}");
        assert_eq!(begin.elapsed() - heard, SILENCE + PING_TIMEOUT);
    }
}
