//! Turns the arguments of a tool or a prompt, as written in a shell, into one JSON object.
//!
//! The schema determines the type of `key=value`; `key:=JSON` is used unchanged. `{...}`, `@FILE` and `-` are whole
//! objects.

use std::io::Read;

use goblin_catalog::search::nearest;
use goblin_client::schema::ToolSchema;
use goblin_telemetry::clean;
use goblin_wire::json::{self, quote};

/// One word of the command line.
#[derive(Debug, PartialEq, Eq)]
enum ArgumentWord<'a> {
    Typed { key: &'a str, text: &'a str },
    Json { key: &'a str, text: &'a str },
    Object(&'a str),
    File(&'a str),
    Stdin,
}

impl<'a> ArgumentWord<'a> {
    fn read(word: &'a str) -> Result<ArgumentWord<'a>, String> {
        if word == "-" {
            return Ok(ArgumentWord::Stdin);
        }
        if let Some(path) = word.strip_prefix('@') {
            return Ok(ArgumentWord::File(path));
        }
        if word.starts_with('{') {
            return Ok(ArgumentWord::Object(word));
        }
        match word.split_once('=') {
            Some((key, text)) if !matches!(key, "" | ":") => Ok(match key.strip_suffix(':') {
                Some(key) => ArgumentWord::Json { key, text },
                None => ArgumentWord::Typed { key, text },
            }),
            _ => Err(format!(
                "{} is not an argument; write key=value, key:=JSON, a JSON object, @FILE or - for stdin",
                quote(&clean(word))
            )),
        }
    }
}

/// The members of the object, in the order of the words. Values are JSON text.
#[derive(Default)]
struct ArgumentMembers(Vec<(String, String)>);

impl ArgumentMembers {
    fn add(&mut self, key: &str, token: String) -> Result<(), String> {
        if self.0.iter().any(|(known, _)| known == key) {
            return Err(format!("the argument {} is given twice", clean(key)));
        }
        self.0.push((key.to_owned(), token));
        Ok(())
    }

    fn add_all(&mut self, text: &str, place: &str) -> Result<(), String> {
        let valid = serde_json::from_str::<&serde_json::value::RawValue>(text);
        let text = valid.map_err(|error| format!("{place} is not JSON: {error}"))?.get();
        if !text.starts_with('{') {
            return Err(format!("{place} must be a JSON object"));
        }
        for member in json::members(text, json::whole(text)) {
            self.add(&member.key(text), member.value.get(text).to_owned())?;
        }
        Ok(())
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(known, _)| known == key)
    }

    fn into_object(self) -> String {
        let members: Vec<_> = self.0.into_iter().map(|(key, token)| format!("{}:{token}", quote(&key))).collect();
        format!("{{{}}}", members.join(","))
    }
}

/// Returns the arguments in `words` as a JSON object. Returns a message if a word is invalid or a required argument is
/// missing.
pub(crate) fn read(owner: &str, words: &[String], schema: ToolSchema<'_>) -> Result<String, String> {
    let mut members = ArgumentMembers::default();
    for word in words {
        match ArgumentWord::read(word)? {
            ArgumentWord::Typed { key, text } => {
                check_name(owner, key, schema)?;
                let must_be =
                    |kinds| format!("the argument {key} of {owner} must be {kinds}, not {}", quote(&clean(text)));
                members.add(key, schema.token(schema.property(key), text).map_err(must_be)?)?;
            }
            ArgumentWord::Json { key, text } => {
                let valid = serde_json::from_str::<&serde_json::value::RawValue>(text);
                let valid = valid.map_err(|error| format!("the argument {} is not JSON: {error}", clean(key)))?;
                members.add(key, valid.get().to_owned())?;
            }
            ArgumentWord::Object(text) => members.add_all(text, "the argument that begins with {")?,
            ArgumentWord::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
                members.add_all(&text, path)?;
            }
            ArgumentWord::Stdin => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).map_err(|error| format!("cannot read stdin: {error}"))?;
                members.add_all(&text, "the input on stdin")?;
            }
        }
    }
    let missing: Vec<_> = schema.required().filter(|name| !members.has(name)).collect();
    if missing.is_empty() {
        return Ok(members.into_object());
    }
    let described = missing.iter().map(|name| {
        let kind = schema.property(name).map_or_else(|| "any".to_owned(), |property| schema.describe(property));
        format!("{} ({})", clean(name), clean(&kind))
    });
    Err(format!("{owner} needs {}; write key=value", described.collect::<Vec<_>>().join(", ")))
}

/// Rejects an unknown name if it resembles a known one, or if the schema allows no other names.
fn check_name(owner: &str, key: &str, schema: ToolSchema<'_>) -> Result<(), String> {
    if schema.property(key).is_some() {
        return Ok(());
    }
    // Very short names are left out: a mistyped one is equally near to several of them.
    let names = schema.properties().map(|(name, _)| name).filter(|name| name.len() > 2);
    let near = nearest(key, names, 1);
    let known = || schema.properties().map(|(name, _)| clean(name)).collect::<Vec<_>>().join(", ");
    match near[..] {
        [near, ..] => Err(format!(
            "{owner} has no argument {}; did you mean {}? (key:=JSON is not checked)",
            quote(&clean(key)),
            clean(near)
        )),
        [] if schema.is_closed() => {
            Err(format!("{owner} has no argument {}; its arguments are {}", quote(&clean(key)), known()))
        }
        [] => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(schema: &Value, words: &[&str], expected: Result<&str, &str>) {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        match (read("tool", &words, ToolSchema::new(schema)), expected) {
            (Ok(object), Ok(expected)) => assert_eq!(object, expected, "{words:?}"),
            (Err(reason), Err(expected)) => assert!(reason.contains(expected), "{words:?}: {reason}"),
            (read, expected) => panic!("{words:?}: {read:?}, not {expected:?}"),
        }
    }

    #[test]
    fn words_become_one_object() {
        let schema = json!({"type": "object", "properties": {
            "count": {"type": "integer"}, "query": {"type": "string"}, "tags": {"type": "array"},
        }});
        check(&schema, &[], Ok("{}"));
        check(&schema, &["count=3", "query=3"], Ok(r#"{"count":3,"query":"3"}"#));
        check(&schema, &["query=a=b:=c"], Ok(r#"{"query":"a=b:=c"}"#));
        check(&schema, &["query="], Ok(r#"{"query":""}"#));
        check(&schema, &["query:={\"x\": 1.0}"], Ok(r#"{"query":{"x": 1.0}}"#));
        check(&schema, &["other=1"], Ok(r#"{"other":"1"}"#));
        check(&schema, &["other:=1"], Ok(r#"{"other":1}"#));
        check(&schema, &["{\"count\": 1.0, \"x\":\"\\u00e9\"}"], Ok(r#"{"count":1.0,"x":"\u00e9"}"#));
        check(&schema, &["{\"count\":1}", "query=x"], Ok(r#"{"count":1,"query":"x"}"#));
        check(&schema, &["tags=[\"a\"]"], Ok(r#"{"tags":["a"]}"#));
    }

    #[test]
    fn what_is_wrong_is_told_before_anything_is_called() {
        let schema = json!({"type": "object", "properties": {
            "count": {"type": "integer"}, "query": {"type": "string"}, "labels": {"type": "array", "items": {"type": "string"}},
        }, "required": ["query", "labels"]});
        check(&schema, &["count=1"], Err("tool needs query (string), labels (array of string); write key=value"));
        check(&schema, &["count=x"], Err("the argument count of tool must be an integer, not \"x\""));
        check(&schema, &["qery=x"], Err("tool has no argument \"qery\"; did you mean query?"));
        check(&schema, &["labels=a"], Err("must be an array, written as JSON"));
        check(&schema, &["count=1", "count=2"], Err("count is given twice"));
        check(&schema, &["{\"count\":1}", "count=2"], Err("count is given twice"));
        check(&schema, &["query"], Err("\"query\" is not an argument; write key=value"));
        check(&schema, &["=x"], Err("is not an argument"));
        check(&schema, &[":=1"], Err("is not an argument"));
        check(&schema, &["{\"count\":"], Err("is not JSON"));
        check(&schema, &["count:=nope"], Err("the argument count is not JSON"));
        check(&schema, &["@/nowhere/x.json"], Err("cannot read /nowhere/x.json"));
        let closed = json!({"properties": {"query": {}}, "additionalProperties": false});
        check(&closed, &["limit=1"], Err("tool has no argument \"limit\"; its arguments are query"));
    }
}
