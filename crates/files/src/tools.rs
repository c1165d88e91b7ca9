//! The tools: `list`, `read` and `search`. Each has its file; here is what they are called and how they are refused.
//!
//! What an agent can mend (arguments, paths) is a tool error in words that say how.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::content::ToolResult;
use crate::path::Relative;
use crate::tree::{Missing, Next, Spot, Stop, Tree};
use crate::{Refusal, explain, list, read, search, to_json};
use goblin_wire::Request;
use goblin_wire::error::Error;
use goblin_wire::params::required;

/// So many names are compared to find one that may have been meant, and none with a path longer than this.
const MOST_COMPARED: usize = 20_000;
const LONGEST_COMPARED: usize = 256;
const LEAST_LIKENESS: f64 = 0.6;

/// The result of `tools/list`.
pub fn definitions() -> String {
    json!({ "tools": [list::definition(), read::definition(), search::definition()] }).to_string()
}

/// A tool's definition; all are alike in what they do to the world.
pub fn definition(name: &str, title: &str, description: &str, input: Value, required: &[&str]) -> Value {
    json!({
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": {
            "type": "object", "properties": input, "required": required, "additionalProperties": false,
        },
        "annotations": {
            "readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false,
        },
    })
}

/// `tools/call`.
pub fn call(tree: &Tree, request: &Request, stop: &Stop) -> Result<String, Refusal> {
    let name = required(request.raw.as_str(), request.params.name, "name").map_err(Refusal::Error)?;
    let result = match &*name {
        "list" => arguments(request).and_then(|arguments| list::call(tree, &arguments, stop)),
        "read" => arguments(request).and_then(|arguments| read::call(tree, &arguments, stop)),
        "search" => arguments(request).and_then(|arguments| search::call(tree, &arguments, stop)),
        other => return Err(Refusal::Error(Error::ToolNotFound { name: other.to_owned(), candidates: Vec::new() })),
    };
    Ok(to_json(&result.unwrap_or_else(ToolResult::error)))
}

fn arguments<T: DeserializeOwned>(request: &Request) -> Result<T, String> {
    let given = request.params.arguments.map_or("{}", |at| at.get(request.raw.as_str()));
    let given = if given == "null" { "{}" } else { given };
    serde_json::from_str(given).map_err(|error| format!("invalid arguments: {error}"))
}

/// What is at a path that an agent named, or words that help to name it better.
pub fn spot(tree: &Tree, asked: &str, stop: &Stop) -> Result<Spot, String> {
    let path = tree.root.path_of(asked).map_err(|error| error.to_string())?;
    tree.find(&path).map_err(|missing| match missing {
        Missing::NotFound => match nearest(tree, &path, stop) {
            Some(known) => format!("there is no {asked}; did you mean {known}?"),
            None => format!("there is no {asked}; the tools list and search show what there is"),
        },
        Missing::Excluded(_) => format!("there is no {asked}; {}", explain(asked, &missing)),
        Missing::Outside | Missing::Failed(_) => explain(asked, &missing),
    })
}

/// The path most like `path`: one of the same name elsewhere, or one spelled almost so.
fn nearest(tree: &Tree, path: &Relative, stop: &Stop) -> Option<String> {
    let root = tree.find(&Relative::default()).ok()?;
    let (asked, name) = (path.shown(), path.as_path().file_name()?);
    if asked.len() > LONGEST_COMPARED {
        return None;
    }
    let mut best: Option<(f64, String)> = None;
    let mut compared = 0;
    tree.walk(&root, stop, |item| {
        let shown = item.path.shown();
        let same_name = if item.name() == name { 1.0 } else { 0.0 };
        let likeness = same_name + likeness(&asked, &shown);
        if likeness >= LEAST_LIKENESS && best.as_ref().is_none_or(|(before, _)| likeness > *before) {
            best = Some((likeness, shown));
        }
        compared += 1;
        if compared == MOST_COMPARED { Next::End } else { Next::Into }
    });
    best.map(|(_, shown)| shown)
}

/// From 0 to 1: how many characters need no change.
fn likeness(one: &str, other: &str) -> f64 {
    let longer = one.len().max(other.len()) as f64;
    // Each character that one has more than the other is a change; most pairs need no closer look.
    let at_most = one.len().min(other.len()) as f64 / longer;
    if at_most < LEAST_LIKENESS { at_most } else { 1.0 - strsim::osa_distance(one, other) as f64 / longer }
}
