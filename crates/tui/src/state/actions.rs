//! Actions on the selected row: calls, reads, watches and changes of servers, and the handling of their results.

use goblin_admin::api::ServerStatus;
use goblin_admin::routes::{List, ServerAction};

use crate::state::State;
use crate::state::data::CatalogItem;
use crate::state::dialog::{Dialog, ResultDialog};
use crate::state::form::Form;
use crate::state::message::{Action, Effect, GatewayCommand, StatusMessage};
use crate::state::table::{Row, RowItem};

impl State {
    fn selected_item(&self) -> Option<(List, &CatalogItem)> {
        match self.row()?.what {
            RowItem::Item(kind, at) => Some((kind, self.data.items(kind).get(at)?)),
            _ => None,
        }
    }

    pub(crate) fn selected_server(&self) -> Option<&ServerStatus> {
        let Row { what: RowItem::Server(at), .. } = self.row()? else { return None };
        self.data.servers().get(*at)
    }

    /// Returns the id of the server that the selected row belongs to.
    pub(super) fn server_of_row(&self) -> Option<String> {
        match self.row()?.what {
            RowItem::Server(at) => self.data.servers().get(at).map(|server| server.id.clone()),
            RowItem::Item(kind, at) => self.data.items(kind).get(at).map(|item| item.server.clone()),
            RowItem::Subscription(at) => self.data.subscriptions.subscriptions.get(at).map(|info| info.server.clone()),
            RowItem::Session(_) => None,
            RowItem::Call(at) => self.data.calls.calls.get(at)?.server.clone(),
            RowItem::Event(at) => self.data.events.get(at)?.server.clone(),
        }
    }

    /// Calls the selected tool, gets the selected prompt, or reads the selected resource or template. Opens a form if
    /// the request needs arguments.
    pub(super) fn use_selected(&mut self, action: Action) -> Vec<Effect> {
        let uri = match self.row().map(|row| row.what) {
            Some(RowItem::Subscription(at)) => {
                self.data.subscriptions.subscriptions.get(at).map(|info| info.uri.clone())
            }
            _ => None,
        };
        if let Some(uri) = uri {
            return self.read(uri);
        }
        let form = match self.selected_item() {
            Some((List::Resources, item)) => {
                let uri = item.exposed.clone();
                return self.read(uri);
            }
            Some((List::Tools, item)) => Ok(Form::of_tool(&item.exposed, &item.definition)),
            Some((List::Prompts, item)) => Ok(Form::of_prompt(&item.exposed, &item.definition)),
            Some((List::Templates, item)) => Form::of_template(&item.exposed, &item.description),
            None => Err(match action {
                Action::Call => "c calls a tool or gets a prompt: select one in the panel Tools (3) or Prompts (4)",
                _ => "r reads a resource: select one in the panel Resources (5)",
            }
            .to_owned()),
        };
        match form {
            Ok(form) if form.is_ready() => return self.send_form(form),
            Ok(form) => self.dialog = Some(Dialog::Form(form)),
            Err(reason) => self.notice = Some(StatusMessage::bad(reason)),
        }
        Vec::new()
    }

    fn read(&mut self, uri: String) -> Vec<Effect> {
        let ticket = self.wait(&uri);
        vec![Effect::Read { ticket, uri }]
    }

    /// Opens a reader that waits for a response. Returns the ticket that identifies the response.
    pub(super) fn wait(&mut self, title: &str) -> u64 {
        self.tickets += 1;
        self.dialog = Some(Dialog::Reader(ResultDialog::waiting(title, self.tickets)));
        self.tickets
    }

    pub(super) fn answered(&mut self, ticket: u64, text: &str, is_error: bool) {
        if let Some(Dialog::Reader(reader)) = &mut self.dialog
            && reader.waits_for == Some(ticket)
        {
            if is_error {
                reader.title.push_str(" failed");
            }
            reader.fill(text, is_error);
        }
    }

    /// Shows an error that may have several lines. A dialog of the user stays open, and the footer has the first line.
    pub(super) fn report(&mut self, title: &str, text: &str) {
        match self.dialog {
            Some(_) => self.notice = Some(StatusMessage::bad(text.lines().next().unwrap_or_default())),
            None => {
                self.notice = None;
                self.dialog = Some(Dialog::Reader(ResultDialog::report(title, text)));
            }
        }
    }

    pub(super) fn watch(&mut self) -> Vec<Effect> {
        let uri = match self.row().map(|row| row.what) {
            Some(RowItem::Item(List::Resources, at)) => {
                self.data.items(List::Resources).get(at).map(|item| item.exposed.clone())
            }
            Some(RowItem::Subscription(at)) => {
                self.data.subscriptions.subscriptions.get(at).map(|subscription| subscription.uri.clone())
            }
            _ => None,
        };
        match uri {
            Some(uri) if self.watched.contains_key(&uri) => vec![Effect::Unwatch { uri }],
            Some(uri) => vec![Effect::Watch { uri }],
            None => {
                self.notice = Some(StatusMessage::bad("w watches a resource: select one in the panel Resources (5)"));
                Vec::new()
            }
        }
    }

    pub(super) fn updated(&mut self, uri: &str, time: String, is_deleted: bool) {
        // An update of a resource inside of a watched one has its own URI. Count it for the longest matching prefix.
        let around = self.watched.iter_mut().filter(|(watched, _)| uri.starts_with(watched.as_str()));
        if let Some((_, watched)) = around.max_by_key(|(watched, _)| watched.len()) {
            watched.updates += 1;
            watched.last = time;
        }
        let change = if is_deleted { "is deleted" } else { "has changed" };
        self.notice = Some(StatusMessage::good(format!("{uri} {change}")));
    }

    pub(super) fn confirm_server_action(&mut self, action: ServerAction) {
        match self.selected_server() {
            Some(server) => self.dialog = Some(Dialog::confirm(action, &server.id, server.in_flight)),
            None => {
                self.notice = Some(StatusMessage::bad("this key needs a server: select one in the panel Servers (2)"))
            }
        }
    }

    pub(super) fn reload(&mut self) -> Vec<Effect> {
        self.notice = Some(StatusMessage::good("reloading the configuration"));
        vec![Effect::Command(GatewayCommand::Reload)]
    }

    /// Opens an editor with the configuration file. Only a gateway on this machine has a file that can be edited.
    pub(super) fn edit(&mut self) -> Vec<Effect> {
        match &self.config_file {
            Some(path) if path.is_file() => return vec![Effect::Edit { path: path.clone() }],
            Some(path) => {
                let reason = format!("cannot edit {}: there is no such file", path.display());
                self.notice = Some(StatusMessage::bad(reason));
            }
            None => {
                let reason = "e edits the file of a gateway on this machine; this gateway has none here";
                self.notice = Some(StatusMessage::bad(reason));
            }
        }
        Vec::new()
    }

    /// Reloads the configuration after an edit that changed the file.
    pub(super) fn edited(&mut self, edited: Result<bool, String>) -> Vec<Effect> {
        match edited {
            Ok(true) => return self.reload(),
            Ok(false) => self.notice = Some(StatusMessage::good("the configuration file is unchanged")),
            Err(reason) => self.notice = Some(StatusMessage::bad(reason)),
        }
        Vec::new()
    }
}
