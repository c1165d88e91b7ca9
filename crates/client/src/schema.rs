//! Reads the parts of a JSON schema that are needed to parse arguments in a shell: the types of a value.
//!
//! It does not validate. A schema that it does not understand allows any value, and the server validates the call.

use goblin_wire::json::quote;
use serde_json::Value;
use serde_json::value::RawValue;

/// The maximum depth for following references and alternatives.
const MAX_DEPTH: usize = 8;

/// The JSON schema of a tool's arguments.
#[derive(Clone, Copy)]
pub struct ToolSchema<'a> {
    root: &'a Value,
}

/// The types of JSON, each with its description in an error.
const TYPES: [(&str, &str); 7] = [
    ("null", "null"),
    ("boolean", "true or false"),
    ("integer", "an integer"),
    ("number", "a number"),
    ("string", "a string"),
    ("array", "an array, written as JSON"),
    ("object", "an object, written as JSON"),
];

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl<'a> ToolSchema<'a> {
    pub fn new(root: &'a Value) -> ToolSchema<'a> {
        ToolSchema { root }
    }

    /// Returns the named properties with their schemas.
    pub fn properties(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        self.root["properties"].as_object().into_iter().flatten().map(|(name, schema)| (name.as_str(), schema))
    }

    pub fn property(&self, name: &str) -> Option<&'a Value> {
        self.root["properties"].get(name)
    }

    pub fn required(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.root["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
    }

    pub fn is_required(&self, name: &str) -> bool {
        self.required().any(|required| required == name)
    }

    /// Reports whether the schema rejects properties that it does not name.
    pub fn is_closed(&self) -> bool {
        self.root["additionalProperties"] == false
    }

    /// Returns the types that `schema` allows. An empty list means any type.
    fn kinds(&self, schema: &Value, depth: usize) -> Vec<&'static str> {
        if depth == MAX_DEPTH {
            return Vec::new();
        }
        if let Some(reference) = schema["$ref"].as_str() {
            let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            return target.map_or_else(Vec::new, |target| self.kinds(target, depth + 1));
        }
        let known = |value: &Value| TYPES.iter().map(|(name, _)| *name).find(|name| value == name);
        match &schema["type"] {
            value @ Value::String(_) => return known(value).into_iter().collect(),
            Value::Array(values) => return values.iter().filter_map(known).collect(),
            _ => {}
        }
        if let Some(values) = schema["enum"].as_array() {
            return values.iter().map(type_of).collect();
        }
        if let Some(value) = schema.get("const") {
            return vec![type_of(value)];
        }
        let alternatives = ["anyOf", "oneOf"].iter().find_map(|key| schema[key].as_array());
        let branches = alternatives.into_iter().flatten().map(|branch| self.kinds(branch, depth + 1));
        let branches: Vec<_> = branches.collect();
        match branches.iter().any(Vec::is_empty) {
            true => Vec::new(),
            false => branches.concat(),
        }
    }

    /// Converts the text of `name=text` to JSON of an allowed type. Returns the allowed types as an error.
    pub fn token(&self, schema: Option<&Value>, text: &str) -> Result<String, String> {
        let kinds = schema.map_or_else(Vec::new, |schema| self.kinds(schema, 0));
        let may_be = |kind: &str| kinds.contains(&kind);
        let written = serde_json::from_str::<&RawValue>(text).map(RawValue::get).unwrap_or_default();
        let is_whole = !written.is_empty()
            && written.strip_prefix('-').unwrap_or(written).bytes().all(|digit| digit.is_ascii_digit());
        let fits = match written.bytes().next() {
            Some(b'-' | b'0'..=b'9') => may_be("number") || (may_be("integer") && is_whole),
            Some(b't' | b'f') => may_be("boolean"),
            Some(b'n') => may_be("null") && !may_be("string"),
            Some(b'[') => may_be("array"),
            Some(b'{') => may_be("object"),
            _ => false,
        };
        match fits {
            true => Ok(written.to_owned()),
            false if kinds.is_empty() || may_be("string") => Ok(quote(text)),
            false => Err(type_names(&kinds)),
        }
    }

    /// Describes the types of `schema`, for example `array of string` or `low|high`.
    pub fn describe(&self, schema: &Value) -> String {
        if let Some(values) = schema["enum"].as_array() {
            let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            return values.iter().map(plain).collect::<Vec<_>>().join("|");
        }
        match self.kinds(schema, 0)[..] {
            [] => "any".to_owned(),
            ["array"] if schema["items"].is_object() => {
                let items = self.kinds(&schema["items"], 0);
                if items.is_empty() { "array".to_owned() } else { format!("array of {}", items.join("|")) }
            }
            ref kinds => kinds.join("|"),
        }
    }
}

fn type_names(kinds: &[&str]) -> String {
    let known = kinds.iter().filter_map(|kind| TYPES.iter().find(|(name, _)| name == kind));
    known.map(|(_, description)| *description).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_gets_the_type_that_the_schema_wants() {
        let root = json!({"$defs": {"count": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}});
        let check = |schema: Value, text: &str, expected: Result<&str, &str>| {
            let token = ToolSchema::new(&root).token(Some(&schema), text);
            assert_eq!(token.as_deref().map_err(String::as_str), expected, "{schema} {text}");
        };
        check(json!({"type": "integer"}), "3", Ok("3"));
        check(json!({"type": "integer"}), "3.5", Err("an integer"));
        check(json!({"type": "integer"}), "many", Err("an integer"));
        check(json!({"type": "number"}), "1.50e3", Ok("1.50e3"));
        check(json!({"type": "number"}), "007", Err("a number"));
        check(json!({"type": "string"}), "3", Ok(r#""3""#));
        check(json!({"type": "string"}), "", Ok(r#""""#));
        check(json!({"type": "string"}), "{\"a\":1}", Ok(r#""{\"a\":1}""#));
        check(json!({"type": "boolean"}), "true", Ok("true"));
        check(json!({"type": "boolean"}), "yes", Err("true or false"));
        check(json!({"type": "array"}), "[1, 2]", Ok("[1, 2]"));
        check(json!({"type": "array"}), "1", Err("an array, written as JSON"));
        check(json!({"type": "object"}), "{\"a\": 1.0}", Ok("{\"a\": 1.0}"));
        check(json!({"type": ["string", "null"]}), "null", Ok(r#""null""#));
        check(json!({"type": ["integer", "null"]}), "null", Ok("null"));
        check(json!({"type": ["integer", "string"]}), "3", Ok("3"));
        check(json!({"type": ["integer", "string"]}), "3x", Ok(r#""3x""#));
        check(json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "4", Ok("4"));
        check(json!({"anyOf": [{"type": "integer"}, {}]}), "4", Ok(r#""4""#));
        check(json!({"enum": [1, 2]}), "1", Ok("1"));
        check(json!({"enum": ["1", "2"]}), "1", Ok(r#""1""#));
        check(json!({"const": true}), "true", Ok("true"));
        check(json!({"$ref": "#/$defs/count"}), "5", Ok("5"));
        check(json!({"$ref": "#/$defs/loop"}), "5", Ok(r#""5""#));
        check(json!({"$ref": "elsewhere.json"}), "5", Ok(r#""5""#));
        check(json!({}), "5", Ok(r#""5""#));
        check(json!(true), "5", Ok(r#""5""#));
        assert_eq!(ToolSchema::new(&root).token(None, "true"), Ok(r#""true""#.to_owned()));
    }

    #[test]
    fn types_are_told_in_a_few_words() {
        let root = json!({"$defs": {"count": {"type": "integer"}}});
        for (schema, expected) in [
            (json!({"type": "string"}), "string"),
            (json!({"type": ["string", "null"]}), "string|null"),
            (json!({"type": "array", "items": {"type": "string"}}), "array of string"),
            (json!({"type": "array", "items": {"$ref": "#/$defs/count"}}), "array of integer"),
            (json!({"type": "array", "items": {}}), "array"),
            (json!({"type": "string", "enum": ["low", "high"]}), "low|high"),
            (json!({}), "any"),
        ] {
            assert_eq!(ToolSchema::new(&root).describe(&schema), expected, "{schema}");
        }
    }
}
