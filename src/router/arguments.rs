//! Checking a tool's arguments against its input schema, for backends that ask for it (ROUTE-5).
//!
//! By default the backend is the judge. A schema that cannot be compiled, for instance because it points to another
//! document, is no reason to refuse a call: nothing is ever fetched, and the backend judges again.

use std::sync::OnceLock;

use crate::catalog::Entry;
use crate::protocol::json;

/// What is wrong with `arguments`, in the schema's words; nothing when they fit or cannot be judged.
pub fn problem(entry: &Entry, arguments: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(arguments).ok()?;
    judge(&entry.schema, &entry.definition, &value)
}

/// The same for arguments that were read; `schema` holds what was compiled from `definition`.
pub fn judge(
    schema: &OnceLock<Option<jsonschema::Validator>>,
    definition: &[u8],
    arguments: &serde_json::Value,
) -> Option<String> {
    let validator = schema.get_or_init(|| compile(definition)).as_ref()?;
    let problems: Vec<_> = validator
        .iter_errors(arguments)
        .take(5)
        .map(|error| {
            let path = error.instance_path().to_string();
            let place = if path.is_empty() { "arguments" } else { &path };
            format!("{place}: {error}")
        })
        .collect();
    (!problems.is_empty()).then(|| problems.join("; "))
}

fn compile(definition: &[u8]) -> Option<jsonschema::Validator> {
    let text = std::str::from_utf8(definition).ok()?;
    let schema = json::member(text, json::whole(text), "inputSchema")?;
    let schema: serde_json::Value = serde_json::from_str(schema.get(text)).ok()?;
    // The schema is a stranger's: its patterns run on the linear engine only.
    jsonschema::options().with_pattern_options(jsonschema::PatternOptions::regex()).build(&schema).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn check(schema: &str, arguments: &str) -> Option<String> {
        let definition = format!(r#"{{"name":"t","inputSchema":{schema}}}"#);
        let entry = Entry {
            source: 0,
            native: "t".into(),
            exposed: "t".into(),
            definition: definition.into(),
            endings: None,
            schema: Arc::default(),
            mirrors: Default::default(),
        };
        problem(&entry, arguments)
    }

    #[test]
    fn route5_problems_name_their_place() {
        let schema = r#"{"type":"object","properties":{"a":{"type":"object","properties":{"n":{"type":"integer"}}}},"required":["a"]}"#;
        assert_eq!(check(schema, r#"{"a":{"n":1}}"#), None);
        let problem = check(schema, r#"{"a":{"n":"x"}}"#).expect("a problem");
        assert!(problem.starts_with("/a/n: "), "{problem}");
        assert!(check(schema, "{}").expect("a problem").contains("\"a\" is a required property"));
    }

    #[test]
    fn route5_a_remote_reference_is_never_fetched() {
        assert_eq!(check(r#"{"$ref":"http://127.0.0.1:9/schema.json"}"#, "{}"), None);
        assert_eq!(check(r#"{"$ref":"file:///etc/hostname"}"#, "{}"), None);
    }
}
