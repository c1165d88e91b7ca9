//! Relays one server request (sampling, elicitation, roots) from a backend to a client and the response back.
//!
//! The request goes out on the stream of the call it belongs to, or on the session's stream. It ends with the client's
//! response, or when the backend cancels it, its link or its call ends, the client disappears, or the timeout expires.
//! The relay notifies the other side of such an end. The idle timeout of the call is paused while the request is
//! open. A backend that answers its call early still receives the client's response.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use goblin_telemetry::worker;
use goblin_wire::json::{self, Splice, quote};
use goblin_wire::{Dialect, Error, Id, Method, Notification, Request};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use crate::client::Client;
use crate::client::call::Call;
use crate::client::caller::ClientCapabilities;
use crate::client::server_requests::{MAX_SERVER_REQUESTS, OpenServerRequest, ServerRequestError, ServerRequestEvent};
use crate::upstream::inbound::{InboundHandler, InboundRequest, ReplySink};

/// The client that receives a server request.
pub(crate) struct Recipient {
    pub client: Arc<Client>,
    pub client_capabilities: Arc<ClientCapabilities>,
    pub dialect: Dialect,
    /// The client's calls on the link. The server request may belong to any of them.
    pub calls: SmallVec<[Arc<Call>; 2]>,
    /// Whether the link belongs to this client alone.
    pub is_own: bool,
}

/// The reason why a server request ended without a response from the client.
enum ServerRequestEnd {
    /// The backend cancelled the request or its link ended. The backend expects no response.
    Cancelled(String),
    /// The call was cancelled or timed out. The backend was notified of that, but it may still wait for this response.
    CallEnded,
    TimedOut(Duration),
    ClientDisconnected,
}

impl Recipient {
    /// Sends the request on the stream of one of the calls, or else on the session's stream. Returns whether a stream
    /// took it.
    pub(crate) fn send(&self, message: &Bytes) -> bool {
        self.calls.iter().any(|call| call.queue_request(message.clone()))
            || self.client.has_stream() && self.client.post(message.clone())
    }

    /// Notifies the client that the server request with `id` was cancelled.
    pub(crate) fn notify_cancelled(&self, id: u64, reason: &str) {
        if !self.dialect.has_server_requests() {
            // The client got the request as the result of a call. Its protocol version has no message that cancels
            // such a request.
            return;
        }
        let params = format!(r#"{{"requestId":{id},"reason":{}}}"#, quote(reason));
        let message = goblin_wire::notification(&Method::Cancelled, Some(&params));
        let is_sent = self.calls.iter().any(|call| call.offer(message.clone()));
        if !is_sent {
            // If the client's queue is full, the client learns of the cancellation when its response has no effect.
            self.client.post(message);
        }
    }

    /// Waits until every call that the request may belong to was cancelled or timed out. Waits for ever if one of them
    /// got its response, or if there are no calls.
    async fn abandoned(&self) {
        for call in &self.calls {
            call.abandoned().await;
        }
        if self.calls.is_empty() {
            std::future::pending().await
        }
    }
}

/// A guard that pauses the idle timeouts of calls.
struct IdlePauses<'a>(&'a [Arc<Call>]);

impl<'a> IdlePauses<'a> {
    fn new(calls: &'a [Arc<Call>]) -> IdlePauses<'a> {
        calls.iter().for_each(|call| call.pause_idle_timeout());
        IdlePauses(calls)
    }
}

impl Drop for IdlePauses<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|call| call.resume_idle_timeout());
    }
}

/// Relays a request that the link has registered under the backend's id. Returns at once; a new task waits for the
/// response.
pub(crate) fn relay(
    inbound: &Arc<InboundHandler>,
    request: Request,
    recipient: Recipient,
    mut opened: InboundRequest,
    reply_sink: Arc<dyn ReplySink>,
) {
    let open = match recipient.client.open_request() {
        Ok(open) => open,
        Err(error) => {
            let error = match error {
                ServerRequestError::Full => {
                    Error::LimitExceeded { limit: "serverRequests", value: MAX_SERVER_REQUESTS }
                }
                ServerRequestError::Closed => disconnected(),
            };
            return inbound.reject(&request, &error, &*reply_sink);
        }
    };
    // The backend announces the end of an elicitation later. Only clients with a stream for unsolicited messages can
    // receive that.
    if request.method == Method::Elicit && !recipient.is_own && recipient.dialect.has_server_requests() {
        inbound.events.remember_elicitation(&request, &recipient.client);
    }
    // Send before the link reads its next message, to preserve the order.
    let mut edits = inbound.events.translate_request(&request, recipient.dialect);
    inbound.expose_related_task(request.raw.as_str(), request.params.whole, &mut edits);
    if !recipient.send(&outgoing(&request, open.id, edits)) {
        return inbound.reject(&request, &disconnected(), &*reply_sink);
    }
    let inbound = Arc::clone(inbound);
    worker::spawn(async move {
        let ended = wait(&inbound, &request, &recipient, open, &mut opened.cancelled, &*reply_sink).await;
        inbound.remove_request(&request.id);
        if let Some(answer) = response_for(&request, ended, &inbound) {
            reply_sink.answer(answer).await;
        }
        // Free the slot only after the response is sent, so that the slots also limit responses in transit.
        drop(opened);
    });
}

/// Returns the response to the backend. Returns `None` if the backend expects none.
fn response_for(request: &Request, ended: Result<Bytes, ServerRequestEnd>, inbound: &InboundHandler) -> Option<Bytes> {
    let error = match ended {
        Ok(answer) => return Some(answer),
        Err(ServerRequestEnd::Cancelled(_)) => return None,
        Err(ServerRequestEnd::CallEnded) => {
            Error::ClientUnavailable { reason: "its call was cancelled or timed out".to_owned() }
        }
        Err(ServerRequestEnd::TimedOut(after)) => Error::Unanswered { method: request.method.to_string(), after },
        Err(ServerRequestEnd::ClientDisconnected) => disconnected(),
    };
    Some(inbound.rejection(request, &error))
}

/// Returns the request for the client, with the gateway's id. A progress token is replaced by one of the gateway.
fn outgoing(request: &Request, id: u64, mut edits: Splice) -> Bytes {
    let id = Id::from(id);
    if let Some(at) = request.params.known_meta.progress_token {
        edits.replace(at, id.token());
    }
    json::single_line(request.rekeyed(&id, edits))
}

/// Waits for the client's response and forwards its progress. If the request ends otherwise, notifies the client of the
/// cancellation.
async fn wait(
    inbound: &InboundHandler,
    request: &Request,
    recipient: &Recipient,
    mut open: OpenServerRequest,
    cancelled: &mut oneshot::Receiver<String>,
    reply_sink: &dyn ReplySink,
) -> Result<Bytes, ServerRequestEnd> {
    let _idle_pause = IdlePauses::new(&recipient.calls);
    let timed_out = async {
        match inbound.response_timeout() {
            Some(timeout) => {
                tokio::time::sleep(timeout).await;
                timeout
            }
            None => std::future::pending().await,
        }
    };
    tokio::pin!(timed_out);
    let ended = loop {
        tokio::select! {
            biased;
            event = open.next() => match event {
                ServerRequestEvent::Answer(answer) => {
                    let edits = inbound.restore_related_task(answer.raw.as_str(), answer.outcome.span());
                    return Ok(answer.rekeyed(&request.id_as_written(), edits).concat());
                }
                ServerRequestEvent::Progress(progress) => reply_sink.send_or_drop(progress_for(request, &progress)),
                ServerRequestEvent::Closed => break ServerRequestEnd::ClientDisconnected,
            },
            reason = &mut *cancelled => {
                let link_ended = |_| "the connection to the server ended".to_owned();
                break ServerRequestEnd::Cancelled(reason.unwrap_or_else(link_ended));
            }
            () = recipient.abandoned() => break ServerRequestEnd::CallEnded,
            after = &mut timed_out => break ServerRequestEnd::TimedOut(after),
        }
    };
    match &ended {
        ServerRequestEnd::Cancelled(reason) => recipient.notify_cancelled(open.id, reason),
        ServerRequestEnd::CallEnded => recipient.notify_cancelled(open.id, "its call was cancelled or timed out"),
        ServerRequestEnd::TimedOut(_) => recipient.notify_cancelled(open.id, "the gateway's timeout expired"),
        ServerRequestEnd::ClientDisconnected => {}
    }
    Err(ended)
}

/// Returns the client's progress notification with the backend's token. A client that received no token sends no
/// progress.
fn progress_for(request: &Request, progress: &Notification) -> Bytes {
    let token = request.params.known_meta.progress_token;
    let mut edits = Splice::new();
    if let (Some(at), Some(token)) = (progress.params.progress_token, token) {
        edits.replace(at, token.slice(request.raw.bytes()));
    }
    edits.apply(progress.raw.bytes())
}

fn disconnected() -> Error {
    Error::ClientUnavailable { reason: "it disconnected, or has no open stream for server requests".to_owned() }
}
