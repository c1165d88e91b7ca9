//! The types of the admin API. The gateway serializes them, `goblin status` and `goblin top` read them, and the OpenAPI
//! document is generated from them.
//!
//! A reader ignores unknown members and uses defaults for missing ones, so either side may be newer. Session ids never
//! appear in full. Texts of servers are cleaned before they are stored here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// `GET /api/status`: everything at a glance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// When it was started, as ISO 8601.
    pub started: String,
    pub uptime_seconds: u64,
    pub pid: u32,
    /// `starting`, `ready` or `stopping`.
    pub state: String,
    pub configuration: ConfigurationStatus,
    pub servers: Vec<ServerStatus>,
    pub sessions: SessionCounts,
    pub catalog: CatalogStatus,
    pub subscriptions: usize,
    pub process: ProcessStatus,
    /// The metrics by the names of the JSON status.
    pub metrics: Metrics,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationStatus {
    /// The file, or in words what is served without one.
    pub source: String,
    /// When the configuration that is in force was read.
    pub loaded: String,
    /// How often it was read anew since the start.
    pub reloads: u64,
    /// Why the file, as it is now, is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One server. `GET /api/servers` lists them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerStatus {
    pub id: String,
    /// `ready`, `starting`, `failed` or `disabled`.
    pub state: String,
    /// Why it has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `stdio`, `http`, `sse` or `files`, while it is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// The protocol version that it speaks with us.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// `legacy`, `modern` or `both`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub era: Option<String>,
    /// What it calls itself, with its version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub software: String,
    /// `shared` or `per-client`.
    pub session: String,
    /// Calls that it has not answered yet.
    pub in_flight: usize,
    /// Clients with a connection of their own, where each has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_links: Option<usize>,
    pub restarts: u64,
    pub subscriptions: usize,
    pub entries: Entries,
    pub calls: Calls,
    pub latency: Latency,
    /// What it does not offer though it should: lists that failed and tools that were left out, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<String>,
}

/// How many entries of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Entries {
    pub tools: usize,
    pub prompts: usize,
    pub resources: usize,
    pub templates: usize,
}

/// Requests of clients, by how they ended. A tool's own failure (`isError`) is an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Calls {
    pub ok: u64,
    pub error: u64,
    pub timeout: u64,
    pub cancelled: u64,
    pub unavailable: u64,
    pub overloaded: u64,
    pub protocol: u64,
}

impl Calls {
    pub fn total(&self) -> u64 {
        let Calls { ok, error, timeout, cancelled, unavailable, overloaded, protocol } = *self;
        ok + error + timeout + cancelled + unavailable + overloaded + protocol
    }

    /// Returns the number of calls that neither succeeded nor were cancelled.
    pub fn failed(&self) -> u64 {
        self.total() - self.ok - self.cancelled
    }
}

/// From sending a request to its answer. Quantiles are estimated from the buckets of the histogram, so they are as exact as
/// those; absent while there was no answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Latency {
    pub count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ms: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionCounts {
    pub total: usize,
    pub streams: usize,
    pub in_flight: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CatalogStatus {
    /// Another number means another catalog.
    pub version: u64,
    #[serde(flatten)]
    pub entries: Entries,
    pub conflicts: Vec<Conflict>,
}

/// A name that several entries wanted; each got another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Conflict {
    /// `tool` or `prompt`.
    pub kind: String,
    pub name: String,
    pub exposed: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_descriptors: Option<u64>,
}

/// D7: the metrics in the spelling of the JSON status; `/metrics` has the same and more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    pub mcp_resource_reads_total: Vec<ReadCount>,
    pub mcp_resource_subscriptions_active: usize,
    pub mcp_requests_total: Vec<RequestCount>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadCount {
    pub server_id: String,
    pub mime_type: String,
    /// `success` or `failure`.
    pub status: String,
    pub value: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestCount {
    pub server_id: String,
    pub method: String,
    pub outcome: String,
    pub value: u64,
}

/// `GET /api/servers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerList {
    pub servers: Vec<ServerStatus>,
}

/// `GET /api/tools`, `/api/prompts`, `/api/resources` and `/api/templates`: what clients without a profile are offered.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EntryList {
    /// Of the catalog; it is the same as in the status as long as nothing changed.
    pub version: u64,
    pub entries: Vec<Entry>,
}

/// A tool, a prompt, a resource or a template.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub server: String,
    /// As clients know it: its name, its URI, or its template.
    pub exposed: String,
    /// As its server knows it.
    pub native: String,
    /// What clients get when they list it, token for token.
    #[schemars(with = "serde_json::Value")]
    pub definition: Box<RawValue>,
}

/// `GET /api/sessions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionList {
    pub total: usize,
    /// How many are not listed.
    pub omitted: usize,
    /// Those seen last come first.
    pub sessions: Vec<SessionInfo>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionInfo {
    /// The end of its id.
    pub id: String,
    /// What the client calls itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_version: String,
    pub protocol: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    pub started: String,
    pub idle_seconds: u64,
    pub streams: usize,
    pub in_flight: usize,
    pub subscriptions: usize,
}

/// `GET /api/events`, one per server-sent event, whose id is `seq`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EventInfo {
    pub seq: u64,
    /// As ISO 8601.
    pub time: String,
    /// `error`, `warn`, `info` or `debug`.
    pub level: String,
    /// Which kind of happening, as in `goblin_events_total`.
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub message: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// What an event called `missed` says: so many before the next one came and went unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Missed {
    pub missed: u64,
}

/// `GET /readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ready {
    pub ready: bool,
    pub servers: ServerCounts,
}

/// How many servers stand how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerCounts {
    pub total: usize,
    pub ready: usize,
    pub starting: usize,
    pub failed: usize,
}

/// What `POST /api/reload` did: servers by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Reloaded {
    pub started: Vec<String>,
    pub changed: Vec<String>,
    pub stopped: Vec<String>,
    pub unchanged: usize,
}

/// What a refused request gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Refused {
    pub error: Trouble,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Trouble {
    pub message: String,
}

/// The subscriptions asked for, oldest first. A reader passes over members that it does not know, and has defaults for those
/// that it misses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionList {
    pub total: usize,
    /// How many are not listed, being newer than [`MOST_LISTED`] others.
    pub omitted: usize,
    pub servers: BTreeMap<String, usize>,
    /// By how many each has, most first.
    pub clients: Vec<ClientCount>,
    pub subscriptions: Vec<SubscriptionInfo>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientCount {
    #[serde(flatten)]
    pub client: ClientInfo,
    pub count: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientInfo {
    /// The end of its session's id.
    pub id: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: Box<str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub version: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionInfo {
    pub id: String,
    pub client: ClientInfo,
    pub server: String,
    /// As clients know it.
    pub uri: String,
    pub created: String,
    pub options: Options,
    pub state: Cow<'static, str>,
    pub delivered: u32,
    pub coalesced: u32,
}

/// What was asked for beyond the protocol. Each is named as in `_meta`, without the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_interval_ms: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_ms: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i8>,
}
