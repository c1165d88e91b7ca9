//! Subscriptions to chosen fields: an update whose fields are not in it waits for the listing that tells of them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::upstream::offered::Offered;
use crate::upstream::register::{Once, Register, put, updated};
use goblin_wire::json::Span;
use crate::client::subscriptions::Interests;
pub use goblin_subscriptions::selection::Verdict;
use crate::client::subscriptions::Subscription;
use crate::client::subscriptions::Affected;

/// Updates that wait for a listing, the newest of each listed resource.
#[derive(Default)]
pub struct Held {
    /// Held since the last listing was begun: that one may have been too early to tell.
    fresh: HashMap<Arc<str>, Bytes>,
    /// The listing that is on its way tells.
    asked: HashMap<Arc<str>, Bytes>,
}

impl Held {
    pub fn hold(&mut self, native: &Arc<str>, message: &Bytes) {
        self.fresh.insert(Arc::clone(native), message.clone());
    }

    /// A listing is begun.
    pub fn ask(&mut self) {
        self.asked.extend(self.fresh.drain());
    }

    /// What the listing that came tells of.
    pub fn take(&mut self) -> HashMap<Arc<str>, Bytes> {
        std::mem::take(&mut self.asked)
    }
}

impl Register {
    /// What the fields are at first is no news.
    pub(super) fn note(&self, interests: &Interests, subscription: &Subscription, offered: &Offered) {
        for native in interests.covered(subscription) {
            if let Some(definition) = offered.definition(&native) {
                subscription.note(&native, definition.raw.as_str());
            }
        }
    }

    /// Whether an update is news to a client.
    pub(super) fn judge(
        &self,
        affected: &Affected<'_>,
        native: &str,
        update: Option<(&str, Span)>,
        offered: &Offered,
    ) -> Verdict {
        if !affected.subscription.is_selective() {
            return Verdict::Deliver;
        }
        let definition = offered.definition(native).map(|definition| definition.raw.as_str());
        affected.subscription.judge(native, update, definition)
    }

    /// A fresh listing: whoever chose fields is told where those are not what they were.
    pub(super) fn tell_news(&self, interests: &Interests, offered: &Offered) {
        // By whom it is affected, not by what is covered: a resource may be inside of another, too.
        for (native, message) in self.held().take() {
            let mut once = Once::default();
            let affected = interests.affected(&native);
            for affected in affected.iter().filter(|affected| affected.subscription.is_selective()) {
                if is_news(affected.subscription, &native, offered).unwrap_or(true) && once.is_first(affected) {
                    put(affected, &self.name_of(affected, &native), &message);
                }
            }
        }
        for (subscription, _) in interests.all().filter(|(subscription, _)| subscription.is_selective()) {
            for native in interests.covered(subscription) {
                if is_news(subscription, &native, offered) == Some(true) {
                    let affected = Affected { subscription, within: None, is_next: false };
                    let name = self.name_of(&affected, &native);
                    put(&affected, &name, &updated(&name.exposed));
                }
            }
        }
    }
}

/// Whether the fields are not what they were, by the definition that is listed now; nothing where it is not listed.
fn is_news(subscription: &Subscription, native: &str, offered: &Offered) -> Option<bool> {
    let definition = offered.definition(native)?;
    Some(subscription.judge(native, None, Some(definition.raw.as_str())) == Verdict::Deliver)
}
