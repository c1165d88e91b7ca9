//! Builds the lists of each panel: its columns, and the filtered and sorted rows.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use goblin_admin::api::{EventInfo, ServerStatus, SessionInfo, SubscriptionInfo};
use goblin_admin::routes::List;
use goblin_client::units::bytes;
use goblin_telemetry::clean;

use crate::state::data::{CatalogItem, DashboardData};
use crate::state::format::{clock, span, sparkline};
use crate::state::rates::{Rates, ServerRate};
use crate::state::{Panel, WatchedResource};

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

const fn text(title: &'static str, max: usize) -> Column {
    Column { title, max, grows: false, is_number: false, keeps_end: false }
}

const fn number(title: &'static str) -> Column {
    Column { title, max: 9, grows: false, is_number: true, keeps_end: false }
}

const fn wide(title: &'static str, max: usize) -> Column {
    Column { title, max, grows: true, is_number: false, keeps_end: false }
}

/// Creates a growing column that keeps the end of its cells. URIs of one server share a prefix, and the newest value of
/// a sparkline is at its end.
const fn ending(title: &'static str, max: usize) -> Column {
    Column { title, max, grows: true, is_number: false, keeps_end: true }
}

const OVERVIEW: &[Column] = &[
    text("SERVER", 16),
    text("STATE", 10),
    number("CALLS/S"),
    number("P95"),
    number("FAILED"),
    number("OPEN"),
    ending("LATENCY", 60),
];
const SERVERS: &[Column] = &[
    text("SERVER", 24),
    text("STATE", 10),
    text("LINK", 6),
    number("TOOLS"),
    number("PROMPTS"),
    number("RES"),
    number("CALLS"),
    number("FAILED"),
    number("P95"),
    number("RESTARTS"),
    wide("DETAILS", 200),
];
const TOOLS: &[Column] = &[text("TOOL", 40), text("SERVER", 16), wide("DESCRIPTION", 400)];
const PROMPTS: &[Column] = &[text("PROMPT", 40), text("SERVER", 16), text("ARGUMENTS", 24), wide("DESCRIPTION", 400)];
const RESOURCES: &[Column] =
    &[ending("URI", 400), text("NAME", 24), text("MIME TYPE", 20), number("SIZE"), text("UPDATES", 14)];
const TEMPLATES: &[Column] = &[ending("PATTERN", 400), wide("DESCRIPTION", 400)];
const SUBSCRIPTIONS: &[Column] = &[
    ending("URI", 400),
    text("CLIENT", 24),
    text("SERVER", 16),
    text("STATE", 10),
    number("DELIVERED"),
    number("COALESCED"),
];
const SESSIONS: &[Column] = &[
    text("SESSION", 12),
    wide("CLIENT", 80),
    text("PROTOCOL", 12),
    text("PROFILE", 12),
    number("IDLE"),
    number("STREAMS"),
    number("IN FLIGHT"),
    number("SUBS"),
];
const EVENTS: &[Column] =
    &[text("TIME", 8), text("LEVEL", 5), text("KIND", 24), text("SERVER", 16), wide("MESSAGE", 2000)];

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
    fn text(text: &str) -> TableCell {
        TableCell { text: clean(text), ..TableCell::default() }
    }

    fn toned(text: &str, tone: Tone) -> TableCell {
        TableCell { tone, ..TableCell::text(text) }
    }

    fn count(count: impl TryInto<u32>) -> TableCell {
        let count = count.try_into().unwrap_or(u32::MAX);
        TableCell { text: count.to_string(), rank: Some(f64::from(count)), tone: Tone::Plain }
    }

    fn failures(count: u64) -> TableCell {
        let tone = if count > 0 { Tone::Bad } else { Tone::Plain };
        TableCell { tone, ..TableCell::count(count) }
    }

    fn ranked(text: String, rank: f64) -> TableCell {
        TableCell { text, rank: Some(rank), tone: Tone::Plain }
    }

    fn milliseconds(value: Option<f64>) -> TableCell {
        value.map_or_else(TableCell::default, |value| TableCell::ranked(milliseconds(value), value))
    }
}

pub(crate) fn milliseconds(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.1}ms"),
        value if value < 10_000.0 => format!("{value:.0}ms"),
        value => format!("{:.0}s", value / 1000.0),
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
    pub sort: Sort,
}

/// Builds the lists of `panel`.
pub(crate) fn sections(panel: Panel, input: &TableInput<'_>) -> Vec<TableSection> {
    let data = input.data;
    let (title, columns, rows) = match panel {
        Panel::Overview => ("Servers", OVERVIEW, input.servers(overview_row)),
        Panel::Servers => ("Servers", SERVERS, input.servers(server_row)),
        Panel::Tools => ("Tools", TOOLS, input.items(List::Tools, tool_row)),
        Panel::Prompts => ("Prompts", PROMPTS, input.items(List::Prompts, prompt_row)),
        Panel::Resources => {
            let cells = |item: &CatalogItem| resource_row(item, input.watched);
            ("Resources", RESOURCES, input.items(List::Resources, cells))
        }
        Panel::Subscriptions => {
            let all = data.subscriptions.subscriptions.iter().enumerate();
            let own = all.filter(|(_, info)| input.is_of(&info.server));
            let rows = own.map(|(at, info)| row(&info.id, RowItem::Subscription(at), subscription_row(info)));
            ("Subscriptions", SUBSCRIPTIONS, rows.collect())
        }
        Panel::Sessions => {
            let all = data.sessions.sessions.iter().enumerate();
            let rows = all.map(|(at, info)| row(&info.id, RowItem::Session(at), session_row(info)));
            let title = if input.server.is_some() { "Sessions (of all servers)" } else { "Sessions" };
            (title, SESSIONS, rows.collect())
        }
        Panel::Events => {
            let all = data.events.iter().enumerate();
            let own = all.filter(|(_, event)| input.server.is_none() || event.server.as_deref() == input.server);
            let id = |event: &EventInfo| format!("{} {}", event.seq, event.time);
            ("Events", EVENTS, own.map(|(at, event)| row(&id(event), RowItem::Event(at), event_row(event))).collect())
        }
    };
    let mut sections = vec![input.section(title, columns, rows)];
    if panel == Panel::Resources {
        sections.push(input.section("Templates", TEMPLATES, input.items(List::Templates, template_row)));
    }
    sections
}

impl TableInput<'_> {
    fn is_of(&self, server: &str) -> bool {
        self.server.is_none_or(|selected| selected == server)
    }

    fn servers(&self, cells: impl Fn(&ServerStatus, &ServerRate) -> Vec<TableCell>) -> Vec<Row> {
        let none = ServerRate::default();
        let own = self.data.servers().iter().enumerate().filter(|(_, server)| self.is_of(&server.id));
        own.map(|(at, server)| {
            row(&server.id, RowItem::Server(at), cells(server, self.rates.servers.get(&server.id).unwrap_or(&none)))
        })
        .collect()
    }

    fn items(&self, kind: List, cells: impl Fn(&CatalogItem) -> Vec<TableCell>) -> Vec<Row> {
        let own = self.data.items(kind).iter().enumerate().filter(|(_, item)| self.is_of(&item.server));
        own.map(|(at, item)| row(&format!("{}s {}", kind.noun(), item.exposed), RowItem::Item(kind, at), cells(item)))
            .collect()
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
        TableSection { title: format!("{title} {count}"), columns, rows }
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

/// Returns a cell for the state of a server. A symbol and a word show the state even without colours.
pub(crate) fn state_cell(state: &str) -> TableCell {
    let (symbol, tone) = match state {
        "ready" => ("●", Tone::Good),
        "starting" => ("◐", Tone::Warn),
        "failed" => ("✗", Tone::Bad),
        _ => ("○", Tone::Dim),
    };
    TableCell::toned(&format!("{symbol} {state}"), tone)
}

fn overview_row(server: &ServerStatus, rate_of: &ServerRate) -> Vec<TableCell> {
    let calls = rate_of.rate.calls;
    vec![
        TableCell::text(&server.id),
        state_cell(&server.state),
        TableCell::ranked(rate(calls), calls),
        TableCell::milliseconds(server.latency.p95_ms),
        TableCell::failures(server.calls.failed()),
        TableCell::count(server.in_flight),
        TableCell::text(&sparkline(rate_of.latency.iter().copied())),
    ]
}

fn server_row(server: &ServerStatus, _: &ServerRate) -> Vec<TableCell> {
    let details = server.reason.as_deref().or(server.lacking.first().map(String::as_str)).unwrap_or(&server.software);
    let tone = if server.reason.is_some() { Tone::Bad } else { Tone::Plain };
    vec![
        TableCell::text(&server.id),
        state_cell(&server.state),
        TableCell::text(server.transport.as_deref().unwrap_or_default()),
        TableCell::count(server.entries.tools),
        TableCell::count(server.entries.prompts),
        TableCell::count(server.entries.resources + server.entries.templates),
        TableCell::count(server.calls.total()),
        TableCell::failures(server.calls.failed()),
        TableCell::milliseconds(server.latency.p95_ms),
        TableCell::count(server.restarts),
        TableCell::toned(details, tone),
    ]
}

fn tool_row(item: &CatalogItem) -> Vec<TableCell> {
    vec![TableCell::text(&item.exposed), TableCell::toned(&item.server, Tone::Dim), TableCell::text(&item.description)]
}

fn prompt_row(item: &CatalogItem) -> Vec<TableCell> {
    vec![
        TableCell::text(&item.exposed),
        TableCell::toned(&item.server, Tone::Dim),
        TableCell::text(&item.arguments),
        TableCell::text(&item.description),
    ]
}

fn resource_row(item: &CatalogItem, watched: &BTreeMap<String, WatchedResource>) -> Vec<TableCell> {
    let size = item.size.map_or_else(TableCell::default, |size| TableCell::ranked(bytes(size), size as f64));
    let updates = watched.get(&item.exposed).map_or_else(TableCell::default, |watched| {
        let text = match watched.updates {
            0 => "watching".to_owned(),
            updates => format!("{updates} at {}", watched.last),
        };
        TableCell::toned(&text, Tone::Good)
    });
    vec![
        TableCell::text(&item.exposed),
        TableCell::text(&item.name),
        TableCell::toned(&item.mime, Tone::Dim),
        size,
        updates,
    ]
}

fn template_row(item: &CatalogItem) -> Vec<TableCell> {
    let text = if item.description.is_empty() { &item.name } else { &item.description };
    vec![TableCell::text(&item.exposed), TableCell::text(text)]
}

fn subscription_row(info: &SubscriptionInfo) -> Vec<TableCell> {
    let tone = if info.state == "subscribed" { Tone::Good } else { Tone::Warn };
    vec![
        TableCell::text(&info.uri),
        TableCell::text(format!("{} …{}", info.client.name, info.client.id).trim_start()),
        TableCell::toned(&info.server, Tone::Dim),
        TableCell::toned(&info.state, tone),
        TableCell::count(info.delivered),
        TableCell::count(info.coalesced),
    ]
}

fn session_row(info: &SessionInfo) -> Vec<TableCell> {
    vec![
        TableCell::text(&info.id),
        TableCell::text(format!("{} {}", info.client, info.client_version).trim()),
        TableCell::text(&info.protocol),
        TableCell::text(info.profile.as_deref().unwrap_or_default()),
        TableCell::ranked(span(info.idle_seconds), info.idle_seconds as f64),
        TableCell::count(info.streams),
        TableCell::count(info.in_flight),
        TableCell::count(info.subscriptions),
    ]
}

pub(crate) fn level_tone(level: &str) -> Tone {
    match level {
        "error" => Tone::Bad,
        "warn" => Tone::Warn,
        "debug" => Tone::Dim,
        _ => Tone::Plain,
    }
}

fn event_row(event: &EventInfo) -> Vec<TableCell> {
    let tone = level_tone(&event.level);
    vec![
        TableCell::toned(clock(&event.time), Tone::Dim),
        TableCell::toned(&event.level, tone),
        TableCell::text(&event.kind),
        TableCell::toned(event.server.as_deref().unwrap_or_default(), Tone::Dim),
        TableCell::toned(&event_text(event), tone),
    ]
}

/// Returns the message of an event together with its fields.
pub(crate) fn event_text(event: &EventInfo) -> String {
    let fields: String = event.fields.iter().map(|(key, value)| format!(" {key}={value}")).collect();
    clean(&(event.message.clone() + &fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tui3_a_match_is_found_however_it_is_capitalized() {
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
