//! The wrong-recipient ledger of server requests. Clients of every transport make calls that cause server requests, all
//! at the same time and with the same ids. The ledger accounts for the recipient of every request and every response
//! (P1, P2).
//!
//! The params of a server request contain the nonce of its call, which identifies the right client. Each response has
//! its own nonce. The result of the call contains it, and the server records it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use goblin_fixture::fault::FaultProxy;
use goblin_fixture::ledger;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, eventually, fixture_server, signal};
use crate::ledger::cut_for_a_moment;
use crate::ledger_server_requests_player::{Manner, Player, ROUTES, Records, WIDTH, sampling_call};
use crate::per_client::per_client;
use crate::resume::{self, Event};
use crate::scrape::gauge_becomes;
use crate::support::{FAULT_PAUSE, http_server, path_text, started_and_alive};
use crate::transport_pairs::Front;

/// The number of clients of each transport.
const CLIENTS: [(Front, u64); 3] = [(Front::Http, 6), (Front::Sse, 4), (Front::Stdio, 2)];

/// Servers of every kind, shared and per-client, behind one HTTP gateway and a stdio gateway for each stdio client.
struct Stage {
    scratch: Scratch,
    _fixtures: [HttpFixture; 2],
    proxies: [FaultProxy; 2],
    config: Value,
    gateway: Gateway,
}

impl Stage {
    async fn set(policies: Value) -> Stage {
        let scratch = Scratch::new();
        let file = |name: &str| scratch.path().join(name);
        let (received, starts) = (file("received"), file("starts"));
        let received = ["--received", path_text(&received)];
        // The first server has event ids, so that a cut stream can be resumed.
        let switches = [["--reply", "sse"].as_slice(), &["--sse"]].map(|switches| [switches, &received].concat());
        let fixtures = [HttpFixture::start(&switches[0]).await, HttpFixture::start(&switches[1]).await];
        let proxies = [FaultProxy::start(fixtures[0].address), FaultProxy::start(fixtures[1].address)];
        let servers = [
            ("pipe", fixture_server(&[&["--start-log", path_text(&starts)], &received[..]].concat())),
            ("web", http_server(proxies[0].addr())),
            ("old", http_server(proxies[1].addr())),
        ];
        let both = servers.into_iter().flat_map(|(name, server)| {
            [(name.to_owned(), server.clone()), (format!("own-{name}"), per_client(server))]
        });
        let config = json!({
            "gateway": { "sessionIdleTimeout": "2s" },
            "policies": policies,
            "mcpServers": both.collect::<serde_json::Map<_, _>>(),
        });
        let gateway = Gateway::start(config.clone()).await;
        Stage { scratch, _fixtures: fixtures, proxies, config, gateway }
    }

    /// Returns a client that sees all servers.
    async fn peer(&self, front: Front) -> Client {
        let abilities = json!({ "sampling": {} });
        let mut peer = match front {
            Front::Http => Client::new(self.gateway.address).listening(abilities).await,
            Front::Sse => Client::sse(self.gateway.address).await.listening(abilities).await,
            Front::Stdio => Client::stdio(self.config.clone()).listening(abilities).await,
        };
        peer.name = format!("{front:?}");
        for (server, _) in ROUTES {
            peer.await_tool(&format!("{server}_request")).await;
        }
        peer
    }

    /// Returns a player. A player with its own gateway shares it with no other client.
    async fn player(&self, front: Front, records: &Arc<Records>, manner: Manner, number: u64) -> Player {
        let mut player = Player::new(self.peer(front).await, Arc::clone(records), manner, number);
        player.is_alone = front == Front::Stdio;
        player
    }

    async fn players(&self, records: &Arc<Records>) -> Vec<Player> {
        let mut players = Vec::new();
        for (front, count) in CLIENTS {
            for _ in 0..count {
                players.push(self.player(front, records, Manner::Answers, players.len() as u64).await);
            }
        }
        players
    }

    /// Returns the nonces of the responses that reached a server, with their counts.
    fn received(&self) -> BTreeMap<String, u64> {
        let text =
            std::fs::read_to_string(self.scratch.path().join("received")).expect("the servers have received messages");
        let mut received = BTreeMap::new();
        for line in text.lines() {
            let message: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if let Some(nonce) = message["result"]["nonce"].as_str() {
                *received.entry(nonce.to_owned()).or_default() += 1;
            }
        }
        received
    }

    /// Injects a temporary fault: a killed process restarts, and a cut line is restored.
    async fn inject(&self, number: usize) {
        match number % 4 {
            0 | 2 => {
                let processes = started_and_alive(&self.scratch.path().join("starts"));
                if let Some(pid) = processes.iter().nth(number * 7 % processes.len().max(1)) {
                    signal(*pid, "KILL");
                }
            }
            kind => cut_for_a_moment(&self.proxies[kind / 2]).await,
        }
    }

    async fn gauge_becomes(&self, family: &str, value: usize) {
        gauge_becomes(&Client::new(self.gateway.address), family, value).await;
    }

    fn assert_no_panic(&self) {
        assert!(!self.gateway.log().iter().any(|line| line.contains("panicked")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_server_requests_reach_only_their_own_client_and_answers_only_their_own_call() {
    const ROUNDS: u64 = 6;
    let stage = Stage::set(json!({})).await;
    let records = Arc::new(Records::default());
    let mut playing = JoinSet::new();
    for mut player in stage.players(&records).await {
        playing.spawn(async move {
            for round in 0..ROUNDS {
                player.play(round).await;
            }
            player
        });
    }
    let mut players = playing.join_all().await;
    let crowd = records.report();
    // The players run one after another. Each is alone, and no request is ambiguous.
    for player in &mut players {
        player.is_alone = true;
        player.play(ROUNDS).await;
    }
    let report = records.report();
    eprintln!("server requests, healthy: {report}; among others: {crowd}{}", records.errors());
    let clients: u64 = CLIENTS.iter().map(|(_, count)| count).sum();
    assert_eq!(report.calls.issued, clients * WIDTH * (ROUNDS + 1));
    assert!(report.is_clean() && report.calls.unanswered == 0, "{report}");
    assert_eq!(records.broken(), Vec::<String>::new(), "a server request with a certain client succeeds");
    assert_eq!(report.calls.failed, records.ambiguous(), "all others are rejected with a reason{}", records.errors());
    assert!(records.ambiguous() > 0, "clients do share links");
    let received = stage.received();
    assert_eq!(
        received.keys().cloned().collect::<BTreeSet<_>>(),
        records.answers(),
        "the servers received the answers of the clients"
    );
    assert_eq!(received.values().sum::<u64>(), report.calls.answered, "each answer is received once");
    stage.assert_no_panic();
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_no_server_request_reaches_a_wrong_client_while_servers_die_and_clients_leave() {
    const FAULTS: usize = 20;
    let stage = Arc::new(Stage::set(json!({ "askTimeout": "700ms", "defaultTimeout": "5s" })).await);
    let (records, leavers) = (Arc::new(Records::default()), Arc::new(Records::default()));
    let over = Arc::new(AtomicBool::new(false));
    let mut players = stage.players(&records).await;
    for (number, front) in (players.len() as u64..).zip(Front::ALL) {
        players.push(stage.player(front, &records, Manner::IsSilent, number).await);
        players.push(stage.player(front, &records, Manner::IsLate, number).await);
    }
    let mut playing = JoinSet::new();
    for mut player in players {
        let over = Arc::clone(&over);
        playing.spawn(async move {
            for round in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                player.play(round).await;
            }
        });
    }
    for front in Front::SHARED {
        let (stage, leavers, over) = (Arc::clone(&stage), Arc::clone(&leavers), Arc::clone(&over));
        playing.spawn(async move {
            for number in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let mut player = stage.player(front, &leavers, Manner::IsSilent, number).await;
                player.begin(number).await;
                player.await_requests(1 + number as usize % 3).await;
                match number % 2 {
                    0 => player.peer.disconnect().await,
                    // The drop closes the sockets.
                    _ => drop(player),
                }
            }
        });
    }
    for fault in 0..FAULTS {
        tokio::time::sleep(FAULT_PAUSE).await;
        stage.inject(fault).await;
    }
    over.store(true, Ordering::Relaxed);
    playing.join_all().await;
    let (report, leavers_report) = (records.report(), leavers.report());
    eprintln!(
        "server requests, {FAULTS} faults: {report}{}\nleavers: {leavers_report}{}",
        records.errors(),
        leavers.errors()
    );
    assert!(report.is_clean() && report.calls.unanswered == 0, "{report}");
    assert!(leavers_report.is_clean() && leavers_report.calls.unanswered > 0, "{leavers_report}");
    assert!(report.calls.answered > 0 && report.calls.failed > 0, "{report}");
    let received = stage.received();
    let twice: Vec<_> = received.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "answers that reached a server more than once: {twice:?}");
    assert!(records.late().is_disjoint(&received.into_keys().collect()), "a late answer reached a server");
    assert!(!records.late().is_empty());
    // Every call has ended, and so have the sessions of the disconnected clients.
    for family in ["goblin_requests_in_flight", "goblin_backend_requests_in_flight", "goblin_sessions_active"] {
        stage.gauge_becomes(family, 0).await;
    }
    await_recovery(&stage).await;
    stage.assert_no_panic();
}

/// Waits until the servers have recovered: a single client receives all requests of its calls.
async fn await_recovery(stage: &Stage) {
    let peer = stage.peer(Front::Http).await;
    for (server, _) in ROUTES {
        loop {
            let params = json!({ "name": format!("{server}_echo"), "arguments": {} });
            if peer.request("tools/call", params).await["result"].is_object() {
                break;
            }
            tokio::time::sleep(FAULT_PAUSE).await;
        }
    }
    eventually("the only client is certain", || await_all_requests(stage)).await;
}

/// Reports whether a single client receives all server requests. Cancelled calls of other clients count as open for a
/// while, and requests are rejected as ambiguous until then.
async fn await_all_requests(stage: &Stage) -> Option<()> {
    let records = Arc::new(Records::default());
    let mut player = stage.player(Front::Http, &records, Manner::Answers, 0).await;
    player.is_alone = true;
    player.play(0).await;
    let broken = records.broken();
    assert!(broken.iter().all(|text| text.contains("several clients share this connection")), "{broken:?}");
    (records.report().calls.answered == WIDTH).then_some(())
}

/// Streams of calls are cut before or after their server request, and resumed. Meanwhile each client tries to resume
/// the other clients' streams.
#[tokio::test(flavor = "multi_thread")]
async fn p2_only_its_own_client_resumes_a_cut_stream() {
    const CLIENTS: usize = 10;
    const ROUNDS: u64 = 6;
    let stage = Stage::set(json!({})).await;
    stage.peer(Front::Http).await.disconnect().await;
    let cut = Arc::new(Mutex::new(Vec::new()));
    let all_are_cut = Arc::new(Barrier::new(CLIENTS));
    let mut playing = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut client = Client::new(stage.gateway.address);
        client.initialize_with("2025-11-25", json!({ "sampling": {} })).await;
        let (cut, all_are_cut) = (Arc::clone(&cut), Arc::clone(&all_are_cut));
        playing.spawn(async move {
            for round in 0..ROUNDS {
                let (server, nonce) = (["web", "own-pipe", "own-old"][round as usize % 3], ledger::nonce());
                let (_, mut stream) = client.open(sampling_call(1, server, "post", &nonce)).await;
                let mut last = resume::event(&mut stream).await;
                if round % 2 == 0 {
                    last = resume::event(&mut stream).await;
                }
                drop(stream);
                cut.lock().expect("no panic").push(last.id().to_owned());
                all_are_cut.wait().await;
                try_foreign_events(&client, &cut, last.id()).await;
                read_on(&client, last, &nonce).await;
            }
        });
    }
    playing.join_all().await;
    assert_eq!(cut.lock().expect("no panic").len() as u64, CLIENTS as u64 * ROUNDS);
    stage.assert_no_panic();
}

/// Tries to resume from the newest events of other clients. The stream must contain nothing but list changes.
async fn try_foreign_events(client: &Client, cut: &Mutex<Vec<String>>, own: &str) {
    const TRIES: usize = 4;
    let others: Vec<_> =
        cut.lock().expect("no panic").iter().rev().filter(|id| *id != own).take(TRIES).cloned().collect();
    assert_eq!(others.len(), TRIES);
    for id in others {
        let mut stream = resume::resume(client, &id).await;
        for _ in 0..4 {
            let event = resume::event(&mut stream).await;
            assert!(event.data.is_empty() || event.data.contains("list_changed"), "{id}: {event:?}");
        }
    }
}

/// Resumes a stream after its `last` event, which may be the server request, and completes the call.
async fn read_on(client: &Client, last: Event, nonce: &str) {
    let mut stream = resume::resume(client, last.id()).await;
    let server_request = if last.data.is_empty() { resume::event(&mut stream).await } else { last };
    let server_request = server_request.message();
    assert_eq!(server_request["params"]["nonce"], nonce, "{server_request}");
    let result = json!({ "nonce": ledger::nonce() });
    let answer =
        client.post(json!({ "jsonrpc": "2.0", "id": server_request["id"], "result": result }).to_string()).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let [answer] = &resume::rest(stream).await[..] else { panic!("the answer alone") };
    let text = answer.message()["result"]["content"][0]["text"].as_str().map(str::to_owned);
    assert_eq!(text, Some(json!({ "result": result }).to_string()), "{answer:?}");
}
