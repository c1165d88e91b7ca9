//! The columns and the cells of each list.

use std::collections::BTreeMap;

use goblin_admin::api::{CallInfo, EventInfo, ServerStatus, SessionInfo, SubscriptionInfo};
use goblin_client::units::bytes;
use goblin_telemetry::clean;

use crate::state::WatchedResource;
use crate::state::data::CatalogItem;
use crate::state::format::{clock, rounded, span, sparkline};
use crate::state::rates::ServerRate;
use crate::state::table::{Column, TableCell, Tone, rate};

const fn text(title: &'static str, max: usize) -> Column {
    Column { title, max, grows: false, is_number: false, keeps_end: false }
}

const fn number(title: &'static str) -> Column {
    Column { title, max: 9, grows: false, is_number: true, keeps_end: false }
}

const fn wide(title: &'static str, max: usize) -> Column {
    Column { title, max, grows: true, is_number: false, keeps_end: false }
}

/// Creates a growing column that keeps the end of its cells. URIs of one server share a prefix, and the newest value of
/// a sparkline is at its end.
const fn ending(title: &'static str, max: usize) -> Column {
    Column { title, max, grows: true, is_number: false, keeps_end: true }
}

pub(super) const OVERVIEW: &[Column] = &[
    text("SERVER", 16),
    text("STATE", 17),
    number("CALLS/S"),
    number("P95"),
    number("FAILED"),
    number("OPEN"),
    ending("LATENCY", 60),
];
pub(super) const SERVERS: &[Column] = &[
    text("SERVER", 24),
    text("STATE", 17),
    text("LINK", 6),
    number("TOOLS"),
    number("PROMPTS"),
    number("RES"),
    number("CALLS"),
    number("FAILED"),
    number("P95"),
    number("RESTARTS"),
    wide("DETAILS", 200),
];
pub(super) const TOOLS: &[Column] = &[text("TOOL", 40), text("SERVER", 16), wide("DESCRIPTION", 400)];
pub(super) const PROMPTS: &[Column] =
    &[text("PROMPT", 40), text("SERVER", 16), text("ARGUMENTS", 24), wide("DESCRIPTION", 400)];
pub(super) const RESOURCES: &[Column] =
    &[ending("URI", 400), text("NAME", 24), text("MIME TYPE", 20), number("SIZE"), text("UPDATES", 14)];
pub(super) const TEMPLATES: &[Column] = &[ending("PATTERN", 400), wide("DESCRIPTION", 400)];
pub(super) const SUBSCRIPTIONS: &[Column] = &[
    ending("URI", 400),
    text("CLIENT", 24),
    text("SERVER", 16),
    text("STATE", 10),
    number("DELIVERED"),
    number("COALESCED"),
];
pub(super) const SESSIONS: &[Column] = &[
    text("SESSION", 12),
    wide("CLIENT", 80),
    text("PROTOCOL", 12),
    number("REQUESTS"),
    number("IDLE"),
    number("OPEN"),
    number("SUBS"),
    number("STREAMS"),
    text("PROFILE", 12),
];
pub(super) const CALLS: &[Column] = &[
    text("TIME", 8),
    text("OUTCOME", 12),
    wide("CALL", 60),
    text("SERVER", 16),
    number("TOOK"),
    wide("ERROR", 400),
    text("CLIENT", 20),
    number("SENT"),
    number("RECEIVED"),
];
/// The kind of an event is in its details. The message has the same words.
pub(super) const EVENTS: &[Column] = &[text("TIME", 8), text("LEVEL", 5), text("SERVER", 16), wide("MESSAGE", 2000)];
pub(super) const FAILED: &[Column] = &[text("SERVER", 24), text("STATE", 17), wide("REASON", 2000)];

/// Returns a cell for the state of a server. A symbol and a word show the state even without colours.
pub(crate) fn state_cell(server: &ServerStatus) -> TableCell {
    let (symbol, tone) = match server.state.as_str() {
        "ready" => ("●", Tone::Good),
        "starting" => ("◐", Tone::Warn),
        // Its entries are always those of an earlier connection.
        "login_needed" => return TableCell::toned("○ login needed", Tone::Warn),
        "failed" | "misconfigured" => ("✗", Tone::Bad),
        _ => ("○", Tone::Dim),
    };
    match server.stale {
        true if tone == Tone::Good => TableCell::toned(&format!("{symbol} {}, stale", server.state), Tone::Warn),
        true => TableCell::toned(&format!("{symbol} {}, stale", server.state), tone),
        false => TableCell::toned(&format!("{symbol} {}", server.state), tone),
    }
}

pub(super) fn failed_row(server: &ServerStatus) -> Vec<TableCell> {
    let last = server.last_error.as_ref().map(|error| error.message.as_str());
    let reason = server.reason.as_deref().or(last).unwrap_or("the gateway reports no reason");
    let reason = if server.state == "login_needed" { login_text(reason) } else { reason.to_owned() };
    vec![TableCell::text(&server.id), state_cell(server), TableCell::text(&reason)]
}

/// Returns the reason of a needed login behind its cure, because a narrow terminal cuts the end.
fn login_text(reason: &str) -> String {
    match reason.strip_suffix(')').and_then(|reason| reason.split_once(" (run: ")) {
        Some((cause, command)) => {
            let cause = cause.strip_prefix("it needs a login: ").unwrap_or(cause);
            format!("press i, or run {command} ({cause})")
        }
        None => reason.to_owned(),
    }
}

pub(super) fn overview_row(server: &ServerStatus, rate_of: &ServerRate) -> Vec<TableCell> {
    let calls = rate_of.rate.calls;
    vec![
        TableCell::text(&server.id),
        state_cell(server),
        TableCell::ranked(rate(calls), calls),
        TableCell::milliseconds(server.latency.p95_ms),
        TableCell::failures(server.calls.failed()),
        TableCell::count(server.in_flight),
        TableCell::text(&sparkline(rate_of.latency.iter().copied())),
    ]
}

pub(super) fn server_row(server: &ServerStatus, _: &ServerRate) -> Vec<TableCell> {
    let (details, tone) = match (&server.reason, server.lacking.first()) {
        (Some(reason), _) => (reason, Tone::Bad),
        (None, Some(lacking)) => (lacking, Tone::Warn),
        (None, None) => (&server.software, Tone::Dim),
    };
    vec![
        TableCell::text(&server.id),
        state_cell(server),
        TableCell::text(server.transport.as_deref().unwrap_or_default()),
        TableCell::count(server.entries.tools),
        TableCell::count(server.entries.prompts),
        TableCell::count(server.entries.resources + server.entries.templates),
        TableCell::count(server.calls.total()),
        TableCell::failures(server.calls.failed()),
        TableCell::milliseconds(server.latency.p95_ms),
        TableCell::count(server.restarts),
        TableCell::toned(details, tone),
    ]
}

pub(super) fn tool_row(item: &CatalogItem) -> Vec<TableCell> {
    vec![TableCell::text(&item.exposed), TableCell::toned(&item.server, Tone::Dim), TableCell::text(&item.description)]
}

pub(super) fn prompt_row(item: &CatalogItem) -> Vec<TableCell> {
    vec![
        TableCell::text(&item.exposed),
        TableCell::toned(&item.server, Tone::Dim),
        TableCell::text(&item.arguments),
        TableCell::text(&item.description),
    ]
}

pub(super) fn resource_row(item: &CatalogItem, watched: &BTreeMap<String, WatchedResource>) -> Vec<TableCell> {
    let size = item.size.map_or_else(TableCell::default, |size| TableCell::ranked(bytes(size), size as f64));
    let updates = watched.get(&item.exposed).map_or_else(TableCell::default, |watched| {
        let text = match watched.updates {
            0 => "watching".to_owned(),
            updates => format!("{updates} at {}", watched.last),
        };
        TableCell::toned(&text, Tone::Good)
    });
    vec![
        TableCell::text(&item.exposed),
        TableCell::text(&item.name),
        TableCell::toned(&item.mime, Tone::Dim),
        size,
        updates,
    ]
}

pub(super) fn template_row(item: &CatalogItem) -> Vec<TableCell> {
    let text = if item.description.is_empty() { &item.name } else { &item.description };
    vec![TableCell::text(&item.exposed), TableCell::text(text)]
}

pub(super) fn subscription_row(info: &SubscriptionInfo) -> Vec<TableCell> {
    let tone = if info.state == "subscribed" { Tone::Good } else { Tone::Warn };
    vec![
        TableCell::text(&info.uri),
        TableCell::text(format!("{} …{}", info.client.name, info.client.id).trim_start()),
        TableCell::toned(&info.server, Tone::Dim),
        TableCell::toned(&info.state, tone),
        TableCell::count(info.delivered),
        TableCell::count(info.coalesced),
    ]
}

pub(super) fn session_row(info: &SessionInfo) -> Vec<TableCell> {
    let id = match info.stateless {
        true => TableCell::toned("stateless", Tone::Dim),
        false => TableCell::text(&format!("…{}", info.id)),
    };
    vec![
        id,
        TableCell::text(format!("{} {}", info.client, info.client_version).trim()),
        TableCell::text(&info.protocol),
        TableCell::count(info.requests),
        TableCell::ranked(span(info.idle_seconds), info.idle_seconds as f64),
        TableCell::count(info.in_flight),
        TableCell::count(info.subscriptions),
        TableCell::count(info.streams),
        TableCell::text(info.profile.as_deref().unwrap_or_default()),
    ]
}

/// Reports whether a call neither succeeded nor was cancelled.
pub(crate) fn is_failed_call(call: &CallInfo) -> bool {
    !matches!(call.outcome.as_str(), "ok" | "cancelled")
}

/// Returns a cell for the outcome of a call. A symbol and a word show the outcome even without colours.
fn outcome_cell(call: &CallInfo) -> TableCell {
    let (symbol, tone) = match call.outcome.as_str() {
        "ok" => ("●", Tone::Good),
        "cancelled" => ("○", Tone::Dim),
        _ => ("✗", Tone::Bad),
    };
    TableCell::toned(&format!("{symbol} {}", call.outcome.replace('_', " ")), tone)
}

pub(super) fn call_row(call: &CallInfo) -> Vec<TableCell> {
    let size = |count: u64| TableCell::ranked(bytes(count), count as f64);
    vec![
        TableCell::toned(clock(&call.time), Tone::Dim),
        outcome_cell(call),
        TableCell::text(if call.name.is_empty() { &call.method } else { &call.name }),
        TableCell::toned(call.server.as_deref().unwrap_or_default(), Tone::Dim),
        TableCell::milliseconds(Some(call.duration_ms)),
        TableCell::toned(call.error.as_deref().unwrap_or_default(), Tone::Bad),
        TableCell::text(&call.client),
        size(call.request_bytes),
        size(call.response_bytes),
    ]
}

pub(crate) fn level_tone(level: &str) -> Tone {
    match level {
        "error" => Tone::Bad,
        "warn" => Tone::Warn,
        "debug" => Tone::Dim,
        _ => Tone::Plain,
    }
}

pub(super) fn event_row(event: &EventInfo) -> Vec<TableCell> {
    let tone = level_tone(&event.level);
    vec![
        TableCell::toned(clock(&event.time), Tone::Dim),
        TableCell::toned(&event.level, tone),
        TableCell::toned(event.server.as_deref().unwrap_or_default(), Tone::Dim),
        TableCell::toned(&event_text(event), tone),
    ]
}

/// Returns the message of an event together with its fields.
pub(crate) fn event_text(event: &EventInfo) -> String {
    let fields: String = event.fields.iter().map(|(key, value)| format!(" {key}={}", rounded(value))).collect();
    clean(&(event.message.clone() + &fields))
}
