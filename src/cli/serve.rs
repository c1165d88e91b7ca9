//! `goblin serve` and `goblin stdio`.

use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::app::{self, App};
use crate::backend::child::own_executable;
use crate::backend::connect::ProxyEnvironment;
use crate::cli::{Common, Serve, Stdio};
use crate::config::file::{LoadError, Located};
use crate::config::{self, Config, Log, LogFormat, LogLevel};
use crate::observe::Observe;

/// The exit code for a configuration that cannot be used.
pub const BAD_CONFIGURATION: u8 = 2;

pub async fn serve(arguments: Serve) -> Result<ExitCode> {
    let mut config = match load(&arguments.common) {
        Ok(config) => config,
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
    start_log(&config.log, &arguments.common);
    let listener = app::bind(&config.gateway).await?;
    let app = App::start(config, own_executable()?, ProxyEnvironment::from_process(), Arc::new(Observe::default()));
    app.serve_http(listener, termination()?).await?;
    Ok(ExitCode::SUCCESS)
}

pub async fn stdio(arguments: Stdio) -> Result<ExitCode> {
    let config = match load(&arguments.common) {
        Ok(config) => config,
        Err(problem) => return Ok(tell(&problem)),
    };
    start_log(&config.log, &arguments.common);
    let app = App::start(config, own_executable()?, ProxyEnvironment::from_process(), Arc::new(Observe::default()));
    app.serve_stdio(tokio::io::stdin(), tokio::io::stdout(), termination()?).await;
    Ok(ExitCode::SUCCESS)
}

/// The configuration, or everything that is wrong with it.
fn load(common: &Common) -> Result<Config, String> {
    let environment = |name: &str| std::env::var(name).ok();
    let path = match config::locate(common.config.as_deref(), &environment) {
        Located::At(path) => path,
        Located::Nowhere(searched) => {
            warn(&format!("{searched}\ngoing on without any server"));
            return Ok(Config::empty());
        }
    };
    match config::load(&path, &environment) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                warn(&warning.to_string());
            }
            Ok(loaded.config)
        }
        Err(problem) => Err(explain(&path, &problem)),
    }
}

fn explain(path: &Path, problem: &LoadError) -> String {
    match problem {
        LoadError::Problems(problems) => {
            let count = problems.iter().count();
            let noun = if count == 1 { "problem" } else { "problems" };
            format!("{count} {noun} in {}, nothing was started\n{problems}", path.display())
        }
        other => other.to_string(),
    }
}

fn tell(problem: &str) -> ExitCode {
    let label = paint("error", "31");
    eprintln!("{label}: {problem}");
    ExitCode::from(BAD_CONFIGURATION)
}

fn warn(warning: &str) {
    let label = paint("warning", "33");
    eprintln!("{label}: {warning}");
}

/// Colour on a terminal, none in a pipe.
fn paint(text: &str, colour: &str) -> String {
    let plain = !std::io::stderr().is_terminal() || std::env::var_os("NO_COLOR").is_some();
    if plain { text.to_owned() } else { format!("\x1b[1;{colour}m{text}\x1b[0m") }
}

/// Logs go to stderr: stdout may carry the protocol.
fn start_log(log: &Log, common: &Common) {
    let level = common.log_level.unwrap_or(match log.level {
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    });
    let terminal = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    let json = match log.format {
        LogFormat::Json => true,
        LogFormat::Text | LogFormat::Auto => false,
    };
    if json {
        builder.json().init();
    } else {
        builder.with_ansi(terminal && std::env::var_os("NO_COLOR").is_none()).init();
    }
}

/// Waits for Ctrl-C or SIGTERM.
fn termination() -> Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
