//! Who is asking: all that router, view, policy and the choice of a link are told about a client.
//!
//! The front builds one per request. A caller need not have a session: versions without a handshake have none.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use goblin_config::exposure::ProfileName;
use goblin_wire::dialect::Dialect;
use goblin_wire::extensions::SUBSCRIPTIONS;
use goblin_wire::json::{self, Span};
use goblin_wire::modern::TASKS;
use goblin_wire::params::Params;

#[derive(Clone, Debug)]
pub struct Caller {
    pub session: Option<SessionId>,
    pub principal: Principal,
    /// Decides what there is for this client; all there is where it has none.
    pub profile: Option<ProfileName>,
    pub dialect: Dialect,
    /// Log lines below this are not for this client; none at all where it is absent.
    pub level: Option<Level>,
    pub abilities: Arc<Abilities>,
}


/// The longest name or version of a client that is kept, in characters.
const LONGEST_WORD: usize = 64;

/// What a client said of itself in its handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Introduction {
    pub abilities: Arc<Abilities>,
    /// Empty where it said none, and so is the version.
    pub name: Box<str>,
    pub version: Box<str>,
}

impl Introduction {
    /// From the params of `initialize`.
    pub fn read(text: &str, params: &Params) -> Introduction {
        let word = |key| {
            let word = params.client_info.and_then(|info| json::member(text, info, key));
            let word = word.and_then(|at| json::string(text, at)).unwrap_or_default();
            word.chars().take(LONGEST_WORD).collect::<String>().into()
        };
        let abilities = Arc::new(Abilities::read(text, params.capabilities));
        Introduction { abilities, name: word("name"), version: word("version") }
    }
}

/// What a client can be asked for, as it declared in its handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    pub sampling: bool,
    pub sampling_tools: bool,
    pub elicitation_form: bool,
    pub elicitation_url: bool,
    pub roots: bool,
    /// It knows our extension of subscriptions, so it can be told of a deletion in so many words.
    pub subscriptions: bool,
    /// It can be given a task in place of a result, by the extension of versions without a handshake.
    pub tasks: bool,
    /// All of it as the client wrote it; empty where it declared nothing.
    pub raw: Box<str>,
}

impl Abilities {
    /// For a client that says it with every request: most can do nothing.
    pub fn said(text: &str, capabilities: Option<Span>) -> Arc<Abilities> {
        static NONE: LazyLock<Arc<Abilities>> =
            LazyLock::new(|| Arc::new(Abilities::read("{}", Some(Span::new(0, 2)))));
        match capabilities {
            Some(span) if span.get(text) == "{}" => Arc::clone(&NONE),
            capabilities => Arc::new(Abilities::read(text, capabilities)),
        }
    }

    pub fn read(text: &str, capabilities: Option<Span>) -> Abilities {
        let object = |of: Span, key| json::member(text, of, key).filter(|value| value.get(text).starts_with('{'));
        let Some(capabilities) = capabilities.filter(|span| span.get(text).starts_with('{')) else {
            return Abilities::default();
        };
        let sampling = object(capabilities, "sampling");
        let elicitation = object(capabilities, "elicitation");
        let has = |of: Option<Span>, key| of.and_then(|of| object(of, key)).is_some();
        let elicitation_url = has(elicitation, "url");
        Abilities {
            sampling: sampling.is_some(),
            sampling_tools: has(sampling, "tools"),
            // A bare object means forms, which are all that the first version had.
            elicitation_form: has(elicitation, "form") || elicitation.is_some() && !elicitation_url,
            elicitation_url,
            roots: object(capabilities, "roots").is_some(),
            subscriptions: ["experimental", "extensions"]
                .iter()
                .any(|key| has(object(capabilities, key), SUBSCRIPTIONS)),
            tasks: has(object(capabilities, "extensions"), TASKS),
            raw: capabilities.get(text).into(),
        }
    }
}

/// On whose behalf a client acts. There is one until clients are told apart by authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    Anonymous,
}

/// A session's name: a version 8 UUID. 28 bits name the gateway process, 94 are from the system's random source.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId(u128);

/// Names this run of the gateway inside session ids.
#[derive(Clone, Copy, Debug)]
pub struct Node(u32);

impl Node {
    pub fn random() -> Node {
        Node(random_bits() as u32 & 0x0fff_ffff)
    }
}

/// What tells the event ids of one client from those of others, and from those before a restart.
pub fn random_epoch() -> u32 {
    random_bits() as u32 & 0x0fff_ffff
}

impl SessionId {
    pub fn new(node: Node) -> SessionId {
        let node = u128::from(node.0) << 100;
        let random = random_bits() & ((1 << 100) - 1);
        let version = !(0xf << 76) & random | 0x8 << 76;
        let variant = !(0b11 << 62) & version | 0b10 << 62;
        SessionId(node | variant)
    }

    /// Enough to tell sessions apart in a log, too little to use one.
    pub fn short(self) -> String {
        format!("{:08x}", (self.0 & 0xffff_ffff) as u32)
    }
}

fn random_bits() -> u128 {
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

/// Whoever holds a session's id can use the session, so it is never printed whole by accident.
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

/// What each byte is worth in a session id, which every request names.
const HEX_DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut digit = 0;
    while digit < 16 {
        digits[b"0123456789abcdef"[digit as usize] as usize] = digit;
        digit += 1;
    }
    digits
};
/// All bits, so that one of it shows among many.
const NO_DIGIT: u8 = u8::MAX;

/// The severities of log lines, least first.
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

    /// What a client gets that never asked.
    pub const DEFAULT: Level = Level::Info;

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
    use super::*;
    use goblin_wire::Message;

    #[test]
    fn abilities_are_what_was_declared() {
        let check = |text: &str, expected: &str| {
            let read = Abilities::read(text, Some(json::whole(text)));
            let words = [
                (read.sampling, "sampling"),
                (read.sampling_tools, "tools"),
                (read.elicitation_form, "form"),
                (read.elicitation_url, "url"),
                (read.roots, "roots"),
                (read.subscriptions, "subscriptions"),
                (read.tasks, "tasks"),
            ];
            let words: Vec<_> = words.iter().filter(|(has, _)| *has).map(|(_, word)| *word).collect();
            assert_eq!(words.join(" "), expected, "{text}");
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
        assert_eq!(Abilities::read("{}", None), Abilities::default());
    }

    #[test]
    fn an_introduction_is_what_the_handshake_says_within_bounds() {
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
        let node = Node::random();
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
        let id = SessionId::new(Node::random()).to_string();
        for wrong in ["", "x", &id[1..], &id.to_uppercase(), &id.replace('-', "+"), &format!("{id}0")] {
            if wrong != id {
                assert_eq!(wrong.parse::<SessionId>(), Err(()), "{wrong}");
            }
        }
    }

    #[test]
    fn debug_does_not_give_a_session_away() {
        let id = SessionId::new(Node::random());
        assert!(!format!("{id:?}").contains(&id.to_string()[..23]));
    }
}
