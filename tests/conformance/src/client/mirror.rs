//! The headers of 2026-07-28 that repeat parts of a request.
//!
//! The peer adds them to each request. The suite judges missing and wrong headers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderName;
use serde_json::{Map, Value};

use crate::client::wire::Header;

/// Returns the subject of a request: the name of the tool or prompt, or the URI of the resource.
pub fn name<'a>(method: &str, params: &'a Value) -> Option<&'a str> {
    match method {
        "tools/call" | "prompts/get" => params["name"].as_str(),
        "resources/read" => params["uri"].as_str(),
        _ => None,
    }
}

/// Returns the `Mcp-Param-*` headers for the arguments that the tool's schema marks.
pub fn arguments(schema: &Value, arguments: &Value) -> Vec<Header> {
    let mut headers = Vec::new();
    for (property, schema) in schema["properties"].as_object().into_iter().flatten() {
        let value = &arguments[property];
        let header = schema["x-mcp-header"].as_str().and_then(|name| header(name, value));
        headers.extend(header);
        headers.extend(self::arguments(schema, value));
    }
    headers
}

/// Returns `None` if the value cannot be repeated, or the name is not valid in a header.
fn header(name: &str, value: &Value) -> Option<Header> {
    let name = HeaderName::try_from(format!("mcp-param-{name}")).ok()?;
    let value = match value {
        Value::String(text) => encode(text),
        Value::Number(number) => number.to_string(),
        Value::Bool(truth) => truth.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    Some((name.to_string(), value))
}

pub fn encode(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) && text.trim() == text;
    let looks_encoded = text.starts_with("=?base64?") && text.ends_with("?=");
    if is_plain && !looks_encoded { text.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(text)) }
}

/// Returns valid arguments for a tool: a value of the right type for each required property.
pub fn some_arguments(schema: &Value) -> Value {
    let mut arguments = Map::new();
    for property in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        arguments.insert(property.to_owned(), some_value(&schema["properties"][property]));
    }
    Value::Object(arguments)
}

/// Returns the value of a form field that the user left unchanged.
pub fn some_value(schema: &Value) -> Value {
    if let Some(default) = schema.get("default") {
        return default.clone();
    }
    match schema["type"].as_str().unwrap_or_default() {
        "string" => schema["enum"].get(0).cloned().unwrap_or_else(|| "some text".into()),
        "integer" | "number" => 1.into(),
        "boolean" => true.into(),
        "array" => Value::Array(Vec::new()),
        "object" => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_value_that_no_header_can_carry_is_encoded() {
        let check = |text, expected| assert_eq!(encode(text), expected, "{text:?}");
        check("us west 1", "us west 1");
        check("", "");
        check(" us", "=?base64?IHVz?=");
        check("a\nb", "=?base64?YQpi?=");
        check("é", "=?base64?w6k=?=");
        check("=?base64?YQ==?=", "=?base64?PT9iYXNlNjQ/WVE9PT89?=");
    }

    #[test]
    fn annotated_arguments_are_repeated_in_headers() {
        let schema = json!({"properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "absent": {"type": "string", "x-mcp-header": "Absent"},
            "plain": {"type": "string"},
            "wrong": {"type": "string", "x-mcp-header": "not a name"},
            "inner": {"properties": {"depth": {"type": "integer", "x-mcp-header": "Depth"}}},
        }});
        let values = json!({"region": "eu", "plain": "x", "wrong": "x", "inner": {"depth": 7}, "absent": null});
        let expected = [("mcp-param-region", "eu"), ("mcp-param-depth", "7")];
        let mut headers = arguments(&schema, &values);
        headers.sort_by_key(|(name, _)| std::cmp::Reverse(name.clone()));
        assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
