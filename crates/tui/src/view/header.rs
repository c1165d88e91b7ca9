//! Draws the first two lines and the last: the gateway, the tabs, and the keys.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::state::format::span;
use crate::state::table::Tone;
use crate::state::{LinkStatus, Panel, State};
use crate::view::text::{fit, width};
use crate::view::theme::Theme;

/// The minimum width for full tab names.
const WIDE_TABS: u16 = 95;

pub(crate) fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let (text, tone) = link_text(state);
    let about = state.data.status.as_ref().map_or_else(String::new, |status| {
        let version = if status.version.is_empty() { String::new() } else { format!(" {}", status.version) };
        format!("{version} · pid {} · up {}", status.pid, span(status.uptime_seconds))
    });
    let room = usize::from(area.width).saturating_sub(width(&text) + 3);
    let left = fit(&format!(" goblin{about} · {}", state.place), room);
    let gap = " ".repeat(usize::from(area.width).saturating_sub(width(&left) + width(&text) + 1));
    let line =
        Line::from(vec![Span::styled(left, theme.strong()), Span::raw(gap), Span::styled(text, theme.tone(tone))]);
    frame.render_widget(line, area);
}

fn link_text(state: &State) -> (String, Tone) {
    match (&state.link, &state.data.status) {
        (LinkStatus::Live, Some(status)) if status.state == "ready" => ("● ready".to_owned(), Tone::Good),
        (LinkStatus::Live, Some(status)) => (format!("◐ {}", status.state), Tone::Warn),
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

pub(crate) fn draw_foot(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let room = usize::from(area.width);
    let line = if state.is_searching {
        Line::from(vec![
            Span::styled(format!(" /{}", fit(&state.query, room / 2)), theme.strong()),
            Span::styled(" ", theme.selected()),
            Span::styled("  Enter applies, Esc clears", theme.dim()),
        ])
    } else if let Some(notice) = &state.notice {
        let (mark, style) = if notice.is_error { ("✗", theme.error()) } else { ("»", theme.tone(Tone::Good)) };
        Line::styled(fit(&format!(" {mark} {}", notice.text), room), style)
    } else if let LinkStatus::Lost { reason, retry_in } = &state.link {
        let text = format!(" ✗ trying again in {} s: {reason}", retry_in.as_secs().max(1));
        Line::styled(fit(&text, room), theme.error())
    } else {
        Line::styled(fit(hints(state.panel), room), theme.dim())
    };
    frame.render_widget(line, area);
}

fn hints(panel: Panel) -> &'static str {
    match panel {
        Panel::Overview | Panel::Servers => {
            " ? help  Enter details  / search  f server  R restart  D disable  L reload"
        }
        Panel::Tools => " ? help  Enter details  / search  f server  s sort  c call  q quit",
        Panel::Resources => " ? help  Enter details  / search  f server  s sort  r read  w watch  q quit",
        Panel::Prompts | Panel::Subscriptions | Panel::Sessions | Panel::Events => {
            " ? help  Enter details  / search  f server  s sort  q quit"
        }
    }
}
