//! Describes each event by a level, a message and fields. The log and the feed are built from this description.
//!
//! Text is cleaned when it becomes a field or a message, so every path to the log is covered. The match on events is
//! exhaustive, so the compiler rejects a new event without a description.

use std::borrow::Cow;
use std::time::Duration;

use goblin_config::{LogLevel, mask};

use crate::line::LogField;
use crate::{Event, EventKind, clean, cleaned};

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

impl From<String> for LogValue<'_> {
    fn from(text: String) -> Self {
        LogValue::Text(clean(&text).into())
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

    /// Lowers the level to `debug` if the same event was logged before.
    fn at_debug_if(self, repeated: bool) -> LogRecord<'a> {
        if repeated { self.at(LogLevel::Debug) } else { self }
    }

    pub(super) fn of(event: &Event<'a>) -> LogRecord<'a> {
        let kind = event.kind();
        let text_record = |message| LogRecord { kind, level: kind.max_level(), message, fields: Vec::new() };
        let record = |message| text_record(Cow::Borrowed(message));
        match *event {
            Event::Listening { url } => text_record(Cow::Owned(format!("listening on {url}"))),
            Event::Ready { took, servers, waiting: "" } => {
                record("ready").at(LogLevel::Info).with(LogField::Servers, servers).with(LogField::Took, took)
            }
            Event::Ready { took, servers, waiting } => {
                record("ready; goblin does not wait for the servers that have not answered yet")
                    .with(LogField::Servers, servers)
                    .with(LogField::Took, took)
                    .with(LogField::Waiting, waiting)
            }
            Event::BackendReady { server, transport, version, took } => record("backend ready")
                .with(LogField::Server, server)
                .with(LogField::Transport, transport)
                .with(LogField::Version, version)
                .with(LogField::Took, took),
            Event::BackendLost { server, reason } => {
                record("backend lost").with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::BackendFailed { server, reason, retry_in, repeated } => {
                let message = match repeated {
                    false => "cannot connect to backend",
                    true => "cannot connect to backend, as before",
                };
                record(message)
                    .at_debug_if(repeated)
                    .with(LogField::Server, server)
                    .with(LogField::Reason, reason)
                    .with(LogField::RetryIn, retry_in)
            }
            Event::ToolOmitted { server, tool, reason } => record("tool omitted from the catalog")
                .with(LogField::Server, server)
                .with(LogField::Tool, tool)
                .with(LogField::Reason, reason),
            Event::SchemaTooLarge { server, tool, reason } => {
                let record = record("the calls of a tool are not validated").with(LogField::Server, server);
                record.with(LogField::Tool, tool).with(LogField::Reason, reason)
            }
            Event::BackendListFailed { server, method, reason } => {
                record("cannot list the entries of the backend; goblin keeps the last list")
                    .with(LogField::Server, server)
                    .with(LogField::Method, method)
                    .with(LogField::Reason, reason)
            }
            Event::ListsOutdated { waited } => {
                let message = "a backend needs long to list its entries; the client got the last lists";
                record(message).with(LogField::Took, waited)
            }
            Event::ListenLost { server, reason } => {
                let message = "the event stream of the backend ended; goblin opens it again";
                record(message).with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::ListenFailed { server, reason, repeated } => {
                let message = match repeated {
                    false => "cannot open the event stream of the backend; goblin tries again",
                    true => "cannot open the event stream of the backend, as before",
                };
                record(message).at_debug_if(repeated).with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::LoginNeeded { server, reason } => {
                record("the server needs a login").with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::LoginDone { server } => record("logged in to the server").with(LogField::Server, server),
            Event::LoggedOut { server } => record("logged out of the server").with(LogField::Server, server),
            Event::TokenRefreshed { server } => {
                record("the token of the server was refreshed").with(LogField::Server, server)
            }
            Event::TokenRefreshFailed { server, reason, ended, repeated } => {
                let message = match (ended, repeated) {
                    (true, _) => "the authorization server ended the login",
                    (false, false) => "cannot refresh the token of the server; goblin tries again",
                    (false, true) => "cannot refresh the token of the server, as before",
                };
                record(message).at_debug_if(repeated).with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::LoginVaultFailed { server, reason } => {
                record("the vault cannot read or store the login at the server")
                    .with(LogField::Server, server)
                    .with(LogField::Reason, reason)
            }
            Event::ClientLinkOpened { server, session, took } => record("connection of one client opened")
                .with(LogField::Server, server)
                .with(LogField::Session, session)
                .with(LogField::Took, took),
            Event::ClientLinkFailed { server, session, reason, repeated } => {
                let message = match repeated {
                    false => "cannot connect to backend for one client",
                    true => "cannot connect to backend for one client, as before",
                };
                record(message)
                    .at_debug_if(repeated)
                    .with(LogField::Server, server)
                    .with(LogField::Session, session)
                    .with(LogField::Reason, reason)
            }
            Event::ClientLinkLost { server, session, reason } => record("connection of one client lost")
                .with(LogField::Server, server)
                .with(LogField::Session, session)
                .with(LogField::Reason, reason),
            Event::ClientLinkEnded { server, session } => {
                record("connection of one client ended").with(LogField::Server, server).with(LogField::Session, session)
            }
            Event::BackendStderr { server, line, repeated } => {
                text_record(cleaned(line)).at_debug_if(repeated).with(LogField::Server, server)
            }
            Event::InvalidOutput { server, reason } => record("backend sent text that is not a message")
                .with(LogField::Server, server)
                .with(LogField::Reason, reason),
            Event::MessageTooLarge { server } => {
                record("backend sent a message above maxMessageSize; the message was dropped")
                    .with(LogField::Server, server)
            }
            Event::ServerRequestRejected { server, method, reason } => {
                record("goblin rejected a request of the backend")
                    .with(LogField::Server, server)
                    .with(LogField::Method, method)
                    .with(LogField::Reason, reason)
            }
            Event::ReplyDropped { server } => {
                record("backend reads too slowly; a reply or notification to it was dropped")
                    .with(LogField::Server, server)
            }
            Event::BackendLog { server, line } => text_record(cleaned(line)).with(LogField::Server, server),
            Event::UpdateReceived { server, uri, count } => record("resource updated")
                .with(LogField::Server, server)
                .with(LogField::Uri, mask::uri(uri))
                .with(LogField::Count, count),
            Event::Subscribed { server, uri, session, state } => record("subscribed")
                .with(LogField::Server, server)
                .with(LogField::Uri, mask::uri(uri))
                .with(LogField::Session, session)
                .with(LogField::State, state),
            Event::Unsubscribed { server, session } => {
                record("unsubscribed").with(LogField::Server, server).with(LogField::Session, session)
            }
            Event::SubscriptionsReleased { server, count } => record("subscriptions ended with their client")
                .with(LogField::Server, server)
                .with(LogField::Count, count),
            Event::BackendNotification { server, method } => {
                record("notification without a recipient").with(LogField::Server, server).with(LogField::Method, method)
            }
            Event::BackendError { server, method, error } => record("backend returned an error")
                .with(LogField::Server, server)
                .with(LogField::Method, method)
                .with(LogField::Code, "BACKEND_ERROR")
                .with(LogField::Error, mask::urls(error)),
            Event::FilesLimited { server, listed } => {
                record("more files than maxFiles; only the tools and the template reach the other files")
                    .with(LogField::Server, server)
                    .with(LogField::Listed, listed)
            }
            Event::FilesPolled { server, reason } => {
                record("files cannot be watched; goblin scans for changes every few seconds")
                    .with(LogField::Server, server)
                    .with(LogField::Reason, reason)
            }
            Event::AnswerWithoutCall { server } => {
                record("backend sent an answer without a waiting call; the answer was dropped")
                    .with(LogField::Server, server)
            }
            Event::ProgressDropped { server } => record("progress dropped").with(LogField::Server, server),
            Event::LogDropped { server } => record("log line dropped").with(LogField::Server, server),
            Event::CatalogPublished { version, tools, prompts, resources, templates, conflicts } => {
                record("catalog published")
                    .with(LogField::Version, version)
                    .with(LogField::Tools, tools)
                    .with(LogField::Prompts, prompts)
                    .with(LogField::Resources, resources)
                    .with(LogField::Templates, templates)
                    .with(LogField::Conflicts, conflicts)
            }
            Event::ListingCacheFailed { server, reason } => record("the cached listing of the server is not used")
                .with(LogField::Server, server)
                .with(LogField::Reason, reason),
            Event::NameConflict { name } => {
                record("several entries have the same name; each got a suffix").with(LogField::Name, name)
            }
            Event::SessionOpened { session, version } => {
                record("session opened").with(LogField::Session, session).with(LogField::Version, version)
            }
            Event::SessionEnded { session, reason } => {
                record("session ended").with(LogField::Session, session).with(LogField::Reason, reason)
            }
            Event::AnswerWithoutReader { session } => {
                record("the client disconnected before its answer; the answer was dropped")
                    .with(LogField::Session, session)
            }
            Event::ReplyWithoutRequest { session } => {
                record("the client sent a reply without an open request; the reply was dropped")
                    .with(LogField::Session, session)
            }
            Event::ReplayGap { session } => {
                record("the client resumed a stream, but some events are no longer kept; goblin notified the client")
                    .with(LogField::Session, session)
            }
            Event::MessageDropped { session } => {
                record("progress or a log line was dropped; the client has no stream, or its queue is full")
                    .with(LogField::Session, session)
            }
            Event::ClientSlow { session } => {
                record("the client does not read its answers; goblin closed its stream and ended its session")
                    .with(LogField::Session, session)
            }
            Event::RequestRejected { status } => record("request rejected").with(LogField::Status, status),
            Event::InspectorAllowed => record(
                "the default origin of the MCP Inspector is allowed; to change that, list the allowed origins in gateway.allowedOrigins",
            ),
            Event::AdminRejected { status } => {
                record("request to the admin API rejected").with(LogField::Status, status)
            }
            Event::PeerRejected { reason, repeated } => {
                let message = "a process of another user connected to gateway.socket; the connection was closed";
                record(message).at_debug_if(repeated).with(LogField::Reason, reason)
            }
            Event::ConfigReloaded { what, started, changed, stopped, unchanged } => record("configuration reloaded")
                .with(LogField::What, what)
                .with(LogField::Started, started)
                .with(LogField::Changed, changed)
                .with(LogField::Stopped, stopped)
                .with(LogField::Unchanged, unchanged),
            Event::ConfigRejected { reason } => {
                record("configuration not reloaded; the previous one stays in effect").with(LogField::Reason, reason)
            }
            Event::ConfigWarning { warning } => {
                record("the configuration has a warning").with(LogField::Reason, warning)
            }
            Event::ServerMisconfigured { server, reason, is_running } => {
                let message = match is_running {
                    false => "the server is misconfigured and does not run; the other servers do",
                    true => "the new entry of the server is misconfigured; the server runs with its previous entry",
                };
                record(message).with(LogField::Server, server).with(LogField::Reason, reason)
            }
            Event::ServerCommand { server, command } => {
                record("an operator sent a command").with(LogField::Server, server).with(LogField::Command, command)
            }
            Event::SpanDropped => record("the queue of spans is full; one span was dropped"),
            Event::SpansFailed { reason, repeated } => {
                let message = match repeated {
                    false => "cannot send traces; goblin drops them until the collector accepts them again",
                    true => "cannot send traces, as before",
                };
                record(message).at_debug_if(repeated).with(LogField::Reason, reason)
            }
            Event::WorkerBusy { place, busy } => record("a worker thread is busy with one task; other calls may wait")
                .with(LogField::Place, place)
                .with(LogField::Took, busy),
            Event::Panic { place } => record("bug: a request panicked").with(LogField::Place, place),
            Event::ShuttingDown { open, grace } => {
                record("shutting down; open calls may finish within the grace period")
                    .with(LogField::Open, open)
                    .with(LogField::Grace, grace)
            }
            Event::CallCut { server, method, name, session, age } => record("call cut by the shutdown")
                .with(LogField::Server, server)
                .with(LogField::Method, method)
                .with(LogField::Name, name)
                .with(LogField::Session, session)
                .with(LogField::Age, age),
            Event::CallsCut { count, unnamed } => {
                record("calls cut by the shutdown").with(LogField::Count, count).with(LogField::Unnamed, unnamed)
            }
            Event::ConnectionsCut => record("connections cut by the shutdown; their clients did not read"),
            Event::Stopped { took, drained_in, closed_in } => record("stopped")
                .with(LogField::Took, took)
                .with(LogField::DrainedIn, drained_in)
                .with(LogField::ClosedIn, closed_in),
        }
    }
}
