//! The pass from the start of the URI to its end. It chooses the value of each variable where [`Fit`] reports that the
//! rest fits.

use std::mem;

use super::{
    Bindings, Value, expand,
    fit::Fit,
    item::ItemCursor,
    parse::{Modifier, Step, Variable},
};

/// The work limit of the pass has two parts. Each byte allows four visits (find, read, expand, compare), which is
/// enough if no variable occurs twice. A fixed amount is added for repeated variables.
const WORK_PER_BYTE: usize = 4;
const WORK_ON_TOP: usize = 32 * 1024;
/// The cost of trying a value, in addition to its bytes.
const WORK_PER_TRY: usize = 32;

/// Returns values with which `steps` expand to `uri`, and the work of both passes. The tests check a limit on the work.
pub(super) fn search(steps: &[Step], uri: &str) -> (Option<Bindings>, usize) {
    let (start, place) = match steps.first() {
        Some(Step::Literal(text)) if !uri.starts_with(text) => return (None, 0),
        Some(Step::Literal(text)) => (1, text.len()),
        Some(Step::Variable(_)) | None => (0, 0),
    };
    // A literal end is compared first, to avoid a pass over the whole URI.
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
    let found = vec![VariableState::Nothing; steps.len()];
    let mut search = Search { steps, open_steps: &steps[start..], uri, fit, found, left: limit };
    let bindings = search.walk(0, place, false);
    (bindings, search.fit.work + limit - search.left)
}

struct Search<'a> {
    steps: &'a [Step],
    /// The steps without the literal at the start, which is already checked. All indexes refer to these steps.
    open_steps: &'a [Step],
    uri: &'a str,
    fit: Fit,
    /// The values found so far, by slot.
    found: Vec<VariableState>,
    /// The work that the pass may still do.
    left: usize,
}

/// The state of a variable during the pass.
#[derive(Clone)]
enum VariableState {
    Nothing,
    Undefined,
    Value {
        value: Value,
        /// True if the variable occurred as a prefix only, so its value may be longer.
        is_prefix: bool,
    },
}

impl VariableState {
    fn value(&self) -> Option<&Value> {
        match self {
            VariableState::Nothing | VariableState::Undefined => None,
            VariableState::Value { value, .. } => Some(value),
        }
    }
}

impl<'a> Search<'a> {
    /// Matches the steps from `index` on with the URI from `place` on. The recursion is at most as deep as the list of
    /// steps.
    fn walk(&mut self, index: usize, place: usize, is_started: bool) -> Option<Bindings> {
        let steps = self.open_steps;
        match steps.get(index) {
            None => self.prove(),
            Some(Step::Literal(text)) => self.walk(index + 1, place + text.len(), false),
            Some(Step::Variable(variable)) => match &self.found[variable.slot] {
                VariableState::Value { value, is_prefix: false } => {
                    let item = expand::item(variable, value);
                    self.walk_known(index, variable, item.as_deref(), place, is_started)
                }
                VariableState::Undefined => self.walk_known(index, variable, None, place, is_started),
                VariableState::Nothing | VariableState::Value { is_prefix: true, .. } => {
                    self.walk_open(index, variable, place, is_started)
                }
            },
        }
    }

    /// Matches a variable with a value that an earlier occurrence has fixed.
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

    /// Matches a free variable. Tries the shortest item first, then an undefined value, then an empty one.
    fn walk_open(&mut self, index: usize, variable: &'a Variable, place: usize, is_started: bool) -> Option<Bindings> {
        let uri = self.uri.as_bytes();
        let begin = self.behind_lead(variable, place, is_started);
        let start = begin.and_then(|begin| ItemCursor::enter(variable, uri, begin));
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
            // A prefix of a list is undefined, so a later occurrence may still provide the list.
            Modifier::Prefix(_) => self.found[variable.slot].clone(),
            Modifier::Plain | Modifier::Explode => VariableState::Undefined,
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

    /// Gives a free variable the item from `begin` to `end` and continues after it.
    fn walk_item(&mut self, index: usize, variable: &Variable, begin: usize, end: usize) -> Option<Bindings> {
        if !self.fit.fits(index + 1, end, !variable.is_last) {
            return None;
        }
        self.spend(WORK_PER_TRY + end - begin)?;
        let value = expand::read_item(variable, &self.uri[begin..end]);
        let is_prefix = variable.is_prefix();
        let found = match (&value, self.found[variable.slot].value()) {
            // The longer of two prefixes carries more information.
            (Value::String(prefix), Some(Value::String(longer))) if is_prefix && longer.len() > prefix.len() => {
                self.found[variable.slot].clone()
            }
            _ => VariableState::Value { value, is_prefix },
        };
        self.with(variable, found, |search| search.walk_behind(index, variable, end, true))
    }

    /// Continues after a variable. `is_started` is true if its expression has written anything.
    fn walk_behind(&mut self, index: usize, variable: &Variable, place: usize, is_started: bool) -> Option<Bindings> {
        let is_started = is_started && !variable.is_last;
        if self.fit.fits(index + 1, place, is_started) { self.walk(index + 1, place, is_started) } else { None }
    }

    /// Returns the place where an item of `variable` begins. Returns `None` if its lead character is not at `place`.
    fn behind_lead(&self, variable: &Variable, place: usize, is_started: bool) -> Option<usize> {
        match variable.lead(is_started) {
            None => Some(place),
            Some(lead) => (self.uri.as_bytes().get(place) == Some(&lead)).then_some(place + 1),
        }
    }

    /// Sets the state of a variable while `walk` runs, and restores it afterwards.
    fn with(
        &mut self,
        variable: &Variable,
        found: VariableState,
        walk: impl FnOnce(&mut Self) -> Option<Bindings>,
    ) -> Option<Bindings> {
        let before = mem::replace(&mut self.found[variable.slot], found);
        let bindings = walk(self);
        self.found[variable.slot] = before;
        bindings
    }

    /// Returns the values found if they expand to exactly the URI.
    fn prove(&mut self) -> Option<Bindings> {
        self.spend(self.uri.len())?;
        let expanded = expand::expand(self.steps, |variable| self.found[variable.slot].value());
        if expanded != self.uri {
            return None;
        }
        let mut values = Vec::new();
        for step in self.steps {
            // Further occurrences of the variable must not add its value again.
            if let Step::Variable(variable) = step
                && let VariableState::Value { value, .. } =
                    mem::replace(&mut self.found[variable.slot], VariableState::Nothing)
            {
                values.push((variable.name.clone(), value));
            }
        }
        Some(Bindings(values))
    }

    /// Subtracts `work` from the limit. Returns `None` if the limit is reached.
    fn spend(&mut self, work: usize) -> Option<()> {
        self.left = self.left.checked_sub(work)?;
        Some(())
    }
}
