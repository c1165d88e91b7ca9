//! Compiles the input schema of a tool within limits and validates arguments against it (ROUTE-5).
//!
//! Schema and arguments come from untrusted peers, and a running validation cannot be stopped. All work is therefore
//! limited in advance: the schema by its expanded size ([`size`]), a validation by that size times the length of the
//! arguments. The validator caches its result for each pair of reference and value, so this product also limits
//! recursive schemas. Patterns run on the linear engine only, with at most [`MAX_PATTERN_BYTES`] per compiled pattern.
//!
//! A schema or call that exceeds a limit is left to the backend, which validates every call anyway. The validator
//! fetches no remote documents.

mod size;

use goblin_wire::json;
use serde_json::Value;

pub use crate::schema::size::MAX_SCHEMA_NODES;
use crate::schema::size::SchemaSize;

/// The maximum of schema nodes times argument bytes. It takes about one second in the worst case.
const MAX_WORK: usize = 100_000_000;
/// The maximum work of a validation on the current thread. It takes about one millisecond in the worst case.
const MAX_INLINE_WORK: usize = 50_000;
/// The maximum of schema nodes times argument values for an error with a location. To find the location, the validator
/// collects all errors of every alternative. Above the limit the error has no location.
const MAX_PROBLEMS: usize = 100_000;
/// The maximum of levels of a recursive schema times levels of the arguments. Each level uses stack space.
const MAX_LEVELS: usize = 1_000;
/// The maximum size of a compiled pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1024 * 1024;

/// A compiled input schema.
#[derive(Debug)]
pub struct InputSchema {
    validator: jsonschema::Validator,
    size: SchemaSize,
}

/// The reason why the arguments of a tool are not validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidationSkip {
    /// The schema does not compile, for example because it refers to another document.
    Unusable,
    /// The schema has more than [`MAX_SCHEMA_NODES`] nodes after expansion of its references.
    TooLarge,
    /// The arguments are too long or too deep for their schema.
    TooMuchWork,
}

impl InputSchema {
    /// Compiles the input schema in a tool's definition.
    pub fn compile(definition: &[u8]) -> Result<InputSchema, ValidationSkip> {
        let schema = read(definition).ok_or(ValidationSkip::Unusable)?;
        let size = SchemaSize::of(&schema)?;
        // The schema is untrusted, so its patterns must run on the linear engine.
        let patterns = jsonschema::PatternOptions::regex().size_limit(MAX_PATTERN_BYTES);
        let validator = jsonschema::options().with_pattern_options(patterns.dfa_size_limit(MAX_PATTERN_BYTES));
        let validator = validator.build(&schema).map_err(|_| ValidationSkip::Unusable)?;
        Ok(InputSchema { validator, size })
    }

    /// Reports whether validating arguments of this length takes at most about one millisecond.
    pub fn is_quick(&self, bytes: usize) -> bool {
        !self.size.is_recursive() && self.work(bytes) <= MAX_INLINE_WORK
    }

    fn work(&self, bytes: usize) -> usize {
        self.size.nodes.saturating_mul(bytes)
    }

    /// Validates `arguments`. Returns a description of the first problem, or `None` if they are valid.
    pub fn problem(&self, arguments: &str) -> Result<Option<String>, ValidationSkip> {
        if self.work(arguments.len()) > MAX_WORK {
            return Err(ValidationSkip::TooMuchWork);
        }
        // Another part of the gateway rejects arguments that are not JSON.
        serde_json::from_str(arguments).map_or(Ok(None), |value| self.problem_of(&value))
    }

    /// Validates parsed arguments, like [`problem`](Self::problem).
    pub fn problem_of(&self, arguments: &Value) -> Result<Option<String>, ValidationSkip> {
        let shape = ArgumentSize::of(arguments);
        if self.size.is_recursive() && self.size.levels.saturating_mul(shape.levels) > MAX_LEVELS {
            return Err(ValidationSkip::TooMuchWork);
        }
        if self.validator.is_valid(arguments) {
            return Ok(None);
        }
        if self.size.nodes_within(shape.levels).saturating_mul(shape.values) > MAX_PROBLEMS {
            return Ok(Some("arguments: not valid for the input schema".to_owned()));
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

/// The number of values in arguments, and their depth. The JSON parser limits the depth.
struct ArgumentSize {
    values: usize,
    levels: usize,
}

impl ArgumentSize {
    fn of(value: &Value) -> ArgumentSize {
        let mut shape = ArgumentSize { values: 1, levels: 1 };
        let mut add = |inner: &Value| {
            let inner = ArgumentSize::of(inner);
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
