//! Which generation of the protocol a backend speaks: what its answers say of that, and what is remembered.
//!
//! A backend is asked what it is (`server/discover`) before anything else. Servers with a handshake do not know that
//! question, and say so in many ways; only three error codes are those of one that does without.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use goblin_wire::hello::Hello;
use goblin_config::Protocol;
use goblin_wire::dialect::Dialect;
use goblin_wire::json::{self, Span};
use goblin_wire::{Outcome, Response};

/// How long a backend is taken for one that needs a handshake, or for one that refuses it. What is wrong about either works
/// in silence, so it must end.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// What an answer to the question says.
pub enum Said {
    Hello(Box<Hello>),
    /// It does without a handshake, and asks for something else in the request.
    Otherwise(String),
    /// It does without a handshake, in versions that we do not know.
    Unknown(String),
    /// No answer of one that does without.
    Foreign(String),
}

pub fn judge(answer: &Response) -> Said {
    let text = answer.raw.as_str();
    match answer.outcome {
        Outcome::Result(result) => match Hello::discovered(text, result) {
            Some(hello) => Said::Hello(Box::new(hello)),
            None => Said::Foreign("it answered server/discover with something else".to_owned()),
        },
        Outcome::Error(error) => judge_error(text, error),
    }
}

fn judge_error(text: &str, error: Span) -> Said {
    let said = error.get(text).to_owned();
    let data = json::member(text, error, "data");
    let supported = data.and_then(|data| json::member(text, data, "supported"));
    let mut supported = supported.into_iter().flat_map(|at| json::elements(text, at));
    let is_ours = |at| {
        let version = json::string(text, at).and_then(|version| Dialect::parse(&version));
        version.is_some_and(|dialect| !dialect.has_handshake())
    };
    match json::member(text, error, "code").map(|code| code.get(text)) {
        // Earlier drafts had other codes, which mean nothing by themselves.
        _ if supported.any(is_ours) => Said::Otherwise(said),
        Some("-32022") => Said::Unknown(said),
        Some("-32020" | "-32021") => Said::Otherwise(said),
        _ => Said::Foreign(said),
    }
}

/// How a backend is to be greeted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greet {
    WithHandshake,
    WithoutHandshake,
    /// It is asked which; the one that it is not taken for has its turn where it refuses the other.
    Ask,
}

/// For whom a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Everybody: the newest that both sides know.
    All,
    /// Clients with a handshake. A tool that asks something of its client may know only the way of one generation.
    WithHandshake,
    /// The same, where everybody has a link without one already.
    HandshakeOnly,
}

/// What is known of one backend.
#[derive(Debug)]
pub struct Eras {
    protocol: Protocol,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Until then it is taken for one that needs a handshake.
    needs_handshake: Option<Instant>,
    /// Until then it is taken for one that refuses it.
    refuses_handshake: Option<Instant>,
    has_done_without: bool,
    /// It ends whatever it is asked first, so nothing is learnt by asking.
    ends_anyway: bool,
}

impl Eras {
    pub fn new(protocol: Protocol) -> Eras {
        Eras { protocol, known: Mutex::default() }
    }

    pub fn greet(&self, whom: For, now: Instant) -> Greet {
        let known = self.lock();
        let is_due = |until: Option<Instant>| until.is_some_and(|until| now < until);
        match (self.protocol, whom) {
            (Protocol::Legacy, _) => Greet::WithHandshake,
            (Protocol::Modern, _) => Greet::WithoutHandshake,
            (_, For::HandshakeOnly) => Greet::WithHandshake,
            _ if is_due(known.needs_handshake) || known.ends_anyway => Greet::WithHandshake,
            (_, For::WithHandshake) if !is_due(known.refuses_handshake) => Greet::WithHandshake,
            _ => Greet::Ask,
        }
    }

    /// Whether clients with a handshake may have links of their own kind to a backend that does without.
    pub fn may_have_both(&self, now: Instant) -> bool {
        let is_open = matches!(self.protocol, Protocol::Auto | Protocol::MatchClient);
        is_open && self.lock().refuses_handshake.is_none_or(|until| now >= until)
    }

    /// It did without a handshake before, so its silence does not mean that it needs one.
    pub fn has_done_without(&self) -> bool {
        self.lock().has_done_without
    }

    /// A handshake was answered.
    pub fn shaken(&self) {
        let mut known = self.lock();
        (known.refuses_handshake, known.ends_anyway) = (None, false);
    }

    /// It ended when it was asked, and with a handshake too.
    pub fn ends_anyway(&self) {
        self.lock().ends_anyway = true;
    }

    /// It was asked, and needs a handshake.
    pub fn needs_handshake(&self, now: Instant) {
        *self.lock() = Known { needs_handshake: Some(now + REMEMBERED), ..Known::default() };
    }

    pub fn does_without(&self) {
        let mut known = self.lock();
        known.has_done_without = true;
        known.needs_handshake = None;
    }

    /// It answered a handshake with a refusal: what was known of it is not so any more.
    pub fn refuses_handshake(&self, now: Instant) {
        let mut known = self.lock();
        (known.needs_handshake, known.ends_anyway) = (None, false);
        known.refuses_handshake = Some(now + REMEMBERED);
    }

    /// No code that holds this lock can panic.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use goblin_wire::Message;

    #[test]
    fn srv2_answers_tell_the_generation() {
        let check = |outcome: &str, expected: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,{outcome}}}"#);
            let Ok(Message::Response(answer)) = Message::parse(text.into()) else { panic!("{outcome}") };
            let said = match judge(&answer) {
                Said::Hello(hello) => format!("hello {} {}", hello.software, hello.lists_handshake),
                Said::Otherwise(_) => "otherwise".to_owned(),
                Said::Unknown(_) => "unknown".to_owned(),
                Said::Foreign(_) => "foreign".to_owned(),
            };
            assert_eq!(said, expected, "{outcome}");
        };
        check(r#""result":{"supportedVersions":["2026-07-28"],"capabilities":{}}"#, "hello  false");
        check(
            r#""result":{"supportedVersions":["2026-07-28","2025-11-25"],"serverInfo":{"name":"a","version":"1"}}"#,
            "hello a 1 true",
        );
        check(
            r#""result":{"supportedVersions":[],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"b"}}}"#,
            "hello b false",
        );
        check(r#""result":{}"#, "foreign");
        check(r#""result":{"protocolVersion":"2025-11-25"}"#, "foreign");
        for code in [-32601, -32602, -32600, -32000, -32001] {
            check(&format!(r#""error":{{"code":{code},"message":"no"}}"#), "foreign");
        }
        check(r#""error":{"code":-32020}"#, "otherwise");
        check(r#""error":{"code":-32021,"data":{"requiredCapabilities":{}}}"#, "otherwise");
        check(r#""error":{"code":-32022,"data":{"supported":["2099-01-01"]}}"#, "unknown");
        check(r#""error":{"code":-32022,"data":{"supported":["2099-01-01","2026-07-28"]}}"#, "otherwise");
        check(r#""error":{"code":-32004,"data":{"supported":["2026-07-28"]}}"#, "otherwise");
        check(r#""error":{"code":-32004,"data":{"supported":["2025-11-25"]}}"#, "foreign");
    }

    #[test]
    fn srv2_what_a_backend_was_taken_for_is_not_for_ever() {
        let now = Instant::now();
        let (later, far) = (now + REMEMBERED / 2, now + REMEMBERED);
        let eras = Eras::new(Protocol::Auto);
        assert_eq!(eras.greet(For::All, now), Greet::Ask);
        assert_eq!(eras.greet(For::WithHandshake, now), Greet::WithHandshake);
        eras.needs_handshake(now);
        assert_eq!((eras.greet(For::All, later), eras.greet(For::All, far)), (Greet::WithHandshake, Greet::Ask));
        eras.refuses_handshake(now);
        assert_eq!(eras.greet(For::All, later), Greet::Ask);
        assert_eq!(eras.greet(For::WithHandshake, later), Greet::Ask);
        assert_eq!(eras.greet(For::WithHandshake, far), Greet::WithHandshake);
        assert!(!eras.may_have_both(later) && eras.may_have_both(far));
        eras.does_without();
        assert!(eras.has_done_without());
        eras.ends_anyway();
        assert_eq!(eras.greet(For::All, now), Greet::WithHandshake);
        eras.shaken();
        assert_eq!(eras.greet(For::All, now), Greet::Ask);
    }

    #[test]
    fn srv2_what_is_configured_is_not_asked() {
        let now = Instant::now();
        for (protocol, greet) in [(Protocol::Legacy, Greet::WithHandshake), (Protocol::Modern, Greet::WithoutHandshake)]
        {
            let eras = Eras::new(protocol);
            eras.refuses_handshake(now);
            eras.needs_handshake(now);
            assert_eq!(eras.greet(For::All, now), greet);
            assert_eq!(eras.greet(For::WithHandshake, now), greet);
            assert!(!eras.may_have_both(now));
        }
    }
}
