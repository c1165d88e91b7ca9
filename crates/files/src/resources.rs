//! Serves the files as resources: lists, reads and completes them.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;

use goblin_wire::json::{self, quote};
use goblin_wire::params::required;
use goblin_wire::{Error, Request, date, units};
use serde::Serialize;

use crate::content::{self, Contents, MAX_FILE};
use crate::path::{self, PathError, RelativePath};
use crate::tree::{FileKind, FileTree, LookupError, StopFlag, TreeEntry, WalkEntry, WalkStep};
use crate::{RequestFailure, explain, to_json};

/// The protocol's limit of values in one completion.
const MAX_VALUES: usize = 100;

#[derive(Serialize)]
struct ResourceList {
    resources: Vec<FileResource>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileResource {
    uri: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mime_type: Option<&'static str>,
    size: u64,
    annotations: Annotations,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Annotations {
    last_modified: String,
}

/// Handles `resources/list`.
pub(crate) fn list(tree: &FileTree, max: usize, stop: &StopFlag) -> Result<(String, ListSummary), RequestFailure> {
    let mut resources = Vec::new();
    let listing = each(tree, max, stop, |item| {
        // Omit files that vanished meanwhile.
        if item.kind == FileKind::File
            && let Ok(facts) = item.facts()
        {
            resources.push(FileResource {
                uri: tree.root.uri(item.path),
                name: item.path.shown(),
                mime_type: content::mime(item.path),
                size: facts.size,
                annotations: Annotations { last_modified: date::iso(facts.modified) },
            });
        }
    });
    let listing = listing.map_err(|error| RequestFailure::Unreadable(explain("the root", &error)))?;
    Ok((to_json(&ResourceList { resources }), listing))
}

/// The properties of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListSummary {
    /// A hash of the paths of all listed files, in order.
    pub fingerprint: u64,
    /// There are more files than the limit.
    pub is_cut: bool,
}

/// Visits the listed files, at most `max`, and the directories that contain them.
pub(crate) fn each(
    tree: &FileTree,
    max: usize,
    stop: &StopFlag,
    mut visit: impl FnMut(&WalkEntry<'_>),
) -> Result<ListSummary, LookupError> {
    let root = tree.find(&RelativePath::default())?;
    let (mut count, mut is_cut) = (0, false);
    let mut fingerprint = DefaultHasher::new();
    tree.walk(&root, stop, |item| {
        if item.kind == FileKind::File {
            if count == max {
                is_cut = true;
                return WalkStep::End;
            }
            count += 1;
            item.path.hash(&mut fingerprint);
        }
        visit(item);
        WalkStep::Into
    });
    Ok(ListSummary { fingerprint: fingerprint.finish(), is_cut })
}

/// Handles `resources/templates/list`.
pub(crate) fn templates(tree: &FileTree, max: usize) -> String {
    let description = format!(
        "Any file below {}, by its path relative to it. At most {max} of them are listed as resources.",
        tree.root.path().display()
    );
    format!(
        r#"{{"resourceTemplates":[{{"uriTemplate":{},"name":"file","title":"File","description":{}}}]}}"#,
        quote(&tree.root.template()),
        quote(&description)
    )
}

/// Handles `resources/read`.
pub(crate) fn read(tree: &FileTree, request: &Request) -> Result<String, RequestFailure> {
    let NamedFile { uri, path, entry } = named(tree, request)?;
    let bytes = entry.open().and_then(content::whole);
    let bytes = bytes.map_err(|error| unreadable(&uri, &error))?;
    let bytes = bytes.ok_or_else(|| {
        let size = entry.facts.size;
        invalid(format!(
            "{uri} has {}, and at most {} are returned at once; the tool read returns parts of it by startLine and \
             endLine, or by offset and length",
            units::bytes(size),
            units::bytes(MAX_FILE)
        ))
    })?;
    // Use the requested URI, even if a link leads elsewhere.
    let contents = to_json(&Contents::new(uri.into_owned(), &path, bytes));
    Ok(format!(r#"{{"contents":[{contents}]}}"#))
}

/// The file that a request names.
pub(crate) struct NamedFile<'a> {
    pub uri: Cow<'a, str>,
    pub path: RelativePath,
    pub entry: TreeEntry,
}

/// Returns the file with the URI in the parameters. Returns an error if it does not exist or is not a regular file.
pub(crate) fn named<'a>(tree: &FileTree, request: &'a Request) -> Result<NamedFile<'a>, RequestFailure> {
    let uri = required(request.raw.as_str(), request.params.uri, "uri").map_err(RequestFailure::Error)?;
    let not_found = |hint: String| RequestFailure::NotFound { uri: uri.to_string(), hint };
    let path = match tree.root.canonical_uri_of(&uri) {
        Ok(path) => path,
        Err(PathError::Outside(_)) => return Err(not_found("the file is outside of the root".to_owned())),
        Err(error) => return Err(invalid(error.to_string())),
    };
    let entry = tree.find(&path).map_err(|reason| match reason {
        LookupError::NotFound => not_found(String::new()),
        LookupError::Failed(error) => unreadable(&uri, &error),
        other => not_found(explain("the file", &other)),
    })?;
    match entry.facts.kind {
        FileKind::File => Ok(NamedFile { uri, path, entry }),
        FileKind::Directory => Err(not_found("the path is a directory; the tool list shows its files".to_owned())),
        FileKind::Link | FileKind::Other => Err(not_found("the path is not a regular file".to_owned())),
    }
}

fn invalid(reason: String) -> RequestFailure {
    RequestFailure::Error(Error::InvalidParams(reason))
}

fn unreadable(uri: &str, error: &io::Error) -> RequestFailure {
    RequestFailure::Unreadable(format!("{uri} cannot be read: {error}"))
}

/// Handles `completion/complete` for the template variable `path`: completes names in the directory of the value.
pub(crate) fn complete(tree: &FileTree, request: &Request, stop: &StopFlag) -> Result<String, RequestFailure> {
    let text = request.raw.as_str();
    let member = |of, key| json::member(text, of?, key);
    let string = |at| at_string(text, at);
    let argument = member(request.params.whole, "argument");
    let reference = string(member(request.params.reference, "uri")).unwrap_or_default();
    if reference != tree.root.template() {
        return Err(invalid(format!("ref.uri {} is not the template of these files", quote(&reference))));
    }
    let name = string(member(argument, "name")).unwrap_or_default();
    if name != "path" {
        return Err(invalid(format!("{} has no variable {}, only path", tree.root.template(), quote(&name))));
    }
    let value = string(member(argument, "value")).unwrap_or_default();
    let (values, total) = names(tree, &value, stop);
    let values: Vec<_> = values.iter().map(|value| quote(value)).collect();
    let more = total > values.len();
    Ok(format!(r#"{{"completion":{{"values":[{}],"total":{total},"hasMore":{more}}}}}"#, values.join(",")))
}

fn at_string(text: &str, at: Option<json::Span>) -> Option<String> {
    json::string(text, at?).map(Cow::into_owned)
}

/// Returns the first paths that begin with `value`, and the number of all. Directories end with a slash.
fn names(tree: &FileTree, value: &str, stop: &StopFlag) -> (Vec<String>, usize) {
    let (before, begin) = value.split_at(value.rfind('/').map_or(0, |slash| slash + 1));
    let directory = if before.is_empty() { Some(".".to_owned()) } else { decoded(before) };
    let path = directory.and_then(|directory| tree.root.path_of(&directory).ok());
    let entry = path.and_then(|path| tree.find(&path).ok()).filter(|entry| entry.facts.kind == FileKind::Directory);
    let (mut values, mut total) = (Vec::new(), 0);
    let Some(entry) = entry else { return (values, total) };
    tree.walk(&entry, stop, |item| {
        let name = path::template_value(item.name());
        if name.starts_with(begin) {
            total += 1;
            if values.len() < MAX_VALUES {
                values.push(format!("{before}{name}{}", if item.kind == FileKind::Directory { "/" } else { "" }));
            }
        }
        WalkStep::Past
    });
    (values, total)
}

/// Decodes a template value. Returns `None` if it is not UTF-8, so directories with such names are not completed.
fn decoded(text: &str) -> Option<String> {
    path::decode(text).and_then(|bytes| String::from_utf8(bytes).ok())
}
