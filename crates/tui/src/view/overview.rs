//! Draws the overview panel: totals, servers with sparklines, and the last events.

use goblin_admin::api::{EventInfo, Status};
use goblin_client::units::bytes;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::state::State;
use crate::state::format::{clock, sparkline};
use crate::state::table::{Tone, event_text, has_failed, level_tone, rate};
use crate::view::text::{fit, pad, width};
use crate::view::theme::Theme;
use crate::view::{FrameLayout, framed, open, rows_of, table};

const NUMBERS_ROWS: u16 = 6;

/// The minimum height of a list of servers, with its border.
const MIN_LIST_ROWS: u16 = 5;

pub(crate) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme, drawn: &mut FrameLayout) {
    let heights = list_heights(state, area.height.saturating_sub(NUMBERS_ROWS));
    // Failures are above everything else.
    let before = usize::from(state.sections.first().is_some_and(|section| section.is_failure));
    let mut parts: Vec<_> = heights.into_iter().map(Constraint::Length).collect();
    parts.insert(before, Constraint::Length(NUMBERS_ROWS));
    parts.push(Constraint::Min(0));
    let areas = Layout::vertical(parts).split(area);
    for (number, part) in areas.iter().enumerate() {
        match number {
            number if number == before => draw_numbers(frame, *part, state, theme),
            number if number + 1 == areas.len() => draw_events(frame, *part, state, theme),
            number => table::draw(frame, *part, state, number - usize::from(number > before), theme, drawn),
        }
    }
}

/// Returns the height of each list of servers. Lists get the rows that they need, at most three quarters of the room.
fn list_heights(state: &State, room: u16) -> Vec<u16> {
    let mut left = room * 3 / 4;
    let count = state.sections.len();
    let height = |section: usize| {
        let later = u16::try_from(count - section - 1).unwrap_or_default() * MIN_LIST_ROWS;
        let rows = rows_of(state, section).min(left.saturating_sub(later).max(MIN_LIST_ROWS));
        left = left.saturating_sub(rows);
        rows
    };
    (0..count).map(height).collect()
}

fn draw_numbers(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let inner = open(frame, area, framed("Gateway", theme));
    let Some(status) = &state.data.status else {
        frame.render_widget(Line::styled(" waiting for the gateway", theme.dim()), inner);
        return;
    };
    let room = usize::from(inner.width);
    let lines = vec![
        traffic(state, status, room, theme),
        pairs(&gateway_numbers(status), theme),
        pairs(&catalog_numbers(status), theme),
        configuration(status, room, theme),
    ];
    frame.render_widget(Paragraph::new(lines), inner);
}

fn traffic(state: &State, status: &Status, room: usize, theme: Theme) -> Line<'static> {
    let total = state.rates.total;
    let failed_tone = if total.failed > 0.0 { Tone::Bad } else { Tone::Plain };
    let mut spans = vec![
        Span::styled(" calls/s ", theme.dim()),
        Span::styled(pad(&rate(total.calls), 7, false), theme.strong()),
        Span::styled("failed/s ", theme.dim()),
        Span::styled(pad(&rate(total.failed), 7, false), theme.tone(failed_tone)),
        Span::styled("in flight ", theme.dim()),
        Span::styled(pad(&status.sessions.in_flight.to_string(), 6, false), theme.strong()),
    ];
    let used: usize = spans.iter().map(|span| width(&span.content)).sum();
    let samples = room.saturating_sub(used + 1);
    let history = &state.rates.history;
    let curve = sparkline(history.iter().skip(history.len().saturating_sub(samples)).map(|value| Some(*value)));
    spans.push(Span::styled(curve, theme.tone(Tone::Good)));
    Line::from(spans)
}

fn gateway_numbers(status: &Status) -> Vec<(&'static str, String, Tone)> {
    let plain = |count: usize| count.to_string();
    let failed = status.servers.iter().filter(|server| has_failed(server)).count();
    let ready = status.servers.iter().filter(|server| server.state == "ready").count();
    let tone = if failed > 0 { Tone::Bad } else { Tone::Plain };
    let memory = status.process.resident_bytes.map_or_else(|| "?".to_owned(), bytes);
    vec![
        ("servers", format!("{ready} of {} ready", status.servers.len()), tone),
        ("sessions", plain(status.sessions.total), Tone::Plain),
        ("streams", plain(status.sessions.streams), Tone::Plain),
        ("subscriptions", plain(status.subscriptions), Tone::Plain),
        ("memory", memory, Tone::Plain),
    ]
}

fn catalog_numbers(status: &Status) -> Vec<(&'static str, String, Tone)> {
    let entries = status.catalog.entries;
    let conflicts = status.catalog.conflicts.len();
    let tone = if conflicts > 0 { Tone::Warn } else { Tone::Plain };
    vec![
        ("tools", entries.tools.to_string(), Tone::Plain),
        ("prompts", entries.prompts.to_string(), Tone::Plain),
        ("resources", entries.resources.to_string(), Tone::Plain),
        ("templates", entries.templates.to_string(), Tone::Plain),
        ("conflicts", conflicts.to_string(), tone),
    ]
}

fn pairs(pairs: &[(&'static str, String, Tone)], theme: Theme) -> Line<'static> {
    let mut spans = Vec::new();
    for (label, value, tone) in pairs {
        spans.push(Span::styled(format!(" {label} "), theme.dim()));
        spans.push(Span::styled(value.clone(), theme.tone(*tone).patch(theme.strong())));
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

fn configuration(status: &Status, room: usize, theme: Theme) -> Line<'static> {
    let configuration = &status.configuration;
    if let Some(problem) = &configuration.problem {
        return Line::styled(
            fit(&format!(" ✗ the configuration file is not in force: {problem}"), room),
            theme.error(),
        );
    }
    let reloads =
        if configuration.reloads > 0 { format!(", reloaded {}x", configuration.reloads) } else { String::new() };
    let text = fit(&format!("{}{reloads}", configuration.source), room.saturating_sub(16));
    Line::from(vec![Span::styled(" configuration ", theme.dim()), Span::raw(text)])
}

fn draw_events(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    if area.height < 3 {
        return;
    }
    let inner = open(frame, area, framed("Last events", theme));
    let is_selected = |server: Option<&str>| state.server.is_none() || server == state.server.as_deref();
    // Debug events are only in the events panel.
    let is_shown = |event: &&EventInfo| event.level != "debug" && is_selected(event.server.as_deref());
    let events = state.data.events.iter().filter(is_shown);
    let lines: Vec<_> = events
        .take(usize::from(inner.height))
        .map(|event| {
            let server = event.server.as_ref().map(|server| format!("{server}: ")).unwrap_or_default();
            let room = usize::from(inner.width).saturating_sub(16);
            Line::from(vec![
                Span::styled(format!(" {} ", pad(clock(&event.time), 8, false)), theme.dim()),
                Span::styled(pad(&event.level, 6, false), theme.tone(level_tone(&event.level))),
                Span::raw(fit(&format!("{server}{}", event_text(event)), room)),
            ])
        })
        .collect();
    match lines.is_empty() {
        true => frame.render_widget(Line::styled(" no events yet", theme.dim()), inner),
        false => frame.render_widget(Paragraph::new(lines), inner),
    }
}
