//! Defines every metric: its name, help, labels and source.
//!
//! A [`Reading`] is a snapshot for one scrape. Counters are atomics at the place of the event. Gauges such as sessions
//! and open calls are read at the scrape, so no value is stored twice. Labels hold server ids, names that servers list,
//! and values of closed enums, never client input.

use std::fmt::Error;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use goblin_config::ServerId;
use goblin_wire::Mime;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::clean;
use crate::meter::{Durations, Meter, MethodLabel, ReadStatus, RequestOutcome};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A snapshot of the gateway's state.
#[derive(Debug)]
pub struct Reading {
    pub started: SystemTime,
    /// The count of each kind of event.
    pub events: Vec<(&'static str, u64)>,
    /// The count of each limit that was reached.
    pub limits: Vec<(&'static str, u64)>,
    /// The reserved bytes by kind of buffer.
    pub memory: Vec<(&'static str, usize)>,
    pub max_memory: usize,
    pub sessions: usize,
    pub streams: usize,
    pub requests_in_flight: usize,
    pub subscriptions: usize,
    /// The number of resource updates by fate: delivered, coalesced or dropped.
    pub updates: [(&'static str, u64); 3],
    pub updates_waiting: usize,
    /// The number of served list pages by source: ready-made or built on request.
    pub pages: [(&'static str, u64); 2],
    pub overhead: Histogram,
    /// The number of catalog entries by kind.
    pub catalog: [(&'static str, usize); 4],
    pub servers: Vec<ServerReading>,
    pub process: ProcessReading,
}

#[derive(Debug)]
pub struct ServerReading {
    pub id: ServerId,
    /// One of [`STATES`].
    pub state: &'static str,
    pub requests_in_flight: usize,
    /// The number of clients with their own connection. `None` if clients share one.
    pub own_links: Option<usize>,
    pub meter: Arc<Meter>,
}

/// The states of a server.
pub(crate) const STATES: [&str; 3] = ["ready", "starting", "failed"];

/// A snapshot of [`Durations`]: the sum in seconds, and each bucket with its bound and count.
#[derive(Debug, Default)]
pub struct Histogram {
    pub sum: f64,
    pub buckets: Vec<(f64, u64)>,
}

impl From<&Durations> for Histogram {
    fn from(durations: &Durations) -> Histogram {
        Histogram { sum: durations.sum(), buckets: durations.buckets() }
    }
}

/// Measurements of the process by the operating system. `None` if the system does not provide them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessReading {
    pub resident_bytes: Option<u64>,
    pub open_descriptors: Option<u64>,
}

impl Reading {
    /// Returns the reading in the OpenMetrics text format, which Prometheus reads.
    pub fn to_text(self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("writing to a String cannot fail");
        text
    }
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct VersionLabel {
    version: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct KindLabel {
    kind: String,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct ServerLabel {
    server_id: String,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct FateLabel {
    fate: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct StateLabels {
    server_id: String,
    state: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct ToolLabels {
    server_id: String,
    tool: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct RequestLabels {
    server_id: String,
    method: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct DurationLabels {
    server_id: String,
    method: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet)]
struct ReadLabels {
    server_id: String,
    mime_type: &'static str,
    status: &'static str,
}

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        self.encode_gateway(&mut encoder)?;
        self.encode_traffic(&mut encoder)?;
        self.encode_servers(&mut encoder)?;
        self.encode_requests(&mut encoder)?;
        self.encode_process(&mut encoder)
    }
}

impl Reading {
    fn encode_gateway(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        let version = VersionLabel { version: env!("CARGO_PKG_VERSION") };
        let help = "The running version";
        encoder.encode_descriptor("goblin_build", help, None, MetricType::Info)?.encode_info(&version)?;
        let started = self.started.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let help = "When the gateway started, since the epoch";
        let mut metric =
            encoder.encode_descriptor("goblin_start_time", help, Some(&Unit::Seconds), MetricType::Gauge)?;
        metric.encode_gauge(&started)?;
        let help = "Happenings by kind, as they are logged";
        let mut family = encoder.encode_descriptor("goblin_events", help, None, MetricType::Counter)?;
        for (kind, count) in &self.events {
            counter(&mut family, &KindLabel { kind: (*kind).to_owned() }, *count)?;
        }
        let help = "How often each limit was reached";
        let mut family = encoder.encode_descriptor("goblin_limit_hits", help, None, MetricType::Counter)?;
        for (limit, count) in &self.limits {
            counter(&mut family, &LimitLabel { limit }, *count)?;
        }
        let (help, unit) = ("Bytes of the buffers that count towards gateway.maxMemory", Some(&Unit::Bytes));
        let mut family = encoder.encode_descriptor("goblin_memory_reserved", help, unit, MetricType::Gauge)?;
        for (kind, bytes) in &self.memory {
            family.encode_family(&KindLabel { kind: (*kind).to_owned() })?.encode_gauge(&wide(*bytes))?;
        }
        let help = "The effective gateway.maxMemory";
        let mut metric = encoder.encode_descriptor("goblin_memory_max", help, unit, MetricType::Gauge)?;
        metric.encode_gauge(&wide(self.max_memory))?;
        gauge(encoder, "goblin_sessions_active", "Sessions of clients", self.sessions)?;
        gauge(encoder, "goblin_streams_active", "Open streams of sessions and listeners", self.streams)?;
        gauge(encoder, "goblin_requests_in_flight", "Calls without an answer yet", self.requests_in_flight)?;
        gauge(encoder, "mcp_resource_subscriptions_active", "Subscriptions of clients", self.subscriptions)?;
        let help = "Entries that clients are offered";
        let mut family = encoder.encode_descriptor("goblin_catalog_entries", help, None, MetricType::Gauge)?;
        for (kind, count) in self.catalog {
            family.encode_family(&KindLabel { kind: kind.to_owned() })?.encode_gauge(&wide(count))?;
        }
        Ok(())
    }

    fn encode_traffic(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        let help = "What became of updates of resources on their way to clients";
        let mut family = encoder.encode_descriptor("mcp_resource_updates", help, None, MetricType::Counter)?;
        for (fate, count) in self.updates {
            counter(&mut family, &FateLabel { fate }, count)?;
        }
        gauge(encoder, "goblin_updates_waiting", "Updates that no stream has taken yet", self.updates_waiting)?;
        let help = "Pages of lists that clients were given: ready to be sent, or made first";
        let mut family = encoder.encode_descriptor("goblin_list_pages", help, None, MetricType::Counter)?;
        for (source, count) in self.pages {
            counter(&mut family, &SourceLabel { source }, count)?;
        }
        let help = "What the gateway itself adds to a call";
        let unit = Some(&Unit::Seconds);
        let mut metric = encoder.encode_descriptor("goblin_overhead", help, unit, MetricType::Histogram)?;
        let Histogram { sum, buckets } = &self.overhead;
        let count = buckets.iter().map(|(_, count)| count).sum();
        metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
    }

    fn encode_servers(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        let help = "Whether the server is connected";
        let mut family = encoder.encode_descriptor("goblin_backend_up", help, None, MetricType::Gauge)?;
        for server in &self.servers {
            family.encode_family(&server.label())?.encode_gauge(&u64::from(server.state == "ready"))?;
        }
        let help = "How the server stands: 1 for its state, 0 for the others";
        let mut family = encoder.encode_descriptor("goblin_backend_state", help, None, MetricType::Gauge)?;
        for (server, state) in self.servers.iter().flat_map(|server| STATES.map(|state| (server, state))) {
            let labels = StateLabels { server_id: server.id.to_string(), state };
            family.encode_family(&labels)?.encode_gauge(&u64::from(server.state == state))?;
        }
        let help = "Requests of clients that the server has not answered yet";
        let mut family =
            encoder.encode_descriptor("goblin_backend_requests_in_flight", help, None, MetricType::Gauge)?;
        for server in &self.servers {
            family.encode_family(&server.label())?.encode_gauge(&wide(server.requests_in_flight))?;
        }
        let help = "Clients with a connection of their own";
        let mut family = encoder.encode_descriptor("goblin_backend_client_links", help, None, MetricType::Gauge)?;
        for (server, count) in self.servers.iter().filter_map(|server| Some((server, server.own_links?))) {
            family.encode_family(&server.label())?.encode_gauge(&wide(count))?;
        }
        let help = "Starts of the server, or dials to it, after the first";
        let mut family = encoder.encode_descriptor("goblin_backend_restarts", help, None, MetricType::Counter)?;
        for server in &self.servers {
            counter(&mut family, &server.label(), server.meter.count_of_restarts())?;
        }
        Ok(())
    }

    /// Encodes the request series. Omits series with a count of 0, because most servers see few methods and outcomes.
    fn encode_requests(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        let help = "Requests of clients to a server, by how they ended";
        let mut family = encoder.encode_descriptor("mcp_requests", help, None, MetricType::Counter)?;
        for (server, asked) in self.asked() {
            for ending in RequestOutcome::ALL {
                let count = server.meter.count_of_ended(asked, *ending);
                let (server_id, method, outcome) = (server.id.to_string(), asked.as_str(), ending.as_str());
                if count > 0 {
                    counter(&mut family, &RequestLabels { server_id, method, outcome }, count)?;
                }
            }
        }
        let help = "Calls of a tool, by how they ended";
        let mut family = encoder.encode_descriptor("mcp_tool_calls", help, None, MetricType::Counter)?;
        for server in &self.servers {
            for (tool, endings) in server.meter.tools() {
                for ending in RequestOutcome::ALL.iter().filter(|ending| endings.count_of(**ending) > 0) {
                    let (server_id, outcome) = (server.id.to_string(), ending.as_str());
                    let labels = ToolLabels { server_id, tool: clean(&tool), outcome };
                    counter(&mut family, &labels, endings.count_of(*ending))?;
                }
            }
        }
        let help = "From sending a request to a server to its answer";
        let unit = Some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor("mcp_request_duration", help, unit, MetricType::Histogram)?;
        for (server, asked) in self.asked() {
            let durations = server.meter.durations(asked);
            let buckets = durations.buckets();
            let count = buckets.iter().map(|(_, count)| count).sum();
            if count > 0 {
                let labels = DurationLabels { server_id: server.id.to_string(), method: asked.as_str() };
                let mut metric = family.encode_family(&labels)?;
                metric.encode_histogram::<NoLabelSet>(durations.sum(), count, &buckets, None)?;
            }
        }
        let help = "Reads of resources, by the MIME type that the server lists";
        let mut family = encoder.encode_descriptor("mcp_resource_reads", help, None, MetricType::Counter)?;
        for server in &self.servers {
            for (mime, status) in Mime::ALL.iter().flat_map(|mime| ReadStatus::ALL.iter().map(move |it| (mime, it))) {
                let count = server.meter.count_of_reads(*mime, *status);
                let (server_id, mime_type, status) = (server.id.to_string(), mime.as_str(), status.as_str());
                if count > 0 {
                    counter(&mut family, &ReadLabels { server_id, mime_type, status }, count)?;
                }
            }
        }
        Ok(())
    }

    fn asked(&self) -> impl Iterator<Item = (&ServerReading, MethodLabel)> {
        self.servers.iter().flat_map(|server| MethodLabel::ALL.iter().map(move |asked| (server, *asked)))
    }

    fn encode_process(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        let ProcessReading { resident_bytes, open_descriptors } = self.process;
        if let Some(bytes) = resident_bytes {
            let (name, help) = ("process_resident_memory", "Memory of the gateway, without its servers");
            encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?.encode_gauge(&bytes)?;
        }
        if let Some(count) = open_descriptors {
            let (name, help) = ("process_open_fds", "Open file descriptors of the gateway");
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&count)?;
        }
        Ok(())
    }
}

impl ServerReading {
    fn label(&self) -> ServerLabel {
        ServerLabel { server_id: self.id.to_string() }
    }
}

fn counter(family: &mut MetricEncoder<'_>, labels: &impl EncodeLabelSet, count: u64) -> Result<(), Error> {
    family.encode_family(labels)?.encode_counter::<NoLabelSet, u64, f64>(&count, None)
}

fn gauge(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: usize) -> Result<(), Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&wide(value))
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::meter::FINE_BOUNDS;

    fn reading(servers: Vec<ServerReading>) -> Reading {
        Reading {
            started: UNIX_EPOCH + Duration::from_secs(5),
            events: vec![("backend_ready", 2)],
            limits: vec![("jsonDepth", 1)],
            memory: vec![("bodies", 7)],
            max_memory: 8,
            sessions: 3,
            streams: 2,
            requests_in_flight: 4,
            subscriptions: 0,
            updates: [("delivered", 5), ("coalesced", 6), ("dropped", 0)],
            updates_waiting: 1,
            pages: [("ready", 9), ("made", 1)],
            overhead: Histogram::from(&Durations::within(&FINE_BOUNDS)),
            catalog: [("tool", 1), ("prompt", 2), ("resource", 3), ("template", 4)],
            servers,
            process: ProcessReading::default(),
        }
    }

    #[test]
    fn what_was_counted_is_told_and_nothing_else() {
        let meter = Arc::new(Meter::default());
        meter.ended(MethodLabel::ToolsCall, RequestOutcome::Ok);
        meter.took(MethodLabel::ToolsCall, Duration::from_millis(3));
        meter.read(Mime::Plain, ReadStatus::Failure);
        meter.tool("say\u{202e}\"hi").ended(RequestOutcome::Error);
        meter.tool("unused");
        let id = ServerId::new("a \"b\\").expect("any printable id");
        let text =
            reading(vec![ServerReading { id, state: "ready", requests_in_flight: 1, own_links: Some(7), meter }])
                .to_text();
        for line in [
            "goblin_start_time_seconds 5.0",
            r#"goblin_events_total{kind="backend_ready"} 2"#,
            r#"goblin_limit_hits_total{limit="jsonDepth"} 1"#,
            r#"goblin_memory_reserved_bytes{kind="bodies"} 7"#,
            "goblin_memory_max_bytes 8",
            "goblin_sessions_active 3",
            "goblin_streams_active 2",
            r#"goblin_backend_up{server_id="a \"b\\"} 1"#,
            r#"goblin_backend_state{server_id="a \"b\\",state="ready"} 1"#,
            r#"goblin_backend_state{server_id="a \"b\\",state="failed"} 0"#,
            r#"mcp_tool_calls_total{server_id="a \"b\\",tool="say\"hi",outcome="error"} 1"#,
            r#"mcp_resource_updates_total{fate="coalesced"} 6"#,
            r#"goblin_list_pages_total{source="ready"} 9"#,
            "goblin_updates_waiting 1",
            "goblin_overhead_seconds_count 0",
            r#"goblin_backend_requests_in_flight{server_id="a \"b\\"} 1"#,
            r#"goblin_backend_client_links{server_id="a \"b\\"} 7"#,
            r#"mcp_requests_total{server_id="a \"b\\",method="tools/call",outcome="ok"} 1"#,
            r#"mcp_request_duration_seconds_bucket{le="0.0025",server_id="a \"b\\",method="tools/call"} 0"#,
            r#"mcp_request_duration_seconds_bucket{le="0.005",server_id="a \"b\\",method="tools/call"} 1"#,
            r#"mcp_request_duration_seconds_bucket{le="+Inf",server_id="a \"b\\",method="tools/call"} 1"#,
            r#"mcp_resource_reads_total{server_id="a \"b\\",mime_type="text/plain",status="failure"} 1"#,
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("mcp_requests_total{").count(), 1);
        assert_eq!(text.matches("mcp_tool_calls_total{").count(), 1);
        assert!(!text.contains("process_"), "what is not known is not told");
    }
}
