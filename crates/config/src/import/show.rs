//! Formats an entry as JSON for other programs, with its secrets masked.
//!
//! `consent` shows entries to users for approval, with commands in full.

use serde_json::Value;

use crate::mask;
use crate::tree::Tree;

/// Returns the whole entry with masked secrets.
pub fn masked(entry: &Tree) -> Value {
    let members = entry.members().unwrap_or_default().iter();
    let shown = members.map(|(name, value)| {
        let value = match (name.as_str(), value) {
            ("env" | "headers", Tree::Object(values)) => {
                let hidden = |value: &Tree| Value::from(mask::value(value.as_text().unwrap_or_default()));
                let hide = |(name, value): &(String, Tree)| (name.clone(), hidden(value));
                Value::Object(values.iter().map(hide).collect())
            }
            ("args", Tree::List(args)) => mask::arguments(args.iter().filter_map(Tree::as_text)).into(),
            ("url", Tree::Text(url)) => mask::url(url).into(),
            ("command", Tree::Text(command)) => mask::text(command).into(),
            _ => json(value),
        };
        (name.clone(), value)
    });
    Value::Object(shown.collect())
}

fn json(tree: &Tree) -> Value {
    match tree {
        Tree::Null => Value::Null,
        Tree::Flag(flag) => Value::from(*flag),
        Tree::Number(number) => serde_json::from_str(number).unwrap_or_else(|_| Value::from(number.as_str())),
        Tree::Text(text) => Value::from(text.as_str()),
        Tree::List(elements) => elements.iter().map(json).collect(),
        Tree::Object(members) => {
            Value::Object(members.iter().map(|(name, value)| (name.clone(), json(value))).collect())
        }
    }
}
