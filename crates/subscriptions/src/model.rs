//! Model tests of [`SubscriptionTable`]. They run random events against a model that keeps only the subscriptions and the
//! listed resources. A simulated upstream records the requests it receives. At the end, the upstream must have exactly
//! the wanted subscriptions, except those that it refused.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::fixture::{Subscription, SubscriptionTable, TestClient, TestListing, glob};
use super::*;
use crate::count::SubscriptionCount;

const CLIENTS: usize = 3;
const URIS: [&str; 3] = ["a:1", "a:2", "a:3"];
const GLOBS: [&str; 2] = ["a:*", "a:[12]"];

/// All subscriptions that a client may request: the URIs and the globs.
fn wishes() -> impl Iterator<Item = &'static str> {
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
    Say,
    /// The backend responds to one of the requests in flight.
    Answer(usize, ModelReply),
    /// The backend responds to a request of an earlier connection.
    AnswerLate(ModelReply),
    Down,
    Up(bool),
    /// The backend lists these URIs, one bit each.
    List(u8),
    /// A read of this URI fails.
    Vanish(&'static str),
    /// Another backend replaces this one.
    HandOver,
}

#[derive(Clone, Copy, Debug)]
enum ModelReply {
    Done,
    Unknown,
    Refused,
    /// True if the backend processed the request.
    Late(bool),
}

impl ModelReply {
    fn reply(self) -> UpstreamReply {
        match self {
            ModelReply::Done => UpstreamReply::Done,
            ModelReply::Unknown => UpstreamReply::Unknown,
            ModelReply::Refused => UpstreamReply::Failed("no".into()),
            ModelReply::Late(_) => UpstreamReply::Late(Duration::from_secs(1)),
        }
    }

    fn is_heard(self) -> bool {
        matches!(self, ModelReply::Done | ModelReply::Late(true))
    }
}

fn step() -> impl Strategy<Value = ModelEvent> {
    let wish = || prop::sample::select(wishes().collect::<Vec<_>>());
    let verdict = || {
        prop_oneof![
            6 => Just(ModelReply::Done),
            1 => Just(ModelReply::Unknown),
            1 => Just(ModelReply::Refused),
            1 => any::<bool>().prop_map(ModelReply::Late),
        ]
    };
    prop_oneof![
        8 => (0..CLIENTS, wish()).prop_map(|(client, wish)| ModelEvent::Subscribe(client, wish)),
        5 => (0..CLIENTS, wish()).prop_map(|(client, wish)| ModelEvent::Unsubscribe(client, wish)),
        1 => (0..CLIENTS).prop_map(ModelEvent::Release),
        1 => (0..CLIENTS).prop_map(ModelEvent::Cancel),
        8 => Just(ModelEvent::Say),
        8 => (0..8_usize, verdict()).prop_map(|(which, verdict)| ModelEvent::Answer(which, verdict)),
        1 => verdict().prop_map(ModelEvent::AnswerLate),
        1 => Just(ModelEvent::Down),
        2 => any::<bool>().prop_map(ModelEvent::Up),
        4 => (0..8_u8).prop_map(ModelEvent::List),
        2 => prop::sample::select(URIS.to_vec()).prop_map(ModelEvent::Vanish),
        1 => Just(ModelEvent::HandOver),
    ]
}

/// An open subscribe request of a client.
struct OpenSubscribe {
    client: usize,
    wish: &'static str,
    is_new: bool,
    asked: Receiver<SubscribeOutcome>,
}

struct TableModel {
    table: SubscriptionTable,
    link: u64,
    listed: TestListing,
    clients: Vec<Arc<TestClient>>,
    tally: Arc<SubscriptionCount>,
    /// The model: the subscriptions of each client.
    wanted: BTreeSet<(usize, &'static str)>,
    /// The URIs that each glob has covered since its first subscription.
    covered: BTreeSet<(&'static str, &'static str)>,
    open: Vec<OpenSubscribe>,
    /// Requests in flight.
    jobs: Vec<UpstreamRequest>,
    /// Requests in flight over earlier connections.
    late: Vec<UpstreamRequest>,
    /// The subscriptions that the upstream has, according to the requests it received.
    upstream: BTreeSet<String>,
    /// URIs that need no subscription upstream, because they are refused, unsupported or deleted.
    excused: BTreeSet<String>,
    is_up: bool,
}

impl TableModel {
    fn new() -> TableModel {
        TableModel {
            table: SubscriptionTable::new(99),
            link: 0,
            listed: TestListing::default(),
            clients: (0..CLIENTS).map(|_| TestClient::new()).collect(),
            tally: Arc::default(),
            wanted: BTreeSet::new(),
            covered: BTreeSet::new(),
            open: Vec::new(),
            jobs: Vec::new(),
            late: Vec::new(),
            upstream: BTreeSet::new(),
            excused: BTreeSet::new(),
            is_up: false,
        }
    }

    fn take(&mut self, step: ModelEvent) {
        match step {
            ModelEvent::Subscribe(client, wish) => self.subscribe(client, wish),
            ModelEvent::Unsubscribe(client, wish) => self.unsubscribe(client, wish),
            ModelEvent::Release(client) => {
                let ended = self.table.release(&self.clients[client]).len();
                let before = self.wanted.len();
                self.wanted.retain(|(other, _)| *other != client);
                assert_eq!(ended, before - self.wanted.len());
                self.settle();
                self.clients[client] = TestClient::new();
            }
            ModelEvent::Cancel(client) => self.cancel(client),
            ModelEvent::Say => drop(self.say()),
            ModelEvent::Answer(which, verdict) if !self.jobs.is_empty() => {
                self.answer(which % self.jobs.len(), verdict)
            }
            ModelEvent::Answer(..) => {}
            ModelEvent::AnswerLate(verdict) => {
                let told = self.late.pop().map(|job| self.table.answered(&job, verdict.reply()));
                assert!(told.is_none_or(|told| told.is_empty()));
            }
            ModelEvent::Down => self.down(),
            ModelEvent::Up(can_subscribe) => self.up(can_subscribe),
            ModelEvent::List(bits) => self.list(bits),
            ModelEvent::Vanish(uri) => self.vanish(uri),
            ModelEvent::HandOver => self.hand_over(),
        }
        self.settle();
        self.forget_unwanted();
        self.check();
    }

    fn subscribe(&mut self, client: usize, wish: &'static str) {
        let is_glob = GLOBS.contains(&wish);
        if is_glob && self.wanted.iter().all(|(_, other)| *other != wish) {
            self.pattern_entry(wish);
        }
        let entered = SubscribeRequest {
            subscriber: Arc::clone(&self.clients[client]),
            native: wish.into(),
            exposed: format!("x+{wish}").into(),
            pattern: is_glob.then(|| glob(wish)),
            terms: SubscriptionOptions::default(),
        };
        let tally = &self.tally;
        let entry =
            self.table.subscribe(entered, &self.listed, || SubscriptionPermit::new((tally, 99), (&Arc::default(), 99)));
        let is_new = self.wanted.insert((client, wish));
        match entry.unwrap_or_else(|full| panic!("{full:?}")).standing {
            SubscribeStatus::Settled(outcome) => {
                assert!(
                    matches!(
                        outcome,
                        SubscribeOutcome::Subscribed | SubscribeOutcome::Tracked | SubscribeOutcome::Pending
                    ),
                    "{outcome:?}"
                );
            }
            SubscribeStatus::Asked(asked) => self.open.push(OpenSubscribe { client, wish, is_new, asked }),
        }
    }

    fn pattern_entry(&mut self, wish: &'static str) {
        let listed = URIS.into_iter().filter(|uri| self.listed.has(uri) && covers(wish, uri));
        self.covered.extend(listed.map(|uri| (wish, uri)));
    }

    fn cover_wanted(&mut self) {
        for glob in GLOBS {
            if self.wanted.iter().any(|(_, wish)| *wish == glob) {
                self.pattern_entry(glob);
            }
        }
    }

    fn find(&self, client: usize, wish: &str) -> Option<Arc<Subscription>> {
        self.table.of(&self.clients[client]).iter().find(|own| *own.name.native == *wish).cloned()
    }

    fn unsubscribe(&mut self, client: usize, wish: &'static str) {
        let found = self.find(client, wish);
        let ended = found.is_some_and(|subscription| self.table.end(&subscription));
        assert_eq!(ended, self.wanted.remove(&(client, wish)));
    }

    fn cancel(&mut self, client: usize) {
        let Some(at) = self.open.iter().position(|open| open.client == client) else { return };
        let OpenSubscribe { wish, is_new, asked, .. } = self.open.remove(at);
        drop(asked);
        let subscription = self.find(client, wish).expect("it was entered");
        self.table.withdraw(&subscription);
        match self.open.iter_mut().find(|open| open.client == client && open.wish == wish) {
            Some(other) => other.is_new |= is_new,
            None if is_new => drop(self.wanted.remove(&(client, wish))),
            None => {}
        }
    }

    /// Sends the next request to the upstream.
    fn say(&mut self) -> Option<UpstreamRequest> {
        let job = self.table.next_job()?;
        assert!(self.is_up, "nothing is said without a connection");
        assert!(self.jobs.iter().all(|other| other.native != job.native), "one request per URI at a time");
        self.jobs.push(job.clone());
        Some(job)
    }

    fn answer(&mut self, which: usize, verdict: ModelReply) {
        let job = self.jobs.remove(which);
        let uri = job.native.to_string();
        match job.subscribes {
            true if verdict.is_heard() => drop(self.upstream.insert(uri.clone())),
            true => {}
            // Any response to an unsubscribe means that the backend received it.
            false => drop(self.upstream.remove(&uri)),
        }
        self.table.answered(&job, verdict.reply());
        if job.subscribes {
            self.excused.remove(&uri);
            if !matches!(verdict, ModelReply::Done) {
                self.excused.insert(uri);
            }
        }
    }

    fn down(&mut self) {
        self.table.link_down(self.link);
        self.is_up = false;
        self.late.append(&mut self.jobs);
        self.upstream.clear();
        self.excused.clear();
        self.excuse_missing();
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
        self.table.relisted(&self.listed, self.listed.listed().filter(|uri| !before.has(uri)));
        self.cover_wanted();
        let back = URIS.into_iter().filter(|uri| self.listed.has(uri) && !self.is_missing(uri));
        let back: Vec<_> = back.collect();
        // A URI that was refused and is not deleted stays excused.
        let excused = std::mem::take(&mut self.excused).into_iter();
        self.excused = excused.filter(|uri| !back.contains(&uri.as_str()) || self.is_refused(uri)).collect();
    }

    fn vanish(&mut self, uri: &'static str) {
        let told = self.table.vanished(uri, &self.listed).deleted;
        assert!(told.is_empty() || !self.listed.has(uri), "what is listed is not gone");
        if !told.is_empty() {
            self.covered.retain(|(_, covered)| *covered != uri);
        }
        self.excuse_missing();
    }

    fn states(&self, uri: &str) -> Vec<&'static str> {
        let of_uri = self.table.all().filter(|(subscription, _)| *subscription.name.native == *uri);
        of_uri.map(|(_, state)| state).collect()
    }

    fn is_missing(&self, uri: &str) -> bool {
        self.states(uri).contains(&"missing")
    }

    fn is_refused(&self, uri: &str) -> bool {
        self.table.topics.get(uri).is_some_and(|resource| matches!(resource.standing(), "refused" | "tracked"))
    }

    fn excuse_missing(&mut self) {
        let missing = URIS.into_iter().filter(|uri| self.is_missing(uri));
        let missing: Vec<_> = missing.map(str::to_owned).collect();
        self.excused.extend(missing);
    }

    fn hand_over(&mut self) {
        let was_up = self.is_up;
        let all = self.table.drain();
        self.down();
        assert!(self.table.is_empty());
        self.table = SubscriptionTable::new(99);
        self.excused.clear();
        // Responses of one backend never reach the table of another.
        self.late.clear();
        if was_up {
            self.up(true);
        }
        self.table.restore(all, &self.listed);
        self.covered.clear();
        self.cover_wanted();
    }

    /// Receives the outcomes that have arrived. A refusal removes the subscription that its request created.
    fn settle(&mut self) {
        let wanted = &mut self.wanted;
        self.open.retain_mut(|open| match open.asked.try_recv() {
            Ok(Some(SubscribeOutcome::Refused(_) | SubscribeOutcome::Failed(_) | SubscribeOutcome::Late(_))) => {
                if open.is_new {
                    wanted.remove(&(open.client, open.wish));
                }
                false
            }
            Ok(Some(_)) => {
                assert!(wanted.contains(&(open.client, open.wish)));
                false
            }
            Err(_) => false,
            Ok(None) => true,
        });
    }

    fn forget_unwanted(&mut self) {
        let wanted = &self.wanted;
        self.covered.retain(|(glob, _)| wanted.iter().any(|(_, wish)| wish == glob));
    }

    /// Checks that the table agrees with the model.
    fn check(&self) {
        assert_eq!(self.tally.count(), self.wanted.len());
        for (number, client) in self.clients.iter().enumerate() {
            let own: BTreeSet<_> = self.table.of(client).iter().map(|it| it.name.native.to_string()).collect();
            let wanted = self.wanted.iter().filter(|(client, _)| *client == number);
            assert_eq!(own, wanted.map(|(_, wish)| (*wish).to_owned()).collect());
        }
        for uri in URIS {
            let hears = |wish: &str| wish == uri || GLOBS.contains(&wish) && covers(wish, uri);
            let clients: BTreeSet<_> =
                self.wanted.iter().filter(|(_, wish)| hears(wish)).map(|(client, _)| client).collect();
            assert_eq!(self.table.affected(uri).len(), clients.len(), "{uri}");
            for (number, client) in self.clients.iter().enumerate() {
                assert_eq!(self.table.wants(client, uri), clients.contains(&number), "{uri}");
            }
        }
        assert_eq!(self.table.all().count(), self.wanted.len());
    }

    /// Sends and answers requests until none is left.
    fn finish(&mut self) {
        loop {
            while self.say().is_some() {}
            if self.jobs.is_empty() {
                break;
            }
            self.answer(0, ModelReply::Done);
            self.settle();
            self.forget_unwanted();
            self.check();
        }
        assert!(self.open.is_empty(), "nobody waits for ever");
        if self.is_up {
            let plain = self.wanted.iter().map(|(_, wish)| *wish).filter(|wish| URIS.contains(wish));
            let wanted: BTreeSet<_> =
                plain.chain(self.covered.iter().map(|(_, uri)| *uri)).map(str::to_owned).collect();
            assert!(self.upstream.is_subset(&wanted), "{:?} is more than {wanted:?}", self.upstream);
            let expected: BTreeSet<_> = wanted.difference(&self.excused).cloned().collect();
            assert!(expected.is_subset(&self.upstream), "{:?} lacks some of {expected:?}", self.upstream);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]
    #[test]
    fn sub2_sub12_sub14_sub16_subx1_no_interleaving_leaves_the_upstream_wrong(
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let mut world = TableModel::new();
        world.up(true);
        for step in steps {
            world.take(step);
        }
        world.finish();
        for number in 0..CLIENTS {
            world.take(ModelEvent::Release(number));
        }
        world.finish();
        prop_assert!(world.table.is_empty() && world.upstream.is_empty() && world.tally.count() == 0);
    }
}
