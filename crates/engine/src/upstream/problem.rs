//! Explains to operators why a server cannot be used: the cause, followed by a remedy in parentheses.
//!
//! The same text appears in the log, in `goblin status` and in `goblin check`. Clients get the text of [`public`],
//! which quotes nothing. Failures to start a command or to open a connection have error types of their own. This module
//! covers the causes that only show while a backend runs.

use std::fmt;
use std::time::Duration;

use goblin_telemetry::clean;
use goblin_wire::units::duration;
use goblin_wire::via::{MAX_IDS, ViaProblem};
use http::StatusCode;

use crate::upstream::cause;
use crate::upstream::child::{Exit, SpawnError};

/// The beginning of the reason for a process that ended.
const ENDED: &str = "it ended with ";
/// Separates a failure from the last lines on stderr, which differ every time.
const LAST_LINES: &str = "; last on stderr: ";
/// Separates a failure from the lines on stderr that name its cause.
const CAUSE: &str = "; cause: ";
/// Separates a failure from a line on stdout that is not a message.
const BUT: &str = ", but ";
/// Separates a failure from an error or a text of the server.
const DETAILS: &str = "; details: ";
/// Separates a failure from the command line.
const CANNOT_START: &str = "its command cannot be started: ";
/// Replaces a quotation in the reason for clients.
const SEE_STATUS: &str = "; goblin status shows more";
/// The signals that end a process from outside.
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// The number of stderr lines that a failure without a known cause quotes.
const MAX_QUOTED_LINES: usize = 5;
/// The number of characters of a quoted line.
const MAX_QUOTED_LINE: usize = 200;

const CHECK_SSE: &str = "is the url that of an HTTP+SSE server? it often ends in /sse; Streamable HTTP is of type http";
const CHECK_COMMAND: &str = "is it the command of an MCP server?";
const RUN_BY_HAND: &str = "run its command by hand to see more";

/// A cause of failure. Its `Display` text is the explanation.
#[derive(Debug)]
pub(crate) enum BackendProblem<'a> {
    Ended {
        exit: Exit,
        last_lines: &'a [String],
        /// The first line on stdout, if the process has sent no message.
        stray_line: Option<&'a str>,
        /// The variables that are set for the gateway and that the process did not get, though it may need them.
        missing: &'a [String],
    },
    CannotStart(&'a SpawnError),
    /// The program writes its input to stdout.
    Echo,
    /// The server answered the handshake with an error.
    HandshakeRejected(&'a str),
    /// The server did not answer the handshake.
    Silent {
        timeout: Duration,
        kind: ConnectionKind,
    },
    /// The server did not answer the handshake, but wrote another line to stdout.
    StrayOutput {
        timeout: Duration,
        line: &'a str,
    },
    HttpStatus(StatusCode),
    WebPage,
    /// HTTP+SSE: the stream is open but names no endpoint.
    NoEndpoint {
        timeout: Duration,
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
    DiscoverRejected(&'a str),
    /// The server needs a handshake, but the configuration forbids it.
    NeedsHandshake(&'a str),
    /// The URL supports neither transport. Holds the failures of Streamable HTTP and of HTTP+SSE.
    NeitherTransport(&'a str, &'a str),
    /// The gateway must not use the server. In a loop the lists come from this gateway, or it rejected the connection,
    /// or the server's process refuses to start.
    Dropped(ViaProblem),
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
            BackendProblem::Ended { exit, last_lines, stray_line, missing } => {
                write_ended(f, *exit, last_lines, *stray_line, missing)
            }
            BackendProblem::Echo => {
                f.write_str("it echoes its input, so it is not an MCP server (is it the right command?)")
            }
            BackendProblem::CannotStart(error) => write!(f, "{CANNOT_START}{error}"),
            BackendProblem::HandshakeRejected(details) => write!(f, "it rejected the handshake{DETAILS}{details}"),
            BackendProblem::Silent { timeout, kind } => {
                let hint = match kind {
                    ConnectionKind::Pipe => "does the command start an MCP server on stdin and stdout?",
                    ConnectionKind::Url => "is the url that of an MCP server?",
                };
                write!(f, "no answer to the handshake within {} ({hint} ", duration(*timeout))?;
                f.write_str("a slow one needs a longer policies.startTimeout)")
            }
            BackendProblem::StrayOutput { timeout, line } => {
                write!(
                    f,
                    "no answer to the handshake within {}{BUT}{line:?} on stdout, which is not an MCP message ",
                    duration(*timeout)
                )?;
                f.write_str("(is it the right command? logs belong on stderr; ")?;
                f.write_str("a slow server needs a longer policies.startTimeout)")
            }
            BackendProblem::HttpStatus(status) => write!(f, "it answered HTTP {status}{}", remedy_for(*status)),
            BackendProblem::WebPage => {
                f.write_str("it answered with a web page (is the url right? that of an MCP server often ends in /mcp)")
            }
            BackendProblem::NoEndpoint { timeout } => {
                write!(f, "no endpoint event on its stream within {} ({CHECK_SSE})", duration(*timeout))
            }
            BackendProblem::NoStream => {
                write!(f, "it answered GET without an event stream ({CHECK_SSE})")
            }
            BackendProblem::ForeignEndpoint { endpoint, url } => {
                write!(
                    f,
                    "its endpoint is at {endpoint}, but the url is at {url} (messages go to the same origin only; "
                )?;
                f.write_str("configure the url that the server itself uses)")
            }
            BackendProblem::Dropped(ViaProblem::Loop) => f.write_str(
                "it is this gateway itself, directly or through another gateway (remove it from mcpServers)",
            ),
            BackendProblem::Dropped(ViaProblem::TooManyGateways) => write!(
                f,
                "its lists name more than {MAX_IDS} gateways, so a loop could stay hidden (connect fewer gateways)"
            ),
            BackendProblem::NeitherTransport(http, sse) => write!(f, "{http}; tried as HTTP+SSE: {sse}"),
            BackendProblem::DiscoverRejected(details) => write!(f, "it rejected server/discover{DETAILS}{details}"),
            BackendProblem::NeedsHandshake(details) => {
                write!(f, "it supports no version without a handshake{DETAILS}{details} ")?;
                f.write_str("(its \"protocol\" is \"modern\"; use \"auto\" or \"legacy\")")
            }
            BackendProblem::BadEndpoint(text) => write!(f, "its endpoint event is not a url{DETAILS}{text:?}"),
        }
    }
}

/// Writes why a process ended: the cause on stderr or else its last lines, a line on stdout, and a remedy.
fn write_ended(
    f: &mut fmt::Formatter<'_>,
    exit: Exit,
    last_lines: &[String],
    stray_line: Option<&str>,
    missing: &[String],
) -> fmt::Result {
    write!(f, "{ENDED}{exit}")?;
    // Another process sent these signals, so an earlier error on stderr did not end the process.
    let is_foreign = matches!(exit, Exit::Signal(SIGKILL | SIGTERM));
    let cause = cause::cause(last_lines).filter(|_| !is_foreign).map(|lines| lines.join(" / "));
    match &cause {
        Some(cause) => write!(f, "{CAUSE}{cause}")?,
        None if last_lines.is_empty() => {}
        None => {
            let quoted = &last_lines[last_lines.len().saturating_sub(MAX_QUOTED_LINES)..];
            write!(f, "{LAST_LINES}{}", quoted.join(" / "))?;
        }
    }
    if let Some(line) = stray_line {
        write!(f, "{BUT}{line:?} on stdout, which is not an MCP message")?;
    }
    let remedy = cause.as_deref().and_then(cause::remedy);
    match missing {
        [] => write!(f, " ({})", remedy.unwrap_or(if stray_line.is_some() { CHECK_COMMAND } else { RUN_BY_HAND })),
        [only] => write!(f, " ({only} is set, but the server does not get it; name it in its \"inherit\")"),
        several => {
            let names = several.join(", ");
            write!(f, " ({names} are set, but the server does not get them; name those it needs in its \"inherit\")")
        }
    }
}

fn remedy_for(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (check its headers in the configuration)",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => " (is the url right?)",
        status if status.is_redirection() => " (redirects are not followed; configure the final url)",
        status if status.is_server_error() => " (see its own log)",
        _ => "",
    }
}

/// Returns the part of a reason that stays the same when the same failure happens again.
pub fn stable_part(reason: &str) -> &str {
    let remedy = Some(" (").filter(|_| reason.starts_with(ENDED));
    let ends = [LAST_LINES, CAUSE, BUT].into_iter().chain(remedy).filter_map(|separator| reason.find(separator));
    &reason[..ends.min().unwrap_or(reason.len())]
}

/// Returns the reason for clients, without stderr, quoted output, errors of the server and command lines.
pub(crate) fn public(reason: &str) -> String {
    let cut = stable_part(reason);
    let separators = [(DETAILS, ""), (CANNOT_START, CANNOT_START.trim_end_matches(": "))];
    let ends = separators.iter().filter_map(|(separator, kept)| Some(cut.find(separator)? + kept.len()));
    let cut = &cut[..ends.min().unwrap_or(cut.len())];
    if cut.len() == reason.len() { reason.to_owned() } else { format!("{cut}{SEE_STATUS}") }
}

/// Returns a line of a server in a form that is safe to quote: cleaned, trimmed and at most `MAX_QUOTED_LINE`
/// characters long.
pub(crate) fn quotable(line: &str) -> String {
    let cleaned = clean(line);
    let mut quotable: String = cleaned.trim().chars().take(MAX_QUOTED_LINE).collect();
    if quotable.len() < cleaned.trim().len() {
        quotable.push('…');
    }
    quotable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_failures_with_different_output_have_the_same_stable_part() {
        let ended = |exit, lines: &[&str]| {
            let last_lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
            BackendProblem::Ended { exit, last_lines: &last_lines, stray_line: None, missing: &[] }.to_string()
        };
        let (one, other) = (ended(Exit::Code(1), &["12:00 no"]), ended(Exit::Code(1), &["12:01 no", "bye"]));
        assert_eq!(one, "it ended with exit code 1; last on stderr: 12:00 no (run its command by hand to see more)");
        assert_eq!(stable_part(&one), stable_part(&other));
        assert_eq!(stable_part(&one), stable_part(&ended(Exit::Code(1), &[])));
        assert_ne!(stable_part(&one), stable_part(&ended(Exit::Code(2), &["12:00 no"])));
        let stray = |line| BackendProblem::StrayOutput { timeout: Duration::from_secs(5), line }.to_string();
        assert_eq!(stable_part(&stray("12:00 up")), stable_part(&stray("12:01 up")));
        let killed = ended(Exit::Signal(9), &["ValueError: ignored", "serving"]);
        assert!(killed.contains("; last on stderr: ValueError: ignored / serving"), "{killed}");
        assert!(ended(Exit::Signal(9), &[]).ends_with("ended with signal 9 (run its command by hand to see more)"));
    }

    #[test]
    fn hard7_a_public_message_contains_no_server_output_and_no_command_line() {
        let lines = ["Traceback: s3cret".to_owned()];
        let missing = ["A_TOKEN".to_owned()];
        let ended = BackendProblem::Ended {
            exit: Exit::Code(1),
            last_lines: &lines,
            stray_line: Some("s3cret"),
            missing: &missing,
        };
        let error = ["KeyError: 's3cret'".to_owned()];
        let failed =
            BackendProblem::Ended { exit: Exit::Code(1), last_lines: &error, stray_line: None, missing: &missing };
        assert!(
            ended
                .to_string()
                .ends_with(" (A_TOKEN is set, but the server does not get it; name it in its \"inherit\")")
        );
        let spawn = SpawnError::NotFound { command: "s3cret".to_owned(), path: "s3cret".into() };
        let timeout = Duration::from_secs(5);
        for (problem, expected) in [
            (ended, "it ended with exit code 1; goblin status shows more"),
            (failed, "it ended with exit code 1; goblin status shows more"),
            (BackendProblem::CannotStart(&spawn), "its command cannot be started; goblin status shows more"),
            (
                BackendProblem::StrayOutput { timeout, line: "s3cret" },
                "no answer to the handshake within 5 s; goblin status shows more",
            ),
            (BackendProblem::HandshakeRejected("s3cret"), "it rejected the handshake; goblin status shows more"),
            (BackendProblem::DiscoverRejected("s3cret"), "it rejected server/discover; goblin status shows more"),
            (
                BackendProblem::NeedsHandshake("s3cret"),
                "it supports no version without a handshake; goblin status shows more",
            ),
            (BackendProblem::BadEndpoint("s3cret"), "its endpoint event is not a url; goblin status shows more"),
            (BackendProblem::HttpStatus(StatusCode::NOT_FOUND), "it answered HTTP 404 Not Found (is the url right?)"),
        ] {
            assert_eq!(public(&problem.to_string()), expected);
        }
        let quoted = format!("it ended; last on stderr: a{DETAILS}{CANNOT_START}");
        assert_eq!(public(&quoted), "it ended; goblin status shows more");
        assert_eq!(public("it is starting"), "it is starting");
    }

    #[test]
    fn quoted_server_output_is_bounded_and_has_no_control_characters() {
        assert_eq!(quotable("  a\u{1b}[31mred\u{202e} "), "a[31mred");
        assert_eq!(quotable(&"x".repeat(9999)).chars().count(), MAX_QUOTED_LINE + 1);
    }
}
