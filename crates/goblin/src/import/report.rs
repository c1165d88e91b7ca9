//! Renders the plan of an import as text and as JSON.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use goblin_config::consent;
use goblin_config::edit::Draft;
use goblin_config::import::merge::{ImportCandidate, MergeResult};
use goblin_config::import::show;
use goblin_config::pin::{UnpinnedPackage, unpinned};
use goblin_config::problem::Problem;
use goblin_config::tree::JsonTree;
use goblin_config::visible::escaped;
use serde_json::{Value, json};

use crate::import::moves::FoundSecret;
use crate::style::{plural, wrap};
use crate::table::{Column, Table};

pub(crate) struct ImportPlan {
    /// The target file with the new servers added.
    pub draft: Draft,
    pub merged: MergeResult,
    /// Problems outside of the file, such as unset variables.
    pub outside: Vec<Problem>,
    /// The files that the search tried.
    pub searched: Vec<PathBuf>,
    /// The literal secrets of the new servers.
    pub secrets: Vec<FoundSecret>,
}

impl ImportPlan {
    pub(crate) fn new_servers(&self) -> impl Iterator<Item = &ImportCandidate> {
        self.merged.servers.iter().filter(|server| !server.is_present)
    }

    /// Returns everything that the user needs for the decision. Wraps lines at `width`, the width of the terminal, so
    /// that no part of a hostile line can pass for a separate line.
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let mut text = String::new();
        if self.merged.servers.is_empty() {
            text.push_str("no servers were found\n");
            section(
                &mut text,
                width,
                "searched",
                self.searched.iter().map(|path| escaped(&path.display().to_string())),
            );
        } else {
            text.push_str(&self.table(width));
        }
        section(&mut text, width, "not imported unchanged", self.merged.notes.iter().map(ToString::to_string));
        let versions = self.new_servers().filter_map(|server| {
            Some(format!("{}: {}", escaped(&server.id), escaped(&open_version(server)?.to_string())))
        });
        section(&mut text, width, "without a fixed version", versions);
        let missing: BTreeSet<String> = self.outside.iter().map(|problem| escaped(&problem.message)).collect();
        section(&mut text, width, "to be set for the gateway", missing.into_iter());
        let secrets = self.secrets.iter().map(|secret| escaped(&secret.place()));
        section(&mut text, width, "literal secrets (--secrets vault moves them into the vault)", secrets);
        if self.new_servers().any(|server| consent::is_masked(&server.entry)) {
            text.push_str("\n*** hides values of variables, headers and URLs; the file gets the real values\n");
        }
        if self.new_servers().next().is_none() && !self.merged.servers.is_empty() {
            text.push_str(&format!("\nnothing to add to {}\n", self.draft.path().display()));
        } else {
            text.push('\n');
        }
        text
    }

    fn table(&self, terminal: Option<usize>) -> String {
        let mut table = Table::new(&[Column::text("server"), Column::text("from"), Column::wrapped("runs")]);
        for server in &self.merged.servers {
            let mut runs = consent::line(&server.entry);
            if server.entry.get("enabled") == Some(&JsonTree::Flag(false)) {
                runs.push_str("  (disabled)");
            }
            if server.is_present {
                runs.push_str("  (already present)");
            }
            table.push([escaped(&server.id), clients(server).join(", "), runs]);
        }
        table.render(terminal, false)
    }

    /// `names` are the names of the secrets in the vault, in the order of the secrets. Empty if no secret was moved.
    pub(crate) fn json(&self, written: bool, names: &[String]) -> Value {
        let server = |server: &ImportCandidate| {
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
        let secrets = self.secrets.iter().enumerate().map(
            |(index, secret)| json!({ "server": secret.server, "place": secret.place(), "moved": names.get(index) }),
        );
        json!({
            "target": self.draft.path(),
            "written": written,
            "servers": self.merged.servers.iter().map(server).collect::<Vec<_>>(),
            "notes": notes.collect::<Vec<_>>(),
            "secrets": secrets.collect::<Vec<_>>(),
            "missing": self.outside.iter().map(|problem| &problem.message).collect::<BTreeSet<_>>(),
        })
    }
}

/// `names` are the names of the secrets that were moved into the vault.
pub(crate) fn done(count: usize, path: &Path, names: &[String]) -> String {
    let servers = plural(count, "server");
    let moved = match names {
        [] => String::new(),
        names => format!("moved {} into the vault: {}\n", plural(names.len(), "secret"), names.join(", ")),
    };
    format!(
        "added {servers} to {}\n{moved}\nnext:\n  goblin check --connect   to see whether they answer\n  \
         goblin serve             to offer them at one address\n",
        path.display()
    )
}

fn section(text: &mut String, width: Option<usize>, title: &str, lines: impl Iterator<Item = String>) {
    let lines: String = lines.map(|line| wrap("  ", &line, width)).collect();
    if !lines.is_empty() {
        text.push_str(&format!("\n{title}:\n{lines}"));
    }
}

fn clients(server: &ImportCandidate) -> Vec<&'static str> {
    server.clients.iter().map(|client| client.as_str()).collect()
}

fn open_version(server: &ImportCandidate) -> Option<UnpinnedPackage> {
    let command = server.entry.get("command")?.as_text()?;
    let args = match server.entry.get("args") {
        Some(JsonTree::List(args)) => args.iter().filter_map(JsonTree::as_text).collect(),
        _ => Vec::new(),
    };
    unpinned(command, &args)
}
