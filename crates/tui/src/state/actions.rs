//! Actions on the selected row: calls, reads, watches and changes of servers, and the handling of their results.

use goblin_admin::routes::{List, ServerAction};

use crate::state::data::CatalogItem;
use crate::state::dialog::{Dialog, ResultDialog};
use crate::state::form::Form;
use crate::state::table::{Row, RowItem};
use crate::state::{Effect, State, StatusMessage};

impl State {
    pub(super) fn selected_item(&self, kinds: &[List]) -> Option<(List, &CatalogItem)> {
        match self.row()?.what {
            RowItem::Item(kind, at) if kinds.contains(&kind) => Some((kind, self.data.items(kind).get(at)?)),
            _ => None,
        }
    }

    pub(super) fn selected_server(&self) -> Option<(&str, &str)> {
        let Row { what: RowItem::Server(at), .. } = self.row()? else { return None };
        self.data.servers().get(*at).map(|server| (server.id.as_str(), server.state.as_str()))
    }

    pub(super) fn open_form(&mut self) {
        match self.selected_item(&[List::Tools]) {
            Some((_, tool)) => self.dialog = Some(Dialog::Form(Form::new(&tool.exposed, &tool.definition))),
            None => self.notice = Some(StatusMessage::bad("c calls a tool: select one in the panel Tools (3)")),
        }
    }

    pub(super) fn call(&mut self, mut form: Form) -> Vec<Effect> {
        match form.arguments() {
            None => {
                self.dialog = Some(Dialog::Form(form));
                Vec::new()
            }
            Some(arguments) => {
                let ticket = self.wait(&form.tool);
                vec![Effect::Call { ticket, tool: form.tool, arguments }]
            }
        }
    }

    pub(super) fn read(&mut self) -> Vec<Effect> {
        let Some((_, item)) = self.selected_item(&[List::Resources]) else {
            self.notice = Some(StatusMessage::bad("r reads a resource: select one in the panel Resources (5)"));
            return Vec::new();
        };
        let uri = item.exposed.clone();
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
            reader.fill(text, is_error);
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
            Some((server, _)) => self.dialog = Some(Dialog::confirm(action, server)),
            None => {
                self.notice = Some(StatusMessage::bad("this key needs a server: select one in the panel Servers (2)"))
            }
        }
    }
}
