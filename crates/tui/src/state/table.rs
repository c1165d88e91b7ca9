//! Builds the lists of each panel: the filtered and sorted rows. [`rows`] has the columns and the cells.

mod rows;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use goblin_admin::api::{EventInfo, ServerStatus, SessionInfo};
use goblin_admin::routes::List;
use goblin_client::units;
use goblin_telemetry::clean;

use crate::state::WatchedResource;
use crate::state::data::{CatalogItem, DashboardData};
use crate::state::level::Level;
use crate::state::message::Panel;
use crate::state::rates::{Rates, ServerRate};
pub(crate) use crate::state::table::rows::{event_text, is_failed_call, level_tone, state_cell};

/// A column with a title and a maximum width. A growing column takes the room that the others leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub title: &'static str,
    pub max: usize,
    pub grows: bool,
    pub is_number: bool,
    /// Set if a cell that is too long loses its beginning instead of its end.
    pub keeps_end: bool,
}

/// The meaning of a text. The theme maps it to a style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    Good,
    Warn,
    Bad,
    Dim,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableCell {
    pub text: String,
    /// The sort key. `None` sorts by the text.
    rank: Option<f64>,
    pub tone: Tone,
}

impl TableCell {
    pub(super) fn text(text: &str) -> TableCell {
        TableCell { text: clean(text), ..TableCell::default() }
    }

    pub(super) fn toned(text: &str, tone: Tone) -> TableCell {
        TableCell { tone, ..TableCell::text(text) }
    }

    pub(super) fn count(count: impl TryInto<u32>) -> TableCell {
        let count = count.try_into().unwrap_or(u32::MAX);
        TableCell { text: count.to_string(), rank: Some(f64::from(count)), tone: Tone::Plain }
    }

    pub(super) fn failures(count: u64) -> TableCell {
        let tone = if count > 0 { Tone::Bad } else { Tone::Plain };
        TableCell { tone, ..TableCell::count(count) }
    }

    pub(super) fn ranked(text: String, rank: f64) -> TableCell {
        TableCell { text, rank: Some(rank), tone: Tone::Plain }
    }

    pub(super) fn milliseconds(value: Option<f64>) -> TableCell {
        value.map_or_else(TableCell::default, |value| TableCell::ranked(units::milliseconds(value), value))
    }
}

pub(crate) fn rate(value: f64) -> String {
    if value > 0.0 && value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// The item of a row, as an index into [`DashboardData`]. Rows are rebuilt whenever the data changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowItem {
    Server(usize),
    Item(List, usize),
    Subscription(usize),
    Session(usize),
    Call(usize),
    Event(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// An id that stays the same in later polls.
    pub id: String,
    pub what: RowItem,
    pub cells: Vec<TableCell>,
}

/// A list with its own title. Most panels have one.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSection {
    pub title: String,
    /// Set for the list of failed servers.
    pub is_failure: bool,
    pub columns: &'static [Column],
    pub rows: Vec<Row>,
}

/// The sort order of a panel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sort {
    /// The sort column. `None` keeps the gateway's order.
    pub column: Option<usize>,
    pub is_reversed: bool,
}

/// The input for building rows.
pub(crate) struct TableInput<'a> {
    pub data: &'a DashboardData,
    pub rates: &'a Rates,
    pub watched: &'a BTreeMap<String, WatchedResource>,
    pub server: Option<&'a str>,
    pub query: &'a str,
    pub failed_only: bool,
    pub level: Level,
    pub sort: Sort,
}

/// Builds the lists of `panel`.
pub(crate) fn sections(panel: Panel, input: &TableInput<'_>) -> Vec<TableSection> {
    match panel {
        Panel::Overview => input.server_sections(rows::OVERVIEW, rows::overview_row),
        Panel::Servers => input.server_sections(rows::SERVERS, rows::server_row),
        Panel::Tools => vec![input.section("Tools", rows::TOOLS, input.items(List::Tools, rows::tool_row))],
        Panel::Prompts => vec![input.section("Prompts", rows::PROMPTS, input.items(List::Prompts, rows::prompt_row))],
        Panel::Resources => {
            let cells = |item: &CatalogItem| rows::resource_row(item, input.watched);
            let templates = input.items(List::Templates, rows::template_row);
            vec![
                input.section("Resources", rows::RESOURCES, input.items(List::Resources, cells)),
                input.section("Templates", rows::TEMPLATES, templates),
            ]
        }
        Panel::Subscriptions => vec![input.section("Subscriptions", rows::SUBSCRIPTIONS, input.subscriptions())],
        Panel::Sessions => {
            let title = if input.server.is_some() { "Sessions (of all servers)" } else { "Sessions" };
            vec![input.section(title, rows::SESSIONS, input.sessions())]
        }
        Panel::Calls => {
            let title = if input.failed_only { "Failed calls" } else { "Calls" };
            vec![input.section(title, rows::CALLS, input.calls())]
        }
        Panel::Events => vec![input.section("Events", rows::EVENTS, input.events())],
    }
}

/// Returns the place of a server in the list: servers that need attention come first.
fn urgency(server: &ServerStatus) -> u8 {
    match server.state.as_str() {
        "login_needed" => 0,
        "failed" | "misconfigured" => 1,
        "starting" => 2,
        "disabled" => 4,
        _ => 3,
    }
}

/// Reports whether a server needs the user: it has failed, or it needs a login.
pub(crate) fn has_failed(server: &ServerStatus) -> bool {
    urgency(server) <= 1
}

/// Returns the id of a row. Clients without a session share an empty session id.
fn session_id(info: &SessionInfo) -> String {
    match info.stateless {
        true => format!("stateless {} {}", info.client, info.client_version),
        false => info.id.clone(),
    }
}

impl TableInput<'_> {
    fn is_of(&self, server: &str) -> bool {
        self.server.is_none_or(|selected| selected == server)
    }

    /// Builds a list of the failed servers with their reasons, if there are any, and a list of the others.
    fn server_sections(
        &self,
        columns: &'static [Column],
        cells: fn(&ServerStatus, &ServerRate) -> Vec<TableCell>,
    ) -> Vec<TableSection> {
        let failed = self.servers(has_failed, |server, _| rows::failed_row(server));
        let others = self.servers(|server| !has_failed(server), cells);
        let mut sections = Vec::new();
        if !failed.is_empty() {
            sections.push(TableSection { is_failure: true, ..self.section("Failed", rows::FAILED, failed) });
        }
        // Without any server the list shows how to add one.
        if !others.is_empty() || sections.is_empty() {
            sections.push(self.section("Servers", columns, others));
        }
        sections
    }

    fn servers(
        &self,
        is_listed: impl Fn(&ServerStatus) -> bool,
        cells: impl Fn(&ServerStatus, &ServerRate) -> Vec<TableCell>,
    ) -> Vec<Row> {
        let none = ServerRate::default();
        let all = self.data.servers().iter().enumerate();
        let mut own: Vec<_> = all.filter(|(_, server)| self.is_of(&server.id) && is_listed(server)).collect();
        own.sort_by_key(|(_, server)| urgency(server));
        own.into_iter()
            .map(|(at, server)| {
                let rate = self.rates.servers.get(&server.id).unwrap_or(&none);
                row(&server.id, RowItem::Server(at), cells(server, rate))
            })
            .collect()
    }

    fn items(&self, kind: List, cells: impl Fn(&CatalogItem) -> Vec<TableCell>) -> Vec<Row> {
        let own = self.data.items(kind).iter().enumerate().filter(|(_, item)| self.is_of(&item.server));
        own.map(|(at, item)| row(&item.row_id(kind), RowItem::Item(kind, at), cells(item))).collect()
    }

    fn subscriptions(&self) -> Vec<Row> {
        let all = self.data.subscriptions.subscriptions.iter().enumerate();
        let own = all.filter(|(_, info)| self.is_of(&info.server));
        own.map(|(at, info)| row(&info.id, RowItem::Subscription(at), rows::subscription_row(info))).collect()
    }

    fn sessions(&self) -> Vec<Row> {
        let all = self.data.sessions.sessions.iter().enumerate();
        all.map(|(at, info)| row(&session_id(info), RowItem::Session(at), rows::session_row(info))).collect()
    }

    fn calls(&self) -> Vec<Row> {
        let all = self.data.calls.calls.iter().enumerate();
        let own = all.filter(|(_, call)| self.server.is_none() || call.server.as_deref() == self.server);
        let own = own.filter(|(_, call)| !self.failed_only || is_failed_call(call));
        own.map(|(at, call)| row(&call.seq.to_string(), RowItem::Call(at), rows::call_row(call))).collect()
    }

    fn events(&self) -> Vec<Row> {
        let all = self.data.events.iter().enumerate();
        let own = all.filter(|(_, event)| self.server.is_none() || event.server.as_deref() == self.server);
        let own = own.filter(|(_, event)| self.level.shows(event));
        let id = |event: &EventInfo| format!("{} {}", event.seq, event.time);
        own.map(|(at, event)| row(&id(event), RowItem::Event(at), rows::event_row(event))).collect()
    }

    /// Builds a section from the rows that match the query, in sort order.
    fn section(&self, title: &str, columns: &'static [Column], mut rows: Vec<Row>) -> TableSection {
        let all = rows.len();
        if !self.query.is_empty() {
            rows.retain(|row| row.cells.iter().any(|cell| find(&cell.text, self.query).is_some()));
        }
        if let Some(column) = self.sort.column {
            let column = column.min(columns.len() - 1);
            rows.sort_by(|one, other| compare(&one.cells[column], &other.cells[column]));
        }
        if self.sort.is_reversed {
            rows.reverse();
        }
        let count = if rows.len() == all { all.to_string() } else { format!("{} of {all}", rows.len()) };
        TableSection { title: format!("{title} {count}"), is_failure: false, columns, rows }
    }
}

fn compare(one: &TableCell, other: &TableCell) -> Ordering {
    match (one.rank, other.rank) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => one.text.to_lowercase().cmp(&other.text.to_lowercase()),
    }
}

/// Returns the range of `query` in `text`, ignoring case.
pub(crate) fn find(text: &str, query: &str) -> Option<Range<usize>> {
    let fold = |character: char| character.to_lowercase().next().unwrap_or(character);
    let needle: Vec<char> = query.chars().map(fold).collect();
    let given: Vec<(usize, char)> = text.char_indices().map(|(at, character)| (at, fold(character))).collect();
    if needle.is_empty() {
        return None;
    }
    let begin = given.windows(needle.len()).position(|window| window.iter().map(|(_, is)| is).eq(&needle))?;
    let end = given.get(begin + needle.len()).map_or(text.len(), |(at, _)| *at);
    Some(given[begin].0..end)
}

fn row(id: &str, what: RowItem, cells: Vec<TableCell>) -> Row {
    Row { id: id.to_owned(), what, cells }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tui3_a_match_ignores_case() {
        for (text, query, expected) in [
            ("Read_File", "file", Some("File")),
            ("größe", "GRÖ", Some("grö")),
            ("日本語", "本", Some("本")),
            ("İstanbul", "stan", Some("stan")),
            ("abc", "abcd", None),
            ("abc", "", None),
            ("", "a", None),
        ] {
            assert_eq!(find(text, query).map(|range| &text[range]), expected, "{query} in {text}");
        }
    }
}
