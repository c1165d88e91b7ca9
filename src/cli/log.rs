//! Where the log goes: always to stderr, because stdout may carry the protocol.

use clap::Args;

use crate::cli::style::is_colourful;
use crate::config::{Log, LogFormat, LogLevel};

#[derive(Debug, Args)]
pub struct LogFlags {
    /// How much to log on stderr: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<tracing::Level>,
}

pub fn start(log: &Log, flags: &LogFlags) {
    let level = flags.log_level.unwrap_or(match log.level {
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    });
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    match log.format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text | LogFormat::Auto => {
            builder.with_ansi(is_colourful(&std::io::stderr())).init();
        }
    }
}
