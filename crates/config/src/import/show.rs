//! Formats an entry as JSON for other programs, with its secrets masked.
//!
//! `consent` shows entries to users for approval, with commands in full.

use serde_json::Value;

use crate::mask;
use crate::tree::JsonTree;

/// Returns the whole entry with masked secrets.
pub fn masked(entry: &JsonTree) -> Value {
    let members = entry.members().unwrap_or_default().iter();
    let shown = members.map(|(name, value)| {
        let value = match (name.as_str(), value) {
            ("env" | "headers", JsonTree::Object(values)) => {
                let hidden = |value: &JsonTree| Value::from(mask::value(value.as_text().unwrap_or_default()));
                let hide = |(name, value): &(String, JsonTree)| (name.clone(), hidden(value));
                Value::Object(values.iter().map(hide).collect())
            }
            ("args", JsonTree::List(args)) => mask::arguments(args.iter().filter_map(JsonTree::as_text)).into(),
            ("url", JsonTree::Text(url)) => mask::url(url).into(),
            ("command", JsonTree::Text(command)) => mask::program(command).into(),
            _ => json(value),
        };
        (name.clone(), value)
    });
    Value::Object(shown.collect())
}

fn json(tree: &JsonTree) -> Value {
    match tree {
        JsonTree::Null => Value::Null,
        JsonTree::Flag(flag) => Value::from(*flag),
        JsonTree::Number(number) => serde_json::from_str(number).unwrap_or_else(|_| Value::from(number.as_str())),
        JsonTree::Text(text) => Value::from(text.as_str()),
        JsonTree::List(elements) => elements.iter().map(json).collect(),
        JsonTree::Object(members) => {
            Value::Object(members.iter().map(|(name, value)| (name.clone(), json(value))).collect())
        }
    }
}
