//! A client for the ledger of subscriptions. It subscribes and unsubscribes at random. Its connection is cut, it leaves
//! and returns, and it is slow at times. It reads every resource that it is notified of, and records the content.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use goblin_fixture::fault::FaultProxy;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::Client;
use crate::harness::{Scratch, goblin};
use crate::stage::Front;
use crate::subscriber::{UPDATED, meta};

/// The longest time that a player only listens.
pub const LISTENS_MS: u64 = 100;
/// The time that a slow player reads very little. The next constant is its rate in bytes per second.
pub const SLOW: Duration = Duration::from_millis(300);
pub const SLOW_RATE: u64 = 100;
/// The longest time that nothing passes before a line is cut.
pub const STUCK_MS: u64 = 200;
const PLAYERS: [(Front, u64); 3] = [(Front::Http, 4), (Front::Sse, 3), (Front::Stdio, 2)];
pub const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The recorded content of a resource that changes with every read: that it was notified.
pub const TOLD: &str = "told";

/// Pseudo-random numbers that are the same for the same seed (xorshift).
pub struct Random(u64);

impl Random {
    /// Creates a generator. Consecutive seeds start far apart.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    pub fn pick<'list, T>(&mut self, list: &'list [T]) -> &'list T {
        &list[self.below(list.len() as u64) as usize]
    }

    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// The notifications of all clients together.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The number of changes made.
    pub emitted: u64,
    pub delivered: u64,
    /// Updates of a version that the client had already received.
    pub doubled: u64,
    /// Updates from before the response to an unsubscribe, received after it.
    pub late: u64,
    pub reads: u64,
    /// Reads and subscribe requests that failed and were repeated.
    pub retries: u64,
    pub resumed: u64,
    pub reopened: u64,
    pub came_again: u64,
    pub slow: u64,
    pub lost: Vec<String>,
    pub wrong: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { emitted, delivered, doubled, late, reads, retries, resumed, reopened, came_again, slow, .. } = self;
        write!(
            formatter,
            "resumed {resumed} reopened {reopened} came again {came_again} slow {slow} | emitted {emitted} delivered \
             {delivered} dup {doubled} late {late} reads {reads} retries {retries} LOST {} WRONG {}",
            self.lost.len(),
            self.wrong.len()
        )
    }
}

#[derive(Default)]
pub struct Books {
    report: Mutex<Report>,
    /// The highest possible version of each resource, if its versions never restart.
    versions: Mutex<BTreeMap<String, u64>>,
}

impl Books {
    pub fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().expect("no panic")
    }

    /// Records that this many changes begin, each of which increments the version.
    pub fn begin(&self, uri: &str, count: u64) {
        *self.versions.lock().expect("no panic").entry(uri.to_owned()).or_default() += count;
    }

    /// Returns the last version that could have been notified by now.
    fn last_version(&self, uri: &str) -> u64 {
        self.versions.lock().expect("no panic").get(uri).copied().unwrap_or(u64::MAX)
    }
}

/// The gateway, the shared ledger, and the resources to subscribe to.
pub struct Place {
    pub gateway: SocketAddr,
    pub books: Books,
    pub uris: Vec<String>,
    /// The resources that change with every read.
    pub restless: BTreeSet<String>,
}

/// The actions of a client of either era for the ledger.
pub trait Plays: Send + Sized + 'static {
    /// Returns all players. Each has a subscription.
    fn come(place: &Arc<Place>, seed: u64) -> impl Future<Output = Vec<Self>> + Send;

    /// Performs random actions.
    fn live(&mut self, deeds: u64) -> impl Future<Output = ()> + Send;

    /// Receives messages and reads the changed resources. Returns false if nothing arrives before the deadline.
    fn hear_before(&mut self, deadline: Instant) -> impl Future<Output = bool> + Send;

    /// Receives all messages that are on their way.
    fn hear_out(&mut self) -> impl Future<Output = ()> + Send;

    fn sight(&mut self) -> &mut Sight;

    /// Returns the number of subscriptions that the gateway should count.
    fn subscriptions(&self) -> usize;

    /// Disconnects for good.
    fn leave(self) -> impl Future<Output = ()> + Send;

    /// Listens until it has seen the current content. Records a loss for content it has not seen before the deadline.
    fn catch_up(&mut self, truth: &BTreeMap<String, String>, deadline: Instant) -> impl Future<Output = ()> + Send {
        async move {
            while !self.sight().behind(truth).is_empty() {
                if !self.hear_before(deadline).await {
                    let sight = self.sight();
                    let lost = sight.behind(truth);
                    sight.place.books.report().lost.extend(lost);
                    return;
                }
            }
        }
    }
}

/// The content that a client has seen.
pub struct Sight {
    pub name: String,
    pub place: Arc<Place>,
    /// The subscribed resources and the content of the last read.
    pub wanted: BTreeMap<String, Option<String>>,
}

impl Sight {
    pub fn new(name: String, place: &Arc<Place>) -> Sight {
        Sight { name, place: Arc::clone(place), wanted: BTreeMap::new() }
    }

    fn behind(&self, truth: &BTreeMap<String, String>) -> Vec<String> {
        let wanted = self.wanted.iter().filter_map(|(uri, seen)| Some((uri, seen, truth.get(uri)?)));
        let behind = wanted.filter(|(_, seen, truth)| seen.as_ref() != Some(truth));
        behind.map(|(uri, seen, truth)| format!("{} saw {seen:?} of {uri}, not {truth:?}", self.name)).collect()
    }

    /// Clears the record of resources that change with every read, as if they had not been notified.
    pub fn forget_restless(&mut self) {
        let restless = self.wanted.iter_mut().filter(|(uri, _)| self.place.restless.contains(*uri));
        restless.for_each(|(_, seen)| *seen = None);
    }
}

/// A client with a session.
pub struct Player {
    sight: Sight,
    front: Front,
    /// The proxy that carries all notifications.
    line: FaultProxy,
    peer: Client,
    random: Random,
    /// The unsubscribed resources, and the last version that may still be on its way.
    left: BTreeMap<String, u64>,
    /// The last notified version of each resource.
    versions: BTreeMap<String, u64>,
}

impl Plays for Player {
    async fn come(place: &Arc<Place>, seed: u64) -> Vec<Player> {
        let fronts = PLAYERS.iter().flat_map(|(front, count)| (0..*count).map(|_| *front));
        let coming = (0..).zip(fronts).map(|(number, front)| Player::new(place, front, number, seed));
        futures_util::future::join_all(coming).await
    }

    async fn live(&mut self, deeds: u64) {
        for _ in 0..deeds {
            match self.random.below(10) {
                0..3 => self.subscribe_to_any().await,
                3..5 => self.unsubscribe_from_any().await,
                5 => self.is_cut().await,
                6 => self.is_cut_and_forgets().await,
                7 => self.goes_and_comes().await,
                8 => self.is_slow().await,
                _ => {}
            }
            let until = Instant::now() + Duration::from_millis(self.random.below(LISTENS_MS));
            while self.hear_before(until).await {}
        }
    }

    /// Receives an update and all further ones that are ready, and reads the changed resources. Returns false if none
    /// arrives before the deadline.
    async fn hear_before(&mut self, deadline: Instant) -> bool {
        let Ok(update) = tokio::time::timeout_at(deadline, self.peer.updated()).await else { return false };
        let mut messages = self.peer.meanwhile();
        messages.retain(|message| message["method"] == UPDATED);
        messages.insert(0, update.json());
        let updates: Vec<_> = messages.iter().map(|message| message["params"].clone()).collect();
        self.take_in(&updates).await;
        true
    }

    /// Receives all messages that are on their way. No further update of an unsubscribed resource may follow.
    async fn hear_out(&mut self) {
        let updates = self.peer.updates().await;
        self.take_in(&updates).await;
        self.left.clear();
    }

    fn sight(&mut self) -> &mut Sight {
        &mut self.sight
    }

    fn subscriptions(&self) -> usize {
        self.sight.wanted.len()
    }

    async fn leave(self) {
        self.peer.leave().await;
    }
}

impl Player {
    async fn new(place: &Arc<Place>, front: Front, number: u64, seed: u64) -> Player {
        let line = FaultProxy::start(place.gateway);
        let peer = connect(front, &line, place.gateway).await;
        let sight = Sight::new(format!("{front:?} {number}"), place);
        let random = Random::new(seed.wrapping_add(number));
        let (left, versions) = Default::default();
        let mut player = Player { sight, front, line, peer, random, left, versions };
        for _ in 0..place.uris.len() / 2 {
            player.subscribe_to_any().await;
        }
        player
    }

    async fn subscribe_to_any(&mut self) {
        let uri = self.random.pick(&self.sight.place.uris).clone();
        self.subscribe(uri).await;
    }

    async fn subscribe(&mut self, uri: String) {
        self.left.remove(&uri);
        self.sight.wanted.entry(uri.clone()).or_default();
        let answer = self.insist("resources/subscribe", &uri).await;
        assert_eq!(meta(&answer)["dev.goblin/uri"], uri);
        // Earlier changes are not notified, so the resource is read now.
        self.look(&uri).await;
    }

    async fn unsubscribe_from_any(&mut self) {
        let uri = self.random.pick(&self.sight.place.uris).clone();
        if self.sight.wanted.remove(&uri).is_some() {
            self.left.insert(uri.clone(), u64::MAX);
        }
        self.insist("resources/unsubscribe", &uri).await;
        let last = self.sight.place.books.last_version(&uri);
        self.left.entry(uri).and_modify(|limit| *limit = last);
    }

    /// Cuts the line. The bridge and Streamable HTTP resume; a client of HTTP+SSE starts a new session.
    async fn is_cut(&mut self) {
        match self.front {
            Front::Http => {
                self.cut().await;
                self.peer.resume().await;
                self.sight.place.books.report().resumed += 1;
            }
            Front::Stdio => {
                self.cut().await;
                self.sight.place.books.report().resumed += 1;
            }
            Front::Sse => {
                self.cut().await;
                self.come_again().await;
            }
        }
    }

    async fn is_cut_and_forgets(&mut self) {
        match self.front {
            Front::Http => {
                self.cut().await;
                self.peer.listen_again().await;
                self.sight.place.books.report().reopened += 1;
            }
            Front::Stdio | Front::Sse => self.is_cut().await,
        }
    }

    /// Cuts the line. Messages in transit are lost.
    async fn cut(&mut self) {
        self.line.throttle(SLOW_RATE).await;
        tokio::time::sleep(Duration::from_millis(self.random.below(STUCK_MS))).await;
        self.line.cut().await;
        self.line.pass().await;
    }

    async fn goes_and_comes(&mut self) {
        let next = connect(self.front, &self.line, self.sight.place.gateway).await;
        std::mem::replace(&mut self.peer, next).leave().await;
        self.settle_in().await;
    }

    async fn come_again(&mut self) {
        self.peer = connect(self.front, &self.line, self.sight.place.gateway).await;
        self.settle_in().await;
    }

    /// Subscribes to everything again, because a new session has no state of the last one.
    async fn settle_in(&mut self) {
        self.sight.place.books.report().came_again += 1;
        self.left.clear();
        self.versions.clear();
        for uri in std::mem::take(&mut self.sight.wanted).into_keys() {
            self.subscribe(uri).await;
        }
    }

    async fn is_slow(&mut self) {
        self.line.throttle(SLOW_RATE).await;
        tokio::time::sleep(SLOW).await;
        self.line.pass().await;
        self.sight.place.books.report().slow += 1;
    }

    async fn take_in(&mut self, updates: &[Value]) {
        let changed: BTreeSet<_> = updates.iter().filter_map(|params| self.book(params)).collect();
        for uri in changed {
            self.look(&uri).await;
        }
    }

    /// Records an update. Returns the resource to read again.
    fn book(&mut self, params: &Value) -> Option<String> {
        let uri = params["uri"].as_str().unwrap_or_else(|| panic!("{}: {params}", self.sight.name)).to_owned();
        let version = params["version"].as_u64();
        let mut report = self.sight.place.books.report();
        report.delivered += 1;
        if let Some(version) = version {
            let last = self.versions.insert(uri.clone(), version);
            report.doubled += u64::from(last == Some(version));
        }
        if self.sight.wanted.contains_key(&uri) {
            return Some(uri);
        }
        match self.left.get(&uri) {
            Some(limit) if version.is_none_or(|version| version <= *limit) => report.late += 1,
            _ => report.wrong.push(format!("{} heard {params}, and had left {:?}", self.sight.name, self.left)),
        }
        None
    }

    async fn look(&mut self, uri: &str) {
        let seen = if self.sight.place.restless.contains(uri) {
            TOLD.to_owned()
        } else {
            let answer = self.insist("resources/read", uri).await;
            self.sight.place.books.report().reads += 1;
            text_of(&answer)
        };
        self.sight.wanted.insert(uri.to_owned(), Some(seen));
    }

    /// Repeats a request until it succeeds. Servers fail and return, and so does the bridge's gateway.
    async fn insist(&mut self, method: &str, uri: &str) -> Value {
        loop {
            let answer = self.peer.request(method, json!({ "uri": uri })).await;
            if answer["result"].is_object() {
                return answer;
            }
            let name = answer["error"]["data"]["code"].as_str();
            assert_eq!(name, Some("BACKEND_UNAVAILABLE"), "{}: {method} of {uri}: {answer}", self.sight.name);
            self.sight.place.books.report().retries += 1;
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

async fn connect(front: Front, line: &FaultProxy, gateway: SocketAddr) -> Client {
    let mut peer = match front {
        Front::Http => Client::new(gateway).via(gateway, line.addr()).listening(json!({})).await,
        Front::Sse => Client::sse(line.addr()).await.via(gateway, line.addr()).listening(json!({})).await,
        Front::Stdio => bridge(line.addr()).listening(json!({})).await,
    };
    peer.name = format!("{front:?}");
    peer
}

/// Starts `goblin stdio` in front of a gateway at this address.
pub fn bridge(gateway: SocketAddr) -> Client {
    // The command looks only for a runtime file there, and none exists.
    let nowhere = Scratch::new();
    let mut command = goblin(nowhere.path());
    command.args(["stdio", "--url", &format!("http://{gateway}/mcp")]).stderr(Stdio::null());
    Client::run(command)
}

/// Returns the text of a resource.
pub fn text_of(answer: &Value) -> String {
    answer["result"]["contents"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}
