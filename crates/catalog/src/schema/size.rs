//! Measures the size of a schema after the validator expands its references.
//!
//! A short schema can expand to more than any memory holds: thirty definitions that each refer to the next one twice
//! have a billion leaves. The count therefore stops at its limit. A recursive reference to a schema that is being
//! expanded counts as one node, because the validator does not expand it either.

use std::collections::HashMap;

use serde_json::Value;

use crate::schema::ValidationSkip;

/// The maximum number of nodes. A larger schema is not compiled.
pub const MAX_SCHEMA_NODES: usize = 10_000;
/// The maximum number of levels. Each level uses stack space.
const MAX_SCHEMA_LEVELS: usize = 128;
/// The number of nodes that a pattern counts as. A pattern compiles to an automaton, which is larger than other
/// keywords.
const NODES_PER_PATTERN: usize = 100;

/// The size of an expanded schema.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SchemaSize {
    /// The number of objects and array members.
    pub nodes: usize,
    pub levels: usize,
    /// The number of references to a schema that is being expanded.
    recursions: usize,
}

impl SchemaSize {
    /// Measures a schema. Returns an error if the schema is too large or has references that this module cannot
    /// resolve.
    pub(crate) fn of(schema: &Value) -> Result<SchemaSize, ValidationSkip> {
        let is_draft4 = schema["$schema"].as_str().is_some_and(|uri| uri.contains("draft-04"));
        let id = if is_draft4 { "id" } else { "$id" };
        let mut anchors = HashMap::new();
        find_anchors(schema, &mut anchors);
        let mut count = SizeCounter { root: schema, id, anchors, open: Vec::new(), size: SchemaSize::default() };
        count.expand(schema, 1)?;
        Ok(count.size)
    }

    pub(crate) fn is_recursive(&self) -> bool {
        self.recursions > 0
    }

    /// Returns the maximum number of nodes if recursive references are expanded for `levels` levels of arguments.
    pub(crate) fn nodes_within(&self, levels: usize) -> usize {
        // Each copy has `recursions` references to further copies. The sums saturate.
        let (mut copies, mut deepest) = (1_usize, 1_usize);
        for _ in 0..levels {
            deepest = deepest.saturating_mul(self.recursions);
            copies = copies.saturating_add(deepest);
        }
        self.nodes.saturating_mul(copies)
    }
}

struct SizeCounter<'a> {
    root: &'a Value,
    /// The keyword that gives a schema its own base URI.
    id: &'a str,
    anchors: HashMap<&'a str, &'a Value>,
    /// The root and the targets of all references that are being expanded.
    open: Vec<&'a Value>,
    size: SchemaSize,
}

impl<'a> SizeCounter<'a> {
    /// Expands the target of a reference.
    fn expand(&mut self, schema: &'a Value, level: usize) -> Result<(), ValidationSkip> {
        if self.open.iter().any(|open| std::ptr::eq(*open, schema)) {
            self.size.recursions += 1;
            return self.add(1);
        }
        self.open.push(schema);
        self.value(schema, level)?;
        self.open.pop();
        Ok(())
    }

    fn value(&mut self, value: &'a Value, level: usize) -> Result<(), ValidationSkip> {
        if level > MAX_SCHEMA_LEVELS {
            return Err(ValidationSkip::TooLarge);
        }
        self.size.levels = self.size.levels.max(level);
        match value {
            Value::Object(members) => {
                self.add(1)?;
                members.iter().try_for_each(|(key, inner)| self.member(value, key, inner, level))
            }
            Value::Array(items) => items.iter().try_for_each(|item| {
                // An object adds itself to the count.
                self.add(usize::from(!item.is_object()))?;
                self.value(item, level + 1)
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn member(&mut self, owner: &Value, key: &str, inner: &'a Value, level: usize) -> Result<(), ValidationSkip> {
        let is_root = std::ptr::eq(owner, self.root);
        match (key, inner) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(reference)) => {
                let target = self.resolve(reference).ok_or(ValidationSkip::Unusable)?;
                self.expand(target, level + 1)
            }
            // A nested base URI changes the meaning of all references below it.
            (key, Value::String(_)) if key == self.id && !is_root => Err(ValidationSkip::Unusable),
            ("pattern", Value::String(_)) => self.add(NODES_PER_PATTERN),
            ("patternProperties", Value::Object(patterns)) => {
                self.add(NODES_PER_PATTERN.saturating_mul(patterns.len()))?;
                self.value(inner, level + 1)
            }
            // Definitions count at the place of each reference.
            ("$defs" | "definitions", _) if is_root => Ok(()),
            _ => self.value(inner, level + 1),
        }
    }

    fn add(&mut self, nodes: usize) -> Result<(), ValidationSkip> {
        self.size.nodes = self.size.nodes.saturating_add(nodes);
        if self.size.nodes > MAX_SCHEMA_NODES { Err(ValidationSkip::TooLarge) } else { Ok(()) }
    }

    /// Returns the target of a reference within this document.
    fn resolve(&self, reference: &str) -> Option<&'a Value> {
        let fragment = reference.strip_prefix('#')?;
        let fragment = percent_encoding::percent_decode_str(fragment).decode_utf8().ok()?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return self.root.pointer(&fragment);
        }
        self.anchors.get(&*fragment).copied()
    }
}

/// Collects the schemas with an anchor. The JSON parser limits the depth.
fn find_anchors<'a>(value: &'a Value, anchors: &mut HashMap<&'a str, &'a Value>) {
    match value {
        Value::Object(members) => {
            let names = ["$anchor", "$dynamicAnchor"].into_iter().filter_map(|key| members.get(key)?.as_str());
            anchors.extend(names.map(|name| (name, value)));
            members.values().for_each(|inner| find_anchors(inner, anchors));
        }
        Value::Array(items) => items.iter().for_each(|item| find_anchors(item, anchors)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
