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
use crate::harness::TIMEOUT;
use crate::ledger_subscriptions_player::{
    AGAIN_AFTER, LISTENS_MS, Observed, Place, Plays, Random, SLOW_RATE, STUCK_MS,
};
use crate::subscriber::UPDATED;

const LISTENERS: u64 = 6;
const MAX_STREAMS: usize = 4;
/// The maximal number of URIs of a stream.
const MAX_URIS: u64 = 5;
/// The number of messages that may wait. If it is full, the streams are not read.
const QUEUE_LENGTH: usize = 1024;

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
type Received = (u64, Option<Value>);

pub struct ListeningPlayer {
    observed: Observed,
    /// The proxy that carries all notifications.
    line: FaultProxy,
    client: Client,
    random: Random,
    streams: BTreeMap<u64, Stream>,
    /// The number of the next stream.
    next: u64,
    receiver: mpsc::Receiver<Received>,
    sender: mpsc::Sender<Received>,
    /// A resource that every stream includes. Its notification proves that all earlier ones have arrived.
    fence: String,
}

impl Plays for ListeningPlayer {
    async fn connect_all(place: &Arc<Place>, seed: u64) -> Vec<ListeningPlayer> {
        let players = (0..LISTENERS).map(|number| ListeningPlayer::new(place, number, seed));
        futures_util::future::join_all(players).await
    }

    async fn act(&mut self, actions: u64) {
        for _ in 0..actions {
            match self.random.below(10) {
                0..3 => self.listen_to_any().await,
                3..5 => self.stop_listening(),
                5..7 => self.cut_line().await,
                7 => self.reconnect().await,
                8 => self.observed.throttle(&self.line).await,
                _ => {}
            }
            let until = Instant::now() + Duration::from_millis(self.random.below(LISTENS_MS));
            while self.receive_until(until).await {}
        }
    }

    /// Receives a message and all further ones that are ready, and reads the changed resources. Returns false if
    /// nothing arrives before the deadline.
    async fn receive_until(&mut self, deadline: Instant) -> bool {
        let Ok(message) = tokio::time::timeout_at(deadline, self.receiver.recv()).await else { return false };
        let mut changed = BTreeSet::from_iter(self.record(message.expect("we hold a sender")));
        while let Ok(message) = self.receiver.try_recv() {
            changed.extend(self.record(message));
        }
        for uri in changed {
            self.observed.read_resource(&self.client, &uri).await;
        }
        true
    }

    async fn receive_rest(&mut self) {
        self.streams.values_mut().for_each(|stream| stream.is_fenced = false);
        let native = self.fence.trim_start_matches("a+").to_owned();
        self.observed
            .request_until_success(
                &self.client,
                "tools/call",
                json!({ "name": "a_touch", "arguments": { "uri": native, "count": 1 } }),
            )
            .await;
        let deadline = Instant::now() + TIMEOUT;
        while !self.streams.values().all(|stream| stream.is_fenced) {
            assert!(
                self.receive_until(deadline).await,
                "{}: the fence did not arrive on every stream",
                self.observed.name
            );
        }
    }

    fn observed(&mut self) -> &mut Observed {
        &mut self.observed
    }

    fn subscriptions(&self) -> usize {
        self.streams.values().map(|stream| stream.uris.len()).sum()
    }

    async fn disconnect(self) {}
}

impl ListeningPlayer {
    async fn new(place: &Arc<Place>, number: u64, seed: u64) -> ListeningPlayer {
        let (sender, receiver) = mpsc::channel(QUEUE_LENGTH);
        let mut player = ListeningPlayer {
            observed: Observed::new(format!("listener {number}"), place),
            line: FaultProxy::start(place.gateway),
            client: Client::modern(place.gateway, json!({})),
            random: Random::new(seed.wrapping_add(number)),
            streams: BTreeMap::new(),
            next: 0,
            receiver,
            sender,
            fence: format!("a+note:///fence-{number}"),
        };
        for _ in 0..2 {
            player.listen_to_any().await;
        }
        player
    }

    async fn listen_to_any(&mut self) {
        let count = 1 + self.random.below(MAX_URIS);
        let uris = (0..count).map(|_| self.random.pick(&self.observed.place.uris).clone()).collect();
        if self.streams.len() == MAX_STREAMS {
            self.stop_listening();
        }
        self.listen(uris).await;
    }

    /// Opens a stream and reads its resources, because earlier changes are not notified.
    async fn listen(&mut self, mut uris: BTreeSet<String>) {
        uris.insert(self.fence.clone());
        let number = self.next;
        self.next += 1;
        let mut stream = self.open_stream(number, &uris).await;
        let sender = self.sender.clone();
        let reader = tokio::spawn(async move {
            while let Some(text) = stream.read_message().await {
                let message = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                // An error means that the test is over.
                let _ = sender.send((number, Some(message))).await;
            }
            let _ = sender.send((number, None)).await;
        });
        let stream = Stream { uris: uris.clone(), reader, versions: BTreeMap::new(), is_fenced: false };
        self.streams.insert(number, stream);
        uris.remove(&self.fence);
        for uri in &uris {
            self.observed.read_resource(&self.client, uri).await;
        }
    }

    /// Repeats the listen until all URIs are honoured, because servers fail and return.
    async fn open_stream(&mut self, number: u64, uris: &BTreeSet<String>) -> Listener {
        loop {
            // A new connection is used, because an earlier one may have been cut.
            let client = Client::modern(self.line.addr(), json!({}));
            let (accepted, stream) = client.listen_to(json!(number), json!({ "resourceSubscriptions": uris })).await;
            if accepted["resourceSubscriptions"] == json!(uris) {
                return stream;
            }
            self.observed.place.records.report().retries += 1;
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    fn stop_listening(&mut self) {
        let numbers: Vec<_> = self.streams.keys().copied().collect();
        if numbers.len() > 1 {
            self.streams.remove(self.random.pick(&numbers));
            let streams = &self.streams;
            self.observed.wanted.retain(|uri, _| streams.values().any(|stream| stream.uris.contains(uri)));
        }
    }

    /// Cuts all connections. Messages in transit are lost, and no stream continues.
    async fn cut_line(&mut self) {
        self.line.throttle(SLOW_RATE).await;
        tokio::time::sleep(Duration::from_millis(self.random.below(STUCK_MS))).await;
        self.line.cut().await;
        self.line.pass().await;
        self.observed.place.records.report().reopened += 1;
        self.reopen_all().await;
    }

    async fn reconnect(&mut self) {
        self.observed.place.records.report().reconnected += 1;
        self.reopen_all().await;
    }

    async fn reopen_all(&mut self) {
        for mut stream in std::mem::take(&mut self.streams).into_values() {
            self.listen(std::mem::take(&mut stream.uris)).await;
        }
    }

    /// Records a message of a stream. Returns the resource to read again.
    fn record(&mut self, (number, message): Received) -> Option<String> {
        let mut report = self.observed.place.records.report();
        let Some(stream) = self.streams.get_mut(&number) else {
            // The stream was closed before this message arrived.
            report.late += u64::from(message.is_some());
            return None;
        };
        let name = &self.observed.name;
        let Some(message) = message else {
            report.wrong.push(format!("{name}: stream {number} ended by itself"));
            return None;
        };
        let params = &message["params"];
        let uri = params["uri"].as_str().unwrap_or_default().to_owned();
        let is_named = params["_meta"]["io.modelcontextprotocol/subscriptionId"] == number;
        if message["method"] != UPDATED || !is_named || !stream.uris.contains(&uri) {
            report.wrong.push(format!("{name}: stream {number} received {message}, and covers {:?}", stream.uris));
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
}
