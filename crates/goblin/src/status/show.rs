//! Renders a status as text.

use std::fmt::Write as _;

use goblin_admin::api::{Conflict, ServerStatus, Status};
use goblin_telemetry::clean;
use goblin_wire::units::{WORDS, bytes, milliseconds, span};

use crate::style::{LOGIN_NEEDED, paint_if, plural};
use crate::table::{Column, Table};

const RED: &str = "1;31";
const YELLOW: &str = "1;33";
const FAINT: &str = "2";
const DISABLED: &str = "disabled";
const MISCONFIGURED: &str = "misconfigured";

/// Renders a status. Cuts tables to `width`; `None` means a pipe.
pub(crate) fn render(status: &Status, place: &str, width: Option<usize>, colourful: bool) -> String {
    let mut text = head(status, place, colourful);
    for table in [activity_table(&status.servers), offer_table(&status.servers)] {
        if !table.is_empty() {
            text.push('\n');
            text.push_str(&table.render(width, colourful));
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
    let up = span(status.uptime_seconds, WORDS);
    let mut text = format!("goblin {} is {}, up {up}, pid {pid}\n", clean(version), clean(overall(status)));
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
    let resident = status.process.resident_bytes.map(|count| format!("{} of memory", bytes(count)));
    let descriptors = status
        .process
        .open_descriptors
        .map(|count| plural(usize::try_from(count).unwrap_or(usize::MAX), "open descriptor"));
    let process: Vec<_> = resident.into_iter().chain(descriptors).collect();
    if !process.is_empty() {
        line("process", process.join(", "));
    }
    text
}

/// Returns the state of the gateway with its counts. A gateway of an earlier version reports only the state.
fn overall(status: &Status) -> &str {
    if status.summary.is_empty() { &status.state } else { &status.summary }
}

/// Returns the state of a server in words.
fn in_words(server: &ServerStatus) -> String {
    clean(&server.state).replace('_', " ")
}

/// Counts the servers by state.
fn server_summary(servers: &[ServerStatus]) -> String {
    let count = |state: &str| servers.iter().filter(|server| in_words(server) == state).count();
    let enabled = servers.len() - count(DISABLED);
    let others = ["starting", "failed", LOGIN_NEEDED, MISCONFIGURED, DISABLED].map(|state| (count(state), state));
    let others = others.iter().filter(|(count, _)| *count > 0).map(|(count, state)| format!(", {count} {state}"));
    format!("{} of {enabled} ready{}", count("ready"), others.collect::<String>())
}

fn activity_table(servers: &[ServerStatus]) -> Table {
    let [p50, p95, calls, errors, open, restarts] =
        ["P50", "P95", "CALLS", "ERRORS", "OPEN", "RESTARTS"].map(Column::number);
    let (server, state) = (Column::text("SERVER"), Column::state("STATE"));
    let mut table = Table::new(&[server, state, p50, p95, calls, errors, open, restarts]);
    for server in servers {
        let mut row = vec![clean(&server.id), in_words(server)];
        if server.state != DISABLED && server.state != MISCONFIGURED {
            let ServerStatus { calls, latency, in_flight, restarts, .. } = server;
            let time = |latency: Option<f64>| latency.map_or_else(|| "-".to_owned(), milliseconds);
            row.extend([latency.p50_ms, latency.p95_ms].map(time));
            row.extend([calls.total(), calls.failed()].map(|count| count.to_string()));
            row.extend([in_flight.to_string(), restarts.to_string()]);
        }
        table.push(row);
    }
    table
}

/// Returns the table of what each server offers. Servers that never connected are left out.
fn offer_table(servers: &[ServerStatus]) -> Table {
    let [server, era, protocol, software] = ["SERVER", "ERA", "PROTOCOL", "SOFTWARE"].map(Column::text);
    let [tools, prompts, resources, subscriptions] = ["TOOLS", "PROMPTS", "RESOURCES", "SUBS"].map(Column::number);
    let mut table = Table::new(&[server, era, protocol, tools, prompts, resources, subscriptions, software]);
    for server in servers {
        let Some(protocol) = server.protocol.as_deref() else { continue };
        let era = server.era.as_deref().unwrap_or_default();
        let mut row = vec![clean(&server.id), clean(era), clean(protocol)];
        let ServerStatus { entries, subscriptions, software, .. } = server;
        let counts = [entries.tools, entries.prompts, entries.resources, *subscriptions];
        row.extend(counts.map(|count| count.to_string()));
        row.push(clean(software));
        table.push(row);
    }
    table
}

/// Renders the messages below the tables. They are never cut.
fn notes(status: &Status, colourful: bool) -> String {
    let mut text = String::new();
    let mut note = |kind: &str, code: &str, message: String| {
        let _ = writeln!(text, "{}: {message}", paint_if(colourful, kind, code));
    };
    for server in &status.servers {
        if let Some(reason) = &server.reason {
            let (kind, colour) = match in_words(server).as_str() {
                MISCONFIGURED => (MISCONFIGURED, RED),
                LOGIN_NEEDED => (LOGIN_NEEDED, YELLOW),
                _ => ("failed", RED),
            };
            note(kind, colour, format!("{}: {}", clean(&server.id), clean(reason)));
        }
    }
    // A server with a reason is not connected, so its entries are stale anyway.
    for server in status.servers.iter().filter(|server| server.stale && server.reason.is_none()) {
        note("stale", YELLOW, format!("{}: its entries do not come from the current connection", clean(&server.id)));
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
    fn oauth2_a_needed_login_is_counted_and_noted_with_its_command() {
        let mut status = example();
        status.servers.push(ServerStatus {
            id: "linear".to_owned(),
            state: "login_needed".to_owned(),
            reason: Some("it needs a login: nobody has logged in (run: goblin login linear)".to_owned()),
            stale: true,
            ..ServerStatus::default()
        });
        let text = render(&status, "", Some(80), false);
        for fragment in [
            "1 of 3 ready, 1 failed, 1 login needed, 1 disabled",
            "linear  login needed  ",
            "login needed: linear: it needs a login: nobody has logged in (run: goblin login linear)\n",
        ] {
            assert!(text.contains(fragment), "{fragment}:\n{text}");
        }
        assert!(!text.contains("stale"), "the reason says it:\n{text}");
        assert!(render(&status, "", None, true).contains("\x1b[1;33mlogin needed\x1b[0m: linear"));
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
            "github  ready     12 ms  12 s  1234660      89     0         3\n",
            "github  legacy  2025-11-25    120       12       4321     0  github-mcp-serve",
            "off     disabled\n",
            "failed: broken: it is gone\n",
        ] {
            assert!(text.contains(fragment), "{fragment}:\n{text}");
        }
        assert!(render(&example(), "", None, true).contains("\x1b[1;31mfailed  \x1b[0m"));
    }
}
