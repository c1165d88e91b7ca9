//! `goblin stdio`: serves one client on stdin and stdout.
//!
//! Ten clients of one configuration must not start its servers ten times. If a gateway of the same configuration runs,
//! this command is a bridge to it. Otherwise it runs a gateway of its own. It prints the choice and the reason on
//! stderr.

mod login;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use goblin_client::bridge::wire::GatewayConnection;
use goblin_client::connect::ProxyEnvironment;
use goblin_client::environment::environment;
use goblin_client::lineage::{self, Lineage};
use goblin_client::runtime::identity::Identity;
use goblin_client::runtime::{GatewayRecord, RecordDirectories};
use goblin_client::{address, bridge, gateway, runtime};
use goblin_config::exposure::ProfileName;
use goblin_config::secret::Secret;
use goblin_config::{Config, Log};
use goblin_engine::app::App;
use goblin_engine::upstream::child::own_executable;
use goblin_telemetry::Observe;
use tracing::Level;

use crate::cli::{CliError, ConfigArgs};
use crate::load::RawConfig;
use crate::log::LogFlags;
use crate::serve::termination;
use crate::style::{note, warn};
use crate::{load, log};

/// The variable with the client token of the gateway at --url.
const TOKEN_VARIABLE: &str = "GOBLIN_TOKEN";
/// The variable with the admin token of that gateway.
const ADMIN_TOKEN_VARIABLE: &str = "GOBLIN_ADMIN_TOKEN";

#[derive(Debug, Args)]
pub(crate) struct Stdio {
    #[command(flatten)]
    pub source: ConfigArgs,
    #[command(flatten)]
    pub log: LogFlags,
    /// Connect the client to the gateway or server at this URL, or at unix:SOCKET, instead of starting servers. Opens
    /// the browser if the URL needs a login
    #[arg(long, value_name = "URL", value_parser = address::parse, conflicts_with = "standalone")]
    pub url: Option<String>,
    /// Read the token of the gateway at --url from this file (default: the variable GOBLIN_TOKEN)
    #[arg(long, value_name = "FILE", requires = "url")]
    pub token_file: Option<PathBuf>,
    /// Start servers even if a gateway with the same configuration runs
    #[arg(long)]
    pub standalone: bool,
    /// Serve the view of this profile of the configuration
    #[arg(long, value_name = "NAME", value_parser = profile_name)]
    pub profile: Option<ProfileName>,
}

/// Parses the name of a profile in an argument.
pub(crate) fn profile_name(text: &str) -> Result<ProfileName, String> {
    ProfileName::new(text)
        .ok_or_else(|| "the name of a profile contains only letters, digits, \"_\" and \"-\"".to_owned())
}

pub(crate) async fn run(arguments: Stdio) -> Result<ExitCode> {
    if let Some(url) = &arguments.url {
        let token = token(arguments.token_file.as_deref())?;
        let login = if token.is_none() { login::of_url(url).await } else { None };
        let wire = match login {
            Some(login) => gateway::to_login(url, login, arguments.profile.as_ref())?,
            None => gateway::to_url(url, token.as_ref(), arguments.profile.as_ref())?,
        };
        note(&format!("bridging to {}", wire.url()));
        return run_bridge(wire, &arguments.log).await;
    }
    let found = load::find(arguments.source.config.as_deref()).map_err(CliError::from)?;
    let usable = match arguments.standalone {
        true => Err("--standalone was given".to_owned()),
        false => find_gateway(&found.identity()).await,
    };
    let profile = arguments.profile;
    match usable {
        Ok(record) => {
            lineage::check_bridge(record.gateway_id.as_deref()).map_err(CliError::Usage)?;
            let (url, pid) = (address::endpoint(&record.address(), profile.as_ref()), record.pid);
            note(&format!(
                "bridging to the gateway at {url} (pid {pid}), which also serves {}",
                record.identity.place()
            ));
            // The file of a successor may have changed: the client gets the current content. The variables must match.
            let is_same = |record: &GatewayRecord| record.fingerprints.differing(environment).is_empty();
            run_bridge(gateway::to_record(record, profile.as_ref(), is_same)?, &arguments.log).await
        }
        Err(reason) => run_standalone(found, &reason, profile, &arguments.log).await,
    }
}

/// Returns an error if the configuration does not have this profile.
pub(crate) fn check_profile(config: &Config, profile: Option<&ProfileName>) -> Result<(), String> {
    let Some(name) = profile.filter(|name| !config.profiles.contains_key(*name)) else { return Ok(()) };
    let known: Vec<_> = config.profiles.keys().map(ProfileName::as_str).collect();
    Err(match &known[..] {
        [] => format!("unknown profile {name}: the configuration has none"),
        known => format!("unknown profile {name}; the profiles are {}", known.join(", ")),
    })
}

async fn run_standalone(
    found: RawConfig,
    reason: &str,
    profile: Option<ProfileName>,
    flags: &LogFlags,
) -> Result<ExitCode> {
    let given = found.parse().map_err(CliError::from)?;
    check_profile(&given.config, profile.as_ref()).map_err(CliError::Usage)?;
    let lineage = Lineage::of_process(Some(&given.identity));
    lineage.check().map_err(CliError::Usage)?;
    for warning in &given.warnings {
        warn(&warning.to_string());
    }
    note(&format!("running its own gateway for {}: {reason}", given.identity.place()));
    log::start(Level::INFO, &given.config.log, flags);
    let observe = Arc::new(Observe::default());
    let app = App::start_as(lineage, given.config, own_executable()?, ProxyEnvironment::from_process(), observe);
    app.serve_stdio(profile, tokio::io::stdin(), tokio::io::stdout(), termination()?).await?;
    Ok(ExitCode::SUCCESS)
}

async fn run_bridge(wire: GatewayConnection, flags: &LogFlags) -> Result<ExitCode> {
    log::start(Level::INFO, &Log::default(), flags);
    let wire = wire.naming(&lineage::ancestor_ids());
    bridge::run(wire, tokio::io::stdin(), tokio::io::stdout(), termination()?).await;
    Ok(ExitCode::SUCCESS)
}

/// Returns the client token of the gateway at --url, from the file or the variable.
pub(crate) fn token(file: Option<&Path>) -> Result<Option<Secret>> {
    token_of(file, TOKEN_VARIABLE)
}

/// Returns the admin token of the gateway at --url. For a gateway of this user on this machine, the token is found in
/// its record.
pub(crate) fn admin_token(file: Option<&Path>, url: &str) -> Result<Option<Secret>> {
    Ok(token_of(file, ADMIN_TOKEN_VARIABLE)?.or_else(|| runtime::admin_token_at(url)))
}

fn token_of(file: Option<&Path>, variable: &str) -> Result<Option<Secret>> {
    let text = match file {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            Some(text.with_context(|| format!("cannot read the token file {}", path.display()))?)
        }
        None => environment(variable),
    };
    Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).map(Secret::new))
}

/// Returns the gateway to connect to, or the reason why there is none.
async fn find_gateway(own: &Identity) -> Result<GatewayRecord, String> {
    let record = choose(&RecordDirectories::of(&environment).running(), own, environment)?;
    let GatewayRecord { url, pid, .. } = &record;
    if !record.is_answering().await {
        return Err(format!("the gateway at {url} (pid {pid}) does not answer"));
    }
    // The gateway may have ended a moment ago.
    let unreadable = |error| format!("the token of the gateway at {url} (pid {pid}) cannot be read: {error}");
    record.token().map_err(unreadable)?;
    Ok(record)
}

/// Returns the gateway in `running` with the same configuration and variables, or the reason why there is none.
fn choose(
    running: &[GatewayRecord],
    own: &Identity,
    here: impl Fn(&str) -> Option<String>,
) -> Result<GatewayRecord, String> {
    let mut reason = "no gateway of this configuration is running".to_owned();
    for record in running.iter().filter(|record| record.identity.is_same_place(own)) {
        match difference(record, own, &here) {
            Some(difference) if record.identity != *own => reason = format!("{difference}; restart it"),
            Some(difference) => reason = difference,
            None => return Ok(record.clone()),
        }
    }
    Err(reason)
}

/// Describes how a running gateway of the same file differs from one that would start here. Returns `None` if it does
/// not.
pub(crate) fn difference(
    record: &GatewayRecord,
    own: &Identity,
    here: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let gateway = format!("the gateway at {} (pid {})", record.url, record.pid);
    let differing = record.fingerprints.differing(here);
    if record.identity != *own {
        return Some(format!("{gateway} was started with another version of this file"));
    }
    let names = differing.join(", ");
    (!differing.is_empty()).then(|| format!("{gateway} was started with another value of {names}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use goblin_client::runtime::identity::Fingerprints;

    use super::*;

    fn record(text: &str) -> GatewayRecord {
        let identity = Identity::of_file(Path::new("/x/goblin.json"), text, Path::new("/x"));
        let variables = [("KEY".to_owned(), Some("1".to_owned()))].into();
        GatewayRecord::new("http://127.0.0.1:1/mcp".to_owned(), identity, Fingerprints::new([0; 16], &variables))
    }

    #[test]
    fn a_profile_is_appended_to_the_path() {
        let review = ProfileName::new("review").expect("a valid name");
        for (url, expected) in [
            ("http://h/mcp", "http://h/mcp/p/review"),
            ("http://h/mcp/", "http://h/mcp/p/review"),
            ("http://h/mcp?key=a/b", "http://h/mcp/p/review?key=a/b"),
            ("unix:/x/a?.sock:/mcp", "unix:/x/a?.sock:/mcp/p/review"),
        ] {
            assert_eq!(address::endpoint(url, Some(&review)), expected);
            assert_eq!(address::endpoint(url, None), url);
        }
    }

    #[test]
    fn a_running_gateway_is_used_only_with_equal_configuration_and_variables() {
        let own = record("same").identity;
        let check = |running: &[GatewayRecord], key: Option<&str>, expected: Result<(), &str>| {
            let chosen = choose(running, &own, |_| key.map(str::to_owned));
            match (chosen, expected) {
                (Ok(_), Ok(())) => {}
                (Err(reason), Err(fragment)) => assert!(reason.contains(fragment), "{reason}"),
                (chosen, expected) => panic!("{chosen:?}, not {expected:?}"),
            }
        };
        check(&[], None, Err("no gateway"));
        check(&[record("same")], None, Ok(()));
        check(&[record("same")], Some("1"), Ok(()));
        check(&[record("same")], Some("2"), Err("another value of KEY"));
        check(&[record("other")], None, Err("another version"));
        check(&[record("other"), record("same")], None, Ok(()));
        let mut elsewhere = record("same");
        elsewhere.identity.config = Some("/y/goblin.json".into());
        check(&[elsewhere], None, Err("no gateway"));
    }
}
