//! A modern client for the ledger of subscriptions. It has several open streams with overlapping sets of resources. It
//! opens and closes them, its connections are cut, and it is slow at times.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use goblin_fixture::fault::FaultProxy;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::Client;
use crate::client::http::Listener;
use crate::harness::PATIENCE;
use crate::ledger_subscriptions_player::{
    AGAIN_AFTER, LISTENS_MS, Place, Plays, Random, SLOW, SLOW_RATE, STUCK_MS, Sight, TOLD, text_of,
};
use crate::subscriber::UPDATED;

const LISTENERS: u64 = 6;
const MOST_STREAMS: usize = 4;
/// The maximal number of URIs of a stream.
const MOST_URIS: u64 = 5;
/// The number of messages that may wait. If it is full, the streams are not read.
const UNHEARD: usize = 1024;

/// A stream and the resources it covers.
struct Stream {
    uris: BTreeSet<String>,
    reader: JoinHandle<()>,
    /// The last notified version of each resource.
    versions: BTreeMap<String, u64>,
    /// Whether the fence was notified since the last request for it.
    is_fenced: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// A message of a stream; `None` when the stream has ended.
type Heard = (u64, Option<Value>);

pub struct ListeningPlayer {
    sight: Sight,
    /// The proxy that carries all notifications.
    line: FaultProxy,
    client: Client,
    random: Random,
    streams: BTreeMap<u64, Stream>,
    /// The number of the next stream.
    next: u64,
    heard: mpsc::Receiver<Heard>,
    teller: mpsc::Sender<Heard>,
    /// A resource that every stream includes. Its notification proves that all earlier ones have arrived.
    fence: String,
}

impl Plays for ListeningPlayer {
    async fn come(place: &Arc<Place>, seed: u64) -> Vec<ListeningPlayer> {
        let coming = (0..LISTENERS).map(|number| ListeningPlayer::new(place, number, seed));
        futures_util::future::join_all(coming).await
    }

    async fn live(&mut self, deeds: u64) {
        for _ in 0..deeds {
            match self.random.below(10) {
                0..3 => self.listen_to_some().await,
                3..5 => self.stop_listening(),
                5..7 => self.is_cut().await,
                7 => self.goes_and_comes().await,
                8 => self.is_slow().await,
                _ => {}
            }
            let until = Instant::now() + Duration::from_millis(self.random.below(LISTENS_MS));
            while self.hear_before(until).await {}
        }
    }

    /// Receives a message and all further ones that are ready, and reads the changed resources. Returns false if
    /// nothing arrives before the deadline.
    async fn hear_before(&mut self, deadline: Instant) -> bool {
        let Ok(heard) = tokio::time::timeout_at(deadline, self.heard.recv()).await else { return false };
        let mut changed = BTreeSet::from_iter(self.book(heard.expect("we hold a sender")));
        while let Ok(heard) = self.heard.try_recv() {
            changed.extend(self.book(heard));
        }
        for uri in changed {
            self.look(&uri).await;
        }
        true
    }

    async fn hear_out(&mut self) {
        self.streams.values_mut().for_each(|stream| stream.is_fenced = false);
        let native = self.fence.trim_start_matches("a+").to_owned();
        self.insist("tools/call", json!({ "name": "a_touch", "arguments": { "uri": native, "count": 1 } })).await;
        let deadline = Instant::now() + PATIENCE;
        while !self.streams.values().all(|stream| stream.is_fenced) {
            assert!(self.hear_before(deadline).await, "{}: the fence is not told on every stream", self.sight.name);
        }
    }

    fn sight(&mut self) -> &mut Sight {
        &mut self.sight
    }

    fn subscriptions(&self) -> usize {
        self.streams.values().map(|stream| stream.uris.len()).sum()
    }

    async fn leave(self) {}
}

impl ListeningPlayer {
    async fn new(place: &Arc<Place>, number: u64, seed: u64) -> ListeningPlayer {
        let (teller, heard) = mpsc::channel(UNHEARD);
        let mut player = ListeningPlayer {
            sight: Sight::new(format!("listener {number}"), place),
            line: FaultProxy::start(place.gateway),
            client: Client::modern(place.gateway, json!({})),
            random: Random::new(seed.wrapping_add(number)),
            streams: BTreeMap::new(),
            next: 0,
            heard,
            teller,
            fence: format!("a+note:///fence-{number}"),
        };
        for _ in 0..2 {
            player.listen_to_some().await;
        }
        player
    }

    async fn listen_to_some(&mut self) {
        let count = 1 + self.random.below(MOST_URIS);
        let uris = (0..count).map(|_| self.random.pick(&self.sight.place.uris).clone()).collect();
        if self.streams.len() == MOST_STREAMS {
            self.stop_listening();
        }
        self.listen(uris).await;
    }

    /// Opens a stream and reads its resources, because earlier changes are not notified.
    async fn listen(&mut self, mut uris: BTreeSet<String>) {
        uris.insert(self.fence.clone());
        let number = self.next;
        self.next += 1;
        let mut stream = self.opened(number, &uris).await;
        let teller = self.teller.clone();
        let reader = tokio::spawn(async move {
            while let Some(text) = stream.read_message().await {
                let message = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                // An error means that the test is over.
                let _ = teller.send((number, Some(message))).await;
            }
            let _ = teller.send((number, None)).await;
        });
        let stream = Stream { uris: uris.clone(), reader, versions: BTreeMap::new(), is_fenced: false };
        self.streams.insert(number, stream);
        uris.remove(&self.fence);
        for uri in &uris {
            self.look(uri).await;
        }
    }

    /// Repeats the listen until all URIs are honoured, because servers fail and return.
    async fn opened(&mut self, number: u64, uris: &BTreeSet<String>) -> Listener {
        loop {
            // A new connection is used, because an earlier one may have been cut.
            let client = Client::modern(self.line.addr(), json!({}));
            let (honoured, stream) = client.listen_to(json!(number), json!({ "resourceSubscriptions": uris })).await;
            if honoured["resourceSubscriptions"] == json!(uris) {
                return stream;
            }
            self.sight.place.books.report().retries += 1;
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    fn stop_listening(&mut self) {
        let numbers: Vec<_> = self.streams.keys().copied().collect();
        if numbers.len() > 1 {
            self.streams.remove(self.random.pick(&numbers));
            let streams = &self.streams;
            self.sight.wanted.retain(|uri, _| streams.values().any(|stream| stream.uris.contains(uri)));
        }
    }

    /// Cuts all connections. Messages in transit are lost, and no stream continues.
    async fn is_cut(&mut self) {
        self.line.throttle(SLOW_RATE).await;
        tokio::time::sleep(Duration::from_millis(self.random.below(STUCK_MS))).await;
        self.line.cut().await;
        self.line.pass().await;
        self.sight.place.books.report().reopened += 1;
        self.open_all_anew().await;
    }

    async fn goes_and_comes(&mut self) {
        self.sight.place.books.report().came_again += 1;
        self.open_all_anew().await;
    }

    async fn open_all_anew(&mut self) {
        for mut stream in std::mem::take(&mut self.streams).into_values() {
            self.listen(std::mem::take(&mut stream.uris)).await;
        }
    }

    async fn is_slow(&mut self) {
        self.line.throttle(SLOW_RATE).await;
        tokio::time::sleep(SLOW).await;
        self.line.pass().await;
        self.sight.place.books.report().slow += 1;
    }

    /// Records a message of a stream. Returns the resource to read again.
    fn book(&mut self, (number, message): Heard) -> Option<String> {
        let mut report = self.sight.place.books.report();
        let Some(stream) = self.streams.get_mut(&number) else {
            // The stream was closed before this message arrived.
            report.late += u64::from(message.is_some());
            return None;
        };
        let name = &self.sight.name;
        let Some(message) = message else {
            report.wrong.push(format!("{name}: stream {number} ended by itself"));
            return None;
        };
        let params = &message["params"];
        let uri = params["uri"].as_str().unwrap_or_default().to_owned();
        let is_named = params["_meta"]["io.modelcontextprotocol/subscriptionId"] == number;
        if message["method"] != UPDATED || !is_named || !stream.uris.contains(&uri) {
            report.wrong.push(format!("{name}: stream {number} told {message}, and is for {:?}", stream.uris));
            return None;
        }
        report.delivered += 1;
        if uri == self.fence {
            stream.is_fenced = true;
            return None;
        }
        if let Some(version) = params["version"].as_u64() {
            let last = stream.versions.insert(uri.clone(), version);
            report.doubled += u64::from(last == Some(version));
        }
        Some(uri)
    }

    async fn look(&mut self, uri: &str) {
        let seen = if self.sight.place.restless.contains(uri) {
            TOLD.to_owned()
        } else {
            let answer = self.insist("resources/read", json!({ "uri": uri })).await;
            self.sight.place.books.report().reads += 1;
            text_of(&answer)
        };
        self.sight.wanted.insert(uri.to_owned(), Some(seen));
    }

    /// Repeats a request until it succeeds.
    async fn insist(&mut self, method: &str, params: Value) -> Value {
        loop {
            let answer = self.client.request(method, params.clone()).await;
            if answer["result"].is_object() {
                return answer;
            }
            let code = answer["error"]["data"]["code"].as_str();
            assert_eq!(code, Some("BACKEND_UNAVAILABLE"), "{}: {method}: {answer}", self.sight.name);
            self.sight.place.books.report().retries += 1;
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}
