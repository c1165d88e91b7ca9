//! Clients, listings and a table for the tests.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::count::{LimitReached, SubscriptionCount};

/// A list of resources, with a template for the URIs that begin with `t:`.
#[derive(Default)]
pub(crate) struct TestListing(pub BTreeSet<String>);

impl OfferedResources for TestListing {
    fn listed(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.0.iter().map(String::as_str))
    }

    fn lists(&self, native: &str) -> bool {
        self.0.contains(native)
    }

    fn has(&self, native: &str) -> bool {
        self.lists(native) || native.starts_with("t:")
    }

    fn is_shown(&self, native: &str, profile: &Profile) -> bool {
        profile.shows_resource("x", &format!("x+{native}"))
    }
}

pub(crate) fn glob(text: &str) -> Arc<Pattern> {
    Arc::new(Pattern::Glob(glob::UriGlob::parse(text).expect("a glob")))
}

/// A client, without a profile at first.
pub(crate) struct TestClient {
    id: ClientId,
    pub(crate) profile: ArcSwapOption<Profile>,
}

impl TestClient {
    pub(crate) fn new() -> Arc<TestClient> {
        Arc::new(TestClient { id: ClientId::next(), profile: ArcSwapOption::empty() })
    }
}

impl Subscriber for TestClient {
    fn id(&self) -> ClientId {
        self.id
    }

    fn profile(&self) -> Option<Arc<Profile>> {
        self.profile.load_full()
    }
}

pub(crate) type SubscriptionEntry = super::SubscriptionEntry<TestClient>;
pub(crate) type SubscriptionTable = super::table::SubscriptionTable<TestClient>;
pub(crate) type Notice = super::Notice<TestClient>;
pub(crate) type Subscription = super::Subscription<TestClient>;

/// A table with numbered clients.
pub(crate) struct TableFixture {
    pub(crate) table: SubscriptionTable,
    pub(crate) listed: TestListing,
    pub(crate) clients: Vec<Arc<TestClient>>,
    pub(crate) subscription_count: Arc<SubscriptionCount>,
    pub(crate) link: u64,
    /// Whether the next subscriptions are for resources that the backend does not offer.
    pub(crate) is_forwarding: bool,
}

impl TableFixture {
    pub(crate) fn new() -> TableFixture {
        let mut table = SubscriptionTable::new(4);
        let (link, _) = table.link_up(true, true);
        let listed = TestListing::default();
        TableFixture {
            table,
            listed,
            clients: (0..3).map(|_| TestClient::new()).collect(),
            subscription_count: Arc::default(),
            link,
            is_forwarding: false,
        }
    }

    pub(crate) fn link_up(&mut self, can_subscribe: bool) -> Vec<Notice> {
        let (link, notices) = self.table.link_up(can_subscribe, true);
        self.link = link;
        notices
    }

    pub(crate) fn link_down(&mut self) {
        self.table.link_down(self.link);
    }

    /// Returns the subjects of the notices, sorted, and the suspects.
    pub(crate) fn relist(&mut self, listed: &[&str]) -> (Vec<String>, Vec<String>) {
        let before =
            std::mem::replace(&mut self.listed, TestListing(listed.iter().map(|uri| (*uri).to_owned()).collect()));
        let added = self.listed.listed().filter(|uri| !before.lists(uri));
        let outcome = self.table.handle_listing(&self.listed, added);
        let suspects = outcome.suspects.iter().chain(&outcome.doubtful);
        (names(&outcome.notices), suspects.map(|native| native.to_string()).collect())
    }

    pub(crate) fn mark_deleted(&mut self, uri: &str) -> Vec<String> {
        names(&self.table.mark_deleted(uri, &self.listed).deleted)
    }

    pub(crate) fn subscribe(&mut self, client: usize, uri: &str) -> SubscriptionEntry {
        self.subscribe_to(client, uri, None).unwrap_or_else(|limit| panic!("{limit:?}"))
    }

    pub(crate) fn subscribe_to(
        &mut self,
        client: usize,
        uri: &str,
        pattern: Option<Arc<Pattern>>,
    ) -> Result<SubscriptionEntry, LimitReached> {
        self.subscribe_with(client, uri, pattern, SubscriptionOptions::default())
    }

    pub(crate) fn subscribe_with(
        &mut self,
        client: usize,
        uri: &str,
        pattern: Option<Arc<Pattern>>,
        options: SubscriptionOptions,
    ) -> Result<SubscriptionEntry, LimitReached> {
        let (native, exposed) = (Arc::from(uri), Arc::from(format!("x+{uri}")));
        let subscriber = Arc::clone(&self.clients[client]);
        let request =
            SubscribeRequest { subscriber, native, exposed, pattern, is_forwarded: self.is_forwarding, options };
        let subscription_count = &self.subscription_count;
        let permit = || SubscriptionPermit::new((subscription_count, 99), (&Arc::default(), 99));
        self.table.subscribe(request, &self.listed, permit)
    }

    pub(crate) fn unsubscribe(&mut self, client: usize, uri: &str) -> bool {
        let own = self.table.subscriptions_of(&self.clients[client]).to_vec();
        own.iter().filter(|own| *own.name.native == *uri).filter(|own| self.table.end(own)).count() > 0
    }

    /// Returns the next request as `+uri` or `-uri`.
    pub(crate) fn next_request(&mut self) -> Option<(String, UpstreamRequest)> {
        let request = self.table.next_request()?;
        Some((format!("{}{}", if request.subscribes { '+' } else { '-' }, request.native), request))
    }

    pub(crate) fn reply(&mut self, expected: &str, reply: UpstreamReply) -> usize {
        let (text, request) = self.next_request().expect("a request");
        assert_eq!(text, expected);
        self.table.handle_reply(&request, reply).len()
    }
}

pub(crate) fn names_of(affected: &[AffectedSubscription<'_, TestClient>]) -> Vec<String> {
    affected.iter().map(|affected| affected.subscription.name.native.to_string()).collect()
}

pub(crate) fn names(notices: &[Notice]) -> Vec<String> {
    let mut names: Vec<_> = notices.iter().map(|notice| notice.native.to_string()).collect();
    names.sort();
    names
}

pub(crate) fn settled(mut entry: SubscriptionEntry) -> String {
    let outcome = match &mut entry.status {
        SubscribeStatus::Settled(outcome) => outcome.clone(),
        SubscribeStatus::InFlight(receiver) => receiver.try_recv().ok().flatten().expect("a settled request"),
    };
    format!("{outcome:?}").chars().take_while(|character| character.is_alphabetic()).collect()
}
