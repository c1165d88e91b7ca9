//! Draws the side panel.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use crate::state::Pane;
use crate::state::detail::{self, Detail};
use crate::view::text::{fit, pad, wrap};
use crate::view::theme::Theme;
use crate::view::{draw_lines, framed, open};

const LABEL: usize = 12;

/// Draws the side panel. Returns its maximum scroll position.
pub(crate) fn draw(frame: &mut Frame<'_>, area: Rect, pane: Pane, detail: &Detail, theme: Theme) -> usize {
    let title = fit(&detail.title, usize::from(area.width).saturating_sub(4));
    let mut block = framed(&title, theme);
    if pane.is_focused {
        block = block.border_style(theme.title());
    }
    let inner = open(frame, area, block);
    let lines = lines(detail, usize::from(inner.width), theme);
    draw_lines(frame, inner, lines, pane.scroll, if pane.is_focused { "j" } else { "Enter" }, theme)
}

fn lines(detail: &Detail, room: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for line in &detail.lines {
        match line {
            detail::Line::Heading(text) => {
                if !lines.is_empty() {
                    lines.push(Line::default());
                }
                lines.push(Line::styled(text.clone(), theme.title()));
            }
            detail::Line::Field(label, value, tone) => {
                for (at, part) in wrap(value, room.saturating_sub(LABEL)).into_iter().enumerate() {
                    let label = if at == 0 { label } else { "" };
                    let label = Span::styled(pad(label, LABEL, false), theme.dim());
                    lines.push(Line::from(vec![label, Span::styled(part, theme.tone(*tone))]));
                }
            }
            detail::Line::Text(text, tone) => {
                lines.extend(wrap(text, room).into_iter().map(|line| Line::styled(line, theme.tone(*tone))));
            }
        }
    }
    lines
}
