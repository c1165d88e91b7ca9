//! The subscribers of one resource or pattern, and those among them that wait for a response. A client has at most one
//! subscription in an audience, but may have several waiting requests for it.

use std::collections::HashMap;
use std::sync::Arc;

use futures_channel::oneshot::{self, Receiver, Sender};

use crate::{ClientId, Notice, ResourceName, SubscribeOutcome, Subscriber, Subscription};

pub(crate) struct Subscribers<S> {
    subscribers: HashMap<ClientId, Arc<Subscription<S>>>,
    waiting: Vec<SubscribeWaiter>,
}

struct SubscribeWaiter {
    client: ClientId,
    /// True if this request created the subscription. A refusal then removes the subscription.
    is_new: bool,
    outcome: Sender<SubscribeOutcome>,
}

impl<S> Default for Subscribers<S> {
    fn default() -> Subscribers<S> {
        Subscribers { subscribers: HashMap::new(), waiting: Vec::new() }
    }
}

impl<S: Subscriber> Subscribers<S> {
    pub(crate) fn is_empty(&self) -> bool {
        self.subscribers.is_empty()
    }

    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.subscribers.contains_key(&client)
    }

    pub(crate) fn get(&self, client: ClientId) -> Option<&Arc<Subscription<S>>> {
        self.subscribers.get(&client)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Subscription<S>>> {
        self.subscribers.values()
    }

    /// Returns notices about `name` for all subscribers.
    pub(crate) fn notices(&self, name: &Arc<ResourceName>) -> impl Iterator<Item = Notice<S>> {
        self.all().map(|it| Notice { subscription: Arc::clone(it), name: Arc::clone(name) })
    }

    pub(crate) fn enter(&mut self, subscription: &Arc<Subscription<S>>) {
        self.subscribers.insert(subscription.subscriber.id(), Arc::clone(subscription));
    }

    pub(crate) fn leave(&mut self, client: ClientId) -> Option<Arc<Subscription<S>>> {
        let subscription = self.subscribers.remove(&client)?;
        self.waiting.retain(|waiting| waiting.client != client);
        Some(subscription)
    }

    /// Reports whether a client still waits for a response.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.outcome.is_canceled())
    }

    /// Adds a waiting request. The receiver gets the outcome.
    pub(crate) fn wait(&mut self, client: ClientId, is_new: bool) -> Receiver<SubscribeOutcome> {
        let (outcome, settled) = oneshot::channel();
        self.waiting.push(SubscribeWaiter { client, is_new, outcome });
        settled
    }

    /// Sends the outcome to all waiting requests. Returns the subscriptions that these requests created and that a
    /// refusal ends.
    pub(crate) fn settle(&mut self, outcome: &SubscribeOutcome) -> Vec<Arc<Subscription<S>>> {
        let mut refused = Vec::new();
        for SubscribeWaiter { client, is_new, outcome: sender } in std::mem::take(&mut self.waiting) {
            if is_new && outcome.is_refusal() {
                refused.extend(self.get(client).cloned());
            }
            if sender.send(outcome.clone()).is_err() && !outcome.is_refusal() {
                // The client has cancelled its request and will call `withdraw`. Keep the entry until then.
                self.waiting.push(SubscribeWaiter { client, is_new, outcome: oneshot::channel().0 });
            }
        }
        refused
    }

    /// Removes the cancelled requests of a client. Returns true if they created the subscription and no other request
    /// of the client waits for it. The caller must then remove the subscription.
    pub(crate) fn withdraw(&mut self, client: ClientId) -> bool {
        let is_over = |waiting: &SubscribeWaiter| waiting.client == client && waiting.outcome.is_canceled();
        let was_new = self.waiting.iter().any(|waiting| is_over(waiting) && waiting.is_new);
        self.waiting.retain(|waiting| !is_over(waiting));
        match self.waiting.iter_mut().find(|waiting| waiting.client == client) {
            Some(other) => {
                other.is_new |= was_new;
                false
            }
            None => was_new,
        }
    }
}
