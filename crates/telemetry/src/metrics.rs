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
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelValue, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::meter::{Durations, Meter, MethodLabel, ReadStatus, RequestOutcome};
use crate::refreshes::RefreshResult;

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
    /// The number of resource updates by outcome: delivered, coalesced or dropped.
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
    pub client_links: Option<usize>,
    /// The refreshes of its tokens, in the order of [`RefreshResult::ALL`].
    pub refreshes: [u64; RefreshResult::ALL.len()],
    pub meter: Arc<Meter>,
}

/// The states of a server.
pub(crate) const STATES: [&str; 5] = ["ready", "starting", "failed", "login_needed", "misconfigured"];

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
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        let help = "The running version";
        encoder.encode_descriptor("goblin_build", help, None, MetricType::Info)?.encode_info(&version)?;
        let started = self.started.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let help = "When the gateway started, since the epoch";
        let mut metric =
            encoder.encode_descriptor("goblin_start_time", help, Some(&Unit::Seconds), MetricType::Gauge)?;
        metric.encode_gauge(&started)?;
        let events = self.events.iter().map(|(kind, count)| ([("kind", *kind)], *count));
        counters(encoder, "goblin_events", "Events by kind, including those below the log level", events)?;
        let limits = self.limits.iter().map(|(limit, count)| ([("limit", *limit)], *count));
        counters(encoder, "goblin_limit_hits", "How often each limit was reached", limits)?;
        let (help, unit) = ("Bytes of the buffers that count towards gateway.maxMemory", Some(&Unit::Bytes));
        let memory = self.memory.iter().map(|(kind, bytes)| ([("kind", *kind)], to_u64(*bytes)));
        gauges(encoder, "goblin_memory_reserved", help, unit, memory)?;
        let help = "The effective gateway.maxMemory";
        let mut metric = encoder.encode_descriptor("goblin_memory_max", help, unit, MetricType::Gauge)?;
        metric.encode_gauge(&to_u64(self.max_memory))?;
        gauge(encoder, "goblin_sessions_active", "Sessions of clients", self.sessions)?;
        gauge(encoder, "goblin_streams_active", "Open streams of sessions and listeners", self.streams)?;
        gauge(encoder, "goblin_requests_in_flight", "Calls without an answer yet", self.requests_in_flight)?;
        gauge(encoder, "mcp_resource_subscriptions_active", "Subscriptions of clients", self.subscriptions)?;
        let entries = self.catalog.iter().map(|(kind, count)| ([("kind", *kind)], to_u64(*count)));
        gauges(encoder, "goblin_catalog_entries", "Entries that clients can list", None, entries)
    }

    fn encode_traffic(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        let help = "Updates of resources for clients, by outcome";
        let updates = self.updates.iter().map(|(outcome, count)| ([("outcome", *outcome)], *count));
        counters(encoder, "mcp_resource_updates", help, updates)?;
        gauge(
            encoder,
            "goblin_updates_waiting",
            "Updates that wait for a stream of their client",
            self.updates_waiting,
        )?;
        let help = "Pages of lists that clients received: ready in advance, or made on request";
        let pages = self.pages.iter().map(|(source, count)| ([("source", *source)], *count));
        counters(encoder, "goblin_list_pages", help, pages)?;
        let (help, unit) = ("Time that the gateway itself adds to a call", Some(&Unit::Seconds));
        let mut metric = encoder.encode_descriptor("goblin_overhead", help, unit, MetricType::Histogram)?;
        let Histogram { sum, buckets } = &self.overhead;
        let count = buckets.iter().map(|(_, count)| count).sum();
        metric.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
    }

    fn encode_servers(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        let servers = || self.servers.iter();
        let up = servers().map(|server| ([server.label()], u64::from(server.state == "ready")));
        gauges(encoder, "goblin_backend_up", "Whether the server is connected", None, up)?;
        let help = "The state of the server: 1 for its current state, 0 for the others";
        let states = servers()
            .flat_map(|server| STATES.map(|state| (server, state)))
            .map(|(server, state)| ([server.label(), ("state", state)], u64::from(server.state == state)));
        gauges(encoder, "goblin_backend_state", help, None, states)?;
        let help = "Requests of clients that the server has not answered yet";
        let requests = servers().map(|server| ([server.label()], to_u64(server.requests_in_flight)));
        gauges(encoder, "goblin_backend_requests_in_flight", help, None, requests)?;
        let links = servers().filter_map(|server| Some(([server.label()], to_u64(server.client_links?))));
        gauges(encoder, "goblin_backend_client_links", "Clients with a connection of their own", None, links)?;
        let restarts = servers().map(|server| ([server.label()], server.meter.restart_count()));
        let help = "Starts of the server, or dials to it, after the first";
        counters(encoder, "goblin_backend_restarts", help, restarts)?;
        let refreshes = servers().flat_map(|server| {
            let results = RefreshResult::ALL.iter().zip(server.refreshes);
            results.map(|(result, count)| ([server.label(), ("result", result.as_str())], count))
        });
        let help = "Refreshes of the tokens of a login, by result";
        counters(encoder, "goblin_oauth_refresh", help, refreshes.filter(is_nonzero))
    }

    /// Encodes the request series. Omits series with a count of 0, because most servers see few methods and outcomes.
    fn encode_requests(&self, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
        let requests = self.server_methods().flat_map(|(server, method)| {
            RequestOutcome::ALL.iter().map(move |outcome| {
                let labels = [server.label(), ("method", method.as_str()), ("outcome", outcome.as_str())];
                (labels, server.meter.outcome_count(method, *outcome))
            })
        });
        let help = "Requests of clients to a server, by outcome";
        counters(encoder, "mcp_requests", help, requests.filter(is_nonzero))?;
        let tools =
            self.servers.iter().flat_map(|server| server.meter.tools().into_iter().map(move |tool| (server, tool)));
        let calls = tools.flat_map(|(server, (tool, counts))| {
            RequestOutcome::ALL.iter().map(move |outcome| {
                let (server, label) = (server.id.to_string(), outcome.as_str().to_owned());
                let labels = [("server_id", server), ("tool", tool.to_string()), ("outcome", label)];
                (labels, counts.get(*outcome))
            })
        });
        counters(encoder, "mcp_tool_calls", "Calls of a tool, by outcome", calls.filter(is_nonzero))?;
        let (help, unit) = ("From sending a request to a server to its answer", Some(&Unit::Seconds));
        let mut family = encoder.encode_descriptor("mcp_request_duration", help, unit, MetricType::Histogram)?;
        for (server, method) in self.server_methods() {
            let Histogram { sum, buckets } = Histogram::from(server.meter.durations(method));
            let count = buckets.iter().map(|(_, count)| count).sum();
            if count > 0 {
                let labels = [server.label(), ("method", method.as_str())];
                let mut metric = family.encode_family(&labels)?;
                metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            }
        }
        let kinds = Mime::ALL.iter().flat_map(|mime| ReadStatus::ALL.iter().map(move |status| (*mime, *status)));
        let reads = self.servers.iter().flat_map(|server| {
            kinds.clone().map(move |(mime, status)| {
                let labels = [server.label(), ("mime_type", mime.as_str()), ("status", status.as_str())];
                (labels, server.meter.read_count(mime, status))
            })
        });
        let help = "Reads of resources, by the MIME type that the server lists";
        counters(encoder, "mcp_resource_reads", help, reads.filter(is_nonzero))
    }

    fn server_methods(&self) -> impl Iterator<Item = (&ServerReading, MethodLabel)> {
        self.servers.iter().flat_map(|server| MethodLabel::ALL.iter().map(move |method| (server, *method)))
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
    fn label(&self) -> (&'static str, &str) {
        ("server_id", self.id.as_str())
    }
}

/// One series of a metric: its labels, by name, and its value.
type Series<V, const N: usize> = ([(&'static str, V); N], u64);

fn is_nonzero<V, const N: usize>((_, count): &Series<V, N>) -> bool {
    *count > 0
}

fn counters<V: EncodeLabelValue, const N: usize>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    mut series: impl Iterator<Item = Series<V, N>>,
) -> Result<(), Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    series.try_for_each(|(labels, count)| {
        family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, f64>(&count, None)
    })
}

fn gauges<V: EncodeLabelValue, const N: usize>(
    encoder: &mut DescriptorEncoder,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    mut series: impl Iterator<Item = Series<V, N>>,
) -> Result<(), Error> {
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    series.try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
}

fn gauge(encoder: &mut DescriptorEncoder, name: &str, help: &str, value: usize) -> Result<(), Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&to_u64(value))
}

fn to_u64(count: usize) -> u64 {
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
            overhead: Histogram::from(&Durations::with_bounds(&FINE_BOUNDS)),
            catalog: [("tool", 1), ("prompt", 2), ("resource", 3), ("template", 4)],
            servers,
            process: ProcessReading::default(),
        }
    }

    #[test]
    fn metrics_contain_the_counted_values_and_no_others() {
        let meter = Arc::new(Meter::default());
        meter.count_outcome(MethodLabel::ToolsCall, RequestOutcome::Ok);
        meter.record_duration(MethodLabel::ToolsCall, Duration::from_millis(3));
        meter.count_read(Mime::Plain, ReadStatus::Failure);
        // Both names have the same label.
        meter.tool("say\u{202e}\"hi").add(RequestOutcome::Error);
        meter.tool("say\"hi").add(RequestOutcome::Error);
        meter.tool("unused");
        let id = ServerId::new("a \"b\\").expect("any printable id");
        let text = reading(vec![ServerReading {
            id,
            state: "ready",
            requests_in_flight: 1,
            client_links: Some(7),
            refreshes: [4, 0, 1],
            meter,
        }])
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
            r#"goblin_backend_state{server_id="a \"b\\",state="login_needed"} 0"#,
            r#"goblin_oauth_refresh_total{server_id="a \"b\\",result="refreshed"} 4"#,
            r#"goblin_oauth_refresh_total{server_id="a \"b\\",result="ended"} 1"#,
            r#"mcp_tool_calls_total{server_id="a \"b\\",tool="say\"hi",outcome="error"} 2"#,
            r#"mcp_resource_updates_total{outcome="coalesced"} 6"#,
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
            assert!(text.lines().any(|present| present == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches("mcp_requests_total{").count(), 1);
        assert_eq!(text.matches("goblin_oauth_refresh_total{").count(), 2);
        assert_eq!(text.matches("mcp_tool_calls_total{").count(), 1);
        assert!(!text.contains("process_"), "an unknown measurement is omitted");
    }
}
