//! Draws the side panel.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use crate::state::Pane;
use crate::state::detail::{self, Detail};
use crate::view::framed;
use crate::view::text::{fit, pad, wrap};
use crate::view::theme::Theme;

const LABEL: usize = 12;

/// Draws the side panel. Returns its maximum scroll position.
pub(crate) fn draw(frame: &mut Frame<'_>, area: Rect, pane: Pane, detail: &Detail, theme: Theme) -> usize {
    let title = fit(&detail.title, usize::from(area.width).saturating_sub(4));
    let mut block = framed(&title, theme);
    if pane.is_focused {
        block = block.border_style(theme.title());
    }
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let lines = lines(detail, usize::from(inner.width), theme);
    let most = lines.len().saturating_sub(usize::from(inner.height));
    let scroll = pane.scroll.min(most);
    let shown: Vec<_> = lines.into_iter().skip(scroll).take(usize::from(inner.height)).collect();
    frame.render_widget(Paragraph::new(shown), inner);
    draw_scroll(frame, inner, scroll, most, if pane.is_focused { "j" } else { "l" }, theme);
    most
}

/// Marks on the lower border of `inner` that there is more text, and names the key that scrolls.
pub(crate) fn draw_scroll(frame: &mut Frame<'_>, inner: Rect, scroll: usize, most: usize, key: &str, theme: Theme) {
    let mark = match (most, scroll) {
        (0, _) => return,
        (_, 0) => format!(" ↓ more: {key} "),
        (most, scroll) if scroll == most => " ↑ ".to_owned(),
        _ => " ↑ ↓ ".to_owned(),
    };
    let place = Rect { y: inner.bottom(), height: 1, ..inner };
    frame.render_widget(Line::styled(mark, theme.title()).right_aligned(), place);
}

fn lines(detail: &Detail, room: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for line in &detail.lines {
        match line {
            detail::Line::Heading(words) => {
                lines.push(Line::default());
                lines.push(Line::styled(words.clone(), theme.title()));
            }
            detail::Line::Field(label, value) => {
                for (at, part) in wrap(value, room.saturating_sub(LABEL)).into_iter().enumerate() {
                    let label = if at == 0 { label } else { "" };
                    lines.push(Line::from(vec![Span::styled(pad(label, LABEL, false), theme.dim()), Span::raw(part)]));
                }
            }
            detail::Line::Text(words) => lines.extend(wrap(words, room).into_iter().map(Line::from)),
        }
    }
    lines
}
