//! The pass from the start of the URI to its end: choose values, step by step, where [`Fit`] says that the rest fits.

use std::mem;

use super::{
    Bindings, Value, expand,
    fit::Fit,
    item::Cursor,
    parse::{Modifier, Step, Variable},
};

/// What the pass may do: four looks at each byte (find, read, expand, compare), which is enough unless a variable
/// stands twice, and some on top for that.
const WORK_PER_BYTE: usize = 4;
const WORK_ON_TOP: usize = 32 * 1024;
/// What it costs to try a value, besides its bytes.
const WORK_PER_TRY: usize = 32;

/// Values with which `steps` expand to `uri`, and the work that both passes did, which the tests bound.
pub(super) fn search(steps: &[Step], uri: &str) -> (Option<Bindings>, usize) {
    let (start, place) = match steps.first() {
        Some(Step::Literal(text)) if !uri.starts_with(text) => return (None, 0),
        Some(Step::Literal(text)) => (1, text.len()),
        Some(Step::Variable(_)) | None => (0, 0),
    };
    // The end of a template that is literal is compared without a pass over the whole URI.
    let ends_alike = match steps[start..].last() {
        Some(Step::Literal(text)) => uri[place..].ends_with(text),
        Some(Step::Variable(_)) => true,
        None => place == uri.len(),
    };
    if !ends_alike {
        return (None, 0);
    }
    let fit = Fit::new(&steps[start..], uri);
    if !fit.fits(0, place, false) {
        return (None, fit.work);
    }
    let limit = WORK_ON_TOP + WORK_PER_BYTE * uri.len();
    let found = vec![Found::Nothing; steps.len()];
    let mut search = Search { steps, open_steps: &steps[start..], uri, fit, found, left: limit };
    let bindings = search.walk(0, place, false);
    (bindings, search.fit.work + limit - search.left)
}

struct Search<'a> {
    steps: &'a [Step],
    /// The steps but for a literal at the start, which is checked. Indexes are into these.
    open_steps: &'a [Step],
    uri: &'a str,
    fit: Fit,
    /// By slot.
    found: Vec<Found>,
    /// Work that may still be done.
    left: usize,
}

#[derive(Clone)]
enum Found {
    Nothing,
    Undefined,
    Value {
        value: Value,
        /// Seen as a prefix only; the value may be longer.
        is_prefix: bool,
    },
}

impl Found {
    fn value(&self) -> Option<&Value> {
        match self {
            Found::Nothing | Found::Undefined => None,
            Found::Value { value, .. } => Some(value),
        }
    }
}

impl<'a> Search<'a> {
    /// The steps from `index` on, from `place` on. At most as deep as there are steps.
    fn walk(&mut self, index: usize, place: usize, is_started: bool) -> Option<Bindings> {
        let steps = self.open_steps;
        match steps.get(index) {
            None => self.prove(),
            Some(Step::Literal(text)) => self.walk(index + 1, place + text.len(), false),
            Some(Step::Variable(variable)) => match &self.found[variable.slot] {
                Found::Value { value, is_prefix: false } => {
                    let item = expand::item(variable, value);
                    self.walk_known(index, variable, item.as_deref(), place, is_started)
                }
                Found::Undefined => self.walk_known(index, variable, None, place, is_started),
                Found::Nothing | Found::Value { is_prefix: true, .. } => {
                    self.walk_open(index, variable, place, is_started)
                }
            },
        }
    }

    /// A variable whose value an earlier occurrence has fixed.
    fn walk_known(
        &mut self,
        index: usize,
        variable: &Variable,
        item: Option<&str>,
        place: usize,
        is_started: bool,
    ) -> Option<Bindings> {
        let Some(item) = item else {
            return self.walk_behind(index, variable, place, is_started);
        };
        self.spend(WORK_PER_TRY + item.len())?;
        let begin = self.behind_lead(variable, place, is_started)?;
        let is_here = self.uri[begin..].starts_with(item);
        if is_here { self.walk_behind(index, variable, begin + item.len(), true) } else { None }
    }

    /// A variable that is free: the shortest item first, then none, then an empty one.
    fn walk_open(&mut self, index: usize, variable: &'a Variable, place: usize, is_started: bool) -> Option<Bindings> {
        let uri = self.uri.as_bytes();
        let begin = self.behind_lead(variable, place, is_started);
        let start = begin.and_then(|begin| Cursor::enter(variable, uri, begin));
        let mut cursor = start;
        while let (Some(begin), Some(at)) = (begin, cursor) {
            self.spend(1)?;
            if at.place > begin && at.may_end(variable) {
                let found = self.walk_item(index, variable, begin, at.place);
                if found.is_some() {
                    return found;
                }
            }
            cursor = at.advance(variable, uri);
        }
        let unset = match variable.modifier {
            // A list has no prefix; it may still come.
            Modifier::Prefix(_) => self.found[variable.slot].clone(),
            Modifier::Plain | Modifier::Explode => Found::Undefined,
        };
        let found = self.with(variable, unset, |search| search.walk_behind(index, variable, place, is_started));
        if found.is_some() {
            return found;
        }
        match (begin, start) {
            (Some(begin), Some(at)) if at.place == begin && at.may_end(variable) => {
                self.walk_item(index, variable, begin, begin)
            }
            _ => None,
        }
    }

    /// The item of a free variable reaches from `begin` to `end`.
    fn walk_item(&mut self, index: usize, variable: &Variable, begin: usize, end: usize) -> Option<Bindings> {
        if !self.fit.fits(index + 1, end, !variable.is_last) {
            return None;
        }
        self.spend(WORK_PER_TRY + end - begin)?;
        let value = expand::read_item(variable, &self.uri[begin..end]);
        let is_prefix = variable.is_prefix();
        let found = match (&value, self.found[variable.slot].value()) {
            // Of two prefixes the longer one says more.
            (Value::String(prefix), Some(Value::String(longer))) if is_prefix && longer.len() > prefix.len() => {
                self.found[variable.slot].clone()
            }
            _ => Found::Value { value, is_prefix },
        };
        self.with(variable, found, |search| search.walk_behind(index, variable, end, true))
    }

    /// Behind a variable; `is_started` says whether its expression has written anything.
    fn walk_behind(&mut self, index: usize, variable: &Variable, place: usize, is_started: bool) -> Option<Bindings> {
        let is_started = is_started && !variable.is_last;
        if self.fit.fits(index + 1, place, is_started) { self.walk(index + 1, place, is_started) } else { None }
    }

    /// The place where an item of `variable` begins, if what must stand before it stands at `place`.
    fn behind_lead(&self, variable: &Variable, place: usize, is_started: bool) -> Option<usize> {
        match variable.lead(is_started) {
            None => Some(place),
            Some(lead) => (self.uri.as_bytes().get(place) == Some(&lead)).then_some(place + 1),
        }
    }

    fn with(
        &mut self,
        variable: &Variable,
        found: Found,
        walk: impl FnOnce(&mut Self) -> Option<Bindings>,
    ) -> Option<Bindings> {
        let before = mem::replace(&mut self.found[variable.slot], found);
        let bindings = walk(self);
        self.found[variable.slot] = before;
        bindings
    }

    /// What was found counts only if it expands to the URI.
    fn prove(&mut self) -> Option<Bindings> {
        self.spend(self.uri.len())?;
        let expanded = expand::expand(self.steps, |variable| self.found[variable.slot].value());
        if expanded != self.uri {
            return None;
        }
        let mut values = Vec::new();
        for step in self.steps {
            // Taken once, it is gone for further occurrences.
            if let Step::Variable(variable) = step
                && let Found::Value { value, .. } = mem::replace(&mut self.found[variable.slot], Found::Nothing)
            {
                values.push((variable.name.clone(), value));
            }
        }
        Some(Bindings(values))
    }

    fn spend(&mut self, work: usize) -> Option<()> {
        self.left = self.left.checked_sub(work)?;
        Some(())
    }
}
