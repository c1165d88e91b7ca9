//! Edits the configuration file and preserves everything else in it.
//!
//! The text is edited as a tree that keeps every space and comment, so unrelated parts stay byte for byte the same. A
//! draft is written only after `check` has parsed the result. An unset variable does not block a change, because it may
//! be set in the gateway's own environment.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use jsonc_parser::cst::{CstNode, CstObject, CstObjectProp, CstRootNode};
use jsonc_parser::parse_to_ast;

use crate::document::STRICT;
use crate::file::{ConfigOrigin, LoadError};
use crate::problem::Problem;
use crate::secret::SecretLookup;
use crate::tree::JsonTree;
use crate::{Environment, LoadedConfig, file, parse, read, vocabulary};

pub(crate) mod disk;

/// The text of a new configuration file.
const NEW: &str = "{\n  \"mcpServers\": {}\n}\n";
const BYTE_ORDER_MARK: &str = "\u{feff}";

#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{} was not changed; fix its problems first\n{problems}", path.display())]
    Broken { path: PathBuf, problems: String },
    #[error("nothing was changed: {problems}")]
    Rejected { problems: String },
    #[error("cannot write {}: {reason}", path.display())]
    Write { path: PathBuf, reason: std::io::Error },
}

/// A configuration file with changes that are not written yet.
pub struct Draft {
    path: PathBuf,
    /// The text on disk. `None` for a new file.
    old: Option<String>,
    origin: ConfigOrigin,
    mark: &'static str,
    root: CstRootNode,
}

impl Draft {
    /// Reads the file, or starts a new draft if the file does not exist.
    pub fn open(path: &Path) -> Result<Draft, EditError> {
        match file::read(path) {
            Ok((text, origin)) => Draft::of(path, Some(text), origin),
            Err(LoadError::Read { reason, .. }) if reason.kind() == ErrorKind::NotFound => {
                Draft::of(path, None, ConfigOrigin::of_new(path, disk::NEW_MODE)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn of(path: &Path, old: Option<String>, origin: ConfigOrigin) -> Result<Draft, EditError> {
        let text = old.as_deref().unwrap_or(NEW);
        let (mark, text) = match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(text) => (BYTE_ORDER_MARK, text),
            None => ("", text),
        };
        // Treat an empty file like a missing one.
        let text = if text.trim().is_empty() { NEW } else { text };
        let root =
            CstRootNode::parse(text, &STRICT).ok().filter(|root| can_be_edited(root) && !is_bare_map(text, &origin));
        match root {
            Some(root) => Ok(Draft { path: path.to_owned(), old, origin, mark, root }),
            None => Err(broken(path, text, &origin)),
        }
    }

    #[cfg(feature = "import")]
    /// Returns a draft that is never written. Import uses it to check an entry.
    pub(crate) fn scratch() -> Draft {
        let origin = ConfigOrigin::new("goblin.json", "/");
        Draft::of(Path::new("goblin.json"), None, origin).expect("a new file is an object")
    }

    /// Sets the lookup for `${secret:NAME}`.
    #[must_use]
    pub fn with_secrets(mut self, secrets: SecretLookup) -> Draft {
        self.origin.secrets = secrets;
        self
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn origin(&self) -> &ConfigOrigin {
        &self.origin
    }

    /// Returns the servers in the order of the file.
    pub fn servers(&self) -> Vec<(String, JsonTree)> {
        let text = self.root.to_string();
        let tree = parse_to_ast(&text, &Default::default(), &STRICT).ok().and_then(|parsed| parsed.value);
        let tree = tree.as_ref().map(JsonTree::of_json);
        let block = tree.as_ref().and_then(|tree| vocabulary::SERVERS.iter().find_map(|name| tree.get(name)));
        block.and_then(JsonTree::members).map(<[_]>::to_vec).unwrap_or_default()
    }

    /// Returns the server with the most similar id, as a suggestion for a misspelled one.
    pub fn nearest(&self, id: &str) -> Option<String> {
        let servers = self.servers();
        vocabulary::nearest(id, servers.iter().map(|(name, _)| name.as_str())).map(str::to_owned)
    }

    /// Adds a server, or replaces the server with this id in place.
    pub fn put(&self, id: &str, entry: &JsonTree) {
        let block = self.block();
        match block.get(id) {
            Some(property) => property.set_value(entry.to_input()),
            None => {
                block.append(id, entry.to_input());
            }
        }
    }

    pub fn remove(&self, id: &str) {
        if let Some(property) = self.block().get(id) {
            property.remove();
        }
    }

    /// Returns the object with the servers, under any of its known names. Creates it if it is missing.
    fn block(&self) -> CstObject {
        let root = self.root.object_value_or_set();
        let known = vocabulary::SERVERS.iter().find_map(|name| root.object_value(name));
        known.unwrap_or_else(|| root.object_value_or_set(vocabulary::SERVERS[0]))
    }

    pub fn text(&self) -> String {
        format!("{}{}", self.mark, self.root)
    }

    pub(crate) fn problems(&self, environment: Environment<'_>) -> Vec<Problem> {
        problems_of(&self.text(), &self.origin, environment)
    }

    /// Parses the draft. Returns the new problems outside of the file: unset variables and missing files.
    ///
    /// Returns an error if the draft itself has problems.
    pub fn check(&self, environment: Environment<'_>) -> Result<Vec<Problem>, EditError> {
        let (mut outside, inside): (Vec<_>, Vec<_>) =
            self.problems(environment).into_iter().partition(|problem| problem.outside);
        let old = self.old.as_ref().map(|old| problems_of(old, &self.origin, environment)).unwrap_or_default();
        let was_there = |problem: &Problem| old.iter().any(|known| known.is_like(problem));
        if inside.is_empty() {
            outside.retain(|problem| !was_there(problem));
            return Ok(outside);
        }
        // Report existing problems with their position in the file. Problems of this change have no position yet.
        let still = old.iter().filter(|known| inside.iter().any(|problem| problem.is_like(known)));
        if let Some(problems) = lines(still) {
            return Err(EditError::Broken { path: self.path.clone(), problems });
        }
        let problems: Vec<String> = inside.iter().map(Problem::without_place).collect();
        Err(EditError::Rejected { problems: problems.join("\n") })
    }

    /// Replaces the file with the draft. Returns the path that was written, which differs if `path` is a symbolic link.
    pub fn write(&self) -> Result<PathBuf, EditError> {
        disk::replace(&self.path, &self.text(), || self.is_current())
            .map_err(|reason| EditError::Write { path: self.path.clone(), reason })
    }

    /// Reports whether the file on disk is still the one that was read. The user may have been prompted in between.
    fn is_current(&self) -> bool {
        match file::read(&self.path) {
            Ok((text, _)) => self.old.as_ref() == Some(&text),
            Err(LoadError::Read { reason, .. }) => self.old.is_none() && reason.kind() == ErrorKind::NotFound,
            Err(_) => false,
        }
    }
}

/// Returns all problems of a text, including those of single servers.
pub(crate) fn problems_of(text: &str, origin: &ConfigOrigin, environment: Environment<'_>) -> Vec<Problem> {
    match parse(text, origin, environment) {
        Ok(LoadedConfig { config, .. }) => {
            let misconfigured = config.servers.values().filter_map(|server| server.misconfiguration());
            misconfigured.flat_map(|misconfiguration| misconfiguration.problems.iter().cloned()).collect()
        }
        Err(problems) => problems.iter().cloned().collect(),
    }
}

/// Reports whether the servers object exists, or can be added without overwriting another value.
fn can_be_edited(root: &CstRootNode) -> bool {
    let is_free = |value: CstNode| value.as_object().is_some() || value.as_null_keyword().is_some();
    let is_place = |property: CstObjectProp| property.value().is_none_or(is_free);
    root.object_value().is_some_and(|root| vocabulary::SERVERS.iter().filter_map(|name| root.get(name)).all(is_place))
}

/// Reports whether the text consists of servers only. An added `mcpServers` would hide them.
fn is_bare_map(text: &str, origin: &ConfigOrigin) -> bool {
    let problems = parse(text, origin, &|_| None).err();
    problems.is_some_and(|problems| problems.iter().any(|problem| problem.message == read::BARE_MAP))
}

/// Returns the error for a text that cannot be edited. The parser explains its problems.
fn broken(path: &Path, text: &str, origin: &ConfigOrigin) -> EditError {
    let problems = parse(text, origin, &|_| None).err().and_then(|problems| lines(problems.iter()));
    EditError::Broken { path: path.to_owned(), problems: problems.unwrap_or_default() }
}

/// Returns the problems, one per line. Returns `None` if there are none.
fn lines<'a>(problems: impl Iterator<Item = &'a Problem>) -> Option<String> {
    let lines: Vec<String> = problems.map(ToString::to_string).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Returns the first argument that is relative to the working directory, if the entry has no `cwd`.
pub fn relative_argument(entry: &JsonTree) -> Option<&str> {
    let Some(JsonTree::List(args)) = entry.get("args").filter(|_| entry.get("cwd").is_none()) else { return None };
    let is_relative = |text: &&str| matches!(*text, "." | "..") || text.starts_with("./") || text.starts_with("../");
    args.iter().filter_map(JsonTree::as_text).find(is_relative)
}

#[cfg(test)]
mod tests;
