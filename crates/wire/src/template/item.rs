//! The text that one variable may stand for, read from its start, as by an automaton.
//!
//! An item is what `expand::item` writes. At a place within one, several readings may be open at once; they are bits.
//! `fit` has the same grammar the other way round; a property test holds the two together.

use super::parse::{Modifier, Variable};

/// In a value, or a list of them.
const TEXT: u8 = 1;
/// Behind the fixed name, or in the name of an exploded pair.
const HEAD: u8 = 2;
/// Behind an `=` that must not stand before an empty value.
const START: u8 = 4;
/// In the value of an exploded pair.
const PAIR: u8 = 8;

/// A place within an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) place: usize,
    readings: u8,
    /// Units that a prefix may still have.
    left: usize,
}

impl Cursor {
    /// The place where an item begins, or behind its name if that is fixed.
    pub(super) fn enter(variable: &Variable, uri: &[u8], place: usize) -> Option<Cursor> {
        let name = variable.fixed_name().as_bytes();
        let readings = match variable.modifier {
            _ if variable.operator.is_named() => HEAD,
            Modifier::Explode if variable.has_pairs() => TEXT | HEAD,
            Modifier::Explode | Modifier::Plain | Modifier::Prefix(_) => TEXT,
        };
        let cursor = Cursor { place: place + name.len(), readings, left: variable.limit() };
        uri[place..].starts_with(name).then_some(cursor)
    }

    pub(super) fn may_end(self, variable: &Variable) -> bool {
        self.readings & (TEXT | PAIR) != 0 || (self.readings & HEAD != 0 && variable.operator.drops_equals())
    }

    /// The next place within the item; `None` if none can go on so far.
    pub(super) fn advance(self, variable: &Variable, uri: &[u8]) -> Option<Cursor> {
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
        (readings != 0).then_some(Cursor { place: self.place + unit.max(1), readings, left })
    }
}
