//! Subscriptions to selected fields of a resource.
//!
//! If an update does not contain the fields, the manager holds it until a listing shows whether they changed.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
pub(crate) use goblin_subscriptions::selection::UpdateDecision;
use goblin_wire::json::Span;

use crate::client::subscriptions::{AffectedSubscription, Subscription, SubscriptionTable};
use crate::upstream::listing_view::ListingView;
use crate::upstream::subscriptions::SubscriptionManager;
use crate::upstream::subscriptions::delivery::{NotifiedClients, updated};

/// Updates that wait for a listing. Only the newest update of each resource is held.
#[derive(Default)]
pub(crate) struct DeferredUpdates {
    /// Updates held since the last listing began. That listing may be older than the update.
    fresh: HashMap<Arc<str>, Bytes>,
    /// Updates that the listing in progress decides.
    in_progress: HashMap<Arc<str>, Bytes>,
}

impl DeferredUpdates {
    pub(crate) fn hold(&mut self, native: &Arc<str>, message: &Bytes) {
        self.fresh.insert(Arc::clone(native), message.clone());
    }

    /// Assigns the held updates to a listing that now begins.
    pub(crate) fn assign_to_listing(&mut self) {
        self.in_progress.extend(self.fresh.drain());
    }

    /// Removes and returns the updates that the finished listing decides.
    pub(crate) fn take(&mut self) -> HashMap<Arc<str>, Bytes> {
        std::mem::take(&mut self.in_progress)
    }
}

impl SubscriptionManager {
    /// Stores the current fields as the baseline of a new subscription.
    pub(crate) fn record_baseline(
        &self,
        table: &SubscriptionTable,
        subscription: &Subscription,
        offered: &ListingView,
    ) {
        for native in table.covered(subscription) {
            if let Some(definition) = offered.definition(&native) {
                subscription.record_definition(&native, definition.raw.as_str());
            }
        }
    }

    /// Decides whether an update is delivered to a client.
    pub(crate) fn decide(
        &self,
        affected: &AffectedSubscription<'_>,
        native: &str,
        update: Option<(&str, Span)>,
        offered: &ListingView,
    ) -> UpdateDecision {
        if !affected.subscription.is_selective() {
            return UpdateDecision::Deliver;
        }
        let definition = offered.definition(native).map(|definition| definition.raw.as_str());
        affected.subscription.decide(native, update, definition)
    }

    /// Processes a new listing: delivers an update to each client with selected fields that changed.
    pub(crate) fn deliver_changed_fields(&self, table: &SubscriptionTable, offered: &ListingView) {
        // Match by `affected` and not by `covered`: a subscribed resource may contain the updated one.
        for (native, message) in self.held().take() {
            let mut notified = NotifiedClients::default();
            let affected = table.affected(&native);
            for affected in affected.iter().filter(|affected| affected.subscription.is_selective()) {
                if has_changed(affected.subscription, &native, offered).unwrap_or(true) && notified.is_first(affected) {
                    self.queue_held(affected, offered, &native, &message);
                }
            }
        }
        for (subscription, _) in table.all().filter(|(subscription, _)| subscription.is_selective()) {
            for native in table.covered(subscription) {
                if has_changed(subscription, &native, offered) == Some(true) {
                    let affected = AffectedSubscription { subscription, enclosing: None, is_next: false };
                    let name = self.name_of(subscription, &native);
                    self.queue_update(&affected, offered, &name, &updated(&name.exposed));
                }
            }
        }
    }
}

/// Reports whether the selected fields changed according to the current listing. Returns `None` if the resource is not
/// listed.
fn has_changed(subscription: &Subscription, native: &str, offered: &ListingView) -> Option<bool> {
    let definition = offered.definition(native)?;
    Some(subscription.decide(native, None, Some(definition.raw.as_str())) == UpdateDecision::Deliver)
}
