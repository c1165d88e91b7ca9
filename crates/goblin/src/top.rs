//! `goblin top`: a running gateway in the terminal (see [`goblin_tui`]).

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use goblin_client::address;
use goblin_client::environment::environment;
use goblin_tui::remote::Remote;
use goblin_tui::remote::api::GatewayAddress;
use goblin_tui::view::theme::Theme;

use crate::cli::CliError;
use crate::login::open_on_desktop;
use crate::serve::termination;
use crate::style::is_colourful;
use crate::{admin_client, stdio};

/// Each paragraph is one line, because clap wraps it to the width of the terminal.
pub(crate) const LONG_ABOUT: &str = "\
Show and control a running gateway in a terminal dashboard.

The dashboard shows servers, tools, prompts, resources, subscriptions, sessions and events of the gateway as they \
change. It can call tools, read and watch resources, restart and disable servers, and reload the configuration. ? \
lists the keys, q quits.

The dashboard needs a terminal of 80 columns and 24 rows. It uses no colour if NO_COLOR is set.";

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Show the gateway at this URL, or at unix:SOCKET, instead of the one that runs on this machine
    #[arg(long, value_name = "URL", value_parser = address::parse)]
    pub url: Option<String>,
    /// Read the admin token of the gateway at --url from this file (default: the variable GOBLIN_ADMIN_TOKEN)
    #[arg(long, value_name = "FILE", requires = "url")]
    pub token_file: Option<PathBuf>,
    /// Read its client token, for calls and reads, from this file (default: the variable GOBLIN_TOKEN)
    #[arg(long, value_name = "FILE", requires = "url")]
    pub client_token_file: Option<PathBuf>,
    /// Show the gateway that runs with this configuration file
    #[arg(long, short, value_name = "FILE", conflicts_with = "url")]
    pub config: Option<PathBuf>,
}

pub(crate) async fn run(arguments: Top) -> Result<ExitCode> {
    check_terminal()?;
    // Install the signal handlers before anything starts that a signal must not leave behind.
    let terminated = termination()?;
    let gateway = match arguments.url {
        Some(url) => GatewayAddress::Named {
            token: stdio::token(arguments.client_token_file.as_deref())?,
            admin_token: stdio::admin_token(arguments.token_file.as_deref(), &url)?,
            url,
        },
        None => GatewayAddress::Recorded(Box::new(admin_client::find_record(arguments.config.as_deref()).await?)),
    };
    goblin_tui::run(Remote::new(gateway)?, theme(), open_on_desktop, terminated).await?;
    Ok(ExitCode::SUCCESS)
}

/// Returns an error if stdin or stdout is no terminal that can be drawn on.
pub(crate) fn check_terminal() -> Result<(), CliError> {
    let alternative = "goblin tools, goblin resources and the admin API provide the same data";
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        let reason = "the dashboard needs a terminal for input and output";
        return Err(CliError::Usage(format!("{reason}; {alternative}")));
    }
    match environment("TERM").as_deref() {
        None | Some("" | "dumb") => Err(CliError::Usage(format!(
            "the dashboard cannot draw on this terminal: TERM is not set, or is \"dumb\"; {alternative}"
        ))),
        Some(_) => Ok(()),
    }
}

pub(crate) fn theme() -> Theme {
    if is_colourful(&std::io::stdout()) { Theme::Colour } else { Theme::Monochrome }
}
