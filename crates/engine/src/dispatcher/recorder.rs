//! The record of one call for the audit log and for tracing.
//!
//! A record is opened when the call begins, because the backend gets its span as the parent. It is written when the
//! call ends. If neither audit nor tracing is enabled, calls have no record.

use std::time::{Instant, SystemTime};

use goblin_config::mask;
use goblin_telemetry::audit::AuditEntry;
use goblin_telemetry::clean;
use goblin_telemetry::spans::{CallSpan, Spans};
use goblin_wire::trace::{self, TraceContext};
use goblin_wire::{Method, Request, json};

use crate::client::call::Call;
use crate::client::caller::Principal;
use crate::client::outcome::{CallOutcome, CallResult};
use crate::router::Router;

/// The enabled outputs.
#[derive(Debug)]
pub struct CallRecorder {
    audit: bool,
    spans: Option<Spans>,
}

/// The record of one call.
pub struct CallRecord {
    audit: bool,
    started: Instant,
    trace: Option<Trace>,
}

struct Trace {
    spans: Spans,
    started: SystemTime,
    context: TraceContext,
    parent: Option<u64>,
    state: String,
}

impl CallRecorder {
    /// Returns `None` if both outputs are disabled.
    pub fn new(audit: bool, spans: Option<Spans>) -> Option<CallRecorder> {
        (audit || spans.is_some()).then_some(CallRecorder { audit, spans })
    }

    /// Opens the record of a call. If tracing is enabled, adds the gateway's span to the request.
    pub fn open(&self, request: &mut Request) -> Box<CallRecord> {
        let trace = self.spans.as_ref().and_then(|spans| Trace::begin(spans, request));
        Box::new(CallRecord { audit: self.audit, started: Instant::now(), trace })
    }
}

impl Trace {
    /// Begins a span. Returns `None` if the client decided not to sample the trace. The request then keeps its context.
    fn begin(spans: &Spans, request: &mut Request) -> Option<Trace> {
        let (parent, state) = trace::read(request).unzip();
        if parent.is_some_and(|parent: TraceContext| !parent.is_sampled()) {
            return None;
        }
        let context = TraceContext::after(parent, random());
        trace::write(request, context);
        Some(Trace {
            spans: spans.clone(),
            started: SystemTime::now(),
            context,
            parent: parent.map(|parent| parent.span),
            state: state.unwrap_or_default(),
        })
    }
}

/// Returns a random trace id and span id. Zero is not a valid id, so neither is zero.
fn random() -> (u128, u64) {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    let (trace, span) = bytes.split_at(16);
    let trace = trace.iter().fold(0, |number, byte| number << 8 | u128::from(*byte));
    let span = span.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    (trace.max(1), span.max(1))
}

impl CallRecord {
    /// Writes the record.
    pub(crate) fn close(self, router: &Router, call: &Call, outcome: &CallOutcome) {
        let took = self.started.elapsed();
        let server = router.server_of(call);
        let (request, text) = (&call.request, call.request.raw.as_str());
        // `clean` also limits the length, so that long names of a client do not fill the queues.
        let read = |at| json::string(text, at).map(|value| clean(&value));
        let (name, uri) = (
            request.params.name.or(request.params.task_id).and_then(read),
            request.params.uri.and_then(read).map(|uri| mask::uri(&uri)),
        );
        let session = call.caller.session.map(|session| session.short());
        let id = clean(&request.id.to_string());
        let entry = AuditEntry {
            session: session.as_deref(),
            principal: match call.caller.principal {
                Principal::Anonymous => "anonymous",
            },
            client: None,
            profile: call.caller.profile.as_ref().map(|profile| profile.as_str()),
            method: request.method.as_str(),
            name: name.as_deref(),
            uri: uri.as_deref(),
            server: server.as_ref().map(|server| server.as_str()),
            outcome: outcome.result.as_str(),
            code: outcome.failure.as_ref().and_then(|failure| failure.code.as_deref()),
            request: &id,
            took,
        };
        if self.audit {
            let client = client(call);
            AuditEntry { client: client.as_deref(), ..entry }.write();
        }
        if let Some(trace) = self.trace {
            trace.end(&entry, call);
        }
    }
}

impl Trace {
    fn end(self, entry: &AuditEntry<'_>, call: &Call) {
        let is_named = matches!(call.request.method, Method::ToolsCall | Method::PromptsGet);
        let name = match entry.name.filter(|_| is_named) {
            Some(name) => format!("{} {name}", entry.method),
            None => entry.method.to_owned(),
        };
        let name_key = match call.request.method {
            Method::PromptsGet => "gen_ai.prompt.name",
            Method::ToolsCall => "gen_ai.tool.name",
            _ => "goblin.name",
        };
        let is_error = entry.code.is_some() || entry.outcome == CallResult::ToolError.as_str();
        let error = is_error.then(|| entry.code.unwrap_or(entry.outcome).to_owned());
        let attributes = [
            ("mcp.method.name", Some(entry.method)),
            (name_key, entry.name),
            ("mcp.resource.uri", entry.uri),
            ("mcp.protocol.version", Some(call.caller.dialect.as_str())),
            ("jsonrpc.request.id", Some(entry.request)),
            ("goblin.server", entry.server),
            ("goblin.session", entry.session),
            ("goblin.profile", entry.profile),
            ("goblin.outcome", Some(entry.outcome)),
            ("error.type", error.as_deref()),
        ];
        let attributes = attributes.into_iter().filter_map(|(key, value)| Some((key, value?.to_owned()))).collect();
        let Trace { spans, started, context, parent, state } = self;
        spans.push(CallSpan { context, parent, state, name, started, took: entry.took, attributes, error });
    }
}

/// Returns the name that the client sent in the handshake or in the request's `_meta`.
fn client(call: &Call) -> Option<String> {
    let name = &*call.client.introduction.name;
    // The introduction of a client without a session has only the beginning of a long name.
    if !name.is_empty() && call.caller.dialect.has_handshake() {
        return Some(clean(name));
    }
    let text = call.request.raw.as_str();
    let info = call.request.params.known_meta.client_info?;
    json::member(text, info, "name").and_then(|at| json::string(text, at)).map(|name| clean(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_recorder_exists_only_with_an_enabled_output() {
        assert!(CallRecorder::new(false, None).is_none());
        assert!(CallRecorder::new(true, None).is_some());
    }
}
