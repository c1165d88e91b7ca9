//! Writes an event as a log line.
//!
//! `tracing` needs the field names at each call site. There is one call site per level with all field names, and a
//! field without a value does not appear in the line.

use std::sync::OnceLock;

use goblin_config::LogLevel;
use tracing::level_filters::LevelFilter;

use crate::EventKind;
use crate::record::LogRecord;

/// The kinds of events that the log leaves out.
static LEFT_OUT: OnceLock<&[EventKind]> = OnceLock::new();

/// Leaves these kinds out of the log, because the process shows them in another way.
pub fn leave_out(kinds: &'static [EventKind]) {
    // Only the first call of a process counts.
    let _ = LEFT_OUT.set(kinds);
}

pub(super) fn is_left_out(kind: EventKind) -> bool {
    LEFT_OUT.get().is_some_and(|kinds| kinds.contains(&kind))
}

/// Reports whether the log records this level. Costs one atomic load.
pub(super) fn is_wanted(level: LogLevel) -> bool {
    tracing_level(level) <= LevelFilter::current()
}

/// Returns the level under which `tracing` filters an event.
pub fn tracing_level(level: LogLevel) -> tracing::Level {
    match level {
        LogLevel::Error => tracing::Level::ERROR,
        LogLevel::Warn => tracing::Level::WARN,
        LogLevel::Info => tracing::Level::INFO,
        LogLevel::Debug => tracing::Level::DEBUG,
        LogLevel::Trace => tracing::Level::TRACE,
    }
}

macro_rules! fields {
    ($($field:ident $name:ident,)+) => {
        /// The fields of a log line, in their order in the line.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum LogField {
            $($field,)+
        }

        impl LogField {
            pub(super) fn as_str(self) -> &'static str {
                match self {
                    $(LogField::$field => stringify!($name),)+
                }
            }
        }

        pub(super) fn write(record: &LogRecord<'_>) {
            macro_rules! write_at {
                ($level:ident) => {
                    tracing::$level!(
                        target: "goblin", kind = record.kind.as_str(),
                        $($name = record.field(LogField::$field),)+ "{}", record.message
                    )
                };
            }
            match record.level {
                LogLevel::Error => write_at!(error),
                LogLevel::Warn => write_at!(warn),
                LogLevel::Info => write_at!(info),
                LogLevel::Debug => write_at!(debug),
                LogLevel::Trace => write_at!(trace),
            }
        }
    };
}

fields!(
    Server server,
    Transport transport,
    Method method,
    Tool tool,
    Name name,
    Uri uri,
    Session session,
    Version version,
    State state,
    Command command,
    Status status,
    Place place,
    Code code,
    Error error,
    Reason reason,
    RetryIn retry_in,
    Servers servers,
    Tools tools,
    Prompts prompts,
    Resources resources,
    Templates templates,
    Conflicts conflicts,
    Listed listed,
    Count count,
    Unnamed unnamed,
    What what,
    Started started,
    Changed changed,
    Stopped stopped,
    Unchanged unchanged,
    Open open,
    Took took,
    DrainedIn drained_in,
    ClosedIn closed_in,
    Grace grace,
    Age age,
    Waiting waiting,
);

impl LogRecord<'_> {
    fn field(&self, field: LogField) -> Option<Box<dyn tracing::Value + '_>> {
        self.fields.iter().find(|(known, _)| *known == field).map(|(_, value)| value.as_field())
    }
}
