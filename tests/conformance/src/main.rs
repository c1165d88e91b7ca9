//! The server that the official MCP conformance suite requires, and a runner of that suite.
//!
//! `serve` is a backend with every tool, prompt and resource that the suite's scenarios name, in both eras. `run` plays
//! the suite against a URL and reports the outcome of each check. `compare` plays it against a server and through the
//! gateway, and shows the checks that the gateway breaks. `run-client` lets the suite play servers. It starts `client`,
//! which uses them through the gateway, so that the suite judges the gateway as a client.

mod ask;
mod client;
mod compare;
mod cut;
mod http;
mod prompts;
mod report;
mod resources;
mod server;
mod servers;
mod side_by_side;
mod suite;
mod tools;
mod world;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use crate::report::Report;
use crate::servers::Sdk;
use crate::side_by_side::SideBySide;
use crate::suite::{Edition, Side, Suite};

#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve on a free port of 127.0.0.1; the first line of stdout says where
    Serve,
    /// Run the suite against a server; exits with 1 when a check fails
    Run(RunArguments),
    /// Run the suite against a server directly and through the gateway; exits with 1 when an unexpected check differs
    Compare(CompareArguments),
    /// Run a scenario in which clients are judged; exits with 1 when a check fails
    RunClient(RunClientArguments),
    /// Play the client of the suite's scenario; the suite starts this
    Client {
        /// URL of the suite's server
        url: String,
    },
}

#[derive(Args)]
struct RunArguments {
    /// URL of the server; the suite wants one on this machine
    #[arg(long)]
    url: String,
    #[command(flatten)]
    selection: Selection,
    /// The newest stable release of the suite instead of the newest
    #[arg(long)]
    stable: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct CompareArguments {
    /// The SDK of the server
    #[arg(long, value_enum, default_value = "rust")]
    server: Sdk,
    /// The gateway's binary
    #[arg(long)]
    gateway: PathBuf,
    /// The `protocol` of the server in the gateway's configuration, or several of them
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    protocol: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    /// The newest stable release of the suite instead of the newest
    #[arg(long)]
    stable: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct RunClientArguments {
    /// The scenario
    #[arg(long)]
    scenario: String,
    /// The version of the protocol that the suite's server speaks
    #[arg(long)]
    spec_version: String,
    /// The gateway's binary; without it, the client is judged itself
    #[arg(long)]
    gateway: Option<PathBuf>,
    /// The version of the protocol that the client speaks to the gateway, if not the same
    #[arg(long, requires = "gateway")]
    client_version: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// Tell the outcome as JSON
    #[arg(long)]
    json: bool,
    /// Where `cargo xtask tools` has installed the suite
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/conformance"))]
    tools: PathBuf,
}

/// Which scenarios to run.
#[derive(Args)]
struct Selection {
    /// A suite: active, all, draft or pending
    #[arg(long, default_value = "all")]
    suite: String,
    /// One scenario
    #[arg(long, conflicts_with = "suite")]
    scenario: Option<String>,
    /// Only what there is in this version of the protocol, spoken in that version
    #[arg(long)]
    spec_version: Option<String>,
    /// What this version of the protocol requires, as it was when the version came out
    #[arg(long, conflicts_with_all = ["suite", "scenario", "spec_version", "stable"])]
    requirements: Option<String>,
}

impl Selection {
    /// Returns the selection as options of the suite.
    fn options(self) -> Vec<String> {
        if let Some(version) = self.requirements {
            return vec!["--requirements".to_owned(), version];
        }
        let mut options = match self.scenario {
            Some(scenario) => vec!["--scenario".to_owned(), scenario],
            None => vec!["--suite".to_owned(), self.suite],
        };
        options.extend(self.spec_version.into_iter().flat_map(|version| ["--spec-version".to_owned(), version]));
        options
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Serve => http::serve().await.map(|()| ExitCode::SUCCESS),
        Command::Run(arguments) => run(arguments),
        Command::Compare(arguments) => compare_runs(arguments).await,
        Command::RunClient(arguments) => run_client(arguments),
        Command::Client { url } => client::play(&url).await.map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("goblin-conformance: {error:#}");
        ExitCode::from(2)
    })
}

fn run(arguments: RunArguments) -> Result<ExitCode> {
    let suite = Suite {
        tools: arguments.common.tools,
        edition: edition(arguments.stable),
        side: Side::Client { url: arguments.url },
        selection: arguments.selection.options(),
    };
    let report = suite.run()?;
    print_report(&report, arguments.common.json)?;
    Ok(if report.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn compare_runs(arguments: CompareArguments) -> Result<ExitCode> {
    let selection = arguments.selection;
    let pair = SideBySide {
        sdk: arguments.server,
        gateway: arguments.gateway,
        protocols: arguments.protocol,
        spec_version: selection.spec_version.clone(),
        requirements: selection.requirements.clone(),
        tools: arguments.common.tools,
        edition: edition(arguments.stable),
        selection: selection.options(),
    };
    let findings = pair.run().await?;
    let text = if arguments.common.json { serde_json::to_string(&findings)? } else { findings.to_string() };
    writeln!(io::stdout(), "{text}").context("cannot write the findings")?;
    Ok(if findings.is_explained() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn edition(stable: bool) -> Edition {
    if stable { Edition::Stable } else { Edition::Newest }
}

fn run_client(arguments: RunClientArguments) -> Result<ExitCode> {
    // Extensions belong to no version. `--force` plays them in the named version.
    let selection = ["--scenario", &arguments.scenario, "--spec-version", &arguments.spec_version, "--force"];
    let suite = Suite {
        tools: arguments.common.tools,
        edition: Edition::Newest,
        side: Side::Server { gateway: arguments.gateway, client_version: arguments.client_version },
        selection: selection.map(str::to_owned).to_vec(),
    };
    let report = suite.run()?;
    print_report(&report, arguments.common.json)?;
    Ok(if report.accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_report(report: &Report, as_json: bool) -> Result<()> {
    let text = if as_json { serde_json::to_string_pretty(report)? } else { report.to_string() };
    writeln!(io::stdout(), "{text}").context("cannot write the report")
}
