//! The text that one variable can produce, read from its start by an automaton.
//!
//! An item is the text that `expand::item` writes. Several readings may be open at one place. They are stored as bits.
//! `fit` implements the same grammar in the other direction. A property test checks that the two agree.

use super::parse::{Modifier, Variable};

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
pub(super) struct ItemCursor {
    pub(super) place: usize,
    readings: u8,
    /// The number of units that a prefix may still have.
    left: usize,
}

impl ItemCursor {
    /// Starts an item at `place`, after its name if the name is fixed. Returns `None` if the URI does not have that
    /// name.
    pub(super) fn enter(variable: &Variable, uri: &[u8], place: usize) -> Option<ItemCursor> {
        let name = variable.fixed_name().as_bytes();
        let readings = match variable.modifier {
            _ if variable.operator.is_named() => HEAD,
            Modifier::Explode if variable.has_pairs() => TEXT | HEAD,
            Modifier::Explode | Modifier::Plain | Modifier::Prefix(_) => TEXT,
        };
        let cursor = ItemCursor { place: place + name.len(), readings, left: variable.limit() };
        uri[place..].starts_with(name).then_some(cursor)
    }

    /// Reports whether the item may end here.
    pub(super) fn may_end(self, variable: &Variable) -> bool {
        self.readings & (TEXT | PAIR) != 0 || (self.readings & HEAD != 0 && variable.operator.drops_equals())
    }

    /// Moves to the next place within the item. Returns `None` if no reading can continue.
    pub(super) fn advance(self, variable: &Variable, uri: &[u8]) -> Option<ItemCursor> {
        let rest = &uri[self.place..];
        let byte = *rest.first()?;
        let unit = variable.operator.charset().unit(rest);
        let is_unit = unit > 0;
        let is_joint = Some(byte) == variable.joint();
        let explodes = variable.modifier == Modifier::Explode;
        let drops_equals = variable.operator.drops_equals();
        let value = if explodes { PAIR } else { TEXT };

        let mut readings = 0;
        let mut open = |from: u8, condition: bool, to: u8| {
            if self.readings & from != 0 && condition {
                readings |= to;
            }
        };
        open(TEXT, is_unit || is_joint, TEXT);
        open(HEAD, explodes && (is_unit || (is_joint && drops_equals)), HEAD);
        open(HEAD, byte == b'=', if drops_equals { START } else { value });
        open(START, is_unit || (is_joint && !explodes), value);
        open(PAIR, is_unit, PAIR);
        open(PAIR, is_joint, HEAD);
        let left = if is_unit { self.left.checked_sub(1)? } else { self.left };
        (readings != 0).then_some(ItemCursor { place: self.place + unit.max(1), readings, left })
    }
}
