//! The variables of this process.

use std::collections::BTreeMap;

/// The variables that a configuration asked for, with what they held.
pub type Variables = BTreeMap<String, Option<String>>;

/// Returns a variable if it is set and is UTF-8.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
