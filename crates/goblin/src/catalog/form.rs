//! Answers elicitations of a server. The user fills in a form on the terminal; if there is no terminal, the request is
//! declined.

use std::io::{IsTerminal, Write};

use goblin_client::schema::ToolSchema;
use goblin_telemetry::clean;
use goblin_wire::Request;
use goblin_wire::json::quote;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::style::note;

const DECLINED: &str = r#"{"action":"decline"}"#;
const CANCELLED: &str = r#"{"action":"cancel"}"#;

/// Returns the result for an `elicitation/create` request.
pub(crate) async fn answer(request: &Request) -> String {
    let params = request.params.whole.map_or("{}", |whole| whole.get(request.raw.as_str()));
    let params: Value = serde_json::from_str(params).unwrap_or_default();
    let message = clean(params["message"].as_str().unwrap_or_default());
    note(&format!("question of the server: {message}"));
    let reason = match params.get("requestedSchema") {
        Some(schema) if is_terminal() => return fill_in(ToolSchema::new(schema)).await,
        Some(_) => "there is no terminal for the answer",
        None => "the question is not a form",
    };
    note(&format!("declined: {reason}"));
    DECLINED.to_owned()
}

fn is_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks for one field after the other. The end of the input cancels the whole form.
async fn fill_in(schema: ToolSchema<'_>) -> String {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut members = Vec::new();
    for (name, property) in schema.properties() {
        let is_required = schema.is_required(name);
        loop {
            prompt(name, property, &schema);
            let Ok(Some(line)) = lines.next_line().await else { return CANCELLED.to_owned() };
            if line.is_empty() && !is_required {
                break;
            }
            match schema.token(Some(property), line.trim()) {
                Ok(token) => {
                    members.push(format!("{}:{token}", quote(name)));
                    break;
                }
                Err(kinds) => note(&format!("the value must be {kinds}")),
            }
        }
    }
    format!(r#"{{"action":"accept","content":{{{}}}}}"#, members.join(","))
}

fn prompt(name: &str, property: &Value, schema: &ToolSchema<'_>) {
    let title = clean(property["title"].as_str().or(property["description"].as_str()).unwrap_or(name));
    let optional = if schema.is_required(name) { "" } else { ", optional" };
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "{title} ({}{optional}): ", clean(&schema.describe(property)));
    let _ = stderr.flush();
}
