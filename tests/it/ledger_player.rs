//! Clients of either era for the ledger of calls. Each makes rounds of calls, waits for the responses or cancels a
//! call, and records every outcome.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use goblin_fixture::ledger::Ledger;
use serde_json::{Value, json};

use crate::client::Client;
use crate::client::http::Answer;
use crate::client::modern::{META, VERSION, with_meta};

/// The calls that each client has open at a time. Their ids are the same in every client.
pub const WIDTH: u64 = 8;
pub const SERVERS: [&str; 3] = ["pipe", "json", "sse"];
/// A delay that exceeds the duration of any test.
const NEVER_MS: u64 = 3_600_000;
const END_OF_ROUND: &str = "end of round";

/// The era of a client or server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    Legacy,
    Modern,
}

impl Era {
    /// Returns the name in the fixture's option.
    pub fn name(self) -> &'static str {
        match self {
            Era::Legacy => "legacy",
            Era::Modern => "modern",
        }
    }

    pub fn request(self, id: impl Into<Value>, method: &str, params: Value) -> Value {
        let params = match self {
            Era::Legacy => params,
            Era::Modern => with_meta(params, &json!({})),
        };
        json!({ "jsonrpc": "2.0", "id": id.into(), "method": method, "params": params })
    }

    /// Returns a request that the gateway answers itself, in order with all other messages.
    fn end_of_round(self) -> String {
        let method = match self {
            Era::Legacy => "ping",
            Era::Modern => "server/discover",
        };
        self.request(END_OF_ROUND, method, json!({})).to_string()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Waits,
    /// The client cancels one call in each round.
    Cancels,
}

/// The ledger, the error messages, and whether the ledger is closed.
#[derive(Default)]
pub struct Records {
    pub ledger: Ledger,
    are_closed: AtomicBool,
    errors: Mutex<BTreeMap<String, u64>>,
}

impl Records {
    /// Stops the players that have completed their rounds.
    pub fn close(&self) {
        self.are_closed.store(true, Ordering::Relaxed);
    }

    fn record(&self, call: &Call, answer: &Value) {
        match answer["result"]["content"][0]["text"].as_str() {
            Some(text) => self.ledger.answered(&call.nonce, text),
            None => {
                let text = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
                *self.errors.lock().expect("no panic").entry(text).or_default() += 1;
                self.ledger.failed(&call.nonce);
            }
        }
    }

    pub fn errors(&self) -> String {
        let errors = self.errors.lock().expect("no panic");
        errors.iter().map(|(text, count)| format!("\n  {count} x {text}")).collect()
    }
}

/// A call before it is made.
struct Call {
    id: u64,
    nonce: String,
    message: Value,
    /// The delay before the call is cancelled.
    cancelled_after: Option<Duration>,
}

/// One client. All responses of a client with its own line arrive on that line.
pub struct Player {
    era: Era,
    number: u64,
    client: Client,
    way: Way,
    /// Cancelled calls of earlier rounds.
    cancelled: Vec<Call>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Each response arrives on the stream of its call.
    Calls,
    /// All responses arrive on one line: HTTP+SSE or stdio.
    Line,
}

impl Player {
    pub fn new(era: Era, number: u64, client: Client, way: Way) -> Player {
        Player { era, number, client, way, cancelled: Vec::new() }
    }

    /// Plays at least this many rounds, and continues until the ledger is closed.
    pub async fn play(mut self, records: Arc<Records>, manner: Manner, rounds: u64) {
        for round in 0.. {
            if round >= rounds && records.are_closed.load(Ordering::Relaxed) {
                break;
            }
            let calls: Vec<_> = (1..=WIDTH).map(|place| self.call(&records, manner, round, place)).collect();
            match self.way {
                Way::Calls => drop(join_all(calls.iter().map(|call| self.play_call(&records, call))).await),
                Way::Line => self.play_line(&records, calls).await,
            }
        }
        if self.client.is_process() {
            assert!(self.client.close().await.success());
        }
    }

    /// Creates a call. Consecutive calls go to different servers and return in another order.
    fn call(&self, records: &Records, manner: Manner, round: u64, place: u64) -> Call {
        let (nonce, number) = (records.ledger.issue(), self.number);
        let is_cancelled = manner == Manner::Cancels && (number + round * 3 + place).is_multiple_of(WIDTH);
        // A cancelled id may be used again only if its late response cannot arrive any more.
        let hangs_up = (self.way, self.era) == (Way::Calls, Era::Modern);
        let id = if is_cancelled && !hangs_up { WIDTH + 1 + round } else { place };
        // Half of the cancelled calls race with their responses, and the other half never return.
        let is_endless = is_cancelled && round.is_multiple_of(2);
        let delay = if is_endless { NEVER_MS } else { (number * 7 + place * 13 + round * 5) % 23 };
        let server = SERVERS[((number + round + place) % 3) as usize];
        let params = json!({
            "name": format!("{server}_nonce"), "arguments": { "nonce": nonce, "delayMs": delay },
            "_meta": { "progressToken": id },
        });
        let message = self.era.request(id, "tools/call", params);
        let cancelled_after = is_cancelled.then(|| Duration::from_millis(1 + (number * 5 + round * 11) % 19));
        Call { id, nonce, message, cancelled_after }
    }

    async fn play_line(&mut self, records: &Records, calls: Vec<Call>) {
        self.write(calls.iter().map(|call| call.message.to_string()).collect()).await;
        for call in &calls {
            if let Some(after) = call.cancelled_after {
                tokio::time::sleep(after).await;
                self.write(vec![cancelled(call.id)]).await;
            }
        }
        let mut waiting = calls.iter().filter(|call| call.cancelled_after.is_none()).count();
        while waiting > 0 {
            let answer = self.answer().await;
            waiting -= usize::from(self.record_line(records, &calls, &answer));
        }
        // Any message before this response is an extra one, or crossed its cancellation.
        self.write(vec![self.era.end_of_round()]).await;
        loop {
            let answer = self.answer().await;
            if answer["id"] == END_OF_ROUND {
                break;
            }
            self.record_line(records, &calls, &answer);
        }
        for call in calls.into_iter().filter(|call| call.cancelled_after.is_some()) {
            records.ledger.cancelled(&call.nonce);
            self.cancelled.push(call);
        }
    }

    /// Records a response. Returns true if the call was not cancelled.
    fn record_line(&self, records: &Records, calls: &[Call], answer: &Value) -> bool {
        let call = calls.iter().chain(&self.cancelled).find(|call| answer["id"] == call.id);
        let call = call.unwrap_or_else(|| panic!("no call has the answer {answer}"));
        records.record(call, answer);
        call.cancelled_after.is_none()
    }

    async fn write(&self, messages: Vec<String>) {
        join_all(messages.iter().map(|message| self.client.write(message))).await;
    }

    /// Returns the next response. Skips `list_changed`, which a restarted backend may cause in a session.
    async fn answer(&self) -> Value {
        loop {
            let message = self.client.message().await;
            if !message["id"].is_null() {
                return message;
            }
            let is_list = message["method"].as_str().is_some_and(|method| method.ends_with("list_changed"));
            assert!(is_list && self.era == Era::Legacy, "{message}");
        }
    }

    async fn play_call(&self, records: &Records, call: &Call) {
        let answer = match call.cancelled_after {
            None => Some(post(&self.client, &call.message).await),
            Some(after) => self.post_and_cancel(call, after).await,
        };
        for message in answer.iter().flat_map(Answer::messages) {
            let message: Value = serde_json::from_str(&message).expect("a message");
            assert_eq!(message["id"], call.id, "{message}");
            records.record(call, &message);
        }
        if call.cancelled_after.is_some() {
            records.ledger.cancelled(&call.nonce);
        }
    }

    /// Makes a call and cancels it. Returns the response if it arrived earlier.
    async fn post_and_cancel(&self, call: &Call, after: Duration) -> Option<Answer> {
        let mut posted = pin!(post(&self.client, &call.message));
        match self.era {
            Era::Legacy => loop {
                tokio::select! {
                    answer = &mut posted => return Some(answer),
                    // The cancellation may overtake the call, so it is repeated.
                    () = tokio::time::sleep(after) => self.client.cancel(call.id).await,
                }
            },
            // The timeout closes the connection.
            Era::Modern => tokio::time::timeout(after, posted).await.ok(),
        }
    }
}

/// POSTs a request of any era.
pub async fn post(client: &Client, message: &Value) -> Answer {
    let answer = client.send_draft(&client.draft_of(message.to_string())).await;
    let is_modern = message["params"]["_meta"][format!("{META}protocolVersion")] == VERSION;
    assert!(!is_modern || answer.headers.get("mcp-session-id").is_none(), "{answer:?}");
    answer
}

fn cancelled(id: u64) -> String {
    json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }).to_string()
}
