//! Expansion (RFC 6570, section 3) of steps and values to a URI, and the inverse for the text of one variable. The
//! matcher uses the inverse to read values, and the expansion to prove its matches.

use super::{
    Value,
    characters::Charset,
    parse::{Modifier, Step, Variable},
};

pub(super) fn expand<'a>(steps: &'a [Step], value_of: impl Fn(&'a Variable) -> Option<&'a Value>) -> String {
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

/// Returns the text that one variable adds to its expression, without the lead character. Returns `None` if the value
/// counts as undefined.
pub(super) fn item(variable: &Variable, value: &Value) -> Option<String> {
    let mut item = String::new();
    counts(variable, value).then(|| write_item(variable, value, &mut item))?;
    Some(item)
}

/// Reports whether a value counts as defined.
fn counts(variable: &Variable, value: &Value) -> bool {
    match value {
        Value::String(_) => true,
        Value::List(list) => !list.is_empty() && !variable.is_prefix(),
        Value::Map(map) => !map.is_empty() && !variable.is_prefix(),
    }
}

fn write_item(variable: &Variable, value: &Value, uri: &mut String) {
    let separator = char::from(variable.operator.separator());
    let write = |text: &str, uri: &mut String| variable.operator.charset().encode(text, variable.limit(), uri);
    match (value, variable.modifier) {
        (Value::String(text), _) => write_under_name(variable, uri, |uri| write(text, uri)),
        (Value::List(list), Modifier::Explode) => write_joined(list, separator, uri, |text, uri| {
            write_under_name(variable, uri, |uri| write(text, uri));
        }),
        (Value::Map(map), Modifier::Explode) => write_joined(map, separator, uri, |(name, text), uri| {
            write(name, uri);
            write_behind_equals(variable, uri, |uri| write(text, uri));
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
        write_behind_equals(variable, uri, write);
    } else {
        write(uri);
    }
}

fn write_behind_equals(variable: &Variable, uri: &mut String, write: impl FnOnce(&mut String)) {
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

/// Returns the value that `text` was written from. This is the inverse of [`item`].
pub(super) fn read_item(variable: &Variable, text: &str) -> Value {
    let decode = |text: &str| variable.operator.charset().decode(text);
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
    while let Some((name, behind)) = rest.split_once('=') {
        let until = behind.find('=').unwrap_or(behind.len());
        let end = if until == behind.len() { None } else { behind[..until].rfind(separator) };
        let (value, next) = match end {
            Some(end) => (&behind[..end], &behind[end + separator.len_utf8()..]),
            None => (behind, ""),
        };
        pairs.push((name, value));
        rest = next;
    }
    pairs
}
