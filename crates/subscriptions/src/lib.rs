//! Who wants to know of which resource, over one link.
//!
//! [`Interests`](interests::Interests) answers three questions, each at the cost of what it touches: who must hear of an
//! update, what must be said upstream, and what ends with a client. Here are the words it speaks in.

mod audience;
mod covers;
pub mod glob;
pub mod id;
pub mod interests;
pub mod listed;
#[cfg(test)]
mod model;
pub mod pattern;
pub mod selection;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod updates;
mod upstream;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use futures_channel::oneshot::Receiver;

use crate::tally::Place;
use crate::updates::{Pace, Receipt};
use goblin_config::exposure::Profile;
use goblin_wire::Response;
use goblin_wire::json::Span;
use crate::id::SubscriptionId;
use crate::pattern::Pattern;
use crate::selection::{Seen, Selection, Verdict};

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

    /// Returns the profile that limits the resources of this client.
    fn profile(&self) -> Option<&Arc<Profile>>;
}

/// A resource or a pattern under both its names.
#[derive(Debug, PartialEq, Eq)]
pub struct Name {
    pub native: Arc<str>,
    pub exposed: Arc<str>,
}

/// One client's wish to hear of one resource, or of all that a pattern covers.
pub struct Subscription<S> {
    pub id: SubscriptionId,
    pub subscriber: Arc<S>,
    pub name: Arc<Name>,
    /// Nothing where it is for the one resource of that name.
    pub pattern: Option<Arc<Pattern>>,
    pub created: SystemTime,
    pub receipt: Arc<Receipt>,
    /// Nothing where it is as plain as the protocol has it.
    terms: ArcSwapOption<Terms>,
    _place: Place,
}

/// How a client wants its updates, and which of them.
#[derive(Default)]
pub struct Terms {
    pub pace: Pace,
    pub selection: Option<Selection>,
    /// What the chosen fields were, by resource.
    seen: Mutex<HashMap<Box<str>, Seen>>,
}

impl Terms {
    pub fn new(pace: Pace, selection: Option<Selection>) -> Terms {
        Terms { pace, selection, seen: Mutex::default() }
    }

    fn is_plain(&self) -> bool {
        self.pace == Pace::default() && self.selection.is_none()
    }
}

impl<S: Subscriber> Subscription<S> {
    fn new(wish: Wish<S>, name: Arc<Name>, place: Place) -> Subscription<S> {
        let created = SystemTime::now();
        Subscription {
            id: SubscriptionId::new(created),
            subscriber: wish.subscriber,
            name,
            pattern: wish.pattern,
            created,
            receipt: Arc::new(Receipt::among(place.fates())),
            terms: ArcSwapOption::empty(),
            _place: place,
        }
    }

    pub fn pace(&self) -> Pace {
        self.terms.load().as_ref().map(|terms| terms.pace).unwrap_or_default()
    }

    pub fn terms(&self) -> Option<Arc<Terms>> {
        self.terms.load_full()
    }

    fn set_terms(&self, terms: Terms) {
        self.terms.store((!terms.is_plain()).then(|| Arc::new(terms)));
    }

    pub fn is_selective(&self) -> bool {
        self.terms.load().as_ref().is_some_and(|terms| terms.selection.is_some())
    }

    /// Whether something new about `native` is news to the client: its update, or its definition as listed now.
    pub fn judge(&self, native: &str, update: Option<(&str, Span)>, definition: Option<&str>) -> Verdict {
        let terms = self.terms.load();
        let Some((terms, selection)) = terms.as_ref().and_then(|terms| Some((terms, terms.selection.as_ref()?))) else {
            return Verdict::Deliver;
        };
        if definition.is_none() && *self.name.native != *native {
            // Nothing bounds how many of these there are, so nothing is remembered of them.
            return Verdict::Deliver;
        }
        let mut seen = terms.seen.lock().unwrap_or_else(PoisonError::into_inner);
        selection.judge(seen.entry(native.into()).or_default(), update, definition)
    }

    /// The chosen fields are known to be as they are in `definition`.
    pub fn note(&self, native: &str, definition: &str) {
        let terms = self.terms.load();
        if let Some((terms, selection)) = terms.as_ref().and_then(|terms| Some((terms, terms.selection.as_ref()?))) {
            let mut seen = terms.seen.lock().unwrap_or_else(PoisonError::into_inner);
            selection.judge(seen.entry(native.into()).or_default(), None, Some(definition));
        }
    }

    /// The resource is gone.
    pub fn forget(&self, native: &str) {
        if let Some(terms) = self.terms.load().as_ref() {
            terms.seen.lock().unwrap_or_else(PoisonError::into_inner).remove(native);
        }
    }
}

/// What is to be subscribed.
pub struct Wish<S> {
    pub subscriber: Arc<S>,
    pub native: Arc<str>,
    pub exposed: Arc<str>,
    pub pattern: Option<Arc<Pattern>>,
    pub terms: Terms,
}

/// How a subscription stands.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The backend tells of changes.
    Subscribed,
    /// The backend cannot be asked to; what it says of its own accord is passed on.
    Tracked,
    /// The backend is not connected; it will be asked when it is.
    Pending,
    /// The backend refused. There is no subscription.
    Refused(Arc<Response>),
    /// The request failed on its way, for this reason. There is no subscription.
    Failed(Arc<str>),
    /// The backend did not answer in this time. There is no subscription.
    Late(Duration),
}

impl Outcome {
    fn is_refusal(&self) -> bool {
        matches!(self, Outcome::Refused(_) | Outcome::Failed(_) | Outcome::Late(_))
    }
}

/// A subscription that was entered.
pub struct Entry<S> {
    pub subscription: Arc<Subscription<S>>,
    pub standing: Standing,
    /// Others who must hear that something may have changed.
    pub notices: Vec<Notice<S>>,
}

pub enum Standing {
    Settled(Outcome),
    /// The backend is being asked.
    Asked(Receiver<Outcome>),
}

/// Something to say upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub native: Arc<str>,
    pub subscribes: bool,
    /// Which connection it is for: an answer over one that is gone means nothing.
    link: u64,
}

/// What the backend made of a [`Job`].
#[derive(Clone, Debug)]
pub enum Reply {
    Done,
    /// It does not know the method.
    Unknown,
    Refused(Arc<Response>),
    Failed(Arc<str>),
    /// It has not answered in this time; it may have heard.
    Late(Duration),
}

/// A client that must be told that something may have changed.
pub struct Notice<S> {
    pub subscription: Arc<Subscription<S>>,
    /// What it is about: one resource, or all that the subscription's pattern covers.
    pub name: Arc<Name>,
}

/// A client that must hear of an update.
pub struct Affected<'a, S> {
    pub subscription: &'a Arc<Subscription<S>>,
    /// What stands for the update when there are too many: what it is inside of, or the pattern that covers it. Nothing
    /// where it is a resource that was asked for.
    pub within: Option<&'a Arc<Name>>,
    /// The client is affected by another of its subscriptions before this one, and told once.
    pub is_next: bool,
}

/// What a backend offers now.
pub trait Offers {
    /// The URIs that it lists.
    fn listed(&self) -> Box<dyn Iterator<Item = &str> + '_>;

    /// Whether it lists a URI, or has a template for it.
    fn has(&self, native: &str) -> bool;

    /// A URI as clients know it.
    fn expose(&self, native: &str) -> Arc<str>;
}
