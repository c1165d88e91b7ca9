//! `goblin status`: prints the status of a running gateway, once or repeatedly.

mod show;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use goblin_admin::api;
use goblin_client::admin::AdminClient;
use goblin_wire::units;

use crate::admin_client::{self, GatewayArgs};
use crate::cli::CliError;
use crate::serve::termination;
use crate::style::{is_colourful, print, warn, width, write};

const ROUTE: &str = "/api/status";
/// The exit code if a server is not ready, or if the configuration file was rejected.
const NOT_READY: u8 = 1;

/// Each paragraph is one line, because clap wraps it to the width of the terminal.
const EXIT_CODES: &str = "\
Exit codes: 0 if all enabled servers are ready, 1 if one is not or the configuration file is rejected, 2 if the \
arguments cannot be used, 3 if no gateway runs or it does not answer. With --watch: 0 at Ctrl-C.";

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Status {
    #[command(flatten)]
    pub gateway: GatewayArgs,
    /// Print the response of the admin API unchanged
    #[arg(long)]
    pub json: bool,
    /// Repeat every SECONDS (2 if no number is given) until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

pub(crate) async fn run(arguments: Status) -> Result<ExitCode> {
    let Some(seconds) = arguments.watch else { return once(&arguments).await };
    let mut terminated = termination()?;
    tokio::select! {
        watched = watch(&arguments, Duration::from_secs(seconds)) => watched,
        () = terminated() => Ok(ExitCode::SUCCESS),
    }
}

async fn once(arguments: &Status) -> Result<ExitCode> {
    let (client, response) = begin(&arguments.gateway).await?;
    print(&response.text(&client, arguments.json)).context("cannot write to stdout")?;
    Ok(ExitCode::from(if is_healthy(&response.status) { 0 } else { NOT_READY }))
}

/// Prints the status repeatedly. If a gateway that answered once goes away, it is polled until it returns.
async fn watch(arguments: &Status, period: Duration) -> Result<ExitCode> {
    let (client, first) = begin(&arguments.gateway).await?;
    let mut screen = StatusPrinter::new(arguments.json);
    let mut latest: Result<StatusResponse, String> = Ok(first);
    loop {
        let is_read = match latest {
            Ok(response) => screen.show(&response.text(&client, arguments.json)),
            Err(reason) => screen.show_error(&reason, period),
        };
        if !is_read.context("cannot write to stdout")? {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(period).await;
        latest = response(&client).await;
    }
}

/// One response of the gateway.
struct StatusResponse {
    body: Bytes,
    status: api::Status,
}

async fn begin(gateway: &GatewayArgs) -> Result<(AdminClient, StatusResponse), CliError> {
    let client = admin_client::find(gateway).await?;
    let response = response(&client).await.map_err(CliError::Unavailable)?;
    Ok((client, response))
}

async fn response(client: &AdminClient) -> Result<StatusResponse, String> {
    let body = client.get(ROUTE).await?;
    let status = serde_json::from_slice(&body)
        .map_err(|error| format!("{} sent a response that is not a status: {error}", client.place()))?;
    Ok(StatusResponse { body, status })
}

impl StatusResponse {
    fn text(&self, client: &AdminClient, json: bool) -> String {
        let stdout = std::io::stdout();
        match json {
            true => String::from_utf8_lossy(&self.body).into_owned() + "\n",
            false => show::render(&self.status, &client.place(), width(&stdout), is_colourful(&stdout)),
        }
    }
}

fn is_healthy(status: &api::Status) -> bool {
    let is_in_order = |server: &api::ServerStatus| matches!(server.state.as_str(), "ready" | "disabled");
    status.configuration.problem.is_none() && status.servers.iter().all(is_in_order)
}

/// Prints one status after the other: in the same place on a terminal, one below the other in a pipe.
struct StatusPrinter {
    is_terminal: bool,
    json: bool,
    is_first: bool,
    is_lost: bool,
}

impl StatusPrinter {
    fn new(json: bool) -> StatusPrinter {
        let is_terminal = std::io::stdout().is_terminal() && !json;
        StatusPrinter { is_terminal, json, is_first: true, is_lost: false }
    }

    /// Prints a status. Returns `false` if stdout is closed.
    fn show(&mut self, text: &str) -> std::io::Result<bool> {
        self.is_lost = false;
        let is_first = std::mem::replace(&mut self.is_first, false);
        let shown = match (self.is_terminal, self.json) {
            // Draw over the previous text, so that nothing flickers.
            (true, _) => {
                let clear = if is_first { "\x1b[2J" } else { "" };
                format!("{clear}\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))
            }
            (false, true) => text.to_owned(),
            (false, false) if is_first => text.to_owned(),
            (false, false) => format!("\n{text}"),
        };
        write(shown.as_bytes())
    }

    /// Reports that the gateway does not answer. In a pipe it prints one warning per outage, on stderr.
    fn show_error(&mut self, reason: &str, period: Duration) -> std::io::Result<bool> {
        let text = format!("{reason}; trying again every {}", units::duration(period));
        if self.is_terminal {
            return self.show(&format!("{text}\n"));
        }
        if !std::mem::replace(&mut self.is_lost, true) {
            warn(&text);
        }
        Ok(true)
    }
}
