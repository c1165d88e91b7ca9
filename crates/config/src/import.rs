//! Servers from the files of other MCP clients.
//!
//! Pure from the text on: [`translate`] turns one file into entries of ours and notes of what could not be carried;
//! [`merge`] puts the entries of several files together. `place` finds the files. `consent` shows what would run.
//! Nothing is dropped in silence: a member that means something and has no place here becomes a [`Note`].

use std::fmt;
use std::path::{Path, PathBuf};

use crate::consent;
use crate::edit::Draft;
use crate::network;
use crate::tree::Tree;
use crate::visible::escaped;

pub mod block;
pub mod merge;
pub mod place;
pub mod show;

mod entry;
mod variables;

/// A person cannot judge more servers of one file.
const MAX_SERVERS: usize = 500;
/// A person cannot judge a longer command.
const MAX_COMMAND: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    VsCode,
    Windsurf,
    Codex,
    Gemini,
}

impl Client {
    pub const ALL: [Client; 7] = [
        Client::ClaudeDesktop,
        Client::ClaudeCode,
        Client::Cursor,
        Client::VsCode,
        Client::Windsurf,
        Client::Codex,
        Client::Gemini,
    ];

    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Client::ClaudeDesktop => "claude-desktop",
            Client::ClaudeCode => "claude-code",
            Client::Cursor => "cursor",
            Client::VsCode => "vscode",
            Client::Windsurf => "windsurf",
            Client::Codex => "codex",
            Client::Gemini => "gemini",
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A file of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    pub client: Client,
    pub path: PathBuf,
    /// The directory of the project that the file belongs to; none for a file of the user.
    pub project: Option<PathBuf>,
}

/// Where the user is.
#[derive(Clone, Debug)]
pub struct Ground {
    pub home: PathBuf,
    /// The working directory.
    pub here: PathBuf,
}

/// What a file gave.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub servers: Vec<Imported>,
    pub notes: Vec<Note>,
}

/// A server as it would stand in our file.
#[derive(Clone, Debug)]
pub struct Imported {
    pub name: String,
    pub client: Client,
    pub file: PathBuf,
    pub scope: Scope,
    pub entry: Tree,
}

/// Of two servers with one name a client takes the one with the narrower scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// Of the user, in this project.
    Local,
    Project,
    User,
}

/// Something that was not carried as it stood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub file: PathBuf,
    /// Empty for the file as a whole.
    pub server: String,
    /// Empty for the server as a whole.
    pub member: String,
    pub why: String,
    pub cure: Option<String>,
}

impl fmt::Display for Note {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", escaped(&self.file.display().to_string()))?;
        let place: Vec<&str> =
            [self.server.as_str(), self.member.as_str()].into_iter().filter(|part| !part.is_empty()).collect();
        if !place.is_empty() {
            write!(formatter, "{}: ", escaped(&place.join(".")))?;
        }
        formatter.write_str(&escaped(&self.why))?;
        self.cure.iter().try_for_each(|cure| write!(formatter, ", {}", escaped(cure)))
    }
}

/// Reads one file. An error is a sentence about the file as a whole.
pub fn translate(source: &Source, text: &str, ground: &Ground) -> Result<Found, String> {
    let mut found = Found::default();
    let blocks = block::blocks(source, text, ground)?;
    let count: usize = blocks.iter().map(|block| block.servers.len()).sum();
    if count > MAX_SERVERS {
        return Err(format!("has {count} servers, more than {MAX_SERVERS} cannot be judged at once"));
    }
    for block in blocks {
        for (name, members) in &block.servers {
            let mut notes = Vec::new();
            let entry = entry::entry(source.client, members, &block, ground, &mut notes);
            let entry = entry.filter(|entry| is_accepted(entry, &mut notes));
            let file = &source.path;
            found.notes.extend(notes.into_iter().map(|remark| Note {
                file: file.clone(),
                server: name.clone(),
                member: remark.member,
                why: remark.why,
                cure: remark.cure,
            }));
            if let Some(entry) = entry {
                let (client, file) = (source.client, file.clone());
                found.servers.push(Imported { name: name.clone(), client, file, scope: block.scope, entry });
            }
        }
    }
    Ok(found)
}

/// A note before anybody said whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    member: String,
    why: String,
    cure: Option<String>,
}

impl Remark {
    fn new(member: impl Into<String>, why: impl Into<String>) -> Remark {
        Remark { member: member.into(), why: why.into(), cure: None }
    }

    fn cure(self, cure: impl Into<String>) -> Remark {
        Remark { cure: Some(cure.into()), ..self }
    }
}

/// Whether our reader takes it. One that it refuses must not keep out all others.
fn is_accepted(entry: &Tree, notes: &mut Vec<Remark>) -> bool {
    let draft = Draft::scratch();
    draft.put("x", entry);
    let problems = draft.problems(&|_| None);
    for problem in problems.iter().filter(|problem| !problem.outside) {
        let member = problem.path.strip_prefix("mcpServers.x").unwrap_or(&problem.path).trim_start_matches('.');
        let remark = Remark::new(member, format!("not imported: {}", problem.message));
        notes.push(Remark { cure: problem.cure.clone(), ..remark });
    }
    let length = consent::line(entry).len();
    if length > MAX_COMMAND {
        let why = format!("not imported: it takes {length} bytes to show, more than {MAX_COMMAND} cannot be judged");
        notes.push(Remark::new("", why).cure("look at it, and use goblin add"));
    }
    length <= MAX_COMMAND && problems.iter().all(|problem| problem.outside)
}

/// Whether an entry leads back to us: `goblin` as a command, or our own address.
pub fn is_ourselves(entry: &Tree, port: u16) -> bool {
    let program = entry.get("command").and_then(Tree::as_text).map(Path::new).and_then(Path::file_name);
    let is_own = |url: &str| network::is_local_endpoint(url, port);
    let args = match entry.get("args") {
        Some(Tree::List(args)) => args.as_slice(),
        _ => &[],
    };
    program.is_some_and(|program| program == "goblin")
        || entry.get("url").and_then(Tree::as_text).is_some_and(is_own)
        || args.iter().filter_map(Tree::as_text).any(is_own)
}

/// An argument that means a place near the working directory, of a command that has none of its own.
pub fn relative_argument(entry: &Tree) -> Option<&str> {
    let Some(Tree::List(args)) = entry.get("args").filter(|_| entry.get("cwd").is_none()) else { return None };
    let is_relative = |text: &&str| matches!(*text, "." | "..") || text.starts_with("./") || text.starts_with("../");
    args.iter().filter_map(Tree::as_text).find(is_relative)
}

#[cfg(test)]
mod tests;
