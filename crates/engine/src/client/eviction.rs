//! Selects the entries of a full table that make room for new ones. It serves sessions and connections.
//!
//! One scan of the table finds victims for many newcomers, so a flood does not cost a scan per newcomer. The owner of
//! the table checks each victim again before it evicts it, because the entry may be in use by then.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The size up to which a table may be scanned at any time.
const SMALL_TABLE: usize = 256;
/// The divisor for the smallest number of victims in a larger table. A scan that finds fewer pauses the next one.
const WORTHWHILE_SHARE: usize = 64;
const SCAN_PAUSE: Duration = Duration::from_millis(100);
/// The divisor for the number of victims that one scan selects.
const BATCH_SHARE: usize = 16;
/// The divisor for the number of new entries above which only new entries are victims. Up to that number they have no
/// priority, so that a flood cannot evict an honest newcomer before its first request.
const NEW_SHARE: usize = 4;

/// An entry that may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EvictionCandidate<K> {
    pub key: K,
    /// The entry was never used.
    pub is_new: bool,
    /// The time of its last use, on the clock of the table.
    pub since: u64,
}

/// The victims that the last scan found, least recently used first.
pub(crate) struct EvictionQueue<K> {
    queue: VecDeque<EvictionCandidate<K>>,
    /// The time before which no scan begins.
    pause_ends: Option<Instant>,
}

impl<K> Default for EvictionQueue<K> {
    fn default() -> EvictionQueue<K> {
        EvictionQueue { queue: VecDeque::new(), pause_ends: None }
    }
}

impl<K> EvictionQueue<K> {
    pub(crate) fn pop(&mut self) -> Option<EvictionCandidate<K>> {
        self.queue.pop_front()
    }

    /// Selects victims from a scan of the table, which has `total` entries. Returns `false` if it found none.
    pub(crate) fn refill(
        &mut self,
        total: usize,
        now: Instant,
        scan: impl FnOnce() -> Vec<EvictionCandidate<K>>,
    ) -> bool {
        if self.pause_ends.is_some_and(|pause_ends| now < pause_ends) {
            return false;
        }
        let victims = select(scan(), total);
        let is_costly = total > SMALL_TABLE && victims.len() < total / WORTHWHILE_SHARE;
        self.pause_ends = is_costly.then(|| now + SCAN_PAUSE);
        self.queue = victims.into();
        !self.queue.is_empty()
    }
}

fn select<K>(mut candidates: Vec<EvictionCandidate<K>>, total: usize) -> Vec<EvictionCandidate<K>> {
    let new = candidates.iter().filter(|candidate| candidate.is_new).count();
    if new > total / NEW_SHARE {
        candidates.retain(|candidate| candidate.is_new);
    }
    let batch = (total / BATCH_SHARE).max(1);
    if candidates.len() > batch {
        candidates.select_nth_unstable_by_key(batch, |candidate| candidate.since);
        candidates.truncate(batch);
    }
    candidates.sort_unstable_by_key(|candidate| candidate.since);
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(key: u32, is_new: bool, since: u64) -> EvictionCandidate<u32> {
        EvictionCandidate { key, is_new, since }
    }

    #[test]
    fn hard5_the_least_recently_used_entry_is_evicted_first() {
        let mut victims = EvictionQueue::default();
        let table = || vec![candidate(1, false, 30), candidate(2, false, 10), candidate(3, false, 20)];
        assert!(victims.refill(32, Instant::now(), table));
        let order: Vec<_> = std::iter::from_fn(|| victims.pop()).map(|victim| victim.key).collect();
        assert_eq!(order, [2, 3], "one scan selects a sixteenth of the table");
    }

    #[test]
    fn hard5_new_entries_are_evicted_first_while_they_are_many() {
        let table = |new: u32| (0..8).map(move |key| candidate(key, key >= 8 - new, u64::from(key))).collect();
        for (new, victim) in [(1, 0), (2, 0), (3, 5), (8, 0)] {
            let mut victims = EvictionQueue::default();
            assert!(victims.refill(8, Instant::now(), || table(new)));
            assert_eq!(victims.pop().map(|victim| victim.key), Some(victim), "{new} of 8 are new");
        }
    }

    #[test]
    fn hard5_a_scan_without_result_is_not_repeated_immediately() {
        let (mut victims, now, mut scans) = (EvictionQueue::<u32>::default(), Instant::now(), 0);
        for (total, after, expected) in [(10_000, 0, 1), (10_000, 99, 1), (10_000, 100, 2), (SMALL_TABLE, 200, 3)] {
            let found = victims.refill(total, now + Duration::from_millis(after), || {
                scans += 1;
                Vec::new()
            });
            assert!(!found && scans == expected, "{total} entries after {after} ms: {scans} scans");
        }
        assert!(!victims.refill(SMALL_TABLE, now + SCAN_PAUSE * 2, Vec::new));
        assert!(victims.refill(SMALL_TABLE, now + SCAN_PAUSE * 2, || vec![candidate(1, true, 0)]));
    }
}
