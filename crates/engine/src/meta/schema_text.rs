//! Writes an input schema as one line per argument. The lines replace the schema, which takes more tokens. A schema that
//! the lines cannot express completely stays JSON.

use std::borrow::Cow;

use goblin_wire::json::{self, Span};

use crate::meta::describe::{argument, string_in};

/// Returns one line per argument. Returns `None` if the lines would omit a part of the schema. Titles that only repeat
/// the name are no such part.
pub(crate) fn argument_lines(text: &str, schema: Span) -> Option<Vec<String>> {
    let is_plain =
        |key: &str| matches!(key, "type" | "properties" | "required" | "additionalProperties" | "$schema" | "title");
    let is_nested = |key: &str| !matches!(key, "properties" | "required");
    if !schema.get(text).starts_with('{') {
        return None;
    }
    for member in json::members(text, schema) {
        let key = member.key(text);
        if !is_plain(&key) || is_nested(&key) && !is_scalar(text, member.value) {
            return None;
        }
    }
    let required = json::member(text, schema, "required");
    let required: Vec<_> = required.into_iter().flat_map(|list| json::elements(text, list)).collect();
    let required: Vec<_> = required.into_iter().filter_map(|at| json::string(text, at)).collect();
    let properties = json::member(text, schema, "properties");
    let properties: Vec<_> = properties.into_iter().flat_map(|properties| json::members(text, properties)).collect();
    let line = |property: &json::Member| {
        let key = property.key(text);
        let mut hints = hints(text, property.value)?;
        hints.extend(required.contains(&key).then(|| "required".to_owned()));
        Some(argument(&key, &hints, &description(text, property.value, &key)))
    };
    let mut lines = properties.iter().map(line).collect::<Option<Vec<_>>>()?;
    let is_undescribed = |key: &&Cow<'_, str>| properties.iter().all(|property| property.key(text) != **key);
    for key in required.iter().filter(is_undescribed) {
        lines.push(argument(key, &["any".to_owned(), "required".to_owned()], ""));
    }
    if json::member(text, schema, "additionalProperties").is_some_and(|at| at.get(text) == "false") {
        lines.push("  no other arguments".to_owned());
    }
    Some(lines)
}

/// Returns the description of an argument, after its title if the title says more than the name.
fn description(text: &str, schema: Span, key: &str) -> String {
    let letters =
        |text: &str| text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect::<String>();
    let [title, description] = ["title", "description"].map(|key| string_in(text, schema, key));
    let is_repeated = letters(&title) == letters(key) || letters(&title) == letters(&description);
    match (title.is_empty() || is_repeated, description.is_empty()) {
        (true, _) => description,
        (false, true) => title,
        (false, false) => format!("{title}: {description}"),
    }
}

/// Returns the type of an argument, then its other keywords. Returns `None` if one of them has parts.
fn hints(text: &str, schema: Span) -> Option<Vec<String>> {
    let mut hints = vec![kind_of(text, schema)?];
    for member in json::members(text, schema) {
        let key = member.key(text);
        match &*key {
            "type" | "enum" | "items" | "anyOf" | "description" | "title" => {}
            _ if is_scalar(text, member.value) => hints.push(format!("{key} {}", member.value.get(text))),
            _ => return None,
        }
    }
    Some(hints)
}

/// Returns the type of an argument. Returns `any` if its schema does not state a type, and `None` if no word expresses
/// the type.
fn kind_of(text: &str, schema: Span) -> Option<String> {
    let [kind, choices, items, options] = ["type", "enum", "items", "anyOf"].map(|key| json::member(text, schema, key));
    match (kind, choices, items, options) {
        (None, None, None, None) => schema.get(text).starts_with('{').then(|| "any".to_owned()),
        (None, Some(choices), None, None) => words(text, choices),
        (Some(kind), Some(choices), None, None) if kind.get(text) == "\"string\"" => words(text, choices),
        (Some(kind), None, None, None) => word(text, kind).or_else(|| words(text, kind)),
        (Some(kind), None, Some(items), None) if kind.get(text) == "\"array\"" => {
            bare_type(text, items).map(|kind| format!("{kind}[]"))
        }
        (None, None, None, Some(options)) => {
            let kinds: Option<Vec<_>> = json::elements(text, options).map(|option| bare_type(text, option)).collect();
            kinds.filter(|kinds| !kinds.is_empty()).map(|kinds| kinds.join("|"))
        }
        _ => None,
    }
}

/// Returns the type of a schema that states nothing else.
fn bare_type(text: &str, schema: Span) -> Option<String> {
    let is_bare = json::members(text, schema).all(|member| matches!(&*member.key(text), "type" | "title"));
    word(text, json::member(text, schema, "type").filter(|_| is_bare)?)
}

/// Joins an array of words.
fn words(text: &str, list: Span) -> Option<String> {
    let words: Option<Vec<_>> = json::elements(text, list).map(|at| word(text, at)).collect();
    words.filter(|words| !words.is_empty()).map(|words| words.join("|"))
}

/// Returns a string that can stand in a list of words.
fn word(text: &str, at: Span) -> Option<String> {
    let word = json::string(text, at)?;
    let is_plain = !word.is_empty() && !word.contains(['|', ',', '(', ')', '\n']);
    is_plain.then(|| word.into_owned())
}

fn is_scalar(text: &str, at: Span) -> bool {
    !at.get(text).starts_with(['{', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(schema: &str) -> Option<String> {
        argument_lines(schema, json::whole(schema)).map(|lines| lines.join("\n"))
    }

    #[test]
    fn arguments_are_written_with_all_their_keywords() {
        let schema = concat!(
            r#"{"type":"object","$schema":"s","additionalProperties":false,"required":["a"],"properties":{"#,
            r#""a":{"type":"string","description":"the\n first"},"b":{"enum":["x","y"]},"c":{"type":["integer","null"]},"#,
            r#""d":{},"e":{"type":"integer","minimum":1,"default":"q"},"f":{"type":"array","items":{"type":"string"}},"#,
            r#""g":{"anyOf":[{"type":"string"},{"type":"null"}],"title":"G","default":null}}}"#,
        );
        let expected = concat!(
            "  a (string, required) - the first\n  b (x|y)\n  c (integer|null)\n  d (any)\n",
            "  e (integer, minimum 1, default \"q\")\n  f (string[])\n  g (string|null, default null)\n  no other arguments",
        );
        assert_eq!(lines(schema).as_deref(), Some(expected));
        assert_eq!(lines("{}").as_deref(), Some(""));
    }

    #[test]
    fn a_required_argument_and_a_title_of_its_own_are_kept() {
        let schema = concat!(
            r#"{"required":["a","x"],"properties":{"a":{"title":"ISO date"},"#,
            r#""b_c":{"title":"B C","description":"d"},"e":{"title":"Unit","description":"of length"}}}"#
        );
        let expected =
            "  a (any, required) - ISO date\n  b_c (any) - d\n  e (any) - Unit: of length\n  x (any, required)";
        assert_eq!(lines(schema).as_deref(), Some(expected));
    }

    #[test]
    fn a_schema_that_lines_cannot_express_stays_json() {
        for schema in [
            r#"{"$defs":{}}"#,
            r#"{"description":"either a or b"}"#,
            "[]",
            r#"{"oneOf":[]}"#,
            r#"{"additionalProperties":{"type":"string"}}"#,
            r#"{"properties":{"a":{"type":"object","properties":{}}}}"#,
            r#"{"properties":{"a":{"type":"array","items":{"type":"string","minLength":1}}}}"#,
            r#"{"properties":{"a":{"enum":[1,"1"]}}}"#,
            r#"{"properties":{"a":{"enum":["a|b"]}}}"#,
            r#"{"properties":{"a":{"type":"integer","enum":["a"]}}}"#,
            r#"{"properties":{"a":{"anyOf":[]}}}"#,
            r#"{"properties":{"a":true}}"#,
            r#"{"properties":{"a":{"default":[]}}}"#,
        ] {
            assert_eq!(lines(schema), None, "{schema}");
        }
    }
}
