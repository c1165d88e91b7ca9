//! What happens, told once: each happening is one variant, emitted in one place, which logs and counts it.
//!
//! Text that a backend wrote is stripped of control and direction-changing characters before it reaches a log: a
//! terminal obeys them.

use std::sync::Mutex;
use std::time::Duration;

use tracing::{debug, error, info, trace, warn};

/// Something worth telling an operator.
#[derive(Debug)]
pub enum Event<'a> {
    Listening {
        url: &'a str,
    },
    BackendReady {
        server: &'a str,
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
    },
    BackendListFailed {
        server: &'a str,
        method: &'a str,
        reason: &'a str,
    },
    BackendLine {
        server: &'a str,
        line: &'a str,
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
    },
    BackendLog {
        server: &'a str,
        line: &'a str,
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
    ClientRefused {
        status: u16,
    },
    CallsCut {
        count: usize,
    },
    Panic {
        place: &'a str,
    },
    ShuttingDown,
}

macro_rules! kinds {
    ($($kind:ident),+ $(,)?) => {
        impl Event<'_> {
            /// The happening's name, as counters know it.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Event::$kind { .. } => stringify!($kind),)+
                }
            }
        }
    };
}

kinds!(
    Listening,
    BackendReady,
    BackendLost,
    BackendFailed,
    BackendListFailed,
    BackendLine,
    BackendGarbage,
    BackendTooLong,
    BackendAskRefused,
    BackendLog,
    BackendNotification,
    BackendError,
    FilesLimited,
    AnswerWithoutCall,
    ProgressDropped,
    LogDropped,
    CatalogPublished,
    NameConflict,
    SessionOpened,
    SessionEnded,
    AnswerWithoutReader,
    ClientRefused,
    CallsCut,
    Panic,
    ShuttingDown,
);

/// Counts and logs. One per gateway, handed to every part.
#[derive(Debug, Default)]
pub struct Observe {
    counts: Mutex<std::collections::BTreeMap<&'static str, u64>>,
}

impl Observe {
    pub fn emit(&self, event: &Event<'_>) {
        *self.lock().entry(event.kind()).or_default() += 1;
        log(event);
    }

    /// How often each kind of happening was emitted.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.lock().iter().map(|(kind, count)| (*kind, *count)).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, std::collections::BTreeMap<&'static str, u64>> {
        self.counts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn log(event: &Event<'_>) {
    match *event {
        Event::Listening { url } => info!("listening on {url}"),
        Event::BackendReady { server, version, took } => info!(server, version, ?took, "backend ready"),
        Event::BackendLost { server, reason } => warn!(server, reason = clean(reason), "backend lost"),
        Event::BackendFailed { server, reason, retry_in } => {
            warn!(server, reason = clean(reason), ?retry_in, "cannot connect to backend");
        }
        Event::BackendListFailed { server, method, reason } => {
            warn!(server, method, reason = clean(reason), "backend did not list");
        }
        Event::BackendLine { server, line } => info!(server, "{}", clean(line)),
        Event::BackendGarbage { server, reason } => debug!(server, reason = clean(reason), "backend wrote no message"),
        Event::BackendTooLong { server } => warn!(server, "backend wrote a message beyond maxMessageSize; dropped"),
        Event::BackendAskRefused { server, method } => {
            debug!(server, method = clean(method), "backend asked what cannot be relayed");
        }
        Event::BackendLog { server, line } => debug!(server, "{}", clean(line)),
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
        Event::ClientRefused { status } => debug!(status, "request refused"),
        Event::CallsCut { count } => warn!(count, "calls cut by the shutdown"),
        Event::Panic { place } => error!(place, "bug: a request panicked"),
        Event::ShuttingDown => info!("shutting down"),
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
        observe.emit(&Event::ShuttingDown);
        observe.emit(&Event::AnswerWithoutCall { server: "a" });
        observe.emit(&Event::AnswerWithoutCall { server: "b" });
        assert_eq!(observe.counts(), [("AnswerWithoutCall", 2), ("ShuttingDown", 1)]);
    }
}
