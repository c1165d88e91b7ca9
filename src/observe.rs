//! What happens, told once: each happening is one variant, emitted in one place, which logs and counts it.
//!
//! What is counted per server is in its [`Meter`](meter::Meter); how all of it is told is in [`metrics`].
//!
//! Text that a backend wrote is stripped of control and direction-changing characters before it reaches a log: a
//! terminal obeys them.

pub mod meter;
pub mod metrics;
pub mod mime;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tracing::{debug, error, info, trace, warn};

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
    Panic {
        place: &'a str,
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
    ($($kind:ident),+ $(,)?) => {
        #[derive(Clone, Copy)]
        enum Kind {
            $($kind,)+
        }

        const KINDS: &[&str] = &[$(stringify!($kind),)+];

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
    Listening,
    Ready,
    BackendReady,
    BackendLost,
    BackendFailed,
    ToolLeftOut,
    BackendListFailed,
    ListenLost,
    ListenFailed,
    OwnLinkOpened,
    OwnLinkFailed,
    OwnLinkLost,
    OwnLinkEnded,
    BackendLine,
    BackendGarbage,
    BackendTooLong,
    BackendAskRefused,
    AsideDropped,
    BackendLog,
    UpdateHeard,
    Subscribed,
    Unsubscribed,
    SubscriptionsReleased,
    BackendNotification,
    BackendError,
    FilesLimited,
    FilesPolled,
    AnswerWithoutCall,
    ProgressDropped,
    LogDropped,
    CatalogPublished,
    NameConflict,
    SessionOpened,
    SessionEnded,
    AnswerWithoutReader,
    AnswerWithoutAsk,
    ReplayGap,
    MessageDropped,
    ClientSlow,
    ClientRefused,
    Panic,
    ShuttingDown,
    CallCut,
    CallsCut,
    ConnectionsCut,
    Stopped,
);

/// Counts and logs. One per gateway, handed to every part.
#[derive(Debug)]
pub struct Observe {
    counts: [AtomicU64; KINDS.len()],
}

impl Default for Observe {
    fn default() -> Observe {
        Observe { counts: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Observe {
    pub fn emit(&self, event: &Event<'_>) {
        self.counts[event.kind() as usize].fetch_add(1, Ordering::Relaxed);
        log(event);
    }

    /// How often each kind of happening was emitted, those that never were included.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        KINDS.iter().copied().zip(counts).collect()
    }
}

fn log(event: &Event<'_>) {
    match *event {
        Event::Listening { url } => info!("listening on {url}"),
        Event::Ready { took, servers, waiting } => {
            if waiting.is_empty() {
                info!(servers, ?took, "ready");
            } else {
                warn!(servers, ?took, waiting, "ready; some servers have not answered yet and are not waited for");
            }
        }
        Event::BackendReady { server, transport, version, took } => {
            info!(server, transport, version, ?took, "backend ready");
        }
        Event::BackendLost { server, reason } => warn!(server, reason = clean(reason), "backend lost"),
        Event::BackendFailed { server, reason, retry_in, repeated: false } => {
            warn!(server, reason = clean(reason), ?retry_in, "cannot connect to backend");
        }
        Event::BackendFailed { server, reason, retry_in, repeated: true } => {
            debug!(server, reason = clean(reason), ?retry_in, "cannot connect to backend, as before");
        }
        Event::ToolLeftOut { server, tool, reason } => {
            warn!(server, tool = clean(tool), reason = clean(reason), "tool left out");
        }
        Event::BackendListFailed { server, method, reason } => {
            warn!(server, method, reason = clean(reason), "backend did not list");
        }
        Event::ListenLost { server, reason } => {
            debug!(server, reason = clean(reason), "backend tells of changes no more; asked again");
        }
        Event::ListenFailed { server, reason, repeated: false } => {
            warn!(server, reason = clean(reason), "backend does not tell of changes; tried again");
        }
        Event::ListenFailed { server, reason, repeated: true } => {
            debug!(server, reason = clean(reason), "backend does not tell of changes, as before");
        }
        Event::OwnLinkOpened { server, session, took } => {
            debug!(server, session, ?took, "the client has its own connection");
        }
        Event::OwnLinkFailed { server, session, reason, repeated: false } => {
            warn!(server, session, reason = clean(reason), "cannot connect to backend for one client");
        }
        Event::OwnLinkFailed { server, session, reason, repeated: true } => {
            debug!(server, session, reason = clean(reason), "cannot connect to backend for one client, as before");
        }
        Event::OwnLinkLost { server, session, reason } => {
            warn!(server, session, reason = clean(reason), "backend of one client lost");
        }
        Event::OwnLinkEnded { server, session } => debug!(server, session, "the client's own connection ended"),
        Event::BackendLine { server, line, repeated: false } => info!(server, "{}", clean(line)),
        Event::BackendLine { server, line, repeated: true } => debug!(server, "{}", clean(line)),
        Event::BackendGarbage { server, reason } => debug!(server, reason = clean(reason), "backend wrote no message"),
        Event::BackendTooLong { server } => warn!(server, "backend wrote a message beyond maxMessageSize; dropped"),
        Event::BackendAskRefused { server, method, reason } => {
            debug!(server, method = clean(method), reason = clean(reason), "backend asked what cannot be relayed");
        }
        Event::AsideDropped { server } => {
            warn!(server, "backend takes answers to what it asked too slowly; one was dropped");
        }
        Event::BackendLog { server, line } => debug!(server, "{}", clean(line)),
        Event::UpdateHeard { server, uri, count } => debug!(server, uri = clean(uri), count, "resource updated"),
        Event::Subscribed { server, uri, session, state } => {
            debug!(server, uri = clean(uri), session, state, "subscribed");
        }
        Event::Unsubscribed { server, session } => debug!(server, session, "unsubscribed"),
        Event::SubscriptionsReleased { server, count } => {
            debug!(server, count, "subscriptions ended with their client");
        }
        Event::BackendNotification { server, method } => {
            trace!(server, method = clean(method), "notification without a recipient");
        }
        Event::BackendError { server, method, error } => {
            debug!(server, method, code = "BACKEND_ERROR", error = clean(error), "backend answered an error");
        }
        Event::FilesLimited { server, listed } => {
            warn!(
                server,
                listed, "more files than maxFiles; the others are reached by the tools and the template only"
            );
        }
        Event::FilesPolled { server, reason } => {
            warn!(server, reason = clean(reason), "files cannot be watched; changes are looked for every few seconds");
        }
        Event::AnswerWithoutCall { server } => debug!(server, "backend answered what nobody waits for; dropped"),
        Event::ProgressDropped { server } => debug!(server, "progress dropped"),
        Event::LogDropped { server } => debug!(server, "log line dropped"),
        Event::CatalogPublished { version, tools, prompts, resources, templates, conflicts } => {
            info!(version, tools, prompts, resources, templates, conflicts, "catalog published");
        }
        Event::NameConflict { name } => warn!(name = clean(name), "several entries want this name; all got a suffix"),
        Event::SessionOpened { session, version } => debug!(session, version, "session opened"),
        Event::SessionEnded { session, reason } => debug!(session, reason, "session ended"),
        Event::AnswerWithoutReader { session } => debug!(session, "the client left before the answer; dropped"),
        Event::AnswerWithoutAsk { session } => {
            debug!(session, "the client answered what nobody asks, or asks any more; dropped");
        }
        Event::ReplayGap { session } => debug!(session, "the client came back to what is not kept any more; told so"),
        Event::MessageDropped { session } => {
            debug!(session, "no room for progress or a log line, or no stream; dropped")
        }
        Event::ClientSlow { session } => {
            warn!(session, "the client does not read its answers; its stream is closed and its session ended");
        }
        Event::ClientRefused { status } => debug!(status, "request refused"),
        Event::Panic { place } => error!(place, "bug: a request panicked"),
        Event::ShuttingDown { open, grace } => info!(open, ?grace, "shutting down; open calls have the grace to end"),
        Event::CallCut { server, method, name, session, age } => {
            warn!(server, method, name = clean(name), session, ?age, "call cut by the shutdown");
        }
        Event::CallsCut { count, unnamed } => warn!(count, unnamed, "calls cut by the shutdown"),
        Event::ConnectionsCut => warn!("connections cut by the shutdown; their clients did not read"),
        Event::Stopped { took, drained_in, closed_in } => info!(?took, ?drained_in, ?closed_in, "stopped"),
    }
}

/// `text` on one line, without characters that a terminal or a reader's eye would obey, cut at a sane length.
pub fn clean(text: &str) -> String {
    const LONGEST: usize = 2000;
    let harmless = |character: &char| {
        let directions =
            matches!(*character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        let tags = matches!(*character, '\u{e0000}'..='\u{e007f}');
        !character.is_control() && !directions && !tags
    };
    let spaced = text.chars().map(|character| if matches!(character, '\n' | '\t') { ' ' } else { character });
    let mut clean: String = spaced.filter(harmless).take(LONGEST).collect();
    if text.len() > clean.len() && clean.chars().count() == LONGEST {
        clean.push('…');
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_defused() {
        assert_eq!(clean("a\u{1b}[31mred\nnext\u{202e}x\u{e0041}"), "a[31mred nextx");
    }

    #[test]
    fn happenings_are_counted_by_kind() {
        let observe = Observe::default();
        observe.emit(&Event::ConnectionsCut);
        observe.emit(&Event::AnswerWithoutCall { server: "a" });
        observe.emit(&Event::AnswerWithoutCall { server: "b" });
        let counted: Vec<_> = observe.counts().into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("AnswerWithoutCall", 2), ("ConnectionsCut", 1)]);
    }
}
