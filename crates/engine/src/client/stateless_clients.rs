//! The recent clients that send HTTP requests without a session, for operators.
//!
//! Only the description of the client in `_meta` connects such requests, so the table has the text of the description as
//! its key. A repeated request costs one short lock and one lookup: no JSON is parsed and nothing is allocated. A client
//! may send a new description with each request. The table therefore has at most [`MAX_CLIENTS`] entries, and a new one
//! replaces the least recently used one without open calls and streams.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use goblin_subscriptions::ClientId;
use goblin_subscriptions::count::SubscriptionCount;
use goblin_wire::json::{self, Span};
use parking_lot::Mutex;

use crate::client::Client;
use crate::client::caller::{ClientCapabilities, Introduction, described};

/// The maximum number of descriptions. Requests of further clients count as those of a client without a name.
const MAX_CLIENTS: usize = 100;
/// The maximum length of a description. A client with a longer one counts as a client without a name.
const MAX_DESCRIPTION: usize = 1024;

/// The table of recent clients without a session.
pub(crate) struct StatelessClients {
    /// The clients by the text of their description.
    named: Mutex<HashMap<Box<str>, Arc<RecentClient>>>,
    nameless: Arc<RecentClient>,
    begin: Instant,
}

/// The clients with one description.
pub struct RecentClient {
    name: Arc<str>,
    version: Arc<str>,
    first_seen: SystemTime,
    /// The time at which the table was created.
    begin: Instant,
    /// The microseconds from `begin` to the last activity.
    last_seen: AtomicU64,
    requests: AtomicU64,
    open_calls: AtomicUsize,
    /// The open notification streams, each with the number of its subscriptions.
    streams: Mutex<Vec<(ClientId, Arc<SubscriptionCount>)>>,
}

/// The use of the gateway by all clients with one name and version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ClientUse {
    pub name: Arc<str>,
    pub version: Arc<str>,
    pub first_seen: SystemTime,
    /// The time since the last activity. It is zero while a call or a stream is open.
    pub idle: Duration,
    pub requests: u64,
    pub open_calls: usize,
    pub streams: usize,
    pub subscriptions: usize,
}

impl Default for StatelessClients {
    fn default() -> StatelessClients {
        let begin = Instant::now();
        let nameless = Arc::new(RecentClient::new("".into(), "".into(), begin));
        StatelessClients { named: Mutex::default(), nameless, begin }
    }
}

impl StatelessClients {
    /// Counts a request and returns its client. `description` is the value of `clientInfo` in the request.
    pub(crate) fn count_request(&self, text: &str, description: Option<Span>) -> Arc<RecentClient> {
        let description = description.map(|at| at.get(text)).filter(|text| text.len() <= MAX_DESCRIPTION);
        let client = description.and_then(|description| self.find_or_add(description));
        let client = client.unwrap_or_else(|| Arc::clone(&self.nameless));
        client.requests.fetch_add(1, Ordering::Relaxed);
        client.touch();
        client
    }

    /// Returns the client with this description. Returns `None` if the description has no name, or if all entries of the
    /// table are in use.
    fn find_or_add(&self, description: &str) -> Option<Arc<RecentClient>> {
        if let Some(known) = self.named.lock().get(description) {
            return Some(Arc::clone(known));
        }
        let (name, version) = described(description, json::whole(description));
        if name.is_empty() {
            return None;
        }
        let mut named = self.named.lock();
        let evicted = match named.len() < MAX_CLIENTS || named.contains_key(description) {
            true => None,
            false => Some(evict(&mut named)?),
        };
        let new = || Arc::new(RecentClient::new(name, version, self.begin));
        let client = Arc::clone(named.entry(description.into()).or_insert_with(new));
        drop(named);
        // Free the removed entry outside of the lock.
        drop(evicted);
        Some(client)
    }

    /// Removes the clients without activity for this time.
    pub(crate) fn remove_idle(&self, timeout: Duration) {
        self.named.lock().retain(|_, client| is_used(client) || client.since_last_seen() < timeout);
    }

    /// Returns the clients that sent a request, one for each name and version.
    pub(crate) fn all(&self) -> Vec<ClientUse> {
        let mut all: Vec<_> = self.named.lock().values().cloned().collect();
        all.extend(Some(Arc::clone(&self.nameless)).filter(|client| client.requests.load(Ordering::Relaxed) > 0));
        let mut merged: BTreeMap<(Arc<str>, Arc<str>), ClientUse> = BTreeMap::new();
        for client in all {
            let key = (Arc::clone(&client.name), Arc::clone(&client.version));
            let found = client.read();
            merged.entry(key).and_modify(|known| known.add(&found)).or_insert(found);
        }
        merged.into_values().collect()
    }
}

/// Removes the least recently used client that is not in use. Returns `None` if all are.
fn evict(named: &mut HashMap<Box<str>, Arc<RecentClient>>) -> Option<(Box<str>, Arc<RecentClient>)> {
    let unused = named.iter().filter(|(_, client)| !is_used(client));
    let (oldest, _) = unused.min_by_key(|(_, client)| client.last_seen.load(Ordering::Relaxed))?;
    let oldest = oldest.clone();
    named.remove_entry(&oldest)
}

/// Reports whether a request, a call or a stream holds the client. The table is locked, and only the table and such
/// holders can create another holder.
fn is_used(client: &Arc<RecentClient>) -> bool {
    Arc::strong_count(client) > 1
}

impl RecentClient {
    fn new(name: Arc<str>, version: Arc<str>, begin: Instant) -> RecentClient {
        let client = RecentClient {
            name,
            version,
            first_seen: SystemTime::now(),
            begin,
            last_seen: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            open_calls: AtomicUsize::new(0),
            streams: Mutex::default(),
        };
        client.touch();
        client
    }

    /// Returns the introduction of a client that exists for one request.
    pub(crate) fn introduction(&self, client_capabilities: Arc<ClientCapabilities>) -> Introduction {
        let (name, version) = (Arc::clone(&self.name), Arc::clone(&self.version));
        Introduction { client_capabilities, name, version, program: None }
    }

    /// Counts an open call until the guard is dropped.
    pub(crate) fn open_call(self: &Arc<RecentClient>) -> OpenCallUse {
        self.open_calls.fetch_add(1, Ordering::Relaxed);
        OpenCallUse(Arc::clone(self))
    }

    /// Counts an open stream of `client` and its subscriptions until the guard is dropped.
    pub(crate) fn open_stream(self: &Arc<RecentClient>, client: &Client) -> OpenStreamUse {
        self.streams.lock().push((client.id, Arc::clone(&client.subscriptions)));
        OpenStreamUse { recent: Arc::clone(self), client: client.id }
    }

    fn touch(&self) {
        let now = u64::try_from(self.begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last_seen.store(now, Ordering::Relaxed);
    }

    fn since_last_seen(&self) -> Duration {
        let last_seen = Duration::from_micros(self.last_seen.load(Ordering::Relaxed));
        self.begin.elapsed().saturating_sub(last_seen)
    }

    fn read(&self) -> ClientUse {
        let (streams, subscriptions) = {
            let streams = self.streams.lock();
            (streams.len(), streams.iter().map(|(_, subscriptions)| subscriptions.count()).sum())
        };
        let open_calls = self.open_calls.load(Ordering::Relaxed);
        let is_idle = open_calls == 0 && streams == 0;
        ClientUse {
            name: Arc::clone(&self.name),
            version: Arc::clone(&self.version),
            first_seen: self.first_seen,
            idle: if is_idle { self.since_last_seen() } else { Duration::ZERO },
            requests: self.requests.load(Ordering::Relaxed),
            open_calls,
            streams,
            subscriptions,
        }
    }
}

impl ClientUse {
    /// Adds the use by a client with the same name and version, whose description has another text.
    fn add(&mut self, other: &ClientUse) {
        self.first_seen = self.first_seen.min(other.first_seen);
        self.idle = self.idle.min(other.idle);
        self.requests += other.requests;
        self.open_calls += other.open_calls;
        self.streams += other.streams;
        self.subscriptions += other.subscriptions;
    }
}

/// Counts an open call of a client.
pub(crate) struct OpenCallUse(Arc<RecentClient>);

impl Drop for OpenCallUse {
    fn drop(&mut self) {
        self.0.open_calls.fetch_sub(1, Ordering::Relaxed);
        self.0.touch();
    }
}

/// Counts an open notification stream of a client.
pub(crate) struct OpenStreamUse {
    recent: Arc<RecentClient>,
    client: ClientId,
}

impl Drop for OpenStreamUse {
    fn drop(&mut self) {
        self.recent.streams.lock().retain(|(client, _)| *client != self.client);
        self.recent.touch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(clients: &StatelessClients, description: &str) -> Arc<RecentClient> {
        clients.count_request(description, Some(json::whole(description)))
    }

    fn named(number: usize) -> String {
        format!(r#"{{"name":"c{number}","version":"1"}}"#)
    }

    /// Returns the name, the version and the number of requests of each client.
    fn requests(clients: &StatelessClients) -> Vec<(String, String, u64)> {
        let all = clients.all();
        all.iter().map(|client| (client.name.to_string(), client.version.to_string(), client.requests)).collect()
    }

    #[test]
    fn use14_requests_with_one_name_and_version_are_one_client() {
        let clients = StatelessClients::default();
        let long = format!(r#"{{"name":"{}"}}"#, "x".repeat(MAX_DESCRIPTION));
        for description in [
            r#"{"name":"a","version":"1"}"#,
            r#"{"name":"a","version":"1"}"#,
            r#"{"version":"1","name":"\u0061","title":"A"}"#,
            r#"{"name":"a","version":"2"}"#,
            "{}",
            "null",
            r#"{"name":7}"#,
            &long,
        ] {
            count(&clients, description);
        }
        clients.count_request("", None);
        let row = |name: &str, version: &str, requests| (name.to_owned(), version.to_owned(), requests);
        assert_eq!(requests(&clients), [row("", "", 5), row("a", "1", 3), row("a", "2", 1)]);
        assert_eq!(clients.named.lock().len(), 3);
    }

    #[test]
    fn use14_a_new_client_replaces_the_least_recently_used_one_without_open_calls() {
        let clients = StatelessClients::default();
        let call = count(&clients, &named(0)).open_call();
        (1..MAX_CLIENTS).for_each(|number| drop(count(&clients, &named(number))));
        let last_seen = |number: usize, micros| {
            clients.named.lock()[&*named(number)].last_seen.store(micros, Ordering::Relaxed);
        };
        (0..MAX_CLIENTS).for_each(|number| last_seen(number, number as u64));
        last_seen(1, u64::MAX);
        count(&clients, &named(MAX_CLIENTS));
        let is_known = |number| clients.named.lock().contains_key(&*named(number));
        assert_eq!([0, 1, 2, 3, MAX_CLIENTS].map(is_known), [true, true, false, true, true]);
        assert_eq!(clients.named.lock().len(), MAX_CLIENTS);
        drop(call);
        last_seen(0, 0);
        count(&clients, &named(2));
        assert!(!is_known(0));
    }

    #[test]
    fn use14_a_client_beyond_the_limit_counts_without_a_name_while_all_others_are_busy() {
        let clients = StatelessClients::default();
        let calls: Vec<_> = (0..MAX_CLIENTS).map(|number| count(&clients, &named(number)).open_call()).collect();
        assert!(count(&clients, &named(MAX_CLIENTS)).name.is_empty());
        assert_eq!(clients.all().len(), MAX_CLIENTS + 1);
        clients.remove_idle(Duration::ZERO);
        assert_eq!(clients.named.lock().len(), MAX_CLIENTS, "clients with open calls are not idle");
        drop(calls);
        clients.remove_idle(Duration::ZERO);
        assert_eq!(clients.named.lock().len(), 0);
    }

    #[test]
    fn use14_open_calls_and_streams_are_counted_until_they_end() {
        let clients = StatelessClients::default();
        let recent = count(&clients, &named(1));
        let stream = Client::stateless(Introduction::default());
        let open = (recent.open_call(), recent.open_stream(&stream));
        let read = || {
            let ClientUse { idle, open_calls, streams, .. } = clients.all().remove(0);
            (idle.is_zero(), open_calls, streams)
        };
        assert_eq!(read(), (true, 1, 1));
        drop(open);
        recent.last_seen.store(0, Ordering::Relaxed);
        assert_eq!(read(), (false, 0, 0));
    }
}
