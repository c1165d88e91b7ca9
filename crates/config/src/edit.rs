//! Changes of the configuration file that leave the rest of it alone.
//!
//! The text is edited as a tree that holds every space and comment, so whatever is not asked for stays byte for byte.
//! Nothing reaches the disk before our own reader has accepted the result; a variable that is not set now is no reason to
//! refuse, since it may be set where the gateway runs.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use jsonc_parser::cst::{CstNode, CstObject, CstObjectProp, CstRootNode};
use jsonc_parser::parse_to_ast;

use crate::document::STRICT;
use crate::file::{LoadError, Origin};
use crate::problem::Problem;
use crate::tree::Tree;
use crate::{Environment, file, parse, vocabulary};

pub mod disk;

/// What a configuration begins with.
const NEW: &str = "{\n  \"mcpServers\": {}\n}\n";
const BYTE_ORDER_MARK: &str = "\u{feff}";

#[derive(Debug, thiserror::Error)]
pub enum EditError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{} has problems, mend them first; nothing was changed\n{problems}", path.display())]
    Broken { path: PathBuf, problems: String },
    #[error("nothing was changed: {problems}")]
    Refused { problems: String },
    #[error("cannot write {}: {reason}", path.display())]
    Write { path: PathBuf, reason: std::io::Error },
}

/// A configuration file with changes that are not written yet.
pub struct Draft {
    path: PathBuf,
    /// What is on the disk; nothing for a file to be made.
    old: Option<String>,
    origin: Origin,
    mark: &'static str,
    root: CstRootNode,
}

impl Draft {
    /// Reads the file, or begins one where there is none.
    pub fn open(path: &Path) -> Result<Draft, EditError> {
        match file::read(path) {
            Ok((text, origin)) => Draft::of(path, Some(text), origin),
            Err(LoadError::Read { reason, .. }) if reason.kind() == ErrorKind::NotFound => {
                Draft::of(path, None, Origin::of_new(path, disk::NEW_MODE)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn of(path: &Path, old: Option<String>, origin: Origin) -> Result<Draft, EditError> {
        let text = old.as_deref().unwrap_or(NEW);
        let (mark, text) = match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(text) => (BYTE_ORDER_MARK, text),
            None => ("", text),
        };
        // A file that somebody has made but not filled is a file to be made.
        let text = if text.trim().is_empty() { NEW } else { text };
        let root = CstRootNode::parse(text, &STRICT).ok().filter(can_be_edited);
        match root {
            Some(root) => Ok(Draft { path: path.to_owned(), old, origin, mark, root }),
            None => Err(broken(path, text, &origin)),
        }
    }

    /// A file that is never written, to ask the reader about an entry.
    pub(crate) fn scratch() -> Draft {
        let origin = Origin::new("goblin.json", "/");
        Draft::of(Path::new("goblin.json"), None, origin).expect("a new file is an object")
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The servers that stand in it, in order.
    pub fn servers(&self) -> Vec<(String, Tree)> {
        let text = self.root.to_string();
        let tree = parse_to_ast(&text, &Default::default(), &STRICT).ok().and_then(|parsed| parsed.value);
        let tree = tree.as_ref().map(Tree::of_json);
        let block = tree.as_ref().and_then(|tree| vocabulary::SERVERS.iter().find_map(|name| tree.get(name)));
        block.and_then(Tree::members).map(<[_]>::to_vec).unwrap_or_default()
    }

    /// The server that was meant, perhaps.
    pub fn nearest(&self, id: &str) -> Option<String> {
        let servers = self.servers();
        vocabulary::nearest(id, servers.iter().map(|(name, _)| name.as_str())).map(str::to_owned)
    }

    /// Adds a server, or replaces the one with this id where it stands.
    pub fn put(&self, id: &str, entry: &Tree) {
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

    /// Under whichever name the file has it.
    fn block(&self) -> CstObject {
        let root = self.root.object_value_or_set();
        let known = vocabulary::SERVERS.iter().find_map(|name| root.object_value(name));
        known.unwrap_or_else(|| root.object_value_or_set(vocabulary::SERVERS[0]))
    }

    pub fn text(&self) -> String {
        format!("{}{}", self.mark, self.root)
    }

    pub(crate) fn problems(&self, environment: Environment<'_>) -> Vec<Problem> {
        let problems = parse(&self.text(), &self.origin, environment).err();
        problems.iter().flat_map(|problems| problems.iter().cloned()).collect()
    }

    /// Asks the reader. Gives what the change needs and is missing outside of the file: variables that are not set, files
    /// that are not there.
    pub fn check(&self, environment: Environment<'_>) -> Result<Vec<Problem>, EditError> {
        let (mut outside, inside): (Vec<_>, Vec<_>) =
            self.problems(environment).into_iter().partition(|problem| problem.outside);
        let old = self.old.as_ref().and_then(|old| parse(old, &self.origin, environment).err());
        let old: Vec<Problem> = old.iter().flat_map(|problems| problems.iter().cloned()).collect();
        let was_there = |problem: &Problem| old.iter().any(|known| known.is_like(problem));
        if inside.is_empty() {
            outside.retain(|problem| !was_there(problem));
            return Ok(outside);
        }
        // What was wrong before is told as it stands in the file; what this change would bring has no line yet.
        let still = old.iter().filter(|known| inside.iter().any(|problem| problem.is_like(known)));
        if let Some(problems) = lines(still) {
            return Err(EditError::Broken { path: self.path.clone(), problems });
        }
        let problems: Vec<String> = inside.iter().map(Problem::without_place).collect();
        Err(EditError::Refused { problems: problems.join("\n") })
    }

    /// Puts it in place of the file. Gives the file that was written, which is another where the path is a link.
    pub fn write(&self) -> Result<PathBuf, EditError> {
        disk::replace(&self.path, &self.text(), || self.is_current())
            .map_err(|reason| EditError::Write { path: self.path.clone(), reason })
    }

    /// Whether what is on the disk is what was read. Between the two a person may have been asked.
    fn is_current(&self) -> bool {
        match file::read(&self.path) {
            Ok((text, _)) => self.old.as_ref() == Some(&text),
            Err(LoadError::Read { reason, .. }) => self.old.is_none() && reason.kind() == ErrorKind::NotFound,
            Err(_) => false,
        }
    }
}

/// Whether the servers have a place, or can get one without overwriting something else.
fn can_be_edited(root: &CstRootNode) -> bool {
    let is_free = |value: CstNode| value.as_object().is_some() || value.as_null_keyword().is_some();
    let is_place = |property: CstObjectProp| property.value().is_none_or(is_free);
    root.object_value().is_some_and(|root| vocabulary::SERVERS.iter().filter_map(|name| root.get(name)).all(is_place))
}

/// The reader tells best what is wrong with a text that is no tree.
fn broken(path: &Path, text: &str, origin: &Origin) -> EditError {
    let problems = parse(text, origin, &|_| None).err().and_then(|problems| lines(problems.iter()));
    EditError::Broken { path: path.to_owned(), problems: problems.unwrap_or_default() }
}

/// One per line, unless there are none.
fn lines<'a>(problems: impl Iterator<Item = &'a Problem>) -> Option<String> {
    let lines: Vec<String> = problems.map(ToString::to_string).collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests;
