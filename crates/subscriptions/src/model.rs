//! Model tests of [`SubscriptionTable`]. They run random events against a model that keeps only the subscriptions and
//! the listed resources. A simulated upstream records the requests it receives. At the end, the upstream must have
//! exactly the wanted subscriptions, except those that it rejected.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::fixture::{Subscription, SubscriptionTable, TestClient, TestListing, glob};
use super::*;
use crate::count::SubscriptionCount;

const CLIENTS: usize = 3;
const URIS: [&str; 3] = ["a:1", "a:2", "a:3"];
const GLOBS: [&str; 2] = ["a:*", "a:[12]"];

/// All subscriptions that a client may request: the URIs and the globs.
fn targets() -> impl Iterator<Item = &'static str> {
    URIS.into_iter().chain(GLOBS)
}

fn covers(glob: &str, uri: &str) -> bool {
    glob == GLOBS[0] || glob == GLOBS[1] && uri != "a:3"
}

/// The events that may happen in any order.
#[derive(Clone, Debug)]
enum ModelEvent {
    Subscribe(usize, &'static str),
    Unsubscribe(usize, &'static str),
    /// A client disconnects, and a new client takes its number.
    Release(usize),
    /// A client cancels its oldest open request.
    Cancel(usize),
    /// The gateway sends the next request upstream.
    Send,
    /// The backend responds to one of the requests in flight.
    Reply(usize, ModelReply),
    /// The backend responds to a request of an earlier connection.
    LateReply(ModelReply),
    Down,
    Up(bool),
    /// The backend lists these URIs, one bit each.
    List(u8),
    /// A read of this URI fails.
    Delete(&'static str),
    /// Another backend replaces this one.
    HandOver,
}

#[derive(Clone, Copy, Debug)]
enum ModelReply {
    Done,
    Unknown,
    Rejected,
    /// True if the backend processed the request.
    Late(bool),
}

impl ModelReply {
    fn to_upstream(self) -> UpstreamReply {
        match self {
            ModelReply::Done => UpstreamReply::Done,
            ModelReply::Unknown => UpstreamReply::Unknown,
            ModelReply::Rejected => UpstreamReply::Failed("no".into()),
            ModelReply::Late(_) => UpstreamReply::Late(Duration::from_secs(1)),
        }
    }

    fn is_accepted(self) -> bool {
        matches!(self, ModelReply::Done | ModelReply::Late(true))
    }
}

fn step() -> impl Strategy<Value = ModelEvent> {
    let target = || prop::sample::select(targets().collect::<Vec<_>>());
    let reply = || {
        prop_oneof![
            6 => Just(ModelReply::Done),
            1 => Just(ModelReply::Unknown),
            1 => Just(ModelReply::Rejected),
            1 => any::<bool>().prop_map(ModelReply::Late),
        ]
    };
    prop_oneof![
        8 => (0..CLIENTS, target()).prop_map(|(client, target)| ModelEvent::Subscribe(client, target)),
        5 => (0..CLIENTS, target()).prop_map(|(client, target)| ModelEvent::Unsubscribe(client, target)),
        1 => (0..CLIENTS).prop_map(ModelEvent::Release),
        1 => (0..CLIENTS).prop_map(ModelEvent::Cancel),
        8 => Just(ModelEvent::Send),
        8 => (0..8_usize, reply()).prop_map(|(which, reply)| ModelEvent::Reply(which, reply)),
        1 => reply().prop_map(ModelEvent::LateReply),
        1 => Just(ModelEvent::Down),
        2 => any::<bool>().prop_map(ModelEvent::Up),
        4 => (0..8_u8).prop_map(ModelEvent::List),
        2 => prop::sample::select(URIS.to_vec()).prop_map(ModelEvent::Delete),
        1 => Just(ModelEvent::HandOver),
    ]
}

/// An open subscribe request of a client.
struct OpenSubscribe {
    client: usize,
    target: &'static str,
    is_new: bool,
    outcome: Receiver<SubscribeOutcome>,
}

struct TableModel {
    table: SubscriptionTable,
    link: u64,
    listed: TestListing,
    clients: Vec<Arc<TestClient>>,
    subscription_count: Arc<SubscriptionCount>,
    /// The model: the subscriptions of each client.
    wanted: BTreeSet<(usize, &'static str)>,
    /// The URIs that each glob has covered since its first subscription.
    covered: BTreeSet<(&'static str, &'static str)>,
    open: Vec<OpenSubscribe>,
    /// Requests in flight.
    in_flight: Vec<UpstreamRequest>,
    /// Requests in flight over earlier connections.
    late: Vec<UpstreamRequest>,
    /// The subscriptions that the upstream has, according to the requests it received.
    upstream: BTreeSet<String>,
    /// URIs that need no subscription upstream, because they are rejected, unsupported or deleted.
    exempt: BTreeSet<String>,
    is_up: bool,
}

impl TableModel {
    fn new() -> TableModel {
        TableModel {
            table: SubscriptionTable::new(99),
            link: 0,
            listed: TestListing::default(),
            clients: (0..CLIENTS).map(|_| TestClient::new()).collect(),
            subscription_count: Arc::default(),
            wanted: BTreeSet::new(),
            covered: BTreeSet::new(),
            open: Vec::new(),
            in_flight: Vec::new(),
            late: Vec::new(),
            upstream: BTreeSet::new(),
            exempt: BTreeSet::new(),
            is_up: false,
        }
    }

    fn apply(&mut self, step: ModelEvent) {
        match step {
            ModelEvent::Subscribe(client, target) => self.subscribe(client, target),
            ModelEvent::Unsubscribe(client, target) => self.unsubscribe(client, target),
            ModelEvent::Release(client) => {
                let ended = self.table.release(&self.clients[client]).len();
                let before = self.wanted.len();
                self.wanted.retain(|(other, _)| *other != client);
                assert_eq!(ended, before - self.wanted.len());
                self.settle();
                self.clients[client] = TestClient::new();
            }
            ModelEvent::Cancel(client) => self.cancel(client),
            ModelEvent::Send => drop(self.send_next()),
            ModelEvent::Reply(which, reply) if !self.in_flight.is_empty() => {
                self.handle_reply(which % self.in_flight.len(), reply)
            }
            ModelEvent::Reply(..) => {}
            ModelEvent::LateReply(reply) => {
                let notices = self.late.pop().map(|request| self.table.handle_reply(&request, reply.to_upstream()));
                assert!(notices.is_none_or(|notices| notices.is_empty()));
            }
            ModelEvent::Down => self.down(),
            ModelEvent::Up(can_subscribe) => self.up(can_subscribe),
            ModelEvent::List(bits) => self.list(bits),
            ModelEvent::Delete(uri) => self.delete(uri),
            ModelEvent::HandOver => self.hand_over(),
        }
        self.settle();
        self.remove_unwanted();
        self.check();
    }

    fn subscribe(&mut self, client: usize, target: &'static str) {
        let is_glob = GLOBS.contains(&target);
        if is_glob && self.wanted.iter().all(|(_, other)| *other != target) {
            self.cover_listed(target);
        }
        let request = SubscribeRequest {
            subscriber: Arc::clone(&self.clients[client]),
            native: target.into(),
            exposed: format!("x+{target}").into(),
            pattern: is_glob.then(|| glob(target)),
            is_forwarded: false,
            options: SubscriptionOptions::default(),
        };
        let subscription_count = &self.subscription_count;
        let entry = self.table.subscribe(request, &self.listed, || {
            SubscriptionPermit::new((subscription_count, 99), (&Arc::default(), 99))
        });
        let is_new = self.wanted.insert((client, target));
        match entry.unwrap_or_else(|limit| panic!("{limit:?}")).status {
            SubscribeStatus::Settled(outcome) => {
                assert!(
                    matches!(
                        outcome,
                        SubscribeOutcome::Subscribed | SubscribeOutcome::Tracked | SubscribeOutcome::Pending
                    ),
                    "{outcome:?}"
                );
            }
            SubscribeStatus::InFlight(outcome) => self.open.push(OpenSubscribe { client, target, is_new, outcome }),
        }
    }

    fn cover_listed(&mut self, target: &'static str) {
        let listed = URIS.into_iter().filter(|uri| self.listed.has(uri) && covers(target, uri));
        self.covered.extend(listed.map(|uri| (target, uri)));
    }

    fn cover_all_listed(&mut self) {
        for glob in GLOBS {
            if self.wanted.iter().any(|(_, target)| *target == glob) {
                self.cover_listed(glob);
            }
        }
    }

    fn find(&self, client: usize, target: &str) -> Option<Arc<Subscription>> {
        self.table.subscriptions_of(&self.clients[client]).iter().find(|own| *own.name.native == *target).cloned()
    }

    fn unsubscribe(&mut self, client: usize, target: &'static str) {
        let found = self.find(client, target);
        let ended = found.is_some_and(|subscription| self.table.end(&subscription));
        assert_eq!(ended, self.wanted.remove(&(client, target)));
    }

    fn cancel(&mut self, client: usize) {
        let Some(at) = self.open.iter().position(|open| open.client == client) else { return };
        let OpenSubscribe { target, is_new, outcome, .. } = self.open.remove(at);
        drop(outcome);
        let subscription = self.find(client, target).expect("the subscription exists");
        self.table.withdraw(&subscription);
        match self.open.iter_mut().find(|open| open.client == client && open.target == target) {
            Some(other) => other.is_new |= is_new,
            None if is_new => drop(self.wanted.remove(&(client, target))),
            None => {}
        }
    }

    /// Sends the next request to the upstream.
    fn send_next(&mut self) -> Option<UpstreamRequest> {
        let request = self.table.next_request()?;
        assert!(self.is_up, "no request is sent without a connection");
        assert!(self.in_flight.iter().all(|other| other.native != request.native), "one request per URI at a time");
        self.in_flight.push(request.clone());
        Some(request)
    }

    fn handle_reply(&mut self, which: usize, reply: ModelReply) {
        let request = self.in_flight.remove(which);
        let uri = request.native.to_string();
        match request.subscribes {
            true if reply.is_accepted() => drop(self.upstream.insert(uri.clone())),
            true => {}
            // Any response to an unsubscribe means that the backend received it.
            false => drop(self.upstream.remove(&uri)),
        }
        self.table.handle_reply(&request, reply.to_upstream());
        if request.subscribes {
            self.exempt.remove(&uri);
            if !matches!(reply, ModelReply::Done) {
                self.exempt.insert(uri);
            }
        }
    }

    fn down(&mut self) {
        self.table.link_down(self.link);
        self.is_up = false;
        self.late.append(&mut self.in_flight);
        self.upstream.clear();
        self.exempt.clear();
        self.exempt_missing();
    }

    fn up(&mut self, can_subscribe: bool) {
        // The owner of a link does the same.
        self.down();
        self.link = self.table.link_up(can_subscribe, true).0;
        self.is_up = can_subscribe;
    }

    fn list(&mut self, bits: u8) {
        let listed = URIS.iter().enumerate().filter(|(bit, _)| bits & 1 << bit != 0);
        let listed = TestListing(listed.map(|(_, uri)| (*uri).to_owned()).collect());
        let before = std::mem::replace(&mut self.listed, listed);
        self.table.handle_listing(&self.listed, self.listed.listed().filter(|uri| !before.has(uri)));
        self.cover_all_listed();
        let returned = URIS.into_iter().filter(|uri| self.listed.has(uri) && !self.is_missing(uri));
        let returned: Vec<_> = returned.collect();
        // A URI that was rejected and is not deleted stays exempt.
        let exempt = std::mem::take(&mut self.exempt).into_iter();
        self.exempt = exempt.filter(|uri| !returned.contains(&uri.as_str()) || self.is_rejected(uri)).collect();
    }

    fn delete(&mut self, uri: &'static str) {
        let deleted = self.table.mark_deleted(uri, &self.listed).deleted;
        assert!(deleted.is_empty() || !self.listed.has(uri), "a listed resource is not deleted");
        if !deleted.is_empty() {
            self.covered.retain(|(_, covered)| *covered != uri);
        }
        self.exempt_missing();
    }

    fn states(&self, uri: &str) -> Vec<&'static str> {
        let of_uri = self.table.all().filter(|(subscription, _)| *subscription.name.native == *uri);
        of_uri.map(|(_, state)| state).collect()
    }

    fn is_missing(&self, uri: &str) -> bool {
        self.states(uri).contains(&"missing")
    }

    fn is_rejected(&self, uri: &str) -> bool {
        self.table.resources.get(uri).is_some_and(|resource| matches!(resource.status(), "rejected" | "tracked"))
    }

    fn exempt_missing(&mut self) {
        let missing = URIS.into_iter().filter(|uri| self.is_missing(uri));
        let missing: Vec<_> = missing.map(str::to_owned).collect();
        self.exempt.extend(missing);
    }

    fn hand_over(&mut self) {
        let was_up = self.is_up;
        let all = self.table.drain();
        self.down();
        assert!(self.table.is_empty());
        self.table = SubscriptionTable::new(99);
        self.exempt.clear();
        // Responses of one backend never reach the table of another.
        self.late.clear();
        if was_up {
            self.up(true);
        }
        self.table.restore(all, &self.listed);
        self.exempt_missing();
        self.covered.clear();
        self.cover_all_listed();
    }

    /// Receives the outcomes that have arrived. A rejection removes the subscription that its request created.
    fn settle(&mut self) {
        let wanted = &mut self.wanted;
        self.open.retain_mut(|open| match open.outcome.try_recv() {
            Ok(Some(SubscribeOutcome::Rejected(_) | SubscribeOutcome::Failed(_) | SubscribeOutcome::Late(_))) => {
                if open.is_new {
                    wanted.remove(&(open.client, open.target));
                }
                false
            }
            Ok(Some(_)) => {
                assert!(wanted.contains(&(open.client, open.target)));
                false
            }
            Err(_) => false,
            Ok(None) => true,
        });
    }

    fn remove_unwanted(&mut self) {
        let wanted = &self.wanted;
        self.covered.retain(|(glob, _)| wanted.iter().any(|(_, target)| target == glob));
    }

    /// Checks that the table agrees with the model.
    fn check(&self) {
        assert_eq!(self.subscription_count.count(), self.wanted.len());
        for (number, client) in self.clients.iter().enumerate() {
            let own: BTreeSet<_> = self
                .table
                .subscriptions_of(client)
                .iter()
                .map(|subscription| subscription.name.native.to_string())
                .collect();
            let wanted = self.wanted.iter().filter(|(client, _)| *client == number);
            assert_eq!(own, wanted.map(|(_, target)| (*target).to_owned()).collect());
        }
        for uri in URIS {
            let receives = |target: &str| target == uri || GLOBS.contains(&target) && covers(target, uri);
            let clients: BTreeSet<_> =
                self.wanted.iter().filter(|(_, target)| receives(target)).map(|(client, _)| client).collect();
            // The return of a missing resource is notified once, so its updates are not.
            let affected = if self.table.is_missing(uri) { 0 } else { clients.len() };
            assert_eq!(self.table.affected(uri).len(), affected, "{uri}");
            for (number, client) in self.clients.iter().enumerate() {
                assert_eq!(self.table.wants(client, uri), clients.contains(&number), "{uri}");
            }
        }
        assert_eq!(self.table.all().count(), self.wanted.len());
    }

    /// Sends and answers requests until none is left.
    fn finish(&mut self) {
        loop {
            while self.send_next().is_some() {}
            if self.in_flight.is_empty() {
                break;
            }
            self.handle_reply(0, ModelReply::Done);
            self.settle();
            self.remove_unwanted();
            self.check();
        }
        assert!(self.open.is_empty(), "no request stays open");
        if self.is_up {
            let plain = self.wanted.iter().map(|(_, target)| *target).filter(|target| URIS.contains(target));
            let wanted: BTreeSet<_> =
                plain.chain(self.covered.iter().map(|(_, uri)| *uri)).map(str::to_owned).collect();
            assert!(self.upstream.is_subset(&wanted), "{:?} is more than {wanted:?}", self.upstream);
            let expected: BTreeSet<_> = wanted.difference(&self.exempt).cloned().collect();
            assert!(expected.is_subset(&self.upstream), "{:?} lacks some of {expected:?}", self.upstream);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    #[test]
    fn sub2_sub12_sub14_sub16_subx1_no_interleaving_leaves_a_wrong_upstream_state(
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut model = TableModel::new();
        model.up(true);
        for step in steps {
            model.apply(step);
        }
        model.finish();
        for number in 0..CLIENTS {
            model.apply(ModelEvent::Release(number));
        }
        model.finish();
        prop_assert!(model.table.is_empty() && model.upstream.is_empty() && model.subscription_count.count() == 0);
    }
}
