//! Where the log goes: always to stderr, because stdout may carry the protocol.

use std::fmt;

use clap::Args;
use tracing::Level;
use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};

use crate::cli::style::is_colourful;
use crate::config::{Log, LogFormat};

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
    flags.log_level.or(log.level.map(Level::from)).unwrap_or(default)
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
            builder.fmt_fields(ForPeople).with_ansi(is_colourful(&std::io::stderr())).init();
        }
    }
}

/// The fields of a line, less its kind: that is for programs, and people read the message.
struct ForPeople;

impl<'writer> FormatFields<'writer> for ForPeople {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = WithoutKind(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct WithoutKind<'writer>(DefaultVisitor<'writer>);

impl Visit for WithoutKind<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != "kind" {
            self.0.record_str(field, value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogLevel;

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
