//! `goblin watch`: prints a line for every change of a resource, and optionally runs a command.
//!
//! The command is an MCP client on an in-memory pipe (see [`crate::endpoint`]). It survives a restart of the gateway,
//! because the bridge subscribes again. Its subscriptions end with its session. [`watching`] handles the messages.

pub(crate) mod exec;
pub(crate) mod show;
pub(crate) mod target;
pub(crate) mod watching;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use goblin_config::quantity;

use crate::cli::CliError;
use crate::endpoint::{Endpoint, EndpointArgs, EndpointError};
use crate::log::LogFlags;
use crate::serve::termination;
use crate::watch::exec::CommandQueue;
use crate::watch::show::OutputStyle;
use crate::watch::target::{UpdateOptions, UriKind, WatchTargets};
use crate::watch::watching::WatchSession;

#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Watch {
    /// URIs or identifiers of resources in the list of the gateway, or patterns
    #[arg(required = true, value_name = "URI")]
    pub uris: Vec<String>,
    #[command(flatten)]
    pub reach: EndpointArgs,
    /// Print one JSON object per line
    #[arg(long)]
    pub json: bool,
    /// Run this command for every update, through sh, with the URI as $1 and in GOBLIN_URI
    #[arg(long, value_name = "COMMAND")]
    pub exec: Option<String>,
    /// Report each resource at most once in this time, such as 500ms or 10s; the last change is never lost
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub min_interval: Option<Duration>,
    /// Collect updates for this time, such as 2s, and report them together
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub batch: Option<Duration>,
    /// Report only changes of these fields, such as size or annotations.lastModified
    #[arg(long, value_name = "FIELDS", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Kind of the URIs (default: a listed URI is exact, else one with { is a template and one with *, ? or [ a glob)
    #[arg(long, value_name = "KIND")]
    pub pattern: Option<UriKind>,
    #[command(flatten)]
    pub log: LogFlags,
}

/// Each paragraph is one line, because clap wraps it to the width of the terminal.
pub(crate) const LONG_ABOUT: &str = "\
Print a line when a resource changes.

The command subscribes at the gateway that runs on this machine and prints a line for every update: the time (UTC), \
the URI, and `deleted` if the resource was deleted. After a restart of the gateway it subscribes again and reports \
each resource once, because changes may have been missed. Ctrl-C ends the command.

If several gateways run, the command uses the one with your configuration, or the one at --url.";

const EXAMPLES: &str = "\
Examples:
  goblin watch file:///me/project/notes.md
  goblin watch --json file:///me/project/notes.md | jq -r .uri
  goblin watch --min-interval 5s --exec 'make docs' file:///me/project/manual.md
  goblin watch 'file:///me/project/logs/**/*.log'
  goblin watch --exec 'echo \"$1 has changed\"' --config goblin.json file:///me/project/notes.md

The command of --exec runs for one update at a time. If a resource changes meanwhile, the command runs once \
more, for the newest update. A failed command is reported on stderr, and the watch goes on. GOBLIN_DELETED is 1 if the \
resource was deleted.

Exit codes: 0 if the watch was ended, 1 if no resource could be subscribed to or the gateway cannot be reached, 2 if \
the arguments or the configuration cannot be used.";

fn duration(text: &str) -> Result<Duration, String> {
    quantity::duration(text).map_err(|fault| fault.to_string())
}

pub(crate) async fn run(arguments: Watch) -> Result<ExitCode> {
    // Install the signal handlers before anything starts that a signal must not leave behind.
    let terminated = termination()?;
    let endpoint = Endpoint::open(&arguments.reach, None, &arguments.log).await.map_err(|error| match error {
        EndpointError::Configuration(message) => CliError::Usage(message).into(),
        other => anyhow::Error::from(other),
    })?;
    let place = endpoint.place();
    let watched = endpoint.run_peer(terminated, async |peer, stopped| {
        let watching = WatchSession::new(peer, targets(&arguments), output_style(&arguments), place);
        let watching = match &arguments.exec {
            Some(command) => watching.with(CommandQueue::new(command.clone(), arguments.json)),
            None => watching,
        };
        watching.run(stopped).await
    });
    watched.await?
}

fn targets(arguments: &Watch) -> WatchTargets {
    let Watch { min_interval, batch, fields, .. } = arguments;
    let options = UpdateOptions { min_interval: *min_interval, batch: *batch, fields };
    WatchTargets::new(&arguments.uris, arguments.pattern, &options)
}

fn output_style(arguments: &Watch) -> OutputStyle {
    if arguments.json { OutputStyle::Json } else { OutputStyle::for_people() }
}
