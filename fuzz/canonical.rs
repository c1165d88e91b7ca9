//! The fuzz target of canonical URIs, which is not enabled yet: it needs the module `goblin::protocol::canonical`.
//!
//! To enable the target: move the functions into `targets.rs`, add `("canonical", canonical_uris)` to `TARGETS`, add a binary
//! to `Cargo.toml` and a file to `fuzz_targets`, rename `canonical-seeds` to `seeds/canonical`, and add an entry with zeros to
//! `hours.json`.

use goblin::protocol::canonical::{MAX_SEPARATORS, canonical, is_plain, readings};

/// Reads a URI. The canonical form is plain and stable, and no encoding of a URI hides what its plain form is: each encoded
/// spelling has the same form, or is rejected as ambiguous.
pub fn canonical_uris(data: &[u8]) {
    let Some((salt, rest)) = data.split_first() else { return };
    let Ok(uri) = std::str::from_utf8(rest) else { return };
    let form = canonical(uri);
    if is_plain(uri) {
        assert_eq!(form.as_deref(), Ok(uri), "a plain URI is its own form");
    }
    let Ok(form) = form else {
        assert!(readings(uri).is_err(), "{uri:?} has no form but readings");
        return;
    };
    assert_eq!(canonical(&form).as_deref(), Ok(&*form), "the form of the form of {uri:?}");
    assert!(!form.chars().any(|letter| letter.is_ascii_control()), "{form:?}");
    assert!(!has_dots(&form), "{form:?} has a dot segment");
    if let Ok(readings) = readings(uri) {
        assert!(readings.all().any(|reading| reading == form), "{uri:?} is not among its readings");
        assert!(!readings.all().any(has_dots), "{readings:?} have a dot segment");
        let count = readings.all().count();
        assert!(count <= 16 * (MAX_SEPARATORS + 2), "{uri:?} has {count} readings");
    }
    for seed in [*salt, salt.wrapping_mul(31).wrapping_add(7)] {
        let spelling = encoded(uri, seed);
        if let Ok(other) = canonical(&spelling) {
            assert_eq!(other, form, "{spelling:?} is another resource than {uri:?}");
        }
    }
}

fn has_dots(uri: &str) -> bool {
    let path = uri.split_once("://").map_or(uri, |(_, rest)| rest);
    path.split('/').any(|segment| matches!(segment, "." | ".."))
}

/// Returns the URI with some of the characters behind its scheme percent-encoded, once or twice, by a seed.
fn encoded(uri: &str, seed: u8) -> String {
    let start = uri.find(':').map_or(0, |at| at + 1);
    let mut spelling = uri[..start].to_owned();
    let mut state = u32::from(seed) | 0x100;
    for byte in uri[start..].bytes() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match state >> 28 {
            0..=3 => spelling.push_str(&format!("%{byte:02X}")),
            4 => spelling.push_str(&format!("%25{byte:02x}")),
            _ if byte.is_ascii() => spelling.push(char::from(byte)),
            _ => spelling.push_str(&format!("%{byte:02X}")),
        }
    }
    spelling
}
