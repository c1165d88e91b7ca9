//! [`Plan`]: what is listened for over a link without sessions, and on which streams. Does no I/O and has no clock.
//!
//! A stream's filter cannot be changed, so what is wanted stands on a large one, the base, and what came since on a small
//! one, the delta: one more URI costs the few of the delta once more, not all. Either is replaced by opening the next and
//! closing the last when that is acknowledged, so that nothing is missed in between. One is opened at a time; what is
//! wanted meanwhile goes into the next. From time to time both become a new base, without what nobody wants any more.

#[cfg(test)]
mod model;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use goblin_wire::listen::Filter;

/// So many URIs are not a delta any more.
pub const MOST_APART: usize = 64;
/// How long a delta stays one, and how long what nobody wants may still be listened for.
pub const MERGE_AFTER: Duration = Duration::from_secs(10);

type Uris = BTreeSet<Arc<str>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Base,
    Delta,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// To be told with [`Plan::opened`] or [`Plan::failed`].
    Open(Role, Filter),
    /// Nothing is wanted any more.
    Close,
}

/// What is known of the URIs of a stream that was being opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// They are listened for.
    pub heard: Vec<Arc<str>>,
    /// They are not, and are not wanted any more.
    pub unheard: Vec<Arc<str>>,
}

#[derive(Debug)]
pub struct Plan {
    /// The lists whose changes the base is to tell of.
    lists: Filter,
    wanted: Uris,
    /// Wanted, and neither on a stream that stays nor on the one that is being opened.
    waiting: Uris,
    base: Option<Uris>,
    delta: Option<Uris>,
    opening: Option<(Role, Uris)>,
    merge_at: Option<Instant>,
    /// A base could not be opened: until the next try what comes goes into the delta, however much it is.
    is_merge_late: bool,
}

impl Plan {
    /// `lists`: a filter without URIs.
    pub fn new(lists: Filter) -> Plan {
        Plan {
            lists,
            wanted: Uris::new(),
            waiting: Uris::new(),
            base: None,
            delta: None,
            opening: None,
            merge_at: None,
            is_merge_late: false,
        }
    }

    /// All streams are gone, and all that was wanted is to be wanted anew.
    pub fn reset(&mut self) {
        *self = Plan::new(std::mem::take(&mut self.lists));
    }

    /// A URI is wanted from now on; tells whether it is listened for. If not, [`Plan::opened`] or [`Plan::failed`] will
    /// name it.
    pub fn want(&mut self, uri: &Arc<str>) -> bool {
        self.wanted.insert(Arc::clone(uri));
        let has = |uris: &Option<Uris>| uris.as_ref().is_some_and(|uris| uris.contains(uri));
        let (in_base, in_delta) = (has(&self.base), has(&self.delta));
        let (stays, comes) = match &self.opening {
            // Whatever it replaces goes, and that may be the last that has it.
            Some((Role::Base, uris)) => (false, uris.contains(uri)),
            Some((Role::Delta, uris)) => (in_base, uris.contains(uri)),
            None => (in_base || in_delta, false),
        };
        if !stays && !comes {
            self.waiting.insert(Arc::clone(uri));
        }
        stays
    }

    /// Nobody wants a URI any more.
    pub fn unwant(&mut self, uri: &str, now: Instant) {
        self.wanted.remove(uri);
        self.waiting.remove(uri);
        let opening = self.opening.as_ref().map(|(_, uris)| uris);
        if self.streams().chain(opening).any(|uris| uris.contains(uri)) {
            self.merge_within(now);
        }
    }

    fn streams(&self) -> impl Iterator<Item = &Uris> {
        self.base.iter().chain(&self.delta)
    }

    fn is_unwanted_heard(&self) -> bool {
        self.streams().any(|uris| !uris.is_subset(&self.wanted))
    }

    fn merge_within(&mut self, now: Instant) {
        self.merge_at.get_or_insert(now + MERGE_AFTER);
    }

    /// When to ask for the [`next`](Plan::next) step, where nothing else happens before.
    pub fn due(&self) -> Option<Instant> {
        self.merge_at.filter(|_| self.opening.is_none())
    }

    /// What to do now, if anything.
    pub fn next(&mut self, now: Instant) -> Option<Step> {
        if self.opening.is_some() {
            return None;
        }
        if self.base.is_none() {
            return (!self.is_idle()).then(|| self.open(Role::Base, self.wanted.clone()));
        }
        let is_due = self.merge_at.is_some_and(|at| at <= now);
        let apart: Uris = self.delta.iter().flatten().filter(|uri| self.wanted.contains(*uri)).cloned().collect();
        let apart = &apart | &self.waiting;
        if is_due && self.delta.is_none() && self.waiting.is_empty() && !self.is_unwanted_heard() {
            // It is wanted again.
            self.merge_at = None;
            return None;
        }
        if is_due && self.is_idle() {
            self.reset();
            return Some(Step::Close);
        }
        if is_due || apart.len() >= MOST_APART && !self.waiting.is_empty() && !self.is_merge_late {
            return Some(self.open(Role::Base, self.wanted.clone()));
        }
        (!self.waiting.is_empty()).then(|| self.open(Role::Delta, apart))
    }

    /// Nothing is to be listened for.
    fn is_idle(&self) -> bool {
        self.wanted.is_empty() && self.lists.is_empty()
    }

    fn open(&mut self, role: Role, uris: Uris) -> Step {
        self.waiting.clear();
        let lists = if role == Role::Base { self.lists.clone() } else { Filter::default() };
        let filter = Filter { uris: uris.clone(), ..lists };
        self.opening = Some((role, uris));
        Step::Open(role, filter)
    }

    /// The stream that was being opened is acknowledged, for this. A base takes the place of both, a delta that of the
    /// delta: those are to be closed now. One that will tell of nothing is to be closed too.
    pub fn opened(&mut self, honoured: &Filter, now: Instant) -> Settled {
        let Some((role, asked)) = self.opening.take() else { return Settled::default() };
        let (heard, unheard): (Uris, Uris) = asked.into_iter().partition(|uri| honoured.uris.contains(uri));
        self.wanted.retain(|uri| !unheard.contains(uri));
        let settled = Settled { heard: heard.iter().cloned().collect(), unheard: unheard.into_iter().collect() };
        match role {
            Role::Base => {
                if honoured.is_empty() {
                    // Asked again, it would say the same.
                    self.lists = Filter::default();
                }
                (self.base, self.delta) = ((!honoured.is_empty()).then_some(heard), None);
                (self.merge_at, self.is_merge_late) = (None, false);
                if self.is_unwanted_heard() {
                    self.merge_within(now);
                }
            }
            Role::Delta => {
                self.delta = (!heard.is_empty()).then_some(heard);
                self.merge_within(now);
            }
        }
        settled
    }

    /// The stream that was being opened could not be. What should have been merged goes into a delta at once, and is merged
    /// later.
    pub fn failed(&mut self, now: Instant) -> Settled {
        let Some((role, asked)) = self.opening.take() else { return Settled::default() };
        let is_heard = |uri: &Arc<str>| self.streams().any(|uris| uris.contains(uri));
        let (heard, unheard): (Uris, Uris) = asked.into_iter().partition(is_heard);
        let heard = heard.into_iter().collect();
        if role == Role::Base && self.base.is_some() {
            self.waiting.extend(unheard.intersection(&self.wanted).cloned());
            (self.merge_at, self.is_merge_late) = (Some(now + MERGE_AFTER), true);
            return Settled { heard, unheard: Vec::new() };
        }
        self.wanted.retain(|uri| !unheard.contains(uri));
        Settled { heard, unheard: unheard.into_iter().collect() }
    }
}
