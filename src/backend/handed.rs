//! URIs that a backend handed out in results without listing them.
//!
//! Links in results need not be listed, yet a client may read them (D13). The newest are remembered, the oldest
//! forgotten; naming a URI again makes it new.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub const REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
pub struct Handed {
    /// Native URI to the turn in which it was last handed out.
    turns: HashMap<Arc<str>, u64>,
    /// Every handing out, oldest first; entries with an older turn than the map's are out of date.
    order: VecDeque<(Arc<str>, u64)>,
    turn: u64,
}

impl Handed {
    pub fn remember(&mut self, native: &str) {
        self.turn += 1;
        let uri: Arc<str> = native.into();
        self.turns.insert(Arc::clone(&uri), self.turn);
        self.order.push_back((uri, self.turn));
        while self.turns.len() > REMEMBERED || self.order.len() > 2 * REMEMBERED {
            let Some((oldest, turn)) = self.order.pop_front() else { return };
            if self.turns.get(&oldest) == Some(&turn) {
                self.turns.remove(&oldest);
            }
        }
    }

    pub fn contains(&self, native: &str) -> bool {
        self.turns.contains_key(native)
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.turns.keys().map(|uri| &**uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d13_exactly_the_newest_are_remembered() {
        let mut handed = Handed::default();
        handed.remember("again");
        for number in 0..REMEMBERED - 1 {
            handed.remember(&format!("u{number}"));
        }
        handed.remember("again");
        handed.remember("one more");
        assert!(handed.contains("again"));
        assert!(handed.contains("one more"));
        assert!(!handed.contains("u0"));
        assert!(handed.contains("u1"));
        assert_eq!(handed.iter().count(), REMEMBERED);
    }

    #[test]
    fn the_same_uri_for_ever_costs_no_memory() {
        let mut handed = Handed::default();
        handed.remember("other");
        for _ in 0..5 * REMEMBERED {
            handed.remember("same");
        }
        assert!(handed.order.len() <= 2 * REMEMBERED);
        assert!(handed.contains("same"));
    }
}
