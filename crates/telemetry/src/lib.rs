//! Events of the gateway, with counters, log lines and a feed for the admin API.
//!
//! Each event is one variant of [`Event`]. [`Observe::emit`] counts the event, logs it and adds it to the [`feed`].
//!
//! [`record`] describes each event once. The log line ([`line`]) and the record of the feed are built from that
//! description. The description is built only if the log or the feed wants the event. Otherwise an event costs one
//! counter and two level checks. Counters per server are in a [`Meter`](meter::Meter), and [`metrics`] exports all of
//! them.
//!
//! Invariant: text from clients and servers loses control and direction-changing characters first, because a terminal
//! obeys them.

pub mod audit;
pub mod feed;
mod log_ring;
pub mod meter;
pub mod metrics;
pub mod spans;
pub mod worker;

pub mod line;
mod record;
pub mod refreshes;
mod server_logs;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use goblin_config::LogLevel;
use goblin_config::visible::is_hidden;
use goblin_wire::memory::Memory;
use goblin_wire::{Error, Limit, LimitCounts};

use crate::feed::Feed;
use crate::meter::{Durations, FINE_BOUNDS};
use crate::record::LogRecord;
use crate::refreshes::{RefreshCounts, RefreshResult};
use crate::server_logs::is_server_log;

/// Something that an operator may want to know.
#[derive(Debug)]
pub enum Event<'a> {
    Listening {
        url: &'a str,
    },
    Ready {
        took: Duration,
        servers: usize,
        /// The servers that have not settled in time. Empty if all have.
        waiting: &'a str,
    },
    BackendReady {
        server: &'a str,
        transport: &'a str,
        version: &'a str,
        took: Duration,
    },
    BackendLost {
        server: &'a str,
        reason: &'a str,
    },
    BackendFailed {
        server: &'a str,
        reason: &'a str,
        retry_in: Duration,
        /// Whether the same reason was reported before, and nothing has changed since.
        repeated: bool,
    },
    /// A tool cannot be offered as the backend defines it.
    ToolOmitted {
        server: &'a str,
        tool: &'a str,
        reason: &'a str,
    },
    /// The calls of a tool are not validated, because of the size of its input schema.
    SchemaTooLarge {
        server: &'a str,
        tool: &'a str,
        reason: &'a str,
    },
    BackendListFailed {
        server: &'a str,
        method: &'a str,
        reason: &'a str,
    },
    /// A client got the lists that are known, because newer ones did not come in time.
    ListsOutdated {
        waited: Duration,
    },
    /// The stream of change notifications from a backend ended. The gateway opens it again.
    ListenLost {
        server: &'a str,
        reason: &'a str,
    },
    /// The backend did not acknowledge the stream of change notifications.
    ListenFailed {
        server: &'a str,
        reason: &'a str,
        /// Whether the failure was reported before, without a success since.
        repeated: bool,
    },
    /// A server needs a login. Reported once for each change.
    LoginNeeded {
        server: &'a str,
        reason: &'a str,
    },
    LoginDone {
        server: &'a str,
    },
    LoggedOut {
        server: &'a str,
    },
    TokenRefreshed {
        server: &'a str,
    },
    TokenRefreshFailed {
        server: &'a str,
        reason: &'a str,
        /// Whether the authorization server ended the login, so a retry cannot help.
        ended: bool,
        /// Whether the previous attempt failed with the same reason.
        repeated: bool,
    },
    /// The vault cannot read or store a login. A login that is not stored ends with this process.
    LoginVaultFailed {
        server: &'a str,
        reason: &'a str,
    },
    /// A client got its own link to a server.
    ClientLinkOpened {
        server: &'a str,
        session: &'a str,
        took: Duration,
    },
    ClientLinkFailed {
        server: &'a str,
        session: &'a str,
        reason: &'a str,
        /// Whether the previous attempt failed with the same reason.
        repeated: bool,
    },
    ClientLinkLost {
        server: &'a str,
        session: &'a str,
        reason: &'a str,
    },
    /// The link ended with its client or with its server.
    ClientLinkEnded {
        server: &'a str,
        session: &'a str,
    },
    /// A line that the backend wrote to stderr.
    BackendStderr {
        server: &'a str,
        line: &'a str,
        /// Whether the line is from a retry. A retry mostly repeats the lines of the failed start.
        repeated: bool,
    },
    InvalidOutput {
        server: &'a str,
        reason: &'a str,
    },
    MessageTooLarge {
        server: &'a str,
    },
    ServerRequestRejected {
        server: &'a str,
        method: &'a str,
        reason: &'a str,
    },
    /// A response or notification to a backend was dropped, because its queue was full.
    ReplyDropped {
        server: &'a str,
    },
    BackendLog {
        server: &'a str,
        line: &'a str,
    },
    UpdateReceived {
        server: &'a str,
        uri: &'a str,
        /// The number of clients that are subscribed.
        count: usize,
    },
    Subscribed {
        server: &'a str,
        uri: &'a str,
        session: &'a str,
        state: &'a str,
    },
    Unsubscribed {
        server: &'a str,
        session: &'a str,
    },
    SubscriptionsReleased {
        server: &'a str,
        count: usize,
    },
    BackendNotification {
        server: &'a str,
        method: &'a str,
    },
    BackendError {
        server: &'a str,
        method: &'a str,
        error: &'a str,
    },
    FilesLimited {
        server: &'a str,
        listed: usize,
    },
    /// The system cannot watch the files, so the gateway polls them for changes.
    FilesPolled {
        server: &'a str,
        reason: &'a str,
    },
    AnswerWithoutCall {
        server: &'a str,
    },
    ProgressDropped {
        server: &'a str,
    },
    LogDropped {
        server: &'a str,
    },
    CatalogPublished {
        version: u64,
        tools: usize,
        prompts: usize,
        resources: usize,
        templates: usize,
        conflicts: usize,
    },
    /// A cached listing cannot be read or written. The gateway ignores it.
    ListingCacheFailed {
        server: &'a str,
        reason: &'a str,
    },
    NameConflict {
        name: &'a str,
    },
    SessionOpened {
        session: &'a str,
        version: &'a str,
    },
    SessionEnded {
        session: &'a str,
        reason: &'a str,
    },
    AnswerWithoutReader {
        session: &'a str,
    },
    ReplyWithoutRequest {
        session: &'a str,
    },
    /// A client resumed a stream, but some of its messages are no longer stored, or the stream never existed.
    ReplayGap {
        session: &'a str,
    },
    /// Progress or a log message was dropped, because the client's queue was full or it had no stream.
    MessageDropped {
        session: &'a str,
    },
    ClientSlow {
        session: &'a str,
    },
    RequestRejected {
        status: u16,
    },
    /// The first request of a page of the MCP Inspector, which is allowed by default.
    InspectorAllowed,
    AdminRejected {
        status: u16,
    },
    /// A process of another user connected to the Unix socket. The gateway closed the connection.
    PeerRejected {
        reason: &'a str,
        /// Whether an earlier connection was already reported.
        repeated: bool,
    },
    /// The number of servers that were started, restarted, stopped and left unchanged.
    ConfigReloaded {
        /// The changes in words.
        what: &'a str,
        started: usize,
        changed: usize,
        stopped: usize,
        unchanged: usize,
    },
    /// The file has problems. The previous configuration stays in effect.
    ConfigRejected {
        reason: &'a str,
    },
    ConfigWarning {
        warning: &'a str,
    },
    /// A server's entry needs a variable or a file that is missing.
    ServerMisconfigured {
        server: &'a str,
        reason: &'a str,
        /// Whether the server runs with its previous entry.
        is_running: bool,
    },
    /// An operator's command: `restart`, `enable` or `disable`.
    ServerCommand {
        server: &'a str,
        command: &'a str,
    },
    /// A span was dropped, because the queue of spans to send was full.
    SpanDropped,
    /// A collector did not accept spans. They are lost.
    SpansFailed {
        reason: &'a str,
        /// Whether the previous attempt failed too.
        repeated: bool,
    },
    Panic {
        place: &'a str,
    },
    /// A worker thread has polled one task for too long. Every task behind it waits.
    WorkerBusy {
        /// The source location that spawned the task.
        place: &'a str,
        busy: Duration,
    },
    ShuttingDown {
        open: usize,
        grace: Duration,
    },
    CallCut {
        server: &'a str,
        method: &'a str,
        name: &'a str,
        session: &'a str,
        age: Duration,
    },
    CallsCut {
        count: usize,
        /// The number of cut calls without their own `CallCut` event.
        unnamed: usize,
    },
    ConnectionsCut,
    Stopped {
        took: Duration,
        drained_in: Duration,
        closed_in: Duration,
    },
}

macro_rules! kinds {
    ($($kind:ident $name:literal $max_level:ident,)+) => {
        /// An event without its fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum EventKind {
            $($kind,)+
        }

        impl EventKind {
            const ALL: &[EventKind] = &[$(EventKind::$kind,)+];

            /// Returns the name used in metrics, the feed and the JSON log.
            fn as_str(self) -> &'static str {
                match self {
                    $(EventKind::$kind => $name,)+
                }
            }

            /// Returns the most severe level of this kind. Single events may use a less severe one.
            fn max_level(self) -> LogLevel {
                match self {
                    $(EventKind::$kind => LogLevel::$max_level,)+
                }
            }
        }

        impl Event<'_> {
            fn kind(&self) -> EventKind {
                match self {
                    $(Event::$kind { .. } => EventKind::$kind,)+
                }
            }
        }
    };
}

kinds!(
    Listening "listening" Info,
    Ready "ready" Warn,
    BackendReady "backend_ready" Info,
    BackendLost "backend_lost" Warn,
    BackendFailed "backend_failed" Warn,
    ToolOmitted "tool_omitted" Warn,
    SchemaTooLarge "schema_too_large" Warn,
    BackendListFailed "backend_list_failed" Warn,
    ListsOutdated "lists_outdated" Debug,
    ListenLost "listen_lost" Debug,
    ListenFailed "listen_failed" Warn,
    LoginNeeded "login_needed" Warn,
    LoginDone "login_done" Info,
    LoggedOut "logged_out" Info,
    TokenRefreshed "token_refreshed" Debug,
    TokenRefreshFailed "token_refresh_failed" Warn,
    LoginVaultFailed "login_vault_failed" Warn,
    ClientLinkOpened "client_link_opened" Debug,
    ClientLinkFailed "client_link_failed" Warn,
    ClientLinkLost "client_link_lost" Warn,
    ClientLinkEnded "client_link_ended" Debug,
    BackendStderr "backend_stderr" Info,
    InvalidOutput "invalid_output" Debug,
    MessageTooLarge "message_too_large" Warn,
    ServerRequestRejected "server_request_rejected" Debug,
    ReplyDropped "reply_dropped" Warn,
    BackendLog "backend_log" Debug,
    UpdateReceived "update_received" Debug,
    Subscribed "subscribed" Debug,
    Unsubscribed "unsubscribed" Debug,
    SubscriptionsReleased "subscriptions_released" Debug,
    BackendNotification "backend_notification" Trace,
    BackendError "backend_error" Debug,
    FilesLimited "files_limited" Warn,
    FilesPolled "files_polled" Warn,
    AnswerWithoutCall "answer_without_call" Debug,
    ProgressDropped "progress_dropped" Debug,
    LogDropped "log_dropped" Debug,
    CatalogPublished "catalog_published" Info,
    ListingCacheFailed "listing_cache_failed" Debug,
    NameConflict "name_conflict" Warn,
    SessionOpened "session_opened" Debug,
    SessionEnded "session_ended" Debug,
    AnswerWithoutReader "answer_without_reader" Debug,
    ReplyWithoutRequest "reply_without_request" Debug,
    ReplayGap "replay_gap" Debug,
    MessageDropped "message_dropped" Debug,
    ClientSlow "client_slow" Warn,
    RequestRejected "request_rejected" Debug,
    InspectorAllowed "inspector_allowed" Info,
    AdminRejected "admin_rejected" Warn,
    PeerRejected "peer_rejected" Warn,
    ConfigReloaded "config_reloaded" Info,
    ConfigRejected "config_rejected" Error,
    ConfigWarning "config_warning" Warn,
    ServerMisconfigured "server_misconfigured" Warn,
    ServerCommand "server_command" Info,
    SpanDropped "span_dropped" Debug,
    SpansFailed "spans_failed" Warn,
    Panic "panic" Error,
    WorkerBusy "worker_busy" Warn,
    ShuttingDown "shutting_down" Info,
    CallCut "call_cut" Warn,
    CallsCut "calls_cut" Warn,
    ConnectionsCut "connections_cut" Warn,
    Stopped "stopped" Info,
);

/// Counts, logs and feeds events. Each gateway has one, shared by all of its parts.
#[derive(Debug)]
pub struct Observe {
    counts: [AtomicU64; EventKind::ALL.len()],
    limits: LimitCounts,
    refreshes: RefreshCounts,
    /// The account of the buffers that the gateway holds.
    pub memory: Arc<Memory>,
    feed: Arc<Feed>,
    /// The time that the gateway itself adds to calls.
    pub overhead: Durations,
}

impl Default for Observe {
    fn default() -> Observe {
        let memory = Arc::<Memory>::default();
        Observe {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            limits: LimitCounts::default(),
            refreshes: RefreshCounts::default(),
            feed: Arc::new(Feed::new(&memory)),
            memory,
            overhead: Durations::with_bounds(&FINE_BOUNDS),
        }
    }
}

impl Observe {
    /// Counts an event, and passes it to the log and the feed if they want its level.
    pub fn emit(&self, event: &Event<'_>) {
        let kind = event.kind();
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        if let Some((server, result)) = RefreshResult::of(event) {
            self.refreshes.add(server, result);
        }
        let max_level = kind.max_level();
        if line::is_wanted(max_level) || self.feed.wants(max_level) || is_server_log(kind) {
            self.publish(&LogRecord::of(event));
        }
    }

    #[cold]
    fn publish(&self, record: &LogRecord<'_>) {
        if line::is_wanted(record.level) && !line::is_left_out(record.kind) {
            line::write(record);
        }
        self.feed.push(record);
    }

    /// Counts that a limit was reached.
    pub fn limit_hit(&self, limit: Limit) {
        self.limits.count(limit);
    }

    /// Counts the limit that an error names. Ignores other errors.
    pub fn count_limit(&self, error: &Error) {
        let (Error::LimitExceeded { limit, .. } | Error::NoRoom { limit, .. }) = error else { return };
        if let Some(limit) = Limit::ALL.iter().find(|known| known.as_str() == *limit) {
            self.limit_hit(*limit);
        }
    }

    /// Returns how often each limit was reached.
    pub fn limit_counts(&self) -> Vec<(&'static str, u64)> {
        self.limits.read()
    }

    /// Returns how often the tokens of a server were refreshed, by result.
    pub fn refresh_counts(&self, server: &str) -> [u64; RefreshResult::ALL.len()] {
        self.refreshes.read(server)
    }

    /// Returns the feed of recent and future events.
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Returns the count of every kind, including kinds that never occurred.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        EventKind::ALL.iter().map(|kind| kind.as_str()).zip(counts).collect()
    }
}

/// Returns every kind of event with its most severe level.
pub fn kinds() -> impl Iterator<Item = (&'static str, LogLevel)> {
    EventKind::ALL.iter().map(|kind| (kind.as_str(), kind.max_level()))
}

/// Returns `text` on one line without invisible or control characters, cut to a maximum length.
pub fn clean(text: &str) -> String {
    cleaned(text).into_owned()
}

/// Cleans text like [`clean`]. Borrows text that is already clean.
fn cleaned(text: &str) -> Cow<'_, str> {
    const MAX_TEXT: usize = 2000;
    let is_harmless = |character: char| !is_hidden(character);
    if text.len() <= MAX_TEXT && text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let spaced = text.chars().map(|character| if matches!(character, '\n' | '\t') { ' ' } else { character });
    let mut clean: String = spaced.filter(|character| is_harmless(*character)).take(MAX_TEXT).collect();
    if text.len() > clean.len() && clean.chars().count() == MAX_TEXT {
        clean.push('…');
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_removed_and_long_text_is_cut() {
        assert_eq!(clean("a\u{1b}[31mred\nnext\u{202e}x\u{e0041}"), "a[31mred nextx");
        assert_eq!(clean(&"é".repeat(2001)), "é".repeat(2000) + "…");
        assert_eq!(clean(&"é".repeat(2000)), "é".repeat(2000));
    }

    #[test]
    fn events_are_counted_by_kind() {
        let observe = Observe::default();
        observe.emit(&Event::ConnectionsCut);
        observe.emit(&Event::AnswerWithoutCall { server: "a" });
        observe.emit(&Event::AnswerWithoutCall { server: "b" });
        let counted: Vec<_> = observe.counts().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("answer_without_call", 2), ("connections_cut", 1)]);
    }

    #[test]
    fn the_name_of_an_event_kind_matches_its_variant() {
        for kind in EventKind::ALL {
            assert_eq!(kind.as_str().replace('_', ""), format!("{kind:?}").to_lowercase());
        }
    }
}
