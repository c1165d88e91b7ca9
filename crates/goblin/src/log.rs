//! Starts the log. It always goes to stderr, because stdout may carry the protocol.

use std::fmt::{Debug, Result as Written};
use std::io::Write;
use std::time::Duration;

use clap::Args;
use goblin_config::{Log, LogFormat};
use goblin_telemetry::audit::TARGET;
use goblin_telemetry::line::tracing_level;
use tracing::Level;
use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitOutput};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::fmt::{self, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::live_lines;
use crate::style::is_colourful;

#[derive(Debug, Args)]
pub(crate) struct LogFlags {
    /// Log level on stderr: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<Level>,
    /// Log format: auto (text, with colours on a terminal), text or json
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    pub log_format: Option<LogFormat>,
}

fn format(text: &str) -> Result<LogFormat, String> {
    let known = LogFormat::ALL.iter().find(|(name, _)| *name == text).map(|(_, format)| *format);
    known.ok_or_else(|| format!("must be one of {}", LogFormat::ALL.map(|(name, _)| name).join(", ")))
}

/// Returns the level of the flag, else of the configuration, else `default`.
fn level(log: &Log, flags: &LogFlags, default: Level) -> Level {
    flags.log_level.or(log.level.map(tracing_level)).unwrap_or(default)
}

/// Returns a filter for `level`. Audit lines have level `info` and pass at any level if `audit` is set.
fn filter(level: Level, audit: bool) -> Targets {
    let audited = if audit { level.max(Level::INFO) } else { level };
    Targets::new().with_default(level).with_target(TARGET, audited)
}

/// Starts the log. `default` is the level if neither a flag nor the configuration names one. It is `warn` for a command
/// that shows a banner or a result on the same terminal, which contains the information of `info`.
pub(crate) fn start(default: Level, log: &Log, flags: &LogFlags) {
    let lines = fmt::layer()
        .with_writer(|| AboveLiveLines)
        .with_target(false)
        // An internal error would be printed on the same stderr that failed, and that print would panic.
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter(level(log, flags, default), log.audit));
    match flags.log_format.unwrap_or(log.format) {
        LogFormat::Json => registry.with(lines.json().with_target(true)).init(),
        LogFormat::Text | LogFormat::Auto => {
            registry.with(lines.fmt_fields(ReadableFields).with_ansi(is_colourful(&std::io::stderr()))).init();
        }
    }
}

/// Writes each log line to stderr as a whole, without tearing the live lines of the terminal.
struct AboveLiveLines;

impl Write for AboveLiveLines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        live_lines::log(line).map(|()| line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Formats the fields of a line for reading: leaves out the event's kind, and adds units.
struct ReadableFields;

impl<'writer> FormatFields<'writer> for ReadableFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> Written {
        let mut visitor = FieldVisitor(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct FieldVisitor<'writer>(DefaultVisitor<'writer>);

impl Visit for FieldVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() != "kind" {
            self.0.record_str(field, value);
        }
    }

    /// Formats a float as a duration. All floats in events are durations in seconds.
    fn record_f64(&mut self, field: &Field, value: f64) {
        let duration = Duration::try_from_secs_f64(value).unwrap_or_default();
        self.0.record_debug(field, &rounded(duration));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.record_debug(field, value);
    }
}

/// Returns a duration with three significant digits.
fn rounded(duration: Duration) -> Duration {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let step = 10_u64.pow(nanos.checked_ilog10().unwrap_or_default().saturating_sub(2));
    Duration::from_nanos(nanos.saturating_add(step / 2) / step * step)
}

#[cfg(test)]
mod tests {
    use goblin_config::LogLevel;

    use super::*;

    #[test]
    fn use15_durations_have_three_digits() {
        for (nanos, expected) in [
            (0, "0ns"),
            (7, "7ns"),
            (340_123, "340µs"),
            (27_950_999, "28ms"),
            (1_547_927_627, "1.55s"),
            (999_999, "1ms"),
        ] {
            assert_eq!(format!("{:?}", rounded(Duration::from_nanos(nanos))), expected);
        }
    }

    #[test]
    fn only_audit_records_are_written_regardless_of_the_log_level() {
        for level in [Level::ERROR, Level::WARN, Level::INFO, Level::TRACE] {
            let filter = filter(level, true);
            assert!(filter.would_enable(TARGET, &Level::INFO), "{level}");
            assert_eq!(filter.would_enable("goblin", &Level::INFO), level >= Level::INFO, "{level}");
        }
    }

    #[test]
    fn the_log_level_is_that_of_the_flag_then_the_file_then_the_default() {
        for (flag, configured, expected) in [
            (None, None, Level::WARN),
            (None, Some(LogLevel::Info), Level::INFO),
            (Some(Level::ERROR), Some(LogLevel::Info), Level::ERROR),
            (Some(Level::INFO), None, Level::INFO),
        ] {
            let log = Log { level: configured, ..Log::default() };
            assert_eq!(level(&log, &LogFlags { log_level: flag, log_format: None }, Level::WARN), expected);
        }
    }
}
