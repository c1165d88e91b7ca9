//! Prints rows as aligned columns. Every command with columns uses this table.
//!
//! Columns align by the width of characters on a terminal, so wide characters do not shift a line. On a terminal a long
//! cell is cut, or wrapped in a column of [`Column::wrapped`] or [`Column::message`]. In a pipe nothing is cut.
//!
//! A command that follows something prints its table in parts with [`Table::take_lines`]. A column never becomes narrower
//! again, so later rows fit the earlier ones.

use unicode_truncate::UnicodeTruncateStr;
use unicode_width::UnicodeWidthStr;

use crate::style::{LOGIN_NEEDED, paint_if, wrap};

const GAP: usize = 2;
/// The minimum width of a cut column.
const MIN_COLUMN: usize = 8;
/// The other columns leave this width to a column of messages.
const MIN_MESSAGE: usize = 30;

/// A column with its title and its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    title: &'static str,
    kind: ColumnKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    Text,
    /// Right-aligned and never narrowed.
    Number,
    /// Coloured by its word and never narrowed.
    State,
    /// The last column of a table that must show everything. Long cells continue on further lines.
    Wrapped,
    /// The last column of a table. Long cells continue on further lines, and the other columns are cut.
    Message,
}

impl ColumnKind {
    fn wraps(self) -> bool {
        matches!(self, ColumnKind::Wrapped | ColumnKind::Message)
    }
}

impl Column {
    pub(crate) const fn text(title: &'static str) -> Column {
        Column { title, kind: ColumnKind::Text }
    }

    pub(crate) const fn number(title: &'static str) -> Column {
        Column { title, kind: ColumnKind::Number }
    }

    pub(crate) const fn state(title: &'static str) -> Column {
        Column { title, kind: ColumnKind::State }
    }

    /// Returns a column whose cells are never cut. Other columns may be cut. A table has at most one, at its end.
    pub(crate) const fn message(title: &'static str) -> Column {
        Column { title, kind: ColumnKind::Message }
    }

    /// Returns a column of a table in which nothing is cut. A table has at most one, at its end.
    #[cfg_attr(not(feature = "import"), expect(dead_code, reason = "only the report of an import has such a column"))]
    pub(crate) const fn wrapped(title: &'static str) -> Column {
        Column { title, kind: ColumnKind::Wrapped }
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    /// The widths of the columns in the printed lines. Empty before the first line.
    printed: Vec<usize>,
}

impl Table {
    pub(crate) fn new(columns: &[Column]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new(), printed: Vec::new() }
    }

    /// Adds a row. The row may have fewer cells than the table has columns; further cells are ignored.
    pub(crate) fn push(&mut self, row: impl IntoIterator<Item = String>) {
        self.rows.push(row.into_iter().take(self.columns.len()).collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders the titles and the rows. `width` is the width of the terminal; `None` means a pipe.
    pub(crate) fn render(&self, width: Option<usize>, colourful: bool) -> String {
        let widths = self.widths(width);
        std::iter::once(&self.titles()).chain(&self.rows).map(|row| self.line(row, &widths, width, colourful)).collect()
    }

    /// Renders the rows since the last call, and removes them. The titles precede the first row.
    pub(crate) fn take_lines(&mut self, width: Option<usize>, colourful: bool) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let titles = self.printed.is_empty().then(|| self.titles());
        self.printed = self.widths(width);
        let rows = std::mem::take(&mut self.rows);
        titles.iter().chain(&rows).map(|row| self.line(row, &self.printed, width, colourful)).collect()
    }

    fn titles(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.title.to_owned()).collect()
    }

    /// Returns the widths of the columns. On a terminal the widest text columns shrink until the table fits.
    fn widths(&self, terminal: Option<usize>) -> Vec<usize> {
        let natural = |(index, column): (usize, &Column)| {
            let cells = self.rows.iter().filter_map(|row| row.get(index)).map(|cell| self.measure(cell));
            let printed = self.printed.get(index).copied().unwrap_or_default();
            let widest = cells.chain([column.title.width(), printed]).max().unwrap_or_default();
            if column.kind == ColumnKind::Message { widest.min(MIN_MESSAGE) } else { widest }
        };
        let mut widths: Vec<usize> = self.columns.iter().enumerate().map(natural).collect();
        let Some(terminal) = terminal.filter(|_| self.is_cut()) else { return widths };
        let gaps = GAP * widths.len().saturating_sub(1);
        let can_shrink = |index: usize, width: usize| {
            let column = &self.columns[index];
            column.kind == ColumnKind::Text && width > MIN_COLUMN.max(column.title.width())
        };
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(terminal);
        while excess > 0 {
            // Of equally wide columns the last one shrinks, because the first columns identify the row.
            let shrinkable = widths.iter().copied().enumerate().filter(|(index, width)| can_shrink(*index, *width));
            let Some((widest, _)) = shrinkable.max_by_key(|(index, width)| (*width, *index)) else { break };
            widths[widest] -= 1;
            excess -= 1;
        }
        widths
    }

    fn line(&self, row: &[String], widths: &[usize], terminal: Option<usize>, colourful: bool) -> String {
        let (mut line, mut used) = (String::new(), 0);
        for ((cell, column), wide) in row.iter().zip(&self.columns).zip(widths) {
            if column.kind.wraps() && !cell.is_empty() {
                return wrap(&line, cell, terminal);
            }
            let room = terminal.filter(|_| self.is_cut()).map_or(usize::MAX, |width| width.saturating_sub(used));
            if room == 0 {
                break;
            }
            let shown = cut(cell, room.min(*wide));
            let padding = " ".repeat(wide.saturating_sub(self.measure(&shown)).min(room.saturating_sub(shown.width())));
            match column.kind {
                ColumnKind::Number => line.extend([padding.as_str(), &shown]),
                ColumnKind::State => line.push_str(&paint_if(colourful, &(shown + &padding), colour(cell))),
                ColumnKind::Text | ColumnKind::Wrapped | ColumnKind::Message => line.extend([shown.as_str(), &padding]),
            }
            line.push_str(&" ".repeat(GAP));
            used += wide + GAP;
        }
        line.trim_end().to_owned() + "\n"
    }

    /// Reports whether long cells are cut on a terminal.
    fn is_cut(&self) -> bool {
        self.columns.last().is_none_or(|column| column.kind != ColumnKind::Wrapped)
    }

    /// Returns the width of a cell. Before a wrapped column, characters of ambiguous width count as wide, as in [`wrap`].
    fn measure(&self, cell: &str) -> usize {
        let wraps = self.columns.last().is_some_and(|column| column.kind.wraps());
        if wraps { cell.width_cjk() } else { cell.width() }
    }
}

/// Returns the text with at most `room` columns. A cut text ends with an ellipsis.
fn cut(text: &str, room: usize) -> String {
    match text.width() <= room {
        true => text.to_owned(),
        false => text.unicode_truncate(room.saturating_sub(1)).0.to_owned() + if room > 0 { "…" } else { "" },
    }
}

fn colour(state: &str) -> &'static str {
    match state {
        "ready" | "ok" => "32",
        "failed" | "misconfigured" | "error" => "1;31",
        "starting" | "tool_error" | "warn" => "33",
        LOGIN_NEEDED => "1;33",
        "info" => "39",
        _ => "2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(columns: &[Column], rows: &[&[&str]]) -> Table {
        let mut table = Table::new(columns);
        rows.iter().for_each(|row| table.push(row.iter().map(|cell| (*cell).to_owned())));
        table
    }

    #[test]
    fn use15_columns_are_aligned_and_numbers_are_right_aligned() {
        let columns =
            [Column::text("SERVER"), Column::state("STATE"), Column::number("TOOLS"), Column::text("SOFTWARE")];
        let table = table(&columns, &[&["a", "ready", "7", "x 1"], &["b", "failed"]]);
        let expected = "\
SERVER  STATE   TOOLS  SOFTWARE
a       ready       7  x 1
b       failed
";
        assert_eq!(table.render(None, false), expected);
        let coloured = table.render(None, true);
        assert!(coloured.contains("\x1b[32mready \x1b[0m      7"), "{coloured:?}");
    }

    #[test]
    fn use15_wide_characters_align() {
        let columns = [Column::text("TOOL"), Column::text("SERVER")];
        let table = table(&columns, &[&["日本語", "a"], &["e\u{301}te", "b"]]);
        assert_eq!(table.render(None, false), "TOOL    SERVER\n日本語  a\ne\u{301}te     b\n");
    }

    #[test]
    fn use6_a_table_that_is_printed_in_parts_stays_aligned() {
        let mut table = Table::new(&[Column::text("TIME"), Column::number("SIZE"), Column::text("ERROR")]);
        let mut print = |rows: &[[&str; 3]], width| {
            rows.iter().for_each(|row| table.push(row.map(str::to_owned)));
            table.take_lines(width, false)
        };
        assert_eq!(print(&[], None), "");
        assert_eq!(print(&[["t", "12 kB", ""]], None), "TIME   SIZE  ERROR\nt     12 kB\n");
        assert_eq!(print(&[["日本", "1 B", "a long text"]], Some(18)), "日本    1 B  a lo…\n");
        assert_eq!(print(&[["日本語", "1 B", ""]], None), "日本語    1 B\n");
        assert_eq!(print(&[["t", "1 B", ""]], None), "t         1 B\n");
        assert_eq!(print(&[], None), "");
    }

    #[test]
    fn use15_lines_fit_the_terminal_and_a_pipe_gets_everything() {
        let columns = [Column::text("SERVER"), Column::number("TOOLS"), Column::text("TARGET")];
        let long = "a very long 日本語 command line";
        let table = table(&columns, &[&["a server with a long name", "12", long], &["b", "1", "日本"]]);
        for width in 1..80 {
            for line in table.render(Some(width), false).lines() {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
        assert!(table.render(None, false).contains(long));
        assert_eq!(table.render(Some(37), false).lines().nth(1), Some("a server with…     12  a very long …"));
    }

    #[test]
    fn use15_a_message_is_wrapped_and_leaves_room_by_cutting_other_columns() {
        let columns = [Column::number("TOOK"), Column::text("NAME"), Column::message("ERROR")];
        let name = "a_tool_with_a_long_name_of_the_server";
        let error = "one two three four five six seven eight nine ten";
        let table = table(&columns, &[&["1 s", "echo", ""], &["2 s", name, error]]);
        let expected = "\
TOOK  NAME          ERROR
 1 s  echo
 2 s  a_tool_with…  one two three four five six 
                     seven eight nine ten
";
        assert_eq!(table.render(Some(50), false), expected);
        assert_eq!(table.render(None, false).lines().nth(2), Some(&*format!(" 2 s  {name}  {error}")));
    }

    #[test]
    fn use15_a_wrapped_column_is_never_cut() {
        let table = table(&[Column::text("server"), Column::wrapped("runs")], &[&["a", &"0123456789".repeat(4)]]);
        let expected = "server  runs\na       0123456789012345678901\n        234567890123456789\n";
        assert_eq!(table.render(Some(30), false), expected);
    }
}
