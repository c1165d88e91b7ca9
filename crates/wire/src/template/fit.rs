//! Decides whether a template fits a URI. One pass runs from the end of the URI to its start and finds for each step
//! the places from which the rest fits.
//!
//! The pass treats every occurrence of a variable as independent. Its work depends only on the sizes of template and
//! URI.

use super::{
    characters::Charset,
    parse::{Modifier, Operator, Step, Variable},
    places::{Bytes, Places},
};

/// Reports whether the steps fit the URI from `place` on. Also returns the work: the number of set operations in words,
/// up to a constant factor.
pub(super) fn fits(steps: &[Step], uri: &str, place: usize) -> (bool, usize) {
    let mut text = UriSets::new(steps, uri.as_bytes());
    let mut end = Places::none(uri.len());
    end.insert(uri.len());
    let mut row = FitRow { fresh: end, started: Places::none(uri.len()) };
    for step in steps.iter().rev() {
        row = match step {
            Step::Literal(literal) => text.row_of_literal(literal.as_bytes(), &row),
            Step::Variable(variable) => text.row_of_variable(variable, &row),
        };
    }
    (row.fresh.contains(place), text.work)
}

/// The places from which the rest of the template fits, before one step.
struct FitRow {
    /// The places from which the rest fits if the expression has written nothing so far.
    fresh: Places,
    /// The places from which the rest fits if the expression has written something.
    started: Places,
}

/// A URI in the form of sets.
struct UriSets<'a> {
    uri: &'a [u8],
    /// The places inside a unit. No step begins or ends there.
    inside: Places,
    /// The bytes of the units of each charset.
    units: [Bytes; Charset::COUNT],
    /// The positions of each byte value. `None` if the steps do not need this byte.
    bytes: Vec<Option<Bytes>>,
    /// The pairs of the operators that the steps have needed so far.
    pairs: Vec<(Operator, Pairs)>,
    work: usize,
}

impl<'a> UriSets<'a> {
    fn new(steps: &[Step], uri: &'a [u8]) -> UriSets<'a> {
        let none = Places::none(uri.len());
        let mut bytes = vec![None; 128];
        for byte in steps.iter().flat_map(Step::bytes) {
            bytes[usize::from(byte)].get_or_insert_with(|| none.clone());
        }
        for (place, &byte) in uri.iter().enumerate() {
            if let Some(Some(bytes)) = bytes.get_mut(usize::from(byte)) {
                bytes.insert(place + 1);
            }
        }
        let mut inside = none.clone();
        let mut units = [none.clone(), none.clone(), none];
        let mut start = 0;
        while start < uri.len() {
            let length = Charset::Reserved.unit(&uri[start..]).max(1);
            for charset in Charset::ALL {
                if charset.unit(&uri[start..]) > 0 {
                    (1..=length).for_each(|offset| units[charset as usize].insert(start + offset));
                }
            }
            (1..length).for_each(|offset| inside.insert(start + offset));
            start += length;
        }
        UriSets { uri, inside, units, bytes, pairs: Vec::new(), work: 0 }
    }

    fn row_of_literal(&mut self, literal: &[u8], next: &FitRow) -> FitRow {
        let fresh = self.back_over(literal, next.fresh.clone()).without(&self.inside);
        FitRow { fresh, started: Places::none(self.uri.len()) }
    }

    fn row_of_variable(&mut self, variable: &Variable, next: &FitRow) -> FitRow {
        // The next expression begins after the last variable of this one.
        let ends = if variable.is_last { &next.fresh } else { &next.started };
        let items = self.items(variable, ends);
        let with_first = match variable.lead(false) {
            Some(first) => self.back_over(&[first], items.clone()),
            None => items.clone(),
        };
        let with_separator = self.back_over(&[variable.operator.separator()], items);
        // A variable may also be undefined and write nothing.
        FitRow { fresh: with_first.or(&next.fresh), started: with_separator.or(ends) }
    }

    /// Returns the places where an item of `variable` can begin that ends at one of `ends`.
    fn items(&mut self, variable: &Variable, ends: &Places) -> Places {
        if variable.has_pairs() {
            let pairs = self.pairs(variable.operator, ends);
            // Named operators write lists as pairs too, with the same name in each pair.
            return if variable.operator.is_named() { pairs } else { self.values(variable, ends).or(ends).or(&pairs) };
        }
        let values = self.values(variable, ends);
        if !variable.operator.is_named() {
            return values.or(ends);
        }
        let after_name = if variable.operator.drops_equals() {
            self.back_over(b"=", values).or(ends)
        } else {
            self.back_over(b"=", values.or(ends))
        };
        self.back_over(variable.name.as_bytes(), after_name)
    }

    /// Returns the places where a non-empty value or a list can begin.
    fn values(&mut self, variable: &Variable, ends: &Places) -> Places {
        let units = &self.units[variable.operator.charset() as usize];
        let bytes = match variable.modifier {
            Modifier::Prefix(limit) => {
                self.work += self.uri.len();
                return ends.back_up_to(limit, units, &self.inside);
            }
            Modifier::Plain => units.clone().or(self.byte(b',')),
            Modifier::Explode => units.clone().or(self.byte(variable.operator.separator())),
        };
        self.work += bytes.words();
        ends.clone().back_through(&bytes).back(&bytes).without(&self.inside)
    }

    /// Returns the places where exploded pairs can begin.
    fn pairs(&mut self, operator: Operator, ends: &Places) -> Places {
        let units = &self.units[Charset::Unreserved as usize];
        let index = self.pairs.iter().position(|(known, _)| *known == operator).unwrap_or_else(|| {
            self.work += self.uri.len();
            self.pairs.push((operator, Pairs::new(operator, self.uri, units)));
            self.pairs.len() - 1
        });
        let pairs = &self.pairs[index].1;
        self.work += 2 * pairs.bytes.words();
        let reached = ends.clone().and(&pairs.ends).back_through(&pairs.bytes);
        let begins = if operator.drops_equals() { reached } else { reached.back(self.byte(b'=')).back_through(units) };
        begins.without(&self.inside)
    }

    /// Moves `places` back over `text`.
    fn back_over(&mut self, text: &[u8], places: Places) -> Places {
        self.work += text.len() * places.words();
        text.iter().rev().fold(places, |places, byte| places.back(self.byte(*byte)))
    }

    fn byte(&self, byte: u8) -> &Bytes {
        self.bytes[usize::from(byte)].as_ref().expect("`Step::bytes` returns every byte that the steps need")
    }
}

/// The positions where exploded pairs such as `a=1&b=2` can be read.
///
/// For `;` these sets hold for all pairs, because a `;` always precedes the first. For other operators they hold only
/// after the first `=`. From there on, `=` and separators must alternate.
struct Pairs {
    /// The bytes over which the pairs can continue.
    bytes: Bytes,
    /// The places where the last pair can end.
    ends: Places,
}

impl Pairs {
    fn new(operator: Operator, uri: &[u8], units: &Bytes) -> Pairs {
        let separator = operator.separator();
        let mut bytes = Places::none(uri.len());
        let mut ends = Places::none(uri.len());
        // The last `=` or separator. `None` if a byte since then cannot belong to pairs.
        let mut last = None;
        let mut before = None;
        for (index, &byte) in uri.iter().enumerate() {
            let is_delimiter = byte == b'=' || byte == separator;
            let continues = match operator {
                _ if !is_delimiter => units.contains(index + 1),
                // An empty value must not follow `=`. Empty pairs and pairs without `=` are allowed.
                Operator::Parameter if byte == separator => before != Some(b'='),
                // Names and values may contain the separator too.
                Operator::Label if byte == separator => true,
                _ => last != Some(byte),
            };
            if is_delimiter {
                last = Some(byte);
            } else if !continues {
                last = None;
            }
            let is_end = match operator {
                Operator::Parameter => byte != b'=',
                Operator::Label => true,
                _ => last == Some(b'='),
            };
            if continues {
                bytes.insert(index + 1);
            }
            if is_end {
                ends.insert(index + 1);
            }
            before = Some(byte);
        }
        Pairs { bytes, ends }
    }
}
