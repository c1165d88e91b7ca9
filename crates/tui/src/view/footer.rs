//! Draws the last line: the search, a notice, or the keys of the screen.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use crate::state::State;
use crate::state::dialog::Dialog;
use crate::state::form::FormTarget;
use crate::state::message::{LinkStatus, Panel};
use crate::state::table::Tone;
use crate::view::text::{fit, width};
use crate::view::theme::Theme;

/// A key, and its meaning in one word.
type Hint = (&'static str, &'static str);

/// The last hints of each panel. They are always visible.
const ALWAYS: [Hint; 2] = [("?", "help"), ("q", "quit")];

pub(crate) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let room = usize::from(area.width);
    let line = if let Some(notice) = &state.notice {
        let (mark, style) = if notice.is_error { ("✗", theme.error()) } else { ("»", theme.tone(Tone::Good)) };
        Line::styled(fit(&format!(" {mark} {}", notice.text), room), style)
    } else if let Some(dialog) = &state.dialog {
        hint_line(dialog_hints(dialog), &[], room, theme)
    } else if state.is_searching {
        Line::from(vec![
            Span::styled(format!(" /{}", fit(&state.query, room / 2)), theme.strong()),
            Span::styled(" ", theme.selected()),
            Span::styled("  Enter applies, Esc clears", theme.dim()),
        ])
    } else if let LinkStatus::Lost { reason, retry_in } = &state.link {
        let text = format!(" ✗ trying again in {} s: {reason}", retry_in.as_secs().max(1));
        Line::styled(fit(&text, room), theme.error())
    } else {
        hint_line(&panel_hints(state), &ALWAYS, room, theme)
    };
    frame.render_widget(line, area);
}

/// Returns the hints that fit, with all of `last` at the end.
fn hint_line(hints: &[Hint], last: &[Hint], room: usize, theme: Theme) -> Line<'static> {
    let columns = |(key, word): &Hint| width(key) + width(word) + 3;
    let mut left = room.saturating_sub(1 + last.iter().map(columns).sum::<usize>());
    let mut spans = vec![Span::raw(" ")];
    let fitting = hints.iter().filter(|hint| {
        let fits = columns(hint) <= left;
        left -= if fits { columns(hint) } else { 0 };
        fits
    });
    for (key, word) in fitting.collect::<Vec<_>>().into_iter().chain(last) {
        spans.push(Span::styled(*key, theme.key()));
        spans.push(Span::styled(format!(" {word}  "), theme.dim()));
    }
    Line::from(spans)
}

fn panel_hints(state: &State) -> Vec<Hint> {
    if state.pane.is_some_and(|pane| pane.is_focused) {
        return vec![("j/k", "scroll"), ("y", "copy all"), ("l", "logs"), ("Esc", "back to the list")];
    }
    let is_disabled = state.selected_server().is_some_and(|server| server.state == "disabled");
    let mut hints = vec![("Enter", if state.pane.is_some() { "into details" } else { "details" })];
    hints.extend_from_slice(match state.panel {
        Panel::Overview | Panel::Servers if is_disabled => &[("l", "logs"), ("D", "enable"), ("e", "edit config")],
        Panel::Overview | Panel::Servers => &[("l", "logs"), ("R", "restart"), ("D", "disable"), ("e", "edit config")],
        Panel::Tools => &[("c", "call")],
        Panel::Prompts => &[("c", "get")],
        Panel::Resources => &[("r", "read"), ("w", "watch")],
        Panel::Subscriptions => &[("r", "read")],
        Panel::Sessions => &[],
        Panel::Calls => &[("F", "failed only"), ("l", "logs")],
        Panel::Events => &[("v", "level"), ("l", "logs")],
    });
    hints.extend_from_slice(&[("/", "search"), ("f", "server"), (":", "jump"), ("y", "copy"), ("s", "sort")]);
    if state.server.is_some() || !state.query.is_empty() || state.failed_only && state.panel == Panel::Calls {
        hints.insert(0, ("Esc", "show all"));
    }
    hints
}

fn dialog_hints(dialog: &Dialog) -> &'static [Hint] {
    match dialog {
        Dialog::Help { .. } => &[("j/k", "scroll"), ("Esc", "close"), ("q", "close")],
        Dialog::Picker { .. } => &[("j/k", "choose"), ("Enter", "apply"), ("Esc", "cancel")],
        Dialog::Confirm { .. } => &[("y", "yes"), ("n", "no")],
        Dialog::Form(form) => match form.target {
            FormTarget::Tool(_) => {
                &[("Enter", "call"), ("Tab", "next field"), ("←→", "choose"), ("Esc", "cancel"), ("*", "required")]
            }
            FormTarget::Prompt(_) => {
                &[("Enter", "get"), ("Tab", "next field"), ("→", "suggest"), ("Esc", "cancel"), ("*", "required")]
            }
            FormTarget::Template(_) => {
                &[("Enter", "read"), ("Tab", "next field"), ("→", "suggest"), ("Esc", "cancel"), ("*", "required")]
            }
        },
        Dialog::Reader(reader) if reader.waits_for.is_some() => &[("Esc", "cancel the request")],
        Dialog::Reader(_) => &[("j/k", "scroll"), ("y", "copy"), ("Esc", "close"), ("q", "close")],
        Dialog::Logs(_) => &[
            ("j/k", "scroll"),
            ("g/G", "first/last, follow"),
            ("v", "level"),
            ("y", "copy"),
            ("Esc", "close"),
            ("q", "close"),
        ],
        Dialog::Jump(_) => &[("↑↓", "choose"), ("Enter", "go there"), ("Esc", "cancel")],
    }
}
