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
use crate::upstream::listen_message::{
    acknowledged_filter, cancelled_request, rejection_error, without_subscription_id,
};

impl HttpLink {
    /// Requests a stream and waits for its acknowledgement.
    pub async fn listen(&self, id: u64, body: Bytes, headers: MirrorHeaders) -> Result<ListenHandle, LinkError> {
        let response = self.shared.post_with(body, headers).await?;
        if !response.status().is_success() {
            return Err(rejection_error(&self.shared.read_rejection(id, response).await?));
        }
        let (is_stream, body) = (is_event_stream(response.headers()), response.into_body());
        if !is_stream {
            let body = whole_body(body, self.shared.peer.limit).await?;
            return Err(rejection_error(&parse_answer(id, body, &self.shared.peer.inbound)?));
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
            let event = match event {
                Ok(Some(event)) => self.read(event),
                Ok(None) => return lost("its stream ended".to_owned()),
                Err(error) => return lost(format!("its stream was cut off: {error}")),
            };
            if let Some(event) = event {
                return event;
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
            Ok(Message::Notification(notification)) if notification.method == Method::Acknowledged => {
                return Some(ListenEvent::Acknowledged(acknowledged_filter(&notification)));
            }
            Ok(Message::Notification(notification)) if cancelled_request(&notification) == Some(self.id) => {
                return Some(ListenEvent::Ended(LinkError::Protocol("it ended the stream".to_owned())));
            }
            Ok(Message::Notification(notification)) => {
                inbound
                    .on_notification(without_subscription_id(&notification).as_ref().unwrap_or(&notification), || {
                        Attribution::None
                    });
            }
            Ok(Message::Response(answer)) if answer.id.as_ref().and_then(Id::as_u64) == Some(self.id) => {
                return Some(ListenEvent::Ended(rejection_error(&answer)));
            }
            other => HttpLinkInner::on_other(&self.shared, other),
        }
        None
    }
}
