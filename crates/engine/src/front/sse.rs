//! HTTP+SSE, the transport of 2024-11-05: a stream at `/sse`, and a URL for POSTs that its first event names.
//!
//! All messages to the client go on that stream. A POST gets status 202 as soon as its message is parsed. The session
//! lives as long as the stream. The URL carries an id of the stream, not of the session, so neither id works on the
//! other transport.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use goblin_telemetry::{Event, Observe, worker};
use goblin_wire::json::Pieces;
use goblin_wire::{Error, MalformedMessage};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method as Verb, Response, StatusCode};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::client::Client;
use crate::client::call::CallEvent;
use crate::client::caller::SessionId;
use crate::client::pending::PendingCall;
use crate::front::body::{self, Body, event};
use crate::front::duplex::{DuplexClient, MessageOutcome, error_reply};
use crate::front::http::HttpFront;
use crate::front::outbound::{EnqueueError, OutboundQueue, OutboundWriter};
use crate::front::request::{
    HttpRequest, Rejection, check_accepts_stream, check_is_json, method_not_allowed, read_body,
};
use crate::front::stream::{EventSource, ListChanges, all_events, into_events, next_unsolicited};
use crate::front::via::NamedGateways;
use crate::upstream::supervisor::stopped;

pub(crate) const SSE: &str = "/sse";
pub(crate) const MESSAGES: &str = "/messages";

impl HttpFront {
    /// Handles a GET: opens a stream and reserves a session. Other methods get status 405, by which clients detect that
    /// the URL is of another transport.
    pub(crate) fn open_stream(&self, request: &HttpRequest) -> Result<Response<Body>, Rejection> {
        if request.method() != Verb::GET {
            return Ok(method_not_allowed("GET"));
        }
        check_accepts_stream(request.headers())?;
        let gateways = NamedGateways::read(request.headers());
        gateways.check(&self.dispatcher.router.catalogs.gateway)?;
        let duplex =
            DuplexClient::new(&self.dispatcher, &self.observe, self.profile.clone()).map_err(|error| match error {
                Error::LimitExceeded { .. } => Rejection { status: StatusCode::SERVICE_UNAVAILABLE, error, id: None },
                error => error.into(),
            })?;
        let id = self.dispatcher.sessions.new_id();
        let is_gateway = !gateways.is_empty();
        let client = Arc::new(SseClient { is_gateway, ..SseClient::new(id, duplex, Arc::clone(&self.observe)) });
        let stream = ClientStream {
            greeting: Some(Bytes::from(format!("event: endpoint\ndata: {MESSAGES}?sessionId={id}\n\n"))),
            initialized: client.initialized.subscribe(),
            changes: self.changes(),
            stop: self.stop.clone(),
            entry: self.streams.insert(client),
        };
        Ok(body::events(into_events(stream)))
    }

    /// Handles a POST: a message of the client that the query names.
    pub(crate) async fn receive_message(&self, request: HttpRequest) -> Result<Response<Body>, Rejection> {
        if request.method() != Verb::POST {
            return Ok(method_not_allowed("POST"));
        }
        check_is_json(request.headers())?;
        let client = self.streams.find(request.uri().query().unwrap_or_default())?;
        let raw = read_body(request.into_body(), self.max_body_size, &self.observe).await?;
        if client.duplex.is_ended() {
            return Err(unknown());
        }
        client.handle_body(raw)?;
        let mut response = Response::new(Body::from(Pieces::from("Accepted".to_owned())));
        *response.status_mut() = StatusCode::ACCEPTED;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        Ok(response)
    }
}

fn unknown() -> Rejection {
    Rejection::status(StatusCode::NOT_FOUND, "unknown session; open a stream with GET /sse")
}

/// The open streams by their id.
#[derive(Default)]
pub(crate) struct SseClients(RwLock<HashMap<SessionId, Arc<SseClient>>>);

impl SseClients {
    fn insert(self: &Arc<SseClients>, client: Arc<SseClient>) -> SseClientGuard {
        self.0.write().insert(client.id, Arc::clone(&client));
        SseClientGuard { streams: Arc::clone(self), client }
    }

    /// Returns the client that the query names. Returns an error if there is none.
    fn find(&self, query: &str) -> Result<Arc<SseClient>, Rejection> {
        let mut names = query.split('&').filter_map(|pair| pair.strip_prefix("sessionId="));
        let (Some(name), None) = (names.next(), names.next()) else {
            let reason = "the query must name one sessionId; the first event of GET /sse has it";
            return Err(Rejection::status(StatusCode::BAD_REQUEST, reason));
        };
        let id = name.parse::<SessionId>().map_err(|()| unknown())?;
        let client = self.0.read().get(&id).cloned();
        client.filter(|client| !client.duplex.is_ended()).ok_or_else(unknown)
    }
}

/// A guard that keeps a client in the table as long as its stream is open. Dropping it ends the session.
struct SseClientGuard {
    streams: Arc<SseClients>,
    client: Arc<SseClient>,
}

impl Drop for SseClientGuard {
    fn drop(&mut self) {
        self.streams.0.write().remove(&self.client.id);
        self.client.end("the stream ended");
    }
}

struct SseClient {
    id: SessionId,
    duplex: DuplexClient,
    outbound: Arc<OutboundQueue>,
    /// The session, after the client has finished the handshake.
    initialized: watch::Sender<Option<Arc<Client>>>,
    observe: Arc<Observe>,
    /// Whether the client is another gateway.
    is_gateway: bool,
}

impl SseClient {
    fn new(id: SessionId, duplex: DuplexClient, observe: Arc<Observe>) -> SseClient {
        let (outbound, initialized) = (Arc::default(), watch::Sender::new(None));
        SseClient { id, duplex, outbound, initialized, observe, is_gateway: false }
    }

    /// Handles the body of a POST: one message, or a batch if the version has batches. Returns an error if it is
    /// malformed.
    fn handle_body(self: &Arc<SseClient>, raw: Bytes) -> Result<(), MalformedMessage> {
        let Some(batch) = self.duplex.split_batch(&raw) else { return self.handle_message(raw) };
        for message in batch? {
            if let Err(malformed) = self.handle_message(message) {
                self.answer(error_reply(&malformed));
            }
        }
        Ok(())
    }

    fn handle_message(self: &Arc<SseClient>, raw: Bytes) -> Result<(), MalformedMessage> {
        match self.duplex.handle_message(raw)? {
            MessageOutcome::Nothing => {}
            MessageOutcome::Initialized(session) => {
                if self.is_gateway {
                    session.mark_as_gateway();
                }
                self.initialized.send_replace(Some(session));
            }
            MessageOutcome::Answer(answer) => drop(self.answer(answer)),
            // This transport has no requests without a handshake, so this does not occur.
            MessageOutcome::Listening(..) => {}
            // A separate task finishes the call, however its POST ends.
            MessageOutcome::Call(pending, _) => {
                drop(worker::spawn(send_call_events(pending, Arc::clone(self), self.outbound.writer())))
            }
        }
        Ok(())
    }

    /// Queues an answer or a server request. Returns `false` if the client cannot read it any more. If the queue is
    /// full, the session ends, because the client would wait for the message forever.
    fn answer(&self, answer: Pieces) -> bool {
        match self.outbound.push(answer) {
            Ok(()) => true,
            Err(EnqueueError::Closed) => false,
            Err(EnqueueError::Full) => {
                let session = self.duplex.session().and_then(|client| client.session).unwrap_or(self.id);
                self.observe.emit(&Event::ClientSlow { session: &session.short() });
                self.end("the client does not read its messages");
                false
            }
        }
    }

    fn end(&self, reason: &str) {
        self.duplex.end(reason);
        self.outbound.close();
    }
}

/// Sends the messages and the answer of a call to the client's stream.
async fn send_call_events(mut pending: PendingCall, client: Arc<SseClient>, _writer: OutboundWriter) {
    loop {
        match pending.next().await {
            CallEvent::Message(message) => {
                if !client.outbound.offer(message.into()) {
                    pending.report_dropped();
                }
            }
            CallEvent::Request(message) => drop(client.answer(message.into())),
            CallEvent::Done(Some(answer)) => {
                if !client.answer(answer.pieces) {
                    pending.report_unread();
                }
                return;
            }
            CallEvent::Done(None) => return,
            CallEvent::Slow => {}
        }
    }
}

/// The event stream of a client. It ends if the client is too slow. On shutdown it ends after the open calls are
/// answered.
struct ClientStream {
    greeting: Option<Bytes>,
    initialized: watch::Receiver<Option<Arc<Client>>>,
    changes: ListChanges,
    stop: watch::Receiver<bool>,
    /// The table entry. Dropping it ends the session.
    entry: SseClientGuard,
}

impl EventSource for ClientStream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(greeting) = self.greeting.take() {
            return Some(greeting);
        }
        let outbound = Arc::clone(&self.entry.client.outbound);
        let finish = async {
            stopped(&mut self.stop).await;
            outbound.finish();
            std::future::pending().await
        };
        let unsolicited = async {
            let session = self.initialized.wait_for(Option::is_some).await.ok()?.clone()?;
            next_unsolicited(&session, &mut self.changes).await
        };
        tokio::select! {
            biased;
            // This branch never completes. The queue ends the stream.
            () = finish => None,
            // These come before the answers, which could delay them forever. They are too rare to delay the answers.
            Some(messages) = unsolicited => Some(all_events(messages)),
            message = outbound.next() => message.map(event),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use tokio::time::Instant;

    use super::*;
    use crate::dispatcher::Dispatcher;
    use crate::front::body::KEEP_ALIVE;
    use crate::front::stream::KEEP_ALIVE_EVERY;

    #[tokio::test(start_paused = true)]
    async fn http1_a_quiet_stream_sends_keep_alives() {
        let (dispatcher, observe) = (Arc::new(Dispatcher::example(9)), Arc::default());
        let duplex = DuplexClient::new(&dispatcher, &observe, None).expect("there is room");
        let client = Arc::new(SseClient::new(dispatcher.sessions.new_id(), duplex, observe));
        let stop = watch::Sender::new(false);
        let stream = ClientStream {
            greeting: None,
            initialized: client.initialized.subscribe(),
            changes: ListChanges::new(&dispatcher.router.catalogs, None),
            stop: stop.subscribe(),
            entry: Arc::<SseClients>::default().insert(Arc::clone(&client)),
        };
        let mut events = Box::pin(into_events(stream));
        for _ in 0..3 {
            let begin = Instant::now();
            assert_eq!(events.next().await, Some(KEEP_ALIVE));
            assert_eq!(begin.elapsed(), KEEP_ALIVE_EVERY);
        }
        assert!(client.answer("{}".to_owned().into()));
        assert_eq!(events.next().await.as_deref(), Some(&b"event: message\ndata: {}\n\n"[..]));
        assert_eq!(dispatcher.sessions.len(), 1);
        drop(events);
        assert_eq!(dispatcher.sessions.len(), 0);
        assert!(!client.answer("{}".to_owned().into()));
    }
}
