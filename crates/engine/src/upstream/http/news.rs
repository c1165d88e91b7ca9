//! Notification streams over HTTP: a `subscriptions/listen` request with an event stream that stays open until one side
//! ends it.

use std::sync::Arc;

use bytes::Bytes;
use goblin_client::connect::ResponseBody;
use goblin_telemetry::{Event, worker};
use goblin_wire::framing::{Frame, SseDecoder};
use goblin_wire::listen::ListenFilter;
use goblin_wire::mirrored::MirrorHeaders;
use goblin_wire::{Id, Message, Method, Notification};
use http_body_util::BodyExt;
use tokio::sync::oneshot;

use crate::upstream::http::body::{is_stream, parse_answer, whole_body};
use crate::upstream::http::{HttpLink, HttpLinkInner};
use crate::upstream::inbound::Attribution;
use crate::upstream::link::{LinkEnd, LinkError};
use crate::upstream::listen::{ListenHandle, ListenOutcome};
use crate::upstream::news::{ends, honoured, refusal_in, unsubscribed};

impl HttpLink {
    /// Requests a stream and waits for its acknowledgement.
    pub async fn listen(&self, id: u64, body: Bytes, headers: MirrorHeaders) -> Result<ListenHandle, LinkError> {
        let response = self.shared.post_with(body, headers).await?;
        if !response.status().is_success() {
            return Err(refusal_in(&self.shared.refusal(id, response).await?));
        }
        if !is_stream(response.headers()) {
            let body = whole_body(response.into_body(), self.shared.limit).await?;
            return Err(refusal_in(&parse_answer(id, body, &self.shared.inbound)?));
        }
        let events = SseDecoder::new(self.shared.limit);
        let mut stream = HttpListenStream { shared: Arc::clone(&self.shared), id, body: response.into_body(), events };
        let honoured = stream.acknowledged().await?;
        let ((told, over), (hold, held)) = (oneshot::channel(), oneshot::channel());
        worker::spawn(async move {
            let shared = Arc::clone(&stream.shared);
            let over = tokio::select! {
                over = stream.hear() => over,
                // Dropping the stream closes its connection, which ends it for the backend.
                _ = held => return,
                end = shared.closed() => match end {
                    LinkEnd::Lost(reason) => ListenOutcome::Lost(reason),
                    LinkEnd::Forgotten => ListenOutcome::Lost(LinkError::SessionLost.to_string()),
                },
            };
            // The holder of the stream may no longer wait for its end.
            let _ = told.send(over);
        });
        Ok(ListenHandle { honoured, over, hold })
    }
}

/// An open stream with its read buffer.
struct HttpListenStream {
    shared: Arc<HttpLinkInner>,
    id: u64,
    body: ResponseBody,
    events: SseDecoder,
}

/// An event of a stream other than a notification.
enum ListenEvent {
    Acknowledged(ListenFilter),
    /// The response, which ends the stream.
    Ended(LinkError),
}

impl HttpListenStream {
    async fn acknowledged(&mut self) -> Result<ListenFilter, LinkError> {
        match self.next().await {
            Ok(ListenEvent::Acknowledged(honoured)) => Ok(honoured),
            Ok(ListenEvent::Ended(refusal)) => Err(refusal),
            Err(reason) => Err(LinkError::Closed { reason, sent: true }),
        }
    }

    async fn hear(&mut self) -> ListenOutcome {
        loop {
            match self.next().await {
                Ok(ListenEvent::Acknowledged(_)) => {}
                Ok(ListenEvent::Ended(_)) => return ListenOutcome::Ended,
                Err(reason) => return ListenOutcome::Lost(reason),
            }
        }
    }

    fn hear_one(&self, news: &Notification) {
        match unsubscribed(news) {
            Some(news) => self.shared.inbound.hear(&news, || Attribution::Nobodys),
            None => self.shared.inbound.hear(news, || Attribution::Nobodys),
        }
    }

    /// Handles notifications until another event arrives. Returns an error with the reason if the stream ends.
    async fn next(&mut self) -> Result<ListenEvent, String> {
        loop {
            while let Some(event) = self.events.take() {
                if let Some(said) = self.read(event) {
                    return Ok(said);
                }
            }
            let data = match self.body.frame().await {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Err(format!("its stream broke off: {error}")),
                None => return Err("its stream ended".to_owned()),
            };
            self.events.feed(&data);
        }
    }

    fn read(&self, event: Frame<goblin_wire::framing::SseEvent>) -> Option<ListenEvent> {
        let server = self.shared.inbound.server();
        let Frame::Whole(event) = event else {
            self.shared.inbound.emit(&Event::BackendTooLong { server });
            return None;
        };
        if event.data.is_empty() {
            return None;
        }
        match Message::parse(event.data) {
            Ok(Message::Notification(news)) if news.method == Method::Acknowledged => {
                Some(ListenEvent::Acknowledged(honoured(&news)))
            }
            Ok(Message::Notification(news)) if ends(&news, self.id) => {
                Some(ListenEvent::Ended(LinkError::Protocol("it ended the stream".to_owned())))
            }
            Ok(Message::Notification(news)) => {
                self.hear_one(&news);
                None
            }
            Ok(Message::Response(answer)) if answer.id.as_ref().and_then(Id::as_u64) == Some(self.id) => {
                Some(ListenEvent::Ended(refusal_in(&answer)))
            }
            other => {
                HttpLinkInner::on_other(&self.shared, other);
                None
            }
        }
    }
}
