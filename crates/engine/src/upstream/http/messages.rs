//! Handles the messages of a backend that arrive in event streams: on the stream of a request, and outside of it.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use goblin_telemetry::Event;
use goblin_wire::framing::{Frame, SseEvent};
use goblin_wire::{Id, MalformedMessage, Message, Request, Response};

use crate::client::call::Call;
use crate::upstream::http::HttpLinkInner;
use crate::upstream::inbound::{Attribution, ReplySink};
use crate::upstream::link::LinkError;
use crate::upstream::open_requests::{is_answer, limit_error};

impl HttpLinkInner {
    /// Handles one event on the stream of a request. Returns the response if the event holds it.
    pub(super) fn on_event(
        shared: &Arc<HttpLinkInner>,
        id: u64,
        event: Frame<SseEvent>,
        call: Option<&Arc<Call>>,
    ) -> Result<Option<Response>, LinkError> {
        let Some(data) = shared.data(event)? else { return Ok(None) };
        match Message::parse(data) {
            Ok(Message::Response(answer)) if answer.id.as_ref().and_then(Id::as_u64) == Some(id) => {
                return Ok(Some(answer));
            }
            Ok(Message::Notification(notification)) => {
                shared.peer.open.on_notification(&notification, || Attribution::of(call))
            }
            Ok(Message::Request(request)) => HttpLinkInner::on_request(shared, request, Attribution::of(call)),
            Err(malformed) if shared.is_response_to(&malformed, id) => return Err(shared.malformed_error(&malformed)),
            other => HttpLinkInner::on_other(shared, other),
        }
        Ok(None)
    }

    /// Reports whether this is the response to the request `id` and exceeds a limit.
    pub(super) fn is_response_to(&self, malformed: &MalformedMessage, id: u64) -> bool {
        malformed.is_response && malformed.id.as_ref().and_then(Id::as_u64) == Some(id)
    }

    pub(super) fn malformed_error(&self, malformed: &MalformedMessage) -> LinkError {
        self.peer.inbound.report_malformed(malformed, &malformed.error.to_string());
        limit_error(malformed).unwrap_or_else(|| LinkError::Protocol(malformed.error.to_string()))
    }

    /// Returns the data of an event on the stream of a request. Returns `None` for an event without data.
    pub(super) fn data(&self, event: Frame<SseEvent>) -> Result<Option<Bytes>, LinkError> {
        match event {
            Frame::Whole(event) => {
                Ok(Some(event.data).filter(|data| !data.is_empty()).map(|data| self.peer.inbound.charge(data)))
            }
            Frame::TooLong { head } => {
                self.peer.inbound.emit(&Event::MessageTooLarge { server: self.peer.inbound.server() });
                match is_answer(&head) {
                    true => Err(LinkError::too_large()),
                    false => Ok(None),
                }
            }
        }
    }

    /// Handles a server request. Versions without sessions have none, so it is only reported there.
    fn on_request(shared: &Arc<HttpLinkInner>, request: Request, attribution: Attribution) {
        if !shared.has_sessions {
            return shared.peer.inbound.emit(&unexpected_request(shared.peer.inbound.server(), &request));
        }
        shared.peer.inbound.on_request(request, attribution, Arc::new(HttpReplySink(Arc::clone(shared))));
    }

    pub(super) fn on_replayed_request(shared: &Arc<HttpLinkInner>, request: Request) {
        shared.peer.inbound.on_replayed_request(
            request,
            shared.peer.open.attribution(),
            Arc::new(HttpReplySink(Arc::clone(shared))),
        );
    }

    /// Handles a message outside of the stream of a call.
    pub(super) fn on_other(shared: &Arc<HttpLinkInner>, message: Result<Message, MalformedMessage>) {
        let server = shared.peer.inbound.server();
        match message {
            Ok(Message::Request(request)) => HttpLinkInner::on_request(shared, request, shared.peer.open.attribution()),
            Ok(Message::Response(_)) => shared.peer.inbound.emit(&Event::AnswerWithoutCall { server }),
            Ok(Message::Notification(notification)) => {
                shared.peer.open.on_notification(&notification, || shared.peer.open.attribution())
            }
            Err(malformed) => {
                shared.peer.inbound.report_malformed(&malformed, &malformed.error.to_string());
            }
        }
    }
}

/// Returns the event for a server request in a version without server requests. No client can answer it.
fn unexpected_request<'a>(server: &'a str, request: &'a Request) -> Event<'a> {
    let reason = "this protocol version has no server requests";
    Event::ServerRequestRejected { server, method: request.method.as_str(), reason }
}

/// Sends messages in the background. No caller waits for them.
struct HttpReplySink(Arc<HttpLinkInner>);

impl ReplySink for HttpReplySink {
    fn send_or_drop(&self, message: Bytes) {
        let shared = Arc::clone(&self.0);
        self.0.peer.send_in_background(async move { shared.post(message).await });
    }

    fn answer(&self, message: Bytes) -> BoxFuture<'_, ()> {
        Box::pin(self.0.peer.answer(self.0.post(message)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::upstream::http::HttpLink;
    use crate::upstream::http::peer::{HttpPeer, MAX_BACKGROUND_MESSAGES};

    #[tokio::test]
    async fn a_server_request_on_a_stream_of_the_gateway_reaches_no_client() {
        let shared = HttpLink::new(HttpPeer::example("127.0.0.1:9")).shared;
        let call = Arc::new(Call::example());
        let _entry = shared.peer.open.add(1, &call);
        let receive = |id: u64, call| {
            let data = Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"vendor/request"}"#);
            let event = Frame::Whole(SseEvent { data, ..SseEvent::default() });
            assert!(matches!(HttpLinkInner::on_event(&shared, id, event, call), Ok(None)));
        };
        receive(2, None);
        assert!(call.try_next().is_none());
        receive(1, Some(&call));
        assert!(call.try_next().is_some());
    }

    #[tokio::test]
    async fn f6_an_oversized_message_fails_a_call_only_if_it_is_its_answer() {
        let shared = HttpLink::new(HttpPeer::example("127.0.0.1:9")).shared;
        let too_long = |head: &'static str| shared.data(Frame::TooLong { head: head.into() });
        assert!(too_long(r#"{"result":{"content":[{"type":"text","text":"xxx"#).is_err());
        assert!(matches!(too_long(r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"#), Ok(None)));
    }

    /// The response is sent even if the limit of background messages to a slow backend is reached.
    #[tokio::test]
    async fn an_answer_to_a_server_request_is_not_dropped_at_the_message_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("the listener is bound");
        let reply_sink = HttpReplySink(HttpLink::new(HttpPeer::example(&address.to_string())).shared);
        (0..MAX_BACKGROUND_MESSAGES).for_each(|_| reply_sink.send_or_drop(Bytes::from_static(b"progress")));
        let received = async {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut bytes = Vec::new();
                while !bytes.ends_with(b"progress") && !bytes.ends_with(b"answer") {
                    stream.read_buf(&mut bytes).await.expect("a request");
                }
                if bytes.ends_with(b"answer") {
                    return;
                }
                open.push(stream);
            }
        };
        tokio::select! {
            () = reply_sink.answer(Bytes::from_static(b"answer")) => panic!("the POST has no response"),
            received = tokio::time::timeout(Duration::from_secs(10), received) => received.expect("the answer arrives"),
        }
    }
}
