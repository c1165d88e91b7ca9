//! `goblin doctor`: finds problems on this machine and names a cure for each. It changes nothing.
//!
//! The checks of the configuration and of its servers are those of `goblin check` ([`crate::check`]). This module adds
//! checks of the machine, and turns every result into a [`finding::Finding`].

mod finding;
mod machine;
pub(crate) mod servers;
mod vault;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use goblin_client::environment::environment;
use goblin_client::runtime::RecordDirectories;
use goblin_config::problem::Problem;
use goblin_telemetry::Observe;

use crate::check::report::CheckReport;
use crate::check::{self, Check};
use crate::cli::ConfigArgs;
use crate::doctor::finding::{Findings, Verdict};
use crate::load::{self, RawConfig, SourcedConfig};
use crate::log::LogFlags;
use crate::style::{is_colourful, plural, print};

const CONFIGURATION: &str = "configuration";

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 if there is no problem (there may be warnings), 1 if there is one.")]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub source: ConfigArgs,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Do not start servers or connect to them
    #[arg(long, visible_alias = "offline")]
    pub no_connect: bool,
    #[command(flatten)]
    pub log: LogFlags,
}

pub(crate) async fn run(arguments: Doctor) -> Result<ExitCode> {
    let (json, mut findings) = (arguments.json, Findings::default());
    match load::find(arguments.source.config.as_deref()).and_then(RawConfig::parse) {
        Ok(given) => examine(given, arguments, &mut findings).await?,
        Err(error) => {
            for problem in check::unusable(&error).problems {
                let cure = problem.cure.clone().unwrap_or_else(|| ANOTHER_CONFIGURATION.to_owned());
                findings.problem(CONFIGURATION, Problem { cure: None, ..problem }.to_string(), cure);
            }
            machine::directories(&RecordDirectories::of(&environment).inspect(), &mut findings);
        }
    }
    vault::examine(&mut findings);
    let text = match json {
        true => serde_json::to_string_pretty(&findings.document())? + "\n",
        false => findings.text(is_colourful(&std::io::stdout())),
    };
    print(&text).context("cannot write to stdout")?;
    Ok(ExitCode::from(u8::from(findings.count(Verdict::Problem) > 0)))
}

const ANOTHER_CONFIGURATION: &str = "write one, name another (--config FILE), or import the servers of other \
                                     clients (goblin import)";

async fn examine(given: SourcedConfig, arguments: Doctor, findings: &mut Findings) -> Result<()> {
    let Doctor { source, no_connect, log, .. } = arguments;
    let inspected = RecordDirectories::of(&environment).inspect();
    let mut first = Findings::default();
    machine::directories(&inspected, &mut first);
    machine::gateways(&inspected, &given.identity, &mut first).await;
    machine::port(&given.config.gateway, &inspected.running, &given.identity, &mut first);
    machine::users(&given.config.gateway, &mut first);
    machine::socket(&given.config.gateway, &inspected.running, &given.identity, &mut first);
    machine::descriptors(&given.config, &mut first);
    let unstartable = servers::commands(&given.config, &mut first);
    // The feed keeps debug events only while it has a reader, and noise on stdout is a debug event.
    let observe = Arc::new(Observe::default());
    let reader = observe.feed().reader(0);
    let check_arguments = Check { source, connect: !no_connect, json: false, strict: false, timeout: None, log };
    let report = check::examine(given, &check_arguments, Arc::clone(&observe)).await?;
    findings.ok(CONFIGURATION, headline(&report));
    for warning in report.warnings.iter().filter(|warning| warning.file.is_some()) {
        let cure = warning.cure.clone().unwrap_or_else(|| "run goblin check to see its position".to_owned());
        let what = Problem { cure: None, ..warning.clone() }.to_string();
        findings.warning(CONFIGURATION, what, cure);
    }
    findings.append(first);
    servers::report_servers(&report, &unstartable, findings);
    servers::stdout_noise(&observe.feed().read_from(0), findings);
    drop(reader);
    Ok(())
}

fn headline(report: &CheckReport) -> String {
    let place = match (&report.config, &report.directory) {
        (Some(path), _) => path.display().to_string(),
        (None, Some(path)) => format!("none, the files of {} are served", path.display()),
        (None, None) => "none".to_owned(),
    };
    format!("{place}, {}", plural(report.servers.len(), "server"))
}
