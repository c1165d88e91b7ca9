//! Renders a status as text.

use std::fmt::Write as _;

use goblin_admin::api::{Conflict, ServerStatus, Status};
use goblin_client::units::span;
use goblin_telemetry::clean;

use crate::check::table::{COUNTS, lay_out};
use crate::style::{paint_if, plural};

const RED: &str = "1;31";
const YELLOW: &str = "1;33";
const FAINT: &str = "2";
const DISABLED: &str = "disabled";
/// The units of durations.
const UNITS: [&str; 4] = [" s", " min", " h", " d"];

/// Renders a status. Cuts tables to `width`; `None` means a pipe.
pub(crate) fn render(status: &Status, place: &str, width: Option<usize>, colourful: bool) -> String {
    let mut text = head(status, place, colourful);
    for table in [activity_table(&status.servers), offer_table(&status.servers)] {
        if table.len() > 1 {
            text.push('\n');
            text.push_str(&lay_out(&table, width, colourful));
        }
    }
    let notes = notes(status, colourful);
    if !notes.is_empty() {
        text.push('\n');
        text.push_str(&notes);
    }
    text
}

fn head(status: &Status, place: &str, colourful: bool) -> String {
    let Status { version, pid, configuration, sessions, catalog, .. } = status;
    let up = span(status.uptime_seconds, UNITS);
    let mut text = format!("goblin {} is {}, up {up}, pid {pid}\n", clean(version), clean(&status.state));
    let mut line = |name: &str, value: String| {
        let name = paint_if(colourful, &format!("{name:13}"), FAINT);
        let _ = writeln!(text, "{name}  {value}");
    };
    line("address", place.to_owned());
    line("configuration", clean(&configuration.source));
    let reloads = match configuration.reloads {
        0 => String::new(),
        count => format!(", {}", plural(usize::try_from(count).unwrap_or(usize::MAX), "reload")),
    };
    line("in force", format!("since {}{reloads}", clean(&configuration.loaded)));
    for problem in configuration.problem.iter().flat_map(|problem| problem.lines()) {
        line("rejected", paint_if(colourful, &clean(problem), RED));
    }
    line("servers", server_summary(&status.servers));
    let entries = &catalog.entries;
    let counts = [
        (entries.tools, "tool"),
        (entries.prompts, "prompt"),
        (entries.resources, "resource"),
        (entries.templates, "template"),
    ];
    line("catalog", counts.map(|(count, noun)| plural(count, noun)).join(", "));
    let open = plural(sessions.in_flight, "open request");
    line("clients", format!("{}, {}, {open}", plural(sessions.total, "session"), plural(sessions.streams, "stream")));
    line("subscriptions", status.subscriptions.to_string());
    let resident = status.process.resident_bytes.map(|bytes| format!("{} MiB of memory", bytes >> 20));
    let descriptors = status.process.open_descriptors.map(|count| format!("{count} open descriptors"));
    let process: Vec<_> = resident.into_iter().chain(descriptors).collect();
    if !process.is_empty() {
        line("process", process.join(", "));
    }
    text
}

/// Counts the servers by state.
fn server_summary(servers: &[ServerStatus]) -> String {
    let count = |state: &str| servers.iter().filter(|server| server.state == state).count();
    let enabled = servers.len() - count(DISABLED);
    let others = ["starting", "failed", DISABLED].map(|state| (count(state), state));
    let others = others.iter().filter(|(count, _)| *count > 0).map(|(count, state)| format!(", {count} {state}"));
    format!("{} of {enabled} ready{}", count("ready"), others.collect::<String>())
}

fn activity_table(servers: &[ServerStatus]) -> Vec<Vec<String>> {
    let [p50, p95, calls, errors, open, restarts, _] = COUNTS;
    let head = ["SERVER", "STATE", p50, p95, calls, errors, open, restarts].map(str::to_owned).to_vec();
    let row = |server: &ServerStatus| {
        let mut row = vec![clean(&server.id), clean(&server.state)];
        if server.state != DISABLED {
            let ServerStatus { calls, latency, in_flight, restarts, .. } = server;
            row.extend([latency.p50_ms, latency.p95_ms].map(milliseconds));
            row.extend([calls.total(), calls.failed()].map(|count| count.to_string()));
            row.extend([in_flight.to_string(), restarts.to_string()]);
        }
        row
    };
    [head].into_iter().chain(servers.iter().map(row)).collect()
}

/// Returns the table of what each server offers. Servers that never connected are left out.
fn offer_table(servers: &[ServerStatus]) -> Vec<Vec<String>> {
    let head = ["SERVER", "ERA", "PROTOCOL", "TOOLS", "PROMPTS", "RESOURCES", COUNTS[6], "SOFTWARE"];
    let row = |server: &ServerStatus| {
        let protocol = server.protocol.as_deref()?;
        let era = server.era.as_deref().unwrap_or_default();
        let mut row = vec![clean(&server.id), clean(era), clean(protocol)];
        let ServerStatus { entries, subscriptions, software, .. } = server;
        let counts = [entries.tools, entries.prompts, entries.resources, *subscriptions];
        row.extend(counts.map(|count| count.to_string()));
        row.push(clean(software));
        Some(row)
    };
    [head.map(str::to_owned).to_vec()].into_iter().chain(servers.iter().filter_map(row)).collect()
}

/// Renders the messages below the tables. They are never cut.
fn notes(status: &Status, colourful: bool) -> String {
    let mut text = String::new();
    let mut note = |kind: &str, code: &str, message: String| {
        let _ = writeln!(text, "{}: {message}", paint_if(colourful, kind, code));
    };
    for server in &status.servers {
        if let Some(reason) = &server.reason {
            note("failed", RED, format!("{}: {}", clean(&server.id), clean(reason)));
        }
    }
    for server in &status.servers {
        for problem in &server.lacking {
            note("warning", YELLOW, format!("{}: {}", clean(&server.id), clean(problem)));
        }
    }
    for Conflict { kind, name, exposed } in &status.catalog.conflicts {
        let exposed: Vec<_> = exposed.iter().map(|name| clean(name)).collect();
        let (kind, name, exposed) = (clean(kind), clean(name), exposed.join(", "));
        note("warning", YELLOW, format!("several {kind}s have the name {name} and are exposed as {exposed}"));
    }
    text
}

fn milliseconds(latency: Option<f64>) -> String {
    match latency {
        None => "-".to_owned(),
        Some(latency) if latency < 100.0 => format!("{latency:.1} ms"),
        Some(latency) if latency < 10_000.0 => format!("{latency:.0} ms"),
        Some(latency) => format!("{:.0} s", latency / 1000.0),
    }
}

#[cfg(test)]
mod tests {
    use goblin_admin::api::{Calls, Entries, Latency};

    use super::*;

    fn example() -> Status {
        let busy = ServerStatus {
            id: "github".to_owned(),
            state: "ready".to_owned(),
            protocol: Some("2025-11-25".to_owned()),
            era: Some("legacy".to_owned()),
            software: "github-mcp-server 1.24.0".to_owned(),
            entries: Entries { tools: 120, prompts: 12, resources: 4321, templates: 3 },
            calls: Calls { ok: 1_234_567, error: 89, cancelled: 4, ..Calls::default() },
            latency: Latency { count: 9, p50_ms: Some(12.34), p95_ms: Some(12_345.6), ..Latency::default() },
            restarts: 3,
            ..ServerStatus::default()
        };
        let broken = ServerStatus {
            id: "broken".to_owned(),
            state: "failed".to_owned(),
            reason: Some("it is \u{1b}gone".to_owned()),
            ..ServerStatus::default()
        };
        let off = ServerStatus { id: "off".to_owned(), state: "disabled".to_owned(), ..ServerStatus::default() };
        Status { servers: vec![busy, broken, off], uptime_seconds: 3725, ..Status::default() }
    }

    #[test]
    fn a_status_fits_80_columns_and_is_plain_in_a_pipe() {
        let text = render(&example(), "http://127.0.0.1:3000/mcp", Some(80), false);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        for fragment in [
            "up 1 h 2 min",
            "1 of 2 ready, 1 failed, 1 disabled",
            "github  ready     12.3 ms  12 s  1234660      89     0         3\n",
            "github  legacy  2025-11-25    120       12       4321     0  github-mcp-serve",
            "off     disabled\n",
            "failed: broken: it is gone\n",
        ] {
            assert!(text.contains(fragment), "{fragment}:\n{text}");
        }
        assert!(render(&example(), "", None, true).contains("\x1b[1;31mfailed  \x1b[0m"));
    }

    #[test]
    fn durations_have_two_units() {
        let spans = [0, 59, 61, 3600, 90_000].map(|seconds| span(seconds, UNITS));
        assert_eq!(spans, ["0 s", "59 s", "1 min 1 s", "1 h 0 min", "1 d 1 h"]);
    }
}
