//! The wrong-recipient ledger: clients that use the same request ids and progress tokens at the same time, and an
//! account of every response (P1, P2). It runs for each pair of eras, with and without sessions on the client and the
//! server side.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use goblin_fixture::fault::FaultProxy;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::fixture_http::HttpFixture;
use crate::harness::{Gateway, Scratch, fixture_server, signal};
use crate::ledger_player::{Era, Manner, Player, Records, SERVERS, WIDTH, Way, post};
use crate::ledger_subscriptions_player::bridge;
use crate::scrape::gauge_becomes;
use crate::support::{FAULT_PAUSE, http_server, is_alive, path_text};

const HTTP_CLIENTS: u64 = 16;
/// The clients over HTTP+SSE, which needs a session. In the modern era these clients use a bridge instead.
const SSE_CLIENTS: u64 = 6;
const BRIDGED_CLIENTS: u64 = 2;
/// The stdio clients. Each has its own gateway.
const STDIO_CLIENTS: u64 = 3;
const CLIENTS: u64 = HTTP_CLIENTS + SSE_CLIENTS + BRIDGED_CLIENTS + STDIO_CLIENTS;

/// Backends of every kind behind one HTTP gateway and some stdio gateways.
struct Stage {
    clients: Era,
    scratch: Scratch,
    _fixtures: [HttpFixture; 2],
    proxies: [FaultProxy; 2],
    gateway: Gateway,
    config: Value,
}

impl Stage {
    async fn set(clients: Era, servers: Era) -> Stage {
        // The output of a failed test names the case.
        eprintln!("clients {clients:?}, servers {servers:?}");
        let scratch = Scratch::new();
        let era = ["--era", servers.name()];
        let fixtures =
            [HttpFixture::start(&era).await, HttpFixture::start(&[&era[..], &["--reply", "sse"]].concat()).await];
        let proxies = [FaultProxy::start(fixtures[0].address), FaultProxy::start(fixtures[1].address)];
        let servers = json!({
            "pipe": fixture_server(&era),
            "json": http_server(proxies[0].addr()),
            "sse": http_server(proxies[1].addr()),
        });
        // No call may end by a timeout. A lost or cancelled call must end at once, or the test fails.
        let config = json!({ "policies": { "defaultTimeout": "10m" }, "mcpServers": servers });
        let gateway = Gateway::start(tracked(&config, &scratch, 0)).await;
        let client = gateway.client().await;
        for server in SERVERS {
            client.await_tool(&format!("{server}_nonce")).await;
        }
        Stage { clients, scratch, _fixtures: fixtures, proxies, gateway, config }
    }

    /// Returns clients over Streamable HTTP.
    async fn callers(&self) -> Vec<Client> {
        let mut callers = Vec::new();
        for _ in 0..HTTP_CLIENTS {
            callers.push(match self.clients {
                Era::Legacy => self.gateway.client().await,
                Era::Modern => Client::modern(self.gateway.address, json!({})),
            });
        }
        callers
    }

    /// Returns all players. Each sees all servers.
    async fn players(&self) -> Vec<Player> {
        let mut clients: Vec<_> = self.callers().await.into_iter().map(|client| (client, Way::Calls)).collect();
        for number in 0..SSE_CLIENTS + BRIDGED_CLIENTS {
            let client = match self.clients {
                Era::Legacy if number < SSE_CLIENTS => {
                    Client::sse(self.gateway.address).await.connected("2024-11-05").await
                }
                Era::Legacy | Era::Modern => self.handshake(bridge(self.gateway.address)).await,
            };
            clients.push((client, Way::Line));
        }
        for number in 1..=STDIO_CLIENTS {
            let client = Client::stdio(tracked(&self.config, &self.scratch, number));
            clients.push((self.handshake(client).await, Way::Line));
        }
        (0..).zip(clients).map(|(number, (client, way))| Player::new(self.clients, number, client, way)).collect()
    }

    async fn handshake(&self, client: Client) -> Client {
        let client = match self.clients {
            Era::Legacy => client.connected("2025-06-18").await,
            Era::Modern => client.as_modern(json!({})),
        };
        for server in SERVERS {
            client.await_tool(&format!("{server}_nonce")).await;
        }
        client
    }

    /// Makes every client play at least this many rounds of calls.
    async fn play(&self, records: &Arc<Records>, manner: Manner, rounds: u64) -> JoinSet<()> {
        let mut playing = JoinSet::new();
        for player in self.players().await {
            playing.spawn(player.play(Arc::clone(records), manner, rounds));
        }
        playing
    }

    /// Injects a temporary fault: a killed process restarts, and a cut line is restored.
    async fn inject(&self, number: u64) {
        match number % 3 {
            0 => {
                let file = pid_file(&self.scratch, (number / 3) % (STDIO_CLIENTS + 1));
                let pid = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
                // The process may be dead already and about to restart.
                if let Some(pid) = pid.filter(|pid| is_alive(*pid)) {
                    signal(pid, "KILL");
                }
            }
            1 => cut_for_a_moment(&self.proxies[0]).await,
            _ => cut_for_a_moment(&self.proxies[1]).await,
        }
    }

    /// Asserts that no call is left, also of disconnected clients, and that nothing panicked.
    async fn await_idle(&self) {
        let client = Client::new(self.gateway.address);
        for family in ["goblin_requests_in_flight", "goblin_backend_requests_in_flight"] {
            gauge_becomes(&client, family, 0).await;
        }
        assert!(!self.gateway.log().iter().any(|line| line.contains("panicked")));
    }
}

fn pid_file(scratch: &Scratch, gateway: u64) -> PathBuf {
    scratch.path().join(format!("pid-{gateway}"))
}

/// Returns the configuration of one gateway. Its backend writes a pid file.
fn tracked(config: &Value, scratch: &Scratch, gateway: u64) -> Value {
    let mut config = config.clone();
    let arguments = config["mcpServers"]["pipe"]["args"].as_array_mut().expect("a list");
    arguments.extend([json!("--pid-file"), json!(path_text(&pid_file(scratch, gateway)))]);
    config
}

pub async fn cut_for_a_moment(proxy: &FaultProxy) {
    proxy.cut().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    proxy.pass().await;
}

async fn check_healthy(clients: Era, servers: Era) {
    const ROUNDS: u64 = 6;
    let mut stage = Stage::set(clients, servers).await;
    let records = Arc::new(Records::default());
    records.close();
    stage.play(&records, Manner::Waits, ROUNDS).await.join_all().await;
    let report = records.ledger.report();
    eprintln!("ledger, {clients:?} to {servers:?}, healthy: {report}{}", records.errors());
    assert_eq!(report.issued, CLIENTS * WIDTH * ROUNDS);
    assert_eq!(report.answered, report.issued, "{report}");
    assert!(report.is_clean(), "{report}");
    stage.await_idle().await;
    assert!(stage.gateway.terminate().await.success());
}

async fn check_faults(clients: Era, servers: Era) {
    const FAULTS: u64 = 12;
    const ROUNDS: u64 = 10;
    let stage = Stage::set(clients, servers).await;
    let records = Arc::new(Records::default());
    let playing = stage.play(&records, Manner::Cancels, ROUNDS).await;
    for fault in 0..FAULTS {
        tokio::time::sleep(FAULT_PAUSE).await;
        stage.inject(fault).await;
    }
    records.close();
    playing.join_all().await;
    let report = records.ledger.report();
    eprintln!("ledger, {clients:?} to {servers:?}, {FAULTS} faults: {report}{}", records.errors());
    assert!(report.issued >= CLIENTS * WIDTH * ROUNDS && report.is_clean(), "{report}");
    assert!(report.answered > 0 && report.failed > 0 && report.cancelled > 0, "{report}");
    stage.await_idle().await;
}

async fn check_progress(clients: Era, servers: Era) {
    let stage = Stage::set(clients, servers).await;
    let mut players = JoinSet::new();
    for (number, caller) in (0..).zip(stage.callers().await) {
        for (id, server) in (1..).zip(SERVERS) {
            players.spawn(watch_progress(clients, caller.clone(), server, id, number * 3 + id));
        }
    }
    let seen: u64 = players.join_all().await.into_iter().sum();
    let sent: u64 = (1..=HTTP_CLIENTS * 3).sum();
    // Some may be dropped on the way to a slow client, but none may be duplicated.
    eprintln!("progress, {clients:?} to {servers:?}: {seen} of {sent} seen, all by their own clients");
    assert!(seen <= sent && seen > sent / 2, "{seen} of {sent}");
}

/// Makes one call with `steps` steps, a number that no other call has. Returns the number of progress notifications.
async fn watch_progress(era: Era, client: Client, server: &str, id: u64, steps: u64) -> u64 {
    let params = json!({
        "name": format!("{server}_progress"), "arguments": { "steps": steps, "delayMs": 1 },
        "_meta": { "progressToken": "the same" },
    });
    let answer = post(&client, &era.request(id, "tools/call", params)).await;
    let messages: Vec<Value> =
        answer.messages().iter().map(|message| serde_json::from_str(message).expect("a message")).collect();
    let (last, before) = messages.split_last().expect("an answer");
    assert_eq!((&last["id"], &last["result"]["content"][0]["text"]), (&json!(id), &json!(format!("{steps} steps"))));
    let mut step = 0;
    for message in before {
        let params = &message["params"];
        assert_eq!((&params["total"], &params["progressToken"]), (&json!(steps), &json!("the same")), "{message}");
        let next = params["progress"].as_u64().expect("a number");
        assert!(next > step, "{message} after {step}");
        step = next;
    }
    before.len() as u64
}

/// The eras of the clients and the servers.
const ERAS: [(Era, Era); 4] =
    [(Era::Legacy, Era::Legacy), (Era::Legacy, Era::Modern), (Era::Modern, Era::Legacy), (Era::Modern, Era::Modern)];

#[tokio::test(flavor = "multi_thread")]
async fn p2_every_answer_reaches_its_client_once_between_all_eras() {
    for (clients, servers) in ERAS {
        check_healthy(clients, servers).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_every_call_ends_once_between_all_eras_while_backends_are_killed() {
    for (clients, servers) in ERAS {
        check_faults(clients, servers).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_every_progress_notification_reaches_its_call_between_all_eras() {
    for (clients, servers) in ERAS {
        check_progress(clients, servers).await;
    }
}
