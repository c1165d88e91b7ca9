//! Finds the gateway for a command that reads an admin API.

use std::path::{Path, PathBuf};

use clap::Args;
use goblin_client::address;
use goblin_client::admin::AdminClient;
use goblin_client::runtime::identity::Identity;
use goblin_client::runtime::{self, FindError, GatewayRecord};
use goblin_config::mask;
use goblin_telemetry::clean;

use crate::cli::CliError;
use crate::{load, stdio};

/// The flags that select a running gateway.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct GatewayArgs {
    /// Use the gateway at this URL, or at unix:SOCKET, instead of the one that runs on this machine
    #[arg(long, value_name = "URL", value_parser = address::parse)]
    pub url: Option<String>,
    /// Read the admin token of the gateway at --url from this file (default: the variable GOBLIN_ADMIN_TOKEN)
    #[arg(long, value_name = "FILE", requires = "url")]
    pub token_file: Option<PathBuf>,
    /// Use the gateway that runs with this configuration file
    #[arg(long, short, value_name = "FILE", conflicts_with = "url")]
    pub config: Option<PathBuf>,
}

/// Finds the gateway. Returns an error if none runs, several fit, or it has no admin API.
pub(crate) async fn find(arguments: &GatewayArgs) -> Result<AdminClient, CliError> {
    let unusable = |error: anyhow::Error| CliError::Usage(format!("{error:#}"));
    if let Some(url) = &arguments.url {
        let token = stdio::admin_token(arguments.token_file.as_deref(), url).map_err(unusable)?;
        return AdminClient::to_url(url, token.as_ref()).map_err(unusable);
    }
    let record = find_record(arguments.config.as_deref()).await?;
    if record.admin_url.is_none() {
        let place = mask::url(&record.url);
        return Err(CliError::Unavailable(format!("the gateway at {place} has no admin API (admin.enabled)")));
    }
    AdminClient::to_record(record).map_err(|error| CliError::Unavailable(format!("{error:#}; restart it")))
}

/// Finds the gateway on this machine: the one with the file `config` if it is given.
pub(crate) async fn find_record(config: Option<&Path>) -> Result<GatewayRecord, CliError> {
    if let Some(config) = config {
        let place = Identity::of_file(config, "", Path::new("/"));
        return runtime::find_at(&place).await.ok_or_else(|| {
            let file = clean(&config.display().to_string());
            CliError::Unavailable(format!("no gateway runs with {file}; start one (goblin serve --config {file})"))
        });
    }
    let own = load::find(None).ok().map(|found| found.identity());
    runtime::find(own.as_ref()).await.map_err(|error| match error {
        FindError::None => CliError::Unavailable(
            "no gateway is running on this machine; start one (goblin serve), or name one (--url URL)".to_owned(),
        ),
        FindError::Several(_) => CliError::Usage(error.to_string()),
    })
}
