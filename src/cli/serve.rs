//! `goblin serve`: the gateway over HTTP.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::app::{self, App};
use crate::backend::child::own_executable;
use crate::backend::connect::ProxyEnvironment;
use crate::cli::log::LogFlags;
use crate::cli::style::tell;
use crate::cli::{Source, load, log};
use crate::observe::Observe;

#[derive(Debug, Args)]
pub struct Serve {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub log: LogFlags,
    /// Listen on this address instead of gateway.host
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,
    /// Listen on this port instead of gateway.port; 0 takes any free one
    #[arg(long, value_name = "PORT")]
    pub port: Option<u16>,
}

pub async fn run(arguments: Serve) -> Result<ExitCode> {
    let mut config = match load::load(arguments.source.config.as_deref()) {
        Ok(given) => given.config,
        Err(problem) => return Ok(tell(&problem)),
    };
    let host = arguments.host.map(|host| host.trim_start_matches('[').trim_end_matches(']').to_owned());
    config.gateway.host = host.unwrap_or(config.gateway.host);
    config.gateway.port = arguments.port.unwrap_or(config.gateway.port);
    if config.gateway.token.is_none() && !config.gateway.is_loopback() {
        let host = &config.gateway.host;
        return Ok(tell(&format!(
            "refusing to listen on {host} without a token: anyone on the network could use your servers\n\
             set gateway.token in the configuration, or listen on 127.0.0.1"
        )));
    }
    log::start(&config.log, &arguments.log);
    let listener = app::bind(&config.gateway).await?;
    let app = App::start(config, own_executable()?, ProxyEnvironment::from_process(), Arc::new(Observe::default()));
    app.serve_http(listener, termination()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Waits for Ctrl-C or SIGTERM, each time it is called.
pub fn termination() -> Result<impl AsyncFnMut()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
