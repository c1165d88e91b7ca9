//! What would run, as it may be shown: every word of a command, and no secret.
//!
//! Values of variables and headers are never shown, references excepted; what is secret in arguments and URLs is `mask`'s
//! business. Words are quoted and control characters escaped, because the files of a project may be anybody's.

use serde_json::Value;

use crate::config::mask;
use crate::config::tree::Tree;

/// The command line or the URL of an entry.
pub fn line(entry: &Tree) -> String {
    if let Some(url) = entry.get("url").and_then(Tree::as_text) {
        return plain(&mask::url(url));
    }
    // A variable can change what a command runs, so their names belong to it.
    let variables = entry.get("env").and_then(Tree::members).unwrap_or_default().iter();
    let mut words: Vec<String> = variables.map(|(name, value)| format!("{name}={}", masked_value(value))).collect();
    words.push(mask::text(entry.get("command").and_then(Tree::as_text).unwrap_or_default()));
    if let Some(Tree::List(args)) = entry.get("args") {
        words.extend(mask::arguments(args.iter().filter_map(Tree::as_text)));
    }
    words.iter().map(|word| plain(&in_quotes(word))).collect::<Vec<_>>().join(" ")
}

fn masked_value(value: &Tree) -> String {
    mask::value(value.as_text().unwrap_or_default())
}

/// The whole entry for another program.
pub fn masked(entry: &Tree) -> Value {
    let members = entry.members().unwrap_or_default().iter();
    let shown = members.map(|(name, value)| {
        let value = match (name.as_str(), value) {
            ("env" | "headers", Tree::Object(values)) => {
                let hide = |(name, value): &(String, Tree)| (name.clone(), Value::from(masked_value(value)));
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

/// As a shell would take it for one word.
fn in_quotes(word: &str) -> String {
    // References and what is hidden stand as they are; everything else that a shell would take for more is quoted.
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+=:,@%${}".contains(letter);
    if !word.is_empty() && word.replace(mask::HIDDEN, "").chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Control characters, which could repaint a terminal, and characters that nobody sees, as escapes.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        let is_hostile = letter.is_control()
            || matches!(letter, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(letter, '\u{feff}' | '\u{e0000}'..='\u{e007f}');
        if is_hostile { plain.extend(letter.escape_default()) } else { plain.push(letter) }
    }
    plain
}
