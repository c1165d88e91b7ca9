//! Draws the first two lines: the gateway and the tabs.

use goblin_telemetry::clean;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::state::State;
use crate::state::format::span;
use crate::state::message::{LinkStatus, Panel};
use crate::state::table::Tone;
use crate::view::text::{fit, width};
use crate::view::theme::Theme;

/// The minimum width for full tab names.
const WIDE_TABS: u16 = 98;

pub(crate) fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let (text, tone) = link_text(state);
    let about = state.data.status.as_ref().map_or_else(String::new, |status| {
        let version = if status.version.is_empty() { String::new() } else { format!(" {}", status.version) };
        // The address is more useful than the pid if both do not fit.
        let pid = if area.width < WIDE_TABS { String::new() } else { format!(" · pid {}", status.pid) };
        format!("{version}{pid} · up {}", span(status.uptime_seconds))
    });
    let room = usize::from(area.width).saturating_sub(width(&text) + 3);
    let left = fit(&format!(" goblin{about} · {}", state.place), room);
    let gap = " ".repeat(usize::from(area.width).saturating_sub(width(&left) + width(&text) + 1));
    let line = Line::from(vec![
        Span::styled(left, theme.strong()),
        Span::raw(gap),
        Span::styled(text, theme.tone(tone).patch(theme.strong())),
    ]);
    frame.render_widget(line, area);
}

fn link_text(state: &State) -> (String, Tone) {
    match (&state.link, &state.data.status) {
        (LinkStatus::Live, Some(status)) => {
            let (symbol, tone) = match status.state.as_str() {
                "ready" => ("●", Tone::Good),
                "degraded" => ("✗", Tone::Bad),
                _ => ("◐", Tone::Warn),
            };
            // An older gateway sends no summary.
            let text = if status.summary.is_empty() { &status.state } else { &status.summary };
            (clean(&format!("{symbol} {text}")), tone)
        }
        (LinkStatus::Live | LinkStatus::Connecting, _) => ("◐ connecting".to_owned(), Tone::Warn),
        (LinkStatus::Lost { .. }, _) => ("✗ lost".to_owned(), Tone::Bad),
    }
}

/// Draws the tabs. Returns the position of each.
pub(crate) fn draw_tabs(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) -> Vec<(Rect, Panel)> {
    let mut spans = vec![Span::raw(" ")];
    let mut places = Vec::new();
    let mut at = area.x + 1;
    for (number, panel) in Panel::ALL.iter().copied().enumerate() {
        let title = match panel {
            Panel::Subscriptions if area.width < WIDE_TABS => "Subs",
            Panel::Resources if area.width < WIDE_TABS => "Res",
            Panel::Sessions if area.width < WIDE_TABS => "Sess",
            panel => panel.as_str(),
        };
        let is_shown = panel == state.panel;
        let text = if is_shown { format!("[{} {title}]", number + 1) } else { format!("{} {title}", number + 1) };
        let columns = u16::try_from(width(&text)).unwrap_or(u16::MAX);
        places.push((Rect::new(at, area.y, columns, 1), panel));
        spans.push(Span::styled(text, if is_shown { theme.title() } else { Style::new() }));
        spans.push(Span::raw(" "));
        at = at.saturating_add(columns + 1);
    }
    frame.render_widget(Line::from(spans), area);
    places
}
