//! The common part of the commands for tools, resources and prompts: how they reach the gateway, and how they exit.
//!
//! Each command is an MCP client of the gateway (see [`client`]), so it sees the same as every other client. If the
//! gateway serves meta tools, lists and searches use them: the protocol's lists may show only a part of the catalog
//! (`exposure`).

pub(crate) mod arguments;
pub(crate) mod cards;
pub(crate) mod client;
pub(crate) mod complete;
pub(crate) mod content;
pub(crate) mod definition;
pub(crate) mod form;
pub(crate) mod show;

use std::process::ExitCode;

use clap::Args;
use clap_complete::ArgValueCompleter;
use goblin_client::runtime::FindError;
use goblin_config::exposure::ProfileName;

use crate::catalog::client::CatalogClient;
use crate::cli::BAD_CONFIGURATION;
use crate::endpoint::{Endpoint, EndpointArgs, EndpointError};
use crate::log::LogFlags;
use crate::serve::termination;
use crate::stdio::profile_name;
use crate::style::fail;

/// The exit code if the gateway or a server behind it cannot be reached.
pub(crate) const UNAVAILABLE: u8 = 3;
/// The exit code after a signal, by the convention of shells.
const INTERRUPTED: u8 = 130;

/// Each paragraph is one line, because clap wraps it to the width of the terminal.
pub(crate) const EXIT_CODES: &str = "\
Exit codes: 0 for success, 1 if the tool or the server answered with an error, 2 if the arguments or the configuration \
cannot be used or the name is unknown, 3 if the gateway or the server cannot be reached.";

#[derive(Debug, Args)]
pub(crate) struct CommonArgs {
    #[command(flatten)]
    pub reach: EndpointArgs,
    /// Use the view of this profile
    #[arg(long, value_name = "NAME", value_parser = profile_name, add = ArgValueCompleter::new(complete::profiles))]
    pub profile: Option<ProfileName>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub log: LogFlags,
}

/// The flags that limit a list.
#[derive(Debug, Args)]
pub(crate) struct ListFilter {
    /// Only entries of this server
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::servers))]
    pub server: Option<String>,
    /// At most this many entries
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
}

/// The reason why a command failed. Each variant has its own exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The tool or the server answered with an error, or the output could not be written.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Unavailable(String),
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    fn code(&self) -> u8 {
        match self {
            CliError::Refused(_) => 1,
            CliError::Usage(_) => BAD_CONFIGURATION,
            CliError::Unavailable(_) => UNAVAILABLE,
            CliError::Interrupted => INTERRUPTED,
        }
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> CliError {
        CliError::Refused(error.to_string())
    }
}

impl From<EndpointError> for CliError {
    fn from(closed: EndpointError) -> CliError {
        let words = closed.to_string();
        match closed {
            EndpointError::Configuration(_) | EndpointError::Flags(_) | EndpointError::Find(FindError::Several(_)) => {
                CliError::Usage(words)
            }
            EndpointError::Find(FindError::None) | EndpointError::Other(_) => CliError::Unavailable(words),
        }
    }
}

/// Runs `work` as a client of the gateway that the arguments name. Prints failures and returns their exit code.
pub(crate) async fn run(
    common: &CommonArgs,
    work: impl AsyncFnOnce(&mut CatalogClient) -> Result<(), CliError>,
) -> anyhow::Result<ExitCode> {
    // Install the signal handlers before anything starts that a signal must not leave behind.
    let terminated = termination()?;
    let door = match Endpoint::open(&common.reach, common.profile.as_ref(), &common.log).await {
        Ok(door) => door,
        Err(closed) => return Ok(told(&closed.into())),
    };
    let place = door.place();
    let worked = door.talk(terminated, async move |peer, mut stopped| {
        let mut client = CatalogClient::new(peer, place);
        let worked = tokio::select! {
            // Nothing begins after a signal.
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => Err(CliError::Interrupted),
            worked = async {
                client.begin().await?;
                work(&mut client).await
            } => worked,
        };
        client.end().await;
        worked
    });
    Ok(worked.await?.map_or_else(|failure| told(&failure), |()| ExitCode::SUCCESS))
}

/// Prints the failure and returns its exit code.
pub(crate) fn told(failure: &CliError) -> ExitCode {
    fail(&failure.to_string());
    ExitCode::from(failure.code())
}
