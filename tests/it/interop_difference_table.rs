//! The known differences between a direct connection and one through the gateway, each with its reason. They are the
//! source of a table in `docs/reference/interop.md`.

use crate::interop_difference::{Difference, Pair};

#[derive(Debug)]
pub struct Row {
    pub feature: &'static str,
    /// The place of the difference. `*` stands for any characters.
    pub place: &'static str,
    pub direct: &'static str,
    pub through: &'static str,
    pub wanted: &'static str,
    pub reason: &'static str,
}

pub const DIFFERENCES: [Row; 0] = [];

impl Row {
    pub fn explains(&self, _: &Pair, difference: &Difference) -> bool {
        self.feature == difference.feature && matches(self.place, &difference.place)
    }
}

fn matches(pattern: &str, place: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == place,
        Some((head, rest)) => place.strip_prefix(head).is_some_and(|tail| {
            (0..=tail.len()).filter(|at| tail.is_char_boundary(*at)).any(|at| matches(rest, &tail[at..]))
        }),
    }
}
