//! Explains to operators why a server cannot be used: the cause, followed by a remedy in parentheses.
//!
//! The same text appears in the log, in `goblin status` and in `goblin check`. Clients get the text of [`public`],
//! which quotes nothing. Failures to start a command or to open a connection have error types of their own. This module
//! covers the causes that only show while a backend runs.

use std::fmt;
use std::time::Duration;

use goblin_telemetry::clean;
use http::StatusCode;

use crate::upstream::child::{Exit, SpawnError};

/// The beginning of the reason for a process that ended.
const ENDED: &str = "the process ended with ";
/// Separates a failure from the last lines on stderr, which differ every time.
const LAST_WORDS: &str = "; its last words: ";
/// Separates a failure from a line on stdout that is not a message.
const BUT: &str = ", but ";
/// Separates a failure from an error or a text of the server.
const SAID: &str = "; it said: ";
/// Separates a failure from the command line.
const UNSTARTABLE: &str = "its command cannot be started: ";
/// Replaces a quotation in the reason for clients.
const ASK_OPERATOR: &str = "; goblin status shows more";
/// The number of stderr lines that a failure quotes.
pub(crate) const MAX_QUOTED_LINES: usize = 5;
/// The number of characters of a quoted line.
const MAX_QUOTED_LINE: usize = 200;

const IS_IT_SSE: &str = "is the url that of an HTTP+SSE server? it often ends in /sse; Streamable HTTP is of type http";
const BY_HAND: &str = "run its command by hand to see more";

/// A cause of failure. Its `Display` text is the explanation.
#[derive(Debug)]
pub(crate) enum BackendProblem<'a> {
    Ended {
        exit: Exit,
        last_words: &'a [String],
        /// The variables that are set for the gateway and that the process did not get, though it may need them.
        missed: &'a [String],
    },
    Unstartable(&'a SpawnError),
    /// The server answered the handshake with an error.
    RefusedHandshake(&'a str),
    /// The server did not answer the handshake.
    Silent {
        patience: Duration,
        place: ConnectionKind,
    },
    /// The server did not answer the handshake, but wrote another line to stdout.
    Babbles {
        patience: Duration,
        line: &'a str,
    },
    Refused(StatusCode),
    WebPage,
    /// HTTP+SSE: the stream is open but names no endpoint.
    NoEndpoint {
        patience: Duration,
    },
    /// HTTP+SSE: the server returned no event stream.
    NoStream,
    /// HTTP+SSE: the endpoint is at another origin.
    ForeignEndpoint {
        endpoint: &'a str,
        url: &'a str,
    },
    BadEndpoint(&'a str),
    /// The server works without a handshake but rejects `server/discover`.
    Undiscovered(&'a str),
    /// The server needs a handshake, but the configuration forbids it.
    NeedsHandshake(&'a str),
    /// The URL supports neither transport. Holds the failures of Streamable HTTP and of HTTP+SSE.
    NeitherWay(&'a str, &'a str),
}

/// The kind of connection to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    Pipe,
    Url,
}

impl fmt::Display for BackendProblem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackendProblem::Ended { exit, last_words, missed } => {
                write!(f, "{ENDED}{exit}")?;
                if !last_words.is_empty() {
                    write!(f, "{LAST_WORDS}{}", last_words.join(" / "))?;
                }
                match missed {
                    [] => write!(f, " ({BY_HAND})"),
                    [only] => write!(f, " ({only} is set, but the server does not get it; name it in its \"inherit\")"),
                    several => {
                        let names = several.join(", ");
                        write!(f, " ({names} are set, but the server does not get them; name those it needs in its ")?;
                        f.write_str("\"inherit\")")
                    }
                }
            }
            BackendProblem::Unstartable(error) => write!(f, "{UNSTARTABLE}{error}"),
            BackendProblem::RefusedHandshake(said) => write!(f, "it refused the handshake{SAID}{said}"),
            BackendProblem::Silent { patience, place } => {
                let question = match place {
                    ConnectionKind::Pipe => "does the command start an MCP server on stdin and stdout?",
                    ConnectionKind::Url => "is the url that of an MCP server?",
                };
                write!(f, "no answer to the handshake within {patience:?} ({question} ")?;
                f.write_str("a slow one needs a longer policies.startTimeout)")
            }
            BackendProblem::Babbles { patience, line } => {
                write!(f, "no answer to the handshake within {patience:?}{BUT}{line:?} on stdout, which is no MCP ")?;
                f.write_str("(is it the right command? logs belong on stderr; ")?;
                f.write_str("a slow server needs a longer policies.startTimeout)")
            }
            BackendProblem::Refused(status) => write!(f, "it answered HTTP {status}{}", cure_of(*status)),
            BackendProblem::WebPage => {
                f.write_str("it answered with a web page (is the url right? that of an MCP server often ends in /mcp)")
            }
            BackendProblem::NoEndpoint { patience } => {
                write!(f, "no endpoint event on its stream within {patience:?} ({IS_IT_SSE})")
            }
            BackendProblem::NoStream => {
                write!(f, "it answered GET with something else than an event stream ({IS_IT_SSE})")
            }
            BackendProblem::ForeignEndpoint { endpoint, url } => {
                write!(
                    f,
                    "its endpoint is at {endpoint}, but the url is at {url} (messages go to the same origin only; "
                )?;
                f.write_str("configure the url by which the server knows itself)")
            }
            BackendProblem::NeitherWay(http, sse) => write!(f, "{http}; tried as HTTP+SSE: {sse}"),
            BackendProblem::Undiscovered(said) => write!(f, "it refused server/discover{SAID}{said}"),
            BackendProblem::NeedsHandshake(said) => {
                write!(f, "it speaks no version without a handshake{SAID}{said} ")?;
                f.write_str("(its \"protocol\" is \"modern\"; use \"auto\" or \"legacy\")")
            }
            BackendProblem::BadEndpoint(text) => write!(f, "its endpoint event holds {text:?}, which is no url"),
        }
    }
}

fn cure_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (check its headers in the configuration)",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => " (is the url right?)",
        status if status.is_redirection() => " (redirects are not followed; configure the final url)",
        status if status.is_server_error() => " (its own log should say why)",
        _ => "",
    }
}

/// Returns the part of a reason that stays the same when the same failure happens again.
pub(crate) fn gist(reason: &str) -> &str {
    let cure = Some(" (").filter(|_| reason.starts_with(ENDED));
    let ends = [LAST_WORDS, BUT].into_iter().chain(cure).filter_map(|separator| reason.find(separator));
    &reason[..ends.min().unwrap_or(reason.len())]
}

/// Returns the reason for clients, without stderr, quoted output, errors of the server and command lines.
pub(crate) fn public(reason: &str) -> String {
    let cut = gist(reason);
    let separators = [(SAID, ""), (UNSTARTABLE, UNSTARTABLE.trim_end_matches(": "))];
    let ends = separators.iter().filter_map(|(separator, kept)| Some(cut.find(separator)? + kept.len()));
    let cut = &cut[..ends.min().unwrap_or(cut.len())];
    if cut.len() == reason.len() { reason.to_owned() } else { format!("{cut}{ASK_OPERATOR}") }
}

/// Returns a line of a server in a form that is safe to quote: cleaned, trimmed and at most `MAX_QUOTED_LINE` characters
/// long.
pub(crate) fn quotable(line: &str) -> String {
    let clean = clean(line);
    let mut quotable: String = clean.trim().chars().take(MAX_QUOTED_LINE).collect();
    if quotable.len() < clean.trim().len() {
        quotable.push('…');
    }
    quotable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_end_with_other_words_is_the_same_failure() {
        let ended = |exit, words: &[&str]| {
            let last_words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            BackendProblem::Ended { exit, last_words: &last_words, missed: &[] }.to_string()
        };
        let (one, other) = (ended(Exit::Code(1), &["12:00 no"]), ended(Exit::Code(1), &["12:01 no", "bye"]));
        assert_eq!(
            one,
            "the process ended with exit code 1; its last words: 12:00 no (run its command by hand to see more)"
        );
        assert_eq!(gist(&one), gist(&other));
        assert_eq!(gist(&one), gist(&ended(Exit::Code(1), &[])));
        assert_ne!(gist(&one), gist(&ended(Exit::Code(2), &["12:00 no"])));
        let babbles = |line| BackendProblem::Babbles { patience: Duration::from_secs(5), line }.to_string();
        assert_eq!(gist(&babbles("12:00 up")), gist(&babbles("12:01 up")));
        assert!(ended(Exit::Signal(9), &[]).ends_with("killed by signal 9 (run its command by hand to see more)"));
    }

    #[test]
    fn hard7_clients_read_no_quotation_and_no_command_line() {
        let words = ["Traceback: s3cret".to_owned()];
        let ended = BackendProblem::Ended { exit: Exit::Code(1), last_words: &words, missed: &["A_TOKEN".to_owned()] };
        assert!(
            ended
                .to_string()
                .ends_with(" (A_TOKEN is set, but the server does not get it; name it in its \"inherit\")")
        );
        let spawn = SpawnError::NotFound { command: "s3cret".to_owned(), path: "s3cret".into() };
        let patience = Duration::from_secs(5);
        for (trouble, expected) in [
            (ended, "the process ended with exit code 1; goblin status shows more"),
            (BackendProblem::Unstartable(&spawn), "its command cannot be started; goblin status shows more"),
            (
                BackendProblem::Babbles { patience, line: "s3cret" },
                "no answer to the handshake within 5s; goblin status shows more",
            ),
            (BackendProblem::RefusedHandshake("s3cret"), "it refused the handshake; goblin status shows more"),
            (BackendProblem::Undiscovered("s3cret"), "it refused server/discover; goblin status shows more"),
            (
                BackendProblem::NeedsHandshake("s3cret"),
                "it speaks no version without a handshake; goblin status shows more",
            ),
            (BackendProblem::Refused(StatusCode::NOT_FOUND), "it answered HTTP 404 Not Found (is the url right?)"),
        ] {
            assert_eq!(public(&trouble.to_string()), expected);
        }
        let quoting = format!("it ended; its last words: a{SAID}{UNSTARTABLE}");
        assert_eq!(public(&quoting), "it ended; goblin status shows more");
        assert_eq!(public("it is starting"), "it is starting");
    }

    #[test]
    fn what_a_server_said_is_bounded_and_harmless() {
        assert_eq!(quotable("  a\u{1b}[31mred\u{202e} "), "a[31mred");
        assert_eq!(quotable(&"x".repeat(9999)).chars().count(), MAX_QUOTED_LINE + 1);
    }
}
