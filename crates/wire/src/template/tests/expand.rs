//! Expansion (RFC 6570, section 3) of steps and values to a URI, and the inverse for the text of one variable.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::template::characters::{Charset, is_uri_character};
use crate::template::parse::{Modifier, Step, Variable};

/// The value of a variable, in the shape that the URI shows. The text `a,b` from `{var}` is a list, even if the server
/// expanded a map. An exploded variable (`{var*}`) always gives a list or a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    String(String),
    List(Vec<String>),
    /// Pairs in order. A name may occur twice.
    Map(Vec<(String, String)>),
}

/// The values of a template's variables, in the order of the template. An absent variable is undefined.
pub(super) type Bindings = Vec<(String, Value)>;

pub(super) fn expand(steps: &[Step], values: &Bindings) -> String {
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
fn counts(variable: &Variable, value: &Value) -> bool {
    match value {
        Value::String(_) => true,
        Value::List(list) => !list.is_empty() && !is_prefix(variable),
        Value::Map(map) => !map.is_empty() && !is_prefix(variable),
    }
}

fn write_item(variable: &Variable, value: &Value, uri: &mut String) {
    let separator = char::from(variable.operator.separator());
    let write = |text: &str, uri: &mut String| encode(variable, text, uri);
    match (value, variable.modifier) {
        (Value::String(text), _) => write_under_name(variable, uri, |uri| write(text, uri)),
        (Value::List(list), Modifier::Explode) => write_joined(list, separator, uri, |text, uri| {
            write_under_name(variable, uri, |uri| write(text, uri));
        }),
        (Value::Map(map), Modifier::Explode) => write_joined(map, separator, uri, |(name, text), uri| {
            write(name, uri);
            write_after_equals(variable, uri, |uri| write(text, uri));
        }),
        (Value::List(list), _) => write_under_name(variable, uri, |uri| {
            write_joined(list, ',', uri, |text, uri| write(text, uri));
        }),
        (Value::Map(map), _) => write_under_name(variable, uri, |uri| {
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

/// Returns the value that `text` was written from. This is the inverse of `write_item`.
pub(super) fn read_item(variable: &Variable, text: &str) -> Value {
    let decode = |text: &str| decode(variable.operator.charset(), text);
    let decode_all = |text: &str, separator: char| text.split(separator).map(decode).collect();
    let separator = char::from(variable.operator.separator());
    match variable.modifier {
        Modifier::Prefix(_) | Modifier::Plain => {
            let text = text.strip_prefix(variable.fixed_name()).unwrap_or(text);
            let text = if variable.operator.is_named() { text.strip_prefix('=').unwrap_or(text) } else { text };
            if variable.operator.charset() == Charset::Unreserved && text.contains(',') {
                Value::List(decode_all(text, ','))
            } else {
                Value::String(decode(text))
            }
        }
        Modifier::Explode if variable.operator.is_named() => {
            let pairs: Vec<_> = text.split(separator).map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
            if pairs.iter().all(|(name, _)| *name == variable.name) {
                Value::List(pairs.into_iter().map(|(_, value)| decode(value)).collect())
            } else {
                Value::Map(pairs.into_iter().map(|(name, value)| (decode(name), decode(value))).collect())
            }
        }
        Modifier::Explode if variable.operator.charset() == Charset::Unreserved && text.contains('=') => {
            let pairs = split_pairs(text, separator).into_iter();
            Value::Map(pairs.map(|(name, value)| (decode(name), decode(value))).collect())
        }
        Modifier::Explode => Value::List(decode_all(text, separator)),
    }
}

/// Splits `a=1.b=2`. Names and values may contain the separator too, so each pair ends at the last separator before the
/// next `=`.
fn split_pairs(text: &str, separator: char) -> Vec<(&str, &str)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while let Some((name, rest_after)) = rest.split_once('=') {
        let until = rest_after.find('=').unwrap_or(rest_after.len());
        let end = if until == rest_after.len() { None } else { rest_after[..until].rfind(separator) };
        let (value, next) = match end {
            Some(end) => (&rest_after[..end], &rest_after[end + separator.len_utf8()..]),
            None => (rest_after, ""),
        };
        pairs.push((name, value));
        rest = next;
    }
    pairs
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

/// Returns a value that `encode` turns into `text`. The text must consist of units of this charset. A triplet stays as
/// written if its decoded character would not be encoded back to it (`%2F`, `%25`, `%FF` in `{+var}`).
fn decode(charset: Charset, text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('%') {
        let (plain, encoded) = rest.split_at(start);
        value.push_str(plain);
        let (unit, rest_after) = encoded.split_at(Charset::Reserved.unit(encoded.as_bytes()).max(1));
        let is_canonical = Charset::Unreserved.unit(encoded.as_bytes()) > 0;
        let character = percent_decode_str(unit).decode_utf8_lossy().chars().next();
        let restored = character.filter(|character| {
            is_canonical && !is_plain(charset, *character) && (charset == Charset::Unreserved || *character != '%')
        });
        match restored {
            Some(character) => value.push(character),
            None => value.push_str(unit),
        }
        rest = rest_after;
    }
    value.push_str(rest);
    value
}

/// Reports whether an expansion writes this character unencoded.
fn is_plain(charset: Charset, character: char) -> bool {
    match charset {
        Charset::Unreserved => u8::try_from(character).is_ok_and(|byte| Charset::Unreserved.has(byte)),
        Charset::Reserved | Charset::Path => is_uri_character(character),
    }
}
