//! Draws a form.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use unicode_truncate::UnicodeTruncateStr;

use crate::state::form::{FieldInput, Form, FormField, FormTarget};
use crate::state::table::Tone;
use crate::view::dialog::open_dialog;
use crate::view::draw_lines;
use crate::view::text::{fit, fit_end, pad, width};
use crate::view::theme::Theme;

/// Draws the form. Returns 0, because the field with the focus decides about scrolling.
pub(crate) fn draw(frame: &mut Frame<'_>, body: Rect, form: &Form, theme: Theme) -> usize {
    let columns = body.width.saturating_sub(4).min(100);
    let room = usize::from(columns).saturating_sub(2);
    let label = form.fields.iter().map(|field| width(&field.label())).max().unwrap_or(0).min(24) + 2;
    let mut lines = Vec::new();
    if !form.about.is_empty() {
        lines.push(Line::styled(format!(" {}", fit(&form.about, room.saturating_sub(2))), theme.dim()));
        lines.push(Line::default());
    }
    if let Some(warning) = form.warning {
        lines.push(Line::styled(format!(" ▲ {warning}"), theme.tone(Tone::Warn)));
    }
    let mut focus = 0;
    for (at, field) in form.fields.iter().enumerate() {
        if at == form.at {
            focus = lines.len() + 2;
        }
        let suggestions = form.suggestion_text(at);
        lines.extend(field_lines(field, at == form.at, label, room, suggestions, theme));
    }
    if form.fields.is_empty() {
        let text = match form.target {
            FormTarget::Tool(_) => " This tool takes no arguments. Enter calls it.",
            FormTarget::Prompt(_) | FormTarget::Template(_) => " It takes no arguments.",
        };
        lines.push(Line::from(text));
    }
    if let Some(uri) = form.uri() {
        lines.push(Line::from(vec![
            Span::styled(" reads ", theme.dim()),
            Span::raw(fit_end(&goblin_telemetry::clean(&uri), room.saturating_sub(8))),
        ]));
    }
    let inner = open_dialog(frame, body, &form.title(), columns, lines.len(), theme);
    let scroll = focus.saturating_sub(usize::from(inner.height));
    draw_lines(frame, inner, lines, scroll, "Tab", theme);
    0
}

fn field_lines(
    field: &FormField,
    is_focused: bool,
    label: usize,
    room: usize,
    suggestions: Option<String>,
    theme: Theme,
) -> Vec<Line<'static>> {
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
    let (text, style) = match (&field.error, suggestions) {
        (Some(error), _) => (format!("✗ {error}"), theme.error()),
        (None, Some(suggestions)) => (suggestions, theme.key()),
        (None, None) => (field.hint.clone(), theme.dim()),
    };
    let below = format!("  {}{}", " ".repeat(label), fit(&text, room.saturating_sub(label + 2)));
    vec![Line::from(spans), Line::styled(below, style)]
}
