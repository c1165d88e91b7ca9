//! The input schema of a tool, compiled within bounds, and the judgement of arguments by it (ROUTE-5).
//!
//! Schema and arguments come from strangers, and a computation cannot be stopped. So the work is bounded before it begins: the
//! schema by its expanded size ([`size`]), a judgement by that size times the length of the arguments. The validator
//! remembers what it found of each reference and value, so a recursive schema stays within that product, too. Patterns run on
//! the linear engine only, and each has [`MAX_PATTERN_BYTES`] when compiled.
//!
//! A schema or a call that exceeds a bound is left to the backend, which judges every call anyway. The validator fetches nothing.

mod size;

use serde_json::Value;

use crate::schema::size::Size;
use goblin_wire::json;

pub use crate::schema::size::MAX_SCHEMA_NODES;

/// Nodes of the schema times bytes of the arguments: about a second at worst.
const MAX_WORK: usize = 100_000_000;
/// So little work is done at once, on whichever thread: about a millisecond at worst.
const MAX_INLINE_WORK: usize = 50_000;
/// Nodes of the schema times values of the arguments. Beyond it a problem is told without its place: to find the place, the
/// validator gathers all problems of each alternative.
const MAX_PROBLEMS: usize = 100_000;
/// Levels of a recursive schema times levels of the arguments. Each takes a part of the thread's stack.
const MAX_LEVELS: usize = 1_000;
/// Bytes of one compiled pattern.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;

/// A compiled input schema.
#[derive(Debug)]
pub struct Schema {
    validator: jsonschema::Validator,
    size: Size,
}

/// Why the arguments of a tool are not judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unjudged {
    /// The schema cannot be compiled, for instance because it refers to another document.
    Unusable,
    /// The schema has more than [`MAX_SCHEMA_NODES`] nodes when its references are expanded.
    TooLarge,
    /// The arguments are too long, or too deep, for their schema.
    TooMuchWork,
}

impl Schema {
    /// Compiles the input schema of a tool's definition.
    pub fn compile(definition: &[u8]) -> Result<Schema, Unjudged> {
        let schema = read(definition).ok_or(Unjudged::Unusable)?;
        let size = Size::of(&schema)?;
        // The schema is a stranger's: its patterns run on the linear engine only.
        let patterns = jsonschema::PatternOptions::regex().size_limit(MAX_PATTERN_BYTES);
        let validator = jsonschema::options().with_pattern_options(patterns.dfa_size_limit(MAX_PATTERN_BYTES));
        let validator = validator.build(&schema).map_err(|_| Unjudged::Unusable)?;
        Ok(Schema { validator, size })
    }

    /// Returns whether arguments of this length are judged in about a millisecond at worst.
    pub fn is_quick(&self, bytes: usize) -> bool {
        !self.size.is_recursive() && self.work(bytes) <= MAX_INLINE_WORK
    }

    fn work(&self, bytes: usize) -> usize {
        self.size.nodes.saturating_mul(bytes)
    }

    /// Returns what is wrong with `arguments`, in the schema's words and with its place; `None` if they fit.
    pub fn problem(&self, arguments: &str) -> Result<Option<String>, Unjudged> {
        if self.work(arguments.len()) > MAX_WORK {
            return Err(Unjudged::TooMuchWork);
        }
        // What is no JSON is for others to refuse.
        serde_json::from_str(arguments).map_or(Ok(None), |value| self.problem_of(&value))
    }

    /// The same for arguments that were read.
    pub fn problem_of(&self, arguments: &Value) -> Result<Option<String>, Unjudged> {
        let shape = Shape::of(arguments);
        if self.size.is_recursive() && self.size.levels.saturating_mul(shape.levels) > MAX_LEVELS {
            return Err(Unjudged::TooMuchWork);
        }
        if self.validator.is_valid(arguments) {
            return Ok(None);
        }
        if self.size.nodes_within(shape.levels).saturating_mul(shape.values) > MAX_PROBLEMS {
            return Ok(Some("arguments: they do not fit the input schema".to_owned()));
        }
        Ok(self.validator.validate(arguments).err().map(|error| {
            let path = error.instance_path().to_string();
            let place = if path.is_empty() { "arguments" } else { &path };
            format!("{place}: {error}")
        }))
    }
}

fn read(definition: &[u8]) -> Option<Value> {
    let text = std::str::from_utf8(definition).ok()?;
    let schema = json::member(text, json::whole(text), "inputSchema")?;
    serde_json::from_str(schema.get(text)).ok()
}

/// How many values arguments have, and how deep they are nested. The reader of JSON bounds the depth.
struct Shape {
    values: usize,
    levels: usize,
}

impl Shape {
    fn of(value: &Value) -> Shape {
        let mut shape = Shape { values: 1, levels: 1 };
        let mut add = |inner: &Value| {
            let inner = Shape::of(inner);
            shape.values += inner.values;
            shape.levels = shape.levels.max(inner.levels + 1);
        };
        match value {
            Value::Array(items) => items.iter().for_each(&mut add),
            Value::Object(members) => members.values().for_each(&mut add),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        shape
    }
}

#[cfg(test)]
mod tests;
