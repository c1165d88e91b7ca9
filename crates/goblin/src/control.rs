//! `goblin restart`, `goblin enable` and `goblin disable`: control one server of a running gateway.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use clap_complete::ArgValueCompleter;
use goblin_admin::api::ServerStatus;
use goblin_admin::routes::ServerAction;
use goblin_client::admin::AdminClient;
use goblin_client::units;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::admin_client::{self, GatewayArgs};
use crate::catalog::complete;
use crate::cli::CliError;
use crate::history::refused;
use crate::style::print;

/// The longest wait until the server is ready or has failed.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct Control {
    /// The server, by its name in the configuration
    #[arg(add = ArgValueCompleter::new(complete::configured_servers))]
    pub server: String,
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

pub(crate) async fn run(action: ServerAction, arguments: Control) -> Result<ExitCode> {
    print(&execute(action, &arguments).await?)?;
    Ok(ExitCode::SUCCESS)
}

async fn execute(action: ServerAction, arguments: &Control) -> Result<String, CliError> {
    let client = admin_client::find(&arguments.gateway).await?;
    let path = format!("/api/servers/{}", utf8_percent_encode(&arguments.server, NON_ALPHANUMERIC));
    client.post(&format!("{path}/{}", action.as_str())).await.map_err(refused)?;
    let begun = Instant::now();
    let status = loop {
        let status = read(&client, &path).await?;
        if status.state != "starting" || begun.elapsed() >= TIMEOUT {
            break status;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    report(action, &status)
}

async fn read(client: &AdminClient, path: &str) -> Result<ServerStatus, CliError> {
    let body = client.get(path).await.map_err(CliError::Unavailable)?;
    let unexpected = |error| CliError::Unavailable(format!("{} sent an unexpected response: {error}", client.place()));
    serde_json::from_slice(&body).map_err(unexpected)
}

/// Returns the line about the server after the command. Returns an error if the server did not start.
fn report(action: ServerAction, status: &ServerStatus) -> Result<String, CliError> {
    let ServerStatus { id, state, .. } = status;
    let lasting = match action {
        ServerAction::Restart => "",
        ServerAction::Enable | ServerAction::Disable => {
            "; this lasts until its entry in the file changes or the gateway restarts"
        }
    };
    match state.as_str() {
        "ready" => Ok(format!("{id} is ready{lasting}\n")),
        "disabled" => Ok(format!("{id} is disabled{lasting}\n")),
        "starting" => {
            let waited = units::duration(TIMEOUT);
            let message = format!("{id} is still starting after {waited}; goblin status shows when it is ready");
            Err(CliError::Refused(message))
        }
        "login_needed" => {
            let reason = status.reason.as_deref().unwrap_or("it needs a login");
            Err(CliError::Refused(format!("{id} is not ready: {reason}")))
        }
        _ => {
            let reason = status.reason.as_deref().unwrap_or("no reason is known");
            Err(CliError::Refused(format!("{id} is {state}: {reason}; goblin logs {id} shows its output")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use8_the_result_of_a_command_is_the_state_of_the_server() {
        let status = |state: &str| ServerStatus {
            id: "a".to_owned(),
            state: state.to_owned(),
            reason: Some("it exited".to_owned()),
            ..ServerStatus::default()
        };
        let text = |action, state| report(action, &status(state)).unwrap_or_else(|error| format!("error: {error}"));
        assert_eq!(text(ServerAction::Restart, "ready"), "a is ready\n");
        assert!(text(ServerAction::Disable, "disabled").starts_with("a is disabled; this lasts until its entry"));
        assert_eq!(
            text(ServerAction::Enable, "failed"),
            "error: a is failed: it exited; goblin logs a shows its output"
        );
        let starting = "error: a is still starting after 1 min; goblin status shows when it is ready";
        assert_eq!(text(ServerAction::Restart, "starting"), starting);
    }
}
