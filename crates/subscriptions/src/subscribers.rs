//! The subscribers of one resource or pattern, and those among them that wait for a response. A client has at most one
//! subscription in the set, but may have several waiting requests for it.

use std::collections::HashMap;
use std::sync::Arc;

use futures_channel::oneshot::{self, Receiver, Sender};

use crate::{ClientId, Notice, ResourceName, SubscribeOutcome, SubscribeRequest, Subscriber, Subscription};

pub(crate) struct Subscribers<S> {
    by_client: HashMap<ClientId, Arc<Subscription<S>>>,
    waiting: Vec<SubscribeWaiter>,
}

struct SubscribeWaiter {
    client: ClientId,
    /// True if this request created the subscription. A rejection then removes the subscription.
    is_new: bool,
    outcome: Sender<SubscribeOutcome>,
}

impl<S> Default for Subscribers<S> {
    fn default() -> Subscribers<S> {
        Subscribers { by_client: HashMap::new(), waiting: Vec::new() }
    }
}

impl<S: Subscriber> Subscribers<S> {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_client.is_empty()
    }

    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.by_client.contains_key(&client)
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&Arc<Subscription<S>>> {
        self.by_client.get(&client)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Subscription<S>>> {
        self.by_client.values()
    }

    /// Returns notices about `native` for all subscribers.
    pub(crate) fn notices(&self, native: &Arc<str>) -> impl Iterator<Item = Notice<S>> {
        self.all().map(|subscription| Notice { subscription: Arc::clone(subscription), native: Arc::clone(native) })
    }

    /// Returns the name for a new subscription. Subscribers use the same name unless the exposed names changed, so they
    /// share it.
    pub(crate) fn name_for(&self, request: &SubscribeRequest<S>) -> Arc<ResourceName> {
        let other = self.all().next().map(|subscription| &subscription.name);
        other.filter(|name| name.exposed == request.exposed).map_or_else(|| request.name(), Arc::clone)
    }

    pub(crate) fn insert(&mut self, subscription: &Arc<Subscription<S>>) {
        self.by_client.insert(subscription.subscriber.id(), Arc::clone(subscription));
    }

    pub(crate) fn remove(&mut self, client: ClientId) -> Option<Arc<Subscription<S>>> {
        let subscription = self.by_client.remove(&client)?;
        self.waiting.retain(|waiter| waiter.client != client);
        Some(subscription)
    }

    /// Reports whether a client still waits for a response.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|waiter| !waiter.outcome.is_canceled())
    }

    /// Adds a waiting request. The receiver gets the outcome.
    pub(crate) fn wait(&mut self, client: ClientId, is_new: bool) -> Receiver<SubscribeOutcome> {
        let (outcome, receiver) = oneshot::channel();
        self.waiting.push(SubscribeWaiter { client, is_new, outcome });
        receiver
    }

    /// Sends the outcome to all waiting requests. Returns the subscriptions that these requests created and that a
    /// rejection ends.
    pub(crate) fn settle(&mut self, outcome: &SubscribeOutcome) -> Vec<Arc<Subscription<S>>> {
        let mut rejected = Vec::new();
        for SubscribeWaiter { client, is_new, outcome: sender } in std::mem::take(&mut self.waiting) {
            if is_new && outcome.is_rejection() {
                rejected.extend(self.get(client).cloned());
            }
            if sender.send(outcome.clone()).is_err() && !outcome.is_rejection() {
                // The client has cancelled its request and will call `withdraw`. Keep the entry until then.
                self.waiting.push(SubscribeWaiter { client, is_new, outcome: oneshot::channel().0 });
            }
        }
        rejected
    }

    /// Removes the cancelled requests of a client. Returns true if they created the subscription and no other request
    /// of the client waits for it. The caller must then remove the subscription.
    pub(crate) fn withdraw(&mut self, client: ClientId) -> bool {
        let is_cancelled = |waiter: &SubscribeWaiter| waiter.client == client && waiter.outcome.is_canceled();
        let was_new = self.waiting.iter().any(|waiter| is_cancelled(waiter) && waiter.is_new);
        self.waiting.retain(|waiter| !is_cancelled(waiter));
        match self.waiting.iter_mut().find(|waiter| waiter.client == client) {
            Some(other) => {
                other.is_new |= was_new;
                false
            }
            None => was_new,
        }
    }
}
