//! `goblin import`: copies the servers that other MCP clients have configured.
//!
//! The files name commands, and a project's file may come from a stranger. Nothing is written before every command was
//! shown in full and the user agreed, on the terminal or by `--yes`. Only regular files are read, within limits of size
//! and time.

pub(crate) mod report;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use goblin_client::environment::environment;
use goblin_config::bounded::{self, ReadError};
use goblin_config::edit::Draft;
use goblin_config::file;
use goblin_config::import::merge::merge;
use goblin_config::import::{ClientApp, ClientFile, FileImport, Note, SearchBase, place, translate};
use goblin_config::tree::JsonTree;
use goblin_config::visible::escaped;

use crate::cli::{CliError, ConfigArgs as Target};
use crate::import::report::ImportPlan;
use crate::loops::{self, EntryTarget};
use crate::style::{print, print_json, width};
use crate::vault::UsedSecrets;

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
        let draft = draft.with_secrets(UsedSecrets::default().lookup());
        let (gateways, directory) = (loops::known(&draft), &draft.origin().directory);
        let lead = |entry: &JsonTree| gateways.lead(&EntryTarget::of_entry(entry, directory));
        let merged = merge(found, &draft.servers(), lead);
        for server in merged.servers.iter().filter(|server| !server.is_present) {
            draft.put(&server.id, &server.entry);
        }
        let outside = draft.check(&environment).map_err(|error| error.to_string())?;
        Ok(ImportPlan { draft, merged, outside, searched })
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
            if written {
                plan.draft.write()?;
            }
            print_json(&plan.json(written).to_string())?;
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
        } else if self.yes || confirm(&path)? {
            let path = plan.draft.write()?;
            print(&report::done(count, &path))?;
        } else {
            print("nothing was written\n")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn read(path: &Path, max: u64) -> Result<String, ReadError> {
    let bytes = bounded::read(path, max)?;
    String::from_utf8(bytes).map_err(|_| ReadError::Io(std::io::Error::other("the file is not UTF-8")))
}

fn confirm(path: &str) -> Result<bool> {
    print(&format!("write to {path}? [y/N] "))?;
    std::io::stdout().flush().context("cannot write to stdout")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
