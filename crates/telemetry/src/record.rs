//! Describes each event by a level, a message and fields. The log and the feed are built from this description.
//!
//! Text is cleaned when it becomes a field or a message, so every path to the log is covered. The match on events is
//! exhaustive, so the compiler rejects a new event without a description.

use std::borrow::Cow;
use std::time::Duration;

use goblin_config::LogLevel;

use crate::line::LogField;
use crate::{Event, EventKind, cleaned};

/// The description of an event.
#[derive(Debug)]
pub(super) struct LogRecord<'a> {
    pub(super) kind: EventKind,
    pub(super) level: LogLevel,
    pub(super) message: Cow<'a, str>,
    pub(super) fields: Vec<(LogField, LogValue<'a>)>,
}

#[derive(Debug)]
pub(super) enum LogValue<'a> {
    Text(Cow<'a, str>),
    Number(u64),
    Duration(Duration),
}

impl<'a> From<&'a str> for LogValue<'a> {
    fn from(text: &'a str) -> LogValue<'a> {
        LogValue::Text(cleaned(text))
    }
}

impl From<u64> for LogValue<'_> {
    fn from(number: u64) -> Self {
        LogValue::Number(number)
    }
}

impl From<usize> for LogValue<'_> {
    fn from(number: usize) -> Self {
        LogValue::Number(number as u64)
    }
}

impl From<u16> for LogValue<'_> {
    fn from(number: u16) -> Self {
        LogValue::Number(number.into())
    }
}

impl From<Duration> for LogValue<'_> {
    fn from(duration: Duration) -> Self {
        LogValue::Duration(duration)
    }
}

impl LogValue<'_> {
    pub(super) fn as_field(&self) -> Box<dyn tracing::Value + '_> {
        match self {
            LogValue::Text(text) => Box::new(&**text),
            LogValue::Number(number) => Box::new(number),
            // JSON logs contain seconds. The text log formats the duration for people.
            LogValue::Duration(duration) => Box::new(duration.as_secs_f64()),
        }
    }
}

impl<'a> LogRecord<'a> {
    fn with(mut self, field: LogField, value: impl Into<LogValue<'a>>) -> LogRecord<'a> {
        self.fields.push((field, value.into()));
        self
    }

    /// Lowers the level below the most severe one of its kind.
    fn at(self, level: LogLevel) -> LogRecord<'a> {
        LogRecord { level, ..self }
    }

    pub(super) fn of(event: &Event<'a>) -> LogRecord<'a> {
        let kind = event.kind();
        let say = |message| LogRecord { kind, level: kind.loudest(), message, fields: Vec::new() };
        let told = |message| say(Cow::Borrowed(message));
        // A repeated event is logged at `debug`.
        let again = |told: LogRecord<'a>, repeated| if repeated { told.at(LogLevel::Debug) } else { told };
        match *event {
            Event::Listening { url } => say(Cow::Owned(format!("listening on {url}"))),
            Event::Ready { took, servers, waiting: "" } => {
                told("ready").at(LogLevel::Info).with(LogField::Servers, servers).with(LogField::Took, took)
            }
            Event::Ready { took, servers, waiting } => {
                told("ready; some servers have not answered yet and are not waited for")
                    .with(LogField::Servers, servers)
                    .with(LogField::Took, took)
                    .with(LogField::Waiting, waiting)
            }
            Event::BackendReady { server, transport, version, took } => told("backend ready")
                .with(LogField::Server, server)
                .with(LogField::Transport, transport)
                .with(LogField::Version, version)
                .with(LogField::Took, took),
            Event::BackendLost { server, reason } => {
                told("backend lost").with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::BackendFailed { server, reason, retry_in, repeated } => {
                let message = match repeated {
                    false => "cannot connect to backend",
                    true => "cannot connect to backend, as before",
                };
                again(told(message), repeated)
                    .with(LogField::Server, server)
                    .with(LogField::Reason, reason)
                    .with(LogField::RetryIn, retry_in)
            }
            Event::ToolLeftOut { server, tool, reason } => told("tool left out")
                .with(LogField::Server, server)
                .with(LogField::Tool, tool)
                .with(LogField::Reason, reason),
            Event::SchemaTooLarge { server, tool, reason } => {
                let told = told("calls of a tool pass unvalidated").with(LogField::Server, server);
                told.with(LogField::Tool, tool).with(LogField::Reason, reason)
            }
            Event::BackendListFailed { server, method, reason } => told("backend did not list")
                .with(LogField::Server, server)
                .with(LogField::Method, method)
                .with(LogField::Reason, reason),
            Event::ListenLost { server, reason } => {
                let message = "backend tells of changes no more; asked again";
                told(message).with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::ListenFailed { server, reason, repeated } => {
                let message = match repeated {
                    false => "backend does not tell of changes; tried again",
                    true => "backend does not tell of changes, as before",
                };
                again(told(message), repeated).with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::OwnLinkOpened { server, session, took } => told("the client has its own connection")
                .with(LogField::Server, server)
                .with(LogField::Session, session)
                .with(LogField::Took, took),
            Event::OwnLinkFailed { server, session, reason, repeated } => {
                let message = match repeated {
                    false => "cannot connect to backend for one client",
                    true => "cannot connect to backend for one client, as before",
                };
                again(told(message), repeated)
                    .with(LogField::Server, server)
                    .with(LogField::Session, session)
                    .with(LogField::Reason, reason)
            }
            Event::OwnLinkLost { server, session, reason } => told("backend of one client lost")
                .with(LogField::Server, server)
                .with(LogField::Session, session)
                .with(LogField::Reason, reason),
            Event::OwnLinkEnded { server, session } => told("the client's own connection ended")
                .with(LogField::Server, server)
                .with(LogField::Session, session),
            Event::BackendLine { server, line, repeated } => {
                again(say(cleaned(line)), repeated).with(LogField::Server, server)
            }
            Event::BackendGarbage { server, reason } => {
                told("backend wrote no message").with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::BackendTooLong { server } => {
                told("backend wrote a message beyond maxMessageSize; dropped").with(LogField::Server, server)
            }
            Event::BackendAskRefused { server, method, reason } => told("backend asked what cannot be relayed")
                .with(LogField::Server, server)
                .with(LogField::Method, method)
                .with(LogField::Reason, reason),
            Event::AsideDropped { server } => {
                told("backend takes answers to what it asked too slowly; one was dropped")
                    .with(LogField::Server, server)
            }
            Event::BackendLog { server, line } => say(cleaned(line)).with(LogField::Server, server),
            Event::UpdateHeard { server, uri, count } => told("resource updated")
                .with(LogField::Server, server)
                .with(LogField::Uri, uri)
                .with(LogField::Count, count),
            Event::Subscribed { server, uri, session, state } => told("subscribed")
                .with(LogField::Server, server)
                .with(LogField::Uri, uri)
                .with(LogField::Session, session)
                .with(LogField::State, state),
            Event::Unsubscribed { server, session } => {
                told("unsubscribed").with(LogField::Server, server).with(LogField::Session, session)
            }
            Event::SubscriptionsReleased { server, count } => told("subscriptions ended with their client")
                .with(LogField::Server, server)
                .with(LogField::Count, count),
            Event::BackendNotification { server, method } => {
                told("notification without a recipient").with(LogField::Server, server).with(LogField::Method, method)
            }
            Event::BackendError { server, method, error } => told("backend answered an error")
                .with(LogField::Server, server)
                .with(LogField::Method, method)
                .with(LogField::Code, "BACKEND_ERROR")
                .with(LogField::Error, error),
            Event::FilesLimited { server, listed } => {
                told("more files than maxFiles; the others are reached by the tools and the template only")
                    .with(LogField::Server, server)
                    .with(LogField::Listed, listed)
            }
            Event::FilesPolled { server, reason } => {
                told("files cannot be watched; changes are looked for every few seconds")
                    .with(LogField::Server, server)
                    .with(LogField::Reason, reason)
            }
            Event::AnswerWithoutCall { server } => {
                told("backend answered what nobody waits for; dropped").with(LogField::Server, server)
            }
            Event::ProgressDropped { server } => told("progress dropped").with(LogField::Server, server),
            Event::LogDropped { server } => told("log line dropped").with(LogField::Server, server),
            Event::CatalogPublished { version, tools, prompts, resources, templates, conflicts } => {
                told("catalog published")
                    .with(LogField::Version, version)
                    .with(LogField::Tools, tools)
                    .with(LogField::Prompts, prompts)
                    .with(LogField::Resources, resources)
                    .with(LogField::Templates, templates)
                    .with(LogField::Conflicts, conflicts)
            }
            Event::NameConflict { name } => {
                told("several entries want this name; all got a suffix").with(LogField::Name, name)
            }
            Event::SessionOpened { session, version } => {
                told("session opened").with(LogField::Session, session).with(LogField::Version, version)
            }
            Event::SessionEnded { session, reason } => {
                told("session ended").with(LogField::Session, session).with(LogField::Reason, reason)
            }
            Event::AnswerWithoutReader { session } => {
                told("the client left before the answer; dropped").with(LogField::Session, session)
            }
            Event::AnswerWithoutAsk { session } => {
                told("the client answered what nobody asks, or asks any more; dropped").with(LogField::Session, session)
            }
            Event::ReplayGap { session } => {
                told("the client came back to what is not kept any more; told so").with(LogField::Session, session)
            }
            Event::MessageDropped { session } => {
                told("no room for progress or a log line, or no stream; dropped").with(LogField::Session, session)
            }
            Event::ClientSlow { session } => {
                told("the client does not read its answers; its stream is closed and its session ended")
                    .with(LogField::Session, session)
            }
            Event::ClientRefused { status } => told("request refused").with(LogField::Status, status),
            Event::InspectorAllowed => told(
                "the MCP Inspector's default origin may call; to change that, name the allowed pages in gateway.allowedOrigins",
            ),
            Event::AdminRefused { status } => told("request to the admin API refused").with(LogField::Status, status),
            Event::PeerRejected { reason, repeated } => {
                let message = "a process of another user connected to gateway.socket; the connection was closed";
                again(told(message), repeated).with(LogField::Reason, reason)
            }
            Event::ConfigReloaded { started, changed, stopped, unchanged } => told("configuration reloaded")
                .with(LogField::Started, started)
                .with(LogField::Changed, changed)
                .with(LogField::Stopped, stopped)
                .with(LogField::Unchanged, unchanged),
            Event::ConfigRejected { reason } => {
                told("configuration not reloaded; everything stays as it was").with(LogField::Reason, reason)
            }
            Event::ConfigWarning { warning } => told("in the configuration").with(LogField::Reason, warning),
            Event::ServerCommanded { server, command } => {
                told("told by an operator").with(LogField::Server, server).with(LogField::Command, command)
            }
            Event::SpanDropped => told("too many spans wait to be sent; one was dropped"),
            Event::SpansFailed { reason, repeated } => {
                let message = match repeated {
                    false => "cannot send traces; they are dropped until it works again",
                    true => "cannot send traces, as before",
                };
                again(told(message), repeated).with(LogField::Reason, reason)
            }
            Event::WorkerBusy { place, busy } => told("a worker thread is busy with one task; other calls may wait")
                .with(LogField::Place, place)
                .with(LogField::Took, busy),
            Event::Panic { place } => told("bug: a request panicked").with(LogField::Place, place),
            Event::ShuttingDown { open, grace } => told("shutting down; open calls have the grace to end")
                .with(LogField::Open, open)
                .with(LogField::Grace, grace),
            Event::CallCut { server, method, name, session, age } => told("call cut by the shutdown")
                .with(LogField::Server, server)
                .with(LogField::Method, method)
                .with(LogField::Name, name)
                .with(LogField::Session, session)
                .with(LogField::Age, age),
            Event::CallsCut { count, unnamed } => {
                told("calls cut by the shutdown").with(LogField::Count, count).with(LogField::Unnamed, unnamed)
            }
            Event::ConnectionsCut => told("connections cut by the shutdown; their clients did not read"),
            Event::Stopped { took, drained_in, closed_in } => told("stopped")
                .with(LogField::Took, took)
                .with(LogField::DrainedIn, drained_in)
                .with(LogField::ClosedIn, closed_in),
        }
    }
}
