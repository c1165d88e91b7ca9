//! The tool `list`: lists a directory, or all files below it that match a glob.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use goblin_config::roots::encode;
use goblin_wire::date;
use serde::{Deserialize, Serialize};

use crate::content::ToolResult;
use crate::path::{self, RelativePath};
use crate::rule::FileGlob;
use crate::tools;
use crate::tree::{FileKind, FileTree, StopFlag, WalkEntry, WalkStep};

pub(crate) const DEFAULT_LIMIT: usize = 500;
pub(crate) const MAX_ENTRIES: usize = 5000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename = "Arguments")]
pub(crate) struct ListArguments {
    path: Option<String>,
    glob: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListOutput {
    entries: Vec<FileEntry>,
    /// True if all directories were read.
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileEntry {
    path: String,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    last_modified: String,
}

pub(crate) fn call(tree: &FileTree, arguments: &ListArguments, stop: &StopFlag) -> Result<ToolResult, String> {
    let start = tools::find_entry(tree, arguments.path.as_deref().unwrap_or("."), stop)?;
    let glob = arguments.glob.as_deref().map(FileGlob::new).transpose()?;
    let after = arguments.cursor.as_deref().map(read_cursor).transpose()?;
    let limit = limit(arguments.limit, DEFAULT_LIMIT, MAX_ENTRIES)?;
    let mut entries = Vec::new();
    let mut last: Option<RelativePath> = None;
    let mut more = false;
    let complete = tree.walk(&start, stop, |item| {
        let position =
            after.as_ref().map_or(CursorPosition::After, |after| CursorPosition::of(item.path.as_path(), after));
        let is_match = match &glob {
            Some(glob) => item.kind == FileKind::File && glob.matches(item.path.as_path()),
            None => true,
        };
        if is_match && position == CursorPosition::After {
            if entries.len() == limit {
                more = true;
                return WalkStep::End;
            }
            if let Some(entry) = entry(tree, item) {
                entries.push(entry);
                last = Some(item.path.clone());
            }
        }
        if glob.is_some() && position != CursorPosition::Before { WalkStep::Into } else { WalkStep::Past }
    });
    let next_cursor = last.filter(|_| more).map(|last| cursor(&last));
    let listed = ListOutput { entries, complete, next_cursor };
    Ok(ToolResult::structured(text(&listed), &listed))
}

/// The position of a path relative to the last listed one. Paths are visited in order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CursorPosition {
    /// The path and everything below it were listed before.
    Before,
    /// The path is the last listed one, or a directory that contains it.
    Around,
    After,
}

impl CursorPosition {
    fn of(path: &Path, last: &Path) -> CursorPosition {
        if path > last {
            CursorPosition::After
        } else if last.starts_with(path) {
            CursorPosition::Around
        } else {
            CursorPosition::Before
        }
    }
}

/// Returns the entry of a file or directory. Returns `None` if it vanished meanwhile.
fn entry(tree: &FileTree, item: &WalkEntry<'_>) -> Option<FileEntry> {
    let facts = item.facts().ok()?;
    let (path, last_modified) = (tree.root.named(item.path), date::iso(facts.modified));
    match item.kind {
        FileKind::Directory => {
            Some(FileEntry { path: format!("{path}/"), kind: "directory", size: None, last_modified })
        }
        _ => Some(FileEntry { path, kind: "file", size: Some(facts.size), last_modified }),
    }
}

/// Formats one line per entry: the path, and the size of a file.
fn text(listed: &ListOutput) -> String {
    let line = |entry: &FileEntry| match entry.size {
        Some(size) => format!("{} ({size})", entry.path),
        None => entry.path.clone(),
    };
    let mut lines: Vec<_> = listed.entries.iter().map(line).collect();
    if lines.is_empty() {
        lines.push("no files".to_owned());
    }
    if !listed.complete {
        lines.push("some directories could not be read, or contain too many entries".to_owned());
    }
    if let Some(cursor) = &listed.next_cursor {
        lines.push(format!("there are more; continue with cursor {cursor:?}"));
    }
    lines.join("\n")
}

/// Encodes the last listed path. The list is sorted by path, so the position is valid even if files are added or
/// removed.
fn cursor(last: &RelativePath) -> String {
    encode(last.as_path().as_os_str().as_bytes())
}

fn read_cursor(cursor: &str) -> Result<PathBuf, String> {
    let path = path::decode(cursor).map(|path| PathBuf::from(OsString::from_vec(path)));
    path.ok_or_else(|| format!("cursor {cursor:?} is invalid; begin again without one"))
}

/// Returns the number of entries for an answer. Returns an error if the requested number is out of range.
pub(crate) fn limit(requested: Option<usize>, usual: usize, max: usize) -> Result<usize, String> {
    match requested {
        None => Ok(usual),
        Some(limit) if (1..=max).contains(&limit) => Ok(limit),
        Some(limit) => Err(format!("limit must be from 1 to {max}, not {limit}")),
    }
}
