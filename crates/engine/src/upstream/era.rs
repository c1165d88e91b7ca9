//! Determines which protocol generation a backend speaks and remembers the result.
//!
//! The dialer sends `server/discover` before anything else. Servers of the generation with a handshake do not know
//! that method and reject it in many ways. Only three error codes, or a list of supported versions, identify a server
//! that works without a handshake.

use std::time::{Duration, Instant};

use goblin_config::Protocol;
use goblin_wire::json::{self, Span};
use goblin_wire::{Dialect, Hello, Outcome, Response};
use parking_lot::Mutex;

/// The time for which a backend counts as needing, or as rejecting, a handshake. A wrong assumption causes no visible
/// error, so it must expire.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// The interpretation of a response to `server/discover`.
pub(crate) enum DiscoverReply {
    Hello(Box<Hello>),
    /// The backend works without a handshake but rejects the form of the request.
    Rejected(String),
    /// The backend works without a handshake, but only in versions that the gateway does not know.
    UnknownVersions(String),
    /// The response does not come from a backend without a handshake.
    Legacy(String),
}

/// Interprets the response to `server/discover`.
pub(crate) fn interpret(answer: &Response) -> DiscoverReply {
    let text = answer.raw.as_str();
    match answer.outcome {
        Outcome::Result(result) => match Hello::discovered(text, result) {
            Some(hello) => DiscoverReply::Hello(Box::new(hello)),
            None => DiscoverReply::Legacy("its result for server/discover has no supportedVersions".to_owned()),
        },
        Outcome::Error(error) => interpret_error(text, error),
    }
}

fn interpret_error(text: &str, error: Span) -> DiscoverReply {
    let details = error.get(text).to_owned();
    let data = json::member(text, error, "data");
    let supported = data.and_then(|data| json::member(text, data, "supported"));
    let mut supported = supported.into_iter().flat_map(|at| json::elements(text, at));
    let is_modern = |at| {
        let version = json::string(text, at).and_then(|version| Dialect::parse(&version));
        version.is_some_and(|dialect| !dialect.has_handshake())
    };
    match json::member(text, error, "code").map(|code| code.get(text)) {
        // Earlier drafts used other error codes, so the list of supported versions decides first.
        _ if supported.any(is_modern) => DiscoverReply::Rejected(details),
        Some("-32022") => DiscoverReply::UnknownVersions(details),
        Some("-32020" | "-32021") => DiscoverReply::Rejected(details),
        _ => DiscoverReply::Legacy(details),
    }
}

/// The way to begin a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeMode {
    WithHandshake,
    WithoutHandshake,
    /// Send `server/discover` first. If the backend does not know the method, perform a handshake.
    Discover,
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
    needs_handshake_until: Option<Instant>,
    /// Until this time the backend counts as rejecting the handshake.
    rejects_handshake_until: Option<Instant>,
    has_worked_without_handshake: bool,
    /// The process exits on any first message, so `server/discover` reveals nothing.
    always_exits: bool,
}

impl KnownEras {
    pub(crate) fn new(protocol: Protocol) -> KnownEras {
        KnownEras { protocol, known: Mutex::default() }
    }

    /// Returns how to begin a connection for the clients in `scope`. The configuration takes precedence over the
    /// remembered state.
    pub(crate) fn handshake_mode(&self, scope: LinkScope, now: Instant) -> HandshakeMode {
        let known = self.known.lock();
        let is_current = |until: Option<Instant>| until.is_some_and(|until| now < until);
        match (self.protocol, scope) {
            (Protocol::Legacy, _) => HandshakeMode::WithHandshake,
            (Protocol::Modern, _) => HandshakeMode::WithoutHandshake,
            (_, LinkScope::HandshakeOnly) => HandshakeMode::WithHandshake,
            _ if is_current(known.needs_handshake_until) || known.always_exits => HandshakeMode::WithHandshake,
            (_, LinkScope::WithHandshake) if !is_current(known.rejects_handshake_until) => HandshakeMode::WithHandshake,
            _ => HandshakeMode::Discover,
        }
    }

    /// Reports whether clients with a handshake may get a second link to a backend that works without one.
    pub(crate) fn may_support_both(&self, now: Instant) -> bool {
        let is_auto = self.protocol == Protocol::Auto;
        is_auto && self.known.lock().rejects_handshake_until.is_none_or(|until| now >= until)
    }

    /// Reports whether the backend has worked without a handshake before. If so, silence does not mean that it needs
    /// one.
    pub(crate) fn has_worked_without_handshake(&self) -> bool {
        self.known.lock().has_worked_without_handshake
    }

    /// Records a successful handshake.
    pub(crate) fn record_handshake(&self) {
        let mut known = self.known.lock();
        (known.rejects_handshake_until, known.always_exits) = (None, false);
    }

    /// Records that the process exited on `server/discover` and on `initialize`.
    pub(crate) fn record_exit(&self) {
        self.known.lock().always_exits = true;
    }

    /// Records that the backend does not know `server/discover` and completed a handshake.
    pub(crate) fn record_handshake_needed(&self, now: Instant) {
        *self.known.lock() = EraFacts { needs_handshake_until: Some(now + MAX_AGE), ..EraFacts::default() };
    }

    /// Records that the backend answered `server/discover`.
    pub(crate) fn record_discovered(&self) {
        let mut known = self.known.lock();
        known.has_worked_without_handshake = true;
        known.needs_handshake_until = None;
    }

    /// Records that the backend rejected a handshake, and forgets earlier assumptions to the contrary.
    pub(crate) fn record_handshake_rejected(&self, now: Instant) {
        let mut known = self.known.lock();
        (known.needs_handshake_until, known.always_exits) = (None, false);
        known.rejects_handshake_until = Some(now + MAX_AGE);
    }
}

#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;

    #[test]
    fn srv2_the_answer_to_discover_determines_the_era() {
        let check = |outcome: &str, expected: &str| {
            let text = format!(r#"{{"jsonrpc":"2.0","id":1,{outcome}}}"#);
            let Ok(Message::Response(answer)) = Message::parse(text.into()) else { panic!("{outcome}") };
            let kind = match interpret(&answer) {
                DiscoverReply::Hello(hello) => format!("hello {} {}", hello.software, hello.lists_handshake),
                DiscoverReply::Rejected(_) => "rejected".to_owned(),
                DiscoverReply::UnknownVersions(_) => "unknown versions".to_owned(),
                DiscoverReply::Legacy(_) => "legacy".to_owned(),
            };
            assert_eq!(kind, expected, "{outcome}");
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
        check(r#""result":{}"#, "legacy");
        check(r#""result":{"protocolVersion":"2025-11-25"}"#, "legacy");
        for code in [-32601, -32602, -32600, -32000, -32001] {
            check(&format!(r#""error":{{"code":{code},"message":"no"}}"#), "legacy");
        }
        check(r#""error":{"code":-32020}"#, "rejected");
        check(r#""error":{"code":-32021,"data":{"requiredCapabilities":{}}}"#, "rejected");
        check(r#""error":{"code":-32022,"data":{"supported":["2099-01-01"]}}"#, "unknown versions");
        check(r#""error":{"code":-32022,"data":{"supported":["2099-01-01","2026-07-28"]}}"#, "rejected");
        check(r#""error":{"code":-32004,"data":{"supported":["2026-07-28"]}}"#, "rejected");
        check(r#""error":{"code":-32004,"data":{"supported":["2025-11-25"]}}"#, "legacy");
    }

    #[test]
    fn srv2_a_detected_era_expires() {
        let now = Instant::now();
        let (later, far) = (now + MAX_AGE / 2, now + MAX_AGE);
        let eras = KnownEras::new(Protocol::Auto);
        assert_eq!(eras.handshake_mode(LinkScope::All, now), HandshakeMode::Discover);
        assert_eq!(eras.handshake_mode(LinkScope::WithHandshake, now), HandshakeMode::WithHandshake);
        eras.record_handshake_needed(now);
        assert_eq!(
            (eras.handshake_mode(LinkScope::All, later), eras.handshake_mode(LinkScope::All, far)),
            (HandshakeMode::WithHandshake, HandshakeMode::Discover)
        );
        eras.record_handshake_rejected(now);
        assert_eq!(eras.handshake_mode(LinkScope::All, later), HandshakeMode::Discover);
        assert_eq!(eras.handshake_mode(LinkScope::WithHandshake, later), HandshakeMode::Discover);
        assert_eq!(eras.handshake_mode(LinkScope::WithHandshake, far), HandshakeMode::WithHandshake);
        assert!(!eras.may_support_both(later) && eras.may_support_both(far));
        eras.record_discovered();
        assert!(eras.has_worked_without_handshake());
        eras.record_exit();
        assert_eq!(eras.handshake_mode(LinkScope::All, now), HandshakeMode::WithHandshake);
        eras.record_handshake();
        assert_eq!(eras.handshake_mode(LinkScope::All, now), HandshakeMode::Discover);
    }

    #[test]
    fn srv2_a_configured_protocol_is_not_probed() {
        let now = Instant::now();
        for (protocol, expected) in
            [(Protocol::Legacy, HandshakeMode::WithHandshake), (Protocol::Modern, HandshakeMode::WithoutHandshake)]
        {
            let eras = KnownEras::new(protocol);
            eras.record_handshake_rejected(now);
            eras.record_handshake_needed(now);
            assert_eq!(eras.handshake_mode(LinkScope::All, now), expected);
            assert_eq!(eras.handshake_mode(LinkScope::WithHandshake, now), expected);
            assert!(!eras.may_support_both(now));
        }
    }
}
