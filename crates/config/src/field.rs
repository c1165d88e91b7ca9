//! One value of the file during reading, with its position and path.
//!
//! A method of [`Field`] that returns `None` has already reported the problem. The caller then keeps its default and
//! continues, so one pass finds all problems.

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use jsonc_parser::ast::{Object, Value};
use jsonc_parser::common::Ranged;

use crate::document::{item_path, member_path};
use crate::expand::{ExpandedText, Place, expand};
use crate::file::ConfigOrigin;
use crate::problem::{Fault, ProblemCollector};
use crate::schema::ObjectKeys;
use crate::vocabulary::choose;
use crate::{Environment, Timeout, command_line, quantity};

/// The upper limit of every count. A larger number is taken for a typing error.
pub(crate) const MAX_COUNT: u64 = 10_000_000;

/// State shared by all fields of a file.
pub(crate) struct FieldContext<'a> {
    pub(crate) origin: &'a ConfigOrigin,
    pub(crate) environment: Environment<'a>,
    pub(crate) report: ProblemCollector,
    pub(crate) expansions: RefCell<Expansions>,
}

/// The variables that the file expands, each with the part of the file that expands it.
#[derive(Default)]
pub(crate) struct Expansions {
    pub(crate) part: ConfigPart,
    pub(crate) variables: Vec<(ConfigPart, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ConfigPart {
    #[default]
    Other,
    /// A token of the gateway itself.
    Token,
    Server(String),
}

impl Expansions {
    /// Returns the variables that the matching parts expand.
    pub(crate) fn of(&self, is_selected: impl Fn(&ConfigPart) -> bool) -> impl Iterator<Item = &str> {
        self.variables.iter().filter(move |(part, _)| is_selected(part)).map(|(_, name)| name.as_str())
    }
}

impl FieldContext<'_> {
    /// Runs `read` and attributes every variable that it expands to `part`.
    pub(crate) fn within<T>(&self, part: ConfigPart, read: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut self.expansions.borrow_mut().part, part);
        let value = read();
        self.expansions.borrow_mut().part = before;
        value
    }

    /// Adds a problem. A problem outside of the file concerns only the server whose entry is being read.
    fn problem(&self, offset: usize, path: &str, fault: Fault) {
        match &self.expansions.borrow().part {
            ConfigPart::Server(server) if fault.is_outside() => {
                self.report.server_problem(offset, path, fault, server);
            }
            _ => self.report.problem(offset, path, fault),
        }
    }

    /// Reports whether the server whose entry is being read has a problem that concerns it alone.
    pub(crate) fn is_misconfigured(&self) -> bool {
        matches!(&self.expansions.borrow().part, ConfigPart::Server(server) if self.report.is_misconfigured(server))
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
    /// The offset of the key. For the root and for array elements, the offset of the value.
    key: usize,
    value: &'a Value<'a>,
    context: &'a FieldContext<'a>,
}

impl<'a> Field<'a> {
    pub(crate) fn root(value: &'a Value<'a>, context: &'a FieldContext<'a>) -> Field<'a> {
        Field { path: String::new(), key: value.start(), value, context }
    }

    pub(crate) fn context(&self) -> &'a FieldContext<'a> {
        self.context
    }

    pub(crate) fn problem(&self, fault: Fault) {
        self.context.problem(self.value.start(), &self.path, fault);
    }

    /// Reports a problem at the position of the key.
    pub(crate) fn key_problem(&self, fault: Fault) {
        self.context.problem(self.key, &self.path, fault);
    }

    /// Reports a value that is valid but probably a mistake.
    pub(crate) fn warning(&self, fault: Fault) {
        self.context.report.warning(self.value.start(), &self.path, fault);
    }

    /// Returns the value of a check. Reports the fault if the check failed.
    pub(crate) fn accept<T>(&self, outcome: Result<T, Fault>) -> Option<T> {
        outcome.map_err(|fault| self.problem(fault)).ok()
    }

    /// Reads an object with known keys. Reports unknown keys.
    pub(crate) fn section(&self, keys: ObjectKeys) -> Option<Section<'a>> {
        let section = Section { keys: Some(keys), ..self.map()? };
        for (name, field) in section.fields() {
            if let Err(fault) = keys.check(name) {
                field.key_problem(fault);
            }
        }
        Some(section)
    }

    /// Reads an object like [`Field::section`]. The error for another value also mentions `short`, the short form.
    pub(crate) fn section_or(&self, short: &str, keys: ObjectKeys) -> Option<Section<'a>> {
        if self.is_object() { self.section(keys) } else { self.wrong(&format!("{short} or an object")) }
    }

    /// Reads an object with keys of the operator's choice.
    pub(crate) fn map(&self) -> Option<Section<'a>> {
        match self.value {
            Value::Object(object) => Some(Section { field: self.clone(), object, keys: None }),
            _ => self.wrong("an object"),
        }
    }

    /// Reads an array, each element with `read`. Leaves out elements with problems.
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

    /// Returns a string without expanding it. Returns `None` for another value, and reports nothing.
    pub(crate) fn written(&self) -> Option<&'a str> {
        match self.value {
            Value::StringLit(literal) => Some(&literal.value),
            _ => None,
        }
    }

    /// Reports whether the value is this string.
    pub(crate) fn is_text(&self, text: &str) -> bool {
        matches!(self.value, Value::StringLit(literal) if literal.value == text)
    }

    /// Reads a string and expands `${VAR}`. Rejects NUL, because the string is passed to a process or a system call.
    pub(crate) fn expanded(&self) -> Option<String> {
        let context = self.context;
        let text = self.text()?;
        let place = Place::of(&self.path, text);
        match expand(text, &|name| context.look_up(name), context.origin, place) {
            Ok(text) if text.contains('\0') => self.accept(Err(Fault::new("must not contain a NUL character"))),
            Ok(text) => Some(text),
            Err(faults) => {
                faults.into_iter().for_each(|fault| self.problem(fault));
                None
            }
        }
    }

    /// Reads a string like [`Field::expanded`] and keeps the text as written.
    pub(crate) fn expansion(&self) -> Option<ExpandedText> {
        Some(ExpandedText::new(self.expanded()?, self.text()?))
    }

    /// Reads a path. Relative paths start at the directory of the file.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let text = self.expanded()?;
        if text.is_empty() {
            return self.accept(Err(Fault::new("must not be empty")));
        }
        self.accept(command_line::check_home(&text))?;
        // Collecting the components drops `.`, so equal paths compare equal.
        Some(self.context.origin.directory.join(text).components().collect())
    }

    pub(crate) fn flag(&self) -> Option<bool> {
        match self.value {
            Value::BooleanLit(literal) => Some(literal.value),
            _ => self.wrong("true or false"),
        }
    }

    pub(crate) fn choice<T: Copy>(&self, values: &[(&str, T)]) -> Option<T> {
        self.accept(choose(self.text()?, values))
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
        self.whole(1..=MAX_COUNT)
    }

    pub(crate) fn size(&self) -> Option<usize> {
        self.accept(match self.value {
            Value::StringLit(literal) => quantity::size(&literal.value),
            Value::NumberLit(_) => quantity::bytes(self.number()),
            _ => Err(quantity::not_a_size()),
        })
    }

    /// Reads a size of memory, which may exceed the limit for messages.
    pub(crate) fn memory(&self) -> Option<usize> {
        match self.value {
            Value::StringLit(literal) => self.accept(quantity::memory(&literal.value)),
            _ => self.size(),
        }
    }

    /// Reads a duration. 0 is allowed and means no waiting.
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

    /// Reads a duration for which 0 means no limit.
    pub(crate) fn timeout(&self) -> Option<Timeout> {
        self.duration().map(timeout)
    }

    /// Reads a timeout as other clients write it: a plain number counts milliseconds.
    pub(crate) fn timeout_or_milliseconds(&self) -> Option<Timeout> {
        match (self.value, self.number()) {
            (Value::NumberLit(_), Some(number)) => self.accept(quantity::milliseconds(Some(number))).map(timeout),
            _ => self.timeout(),
        }
    }

    /// Warns if the file is world-readable and the value is a literal secret.
    pub(crate) fn warn_if_literal_secret(&self) {
        let literal = matches!(self.value, Value::StringLit(literal) if !literal.value.contains("${"));
        if literal && self.context.origin.is_world_readable() {
            let fault = Fault::new("every user can read this file, and it contains a secret")
                .cure(format!("write ${{VAR}} or ${{secret:NAME}} instead, or {}", self.context.origin.chmod("o-r")));
            self.warning(fault);
        }
    }

    fn number(&self) -> Option<u64> {
        match self.value {
            Value::NumberLit(literal) => literal.value.parse().ok(),
            _ => None,
        }
    }

    pub(crate) fn wrong<T>(&self, expected: &str) -> Option<T> {
        let found = match self.value {
            Value::StringLit(_) => "a string",
            Value::NumberLit(_) => "a number",
            Value::BooleanLit(_) => "true or false",
            Value::Object(_) => "an object",
            Value::Array(_) => "an array",
            Value::NullKeyword(_) => "null",
        };
        self.accept(Err(Fault::new(format!("must be {expected}, not {found}"))))
    }
}

fn timeout(duration: Duration) -> Timeout {
    if duration.is_zero() { Timeout::Never } else { Timeout::After(duration) }
}

/// An object of the file.
pub(crate) struct Section<'a> {
    field: Field<'a>,
    object: &'a Object<'a>,
    /// The keys in the schema. `None` if the operator chooses the keys.
    keys: Option<ObjectKeys>,
}

impl<'a> Section<'a> {
    /// Returns the object as a field, to report faults of the whole object.
    pub(crate) fn field(&self) -> &Field<'a> {
        &self.field
    }

    /// Returns all members in the order of the file, including `null` ones.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> {
        let (path, context) = (self.field.path.as_str(), self.field.context);
        self.object.properties.iter().map(move |property| {
            let name = property.name.as_str();
            let path = member_path(path, name);
            (name, Field { path, key: property.name.start(), value: &property.value, context })
        })
    }

    /// Returns a member. Treats `null` as absent.
    pub(crate) fn get(&self, key: &str) -> Option<Field<'a>> {
        debug_assert!(self.keys.is_none_or(|keys| keys.knows(key)), "the schema lacks {key} of {:?}", self.keys);
        #[cfg(test)]
        crate::schema::tests::note_read(self.keys, key);
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

    /// Returns the member with one of these equivalent names. Reports a problem if several are present.
    pub(crate) fn one_of(&self, names: &[&str]) -> Option<Field<'a>> {
        let mut present = names.iter().filter_map(|name| Some((*name, self.get(name)?)));
        let (kept, field) = present.next()?;
        for (name, extra) in present {
            extra.key_problem(Fault::new(format!("\"{name}\" and \"{kept}\" mean the same")).cure("keep one"));
        }
        Some(field)
    }

    /// Reads a member into `slot`. Leaves the slot unchanged if the member is absent or has a problem.
    pub(crate) fn set<T>(&self, slot: &mut T, key: &str, read: impl FnOnce(&Field<'a>) -> Option<T>) {
        if let Some(value) = self.get(key).and_then(|field| read(&field)) {
            *slot = value;
        }
    }
}
