//! Each feature of `tests/clients/differences.json`, played without the gateway and through it by the same client and
//! server. A difference between the two transcripts must have a row in `interop_difference_table.rs`, and each row must
//! occur.
//!
//! The gateway has one server, `"namespacing": "none"`, and the default configuration otherwise. Some pairs also have
//! `"session": "per-client"`, with which the roots of the client reach the server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::harness::Gateway;
use crate::interop_difference_table::{DIFFERENCES, OF_SHARING};
use crate::interop_features::Era::{self, Legacy, Modern};
use crate::interop_player::Maker::{self, Python1, Python2, Rust, TypeScript1, TypeScript2};
use crate::interop_player::{HttpServer, play_script};

static FEATURES: LazyLock<Vec<Value>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../clients/differences.json")).expect("the file of the features is JSON")
});

/// The number of clients that run in parallel.
const AT_ONCE: usize = 4;

/// The transport of the server. The client uses it without the gateway. Through the gateway, the client uses HTTP+SSE
/// in the last case and Streamable HTTP otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Http,
    Stdio,
    Sse,
}

use Transport::{Http, Sse, Stdio};

#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub era: Era,
    pub client: Maker,
    pub server: Maker,
    pub over: Transport,
    /// Whether the client has a connection to the server of its own.
    pub is_per_client: bool,
}

const fn pair(era: Era, client: Maker, server: Maker, over: Transport) -> Pair {
    Pair { era, client, server, over, is_per_client: false }
}

const fn own(era: Era, client: Maker, server: Maker, over: Transport) -> Pair {
    Pair { is_per_client: true, ..pair(era, client, server, over) }
}

/// Pairs with every SDK on both ends, in both eras, over every transport.
pub const PAIRS: [Pair; 14] = [
    pair(Legacy, Python1, TypeScript1, Http),
    pair(Legacy, TypeScript1, Python1, Stdio),
    pair(Legacy, TypeScript1, TypeScript1, Sse),
    pair(Legacy, Python2, Rust, Http),
    pair(Legacy, TypeScript2, Python2, Stdio),
    pair(Legacy, Rust, TypeScript2, Http),
    pair(Modern, TypeScript2, Python2, Http),
    pair(Modern, Python2, TypeScript2, Stdio),
    pair(Modern, Rust, TypeScript2, Http),
    pair(Modern, TypeScript2, Rust, Http),
    own(Legacy, Python1, TypeScript1, Http),
    own(Legacy, TypeScript1, Python1, Stdio),
    own(Legacy, TypeScript1, TypeScript1, Sse),
    own(Modern, Python2, TypeScript2, Http),
];

/// A place at which two transcripts differ.
#[derive(Clone, Debug)]
pub struct Difference {
    pub feature: String,
    pub place: String,
    pub direct: Value,
    pub through: Value,
}

impl Pair {
    fn name(&self) -> String {
        let (era, over) = (self.era.name(), format!("{:?}", self.over));
        let own = if self.is_per_client { ", per client" } else { "" };
        format!("{era}, {} to {} over {over}{own}", self.client.name(), self.server.name())
    }

    /// Returns the steps of the script, each with the name of its feature.
    fn steps(&self) -> Vec<Value> {
        let mut steps = Vec::new();
        for feature in FEATURES.iter() {
            let own = feature.get("steps").or_else(|| feature.get(self.era.name())).and_then(Value::as_array);
            for step in own.into_iter().flatten().filter(|step| !self.skips(&feature["feature"], step)) {
                let mut step = step.clone();
                step["feature"] = feature["feature"].clone();
                steps.push(step);
            }
        }
        steps
    }

    /// Reports whether an SDK cannot perform a step.
    fn skips(&self, feature: &Value, step: &Value) -> bool {
        let unless = step["unless"].as_str();
        // The client of this version over HTTP names no session in a notification, so the gateway finds no connection of
        // its own. The Rust server rejects the notification without a header, which the TypeScript client omits.
        let loses_notifications =
            self.era == Modern && (self.is_per_client || self.client == TypeScript2 && self.server == Rust);
        unless == Some("python-1") && self.client == Python1
            || loses_notifications && feature == "unknown notifications of the client"
            || feature == "tasks"
                && (self.client.client_lacks(self.era, "tasks").is_some()
                    || self.server.server_lacks(self.era, "tasks").is_some())
    }

    async fn play_directly(&self) -> Transcript {
        let server = Server::start(self).await;
        let report = play_script(self.client, self.era, server.over(), &self.steps()).await;
        Transcript::of(self, &report)
    }

    async fn play_through(&self) -> Transcript {
        let server = Server::start(self).await;
        let mut entry = server.entry();
        if self.over == Stdio && self.server.supports(Modern) {
            // One process serves both eras, and the gateway prefers the modern one. The last row of the table is about
            // that choice.
            entry["protocol"] = json!(self.era.name());
        }
        if self.is_per_client {
            entry["session"] = json!("per-client");
        }
        let config = json!({"namespacing": "none", "mcpServers": {"only": entry}});
        let gateway = Gateway::start(config).await;
        // A client receives the capabilities in its handshake, so the server must be ready before.
        let looking = gateway.client().await;
        looking.await_tool("perform").await;
        looking.disconnect().await;
        let url = gateway.url();
        let over = match self.over {
            Sse => crate::sdk::Over::Sse(&url.replace("/mcp", "/sse")),
            Http | Stdio => crate::sdk::Over::Http(&url),
        };
        let report = play_script(self.client, self.era, over, &self.steps()).await;
        Transcript::of(self, &report)
    }
}

/// The server of one run.
enum Server {
    Http(HttpServer),
    Sse(HttpServer),
    Stdio(Vec<String>),
}

impl Server {
    async fn start(pair: &Pair) -> Server {
        match pair.over {
            Http => Server::Http(HttpServer::start(pair.server).await),
            Sse => Server::Sse(HttpServer::start_sse(pair.server).await),
            Stdio => Server::Stdio(pair.server.stdio_command()),
        }
    }

    fn over(&self) -> crate::sdk::Over<'_> {
        match self {
            Server::Http(server) => crate::sdk::Over::Http(server.url()),
            Server::Sse(server) => crate::sdk::Over::Sse(server.url()),
            Server::Stdio(program) => crate::sdk::Over::Command(program),
        }
    }

    fn entry(&self) -> Value {
        match self {
            Server::Http(server) => json!({"url": server.url()}),
            Server::Sse(server) => json!({"url": server.url(), "type": "sse"}),
            Server::Stdio(program) => json!({"command": program[0], "args": program[1..]}),
        }
    }
}

/// The report of a client, without the parts that differ between any two runs.
struct Transcript {
    /// The handshake and the outcomes of the steps, by feature and place.
    outcomes: BTreeMap<(String, String), Value>,
    /// The messages of the server in order of arrival, by kind.
    messages: BTreeMap<String, Vec<Value>>,
    /// The messages of calls, in order of arrival.
    order: Vec<String>,
    /// The number of progress notifications that the SDK of the client could not assign.
    lost_progress: u64,
}

impl Transcript {
    fn of(pair: &Pair, report: &Value) -> Transcript {
        let steps = pair.steps();
        let mut outcomes = BTreeMap::new();
        for member in ["protocolVersion", "serverInfo", "capabilities", "instructions"] {
            outcomes.insert(("handshake".to_owned(), member.to_owned()), normal(&report[member]));
        }
        let played = report["steps"].as_array().expect("steps");
        assert_eq!(played.len(), steps.len(), "{report}");
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (step, outcome) in steps.iter().zip(played) {
            let feature = step["feature"].as_str().expect("a name").to_owned();
            let count = counts.entry(feature.clone()).or_default();
            *count += 1;
            outcomes.insert((feature, format!("step {count}")), normal(outcome));
        }
        let mut messages: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let mut order = Vec::new();
        for entry in report["trace"].as_array().expect("a trace") {
            let (kind, content) = kind_of(entry);
            // The protocol allows to omit the first, which races with the result that names the task. The second is the
            // progress of the call that is cancelled, which races with the cancellation.
            let is_of_cancelled = content["message"].as_str().is_some_and(|message| message.starts_with("step "));
            if kind == "notifications/tasks/status" || is_of_cancelled {
                continue;
            }
            if !kind.ends_with("list_changed") && !kind.ends_with("updated") {
                order.push(format!("{kind} {content}"));
            }
            messages.entry(kind).or_default().push(content);
        }
        if pair.client == Rust || pair.server == Rust {
            // This SDK handles each received message in its own task, and sends log messages on another stream than
            // progress. So their order is lost.
            order.clear();
        }
        Transcript { outcomes, messages, order, lost_progress: report["lostProgress"].as_u64().unwrap_or_default() }
    }

    fn differences(&self, through: &Transcript) -> Vec<Difference> {
        let mut found = Vec::new();
        for (key @ (feature, place), direct) in &self.outcomes {
            let through = through.outcomes.get(key).unwrap_or(&Value::Null);
            compare(feature, place, direct, through, &mut found);
        }
        let none = Vec::new();
        let kinds: BTreeSet<&String> = self.messages.keys().chain(through.messages.keys()).collect();
        // A client that loses progress itself shows nothing about the gateway.
        let is_shown = |kind: &&String| *kind != "progress" || self.lost_progress + through.lost_progress == 0;
        for kind in kinds.into_iter().filter(is_shown) {
            let direct = self.messages.get(kind).unwrap_or(&none);
            let other = through.messages.get(kind).unwrap_or(&none);
            let add = |direct: Value, through: Value| Difference {
                feature: "messages".to_owned(),
                place: kind.clone(),
                direct,
                through,
            };
            found.extend(without(direct, other).into_iter().map(|lost| add(lost, Value::Null)));
            found.extend(without(other, direct).into_iter().map(|extra| add(Value::Null, extra)));
        }
        let is_known = |entry: &&String| self.order.contains(entry) && through.order.contains(entry);
        let [direct, through] =
            [&self.order, &through.order].map(|order| json!(order.iter().filter(is_known).collect::<Vec<_>>()));
        if direct != through {
            found.push(Difference { feature: "messages".to_owned(), place: "order".to_owned(), direct, through });
        }
        found
    }
}

fn kind_of(entry: &Value) -> (String, Value) {
    for kind in ["notification", "ask"] {
        if let Some(content) = entry.get(kind) {
            let method = content["method"].as_str().expect("a method").to_owned();
            return (method, normal(&content["params"]));
        }
    }
    ("progress".to_owned(), normal(&entry["progress"]))
}

/// Returns the values of `one` that `other` does not have, each as often as it is missing.
fn without(one: &[Value], other: &[Value]) -> Vec<Value> {
    let mut rest = other.to_vec();
    let is_missing = |value: &&Value| match rest.iter().position(|candidate| candidate == *value) {
        Some(index) => {
            rest.swap_remove(index);
            false
        }
        None => true,
    };
    one.iter().filter(is_missing).cloned().collect::<Vec<_>>()
}

/// Adds the places at which two values differ. These count as one place: a step that fails on one side only, an array of
/// another length, and an array with the same values in another order.
fn compare(feature: &str, place: &str, direct: &Value, through: &Value, found: &mut Vec<Difference>) {
    match (direct, through) {
        (Value::Object(direct), Value::Object(through)) if direct.get("ok") == through.get("ok") => {
            let keys: BTreeSet<&String> = direct.keys().chain(through.keys()).collect();
            for key in keys {
                let side = |members: &Map<String, Value>| members.get(key).cloned().unwrap_or(Value::Null);
                compare(feature, &format!("{place}/{key}"), &side(direct), &side(through), found);
            }
        }
        (Value::Array(direct), Value::Array(through))
            if direct.len() == through.len() && !without(direct, through).is_empty() =>
        {
            for (index, (direct, through)) in direct.iter().zip(through).enumerate() {
                compare(feature, &format!("{place}/{index}"), direct, through, found);
            }
        }
        (direct, through) if direct == through => {}
        (direct, through) => found.push(Difference {
            feature: feature.to_owned(),
            place: place.to_owned(),
            direct: direct.clone(),
            through: through.clone(),
        }),
    }
}

/// Returns the value without ids and times that any two runs choose differently.
fn normal(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| {
                let is_chosen = matches!(key.as_str(), "taskId" | "createdAt" | "lastUpdatedAt" | "progressToken")
                    || key == "io.modelcontextprotocol/subscriptionId";
                (key.clone(), if is_chosen { json!("chosen") } else { normal(value) })
            };
            Value::Object(members.iter().filter(|(_, value)| !value.is_null()).map(member).collect())
        }
        Value::Array(values) => values.iter().map(normal).collect(),
        // A number has many spellings.
        Value::Number(number) => number.as_f64().map_or(value.clone(), |number| json!(number)),
        // An SDK may quote a response with its id.
        Value::String(text) => match text.split_once("\"id\":") {
            Some((head, tail)) => {
                json!(format!("{head}\"id\":{}", tail.trim_start_matches(|digit: char| digit.is_ascii_digit())))
            }
            None => value.clone(),
        },
        value => value.clone(),
    }
}

/// Returns the index of the row that explains a difference.
fn explanation(pair: &Pair, difference: &Difference) -> Option<usize> {
    DIFFERENCES.iter().position(|row| row.explains(difference) && !(row.feature == OF_SHARING && pair.is_per_client))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_difference_to_a_direct_connection_has_a_row() {
    let only = std::env::var("GOBLIN_PAIR").ok().and_then(|number| number.parse::<usize>().ok());
    let mut playing = JoinSet::new();
    let mut results = Vec::new();
    for (_, pair) in PAIRS.into_iter().enumerate().filter(|(number, _)| only.is_none_or(|only| only == *number)) {
        if playing.len() == AT_ONCE / 2 {
            results.push(playing.join_next().await.expect("one plays").expect("no panic"));
        }
        playing.spawn(async move {
            let (direct, through) = tokio::join!(pair.play_directly(), pair.play_through());
            (pair, direct.differences(&through))
        });
    }
    results.extend(playing.join_all().await);
    let mut problems = Vec::new();
    let mut occurs = vec![false; DIFFERENCES.len()];
    for (pair, differences) in results {
        for difference in differences {
            match explanation(&pair, &difference) {
                Some(index) => occurs[index] = true,
                None => {
                    let Difference { feature, place, direct, through } = &difference;
                    let sides = format!("\n  direct  {direct}\n  through {through}");
                    problems.push(format!("{feature} | {place} ({}){sides}", pair.name()));
                }
            }
        }
    }
    let missing = DIFFERENCES.iter().zip(&occurs).filter(|(_, occurs)| !**occurs && only.is_none());
    problems.extend(missing.map(|(row, _)| format!("this difference no longer occurs: {row:?}")));
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}
