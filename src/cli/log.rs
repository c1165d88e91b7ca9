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
    start_at(level(log, flags, Level::INFO), log);
}

/// The banner tells what `info` would; what comes after it on the same terminal shall be worth reading.
pub fn start_below_banner(log: &Log, flags: &LogFlags) {
    start_at(level(log, flags, Level::WARN), log);
}

/// The flag, else the configuration, else what fits the place.
fn level(log: &Log, flags: &LogFlags, default: Level) -> Level {
    let configured = log.level.map(|level| match level {
        LogLevel::Error => Level::ERROR,
        LogLevel::Warn => Level::WARN,
        LogLevel::Info => Level::INFO,
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Trace => Level::TRACE,
    });
    flags.log_level.or(configured).unwrap_or(default)
}

fn start_at(level: Level, log: &Log) {
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_target(false)
        // It would complain on the very stderr that cannot be written to, and panic.
        .log_internal_errors(false);
    match log.format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text | LogFormat::Auto => {
            builder.with_ansi(is_colourful(&std::io::stderr())).init();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_a_level_gets_it() {
        for (flag, configured, expected) in [
            (None, None, Level::WARN),
            (None, Some(LogLevel::Info), Level::INFO),
            (Some(Level::ERROR), Some(LogLevel::Info), Level::ERROR),
            (Some(Level::INFO), None, Level::INFO),
        ] {
            let log = Log { level: configured, ..Log::default() };
            assert_eq!(level(&log, &LogFlags { log_level: flag }, Level::WARN), expected);
        }
    }
}
