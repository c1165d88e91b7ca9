//! The configuration: what the operator's file says, as types that cannot be wrong.
//!
//! Text becomes a tree with positions (`document`), the tree is read member by member (`read`, `server`, `transport`,
//! `rules`, `views`), and what comes out is a [`Config`] or every problem at once. Nothing here starts, opens or watches anything:
//! `diff` says what to do about a new configuration and somebody else does it. The environment is passed in; the only
//! I/O is reading the file itself and the files that `${file:/path}` names.
//!
//! A value of these types has been checked: programs are not empty, URLs parse, header values can be sent, durations can
//! be added to an instant. Values that may be secret are [`Secret`] and never reach logs.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::admin::AdminSettings;
use crate::expand::Expanded;
use crate::exposure::{Exposure, MetaTools, Profile, ProfileName};
use crate::file::{LoadError, Located, Origin};
use crate::glob::Glob;
use crate::inherit::Inherit;
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
pub mod import;
pub mod inherit;
pub mod mask;
pub mod pin;
pub mod problem;
pub mod roots;
pub mod schema;
pub mod secret;
pub mod tree;
pub mod trust;
pub mod uri_filter;
pub mod visible;

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

#[cfg(test)]
mod tests;

/// Looks a variable up. Passed in, so that tests and `check` decide what the environment is.
pub type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads a configuration from text. All problems come at once.
pub fn parse(text: &str, origin: &Origin, environment: Environment<'_>) -> Result<Loaded, Problems> {
    read::read(text, origin, environment)
}

/// Reads a configuration file.
pub fn load(path: &Path, environment: Environment<'_>) -> Result<Loaded, LoadError> {
    let (text, origin) = file::read(path)?;
    Ok(parse(&text, &origin, environment)?)
}

/// Finds the configuration file: `flag`, then `GOBLIN_CONFIG`, then the user's configuration directory. The working
/// directory is never searched: a file that names commands to run must have been asked for.
pub fn locate(flag: Option<&Path>, environment: Environment<'_>) -> Located {
    file::locate(flag, environment)
}

/// A good configuration, and what the operator should know about it all the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    pub config: Config,
    pub warnings: Vec<Problem>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub gateway: Gateway,
    pub policies: Policies,
    pub log: Log,
    pub admin: AdminSettings,
    pub telemetry: Telemetry,
    pub exposure: Exposure,
    pub meta_tools: MetaTools,
    pub profiles: BTreeMap<ProfileName, Arc<Profile>>,
    /// In the order of the file, the disabled ones included.
    pub servers: IndexMap<ServerId, Arc<Server>>,
}

impl Config {
    /// All defaults and no servers: what start-up compares the file with.
    pub fn empty() -> Config {
        Config {
            gateway: Gateway::default(),
            policies: Policies::default(),
            log: Log::default(),
            admin: AdminSettings::default(),
            telemetry: Telemetry::default(),
            exposure: Exposure::default(),
            meta_tools: MetaTools::default(),
            profiles: BTreeMap::new(),
            servers: IndexMap::new(),
        }
    }

    /// What is served where there is no configuration: the files of one directory.
    pub fn of_directory(root: PathBuf) -> Config {
        let mut config = Config::empty();
        let id = ServerId::new("files").expect("it is short and plain");
        let server = Server::new("files", Transport::Files(Files::at(root)), Namespacing::default());
        config.servers.insert(id, Arc::new(server));
        config
    }
}

/// The side that clients see.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// An IP address (without brackets) or a host name. Not loopback only together with `token`.
    pub host: String,
    /// 0 takes any free port.
    pub port: u16,
    /// Whether the gateway listens on `host` and `port`. Without TCP there is a `socket`.
    pub tcp: bool,
    /// The path of the Unix socket that the gateway listens on.
    pub socket: Option<PathBuf>,
    /// `host` or `host:port`, lower case.
    pub allowed_hosts: Vec<String>,
    /// `scheme://host[:port]`, lower case.
    pub allowed_origins: Vec<String>,
    pub max_sessions: usize,
    pub session_idle_timeout: Duration,
    pub max_body_size: usize,
    /// The machine decides where there is none.
    pub max_memory: Option<usize>,
    pub grace: Duration,
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
            grace: Duration::from_secs(10),
            token: None,
        }
    }
}

impl Gateway {
    /// Whether only programs of this machine can reach it.
    pub fn is_loopback(&self) -> bool {
        network::is_loopback(&self.host)
    }
}

/// Limits that hold for every server unless it says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Policies {
    /// Longest silence of a call; `None` waits for ever.
    pub default_timeout: Option<Duration>,
    /// Longest life of a call, whatever its progress.
    pub max_timeout: Option<Duration>,
    /// How long a client may take to answer what a server asks of it; `None` waits for ever.
    pub ask_timeout: Option<Duration>,
    pub start_timeout: Duration,
    pub max_in_flight: usize,
    pub max_in_flight_per_backend: usize,
    pub max_message_size: usize,
    pub page_size: usize,
    pub subscriptions: SubscriptionLimits,
}

/// How many subscriptions there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionLimits {
    pub per_client: usize,
    pub total: usize,
    /// Resources that patterns may subscribe to at one server.
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
    /// Nothing where the configuration leaves it to the command.
    pub level: Option<LogLevel>,
    pub format: LogFormat,
    /// One line for each call that ended, whatever the level.
    pub audit: bool,
}

/// Where traces go.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Telemetry {
    /// The URL of a collector that speaks OTLP over HTTP.
    pub otlp: Option<String>,
}

/// How grave something is that is told, gravest first.
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
    /// With the words of the file and of the command line.
    pub const ALL: [(&str, LogFormat); 3] =
        [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)];
}

/// How exposed names are made, as it holds for one server: its own words over the global ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Namespacing {
    pub tools: NamePolicy,
    pub prompts: NamePolicy,
    pub resources: UriPolicy,
    pub separator: String,
    pub max_length: usize,
}

impl Default for Namespacing {
    fn default() -> Namespacing {
        Namespacing {
            tools: NamePolicy::Prefix,
            prompts: NamePolicy::Prefix,
            resources: UriPolicy::Uri,
            separator: "_".to_owned(),
            max_length: 48,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamePolicy {
    Prefix,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UriPolicy {
    Uri,
    Identifier,
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
    #[error("a server id must not hold control characters")]
    Control,
}

impl ServerId {
    pub const MAX_LENGTH: usize = 64;

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

    /// The id as the scheme of exposed URIs has it (D1). No two servers of a configuration share one.
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
    /// The directories that the shared connection names; empty when each client has its own.
    pub roots: Vec<Root>,
    /// How many clients may have their own connection at once.
    pub max_clients: usize,
    pub enabled: bool,
    /// Stands before exposed names; the id unless the file says otherwise; may be empty.
    pub prefix: String,
    pub namespacing: Namespacing,
    /// `None`: as in the policies.
    pub timeout: Option<Timeout>,
    /// How often subscribed resources are read.
    pub poll: Option<Duration>,
    pub validate: bool,
    pub tools: ToolRules,
    pub prompts: Rules,
    pub resources: ResourceRules,
}

impl Server {
    /// With defaults for all that is not said.
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
            validate: false,
            tools: ToolRules::default(),
            prompts: Rules::default(),
            resources: ResourceRules::default(),
        }
    }

    /// The longest silence of a call to this tool: the tool's own, else the server's, else the policy's.
    pub fn timeout_of(&self, tool: &str, policies: &Policies) -> Option<Duration> {
        match self.tools.timeouts.get(tool).copied().or(self.timeout) {
            Some(timeout) => timeout.duration(),
            None => policies.default_timeout,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Transport {
    Stdio { command: Expanded, args: Vec<Expanded>, env: BTreeMap<String, Secret>, inherit: Inherit, cwd: PathBuf },
    Http { kind: HttpKind, url: String, headers: Vec<(String, Secret)>, ca: Option<PathBuf> },
    Files(Files),
}

/// Which of the two transports over HTTP a URL speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpKind {
    Streamable,
    /// HTTP+SSE, the transport of 2024-11-05.
    Sse,
    /// The file does not say: Streamable HTTP, unless the server shows that it is HTTP+SSE.
    Unsaid,
}

/// A directory that the gateway serves by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Files {
    pub root: PathBuf,
    /// Names that begin with a dot are served too.
    pub hidden: bool,
    /// What `.gitignore` names is served too.
    pub ignored: bool,
    /// How many files are listed as resources; all are reached by the template and the tools.
    pub max_files: usize,
}

impl Files {
    pub fn at(root: PathBuf) -> Files {
        Files { root, hidden: false, ignored: false, max_files: 10_000 }
    }
}

/// Which versions of the protocol a server is spoken to in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// Whichever it knows; where it knows both kinds, that of the client.
    #[default]
    Auto,
    /// Those with a handshake.
    Legacy,
    /// Those without.
    Modern,
    /// The same as `Auto`, in so many words.
    MatchClient,
}

/// Who uses a connection to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All clients the same one.
    #[default]
    Shared,
    /// Each client its own: its own process, or its own session over HTTP.
    PerClient,
}

/// What a server may ask of clients. A shared connection declares these; with [`Sharing::PerClient`] the client's own
/// capabilities are declared, less what is not here.
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

/// A directory that a server is told of when it asks for roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// `file://` and an absolute path, percent-encoded.
    pub uri: String,
    pub name: Option<String>,
}

/// A timeout that was written down; `0` in the file is `Never`.
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
    /// Native name to the whole exposed name.
    pub rename: BTreeMap<String, String>,
    /// By native name.
    pub timeouts: BTreeMap<String, Timeout>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    pub filter: Filter,
    /// Native name to the whole exposed one.
    pub rename: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceRules {
    pub filter: UriFilter,
    /// Native URI to the whole exposed one.
    pub rename: BTreeMap<String, String>,
}

/// Which names are offered at all: of a server native ones, of a profile exposed ones. An empty `allow` offers none. URIs
/// are compared by [`UriFilter`].
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
    /// `deny` wins.
    pub fn admits(&self, name: &str) -> bool {
        let hit = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(name));
        !hit(&self.deny) && hit(&self.allow)
    }
}
