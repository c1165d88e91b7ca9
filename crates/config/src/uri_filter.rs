//! Filters URIs of a server or a profile, regardless of their spelling.
//!
//! Invariant: only [`UriFilter::admits`] compares a URI or a template with a filter. It admits no spelling of a URI
//! unless it admits the canonical form.

use std::borrow::Cow;

use goblin_wire::canonical::{self, Readings};

use crate::Filter;
use crate::glob::Glob;

/// A [`Filter`] for URIs of resources and templates. Every check of a resource goes through [`UriFilter::admits`].
///
/// A pattern applies as written and in its canonical form. A URI is admitted if the filter admits its spelling and all
/// of its [`Readings`].
#[derive(Clone, Debug, PartialEq)]
pub struct UriFilter {
    written: Filter,
    allow: Vec<Glob>,
    deny: Vec<Glob>,
    /// The patterns of `allow`, and their beginnings before a `?`, a `#` or a trailing slash.
    allow_stem: Vec<Glob>,
    /// Whether the filter admits everything, so that URIs need no parsing.
    is_open: bool,
}

impl Default for UriFilter {
    fn default() -> UriFilter {
        UriFilter::new(Filter::default())
    }
}

impl UriFilter {
    pub fn new(written: Filter) -> UriFilter {
        let is_open = written.deny.is_empty() && written.allow.contains(&Glob::any());
        let allow = with_forms(&written.allow, canonical_allow);
        let deny = with_forms(&written.deny, canonical_deny);
        let allow_stem = allow.iter().flat_map(stems).collect();
        UriFilter { written, allow, deny, allow_stem, is_open }
    }

    /// Returns the patterns as written in the configuration.
    pub fn written(&self) -> &Filter {
        &self.written
    }

    /// Reports whether the URI or template is admitted. Rejects an ambiguous URI unless the filter admits everything.
    pub fn admits(&self, uri: &str) -> bool {
        if self.is_open {
            return true;
        }
        self.passes(uri) && (canonical::is_plain(uri) || self.admits_readings(uri))
    }

    fn admits_readings(&self, uri: &str) -> bool {
        let Ok(Readings { forms, stems, rare }) = canonical::readings(uri) else { return false };
        forms.iter().all(|whole| self.passes(whole))
            && stems.iter().all(|stem| !hits(&self.deny, stem) && hits(&self.allow_stem, stem))
            && !rare.iter().any(|form| hits(&self.deny, form))
    }

    fn passes(&self, form: &str) -> bool {
        !hits(&self.deny, form) && hits(&self.allow, form)
    }
}

fn hits(globs: &[Glob], text: &str) -> bool {
    globs.iter().any(|glob| glob.matches(text))
}

/// Returns the patterns as written, plus their canonical forms that differ.
fn with_forms(globs: &[Glob], canonical: impl Fn(&str) -> Option<String>) -> Vec<Glob> {
    let forms = globs.iter().filter_map(|glob| canonical(glob.as_str()).filter(|form| form != glob.as_str()));
    let forms: Vec<_> = forms.filter_map(|form| Glob::new(&form).ok()).collect();
    globs.iter().cloned().chain(forms).collect()
}

/// Returns the canonical form of an `allow` pattern. Returns `None` for a pattern with an encoded wildcard, because its
/// form would admit more than intended.
fn canonical_allow(pattern: &str) -> Option<String> {
    let form = canonical::canonical(pattern).ok()?;
    let wildcards = |text: &str| text.matches(['*', '?']).count();
    (wildcards(&form) <= wildcards(pattern)).then(|| form.into_owned())
}

/// Returns the canonical form of a `deny` pattern. Replaces an encoded wildcard by `?`, which denies any one character.
fn canonical_deny(pattern: &str) -> Option<String> {
    let mut pattern = Cow::Borrowed(pattern);
    for wildcard in ["%2A", "%2a", "%3F", "%3f"] {
        if pattern.contains(wildcard) {
            pattern = Cow::Owned(pattern.replace(wildcard, "?"));
        }
    }
    canonical::canonical(&pattern).ok().map(Cow::into_owned)
}

/// Returns a pattern, its beginnings before `?` and `#`, and all of them without trailing slashes and stars.
fn stems(glob: &Glob) -> Vec<Glob> {
    let text = glob.as_str();
    let ends = text.match_indices(['?', '#']).map(|(at, _)| &text[..at]);
    let forms = std::iter::once(text).chain(ends);
    let both = forms.flat_map(|whole| [whole, whole.trim_end_matches(['/', '*'])]);
    // A pattern that begins with a separator has an empty beginning, which is not a valid pattern and is left out.
    both.filter_map(|stem| Glob::new(stem).ok()).collect()
}

#[cfg(test)]
mod tests;
