//! The details of a server: its state and failures first, then its log, then its numbers.

use goblin_admin::api::ServerStatus;
use goblin_admin::routes::List;
use goblin_client::units;
use goblin_config::oauth::login_command;

use crate::state::data::DashboardData;
use crate::state::detail::{Detail, Line};
use crate::state::format::plural;
use crate::state::level::Level;
use crate::state::logs::{LogLine, lines_of_server};
use crate::state::message::Feed;
use crate::state::table::{Tone, has_failed, state_cell};

/// The number of log lines in the details. `l` shows the whole log.
const LOG_LINES: usize = 12;

pub(super) fn detail(server: &ServerStatus, data: &DashboardData) -> Detail {
    let mut detail = Detail::new(&server.id);
    add_state(&mut detail, server);
    add_login(&mut detail, server, data);
    add_log(&mut detail, server, data);
    if let Some(instructions) = &server.instructions {
        detail.text("Instructions", instructions.lines().map(str::to_owned));
    }
    add_entries(&mut detail, server);
    add_calls(&mut detail, server);
    detail
}

fn add_state(detail: &mut Detail, server: &ServerStatus) {
    let state = state_cell(server);
    detail.toned("state", state.text, state.tone);
    detail.toned("reason", server.reason.as_deref().unwrap_or_default(), Tone::Bad);
    if server.stale {
        detail.toned("stale", "its entries come from an earlier connection or from the cache", Tone::Warn);
    }
    let last = server.last_error.as_ref().filter(|error| Some(&error.message) != server.reason.as_ref());
    let tone = if has_failed(server) { Tone::Bad } else { Tone::Warn };
    detail.toned("last error", last.map(|error| error.message.as_str()).unwrap_or_default(), tone);
    detail.field("failed at", server.last_error.as_ref().map(|error| error.time.as_str()).unwrap_or_default());
    detail.field("command", server.command.as_deref().unwrap_or_default());
    // A server that does not run has no transport.
    let is_path = server.url.as_deref().is_some_and(|url| url.starts_with('/'));
    let is_directory = is_path || server.transport.as_deref() == Some("files");
    detail.field(if is_directory { "directory" } else { "URL" }, server.url.as_deref().unwrap_or_default());
    detail.field("pid", server.pid.map(|pid| pid.to_string()).unwrap_or_default());
    detail.count("restarts", server.restarts);
    if !server.lacking.is_empty() {
        detail.toned_text("Defects", server.lacking.clone(), Tone::Warn);
    }
}

/// Adds the account state, and the cure of a needed login.
fn add_login(detail: &mut Detail, server: &ServerStatus, data: &DashboardData) {
    let is_needed = server.state == "login_needed";
    let login = data.login_of(&server.id);
    let is_automatic = login.is_some_and(|login| login.automatic);
    if !is_needed && login.is_none_or(|login| login.login == "none" && login.attempt.is_none()) {
        return;
    }
    detail.lines.push(Line::Heading("Login".to_owned()));
    let account = match login.map(|login| login.login.as_str()) {
        Some("logged_in") => ("logged in", Tone::Good),
        Some("none") => ("none", Tone::Dim),
        _ => ("needed", Tone::Warn),
    };
    detail.toned("account", account.0, account.1);
    if is_automatic {
        detail.field("grant", "the gateway logs in by itself");
    } else if is_needed {
        detail.field("cure", format!("press i, or run {}", login_command(&server.id)));
    }
    let Some(login) = login else { return };
    detail.toned("cause", login.reason.as_deref().unwrap_or_default(), Tone::Warn);
    if let Some(attempt) = &login.attempt {
        detail.field("last attempt", &attempt.state);
        detail.toned("failure", attempt.reason.as_deref().unwrap_or_default(), Tone::Bad);
    }
}

/// Adds the last lines of the log: events, and lines that the server wrote to stderr.
fn add_log(detail: &mut Detail, server: &ServerStatus, data: &DashboardData) {
    let lines = lines_of_server(data, &server.id, Level::Info);
    let omitted = lines.len().saturating_sub(LOG_LINES);
    let mark = if omitted > 0 {
        format!("Log and stderr (l shows {omitted} more lines)")
    } else {
        "Log and stderr".to_owned()
    };
    detail.lines.push(Line::Heading(mark));
    if let Some(reason) = data.unreadable.get(&Feed::Logs) {
        detail.lines.push(Line::Text(reason.clone(), Tone::Warn));
    }
    if lines.is_empty() {
        detail.lines.push(Line::Text("the server wrote nothing to stderr".to_owned(), Tone::Dim));
    }
    let shown = lines.into_iter().skip(omitted);
    detail.lines.extend(
        shown.map(|LogLine { time, source, text, tone }| Line::Text(format!("{time} {source:<6} {text}"), tone)),
    );
}

fn add_entries(detail: &mut Detail, server: &ServerStatus) {
    let entries = server.entries;
    detail.lines.push(Line::Heading("Connection".to_owned()));
    detail.field("transport", server.transport.as_deref().unwrap_or_default());
    detail.field("protocol", server.protocol.as_deref().unwrap_or_default());
    detail.field("era", server.era.as_deref().unwrap_or_default());
    detail.field("software", &server.software);
    detail.field("session", &server.session);
    detail.field("own links", server.client_links.map(|links| links.to_string()).unwrap_or_default());
    let counts = [entries.tools, entries.prompts, entries.resources, entries.templates];
    let counts = List::ALL.iter().zip(counts).map(|(list, count)| plural(count as u64, list.noun()));
    detail.field("offers", counts.collect::<Vec<_>>().join(", "));
    detail.count("subscribed", server.subscriptions as u64);
}

fn add_calls(detail: &mut Detail, server: &ServerStatus) {
    let calls = server.calls;
    detail.lines.push(Line::Heading("Calls".to_owned()));
    detail.count("in flight", server.in_flight as u64);
    detail.count("ok", calls.ok);
    for (label, count) in [
        ("error", calls.error),
        ("timeout", calls.timeout),
        ("unavailable", calls.unavailable),
        ("overloaded", calls.overloaded),
        ("protocol", calls.protocol),
    ] {
        detail.toned(label, count.to_string(), if count > 0 { Tone::Bad } else { Tone::Dim });
    }
    detail.count("cancelled", calls.cancelled);
    let latency = server.latency;
    let times = [("mean", latency.mean_ms), ("p50", latency.p50_ms), ("p95", latency.p95_ms), ("p99", latency.p99_ms)];
    let times = times.into_iter().filter_map(|(label, value)| Some(format!("{label} {}", units::milliseconds(value?))));
    detail.field("latency", times.collect::<Vec<_>>().join("  "));
}
