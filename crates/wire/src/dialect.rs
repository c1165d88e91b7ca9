//! The protocol versions, and everything that depends on which one is spoken.
//!
//! Invariant: no other file compares version strings or asks for the era. What differs between versions is a question
//! with a name here.

use std::fmt;

/// A version of the protocol. Later ones compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    /// Requests without a handshake or a session.
    V2026_07_28,
}

/// The two generations: with a handshake and sessions, and without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    Legacy,
    Modern,
}

/// Dialects that may share the bytes of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DialectClass {
    Legacy,
    Modern,
}

impl Dialect {
    /// The newest version that begins with `initialize`.
    pub const NEWEST_WITH_HANDSHAKE: Dialect = Dialect::V2025_11_25;

    /// The newest version that does without.
    pub const NEWEST_WITHOUT_HANDSHAKE: Dialect = Dialect::V2026_07_28;

    /// What a request over HTTP speaks when nothing says otherwise.
    pub const ASSUMED: Dialect = Dialect::V2025_03_26;

    const ALL: [Dialect; 5] =
        [Dialect::V2024_11_05, Dialect::V2025_03_26, Dialect::V2025_06_18, Dialect::V2025_11_25, Dialect::V2026_07_28];

    pub fn parse(version: &str) -> Option<Dialect> {
        Dialect::ALL.into_iter().find(|dialect| dialect.as_str() == version)
    }

    /// The answer to `initialize`: the version asked for where it has a handshake, else our newest that has.
    pub fn negotiate(asked: &str) -> Dialect {
        Dialect::parse(asked).filter(|dialect| dialect.era() == Era::Legacy).unwrap_or(Dialect::NEWEST_WITH_HANDSHAKE)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Dialect::V2024_11_05 => "2024-11-05",
            Dialect::V2025_03_26 => "2025-03-26",
            Dialect::V2025_06_18 => "2025-06-18",
            Dialect::V2025_11_25 => "2025-11-25",
            Dialect::V2026_07_28 => "2026-07-28",
        }
    }

    pub fn era(self) -> Era {
        if self >= Dialect::V2026_07_28 { Era::Modern } else { Era::Legacy }
    }

    pub fn class(self) -> DialectClass {
        match self.era() {
            Era::Legacy => DialectClass::Legacy,
            Era::Modern => DialectClass::Modern,
        }
    }

    /// The newest version whose requests need no handshake.
    pub const NEWEST: Dialect = Dialect::V2026_07_28;

    /// Whether `version` is one of those without sessions, known to us or not.
    pub fn is_sessionless(version: &str) -> bool {
        let is_date = |(at, byte): (usize, u8)| if matches!(at, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() };
        version.len() == 10 && version.bytes().enumerate().all(is_date) && version >= Dialect::V2026_07_28.as_str()
    }

    /// Whether a server may send requests to its client, and what belongs to no request as it likes. Where it may not, a
    /// result says what it needs to know.
    pub fn has_asks(self) -> bool {
        self.era() == Era::Legacy
    }

    /// Whether a result says what kind it is, and how long it may be kept.
    pub fn has_result_types(self) -> bool {
        self.era() == Era::Modern
    }

    /// Whether a connection begins with `initialize` and is a session from then on. Without, every request says who sends
    /// it, servers ask nothing of their own accord, and `ping`, log levels and subscriptions have no requests.
    pub fn has_handshake(self) -> bool {
        self.era() == Era::Legacy
    }

    /// Only this version lets a client send several messages as one array.
    pub fn has_batches(self) -> bool {
        self == Dialect::V2025_03_26
    }

    /// Whether HTTP requests name the version in a header after the handshake.
    pub fn has_version_header(self) -> bool {
        self >= Dialect::V2025_06_18
    }

    /// Whether a stream may begin with an event without data, from which it can be resumed. Older clients take such data
    /// for a message, and fail to read it.
    pub fn has_priming(self) -> bool {
        self >= Dialect::V2025_11_25
    }

    pub fn has_resource_links(self) -> bool {
        self >= Dialect::V2025_06_18
    }

    pub fn has_audio(self) -> bool {
        self >= Dialect::V2025_03_26
    }

    /// Whether a message of a sampling request may have several blocks of content.
    pub fn has_content_lists(self) -> bool {
        self >= Dialect::V2025_11_25
    }

    /// Whether a client may ask for a task instead of a result. The next version has an extension for that.
    pub fn has_tasks(self) -> bool {
        self == Dialect::V2025_11_25
    }

    /// Whether a form may have choices with titles, and several of them.
    pub fn has_rich_forms(self) -> bool {
        self >= Dialect::V2025_11_25
    }

    /// Whether `structuredContent` may be any value, not only an object.
    pub fn has_free_structure(self) -> bool {
        self.era() == Era::Modern
    }

    /// What a backend's error code becomes where this version does not know it; nothing where it may pass.
    pub fn foreign_code(self, code: &str) -> Option<i64> {
        let modern_only = matches!(code, "-32020" | "-32021" | "-32022");
        (self.era() == Era::Legacy && modern_only).then_some(-32603)
    }

    /// The JSON-RPC code for a resource that cannot be read because it does not exist.
    pub fn resource_not_found_code(self) -> i64 {
        match self.era() {
            Era::Legacy => -32002,
            Era::Modern => -32602,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_their_dates() {
        assert!(Dialect::ALL.is_sorted());
        assert!(Dialect::ALL.map(Dialect::as_str).is_sorted());
    }

    #[test]
    fn d12_codes_of_another_era_are_translated() {
        assert_eq!(Dialect::V2025_11_25.foreign_code("-32022"), Some(-32603));
        assert_eq!(Dialect::V2026_07_28.foreign_code("-32022"), None);
        assert_eq!(Dialect::V2025_11_25.foreign_code("-32000"), None);
    }

    #[test]
    fn negotiation_never_promises_a_version_without_handshake() {
        for (asked, answered) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-03-26", "2025-03-26"),
            ("2025-06-18", "2025-06-18"),
            ("2025-11-25", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("1999-01-01", "2025-11-25"),
            ("", "2025-11-25"),
        ] {
            assert_eq!(Dialect::negotiate(asked).as_str(), answered, "{asked}");
        }
    }
}
