//! The state of the dashboard as plain values, and how each message changes it.
//!
//! Nothing here depends on a terminal or a connection. [`State::update`] takes an action of the user or a message of
//! the gateway, and returns the effects to execute. The tests are therefore tables of messages.

mod actions;
pub(crate) mod data;
pub(crate) mod detail;
pub(crate) mod dialog;
pub(crate) mod form;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod rates;
pub(crate) mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use goblin_admin::api::{EventInfo, SessionList, Status, SubscriptionList};
use goblin_admin::routes::{List, ServerAction};
use goblin_telemetry::clean;

use crate::state::data::{CatalogItem, DashboardData};
use crate::state::detail::Detail;
use crate::state::dialog::{Dialog, ResultDialog};
use crate::state::rates::Rates;
use crate::state::table::{Row, RowItem, Sort, TableInput, TableSection};

/// The number of rows that one step of the mouse wheel moves.
const WHEEL_ROWS: isize = 3;

goblin_wire::labels! {
    /// A panel, and its title.
    #[derive(Default)]
    Panel {
        #[default]
        Overview = "Overview",
        Servers = "Servers",
        Tools = "Tools",
        Prompts = "Prompts",
        Resources = "Resources",
        Subscriptions = "Subscriptions",
        Sessions = "Sessions",
        Events = "Events",
    }
}

impl Panel {
    pub fn number(self) -> usize {
        Panel::ALL.iter().position(|panel| *panel == self).unwrap_or_default()
    }

    fn beside(self, by: usize) -> Panel {
        Panel::ALL[(self.number() + by) % Panel::ALL.len()]
    }
}

/// An action of the user on a panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Quit,
    Help,
    NextPanel,
    PreviousPanel,
    Show(Panel),
    Down,
    Up,
    HalfDown,
    HalfUp,
    First,
    Last,
    Left,
    Right,
    Open,
    Close,
    Search,
    Filter,
    Sort,
    Reverse,
    Call,
    Read,
    Watch,
    Restart,
    Toggle,
    Reload,
}

/// The area under the mouse pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerArea {
    List,
    Details,
}

/// An event of the user or the gateway.
#[derive(Clone, Debug)]
pub enum UiEvent {
    Act(Action),
    Write(char),
    Erase,
    /// In a dialog or a search: confirm.
    Submit,
    /// In a dialog or a search: close.
    Cancel,
    /// In a dialog or a search: move by this many fields, rows or lines.
    Go(isize),
    /// In a form: take the next or previous choice.
    Choose(isize),
    Select {
        section: usize,
        row: usize,
    },
    Wheel {
        place: PointerArea,
        is_down: bool,
    },
    Measured(Measures),

    Link(LinkStatus),
    Status {
        at: Duration,
        status: Box<Status>,
    },
    Items(List, Vec<CatalogItem>),
    Subscriptions(SubscriptionList),
    Sessions(SessionList),
    Event(EventInfo),
    /// The result of a call or a read.
    Answered {
        ticket: u64,
        text: String,
        is_error: bool,
    },
    Notice(StatusMessage),
    Watching {
        uri: String,
        is_on: bool,
    },
    Updated {
        uri: String,
        time: String,
        is_deleted: bool,
    },
}

/// Work for the loop or the remote side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Quit,
    Call {
        ticket: u64,
        tool: String,
        arguments: String,
    },
    Read {
        ticket: u64,
        uri: String,
    },
    /// Cancels the request of a reader that was closed.
    Forget {
        ticket: u64,
    },
    Watch {
        uri: String,
    },
    Unwatch {
        uri: String,
    },
    Command(GatewayCommand),
}

/// A change through the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatewayCommand {
    /// An action on the server with this id.
    Server(ServerAction, String),
    Reload,
}

/// The state of the connection to the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkStatus {
    #[default]
    Connecting,
    Live,
    Lost {
        reason: String,
        retry_in: Duration,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusMessage {
    pub text: String,
    pub is_error: bool,
}

impl StatusMessage {
    pub fn good(text: impl Into<String>) -> StatusMessage {
        StatusMessage { text: clean(&text.into()), is_error: false }
    }

    pub fn bad(text: impl Into<String>) -> StatusMessage {
        StatusMessage { text: clean(&text.into()), is_error: true }
    }
}

/// A watched resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedResource {
    pub updates: u64,
    /// The time of day of the last update.
    pub last: String,
}

/// The sizes that the last frame had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// The number of rows of the list.
    pub rows: usize,
    /// The maximum scroll position of the side panel.
    pub details: usize,
    /// The maximum scroll position of the dialog.
    pub dialog: usize,
}

/// The selection of a panel. It follows its row by id when other rows change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RowSelection {
    id: String,
    at: usize,
}

/// The side panel with details.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pane {
    pub scroll: usize,
    /// Set if keys scroll the side panel instead of moving the selection.
    pub is_focused: bool,
}

#[derive(Default)]
pub struct State {
    /// The address of the gateway, for display.
    pub place: String,
    pub link: LinkStatus,
    pub data: DashboardData,
    pub rates: Rates,
    pub panel: Panel,
    cursors: [RowSelection; Panel::ALL.len()],
    sorts: [Sort; Panel::ALL.len()],
    /// The server filter. `None` shows all servers.
    pub server: Option<String>,
    pub query: String,
    pub is_searching: bool,
    pub pane: Option<Pane>,
    pub dialog: Option<Dialog>,
    pub notice: Option<StatusMessage>,
    pub watched: BTreeMap<String, WatchedResource>,
    /// The lists of the current panel.
    pub sections: Vec<TableSection>,
    measures: Measures,
    tickets: u64,
}

impl State {
    pub fn new(place: String) -> State {
        let mut state = State { place, ..State::default() };
        state.rebuild_list();
        state
    }

    /// Applies a message. Returns the effects that the caller must execute.
    pub fn update(&mut self, message: UiEvent) -> Vec<Effect> {
        match message {
            UiEvent::Act(action) => {
                self.notice = None;
                return self.act(action);
            }
            UiEvent::Submit => return self.submit(),
            UiEvent::Cancel => return self.cancel(),
            UiEvent::Write(character) => self.write(character),
            UiEvent::Erase => self.erase(),
            UiEvent::Go(by) => self.go_in_dialog(by),
            UiEvent::Choose(by) => {
                if let Some(Dialog::Form(form)) = &mut self.dialog {
                    form.choose(by);
                }
            }
            UiEvent::Select { section, row } => self.select_at(section, row),
            UiEvent::Wheel { place, is_down } => self.wheel(place, if is_down { WHEEL_ROWS } else { -WHEEL_ROWS }),
            UiEvent::Measured(measures) => self.measure(measures),
            event => self.receive(event),
        }
        Vec::new()
    }

    /// Applies a message of the gateway.
    fn receive(&mut self, event: UiEvent) {
        match event {
            UiEvent::Link(link) => {
                if link == LinkStatus::Live && self.link != LinkStatus::Live {
                    self.rates.forget();
                }
                self.link = link;
            }
            UiEvent::Status { at, status } => {
                self.rates.record(at, &status);
                self.data.status = Some(*status);
            }
            UiEvent::Items(kind, items) => self.data.set_items(kind, items),
            UiEvent::Subscriptions(list) => self.data.subscriptions = list,
            UiEvent::Sessions(list) => self.data.sessions = list,
            UiEvent::Event(event) => self.data.add_event(event),
            UiEvent::Answered { ticket, text, is_error } => self.answered(ticket, &text, is_error),
            UiEvent::Notice(notice) => self.notice = Some(notice),
            UiEvent::Watching { uri, is_on: true } => drop(self.watched.insert(uri, WatchedResource::default())),
            UiEvent::Watching { uri, is_on: false } => drop(self.watched.remove(&uri)),
            UiEvent::Updated { uri, time, is_deleted } => self.updated(&uri, time, is_deleted),
            // The caller handles all other messages.
            _ => return,
        }
        self.rebuild_list();
    }

    fn act(&mut self, action: Action) -> Vec<Effect> {
        match action {
            Action::Quit => return vec![Effect::Quit],
            Action::Help => self.dialog = Some(Dialog::Help { scroll: 0 }),
            Action::NextPanel => self.show(self.panel.beside(1)),
            Action::PreviousPanel => self.show(self.panel.beside(Panel::ALL.len() - 1)),
            Action::Show(panel) => self.show(panel),
            Action::Down => self.step(1),
            Action::Up => self.step(-1),
            Action::HalfDown => self.step(self.half_page()),
            Action::HalfUp => self.step(-self.half_page()),
            Action::First => self.step(isize::MIN),
            Action::Last => self.step(isize::MAX),
            Action::Left => self.focus_details(false),
            Action::Right => self.focus_details(true),
            Action::Open => self.pane = self.pane.or_else(|| self.row().map(|_| Pane::default())),
            Action::Close => self.close(),
            Action::Search => self.is_searching = true,
            Action::Filter => self.dialog = Some(Dialog::Picker { at: self.server_number() }),
            Action::Sort => self.sort(),
            Action::Reverse => {
                let sort = &mut self.sorts[self.panel.number()];
                sort.is_reversed = !sort.is_reversed;
                self.rebuild_list();
            }
            Action::Call => self.open_form(),
            Action::Read => return self.read(),
            Action::Watch => return self.watch(),
            Action::Restart => self.confirm_server_action(ServerAction::Restart),
            Action::Toggle => match self.selected_server().is_some_and(|(_, state)| state == "disabled") {
                true => self.confirm_server_action(ServerAction::Enable),
                false => self.confirm_server_action(ServerAction::Disable),
            },
            Action::Reload => {
                self.notice = Some(StatusMessage::good("reloading the configuration"));
                return vec![Effect::Command(GatewayCommand::Reload)];
            }
        }
        Vec::new()
    }

    fn show(&mut self, panel: Panel) {
        self.panel = panel;
        self.pane = self.pane.map(|_| Pane::default());
        self.rebuild_list();
    }

    /// Sorts by the next column. After the last column the order is the gateway's.
    fn sort(&mut self) {
        let count = self.sections.first().map_or(0, |section| section.columns.len());
        let sort = &mut self.sorts[self.panel.number()];
        sort.column = match sort.column {
            None => Some(0),
            Some(column) => Some(column + 1).filter(|column| *column < count),
        };
        self.rebuild_list();
    }

    pub fn sorted(&self) -> Sort {
        self.sorts[self.panel.number()]
    }

    /// Rebuilds the rows of the panel. The selection stays on its row.
    fn rebuild_list(&mut self) {
        let input = TableInput {
            data: &self.data,
            rates: &self.rates,
            watched: &self.watched,
            server: self.server.as_deref(),
            query: &self.query,
            sort: self.sorted(),
        };
        self.sections = table::sections(self.panel, &input);
        let cursor = &self.cursors[self.panel.number()];
        // If the newest event is selected, the selection moves to each new event.
        let follows_newest = self.panel == Panel::Events && cursor.at == 0;
        let found = self.rows().position(|row| row.id == cursor.id).filter(|_| !follows_newest);
        self.select(found.unwrap_or(cursor.at));
    }

    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.sections.iter().flat_map(|section| &section.rows)
    }

    fn select(&mut self, at: usize) {
        let at = at.min(self.rows().count().saturating_sub(1));
        let id = self.rows().nth(at).map(|row| row.id.clone()).unwrap_or_default();
        let cursor = &mut self.cursors[self.panel.number()];
        let has_moved = cursor.id != id;
        *cursor = RowSelection { id, at };
        if let Some(pane) = &mut self.pane
            && has_moved
        {
            pane.scroll = 0;
        }
    }

    /// Returns the index of the selected row, counted through all sections.
    pub fn selected(&self) -> usize {
        self.cursors[self.panel.number()].at
    }

    pub fn row(&self) -> Option<&Row> {
        self.rows().nth(self.selected())
    }

    pub fn detail(&self) -> Option<Detail> {
        Detail::of(self.row()?.what, &self.data)
    }

    fn select_at(&mut self, section: usize, row: usize) {
        if self.dialog.is_none() && self.sections.get(section).is_some_and(|section| row < section.rows.len()) {
            let before: usize = self.sections[..section].iter().map(|section| section.rows.len()).sum();
            self.select(before + row);
        }
    }

    fn half_page(&self) -> isize {
        (self.measures.rows / 2).max(1).cast_signed()
    }

    /// Moves the selection, or scrolls the side panel if that has the focus.
    fn step(&mut self, by: isize) {
        match &mut self.pane {
            Some(pane) if pane.is_focused => scroll(&mut pane.scroll, by, self.measures.details),
            _ => self.select(self.selected().saturating_add_signed(by)),
        }
    }

    fn wheel(&mut self, place: PointerArea, by: isize) {
        match (&mut self.dialog, &mut self.pane, place) {
            (Some(dialog), _, _) => dialog.scroll(by, self.measures.dialog),
            (None, Some(pane), PointerArea::Details) => scroll(&mut pane.scroll, by, self.measures.details),
            _ => self.select(self.selected().saturating_add_signed(by)),
        }
    }

    fn measure(&mut self, measures: Measures) {
        self.measures = measures;
        if let Some(pane) = &mut self.pane {
            scroll(&mut pane.scroll, 0, measures.details);
        }
        if let Some(dialog) = &mut self.dialog {
            dialog.scroll(0, measures.dialog);
        }
    }

    fn focus_details(&mut self, is_focused: bool) {
        if is_focused && self.pane.is_none() && self.row().is_some() {
            self.pane = Some(Pane::default());
        }
        if let Some(pane) = &mut self.pane {
            pane.is_focused = is_focused;
        }
    }

    /// Closes one thing: the side panel, else the search, else the filter.
    fn close(&mut self) {
        if self.pane.take().is_some() {
            return;
        }
        match self.query.is_empty() {
            false => self.query.clear(),
            true => self.server = None,
        }
        self.rebuild_list();
    }

    fn write(&mut self, character: char) {
        match &mut self.dialog {
            Some(Dialog::Form(form)) => form.write(character),
            None if self.is_searching => {
                self.query.push(character);
                self.rebuild_list();
            }
            _ => {}
        }
    }

    fn erase(&mut self) {
        match &mut self.dialog {
            Some(Dialog::Form(form)) => form.erase(),
            None if self.is_searching => {
                self.query.pop();
                self.rebuild_list();
            }
            _ => {}
        }
    }

    fn go_in_dialog(&mut self, by: isize) {
        let servers = self.data.servers().len();
        match &mut self.dialog {
            Some(Dialog::Form(form)) => form.go(by.signum()),
            Some(Dialog::Picker { at }) => scroll(at, by, servers),
            Some(dialog) => dialog.scroll(by, self.measures.dialog),
            // The matches can be selected while a search is written.
            None => self.select(self.selected().saturating_add_signed(by)),
        }
    }

    fn submit(&mut self) -> Vec<Effect> {
        match self.dialog.take() {
            None => self.is_searching = false,
            Some(Dialog::Picker { at }) => self.pick(at),
            Some(Dialog::Confirm { command, .. }) => return vec![Effect::Command(command)],
            Some(Dialog::Form(form)) => return self.call(form),
            closed @ Some(Dialog::Help { .. } | Dialog::Reader(_)) => {
                self.dialog = closed;
                return self.cancel();
            }
        }
        Vec::new()
    }

    fn cancel(&mut self) -> Vec<Effect> {
        match self.dialog.take() {
            Some(Dialog::Reader(ResultDialog { waits_for: Some(ticket), .. })) => {
                return vec![Effect::Forget { ticket }];
            }
            Some(_) => {}
            None if self.is_searching => {
                self.is_searching = false;
                self.query.clear();
                self.rebuild_list();
            }
            None => {}
        }
        Vec::new()
    }

    /// Returns the index of the filter in the picker, where 0 means all servers. If no filter is set and a server is
    /// selected, returns the index of that server.
    fn server_number(&self) -> usize {
        let selected = match (&self.server, self.row()) {
            (None, Some(Row { what: RowItem::Server(at), .. })) => return at + 1,
            (selected, _) => selected.as_deref(),
        };
        self.data.servers().iter().position(|server| Some(server.id.as_str()) == selected).map_or(0, |at| at + 1)
    }

    fn pick(&mut self, at: usize) {
        self.server = at.checked_sub(1).and_then(|at| self.data.servers().get(at)).map(|server| server.id.clone());
        self.rebuild_list();
    }
}

/// Moves a position, which is at most `max`.
fn scroll(position: &mut usize, by: isize, max: usize) {
    *position = position.saturating_add_signed(by).min(max);
}

#[cfg(test)]
mod tests;
