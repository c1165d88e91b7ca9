//! A backend over HTTP+SSE, the transport of 2024-11-05. A GET stream names the URL for POSTs and carries all messages
//! of the backend.
//!
//! The stream is the session. When it ends, the link ends and open requests fail as sent; the gateway dials again. A
//! POST that finds the session forgotten was not processed, and its request may be sent again. No other request is ever
//! sent twice.
//!
//! A peer that vanished leaves the stream open and silent. Any bytes, even comments, prove that the peer is alive.
//! After [`IDLE_BEFORE_PING`] without bytes and without open requests, which have timeouts of their own, the link sends
//! a ping.

mod endpoint;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use goblin_client::connect::ResponseBody;
use goblin_client::events::{EventStream, has_content_type, is_event_stream};
use goblin_telemetry::worker;
use goblin_wire::framing::{Frame, SseEvent};
use goblin_wire::headers::VIA;
use goblin_wire::units::duration;
use goblin_wire::via::REFUSAL;
use goblin_wire::{Id, Message, Method, Response};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method as Verb, Response as HttpResponse, Uri};
use hyper::body::Body;
use tokio::time::timeout;

use crate::client::call::Call;
use crate::upstream::http::peer::{
    BACKGROUND_TIMEOUT, HttpPeer, error_body, finish, is_session_unknown, request, response_in, retry_after,
    status_error,
};
use crate::upstream::http::{JSON, STREAM, whole_body};
use crate::upstream::inbound::ReplySink;
use crate::upstream::link::{LinkEnd, LinkError};
use crate::upstream::problem::BackendProblem;

/// The time without bytes and open requests after which the link sends a ping.
const IDLE_BEFORE_PING: Duration = Duration::from_secs(30);
/// The time that the backend has to send any bytes after a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// After the end of the stream, the time for which a POST may still report the fate of its request.
const POST_GRACE: Duration = Duration::from_millis(500);

/// A link over HTTP+SSE.
pub struct SseLink {
    shared: Arc<SseLinkInner>,
}

struct SseLinkInner {
    peer: HttpPeer,
    /// The URL for messages, once the stream has named it.
    endpoint: OnceLock<Uri>,
}

impl SseLink {
    pub(crate) fn new(peer: HttpPeer) -> SseLink {
        SseLink { shared: Arc::new(SseLinkInner { peer, endpoint: OnceLock::new() }) }
    }

    /// Opens the stream and waits for its `endpoint` event. From then on a task reads the stream for the life of the
    /// link. Pings take their ids from `next_id`.
    pub async fn open(&self, next_id: Arc<AtomicU64>) -> Result<(), LinkError> {
        let (endpoint, stream) = self.shared.open_stream().await?;
        self.shared.endpoint.get_or_init(|| endpoint);
        let shared = Arc::clone(&self.shared);
        worker::spawn(async move {
            tokio::select! {
                end = read_stream(&shared, stream, &next_id) => shared.peer.open.close(end),
                _ = shared.peer.open.closed() => {}
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
        let accepted = timeout(BACKGROUND_TIMEOUT, Arc::clone(&self.shared).post(body)).await;
        let timed_out = |_| {
            LinkError::Protocol(format!("it did not accept a notification within {}", duration(BACKGROUND_TIMEOUT)))
        };
        accepted.map_err(timed_out)?.map(drop)
    }

    pub async fn closed(&self) -> LinkEnd {
        self.shared.peer.open.closed().await
    }

    /// Closes the link. The transport has no message for that; closing the stream is enough.
    pub fn close(&self) {
        self.shared.peer.open.close(LinkEnd::Lost("the gateway closed the connection".to_owned()));
    }
}

impl SseLinkInner {
    /// Opens the GET stream and reads up to its `endpoint` event. Returns the rest of the stream as well.
    async fn open_stream(&self) -> Result<(Uri, EventStream), LinkError> {
        let HttpPeer { client, url, headers, via, limit, .. } = &self.peer;
        let build = || {
            let mut request = request(Verb::GET, url, headers.clone(), Bytes::new());
            request.headers_mut().insert(ACCEPT, STREAM);
            request.headers_mut().insert(VIA, via.clone());
            request
        };
        let response = client.send(build).await.map_err(|error| self.peer.unreachable(&error))?;
        if let Some(error) = self.peer.login_error(&response) {
            return Err(error);
        }
        let protocol = |problem: BackendProblem<'_>| LinkError::Protocol(problem.to_string());
        if !response.status().is_success() {
            let (status, body) = (response.status(), error_body(response).await);
            let text = String::from_utf8_lossy(&body);
            return Err(match text.contains(REFUSAL) {
                true => protocol(BackendProblem::HandshakeRejected(&text)),
                false => protocol(BackendProblem::HttpStatus(status)),
            });
        }
        if !is_event_stream(response.headers()) {
            return Err(protocol(BackendProblem::NoStream));
        }
        let mut stream = EventStream::new(response.into_body(), *limit);
        loop {
            let event = stream.next().await.map_err(|error| self.peer.fail(broken_stream(&error)))?;
            let ended = || self.peer.fail("its stream ended before it named an endpoint".to_owned());
            if let Frame::Whole(event) = event.ok_or_else(ended)?
                && event.name.as_deref() == Some("endpoint")
            {
                let endpoint = endpoint::resolve(url, &String::from_utf8_lossy(&event.data));
                return Ok((endpoint.map_err(LinkError::Protocol)?, stream));
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
        let (slot, mut answered) = self.peer.open.expect_answer(id, call)?;
        let mut post = Box::pin(Arc::clone(self).post(body));
        // The response may arrive on the stream before the POST is acknowledged.
        let answer = tokio::select! {
            biased;
            answer = &mut answered => match answer {
                Ok(Ok(answer)) => {
                    worker::spawn(timeout(BACKGROUND_TIMEOUT, post));
                    Ok(answer)
                }
                failure => match timeout(self.post_grace(), post).await {
                    Ok(Err(error)) => Err(error),
                    _ => failure.unwrap_or_else(|_| Err(self.peer.open.lost_error(true))),
                },
            },
            accepted = &mut post => match accepted? {
                None => answered.await.unwrap_or_else(|_| Err(self.peer.open.lost_error(true))),
                Some(answer) if answer.id.as_ref().is_none_or(|other| other.as_u64() == Some(id)) => Ok(answer),
                Some(_) => Err(LinkError::Protocol("its answer belongs to another request".to_owned())),
            },
        };
        drop(slot);
        answer
    }

    /// Posts one message. The response usually comes on the stream; some servers return it in the POST's response
    /// instead.
    async fn post(self: Arc<SseLinkInner>, body: Bytes) -> Result<Option<Response>, LinkError> {
        let endpoint = self.endpoint.get().ok_or_else(|| self.peer.open.lost_error(false))?;
        let build = || {
            let mut request = request(Verb::POST, endpoint, self.peer.headers.clone(), body.clone());
            request.headers_mut().insert(CONTENT_TYPE, JSON);
            request.headers_mut().insert(ACCEPT, JSON);
            request
        };
        let response = self.peer.client.send(build).await.map_err(|error| self.peer.unreachable(&error))?;
        if let Some(error) = self.peer.login_error(&response) {
            return Err(error);
        }
        if !response.status().is_success() {
            return self.read_rejection(response).await;
        }
        if !has_content_type(response.headers(), "application/json") {
            finish(response.into_body()).await;
            return Ok(None);
        }
        let body = self.peer.inbound.charge(whole_body(response.into_body(), self.peer.limit).await?);
        match Message::parse(body) {
            Ok(Message::Response(response)) => Ok(Some(response)),
            Err(malformed) if malformed.is_response => {
                self.peer.open.on_malformed(&malformed, &malformed.error.to_string());
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Interprets an error status. Returns a JSON-RPC response in the body, if there is one.
    async fn read_rejection(&self, response: HttpResponse<ResponseBody>) -> Result<Option<Response>, LinkError> {
        let (status, retry_after) = (response.status(), retry_after(&response));
        let body = timeout(BACKGROUND_TIMEOUT, error_body(response)).await.unwrap_or_default();
        match response_in(body.clone()) {
            Some(answer) if answer.id.is_some() => Ok(Some(answer)),
            _ if is_session_unknown(status, &body) => {
                self.peer.open.close(LinkEnd::Forgotten);
                Err(LinkError::SessionLost)
            }
            Some(answer) => Ok(Some(answer)),
            None => Err(status_error(status, retry_after)),
        }
    }

    /// Returns the time to wait for a POST after the end of the stream. A backend that forgot the session is alive and
    /// rejects every POST, so its answer is worth a longer wait.
    fn post_grace(&self) -> Duration {
        let forgotten = self.peer.open.end() == Some(LinkEnd::Forgotten);
        if forgotten { BACKGROUND_TIMEOUT } else { POST_GRACE }
    }

    fn on_event(self: &Arc<SseLinkInner>, event: Frame<SseEvent>) {
        let open = &self.peer.open;
        let event = match event {
            Frame::Whole(event) => event,
            Frame::TooLong { head } => return open.on_too_long(&head),
        };
        if event.data.is_empty() || event.name.is_some_and(|name| name != "message") {
            return;
        }
        match Message::parse(self.peer.inbound.charge(event.data)) {
            Ok(Message::Response(response)) => open.on_response(response),
            Ok(Message::Notification(notification)) => open.on_notification(&notification, || open.attribution()),
            Ok(Message::Request(request)) => {
                self.peer.inbound.on_request(request, open.attribution(), Arc::new(SseReplySink(Arc::clone(self))));
            }
            Err(malformed) => open.on_malformed(&malformed, &malformed.error.to_string()),
        }
    }

    async fn ping(self: Arc<SseLinkInner>, id: u64) {
        let body = goblin_wire::request(&Id::from(id), &Method::Ping, "{}");
        // Any response is a sign of life. The reader of the stream notices a missing one.
        let _ = timeout(PING_TIMEOUT, self.request(id, body, None)).await;
    }
}

/// Sends messages in the background. No caller waits for them.
struct SseReplySink(Arc<SseLinkInner>);

impl ReplySink for SseReplySink {
    fn send_or_drop(&self, message: Bytes) {
        self.0.peer.send_in_background(Arc::clone(&self.0).post(message));
    }

    fn answer(&self, message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(self.0.peer.answer(Arc::clone(&self.0).post(message)))
    }
}

/// Reads the stream to its end and returns the reason.
async fn read_stream<B>(shared: &Arc<SseLinkInner>, mut stream: EventStream<B>, next_id: &AtomicU64) -> LinkEnd
where
    B: Body<Data = Bytes, Error: std::error::Error> + Unpin,
{
    let mut pinged = false;
    loop {
        while let Some(event) = stream.take() {
            shared.on_event(event);
        }
        match timeout(if pinged { PING_TIMEOUT } else { IDLE_BEFORE_PING }, stream.read()).await {
            Ok(Ok(true)) => pinged = false,
            Ok(Ok(false)) => return LinkEnd::Lost("its stream ended".to_owned()),
            Ok(Err(error)) => return LinkEnd::Lost(broken_stream(&error)),
            Err(_) if pinged => {
                return LinkEnd::Lost(format!(
                    "its stream is silent, and it answered no ping within {}",
                    duration(PING_TIMEOUT)
                ));
            }
            Err(_) if shared.peer.open.is_empty() => {
                pinged = true;
                worker::spawn(Arc::clone(shared).ping(next_id.fetch_add(1, Ordering::Relaxed)));
            }
            Err(_) => {}
        }
    }
}

fn broken_stream(error: &impl std::error::Error) -> String {
    format!("its stream was cut off: {error}")
}

#[cfg(test)]
mod tests {
    use futures_util::stream::unfold;
    use http_body_util::StreamBody;
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f7_a_silent_stream_is_lost_unless_a_request_is_open() {
        let shared = SseLink::new(HttpPeer::example("127.0.0.1:9")).shared;
        let started = tokio::time::Instant::now();
        let (sender, receiver) = mpsc::channel(1);
        let frames = unfold(receiver, async |mut receiver: mpsc::Receiver<Bytes>| {
            let bytes = receiver.recv().await?;
            Some((Ok::<_, hyper::Error>(hyper::body::Frame::data(bytes)), receiver))
        });
        let body = StreamBody::new(Box::pin(frames));
        let reading = tokio::spawn({
            let shared = Arc::clone(&shared);
            async move { read_stream(&shared, EventStream::new(body, 1024), &AtomicU64::new(1)).await }
        });
        let open_request = shared.peer.open.expect_answer(7, None).expect("the link is open");
        tokio::time::sleep(10 * IDLE_BEFORE_PING).await;
        assert!(!reading.is_finished(), "the call's own timeout applies");
        drop(open_request);
        sender.send(Bytes::from_static(b": a comment\n\n")).await.expect("the stream is read");
        let received = started.elapsed();
        let LinkEnd::Lost(reason) = reading.await.expect("no panic") else { panic!("forgotten") };
        assert!(reason.contains("silent"), "{reason}");
        assert_eq!(started.elapsed() - received, IDLE_BEFORE_PING + PING_TIMEOUT);
    }
}
