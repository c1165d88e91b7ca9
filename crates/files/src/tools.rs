//! The tools `list`, `read` and `search`, each in its own module. This module holds their common errors, and the file
//! `tools.json` their definitions.
//!
//! Wrong arguments and paths become tool errors that explain the correction, so that an agent can act on them.

use goblin_wire::params::required;
use goblin_wire::{Error, Request};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::content::ToolResult;
use crate::path::RelativePath;
use crate::tree::{FileTree, LookupError, StopFlag, TreeEntry, WalkStep};
use crate::{RequestFailure, explain, list, read, search, to_json};

/// The limits of the search for a similar path: the number of paths compared, and their length in bytes.
const MAX_COMPARED_PATHS: usize = 20_000;
const MAX_COMPARED_LENGTH: usize = 256;
const MIN_SIMILARITY: f64 = 0.6;

/// Returns the result of `tools/list`. All tools have the same annotations, because they only read.
pub(crate) fn definitions() -> String {
    let tools: Value = serde_json::from_str(include_str!("tools.json")).expect("a test reads the file");
    tools.to_string()
}

/// Handles `tools/call`.
pub(crate) fn call(tree: &FileTree, request: &Request, stop: &StopFlag) -> Result<String, RequestFailure> {
    let name = required(request.raw.as_str(), request.params.name, "name").map_err(RequestFailure::Error)?;
    let result = match &*name {
        "list" => arguments(request).and_then(|arguments| list::call(tree, &arguments, stop)),
        "read" => arguments(request).and_then(|arguments| read::call(tree, &arguments, stop)),
        "search" => arguments(request).and_then(|arguments| search::call(tree, &arguments, stop)),
        other => {
            return Err(RequestFailure::Error(Error::ToolNotFound { name: other.to_owned(), candidates: Vec::new() }));
        }
    };
    Ok(to_json(&result.unwrap_or_else(ToolResult::error)))
}

fn arguments<T: DeserializeOwned>(request: &Request) -> Result<T, String> {
    let given = request.params.arguments.map_or("{}", |at| at.get(request.raw.as_str()));
    let given = if given == "null" { "{}" } else { given };
    serde_json::from_str(given).map_err(|error| format!("invalid arguments: {error}"))
}

/// Returns the file or directory at a path that an agent gave. The error suggests a similar path if there is one.
pub(crate) fn find_entry(tree: &FileTree, requested: &str, stop: &StopFlag) -> Result<TreeEntry, String> {
    let path = tree.root.path_of(requested).map_err(|error| error.to_string())?;
    tree.find(&path).map_err(|missing| match missing {
        LookupError::NotFound => match nearest(tree, &path, stop) {
            Some(known) => format!("there is no {requested}; did you mean {known}?"),
            None => format!("there is no {requested}; the tools list and search find files"),
        },
        LookupError::Excluded(_) => format!("there is no {requested}; {}", explain(requested, &missing)),
        LookupError::Outside | LookupError::Failed(_) => explain(requested, &missing),
    })
}

/// Returns the path that is most similar to `path`: one with the same name elsewhere, or one with a similar spelling.
fn nearest(tree: &FileTree, path: &RelativePath, stop: &StopFlag) -> Option<String> {
    let root = tree.find(&RelativePath::default()).ok()?;
    let (requested, name) = (path.shown(), path.as_path().file_name()?);
    if requested.len() > MAX_COMPARED_LENGTH {
        return None;
    }
    let mut best: Option<(f64, String)> = None;
    let mut compared = 0;
    tree.walk(&root, stop, |item| {
        let shown = item.path.shown();
        let same_name = if item.name() == name { 1.0 } else { 0.0 };
        let similarity = same_name + similarity(&requested, &shown);
        if similarity >= MIN_SIMILARITY && best.as_ref().is_none_or(|(before, _)| similarity > *before) {
            best = Some((similarity, shown));
        }
        compared += 1;
        if compared == MAX_COMPARED_PATHS { WalkStep::End } else { WalkStep::Into }
    });
    best.map(|(_, shown)| shown)
}

/// Returns the similarity of two texts from 0 to 1: the share of characters that need no change.
fn similarity(one: &str, other: &str) -> f64 {
    let longer = one.len().max(other.len()) as f64;
    // The difference in length is a lower bound of the changes, which rules out most pairs without the full comparison.
    let at_most = one.len().min(other.len()) as f64 / longer;
    if at_most < MIN_SIMILARITY { at_most } else { 1.0 - strsim::osa_distance(one, other) as f64 / longer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_have_the_limits_of_the_code() {
        let tools: Value = serde_json::from_str(&definitions()).expect("it is JSON");
        let limit = |tool: usize, member: &str| {
            tools["tools"][tool]["inputSchema"]["properties"]["limit"][member].as_u64().expect("a number") as usize
        };
        assert_eq!((limit(0, "default"), limit(0, "maximum")), (list::DEFAULT_LIMIT, list::MAX_ENTRIES));
        assert_eq!((limit(2, "default"), limit(2, "maximum")), (search::DEFAULT_LIMIT, search::MAX_MATCHES));
        let bytes = format!("At most {} bytes at once", read::MAX_BYTES);
        assert!(tools["tools"][1]["description"].as_str().expect("a text").contains(&bytes));
    }
}
