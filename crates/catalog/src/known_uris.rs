//! URIs that a backend returned in results without listing them.
//!
//! Links in results need not be listed, yet a client may read them. The newest URIs are remembered and the oldest
//! forgotten; a URI that appears again counts as new. Their number and their bytes are limited. A URI that is too long
//! is not remembered at all.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use goblin_wire::memory::{BufferKind, Memory, Reservation};

/// The largest number of remembered URIs per backend.
pub const MAX_REMEMBERED: usize = 10_000;
/// The bytes of all remembered URIs of one backend, each with its normal form.
pub(crate) const MAX_BYTES: usize = 4 * 1024 * 1024;
/// The length in bytes of the longest URI that is remembered.
pub(crate) const MAX_URI: usize = 8 * 1024;

/// The remembered URIs of one backend.
#[derive(Debug)]
pub struct KnownUris {
    /// Maps each native URI to the turn in which it last appeared.
    turns: HashMap<Arc<str>, u64>,
    /// Maps a normal form to the native URI that last had it.
    by_normal_form: HashMap<String, Arc<str>>,
    /// Every appearance, oldest first. An entry with an older turn than the one in `turns` is obsolete.
    order: VecDeque<(Arc<str>, u64)>,
    turn: u64,
    bytes: usize,
    reservation: Reservation,
}

impl KnownUris {
    pub fn new(memory: &Arc<Memory>) -> KnownUris {
        let (turns, by_normal_form, order) = Default::default();
        let reservation = memory.hold(BufferKind::KnownUris, 0);
        KnownUris { turns, by_normal_form, order, turn: 0, bytes: 0, reservation }
    }

    /// Remembers a URI. `normalise` maps spellings of the same URI to one form. Returns `true` if a limit in bytes
    /// rejected this URI or removed the oldest ones.
    pub fn remember(&mut self, native: &str, normalise: impl Fn(&str) -> String) -> bool {
        if native.len() > MAX_URI {
            return true;
        }
        self.turn += 1;
        let known = self.turns.get_key_value(native).map(|(uri, _)| Arc::clone(uri));
        let uri = match known {
            Some(uri) => uri,
            None => {
                let (uri, form) = (Arc::<str>::from(native), normalise(native));
                let cost = uri.len() + form.len();
                self.reservation.add(cost);
                self.bytes += cost;
                self.by_normal_form.insert(form, Arc::clone(&uri));
                uri
            }
        };
        self.turns.insert(Arc::clone(&uri), self.turn);
        self.order.push_back((uri, self.turn));
        let is_full = self.bytes > MAX_BYTES;
        self.forget_oldest(normalise);
        is_full
    }

    /// Removes the oldest URIs until all limits are met. `order` may hold twice [`MAX_REMEMBERED`] entries before
    /// obsolete ones are dropped.
    fn forget_oldest(&mut self, normalise: impl Fn(&str) -> String) {
        let is_full = |uris: &KnownUris| {
            uris.turns.len() > MAX_REMEMBERED || uris.order.len() > 2 * MAX_REMEMBERED || uris.bytes > MAX_BYTES
        };
        while is_full(self) {
            let Some((oldest, turn)) = self.order.pop_front() else { return };
            if self.turns.get(&oldest) != Some(&turn) {
                continue;
            }
            self.turns.remove(&oldest);
            let form = normalise(&oldest);
            self.bytes -= oldest.len() + form.len();
            self.reservation.shrink(oldest.len() + form.len());
            if self.by_normal_form.get(&form) == Some(&oldest) {
                self.by_normal_form.remove(&form);
            }
        }
    }

    pub fn contains(&self, native: &str) -> bool {
        self.turns.contains_key(native)
    }

    /// Returns the native URI with this normal form.
    pub(crate) fn find_normalised(&self, form: &str) -> Option<&str> {
        self.by_normal_form.get(form).map(|uri| &**uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d13_only_the_newest_uris_are_remembered() {
        let mut known_uris = KnownUris::new(&Arc::default());
        known_uris.remember("again", str::to_uppercase);
        for number in 0..MAX_REMEMBERED - 1 {
            known_uris.remember(&format!("u{number}"), str::to_uppercase);
        }
        known_uris.remember("again", str::to_uppercase);
        known_uris.remember("one more", str::to_uppercase);
        assert!(known_uris.contains("again"));
        assert!(known_uris.contains("one more"));
        assert!(!known_uris.contains("u0"));
        assert!(known_uris.contains("u1"));
        assert_eq!((known_uris.turns.len(), known_uris.by_normal_form.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        assert_eq!(known_uris.find_normalised("ONE MORE"), Some("one more"));
        assert_eq!(known_uris.find_normalised("U0"), None);
    }

    #[test]
    fn a_repeated_uri_takes_bounded_memory() {
        let mut known_uris = KnownUris::new(&Arc::default());
        known_uris.remember("other", str::to_uppercase);
        for _ in 0..5 * MAX_REMEMBERED {
            known_uris.remember("same", str::to_uppercase);
        }
        assert!(known_uris.order.len() <= 2 * MAX_REMEMBERED);
        assert!(known_uris.contains("same"));
    }

    #[test]
    fn hard2_the_bytes_of_known_uris_are_bounded_and_the_oldest_is_forgotten() {
        let memory = Arc::<Memory>::default();
        let mut known_uris = KnownUris::new(&memory);
        let uri = |number: usize| format!("{number:0>8}{}", "x".repeat(MAX_URI - 8));
        assert!(known_uris.remember(&format!("{}x", uri(0)), str::to_uppercase));
        assert!(known_uris.turns.is_empty(), "a URI that is too long is not remembered");
        let fit = MAX_BYTES / (2 * MAX_URI);
        for number in 0..fit {
            assert!(!known_uris.remember(&uri(number), str::to_uppercase), "{number}");
        }
        assert!(!known_uris.remember(&uri(0), str::to_uppercase), "a known URI takes no more room");
        assert!(known_uris.remember(&uri(fit), str::to_uppercase));
        assert!(known_uris.contains(&uri(0)) && !known_uris.contains(&uri(1)) && known_uris.contains(&uri(fit)));
        let reserved = || memory.read().iter().map(|(_, bytes)| bytes).sum::<usize>();
        assert_eq!((known_uris.bytes, reserved()), (MAX_BYTES, MAX_BYTES));
        drop(known_uris);
        assert_eq!(reserved(), 0);
    }

    #[test]
    fn a_repeated_uri_shares_one_copy() {
        let mut known_uris = KnownUris::new(&Arc::default());
        for _ in 0..3 {
            known_uris.remember("same", str::to_uppercase);
        }
        let (first, last) = (&known_uris.order[0].0, &known_uris.order[2].0);
        assert!(Arc::ptr_eq(first, last));
    }
}
