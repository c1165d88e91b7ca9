//! Input for dialogs and for the search.

use crate::state::dialog::{Dialog, ResultDialog};
use crate::state::form::Form;
use crate::state::message::Effect;
use crate::state::table::{Row, RowItem};
use crate::state::{State, scroll};

impl State {
    pub(super) fn write(&mut self, character: char) {
        match &mut self.dialog {
            Some(Dialog::Form(form)) => form.write(character),
            Some(Dialog::Jump(palette)) => palette.write(character),
            Some(Dialog::Login(login)) => login.write(character),
            None if self.is_searching => {
                self.query.push(character);
                self.rebuild_list();
            }
            _ => {}
        }
    }

    pub(super) fn erase(&mut self) {
        match &mut self.dialog {
            Some(Dialog::Form(form)) => form.erase(),
            Some(Dialog::Jump(palette)) => palette.erase(),
            Some(Dialog::Login(login)) => login.erase(),
            None if self.is_searching => {
                self.query.pop();
                self.rebuild_list();
            }
            _ => {}
        }
    }

    pub(super) fn go_in_dialog(&mut self, by: isize) {
        let servers = self.data.servers().len();
        if let Some(position) = &mut self.help {
            return scroll(position, by, self.measures.help);
        }
        match &mut self.dialog {
            Some(Dialog::Form(form)) => form.go(by.signum()),
            Some(Dialog::Jump(palette)) => palette.go(by),
            Some(Dialog::Picker { at }) => scroll(at, by, servers),
            Some(dialog) => dialog.scroll(by, self.measures.dialog),
            // The matches can be selected while a search is written.
            None => self.select(self.selected().saturating_add_signed(by)),
        }
    }

    /// Takes the next or previous choice of the field. Asks the server for suggestions if the field has no choices.
    pub(super) fn choose(&mut self, by: isize) -> Vec<Effect> {
        let ticket = self.tickets + 1;
        let Some(Dialog::Form(form)) = &mut self.dialog else { return Vec::new() };
        let Some(params) = form.choose(by, ticket) else { return Vec::new() };
        self.tickets = ticket;
        vec![Effect::Complete { ticket, params }]
    }

    pub(super) fn suggested(&mut self, ticket: u64, values: Vec<String>) {
        if let Some(Dialog::Form(form)) = &mut self.dialog {
            form.suggested(ticket, values);
        }
    }

    pub(super) fn submit(&mut self) -> Vec<Effect> {
        if self.help.is_some() {
            return self.cancel();
        }
        match self.dialog.take() {
            None => self.is_searching = false,
            Some(Dialog::Picker { at }) => self.pick(at),
            Some(Dialog::Confirm { command, .. }) => return vec![Effect::Command(command)],
            Some(Dialog::Form(form)) => return self.send_form(form),
            Some(Dialog::Login(login)) => return self.submit_login(login),
            Some(Dialog::Jump(palette)) => {
                if let Some(target) = palette.chosen() {
                    // A filter or a search could hide the row.
                    self.query.clear();
                    self.server = None;
                    self.show(target.panel);
                    self.select_id(&target.row);
                }
            }
            closed @ Some(Dialog::Reader(_) | Dialog::Logs(_)) => {
                self.dialog = closed;
                return self.cancel();
            }
        }
        Vec::new()
    }

    pub(super) fn cancel(&mut self) -> Vec<Effect> {
        self.notice = None;
        if self.help.take().is_some() {
            return Vec::new();
        }
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

    /// Sends the request of a form. A form with wrong values stays open.
    pub(super) fn send_form(&mut self, mut form: Form) -> Vec<Effect> {
        let ticket = self.tickets + 1;
        match form.request(ticket) {
            None => {
                self.dialog = Some(Dialog::Form(form));
                Vec::new()
            }
            Some((title, effect)) => {
                self.wait(&title);
                vec![effect]
            }
        }
    }

    /// Returns the index of the filter in the picker, where 0 means all servers. If no filter is set and a server is
    /// selected, returns the index of that server.
    pub(super) fn server_number(&self) -> usize {
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
