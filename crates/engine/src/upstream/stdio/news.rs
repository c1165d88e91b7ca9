//! Notification streams (`subscriptions/listen`) over a channel that all messages share. Each notification names its
//! stream.
//!
//! Each stream has one task. It holds the entry of the stream's request, because the response to that request ends the
//! stream. When the gateway no longer wants the stream, the task cancels the request.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use goblin_telemetry::worker;
use goblin_wire::listen::ListenFilter;
use goblin_wire::{Method, Notification, notification};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::upstream::inbound::{Attribution, InboundHandler, ReplySink};
use crate::upstream::link::LinkError;
use crate::upstream::listen::{ListenHandle, ListenOutcome};
use crate::upstream::news::{ends, honoured, refusal_in, subscription_of, unsubscribed};
use crate::upstream::stdio::{StdioLink, StdioLinkInner};

/// The open and the requested streams, by the ids of their requests.
#[derive(Default)]
pub(crate) struct StdioListenStreams(Mutex<HashMap<u64, StreamEntry>>);

/// The channels to the task of a stream.
struct StreamEntry {
    acknowledged: Option<oneshot::Sender<ListenFilter>>,
    /// Dropped when the backend cancels the stream instead of answering its request.
    _ended: oneshot::Sender<()>,
}

impl StdioListenStreams {
    /// Handles a notification of a stream. Returns `false` if it belongs to none.
    pub(crate) fn take(&self, inbound: &InboundHandler, news: &Notification) -> bool {
        if news.method == Method::Cancelled {
            let mut streams = self.0.lock();
            let id = streams.keys().copied().find(|id| ends(news, *id));
            return id.and_then(|id| streams.remove(&id)).is_some();
        }
        let Some(id) = subscription_of(news) else { return false };
        if news.method == Method::Acknowledged {
            let acknowledged = self.0.lock().get_mut(&id).and_then(|stream| stream.acknowledged.take());
            // The task may have ended meanwhile.
            let _ = acknowledged.map(|acknowledged| acknowledged.send(honoured(news)));
            return true;
        }
        inbound.hear(unsubscribed(news).as_ref().unwrap_or(news), || Attribution::Nobodys);
        true
    }
}

/// The entry of a stream. Dropping it removes the entry.
struct StreamEntryGuard<'a> {
    streams: &'a StdioListenStreams,
    id: u64,
}

impl Drop for StreamEntryGuard<'_> {
    fn drop(&mut self) {
        self.streams.0.lock().remove(&self.id);
    }
}

/// The channels between a stream's task and the holder of its [`ListenHandle`].
struct StreamChannels {
    ready: oneshot::Sender<Result<ListenFilter, LinkError>>,
    over: oneshot::Sender<ListenOutcome>,
    held: oneshot::Receiver<()>,
}

impl StdioLink {
    /// Requests a stream and waits for its acknowledgement.
    pub async fn listen(&self, id: u64, body: Bytes) -> Result<ListenHandle, LinkError> {
        let (ready, readied) = oneshot::channel();
        let ((told, over), (hold, held)) = (oneshot::channel(), oneshot::channel());
        worker::spawn(keep(Arc::clone(&self.shared), id, body, StreamChannels { ready, over: told, held }));
        let honoured = readied.await.unwrap_or_else(|_| Err(self.shared.lost(true)))?;
        Ok(ListenHandle { honoured, over, hold })
    }
}

/// Runs one stream from its request to its end.
async fn keep(shared: Arc<StdioLinkInner>, id: u64, body: Bytes, mut ends: StreamChannels) {
    let (acknowledged, mut acknowledgement) = oneshot::channel();
    let (ended, mut is_ended) = oneshot::channel();
    shared.streams.0.lock().insert(id, StreamEntry { acknowledged: Some(acknowledged), _ended: ended });
    let _entered = StreamEntryGuard { streams: &shared.streams, id };
    let Some((_slot, mut answered)) = shared.open.enter(id, None) else {
        drop(ends.ready.send(Err(shared.lost(false))));
        return;
    };
    if let Err(error) = shared.send(body).await {
        drop(ends.ready.send(Err(error)));
        return;
    }
    let first = tokio::select! {
        biased;
        Ok(honoured) = &mut acknowledgement => Ok(honoured),
        answer = &mut answered => Err(match answer {
            Ok(Ok(answer)) => refusal_in(&answer),
            Ok(Err(error)) => error,
            Err(_) => shared.lost(true),
        }),
        _ = &mut is_ended => Err(LinkError::Protocol("it ended the stream instead of acknowledging it".to_owned())),
        () = ends.ready.closed() => return tell_unwanted(&shared, id),
    };
    let is_open = first.is_ok();
    if ends.ready.send(first).is_err() && is_open {
        return tell_unwanted(&shared, id);
    }
    if !is_open {
        return;
    }
    let over = tokio::select! {
        biased;
        answer = &mut answered => match answer {
            Ok(Ok(_)) => ListenOutcome::Ended,
            Ok(Err(error)) => ListenOutcome::Lost(error.to_string()),
            Err(_) => ListenOutcome::Lost(shared.lost(true).to_string()),
        },
        _ = &mut is_ended => ListenOutcome::Ended,
        _ = &mut ends.held => return tell_unwanted(&shared, id),
    };
    // The holder of the stream may no longer wait for its end.
    let _ = ends.over.send(over);
}

/// Cancels the request of a stream.
fn tell_unwanted(shared: &StdioLinkInner, id: u64) {
    let params = format!(r#"{{"requestId":{id},"reason":"nobody listens any more"}}"#);
    shared.say(notification(&Method::Cancelled, Some(&params)));
}
