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
use goblin_config::exposure::ProfileName;

use crate::catalog::client::CatalogClient;
use crate::cli::CliError;
use crate::endpoint::{Endpoint, EndpointArgs};
use crate::log::LogFlags;
use crate::serve::termination;
use crate::stdio::profile_name;

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

/// The flags of a list.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub filter: ListFilter,
    #[command(flatten)]
    pub common: CommonArgs,
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

/// Runs `work` as a client of the gateway that the arguments name.
pub(crate) async fn run(
    common: &CommonArgs,
    work: impl AsyncFnOnce(&mut CatalogClient) -> Result<(), CliError>,
) -> anyhow::Result<ExitCode> {
    // Install the signal handlers before anything starts that a signal must not leave behind.
    let terminated = termination()?;
    let endpoint = Endpoint::open(&common.reach, common.profile.as_ref(), &common.log).await.map_err(CliError::from)?;
    let place = endpoint.place();
    let worked = endpoint.run_peer(terminated, async move |peer, mut stopped| {
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
    worked.await??;
    Ok(ExitCode::SUCCESS)
}
