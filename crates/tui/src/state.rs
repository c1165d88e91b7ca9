//! The state of the dashboard as plain values, and how each message changes it.
//!
//! Nothing here depends on a terminal or a connection. [`State::update`] takes an action of the user or a message of
//! the gateway, and returns the effects to execute. The tests are therefore tables of messages.

mod actions;
mod copy;
pub(crate) mod data;
pub(crate) mod detail;
pub(crate) mod dialog;
pub(crate) mod form;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod level;
pub(crate) mod login;
pub(crate) mod logs;
pub(crate) mod message;
pub(crate) mod palette;
pub(crate) mod rates;
mod selection;
pub(crate) mod table;
mod typing;

use std::collections::BTreeMap;
use std::path::PathBuf;

use goblin_admin::routes::ServerAction;

use crate::state::data::DashboardData;
use crate::state::dialog::Dialog;
use crate::state::level::Level;
use crate::state::logs::LogView;
use crate::state::message::{Action, Effect, Interest, LinkStatus, Measures, Panel, StatusMessage, UiEvent};
use crate::state::palette::Palette;
use crate::state::rates::Rates;
use crate::state::selection::RowSelection;
use crate::state::table::{Sort, TableSection};

/// A watched resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedResource {
    pub updates: u64,
    /// The time of day of the last update.
    pub last: String,
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
    /// The configuration file of a gateway on this machine.
    config_file: Option<PathBuf>,
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
    /// Set if the calls panel hides calls that succeeded.
    pub failed_only: bool,
    /// The level filter of the events.
    pub level: Level,
    pub pane: Option<Pane>,
    pub dialog: Option<Dialog>,
    /// The scroll position of the help, which covers even a dialog.
    pub help: Option<usize>,
    pub notice: Option<StatusMessage>,
    pub watched: BTreeMap<String, WatchedResource>,
    /// The lists of the current panel.
    pub sections: Vec<TableSection>,
    measures: Measures,
    tickets: u64,
}

impl State {
    /// Creates the state for a gateway at `place`. `config_file` is the file that the user may edit.
    pub fn new(place: String, config_file: Option<PathBuf>) -> State {
        let mut state = State { place, config_file, ..State::default() };
        state.rebuild_list();
        state
    }

    /// Returns the part of the gateway that must be read beside its status.
    pub fn interest(&self) -> Interest {
        let logs_of = match (&self.dialog, self.pane, self.selected_server()) {
            (Some(Dialog::Logs(LogView { server: Some(server), .. })), _, _) => Some(server.clone()),
            (_, Some(_), Some(server)) => Some(server.id.clone()),
            _ => None,
        };
        Interest { panel: self.panel, logs_of, login_of: self.login_shown() }
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
            UiEvent::Choose(by) => return self.choose(by),
            UiEvent::Select { section, row } => self.select_at(section, row),
            UiEvent::Wheel { place, is_down } => self.wheel(place, is_down),
            UiEvent::Measured(measures) => self.measure(measures),
            UiEvent::Edited(edited) => return self.edited(edited),
            UiEvent::LoginBegun { server, begun } => return self.login_begun(&server, begun),
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
            UiEvent::Subscriptions(list) => self.data.set_subscriptions(list),
            UiEvent::Sessions(list) => self.data.set_sessions(list),
            UiEvent::Calls(list) => self.data.set_calls(list),
            UiEvent::Logs { server, list } => self.data.set_logs(server, list),
            UiEvent::Login { server, status } => self.login_read(server, status),
            UiEvent::LoginFinished { server, finished } => self.login_finished(&server, finished),
            UiEvent::Unreadable { feed, reason } => drop(self.data.unreadable.insert(feed, reason)),
            UiEvent::Event(event) => self.data.add_event(event),
            UiEvent::Answered { ticket, text, is_error } => self.answered(ticket, &text, is_error),
            UiEvent::Suggested { ticket, values } => self.suggested(ticket, values),
            UiEvent::Notice(notice) => self.notice = Some(notice),
            UiEvent::Report { title, text } => self.report(&title, &text),
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
            Action::Help => self.help = Some(0),
            Action::Jump => self.dialog = Some(Dialog::Jump(Palette::new(&self.data))),
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
            Action::Open => self.open_details(),
            Action::Close => self.close(),
            Action::Search => self.is_searching = true,
            Action::Filter => self.dialog = Some(Dialog::Picker { at: self.server_number() }),
            Action::Sort => self.sort(),
            Action::Reverse => self.reverse(),
            Action::FailedOnly => self.toggle_failed_only(),
            Action::Level => self.next_level(),
            Action::Logs => self.toggle_logs(),
            Action::Copy => return self.copy(),
            Action::Call | Action::Read => return self.use_selected(action),
            Action::Watch => return self.watch(),
            Action::Restart => self.confirm_server_action(ServerAction::Restart),
            Action::Toggle => match self.selected_server().is_some_and(|server| server.state == "disabled") {
                true => self.confirm_server_action(ServerAction::Enable),
                false => self.confirm_server_action(ServerAction::Disable),
            },
            Action::LogIn => return self.log_in(),
            Action::LogOut => self.confirm_logout(),
            Action::Reload => return self.reload(),
            Action::Edit => return self.edit(),
        }
        Vec::new()
    }

    fn show(&mut self, panel: Panel) {
        self.panel = panel;
        self.pane = self.pane.map(|_| Pane::default());
        self.rebuild_list();
    }

    /// Opens the side panel. Moves the focus into it if it is open already.
    fn open_details(&mut self) {
        match (&mut self.pane, self.sections.iter().any(|section| !section.rows.is_empty())) {
            (Some(pane), true) => pane.is_focused = true,
            (None, true) => self.pane = Some(Pane::default()),
            (_, false) => {}
        }
    }

    fn toggle_failed_only(&mut self) {
        if self.panel != Panel::Calls {
            self.show(Panel::Calls);
            self.failed_only = false;
        }
        self.failed_only = !self.failed_only;
        self.rebuild_list();
    }

    fn next_level(&mut self) {
        if self.panel != Panel::Events && !matches!(self.dialog, Some(Dialog::Logs(_))) {
            self.notice = Some(StatusMessage::bad("v changes the level in the panel Events (9) and in logs (l)"));
            return;
        }
        self.level = self.level.next();
        self.rebuild_list();
    }

    /// Opens the logs of the selected server, or of the gateway if the row belongs to no server. Closes open logs.
    fn toggle_logs(&mut self) {
        self.dialog = match self.dialog {
            Some(Dialog::Logs(_)) => None,
            _ => Some(Dialog::Logs(LogView::new(self.server_of_row().or_else(|| self.server.clone())))),
        };
    }

    /// Closes one thing: the focus of the side panel, the side panel, the search, or the filters.
    fn close(&mut self) {
        if let Some(pane) = self.pane.take() {
            self.pane = pane.is_focused.then_some(Pane { is_focused: false, ..pane });
        } else if !self.query.is_empty() {
            self.query.clear();
        } else if self.server.take().is_none() {
            self.failed_only = false;
        }
        self.rebuild_list();
    }
}

/// Moves a position, which is at most `max`.
fn scroll(position: &mut usize, by: isize, max: usize) {
    *position = position.saturating_add_signed(by).min(max);
}

#[cfg(test)]
mod tests;
