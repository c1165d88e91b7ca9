//! `goblin check`: validates a configuration, and with `--connect` its servers.
//!
//! The result is a [`report::Report`], which is printed as a table or as one JSON document. All servers are stopped
//! again.

mod connect;
mod profile;
pub(crate) mod report;
mod show;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use goblin_client::lineage::{self, Lineage};
use goblin_config::exposure::{Profile, ProfileName};
use goblin_config::file::LoadError;
use goblin_config::lead::{GatewayLead, UNCLEAR};
use goblin_config::problem::Problem;
use goblin_config::target::Target;
use goblin_config::{Log, LogLevel};
use goblin_telemetry::{Observe, clean};
use tracing::Level;

use crate::check::profile::ProfileReport;
use crate::check::report::{CheckReport, CheckState, ServerReport};
use crate::cli::{BAD_CONFIGURATION, CliError, ConfigArgs};
use crate::load::{self, ConfigError, ConfigLocation, RawConfig, SourcedConfig};
use crate::log;
use crate::log::LogFlags;
use crate::loops::{self, EntryTarget, KnownGateways};
use crate::style::{is_colourful, note, print, width};

/// The exit code if a server failed or needs a login, or with `--strict` if there is a warning.
const SERVER_FAILED: u8 = 1;

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 for success, 1 if a server failed or needs a login, 2 if the configuration \
                        cannot be used.")]
pub(crate) struct Check {
    #[command(flatten)]
    pub source: ConfigArgs,
    /// Connect to every server and list its tools, prompts and resources
    #[arg(long)]
    pub connect: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Fail on warnings, unpinned packages and name conflicts
    #[arg(long)]
    pub strict: bool,
    /// Seconds for a server to start (default: policies.startTimeout)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400), requires = "connect")]
    pub timeout: Option<u64>,
    #[command(flatten)]
    pub log: LogFlags,
}

pub(crate) async fn run(arguments: Check) -> Result<ExitCode> {
    let report = match load::find(arguments.source.config.as_deref()).and_then(RawConfig::parse) {
        Ok(given) => examine(given, &arguments, Arc::default()).await?,
        Err(error) => unusable(&error),
    };
    show(&report, arguments.json)?;
    Ok(ExitCode::from(code(&report, arguments.strict)))
}

/// Builds the report of a valid configuration. Connects to its servers if the arguments ask for it.
pub(crate) async fn examine(mut given: SourcedConfig, arguments: &Check, observe: Arc<Observe>) -> Result<CheckReport> {
    let mut report = CheckReport { warnings: given.warnings.clone(), ..CheckReport::default() };
    match &given.from {
        ConfigLocation::File(path) => report.config = Some(path.clone()),
        ConfigLocation::Directory(path) => report.directory = Some(path.clone()),
    }
    report.servers = given
        .config
        .servers
        .iter()
        .map(|(id, server)| ServerReport::new(id, server, clean(&Target::of(&server.transport).to_string())))
        .collect();
    drop_loops(&mut given, &mut report);
    let profile = |(name, profile): (&ProfileName, &Arc<Profile>)| ProfileReport::new(name, profile, &given.config);
    report.profiles = given.config.profiles.iter().map(profile).collect();
    if arguments.connect {
        // The report contains the failed servers; the log would only repeat them.
        log::start(Level::INFO, &Log { level: Some(LogLevel::Error), ..given.config.log.clone() }, &arguments.log);
        if let Some(seconds) = arguments.timeout {
            given.config.policies.start_timeout = Duration::from_secs(seconds);
        }
        lineage::check_depth().map_err(CliError::Usage)?;
        let lineage = Lineage::of_process(Some(&given.identity));
        connect::connect(given.config, lineage, observe, &mut report).await?;
    }
    report.ok = code(&report, arguments.strict) == 0;
    Ok(report)
}

/// Reports the servers that lead back to the gateway of this configuration. They are not connected.
fn drop_loops(given: &mut SourcedConfig, report: &mut CheckReport) {
    let Some(path) = report.config.as_deref() else { return };
    let gateways = KnownGateways::new(path, given.config.gateway.clone());
    given.config.servers.retain(|id, server| {
        let lead = gateways.lead(&EntryTarget::of_transport(&server.transport));
        let is_own = lead == Some(GatewayLead::Own);
        if lead == Some(GatewayLead::Unclear) {
            note(&format!("server {id}: {UNCLEAR}"));
        }
        let report = report.servers.iter_mut().find(|report| report.id == id.as_str());
        if let Some(report) = report.filter(|report| is_own && report.state != CheckState::Disabled) {
            report.state = CheckState::Failed;
            report.error = Some(format!("it is this gateway itself (remove it from mcpServers: {})", loops::CURE));
        }
        !is_own
    });
}

/// Builds the report of a configuration that cannot be used.
pub(crate) fn unusable(error: &ConfigError) -> CheckReport {
    match error {
        ConfigError::Nothing(reason) => {
            let problems = vec![Problem { message: reason.clone(), ..Problem::default() }];
            CheckReport { directory: std::env::current_dir().ok(), problems, ..CheckReport::default() }
        }
        ConfigError::File { path, problem } => {
            let problems = match problem {
                LoadError::Problems(problems) => problems.iter().cloned().collect(),
                other => vec![Problem { message: other.to_string(), ..Problem::default() }],
            };
            CheckReport { config: Some(path.clone()), problems, ..CheckReport::default() }
        }
    }
}

fn code(report: &CheckReport, strict: bool) -> u8 {
    match report {
        _ if !report.problems.is_empty() => BAD_CONFIGURATION,
        _ if report.has_failed_servers() || strict && report.has_warnings() => SERVER_FAILED,
        _ => 0,
    }
}

fn show(report: &CheckReport, json: bool) -> Result<()> {
    let stdout = std::io::stdout();
    let text = match json {
        true => serde_json::to_string_pretty(report)? + "\n",
        false => show::render(report, width(&stdout), is_colourful(&stdout)),
    };
    print(&text).context("cannot write to stdout")
}
