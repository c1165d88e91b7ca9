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
    /// Normal form to the native URI that had it last.
    by_normal_form: HashMap<String, Arc<str>>,
    /// Every handing out, oldest first; entries with an older turn than the map's are out of date.
    order: VecDeque<(Arc<str>, u64)>,
    turn: u64,
}

impl Handed {
    /// `normalise` gives the form under which other spellings of the URI are found.
    pub fn remember(&mut self, native: &str, normalise: impl Fn(&str) -> String) {
        self.turn += 1;
        let uri: Arc<str> = native.into();
        if self.turns.insert(Arc::clone(&uri), self.turn).is_none() {
            self.by_normal_form.insert(normalise(native), Arc::clone(&uri));
        }
        self.order.push_back((uri, self.turn));
        while self.turns.len() > REMEMBERED || self.order.len() > 2 * REMEMBERED {
            let Some((oldest, turn)) = self.order.pop_front() else { return };
            if self.turns.get(&oldest) == Some(&turn) {
                self.turns.remove(&oldest);
                let form = normalise(&oldest);
                if self.by_normal_form.get(&form) == Some(&oldest) {
                    self.by_normal_form.remove(&form);
                }
            }
        }
    }

    pub fn contains(&self, native: &str) -> bool {
        self.turns.contains_key(native)
    }

    /// The native URI with this normal form.
    pub fn find_normalised(&self, form: &str) -> Option<&str> {
        self.by_normal_form.get(form).map(|uri| &**uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d13_exactly_the_newest_are_remembered() {
        let mut handed = Handed::default();
        handed.remember("again", str::to_uppercase);
        for number in 0..REMEMBERED - 1 {
            handed.remember(&format!("u{number}"), str::to_uppercase);
        }
        handed.remember("again", str::to_uppercase);
        handed.remember("one more", str::to_uppercase);
        assert!(handed.contains("again"));
        assert!(handed.contains("one more"));
        assert!(!handed.contains("u0"));
        assert!(handed.contains("u1"));
        assert_eq!((handed.turns.len(), handed.by_normal_form.len()), (REMEMBERED, REMEMBERED));
        assert_eq!(handed.find_normalised("ONE MORE"), Some("one more"));
        assert_eq!(handed.find_normalised("U0"), None);
    }

    #[test]
    fn the_same_uri_for_ever_costs_no_memory() {
        let mut handed = Handed::default();
        handed.remember("other", str::to_uppercase);
        for _ in 0..5 * REMEMBERED {
            handed.remember("same", str::to_uppercase);
        }
        assert!(handed.order.len() <= 2 * REMEMBERED);
        assert!(handed.contains("same"));
    }
}
