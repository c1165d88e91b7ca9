//! What would run, as it may be shown: every word of a command, and no secret.
//!
//! Values of variables and headers are never shown, those of arguments that are called like a secret neither. A value
//! that is nothing but a reference is no secret. Control characters are escaped, because the files of a project may be
//! anybody's.

use serde_json::Value;

use crate::config::tree::Tree;

pub const HIDDEN: &str = "***";

/// Parts of the names of options and variables whose values are secret.
const SECRET_WORDS: [&str; 10] =
    ["token", "key", "secret", "password", "passwd", "auth", "header", "bearer", "credential", "cookie"];

/// How keys of well-known services begin.
const SECRET_STARTS: [&str; 8] = ["sk-", "ghp_", "gho_", "github_pat_", "glpat-", "xoxb-", "xoxp-", "AKIA"];

/// The command line or the URL of an entry.
pub fn line(entry: &Tree) -> String {
    if let Some(url) = entry.get("url").and_then(Tree::as_text) {
        return plain(&url_without_secrets(url));
    }
    let mut words = vec![entry.get("command").and_then(Tree::as_text).unwrap_or_default().to_owned()];
    if let Some(Tree::List(args)) = entry.get("args") {
        words.extend(arguments(args.iter().filter_map(Tree::as_text)));
    }
    words.iter().map(|word| plain(&in_quotes(word))).collect::<Vec<_>>().join(" ")
}

/// The whole entry for another program.
pub fn masked(entry: &Tree) -> Value {
    let members = entry.members().unwrap_or_default().iter();
    let shown = members.map(|(name, value)| {
        let value = match (name.as_str(), value) {
            ("env" | "headers", Tree::Object(values)) => {
                let hide = |(name, value): &(String, Tree)| {
                    (name.clone(), Value::from(hidden(value.as_text().unwrap_or_default())))
                };
                Value::Object(values.iter().map(hide).collect())
            }
            ("args", Tree::List(args)) => arguments(args.iter().filter_map(Tree::as_text)).into(),
            ("url", Tree::Text(url)) => url_without_secrets(url).into(),
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

/// The arguments of a command.
pub fn arguments<'a>(args: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut is_value_secret = false;
    let mut shown = Vec::new();
    for argument in args {
        let was_secret = std::mem::take(&mut is_value_secret);
        let assigned = argument.split_once('=').filter(|(name, _)| is_secret_name(name) && !name.contains("://"));
        if was_secret && !argument.starts_with('-') {
            shown.push(hidden(argument));
        } else if let Some((name, value)) = assigned {
            shown.push(format!("{name}={}", hidden(value)));
        } else if let Some((name, value)) = argument.split_once(": ").filter(|(name, _)| is_secret_name(name)) {
            shown.push(format!("{name}: {}", hidden(value)));
        } else if SECRET_STARTS.iter().any(|start| argument.starts_with(start)) {
            shown.push(HIDDEN.to_owned());
        } else {
            is_value_secret = argument.starts_with('-') && !argument.contains('=') && is_secret_name(argument);
            shown.push(url_without_secrets(argument));
        }
    }
    shown
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// A reference, with no more than a word like `Bearer` before it, is shown.
fn hidden(value: &str) -> String {
    let reference = value.rsplit(' ').next().unwrap_or(value);
    let is_reference = reference.starts_with("${")
        && reference.ends_with('}')
        && reference.matches('$').count() == 1
        && !reference.contains(":-");
    let before = value.trim_end_matches(reference).trim();
    if is_reference && before.len() <= "Bearer".len() { value.to_owned() } else { HIDDEN.to_owned() }
}

/// Without the password before the host and without the values of a query.
pub fn url_without_secrets(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let authority = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{HIDDEN}@{host}"),
        None => authority.to_owned(),
    };
    let tail = match tail.split_once('?') {
        Some((path, _)) => format!("{path}?{HIDDEN}"),
        None => tail.to_owned(),
    };
    format!("{scheme}://{authority}{tail}")
}

/// As a shell would take it for one word.
fn in_quotes(word: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "/._-+=:,@%$*{}?&#~[]()^!<>|\\".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Control characters, which could repaint a terminal, as escapes.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        let is_hostile = letter.is_control()
            || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if is_hostile { plain.extend(letter.escape_default()) } else { plain.push(letter) }
    }
    plain
}
