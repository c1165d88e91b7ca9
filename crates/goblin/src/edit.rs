//! `goblin add` and `goblin remove`: add or remove a server and leave the rest of the file unchanged.

pub(crate) mod command_line;
mod next_step;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use clap_complete::ArgValueCompleter;
use goblin_client::environment::environment;
use goblin_config::edit::{Draft, relative_argument};
use goblin_config::lead::{GatewayLead, UNCLEAR};
use goblin_config::pin::unpinned;
use goblin_config::tree::JsonTree;
use goblin_config::visible::escaped;
use goblin_config::{consent, file};

use crate::catalog::complete;
use crate::cli::{CliError, ConfigArgs};
use crate::loops::{self, EntryTarget};
use crate::style::{print, warn, width, wrap};
use crate::vault::UsedSecrets;

#[derive(Debug, Args)]
#[command(override_usage = "goblin add [OPTIONS] <NAME> -- <COMMAND> [ARGS]...\n       \
                            goblin add [OPTIONS] <NAME> <URL>\n       \
                            goblin add [OPTIONS] <NAME> --files <DIRECTORY>")]
pub(crate) struct Add {
    /// Name of the server, which becomes the prefix of its tools
    pub name: String,
    /// URL of a server to call over HTTP
    #[arg(value_name = "URL")]
    pub url: Option<String>,
    /// Program and arguments of a server to start, after --
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// Directory to serve
    #[arg(long, value_name = "DIRECTORY", conflicts_with_all = ["url", "command"])]
    pub files: Option<PathBuf>,
    /// Variable for the command: NAME=VALUE, or NAME to take the value from the environment of the gateway
    #[arg(long, value_name = "NAME=VALUE", requires = "command")]
    pub env: Vec<String>,
    /// Working directory of the command
    #[arg(long, value_name = "DIRECTORY", requires = "command")]
    pub cwd: Option<PathBuf>,
    /// Header for every request: 'NAME: VALUE'; the gateway expands ${VAR} in it
    #[arg(long, value_name = "NAME: VALUE", requires = "url")]
    pub header: Vec<String>,
    /// Replace an existing server of this name, and add a server that leads back to the gateway
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub source: ConfigArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// Servers to remove
    #[arg(required = true, value_name = "NAME", add = ArgValueCompleter::new(complete::configured_servers))]
    pub names: Vec<String>,
    #[command(flatten)]
    pub source: ConfigArgs,
}

pub(crate) async fn add(arguments: &Add) -> Result<ExitCode> {
    let (path, added, is_new) = try_add(arguments).map_err(CliError::Usage)?;
    print(&added)?;
    // The gateway may still report the previous entry of a replaced server.
    if arguments.url.is_some()
        && is_new
        && let Some(line) = next_step::of_server(&arguments.name, &path).await
    {
        print(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn remove(arguments: &Remove) -> Result<ExitCode> {
    print(&try_remove(arguments).map_err(CliError::Usage)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the changed file, the lines about the change, and whether the server is new.
fn try_add(arguments: &Add) -> Result<(PathBuf, String, bool), String> {
    let entry = arguments.entry()?;
    let draft = open(&arguments.source)?;
    let name = &arguments.name;
    let is_known = draft.servers().iter().any(|(known, _)| known == name);
    if is_known && !arguments.force {
        let (name, place) = (escaped(name), draft.path().display());
        return Err(format!("server {name} is in {place} already, use --force to replace it"));
    }
    let target = EntryTarget::of_entry(&entry, &draft.origin().directory);
    match loops::known(&draft).lead(&target) {
        Some(GatewayLead::Own) => {
            let (name, place) = (escaped(name), draft.path().display());
            let problem = format!("server {name} would connect the gateway of {place} to itself ({})", loops::CURE);
            match arguments.force {
                true => warn(&problem),
                false => return Err(format!("{problem}; use --force to add it anyway")),
            }
        }
        Some(GatewayLead::Unclear) => warn(&format!("server {}: {UNCLEAR}", escaped(name))),
        Some(GatewayLead::Other(gateway)) => {
            warn(&format!("server {name} is {gateway}; its servers get another prefix"))
        }
        None => {}
    }
    draft.put(name, &entry);
    let path = save(&draft)?;
    if let Some((program, rest)) = arguments.command.split_first()
        && let Some(unpinned) = unpinned(program, rest)
    {
        warn(&format!("server {name}: {unpinned}"));
    }
    if arguments.cwd.is_none()
        && let Some(argument) = relative_argument(&entry)
    {
        let place = path.parent().unwrap_or(&path).display();
        warn(&format!(
            "server {name} starts in {place}, where {argument} may not exist; use --cwd or an absolute path"
        ));
    }
    let verb = if is_known { "replaced" } else { "added" };
    // Print the command in full: pasted text may contain more than the terminal showed.
    let runs = wrap("  runs ", &consent::line(&entry), width(&std::io::stdout()));
    let added = format!("{verb} {} in {}\n{runs}", escaped(name), path.display());
    Ok((path, added, !is_known))
}

fn try_remove(arguments: &Remove) -> Result<String, String> {
    let draft = open(&arguments.source)?;
    let servers = draft.servers();
    for name in &arguments.names {
        if !servers.iter().any(|(known, _)| known == name) {
            let suggestion = draft.nearest(name).map(|known| format!(", did you mean {known}?")).unwrap_or_default();
            return Err(format!("there is no server {name} in {}{suggestion}", draft.path().display()));
        }
    }
    arguments.names.iter().for_each(|name| draft.remove(name));
    let path = save(&draft)?;
    Ok(format!("removed {} from {}\n", arguments.names.join(", "), path.display()))
}

fn open(source: &ConfigArgs) -> Result<Draft, String> {
    let path = file::target(source.config.as_deref(), &environment).map_err(|error| error.to_string())?;
    let draft = Draft::open(&path).map_err(|error| error.to_string())?;
    Ok(draft.with_secrets(UsedSecrets::default().lookup()))
}

/// Checks and writes the file. Problems outside of the file, such as unset variables, are only warnings.
fn save(draft: &Draft) -> Result<PathBuf, String> {
    let outside = draft.check(&environment).map_err(|error| error.to_string())?;
    let path = draft.write().map_err(|error| error.to_string())?;
    outside.iter().for_each(|problem| warn(&problem.to_string()));
    Ok(path)
}

impl Add {
    fn entry(&self) -> Result<JsonTree, String> {
        match (&self.url, &self.files, self.command.split_first()) {
            (Some(url), None, None) => self.remote(url),
            (None, Some(directory), None) => {
                let root = absolute(directory)?;
                Ok(JsonTree::object([("type", JsonTree::text("files")), ("root", root)]))
            }
            (None, None, Some((program, rest))) => self.local(program, rest),
            _ => Err(format!(
                "server {name} needs a command (goblin add {name} -- COMMAND), \
                 a URL (goblin add {name} URL) or a directory (goblin add {name} --files DIRECTORY)",
                name = self.name
            )),
        }
    }

    fn local(&self, program: &str, rest: &[String]) -> Result<JsonTree, String> {
        // A shell would resolve a relative program here, but the gateway resolves it in the directory of the
        // configuration.
        let program = if program.contains('/') { absolute(Path::new(program))? } else { JsonTree::text(program) };
        let mut entry = vec![("command", program)];
        if !rest.is_empty() {
            entry.push(("args", JsonTree::texts(rest)));
        }
        let variables = self.env.iter().map(|pair| match pair.split_once('=') {
            Some((name, value)) => (name.to_owned(), JsonTree::text(value)),
            None => (pair.clone(), JsonTree::text(format!("${{{pair}}}"))),
        });
        let variables: Vec<_> = variables.collect();
        if !variables.is_empty() {
            entry.push(("env", JsonTree::Object(variables)));
        }
        if let Some(directory) = &self.cwd {
            entry.push(("cwd", absolute(directory)?));
        }
        Ok(JsonTree::object(entry))
    }

    fn remote(&self, url: &str) -> Result<JsonTree, String> {
        if !url.contains("://") && !url.contains("${") {
            let name = &self.name;
            return Err(format!("{url} is not a URL; for a command, write: goblin add {name} -- {url}"));
        }
        let mut headers = Vec::new();
        for header in &self.header {
            let (name, value) = header.split_once(':').ok_or("write a header as --header 'NAME: VALUE'".to_owned())?;
            headers.push((name.trim().to_owned(), JsonTree::text(value.trim())));
        }
        let mut entry = vec![("url", JsonTree::text(url))];
        if !headers.is_empty() {
            entry.push(("headers", JsonTree::Object(headers)));
        }
        Ok(JsonTree::object(entry))
    }
}

/// Returns an absolute path for the file. Relative paths on the command line start at the working directory; those in
/// the file start at the file.
fn absolute(path: &Path) -> Result<JsonTree, String> {
    let path = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let path: PathBuf = path.components().collect();
    let text = path.to_str().ok_or_else(|| format!("{} cannot be written as text", path.display()))?;
    Ok(JsonTree::text(text.replace("${", "$${")))
}
