//! The dialogs in front of a panel.

use goblin_admin::routes::ServerAction;
use goblin_telemetry::clean;

use crate::state::form::Form;
use crate::state::json::pretty;
use crate::state::login::LoginDialog;
use crate::state::logs::LogView;
use crate::state::message::GatewayCommand;
use crate::state::palette::Palette;

/// The maximum number of lines of a result. `goblin tools call` and `goblin resources read` print all of it.
const MAX_LINES: usize = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub enum Dialog {
    /// The choice of the server filter. 0 means all servers.
    Picker {
        at: usize,
    },
    Confirm {
        question: String,
        command: GatewayCommand,
    },
    Form(Form),
    Reader(ResultDialog),
    Logs(LogView),
    Login(LoginDialog),
    Jump(Palette),
}

impl Dialog {
    /// Asks for confirmation of an action on a server with this many open calls.
    pub fn confirm(action: ServerAction, id: &str, in_flight: usize) -> Dialog {
        let server = clean(id);
        let lost = match in_flight {
            0 => String::new(),
            1 => " Its open call fails.".to_owned(),
            count => format!(" Its {count} open calls fail."),
        };
        let question = match action {
            ServerAction::Restart if lost.is_empty() => format!("Restart {server}? It has no open calls."),
            ServerAction::Restart => format!("Restart {server}?{lost}"),
            ServerAction::Disable => format!("Disable {server}? Clients lose its tools and resources.{lost}"),
            ServerAction::Enable => format!("Enable {server}?"),
        };
        Dialog::Confirm { question, command: GatewayCommand::Server(action, id.to_owned()) }
    }

    /// Scrolls a reader or a log. `max` is the maximum position of the last frame.
    pub fn scroll(&mut self, by: isize, max: usize) {
        match self {
            Dialog::Reader(reader) => crate::state::scroll(&mut reader.scroll, by, max),
            Dialog::Logs(view) => view.scroll(by, max),
            Dialog::Login(login) => crate::state::scroll(&mut login.scroll, by, max),
            Dialog::Picker { .. } | Dialog::Confirm { .. } | Dialog::Form(_) | Dialog::Jump(_) => {}
        }
    }
}

/// The result of a call or a read, or the wait for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultDialog {
    pub title: String,
    pub waits_for: Option<u64>,
    pub lines: Vec<String>,
    /// The whole text, to copy.
    pub text: String,
    pub is_error: bool,
    pub scroll: usize,
}

impl ResultDialog {
    pub fn waiting(title: &str, ticket: u64) -> ResultDialog {
        ResultDialog { title: clean(title), waits_for: Some(ticket), ..ResultDialog::default() }
    }

    /// Creates a dialog for an error that needs no request.
    pub fn report(title: &str, text: &str) -> ResultDialog {
        let mut dialog = ResultDialog { title: clean(title), ..ResultDialog::default() };
        dialog.fill(text, true);
        dialog
    }

    pub fn fill(&mut self, text: &str, is_error: bool) {
        let is_json = text.trim_start().starts_with(['{', '['])
            && serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
        let mut lines = if is_json { pretty(text) } else { text.lines().map(str::to_owned).collect() };
        let omitted = lines.len().saturating_sub(MAX_LINES);
        lines.truncate(MAX_LINES);
        self.lines = lines.iter().map(|line| clean(&line.replace('\t', "    "))).collect();
        if omitted > 0 {
            self.lines.push(format!("… {omitted} more lines"));
        }
        self.text = text.to_owned();
        (self.waits_for, self.is_error) = (None, is_error);
    }
}
