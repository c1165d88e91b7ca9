//! The list of subscriptions for operators (SUB-15).
//!
//! It reads the subscriptions of all backends one after the other and holds no lock while the list is written. The part
//! of a session id that it shows identifies a client, but does not give access to its session.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use goblin_admin::api::{ClientCount, ClientInfo, Options, SubscriptionInfo, SubscriptionList};
use goblin_config::ServerId;
use goblin_subscriptions::ClientId;
use goblin_subscriptions::updates::DeliveryOptions;
use goblin_wire::{Error, date};

use crate::catalog_store::Catalog;
use crate::client::subscriptions::Subscription;
use crate::router::Router;
use crate::upstream::Backend;

/// The largest number of subscriptions in the list. The counts include all.
const MAX_LISTED: usize = 10_000;

/// Returns the options that the client set beyond the protocol.
fn options(subscription: &Subscription) -> Options {
    let DeliveryOptions { min_interval, batch, priority } = subscription.delivery();
    let options = subscription.options();
    let selection = options.as_ref().and_then(|options| options.selection.as_ref());
    let millis = |duration: Duration| Some(duration.as_millis()).filter(|millis| *millis > 0);
    Options {
        pattern: subscription.pattern.as_ref().map(|pattern| Cow::Borrowed(pattern.kind())),
        fields: selection.into_iter().flat_map(|selection| selection.fields().map(str::to_owned)).collect(),
        min_interval_ms: millis(min_interval),
        batch_ms: millis(batch),
        priority: Some(priority).filter(|priority| *priority != 0),
    }
}

/// A subscription with its server and its state.
struct SubscriptionDetails {
    server: ServerId,
    subscription: Arc<Subscription>,
    state: &'static str,
}

impl Router {
    /// Returns all subscriptions, or those that an update of `uri` reaches. `uri` may have any form that clients use.
    pub fn subscriptions(&self, uri: Option<&str>) -> SubscriptionList {
        let catalog = Arc::clone(&self.catalogs.catalog());
        let requested = uri.map(|uri| UriForms::new(&catalog, uri));
        let mut found = Vec::new();
        for backend in self.catalogs.backends().iter() {
            let is_requested = |(subscription, _): &(Arc<Subscription>, _)| {
                requested.as_ref().is_none_or(|requested| requested.is_reached_by(backend, subscription))
            };
            let found_here = backend.subscriptions().into_iter().filter(is_requested);
            let server = || backend.id.clone();
            found.extend(found_here.map(|(subscription, state)| SubscriptionDetails {
                server: server(),
                subscription,
                state,
            }));
        }
        found.sort_by_key(|found| found.subscription.id);
        list(&found)
    }
}

/// A URI in all forms that subscriptions may have.
struct UriForms {
    owner: Option<(ServerId, String)>,
    exposed: Vec<String>,
}

impl UriForms {
    fn new(catalog: &Catalog, uri: &str) -> UriForms {
        match catalog.resources.find(&catalog.sources, uri) {
            Ok(owner) => {
                let exposed = catalog.resources.expose(owner.source, &owner.native);
                let server = catalog.source(owner.source).backend.id.clone();
                UriForms { owner: Some((server, owner.native)), exposed: vec![exposed] }
            }
            // The URI belongs to several servers, or currently to none.
            Err(error) => {
                let owner = catalog.resources.find_server(uri).ok();
                let owner = owner.map(|(source, native)| (catalog.source(source).backend.id.clone(), native));
                let candidates = match error {
                    Error::ResourceNotFound { candidates, .. } => candidates,
                    _ => Vec::new(),
                };
                UriForms { owner, exposed: candidates.into_iter().chain([uri.to_owned()]).collect() }
            }
        }
    }

    /// Reports whether an update of the URI reaches a subscription at `backend`, by its native or its exposed name.
    fn is_reached_by(&self, backend: &Backend, subscription: &Subscription) -> bool {
        let name = &subscription.name;
        let covers = |native: &str| match &subscription.pattern {
            Some(pattern) => pattern.matches(native),
            None => reaches(&name.native, native),
        };
        let is_own = |(server, native): &(ServerId, String)| *server == backend.id && covers(native);
        self.owner.as_ref().is_some_and(is_own) || self.exposed.iter().any(|uri| reaches(&name.exposed, uri))
    }
}

/// Reports whether a subscription to `outer` receives updates of `uri` (SUB-18).
fn reaches(outer: &str, uri: &str) -> bool {
    let Some(rest) = uri.strip_prefix(outer) else { return false };
    rest.is_empty() || outer.ends_with('/') || rest.starts_with(['/', '?', '#'])
}

fn list(found: &[SubscriptionDetails]) -> SubscriptionList {
    let mut servers: BTreeMap<&ServerId, usize> = BTreeMap::new();
    let mut clients: HashMap<ClientId, ClientCount> = HashMap::new();
    for SubscriptionDetails { server, subscription, .. } in found {
        *servers.entry(server).or_default() += 1;
        let begun = || ClientCount { client: client(subscription), count: 0 };
        clients.entry(subscription.subscriber.id).or_insert_with(begun).count += 1;
    }
    let mut clients: Vec<_> = clients.into_values().collect();
    clients.sort_by(|one, other| (other.count, &one.client.id).cmp(&(one.count, &other.client.id)));
    SubscriptionList {
        total: found.len(),
        omitted: found.len().saturating_sub(MAX_LISTED),
        servers: servers.into_iter().map(|(server, count)| (server.to_string(), count)).collect(),
        clients,
        subscriptions: found.iter().take(MAX_LISTED).map(info).collect(),
    }
}

fn client(subscription: &Subscription) -> ClientInfo {
    let introduction = &subscription.subscriber.introduction;
    let (name, version) = ((*introduction.name).into(), (*introduction.version).into());
    ClientInfo { id: subscription.subscriber.session_name(), name, version }
}

fn info(found: &SubscriptionDetails) -> SubscriptionInfo {
    let SubscriptionDetails { server, subscription, state } = found;
    let seconds = subscription.id.created().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    SubscriptionInfo {
        id: subscription.id.to_string(),
        client: client(subscription),
        server: server.to_string(),
        uri: subscription.name.exposed.to_string(),
        created: date::iso(seconds.cast_signed()),
        options: options(subscription),
        state: Cow::Borrowed(state),
        delivered: subscription.counts.delivered.load(Ordering::Relaxed),
        coalesced: subscription.counts.coalesced.load(Ordering::Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub15_a_subscription_covers_its_uri_and_its_sub_resources() {
        for (outer, uri, expected) in [
            ("a:b", "a:b", true),
            ("a:b", "a:b/c", true),
            ("a:b", "a:b?c", true),
            ("a:b", "a:b#c", true),
            ("a:b/", "a:b/c", true),
            ("a:b", "a:bc", false),
            ("a:b/c", "a:b", false),
            ("a:b/", "a:b", false),
        ] {
            assert_eq!(reaches(outer, uri), expected, "{outer} of {uri}");
        }
    }
}
