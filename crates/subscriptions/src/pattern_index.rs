//! The patterns with subscribers, indexed by the directory of the URIs that they cover. The table looks up the patterns
//! of each update here. Clients with different profiles have separate entries for the same pattern.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use goblin_config::exposure::Profile;

use crate::glob::MAX_URI;
use crate::pattern::Pattern;
use crate::subscribers::Subscribers;
use crate::{Notice, OfferedResources, SubscribeOutcome, Subscriber};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PatternId(u64);

/// A pattern, and the subscribers that see the same resources.
pub(crate) struct PatternEntry<S> {
    /// The backend's spelling.
    pub native: Arc<str>,
    pub pattern: Arc<Pattern>,
    /// The profile of the subscribers. The pattern covers no listed resource that the profile hides, so the backend
    /// receives no subscription for such a resource.
    profile: Option<Arc<Profile>>,
    pub subscribers: Subscribers<S>,
    /// The listed resources that the pattern covers.
    pub listed: HashSet<Arc<str>>,
    /// The covered resources with a subscribe request in flight or queued.
    pub open: HashSet<Arc<str>>,
    /// The covered resources that the backend rejected, and its first rejection.
    pub rejected: HashSet<Arc<str>>,
    pub rejection: Option<SubscribeOutcome>,
    /// True if the limit on resources left some matching resources uncovered.
    pub is_truncated: bool,
    /// True if updates may have been missed.
    pub is_stale: bool,
}

impl<S: Subscriber> PatternEntry<S> {
    /// Reports whether the subscribers of the pattern may see a listed resource.
    pub(crate) fn shows(&self, native: &str, offers: &dyn OfferedResources) -> bool {
        self.profile.as_deref().is_none_or(|profile| offers.is_shown(native, profile))
    }

    pub(crate) fn is_partial(&self) -> bool {
        self.is_truncated || !self.rejected.is_empty()
    }

    /// Returns the first rejection if the backend rejected every covered resource.
    pub(crate) fn full_rejection(&self) -> Option<SubscribeOutcome> {
        let is_full = !self.rejected.is_empty() && self.rejected.len() >= self.listed.len();
        self.rejection.clone().filter(|_| is_full)
    }

    /// Returns notices about the whole pattern for all subscribers.
    pub(crate) fn notices(&self) -> impl Iterator<Item = Notice<S>> {
        self.subscribers.notices(&self.native)
    }
}

/// Reports whether clients of both profiles see the same resources.
pub(crate) fn shows_same(one: &Arc<Profile>, other: &Arc<Profile>) -> bool {
    Arc::ptr_eq(one, other) || one.resources == other.resources && one.servers == other.servers
}

/// The patterns by directory. An update is compared only with the patterns of the directories that contain its URI.
pub(crate) struct PatternIndex<S> {
    pub all: HashMap<PatternId, PatternEntry<S>>,
    by_directory: HashMap<Box<str>, Vec<PatternId>>,
    next: u64,
}

impl<S> Default for PatternIndex<S> {
    fn default() -> PatternIndex<S> {
        PatternIndex { all: HashMap::new(), by_directory: HashMap::new(), next: 0 }
    }
}

impl<S: Subscriber> PatternIndex<S> {
    /// Finds the pattern with this kind and spelling. Its subscribers must see the same resources as clients of
    /// `profile`.
    pub(crate) fn find(&self, pattern: &Pattern, native: &str, profile: Option<&Arc<Profile>>) -> Option<PatternId> {
        let candidates = self.by_directory.get(pattern.directory())?;
        let sees_same = |other: Option<&Arc<Profile>>| match (profile, other) {
            (Some(one), Some(other)) => shows_same(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        let is_same = |pattern_entry: &PatternEntry<S>| {
            *pattern_entry.native == *native
                && pattern_entry.pattern.kind() == pattern.kind()
                && sees_same(pattern_entry.profile.as_ref())
        };
        candidates.iter().copied().find(|id| self.all.get(id).is_some_and(is_same))
    }

    pub(crate) fn insert(
        &mut self,
        native: Arc<str>,
        pattern: Arc<Pattern>,
        profile: Option<Arc<Profile>>,
    ) -> PatternId {
        let id = PatternId(self.next);
        self.next += 1;
        self.by_directory.entry(pattern.directory().into()).or_default().push(id);
        let pattern_entry = PatternEntry {
            native,
            pattern,
            profile,
            subscribers: Subscribers::default(),
            listed: HashSet::new(),
            open: HashSet::new(),
            rejected: HashSet::new(),
            rejection: None,
            is_truncated: false,
            is_stale: false,
        };
        self.all.insert(id, pattern_entry);
        id
    }

    pub(crate) fn remove(&mut self, id: PatternId) -> Option<PatternEntry<S>> {
        let pattern_entry = self.all.remove(&id)?;
        let directory = pattern_entry.pattern.directory();
        if let Some(candidates) = self.by_directory.get_mut(directory) {
            candidates.retain(|other| *other != id);
            if candidates.is_empty() {
                self.by_directory.remove(directory);
            }
        }
        Some(pattern_entry)
    }

    /// Returns the patterns that cover a URI.
    pub(crate) fn matching<'a>(&'a self, native: &'a str) -> impl Iterator<Item = PatternId> + 'a {
        // Most backends have no patterns, so skip the search. Also skip URIs that are too long to match, because
        // splitting them takes quadratic time.
        let text = if self.all.is_empty() || native.len() > MAX_URI { "" } else { native };
        let directories = std::iter::once("").chain(text.match_indices('/').map(|(at, _)| &text[..=at]));
        let candidates = directories.filter_map(|directory| self.by_directory.get(directory)).flatten().copied();
        candidates.filter(move |id| self.all.get(id).is_some_and(|pattern_entry| pattern_entry.pattern.matches(native)))
    }
}
