//! The files that somebody wants to hear of, each with what was seen of it last.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::path::Relative;
use crate::tree::{Facts, Kind, Spot, Stop, Tree};
use crate::watch::Touched;

/// File systems count time in steps of up to this. A file that was changed so shortly before it was seen may be changed
/// again without looking different.
const CLOCK_STEP: Duration = Duration::from_millis(20);

/// By the paths that they are wanted under, which may be or hold links. The register that asks for them bounds them.
#[derive(Default)]
pub struct Subscribed(Mutex<Known>);

#[derive(Default)]
struct Known {
    sights: HashMap<Relative, Sight>,
    /// Some are not where their paths say, or were not.
    has_links: bool,
}

/// What was seen of a file.
#[derive(Clone, Debug)]
struct Sight {
    /// Where it really is, or was last, links resolved.
    real: Relative,
    /// Nothing where it is not there, or not served.
    facts: Option<Facts>,
    is_settled: bool,
}

impl Sight {
    fn of(spot: &Spot) -> Sight {
        let (real, facts) = (spot.path.clone(), Some(spot.facts));
        let (seconds, nanoseconds) = spot.facts.changed;
        let changed = UNIX_EPOCH + Duration::new(u64::try_from(seconds).unwrap_or_default(), nanoseconds);
        let now = SystemTime::now();
        // By another clock than ours it may have changed in the future.
        let distance = now.duration_since(changed).unwrap_or_else(|ahead| ahead.duration());
        Sight { real, facts, is_settled: distance > CLOCK_STEP }
    }

    fn look(tree: &Tree, path: &Relative, before: &Relative) -> Sight {
        match tree.find(path) {
            Ok(spot) if spot.facts.kind == Kind::File => Sight::of(&spot),
            _ => Sight { real: before.clone(), facts: None, is_settled: true },
        }
    }

    /// Whether somebody who saw `self` wants to look again.
    fn differs(&self, now: &Sight, is_written: bool) -> bool {
        self.facts != now.facts || (now.facts.is_some() && (is_written || !self.is_settled))
    }
}

impl Subscribed {
    /// Tells whether it is new.
    pub fn insert(&self, path: Relative, spot: &Spot) -> bool {
        let mut known = self.lock();
        known.has_links |= path != spot.path;
        let is_new = !known.sights.contains_key(&path);
        known.sights.entry(path).or_insert_with(|| Sight::of(spot));
        is_new
    }

    pub fn remove(&self, path: &Relative) {
        let mut known = self.lock();
        known.sights.remove(path);
        known.has_links &= !known.sights.is_empty();
    }

    /// Whether any may be elsewhere than its path says: then whatever changes may be one of them.
    pub fn has_links(&self) -> bool {
        self.lock().has_links
    }

    /// Whether what is written there may matter.
    pub fn is_wanted(&self, path: &Relative) -> bool {
        let known = self.lock();
        known.has_links || known.sights.contains_key(path)
    }

    /// The directories that they are in, as far as is known.
    pub fn directories(&self) -> HashSet<Relative> {
        let known = self.lock();
        known.sights.iter().flat_map(|(asked, sight)| asked.above().chain(sight.real.above())).collect()
    }

    /// Looks at those that may have changed; gives those that have.
    pub fn look(&self, tree: &Tree, touched: &Touched, stop: &Stop) -> Vec<Relative> {
        let suspects: Vec<_> = {
            let known = self.lock();
            let is_suspect = |asked: &Relative, real: &Relative| asked != real || touched.contains(asked);
            let suspects = known.sights.iter().filter(|(asked, sight)| is_suspect(asked, &sight.real));
            suspects.map(|(asked, sight)| (asked.clone(), sight.real.clone())).collect()
        };
        let has_changed = |(asked, real): &(Relative, Relative)| {
            let now = Sight::look(tree, asked, real);
            let is_written = touched.is_written(asked) || touched.is_written(&now.real);
            self.see(asked, now, is_written)
        };
        let changed = suspects.into_iter().take_while(|_| !stop.is_set()).filter(has_changed);
        changed.map(|(asked, _)| asked).collect()
    }

    /// Keeps what was seen; tells whether it is news. It may have been given up meanwhile.
    fn see(&self, asked: &Relative, now: Sight, is_written: bool) -> bool {
        let mut known = self.lock();
        let Some(before) = known.sights.get_mut(asked) else { return false };
        let (differs, is_link) = (before.differs(&now, is_written), now.real != *asked);
        *before = now;
        known.has_links |= is_link;
        differs
    }

    /// No code that holds this lock can panic.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
