//! `goblin stdio`: one client on stdin and stdout.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;

use crate::app::App;
use crate::backend::child::own_executable;
use crate::backend::connect::ProxyEnvironment;
use crate::cli::log::LogFlags;
use crate::cli::serve::termination;
use crate::cli::style::tell;
use crate::cli::{Source, load, log};
use crate::observe::Observe;

#[derive(Debug, Args)]
pub struct Stdio {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub log: LogFlags,
}

pub async fn run(arguments: Stdio) -> Result<ExitCode> {
    let config = match load::load(arguments.source.config.as_deref()) {
        Ok(given) => given.config,
        Err(problem) => return Ok(tell(&problem)),
    };
    log::start(&config.log, &arguments.log);
    let app = App::start(config, own_executable()?, ProxyEnvironment::from_process(), Arc::new(Observe::default()));
    app.serve_stdio(tokio::io::stdin(), tokio::io::stdout(), termination()?).await?;
    Ok(ExitCode::SUCCESS)
}
