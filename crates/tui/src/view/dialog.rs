//! Draws the dialog in front of the panel.

use goblin_telemetry::clean;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Clear;
use unicode_truncate::UnicodeTruncateStr;

use crate::input::KEYS;
use crate::state::State;
use crate::state::dialog::{Dialog, ResultDialog};
use crate::state::form::{FieldInput, Form, FormField};
use crate::state::table::{Tone, state_cell};
use crate::view::text::{fit, pad, width, wrap};
use crate::view::theme::Theme;
use crate::view::{draw_lines, framed, open};

/// Draws the dialog. Returns its maximum scroll position.
pub(crate) fn draw(frame: &mut Frame<'_>, body: Rect, dialog: &Dialog, state: &State, theme: Theme) -> usize {
    match dialog {
        Dialog::Help { scroll } => draw_help(frame, body, *scroll, theme),
        Dialog::Picker { at } => draw_picker(frame, body, *at, state, theme),
        Dialog::Confirm { question, .. } => draw_question(frame, body, question, theme),
        Dialog::Form(form) => draw_form(frame, body, form, theme),
        Dialog::Reader(reader) => draw_reader(frame, body, reader, theme),
    }
}

/// Draws an empty frame for this many lines in the middle of `body`. Returns the inner area.
fn open_dialog(frame: &mut Frame<'_>, body: Rect, title: &str, columns: u16, rows: usize, theme: Theme) -> Rect {
    let height = u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(2);
    let (columns, rows) = (columns.min(body.width), height.min(body.height));
    let area = Rect {
        x: body.x + (body.width - columns) / 2,
        y: body.y + (body.height - rows) / 2,
        width: columns,
        height: rows,
    };
    let block = framed(&fit(title, usize::from(columns).saturating_sub(4)), theme).border_style(theme.title());
    frame.render_widget(Clear, area);
    open(frame, area, block)
}

fn draw_help(frame: &mut Frame<'_>, body: Rect, scroll: usize, theme: Theme) -> usize {
    let mut lines: Vec<_> = KEYS
        .iter()
        .map(|binding| {
            Line::from(vec![
                Span::styled(format!(" {}", pad(binding.shown, 14, false)), theme.strong()),
                Span::raw(binding.help),
            ])
        })
        .collect();
    lines.push(Line::styled(" The mouse works too: tabs, rows, the wheel.", theme.dim()));
    let inner = open_dialog(frame, body, "Keys (Esc closes)", 72, lines.len(), theme);
    draw_lines(frame, inner, lines, scroll, "j", theme)
}

fn draw_picker(frame: &mut Frame<'_>, body: Rect, at: usize, state: &State, theme: Theme) -> usize {
    let servers = state.data.servers();
    let inner = open_dialog(frame, body, "Show one server (Enter)", 56, servers.len() + 1, theme);
    let all = std::iter::once(("all servers".to_owned(), None));
    let rows = all.chain(servers.iter().map(|server| (clean(&server.id), Some(state_cell(&server.state)))));
    let lines: Vec<_> = rows
        .enumerate()
        .map(|(number, (name, cell))| {
            let mark = if number == at { "> " } else { "  " };
            let cell = cell.unwrap_or_default();
            let spans = vec![
                Span::raw(mark),
                Span::raw(pad(&name, 36, false)),
                Span::raw(" "),
                Span::styled(pad(&cell.text, 12, false), theme.tone(cell.tone)),
            ];
            let line = Line::from(spans);
            if number == at { line.style(theme.selected()) } else { line }
        })
        .collect();
    let scroll = (at + 1).saturating_sub(usize::from(inner.height));
    draw_lines(frame, inner, lines, scroll, "j", theme);
    0
}

fn draw_question(frame: &mut Frame<'_>, body: Rect, question: &str, theme: Theme) -> usize {
    let mut lines: Vec<_> = wrap(question, 54).into_iter().map(|line| Line::from(format!(" {line}"))).collect();
    lines.push(Line::default());
    lines.push(Line::styled(" y yes   n no", theme.strong()));
    let inner = open_dialog(frame, body, "Confirm", 58, lines.len(), theme);
    draw_lines(frame, inner, lines, 0, "j", theme)
}

fn draw_form(frame: &mut Frame<'_>, body: Rect, form: &Form, theme: Theme) -> usize {
    let columns = body.width.min(100);
    let room = usize::from(columns) - 2;
    let label = form.fields.iter().map(|field| width(&field.label())).max().unwrap_or(0).min(24) + 2;
    let mut lines = Vec::new();
    let mut focus = 0;
    for (at, field) in form.fields.iter().enumerate() {
        if at == form.at {
            focus = lines.len() + 2;
        }
        lines.extend(field_lines(field, at == form.at, label, room, theme));
    }
    if form.fields.is_empty() {
        lines.push(Line::from(" This tool takes no arguments."));
    }
    lines.push(Line::default());
    lines.push(Line::styled(" Enter call   Tab next field   ←→ choose   Esc cancel   * required", theme.dim()));
    let inner = open_dialog(frame, body, &format!("Call {}", clean(&form.tool)), columns, lines.len(), theme);
    let scroll = focus.saturating_sub(usize::from(inner.height));
    draw_lines(frame, inner, lines, scroll, "j", theme);
    0
}

fn field_lines(field: &FormField, is_focused: bool, label: usize, room: usize, theme: Theme) -> Vec<Line<'static>> {
    let mark = if field.is_required { "*" } else { " " };
    let pointer = if is_focused { ">" } else { " " };
    let name = Span::styled(format!("{pointer}{mark}{}", pad(&field.label(), label, false)), theme.strong());
    let entry_room = room.saturating_sub(label + 4);
    let shown = match &field.entry {
        // The cursor is at the end.
        FieldInput::Written(_) => field.shown().unicode_truncate_start(entry_room).0.to_owned(),
        FieldInput::Chosen { at: None, .. } => "‹ not set ›".to_owned(),
        FieldInput::Chosen { .. } => format!("‹ {} ›", fit(&field.shown(), entry_room.saturating_sub(4))),
    };
    let mut spans = vec![name, Span::raw(shown)];
    if is_focused {
        spans.push(Span::styled(" ", theme.selected()));
    }
    let (text, style) = match &field.error {
        Some(error) => (format!("✗ {error}"), theme.error()),
        None => (field.hint.clone(), theme.dim()),
    };
    let below = format!("  {}{}", " ".repeat(label), fit(&text, room.saturating_sub(label + 2)));
    vec![Line::from(spans), Line::styled(below, style)]
}

fn draw_reader(frame: &mut Frame<'_>, body: Rect, reader: &ResultDialog, theme: Theme) -> usize {
    let columns = body.width.saturating_sub(4);
    let room = usize::from(columns).saturating_sub(3);
    let style = theme.tone(if reader.is_error { Tone::Bad } else { Tone::Plain });
    let lines: Vec<_> = match reader.waits_for {
        Some(_) => vec![Line::styled(" waiting for the answer (Esc cancels)", theme.dim())],
        None if reader.lines.is_empty() => vec![Line::styled(" the result is empty", theme.dim())],
        None => {
            let wrapped = reader.lines.iter().flat_map(|line| wrap(line, room));
            wrapped.map(|line| Line::styled(format!(" {line}"), style)).collect()
        }
    };
    let title = if reader.is_error { format!("✗ {} failed", reader.title) } else { reader.title.clone() };
    let inner = open_dialog(frame, body, &format!("{title} (Esc closes)"), columns, lines.len(), theme);
    draw_lines(frame, inner, lines, reader.scroll, "j", theme)
}
