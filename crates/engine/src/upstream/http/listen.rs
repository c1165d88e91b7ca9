//! The standing GET stream of a link, which carries unsolicited messages.
//!
//! The stream is resumed if the backend gives its events ids. Only the backend knows whether it replays everything.
//! After a gap, all lists are therefore fetched again and each subscriber gets one update.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use goblin_catalog::listing::List;
use goblin_client::connect::ResponseBody;
use goblin_telemetry::Event;
use goblin_wire::framing::{Frame, SseDecoder};
use goblin_wire::{MalformedMessage, Message, Method};
use http::StatusCode;
use http_body_util::BodyExt;

use crate::upstream::http::body::is_stream;
use crate::upstream::http::trail::ResumePosition;
use crate::upstream::http::{HttpLinkInner, is_passing};
use crate::upstream::link::LinkEnd;

/// The number of failed reconnects in a row after which the backend counts as lost.
const RECONNECTS_BEFORE_LOST: u32 = 2;

/// Keeps the stream open for as long as the backend offers it.
pub(super) async fn keep_listening(shared: &Arc<HttpLinkInner>) {
    let mut trail = ResumePosition::default();
    let (mut in_vain, mut unreachable, mut has_gap, mut was_open) = (0, 0, false, false);
    loop {
        let response = shared.client.request(shared.stream_request(trail.position())).await;
        shared.tried_stream.send_replace(true);
        has_gap |= shared.is_deaf.swap(false, Ordering::Relaxed);
        match response {
            Ok(response) if response.status().is_success() && is_stream(response.headers()) => {
                (in_vain, unreachable, was_open) = (0, 0, true);
                // Mark the lists only now: from here on the stream reports further changes.
                if has_gap {
                    shared.inbound.inbox.mark(&List::ALL);
                    shared.inbound.register.doubt();
                }
                listen_once(shared, response.into_body(), &mut trail).await;
                trail.gap();
            }
            Ok(response) if response.status() == StatusCode::NOT_FOUND && shared.session.get().is_some() => {
                shared.lose_session();
                return;
            }
            // The backend offered a stream before, so it was replaced by another server, perhaps one without sessions.
            Ok(response) if response.status() == StatusCode::METHOD_NOT_ALLOWED && was_open => {
                shared.lose_session();
                return;
            }
            Ok(response) if response.status().is_client_error() && !is_passing(response.status()) => {
                // The backend may only have forgotten the event.
                if trail.position().is_some() {
                    trail.forget_position();
                } else {
                    if has_gap {
                        shared.inbound.inbox.mark(&List::ALL);
                        shared.inbound.register.doubt();
                    }
                    // The backend offers no such stream.
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => {
                unreachable += 1;
                if unreachable >= RECONNECTS_BEFORE_LOST && error.is_safe_to_retry() {
                    return shared.close(LinkEnd::Lost(error.to_string()));
                }
            }
        }
        has_gap = true;
        tokio::time::sleep(trail.pause(in_vain)).await;
        in_vain += 1;
    }
}

/// Reads one stream to its end.
async fn listen_once(shared: &Arc<HttpLinkInner>, mut body: ResponseBody, trail: &mut ResumePosition) {
    let mut events = SseDecoder::new(shared.limit);
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        events.feed(&data);
        while let Some(event) = events.take() {
            let Frame::Whole(event) = event else {
                shared.inbound.emit(&Event::BackendTooLong { server: shared.inbound.server() });
                continue;
            };
            let is_news = trail.note(&event);
            if event.data.is_empty() {
                continue;
            }
            let message = Message::parse(event.data);
            if is_news || is_level(&message) {
                HttpLinkInner::on_other(shared, message);
            }
        }
    }
}

/// Reports whether a repetition of this message is harmless. Some servers restart their event ids on every stream, so a
/// new message can look like a repeated one and would be lost.
fn is_level(message: &Result<Message, MalformedMessage>) -> bool {
    let Ok(Message::Notification(notification)) = message else { return false };
    matches!(
        notification.method,
        Method::ToolsChanged | Method::PromptsChanged | Method::ResourcesChanged | Method::ResourceUpdated
    )
}
