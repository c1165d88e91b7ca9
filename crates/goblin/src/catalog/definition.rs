//! Prints the full definition of a tool as text.

use std::fmt::Write as _;

use goblin_client::schema::ToolSchema;
use goblin_config::visible::shell_word;
use goblin_telemetry::clean;
use serde_json::Value;

use crate::catalog::cards::EntryDefinition;
use crate::style::paint_if;
use crate::table::{Column, Table};

/// The annotations of a tool, each with its text for `true` and for `false`.
const HINTS: [(&str, &str, &str); 4] = [
    ("readOnlyHint", "is read-only", "may change data"),
    ("destructiveHint", "may destroy data", "destroys no data"),
    ("idempotentHint", "can be repeated safely", "has an effect each time"),
    ("openWorldHint", "reaches external systems", "reaches no external systems"),
];

/// Renders a definition. Cuts the lines of the table to `width`; `None` means a pipe.
pub(crate) fn render(tool: &EntryDefinition, width: Option<usize>, colourful: bool) -> String {
    let (definition, schema) = (&tool.value, ToolSchema::new(&tool.value["inputSchema"]));
    let text = |value: &Value| clean(value.as_str().unwrap_or_default());
    let name = text(&definition["name"]);
    let mut text = format!("{}  (server {})\n", paint_if(colourful, &name, "1"), clean(&tool.server));
    let description = definition["description"].as_str().unwrap_or_default();
    for line in description.trim().lines() {
        let _ = writeln!(text, "{}", clean(line).trim_end());
    }
    let arguments = argument_table(schema);
    if !arguments.is_empty() {
        text.push('\n');
        text.push_str(&arguments.render(width, colourful));
    }
    let facts = facts(definition);
    if !facts.is_empty() {
        let _ = writeln!(text, "\n{}", facts.join("\n"));
    }
    let _ = writeln!(text, "\ngoblin tools call {}{}", shell_word(&name), example(schema));
    text
}

fn argument_table(schema: ToolSchema<'_>) -> Table {
    let mut table = Table::new(&["ARGUMENT", "TYPE", "REQUIRED", "DESCRIPTION"].map(Column::text));
    let row = |(name, property): (&str, &Value)| {
        let required = if schema.is_required(name) { "yes" } else { "no" };
        let description = clean(property["description"].as_str().unwrap_or_default());
        let default = property.get("default").map(|value| format!(" (default {})", clean(&value.to_string())));
        let description_text =
            description.split_whitespace().collect::<Vec<_>>().join(" ") + &default.unwrap_or_default();
        vec![clean(name), clean(&schema.describe(property)), required.to_owned(), description_text.trim().to_owned()]
    };
    let (required, other): (Vec<_>, Vec<_>) = schema.properties().partition(|(name, _)| schema.is_required(name));
    required.into_iter().chain(other).for_each(|argument| table.push(row(argument)));
    table
}

fn facts(definition: &Value) -> Vec<String> {
    let mut facts = Vec::new();
    let annotations = &definition["annotations"];
    let hint = |(key, yes, no): &(&str, &'static str, &'static str)| {
        annotations[key].as_bool().map(|is_set| if is_set { *yes } else { *no })
    };
    let hints: Vec<_> = HINTS.iter().filter_map(hint).collect();
    if !hints.is_empty() {
        facts.push(format!("According to the server, this tool {}.", hints.join(", ")));
    }
    let output = ToolSchema::new(&definition["outputSchema"]);
    let members: Vec<_> = output.properties().map(|(name, schema)| (clean(name), output.describe(schema))).collect();
    if !members.is_empty() {
        let members: Vec<_> = members.iter().map(|(name, kind)| format!("{name} ({})", clean(kind))).collect();
        facts.push(format!("The result has {}.", members.join(", ")));
    }
    facts
}

/// Returns the required arguments of an example call.
fn example(schema: ToolSchema<'_>) -> String {
    schema.required().fold(String::new(), |mut text, name| {
        let _ = write!(text, " {}", shell_word(&format!("{}=", clean(name))));
        let kind = schema.property(name).map_or_else(|| "any".to_owned(), |property| schema.describe(property));
        text + &clean(&kind).to_uppercase().replace(' ', "_")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_definition_is_shown_with_its_arguments_and_an_example() {
        let value = json!({
            "name": "git_log", "description": "Shows commits\nNewest first.\u{1b}",
            "inputSchema": {
                "properties": {"repo": {"type": "string", "description": "The\nrepository"}, "count": {"type": "integer", "default": 10}},
                "required": ["repo"],
            },
            "annotations": {"readOnlyHint": true, "openWorldHint": false},
            "outputSchema": {"properties": {"commits": {"type": "array", "items": {"type": "object"}}}},
        });
        let definition = EntryDefinition { server: "git".to_owned(), json: String::new(), value };
        let expected = "\
git_log  (server git)
Shows commits
Newest first.

ARGUMENT  TYPE     REQUIRED  DESCRIPTION
repo      string   yes       The repository
count     integer  no        (default 10)

According to the server, this tool is read-only, reaches no external systems.
The result has commits (array of object).

goblin tools call git_log repo=STRING
";
        assert_eq!(render(&definition, None, false), expected);
        let bare = EntryDefinition { server: "x".to_owned(), json: String::new(), value: json!({"name": "t"}) };
        assert_eq!(render(&bare, None, false), "t  (server x)\n\ngoblin tools call t\n");
    }
}
