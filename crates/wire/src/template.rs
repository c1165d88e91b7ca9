//! RFC 6570 URI templates. Matching: can a template expand to a URI? Expansion: which URI do these values give?
//!
//! The catalog uses a [`Template`] to find the owner of a URI, and subscriptions use it as a pattern. [`index`] finds
//! the templates that are worth a try, and [`MatchBudget`] limits the work of all tries of one lookup.
//!
//! This module does not return the values of variables, does not normalize URIs, does not judge values (dot segments,
//! schemes), and does not rank templates beyond [`Template::literal_bytes`].

mod characters;
mod expand;
mod fit;
pub mod index;
mod parse;
mod places;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use self::expand::TemplateValue;
use self::parse::{Modifier, Step};

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

/// A parsed URI template: a flat list of steps (`parse`).
///
/// A match is one pass from the end of the URI to its start (`fit`). It records for each step the places from which the
/// rest can fit, with operations on sets of places (`places`). Its time is template size times URI size for any input.
///
/// The matcher does not use `regex`. The texts that a variable can produce follow from its operator, its modifier and
/// the canonical percent encoding (`%2F` can come from `{x}`; `%2f`, `%41` and `%FF` cannot). An equivalent regex is
/// large and must count for `{x:1000}`.
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

    /// Returns the variables in the order of the template, each once.
    pub fn variables(&self) -> Vec<TemplateVariable<'_>> {
        let mut variables: Vec<TemplateVariable<'_>> = Vec::new();
        for step in &self.steps {
            let Step::Variable(variable) = step else { continue };
            let (is_list, is_optional) = (variable.modifier == Modifier::Explode, variable.operator.first().is_some());
            match variables.iter_mut().find(|known| known.name == variable.name) {
                Some(known) => {
                    (known.is_list, known.is_optional) = (known.is_list | is_list, known.is_optional & is_optional)
                }
                None => variables.push(TemplateVariable { name: &variable.name, is_list, is_optional }),
            }
        }
        variables
    }

    /// Returns the URI that these values give. A variable without a value is left out.
    pub fn expand(&self, values: &[(String, TemplateValue)]) -> String {
        expand::expand(&self.steps, values)
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

    /// Reports whether some values expand to exactly `uri`. A value may be empty or absent, as in expansion:
    /// `users://{id}/profile` matches `users:///profile`.
    ///
    /// Every occurrence of a variable may have another value: `{a}/{a}` also matches `x/y`. Matching such templates
    /// exactly is NP-hard, and a backend checks the URIs that it gets.
    ///
    /// Returns false although values exist if the template itself is encoded unusually. Examples are a literal with
    /// half a character (`%C3{+x}`) or an exploded name that is not canonical (`{?a%2f*}`).
    pub fn matches(&self, uri: &str) -> bool {
        self.matches_within(uri, &mut MatchBudget::new(usize::MAX))
    }

    /// Works like [`matches`](Self::matches) and charges its steps to `budget`. Returns false if the budget is spent.
    pub fn matches_within(&self, uri: &str, budget: &mut MatchBudget) -> bool {
        fits_within(&self.steps, uri, budget)
    }

    /// Tries a wider match for a `{var}` at the very end of the template, within `budget`. The variable then matches
    /// the rest of a path including `/`: everything that `{+var}` matches except `?` and `#`. `file:///{path}` matches
    /// `file:///a/b` in this way.
    pub fn matches_widened(&self, uri: &str, budget: &mut MatchBudget) -> bool {
        self.lenient_steps.as_deref().is_some_and(|steps| fits_within(steps, uri, budget))
    }
}

/// A variable of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateVariable<'a> {
    pub name: &'a str,
    /// Whether the template explodes the variable (`{name*}`), so that its value may be a list.
    pub is_list: bool,
    /// Whether every expression of the variable also writes its operator, so that it leaves no gap in the URI.
    pub is_optional: bool,
}

fn fits_within(steps: &[Step], uri: &str, budget: &mut MatchBudget) -> bool {
    if uri.len() > MAX_URI_BYTES || budget.is_spent() {
        return false;
    }
    let Some((steps, place)) = after_literal(steps, uri) else {
        budget.spend(STEPS_PER_TRY);
        return false;
    };
    let (fits, work) = fit::fits(steps, uri, place);
    budget.spend(STEPS_PER_FIT + STEPS_PER_BYTE * uri.len() + work);
    fits
}

/// Returns the steps after a literal start, and their place in the URI. Returns `None` if the literal text at the start
/// or the end differs. This check avoids most passes over a whole URI.
fn after_literal<'a>(steps: &'a [Step], uri: &str) -> Option<(&'a [Step], usize)> {
    let (steps, place) = match steps.split_first() {
        Some((Step::Literal(text), rest)) => (rest, uri.starts_with(text).then_some(text.len())?),
        Some((Step::Variable(_), _)) | None => (steps, 0),
    };
    let ends_alike = match steps.last() {
        Some(Step::Literal(text)) => uri[place..].ends_with(text),
        Some(Step::Variable(_)) => true,
        None => place == uri.len(),
    };
    ends_alike.then_some((steps, place))
}

/// The reason why a text is not a valid template. Positions are bytes from the start of the template.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TemplateError {
    #[error("template of {length} bytes is longer than {MAX_TEMPLATE_BYTES}")]
    TooLong { length: usize },
    #[error("template has more than {MAX_VARIABLES} variables")]
    TooManyVariables,
    #[error("character {character:?} at byte {position} is not allowed in a template")]
    Character { character: char, position: usize },
    #[error("percent sign at byte {position} is not followed by two hex digits")]
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
