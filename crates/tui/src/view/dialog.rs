//! Draws the dialog in front of the panel.

use goblin_telemetry::clean;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

use crate::input::KEYS;
use crate::state::State;
use crate::state::dialog::{Dialog, ResultDialog};
use crate::state::logs::LogView;
use crate::state::message::Feed;
use crate::state::palette::{JumpTarget, Palette};
use crate::state::table::{Tone, state_cell};
use crate::view::text::{fit, fit_end, pad, wrap};
use crate::view::theme::Theme;
use crate::view::{draw_lines, form, framed, login, open};

/// Draws the dialog. Returns its maximum scroll position.
pub(crate) fn draw(frame: &mut Frame<'_>, body: Rect, dialog: &Dialog, state: &State, theme: Theme) -> usize {
    match dialog {
        Dialog::Picker { at } => draw_picker(frame, body, *at, state, theme),
        Dialog::Confirm { question, .. } => draw_question(frame, body, question, theme),
        Dialog::Form(form) => form::draw(frame, body, form, theme),
        Dialog::Reader(reader) => draw_reader(frame, body, reader, theme),
        Dialog::Logs(view) => draw_logs(frame, body, view, state, theme),
        Dialog::Login(login) => login::draw(frame, body, login, theme),
        Dialog::Jump(palette) => draw_palette(frame, body, palette, theme),
    }
}

/// Draws an empty frame for this many lines in the middle of `body`. Returns the inner area.
pub(super) fn open_dialog(
    frame: &mut Frame<'_>,
    body: Rect,
    title: &str,
    columns: u16,
    rows: usize,
    theme: Theme,
) -> Rect {
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

/// Draws the keys over everything else. Returns the maximum scroll position.
pub(crate) fn draw_help(frame: &mut Frame<'_>, body: Rect, scroll: usize, theme: Theme) -> usize {
    let mut lines = Vec::new();
    let mut group = "";
    for binding in &KEYS {
        if binding.group != group {
            group = binding.group;
            lines.push(Line::styled(format!(" {group}"), theme.title()));
        }
        lines.push(Line::from(vec![
            Span::styled(format!("   {}", pad(binding.shown, 14, false)), theme.key()),
            Span::raw(binding.help),
        ]));
    }
    lines.push(Line::styled(" The mouse works too: tabs, rows, the wheel.", theme.dim()));
    let inner = open_dialog(frame, body, "Keys (Esc closes)", 80, lines.len(), theme);
    draw_lines(frame, inner, lines, scroll, "j", theme)
}

/// Draws the whole log over the panel. The last lines are visible while the view follows.
fn draw_logs(frame: &mut Frame<'_>, body: Rect, view: &LogView, state: &State, theme: Theme) -> usize {
    let name = view.server.as_deref().map_or_else(|| "the gateway".to_owned(), clean);
    let mark = if view.follows { "following" } else { "G follows" };
    let title = format!("Log of {name} · {} · {mark}", state.level.describe());
    let inner = open_dialog(frame, body, &title, body.width, usize::from(body.height), theme);
    let room = usize::from(inner.width).saturating_sub(18);
    let mut lines = Vec::new();
    for line in view.lines(&state.data, state.level) {
        for (number, part) in wrap(&line.text, room).into_iter().enumerate() {
            let is_first = number == 0;
            let time = if is_first { line.time.as_str() } else { "" };
            let source = if is_first { line.source.as_str() } else { "" };
            lines.push(Line::from(vec![
                Span::styled(format!(" {} ", pad(time, 8, false)), theme.dim()),
                Span::styled(pad(source, 7, false), theme.tone(line.tone)),
                Span::styled(part, theme.tone(line.tone)),
            ]));
        }
    }
    if let Some(reason) = state.data.unreadable.get(&Feed::Logs).filter(|_| view.server.is_some()) {
        lines.push(Line::styled(format!(" {}", clean(reason)), theme.tone(Tone::Warn)));
    }
    if lines.is_empty() {
        lines.push(Line::styled(format!(" no lines yet ({})", state.level.describe()), theme.dim()));
    }
    let scroll = if view.follows { usize::MAX } else { view.scroll };
    draw_lines(frame, inner, lines, scroll, "j", theme)
}

fn draw_palette(frame: &mut Frame<'_>, body: Rect, palette: &Palette, theme: Theme) -> usize {
    let rows = usize::from(body.height).saturating_sub(4).min(20);
    let columns = body.width.saturating_sub(4).min(90);
    let inner = open_dialog(frame, body, "Jump to a panel, server, tool, prompt or resource", columns, rows, theme);
    let room = usize::from(inner.width);
    let prompt = Line::from(vec![
        Span::styled(" : ", theme.key()),
        Span::styled(fit_end(&clean(&palette.query), room.saturating_sub(6)), theme.strong()),
        Span::styled(" ", theme.selected()),
    ]);
    frame.render_widget(prompt, Rect { height: 1, ..inner });
    let list = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
    let first = (palette.at + 1).saturating_sub(usize::from(list.height));
    let line = |(at, target): (usize, &JumpTarget)| {
        let mark = if at == palette.at { "> " } else { "  " };
        let name = pad(&fit_end(&target.name, room.saturating_sub(14)), room.saturating_sub(14), false);
        let kind = Span::styled(pad(target.kind, 10, false), theme.dim());
        let line = Line::from(vec![Span::raw(mark), Span::raw(name), Span::raw("  "), kind]);
        if at == palette.at { line.style(theme.selected()) } else { line }
    };
    let lines: Vec<_> = palette.matches.iter().enumerate().skip(first).take(list.height.into()).map(line).collect();
    match lines.is_empty() {
        true => frame.render_widget(Line::styled("  nothing matches", theme.dim()), list),
        false => frame.render_widget(Paragraph::new(lines), list),
    }
    0
}

fn draw_picker(frame: &mut Frame<'_>, body: Rect, at: usize, state: &State, theme: Theme) -> usize {
    let servers = state.data.servers();
    let inner = open_dialog(frame, body, "Show one server (Enter)", 56, servers.len() + 1, theme);
    let all = std::iter::once(("all servers".to_owned(), None));
    let rows = all.chain(servers.iter().map(|server| (clean(&server.id), Some(state_cell(server)))));
    let lines: Vec<_> = rows
        .enumerate()
        .map(|(number, (name, cell))| {
            let mark = if number == at { "> " } else { "  " };
            let cell = cell.unwrap_or_default();
            let spans = vec![
                Span::raw(mark),
                Span::raw(pad(&name, 32, false)),
                Span::raw(" "),
                Span::styled(pad(&cell.text, 17, false), theme.tone(cell.tone)),
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
    lines.push(Line::from(vec![
        Span::styled(" y", theme.key()),
        Span::raw(" yes   "),
        Span::styled("n", theme.key()),
        Span::raw(" no"),
    ]));
    let inner = open_dialog(frame, body, "Confirm", 58, lines.len(), theme);
    draw_lines(frame, inner, lines, 0, "j", theme)
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
    let title = if reader.is_error { format!("✗ {}", reader.title) } else { reader.title.clone() };
    let inner = open_dialog(frame, body, &format!("{title} (Esc closes)"), columns, lines.len(), theme);
    draw_lines(frame, inner, lines, reader.scroll, "j", theme)
}
