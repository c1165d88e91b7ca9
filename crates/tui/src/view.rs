//! Draws the state as a frame. The view decides only about the layout.
//!
//! A frame returns the positions of its parts ([`FrameLayout`]): mouse events need them, and they limit scrolling.

pub(crate) mod details;
pub(crate) mod dialog;
pub(crate) mod footer;
pub(crate) mod form;
pub(crate) mod header;
pub(crate) mod login;
pub(crate) mod overview;
pub(crate) mod table;
pub(crate) mod text;
pub mod theme;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph};

use crate::state::State;
use crate::state::message::{Measures, Panel};
use crate::view::text::wrap;
use crate::view::theme::Theme;

/// The minimum size of the terminal. A smaller one only shows a message.
pub(crate) const MIN_COLUMNS: u16 = 80;
pub(crate) const MIN_ROWS: u16 = 24;

/// From this width on, the side panel takes a smaller share of the width.
const COMFORTABLE_COLUMNS: u16 = 110;

/// The positions of the parts of a frame.
#[derive(Clone, Debug, Default)]
pub struct FrameLayout {
    pub measures: Measures,
    pub tabs: Vec<(Rect, Panel)>,
    pub rows: Vec<Rows>,
    pub details: Option<Rect>,
}

/// The visible rows of a section.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub area: Rect,
    pub section: usize,
    /// The index of the first visible row.
    pub first: usize,
}

pub fn draw(frame: &mut Frame<'_>, state: &State, theme: Theme) -> FrameLayout {
    let area = frame.area();
    if area.width < MIN_COLUMNS || area.height < MIN_ROWS {
        too_small(frame, area);
        return FrameLayout::default();
    }
    let [head, tabs, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(area);
    let mut drawn = FrameLayout::default();
    header::draw_head(frame, head, state, theme);
    drawn.tabs = header::draw_tabs(frame, tabs, state, theme);
    draw_body(frame, body, state, theme, &mut drawn);
    footer::draw(frame, foot, state, theme);
    if let Some(dialog) = &state.dialog {
        drawn.measures.dialog = dialog::draw(frame, body, dialog, state, theme);
    }
    if let Some(scroll) = state.help {
        drawn.measures.help = dialog::draw_help(frame, body, scroll, theme);
    }
    drawn
}

fn draw_body(frame: &mut Frame<'_>, body: Rect, state: &State, theme: Theme, drawn: &mut FrameLayout) {
    let (list, pane) = match state.pane.zip(state.detail()) {
        Some((pane, detail)) => {
            let share = if body.width >= COMFORTABLE_COLUMNS { 45 } else { 55 };
            let [list, area] = Layout::horizontal([Constraint::Fill(1), Constraint::Percentage(share)]).areas(body);
            (list, Some((area, pane, detail)))
        }
        None => (body, None),
    };
    match state.panel {
        Panel::Overview => overview::draw(frame, list, state, theme, drawn),
        _ => draw_sections(frame, list, state, theme, drawn),
    }
    if let Some((area, pane, detail)) = pane {
        drawn.details = Some(area);
        drawn.measures.details = details::draw(frame, area, pane, &detail, theme);
    }
}

/// Draws the lists of the panel, one below the other.
fn draw_sections(frame: &mut Frame<'_>, area: Rect, state: &State, theme: Theme, drawn: &mut FrameLayout) {
    let parts: Vec<Rect> = match (state.sections.len(), state.panel) {
        (2, Panel::Servers) => {
            let first = Constraint::Length(rows_of(state, 0).min(area.height * 3 / 5));
            Layout::vertical([first, Constraint::Fill(1)]).split(area).to_vec()
        }
        (2, _) => Layout::vertical([Constraint::Fill(3), Constraint::Fill(2)]).split(area).to_vec(),
        _ => vec![area],
    };
    for (number, part) in parts.into_iter().enumerate() {
        table::draw(frame, part, state, number, theme, drawn);
    }
}

/// Returns the height of a section with all its rows, its header and its border.
pub(crate) fn rows_of(state: &State, section: usize) -> u16 {
    let rows = state.sections.get(section).map_or(0, |section| section.rows.len().max(1));
    u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(3)
}

/// Returns a border with a title.
pub(crate) fn framed(title: &str, theme: Theme) -> Block<'static> {
    Block::bordered().border_style(theme.dim()).title(Line::styled(format!(" {title} "), theme.title()))
}

/// Draws a border. Returns the area inside of it.
pub(crate) fn open(frame: &mut Frame<'_>, area: Rect, block: Block<'_>) -> Rect {
    let inner = block.inner(area);
    frame.render_widget(block, area);
    inner
}

/// Draws the lines from `scroll` on that fit. Marks on the lower border that there are more, and names the key that
/// scrolls. Returns the maximum scroll position.
pub(crate) fn draw_lines(
    frame: &mut Frame<'_>,
    inner: Rect,
    lines: Vec<Line<'static>>,
    scroll: usize,
    key: &str,
    theme: Theme,
) -> usize {
    let max = lines.len().saturating_sub(usize::from(inner.height));
    let scroll = scroll.min(max);
    let shown: Vec<_> = lines.into_iter().skip(scroll).take(usize::from(inner.height)).collect();
    frame.render_widget(Paragraph::new(shown), inner);
    let mark = match (max, scroll) {
        (0, _) => return max,
        (_, 0) => format!(" ↓ more: {key} "),
        (max, scroll) if scroll == max => " ↑ ".to_owned(),
        _ => " ↑ ↓ ".to_owned(),
    };
    let place = Rect { y: inner.bottom(), height: 1, ..inner };
    frame.render_widget(Line::styled(mark, theme.title()).right_aligned(), place);
    max
}

fn too_small(frame: &mut Frame<'_>, area: Rect) {
    let text = [
        "The terminal is too small.".to_owned(),
        format!("It has {}x{}; goblin top needs {MIN_COLUMNS}x{MIN_ROWS}.", area.width, area.height),
        "Enlarge the window, or make its font smaller. goblin status works in any size.".to_owned(),
        "q quits.".to_owned(),
    ];
    let lines = text.iter().flat_map(|line| wrap(line, usize::from(area.width)));
    frame.render_widget(Paragraph::new(lines.map(Line::from).collect::<Vec<_>>()), area);
}

#[cfg(test)]
mod tests;
