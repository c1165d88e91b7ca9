//! The inverse of the expansion for the text of one variable.
//!
//! A value has the shape that the URI shows. The text `a,b` from `{var}` is a list, even if the server expanded a map.
//! An exploded variable (`{var*}`) always gives a list or a map.

use percent_encoding::percent_decode_str;

use crate::template::TemplateValue as Value;
use crate::template::characters::Charset;
use crate::template::expand::is_plain;
use crate::template::parse::{Modifier, Variable};

/// The values of a template's variables, in the order of the template. An absent variable is undefined.
pub(super) type Bindings = Vec<(String, Value)>;

/// Returns the value that `text` was written from. This is the inverse of the expansion.
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
