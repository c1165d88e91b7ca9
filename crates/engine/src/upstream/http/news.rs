//! Notification streams over HTTP: a `subscriptions/listen` request with an event stream that stays open until one side
//! ends it.

use std::sync::Arc;

use bytes::Bytes;
use goblin_client::events::{EventStream, is_event_stream};
use goblin_telemetry::Event;
use goblin_wire::framing::{Frame, SseEvent};
use goblin_wire::mirrored::MirrorHeaders;
use goblin_wire::{Id, Message, Method};

use crate::upstream::http::{HttpLink, HttpLinkInner, parse_answer, whole_body};
use crate::upstream::inbound::Attribution;
use crate::upstream::link::LinkError;
use crate::upstream::listen::{ListenEvent, ListenHandle, ListenSource, listen};
use crate::upstream::news::{cancelled_request, honoured, refusal_in, unsubscribed};

impl HttpLink {
    /// Requests a stream and waits for its acknowledgement.
    pub async fn listen(&self, id: u64, body: Bytes, headers: MirrorHeaders) -> Result<ListenHandle, LinkError> {
        let response = self.shared.post_with(body, headers).await?;
        if !response.status().is_success() {
            return Err(refusal_in(&self.shared.refusal(id, response).await?));
        }
        let (is_stream, body) = (is_event_stream(response.headers()), response.into_body());
        if !is_stream {
            let body = whole_body(body, self.shared.peer.limit).await?;
            return Err(refusal_in(&parse_answer(id, body, &self.shared.peer.inbound)?));
        }
        let stream = EventStream::new(body, self.shared.peer.limit);
        listen(HttpListenStream { shared: Arc::clone(&self.shared), id, stream }).await
    }
}

/// An open stream. Dropping it closes its connection, which ends it for the backend.
struct HttpListenStream {
    shared: Arc<HttpLinkInner>,
    id: u64,
    stream: EventStream,
}

impl ListenSource for HttpListenStream {
    async fn next(&mut self) -> ListenEvent {
        let lost = |reason| ListenEvent::Lost(LinkError::Closed { reason, sent: true });
        let shared = Arc::clone(&self.shared);
        loop {
            let event = tokio::select! {
                event = self.stream.next() => event,
                end = shared.peer.open.closed() => return lost(end.reason()),
            };
            let said = match event {
                Ok(Some(event)) => self.read(event),
                Ok(None) => return lost("its stream ended".to_owned()),
                Err(error) => return lost(format!("its stream broke off: {error}")),
            };
            if let Some(said) = said {
                return said;
            }
        }
    }
}

impl HttpListenStream {
    fn read(&self, event: Frame<SseEvent>) -> Option<ListenEvent> {
        let inbound = &self.shared.peer.inbound;
        let Frame::Whole(event) = event else {
            inbound.emit(&Event::MessageTooLarge { server: inbound.server() });
            return None;
        };
        if event.data.is_empty() {
            return None;
        }
        match Message::parse(event.data) {
            Ok(Message::Notification(news)) if news.method == Method::Acknowledged => {
                return Some(ListenEvent::Acknowledged(honoured(&news)));
            }
            Ok(Message::Notification(news)) if cancelled_request(&news) == Some(self.id) => {
                return Some(ListenEvent::Ended(LinkError::Protocol("it ended the stream".to_owned())));
            }
            Ok(Message::Notification(news)) => {
                inbound.hear(unsubscribed(&news).as_ref().unwrap_or(&news), || Attribution::Nobodys);
            }
            Ok(Message::Response(answer)) if answer.id.as_ref().and_then(Id::as_u64) == Some(self.id) => {
                return Some(ListenEvent::Ended(refusal_in(&answer)));
            }
            other => HttpLinkInner::on_other(&self.shared, other),
        }
        None
    }
}
