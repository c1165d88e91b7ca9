//! The ledger of subscriptions. Servers notify of changes, and clients of every transport subscribe to overlapping sets
//! of resources. The ledger checks that each client sees the final state (P4) and receives no notification it did not
//! subscribe to (P2).
//!
//! An update only invalidates a resource, so each client reads it again. The last content it read must be the current
//! one. The number of updates is exact only without faults: server-memory notifies once of each write.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use goblin_fixture::fault::FaultProxy;
use goblin_fixture::ledger::nonce;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, TIMEOUT, eventually, fixture_server, signal};
use crate::ledger::cut_for_a_moment;
use crate::ledger_subscriptions_listener::ListeningPlayer;
use crate::ledger_subscriptions_player::{NOTIFIED, Place, Player, Plays, Random, Records, bridge, text_of};
use crate::scrape::{gauge, gauge_becomes};
use crate::sdk::reference_program;
use crate::subscriber::ACTIVE;
use crate::support::{http_server, is_alive, path_text};

const GRAPH: &str = "memory+memory://knowledge-graph";
const ENTITY: &str = "counter";
const TOGGLE: &str = "every_toggle-subscriber-updates";
/// The names of notes and files.
const NAMES: [&str; 3] = ["one", "two", "three"];

/// Returns a reference server over stdio that writes its process id to a file.
fn tracked(pid_file: &Path, name: &str, arguments: &[&str]) -> Value {
    let program = reference_program(name);
    let mut args = vec!["-c", r#"echo $$ > "$0"; exec node "$@""#, path_text(pid_file), &program];
    args.extend(arguments);
    json!({ "command": "sh", "args": args })
}

fn memory(scratch: &Scratch) -> Value {
    let mut server = tracked(&scratch.path().join("memory"), "server-memory", &[]);
    server["env"] = json!({ "MEMORY_FILE_PATH": scratch.path().join("graph") });
    server
}

fn entity() -> Value {
    json!({ "entities": [{ "name": ENTITY, "entityType": "number", "observations": ["0"] }] })
}

/// Returns a write to the graph. A repeated write changes nothing but is still notified.
fn observation(number: u64) -> Value {
    json!({ "observations": [{ "entityName": ENTITY, "contents": [number.to_string()] }] })
}

/// Checks the behaviour of the reference server, without the gateway.
#[tokio::test]
async fn server_memory_sends_one_update_for_each_write() {
    const WRITES: u64 = 50;
    let scratch = Scratch::new();
    let mut command = Command::new("node");
    command.arg(reference_program("server-memory")).env("MEMORY_FILE_PATH", scratch.path().join("graph"));
    command.stderr(Stdio::null()).kill_on_drop(true);
    let mut client = Client::run(command);
    client.initialize("2025-11-25").await;
    let uri = json!({ "uri": "memory://knowledge-graph" });
    let steps = [("resources/subscribe", WRITES), ("resources/unsubscribe", 0)];
    client.request("tools/call", json!({ "name": "create_entities", "arguments": entity() })).await;
    for (method, expected) in steps {
        assert_eq!(client.request(method, uri.clone()).await["result"], json!({}));
        for number in 0..WRITES {
            let params = json!({ "name": "add_observations", "arguments": observation(number / 2) });
            client
                .write(&json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).to_string())
                .await;
        }
        let (mut notified, mut answered) = (0, 0);
        while answered < WRITES {
            let message = client.message().await;
            assert!(message["error"].is_null() && message["result"]["isError"].is_null(), "{message}");
            match message["method"].as_str() {
                Some("notifications/resources/updated") => notified += 1,
                Some(other) => panic!("{other}"),
                None => answered += 1,
            }
        }
        assert_eq!(notified, expected, "{method}");
    }
}

/// Returns the directory of the memory, a gateway, and a client of it that can write.
async fn writing() -> (Scratch, Gateway, Client) {
    let scratch = Scratch::new();
    let servers = json!({ "a": fixture_server(&[]), "memory": memory(&scratch) });
    let gateway = Gateway::with_servers(servers).await;
    let writer = gateway.client_seeing("memory_add_observations").await;
    writer.await_tool("a_touch").await;
    writer.call("memory_create_entities", entity()).await;
    (scratch, gateway, writer)
}

#[tokio::test]
async fn sub5_sub12_each_write_notifies_every_subscriber_once_and_no_former_subscriber() {
    const WRITES: u64 = 40;
    let (_scratch, gateway, writer) = writing().await;
    let mut peers = [
        Client::new(gateway.address).listening(json!({})).await,
        Client::sse(gateway.address).await.listening(json!({})).await,
        bridge(gateway.address).listening(json!({})).await,
        Client::new(gateway.address).listening(json!({})).await,
    ];
    let mut number = 0;
    for peer in &mut peers {
        peer.subscribe(GRAPH).await;
    }
    // The clients leave one after another.
    for staying in (0..=peers.len()).rev() {
        for _ in 0..WRITES {
            number += 1;
            writer.call("memory_add_observations", observation(number / 2)).await;
            for peer in &mut peers[..staying] {
                let update = peer.updated().await;
                assert_eq!(update.json()["params"], json!({ "uri": GRAPH }));
            }
        }
        for peer in &mut peers {
            assert_eq!(peer.updates().await, Vec::<Value>::new(), "{staying} stay");
        }
        if let Some(last) = staying.checked_sub(1) {
            peers[last].unsubscribe(GRAPH).await;
        }
    }
}

#[tokio::test]
async fn sub5_a_slow_client_receives_at_least_one_update_and_at_most_one_per_write() {
    const WRITES: u64 = 200;
    let (_scratch, gateway, writer) = writing().await;
    let mut peers = [
        Client::new(gateway.address).listening(json!({})).await,
        Client::sse(gateway.address).await.listening(json!({})).await,
        bridge(gateway.address).listening(json!({})).await,
    ];
    for peer in &mut peers {
        peer.subscribe(GRAPH).await;
    }
    for number in 1..=WRITES {
        writer.call("memory_add_observations", observation(number)).await;
    }
    for peer in &mut peers {
        let notified = peer.updates().await.len() as u64;
        assert!((1..=WRITES).contains(&notified), "{notified}");
    }
}

/// Servers of every kind that notify of changes, behind one gateway.
struct Stage {
    scratch: Scratch,
    web: HttpFixture,
    line: FaultProxy,
    gateway: Gateway,
    place: Arc<Place>,
}

impl Stage {
    /// Starts the stage. The notes are kept by servers of this era.
    async fn set(era: &str) -> Stage {
        let scratch = Scratch::new();
        let file = |name: &str| scratch.path().join(name);
        let web = HttpFixture::start(&["--era", era]).await;
        let line = FaultProxy::start(web.address);
        let root = file("root").canonicalize().unwrap_or_else(|_| file("root"));
        std::fs::create_dir(&root).expect("a directory");
        for name in NAMES {
            std::fs::write(root.join(name), "0").expect("a file");
        }
        let gateway = Gateway::with_servers(json!({
            "a": fixture_server(&["--era", era, "--pid-file", path_text(&file("a"))]),
            "web": http_server(line.addr()),
            "memory": memory(&scratch),
            "every": tracked(&file("every"), "server-everything", &["stdio"]),
            "files": { "type": "files", "root": path_text(&root) },
        }))
        .await;
        let client = gateway.client().await;
        for tool in ["a_touch", "web_touch", "memory_add_observations", TOGGLE, "files_read"] {
            client.await_tool(tool).await;
        }
        client.call("memory_create_entities", entity()).await;
        let volatile = ["every+demo://resource/dynamic/text/1", "every+demo://resource/dynamic/text/2"];
        let volatile = volatile.map(str::to_owned);
        let notes = ["a", "web"].into_iter().flat_map(|server| NAMES.map(|name| format!("{server}+note:///{name}")));
        let files = NAMES.map(|name| format!("files+file://{}/{name}", root.display()));
        let uris = notes.chain(files).chain([GRAPH.to_owned()]).chain(volatile.clone()).collect();
        let (records, volatile) = (Records::default(), volatile.into());
        let place = Arc::new(Place { gateway: gateway.address, records, uris, volatile });
        Stage { scratch, web, line, gateway, place }
    }

    fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    /// Injects a temporary fault.
    async fn inject(&self, fault: Fault) {
        match fault {
            Fault::Kill(server) => {
                let text = std::fs::read_to_string(self.scratch.path().join(server)).unwrap_or_default();
                // The process may be dead already and about to restart.
                if let Some(pid) = text.trim().parse().ok().filter(|pid| is_alive(*pid)) {
                    signal(pid, "KILL");
                }
            }
            Fault::Cut => cut_for_a_moment(&self.line).await,
            // The version counters of the server continue.
            Fault::Forget => drop(self.web.client().await.call("forget_sessions", json!({})).await),
            Fault::End(server, how) => {
                // The server may just be restarting.
                let tool = format!("{server}_end_listens");
                drop(self.gateway.client().await.try_call(&tool, json!({ "how": how })).await);
            }
        }
    }

    /// Returns the content of every resource, after all changes have stopped.
    async fn truth(&self) -> BTreeMap<String, String> {
        let client = self.gateway.client().await;
        let mut truth = BTreeMap::new();
        for uri in self.place.uris.iter().filter(|uri| !self.place.volatile.contains(*uri)) {
            let answer = eventually(&format!("{uri} can be read"), || async {
                let answer = client.request("resources/read", json!({ "uri": uri })).await;
                answer["result"].is_object().then_some(answer)
            })
            .await;
            truth.insert(uri.clone(), text_of(&answer));
        }
        truth
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(&'static str),
    /// Cuts the connections of the server over HTTP.
    Cut,
    /// Ends the server's sessions.
    Forget,
    /// Ends the streams of a modern server.
    End(&'static str, &'static str),
}

/// The faults. Each server has fewer than would trigger a long backoff of the gateway.
const FAULTS: [Fault; 12] = [
    Fault::Kill("a"),
    Fault::Kill("a"),
    Fault::Kill("a"),
    Fault::Kill("memory"),
    Fault::Kill("memory"),
    Fault::Kill("every"),
    Fault::Cut,
    Fault::Cut,
    Fault::Cut,
    Fault::Forget,
    Fault::Forget,
    Fault::Forget,
];
/// The faults for modern servers.
const MODERN_FAULTS: [Fault; 12] = [
    Fault::Kill("a"),
    Fault::Kill("a"),
    Fault::End("a", "result"),
    Fault::End("a", "cancelled"),
    Fault::Kill("memory"),
    Fault::Kill("memory"),
    Fault::Kill("every"),
    Fault::Kill("every"),
    Fault::Cut,
    Fault::Cut,
    Fault::End("web", "result"),
    Fault::End("web", "cut"),
];
/// The number of faults in each round. The state is checked after each round, because a later change would hide a
/// missed notification.
const FAULTS_AT_ONCE: usize = 2;

/// The source of all changes.
struct Emitter {
    client: Client,
    place: Arc<Place>,
    root: PathBuf,
    random: Random,
    /// The last number that was written to each file. The next field has the last one of the graph.
    files: BTreeMap<&'static str, u64>,
    graph: u64,
}

impl Emitter {
    async fn new(stage: &Stage, seed: u64) -> Emitter {
        let (client, place) = (stage.gateway.client().await, Arc::clone(&stage.place));
        let random = Random::new(seed);
        Emitter { client, place, root: stage.root(), random, files: NAMES.map(|name| (name, 0)).into(), graph: 0 }
    }

    async fn emit_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.emit().await;
            tokio::time::sleep(Duration::from_millis(self.random.below(20))).await;
        }
    }

    async fn emit(&mut self) {
        let name = *self.random.pick(&NAMES);
        // One in ten changes is a burst.
        let count = if self.random.below(10) == 0 { 200 } else { 1 };
        match self.random.below(4) {
            0 => self.touch("a", name, count).await,
            1 => self.touch("web", name, count).await,
            2 => self.write_graph().await,
            _ => self.write_file(name),
        }
    }

    async fn touch(&self, server: &str, name: &str, count: u64) {
        let uri = format!("note:///{name}");
        // The version counters of the other server restart with each of its processes.
        if server == "web" {
            self.place.records.begin(&format!("web+{uri}"), count);
        }
        let answer = self.client.try_call(&format!("{server}_touch"), json!({ "uri": uri, "count": count })).await;
        if answer["result"].is_object() {
            self.place.records.report().emitted += count;
        }
    }

    /// Writes the next number. A failed write may have succeeded, and is repeated.
    async fn write_graph(&mut self) {
        let answer = self.client.try_call("memory_add_observations", observation(self.graph + 1)).await;
        if answer["result"].is_object() {
            self.graph += 1;
            self.place.records.report().emitted += 1;
        }
    }

    fn write_file(&mut self, name: &'static str) {
        let number = self.files.entry(name).or_default();
        *number += 1;
        std::fs::write(self.root.join(name), number.to_string()).expect("a file");
        self.place.records.report().emitted += 1;
    }

    /// Makes one change of everything.
    async fn emit_all(&mut self) {
        for name in NAMES {
            self.touch("a", name, 1).await;
            self.touch("web", name, 1).await;
            self.write_file(name);
        }
        self.write_graph().await;
        // The tool toggles the updates, so the first call may stop them. The server may also not be back yet.
        eventually("updates are made up", || async {
            let answer = self.client.try_call(TOGGLE, json!({})).await;
            answer["result"]["content"][0]["text"].as_str()?.starts_with("Started").then_some(())
        })
        .await;
    }

    /// Asserts that the visible content equals the written one.
    fn assert_agrees(&self, truth: &BTreeMap<String, String>) {
        assert!(truth[GRAPH].contains(&format!("\"{}\"", self.graph)), "{}: {}", self.graph, truth[GRAPH]);
        for (name, number) in &self.files {
            assert_eq!(truth[&format!("files+file://{}/{name}", self.root.display())], number.to_string());
        }
    }
}

/// Runs one round: players act, servers fail, and resources change for a limited time. Afterwards every player must see
/// the final state.
async fn play_round<P: Plays>(stage: &Arc<Stage>, faults: &[Fault], emitter: &mut Emitter, players: Vec<P>) -> Vec<P> {
    const DEEDS: u64 = 3;
    const MAX_PAUSE_MS: u64 = 800;
    let mut playing = JoinSet::new();
    for mut player in players {
        playing.spawn(async move {
            player.act(DEEDS).await;
            player
        });
    }
    let mut pauses = faults.iter().map(|_| emitter.random.below(MAX_PAUSE_MS)).collect::<Vec<_>>();
    let (stage_then, faults) = (Arc::clone(stage), faults.to_vec());
    let failing = tokio::spawn(async move {
        for fault in faults {
            tokio::time::sleep(Duration::from_millis(pauses.pop().expect("one for each"))).await;
            stage_then.inject(fault).await;
        }
    });
    let time = Duration::from_millis(emitter.random.below(MAX_PAUSE_MS));
    emitter.emit_for(time).await;
    failing.await.expect("no panic");
    let mut players = playing.join_all().await;
    let truth = stage.truth().await;
    emitter.assert_agrees(&truth);
    catch_up(&mut players, &truth).await;
    players
}

async fn catch_up(players: &mut [impl Plays], truth: &BTreeMap<String, String>) {
    let deadline = Instant::now() + TIMEOUT / 2;
    for player in players {
        player.catch_up(truth, deadline).await;
    }
}

/// Asserts that each player is still subscribed to exactly its set of resources.
async fn change_all(stage: &Stage, emitter: &mut Emitter, players: &mut [impl Plays]) {
    for player in &mut *players {
        player.receive_rest().await;
        player.observed().clear_volatile();
    }
    emitter.emit_all().await;
    let mut truth = stage.truth().await;
    emitter.assert_agrees(&truth);
    truth.extend(stage.place.volatile.iter().map(|uri| (uri.clone(), NOTIFIED.to_owned())));
    catch_up(players, &truth).await;
    for player in players {
        player.receive_rest().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub5_sub16_subx6_subscribers_see_the_final_state_of_legacy_servers_after_faults() {
    play::<Player>("legacy", FAULTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sub5_sub16_subscribers_see_the_final_state_of_modern_servers_after_faults() {
    play::<Player>("modern", MODERN_FAULTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sub5_sub16_listeners_see_the_final_state_of_legacy_servers_after_faults() {
    play::<ListeningPlayer>("legacy", FAULTS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sub5_sub16_listeners_see_the_final_state_of_modern_servers_after_faults() {
    play::<ListeningPlayer>("modern", MODERN_FAULTS).await;
}

async fn play<P: Plays>(era: &str, mut faults: [Fault; 12]) {
    let seed = std::env::var("GOBLIN_SEED").unwrap_or_else(|_| nonce()[..16].to_owned());
    eprintln!("subscriptions: GOBLIN_SEED={seed}");
    let seed = u64::from_str_radix(&seed, 16).expect("a hexadecimal number");
    let stage = Arc::new(Stage::set(era).await);
    let mut emitter = Emitter::new(&stage, seed).await;
    assert!(emitter.client.call_text(TOGGLE, json!({})).await.starts_with("Started"));
    let mut players = P::connect_all(&stage.place, seed).await;
    emitter.random.shuffle(&mut faults);
    for faults in faults.chunks(FAULTS_AT_ONCE) {
        players = play_round(&stage, faults, &mut emitter, players).await;
    }
    change_all(&stage, &mut emitter, &mut players).await;
    let wanted: usize = players.iter().map(P::subscriptions).sum();
    let report = stage.place.records.report().clone();
    eprintln!("subscriptions: seed {seed:x} faults {} clients {} | {report}", faults.len(), players.len());
    assert_eq!(report.lost, Vec::<String>::new());
    assert_eq!(report.wrong, Vec::<String>::new());
    let client = &emitter.client;
    let counted = || async { (gauge(client, ACTIVE).await == wanted).then_some(()) };
    // The gateway may not have noticed a closed stream yet.
    eventually(&format!("{wanted} subscriptions are counted"), counted).await;
    for player in players {
        player.disconnect().await;
    }
    assert_no_subscriptions(&emitter.client).await;
    assert!(!stage.gateway.log().iter().any(|line| line.contains("panicked")));
}

/// Asserts that all subscriptions have ended with the clients, in the gateway and at the servers.
async fn assert_no_subscriptions(client: &Client) {
    gauge_becomes(client, ACTIVE, 0).await;
    for tool in ["a_subscriptions", "web_subscriptions"] {
        eventually(&format!("{tool} lists none"), || async {
            let answer = client.try_call(tool, json!({})).await;
            (answer["result"]["content"][0]["text"] == "[]").then_some(())
        })
        .await;
    }
}
