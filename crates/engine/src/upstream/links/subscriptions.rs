//! The subscriptions over the links of single clients.

use std::sync::Arc;

use crate::client::caller::SessionId;
use crate::upstream::SubscriptionHandover;
use crate::upstream::links::{LinkOwner, LinkSlot, LinkTable};
use crate::upstream::subscriptions::SubscriptionManager;

impl LinkTable {
    /// Returns the subscriptions of a client. Returns `None` if the client has made no call yet.
    pub(crate) fn manager(&self, session: SessionId) -> Option<Arc<SubscriptionManager>> {
        self.find(session).map(|slot| Arc::clone(&slot.subscriptions))
    }

    pub(crate) fn managers(&self) -> Vec<Arc<SubscriptionManager>> {
        self.links.lock().clients().map(|slot| Arc::clone(&slot.subscriptions)).collect()
    }

    /// Removes and returns the subscriptions of all clients, for the backend that replaces this one.
    pub(crate) fn hand_over(&self) -> Vec<SubscriptionHandover> {
        let clients: Vec<_> = self.links.lock().clients().cloned().collect();
        let handover = |slot: Arc<LinkSlot>| SubscriptionHandover {
            client: slot.owner.clone(),
            subscriptions: slot.subscriptions.hand_over(),
        };
        clients.into_iter().map(handover).collect()
    }

    /// Returns the manager for the subscriptions of a client whose link is at the replaced backend. Starts the client's
    /// supervisor if there is none. Returns `None` if the client cannot have a link.
    pub(crate) fn successor_manager(self: &Arc<LinkTable>, client: &LinkOwner) -> Option<Arc<SubscriptionManager>> {
        let slot = self.find_or_start(&client.caller, |_| client.clone()).ok()?;
        Some(Arc::clone(&slot.subscriptions))
    }
}
