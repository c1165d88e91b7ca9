//! The wrong-recipient ledger: clients that all use the same request ids and progress tokens at the same time, and an
//! account of every answer (P1, P2).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use goblin_fixture::fault::FaultProxy;
use goblin_fixture::ledger::Ledger;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::fixture_http::HttpFixture;
use crate::harness::{Client, Gateway, Scratch, StdioClient, fixture_server, signal};
use crate::sse_client::SseClient;
use crate::support::{FAULT_PAUSE, http_server, path_text};

const HTTP_CLIENTS: u64 = 24;
const SSE_CLIENTS: u64 = 8;
const STDIO_CLIENTS: u64 = 4;
const CLIENTS: u64 = HTTP_CLIENTS + SSE_CLIENTS + STDIO_CLIENTS;
/// Calls that each client has open at a time; their ids are the same in every client and every round.
const WIDTH: u64 = 8;
const END_OF_ROUND: &str = r#"{"jsonrpc":"2.0","id":"end of round","method":"ping"}"#;
const SERVERS: [&str; 3] = ["pipe", "json", "sse"];

/// Backends of every kind behind one HTTP gateway and some stdio gateways.
struct Stage {
    scratch: Scratch,
    _fixtures: [HttpFixture; 2],
    proxies: [FaultProxy; 2],
    gateway: Gateway,
    http: Vec<Client>,
    sse: Vec<SseClient>,
    stdio: Vec<StdioClient>,
}

impl Stage {
    async fn set() -> Stage {
        let scratch = Scratch::new();
        let fixtures = [HttpFixture::start(&[]).await, HttpFixture::start(&["--reply", "sse"]).await];
        let proxies = [FaultProxy::start(fixtures[0].address), FaultProxy::start(fixtures[1].address)];
        let config = |number: u64| {
            let file = scratch.path().join(format!("pid-{number}"));
            json!({ "mcpServers": {
                "pipe": fixture_server(&["--pid-file", path_text(&file)]),
                "json": http_server(proxies[0].addr()),
                "sse": http_server(proxies[1].addr()),
            }})
        };
        let gateway = Gateway::start(config(0)).await;
        let mut http = Vec::new();
        for _ in 0..HTTP_CLIENTS {
            http.push(gateway.client().await);
        }
        let mut sse = Vec::new();
        for _ in 0..SSE_CLIENTS {
            sse.push(SseClient::connect(&gateway, "2024-11-05").await);
        }
        let mut stdio = Vec::new();
        for number in 0..STDIO_CLIENTS {
            stdio.push(StdioClient::initialized(config(number + 1), "2025-06-18").await);
        }
        for server in SERVERS {
            let tool = format!("{server}_nonce");
            http[0].await_tool(&tool).await;
            for client in &mut stdio {
                client.await_tool(&tool).await;
            }
        }
        Stage { scratch, _fixtures: fixtures, proxies, gateway, http, sse, stdio }
    }

    /// Every client makes `rounds` rounds of calls; resolves when all have their answers.
    fn play(&mut self, books: &Arc<Books>, rounds: u64) -> JoinSet<()> {
        let mut players = JoinSet::new();
        for (number, client) in self.http.drain(..).enumerate() {
            players.spawn(play_http(client, Arc::clone(books), number as u64, rounds));
        }
        for (number, client) in self.sse.drain(..).enumerate() {
            players.spawn(play_sse(client, Arc::clone(books), number as u64, rounds));
        }
        for (number, client) in self.stdio.drain(..).enumerate() {
            players.spawn(play_stdio(client, Arc::clone(books), number as u64, rounds));
        }
        players
    }

    fn pid_files(&self) -> Vec<PathBuf> {
        (0..=STDIO_CLIENTS).map(|number| self.scratch.path().join(format!("pid-{number}"))).collect()
    }
}

/// Call `id` of a round. Neighbours go to different servers and come back in another order than they went.
fn request(client: u64, round: u64, id: u64, nonce: &str) -> String {
    let server = SERVERS[((client + round + id) % 3) as usize];
    let delay = (client * 7 + id * 13 + round * 5) % 23;
    json!({
        "jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {
            "name": format!("{server}_nonce"), "arguments": { "nonce": nonce, "delayMs": delay },
            "_meta": { "progressToken": id },
        },
    })
    .to_string()
}

/// The ledger, and what the errors said.
#[derive(Default)]
struct Books {
    ledger: Ledger,
    errors: Mutex<BTreeMap<String, u64>>,
}

impl Books {
    fn book(&self, nonce: &str, answer: &Value) {
        match answer["result"]["content"][0]["text"].as_str() {
            Some(text) => self.ledger.answered(nonce, text),
            None => {
                let words = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
                *self.errors.lock().expect("no panic").entry(words).or_default() += 1;
                self.ledger.failed(nonce);
            }
        }
    }

    fn errors(&self) -> String {
        let errors = self.errors.lock().expect("no panic");
        errors.iter().map(|(words, count)| format!("\n  {count} x {words}")).collect()
    }
}

async fn play_http(client: Client, books: Arc<Books>, number: u64, rounds: u64) {
    for round in 0..rounds {
        let calls = (1..=WIDTH).map(|id| {
            let (client, books) = (&client, &books);
            async move {
                let nonce = books.ledger.issue();
                let answer = client.post(request(number, round, id, &nonce)).await;
                for message in answer.messages() {
                    let message: Value = serde_json::from_str(&message).expect("a message");
                    assert_eq!(message["id"], id, "{message}");
                    books.book(&nonce, &message);
                }
            }
        });
        futures_util::future::join_all(calls).await;
    }
}

async fn play_sse(mut client: SseClient, books: Arc<Books>, number: u64, rounds: u64) {
    for round in 0..rounds {
        let nonces: Vec<_> = (1..=WIDTH).map(|_| books.ledger.issue()).collect();
        let calls: Vec<_> = (1..).zip(&nonces).map(|(id, nonce)| request(number, round, id, nonce)).collect();
        futures_util::future::join_all(calls.iter().map(|call| client.write(call))).await;
        for _ in 0..WIDTH {
            book_line(&books, &nonces, &client.answer().await);
        }
        // What comes before this answer is one too many, and is booked as such.
        client.write(END_OF_ROUND).await;
        loop {
            let answer = client.answer().await;
            if answer["id"] == "end of round" {
                break;
            }
            book_line(&books, &nonces, &answer);
        }
    }
}

async fn play_stdio(mut client: StdioClient, books: Arc<Books>, number: u64, rounds: u64) {
    for round in 0..rounds {
        let nonces: Vec<_> = (1..=WIDTH).map(|_| books.ledger.issue()).collect();
        for (id, nonce) in (1..).zip(&nonces) {
            client.write(&request(number, round, id, nonce)).await;
        }
        for _ in 0..WIDTH {
            book_line(&books, &nonces, &next_answer(&mut client).await);
        }
        // What comes before this answer is one too many, and is booked as such.
        client.write(END_OF_ROUND).await;
        loop {
            let answer = next_answer(&mut client).await;
            if answer["id"] == "end of round" {
                break;
            }
            book_line(&books, &nonces, &answer);
        }
    }
    assert!(client.close().await.success());
}

/// Passes over `list_changed`, which a backend that comes back may cause.
async fn next_answer(client: &mut StdioClient) -> Value {
    loop {
        let message = client.message().await;
        if !message["id"].is_null() {
            return message;
        }
        assert!(message["method"].as_str().is_some_and(|method| method.ends_with("list_changed")), "{message}");
    }
}

fn book_line(books: &Books, nonces: &[String], answer: &Value) {
    let index = answer["id"].as_u64().unwrap_or_else(|| panic!("{answer}")) as usize - 1;
    books.book(&nonces[index], answer);
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_every_answer_comes_once_and_to_the_right_client() {
    const ROUNDS: u64 = 10;
    let mut stage = Stage::set().await;
    let books = Arc::new(Books::default());
    stage.play(&books, ROUNDS).join_all().await;
    let report = books.ledger.report();
    eprintln!("ledger, healthy: {report}{}", books.errors());
    assert_eq!(report.issued, CLIENTS * WIDTH * ROUNDS);
    assert_eq!(report.answered, report.issued, "{report}");
    assert!(report.is_clean(), "{report}");
    assert!(stage.gateway.terminate().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn f1_every_call_is_answered_once_while_backends_are_killed() {
    const ROUNDS: u64 = 30;
    const MOST_FAULTS: usize = 15;
    let mut stage = Stage::set().await;
    let books = Arc::new(Books::default());
    let mut players = stage.play(&books, ROUNDS);
    let files = stage.pid_files();
    let mut faults = 0;
    while !players.is_empty() {
        tokio::select! {
            player = players.join_next() => player.expect("there are some").expect("no panic"),
            () = tokio::time::sleep(FAULT_PAUSE), if faults < MOST_FAULTS => {
                inject(&stage.proxies, &files, faults).await;
                faults += 1;
            }
        }
    }
    let report = books.ledger.report();
    eprintln!("ledger, {faults} faults: {report}{}", books.errors());
    assert_eq!(report.issued, CLIENTS * WIDTH * ROUNDS);
    assert!(report.is_clean(), "{report}");
    assert!(report.answered > 0 && report.failed > 0, "{report}");
    assert!(!books.errors().contains("did not answer"), "a lost backend is an error at once, not a time-out");
    let panics = stage.gateway.log().iter().filter(|line| line.contains("panicked")).count();
    assert_eq!(panics, 0);
}

/// A fault that heals by itself: a killed process is started again, a cut line is mended.
async fn inject(proxies: &[FaultProxy; 2], files: &[PathBuf], number: usize) {
    match number % 3 {
        0 => {
            let file = &files[(number / 3) % files.len()];
            let pid = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
            // It may be dead already, waiting for its restart.
            if let Some(pid) = pid.filter(|pid| crate::support::is_alive(*pid)) {
                signal(pid, "KILL");
            }
        }
        kind => cut_for_a_moment(&proxies[kind - 1]).await,
    }
}

pub async fn cut_for_a_moment(proxy: &FaultProxy) {
    proxy.cut().await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    proxy.pass().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_every_progress_notification_belongs_to_its_own_call() {
    let mut stage = Stage::set().await;
    let mut players = JoinSet::new();
    for (number, client) in stage.http.drain(..).enumerate() {
        for (id, server) in (1..).zip(SERVERS) {
            players.spawn(watch_progress(client.clone(), server, id, number as u64 * 3 + id));
        }
    }
    let seen = players.join_all().await;
    let most: u64 = (0..HTTP_CLIENTS).flat_map(|number| (1..=3).map(move |id| number * 3 + id)).sum();
    let seen: u64 = seen.into_iter().sum();
    // Some may be dropped on the way to a slow client, none may be doubled.
    eprintln!("progress: {seen} of {most} seen, all by their own clients");
    assert!(seen <= most && seen > most / 2, "{seen} of {most}");
}

/// Makes one call with `steps` steps, a number that no other call has; tells how many were seen.
async fn watch_progress(client: Client, server: &str, id: u64, steps: u64) -> u64 {
    let params = json!({
        "name": format!("{server}_progress"), "arguments": { "steps": steps, "delayMs": 1 },
        "_meta": { "progressToken": "the same" },
    });
    let answer =
        client.post(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).to_string()).await;
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
