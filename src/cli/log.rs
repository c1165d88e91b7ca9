//! Where the log goes: always to stderr, because stdout may carry the protocol.

use clap::Args;
use tracing::Level;

use crate::cli::style::is_colourful;
use crate::config::{Log, LogFormat, LogLevel};

#[derive(Debug, Args)]
pub struct LogFlags {
    /// How much to log on stderr: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<Level>,
}

pub fn start(log: &Log, flags: &LogFlags) {
    start_at(flags.log_level.unwrap_or(configured(log)), log);
}

/// The banner tells what `info` would; what comes after it on the same terminal shall be worth reading.
pub fn start_below_banner(log: &Log, flags: &LogFlags) {
    let configured = match configured(log) {
        Level::INFO => Level::WARN,
        other => other,
    };
    start_at(flags.log_level.unwrap_or(configured), log);
}

fn configured(log: &Log) -> Level {
    match log.level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    }
}

fn start_at(level: Level, log: &Log) {
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    match log.format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text | LogFormat::Auto => {
            builder.with_ansi(is_colourful(&std::io::stderr())).init();
        }
    }
}
