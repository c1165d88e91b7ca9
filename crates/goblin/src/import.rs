//! `goblin import`: copies the servers that other MCP clients have configured.
//!
//! The files name commands, and a project's file may come from a stranger. Nothing is written before every command was
//! shown in full and the user agreed, on the terminal or by `--yes`. Literal secrets move into the vault if the user wants
//! that. Only regular files are read, within limits of size
//! and time.

mod moves;
pub(crate) mod report;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use goblin_client::environment::environment;
use goblin_config::bounded::{self, ReadError};
use goblin_config::edit::Draft;
use goblin_config::file;
use goblin_config::import::literal;
use goblin_config::import::merge::merge;
use goblin_config::import::{ClientApp, ClientFile, FileImport, Note, SearchBase, place, translate};
use goblin_config::tree::JsonTree;
use goblin_config::visible::escaped;

use crate::cli::{CliError, ConfigArgs as Target};
use crate::import::moves::MovedSecrets;
use crate::import::report::ImportPlan;
use crate::loops::{self, EntryTarget};
use crate::style::{print, print_json, width};
use crate::vault::{self, UsedSecrets};

/// The maximum size of a user's file. Some clients store years of history in it.
const MAX_USER_FILE: u64 = 32 << 20;
/// The maximum size of a project's file. It comes from an unknown author and contains only servers.
const MAX_PROJECT_FILE: u64 = 4 << 20;
/// The maximum size of all files together.
const MAX_TOTAL: u64 = 64 << 20;

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// Import only the servers of these clients (default: all)
    #[arg(value_name = "CLIENT", value_parser = clients())]
    pub clients: Vec<ClientApp>,
    /// Read this file instead of searching for files
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub target: Target,
    /// Show the changes without writing them
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Write without confirmation
    #[arg(long, short)]
    pub yes: bool,
    /// Print the result as JSON; writes only with --yes
    #[arg(long)]
    pub json: bool,
    /// Move literal secrets into the vault, or keep them in the file (default: ask on a terminal, else keep)
    #[arg(long, value_name = "WHERE")]
    pub secrets: Option<SecretPlace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SecretPlace {
    Vault,
    Keep,
}

fn clients() -> impl TypedValueParser<Value = ClientApp> {
    let named =
        |name: String| ClientApp::ALL.iter().copied().find(|client| client.as_str() == name).ok_or("unknown client");
    PossibleValuesParser::new(ClientApp::ALL.iter().map(|client| client.as_str())).try_map(named)
}

pub(crate) fn run(arguments: &Import) -> Result<ExitCode> {
    arguments.carry_out(&arguments.plan().map_err(CliError::Usage)?)
}

impl Import {
    fn plan(&self) -> Result<ImportPlan, String> {
        let here =
            std::env::current_dir().map_err(|error| format!("cannot determine the working directory: {error}"))?;
        let home = environment("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from);
        let search_base = SearchBase { home, here };
        let mut searched = Vec::new();
        let found = match &self.from {
            Some(path) => vec![self.named(path, &search_base)?],
            None => self.search(&search_base, &mut searched),
        };
        let path = file::target(self.target.config.as_deref(), &environment).map_err(|error| error.to_string())?;
        let draft = Draft::open(&path).map_err(|error| error.to_string())?;
        let secrets = UsedSecrets::default().lookup();
        let draft = draft.with_secrets(secrets.clone());
        let (gateways, directory) = (loops::known(&draft), &draft.origin().directory);
        let lead = |entry: &JsonTree| gateways.lead(&EntryTarget::of_entry(entry, directory));
        // An entry whose secrets are in the vault is the same server.
        let existing = draft.servers().into_iter().map(|(id, entry)| (id, literal::expanded(&entry, &secrets)));
        let merged = merge(found, &existing.collect::<Vec<_>>(), lead);
        for server in merged.servers.iter().filter(|server| !server.is_present) {
            draft.put(&server.id, &server.entry);
        }
        let outside = draft.check(&environment).map_err(|error| error.to_string())?;
        let secrets = moves::find(merged.servers.iter().filter(|server| !server.is_present));
        Ok(ImportPlan { draft, merged, outside, searched, secrets })
    }

    /// Reads the file that the user named. Unlike in a search, a missing or invalid file is an error.
    fn named(&self, path: &Path, search_base: &SearchBase) -> Result<FileImport, String> {
        let text = read(path, MAX_USER_FILE).map_err(|reason| format!("cannot read {}: {reason}", path.display()))?;
        let path = std::path::absolute(path).map_err(|reason| format!("{}: {reason}", path.display()))?;
        let client = match self.clients.as_slice() {
            [] => place::guess(&path, &text),
            [client] => *client,
            _ => return Err("--from reads one file, so name at most one client".to_owned()),
        };
        let project = place::project_of(client, &path, &search_base.home);
        let source = ClientFile { client, path, project };
        translate(&source, &text, search_base).map_err(|reason| format!("{} {reason}", source.path.display()))
    }

    /// Reads all files that exist. An invalid file becomes a note, and the search continues.
    fn search(&self, search_base: &SearchBase, searched: &mut Vec<PathBuf>) -> Vec<FileImport> {
        let clients = if self.clients.is_empty() { ClientApp::ALL } else { &self.clients };
        let sources = clients.iter().flat_map(|client| place::sources(*client, search_base, &environment));
        let (mut all, mut remaining) = (Vec::new(), MAX_TOTAL);
        for source in sources {
            searched.push(source.path.clone());
            let max = if source.project.is_some() { MAX_PROJECT_FILE } else { MAX_USER_FILE };
            let found = match read(&source.path, max.min(remaining)) {
                Err(error) if error.is_not_found() => continue,
                Err(error) => Err(format!("skipped: {error}")),
                Ok(text) => {
                    remaining -= text.len() as u64;
                    translate(&source, &text, search_base)
                }
            };
            all.push(found.unwrap_or_else(|why| {
                let (server, member) = (String::new(), String::new());
                let notes = vec![Note { file: source.path, server, member, why, cure: None }];
                FileImport { servers: Vec::new(), notes }
            }));
        }
        all
    }

    fn carry_out(&self, plan: &ImportPlan) -> Result<ExitCode> {
        let count = plan.new_servers().count();
        if self.json {
            let written = self.yes && count > 0;
            let names = if written { self.write(plan)?.1 } else { Vec::new() };
            print_json(&plan.json(written, &names).to_string())?;
            return Ok(ExitCode::SUCCESS);
        }
        print(&plan.text(width(&std::io::stdout())))?;
        if count == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        let path = escaped(&plan.draft.path().display().to_string());
        if self.dry_run {
            print("nothing was written (--dry-run)\n")?;
        } else if !self.yes && !std::io::stdin().is_terminal() {
            print(&format!("nothing was written; run the command again with --yes to write to {path}\n"))?;
        } else if self.yes || ask(&format!("write to {path}? [y/N]"), false)? {
            let (path, names) = self.write(plan)?;
            print(&report::done(count, &path, &names))?;
        } else {
            print("nothing was written\n")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the file, and before it the secrets that move into the vault. Returns the path and the names of the secrets.
    fn write(&self, plan: &ImportPlan) -> Result<(PathBuf, Vec<String>)> {
        if plan.secrets.is_empty() || !self.moves_secrets(plan)? {
            return Ok((plan.draft.write()?, Vec::new()));
        }
        let unchanged = |reason: String| CliError::Refused(format!("nothing was written: {reason}"));
        let vault = vault::of_user();
        let vault = vault.ok_or_else(|| unchanged("there is no vault (set XDG_STATE_HOME or HOME)".to_owned()))?;
        let moved = MovedSecrets::write(&vault, &plan.secrets).map_err(|error| unchanged(error.to_string()))?;
        for server in plan.new_servers() {
            plan.draft.put(&server.id, &moved.references(server, &plan.secrets));
        }
        plan.draft.check(&environment)?;
        let path = plan.draft.write()?;
        Ok((path, moved.keep()))
    }

    /// Decides whether secrets move into the vault. Asks on a terminal, unless a flag has the answer.
    fn moves_secrets(&self, plan: &ImportPlan) -> Result<bool> {
        if let Some(place) = self.secrets {
            return Ok(place == SecretPlace::Vault);
        }
        if self.yes || !std::io::stdin().is_terminal() {
            return Ok(false);
        }
        let entries: BTreeSet<&str> = plan.secrets.iter().map(|secret| secret.server.as_str()).collect();
        let verb = if entries.len() == 1 { "entry contains" } else { "entries contain" };
        let places: Vec<String> = plan.secrets.iter().map(|secret| escaped(&secret.place())).collect();
        let (count, places) = (entries.len(), places.join(", "));
        ask(&format!("{count} {verb} literal secrets: {places}; move them into the vault? [Y/n]"), true)
    }
}

fn read(path: &Path, max: u64) -> Result<String, ReadError> {
    let bytes = bounded::read(path, max)?;
    String::from_utf8(bytes).map_err(|_| ReadError::Io(std::io::Error::other("the file is not UTF-8")))
}

/// Asks a question. An empty answer has the meaning `default`.
fn ask(question: &str, default: bool) -> Result<bool> {
    print(&format!("{question} "))?;
    std::io::stdout().flush().context("cannot write to stdout")?;
    let mut answer = String::new();
    let count = std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(match answer.trim().to_lowercase().as_str() {
        // The end of the input is no answer.
        "" => count > 0 && default,
        answer => matches!(answer, "y" | "yes"),
    })
}
