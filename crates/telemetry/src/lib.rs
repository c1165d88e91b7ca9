//! What happens, told once: each happening is one variant, emitted in one place, which counts it, logs it and keeps it for
//! whoever looks on.
//!
//! What is told of each is one description ([`told`]), from which the line of the log is made ([`line`]) and the record
//! of the [`feed`]. It is built only where the log or the feed wants it: otherwise a happening costs a count and a look at
//! two levels. What is counted per server is in its [`Meter`](meter::Meter); how all of it is told is in [`metrics`].
//!
//! Text that others wrote is stripped of control and direction-changing characters before it reaches either of them: a
//! terminal obeys them.

pub mod audit;
pub mod feed;
pub mod meter;
pub mod metrics;
pub mod spans;
pub mod worker;

pub mod line;
mod told;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use goblin_config::LogLevel;
use goblin_config::visible::is_hidden;
use goblin_wire::memory::Memory;
use crate::feed::Feed;
use goblin_wire::limits::{Limit, LimitCounts};
use crate::meter::{Durations, FINE_BOUNDS};
use crate::told::Told;
use goblin_wire::error::Error;

/// Something worth telling an operator.
#[derive(Debug)]
pub enum Event<'a> {
    Listening {
        url: &'a str,
    },
    Ready {
        took: Duration,
        servers: usize,
        /// Those that were not waited for.
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
        /// It was told before, and nothing has changed since.
        repeated: bool,
    },
    /// A tool cannot be offered as the backend defines it.
    ToolLeftOut {
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
    /// A stream on which the backend tells of changes ended; it is opened anew.
    ListenLost {
        server: &'a str,
        reason: &'a str,
    },
    /// It was not acknowledged.
    ListenFailed {
        server: &'a str,
        reason: &'a str,
        /// It was told before, and there was none since.
        repeated: bool,
    },
    /// A client has its own link to a server.
    OwnLinkOpened {
        server: &'a str,
        session: &'a str,
        took: Duration,
    },
    OwnLinkFailed {
        server: &'a str,
        session: &'a str,
        reason: &'a str,
        /// As the try before.
        repeated: bool,
    },
    OwnLinkLost {
        server: &'a str,
        session: &'a str,
        reason: &'a str,
    },
    /// With its client, or with its server.
    OwnLinkEnded {
        server: &'a str,
        session: &'a str,
    },
    /// On stderr.
    BackendLine {
        server: &'a str,
        line: &'a str,
        /// Of a start after a failed one, which says the same again more often than not.
        repeated: bool,
    },
    BackendGarbage {
        server: &'a str,
        reason: &'a str,
    },
    BackendTooLong {
        server: &'a str,
    },
    BackendAskRefused {
        server: &'a str,
        method: &'a str,
        reason: &'a str,
    },
    /// An answer or notification to a backend that had no room on its way.
    AsideDropped {
        server: &'a str,
    },
    BackendLog {
        server: &'a str,
        line: &'a str,
    },
    UpdateHeard {
        server: &'a str,
        uri: &'a str,
        /// How many clients want to know.
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
    /// The system does not tell of changes; they are looked for.
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
    AnswerWithoutAsk {
        session: &'a str,
    },
    /// A client came back to a stream of which something is not kept any more, or to one that never was.
    ReplayGap {
        session: &'a str,
    },
    /// Progress or a log line that had no room on the way to its client, or no way.
    MessageDropped {
        session: &'a str,
    },
    ClientSlow {
        session: &'a str,
    },
    ClientRefused {
        status: u16,
    },
    /// The first request of a page of the MCP Inspector, which needs no configuration.
    InspectorAllowed,
    AdminRefused {
        status: u16,
    },
    /// A process of another user connected to the Unix socket. The gateway closed the connection.
    PeerRejected {
        reason: &'a str,
        /// It is not the first.
        repeated: bool,
    },
    /// How many servers were started, begun anew, stopped and left as they were.
    ConfigReloaded {
        started: usize,
        changed: usize,
        stopped: usize,
        unchanged: usize,
    },
    /// The file has problems; everything stays as it was.
    ConfigRejected {
        reason: &'a str,
    },
    ConfigWarning {
        warning: &'a str,
    },
    /// By an operator: `restart`, `enable` or `disable`.
    ServerCommanded {
        server: &'a str,
        command: &'a str,
    },
    /// A call that no trace has, since too many wait to be sent.
    SpanDropped,
    /// A collector of traces did not take what was sent; it is lost.
    SpansFailed {
        reason: &'a str,
        /// So was what was sent before.
        repeated: bool,
    },
    Panic {
        place: &'a str,
    },
    /// A worker thread has polled one task for too long; every task behind it waits.
    WorkerBusy {
        /// The place that spawned the task.
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
        /// How many of them were not named.
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
    ($($kind:ident $name:literal $loudest:ident,)+) => {
        /// An event without its particulars.
        #[derive(Clone, Copy, Debug)]
        enum Kind {
            $($kind,)+
        }

        impl Kind {
            const ALL: &[Kind] = &[$(Kind::$kind,)+];

            /// As metrics, the feed and the log in JSON call it.
            fn as_str(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)+
                }
            }

            /// The gravest level of this kind; some of its happenings may be told at a lesser one.
            fn loudest(self) -> LogLevel {
                match self {
                    $(Kind::$kind => LogLevel::$loudest,)+
                }
            }
        }

        impl Event<'_> {
            fn kind(&self) -> Kind {
                match self {
                    $(Event::$kind { .. } => Kind::$kind,)+
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
    ToolLeftOut "tool_left_out" Warn,
    SchemaTooLarge "schema_too_large" Warn,
    BackendListFailed "backend_list_failed" Warn,
    ListenLost "listen_lost" Debug,
    ListenFailed "listen_failed" Warn,
    OwnLinkOpened "own_link_opened" Debug,
    OwnLinkFailed "own_link_failed" Warn,
    OwnLinkLost "own_link_lost" Warn,
    OwnLinkEnded "own_link_ended" Debug,
    BackendLine "backend_line" Info,
    BackendGarbage "backend_garbage" Debug,
    BackendTooLong "backend_too_long" Warn,
    BackendAskRefused "backend_ask_refused" Debug,
    AsideDropped "aside_dropped" Warn,
    BackendLog "backend_log" Debug,
    UpdateHeard "update_heard" Debug,
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
    NameConflict "name_conflict" Warn,
    SessionOpened "session_opened" Debug,
    SessionEnded "session_ended" Debug,
    AnswerWithoutReader "answer_without_reader" Debug,
    AnswerWithoutAsk "answer_without_ask" Debug,
    ReplayGap "replay_gap" Debug,
    MessageDropped "message_dropped" Debug,
    ClientSlow "client_slow" Warn,
    ClientRefused "client_refused" Debug,
    InspectorAllowed "inspector_allowed" Info,
    AdminRefused "admin_refused" Warn,
    PeerRejected "peer_rejected" Warn,
    ConfigReloaded "config_reloaded" Info,
    ConfigRejected "config_rejected" Error,
    ConfigWarning "config_warning" Warn,
    ServerCommanded "server_commanded" Info,
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

/// Counts, logs and feeds. One per gateway, handed to every part.
#[derive(Debug)]
pub struct Observe {
    counts: [AtomicU64; Kind::ALL.len()],
    limits: LimitCounts,
    /// The buffers that the gateway holds.
    pub memory: Arc<Memory>,
    feed: Arc<Feed>,
    /// What the gateway itself adds to calls.
    pub overhead: Durations,
}

impl Default for Observe {
    fn default() -> Observe {
        Observe {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            limits: LimitCounts::default(),
            memory: Arc::default(),
            feed: Arc::default(),
            overhead: Durations::within(&FINE_BOUNDS),
        }
    }
}

impl Observe {
    pub fn emit(&self, event: &Event<'_>) {
        let kind = event.kind();
        self.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        let loudest = kind.loudest();
        if line::is_wanted(loudest) || self.feed.wants(loudest) {
            self.tell(&Told::of(event));
        }
    }

    #[cold]
    fn tell(&self, told: &Told<'_>) {
        if line::is_wanted(told.level) {
            line::write(told);
        }
        if self.feed.wants(told.level) {
            self.feed.push(told);
        }
    }

    /// Counts that a limit was reached.
    pub fn limit_hit(&self, limit: Limit) {
        self.limits.count(limit);
    }

    /// Counts the limit that an error names, if that is one.
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

    /// The last happenings, and those to come.
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// How often each kind of happening was emitted, those that never were included.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Kind::ALL.iter().map(|kind| kind.as_str()).zip(counts).collect()
    }
}

/// The kinds of happenings by name, and the gravest level at which each is told.
pub fn kinds() -> impl Iterator<Item = (&'static str, LogLevel)> {
    Kind::ALL.iter().map(|kind| (kind.as_str(), kind.loudest()))
}

/// `text` on one line, without characters that a terminal or a reader's eye would obey, cut at a sane length.
pub fn clean(text: &str) -> String {
    cleaned(text).into_owned()
}

/// Likewise; text that is clean stays where it is.
fn cleaned(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 2000;
    let is_harmless = |character: char| !is_hidden(character);
    if text.len() <= LONGEST && text.chars().all(is_harmless) {
        return Cow::Borrowed(text);
    }
    let spaced = text.chars().map(|character| if matches!(character, '\n' | '\t') { ' ' } else { character });
    let mut clean: String = spaced.filter(|character| is_harmless(*character)).take(LONGEST).collect();
    if text.len() > clean.len() && clean.chars().count() == LONGEST {
        clean.push('…');
    }
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_defused() {
        assert_eq!(clean("a\u{1b}[31mred\nnext\u{202e}x\u{e0041}"), "a[31mred nextx");
        assert_eq!(clean(&"é".repeat(2001)), "é".repeat(2000) + "…");
        assert_eq!(clean(&"é".repeat(2000)), "é".repeat(2000));
    }

    #[test]
    fn happenings_are_counted_by_kind() {
        let observe = Observe::default();
        observe.emit(&Event::ConnectionsCut);
        observe.emit(&Event::AnswerWithoutCall { server: "a" });
        observe.emit(&Event::AnswerWithoutCall { server: "b" });
        let counted: Vec<_> = observe.counts().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("answer_without_call", 2), ("connections_cut", 1)]);
    }

    #[test]
    fn kinds_are_called_as_their_variants() {
        for kind in Kind::ALL {
            assert_eq!(kind.as_str().replace('_', ""), format!("{kind:?}").to_lowercase());
        }
    }
}
