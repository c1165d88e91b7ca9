//! Notification streams (`subscriptions/listen`) over a channel that all messages share. Each notification names its
//! stream. When the gateway no longer wants a stream, it cancels the request.

use std::sync::Arc;

use bytes::Bytes;
use goblin_wire::{Method, notification};
use tokio::sync::mpsc;

use crate::upstream::inbound::ReplySink;
use crate::upstream::link::LinkError;
use crate::upstream::listen::{ListenEvent, ListenHandle, ListenSource, listen};
use crate::upstream::stdio::{StdioLink, StdioLinkInner};

impl StdioLink {
    /// Requests a stream and waits for its acknowledgement.
    pub async fn listen(&self, id: u64, body: Bytes) -> Result<ListenHandle, LinkError> {
        let events = self.shared.open.expect_stream(id)?;
        let mut stream = StdioListenStream { shared: Arc::clone(&self.shared), id, events, is_open: false };
        self.shared.send(body).await?;
        stream.is_open = true;
        listen(stream).await
    }
}

/// A stream and the entry of its request.
struct StdioListenStream {
    shared: Arc<StdioLinkInner>,
    id: u64,
    events: mpsc::Receiver<ListenEvent>,
    /// Whether the backend has the request and has not ended the stream.
    is_open: bool,
}

impl ListenSource for StdioListenStream {
    async fn next(&mut self) -> ListenEvent {
        let lost = || ListenEvent::Lost(self.shared.open.lost_error(true));
        let event = self.events.recv().await.unwrap_or_else(lost);
        self.is_open = matches!(event, ListenEvent::Acknowledged(_));
        event
    }
}

impl Drop for StdioListenStream {
    fn drop(&mut self) {
        self.shared.open.forget(self.id);
        if self.is_open {
            let params = format!(r#"{{"requestId":{},"reason":"the gateway no longer needs this stream"}}"#, self.id);
            self.shared.send_or_drop(notification(&Method::Cancelled, Some(&params)));
        }
    }
}
