//! Draws one list: a header, and the rows around the selected one that fit.

use goblin_telemetry::clean;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, HighlightSpacing, Table, TableState};

use crate::state::State;
use crate::state::message::Panel;
use crate::state::table::{Column, Row, TableCell, TableSection, Tone, find};
use crate::view::text::{fit, fit_end, pad, width};
use crate::view::theme::Theme;
use crate::view::{FrameLayout, Rows, framed, open};

/// The minimum width of a growing column. If it does not fit, the last columns are hidden.
const MIN_GROWN_WIDTH: usize = 12;
/// The space between columns.
const GAP: u16 = 2;
/// The mark of the selected row.
const MARK: &str = "> ";

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
    let block = framed(&fit(&title(section, state), usize::from(area.width).saturating_sub(4)), theme);
    // The list of failures is red, so that the eye finds it first.
    let block = if section.is_failure { block.border_style(theme.tone(Tone::Bad)) } else { block };
    let inner = open(frame, area, block);
    if inner.height < 2 {
        return;
    }
    let widths = widths(section, usize::from(inner.width).saturating_sub(MARK.len()));
    let body = Rect { y: inner.y + 1, height: inner.height - 1, ..inner };
    let room = usize::from(body.height);
    let first = first_row(selected.unwrap_or(0), room, section.rows.len());
    let columns: Vec<(usize, u16)> = (0..).zip(widths).filter(|(_, width)| *width > 0).collect();
    let row = |row: &Row| {
        columns
            .iter()
            .map(|(at, width)| cell(&row.cells[*at], section.columns[*at], *width, &state.query, theme))
            .collect()
    };
    let rows = section.rows.iter().skip(first).take(room).map(row);
    let head = columns.iter().map(|(at, width)| title_cell(*at, section.columns[*at], *width, state, theme));
    let table = Table::new(rows.collect::<Vec<widgets::Row<'_>>>(), columns.iter().map(|(_, width)| *width))
        .header(head.collect())
        .column_spacing(GAP)
        .highlight_symbol(MARK)
        .highlight_spacing(HighlightSpacing::Always)
        .row_highlight_style(theme.selected());
    let mut position = TableState::new().with_selected(selected.map(|at| at - first));
    frame.render_stateful_widget(table, inner, &mut position);
    if section.rows.is_empty() {
        let (text, tone) = empty_text(state, number);
        frame.render_widget(Line::styled(format!("  {text}"), theme.tone(tone)), body);
    }
    drawn.measures.rows = drawn.measures.rows.max(room);
    drawn.rows.push(Rows { area: body, section: number, first });
}

fn title(section: &TableSection, state: &State) -> String {
    let server = state.server.as_ref().map(|server| format!(" · server {server}")).unwrap_or_default();
    let query = if state.query.is_empty() { String::new() } else { format!(" · /{}", state.query) };
    let level = match state.panel {
        Panel::Events => format!(" · {}", state.level.describe()),
        _ => String::new(),
    };
    let live = match state.panel {
        Panel::Events | Panel::Calls if state.follows_newest() => " · following",
        Panel::Events | Panel::Calls => " · g follows",
        _ => "",
    };
    format!("{}{level}{server}{query}{live}", section.title)
}

/// Returns the text of a list without rows: the reason, or what the user can do.
fn empty_text(state: &State, section: usize) -> (String, Tone) {
    if let Some(reason) = state.panel.feed().and_then(|feed| state.data.unreadable.get(&feed)) {
        return (clean(reason), Tone::Warn);
    }
    let text = match (&state.server, state.panel) {
        _ if !state.query.is_empty() => "nothing matches; Esc shows all",
        _ if state.data.status.is_none() => "waiting for the gateway",
        (_, Panel::Calls) if state.failed_only => "no call has failed; F shows all calls",
        (Some(_), _) => "nothing of this server; Esc shows all",
        (None, Panel::Overview | Panel::Servers) => "no server is configured; goblin add NAME -- COMMAND adds one",
        (None, Panel::Tools) => "no server offers a tool",
        (None, Panel::Prompts) => "no server offers a prompt",
        (None, Panel::Resources) if section > 0 => "no server offers a template",
        (None, Panel::Resources) => "no server offers a resource",
        (None, Panel::Subscriptions) => "no client subscribes to a resource",
        (None, Panel::Sessions) => "no client is connected",
        (None, Panel::Calls) => "no call has ended yet",
        (None, Panel::Events) => "no event of this level; v shows others",
    };
    (text.to_owned(), Tone::Dim)
}

/// Returns the first visible row. The selected row is in the middle, except near the ends.
fn first_row(selected: usize, room: usize, count: usize) -> usize {
    selected.saturating_sub(room / 2).min(count.saturating_sub(room))
}

/// Returns the width of each column. A hidden column has width 0.
fn widths(section: &TableSection, room: usize) -> Vec<u16> {
    let natural: Vec<usize> = section
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let widest = section.rows.iter().map(|row| width(&row.cells[at].text)).max().unwrap_or(0);
            // The title needs one more column for the sort mark.
            widest.max(width(column.title) + 1).min(column.max)
        })
        .collect();
    let mut shown = section.columns.len();
    loop {
        let part = &section.columns[..shown];
        let fixed: usize = part.iter().zip(&natural).filter(|(column, _)| !column.grows).map(|(_, own)| own).sum();
        let growing: Vec<usize> = (0..shown).filter(|at| part[*at].grows).collect();
        let gaps = usize::from(GAP) * shown.saturating_sub(1);
        let left = room.saturating_sub(fixed + gaps);
        if shown == 1 || (fixed + gaps <= room && left >= growing.len() * MIN_GROWN_WIDTH) {
            let mut widths: Vec<usize> = natural.iter().map(|own| (*own).min(room)).collect();
            widths[shown..].fill(0);
            share(&growing, &natural, left, &mut widths);
            return widths.into_iter().map(|width| u16::try_from(width).unwrap_or(u16::MAX)).collect();
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

fn title_cell(at: usize, column: Column, columns: u16, state: &State, theme: Theme) -> Line<'static> {
    let sort = state.sorted();
    let mark = match (sort.column == Some(at), sort.is_reversed) {
        (true, false) => "▲",
        (true, true) => "▼",
        (false, _) => "",
    };
    Line::styled(pad(&format!("{}{mark}", column.title), columns.into(), column.is_number), theme.dim())
}

fn cell(cell: &TableCell, column: Column, columns: u16, query: &str, theme: Theme) -> Line<'static> {
    let text = if column.keeps_end { &fit_end(&cell.text, columns.into()) } else { &cell.text };
    let text = pad(text, columns.into(), column.is_number);
    let style = theme.tone(cell.tone);
    match find(&text, query) {
        Some(found) => Line::from(vec![
            Span::styled(text[..found.start].to_owned(), style),
            Span::styled(text[found.clone()].to_owned(), theme.found()),
            Span::styled(text[found.end..].to_owned(), style),
        ]),
        None => Line::styled(text, style),
    }
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
