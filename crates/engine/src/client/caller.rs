//! Describes the client that sends a request. The router, the view, the policies and the choice of a link use it.
//!
//! The front builds one [`Caller`] per request. A caller may have no session, because protocol versions without a
//! handshake have none.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use goblin_catalog::Viewer;
use goblin_config::exposure::ProfileName;
use goblin_wire::Dialect;
use goblin_wire::extensions::{SUBSCRIPTIONS, declares};
use goblin_wire::json::{self, Span};
use goblin_wire::modern::TASKS;
use goblin_wire::params::Params;

#[derive(Clone, Debug)]
pub struct Caller {
    pub session: Option<SessionId>,
    pub principal: Principal,
    /// The client's view of the catalog. `None` means the whole catalog.
    pub profile: Option<ProfileName>,
    pub dialect: Dialect,
    /// The lowest level of log messages that the client receives. `None` means no log messages.
    pub level: Option<Level>,
    pub client_capabilities: Arc<ClientCapabilities>,
    /// Whether the client is another gateway. Its lists do not wait for the start of servers.
    pub is_gateway: bool,
    /// The name of the client program in lower case. `None` if it is unknown or no rule depends on it.
    pub program: Option<Arc<str>>,
}

impl Caller {
    /// Returns the properties that select the lists of the client.
    pub(crate) fn viewer(&self) -> Viewer<'_> {
        Viewer { dialect: self.dialect, program: self.program.as_deref() }
    }
}

/// The maximum stored length of a client's name or version, in characters.
const MAX_CLIENT_NAME: usize = 64;

/// The client's description of itself in its handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    pub client_capabilities: Arc<ClientCapabilities>,
    /// The client's name. Empty if the handshake has none. The same applies to the version.
    pub name: Arc<str>,
    pub version: Arc<str>,
    /// The name in lower case, which selects the client's lists.
    pub program: Option<Arc<str>>,
}

impl Introduction {
    /// Reads the params of `initialize`.
    pub fn read(text: &str, params: &Params) -> Introduction {
        let client_capabilities = Arc::new(ClientCapabilities::read(text, params.capabilities));
        let (name, version) = params.client_info.map(|info| described(text, info)).unwrap_or_default();
        let program = params.client_info.and_then(|info| program(text, info));
        Introduction { client_capabilities, name, version, program }
    }
}

/// Returns the name and the version in a client's description of itself. Both are empty if they are absent, and cut if
/// they are too long.
pub(crate) fn described(text: &str, client_info: Span) -> (Arc<str>, Arc<str>) {
    let field = |key| {
        let value = json::member(text, client_info, key).and_then(|at| json::string(text, at)).unwrap_or_default();
        value.chars().take(MAX_CLIENT_NAME).collect::<String>().into()
    };
    (field("name"), field("version"))
}

/// Returns the name in a client's description of itself, in lower case.
pub(crate) fn program(text: &str, client_info: Span) -> Option<Arc<str>> {
    let name = json::string(text, json::member(text, client_info, "name")?)?;
    let name: String = name.chars().take(MAX_CLIENT_NAME).flat_map(char::to_lowercase).collect();
    (!name.is_empty()).then(|| name.into())
}

/// The capabilities that a client declares. Servers may send the client only requests that these capabilities allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCapabilities {
    pub sampling: bool,
    pub sampling_tools: bool,
    pub elicitation_form: bool,
    pub elicitation_url: bool,
    pub roots: bool,
    /// Whether the client knows the gateway's subscription extension and can receive explicit notifications of
    /// deletions.
    pub subscriptions: bool,
    /// Whether the client accepts a task in place of a result, by the extension of versions without a handshake.
    pub tasks: bool,
    /// The capabilities as the client sent them. Empty if it declared none.
    pub raw: Box<str>,
}

impl ClientCapabilities {
    /// Reads the capabilities of a client that sends them with every request. Shares one value for `{}`, the most
    /// common case.
    pub fn read_shared(text: &str, capabilities: Option<Span>) -> Arc<ClientCapabilities> {
        static NONE: LazyLock<Arc<ClientCapabilities>> =
            LazyLock::new(|| Arc::new(ClientCapabilities::read("{}", Some(Span::new(0, 2)))));
        match capabilities {
            Some(span) if span.get(text) == "{}" => Arc::clone(&NONE),
            capabilities => Arc::new(ClientCapabilities::read(text, capabilities)),
        }
    }

    pub fn read(text: &str, capabilities: Option<Span>) -> ClientCapabilities {
        let object = |of: Span, key| json::member(text, of, key).filter(|value| value.get(text).starts_with('{'));
        let Some(capabilities) = capabilities.filter(|span| span.get(text).starts_with('{')) else {
            return ClientCapabilities::default();
        };
        let sampling = object(capabilities, "sampling");
        let elicitation = object(capabilities, "elicitation");
        let has = |of: Option<Span>, key| of.and_then(|of| object(of, key)).is_some();
        let elicitation_url = has(elicitation, "url");
        ClientCapabilities {
            sampling: sampling.is_some(),
            sampling_tools: has(sampling, "tools"),
            // An empty object means forms, the only mode of the first version.
            elicitation_form: has(elicitation, "form") || elicitation.is_some() && !elicitation_url,
            elicitation_url,
            roots: object(capabilities, "roots").is_some(),
            subscriptions: declares(text, capabilities, SUBSCRIPTIONS),
            tasks: has(object(capabilities, "extensions"), TASKS),
            raw: capabilities.get(text).into(),
        }
    }
}

/// The identity that a client acts for. There is only one, because clients are not authenticated individually yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    Anonymous,
}

/// A session id in the form of a version 8 UUID. 28 bits identify the gateway process, 94 are random.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(u128);

/// Identifies this run of the gateway in session ids.
#[derive(Clone, Copy, Debug)]
pub struct RunId(u32);

impl RunId {
    pub fn random() -> RunId {
        RunId(random_bits() as u32 & 0x0fff_ffff)
    }
}

/// Returns a random number for event ids. It separates those of one client from others, and from those before a
/// restart.
pub(crate) fn random_epoch() -> u32 {
    random_bits() as u32 & 0x0fff_ffff
}

impl SessionId {
    pub fn new(node: RunId) -> SessionId {
        let node = u128::from(node.0) << 100;
        let random = random_bits() & ((1 << 100) - 1);
        let version = !(0xf << 76) & random | 0x8 << 76;
        let variant = !(0b11 << 62) & version | 0b10 << 62;
        SessionId(node | variant)
    }

    /// Returns the end of the id. It distinguishes sessions in a log but is too short to use one.
    pub fn short(self) -> String {
        format!("{:08x}", (self.0 & 0xffff_ffff) as u32)
    }
}

pub(crate) fn random_bits() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    u128::from_ne_bytes(bytes)
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        write!(formatter, "{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

/// Prints only the end of the id, because a full id gives access to the session.
impl fmt::Debug for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SessionId(..{})", self.short())
    }
}

impl FromStr for SessionId {
    type Err = ();

    fn from_str(text: &str) -> Result<SessionId, ()> {
        let bytes: &[u8; 36] = text.as_bytes().try_into().map_err(|_| ())?;
        if [8, 13, 18, 23].iter().any(|at| bytes[*at] != b'-') {
            return Err(());
        }
        let (mut number, mut seen) = (0, 0);
        for byte in [0..8, 9..13, 14..18, 19..23, 24..36].into_iter().flat_map(|group| &bytes[group]) {
            let digit = HEX_DIGITS[usize::from(*byte)];
            seen |= digit;
            number = number << 4 | u128::from(digit & 0xf);
        }
        if seen == NO_DIGIT { Err(()) } else { Ok(SessionId(number)) }
    }
}

/// The value of each byte as a hexadecimal digit. Every request carries a session id, so parsing uses a table.
const HEX_DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut digit = 0;
    while digit < 16 {
        digits[b"0123456789abcdef"[digit as usize] as usize] = digit;
        digit += 1;
    }
    digits
};
/// The value of any other byte. All of its bits are set, so it remains visible after an OR of many digits.
const NO_DIGIT: u8 = u8::MAX;

/// The severities of log messages, least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Notice,
    Warning,
    Error,
    Critical,
    Alert,
    Emergency,
}

impl Level {
    pub const ALL: [Level; 8] = [
        Level::Debug,
        Level::Info,
        Level::Notice,
        Level::Warning,
        Level::Error,
        Level::Critical,
        Level::Alert,
        Level::Emergency,
    ];

    /// The level that includes every message. A session that sets no level has it.
    pub(crate) const LOWEST: Level = Level::Debug;

    pub fn parse(name: &str) -> Option<Level> {
        Level::ALL.into_iter().find(|level| level.as_str() == name)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Notice => "notice",
            Level::Warning => "warning",
            Level::Error => "error",
            Level::Critical => "critical",
            Level::Alert => "alert",
            Level::Emergency => "emergency",
        }
    }
}

#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;

    #[test]
    fn abilities_are_read_from_the_declared_capabilities() {
        let check = |text: &str, expected: &str| {
            let read = ClientCapabilities::read(text, Some(json::whole(text)));
            let names = [
                (read.sampling, "sampling"),
                (read.sampling_tools, "tools"),
                (read.elicitation_form, "form"),
                (read.elicitation_url, "url"),
                (read.roots, "roots"),
                (read.subscriptions, "subscriptions"),
                (read.tasks, "tasks"),
            ];
            let names: Vec<_> = names.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
            assert_eq!(names.join(" "), expected, "{text}");
        };
        check("{}", "");
        check("[]", "");
        check(r#"{"sampling":{},"roots":{"listChanged":true}}"#, "sampling roots");
        check(r#"{"sampling":{"tools":{}},"elicitation":{}}"#, "sampling tools form");
        check(r#"{"elicitation":{"url":{}}}"#, "url");
        check(r#"{"elicitation":{"form":{},"url":{}}}"#, "form url");
        check(r#"{"elicitation":{"form":{}},"sampling":true,"roots":null}"#, "form");
        check(r#"{"experimental":{"dev.goblin/subscriptions":{}}}"#, "subscriptions");
        check(r#"{"extensions":{"other":{},"dev.goblin/subscriptions":{"version":1}}}"#, "subscriptions");
        check(r#"{"experimental":{"dev.goblin/subscriptions":null},"dev.goblin/subscriptions":{}}"#, "");
        check(r#"{"extensions":{"io.modelcontextprotocol/tasks":{}},"tasks":{}}"#, "tasks");
        check(r#"{"experimental":{"io.modelcontextprotocol/tasks":{}},"tasks":{}}"#, "");
        assert_eq!(ClientCapabilities::read("{}", None), ClientCapabilities::default());
    }

    #[test]
    fn the_client_name_and_version_are_read_from_the_handshake_and_bounded() {
        let check = |params: &str, name: &str, version: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params}}}"#);
            let Ok(Message::Request(request)) = Message::parse(text.into()) else { panic!("{params}") };
            let read = Introduction::read(request.raw.as_str(), &request.params);
            assert_eq!((&*read.name, &*read.version), (name, version), "{params}");
        };
        check(r#"{"clientInfo":{"name":"a \u00e9","version":"1"}}"#, "a é", "1");
        check(r#"{"clientInfo":{"name":1}}"#, "", "");
        check(r#"{"clientInfo":null}"#, "", "");
        check("{}", "", "");
        let (long, kept) = ("é".repeat(65), "é".repeat(64));
        check(&format!(r#"{{"clientInfo":{{"version":"{long}"}}}}"#), "", &kept);
    }

    #[test]
    fn session_ids_are_version_8_uuids_and_read_back() {
        let node = RunId::random();
        for _ in 0..1000 {
            let id = SessionId::new(node);
            let text = id.to_string();
            assert_eq!(text.len(), 36);
            assert_eq!(&text[14..15], "8");
            assert!("89ab".contains(&text[19..20]), "{text}");
            assert_eq!(text.parse(), Ok(id));
        }
    }

    #[test]
    fn other_spellings_are_no_session_ids() {
        let id = SessionId::new(RunId::random()).to_string();
        for wrong in ["", "x", &id[1..], &id.to_uppercase(), &id.replace('-', "+"), &format!("{id}0")] {
            if wrong != id {
                assert_eq!(wrong.parse::<SessionId>(), Err(()), "{wrong}");
            }
        }
    }

    #[test]
    fn debug_output_hides_the_session_id() {
        let id = SessionId::new(RunId::random());
        assert!(!format!("{id:?}").contains(&id.to_string()[..23]));
    }
}
