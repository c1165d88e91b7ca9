//! Draws the dialog of a login.

use goblin_client::units;
use goblin_telemetry::clean;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear};

use crate::state::login::{LoginDialog, LoginStep};
use crate::state::table::Tone;
use crate::view::text::{fit, fit_end, width, wrap};
use crate::view::theme::Theme;
use crate::view::{draw_lines, open};

/// Draws the dialog over the whole width, without a border at the sides: the mouse can then select the whole URL.
/// Returns the maximum scroll position.
pub(crate) fn draw(frame: &mut Frame<'_>, body: Rect, login: &LoginDialog, theme: Theme) -> usize {
    let room = usize::from(body.width);
    let lines = lines(login, room, theme);
    let height = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_add(2).min(body.height);
    let area = Rect { y: body.y + (body.height - height) / 2, height, ..body };
    let title = fit(&format!("Log in to {}", clean(&login.server)), room.saturating_sub(4));
    let block = Block::new()
        .borders(Borders::TOP | Borders::BOTTOM)
        .border_style(theme.title())
        .title(Line::styled(format!(" {title} "), theme.title()));
    frame.render_widget(Clear, area);
    let inner = open(frame, area, block);
    draw_lines(frame, inner, lines, login.scroll, "↓", theme)
}

fn lines(login: &LoginDialog, room: usize, theme: Theme) -> Vec<Line<'static>> {
    let text = |text: &str, tone| {
        let style = theme.tone(tone);
        wrap(text, room.saturating_sub(2)).into_iter().map(move |line| Line::styled(format!(" {line}"), style))
    };
    match &login.step {
        LoginStep::Beginning => text("◐ the gateway asks for the login page", Tone::Warn).collect(),
        LoginStep::Done => text("● done: the gateway connects to the server with the new login", Tone::Good).collect(),
        LoginStep::Failed { reason } => text(&format!("✗ {reason}"), Tone::Bad).collect(),
        LoginStep::Waiting { url, expires_in } => {
            let mut lines: Vec<_> = text("Open this page in a browser (Ctrl-Y copies it):", Tone::Plain).collect();
            lines.push(Line::default());
            lines.extend(columns(url, room).into_iter().map(|part| Line::styled(part, theme.key())));
            lines.push(Line::default());
            let left = units::span(*expires_in, units::WORDS);
            lines.extend(text(&format!("◐ waiting for the browser, {left} left"), Tone::Warn));
            lines.push(Line::default());
            let hint = "If the browser ends on a page that cannot be shown, paste the address of that page here:";
            lines.extend(text(hint, Tone::Dim));
            lines.push(Line::from(vec![
                Span::styled(" > ", theme.key()),
                Span::raw(fit_end(&login.pasted, room.saturating_sub(6))),
                Span::styled(" ", theme.selected()),
            ]));
            if let Some(note) = &login.note {
                let (mark, tone) = if note.is_error { ("✗", Tone::Bad) } else { ("»", Tone::Good) };
                lines.extend(text(&format!("{mark} {}", note.text), tone));
            }
            lines
        }
    }
}

/// Breaks a text after each full line, without a blank or a mark.
fn columns(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for character in text.chars() {
        let line = lines.last_mut().expect("there is a line");
        let mut buffer = [0; 4];
        if width(line) + width(character.encode_utf8(&mut buffer)) > room {
            lines.push(character.to_string());
        } else {
            line.push(character);
        }
    }
    lines
}
