//! A client for the ledger of server requests. It makes calls that cause server requests, answers them in its manner,
//! and records every message.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use goblin_fixture::ledger::{self, Ledger};
use serde_json::{Value, json};

use crate::client::Client;
use crate::client::inbox::Heard;

pub const SAMPLING: &str = "sampling/createMessage";
/// Each server, and the stream of its request: that of the call or that of the session.
pub const ROUTES: [(&str, &str); 8] = [
    ("pipe", "post"),
    ("web", "post"),
    ("web", "get"),
    ("old", "post"),
    ("own-pipe", "post"),
    ("own-web", "post"),
    ("own-web", "get"),
    ("own-old", "post"),
];
/// The calls that each client has open at a time, two of each route. Their ids are the same in every client and every
/// round.
pub const WIDTH: u64 = 16;
const END_OF_ROUND: &str = r#"{"jsonrpc":"2.0","id":"end of round","method":"ping"}"#;

/// Returns a call that makes its server request a response to `nonce`.
pub fn asking(id: u64, server: &str, via: &str, nonce: &str) -> String {
    let params = json!({ "nonce": nonce, "messages": [], "maxTokens": 1 });
    let arguments = json!({ "method": SAMPLING, "via": via, "params": params });
    let params = json!({ "name": format!("{server}_ask"), "arguments": arguments });
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
}

/// The reaction of a client to a server request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Answers,
    IsSilent,
    /// The client answers after the request was cancelled.
    IsLate,
}

/// The counters that all players share.
#[derive(Default)]
pub struct Books {
    ledger: Ledger,
    asks: AtomicU64,
    wrong: AtomicU64,
    again: AtomicU64,
    refused: AtomicU64,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    errors: BTreeMap<String, u64>,
    broken: Vec<String>,
    given: BTreeSet<String>,
    late: BTreeSet<String>,
}

/// The counts.
pub struct Report {
    pub calls: ledger::Report,
    pub asks: u64,
    /// Requests that reached a client other than the caller.
    pub wrong: u64,
    /// Requests that reached their client twice.
    pub again: u64,
}

impl Report {
    /// Reports whether no message was misrouted or repeated.
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.again == 0 && self.calls.double == 0 && self.calls.foreign == 0 && self.asks > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { calls, asks, wrong, again } = self;
        write!(formatter, "{calls}; asks {asks} WRONG {wrong} again {again}")
    }
}

impl Books {
    pub fn report(&self) -> Report {
        let [asks, wrong, again] = [&self.asks, &self.wrong, &self.again].map(|count| count.load(Ordering::Relaxed));
        Report { calls: self.ledger.report(), asks, wrong, again }
    }

    /// Returns the number of calls that failed because the client of their server request was ambiguous.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the failures of requests with a certain client.
    pub fn broken(&self) -> Vec<String> {
        self.notes().broken.clone()
    }

    /// Returns the nonces of the responses that were sent in time.
    pub fn given(&self) -> BTreeSet<String> {
        self.notes().given.clone()
    }

    /// Returns the nonces of the responses that were sent after a cancellation.
    pub fn late(&self) -> BTreeSet<String> {
        self.notes().late.clone()
    }

    pub fn errors(&self) -> String {
        self.notes().errors.iter().map(|(words, count)| format!("\n  {count} x {words}")).collect()
    }

    fn fail(&self, nonce: &str, is_certain: bool, words: String) {
        self.ledger.failed(nonce);
        if words.contains("per-client") && !is_certain {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        let mut notes = self.notes();
        if is_certain {
            notes.broken.push(words.clone());
        }
        *notes.errors.entry(words).or_default() += 1;
    }

    fn notes(&self) -> std::sync::MutexGuard<'_, Notes> {
        self.notes.lock().expect("no panic")
    }
}

/// A call of the round.
struct Open {
    nonce: String,
    server: &'static str,
    is_certain: bool,
}

pub struct Player {
    pub peer: Client,
    /// Whether this player alone uses the links of its gateway.
    pub is_alone: bool,
    books: Arc<Books>,
    manner: Manner,
    number: u64,
    /// The calls of this round, in the order of their ids.
    calls: Vec<Open>,
    /// The nonces of all its calls. The next field has those with a received server request.
    mine: HashSet<String>,
    asked: HashSet<String>,
    /// The nonce of each response, and the nonce of its call.
    given: HashMap<String, String>,
    /// Requests without a response, by id.
    unanswered: HashMap<String, Heard>,
}

impl Player {
    pub fn new(peer: Client, books: Arc<Books>, manner: Manner, number: u64) -> Player {
        Player {
            peer,
            is_alone: false,
            books,
            manner,
            number,
            calls: Vec::new(),
            mine: HashSet::new(),
            asked: HashSet::new(),
            given: HashMap::new(),
            unanswered: HashMap::new(),
        }
    }

    /// Plays one round: starts all calls at once and handles all messages that follow.
    pub async fn play(&mut self, round: u64) {
        self.begin(round).await;
        for _ in 0..WIDTH {
            while !self.hear().await {}
        }
        // Any message before this response is an extra one and is recorded as such.
        self.peer.begin_text(END_OF_ROUND).await;
        while !self.hear().await {}
    }

    /// Starts the calls of a round. Consecutive calls go to different servers.
    pub async fn begin(&mut self, round: u64) {
        self.calls.clear();
        for id in 1..=WIDTH {
            let (server, via) = ROUTES[((self.number + round + id) % ROUTES.len() as u64) as usize];
            let nonce = self.books.ledger.issue();
            let is_certain = self.is_alone || server.starts_with("own-") || (server, via) == ("web", "post");
            let call = asking(id, server, via, &nonce);
            self.mine.insert(nonce.clone());
            self.calls.push(Open { nonce, server, is_certain });
            self.peer.begin_text(&call).await;
        }
    }

    /// Receives messages until `count` requests are open, or until no call is left that could send one.
    pub async fn await_asks(&mut self, count: usize) {
        let mut ended = 0;
        while self.unanswered.len() < count && ended < WIDTH {
            ended += u64::from(self.hear().await);
        }
    }

    /// Receives one message. Returns true if it was a response.
    async fn hear(&mut self) -> bool {
        let heard = self.peer.hear("an ask or an answer", |_| true).await;
        let message = heard.json();
        match (message["method"].as_str(), &message["id"]) {
            (Some(SAMPLING), _) => self.take_ask(heard, &message).await,
            (Some("notifications/cancelled"), _) => self.drop_ask(&message["params"]["requestId"]).await,
            // A backend that restarts may cause it.
            (Some(method), Value::Null) if method.ends_with("list_changed") => {}
            (None, Value::Number(id)) => {
                let index = id.as_u64().expect("an id of ours") as usize - 1;
                self.book(index, &message);
                return true;
            }
            (None, Value::String(id)) if id == "end of round" => return true,
            _ => panic!("{}: {message}", self.peer.name),
        }
        false
    }

    async fn take_ask(&mut self, ask: Heard, message: &Value) {
        let nonce = message["params"]["nonce"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned();
        self.books.asks.fetch_add(1, Ordering::Relaxed);
        if !self.mine.contains(&nonce) {
            self.books.wrong.fetch_add(1, Ordering::Relaxed);
        }
        if !self.asked.insert(nonce.clone()) {
            self.books.again.fetch_add(1, Ordering::Relaxed);
        }
        if self.manner == Manner::Answers {
            let answer = self.answer(&ask).await;
            self.books.notes().given.insert(answer.clone());
            self.given.insert(answer, nonce);
        } else {
            self.unanswered.insert(message["id"].to_string(), ask);
        }
    }

    /// Answers with a fresh nonce and returns it.
    async fn answer(&mut self, ask: &Heard) -> String {
        let nonce = ledger::nonce();
        self.peer.reply(ask, &format!(r#""result":{{"nonce":"{nonce}"}}"#)).await;
        nonce
    }

    async fn drop_ask(&mut self, id: &Value) {
        if let Some(ask) = self.unanswered.remove(&id.to_string())
            && self.manner == Manner::IsLate
        {
            let answer = self.answer(&ask).await;
            self.books.notes().late.insert(answer);
        }
    }

    fn book(&mut self, index: usize, answer: &Value) {
        let Open { nonce, server, is_certain } = &self.calls[index];
        let told = &answer["result"]["content"][0]["text"];
        let outcome: Value = told.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if let Some(got) = outcome["result"]["nonce"].as_str() {
            let whose = self.given.get(got).map_or(got, String::as_str);
            return self.books.ledger.answered(nonce, whose);
        }
        let words = [&outcome["error"]["message"], &answer["error"]["message"], told];
        let words = words.iter().find_map(|words| words.as_str()).unwrap_or_else(|| panic!("{answer}"));
        // The duration is cut off, because it varies.
        let words = words.split(" in ").next().unwrap_or(words);
        self.books.fail(nonce, *is_certain, format!("{server}: {words}"));
    }
}
