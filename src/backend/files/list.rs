//! The tool `list`: what is in a directory, or all files below it that a pattern names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::backend::files::content::ToolResult;
use crate::backend::files::path::{self, Relative};
use crate::backend::files::rule::Glob;
use crate::backend::files::tools;
use crate::backend::files::tree::{Item, Kind, Next, Stop, Tree};
use crate::backend::files::{date, path::template_value};

const USUAL_LIMIT: usize = 500;
const MOST: usize = 5000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arguments {
    path: Option<String>,
    glob: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    entries: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    path: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    last_modified: String,
}

pub fn definition() -> Value {
    let mut definition = tools::definition(
        "list",
        "List files",
        "Lists what is in a directory, or, with a glob, all files below it that match. Sorted by path; directories end in a \
         slash. Hidden and git-ignored files are left out unless the gateway is configured to serve them.",
        json!({
            "path": { "type": "string", "description": "Directory, relative to the root; the root itself if left out" },
            "glob": {
                "type": "string",
                "description": "Pattern as in .gitignore: *.rs matches at any depth, src/**/*.rs from the root",
            },
            "limit": { "type": "integer", "minimum": 1, "maximum": MOST, "default": USUAL_LIMIT },
            "cursor": { "type": "string", "description": "nextCursor of the answer before, to go on from there" },
        }),
        &[],
    );
    definition["outputSchema"] = json!({
        "type": "object",
        "properties": {
            "entries": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "path": { "type": "string" },
                        "kind": { "enum": ["file", "directory"] },
                        "size": { "type": "integer", "description": "Bytes, of a file" },
                        "lastModified": { "type": "string", "format": "date-time" },
                    },
                    "required": ["path", "kind", "lastModified"],
                },
            },
            "nextCursor": { "type": "string" },
        },
        "required": ["entries"],
    });
    definition
}

pub fn call(tree: &Tree, arguments: &Arguments, stop: &Stop) -> Result<ToolResult, String> {
    let spot = tools::spot(tree, arguments.path.as_deref().unwrap_or("."), stop)?;
    let glob = arguments.glob.as_deref().map(Glob::new).transpose()?;
    let after = arguments.cursor.as_deref().map(read_cursor).transpose()?;
    let limit = limit(arguments.limit, USUAL_LIMIT, MOST)?;
    let mut entries = Vec::new();
    let mut last: Option<Relative> = None;
    let mut more = false;
    tree.walk(&spot, stop, |item| {
        let wanted = match &glob {
            Some(glob) => item.kind == Kind::File && glob.matches(item.path.as_path()),
            None => true,
        };
        let is_new = after.as_deref().is_none_or(|after| item.path.as_path() > Path::new(OsStr::from_bytes(after)));
        if wanted && is_new {
            if entries.len() == limit {
                more = true;
                return Next::End;
            }
            if let Some(entry) = entry(item) {
                entries.push(entry);
                last = Some(item.path.clone());
            }
        }
        if glob.is_some() { Next::Into } else { Next::Past }
    });
    let next_cursor = last.filter(|_| more).map(|last| cursor(&last));
    let listed = Listed { entries, next_cursor };
    Ok(ToolResult::structured(text(&listed), &listed))
}

/// What vanished meanwhile is none.
fn entry(item: &Item<'_>) -> Option<Entry> {
    let facts = item.facts().ok()?;
    let (path, last_modified) = (item.path.shown(), date::iso(facts.modified));
    match item.kind {
        Kind::Directory => Some(Entry { path: format!("{path}/"), kind: "directory", size: None, last_modified }),
        _ => Some(Entry { path, kind: "file", size: Some(facts.size), last_modified }),
    }
}

/// A line each: the path, and the size of a file.
fn text(listed: &Listed) -> String {
    let line = |entry: &Entry| match entry.size {
        Some(size) => format!("{} ({size})", entry.path),
        None => entry.path.clone(),
    };
    let mut lines: Vec<_> = listed.entries.iter().map(line).collect();
    if lines.is_empty() {
        lines.push("no files".to_owned());
    }
    if let Some(cursor) = &listed.next_cursor {
        lines.push(format!("there are more; go on with cursor {cursor:?}"));
    }
    lines.join("\n")
}

/// The path that was listed last: paths are listed in order, so it says where to go on even when files come and go.
fn cursor(last: &Relative) -> String {
    template_value(last.as_path().as_os_str())
}

fn read_cursor(cursor: &str) -> Result<Vec<u8>, String> {
    path::decode(cursor).ok_or_else(|| format!("cursor {cursor:?} is none of ours; begin again without one"))
}

/// How many entries an answer may have.
pub fn limit(asked: Option<usize>, usual: usize, most: usize) -> Result<usize, String> {
    match asked {
        None => Ok(usual),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(limit) => Err(format!("limit {limit} is not from 1 to {most}")),
    }
}
