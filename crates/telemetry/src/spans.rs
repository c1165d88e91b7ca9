//! Finished calls as trace spans: a bounded queue, and their encoding in OTLP.
//!
//! Nothing here waits. A span that does not fit into the queue is dropped and counted.
//! `crates/engine/src/app/telemetry.rs` takes spans from the queue and sends them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use goblin_wire::trace::TraceContext;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{Event, Observe};

/// The capacity of the queue.
const MAX_QUEUED_SPANS: usize = 2048;

/// One call, from its request to its response.
#[derive(Clone, Debug)]
pub struct CallSpan {
    pub context: TraceContext,
    /// The span of the client, if the request named one.
    pub parent: Option<u64>,
    /// The `tracestate` as the client sent it.
    pub state: String,
    pub name: String,
    pub started: SystemTime,
    pub took: Duration,
    pub attributes: Vec<(&'static str, String)>,
    /// The error, if the call failed.
    pub error: Option<String>,
}

/// The sending side of the queue.
#[derive(Clone, Debug)]
pub struct Spans {
    queue: mpsc::Sender<CallSpan>,
    observe: Arc<Observe>,
}

impl Spans {
    /// Creates the queue and returns both of its ends.
    pub fn new(observe: Arc<Observe>) -> (Spans, mpsc::Receiver<CallSpan>) {
        let (queue, receiver) = mpsc::channel(MAX_QUEUED_SPANS);
        (Spans { queue, observe }, receiver)
    }

    /// Queues a span. Drops and counts it if the queue is full.
    pub fn push(&self, span: CallSpan) {
        if self.queue.try_send(span).is_err() {
            self.observe.emit(&Event::SpanDropped);
        }
    }
}

/// Encodes `spans` as the body of an OTLP request over HTTP, in JSON.
pub fn encode(spans: &[CallSpan]) -> Bytes {
    let version = env!("CARGO_PKG_VERSION");
    let spans: Vec<_> = spans.iter().map(CallSpan::to_json).collect();
    let resource = attributes(&[("service.name", "goblin".to_owned()), ("service.version", version.to_owned())]);
    let message = json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "goblin", "version": version }, "spans": spans }],
    }]});
    message.to_string().into()
}

impl CallSpan {
    fn to_json(&self) -> Value {
        // OTLP's code for the kind of span that serves a remote request.
        const SERVER: u8 = 2;
        const ERROR: u8 = 2;
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut span = json!({
            "traceId": format!("{:032x}", self.context.trace),
            "spanId": format!("{:016x}", self.context.span),
            "flags": self.context.flags,
            "name": self.name,
            "kind": SERVER,
            "startTimeUnixNano": started.as_nanos().to_string(),
            "endTimeUnixNano": (started + self.took).as_nanos().to_string(),
            "attributes": attributes(&self.attributes),
            "status": match &self.error {
                Some(error) => json!({ "code": ERROR, "message": error }),
                None => json!({}),
            },
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = format!("{parent:016x}").into();
        }
        if !self.state.is_empty() {
            span["traceState"] = self.state.as_str().into();
        }
        span
    }
}

fn attributes(pairs: &[(&'static str, String)]) -> Vec<Value> {
    pairs.iter().map(|(key, value)| json!({ "key": key, "value": { "stringValue": value } })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span() -> CallSpan {
        CallSpan {
            context: TraceContext { trace: 0x4bf9, span: 0xf067, flags: 1 },
            parent: Some(7),
            state: "a=1".to_owned(),
            name: "tools/call t".to_owned(),
            started: UNIX_EPOCH + Duration::from_secs(1),
            took: Duration::from_millis(5),
            attributes: vec![("mcp.method.name", "tools/call".to_owned())],
            error: Some("TIMEOUT".to_owned()),
        }
    }

    #[test]
    fn a_span_is_encoded_as_otlp_json() {
        let message: Value = serde_json::from_slice(&encode(&[span()])).expect("valid JSON");
        let expected = json!({
            "traceId": "00000000000000000000000000004bf9", "spanId": "000000000000f067", "parentSpanId": "0000000000000007",
            "traceState": "a=1", "flags": 1, "name": "tools/call t", "kind": 2,
            "startTimeUnixNano": "1000000000", "endTimeUnixNano": "1005000000",
            "attributes": [{ "key": "mcp.method.name", "value": { "stringValue": "tools/call" } }],
            "status": { "code": 2, "message": "TIMEOUT" },
        });
        assert_eq!(message["resourceSpans"][0]["scopeSpans"][0]["spans"], json!([expected]));
    }

    #[test]
    fn queued_spans_are_limited_and_dropped_ones_are_counted() {
        let observe = Arc::new(Observe::default());
        let (spans, _receiver) = Spans::new(Arc::clone(&observe));
        for _ in 0..MAX_QUEUED_SPANS + 3 {
            spans.push(span());
        }
        let dropped = observe.counts().into_iter().find(|(kind, _)| *kind == "span_dropped");
        assert_eq!(dropped, Some(("span_dropped", 3)));
    }
}
