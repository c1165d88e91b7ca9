//! Expansion (RFC 6570, section 3) of steps and values to a URI.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::characters::{Charset, is_uri_character};
use super::parse::{Modifier, Step, Variable};

/// The value of a variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateValue {
    String(String),
    List(Vec<String>),
    /// Pairs in order. A name may occur twice.
    Map(Vec<(String, String)>),
}

/// Expands the steps. A variable without a value is left out.
pub(super) fn expand(steps: &[Step], values: &[(String, TemplateValue)]) -> String {
    let value_of = |variable: &Variable| values.iter().find(|(name, _)| *name == variable.name).map(|(_, value)| value);
    let mut uri = String::new();
    let mut is_started = false;
    for step in steps {
        match step {
            Step::Literal(text) => uri.push_str(text),
            Step::Variable(variable) => {
                let value = value_of(variable).filter(|value| counts(variable, value));
                if let Some(value) = value {
                    uri.extend(variable.lead(is_started).map(char::from));
                    write_item(variable, value, &mut uri);
                    is_started = true;
                }
                is_started &= !variable.is_last;
            }
        }
    }
    uri
}

/// Reports whether a value counts as defined.
fn counts(variable: &Variable, value: &TemplateValue) -> bool {
    match value {
        TemplateValue::String(_) => true,
        TemplateValue::List(list) => !list.is_empty() && !is_prefix(variable),
        TemplateValue::Map(map) => !map.is_empty() && !is_prefix(variable),
    }
}

fn write_item(variable: &Variable, value: &TemplateValue, uri: &mut String) {
    let separator = char::from(variable.operator.separator());
    let write = |text: &str, uri: &mut String| encode(variable, text, uri);
    match (value, variable.modifier) {
        (TemplateValue::String(text), _) => write_under_name(variable, uri, |uri| write(text, uri)),
        (TemplateValue::List(list), Modifier::Explode) => write_joined(list, separator, uri, |text, uri| {
            write_under_name(variable, uri, |uri| write(text, uri));
        }),
        (TemplateValue::Map(map), Modifier::Explode) => write_joined(map, separator, uri, |(name, text), uri| {
            write(name, uri);
            write_after_equals(variable, uri, |uri| write(text, uri));
        }),
        (TemplateValue::List(list), _) => write_under_name(variable, uri, |uri| {
            write_joined(list, ',', uri, |text, uri| write(text, uri));
        }),
        (TemplateValue::Map(map), _) => write_under_name(variable, uri, |uri| {
            write_joined(map.iter().flat_map(|(name, text)| [name, text]), ',', uri, |text, uri| write(text, uri));
        }),
    }
}

fn write_under_name(variable: &Variable, uri: &mut String, write: impl FnOnce(&mut String)) {
    if variable.operator.is_named() {
        uri.push_str(&variable.name);
        write_after_equals(variable, uri, write);
    } else {
        write(uri);
    }
}

fn write_after_equals(variable: &Variable, uri: &mut String, write: impl FnOnce(&mut String)) {
    uri.push('=');
    let start = uri.len();
    write(uri);
    if uri.len() == start && variable.operator.drops_equals() {
        uri.pop();
    }
}

fn write_joined<T>(
    members: impl IntoIterator<Item = T>,
    separator: char,
    uri: &mut String,
    mut write: impl FnMut(T, &mut String),
) {
    for (index, member) in members.into_iter().enumerate() {
        uri.extend((index > 0).then_some(separator));
        write(member, uri);
    }
}

fn is_prefix(variable: &Variable) -> bool {
    matches!(variable.modifier, Modifier::Prefix(_))
}

/// Returns the maximum number of characters of a value.
pub(super) fn limit(variable: &Variable) -> usize {
    match variable.modifier {
        Modifier::Prefix(limit) => usize::from(limit),
        Modifier::Plain | Modifier::Explode => usize::MAX,
    }
}

/// Appends a value to `uri`, encoded. A prefix ends after its number of characters.
fn encode(variable: &Variable, value: &str, uri: &mut String) {
    let charset = variable.operator.charset();
    let mut rest = value;
    for _ in 0..limit(variable) {
        let Some(character) = rest.chars().next() else { break };
        let passes = charset != Charset::Unreserved && character == '%' && Charset::Reserved.unit(rest.as_bytes()) > 0;
        let length = if passes { Charset::Reserved.unit(rest.as_bytes()) } else { character.len_utf8() };
        let (unit, rest_after) = rest.split_at(length);
        if passes || is_plain(charset, character) {
            uri.push_str(unit);
        } else {
            uri.extend(utf8_percent_encode(unit, NON_ALPHANUMERIC));
        }
        rest = rest_after;
    }
}

/// Reports whether an expansion writes this character unencoded.
pub(super) fn is_plain(charset: Charset, character: char) -> bool {
    match charset {
        Charset::Unreserved => u8::try_from(character).is_ok_and(|byte| Charset::Unreserved.has(byte)),
        Charset::Reserved | Charset::Path => is_uri_character(character),
    }
}
