//! Converts definitions to documents for the index: the words by which a tool, prompt, resource or template is found.
//!
//! Definitions come from servers and may be large, so the amount taken from each is limited.

use std::borrow::Cow;

use goblin_wire::json::{self, Span};

use crate::search::Document;

const MAX_ARGUMENTS: usize = 64;
/// The maximum number of enum values read from an argument. The values are often the verbs of a tool with many
/// functions.
const MAX_VALUES: usize = 32;

/// Returns the document of a tool.
pub fn tool<'a>(definition: &'a str, exposed: &'a str, native: &'a str, server: &'a str) -> Document<'a> {
    let whole = json::whole(definition);
    let mut arguments = Vec::new();
    if let Some(schema) = json::member(definition, whole, "inputSchema") {
        read_properties(definition, schema, 1, &mut arguments);
    }
    let annotated = || {
        let annotations = json::member(definition, whole, "annotations")?;
        text_of(definition, annotations, "title")
    };
    Document {
        name: exposed.into(),
        native,
        title: text_of(definition, whole, "title").or_else(annotated).unwrap_or_default(),
        description: text_of(definition, whole, "description").unwrap_or_default(),
        arguments,
        uri: "",
        server,
    }
}

/// Returns the document of a prompt.
pub fn prompt<'a>(definition: &'a str, exposed: &'a str, native: &'a str, server: &'a str) -> Document<'a> {
    let whole = json::whole(definition);
    let list = json::member(definition, whole, "arguments");
    let arguments = list.into_iter().flat_map(|list| json::elements(definition, list)).take(MAX_ARGUMENTS);
    let argument = |argument| {
        let description = text_of(definition, argument, "description").unwrap_or_default();
        text_of(definition, argument, "name").map(|name| (name, description))
    };
    Document {
        name: exposed.into(),
        native,
        title: text_of(definition, whole, "title").unwrap_or_default(),
        description: text_of(definition, whole, "description").unwrap_or_default(),
        arguments: arguments.filter_map(argument).collect(),
        uri: "",
        server,
    }
}

/// Returns the document of a resource or template with its exposed URI.
pub fn resource<'a>(definition: &'a str, exposed: &'a str, server: &'a str) -> Document<'a> {
    let whole = json::whole(definition);
    Document {
        name: text_of(definition, whole, "name").unwrap_or_default(),
        native: "",
        title: text_of(definition, whole, "title").unwrap_or_default(),
        description: text_of(definition, whole, "description").unwrap_or_default(),
        arguments: Vec::new(),
        uri: exposed,
        server,
    }
}

/// Collects the arguments of a schema, including those of nested objects and arrays up to `deeper` levels.
fn read_properties<'a>(text: &'a str, schema: Span, deeper: usize, arguments: &mut Vec<(Cow<'a, str>, Cow<'a, str>)>) {
    let Some(properties) = json::member(text, schema, "properties") else { return };
    for property in json::members(text, properties) {
        if arguments.len() >= MAX_ARGUMENTS {
            return;
        }
        arguments.push((property.key(text), describe(text, property.value)));
        if deeper > 0 {
            read_properties(text, property.value, deeper - 1, arguments);
            if let Some(items) = json::member(text, property.value, "items") {
                read_properties(text, items, deeper - 1, arguments);
            }
        }
    }
}

/// Returns the description of an argument, followed by its possible values.
fn describe(text: &str, schema: Span) -> Cow<'_, str> {
    let mut description = text_of(text, schema, "description").unwrap_or_default();
    if let Some(values) = json::member(text, schema, "enum") {
        let values = json::elements(text, values).take(MAX_VALUES).filter_map(|value| json::string(text, value));
        for value in values {
            let description = description.to_mut();
            description.push(' ');
            description.push_str(&value);
        }
    }
    description
}

fn text_of<'a>(text: &'a str, object: Span, key: &str) -> Option<Cow<'a, str>> {
    json::member(text, object, key).and_then(|at| json::string(text, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_document_contains_its_arguments_and_their_values() {
        let definition = r#"{"name":"t","annotations":{"title":"Do \u00e9"},"description":"a\nb","inputSchema":{"type":"object",
            "properties":{"method":{"description":"how","enum":["get","put",3]},"filter":{"type":"object","properties":
            {"state":{"description":"of it","properties":{"deep":{}}}}},"rows":{"items":{"properties":{"cell":{}}}},"odd":true}}}"#;
        let document = tool(definition, "s_t", "t", "s");
        assert_eq!((&*document.name, document.native, document.server), ("s_t", "t", "s"));
        assert_eq!((&*document.title, &*document.description), ("Do é", "a\nb"));
        let arguments: Vec<_> =
            document.arguments.iter().map(|(name, description)| (&**name, &**description)).collect();
        let expected =
            [("method", "how get put"), ("filter", ""), ("state", "of it"), ("rows", ""), ("cell", ""), ("odd", "")];
        assert_eq!(arguments, expected);
    }

    #[test]
    fn prompt_and_resource_documents_contain_their_own_members() {
        let document = prompt(
            r#"{"name":"p","title":"T","arguments":[{"name":"a","description":"d"},{"name":"b"},7]}"#,
            "s_p",
            "p",
            "s",
        );
        assert_eq!(document.title, "T");
        assert_eq!(document.arguments, [("a".into(), "d".into()), ("b".into(), "".into())]);
        let document = resource(r#"{"uri":"file:///a","name":"A","description":"d"}"#, "s+file:///a", "s");
        assert_eq!((&*document.name, &*document.description, document.uri), ("A", "d", "s+file:///a"));
    }

    #[test]
    fn a_definition_of_any_shape_gives_a_document() {
        for definition in ["{}", "[]", "null", r#"{"title":3,"description":[],"inputSchema":7,"arguments":{}}"#] {
            assert_eq!(tool(definition, "t", "t", "s").arguments, []);
            assert_eq!(prompt(definition, "t", "t", "s").description, "");
            assert_eq!(resource(definition, "x:y", "s").title, "");
        }
    }

    #[test]
    fn the_number_of_arguments_in_a_document_is_limited() {
        let properties: Vec<_> = (0..1000).map(|number| format!(r#""p{number}":{{}}"#)).collect();
        let definition = format!(r#"{{"inputSchema":{{"properties":{{{}}}}}}}"#, properties.join(","));
        assert_eq!(tool(&definition, "t", "t", "s").arguments.len(), MAX_ARGUMENTS);
    }
}
