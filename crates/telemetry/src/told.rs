//! Describes each event by a level, a message and fields. The log and the feed are built from this description.
//!
//! Text is cleaned when it becomes a field or a message, so every path to the log is covered. The match on events is
//! exhaustive, so the compiler rejects a new event without a description.

use std::borrow::Cow;
use std::time::Duration;

use goblin_config::LogLevel;

use crate::line::Field;
use crate::{Event, Kind, cleaned};

/// The description of an event.
#[derive(Debug)]
pub(super) struct LogRecord<'a> {
    pub(super) kind: Kind,
    pub(super) level: LogLevel,
    pub(super) message: Cow<'a, str>,
    pub(super) fields: Vec<(Field, LogValue<'a>)>,
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
    fn with(mut self, field: Field, value: impl Into<LogValue<'a>>) -> LogRecord<'a> {
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
                told("ready").at(LogLevel::Info).with(Field::Servers, servers).with(Field::Took, took)
            }
            Event::Ready { took, servers, waiting } => {
                told("ready; some servers have not answered yet and are not waited for")
                    .with(Field::Servers, servers)
                    .with(Field::Took, took)
                    .with(Field::Waiting, waiting)
            }
            Event::BackendReady { server, transport, version, took } => told("backend ready")
                .with(Field::Server, server)
                .with(Field::Transport, transport)
                .with(Field::Version, version)
                .with(Field::Took, took),
            Event::BackendLost { server, reason } => {
                told("backend lost").with(Field::Server, server).with(Field::Reason, reason)
            }
            Event::BackendFailed { server, reason, retry_in, repeated } => {
                let message = match repeated {
                    false => "cannot connect to backend",
                    true => "cannot connect to backend, as before",
                };
                again(told(message), repeated)
                    .with(Field::Server, server)
                    .with(Field::Reason, reason)
                    .with(Field::RetryIn, retry_in)
            }
            Event::ToolLeftOut { server, tool, reason } => {
                told("tool left out").with(Field::Server, server).with(Field::Tool, tool).with(Field::Reason, reason)
            }
            Event::SchemaTooLarge { server, tool, reason } => {
                let told = told("calls of a tool pass unvalidated").with(Field::Server, server);
                told.with(Field::Tool, tool).with(Field::Reason, reason)
            }
            Event::BackendListFailed { server, method, reason } => told("backend did not list")
                .with(Field::Server, server)
                .with(Field::Method, method)
                .with(Field::Reason, reason),
            Event::ListenLost { server, reason } => {
                let message = "backend tells of changes no more; asked again";
                told(message).with(Field::Server, server).with(Field::Reason, reason)
            }
            Event::ListenFailed { server, reason, repeated } => {
                let message = match repeated {
                    false => "backend does not tell of changes; tried again",
                    true => "backend does not tell of changes, as before",
                };
                again(told(message), repeated).with(Field::Server, server).with(Field::Reason, reason)
            }
            Event::OwnLinkOpened { server, session, took } => told("the client has its own connection")
                .with(Field::Server, server)
                .with(Field::Session, session)
                .with(Field::Took, took),
            Event::OwnLinkFailed { server, session, reason, repeated } => {
                let message = match repeated {
                    false => "cannot connect to backend for one client",
                    true => "cannot connect to backend for one client, as before",
                };
                again(told(message), repeated)
                    .with(Field::Server, server)
                    .with(Field::Session, session)
                    .with(Field::Reason, reason)
            }
            Event::OwnLinkLost { server, session, reason } => told("backend of one client lost")
                .with(Field::Server, server)
                .with(Field::Session, session)
                .with(Field::Reason, reason),
            Event::OwnLinkEnded { server, session } => {
                told("the client's own connection ended").with(Field::Server, server).with(Field::Session, session)
            }
            Event::BackendLine { server, line, repeated } => {
                again(say(cleaned(line)), repeated).with(Field::Server, server)
            }
            Event::BackendGarbage { server, reason } => {
                told("backend wrote no message").with(Field::Server, server).with(Field::Reason, reason)
            }
            Event::BackendTooLong { server } => {
                told("backend wrote a message beyond maxMessageSize; dropped").with(Field::Server, server)
            }
            Event::BackendAskRefused { server, method, reason } => told("backend asked what cannot be relayed")
                .with(Field::Server, server)
                .with(Field::Method, method)
                .with(Field::Reason, reason),
            Event::AsideDropped { server } => {
                told("backend takes answers to what it asked too slowly; one was dropped").with(Field::Server, server)
            }
            Event::BackendLog { server, line } => say(cleaned(line)).with(Field::Server, server),
            Event::UpdateHeard { server, uri, count } => {
                told("resource updated").with(Field::Server, server).with(Field::Uri, uri).with(Field::Count, count)
            }
            Event::Subscribed { server, uri, session, state } => told("subscribed")
                .with(Field::Server, server)
                .with(Field::Uri, uri)
                .with(Field::Session, session)
                .with(Field::State, state),
            Event::Unsubscribed { server, session } => {
                told("unsubscribed").with(Field::Server, server).with(Field::Session, session)
            }
            Event::SubscriptionsReleased { server, count } => {
                told("subscriptions ended with their client").with(Field::Server, server).with(Field::Count, count)
            }
            Event::BackendNotification { server, method } => {
                told("notification without a recipient").with(Field::Server, server).with(Field::Method, method)
            }
            Event::BackendError { server, method, error } => told("backend answered an error")
                .with(Field::Server, server)
                .with(Field::Method, method)
                .with(Field::Code, "BACKEND_ERROR")
                .with(Field::Error, error),
            Event::FilesLimited { server, listed } => {
                told("more files than maxFiles; the others are reached by the tools and the template only")
                    .with(Field::Server, server)
                    .with(Field::Listed, listed)
            }
            Event::FilesPolled { server, reason } => {
                told("files cannot be watched; changes are looked for every few seconds")
                    .with(Field::Server, server)
                    .with(Field::Reason, reason)
            }
            Event::AnswerWithoutCall { server } => {
                told("backend answered what nobody waits for; dropped").with(Field::Server, server)
            }
            Event::ProgressDropped { server } => told("progress dropped").with(Field::Server, server),
            Event::LogDropped { server } => told("log line dropped").with(Field::Server, server),
            Event::CatalogPublished { version, tools, prompts, resources, templates, conflicts } => {
                told("catalog published")
                    .with(Field::Version, version)
                    .with(Field::Tools, tools)
                    .with(Field::Prompts, prompts)
                    .with(Field::Resources, resources)
                    .with(Field::Templates, templates)
                    .with(Field::Conflicts, conflicts)
            }
            Event::NameConflict { name } => {
                told("several entries want this name; all got a suffix").with(Field::Name, name)
            }
            Event::SessionOpened { session, version } => {
                told("session opened").with(Field::Session, session).with(Field::Version, version)
            }
            Event::SessionEnded { session, reason } => {
                told("session ended").with(Field::Session, session).with(Field::Reason, reason)
            }
            Event::AnswerWithoutReader { session } => {
                told("the client left before the answer; dropped").with(Field::Session, session)
            }
            Event::AnswerWithoutAsk { session } => {
                told("the client answered what nobody asks, or asks any more; dropped").with(Field::Session, session)
            }
            Event::ReplayGap { session } => {
                told("the client came back to what is not kept any more; told so").with(Field::Session, session)
            }
            Event::MessageDropped { session } => {
                told("no room for progress or a log line, or no stream; dropped").with(Field::Session, session)
            }
            Event::ClientSlow { session } => {
                told("the client does not read its answers; its stream is closed and its session ended")
                    .with(Field::Session, session)
            }
            Event::ClientRefused { status } => told("request refused").with(Field::Status, status),
            Event::InspectorAllowed => told(
                "the MCP Inspector's default origin may call; to change that, name the allowed pages in gateway.allowedOrigins",
            ),
            Event::AdminRefused { status } => told("request to the admin API refused").with(Field::Status, status),
            Event::PeerRejected { reason, repeated } => {
                let message = "a process of another user connected to gateway.socket; the connection was closed";
                again(told(message), repeated).with(Field::Reason, reason)
            }
            Event::ConfigReloaded { started, changed, stopped, unchanged } => told("configuration reloaded")
                .with(Field::Started, started)
                .with(Field::Changed, changed)
                .with(Field::Stopped, stopped)
                .with(Field::Unchanged, unchanged),
            Event::ConfigRejected { reason } => {
                told("configuration not reloaded; everything stays as it was").with(Field::Reason, reason)
            }
            Event::ConfigWarning { warning } => told("in the configuration").with(Field::Reason, warning),
            Event::ServerCommanded { server, command } => {
                told("told by an operator").with(Field::Server, server).with(Field::Command, command)
            }
            Event::SpanDropped => told("too many spans wait to be sent; one was dropped"),
            Event::SpansFailed { reason, repeated } => {
                let message = match repeated {
                    false => "cannot send traces; they are dropped until it works again",
                    true => "cannot send traces, as before",
                };
                again(told(message), repeated).with(Field::Reason, reason)
            }
            Event::WorkerBusy { place, busy } => told("a worker thread is busy with one task; other calls may wait")
                .with(Field::Place, place)
                .with(Field::Took, busy),
            Event::Panic { place } => told("bug: a request panicked").with(Field::Place, place),
            Event::ShuttingDown { open, grace } => told("shutting down; open calls have the grace to end")
                .with(Field::Open, open)
                .with(Field::Grace, grace),
            Event::CallCut { server, method, name, session, age } => told("call cut by the shutdown")
                .with(Field::Server, server)
                .with(Field::Method, method)
                .with(Field::Name, name)
                .with(Field::Session, session)
                .with(Field::Age, age),
            Event::CallsCut { count, unnamed } => {
                told("calls cut by the shutdown").with(Field::Count, count).with(Field::Unnamed, unnamed)
            }
            Event::ConnectionsCut => told("connections cut by the shutdown; their clients did not read"),
            Event::Stopped { took, drained_in, closed_in } => told("stopped")
                .with(Field::Took, took)
                .with(Field::DrainedIn, drained_in)
                .with(Field::ClosedIn, closed_in),
        }
    }
}
