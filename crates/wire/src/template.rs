//! RFC 6570 URI templates read backwards: does this URI come from that template, and with which values?
//!
//! A [`Template`] is parsed once into a flat list of steps (`parse`). A match is found in two passes. The first (`fit`)
//! goes from the end of the URI to its start and notes, for each step, from which places the rest can fit. It does so
//! by operations on sets of places (`places`), so its time is template size times URI size and nothing in the input
//! makes it worse. The second (`search`) goes from the start to the end and takes, for each variable, the shortest
//! value that leaves a rest that fits, an empty one only if it must. It never goes back, unless a variable stands twice
//! in the template. To match those is NP-hard in general, so it then has an allowance, and does not match once that is
//! spent.
//!
//! Invariant: a match is proven. Whatever was found is expanded again (`expand`) and must give the bytes of the URI, so
//! a mistake in the search can lose a match but cannot make a false one.
//!
//! Why no `regex`: what a variable can stand for follows from its operator, its modifier and the canonical percent
//! encoding (`%2F` can come from `{x}`; `%2f`, `%41` and `%FF` cannot). As a regex that is large, has to count for
//! `{x:1000}`, and needs a second parser to split what was captured; a first choice that the proof refuses is then the
//! end. Knowing where the rest fits, the choice is right at once.
//!
//! A backend may list many templates. [`index`] finds those that are worth a try, and [`Budget`] bounds the work of all tries
//! of one lookup.
//!
//! What it does not do: normalise (the caller does, where wanted), judge values (dot segments, schemes), rank
//! templates beyond telling [`Template::literal_bytes`].

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

pub const MAX_TEMPLATE_BYTES: usize = 2 * 1024;
/// Bounds the time of a match, as each variable costs a look at the whole URI.
pub const MAX_VARIABLES: usize = 64;
/// No longer URI matches anything.
pub const MAX_URI_BYTES: usize = 8 * 1024;
/// How many steps a lookup takes at most over the templates of one backend: some milliseconds.
pub const MAX_MATCH_STEPS: usize = 500_000;

/// The steps of a try whose literal text does not fit.
const STEPS_PER_TRY: usize = 16;
/// The steps that each byte of a URI costs before the passes begin.
const STEPS_PER_BYTE: usize = 4;
/// The steps of each try whose literal text fits, whatever the length of the URI.
const STEPS_PER_FIT: usize = 128;

/// The steps that a lookup may still take.
#[derive(Debug)]
pub struct Budget(usize);

impl Budget {
    pub fn new(steps: usize) -> Budget {
        Budget(steps)
    }

    /// Returns whether no step is left, so that some templates were not tried.
    pub fn is_spent(&self) -> bool {
        self.0 == 0
    }

    fn spend(&mut self, steps: usize) {
        self.0 = self.0.saturating_sub(steps);
    }
}

#[derive(Clone, Debug)]
pub struct Template {
    text: String,
    steps: Vec<Step>,
    /// The steps with the trailing `{var}` widened, if there is one.
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

    /// The text that every match begins with.
    pub fn literal_prefix(&self) -> &str {
        match self.steps.first() {
            Some(Step::Literal(text)) => text,
            Some(Step::Variable(_)) | None => "",
        }
    }

    /// Bytes that every expansion has; of two templates that match, the one with more of them is meant.
    pub fn literal_bytes(&self) -> usize {
        self.steps.iter().map(Step::literal_bytes).sum()
    }

    /// Values that expand to exactly `uri`, if there are any. A value may be empty or absent, as in expansion:
    /// `users://{id}/profile` matches `users:///profile`.
    ///
    /// The answer can be `None` though values exist only for a template that has a variable twice, or that is itself
    /// encoded oddly: a literal with half a character (`%C3{+x}`), an exploded name that is not canonical (`{?a%2f*}`).
    pub fn matches(&self, uri: &str) -> Option<Bindings> {
        self.matches_within(uri, &mut Budget::new(usize::MAX))
    }

    /// Like [`matches`](Self::matches), with the steps that are left. Returns `None` if none are left.
    pub fn matches_within(&self, uri: &str, budget: &mut Budget) -> Option<Bindings> {
        find(&self.steps, uri, budget)
    }

    /// Like [`matches`](Self::matches), but where that fails, a `{var}` at the very end of the template may stand for
    /// all the rest of a path, `/` included: anything that `{+var}` can give except `?` and `#`. So `file:///{path}`
    /// matches `file:///a/b`, for which `file:///{+path}` is then the template to expand.
    pub fn matches_lenient(&self, uri: &str) -> Option<Bindings> {
        let budget = &mut Budget::new(usize::MAX);
        self.matches_within(uri, budget).or_else(|| self.matches_widened(uri, budget))
    }

    /// The second half of [`matches_lenient`](Self::matches_lenient), with the steps that are left.
    pub fn matches_widened(&self, uri: &str, budget: &mut Budget) -> Option<Bindings> {
        find(self.lenient_steps.as_deref()?, uri, budget)
    }

    /// A prefix (`{var:3}`) of a list or map has no meaning in RFC 6570; such a variable counts as undefined.
    pub fn expand(&self, values: &Bindings) -> String {
        expand::expand(&self.steps, |variable| values.get(&variable.name))
    }
}

fn find(steps: &[Step], uri: &str, budget: &mut Budget) -> Option<Bindings> {
    if uri.len() > MAX_URI_BYTES || budget.is_spent() {
        return None;
    }
    let (bindings, work) = search::search(steps, uri);
    let fits = work > 0;
    budget.spend(if fits { STEPS_PER_FIT + STEPS_PER_BYTE * uri.len() + work } else { STEPS_PER_TRY });
    bindings
}

/// The values of a template's variables, in the order in which they first stand in the template. A variable that is not
/// here is undefined.
///
/// Values are decoded: the ones a client has before it expands. `{+var}`, `{#var}` and a lenient match let triplets
/// pass, so there a triplet that would not come back from its decoded character (`%2F`, `%25`, `%FF`) stays as written.
/// Of a variable seen only as a prefix (`{var:3}`), the prefix is the value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(Vec<(String, Value)>);

/// The shape is as the URI shows it: `a,b` from `{var}` is a list, even if it was a map; exploded (`{var*}`) it is
/// always a list or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    String(String),
    List(Vec<String>),
    /// Pairs in order; a name may stand twice.
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
    /// Of two values for one name the first counts.
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(values: I) -> Bindings {
        Bindings(values.into_iter().collect())
    }
}

/// Positions are bytes from the start of the template.
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
