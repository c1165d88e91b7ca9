//! What an import would do, in words and as JSON.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::config::edit::Draft;
use crate::config::import::merge::{Candidate, Merged};
use crate::config::import::show;
use crate::config::mask;
use crate::config::pin::{Unpinned, unpinned};
use crate::config::problem::Problem;
use crate::config::tree::Tree;

pub struct Plan {
    /// With the new servers in it.
    pub draft: Draft,
    pub merged: Merged,
    /// What is missing outside of the file.
    pub outside: Vec<Problem>,
    /// The files that were looked for.
    pub looked: Vec<PathBuf>,
}

impl Plan {
    pub fn new_servers(&self) -> impl Iterator<Item = &Candidate> {
        self.merged.servers.iter().filter(|server| !server.is_present)
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.merged.servers.is_empty() {
            text.push_str("no servers were found\n");
            section(&mut text, "looked for", self.looked.iter().map(|path| show::plain(&path.display().to_string())));
        } else {
            text.push_str(&self.table());
        }
        section(&mut text, "not carried over as it stood", self.merged.notes.iter().map(ToString::to_string));
        let versions = self.new_servers().filter_map(|server| {
            Some(format!("{}: {}", show::plain(&server.id), show::plain(&open_version(server)?.to_string())))
        });
        section(&mut text, "not the same program tomorrow", versions);
        let missing: BTreeSet<String> = self.outside.iter().map(|problem| show::plain(&problem.message)).collect();
        section(&mut text, "to be set where the gateway runs", missing.into_iter());
        let has_secret = self.new_servers().any(|server| has_literal(&server.entry));
        if has_secret {
            text.push_str("\nsecrets are not shown, or as ***; they are written as they are\n");
        }
        if self.new_servers().next().is_none() && !self.merged.servers.is_empty() {
            text.push_str(&format!("\nnothing to add to {}\n", self.draft.path().display()));
        } else {
            text.push('\n');
        }
        text
    }

    fn table(&self) -> String {
        let rows = self.merged.servers.iter().map(|server| {
            let mut runs = show::line(&server.entry);
            if server.entry.get("enabled") == Some(&Tree::Flag(false)) {
                runs.push_str("  (disabled)");
            }
            if server.is_present {
                runs.push_str("  (there already)");
            }
            [show::plain(&server.id), clients(server).join(", "), runs]
        });
        let mut rows: Vec<[String; 3]> = rows.collect();
        rows.insert(0, ["server", "from", "runs"].map(str::to_owned));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
        let (first, second) = (width(0), width(1));
        rows.iter().map(|[server, from, runs]| format!("{server:first$}  {from:second$}  {runs}\n")).collect()
    }

    pub fn json(&self, written: bool) -> Value {
        let server = |server: &Candidate| {
            json!({
                "id": server.id,
                "clients": clients(server),
                "file": server.file,
                "present": server.is_present,
                "entry": show::masked(&server.entry),
                "unpinned": open_version(server).map(|unpinned| unpinned.package),
            })
        };
        let notes = self.merged.notes.iter().map(|note| {
            json!({ "file": note.file, "server": note.server, "member": note.member, "why": note.why, "cure": note.cure })
        });
        json!({
            "target": self.draft.path(),
            "written": written,
            "servers": self.merged.servers.iter().map(server).collect::<Vec<_>>(),
            "notes": notes.collect::<Vec<_>>(),
            "missing": self.outside.iter().map(|problem| &problem.message).collect::<BTreeSet<_>>(),
        })
    }
}

pub fn done(count: usize, path: &Path) -> String {
    let noun = if count == 1 { "server" } else { "servers" };
    format!(
        "added {count} {noun} to {}\n\nnext:\n  goblin check --connect   to see whether they answer\n  \
         goblin serve             to offer them at one address\n",
        path.display()
    )
}

fn section(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    let lines: String = lines.map(|line| format!("  {line}\n")).collect();
    if !lines.is_empty() {
        text.push_str(&format!("\n{title}:\n{lines}"));
    }
}

fn clients(server: &Candidate) -> Vec<&'static str> {
    server.clients.iter().map(|client| client.name()).collect()
}

fn open_version(server: &Candidate) -> Option<Unpinned> {
    let command = server.entry.get("command")?.as_text()?;
    let args = match server.entry.get("args") {
        Some(Tree::List(args)) => args.iter().filter_map(Tree::as_text).collect(),
        _ => Vec::new(),
    };
    unpinned(command, &args)
}

fn has_literal(entry: &Tree) -> bool {
    let mut headers = entry.get("headers").and_then(Tree::members).unwrap_or_default().iter();
    let is_literal = |value: &Tree| value.as_text().is_some_and(|value| mask::value(value) == mask::HIDDEN);
    show::line(entry).contains(mask::HIDDEN) || headers.any(|(_, value)| is_literal(value))
}
