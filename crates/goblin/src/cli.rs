//! The command line. Each command has its own file with its arguments and its entry function.
//!
//! The commands print; the crates that they call return values and errors. Only the dashboard (`goblin_tui`) draws its
//! own screen.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use goblin_admin::routes::ServerAction;
use goblin_client::runtime::FindError;

use crate::endpoint::EndpointError;
#[cfg(feature = "import")]
use crate::import;
use crate::load::ConfigError;
#[cfg(feature = "tui")]
use crate::top;
use crate::{
    check, control, doctor, edit, generate, history, login, prompts, resources, schema, secret, serve, status, stdio,
    subscriptions, tools, watch,
};

/// The exit code for a configuration that cannot be used.
pub(crate) const BAD_CONFIGURATION: u8 = 2;
/// The exit code if the gateway or a server behind it cannot be reached.
const UNAVAILABLE: u8 = 3;
/// The exit code after a signal, by the convention of shells.
const INTERRUPTED: u8 = 130;

/// The reason why a command failed. Each variant has its own exit code; all other errors have 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The tool or the server answered with an error, or the output could not be written.
    #[error("{0}")]
    Refused(String),
    /// The arguments or the configuration cannot be used.
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Unavailable(String),
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    pub(crate) fn code(&self) -> u8 {
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

impl From<ConfigError> for CliError {
    fn from(error: ConfigError) -> CliError {
        CliError::Usage(error.to_string())
    }
}

impl From<EndpointError> for CliError {
    fn from(error: EndpointError) -> CliError {
        let text = error.to_string();
        match error {
            EndpointError::Configuration(_) | EndpointError::Flags(_) | EndpointError::Find(FindError::Several(_)) => {
                CliError::Usage(text)
            }
            EndpointError::Find(FindError::None) | EndpointError::Other(_) => CliError::Unavailable(text),
        }
    }
}

/// One MCP endpoint for many MCP servers
#[derive(Debug, Parser)]
#[command(name = "goblin", version, long_about = LONG_ABOUT, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Each paragraph is one line, because clap wraps it to the width of the terminal.
const LONG_ABOUT: &str = "\
One MCP endpoint for many MCP servers.

Goblin connects to the MCP servers of its configuration and offers their tools, prompts and resources as one server, \
over Streamable HTTP (`goblin serve`) or stdio (`goblin stdio`).

Goblin reads the file of --config, else the file that the variable GOBLIN_CONFIG names, else goblin.json in the goblin \
directory of your configuration directory ($XDG_CONFIG_HOME or ~/.config). An `mcpServers` block of another client \
works unchanged. If there is no configuration, Goblin serves the files of the working directory.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve Streamable HTTP at /mcp
    Serve(serve::Serve),
    /// Serve one client on stdin and stdout
    Stdio(stdio::Stdio),
    /// Print a line when a resource changes
    #[command(long_about = watch::LONG_ABOUT)]
    Watch(watch::Watch),
    /// Show and control a running gateway in a terminal dashboard
    #[cfg(feature = "tui")]
    #[command(long_about = top::LONG_ABOUT)]
    Top(top::Top),
    /// Show the status of a running gateway and its servers
    Status(status::Status),
    /// List the ended calls of a running gateway
    Calls(history::Calls),
    /// Show the events of a running gateway, or the log and stderr of one server
    Logs(history::Logs),
    /// Restart a server of a running gateway
    Restart(control::Control),
    /// Start a disabled server of a running gateway
    Enable(control::Control),
    /// Stop a server of a running gateway
    Disable(control::Control),
    /// Log in to a server with a browser
    #[command(long_about = login::LONG_ABOUT)]
    Login(login::Login),
    /// Revoke and forget the login at a server
    Logout(login::Logout),
    /// Set, list and remove secrets in the encrypted vault
    #[command(long_about = secret::LONG_ABOUT)]
    Secret(secret::Secrets),
    /// List the subscriptions of a running gateway
    Subscriptions(subscriptions::Subscriptions),
    /// List, search, describe and call tools
    Tools(tools::Tools),
    /// List, search and read resources
    Resources(resources::Resources),
    /// List prompts and print their messages
    Prompts(prompts::Prompts),
    /// Validate a configuration, and test its servers with --connect
    Check(check::Check),
    /// Find problems on this machine and print a remedy for each
    Doctor(doctor::Doctor),
    /// Import the servers of other MCP clients on this machine
    #[cfg(feature = "import")]
    Import(import::Import),
    /// Add a server to the configuration
    Add(edit::Add),
    /// Remove a server from the configuration
    Remove(edit::Remove),
    /// Print the JSON schema of the configuration, for editors
    Schema(schema::Schema),
    /// Print a completion script for a shell
    Completions(generate::Completions),
    /// Print the manual page, or write all manual pages to a directory
    Man(generate::Man),
}

impl Cli {
    pub(crate) async fn run(self) -> Result<ExitCode> {
        match self.command {
            Command::Serve(arguments) => serve::run(arguments).await,
            Command::Stdio(arguments) => stdio::run(arguments).await,
            Command::Watch(arguments) => watch::run(arguments).await,
            #[cfg(feature = "tui")]
            Command::Top(arguments) => top::run(arguments).await,
            Command::Status(arguments) => status::run(arguments).await,
            Command::Calls(arguments) => history::calls(arguments).await,
            Command::Logs(arguments) => history::logs(arguments).await,
            Command::Restart(arguments) => control::run(ServerAction::Restart, arguments).await,
            Command::Enable(arguments) => control::run(ServerAction::Enable, arguments).await,
            Command::Disable(arguments) => control::run(ServerAction::Disable, arguments).await,
            Command::Login(arguments) => login::log_in(arguments).await,
            Command::Logout(arguments) => login::log_out(arguments).await,
            Command::Secret(arguments) => secret::run(arguments).await,
            Command::Subscriptions(arguments) => subscriptions::run(arguments).await,
            Command::Tools(arguments) => tools::run(arguments).await,
            Command::Resources(arguments) => resources::run(arguments).await,
            Command::Prompts(arguments) => prompts::run(arguments).await,
            Command::Check(arguments) => check::run(arguments).await,
            Command::Doctor(arguments) => doctor::run(arguments).await,
            #[cfg(feature = "import")]
            Command::Import(arguments) => import::run(&arguments),
            Command::Add(arguments) => edit::add(&arguments).await,
            Command::Remove(arguments) => edit::remove(&arguments),
            Command::Schema(arguments) => schema::run(&arguments),
            Command::Completions(arguments) => generate::completions(&arguments),
            Command::Man(arguments) => generate::man(&arguments),
        }
    }
}

/// The flag for the configuration file.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The configuration file
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
}
