//! Subscriptions to chosen fields: an update whose fields are not in it waits for the listing that tells of them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::backend::offered::Offered;
use crate::backend::register::{Register, put, updated};
use crate::protocol::json::Span;
use crate::subscriptions::interests::Interests;
pub use crate::subscriptions::selection::Verdict;
use crate::subscriptions::{Affected, Subscription};

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
        let mut asked = self.held().take();
        for (subscription, _) in interests.all().filter(|(subscription, _)| subscription.is_selective()) {
            for native in interests.covered(subscription) {
                let Some(definition) = offered.definition(&native) else {
                    // It was listed when the update was held, and is not now: that is news.
                    if let Some(message) = asked.get(&native) {
                        let affected = Affected { subscription, within: None };
                        put(&affected, &self.name_of(&affected, &native), message);
                    }
                    continue;
                };
                if subscription.judge(&native, None, Some(definition.raw.as_str())) == Verdict::Deliver {
                    let affected = Affected { subscription, within: None };
                    let name = self.name_of(&affected, &native);
                    let own = || updated(&name.exposed);
                    put(&affected, &name, &asked.get(&native).cloned().unwrap_or_else(own));
                }
            }
        }
        asked.clear();
    }
}
