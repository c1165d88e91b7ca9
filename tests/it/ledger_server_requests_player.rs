//! A client for the ledger of server requests. It makes calls that cause server requests, answers them in its manner,
//! and records every message.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use goblin_fixture::ledger::{self, Ledger};
use serde_json::{Value, json};

use crate::client::Client;
use crate::client::inbox::Received;

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
pub fn sampling_call(id: u64, server: &str, via: &str, nonce: &str) -> String {
    let params = json!({ "nonce": nonce, "messages": [], "maxTokens": 1 });
    let arguments = json!({ "method": SAMPLING, "via": via, "params": params });
    let params = json!({ "name": format!("{server}_request"), "arguments": arguments });
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
pub struct Records {
    ledger: Ledger,
    requests: AtomicU64,
    wrong: AtomicU64,
    again: AtomicU64,
    ambiguous: AtomicU64,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    errors: BTreeMap<String, u64>,
    broken: Vec<String>,
    answers: BTreeSet<String>,
    late: BTreeSet<String>,
}

/// The counts.
pub struct Report {
    pub calls: ledger::Report,
    pub requests: u64,
    /// Requests that reached a client other than the caller.
    pub wrong: u64,
    /// Requests that reached their client twice.
    pub again: u64,
}

impl Report {
    /// Reports whether no message was misrouted or repeated.
    pub fn is_clean(&self) -> bool {
        self.wrong == 0 && self.again == 0 && self.calls.double == 0 && self.calls.foreign == 0 && self.requests > 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { calls, requests, wrong, again } = self;
        write!(formatter, "{calls}; requests {requests} WRONG {wrong} again {again}")
    }
}

impl Records {
    pub fn report(&self) -> Report {
        let [requests, wrong, again] =
            [&self.requests, &self.wrong, &self.again].map(|count| count.load(Ordering::Relaxed));
        Report { calls: self.ledger.report(), requests, wrong, again }
    }

    /// Returns the number of calls that failed because the client of their server request was ambiguous.
    pub fn ambiguous(&self) -> u64 {
        self.ambiguous.load(Ordering::Relaxed)
    }

    /// Returns the failures of requests with a certain client.
    pub fn broken(&self) -> Vec<String> {
        self.notes().broken.clone()
    }

    /// Returns the nonces of the responses that were sent in time.
    pub fn answers(&self) -> BTreeSet<String> {
        self.notes().answers.clone()
    }

    /// Returns the nonces of the responses that were sent after a cancellation.
    pub fn late(&self) -> BTreeSet<String> {
        self.notes().late.clone()
    }

    pub fn errors(&self) -> String {
        self.notes().errors.iter().map(|(text, count)| format!("\n  {count} x {text}")).collect()
    }

    fn fail(&self, nonce: &str, is_certain: bool, text: String) {
        self.ledger.failed(nonce);
        if text.contains("per-client") && !is_certain {
            self.ambiguous.fetch_add(1, Ordering::Relaxed);
        }
        let mut notes = self.notes();
        if is_certain {
            notes.broken.push(text.clone());
        }
        *notes.errors.entry(text).or_default() += 1;
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
    records: Arc<Records>,
    manner: Manner,
    number: u64,
    /// The calls of this round, in the order of their ids.
    calls: Vec<Open>,
    /// The nonces of all its calls. The next field has those with a received server request.
    own_nonces: HashSet<String>,
    requested: HashSet<String>,
    /// The nonce of each response, and the nonce of its call.
    answers: HashMap<String, String>,
    /// Requests without a response, by id.
    unanswered: HashMap<String, Received>,
}

impl Player {
    pub fn new(peer: Client, records: Arc<Records>, manner: Manner, number: u64) -> Player {
        Player {
            peer,
            is_alone: false,
            records,
            manner,
            number,
            calls: Vec::new(),
            own_nonces: HashSet::new(),
            requested: HashSet::new(),
            answers: HashMap::new(),
            unanswered: HashMap::new(),
        }
    }

    /// Plays one round: starts all calls at once and handles all messages that follow.
    pub async fn play(&mut self, round: u64) {
        self.begin(round).await;
        for _ in 0..WIDTH {
            while !self.receive().await {}
        }
        // Any message before this response is an extra one and is recorded as such.
        self.peer.begin_text(END_OF_ROUND).await;
        while !self.receive().await {}
    }

    /// Starts the calls of a round. Consecutive calls go to different servers.
    pub async fn begin(&mut self, round: u64) {
        self.calls.clear();
        for id in 1..=WIDTH {
            let (server, via) = ROUTES[((self.number + round + id) % ROUTES.len() as u64) as usize];
            let nonce = self.records.ledger.issue();
            let is_certain = self.is_alone || server.starts_with("own-") || (server, via) == ("web", "post");
            let call = sampling_call(id, server, via, &nonce);
            self.own_nonces.insert(nonce.clone());
            self.calls.push(Open { nonce, server, is_certain });
            self.peer.begin_text(&call).await;
        }
    }

    /// Receives messages until `count` requests are open, or until no call is left that could send one.
    pub async fn await_requests(&mut self, count: usize) {
        let mut ended = 0;
        while self.unanswered.len() < count && ended < WIDTH {
            ended += u64::from(self.receive().await);
        }
    }

    /// Receives one message. Returns true if it was a response.
    async fn receive(&mut self) -> bool {
        let received = self.peer.receive("a server request or a response", |_| true).await;
        let message = received.json();
        match (message["method"].as_str(), &message["id"]) {
            (Some(SAMPLING), _) => self.take_request(received, &message).await,
            (Some("notifications/cancelled"), _) => self.drop_request(&message["params"]["requestId"]).await,
            // A backend that restarts may cause it.
            (Some(method), Value::Null) if method.ends_with("list_changed") => {}
            (None, Value::Number(id)) => {
                let index = id.as_u64().expect("an id of this player") as usize - 1;
                self.record(index, &message);
                return true;
            }
            (None, Value::String(id)) if id == "end of round" => return true,
            _ => panic!("{}: {message}", self.peer.name),
        }
        false
    }

    async fn take_request(&mut self, request: Received, message: &Value) {
        let nonce = message["params"]["nonce"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned();
        self.records.requests.fetch_add(1, Ordering::Relaxed);
        if !self.own_nonces.contains(&nonce) {
            self.records.wrong.fetch_add(1, Ordering::Relaxed);
        }
        if !self.requested.insert(nonce.clone()) {
            self.records.again.fetch_add(1, Ordering::Relaxed);
        }
        if self.manner == Manner::Answers {
            let answer = self.answer(&request).await;
            self.records.notes().answers.insert(answer.clone());
            self.answers.insert(answer, nonce);
        } else {
            self.unanswered.insert(message["id"].to_string(), request);
        }
    }

    /// Answers with a fresh nonce and returns it.
    async fn answer(&mut self, request: &Received) -> String {
        let nonce = ledger::nonce();
        self.peer.reply(request, &format!(r#""result":{{"nonce":"{nonce}"}}"#)).await;
        nonce
    }

    async fn drop_request(&mut self, id: &Value) {
        if let Some(request) = self.unanswered.remove(&id.to_string())
            && self.manner == Manner::IsLate
        {
            let answer = self.answer(&request).await;
            self.records.notes().late.insert(answer);
        }
    }

    fn record(&mut self, index: usize, answer: &Value) {
        let Open { nonce, server, is_certain } = &self.calls[index];
        let text_block = &answer["result"]["content"][0]["text"];
        let outcome: Value = text_block.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        if let Some(got) = outcome["result"]["nonce"].as_str() {
            let owner = self.answers.get(got).map_or(got, String::as_str);
            return self.records.ledger.answered(nonce, owner);
        }
        let text = [&outcome["error"]["message"], &answer["error"]["message"], text_block];
        let text = text.iter().find_map(|text| text.as_str()).unwrap_or_else(|| panic!("{answer}"));
        // The duration is cut off, because it varies.
        let text = text.split(" in ").next().unwrap_or(text);
        self.records.fail(nonce, *is_certain, format!("{server}: {text}"));
    }
}
