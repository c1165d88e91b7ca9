//! W3C Trace Context of requests. This module does no I/O.
//!
//! Inside the gateway the trace context is in `_meta` of the params, as MCP specifies. The gateway moves it there from
//! the HTTP headers, unless the request already has one. HTTP requests to backends repeat it in their headers. A trace
//! context that the gateway does not change passes as it arrived, even if the gateway cannot parse it.

use std::fmt;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::json::{self, Span, Splice, quote};
use crate::{Keyword, Message, Request};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
static KEYWORD: Keyword = Keyword::new(TRACEPARENT);
const PARENT: HeaderName = HeaderName::from_static(TRACEPARENT);
const STATE: HeaderName = HeaderName::from_static(TRACESTATE);
const BAGGAGE: HeaderName = HeaderName::from_static("baggage");
/// The maximum length of a header value, and of a state that the gateway keeps. Longer values do not pass.
const MAX_VALUE_LENGTH: usize = 8192;

/// A step of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace id. Trace id and span id are never zero.
    pub trace: u128,
    pub span: u64,
    pub flags: u8,
}

impl TraceContext {
    const SAMPLED: u8 = 1;

    /// Parses a `traceparent` such as `00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01`. Later versions may
    /// append fields.
    pub fn parse(text: &str) -> Option<TraceContext> {
        let is_hex = |part: &str| part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let mut parts = text.split('-');
        let mut part = |length| parts.next().filter(|part| part.len() == length && is_hex(part));
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        if version == "ff" || version == "00" && parts.next().is_some() {
            return None;
        }
        let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
        let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
        Some(TraceContext { trace, span, flags: u8::from_str_radix(flags, 16).ok()? })
    }

    /// Returns the step after `parent`, or the first step of a trace. Both numbers of `random` must be non-zero.
    pub fn after(parent: Option<TraceContext>, random: (u128, u64)) -> TraceContext {
        match parent {
            Some(parent) => TraceContext { span: random.1, ..parent },
            None => TraceContext { trace: random.0, span: random.1, flags: TraceContext::SAMPLED },
        }
    }

    /// Reports whether an earlier step records this trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & TraceContext::SAMPLED != 0
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// Returns the trace context and the trace state of a request.
pub fn read(request: &Request) -> Option<(TraceContext, String)> {
    let text = request.raw.as_str();
    let meta = meta(request)?;
    let string = |name| json::member(text, meta, name).and_then(|at| json::string(text, at));
    let context = TraceContext::parse(&string(TRACEPARENT)?)?;
    let state = string(TRACESTATE).filter(|state| state.len() <= MAX_VALUE_LENGTH);
    Some((context, state.unwrap_or_default().into_owned()))
}

/// Returns the span of `_meta` if it may contain a trace context. A fast search skips most requests.
fn meta(request: &Request) -> Option<Span> {
    let meta = request.params.meta?;
    let text = meta.get(request.raw.as_str());
    (KEYWORD.is_in(text) && text.starts_with('{')).then_some(meta)
}

/// Moves the trace context from the headers into `_meta`, unless `_meta` already has one.
pub fn take_headers(request: &mut Request, headers: &HeaderMap) {
    let Some(parent) = headers.get(PARENT).and_then(|parent| parent.to_str().ok()) else { return };
    if TraceContext::parse(parent).is_none() || meta(request).is_some() {
        return;
    }
    let mut members = vec![(TRACEPARENT, quote(parent))];
    // A trace state may be split over several headers.
    let state: Vec<_> = headers.get_all(STATE).iter().filter_map(|state| state.to_str().ok()).collect();
    let state = state.join(",");
    if !state.is_empty() && state.len() <= MAX_VALUE_LENGTH {
        members.push((TRACESTATE, quote(&state)));
    }
    // Baggage may contain private data, so the gateway does not copy it from headers. A client that wants a server to
    // receive it writes it into `_meta`.
    set(request, &members);
}

/// Sets the trace context of a request.
pub fn write(request: &mut Request, context: TraceContext) {
    set(request, &[(TRACEPARENT, quote(&context.to_string()))]);
}

/// Returns the headers that repeat the trace context of a request.
pub fn headers(request: &Request) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let text = request.raw.as_str();
    meta(request).into_iter().flat_map(move |meta| {
        [PARENT, STATE, BAGGAGE].into_iter().filter_map(move |name| {
            let value = json::member(text, meta, name.as_str()).and_then(|at| json::string(text, at));
            let value = value.filter(|value| value.len() <= MAX_VALUE_LENGTH)?;
            // A value that is not valid in a header remains in the body only.
            HeaderValue::try_from(&*value).ok().map(|value| (name, value))
        })
    })
}

/// Sets members of `_meta`. Leaves the request unchanged if it has no params object or its `_meta` is not an object.
fn set(request: &mut Request, members: &[(&str, String)]) {
    let text = request.raw.as_str();
    let mut edits = Splice::new();
    match (request.params.meta, request.params.whole) {
        (Some(meta), _) if meta.get(text).starts_with('{') => json::set_members(text, meta, members, &mut edits),
        (None, Some(params)) => {
            let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
            json::prepend(text, params, &format!("\"_meta\":{{{}}}", members.join(",")), &mut edits);
        }
        _ => return,
    }
    if let Ok(Message::Request(changed)) = Message::parse(edits.apply(request.raw.bytes())) {
        *request = changed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn request(params: &str) -> Request {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        match Message::parse(text.into()) {
            Ok(Message::Request(request)) => request,
            other => panic!("{other:?}"),
        }
    }

    fn params(request: &Request) -> &str {
        request.params.whole.map_or("", |whole| whole.get(request.raw.as_str()))
    }

    #[test]
    fn a_trace_context_is_read_as_the_w3c_recommends() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(TraceContext::parse(text).map(|context| context.to_string()).as_deref(), expected, "{text}");
        };
        check(EXAMPLE, Some(EXAMPLE));
        check("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", Some(EXAMPLE));
        for wrong in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn trace_headers_are_added_to_a_body_without_a_trace() {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, HeaderValue::from_static(EXAMPLE));
        headers.append(TRACESTATE, HeaderValue::from_static("a=\"1\""));
        headers.append(TRACESTATE, HeaderValue::from_static("b=2"));
        let check = |before: &str, after: &str| {
            let mut request = request(before);
            take_headers(&mut request, &headers);
            assert_eq!(params(&request), after.replace('P', EXAMPLE));
        };
        let context = r#""traceparent":"P","tracestate":"a=\"1\",b=2""#;
        check(r#"{"name":"t"}"#, &format!(r#"{{"_meta":{{{context}}},"name":"t"}}"#));
        check(r#"{"name":"t","_meta":{}}"#, &format!(r#"{{"name":"t","_meta":{{{context}}}}}"#));
        check(r#"{"_meta":{"x":1.0}}"#, &format!(r#"{{"_meta":{{{context},"x":1.0}}}}"#));
        check(r#"{"_meta":{"traceparent":"theirs"}}"#, r#"{"_meta":{"traceparent":"theirs"}}"#);
        check(r#"{"_meta":7}"#, r#"{"_meta":7}"#);
        check(r#"{"_meta":"traceparent"}"#, r#"{"_meta":"traceparent"}"#);
        headers.insert(TRACEPARENT, HeaderValue::from_static("none"));
        let mut request = request("{}");
        take_headers(&mut request, &headers);
        assert_eq!(params(&request), "{}");
    }

    #[test]
    fn a_written_trace_context_replaces_the_span_of_the_request() {
        let mut request =
            request(&format!(r#"{{"_meta":{{"tracestate":"a=1","traceparent":"{EXAMPLE}"}},"name":"t"}}"#));
        let (parent, state) = read(&request).expect("a trace context");
        assert_eq!(state, "a=1");
        let own = TraceContext::after(Some(parent), (1, 2));
        write(&mut request, own);
        assert_eq!(read(&request), Some((TraceContext { span: 2, ..parent }, "a=1".to_owned())));
        let headers: HeaderMap = super::headers(&request).collect();
        assert_eq!(headers[TRACEPARENT], own.to_string());
        assert_eq!(headers[TRACESTATE], "a=1");
    }
}
