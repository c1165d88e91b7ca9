//! Determines which protocol generation a backend speaks and remembers the result.
//!
//! The dialler sends `server/discover` before anything else. Servers of the generation with a handshake do not know
//! that method and reject it in many ways. Only three error codes, or a list of supported versions, identify a server
//! that works without a handshake.

use std::time::{Duration, Instant};

use goblin_config::Protocol;
use goblin_wire::json::{self, Span};
use goblin_wire::{Dialect, Hello, Outcome, Response};
use parking_lot::Mutex;

/// The time for which a backend counts as needing, or as rejecting, a handshake. A wrong assumption causes no visible
/// error, so it must expire.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

/// The interpretation of a response to `server/discover`.
pub(crate) enum DiscoverReply {
    Hello(Box<Hello>),
    /// The backend works without a handshake but rejects the form of the request.
    Otherwise(String),
    /// The backend works without a handshake, but only in versions that the gateway does not know.
    Unknown(String),
    /// The response does not come from a backend without a handshake.
    Foreign(String),
}

/// Interprets the response to `server/discover`.
pub(crate) fn judge(answer: &Response) -> DiscoverReply {
    let text = answer.raw.as_str();
    match answer.outcome {
        Outcome::Result(result) => match Hello::discovered(text, result) {
            Some(hello) => DiscoverReply::Hello(Box::new(hello)),
            None => DiscoverReply::Foreign("it answered server/discover with something else".to_owned()),
        },
        Outcome::Error(error) => judge_error(text, error),
    }
}

fn judge_error(text: &str, error: Span) -> DiscoverReply {
    let said = error.get(text).to_owned();
    let data = json::member(text, error, "data");
    let supported = data.and_then(|data| json::member(text, data, "supported"));
    let mut supported = supported.into_iter().flat_map(|at| json::elements(text, at));
    let is_ours = |at| {
        let version = json::string(text, at).and_then(|version| Dialect::parse(&version));
        version.is_some_and(|dialect| !dialect.has_handshake())
    };
    match json::member(text, error, "code").map(|code| code.get(text)) {
        // Earlier drafts used other error codes, so the list of supported versions decides first.
        _ if supported.any(is_ours) => DiscoverReply::Otherwise(said),
        Some("-32022") => DiscoverReply::Unknown(said),
        Some("-32020" | "-32021") => DiscoverReply::Otherwise(said),
        _ => DiscoverReply::Foreign(said),
    }
}

/// The way to begin a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeMode {
    WithHandshake,
    WithoutHandshake,
    /// Send `server/discover` first. If the backend does not know the method, perform a handshake.
    Ask,
}

/// The clients that a link serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkScope {
    /// All clients. The link uses the newest version that both sides know.
    All,
    /// Clients with a handshake. A tool that sends server requests may support only one generation's way of sending
    /// them.
    WithHandshake,
    /// Clients with a handshake, on a second link next to one without a handshake.
    HandshakeOnly,
}

/// The protocol generations that one backend is known to speak.
#[derive(Debug)]
pub(crate) struct KnownEras {
    protocol: Protocol,
    known: Mutex<EraFacts>,
}

#[derive(Debug, Default)]
struct EraFacts {
    /// Until this time the backend counts as needing a handshake.
    needs_handshake: Option<Instant>,
    /// Until this time the backend counts as rejecting the handshake.
    refuses_handshake: Option<Instant>,
    has_done_without: bool,
    /// The process exits on any first message, so `server/discover` reveals nothing.
    ends_anyway: bool,
}

impl KnownEras {
    pub(crate) fn new(protocol: Protocol) -> KnownEras {
        KnownEras { protocol, known: Mutex::default() }
    }

    /// Returns how to begin a connection for the clients `whom`. The configuration takes precedence over the remembered
    /// state.
    pub(crate) fn greet(&self, whom: LinkScope, now: Instant) -> HandshakeMode {
        let known = self.known.lock();
        let is_due = |until: Option<Instant>| until.is_some_and(|until| now < until);
        match (self.protocol, whom) {
            (Protocol::Legacy, _) => HandshakeMode::WithHandshake,
            (Protocol::Modern, _) => HandshakeMode::WithoutHandshake,
            (_, LinkScope::HandshakeOnly) => HandshakeMode::WithHandshake,
            _ if is_due(known.needs_handshake) || known.ends_anyway => HandshakeMode::WithHandshake,
            (_, LinkScope::WithHandshake) if !is_due(known.refuses_handshake) => HandshakeMode::WithHandshake,
            _ => HandshakeMode::Ask,
        }
    }

    /// Reports whether clients with a handshake may get a second link to a backend that works without one.
    pub(crate) fn may_have_both(&self, now: Instant) -> bool {
        let is_open = self.protocol == Protocol::Auto;
        is_open && self.known.lock().refuses_handshake.is_none_or(|until| now >= until)
    }

    /// Reports whether the backend has worked without a handshake before. If so, silence does not mean that it needs
    /// one.
    pub(crate) fn has_done_without(&self) -> bool {
        self.known.lock().has_done_without
    }

    /// Records a successful handshake.
    pub(crate) fn shaken(&self) {
        let mut known = self.known.lock();
        (known.refuses_handshake, known.ends_anyway) = (None, false);
    }

    /// Records that the process exited on `server/discover` and on `initialize`.
    pub(crate) fn ends_anyway(&self) {
        self.known.lock().ends_anyway = true;
    }

    /// Records that the backend does not know `server/discover` and completed a handshake.
    pub(crate) fn needs_handshake(&self, now: Instant) {
        *self.known.lock() = EraFacts { needs_handshake: Some(now + REMEMBERED), ..EraFacts::default() };
    }

    /// Records that the backend answered `server/discover`.
    pub(crate) fn does_without(&self) {
        let mut known = self.known.lock();
        known.has_done_without = true;
        known.needs_handshake = None;
    }

    /// Records that the backend rejected a handshake, and forgets earlier assumptions to the contrary.
    pub(crate) fn refuses_handshake(&self, now: Instant) {
        let mut known = self.known.lock();
        (known.needs_handshake, known.ends_anyway) = (None, false);
        known.refuses_handshake = Some(now + REMEMBERED);
    }
}

#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;

    #[test]
    fn srv2_answers_tell_the_generation() {
        let check = |outcome: &str, expected: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,{outcome}}}"#);
            let Ok(Message::Response(answer)) = Message::parse(text.into()) else { panic!("{outcome}") };
            let said = match judge(&answer) {
                DiscoverReply::Hello(hello) => format!("hello {} {}", hello.software, hello.lists_handshake),
                DiscoverReply::Otherwise(_) => "otherwise".to_owned(),
                DiscoverReply::Unknown(_) => "unknown".to_owned(),
                DiscoverReply::Foreign(_) => "foreign".to_owned(),
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
        let eras = KnownEras::new(Protocol::Auto);
        assert_eq!(eras.greet(LinkScope::All, now), HandshakeMode::Ask);
        assert_eq!(eras.greet(LinkScope::WithHandshake, now), HandshakeMode::WithHandshake);
        eras.needs_handshake(now);
        assert_eq!(
            (eras.greet(LinkScope::All, later), eras.greet(LinkScope::All, far)),
            (HandshakeMode::WithHandshake, HandshakeMode::Ask)
        );
        eras.refuses_handshake(now);
        assert_eq!(eras.greet(LinkScope::All, later), HandshakeMode::Ask);
        assert_eq!(eras.greet(LinkScope::WithHandshake, later), HandshakeMode::Ask);
        assert_eq!(eras.greet(LinkScope::WithHandshake, far), HandshakeMode::WithHandshake);
        assert!(!eras.may_have_both(later) && eras.may_have_both(far));
        eras.does_without();
        assert!(eras.has_done_without());
        eras.ends_anyway();
        assert_eq!(eras.greet(LinkScope::All, now), HandshakeMode::WithHandshake);
        eras.shaken();
        assert_eq!(eras.greet(LinkScope::All, now), HandshakeMode::Ask);
    }

    #[test]
    fn srv2_what_is_configured_is_not_asked() {
        let now = Instant::now();
        for (protocol, greet) in
            [(Protocol::Legacy, HandshakeMode::WithHandshake), (Protocol::Modern, HandshakeMode::WithoutHandshake)]
        {
            let eras = KnownEras::new(protocol);
            eras.refuses_handshake(now);
            eras.needs_handshake(now);
            assert_eq!(eras.greet(LinkScope::All, now), greet);
            assert_eq!(eras.greet(LinkScope::WithHandshake, now), greet);
            assert!(!eras.may_have_both(now));
        }
    }
}
