use goblin_catalog::listing::{Definition, List, Listing};
use goblin_config::{Files, ServerId, Transport};
use goblin_subscriptions::SubscriptionOptions;
use goblin_subscriptions::count::SubscriptionCount;
use goblin_subscriptions::selection::Selection;
use goblin_subscriptions::updates::DeliveryOptions;
use goblin_wire::{Message, Text};

use super::*;

/// A register without a link, and a client.
#[derive(Clone)]
pub(crate) struct ManagerFixture {
    pub register: Arc<SubscriptionManager>,
    pub client: Arc<Client>,
}

impl ManagerFixture {
    pub(crate) fn new() -> ManagerFixture {
        let server = ServerId::new("a").expect("a valid id");
        let config = Arc::new(Server::new("a", Transport::Files(Files::at("/".into())), Default::default()));
        let offered = ListingView::new(Arc::clone(&config), Arc::default());
        let home = ManagerContext {
            inbox: Arc::new(BackendEvents::new(server, Arc::default(), Arc::default(), Arc::default())),
            config,
            offered: Arc::new(ArcSwap::from_pointee(offered)),
            most_upstream: 99,
        };
        let client = Arc::new(Client::stateless(Default::default()));
        ManagerFixture { register: Arc::new(SubscriptionManager::new(home)), client }
    }

    /// Publishes a listing with these resources and sizes, without notifying the register.
    fn list(&self, resources: &[(&str, u32)]) {
        let definition = |(uri, size): &(&str, u32)| {
            let raw = format!(r#"{{"uri":"{uri}","size":{size}}}"#);
            let native_at = json::member(&raw, json::whole(&raw), "uri").expect("it is there");
            Definition { raw: Text::new(raw.into()).expect("UTF-8"), native: (*uri).into(), native_at }
        };
        let mut listing = Listing::default();
        listing.lists[List::Resources as usize] = Arc::new(resources.iter().map(definition).collect());
        let listing = Arc::new(listing);
        let home = &self.register.home;
        home.offered.store(Arc::new(ListingView::new(Arc::clone(&home.config), listing)));
    }

    async fn subscribe(&self, native: &str, fields: Option<&str>) {
        assert!(matches!(self.enter(native, fields).await, SubscribeOutcome::Pending));
    }

    pub(crate) async fn enter(&self, native: &str, fields: Option<&str>) -> SubscribeOutcome {
        let selection = fields.map(|fields| Selection::parse(fields, json::whole(fields)).expect("fields"));
        let wish = SubscribeRequest {
            subscriber: Arc::clone(&self.client),
            native: native.into(),
            exposed: self.register.home.inbox.expose(native).into(),
            pattern: None,
            terms: SubscriptionOptions::new(DeliveryOptions::default(), selection),
        };
        let tally = Arc::<SubscriptionCount>::default();
        let subscribed = self.register.subscribe(wish, || SubscriptionPermit::new((&tally, 9), (&tally, 9))).await;
        subscribed.unwrap_or_else(|why| panic!("{why:?}")).outcome
    }

    fn hear(&self, uri: &str) {
        let text = format!(
            r#"{{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{{"uri":"{uri}","x":1}}}}"#
        );
        match Message::parse(text.into()) {
            Ok(Message::Notification(notification)) => self.register.hear(&notification),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the `params` of each update that the client received.
    pub(crate) fn told(&self) -> Vec<String> {
        let due = self.client.updates.take_due(std::time::Instant::now());
        let params = |message: &Bytes| {
            let text = String::from_utf8_lossy(message);
            let params = json::member(&text, json::whole(&text), "params").expect("it is an update");
            params.get(&text).to_owned()
        };
        due.iter().map(params).collect()
    }
}

const SIZE: Option<&str> = Some(r#"["size"]"#);
const TOLD: [&str; 1] = [r#"{"uri":"a+a:s/n","x":1}"#];

/// Returns a desk with a held update. The client selected fields of a resource, and the update is of another resource
/// inside of it.
async fn waiting_inside() -> ManagerFixture {
    let dispatcher = ManagerFixture::new();
    dispatcher.list(&[("a:s/", 1), ("a:s/n", 1)]);
    dispatcher.subscribe("a:s/", SIZE).await;
    dispatcher.hear("a:s/n");
    assert_eq!(dispatcher.told(), TOLD, "nothing was known of it");
    dispatcher.hear("a:s/n");
    assert!(dispatcher.told().is_empty());
    dispatcher.register.list_begins();
    dispatcher
}

#[tokio::test]
async fn subx2_sub18_what_waits_inside_is_told_where_the_listing_has_changed() {
    for (size, expected) in [(1, 0), (2, 1)] {
        let dispatcher = waiting_inside().await;
        dispatcher.list(&[("a:s/", 1), ("a:s/n", size)]);
        dispatcher.register.relisted(true, true).await;
        assert_eq!(dispatcher.told(), TOLD[..expected]);
    }
    let dispatcher = waiting_inside().await;
    dispatcher.list(&[("a:s/", 1)]);
    dispatcher.register.relisted(true, true).await;
    assert_eq!(dispatcher.told(), TOLD, "it is not listed any more");
}

#[tokio::test]
async fn subx2_a_list_of_templates_says_nothing_of_fields() {
    let dispatcher = waiting_inside().await;
    dispatcher.register.relisted(true, false).await;
    assert!(dispatcher.told().is_empty());
    dispatcher.register.list_failed();
    assert_eq!(dispatcher.told(), TOLD);
}

#[tokio::test]
async fn subx2_sub5_who_wants_all_of_it_elsewhere_is_told_once() {
    let dispatcher = ManagerFixture::new();
    dispatcher.list(&[("a:s/", 1), ("a:s/n", 1)]);
    dispatcher.subscribe("a:s/n", SIZE).await;
    dispatcher.subscribe("a:s/", None).await;
    dispatcher.hear("a:s/n");
    assert_eq!(dispatcher.told(), TOLD);
    dispatcher.register.list_begins();
    dispatcher.register.relisted(true, true).await;
    assert!(dispatcher.told().is_empty());
}
