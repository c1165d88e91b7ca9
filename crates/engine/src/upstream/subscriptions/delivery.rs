//! Delivers updates and deletions to the subscribed clients.
//!
//! Each update is checked against the profile in force, because a reload may have changed what a client sees since it
//! subscribed. All functions that need the lock of the manager take its state as proof. The lock keeps the updates in
//! order, and no client receives an update after its unsubscribe.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use goblin_catalog::listing::List;
use goblin_subscriptions::updates::{Update, UpdateScope};
use goblin_subscriptions::{ClientId, ResourceName, Subscriber};
use goblin_telemetry::Event;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::{Message, Method, Notification};

use crate::client::subscriptions::{AffectedSubscription, Notice, Subscription};
use crate::upstream::listing_view::ListingView;
use crate::upstream::subscriptions::{ManagerState, SubscriptionManager, selective};

impl SubscriptionManager {
    /// Handles `notifications/resources/updated` from the backend.
    pub fn on_update(&self, notification: &Notification) {
        let text = notification.raw.as_str();
        let Some(at) = notification.params.uri else { return };
        let Some(native) = json::string(text, at) else { return };
        let update = notification.params.whole.map(|params| (text, params));
        self.distribute(&native, update, |exposed| with_uri(notification, at, exposed));
    }

    /// Puts an update of `native` into the queue of every subscribed client. Updates for selected fields wait for the
    /// next listing if the fields are unknown.
    pub(super) fn distribute(&self, native: &str, update: Option<(&str, Span)>, message: impl Fn(&str) -> Bytes) {
        let offered = self.context.lists.view();
        if !offered.admits(native) {
            return;
        }
        let mut state = self.state();
        if state.table.note_change(native) {
            self.context.lists.mark(&[List::Resources]);
        }
        let affected = state.table.affected(native);
        if affected.is_empty() {
            return;
        }
        // Usually a client subscribed to exactly this resource, so its name can be shared.
        let exact = affected.iter().map(|affected| &affected.subscription.name).find(|name| *name.native == *native);
        let shared = exact.map_or_else(|| self.handed_out(native), Arc::clone);
        let mut current = exact.is_none().then(|| Arc::clone(&shared));
        let mut messages = UpdateMessages { build: message, built: Vec::new() };
        let event =
            Event::UpdateReceived { server: self.context.events.server(), uri: &shared.exposed, count: affected.len() };
        let (mut notified, mut deferred) = (NotifiedClients::default(), Vec::new());
        for affected in &affected {
            match self.decide(affected, native, update, &offered) {
                selective::UpdateDecision::Deliver if notified.is_first(affected) => {
                    let own = &affected.subscription.name;
                    let name = match own.native == shared.native {
                        true => own,
                        false => current.get_or_insert_with(|| self.handed_out(native)),
                    };
                    self.queue_update(affected, &offered, name, messages.under(name));
                }
                selective::UpdateDecision::Deliver | selective::UpdateDecision::Suppress => {}
                selective::UpdateDecision::AwaitListing => deferred.push(affected),
            }
        }
        if deferred.into_iter().any(|affected| notified.is_first(affected)) {
            self.held().hold(&shared.native, messages.under(&shared));
            self.context.lists.mark(&[List::Resources]);
        }
        self.context.events.emit(&event);
    }

    /// Sends an update for each notice, because a change may have been missed. Each client gets one update per
    /// resource. Requires the lock: it keeps the updates in order, and no client receives an update after its
    /// unsubscribe.
    pub(super) fn send_updates(&self, _state: &ManagerState, notices: &[Notice]) {
        let (offered, mut notified, mut names) = (self.context.lists.view(), HashSet::new(), HashMap::new());
        for Notice { subscription, native } in notices {
            if notified.insert((subscription.subscriber.id, native)) {
                let affected = AffectedSubscription { subscription, enclosing: None, is_next: false };
                let name = self.cached_name(&mut names, subscription, native);
                if self.is_notice_visible(subscription, &offered, native) {
                    self.enqueue(&affected, &name, &updated(&name.exposed));
                }
            }
        }
    }

    /// Notifies the subscribers that see these resources of their deletion.
    pub(super) fn send_deletions(&self, state: &ManagerState, notices: Vec<Notice>) {
        let offered = self.context.lists.view();
        let is_visible = |notice: &Notice| self.is_notice_visible(&notice.subscription, &offered, &notice.native);
        self.send_hidden(state, &notices.into_iter().filter(is_visible).collect::<Vec<_>>());
    }

    /// Notifies subscribers that resources were deleted for them. Clients without support for deletions get a marked
    /// update. Many clients may lose many resources at once, so each message is built once.
    pub(super) fn send_hidden(&self, _state: &ManagerState, notices: &[Notice]) {
        let (mut names, mut messages) = (HashMap::new(), HashMap::new());
        for Notice { subscription, native } in notices {
            subscription.forget(native);
            let name = self.cached_name(&mut names, subscription, native);
            let is_declared = subscription.subscriber.declares_subscriptions();
            // `notices` and `names` keep all names alive, so no two of them have the same address.
            let message = messages.entry((Arc::as_ptr(&name), is_declared)).or_insert_with(|| match is_declared {
                true => deleted(&name.exposed),
                false => marked_deleted(&name.exposed),
            });
            let update = update_of(subscription, &name, message);
            subscription.subscriber.update(&Update { is_deletion: true, ..update });
        }
    }

    /// Delivers the held updates, because without a listing their fields cannot be compared.
    pub fn on_listing_failed(&self) {
        let (updates, offered) = (self.held().take(), self.context.lists.view());
        let state = self.state();
        for (native, message) in updates {
            let affected = state.table.affected(&native);
            let mut notified = NotifiedClients::default();
            let selective = affected.iter().filter(|affected| affected.subscription.is_selective());
            for affected in selective.filter(|affected| notified.is_first(affected)) {
                self.queue_held(affected, &offered, &native, &message);
            }
        }
    }

    /// Notifies the clients of these subscriptions that their resources were deleted.
    pub(crate) fn announce_deleted(&self, subscriptions: Vec<Arc<Subscription>>) {
        let notice =
            |subscription: Arc<Subscription>| Notice { native: Arc::clone(&subscription.name.native), subscription };
        let notices = subscriptions.into_iter().map(notice);
        self.send_deletions(&self.state(), notices.collect());
    }

    /// Queues an update for its client, unless the client's profile hides the resource.
    pub(super) fn queue_update(
        &self,
        affected: &AffectedSubscription<'_>,
        offered: &ListingView,
        name: &Arc<ResourceName>,
        message: &Bytes,
    ) {
        if self.is_visible(affected.subscription, offered, &name.native) {
            self.enqueue(affected, name, message);
        }
    }

    /// Queues an update that waited for a listing.
    pub(super) fn queue_held(
        &self,
        affected: &AffectedSubscription<'_>,
        offered: &ListingView,
        native: &Arc<str>,
        message: &Bytes,
    ) {
        let own = &affected.subscription.name;
        let name = if own.native == *native { Arc::clone(own) } else { self.handed_out(native) };
        self.queue_update(affected, offered, &name, &renamed(message, &name.exposed));
    }

    /// Reports whether the profile in force shows a resource to the client of a subscription.
    pub(super) fn is_visible(&self, subscription: &Subscription, offered: &ListingView, native: &str) -> bool {
        let profile = subscription.subscriber.profile();
        profile.is_none_or(|profile| offered.is_shown(&self.context.events, native, &profile))
    }

    /// Reports whether a notice may be sent to the client of a subscription. A notice about a whole pattern names no
    /// resource, so only the server can be hidden.
    fn is_notice_visible(&self, subscription: &Subscription, offered: &ListingView, native: &str) -> bool {
        match subscription.pattern.is_some() && *native == *subscription.name.native {
            true => self.shows_server(subscription),
            false => self.is_visible(subscription, offered, native),
        }
    }

    /// Reports whether the profile in force shows the server to the client of a subscription.
    fn shows_server(&self, subscription: &Subscription) -> bool {
        let profile = subscription.subscriber.profile();
        profile.is_none_or(|profile| profile.shows_server(self.context.events.server()))
    }

    /// Removes the queued updates of resources that the profiles in force hide. The subscriptions of one client are
    /// together.
    pub(super) fn discard_hidden(&self, _state: &ManagerState, changed: &[Arc<Subscription>], offered: &ListingView) {
        for own in changed.chunk_by(|one, other| one.subscriber.id == other.subscriber.id) {
            let counts: HashSet<_> = own.iter().map(|subscription| Arc::as_ptr(&subscription.counts)).collect();
            let Some(subscription) = own.first() else { continue };
            subscription.subscriber.updates.discard_hidden(
                |pending| counts.contains(&Arc::as_ptr(pending)),
                |native| self.is_visible(subscription, offered, native),
            );
        }
    }

    /// Returns the name of a subscribed or listed resource for a client: that of its subscription, or the current one.
    pub(super) fn name_of(&self, subscription: &Subscription, native: &Arc<str>) -> Arc<ResourceName> {
        self.cached_name(&mut HashMap::new(), subscription, native)
    }

    /// Returns the result of [`name_of`](SubscriptionManager::name_of). Looks up each current name once.
    fn cached_name<'a>(
        &self,
        current: &mut HashMap<&'a str, Arc<ResourceName>>,
        subscription: &Subscription,
        native: &'a Arc<str>,
    ) -> Arc<ResourceName> {
        if subscription.name.native == *native {
            return Arc::clone(&subscription.name);
        }
        let name =
            || ResourceName { native: Arc::clone(native), exposed: self.context.events.expose_listed(native).into() };
        Arc::clone(current.entry(native).or_insert_with(|| Arc::new(name())))
    }

    /// Returns the current name of a resource that the backend named, and remembers that clients have it.
    fn handed_out(&self, native: &str) -> Arc<ResourceName> {
        Arc::new(ResourceName { native: native.into(), exposed: self.context.events.expose(native).into() })
    }

    /// Queues an update for its client.
    fn enqueue(&self, affected: &AffectedSubscription<'_>, name: &Arc<ResourceName>, message: &Bytes) {
        let subscription = affected.subscription;
        let enclosing = affected.enclosing.map(|native| self.name_of(subscription, native));
        let whole = enclosing.as_ref().map_or_else(Bytes::new, |enclosing| updated(&enclosing.exposed));
        let enclosing = enclosing.as_ref().map(|enclosing| UpdateScope {
            native: &enclosing.native,
            uri: &enclosing.exposed,
            message: &whole,
        });
        subscription.subscriber.update(&Update { enclosing, ..update_of(subscription, name, message) });
    }
}

fn update_of<'a>(subscription: &'a Subscription, name: &'a ResourceName, message: &'a Bytes) -> Update<'a> {
    Update {
        native: &name.native,
        uri: &name.exposed,
        message,
        delivery: subscription.delivery(),
        counts: &subscription.counts,
        is_deletion: false,
        enclosing: None,
    }
}

/// The messages of one update, one for each name that its subscribers use. Subscribers use several names only after a
/// change of the exposed names.
struct UpdateMessages<F> {
    build: F,
    built: Vec<(Arc<ResourceName>, Bytes)>,
}

impl<F: Fn(&str) -> Bytes> UpdateMessages<F> {
    fn under(&mut self, name: &Arc<ResourceName>) -> &Bytes {
        let existing = self.built.iter().position(|(other, _)| other == name);
        let at = existing.unwrap_or_else(|| {
            self.built.push((Arc::clone(name), (self.build)(&name.exposed)));
            self.built.len() - 1
        });
        &self.built[at].1
    }
}

/// Ensures that a client gets an update once, even if several of its subscriptions match.
#[derive(Default)]
pub(super) struct NotifiedClients(HashSet<ClientId>);

impl NotifiedClients {
    pub(super) fn is_first(&mut self, affected: &AffectedSubscription<'_>) -> bool {
        let subscription = affected.subscription;
        // Most clients have a single matching subscription, and the set does not store them.
        let has_several = affected.is_next || subscription.is_selective();
        !has_several || self.0.insert(subscription.subscriber.id)
    }
}

/// Returns the backend's notification with this URI in place of its own, which is at `at`.
fn with_uri(notification: &Notification, at: Span, exposed: &str) -> Bytes {
    let mut edits = Splice::new();
    edits.replace(at, quote(exposed));
    json::single_line(edits.apply(notification.raw.bytes()))
}

/// Returns an update notification with another URI.
fn renamed(message: &Bytes, exposed: &str) -> Bytes {
    let Ok(Message::Notification(notification)) = Message::parse(message.clone()) else { return updated(exposed) };
    notification.params.uri.map_or_else(|| updated(exposed), |at| with_uri(&notification, at, exposed))
}

/// Returns an update notification of the gateway itself.
pub(super) fn updated(exposed: &str) -> Bytes {
    goblin_wire::notification(&Method::ResourceUpdated, Some(&format!(r#"{{"uri":{}}}"#, quote(exposed))))
}

/// Returns a marked update, for a client without support for deletions. The client reads the resource and gets an
/// error.
fn marked_deleted(exposed: &str) -> Bytes {
    let params = format!(r#"{{"uri":{},"_meta":{{"dev.goblin/deleted":true}}}}"#, quote(exposed));
    goblin_wire::notification(&Method::ResourceUpdated, Some(&params))
}

/// Returns a deletion notification, for a client that supports it.
fn deleted(exposed: &str) -> Bytes {
    goblin_wire::notification(&Method::ResourceDeleted, Some(&format!(r#"{{"uri":{}}}"#, quote(exposed))))
}
