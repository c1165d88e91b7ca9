//! Finds the gateway for a command that reads an admin API.

use std::path::PathBuf;

use clap::Args;
use goblin_client::address;
use goblin_client::admin::AdminClient;
use goblin_client::runtime::{self, FindError, GatewayRecord};
use goblin_config::mask;

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
}

/// Finds the gateway. Returns an error if none runs, several fit, or it has no admin API.
pub(crate) async fn find(arguments: &GatewayArgs) -> Result<AdminClient, CliError> {
    let unusable = |error: anyhow::Error| CliError::Usage(format!("{error:#}"));
    if let Some(url) = &arguments.url {
        let token = stdio::admin_token(arguments.token_file.as_deref(), url).map_err(unusable)?;
        return AdminClient::to_url(url, token.as_ref()).map_err(unusable);
    }
    let record = find_record().await?;
    if record.admin_url.is_none() {
        let place = mask::url(&record.url);
        return Err(CliError::Unavailable(format!("the gateway at {place} has no admin API (admin.enabled)")));
    }
    AdminClient::to_record(record).map_err(|error| CliError::Unavailable(format!("{error:#}; restart it")))
}

/// Finds the gateway on this machine.
pub(crate) async fn find_record() -> Result<GatewayRecord, CliError> {
    let own = load::find(None).ok().map(|found| found.identity());
    runtime::find(own.as_ref()).await.map_err(|error| match error {
        FindError::None => CliError::Unavailable(
            "no gateway is running on this machine; start one (goblin serve), or name one (--url URL)".to_owned(),
        ),
        FindError::Several(_) => CliError::Usage(error.to_string()),
    })
}
