//! Draws the last line: the search, a notice, or the keys of the screen.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use crate::state::State;
use crate::state::dialog::Dialog;
use crate::state::form::FormTarget;
use crate::state::message::{LinkStatus, Panel};
use crate::state::table::Tone;
use crate::view::text::{fit, pad, width};
use crate::view::theme::Theme;

/// A key, and its meaning in one word.
type Hint = (&'static str, &'static str);

/// The last hints of each line. They are always visible.
const ALWAYS: [Hint; 2] = [("?", "help"), ("q", "quit")];
const IN_DIALOG: [Hint; 2] = [("?", "help"), ("q", "close")];
const WHILE_WRITING: [Hint; 2] = [("F1", "help"), ("Ctrl-C", "quit")];

pub(crate) fn draw(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme) {
    let room = usize::from(area.width);
    let last: &[Hint] = match &state.dialog {
        _ if state.help.is_some() => &IN_DIALOG,
        Some(Dialog::Form(_) | Dialog::Jump(_) | Dialog::Login(_)) => &WHILE_WRITING,
        Some(_) => &IN_DIALOG,
        None if state.is_searching => &WHILE_WRITING,
        None => &ALWAYS,
    };
    // A text gets the room that the last hints leave.
    let room_of_text = room - last.iter().map(columns).sum::<usize>() - 2;
    let before = if let Some(notice) = &state.notice {
        let (mark, style) = if notice.is_error { ("✗", theme.error()) } else { ("»", theme.tone(Tone::Good)) };
        vec![Span::styled(padded(&format!("{mark} {}", notice.text), room_of_text), style)]
    } else if state.help.is_some() {
        hints_that_fit(&[("j/k", "scroll"), ("Esc", "close")], room_of_text, theme)
    } else if let Some(dialog) = &state.dialog {
        hints_that_fit(dialog_hints(dialog), room_of_text, theme)
    } else if state.is_searching {
        let mut spans = vec![
            Span::styled(format!("/{}", fit(&state.query, room / 3)), theme.strong()),
            Span::styled(" ", theme.selected()),
            Span::raw(" "),
        ];
        spans.extend(hints_that_fit(&[("Enter", "apply"), ("Esc", "clear")], room / 3, theme));
        spans
    } else if let LinkStatus::Lost { reason, retry_in } = &state.link {
        let text = format!("✗ retry in {} s: {reason}", retry_in.as_secs().max(1));
        vec![Span::styled(padded(&text, room_of_text), theme.error())]
    } else {
        hints_that_fit(&panel_hints(state), room_of_text, theme)
    };
    let spans = [Span::raw(" ")].into_iter().chain(before).chain(hints_that_fit(last, room, theme));
    frame.render_widget(Line::from_iter(spans), area);
}

/// Returns the text with this width, of which the last two columns are empty.
fn padded(text: &str, room: usize) -> String {
    pad(text, room.saturating_sub(2), false) + "  "
}

fn columns((key, word): &Hint) -> usize {
    width(key) + width(word) + 3
}

fn hints_that_fit(hints: &[Hint], room: usize, theme: Theme) -> Vec<Span<'static>> {
    let mut left = room;
    let fitting = hints.iter().filter(|hint| {
        let fits = columns(hint) <= left;
        left -= if fits { columns(hint) } else { 0 };
        fits
    });
    fitting
        .flat_map(|(key, word)| [Span::styled(*key, theme.key()), Span::styled(format!(" {word}  "), theme.dim())])
        .collect()
}

fn panel_hints(state: &State) -> Vec<Hint> {
    if state.pane.is_some_and(|pane| pane.is_focused) {
        return vec![("j/k", "scroll"), ("y", "copy all"), ("l", "logs"), ("Esc", "back to the list")];
    }
    let has_state = |word| state.selected_server().is_some_and(|server| server.state == word);
    let (is_disabled, needs_login) = (has_state("disabled"), has_state("login_needed"));
    let mut hints = vec![("Enter", if state.pane.is_some() { "into details" } else { "details" })];
    hints.extend_from_slice(match state.panel {
        Panel::Overview | Panel::Servers if needs_login => &[("i", "log in"), ("l", "logs"), ("R", "restart")],
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
        Dialog::Reader(_) => &[("j/k", "scroll"), ("y", "copy"), ("Esc", "close")],
        Dialog::Logs(_) => {
            &[("j/k", "scroll"), ("g/G", "first/last, follow"), ("v", "level"), ("y", "copy"), ("Esc", "close")]
        }
        Dialog::Login(login) if login.url().is_some() => {
            &[("Ctrl-Y", "copy page"), ("Enter", "send address"), ("Esc", "cancel")]
        }
        Dialog::Login(_) => &[("Esc", "close")],
        Dialog::Jump(_) => &[("↑↓", "choose"), ("Enter", "go there"), ("Esc", "cancel")],
    }
}
