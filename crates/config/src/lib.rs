//! Reads the operator's configuration file into checked types.
//!
//! `document` turns the text into a tree with positions. `read`, `server`, `transport`, `rules` and `views` read that
//! tree member by member. The result is either a [`Config`] or the complete list of problems.
//!
//! Nothing here starts, opens or watches anything. `diff` computes what a new configuration changes, and the
//! application carries it out. The caller passes in the environment. The only I/O is reading the file itself and the
//! files that `${file:/path}` names. The caller also passes in the lookup for `${secret:NAME}`.
//!
//! Invariant: a value of these types has been checked. Programs are not empty, URLs parse, header values can be sent,
//! and durations can be added to an instant. Values that may be secret are [`Secret`] and never reach logs.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::admin::AdminSettings;
use crate::expand::ExpandedText;
use crate::exposure::{Exposure, MetaTools, Profile, ProfileName};
use crate::file::{ConfigOrigin, ConfigSearch, LoadError};
use crate::glob::Glob;
use crate::inherit::Inherit;
use crate::misconfigured::Misconfiguration;
use crate::problem::{Problem, Problems};
use crate::secret::Secret;
use crate::uri_filter::UriFilter;

pub mod admin;
pub mod bounded;
pub mod consent;
pub mod diff;
pub mod edit;
pub mod exposure;
pub mod file;
pub mod glob;
#[cfg(feature = "import")]
pub mod import;
pub mod inherit;
pub mod lead;
pub mod lists;
pub mod mask;
pub mod misconfigured;
pub mod oauth;
pub mod pin;
pub mod problem;
pub mod roots;
pub mod schema;
pub mod secret;
pub mod target;
pub mod tree;
pub mod trust;
pub mod uri_filter;
pub mod visible;

mod command_line;
mod document;
pub mod expand;
mod field;
mod network;
pub mod quantity;
mod read;
mod rules;
mod server;
mod sharing;
mod transport;
mod views;
mod vocabulary;
mod word_list;

#[cfg(test)]
mod tests;

/// A function that looks up a variable. The caller passes it in, so tests and `check` can supply their own environment.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Parses a configuration. Returns every problem of the text, not only the first.
pub fn parse(text: &str, origin: &ConfigOrigin, environment: Environment<'_>) -> Result<LoadedConfig, Problems> {
    read::read(text, origin, environment)
}

/// Reads and parses a configuration file.
pub fn load(path: &Path, environment: Environment<'_>) -> Result<LoadedConfig, LoadError> {
    let (text, origin) = file::read(path)?;
    Ok(parse(&text, &origin, environment)?)
}

/// Finds the configuration file: `flag`, then `GOBLIN_CONFIG`, then the user's configuration directory. Never searches
/// the working directory, because the file names commands to run and must be chosen on purpose.
pub fn locate(flag: Option<&Path>, environment: Environment<'_>) -> ConfigSearch {
    file::locate(flag, environment)
}

/// A valid configuration, with warnings for the operator.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedConfig {
    pub config: Config,
    pub warnings: Vec<Problem>,
}

/// The whole configuration. The default has no servers, and start-up diffs the file against it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    pub gateway: Gateway,
    pub policies: Policies,
    pub log: Log,
    pub admin: AdminSettings,
    pub telemetry: Telemetry,
    pub exposure: Exposure,
    pub meta_tools: MetaTools,
    /// The namespacing of servers without an own one.
    pub namespacing: Namespacing,
    pub profiles: BTreeMap<ProfileName, Arc<Profile>>,
    /// The servers in the order of the file, including disabled ones.
    pub servers: IndexMap<ServerId, Arc<Server>>,
}

/// Settings of the endpoint that clients connect to.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// An IP address (without brackets) or a host name. An address other than loopback requires `token`.
    pub host: String,
    /// The TCP port. 0 takes any free port.
    pub port: u16,
    /// Whether the gateway listens on `host` and `port`. If `false`, `socket` is set.
    pub tcp: bool,
    /// The path of the Unix socket that the gateway listens on.
    pub socket: Option<PathBuf>,
    /// Additional allowed values of the `Host` header, as `host` or `host:port`, in lower case.
    pub allowed_hosts: Vec<String>,
    /// The allowed values of the `Origin` header, as `scheme://host[:port]`, in lower case.
    pub allowed_origins: Vec<String>,
    pub max_sessions: usize,
    pub session_idle_timeout: Duration,
    pub max_body_size: usize,
    /// The limit for all buffers together. `None` derives it from the memory of the machine.
    pub max_memory: Option<usize>,
    /// The longest time after the start in which lists wait for servers, and the gateway counts as starting.
    pub start_wait: Duration,
    /// Whether the listings of servers are kept in files, for the first lists after the next start.
    pub listing_cache: bool,
    /// The time that open calls have to finish at shutdown.
    pub grace: Duration,
    /// The token that clients must send.
    pub token: Option<Secret>,
}

impl Default for Gateway {
    fn default() -> Gateway {
        Gateway {
            host: "127.0.0.1".to_owned(),
            port: 3000,
            tcp: true,
            socket: None,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_sessions: 10_000,
            session_idle_timeout: Duration::from_secs(30 * 60),
            max_body_size: 4 << 20,
            max_memory: None,
            start_wait: Duration::from_secs(5),
            listing_cache: true,
            grace: Duration::from_secs(10),
            token: None,
        }
    }
}

impl Gateway {
    /// Reports whether only programs on this machine can connect.
    pub fn is_loopback(&self) -> bool {
        network::is_loopback(&self.host)
    }

    /// Reports whether only this machine uses the gateway. Behind a reverse proxy it has an allowed host.
    pub fn is_local(&self) -> bool {
        (!self.tcp || self.is_loopback()) && self.allowed_hosts.is_empty()
    }
}

/// Limits that apply to every server unless the server overrides them.
#[derive(Clone, Debug, PartialEq)]
pub struct Policies {
    /// The longest time a call may go without a message. `None` means no limit.
    pub default_timeout: Option<Duration>,
    /// The longest total duration of a call, regardless of progress. `None` means no limit.
    pub max_timeout: Option<Duration>,
    /// The longest time a client may take to answer a request from a server. `None` means no limit.
    pub ask_timeout: Option<Duration>,
    /// The time limit for a server's handshake, and for each page of its lists.
    pub start_timeout: Duration,
    /// The number of open calls of one client.
    pub max_in_flight: usize,
    /// The number of open calls to one server.
    pub max_in_flight_per_backend: usize,
    /// The largest message of a server, and of a client on stdio.
    pub max_message_size: usize,
    /// The number of entries on one page of a list.
    pub page_size: usize,
    pub subscriptions: SubscriptionLimits,
}

/// Limits on the number of subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionLimits {
    pub per_client: usize,
    pub total: usize,
    /// The number of resources that patterns and forwarded URIs may subscribe to on one server.
    pub upstream: usize,
}

impl Default for SubscriptionLimits {
    fn default() -> SubscriptionLimits {
        SubscriptionLimits { per_client: 1000, total: 1_000_000, upstream: 10_000 }
    }
}

impl Default for Policies {
    fn default() -> Policies {
        Policies {
            default_timeout: Some(Duration::from_secs(60)),
            max_timeout: Some(Duration::from_secs(60 * 60)),
            ask_timeout: Some(Duration::from_secs(5 * 60)),
            start_timeout: Duration::from_secs(60),
            max_in_flight: 64,
            max_in_flight_per_backend: 1024,
            max_message_size: 16 << 20,
            page_size: 1000,
            subscriptions: SubscriptionLimits::default(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// The level, or `None` if the command chooses it.
    pub level: Option<LogLevel>,
    pub format: LogFormat,
    /// Whether the log has one line for each finished call, at any level.
    pub audit: bool,
}

/// The destination of traces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Telemetry {
    /// The URL of a collector that accepts OTLP over HTTP.
    pub otlp: Option<String>,
}

/// The severity of a log line, most severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text, with colours on a terminal.
    #[default]
    Auto,
    Text,
    Json,
}

impl LogFormat {
    /// Every format with its name in the file and on the command line.
    pub const ALL: [(&str, LogFormat); 3] =
        [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)];
}

/// The rules for exposed names of one server: the server's own settings merged over the global ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Namespacing {
    pub tools: NamePolicy,
    pub prompts: NamePolicy,
    pub resources: UriPolicy,
    pub separator: String,
    pub max_length: usize,
    /// Whether a name does not repeat a prefix that the native name already has.
    pub shorten: bool,
}

impl Default for Namespacing {
    fn default() -> Namespacing {
        Namespacing {
            tools: NamePolicy::Prefix,
            prompts: NamePolicy::Prefix,
            resources: UriPolicy::Uri,
            separator: "_".to_owned(),
            max_length: 48,
            shorten: true,
        }
    }
}

/// The form of exposed names of tools and prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamePolicy {
    /// The native name with the server's prefix, such as `files_read`.
    Prefix,
    /// The native name.
    None,
}

/// The form of exposed URIs of resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriPolicy {
    /// The native URI with the server's id in the scheme, such as `files+file:///a`.
    Uri,
    /// A plain name made from the URI, such as `files_file_a`.
    Identifier,
    /// The native URI.
    None,
}

/// A server's key in the file: 1 to 64 characters, none of them a control character.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(Arc<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerIdError {
    #[error("a server id must not be empty")]
    Empty,
    #[error("a server id has at most {} characters", ServerId::MAX_LENGTH)]
    TooLong,
    #[error("a server id must not contain control characters")]
    Control,
}

impl ServerId {
    pub(crate) const MAX_LENGTH: usize = 64;

    pub fn new(text: &str) -> Result<ServerId, ServerIdError> {
        if text.is_empty() {
            return Err(ServerIdError::Empty);
        }
        if text.chars().count() > ServerId::MAX_LENGTH {
            return Err(ServerIdError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(ServerIdError::Control);
        }
        Ok(ServerId(Arc::from(text)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the id in the form used in the scheme of exposed URIs (D1). No two servers of a configuration share a
    /// form.
    pub fn folded(&self) -> String {
        let mut folded = String::with_capacity(self.0.len() + 2);
        let mut replaced = false;
        for character in self.0.chars().map(|character| character.to_ascii_lowercase()) {
            let kept = matches!(character, 'a'..='z' | '0'..='9' | '.' | '-');
            if kept {
                folded.push(character);
            } else if !replaced {
                folded.push('-');
            }
            replaced = !kept;
        }
        if !folded.starts_with(|first: char| first.is_ascii_lowercase()) {
            folded.insert_str(0, "x-");
        }
        folded
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Borrow<str> for ServerId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    pub transport: Transport,
    pub protocol: Protocol,
    pub session: Sharing,
    pub declare: Declare,
    /// The roots that the shared connection reports. Empty if each client has its own connection.
    pub roots: Vec<Root>,
    /// The number of clients that may have their own connection at once.
    pub max_clients: usize,
    pub enabled: bool,
    /// The prefix of exposed names. Defaults to the id, and may be empty.
    pub prefix: String,
    pub namespacing: Namespacing,
    /// The longest silence of a call. `None` uses the policy.
    pub timeout: Option<Timeout>,
    /// The interval at which subscribed resources are polled for changes.
    pub poll: Option<Duration>,
    /// When lists are fetched again.
    pub refresh: lists::Refresh,
    /// The treatment of URIs that the server does not offer.
    pub unlisted: lists::Unlisted,
    /// Whether arguments of tools are checked against their input schema.
    pub validate: bool,
    pub tools: ToolRules,
    pub prompts: Rules,
    pub resources: ResourceRules,
}

impl Server {
    /// Returns a server with defaults for all other members.
    pub fn new(prefix: &str, transport: Transport, namespacing: Namespacing) -> Server {
        Server {
            transport,
            protocol: Protocol::default(),
            session: Sharing::default(),
            declare: Declare::default(),
            roots: Vec::new(),
            max_clients: sharing::MAX_CLIENTS,
            enabled: true,
            prefix: prefix.to_owned(),
            namespacing,
            timeout: None,
            poll: None,
            refresh: lists::Refresh::Auto,
            unlisted: lists::Unlisted::default(),
            validate: false,
            tools: ToolRules::default(),
            prompts: Rules::default(),
            resources: ResourceRules::default(),
        }
    }

    /// Returns the longest silence of a call to this tool: the tool's own, else the server's, else the policy's.
    pub fn timeout_of(&self, tool: &str, policies: &Policies) -> Option<Duration> {
        match self.tools.timeouts.get(tool).copied().or(self.timeout) {
            Some(timeout) => timeout.duration(),
            None => policies.default_timeout,
        }
    }
}

/// The way the gateway reaches a server.
#[derive(Clone, Debug, PartialEq)]
pub enum Transport {
    Stdio {
        command: ExpandedText,
        args: Vec<ExpandedText>,
        env: BTreeMap<String, Secret>,
        inherit: Inherit,
        cwd: PathBuf,
    },
    Http {
        kind: HttpKind,
        url: ExpandedText,
        headers: Vec<(String, Secret)>,
        ca: Option<PathBuf>,
        /// How to log in. `None` if the gateway must not.
        oauth: Option<oauth::OAuthOptions>,
    },
    Files(Files),
    /// The entry needs a variable or a file that is missing, so the server cannot run.
    Misconfigured(Misconfiguration),
}

/// The HTTP transport that a server's URL uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpKind {
    Streamable,
    /// HTTP+SSE, the transport of protocol version 2024-11-05.
    Sse,
    /// The file names no transport. The gateway uses Streamable HTTP unless the server turns out to use HTTP+SSE.
    Unspecified,
}

/// A directory that the gateway itself serves.
#[derive(Clone, Debug, PartialEq)]
pub struct Files {
    pub root: PathBuf,
    /// The root for operators. It is the complete path, unless the file has references.
    pub root_text: ExpandedText,
    /// Whether names that begin with a dot are served.
    pub hidden: bool,
    /// Whether files that `.gitignore` excludes are served.
    pub ignored: bool,
    /// The number of files listed as resources. The template and the tools reach every file.
    pub max_files: usize,
}

impl Files {
    pub fn at(root: PathBuf) -> Files {
        let root_text = ExpandedText::from(&*root.display().to_string());
        Files { root, root_text, hidden: false, ignored: false, max_files: 10_000 }
    }
}

/// The protocol versions that the gateway uses with a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Any version that the server supports, also written `match-client`. If it supports both kinds, the gateway uses the client's kind.
    #[default]
    Auto,
    /// Versions with a handshake.
    Legacy,
    /// Versions without a handshake.
    Modern,
}

/// The way clients share connections to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All clients share one connection.
    #[default]
    Shared,
    /// Each client has its own connection: its own process, or its own session over HTTP.
    PerClient,
}

/// The requests that a server may send to clients. A shared connection declares these capabilities. A connection of
/// [`Sharing::PerClient`] declares those of them that its client supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declare {
    pub sampling: bool,
    pub elicitation: bool,
}

impl Default for Declare {
    fn default() -> Declare {
        Declare { sampling: true, elicitation: true }
    }
}

/// A directory that the gateway reports to a server in a `roots/list` response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// A `file://` URI with an absolute path, percent-encoded.
    pub uri: String,
    pub name: Option<String>,
}

/// A timeout from the file. `0` in the file is `Never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    Never,
    After(Duration),
}

impl Timeout {
    pub fn duration(self) -> Option<Duration> {
        match self {
            Timeout::Never => None,
            Timeout::After(duration) => Some(duration),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolRules {
    pub filter: Filter,
    /// Maps a native name to the complete exposed name.
    pub rename: BTreeMap<String, String>,
    /// Timeouts by native name.
    pub timeouts: BTreeMap<String, Timeout>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    pub filter: Filter,
    /// Maps a native name to the complete exposed name.
    pub rename: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceRules {
    pub filter: UriFilter,
    /// Maps a native URI to the complete exposed URI.
    pub rename: BTreeMap<String, String>,
}

/// Selects the names that are offered. Servers filter native names, profiles filter exposed names. An empty `allow`
/// offers none. [`UriFilter`] filters URIs.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    pub allow: Vec<Glob>,
    pub deny: Vec<Glob>,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter { allow: vec![Glob::any()], deny: Vec::new() }
    }
}

impl Filter {
    /// Reports whether the filter admits the name. `deny` takes precedence over `allow`.
    pub fn admits(&self, name: &str) -> bool {
        let hit = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(name));
        !hit(&self.deny) && hit(&self.allow)
    }
}
