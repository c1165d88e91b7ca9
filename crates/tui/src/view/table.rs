//! Draws one list: a header, and the rows around the selected one that fit.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use crate::state::State;
use crate::state::table::{Column, Row, TableSection, find};
use crate::view::text::{fit_end, pad, width};
use crate::view::theme::Theme;
use crate::view::{FrameLayout, Rows, framed};

/// The minimum width of a growing column. If it does not fit, the last columns are hidden.
const MIN_GROWN_WIDTH: usize = 12;
/// The space between columns.
const GAP: usize = 2;
/// The space for the selection mark before each row.
const MARK: usize = 2;

/// Draws the section with this number, and adds the position of its rows to `drawn`.
pub(crate) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    number: usize,
    theme: Theme,
    drawn: &mut FrameLayout,
) {
    let Some(section) = state.sections.get(number) else { return };
    let before: usize = state.sections[..number].iter().map(|section| section.rows.len()).sum();
    let selected = state.selected().checked_sub(before).filter(|at| *at < section.rows.len());
    let block = framed(&title(section, state), theme);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    if inner.height < 2 {
        return;
    }
    let widths = widths(section, usize::from(inner.width).saturating_sub(MARK));
    frame.render_widget(head(section.columns, &widths, state, theme), Rect { height: 1, ..inner });
    let body = Rect { y: inner.y + 1, height: inner.height - 1, ..inner };
    let room = usize::from(body.height);
    let first = first_row(selected.unwrap_or(0), room, section.rows.len());
    for (line, (at, row)) in (body.y..body.bottom()).zip(section.rows.iter().enumerate().skip(first)) {
        let is_selected = selected == Some(at);
        let place = Rect { y: line, height: 1, ..body };
        frame.render_widget(row_line(row, section.columns, &widths, &state.query, is_selected, theme), place);
    }
    if section.rows.is_empty() {
        let words = if state.query.is_empty() { "  nothing here" } else { "  nothing matches" };
        frame.render_widget(Line::styled(words, theme.dim()), body);
    }
    drawn.measures.rows = drawn.measures.rows.max(room);
    drawn.rows.push(Rows { area: body, section: number, first });
}

fn title(section: &TableSection, state: &State) -> String {
    let server = state.server.as_ref().map(|server| format!(" · server {server}")).unwrap_or_default();
    let query = if state.query.is_empty() { String::new() } else { format!(" · /{}", state.query) };
    format!("{}{server}{query}", section.title)
}

/// Returns the first visible row. The selected row is in the middle, except near the ends.
fn first_row(selected: usize, room: usize, count: usize) -> usize {
    selected.saturating_sub(room / 2).min(count.saturating_sub(room))
}

/// Returns the width of each column. A hidden column has width 0.
fn widths(section: &TableSection, room: usize) -> Vec<usize> {
    let natural: Vec<usize> = section
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let widest = section.rows.iter().map(|row| width(&row.cells[at].text)).max().unwrap_or(0);
            // The title needs one more column for the sort mark.
            widest.max(width(column.title) + 1).min(column.most)
        })
        .collect();
    let mut shown = section.columns.len();
    loop {
        let part = &section.columns[..shown];
        let fixed: usize = part.iter().zip(&natural).filter(|(column, _)| !column.grows).map(|(_, own)| own).sum();
        let growing: Vec<usize> = (0..shown).filter(|at| part[*at].grows).collect();
        let gaps = GAP * shown.saturating_sub(1);
        let left = room.saturating_sub(fixed + gaps);
        if shown == 1 || (fixed + gaps <= room && left >= growing.len() * MIN_GROWN_WIDTH) {
            let mut widths: Vec<usize> = natural.iter().map(|own| (*own).min(room)).collect();
            widths[shown..].fill(0);
            share(&growing, &natural, left, &mut widths);
            return widths;
        }
        shown -= 1;
    }
}

/// Gives each growing column its natural width, or an equal share of the room that is left.
fn share(growing: &[usize], natural: &[usize], mut left: usize, widths: &mut [usize]) {
    let mut open: Vec<usize> = growing.to_vec();
    open.sort_by_key(|at| natural[*at]);
    for (number, at) in open.iter().enumerate() {
        let part = left / (open.len() - number);
        widths[*at] = natural[*at].min(part);
        left -= widths[*at];
    }
}

fn head(columns: &[Column], widths: &[usize], state: &State, theme: Theme) -> Line<'static> {
    let sort = state.sorted();
    let mut spans = vec![Span::raw(" ".repeat(MARK))];
    for (at, (column, columns)) in columns.iter().zip(widths).enumerate().filter(|(_, (_, width))| **width > 0) {
        let mark = match (sort.column == Some(at), sort.is_reversed) {
            (true, false) => "▲",
            (true, true) => "▼",
            (false, _) => "",
        };
        spans.push(Span::styled(pad(&format!("{}{mark}", column.title), *columns, column.is_number), theme.dim()));
        spans.push(Span::raw(" ".repeat(GAP)));
    }
    Line::from(spans)
}

fn row_line(
    row: &Row,
    columns: &[Column],
    widths: &[usize],
    query: &str,
    is_selected: bool,
    theme: Theme,
) -> Line<'static> {
    let mut spans = vec![Span::raw(if is_selected { "> " } else { "  " })];
    for ((cell, column), columns) in row.cells.iter().zip(columns).zip(widths).filter(|(_, width)| **width > 0) {
        let text = if column.keeps_end { &fit_end(&cell.text, *columns) } else { &cell.text };
        let text = pad(text, *columns, column.is_number);
        let style = theme.tone(cell.tone);
        match find(&text, query) {
            Some(found) => {
                spans.push(Span::styled(text[..found.start].to_owned(), style));
                spans.push(Span::styled(text[found.clone()].to_owned(), theme.found()));
                spans.push(Span::styled(text[found.end..].to_owned(), style));
            }
            None => spans.push(Span::styled(text, style)),
        }
        spans.push(Span::raw(" ".repeat(GAP)));
    }
    let line = Line::from(spans);
    if is_selected { line.style(theme.selected()) } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_row_is_always_on_the_screen() {
        for (selected, room, count, expected) in
            [(0, 10, 5, 0), (4, 10, 5, 0), (0, 10, 100, 0), (50, 10, 100, 45), (99, 10, 100, 90), (7, 1, 9, 7)]
        {
            let first = first_row(selected, room, count);
            assert_eq!(first, expected, "{selected} of {count} in {room}");
            assert!((first..first + room).contains(&selected));
        }
    }
}
