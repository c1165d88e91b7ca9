//! Finds the outcome of a call from its answer, once for the history of calls, the audit log and tracing.
//!
//! A result is searched for `"isError"` only if its method may return tool errors. Only errors and results with a match
//! are parsed. This happens where the call ends if the answer has at most [`MAX_INLINE`] bytes. A longer answer is
//! searched and parsed on another thread, and the copy that this needs counts as memory.

use std::borrow::Cow;
use std::sync::Arc;

use goblin_config::mask;
use goblin_telemetry::{clean, worker};
use goblin_wire::json::{self, Pieces, Span};
use goblin_wire::memory::{BufferKind, Memory};
use goblin_wire::{Error, Method, Request};
use memchr::memmem;

use crate::client::call::Reply;
use crate::client::call_name;

/// The number of characters of an error that the outcome keeps.
const MAX_ERROR_TEXT: usize = 200;
/// The largest answer that is searched on the thread of its call, in bytes.
const MAX_INLINE: usize = 64 * 1024;
const IS_ERROR: &[u8] = b"\"isError\"";

goblin_wire::labels! {
    /// The way in which a call ended.
    CallResult {
        Ok = "ok",
        ToolError = "tool_error",
        Error = "error",
        Cancelled = "cancelled",
    }
}

impl CallResult {
    /// Reports whether the client got an error of any kind.
    pub(crate) fn is_failure(self) -> bool {
        match self {
            CallResult::ToolError | CallResult::Error => true,
            CallResult::Ok | CallResult::Cancelled => false,
        }
    }
}

/// The outcome of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallOutcome {
    pub result: CallResult,
    /// The details of a failed call.
    pub failure: Option<Box<CallFailure>>,
}

/// The cleaned details of a failed call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CallFailure {
    /// The code of an error: the `data.code` of the gateway, otherwise the JSON-RPC number.
    pub code: Option<String>,
    /// The beginning of the error message or of the text of a tool error.
    pub message: String,
}

impl CallOutcome {
    fn done(result: CallResult) -> CallOutcome {
        CallOutcome { result, failure: None }
    }

    fn failed(result: CallResult, failure: CallFailure) -> CallOutcome {
        CallOutcome { result, failure: Some(Box::new(failure)) }
    }

    /// Returns the outcome of a call with this error of the gateway.
    pub(crate) fn of_error(error: &Error) -> CallOutcome {
        let (code, message) = (error.class().name.to_owned(), beginning(&error.to_string(), None));
        CallOutcome::failed(CallResult::Error, CallFailure { code: Some(code), message })
    }

    /// Returns the outcome of an answer. `answer` is `None` if the call was cancelled.
    pub(crate) async fn find(request: &Request, answer: Option<&Reply>, memory: &Arc<Memory>) -> CallOutcome {
        let Some(answer) = answer else { return CallOutcome::done(CallResult::Cancelled) };
        if !answer.is_error && !may_return_tool_error(&request.method) {
            return CallOutcome::done(CallResult::Ok);
        }
        match answer.pieces.len() <= MAX_INLINE {
            true => CallOutcome::read(&answer.pieces, answer.is_error, || call_name::uri(request)),
            // Box the rare future, because a call's future is moved with all it holds.
            false => Box::pin(CallOutcome::read_offloaded(request, answer, memory)).await,
        }
    }

    async fn read_offloaded(request: &Request, answer: &Reply, memory: &Arc<Memory>) -> CallOutcome {
        let (pieces, is_error, memory) = (answer.pieces.clone(), answer.is_error, Arc::clone(memory));
        let uri = call_name::uri(request).filter(|_| is_error).map(Cow::into_owned);
        let read = move || {
            let _copy = memory.hold(BufferKind::Answers, pieces.len());
            CallOutcome::read(&pieces, is_error, || uri.as_deref().map(Cow::Borrowed))
        };
        // The runtime shuts down if there is no outcome.
        worker::offload(read).await.unwrap_or(CallOutcome::done(CallResult::Cancelled))
    }

    fn read<'a>(pieces: &Pieces, is_error: bool, uri: impl FnOnce() -> Option<Cow<'a, str>>) -> CallOutcome {
        match is_error || may_be_tool_error(pieces) {
            true => CallOutcome::parse(pieces, uri().as_deref()),
            false => CallOutcome::done(CallResult::Ok),
        }
    }

    #[cold]
    fn parse(pieces: &Pieces, uri: Option<&str>) -> CallOutcome {
        let whole = pieces.concat();
        let text = std::str::from_utf8(&whole).unwrap_or_default();
        let answer = json::whole(text);
        if let Some(error) = json::member(text, answer, "error") {
            return CallOutcome::failed(CallResult::Error, CallFailure::read(text, error, uri));
        }
        let result = json::member(text, answer, "result");
        let is_true = |at: Span| at.get(text) == "true";
        let is_error = |result: &Span| json::member(text, *result, "isError").is_some_and(is_true);
        match result.filter(is_error) {
            Some(result) => {
                let failure = CallFailure { code: None, message: tool_error_text(text, result) };
                CallOutcome::failed(CallResult::ToolError, failure)
            }
            None => CallOutcome::done(CallResult::Ok),
        }
    }
}

impl CallFailure {
    fn read(text: &str, error: Span, uri: Option<&str>) -> CallFailure {
        let string = |at: Span| json::string(text, at).map(|value| clean(&value));
        let code = json::member(text, error, "data").and_then(|data| json::member(text, data, "code"));
        let number = || json::member(text, error, "code").map(|at| clean(at.get(text)));
        let message = json::member(text, error, "message").and_then(|at| json::string(text, at));
        CallFailure {
            code: code.and_then(string).or_else(number),
            message: message.map(|message| beginning(&message, uri)).unwrap_or_default(),
        }
    }
}

fn may_return_tool_error(method: &Method) -> bool {
    matches!(method, Method::ToolsCall | Method::TasksResult)
}

/// Reports whether a part of the answer has a member `isError` with the value `true`. The member may belong to another
/// object. In a string, a backslash precedes the closing quotation mark, so a text does not match.
fn may_be_tool_error(answer: &Pieces) -> bool {
    let has_true = |part: &[u8]| {
        memmem::find_iter(part, IS_ERROR).any(|at| {
            let rest = part[at + IS_ERROR.len()..].trim_ascii_start();
            rest.strip_prefix(b":").is_some_and(|value| value.trim_ascii_start().starts_with(b"true"))
        })
    };
    answer.iter().any(|part| has_true(part))
}

/// Returns the beginning of the first text in the content of a tool result.
fn tool_error_text(text: &str, result: Span) -> String {
    let content = json::member(text, result, "content");
    let mut texts = content.into_iter().flat_map(|content| json::elements(text, content)).filter_map(|block| {
        let block_text = json::member(text, block, "text")?;
        json::string(text, block_text)
    });
    texts.next().map(|text| beginning(&text, None)).unwrap_or_default()
}

/// Returns the first characters of a text on one line, without control characters and without the secrets of URLs. `uri`
/// is the URI of the request, which an error may repeat.
fn beginning(text: &str, uri: Option<&str>) -> String {
    let mut cleaned = clean(text);
    if let Some(uri) = uri.filter(|uri| !uri.is_empty()) {
        cleaned = cleaned.replace(uri, &mask::uri(uri));
    }
    let cleaned = mask::urls(&cleaned);
    match cleaned.char_indices().nth(MAX_ERROR_TEXT) {
        Some((end, _)) => format!("{}…", &cleaned[..end]),
        None => cleaned,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    fn request(method: &str, params: &str) -> Request {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        match goblin_wire::Message::parse(text.into()) {
            Ok(goblin_wire::Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    async fn find(request: &Request, answer: &str) -> CallOutcome {
        let reply = Reply::from(Pieces::from(answer.to_owned()));
        let reply = Reply { is_error: answer.contains(r#""error":"#), ..reply };
        CallOutcome::find(request, Some(&reply), &Arc::default()).await
    }

    fn of(answer: &str) -> CallOutcome {
        let call = request("tools/call", r#"{"name":"t"}"#);
        find(&call, answer).now_or_never().expect("a short answer is read at once")
    }

    #[test]
    fn use6_the_outcome_of_a_call_is_read_from_its_answer() {
        let check = |answer: &str, result: CallResult, code: Option<&str>, message: &str| {
            let found = of(answer);
            let failure = found.failure.unwrap_or_default();
            assert_eq!((found.result, failure.code.as_deref(), &*failure.message), (result, code, message), "{answer}");
        };
        let (ok, tool_error, error) = (CallResult::Ok, CallResult::ToolError, CallResult::Error);
        check(r#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#, ok, None, "");
        check(r#"{"jsonrpc":"2.0","id":1,"result":{"isError":false,"content":[]}}"#, ok, None, "");
        check(r#"{"jsonrpc":"2.0","id":1,"result":{"structuredContent":{"isError":true}}}"#, ok, None, "");
        check(
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\"isError\":true"}]}}"#,
            ok,
            None,
            "",
        );
        check(r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[]}}"#, tool_error, None, "");
        let spaced = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"image"},{"type":"text","text":"no\n\u001bdisk"}],"isError" : true}}"#;
        check(spaced, tool_error, None, "no disk");
        check(r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"m"}}"#, error, Some("-32602"), "m");
        let timeout = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1504,"message":"m","data":{"code":"TIMEOUT"}}}"#;
        check(timeout, error, Some("TIMEOUT"), "m");
        let hostile = r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m","data":{"code":"\u001b[2J\u202e"}}}"#;
        check(hostile, error, Some("[2J"), "m");
        let call = request("tools/call", r#"{"name":"t"}"#);
        let cancelled = CallOutcome::find(&call, None, &Arc::default()).now_or_never();
        assert_eq!(cancelled, Some(CallOutcome::done(CallResult::Cancelled)));
        let overloaded = CallOutcome::of_error(&Error::LimitExceeded { limit: "l", value: 1 });
        assert_eq!(overloaded.failure.and_then(|failure| failure.code).as_deref(), Some("LIMIT_EXCEEDED"));
    }

    #[test]
    fn use6_an_outcome_keeps_only_the_beginning_of_an_error() {
        let long = "é".repeat(MAX_ERROR_TEXT + 1);
        let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":1,"message":"{long}"}}}}"#);
        let message = of(&answer).failure.expect("a failure").message;
        assert_eq!(message, "é".repeat(MAX_ERROR_TEXT) + "…");
    }

    /// Runs a test with one thread for offloaded work. The test gets a channel: dropping it lets that thread start.
    fn with_busy_worker<T: Future>(test: impl FnOnce(mpsc::SyncSender<()>) -> T) -> T::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build();
        let (release, released) = mpsc::sync_channel(0);
        let runtime = runtime.expect("a runtime");
        runtime.spawn_blocking(move || released.recv());
        runtime.block_on(test(release))
    }

    #[test]
    fn hard4_a_long_answer_is_read_on_another_thread() {
        let call = request("tools/call", r#"{"name":"t"}"#);
        let filling = "x".repeat(MAX_INLINE);
        let failed = |before: &str, after: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":1,"result":{{{before}"content":[{{"type":"text","text":"no{filling}"}}]{after}}}}}"#
            )
        };
        let error = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":1,"message":"noxx","data":"{filling}"}}}}"#);
        for (answer, expected) in [
            (failed(r#""isError":true,"#, ""), CallResult::ToolError),
            (failed("", r#","isError":true"#), CallResult::ToolError),
            (failed("", r#","structuredContent":{"isError":true}"#), CallResult::Ok),
            (failed("", ""), CallResult::Ok),
            (error, CallResult::Error),
        ] {
            let outcome = with_busy_worker(async |release| {
                let mut outcome = Box::pin(find(&call, &answer));
                assert!((&mut outcome).now_or_never().is_none(), "the thread of the call does not read it");
                drop(release);
                outcome.await
            });
            assert_eq!(outcome.result, expected);
            assert!(outcome.failure.is_none_or(|failure| failure.message.starts_with("noxx")));
        }
        let read = request("resources/read", r#"{"uri":"a://b"}"#);
        let outcome = find(&read, &failed("", r#","isError":true"#)).now_or_never();
        assert_eq!(outcome, Some(CallOutcome::done(CallResult::Ok)), "only tools have tool errors");
    }

    #[test]
    fn hard8_an_error_is_kept_without_the_secrets_of_urls() {
        let check = |method: &str, params: &str, message: &str, expected: &str| {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":1,"message":"{message}"}}}}"#);
            let call = request(method, params);
            let outcome = find(&call, &answer).now_or_never().expect("the answer is short");
            assert_eq!(outcome.failure.expect("a failure").message, expected);
        };
        let uri = r#"{"uri":"note:x?token=a b"}"#;
        check("resources/read", uri, "no note:x?token=a b here", "no note:x?*** here");
        check("tools/call", r#"{"name":"t"}"#, "no https://u:p@h/?token=x here", "no https://***@h/?*** here");
    }
}
