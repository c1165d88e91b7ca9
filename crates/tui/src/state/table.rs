//! Builds the lists of each panel: its columns, and the filtered and sorted rows.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use goblin_admin::api::{EventInfo, ServerStatus, SessionInfo, SubscriptionInfo};
use goblin_client::content::bytes;
use goblin_telemetry::clean;

use crate::state::data::{Data, Item, Kind};
use crate::state::rates::{Rates, ServerRate};
use crate::state::words::{clock, span, sparkline};
use crate::state::{Panel, Watched};

/// A column with a title and a maximum width. A growing column takes the room that the others leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    pub title: &'static str,
    pub most: usize,
    pub grows: bool,
    pub is_number: bool,
    /// Set if a cell that is too long loses its beginning instead of its end.
    pub keeps_end: bool,
}

const fn text(title: &'static str, most: usize) -> Column {
    Column { title, most, grows: false, is_number: false, keeps_end: false }
}

const fn number(title: &'static str) -> Column {
    Column { title, most: 9, grows: false, is_number: true, keeps_end: false }
}

const fn wide(title: &'static str, most: usize) -> Column {
    Column { title, most, grows: true, is_number: false, keeps_end: false }
}

/// Creates a growing column that keeps the end of its cells. URIs of one server share a prefix, and the newest value of
/// a sparkline is at its end.
const fn ending(title: &'static str, most: usize) -> Column {
    Column { title, most, grows: true, is_number: false, keeps_end: true }
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
    wide("SAYS", 200),
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
pub struct Cell {
    pub text: String,
    /// The sort key. `None` sorts by the text.
    rank: Option<f64>,
    pub tone: Tone,
}

impl Cell {
    fn text(text: &str) -> Cell {
        Cell { text: clean(text), ..Cell::default() }
    }

    fn toned(text: &str, tone: Tone) -> Cell {
        Cell { tone, ..Cell::text(text) }
    }

    fn count(count: impl TryInto<u32>) -> Cell {
        let count = count.try_into().unwrap_or(u32::MAX);
        Cell { text: count.to_string(), rank: Some(f64::from(count)), tone: Tone::Plain }
    }

    fn failures(count: u64) -> Cell {
        let tone = if count > 0 { Tone::Bad } else { Tone::Plain };
        Cell { tone, ..Cell::count(count) }
    }

    fn ranked(text: String, rank: f64) -> Cell {
        Cell { text, rank: Some(rank), tone: Tone::Plain }
    }

    fn milliseconds(value: Option<f64>) -> Cell {
        value.map_or_else(Cell::default, |value| Cell::ranked(milliseconds(value), value))
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

/// The item of a row, as an index into [`Data`]. Rows are rebuilt whenever the data changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Server(usize),
    Item(Kind, usize),
    Subscription(usize),
    Session(usize),
    Event(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// An id that stays the same in later polls.
    pub id: String,
    pub what: What,
    pub cells: Vec<Cell>,
}

/// A list with its own title. Most panels have one.
#[derive(Clone, Debug, PartialEq)]
pub struct Section {
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
pub(crate) struct Wanted<'a> {
    pub data: &'a Data,
    pub rates: &'a Rates,
    pub watched: &'a BTreeMap<String, Watched>,
    pub server: Option<&'a str>,
    pub query: &'a str,
    pub sort: Sort,
}

/// Returns the columns by which a panel can be sorted.
pub(crate) fn columns(panel: Panel) -> &'static [Column] {
    match panel {
        Panel::Overview => OVERVIEW,
        Panel::Servers => SERVERS,
        Panel::Tools => TOOLS,
        Panel::Prompts => PROMPTS,
        Panel::Resources => RESOURCES,
        Panel::Subscriptions => SUBSCRIPTIONS,
        Panel::Sessions => SESSIONS,
        Panel::Events => EVENTS,
    }
}

/// Builds the lists of `panel`.
pub(crate) fn sections(panel: Panel, wanted: &Wanted<'_>) -> Vec<Section> {
    let data = wanted.data;
    match panel {
        Panel::Overview => vec![wanted.section("Servers", OVERVIEW, wanted.servers(overview_row))],
        Panel::Servers => vec![wanted.section("Servers", SERVERS, wanted.servers(server_row))],
        Panel::Tools => vec![wanted.section("Tools", TOOLS, wanted.items(Kind::Tools, tool_row))],
        Panel::Prompts => vec![wanted.section("Prompts", PROMPTS, wanted.items(Kind::Prompts, prompt_row))],
        Panel::Resources => {
            let watched = wanted.watched;
            vec![
                wanted.section(
                    "Resources",
                    RESOURCES,
                    wanted.items(Kind::Resources, |item| resource_row(item, watched)),
                ),
                wanted.section("Templates", TEMPLATES, wanted.items(Kind::Templates, template_row)),
            ]
        }
        Panel::Subscriptions => {
            let all = data.subscriptions.subscriptions.iter().enumerate();
            let own = all.filter(|(_, info)| wanted.is_of(&info.server));
            let rows = own.map(|(at, info)| row(&info.id, What::Subscription(at), subscription_row(info)));
            vec![wanted.section("Subscriptions", SUBSCRIPTIONS, rows.collect())]
        }
        Panel::Sessions => {
            let all = data.sessions.sessions.iter().enumerate();
            let rows = all.map(|(at, info)| row(&info.id, What::Session(at), session_row(info)));
            let title = if wanted.server.is_some() { "Sessions (of all servers)" } else { "Sessions" };
            vec![wanted.section(title, SESSIONS, rows.collect())]
        }
        Panel::Events => {
            let all = data.events.iter().enumerate();
            let own = all.filter(|(_, event)| wanted.server.is_none() || event.server.as_deref() == wanted.server);
            let rows =
                own.map(|(at, event)| row(&format!("{} {}", event.seq, event.time), What::Event(at), event_row(event)));
            vec![wanted.section("Events", EVENTS, rows.collect())]
        }
    }
}

impl Wanted<'_> {
    fn is_of(&self, server: &str) -> bool {
        self.server.is_none_or(|wanted| wanted == server)
    }

    fn servers(&self, cells: impl Fn(&ServerStatus, &ServerRate) -> Vec<Cell>) -> Vec<Row> {
        let none = ServerRate::default();
        let own = self.data.servers().iter().enumerate().filter(|(_, server)| self.is_of(&server.id));
        own.map(|(at, server)| {
            row(&server.id, What::Server(at), cells(server, self.rates.servers.get(&server.id).unwrap_or(&none)))
        })
        .collect()
    }

    fn items(&self, kind: Kind, cells: impl Fn(&Item) -> Vec<Cell>) -> Vec<Row> {
        let own = self.data.items(kind).iter().enumerate().filter(|(_, item)| self.is_of(&item.server));
        own.map(|(at, item)| row(&format!("{} {}", kind.word(), item.exposed), What::Item(kind, at), cells(item)))
            .collect()
    }

    /// Builds a section from the rows that match the query, in sort order.
    fn section(&self, title: &str, columns: &'static [Column], mut rows: Vec<Row>) -> Section {
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
        Section { title: format!("{title} {count}"), columns, rows }
    }
}

fn compare(one: &Cell, other: &Cell) -> Ordering {
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
    let wanted: Vec<char> = query.chars().map(fold).collect();
    let given: Vec<(usize, char)> = text.char_indices().map(|(at, character)| (at, fold(character))).collect();
    if wanted.is_empty() {
        return None;
    }
    let begin = given.windows(wanted.len()).position(|window| window.iter().map(|(_, is)| is).eq(&wanted))?;
    let end = given.get(begin + wanted.len()).map_or(text.len(), |(at, _)| *at);
    Some(given[begin].0..end)
}

fn row(id: &str, what: What, cells: Vec<Cell>) -> Row {
    Row { id: id.to_owned(), what, cells }
}

/// Returns a cell for the state of a server. A symbol and a word show the state even without colours.
pub(crate) fn state_cell(state: &str) -> Cell {
    let (symbol, tone) = match state {
        "ready" => ("●", Tone::Good),
        "starting" => ("◐", Tone::Warn),
        "failed" => ("✗", Tone::Bad),
        _ => ("○", Tone::Dim),
    };
    Cell::toned(&format!("{symbol} {state}"), tone)
}

fn overview_row(server: &ServerStatus, rate_of: &ServerRate) -> Vec<Cell> {
    let calls = rate_of.rate.calls;
    vec![
        Cell::text(&server.id),
        state_cell(&server.state),
        Cell::ranked(rate(calls), calls),
        Cell::milliseconds(server.latency.p95_ms),
        Cell::failures(server.calls.failed()),
        Cell::count(server.in_flight),
        Cell::text(&sparkline(rate_of.latency.iter().copied())),
    ]
}

fn server_row(server: &ServerStatus, _: &ServerRate) -> Vec<Cell> {
    let says = server.reason.as_deref().or(server.lacking.first().map(String::as_str)).unwrap_or(&server.software);
    let tone = if server.reason.is_some() { Tone::Bad } else { Tone::Plain };
    vec![
        Cell::text(&server.id),
        state_cell(&server.state),
        Cell::text(server.transport.as_deref().unwrap_or_default()),
        Cell::count(server.entries.tools),
        Cell::count(server.entries.prompts),
        Cell::count(server.entries.resources + server.entries.templates),
        Cell::count(server.calls.total()),
        Cell::failures(server.calls.failed()),
        Cell::milliseconds(server.latency.p95_ms),
        Cell::count(server.restarts),
        Cell::toned(says, tone),
    ]
}

fn tool_row(item: &Item) -> Vec<Cell> {
    vec![Cell::text(&item.exposed), Cell::toned(&item.server, Tone::Dim), Cell::text(&item.description)]
}

fn prompt_row(item: &Item) -> Vec<Cell> {
    vec![
        Cell::text(&item.exposed),
        Cell::toned(&item.server, Tone::Dim),
        Cell::text(&item.arguments),
        Cell::text(&item.description),
    ]
}

fn resource_row(item: &Item, watched: &BTreeMap<String, Watched>) -> Vec<Cell> {
    let size = item.size.map_or_else(Cell::default, |size| Cell::ranked(bytes(size), size as f64));
    let updates = watched.get(&item.exposed).map_or_else(Cell::default, |watched| {
        let words = match watched.updates {
            0 => "watching".to_owned(),
            updates => format!("{updates} at {}", watched.last),
        };
        Cell::toned(&words, Tone::Good)
    });
    vec![Cell::text(&item.exposed), Cell::text(&item.name), Cell::toned(&item.mime, Tone::Dim), size, updates]
}

fn template_row(item: &Item) -> Vec<Cell> {
    let words = if item.description.is_empty() { &item.name } else { &item.description };
    vec![Cell::text(&item.exposed), Cell::text(words)]
}

fn subscription_row(info: &SubscriptionInfo) -> Vec<Cell> {
    let tone = if info.state == "subscribed" { Tone::Good } else { Tone::Warn };
    vec![
        Cell::text(&info.uri),
        Cell::text(format!("{} …{}", info.client.name, info.client.id).trim_start()),
        Cell::toned(&info.server, Tone::Dim),
        Cell::toned(&info.state, tone),
        Cell::count(info.delivered),
        Cell::count(info.coalesced),
    ]
}

fn session_row(info: &SessionInfo) -> Vec<Cell> {
    vec![
        Cell::text(&info.id),
        Cell::text(format!("{} {}", info.client, info.client_version).trim()),
        Cell::text(&info.protocol),
        Cell::text(info.profile.as_deref().unwrap_or_default()),
        Cell::ranked(span(info.idle_seconds), info.idle_seconds as f64),
        Cell::count(info.streams),
        Cell::count(info.in_flight),
        Cell::count(info.subscriptions),
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

fn event_row(event: &EventInfo) -> Vec<Cell> {
    let tone = level_tone(&event.level);
    vec![
        Cell::toned(clock(&event.time), Tone::Dim),
        Cell::toned(&event.level, tone),
        Cell::text(&event.kind),
        Cell::toned(event.server.as_deref().unwrap_or_default(), Tone::Dim),
        Cell::toned(&event_words(event), tone),
    ]
}

/// Returns the message of an event together with its fields.
pub(crate) fn event_words(event: &EventInfo) -> String {
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
