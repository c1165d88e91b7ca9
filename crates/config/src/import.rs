//! Imports servers from the files of other MCP clients.
//!
//! [`translate`] turns the text of one file into entries of goblin's format, and [`merge`] combines the entries of
//! several files. Both are pure. `place` finds the files, and `consent` shows the commands for approval. Nothing is
//! dropped silently: a member without an equivalent becomes a [`Note`].

use std::fmt;
use std::path::PathBuf;

use crate::consent;
use crate::edit::Draft;
use crate::tree::JsonTree;
use crate::visible::escaped;

pub(crate) mod block;
pub mod literal;
pub mod merge;
pub mod place;
pub mod show;

mod entry;
mod variables;

/// The limit of servers in one file. A user cannot review more.
const MAX_SERVERS: usize = 500;
/// The size limit of one entry as shown. A user cannot review a longer command.
const MAX_COMMAND: usize = 16 << 10;

goblin_wire::labels! {
    /// A program with a file of servers. The names are those of the command line.
    ///
    /// A new client also needs its paths in `place.rs`, its variables in `variables.rs`, and a case in `guess`.
    ClientApp {
        ClaudeDesktop = "claude-desktop",
        ClaudeCode = "claude-code",
        Cursor = "cursor",
        VsCode = "vscode",
        Windsurf = "windsurf",
        Codex = "codex",
        Gemini = "gemini",
    }
}

impl fmt::Display for ClientApp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A configuration file of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFile {
    pub client: ClientApp,
    pub path: PathBuf,
    /// The directory of the project that the file belongs to. `None` for a file of the user.
    pub project: Option<PathBuf>,
}

/// The directories that the search for files starts from.
#[derive(Clone, Debug)]
pub struct SearchBase {
    pub home: PathBuf,
    /// The working directory.
    pub here: PathBuf,
}

/// The servers and notes from one file.
#[derive(Clone, Debug, Default)]
pub struct FileImport {
    pub servers: Vec<ImportedServer>,
    pub notes: Vec<Note>,
}

/// A server in goblin's format, with its source.
#[derive(Clone, Debug)]
pub struct ImportedServer {
    pub name: String,
    pub client: ClientApp,
    pub file: PathBuf,
    pub scope: Scope,
    pub entry: JsonTree,
}

/// The scope of a server. If two servers share a name, a client uses the one with the narrower scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// A user's server for one project.
    Local,
    Project,
    User,
}

/// A member or server that could not be imported unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub file: PathBuf,
    /// The server's name. Empty if the note concerns the whole file.
    pub server: String,
    /// The member's name. Empty if the note concerns the whole server.
    pub member: String,
    pub why: String,
    pub cure: Option<String>,
}

impl Note {
    /// Returns a note. [`translate`] adds its file and server.
    fn new(member: impl Into<String>, why: impl Into<String>) -> Note {
        let (file, server) = (PathBuf::new(), String::new());
        Note { file, server, member: member.into(), why: why.into(), cure: None }
    }

    fn cure(self, cure: impl Into<String>) -> Note {
        Note { cure: Some(cure.into()), ..self }
    }
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

/// Translates one file. Returns an error message if the file as a whole cannot be used.
pub fn translate(source: &ClientFile, text: &str, search_base: &SearchBase) -> Result<FileImport, String> {
    let mut found = FileImport::default();
    let blocks = block::blocks(source, text, search_base)?;
    let count: usize = blocks.iter().map(|block| block.servers.len()).sum();
    if count > MAX_SERVERS {
        return Err(format!("has {count} servers; at most {MAX_SERVERS} can be reviewed at once"));
    }
    for block in blocks {
        for (name, members) in &block.servers {
            let mut notes = Vec::new();
            let entry = entry::entry(source.client, members, &block, search_base, &mut notes);
            let entry = entry.filter(|entry| is_accepted(entry, &mut notes));
            let file = &source.path;
            let notes = notes.into_iter();
            found.notes.extend(notes.map(|note| Note { file: file.clone(), server: name.clone(), ..note }));
            if let Some(entry) = entry {
                let (client, file) = (source.client, file.clone());
                found.servers.push(ImportedServer { name: name.clone(), client, file, scope: block.scope, entry });
            }
        }
    }
    Ok(found)
}

/// Reports whether goblin's own reader accepts the entry. Adds notes otherwise, so one bad entry does not block the
/// others.
fn is_accepted(entry: &JsonTree, notes: &mut Vec<Note>) -> bool {
    let draft = Draft::scratch();
    draft.put("x", entry);
    let problems = draft.problems(&|_| None);
    for problem in problems.iter().filter(|problem| !problem.outside) {
        let member = problem.path.strip_prefix("mcpServers.x").unwrap_or(&problem.path).trim_start_matches('.');
        let note = Note::new(member, format!("not imported: {}", problem.message));
        notes.push(Note { cure: problem.cure.clone(), ..note });
    }
    let length = consent::line(entry).len();
    if length > MAX_COMMAND {
        let why = format!("not imported: the entry has {length} bytes as shown; at most {MAX_COMMAND} can be reviewed");
        notes.push(Note::new("", why).cure("review the entry and use goblin add"));
    }
    length <= MAX_COMMAND && problems.iter().all(|problem| problem.outside)
}

#[cfg(test)]
mod tests;
