//! The protocol versions, and everything that depends on the version.
//!
//! Invariant: no other file compares version strings or branches on the era. Each difference between versions is a
//! method here with a name.

use std::fmt;

/// A version of the protocol. Later versions compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    /// The first version without a handshake and sessions.
    V2026_07_28,
}

/// The two generations of the protocol: with a handshake and sessions (legacy), and without (modern). The versions of
/// one generation share the bytes of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    Legacy,
    Modern,
}

impl Dialect {
    /// The newest version that begins with `initialize`.
    pub const NEWEST_WITH_HANDSHAKE: Dialect = Dialect::V2025_11_25;

    /// The newest version of all. Its requests need no handshake.
    pub const NEWEST: Dialect = Dialect::V2026_07_28;

    const ALL: [Dialect; 5] =
        [Dialect::V2024_11_05, Dialect::V2025_03_26, Dialect::V2025_06_18, Dialect::V2025_11_25, Dialect::V2026_07_28];

    pub fn parse(version: &str) -> Option<Dialect> {
        Dialect::ALL.into_iter().find(|dialect| dialect.as_str() == version)
    }

    /// Chooses the version for the response to `initialize`. Returns the requested version if it has a handshake,
    /// otherwise the newest version that has one.
    pub fn negotiate(requested: &str) -> Dialect {
        Dialect::parse(requested)
            .filter(|dialect| dialect.era() == Era::Legacy)
            .unwrap_or(Dialect::NEWEST_WITH_HANDSHAKE)
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

    /// Reports whether `version` is a version without sessions. This includes later versions that the gateway does not
    /// know.
    pub fn is_stateless(version: &str) -> bool {
        let is_date = |(at, byte): (usize, u8)| if matches!(at, 4 | 7) { byte == b'-' } else { byte.is_ascii_digit() };
        version.len() == 10 && version.bytes().enumerate().all(is_date) && version >= Dialect::V2026_07_28.as_str()
    }

    /// Reports whether a server may send requests to its client, and notifications that belong to no request. In other
    /// versions a result lists the input that the server needs.
    pub fn has_server_requests(self) -> bool {
        self.era() == Era::Legacy
    }

    /// Reports whether results carry a type and a time to live.
    pub fn has_result_types(self) -> bool {
        self.era() == Era::Modern
    }

    /// Reports whether a connection begins with `initialize` and is a session from then on. In versions without a
    /// handshake, every request identifies its client and servers send no requests. `ping`, log levels and
    /// subscriptions then have no methods.
    pub fn has_handshake(self) -> bool {
        self.era() == Era::Legacy
    }

    /// Reports whether a client may send several messages as one array. Only one version allows this.
    pub fn has_batches(self) -> bool {
        self == Dialect::V2025_03_26
    }

    /// Reports whether HTTP requests name the version in a header after the handshake.
    pub fn has_version_header(self) -> bool {
        self >= Dialect::V2025_06_18
    }

    /// Reports whether a stream may begin with an event without data, from which it can be resumed. Older clients parse
    /// the empty data as a message and fail.
    pub fn has_priming(self) -> bool {
        self >= Dialect::V2025_11_25
    }

    pub fn has_resource_links(self) -> bool {
        self >= Dialect::V2025_06_18
    }

    pub fn has_audio(self) -> bool {
        self >= Dialect::V2025_03_26
    }

    /// Reports whether a message in a sampling request may have several content blocks.
    pub fn has_content_lists(self) -> bool {
        self >= Dialect::V2025_11_25
    }

    /// Reports whether a client may request a task instead of a result. The next version moves tasks into an extension.
    pub fn has_tasks(self) -> bool {
        self == Dialect::V2025_11_25
    }

    /// Reports whether a form may have choices with titles, and multiple choice.
    pub fn has_rich_forms(self) -> bool {
        self >= Dialect::V2025_11_25
    }

    /// Returns the code that replaces a backend's error code that this version does not define. Returns `None` if the
    /// code may pass unchanged.
    pub fn foreign_code(self, code: &str) -> Option<i64> {
        let modern_only = matches!(code, "-32020" | "-32021" | "-32022");
        (self.era() == Era::Legacy && modern_only).then_some(-32603)
    }

    /// Returns the JSON-RPC error code for reading a resource that does not exist.
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
    fn negotiation_returns_only_versions_with_a_handshake() {
        for (requested, expected) in [
            ("2024-11-05", "2024-11-05"),
            ("2025-03-26", "2025-03-26"),
            ("2025-06-18", "2025-06-18"),
            ("2025-11-25", "2025-11-25"),
            ("2026-07-28", "2025-11-25"),
            ("1999-01-01", "2025-11-25"),
            ("", "2025-11-25"),
        ] {
            assert_eq!(Dialect::negotiate(requested).as_str(), expected, "{requested}");
        }
    }
}
