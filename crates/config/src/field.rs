//! One value of the file while it is being read: its place, its path, and the ways to take it.
//!
//! Every `Option` that a method returns means the same: `None` was reported. A caller that gets `None` leaves its default
//! in place and goes on, so that one reading finds all problems.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use jsonc_parser::ast::{Object, Value};
use jsonc_parser::common::Ranged;

use crate::document::{item_path, member_path};
use crate::expand::{Expanded, expand};
use crate::file::Origin;
use crate::problem::{Fault, Report};
use crate::vocabulary::{Keys, choose};
use crate::{Environment, Timeout, quantity};

/// More of anything is a slip of the finger.
pub(crate) const LARGEST_COUNT: u64 = 10_000_000;

/// What all fields of a file share.
pub(crate) struct Context<'a> {
    pub(crate) origin: &'a Origin,
    pub(crate) environment: Environment<'a>,
    pub(crate) report: Report,
    pub(crate) expansions: RefCell<Expansions>,
}

/// The variables that the file expands, each with the part of the file that expands it.
#[derive(Default)]
pub(crate) struct Expansions {
    pub(crate) part: Part,
    pub(crate) variables: Vec<(Part, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    #[default]
    Other,
    /// A token of the gateway itself.
    Token,
    Server(String),
}

impl Expansions {
    /// Returns the variables that these parts expand.
    pub(crate) fn of(&self, is_meant: impl Fn(&Part) -> bool) -> impl Iterator<Item = &str> {
        self.variables.iter().filter(move |(part, _)| is_meant(part)).map(|(_, name)| name.as_str())
    }
}

impl Context<'_> {
    /// Notes everything that `read` expands as used by this part.
    pub(crate) fn within<T>(&self, part: Part, read: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut self.expansions.borrow_mut().part, part);
        let value = read();
        self.expansions.borrow_mut().part = before;
        value
    }

    fn look_up(&self, name: &str) -> Option<String> {
        let Expansions { part, variables } = &mut *self.expansions.borrow_mut();
        variables.push((part.clone(), name.to_owned()));
        (self.environment)(name)
    }
}

#[derive(Clone)]
pub(crate) struct Field<'a> {
    path: String,
    /// Where the key stands; for the root and for elements of an array, the value.
    key: usize,
    value: &'a Value<'a>,
    context: &'a Context<'a>,
}

impl<'a> Field<'a> {
    pub(crate) fn root(value: &'a Value<'a>, context: &'a Context<'a>) -> Field<'a> {
        Field { path: String::new(), key: value.start(), value, context }
    }

    pub(crate) fn context(&self) -> &'a Context<'a> {
        self.context
    }

    pub(crate) fn problem(&self, fault: Fault) {
        self.context.report.problem(self.value.start(), &self.path, fault);
    }

    /// For faults of the key itself.
    pub(crate) fn key_problem(&self, fault: Fault) {
        self.context.report.problem(self.key, &self.path, fault);
    }

    /// For what is not wrong but seldom meant.
    pub(crate) fn warning(&self, fault: Fault) {
        self.context.report.warning(self.value.start(), &self.path, fault);
    }

    /// Takes the outcome of a check, reporting the fault.
    pub(crate) fn accept<T>(&self, outcome: Result<T, Fault>) -> Option<T> {
        outcome.map_err(|fault| self.problem(fault)).ok()
    }

    /// An object with known keys; unknown ones are reported.
    pub(crate) fn section(&self, keys: &Keys) -> Option<Section<'a>> {
        let section = self.map()?;
        for (name, field) in section.fields() {
            if let Err(fault) = keys.check(name) {
                field.key_problem(fault);
            }
        }
        Some(section)
    }

    /// Likewise, where something else may stand for the object, which this is not.
    pub(crate) fn section_or(&self, short: &str, keys: &Keys) -> Option<Section<'a>> {
        if self.is_object() { self.section(keys) } else { self.wrong(&format!("{short} or an object")) }
    }

    /// An object whose keys the operator chooses.
    pub(crate) fn map(&self) -> Option<Section<'a>> {
        match self.value {
            Value::Object(object) => Some(Section { field: self.clone(), object }),
            _ => self.wrong("an object"),
        }
    }

    /// An array, each element taken by `read`. Elements with problems are left out.
    pub(crate) fn list<T>(&self, read: impl Fn(&Field<'a>) -> Option<T>) -> Option<Vec<T>> {
        let Value::Array(array) = self.value else {
            return self.wrong("an array");
        };
        let element = |(index, value): (usize, &'a Value<'a>)| {
            let path = item_path(&self.path, index);
            read(&Field { path, key: value.start(), value, context: self.context })
        };
        Some(array.elements.iter().enumerate().filter_map(element).collect())
    }

    pub(crate) fn is_object(&self) -> bool {
        matches!(self.value, Value::Object(_))
    }

    pub(crate) fn is_array(&self) -> bool {
        matches!(self.value, Value::Array(_))
    }

    pub(crate) fn is_flag(&self) -> bool {
        matches!(self.value, Value::BooleanLit(_))
    }

    pub(crate) fn is_string(&self) -> bool {
        matches!(self.value, Value::StringLit(_))
    }

    pub(crate) fn text(&self) -> Option<&'a str> {
        match self.value {
            Value::StringLit(literal) => Some(&literal.value),
            _ => self.wrong("a string"),
        }
    }

    /// A string that may hold `${VAR}`. It goes to a process or a system call, so it cannot hold a NUL.
    pub(crate) fn expanded(&self) -> Option<String> {
        let context = self.context;
        match expand(self.text()?, &|name| context.look_up(name), &context.origin.directory) {
            Ok(text) if text.contains('\0') => self.accept(Err(Fault::new("must not hold a NUL character"))),
            Ok(text) => Some(text),
            Err(faults) => {
                faults.into_iter().for_each(|fault| self.problem(fault));
                None
            }
        }
    }

    /// The same, with the text as it was written.
    pub(crate) fn expansion(&self) -> Option<Expanded> {
        Some(Expanded::new(self.expanded()?, self.text()?))
    }

    /// A path; a relative one starts at the directory of the file.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let text = self.expanded()?;
        if text.is_empty() {
            return self.accept(Err(Fault::new("must not be empty")));
        }
        if text.starts_with('~') {
            return self.accept(Err(Fault::new("\"~\" is not expanded").cure("write ${HOME}")));
        }
        // Collecting the components drops `.`, so that equal places are spelled alike.
        Some(self.context.origin.directory.join(text).components().collect())
    }

    pub(crate) fn flag(&self) -> Option<bool> {
        match self.value {
            Value::BooleanLit(literal) => Some(literal.value),
            _ => self.wrong("true or false"),
        }
    }

    pub(crate) fn choice<T: Copy>(&self, values: &[(&str, T)], unserved: &[&str]) -> Option<T> {
        self.accept(choose(self.text()?, values, unserved))
    }

    pub(crate) fn whole<T: TryFrom<u64>>(&self, range: RangeInclusive<u64>) -> Option<T> {
        let number = self.number().filter(|number| range.contains(number)).and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            let (least, most) = range.into_inner();
            self.problem(Fault::new(format!("must be a whole number from {least} to {most}")));
        }
        number
    }

    pub(crate) fn count(&self) -> Option<usize> {
        self.whole(1..=LARGEST_COUNT)
    }

    pub(crate) fn size(&self) -> Option<usize> {
        self.accept(match self.value {
            Value::StringLit(literal) => quantity::size(&literal.value),
            Value::NumberLit(_) => quantity::bytes(self.number()),
            _ => Err(quantity::not_a_size()),
        })
    }

    /// Reads a size that may be larger than any message.
    pub(crate) fn memory(&self) -> Option<usize> {
        match self.value {
            Value::StringLit(literal) => self.accept(quantity::memory(&literal.value)),
            _ => self.size(),
        }
    }

    /// A duration for which 0 means at once.
    pub(crate) fn duration(&self) -> Option<Duration> {
        self.accept(match self.value {
            Value::StringLit(literal) => quantity::duration(&literal.value),
            Value::NumberLit(_) if self.number() == Some(0) => Ok(Duration::ZERO),
            _ => Err(quantity::not_a_duration()),
        })
    }

    pub(crate) fn positive_duration(&self) -> Option<Duration> {
        let duration = self.duration()?;
        self.accept(if duration.is_zero() { Err(Fault::new("must be more than 0")) } else { Ok(duration) })
    }

    /// A duration for which 0 means that there is no limit.
    pub(crate) fn timeout(&self) -> Option<Timeout> {
        self.duration().map(timeout)
    }

    /// As other clients have it: a plain number counts milliseconds.
    pub(crate) fn timeout_or_milliseconds(&self) -> Option<Timeout> {
        match (self.value, self.number()) {
            (Value::NumberLit(_), Some(number)) => self.accept(quantity::milliseconds(Some(number))).map(timeout),
            _ => self.timeout(),
        }
    }

    /// Warns of a secret that stands in a file everybody can read.
    pub(crate) fn warn_if_literal_secret(&self) {
        let literal = matches!(self.value, Value::StringLit(literal) if !literal.value.contains("${"));
        if literal && self.context.origin.is_world_readable() {
            let fault = Fault::new("a secret in a file that everybody can read")
                .cure(format!("write ${{VAR}} instead, or {}", self.context.origin.chmod("o-r")));
            self.warning(fault);
        }
    }

    fn number(&self) -> Option<u64> {
        match self.value {
            Value::NumberLit(literal) => literal.value.parse().ok(),
            _ => None,
        }
    }

    fn wrong<T>(&self, wanted: &str) -> Option<T> {
        let found = match self.value {
            Value::StringLit(_) => "a string",
            Value::NumberLit(_) => "a number",
            Value::BooleanLit(_) => "true or false",
            Value::Object(_) => "an object",
            Value::Array(_) => "an array",
            Value::NullKeyword(_) => "null",
        };
        self.accept(Err(Fault::new(format!("must be {wanted}, not {found}"))))
    }
}

fn timeout(duration: Duration) -> Timeout {
    if duration.is_zero() { Timeout::Never } else { Timeout::After(duration) }
}

/// An object of the file.
pub(crate) struct Section<'a> {
    field: Field<'a>,
    object: &'a Object<'a>,
}

impl<'a> Section<'a> {
    /// The object as a value, for faults of the whole.
    pub(crate) fn field(&self) -> &Field<'a> {
        &self.field
    }

    /// All members in the order of the file, `null` ones too.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> {
        let (path, context) = (self.field.path.as_str(), self.field.context);
        self.object.properties.iter().map(move |property| {
            let name = property.name.as_str();
            let path = member_path(path, name);
            (name, Field { path, key: property.name.start(), value: &property.value, context })
        })
    }

    /// A member; `null` is the same as absent.
    pub(crate) fn get(&self, key: &str) -> Option<Field<'a>> {
        let property = self.object.get(key)?;
        if let Value::NullKeyword(_) = property.value {
            return None;
        }
        Some(Field {
            path: member_path(&self.field.path, key),
            key: property.name.start(),
            value: &property.value,
            context: self.field.context,
        })
    }

    /// The member with one of these names, which mean the same. Two of them are reported.
    pub(crate) fn one_of(&self, names: &[&str]) -> Option<Field<'a>> {
        let mut present = names.iter().filter_map(|name| Some((*name, self.get(name)?)));
        let (kept, field) = present.next()?;
        for (name, extra) in present {
            extra.key_problem(Fault::new(format!("\"{name}\" and \"{kept}\" mean the same")).cure("keep one"));
        }
        Some(field)
    }

    /// Reads a member over its default.
    pub(crate) fn set<T>(&self, slot: &mut T, key: &str, read: impl FnOnce(&Field<'a>) -> Option<T>) {
        if let Some(value) = self.get(key).and_then(|field| read(&field)) {
            *slot = value;
        }
    }
}
