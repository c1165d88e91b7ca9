//! The definitions in `tools/list`. The names are given by the suite, which knows most tools by name only.

use std::borrow::Cow;

use rmcp::model::{JsonObject, Tool};
use serde_json::{Value, json};

use crate::world::{Subject, World};

/// The name, description and text arguments of each tool. The suite calls the first tool of the list to test headers,
/// so that tool must return a result at once.
const TOOLS: [(&str, &str, &[&str]); 33] = [
    ("test_simple_text", "answers with a text", &[]),
    ("test_image_content", "answers with an image", &[]),
    ("test_audio_content", "answers with a sound", &[]),
    ("test_embedded_resource", "answers with a resource", &[]),
    ("test_multiple_content_types", "answers with a text, an image and a resource", &[]),
    ("test_error_handling", "always fails", &[]),
    ("test_tool_with_progress", "reports progress three times", &[]),
    ("test_tool_with_logging", "logs three times", &[]),
    ("test_logging_tool", "logs three times", &[]),
    ("test_reconnection", "closes its stream before it answers, in a session", &[]),
    ("test_trigger_tool_change", "changes the list of tools", &[]),
    ("test_trigger_prompt_change", "changes the list of prompts", &[]),
    ("test_trigger_resource_change", "changes test://watched-resource", &[]),
    ("test_elicitation_sep1034_defaults", "elicits with a form of default values", &[]),
    ("test_elicitation_sep1330_enums", "elicits with a form of choices", &[]),
    ("test_missing_capability", "needs a client that samples", &[]),
    ("test_streaming_elicitation", "elicits a name", &[]),
    ("test_input_required_result_elicitation", "elicits a name", &[]),
    ("test_input_required_result_sampling", "samples a capital", &[]),
    ("test_input_required_result_list_roots", "lists the roots of the client", &[]),
    ("test_input_required_result_request_state", "elicits and checks its state", &[]),
    ("test_input_required_result_tampered_state", "elicits and checks that its state is untouched", &[]),
    ("test_input_required_result_multiple_inputs", "elicits, samples and lists roots at once", &[]),
    ("test_input_required_result_multi_round", "elicits twice", &[]),
    ("test_input_required_result_capabilities", "sends every request that the client supports", &[]),
    ("failing_job", "a task that fails as a tool", &[]),
    ("protocol_error_job", "a task that fails as a request", &[]),
    ("multi_input", "a task with two elicitations at once", &[]),
    ("test_tool_with_task", "elicits a name, then becomes a task", &[]),
    ("test_sampling", "samples the client's model", &["prompt"]),
    ("test_elicitation", "elicits", &["message"]),
    ("confirm_delete", "a task that elicits first", &["filename"]),
    ("greet", "greets by name", &["name"]),
];

pub fn list(world: &World) -> Vec<Tool> {
    let tools = TOOLS.into_iter().map(|(name, description, texts)| tool(name, description, strings(texts)));
    let mut tools: Vec<_> = tools.collect();
    tools.push(tool("slow_compute", "a task of some seconds, if the client supports tasks", slow_schema()));
    tools.push(tool("test_header_mirror", "has an argument that HTTP clients mirror in a header", mirrored_schema()));
    tools.push(tool("json_schema_2020_12_tool", "has the keywords of JSON Schema 2020-12", schema_2020_12()));
    let changes = world.changes(Subject::Tools);
    let description = format!("changed {changes} times, by test_trigger_tool_change");
    tools.push(tool("test_changing_tool", description, strings(&[])));
    tools
}

fn tool(name: &'static str, description: impl Into<Cow<'static, str>>, schema: Value) -> Tool {
    let schema: JsonObject = serde_json::from_value(schema).expect("a schema written here is an object");
    Tool::new(name, description, schema)
}

/// Returns a schema of required strings.
fn strings(names: &[&str]) -> Value {
    let properties: JsonObject = names.iter().map(|name| (name.to_string(), json!({"type": "string"}))).collect();
    match names {
        [] => json!({"type": "object", "properties": {}}),
        _ => json!({"type": "object", "properties": properties, "required": names}),
    }
}

fn slow_schema() -> Value {
    json!({
        "type": "object",
        "properties": {"seconds": {"type": "number", "minimum": 0}, "label": {"type": "string"}},
        "required": ["seconds"],
    })
}

fn mirrored_schema() -> Value {
    json!({"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}})
}

fn schema_2020_12() -> Value {
    let street_and_city = json!({"street": {"type": "string"}, "city": {"type": "string"}});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": street_and_city}},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}
