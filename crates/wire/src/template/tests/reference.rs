//! A second matcher, for templates that repeat no variable. It reads a URI from its start by an automaton and finds the
//! values. Its matches are proven by expansion. The property tests compare `fit` with it.

use std::collections::HashSet;
use std::iter;

use super::read::{self, Bindings};
use crate::template::characters::Charset;
use crate::template::expand;
use crate::template::parse::{Modifier, Step, Variable};

/// Returns values with which `steps` expand to `uri`.
pub(super) fn find(steps: &[Step], uri: &str) -> Option<Bindings> {
    let unit = |place: &usize| Charset::Reserved.unit(&uri.as_bytes()[*place..]).max(1);
    let boundaries = iter::successors(Some(0), |place| (*place < uri.len()).then(|| place + unit(place))).collect();
    let mut search = ReferenceSearch { steps, uri, boundaries, tried: HashSet::new(), values: Vec::new() };
    let matches = search.walk(0, 0, false);
    matches.then_some(search.values)
}

struct ReferenceSearch<'a> {
    steps: &'a [Step],
    uri: &'a str,
    /// The places between units. Every step begins at one.
    boundaries: HashSet<usize>,
    /// The states from which the rest is known not to match.
    tried: HashSet<(usize, usize, bool)>,
    values: Bindings,
}

impl ReferenceSearch<'_> {
    /// Matches the steps from `index` on with the URI from `place` on.
    fn walk(&mut self, index: usize, place: usize, is_started: bool) -> bool {
        if !self.boundaries.contains(&place) || !self.tried.insert((index, place, is_started)) {
            return false;
        }
        match self.steps.get(index) {
            None => place == self.uri.len(),
            Some(Step::Literal(text)) => {
                self.uri[place..].starts_with(text) && self.walk(index + 1, place + text.len(), false)
            }
            Some(Step::Variable(variable)) => self.walk_variable(index, variable, place, is_started),
        }
    }

    /// Matches a variable. Tries the shortest item first, then an undefined value, then an empty one.
    fn walk_variable(&mut self, index: usize, variable: &Variable, place: usize, is_started: bool) -> bool {
        let uri = self.uri.as_bytes();
        let begin = match variable.lead(is_started) {
            None => Some(place),
            Some(lead) => (uri.get(place) == Some(&lead)).then_some(place + 1),
        };
        let Some(begin) = begin else { return self.walk(index + 1, place, is_started && !variable.is_last) };
        let cursors = iter::successors(ItemCursor::enter(variable, uri, begin), |at| at.advance(variable, uri));
        let ends: Vec<_> = cursors.filter(|at| at.may_end(variable)).map(|at| at.place).collect();
        ends.iter().any(|end| *end > begin && self.walk_item(index, variable, begin, *end))
            || self.walk(index + 1, place, is_started && !variable.is_last)
            || (ends.contains(&begin) && self.walk_item(index, variable, begin, begin))
    }

    /// Gives a variable the item from `begin` to `end` and continues after it.
    fn walk_item(&mut self, index: usize, variable: &Variable, begin: usize, end: usize) -> bool {
        let before = self.values.len();
        self.values.push((variable.name.clone(), read::read_item(variable, &self.uri[begin..end])));
        let matches = self.walk(index + 1, end, !variable.is_last);
        if !matches {
            self.values.truncate(before);
        }
        matches
    }
}

/// Inside a value or a list of values.
const TEXT: u8 = 1;
/// After the fixed name, or inside the name of an exploded pair.
const HEAD: u8 = 2;
/// After an `=` that must not precede an empty value.
const START: u8 = 4;
/// Inside the value of an exploded pair.
const PAIR: u8 = 8;

/// A place within an item, and the readings open there.
#[derive(Clone, Copy, Debug)]
struct ItemCursor {
    place: usize,
    readings: u8,
    /// The number of units that a prefix may still have.
    remaining: usize,
}

impl ItemCursor {
    /// Starts an item at `place`, after its name if the name is fixed. Returns `None` if the URI does not have that
    /// name.
    fn enter(variable: &Variable, uri: &[u8], place: usize) -> Option<ItemCursor> {
        let name = variable.fixed_name().as_bytes();
        let readings = match variable.modifier {
            _ if variable.operator.is_named() => HEAD,
            Modifier::Explode if variable.has_pairs() => TEXT | HEAD,
            Modifier::Explode | Modifier::Plain | Modifier::Prefix(_) => TEXT,
        };
        let cursor = ItemCursor { place: place + name.len(), readings, remaining: expand::limit(variable) };
        uri[place..].starts_with(name).then_some(cursor)
    }

    /// Reports whether the item may end here.
    fn may_end(self, variable: &Variable) -> bool {
        self.readings & (TEXT | PAIR) != 0 || (self.readings & HEAD != 0 && variable.operator.drops_equals())
    }

    /// Moves to the next place within the item. Returns `None` if no reading can continue.
    fn advance(self, variable: &Variable, uri: &[u8]) -> Option<ItemCursor> {
        let rest = &uri[self.place..];
        let byte = *rest.first()?;
        let unit = variable.operator.charset().unit(rest);
        let is_unit = unit > 0;
        let is_separator = Some(byte) == variable.list_separator();
        let explodes = variable.modifier == Modifier::Explode;
        let drops_equals = variable.operator.drops_equals();
        let value = if explodes { PAIR } else { TEXT };

        let mut readings = 0;
        let mut open = |from: u8, condition: bool, to: u8| {
            if self.readings & from != 0 && condition {
                readings |= to;
            }
        };
        open(TEXT, is_unit || is_separator, TEXT);
        open(HEAD, explodes && (is_unit || (is_separator && drops_equals)), HEAD);
        open(HEAD, byte == b'=', if drops_equals { START } else { value });
        open(START, is_unit || (is_separator && !explodes), value);
        open(PAIR, is_unit, PAIR);
        open(PAIR, is_separator, HEAD);
        let remaining = if is_unit { self.remaining.checked_sub(1)? } else { self.remaining };
        (readings != 0).then_some(ItemCursor { place: self.place + unit.max(1), readings, remaining })
    }
}
