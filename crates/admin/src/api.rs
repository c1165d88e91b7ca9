//! The types of the admin API. The gateway serializes them, `goblin status` and `goblin top` read them, and the OpenAPI
//! document describes them.
//!
//! A reader ignores unknown members and uses defaults for missing ones, so either side may be newer. Session ids never
//! appear in full. Texts of servers are cleaned before they are stored here.

use std::borrow::Cow;
use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The response of `GET /api/status`: the state of the gateway and its servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The version of the program.
    pub version: String,
    /// The start time of the gateway, as ISO 8601.
    pub started: String,
    pub uptime_seconds: u64,
    pub pid: u32,
    /// The state of the gateway: `starting`, `ready` or `stopping`.
    pub state: String,
    pub configuration: ConfigurationStatus,
    pub servers: Vec<ServerStatus>,
    pub sessions: SessionCounts,
    pub catalog: CatalogStatus,
    pub subscriptions: usize,
    pub process: ProcessStatus,
    /// The counters of `/metrics`, under the names of the JSON status.
    pub metrics: Metrics,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationStatus {
    /// The configuration file, or a description of the built-in configuration.
    pub source: String,
    /// The time when the configuration in force was read.
    pub loaded: String,
    /// The number of reloads since the start.
    pub reloads: u64,
    /// The reason why the current file is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One server, as in the response of `GET /api/servers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ServerStatus {
    pub id: String,
    /// The state of the server: `ready`, `starting`, `failed` or `disabled`.
    pub state: String,
    /// The reason of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The transport: `stdio`, `http`, `sse` or `files`. Absent if the server is not connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// The protocol version between the gateway and the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The protocol era: `legacy`, `modern` or `both`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub era: Option<String>,
    /// The name and version that the server reports.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub software: String,
    /// The sharing of the connection: `shared` or `per-client`.
    pub session: String,
    /// The number of unanswered calls.
    pub in_flight: usize,
    /// The number of clients with their own connection. Only for `per-client`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_links: Option<usize>,
    pub restarts: u64,
    pub subscriptions: usize,
    pub entries: Entries,
    pub calls: Calls,
    pub latency: Latency,
    /// Descriptions of lists that failed and of tools that were left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacking: Vec<String>,
}

/// The number of entries of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Entries {
    pub tools: usize,
    pub prompts: usize,
    pub resources: usize,
    pub templates: usize,
}

impl From<[usize; 4]> for Entries {
    /// Takes the numbers in the order of [`List::ALL`](goblin_catalog::listing::List::ALL).
    fn from([tools, prompts, resources, templates]: [usize; 4]) -> Entries {
        Entries { tools, prompts, resources, templates }
    }
}

/// The number of client requests by outcome. A tool result with `isError` counts as an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
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

/// The time from sending a request to its answer. Quantiles are estimated from the buckets of the histogram. The times
/// are absent until the first answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SessionCounts {
    pub total: usize,
    pub streams: usize,
    pub in_flight: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CatalogStatus {
    /// A number that changes when the catalog changes.
    pub version: u64,
    #[serde(flatten)]
    pub entries: Entries,
    pub conflicts: Vec<Conflict>,
}

/// A name that several entries have. Each entry is exposed under another name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Conflict {
    /// The kind of the entries: `tool` or `prompt`.
    pub kind: String,
    pub name: String,
    pub exposed: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resident_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_descriptors: Option<u64>,
}

/// The metrics under the names of the JSON status. `/metrics` has these and more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Metrics {
    pub mcp_resource_reads_total: Vec<ReadCount>,
    pub mcp_resource_subscriptions_active: usize,
    pub mcp_requests_total: Vec<RequestCount>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ReadCount {
    pub server_id: String,
    pub mime_type: String,
    /// The outcome: `success` or `failure`.
    pub status: String,
    pub value: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct RequestCount {
    pub server_id: String,
    pub method: String,
    pub outcome: String,
    pub value: u64,
}

/// The response of `GET /api/servers`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ServerList {
    pub servers: Vec<ServerStatus>,
}

/// The response of `GET /api/tools`, `/api/prompts`, `/api/resources` and `/api/templates`: the entries for clients
/// without a profile.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EntryList {
    /// The version of the catalog, as in the status.
    pub version: u64,
    pub entries: Vec<Entry>,
}

/// A tool, a prompt, a resource or a template.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub server: String,
    /// The name, URI or template that clients use.
    pub exposed: String,
    /// The name, URI or template that the server uses.
    pub native: String,
    /// The definition in the lists of clients, token for token.
    #[cfg_attr(test, schemars(with = "serde_json::Value"))]
    pub definition: Box<RawValue>,
}

/// The response of `GET /api/sessions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SessionList {
    pub total: usize,
    /// The number of sessions that are not listed.
    pub omitted: usize,
    /// The sessions, most recently active first.
    pub sessions: Vec<SessionInfo>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SessionInfo {
    /// The end of the session id.
    pub id: String,
    /// The name that the client reports.
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

/// One event of `GET /api/events`. The id of the server-sent event is `seq`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EventInfo {
    pub seq: u64,
    /// The time of the event, as ISO 8601.
    pub time: String,
    /// The level: `error`, `warn`, `info` or `debug`.
    pub level: String,
    /// The kind of the event, as in `goblin_events_total`.
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub message: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
}

/// The data of a `missed` event: the number of events that the reader lost before the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Missed {
    pub missed: u64,
}

/// The response of `GET /readyz`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Ready {
    pub ready: bool,
    pub servers: ServerCounts,
}

/// The number of servers in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ServerCounts {
    pub total: usize,
    pub ready: usize,
    pub starting: usize,
    pub failed: usize,
}

/// The response of `POST /api/reload`: the ids of servers that the reload affected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Reloaded {
    pub started: Vec<String>,
    pub changed: Vec<String>,
    pub stopped: Vec<String>,
    pub unchanged: usize,
}

/// The response to a rejected request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorResponse {
    pub error: ErrorBody,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ErrorBody {
    pub message: String,
}

/// A list of subscriptions, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionList {
    pub total: usize,
    /// The number of subscriptions that are not listed. Only the 10,000 oldest are listed.
    pub omitted: usize,
    pub servers: BTreeMap<String, usize>,
    /// The clients by number of subscriptions, largest first.
    pub clients: Vec<ClientCount>,
    pub subscriptions: Vec<SubscriptionInfo>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClientCount {
    #[serde(flatten)]
    pub client: ClientInfo,
    pub count: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct ClientInfo {
    /// The end of the session id.
    pub id: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: Box<str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub version: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SubscriptionInfo {
    pub id: String,
    pub client: ClientInfo,
    pub server: String,
    /// The URI that clients use.
    pub uri: String,
    pub created: String,
    pub options: Options,
    pub state: Cow<'static, str>,
    pub delivered: u32,
    pub coalesced: u32,
}

/// The options of the subscription beyond the protocol. The names are those in `_meta`, without the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
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
