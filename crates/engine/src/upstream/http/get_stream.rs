//! The long-lived GET stream of a link, which carries unsolicited messages.
//!
//! The stream is resumed if the backend gives its events ids. Only the backend knows whether it replays everything.
//! After a gap, all lists are therefore fetched again and each subscriber gets one update.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use goblin_catalog::listing::List;
use goblin_client::connect::{RequestError, ResponseBody};
use goblin_client::events::{EventStream, ResumePosition, is_event_stream, is_temporary};
use goblin_telemetry::Event;
use goblin_wire::framing::Frame;
use goblin_wire::{MalformedMessage, Message, Method};
use http::{Response as HttpResponse, StatusCode};

use crate::upstream::http::HttpLinkInner;
use crate::upstream::http::resume::{backoff, start_position};
use crate::upstream::link::LinkEnd;

/// The number of failed reconnects in a row after which the backend counts as lost.
const RECONNECTS_BEFORE_LOST: u32 = 2;

/// Keeps the stream open for as long as the backend offers it.
pub(super) async fn keep_stream_open(shared: &Arc<HttpLinkInner>) {
    let (mut position, mut backoff) = (start_position(), backoff());
    let (mut unreachable, mut has_gap, mut was_open) = (0, false, false);
    loop {
        let response = shared.peer.client.send(|| shared.stream_request(position.last())).await;
        // The lister reads this as soon as the attempt has ended.
        shared.peer.inbound.lists().set_can_announce(!is_rejected(&response));
        shared.stream_attempted.send_replace(true);
        has_gap |= shared.is_used_early.swap(false, Ordering::Relaxed);
        match response {
            Ok(response) if response.status().is_success() && is_event_stream(response.headers()) => {
                backoff.reset();
                (unreachable, was_open) = (0, true);
                // Mark the lists only now: from here on the stream reports further changes.
                if has_gap {
                    shared.peer.inbound.lists().mark(&List::ALL);
                    shared.peer.inbound.subscriptions.notify_all();
                }
                read_stream(shared, EventStream::new(response.into_body(), shared.peer.limit), &mut position).await;
                position.gap();
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
            response if is_rejected(&response) => {
                // The backend may only have forgotten the event.
                if !position.forget() {
                    if has_gap {
                        shared.peer.inbound.lists().mark(&List::ALL);
                        shared.peer.inbound.subscriptions.notify_all();
                    }
                    // The backend offers no such stream.
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => {
                unreachable += 1;
                if unreachable >= RECONNECTS_BEFORE_LOST && error.is_safe_to_retry() {
                    return shared.peer.open.close(LinkEnd::Lost(error.to_string()));
                }
            }
        }
        has_gap = true;
        tokio::time::sleep(backoff.pause_from(position.retry())).await;
    }
}

/// Reports whether the backend has no such stream.
fn is_rejected(response: &Result<HttpResponse<ResponseBody>, RequestError>) -> bool {
    let status = response.as_ref().map(HttpResponse::status);
    status.is_ok_and(|status| status.is_client_error() && !is_temporary(status))
}

/// Reads one stream to its end.
async fn read_stream(shared: &Arc<HttpLinkInner>, mut stream: EventStream, position: &mut ResumePosition) {
    while let Ok(Some(event)) = stream.next().await {
        let Frame::Whole(event) = event else {
            shared.peer.inbound.emit(&Event::MessageTooLarge { server: shared.peer.inbound.server() });
            continue;
        };
        let is_new = position.note(&event);
        if event.data.is_empty() {
            continue;
        }
        let message = Message::parse(event.data);
        if is_new || is_repeatable(&message) {
            HttpLinkInner::on_other(shared, message);
        }
    }
}

/// Reports whether a repetition of this message is harmless. Some servers restart their event ids on every stream, so a
/// new message can look like a repeated one and would be lost.
fn is_repeatable(message: &Result<Message, MalformedMessage>) -> bool {
    let Ok(Message::Notification(notification)) = message else { return false };
    matches!(
        notification.method,
        Method::ToolsChanged | Method::PromptsChanged | Method::ResourcesChanged | Method::ResourceUpdated
    )
}
