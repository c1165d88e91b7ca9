//! Forwards the notifications of one client over its own link.

use bytes::Bytes;
use goblin_telemetry::Event;
use tokio::sync::mpsc;

use crate::upstream::levels::{can_set_level, set_own_level};
use crate::upstream::link::LinkLevel;
use crate::upstream::links::LinkSlot;
use crate::upstream::supervisor::{ConnectedLink, LinkPolicy, SET_LEVEL_TIMEOUT, Supervisor};

/// Forwards the client's notifications in order. Drops and counts those that the link rejects. Also sends the client's
/// log level when it changes.
pub(super) async fn forward_notifications(
    slot: &LinkSlot,
    notifications: &mut mpsc::Receiver<Bytes>,
    connected: &ConnectedLink,
) {
    let (Some(owner), events) = (&slot.owner, slot.subscriptions.events()) else { return };
    if owner.client.requested_level().is_none() && can_set_level(connected) {
        connected.link.level.send_replace(LinkLevel::Set(None));
    }
    loop {
        tokio::select! {
            biased;
            message = notifications.recv() => {
                let Some(message) = message else { return };
                // A version without a handshake has no state that a client's notification could change.
                if connected.hello.dialect.has_handshake() && connected.link.notify(message).await.is_err() {
                    events.emit(&Event::ReplyDropped { server: events.server() });
                }
            }
            () = slot.level.notified() => {
                // Later notifications wait meanwhile, to preserve the order.
                let _ = tokio::time::timeout(SET_LEVEL_TIMEOUT, set_own_level(owner, connected)).await;
            }
        }
    }
}

impl Supervisor {
    /// Drops queued notifications of the client, because they refer to the old connection.
    pub(super) fn drop_notifications(&mut self) {
        if let LinkPolicy::Client(notifications) = &mut self.policy {
            while notifications.try_recv().is_ok() {}
        }
    }
}
