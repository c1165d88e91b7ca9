//! Sessions end in every possible way and leave nothing behind (F12): no session, stream, call, descriptor, process or
//! memory.
//!
//! The test repeats rounds of clients and compares the idle gateway after each. Memory may grow only by fragmentation.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use futures_util::future::join_all;
use goblin_fixture::fault::FaultProxy;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, TIMEOUT, eventually, fixture_server, goblin};
use crate::ledger::cut_for_a_moment;
use crate::per_client::per_client;
use crate::raw_client::RawClient;
use crate::scrape::gauge;
use crate::support::{await_call, children, http_server, path_text, started_and_alive, starts as started};

/// The resources that a client holds at its end, and the way it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A regular DELETE.
    Deleted,
    /// The client becomes silent.
    Idle,
    /// The connection is cut, with the GET stream on it.
    StreamCut,
    /// The connection is cut with a call on it that ends by itself.
    CallCut,
    /// A DELETE over another connection, while an endless call is open.
    CallDeleted,
    /// HTTP+SSE: the stream, and thus the session, is cut.
    SseCut,
    /// HTTP+SSE: the stream is cut while an endless call is open.
    SseCallCut,
    /// The client has a per-client server. DELETE.
    OwnDeleted,
    /// The client has a per-client server and becomes silent.
    OwnIdle,
    /// HTTP+SSE: the client has a per-client server, and its stream is cut.
    OwnSseCut,
    /// A server request is open. DELETE over another connection.
    RequestDeleted,
    /// A server request is open on a connection that is cut.
    RequestCut,
    /// HTTP+SSE: a server request is open, and the stream is cut.
    SseRequestCut,
}

impl Way {
    /// All ways. Those with server requests come last, so that their clients leave before the requests time out.
    const ALL: [Way; 13] = [
        Way::Deleted,
        Way::Idle,
        Way::StreamCut,
        Way::CallCut,
        Way::CallDeleted,
        Way::SseCut,
        Way::SseCallCut,
        Way::OwnDeleted,
        Way::OwnIdle,
        Way::OwnSseCut,
        Way::RequestDeleted,
        Way::RequestCut,
        Way::SseRequestCut,
    ];
    /// The ways of a killed process. It cannot send a DELETE, and silence needs no kill.
    const KILLED: [Way; 4] = [Way::StreamCut, Way::CallCut, Way::SseCut, Way::SseCallCut];

    /// Starts a client that is ready to leave. Calls alternate between the process and the server over HTTP. Server
    /// requests use the latter, because it attributes them to a call.
    async fn begin(self, address: SocketAddr, number: usize) -> RawClient {
        let tool = |name: &str| format!("{}_{name}", ["process", "web"][number % 2]);
        let any = "application/json, text/event-stream";
        let arguments = json!({ "method": SAMPLING, "params": { "messages": [], "maxTokens": 1 } });
        match self {
            Way::Deleted | Way::Idle => RawClient::streamable(address).await,
            Way::StreamCut => RawClient::streamable(address).await.listen().await,
            Way::CallCut => {
                let client = RawClient::streamable(address).await;
                client.begin_call(any, &tool("sleep"), json!({ "ms": 500 })).await
            }
            Way::CallDeleted => RawClient::streamable(address).await.begin_call(any, &tool("hang"), json!({})).await,
            Way::SseCut => RawClient::sse(address).await,
            Way::SseCallCut => RawClient::sse(address).await.begin_sse_call(&tool("hang"), json!({})).await,
            Way::OwnDeleted | Way::OwnIdle => {
                let client = RawClient::streamable(address).await;
                client.begin_call(any, "own_echo", json!({})).await.read_until("structuredContent").await
            }
            Way::OwnSseCut => {
                let client = RawClient::sse(address).await;
                client.begin_sse_call("own_echo", json!({})).await.read_until("structuredContent").await
            }
            Way::RequestDeleted | Way::RequestCut => {
                RawClient::streamable(address)
                    .await
                    .begin_call(any, "web_request", arguments)
                    .await
                    .read_until(SAMPLING)
                    .await
            }
            Way::SseRequestCut => {
                RawClient::sse(address).await.begin_sse_call("web_request", arguments).await.read_until(SAMPLING).await
            }
        }
    }

    /// Returns the number of clients of this way in one round. A per-client server is a process for each.
    fn count(self) -> usize {
        match self {
            Way::OwnDeleted | Way::OwnIdle | Way::OwnSseCut => WITH_THEIR_OWN,
            _ => OF_EACH_WAY,
        }
    }

    async fn disconnect(self, client: RawClient) {
        match self {
            Way::Deleted | Way::CallDeleted | Way::OwnDeleted | Way::RequestDeleted => client.delete().await,
            Way::Idle | Way::StreamCut | Way::CallCut | Way::SseCut | Way::SseCallCut => drop(client),
            Way::OwnIdle | Way::OwnSseCut | Way::RequestCut | Way::SseRequestCut => drop(client),
        }
    }

    fn has_stream(self) -> bool {
        matches!(self, Way::StreamCut | Way::SseCut | Way::SseCallCut | Way::OwnSseCut | Way::SseRequestCut)
    }

    /// Reports whether the client has a call that ends only with its session.
    fn has_endless_call(self) -> bool {
        matches!(self, Way::CallDeleted | Way::SseCallCut)
    }
}

const SAMPLING: &str = "sampling/createMessage";
/// The clients of each way in one round, in this process and in the killed one.
const OF_EACH_WAY: usize = 40;
const WITH_THEIR_OWN: usize = 3;
/// The minimal number of rounds. The next constant is the maximum.
const ROUNDS: usize = 5;
const MAX_ROUNDS: usize = 10;
/// The permitted growth from the third-last round to the last: about 2 kB for each client of two rounds. Fragmentation
/// of the heap grows in steps for some rounds and then stops; a leak never stops.
const MAX_GROWTH: u64 = 2 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Starts the clients of each of these ways.
async fn begin_all(ways: &[Way], address: SocketAddr) -> Vec<(Way, RawClient)> {
    let mut clients = Vec::new();
    for way in ways {
        let begun = join_all((0..way.count()).map(|number| way.begin(address, number))).await;
        clients.extend(begun.into_iter().map(|client| (*way, client)));
    }
    clients
}

/// The variable with the gateway's address for the killed process.
const ADDRESS: &str = "GOBLIN_TEST_KILLED_CLIENTS";
const READY: &str = "all clients have begun";

/// The process that [`Killed`] starts, which is this program again, not a test by itself. It runs until it is killed.
#[tokio::test]
async fn killed_clients() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let clients = begin_all(&Way::KILLED, address.parse().expect("an address")).await;
    println!("{READY}");
    // The process also ends when the test closes its input.
    let _ = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin())).await;
    drop(clients);
}

/// Clients in a separate process.
struct Killed(Child);

impl Killed {
    async fn begin(address: SocketAddr) -> Killed {
        let mut command = Command::new(std::env::current_exe().expect("a running test has a path"));
        command.args(["--exact", "leaks::killed_clients", "--nocapture"]).env(ADDRESS, address.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("the process starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        loop {
            let line = lines.next_line().await.expect("text").expect("the process reports that it is ready");
            if line.contains(READY) {
                return Killed(child);
            }
        }
    }

    async fn disconnect(mut self) {
        self.0.kill().await.expect("the process can be killed");
    }
}

/// The resources that an idle gateway holds.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    sessions: usize,
    streams: usize,
    calls: usize,
    calls_at_backends: usize,
    children: BTreeSet<u32>,
    /// The processes of per-client servers, and the one that lists them.
    own: BTreeSet<u32>,
    descriptors: usize,
}

struct Watcher {
    client: Client,
    pid: u32,
    backend: SocketAddr,
    /// The file in which per-client servers record their starts.
    starts: PathBuf,
}

impl Watcher {
    async fn held(&self) -> Held {
        Held {
            sessions: gauge(&self.client, "goblin_sessions_active").await,
            streams: gauge(&self.client, "goblin_streams_active").await,
            calls: gauge(&self.client, "goblin_requests_in_flight").await,
            calls_at_backends: gauge(&self.client, "goblin_backend_requests_in_flight").await,
            children: children(self.pid),
            own: started_and_alive(&self.starts),
            descriptors: self.descriptors(),
        }
    }

    /// Returns the held resources when they equal `expected`, or after the timeout.
    async fn await_held(&self, expected: &Held) -> Held {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let mut held = self.held().await;
            // The expected value may include a connection that was about to close.
            held.descriptors = held.descriptors.max(expected.descriptors);
            if held == *expected || tokio::time::Instant::now() > deadline {
                return held;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Returns the number of descriptors. Excludes the pooled connections to the backend over HTTP, because their
    /// number depends on the peak of concurrent calls.
    fn descriptors(&self) -> usize {
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", self.pid)).expect("its connections");
        let port = format!(":{:04X}", self.backend.port());
        let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let pooled: BTreeSet<String> =
            rows.filter(|row| row[2].ends_with(&port)).map(|row| format!("socket:[{}]", row[9])).collect();
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).expect("its descriptors").flatten();
        let targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets.filter(|target| target.to_str().is_none_or(|target| !pooled.contains(target))).count()
    }

    /// Returns the anonymous resident memory in bytes.
    fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("RssAnon");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    /// Runs one round: clients of every way start, are all seen, and leave.
    async fn round(&self, address: SocketAddr) {
        let killed = Killed::begin(address).await;
        let clients = begin_all(&Way::ALL, address).await;
        let count = |has: fn(Way) -> bool| {
            let all = Way::ALL.iter().chain(&Way::KILLED);
            all.filter(|way| has(**way)).map(|way| way.count()).sum::<usize>()
        };
        let (streams, calls) = (count(Way::has_stream), count(Way::has_endless_call));
        eventually("all of them are seen", || async {
            let held = self.held().await;
            (held.streams == streams && held.calls >= calls && held.calls_at_backends >= calls).then_some(())
        })
        .await;
        killed.disconnect().await;
        join_all(clients.into_iter().map(|(way, client)| way.disconnect(client))).await;
    }
}

/// Returns the memory after the connection pool is emptied. Pooled connections are many and scattered over the memory
/// of the round.
async fn memory_without_pool(watcher: &Watcher, gateway: &Gateway, proxy: &FaultProxy) -> u64 {
    cut_for_a_moment(proxy).await;
    let client = gateway.client().await;
    await_call(&client, "web_echo").await;
    client.send(http::Method::DELETE, "/mcp", &client.headers(), "").await;
    watcher.memory()
}

#[tokio::test]
async fn sess2_every_way_to_end_a_session_frees_all_its_resources() {
    let scratch = Scratch::new();
    let (starts, received) = (scratch.path().join("starts"), scratch.path().join("received"));
    let backend = HttpFixture::start(&["--received", path_text(&received)]).await;
    let proxy = FaultProxy::start(backend.address);
    let own = per_client(fixture_server(&["--start-log", path_text(&starts)]));
    let config = json!({
        "gateway": { "sessionIdleTimeout": "3s" },
        "policies": { "askTimeout": "2s" },
        "mcpServers": { "process": fixture_server(&[]), "web": http_server(proxy.addr()), "own": own },
    });
    let mut command = goblin(scratch.path());
    command.args(["serve", "--port", "0", "--config"]).arg(scratch.write("goblin.json", &config.to_string()));
    // The memory must reflect live data. Freed memory returns to the system at once, and a single worker avoids
    // per-thread caches.
    command.env("MIMALLOC_PURGE_DELAY", "0").env("TOKIO_WORKER_THREADS", "1");
    let gateway = Gateway::of(command).await;
    let seeing = gateway.client_seeing("process_hang").await;
    seeing.await_tool("web_hang").await;
    seeing.await_tool("own_echo").await;
    seeing.send(http::Method::DELETE, "/mcp", &seeing.headers(), "").await;
    let pid = gateway.child.id().expect("the process runs");
    let watcher = Watcher { client: Client::new(gateway.address), pid, backend: proxy.addr(), starts };
    let before = eventually("the gateway holds nothing", || async {
        let held = watcher.held().await;
        // The server of the first client ends after its session.
        (held.sessions == 0 && held.streams == 0 && held.own.len() == 1).then_some(held)
    })
    .await;
    let mut memory = Vec::new();
    let mut stays = false;
    while memory.len() < ROUNDS || !stays {
        assert!(memory.len() < MAX_ROUNDS, "memory after each round: {memory:?}");
        watcher.round(gateway.address).await;
        assert_eq!(watcher.await_held(&before).await, before, "after round {}", memory.len() + 1);
        memory.push(memory_without_pool(&watcher, &gateway, &proxy).await);
        stays = memory.len() > 2 && memory[memory.len() - 1] <= memory[memory.len() - 3] + MAX_GROWTH;
    }
    println!("memory after each round: {memory:?}");
    let starts = 2 + memory.len() * 3 * WITH_THEIR_OWN;
    assert_eq!(
        started(&watcher.starts),
        starts,
        "one that is shared, one of the first client, and one for each client"
    );
    let received = std::fs::read_to_string(received).expect("the server has received messages");
    for why in ["it disconnected", "did not answer"] {
        assert!(received.contains(why), "no server request has ended because of: {why}");
    }
    let client = gateway.client().await;
    for tool in ["process_echo", "web_echo"] {
        client.call(tool, json!({})).await;
    }
}
