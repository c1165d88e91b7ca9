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
use crate::subscriber::{UPDATED, meta, named};
use crate::transport_pairs::Front;

/// The longest time that a player only listens.
pub const LISTENS_MS: u64 = 100;
/// The time that a slow player reads very little. The next constant is its rate in bytes per second.
const SLOW: Duration = Duration::from_millis(300);
pub const SLOW_RATE: u64 = 100;
/// The longest time that nothing passes before a line is cut.
pub const STUCK_MS: u64 = 200;
const PLAYERS: [(Front, u64); 3] = [(Front::Http, 4), (Front::Sse, 3), (Front::Stdio, 2)];
pub const AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The recorded content of a resource that changes with every read: that it was notified.
pub const NOTIFIED: &str = "notified";

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
    pub reconnected: u64,
    pub slow: u64,
    pub lost: Vec<String>,
    pub wrong: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { emitted, delivered, doubled, late, reads, retries, resumed, reopened, reconnected, slow, .. } = self;
        write!(
            formatter,
            "resumed {resumed} reopened {reopened} reconnected {reconnected} slow {slow} | emitted {emitted} delivered \
             {delivered} dup {doubled} late {late} reads {reads} retries {retries} LOST {} WRONG {}",
            self.lost.len(),
            self.wrong.len()
        )
    }
}

#[derive(Default)]
pub struct Records {
    report: Mutex<Report>,
    /// The highest possible version of each resource, if its versions never restart.
    versions: Mutex<BTreeMap<String, u64>>,
}

impl Records {
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
    pub records: Records,
    pub uris: Vec<String>,
    /// The resources that change with every read.
    pub volatile: BTreeSet<String>,
}

/// The actions of a client of either era for the ledger.
pub trait Plays: Send + Sized + 'static {
    /// Returns all players. Each has a subscription.
    fn connect_all(place: &Arc<Place>, seed: u64) -> impl Future<Output = Vec<Self>> + Send;

    /// Performs random actions.
    fn act(&mut self, actions: u64) -> impl Future<Output = ()> + Send;

    /// Receives messages and reads the changed resources. Returns false if nothing arrives before the deadline.
    fn receive_until(&mut self, deadline: Instant) -> impl Future<Output = bool> + Send;

    /// Receives all messages that are on their way.
    fn receive_rest(&mut self) -> impl Future<Output = ()> + Send;

    fn observed(&mut self) -> &mut Observed;

    /// Returns the number of subscriptions that the gateway should count.
    fn subscriptions(&self) -> usize;

    /// Disconnects for good.
    fn disconnect(self) -> impl Future<Output = ()> + Send;

    /// Listens until it has seen the current content. Records a loss for content it has not seen before the deadline.
    fn catch_up(&mut self, truth: &BTreeMap<String, String>, deadline: Instant) -> impl Future<Output = ()> + Send {
        async move {
            while !self.observed().behind(truth).is_empty() {
                if !self.receive_until(deadline).await {
                    let observed = self.observed();
                    let lost = observed.behind(truth);
                    observed.place.records.report().lost.extend(lost);
                    return;
                }
            }
        }
    }
}

/// The content that a client has seen.
pub struct Observed {
    pub name: String,
    pub place: Arc<Place>,
    /// The subscribed resources and the content of the last read.
    pub wanted: BTreeMap<String, Option<String>>,
}

impl Observed {
    pub fn new(name: String, place: &Arc<Place>) -> Observed {
        Observed { name, place: Arc::clone(place), wanted: BTreeMap::new() }
    }

    fn behind(&self, truth: &BTreeMap<String, String>) -> Vec<String> {
        let wanted = self.wanted.iter().filter_map(|(uri, seen)| Some((uri, seen, truth.get(uri)?)));
        let behind = wanted.filter(|(_, seen, truth)| seen.as_ref() != Some(truth));
        behind.map(|(uri, seen, truth)| format!("{} saw {seen:?} of {uri}, not {truth:?}", self.name)).collect()
    }

    /// Throttles the line for a while.
    pub async fn throttle(&self, line: &FaultProxy) {
        line.throttle(SLOW_RATE).await;
        tokio::time::sleep(SLOW).await;
        line.pass().await;
        self.place.records.report().slow += 1;
    }

    /// Reads a resource and records its content.
    pub async fn read_resource(&mut self, client: &Client, uri: &str) {
        let seen = if self.place.volatile.contains(uri) {
            NOTIFIED.to_owned()
        } else {
            let answer = self.request_until_success(client, "resources/read", json!({ "uri": uri })).await;
            self.place.records.report().reads += 1;
            text_of(&answer)
        };
        self.wanted.insert(uri.to_owned(), Some(seen));
    }

    /// Repeats a request until it succeeds. Servers fail and return, and so does the bridge's gateway.
    pub async fn request_until_success(&self, client: &Client, method: &str, params: Value) -> Value {
        loop {
            let answer = client.request(method, params.clone()).await;
            if answer["result"].is_object() {
                return answer;
            }
            let code = answer["error"]["data"]["code"].as_str();
            assert_eq!(code, Some("BACKEND_UNAVAILABLE"), "{}: {method} of {params}: {answer}", self.name);
            self.place.records.report().retries += 1;
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    /// Clears the record of resources that change with every read, as if they had not been notified.
    pub fn clear_volatile(&mut self) {
        let volatile = self.wanted.iter_mut().filter(|(uri, _)| self.place.volatile.contains(*uri));
        volatile.for_each(|(_, seen)| *seen = None);
    }
}

/// A client with a session.
pub struct Player {
    observed: Observed,
    front: Front,
    /// The proxy that carries all notifications.
    line: FaultProxy,
    peer: Client,
    random: Random,
    /// The unsubscribed resources, and the last version that may still be on its way.
    unsubscribed: BTreeMap<String, u64>,
    /// The last notified version of each resource.
    versions: BTreeMap<String, u64>,
}

impl Plays for Player {
    async fn connect_all(place: &Arc<Place>, seed: u64) -> Vec<Player> {
        let fronts = PLAYERS.iter().flat_map(|(front, count)| (0..*count).map(|_| *front));
        let players = (0..).zip(fronts).map(|(number, front)| Player::new(place, front, number, seed));
        futures_util::future::join_all(players).await
    }

    async fn act(&mut self, actions: u64) {
        for _ in 0..actions {
            match self.random.below(10) {
                0..3 => self.subscribe_to_any().await,
                3..5 => self.unsubscribe_from_any().await,
                5 => self.cut_line().await,
                6 => self.cut_and_reopen().await,
                7 => self.reconnect().await,
                8 => self.observed.throttle(&self.line).await,
                _ => {}
            }
            let until = Instant::now() + Duration::from_millis(self.random.below(LISTENS_MS));
            while self.receive_until(until).await {}
        }
    }

    /// Receives an update and all further ones that are ready, and reads the changed resources. Returns false if none
    /// arrives before the deadline.
    async fn receive_until(&mut self, deadline: Instant) -> bool {
        let Ok(update) = tokio::time::timeout_at(deadline, self.peer.updated()).await else { return false };
        let mut messages = self.peer.drain();
        messages.retain(|message| message["method"] == UPDATED);
        messages.insert(0, update.json());
        let updates: Vec<_> = messages.iter().map(|message| message["params"].clone()).collect();
        self.process_updates(&updates).await;
        true
    }

    /// Receives all messages that are on their way. No further update of an unsubscribed resource may follow.
    async fn receive_rest(&mut self) {
        let updates = self.peer.updates().await;
        self.process_updates(&updates).await;
        self.unsubscribed.clear();
    }

    fn observed(&mut self) -> &mut Observed {
        &mut self.observed
    }

    fn subscriptions(&self) -> usize {
        self.observed.wanted.len()
    }

    async fn disconnect(self) {
        self.peer.disconnect().await;
    }
}

impl Player {
    async fn new(place: &Arc<Place>, front: Front, number: u64, seed: u64) -> Player {
        let line = FaultProxy::start(place.gateway);
        let peer = connect(front, &line, place.gateway).await;
        let observed = Observed::new(format!("{front:?} {number}"), place);
        let random = Random::new(seed.wrapping_add(number));
        let (unsubscribed, versions) = Default::default();
        let mut player = Player { observed, front, line, peer, random, unsubscribed, versions };
        for _ in 0..place.uris.len() / 2 {
            player.subscribe_to_any().await;
        }
        player
    }

    async fn subscribe_to_any(&mut self) {
        let uri = self.random.pick(&self.observed.place.uris).clone();
        self.subscribe(uri).await;
    }

    async fn subscribe(&mut self, uri: String) {
        self.unsubscribed.remove(&uri);
        self.observed.wanted.entry(uri.clone()).or_default();
        let answer = self.observed.request_until_success(&self.peer, "resources/subscribe", named(&uri)).await;
        assert_eq!(meta(&answer)["dev.goblin/uri"], uri);
        // Earlier changes are not notified, so the resource is read now.
        self.observed.read_resource(&self.peer, &uri).await;
    }

    async fn unsubscribe_from_any(&mut self) {
        let uri = self.random.pick(&self.observed.place.uris).clone();
        if self.observed.wanted.remove(&uri).is_some() {
            self.unsubscribed.insert(uri.clone(), u64::MAX);
        }
        self.observed.request_until_success(&self.peer, "resources/unsubscribe", json!({ "uri": uri })).await;
        let last = self.observed.place.records.last_version(&uri);
        self.unsubscribed.entry(uri).and_modify(|limit| *limit = last);
    }

    /// Cuts the line. The bridge and Streamable HTTP resume; a client of HTTP+SSE starts a new session.
    async fn cut_line(&mut self) {
        match self.front {
            Front::Http => {
                self.cut().await;
                self.peer.resume().await;
                self.observed.place.records.report().resumed += 1;
            }
            Front::Stdio => {
                self.cut().await;
                self.observed.place.records.report().resumed += 1;
            }
            Front::Sse => {
                self.cut().await;
                self.connect_again().await;
            }
        }
    }

    async fn cut_and_reopen(&mut self) {
        match self.front {
            Front::Http => {
                self.cut().await;
                self.peer.listen_again().await;
                self.observed.place.records.report().reopened += 1;
            }
            Front::Stdio | Front::Sse => self.cut_line().await,
        }
    }

    /// Cuts the line. Messages in transit are lost.
    async fn cut(&mut self) {
        self.line.throttle(SLOW_RATE).await;
        tokio::time::sleep(Duration::from_millis(self.random.below(STUCK_MS))).await;
        self.line.cut().await;
        self.line.pass().await;
    }

    async fn reconnect(&mut self) {
        let next = connect(self.front, &self.line, self.observed.place.gateway).await;
        std::mem::replace(&mut self.peer, next).disconnect().await;
        self.resubscribe().await;
    }

    async fn connect_again(&mut self) {
        self.peer = connect(self.front, &self.line, self.observed.place.gateway).await;
        self.resubscribe().await;
    }

    /// Subscribes to everything again, because a new session has no state of the last one.
    async fn resubscribe(&mut self) {
        self.observed.place.records.report().reconnected += 1;
        self.unsubscribed.clear();
        self.versions.clear();
        for uri in std::mem::take(&mut self.observed.wanted).into_keys() {
            self.subscribe(uri).await;
        }
    }

    async fn process_updates(&mut self, updates: &[Value]) {
        let changed: BTreeSet<_> = updates.iter().filter_map(|params| self.record(params)).collect();
        for uri in changed {
            self.observed.read_resource(&self.peer, &uri).await;
        }
    }

    /// Records an update. Returns the resource to read again.
    fn record(&mut self, params: &Value) -> Option<String> {
        let uri = params["uri"].as_str().unwrap_or_else(|| panic!("{}: {params}", self.observed.name)).to_owned();
        let version = params["version"].as_u64();
        let mut report = self.observed.place.records.report();
        report.delivered += 1;
        if let Some(version) = version {
            let last = self.versions.insert(uri.clone(), version);
            report.doubled += u64::from(last == Some(version));
        }
        if self.observed.wanted.contains_key(&uri) {
            return Some(uri);
        }
        match self.unsubscribed.get(&uri) {
            Some(limit) if version.is_none_or(|version| version <= *limit) => report.late += 1,
            _ => report.wrong.push(format!(
                "{} received {params}, and had unsubscribed from {:?}",
                self.observed.name, self.unsubscribed
            )),
        }
        None
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
