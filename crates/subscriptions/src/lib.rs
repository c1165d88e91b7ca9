//! Subscriptions to resources over one link.
//!
//! [`SubscriptionTable`](table::SubscriptionTable) is the table of all subscriptions. It answers three questions: which
//! clients an update concerns, which request to send upstream next, and which subscriptions end with a client. Each
//! question costs only as much as the entries it touches. This module has the types of its interface.

pub mod count;
#[cfg(test)]
mod fixture;
pub mod glob;
pub mod handover;
pub mod id;
mod listed;
#[cfg(test)]
mod model;
pub mod pattern;
mod pattern_index;
pub mod selection;
mod subscribers;
pub mod table;
#[cfg(test)]
mod tests;
pub mod updates;
mod upstream;
pub mod visibility;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_channel::oneshot::Receiver;
use goblin_config::exposure::Profile;
use goblin_wire::Response;
use goblin_wire::json::Span;
use parking_lot::Mutex;

use crate::count::SubscriptionPermit;
use crate::id::SubscriptionId;
use crate::pattern::Pattern;
use crate::selection::{FieldState, Selection, UpdateDecision};
use crate::updates::{DeliveryCounts, DeliveryOptions};

/// A client during one run of the gateway. Ids are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(u64);

impl ClientId {
    /// Returns an id that no other client has.
    pub fn next() -> ClientId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        ClientId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A client that can subscribe.
pub trait Subscriber {
    fn id(&self) -> ClientId;

    /// Returns the profile that limits the resources of this client now. A reload may change it.
    fn profile(&self) -> Option<Arc<Profile>>;
}

/// A resource or pattern with its native and its exposed name.
#[derive(Debug, PartialEq, Eq)]
pub struct ResourceName {
    pub native: Arc<str>,
    pub exposed: Arc<str>,
}

/// A client's subscription to one resource, or to all resources that a pattern covers.
pub struct Subscription<S> {
    pub id: SubscriptionId,
    pub subscriber: Arc<S>,
    /// The name at the time of the subscription. The client gets updates under this name, also if the exposed name
    /// changes later.
    pub name: Arc<ResourceName>,
    /// `None` if the subscription is for the single resource `name`.
    pub pattern: Option<Arc<Pattern>>,
    /// Whether the backend did not offer the resource when the client subscribed. The gateway never reports that resource
    /// as deleted.
    pub is_forwarded: bool,
    pub counts: Arc<DeliveryCounts>,
    /// The client's profile with which the table has entered the subscription.
    profile: ArcSwapOption<Profile>,
    /// Whether the profile hides the resource.
    is_hidden: AtomicBool,
    /// `None` if the client set none of the gateway's options.
    options: ArcSwapOption<SubscriptionOptions>,
    _permit: SubscriptionPermit,
}

/// Options of a subscription: how notifications are delivered, and a selection of fields.
#[derive(Default)]
pub struct SubscriptionOptions {
    pub delivery: DeliveryOptions,
    pub selection: Option<Selection>,
    /// The last seen state of the selected fields, by resource.
    seen: Mutex<HashMap<Box<str>, FieldState>>,
}

impl SubscriptionOptions {
    pub fn new(delivery: DeliveryOptions, selection: Option<Selection>) -> SubscriptionOptions {
        SubscriptionOptions { delivery, selection, seen: Mutex::default() }
    }

    fn is_plain(&self) -> bool {
        self.delivery == DeliveryOptions::default() && self.selection.is_none()
    }
}

impl<S: Subscriber> Subscription<S> {
    fn new(
        request: SubscribeRequest<S>,
        name: Arc<ResourceName>,
        permit: SubscriptionPermit,
        profile: Option<Arc<Profile>>,
    ) -> Subscription<S> {
        Subscription {
            id: SubscriptionId::new(),
            profile: ArcSwapOption::new(profile),
            is_hidden: AtomicBool::new(false),
            subscriber: request.subscriber,
            name,
            pattern: request.pattern,
            is_forwarded: request.is_forwarded,
            counts: Arc::new(DeliveryCounts::with_totals(permit.totals())),
            options: ArcSwapOption::empty(),
            _permit: permit,
        }
    }

    pub fn delivery(&self) -> DeliveryOptions {
        self.options.load().as_ref().map(|options| options.delivery).unwrap_or_default()
    }

    pub fn options(&self) -> Option<Arc<SubscriptionOptions>> {
        self.options.load_full()
    }

    fn set_options(&self, options: SubscriptionOptions) {
        self.options.store((!options.is_plain()).then(|| Arc::new(options)));
    }

    pub fn is_selective(&self) -> bool {
        self.options.load().as_ref().is_some_and(|options| options.selection.is_some())
    }

    /// Decides whether a change of `native` concerns the client. `update` is the notification of the backend.
    /// `definition` is the current definition in the backend's list.
    pub fn decide(&self, native: &str, update: Option<(&str, Span)>, definition: Option<&str>) -> UpdateDecision {
        let options = self.options.load();
        let Some((options, selection)) =
            options.as_ref().and_then(|options| Some((options, options.selection.as_ref()?)))
        else {
            return UpdateDecision::Deliver;
        };
        if definition.is_none() && *self.name.native != *native {
            // The number of these resources is unlimited, so keep no state for them.
            return UpdateDecision::Deliver;
        }
        let mut seen = options.seen.lock();
        selection.decide(seen.entry(native.into()).or_default(), update, definition)
    }

    /// Records the selected fields of `definition` as known to the client.
    pub fn record_definition(&self, native: &str, definition: &str) {
        let options = self.options.load();
        if let Some((options, selection)) =
            options.as_ref().and_then(|options| Some((options, options.selection.as_ref()?)))
        {
            let mut seen = options.seen.lock();
            selection.decide(seen.entry(native.into()).or_default(), None, Some(definition));
        }
    }

    /// Drops the state kept for a deleted resource.
    pub fn forget(&self, native: &str) {
        if let Some(options) = self.options.load().as_ref() {
            options.seen.lock().remove(native);
        }
    }
}

/// A request to subscribe.
pub struct SubscribeRequest<S> {
    pub subscriber: Arc<S>,
    pub native: Arc<str>,
    pub exposed: Arc<str>,
    pub pattern: Option<Arc<Pattern>>,
    /// Whether the backend does not offer the resource, but receives the request because of its configuration.
    pub is_forwarded: bool,
    pub options: SubscriptionOptions,
}

impl<S> SubscribeRequest<S> {
    fn name(&self) -> Arc<ResourceName> {
        Arc::new(ResourceName { native: Arc::clone(&self.native), exposed: Arc::clone(&self.exposed) })
    }
}

/// The result of a subscribe request.
#[derive(Clone, Debug)]
pub enum SubscribeOutcome {
    /// The backend sends notifications about changes.
    Subscribed,
    /// The backend does not support subscribing. The gateway forwards updates that the backend sends without a subscription.
    Tracked,
    /// The backend is not connected. The gateway subscribes when it is.
    Pending,
    /// The backend returned an error. There is no subscription.
    Rejected(Arc<Response>),
    /// The request failed for this reason. There is no subscription.
    Failed(Arc<str>),
    /// The backend did not respond within this time. There is no subscription.
    Late(Duration),
}

impl SubscribeOutcome {
    /// Reports whether the result leaves no subscription.
    fn is_rejection(&self) -> bool {
        matches!(self, SubscribeOutcome::Rejected(_) | SubscribeOutcome::Failed(_) | SubscribeOutcome::Late(_))
    }
}

/// A subscription in the table, and the state of its request.
pub struct SubscriptionEntry<S> {
    pub subscription: Arc<Subscription<S>>,
    pub status: SubscribeStatus,
    /// Other clients to notify of a possible change.
    pub notices: Vec<Notice<S>>,
}

/// The state of a subscribe request.
pub enum SubscribeStatus {
    Settled(SubscribeOutcome),
    /// A request to the backend is in flight.
    InFlight(Receiver<SubscribeOutcome>),
}

/// A request to send upstream: subscribe or unsubscribe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamRequest {
    pub native: Arc<str>,
    pub subscribes: bool,
    /// The connection that the request is for. A response over an earlier connection is ignored.
    link: u64,
}

/// The backend's response to a [`UpstreamRequest`].
#[derive(Clone, Debug)]
pub enum UpstreamReply {
    Done,
    /// The backend does not know the method.
    Unknown,
    Rejected(Arc<Response>),
    Failed(Arc<str>),
    /// The backend did not respond within this time. It may still have processed the request.
    Late(Duration),
}

/// A client to notify that something may have changed.
pub struct Notice<S> {
    pub subscription: Arc<Subscription<S>>,
    /// The subject of the notification: one resource, or the subscription's pattern for everything that it covers.
    pub native: Arc<str>,
}

/// A client that an update concerns.
pub struct AffectedSubscription<'a, S> {
    pub subscription: &'a Arc<Subscription<S>>,
    /// The subject that replaces the update when too many are queued: the enclosing resource, or the pattern that
    /// covers it. `None` if the client subscribed to the resource itself.
    pub enclosing: Option<&'a Arc<str>>,
    /// True if the list has an earlier subscription of the same client. The client receives the update once.
    pub is_next: bool,
}

/// The resources that a backend currently offers.
pub trait OfferedResources {
    /// Returns the URIs that the backend lists.
    fn listed(&self) -> Box<dyn Iterator<Item = &str> + '_>;

    /// Reports whether the backend lists a URI.
    fn lists(&self, native: &str) -> bool;

    /// Reports whether the backend lists a URI or has a template for it.
    fn has(&self, native: &str) -> bool;

    /// Reports whether a profile shows a URI of the backend.
    fn is_shown(&self, native: &str, profile: &Profile) -> bool;
}
