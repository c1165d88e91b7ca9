//! Matching of URIs against RFC 6570 URI templates: can a template expand to a URI, and with which values?
//!
//! The catalog uses a [`Template`] to find the owner of a URI, and subscriptions use it as a pattern. [`index`] finds
//! the templates that are worth a try, and [`MatchBudget`] limits the work of all tries of one lookup.
//!
//! Invariant: every match is proven. The values found are expanded again (`expand`) and must give the bytes of the URI.
//! A mistake in the search can lose a match but cannot produce a false one.
//!
//! This module does not normalize URIs, does not judge values (dot segments, schemes), and does not rank templates
//! beyond [`Template::literal_bytes`].

mod characters;
mod expand;
mod fit;
pub mod index;
mod item;
mod parse;
mod places;
mod search;
#[cfg(test)]
mod tests;

use thiserror::Error;

use self::parse::Step;

pub(crate) const MAX_TEMPLATE_BYTES: usize = 2 * 1024;
/// The maximum number of variables. Each variable costs a pass over the whole URI, so this limits the time of a match.
pub(crate) const MAX_VARIABLES: usize = 64;
/// The maximum length of a URI. A longer URI matches no template.
pub const MAX_URI_BYTES: usize = 8 * 1024;
/// The maximum number of steps of one lookup over the templates of one backend. It takes some milliseconds.
pub const MAX_MATCH_STEPS: usize = 500_000;

/// The cost of a try that fails at the literal text.
const STEPS_PER_TRY: usize = 16;
/// The cost of each byte of a URI before the passes begin.
const STEPS_PER_BYTE: usize = 4;
/// The fixed cost of a try that gets past the literal text.
const STEPS_PER_FIT: usize = 128;

/// The number of steps that a lookup may still take.
#[derive(Debug)]
pub struct MatchBudget(usize);

impl MatchBudget {
    pub fn new(steps: usize) -> MatchBudget {
        MatchBudget(steps)
    }

    /// Reports whether no step is left, which means that some templates may not have been tried.
    pub fn is_spent(&self) -> bool {
        self.0 == 0
    }

    fn spend(&mut self, steps: usize) {
        self.0 = self.0.saturating_sub(steps);
    }
}

/// A parsed URI template: a flat list of steps (`parse`). A match takes two passes.
///
/// The first pass (`fit`) runs from the end of the URI to its start. It records for each step the places from which the
/// rest can fit. It uses operations on sets of places (`places`). Its time is template size times URI size for any
/// input.
///
/// The second pass (`search`) runs from the start to the end. It takes for each variable the shortest value after which
/// the rest fits. It takes an empty value only if nothing else fits. It never backtracks unless a variable occurs twice
/// in the template. Matching such templates is NP-hard in general, so their work is limited. The match fails at the
/// limit.
///
/// The matcher does not use `regex`. The texts that a variable can produce follow from its operator, its modifier and
/// the canonical percent encoding (`%2F` can come from `{x}`; `%2f`, `%41` and `%FF` cannot). An equivalent regex is
/// large, must count for `{x:1000}`, and needs a second parser to split the captures. A regex also returns only one
/// candidate, which the proof may reject. The first pass lets the second choose correctly at once.
#[derive(Clone, Debug)]
pub struct Template {
    text: String,
    steps: Vec<Step>,
    /// The steps with the trailing `{var}` widened. `None` if the template does not end in such a variable.
    lenient_steps: Option<Vec<Step>>,
}

impl Template {
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        let steps = parse::parse(text)?;
        let lenient_steps = parse::widen_trailing_variable(&steps);
        Ok(Template { text: text.to_owned(), steps, lenient_steps })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the text that every match begins with.
    pub(crate) fn literal_prefix(&self) -> &str {
        match self.steps.first() {
            Some(Step::Literal(text)) => text,
            Some(Step::Variable(_)) | None => "",
        }
    }

    /// Returns the number of bytes that every expansion has. If several templates match, the one with the most is the
    /// best.
    pub fn literal_bytes(&self) -> usize {
        self.steps.iter().map(Step::literal_bytes).sum()
    }

    /// Returns values that expand to exactly `uri`. A value may be empty or absent, as in expansion:
    /// `users://{id}/profile` matches `users:///profile`.
    ///
    /// Returns `None` although values exist in two cases: a variable occurs twice, or the template itself is encoded
    /// unusually. Examples are a literal with half a character (`%C3{+x}`) or an exploded name that is not canonical
    /// (`{?a%2f*}`).
    pub fn matches(&self, uri: &str) -> Option<Bindings> {
        self.matches_within(uri, &mut MatchBudget::new(usize::MAX))
    }

    /// Works like [`matches`](Self::matches) and charges its steps to `budget`. Returns `None` if the budget is spent.
    pub fn matches_within(&self, uri: &str, budget: &mut MatchBudget) -> Option<Bindings> {
        find(&self.steps, uri, budget)
    }

    /// Works like [`matches`](Self::matches), and then tries a wider match for a `{var}` at the very end of the
    /// template. It then matches the rest of a path including `/`: everything that `{+var}` matches except `?` and `#`.
    /// `file:///{path}` matches `file:///a/b` in this way. The caller must expand these values with `file:///{+path}`.
    pub fn matches_lenient(&self, uri: &str) -> Option<Bindings> {
        let budget = &mut MatchBudget::new(usize::MAX);
        self.matches_within(uri, budget).or_else(|| self.matches_widened(uri, budget))
    }

    /// Tries only the wider match of [`matches_lenient`](Self::matches_lenient) and charges its steps to `budget`.
    pub fn matches_widened(&self, uri: &str, budget: &mut MatchBudget) -> Option<Bindings> {
        find(self.lenient_steps.as_deref()?, uri, budget)
    }

    /// Expands the template. A prefix (`{var:3}`) of a list or map has no meaning in RFC 6570, so that variable counts
    /// as undefined.
    pub fn expand(&self, values: &Bindings) -> String {
        expand::expand(&self.steps, |variable| values.get(&variable.name))
    }
}

fn find(steps: &[Step], uri: &str, budget: &mut MatchBudget) -> Option<Bindings> {
    if uri.len() > MAX_URI_BYTES || budget.is_spent() {
        return None;
    }
    let (bindings, work) = search::search(steps, uri);
    let fits = work > 0;
    budget.spend(if fits { STEPS_PER_FIT + STEPS_PER_BYTE * uri.len() + work } else { STEPS_PER_TRY });
    bindings
}

/// The values of a template's variables, in the order of their first occurrence. An absent variable is undefined.
///
/// Values are decoded, as a client has them before expansion. `{+var}`, `{#var}` and a lenient match let triplets pass.
/// Their values keep a triplet as written if its decoded character would not be encoded back to it (`%2F`, `%25`,
/// `%FF`). The value of a variable that occurs only as a prefix (`{var:3}`) is the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(Vec<(String, Value)>);

/// The value of a variable, in the shape that the URI shows. The text `a,b` from `{var}` is a list, even if the server
/// expanded a map. An exploded variable (`{var*}`) always gives a list or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    String(String),
    List(Vec<String>),
    /// Pairs in order. A name may occur twice.
    Map(Vec<(String, String)>),
}

impl Bindings {
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl FromIterator<(String, Value)> for Bindings {
    /// Collects values. If a name occurs twice, its first value counts.
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(values: I) -> Bindings {
        Bindings(values.into_iter().collect())
    }
}

/// The reason why a text is not a valid template. Positions are bytes from the start of the template.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TemplateError {
    #[error("template of {length} bytes is longer than {MAX_TEMPLATE_BYTES}")]
    TooLong { length: usize },
    #[error("template has more than {MAX_VARIABLES} variables")]
    TooManyVariables,
    #[error("character {character:?} at byte {position} must not stand in a template")]
    Character { character: char, position: usize },
    #[error("percent sign at byte {position} has no two hex digits after it")]
    Percent { position: usize },
    #[error("opening brace at byte {position} is never closed")]
    NotClosed { position: usize },
    #[error("closing brace at byte {position} was never opened")]
    NotOpened { position: usize },
    #[error("operator {operator:?} at byte {position} is reserved")]
    ReservedOperator { operator: char, position: usize },
    #[error("variable name {name:?} at byte {position} is not valid")]
    Name { name: String, position: usize },
    #[error("prefix length {length:?} at byte {position} is not a number from 1 to 9999")]
    Prefix { length: String, position: usize },
}
