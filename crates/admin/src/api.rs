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
    /// The state of the gateway: `starting`, `ready`, `degraded` or `stopping`.
    pub state: String,
    /// The state with its counts, such as `starting 3/16`, `ready` or `degraded: 2 failed`.
    pub summary: String,
    pub server_counts: ServerCounts,
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
    /// The state of the server: `ready`, `starting`, `failed`, `login_needed`, `misconfigured` or
    /// `disabled`.
    pub state: String,
    /// The reason of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether the entries come from an earlier connection or from the cache.
    pub stale: bool,
    /// The command line of a child process, with masked secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The URL of a remote server, with masked secrets, or the directory of a `files` server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The id of the child process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The instructions of the server for agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// The last failure, also if the server has recovered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
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

/// A failure of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LastError {
    /// The time of the failure, as ISO 8601.
    pub time: String,
    pub message: String,
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
    /// The identifier of a resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The definition in the lists of clients, token for token.
    #[cfg_attr(test, schemars(with = "serde_json::Value"))]
    pub definition: Box<RawValue>,
}

/// The response of `GET /api/sessions`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SessionList {
    /// The number of sessions, as in the status.
    pub total: usize,
    /// The number of sessions that are not listed.
    pub omitted: usize,
    /// The number of listed clients without a session. `total` does not include them.
    pub stateless: usize,
    /// The sessions and the clients without one, most recently active first.
    pub sessions: Vec<SessionInfo>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct SessionInfo {
    /// The end of the session id. Empty for clients without a session.
    pub id: String,
    /// Whether the client sends requests without a session. All such clients with the same name and version are one
    /// entry.
    pub stateless: bool,
    /// The number of requests so far.
    pub requests: u64,
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

/// The response of `GET /api/logs`: the recent events, oldest first. With a server, these are the events of that server
/// with the lines that it wrote to stderr.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct LogList {
    /// The start time of the gateway. Sequence numbers begin again after a restart.
    pub started: String,
    /// The sequence number of the newest event of any server. `after` continues from here.
    pub last: u64,
    /// An upper bound of the number of events after `after` that the gateway no longer has.
    #[serde(skip_serializing_if = "is_zero")]
    pub missed: u64,
    pub events: Vec<EventInfo>,
}

/// The response of `GET /api/calls`: the ended calls that the gateway remembers, newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CallList {
    /// The start time of the gateway. Sequence numbers begin again after a restart.
    pub started: String,
    /// The number of calls since the start, and the sequence number of the newest one. `after` continues from here.
    pub total: u64,
    /// The number of calls after `after` that the gateway no longer has.
    #[serde(skip_serializing_if = "is_zero")]
    pub missed: u64,
    pub calls: Vec<CallInfo>,
}

/// One ended call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CallInfo {
    /// The sequence number. It starts at 1 and has no gaps.
    pub seq: u64,
    /// The time when the call ended, as ISO 8601 with milliseconds.
    pub time: String,
    /// The name that the client reports.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client: String,
    /// The end of the session id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub method: String,
    /// The exposed name of the tool or prompt, or the exposed URI.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// The size of the request.
    pub request_bytes: u64,
    /// The size of the answer.
    pub response_bytes: u64,
    pub duration_ms: f64,
    /// The outcome: `ok`, `tool_error`, `error` or `cancelled`.
    pub outcome: String,
    /// The code of an error: the `data.code` of the gateway, otherwise the JSON-RPC number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The message of an error, or the beginning of the text of a tool error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
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
    /// The state of the gateway, as in the status.
    pub state: String,
    /// The state with its counts, as in the status.
    pub summary: String,
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
    /// The number of failed and misconfigured servers.
    pub failed: usize,
    /// The number of servers that need a login.
    pub login_needed: usize,
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
    /// The names of other settings that changed, as in the file.
    pub settings: Vec<String>,
}

impl Reloaded {
    /// Returns the changes in words, such as `2 servers changed (git, fetch), exposure changed; 14 unchanged`.
    pub fn summary(&self) -> String {
        let Reloaded { started, changed, stopped, unchanged, settings } = self;
        let servers = [(started, "started"), (changed, "changed"), (stopped, "stopped")].into_iter();
        let servers = servers.filter(|(ids, _)| !ids.is_empty()).map(|(ids, verb)| {
            let noun = if ids.len() == 1 { "server" } else { "servers" };
            format!("{} {noun} {verb} ({})", ids.len(), ids.join(", "))
        });
        let settings = settings.iter().map(|setting| format!("{setting} changed"));
        let parts: Vec<String> = servers.chain(settings).collect();
        match parts.is_empty() {
            true => format!("nothing changed; {unchanged} unchanged"),
            false => format!("{}; {unchanged} unchanged", parts.join(", ")),
        }
    }
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
