use bytes::Bytes;
use goblin_catalog::listing::{Definition, List, Listing};
use goblin_config::exposure::Profile;
use goblin_config::glob::Glob;
use goblin_config::uri_filter::UriFilter;
use goblin_config::{Files, Filter, ServerId, Transport};
use goblin_subscriptions::SubscriptionOptions;
use goblin_subscriptions::count::SubscriptionCount;
use goblin_subscriptions::glob::UriGlob;
use goblin_subscriptions::selection::Selection;
use goblin_subscriptions::updates::DeliveryOptions;
use goblin_wire::{Message, Text, json};

use super::*;

/// A manager without a link, and a client.
#[derive(Clone)]
pub(crate) struct ManagerFixture {
    pub manager: Arc<SubscriptionManager>,
    pub client: Arc<Client>,
}

impl ManagerFixture {
    pub(crate) fn new() -> ManagerFixture {
        let server = ServerId::new("a").expect("a valid id");
        let server_config = Server::new("a", Transport::Files(Files::at("/".into())), Default::default());
        let config = Arc::new(ArcSwap::from_pointee(server_config));
        let context = ManagerContext {
            events: Arc::new(BackendEvents::new(server, Arc::default(), Arc::default(), Arc::default())),
            lists: Arc::new(LinkLists::new(Arc::clone(&config))),
            config,
            max_upstream: 99,
        };
        let client = Arc::new(Client::stateless(Default::default()));
        ManagerFixture { manager: Arc::new(SubscriptionManager::new(context)), client }
    }

    /// Publishes a listing with these resources and sizes, without notifying the manager.
    fn list(&self, resources: &[(&str, u32)]) {
        let definition = |(uri, size): &(&str, u32)| {
            let raw = format!(r#"{{"uri":"{uri}","size":{size}}}"#);
            let native_at = json::member(&raw, json::whole(&raw), "uri").expect("a uri");
            Definition { raw: Text::new(raw.into()).expect("UTF-8"), native: (*uri).into(), native_at }
        };
        let mut listing = Listing::default();
        listing.lists[List::Resources as usize] = Arc::new(resources.iter().map(definition).collect());
        self.manager.lists().set_listing(listing);
    }

    async fn subscribe(&self, native: &str, fields: Option<&str>) {
        assert!(matches!(self.try_subscribe(native, fields).await, SubscribeOutcome::Pending));
    }

    async fn subscribe_to_glob(&self, glob: &str, delivery: DeliveryOptions) {
        let pattern = Some(Arc::new(Pattern::Glob(UriGlob::parse(glob).expect("a glob"))));
        let options = SubscriptionOptions::new(delivery, None);
        assert!(matches!(self.subscribe_with(glob, pattern, options).await, SubscribeOutcome::Pending));
    }

    pub(crate) async fn try_subscribe(&self, native: &str, fields: Option<&str>) -> SubscribeOutcome {
        let selection = fields.map(|fields| Selection::parse(fields, json::whole(fields)).expect("fields"));
        self.subscribe_with(native, None, SubscriptionOptions::new(DeliveryOptions::default(), selection)).await
    }

    async fn subscribe_with(
        &self,
        native: &str,
        pattern: Option<Arc<Pattern>>,
        options: SubscriptionOptions,
    ) -> SubscribeOutcome {
        let request = SubscribeRequest {
            subscriber: Arc::clone(&self.client),
            native: native.into(),
            exposed: self.manager.context.events.expose(native).into(),
            pattern,
            is_forwarded: false,
            options,
        };
        let count = Arc::<SubscriptionCount>::default();
        let subscribed = self.manager.subscribe(request, || SubscriptionPermit::new((&count, 9), (&count, 9))).await;
        subscribed.unwrap_or_else(|error| panic!("{error:?}")).outcome
    }

    /// Returns the profile of the client, which shows everything until a test changes it.
    fn confine(&self) -> Arc<ArcSwap<Profile>> {
        let profile = Arc::new(ArcSwap::from_pointee(Profile::default()));
        self.client.confine(Arc::clone(&profile));
        profile
    }

    fn send_update(&self, uri: &str) {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}","x":1}}}}"#
        );
        match Message::parse(text.into()) {
            Ok(Message::Notification(notification)) => self.manager.on_update(&notification),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the `params` of each update that the client received.
    pub(crate) fn received(&self) -> Vec<String> {
        self.received_within(Duration::ZERO)
    }

    /// Returns the `params` of each update that is due within this time.
    fn received_within(&self, time: Duration) -> Vec<String> {
        let due = self.client.updates.take_due(std::time::Instant::now() + time);
        let params = |message: &Bytes| {
            let text = String::from_utf8_lossy(message);
            let params = json::member(&text, json::whole(&text), "params").expect("an update");
            params.get(&text).to_owned()
        };
        due.iter().map(params).collect()
    }
}

const SIZE: Option<&str> = Some(r#"["size"]"#);
const UPDATE: [&str; 1] = [r#"{"uri":"a+a:s/n","x":1}"#];

/// Returns a fixture with a held update. The client selected fields of a resource, and the update is of another
/// resource inside of it.
async fn with_held_update() -> ManagerFixture {
    let fixture = ManagerFixture::new();
    fixture.list(&[("a:s/", 1), ("a:s/n", 1)]);
    fixture.subscribe("a:s/", SIZE).await;
    fixture.send_update("a:s/n");
    assert_eq!(fixture.received(), UPDATE, "its fields were unknown");
    fixture.send_update("a:s/n");
    assert!(fixture.received().is_empty());
    fixture.manager.on_listing_started();
    fixture
}

#[tokio::test]
async fn subx2_sub18_a_waiting_sub_resource_update_is_sent_if_the_listing_changed() {
    for (size, expected) in [(1, 0), (2, 1)] {
        let fixture = with_held_update().await;
        fixture.list(&[("a:s/", 1), ("a:s/n", size)]);
        fixture.manager.on_listing(ListingStage::Complete, true).await;
        assert_eq!(fixture.received(), UPDATE[..expected]);
    }
    let fixture = with_held_update().await;
    fixture.list(&[("a:s/", 1)]);
    fixture.manager.on_listing(ListingStage::Complete, true).await;
    assert_eq!(fixture.received(), UPDATE, "the resource is no longer listed");
}

#[tokio::test]
async fn subx2_a_template_listing_does_not_release_a_waiting_update() {
    let fixture = with_held_update().await;
    fixture.manager.on_listing(ListingStage::Complete, false).await;
    assert!(fixture.received().is_empty());
    fixture.manager.on_listing_failed();
    assert_eq!(fixture.received(), UPDATE);
}

#[tokio::test]
async fn subx2_sub5_a_client_with_a_second_full_subscription_is_notified_once() {
    let fixture = ManagerFixture::new();
    fixture.list(&[("a:s/", 1), ("a:s/n", 1)]);
    fixture.subscribe("a:s/n", SIZE).await;
    fixture.subscribe("a:s/", None).await;
    fixture.send_update("a:s/n");
    assert_eq!(fixture.received(), UPDATE);
    fixture.manager.on_listing_started();
    fixture.manager.on_listing(ListingStage::Complete, true).await;
    assert!(fixture.received().is_empty());
}

fn deleted(uri: &str) -> String {
    format!(r#"{{"uri":"{uri}","_meta":{{"dev.goblin/deleted":true}}}}"#)
}

/// Returns a profile that hides these exposed URIs.
fn hiding(uris: &[&str]) -> Arc<Profile> {
    let deny = uris.iter().map(|uri| Glob::new(uri).expect("a glob")).collect();
    Arc::new(Profile { resources: UriFilter::new(Filter { deny, ..Filter::default() }), ..Profile::default() })
}

#[tokio::test]
async fn use9_subscriptions_that_move_to_another_manager_get_the_profile_in_force() {
    for changes_first in [true, false] {
        let (old, new) = (ManagerFixture::new(), ManagerFixture::new());
        let resources = &[("a:1", 1), ("b:1", 1), ("b:2", 1)];
        old.list(resources);
        if !changes_first {
            new.list(resources);
        }
        let profile = old.confine();
        old.subscribe("a:1", None).await;
        old.subscribe_to_glob("b:*", DeliveryOptions::default()).await;
        let change = || profile.store(hiding(&["a+a:1", "a+b:1"]));
        let drained = if changes_first {
            change();
            old.manager.hand_over()
        } else {
            let drained = old.manager.hand_over();
            change();
            drained
        };
        new.manager.take_over(drained);
        let mut received = old.received();
        received.sort();
        assert_eq!(received, ["a+a:1", "a+b:1"].map(deleted), "changes first: {changes_first}");
    }
}

#[tokio::test]
async fn use9_a_pattern_of_a_hidden_server_sends_nothing() {
    let fixture = ManagerFixture::new();
    let profile = fixture.confine();
    fixture.list(&[("a:1", 1)]);
    fixture.subscribe_to_glob("a:*", DeliveryOptions::default()).await;
    let reconnect = async || {
        fixture.manager.link_down();
        fixture.manager.link_up(false);
        fixture.manager.on_listing(ListingStage::Complete, true).await;
    };
    reconnect().await;
    assert_eq!(fixture.received(), [r#"{"uri":"a+a:*"}"#]);
    profile.store(Arc::new(Profile::nothing()));
    fixture.manager.apply_profiles();
    assert_eq!(fixture.received(), [deleted("a+a:1")]);
    reconnect().await;
    assert!(fixture.received().is_empty());
    profile.store(Arc::default());
    fixture.manager.apply_profiles();
    assert_eq!(fixture.received(), [r#"{"uri":"a+a:*"}"#], "the server is shown again");
}

#[tokio::test]
async fn use9_subx3_a_queued_update_of_a_resource_that_is_hidden_meanwhile_is_dropped() {
    const HOUR: Duration = Duration::from_secs(3600);
    let fixture = ManagerFixture::new();
    let profile = fixture.confine();
    fixture.list(&[("a:1", 1)]);
    fixture.subscribe_to_glob("a:*", DeliveryOptions { batch: HOUR, ..DeliveryOptions::default() }).await;
    for uri in ["a:1", "a:unlisted", "a:shown"] {
        fixture.send_update(uri);
    }
    // The second profile hides the same and more. The deletion is still queued.
    for hidden in [&["a+a:1", "a+a:unlisted"][..], &["a+a:1", "a+a:unlisted", "a+a:other"]] {
        profile.store(hiding(hidden));
        fixture.manager.apply_profiles();
    }
    assert!(fixture.received().is_empty());
    assert_eq!(fixture.received_within(HOUR), [r#"{"uri":"a+a:shown","x":1}"#.to_owned(), deleted("a+a:1")]);
}
