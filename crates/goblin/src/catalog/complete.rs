//! Completes names for the shell. The flags that are already typed determine which gateway is asked.
//!
//! The shell starts a new process for every completion, so nothing is cached. No server is started: with `--config`,
//! only names from the file are completed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use goblin_catalog::listing::List;
use goblin_client::environment::environment;
use goblin_client::gateway::PIPE_BYTES;
use goblin_client::peer::Peer;
use goblin_client::schema::ToolSchema;
use goblin_client::{address, runtime};
use goblin_config::edit::Draft;
use goblin_config::exposure::ProfileName;
use goblin_config::file::ConfigOrigin;
use goblin_config::secret::{Secret, SecretLookup};
use goblin_config::{Config, file};
use goblin_telemetry::clean;
use goblin_vault::EntryKind;
use serde_json::{Value, json};

use crate::catalog::ListFilter;
use crate::catalog::cards;
use crate::catalog::client::CatalogClient;
use crate::cli::CliError;
use crate::endpoint::{Endpoint, EndpointArgs};
use crate::load::RawConfig;
use crate::{load, prompts, vault};

/// The timeout for a completion, while the user waits.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(1);

/// The flags without a value. A value follows every other flag.
const SWITCHES: [&str; 6] = ["--json", "--help", "-h", "--follow", "-f", "--failed"];

/// A name and its description.
type Suggestion = (String, String);

pub(crate) fn tools(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, entries(List::Tools))
}

pub(crate) fn prompts(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, entries(List::Prompts))
}

pub(crate) fn resources(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, entries(List::Resources))
}

/// Completes the arguments of the tool on the command line.
pub(crate) fn tool_arguments(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, arguments(List::Tools))
}

/// Completes the arguments of the prompt on the command line.
pub(crate) fn prompt_arguments(current: &OsStr) -> Vec<CompletionCandidate> {
    beginning_with(current, arguments(List::Prompts))
}

pub(crate) fn servers(current: &OsStr) -> Vec<CompletionCandidate> {
    let typed = CommandLinePrefix::read();
    let ids: Vec<String> = match &typed.reach.config {
        Some(file) => configuration(file.clone())
            .iter()
            .flat_map(|config| config.servers.keys())
            .map(ToString::to_string)
            .collect(),
        None => typed.query(async |client| servers_of(client).await).unwrap_or_default(),
    };
    beginning_with(current, plain(ids))
}

/// Completes the servers of the configuration file. No gateway needs to run.
pub(crate) fn configured_servers(current: &OsStr) -> Vec<CompletionCandidate> {
    let named = CommandLinePrefix::read().reach.config;
    let draft = file::target(named.as_deref(), &environment).ok().and_then(|path| Draft::open(&path).ok());
    let servers = draft.map(|draft| draft.servers()).unwrap_or_default();
    beginning_with(current, plain(servers.into_iter().map(|(name, _)| clean(&name)).collect()))
}

/// Completes the names of the secrets in the vault.
pub(crate) fn secrets(current: &OsStr) -> Vec<CompletionCandidate> {
    let names = vault::of_user().and_then(|vault| vault.names(EntryKind::Secret).ok()).unwrap_or_default();
    beginning_with(current, plain(names.iter().map(|name| clean(name.as_str())).collect()))
}

pub(crate) fn profiles(current: &OsStr) -> Vec<CompletionCandidate> {
    let typed = CommandLinePrefix::read();
    let file = typed.reach.config.clone().or_else(|| typed.running()?.identity.config);
    let config = file.and_then(configuration);
    let names = config.iter().flat_map(|config| config.profiles.keys()).map(ToString::to_string);
    beginning_with(current, plain(names.collect()))
}

fn beginning_with(current: &OsStr, candidates: Vec<Suggestion>) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let fitting = candidates.into_iter().filter(|(name, _)| name.starts_with(&*current));
    fitting.map(|(name, help)| CompletionCandidate::new(name).help((!help.is_empty()).then(|| help.into()))).collect()
}

fn plain(names: Vec<String>) -> Vec<Suggestion> {
    names.into_iter().map(|name| (name, String::new())).collect()
}

fn entries(kind: List) -> Vec<Suggestion> {
    let everything = ListFilter { server: None, limit: None };
    let cards = CommandLinePrefix::read().query(async |client| cards::list(client, kind, &everything).await);
    let candidate = |card: &cards::Card| (card.text(kind.key()).to_owned(), clean(card.text("description")));
    let candidates = cards.iter().flat_map(|cards| &cards.cards).map(candidate);
    // The shell reads one candidate per line, so names with control characters are left out.
    candidates.filter(|(name, _)| *name == clean(name)).collect()
}

async fn servers_of(client: &mut CatalogClient) -> Result<Vec<String>, CliError> {
    if !client.has_meta_tools() {
        let everything = ListFilter { server: None, limit: None };
        let cards = cards::list(client, List::Tools, &everything).await?;
        let ids: BTreeSet<_> = cards.cards.iter().map(|card| card.text("serverId").to_owned()).collect();
        return Ok(ids.into_iter().collect());
    }
    let outcomes = client.call_meta_tool("list_servers", &json!({})).await?;
    let structure: Value = serde_json::from_str(outcomes.structure().unwrap_or_default()).unwrap_or_default();
    Ok(structure["servers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|server| server["serverId"].as_str())
        .map(str::to_owned)
        .collect())
}

/// Returns `key=` for every argument that is not typed yet.
fn arguments(kind: List) -> Vec<Suggestion> {
    let typed = CommandLinePrefix::read();
    let Some(name) = typed.words.get(2) else { return Vec::new() };
    let Some(entry) = typed.query(async |client| cards::describe(client, kind, name).await) else { return Vec::new() };
    let schema = match kind {
        List::Prompts => prompts::schema(&entry.value),
        List::Tools | List::Resources | List::Templates => entry.value["inputSchema"].clone(),
    };
    let is_new = |key: &str| !typed.words.iter().any(|word| word.starts_with(key));
    let described = |property: &Value| clean(property["description"].as_str().unwrap_or_default());
    let all = ToolSchema::new(&schema);
    let keys = all.properties().map(|(name, property)| (format!("{name}="), described(property)));
    keys.filter(|(key, _)| is_new(key)).collect()
}

/// Parses a configuration and fills unset variables and all secrets with a dummy value. The names in the file do not depend on them.
fn configuration(file: PathBuf) -> Option<Config> {
    let Ok(RawConfig::File { text, origin, .. }) = load::find(Some(&file)) else { return None };
    let some = |name: &str| environment(name).or_else(|| Some("x".to_owned()));
    let origin = ConfigOrigin { secrets: SecretLookup::new(|_| Ok(Some(Secret::new("x")))), ..origin };
    goblin_config::parse(&text, &origin, &some).ok().map(|loaded| loaded.config)
}

/// The words that are typed before the current one, as far as they matter.
struct CommandLinePrefix {
    reach: EndpointArgs,
    profile: Option<ProfileName>,
    /// The words that are neither flags nor values of flags.
    words: Vec<String>,
}

impl CommandLinePrefix {
    /// Reads the words from the process arguments. The script passes them after `--`, starting with the name of the
    /// program.
    fn read() -> CommandLinePrefix {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        CommandLinePrefix::parse(words.skip_while(|word| word != "--").skip(2))
    }

    fn parse(mut given: impl Iterator<Item = String>) -> CommandLinePrefix {
        let (mut reach, mut profile, mut words) = (EndpointArgs::default(), None, Vec::new());
        while let Some(word) = given.next() {
            if SWITCHES.contains(&word.as_str()) {
                continue;
            }
            if word == "-" || !word.starts_with('-') {
                words.push(word);
                continue;
            }
            let (flag, value) = match word.split_once('=') {
                Some((flag, value)) => (flag.to_owned(), Some(value.to_owned())),
                None => (word, given.next()),
            };
            match flag.as_str() {
                "--url" => reach.url = value.and_then(|url| address::parse(&url).ok()),
                "--config" | "-c" => reach.config = value.map(PathBuf::from),
                "--token-file" => reach.token_file = value.map(PathBuf::from),
                "--profile" => profile = value.as_deref().and_then(ProfileName::new),
                _ => {}
            }
        }
        CommandLinePrefix { reach, profile, words }
    }

    /// Runs `work` as a client of the gateway that the words name. Returns `None` if there is no result in time.
    fn query<T>(&self, work: impl AsyncFnOnce(&mut CatalogClient) -> Result<T, CliError>) -> Option<T> {
        if self.reach.config.is_some() {
            return None;
        }
        in_time(async {
            let endpoint = Endpoint::to_running(&self.reach, self.profile.as_ref()).await.ok()?;
            let (near, far) = tokio::io::duplex(PIPE_BYTES);
            let mut client = CatalogClient::new(Peer::new(near), endpoint.place());
            let querying = async {
                client.begin().await.ok()?;
                let answer = work(&mut client).await.ok();
                client.end().await;
                answer
            };
            tokio::join!(querying, endpoint.carry(far)).0
        })
    }

    fn running(&self) -> Option<runtime::GatewayRecord> {
        match self.reach.url {
            Some(_) => None,
            None => in_time(async { runtime::find(None).await.ok() }),
        }
    }
}

fn in_time<T>(work: impl Future<Output = Option<T>>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let answer = runtime.block_on(async { tokio::time::timeout(COMPLETION_TIMEOUT, work).await.ok().flatten() });
    runtime.shutdown_background();
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typed_words_determine_the_gateway_and_the_profile() {
        let given = "tools call --json --follow --url http://h/mcp -c=x --limit 3 a_add --profile=review a=1 -";
        let typed = CommandLinePrefix::parse(given.split(' ').map(str::to_owned));
        assert_eq!(typed.words, ["tools", "call", "a_add", "a=1", "-"]);
        assert_eq!(typed.reach.url.as_deref(), Some("http://h/mcp"));
        assert_eq!(typed.reach.config, Some(PathBuf::from("x")));
        assert_eq!(typed.profile, ProfileName::new("review"));
        let unfinished = CommandLinePrefix::parse(["tools", "list", "--profile"].map(str::to_owned).into_iter());
        assert_eq!((unfinished.words.len(), unfinished.profile), (2, None));
    }
}
