//! The dialogs in front of a panel.

use goblin_admin::routes::ServerAction;
use goblin_telemetry::clean;

use crate::state::GatewayCommand;
use crate::state::form::Form;
use crate::state::json::pretty;

/// The maximum number of lines of a result. `goblin tools call` and `goblin resources read` print all of it.
const MAX_LINES: usize = 10_000;

#[derive(Clone, Debug, PartialEq)]
pub enum Dialog {
    Help {
        scroll: usize,
    },
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
}

impl Dialog {
    pub fn confirm(action: ServerAction, id: &str) -> Dialog {
        let server = clean(id);
        let question = match action {
            ServerAction::Restart => format!("Restart {server}? Its open calls fail."),
            ServerAction::Disable => format!("Disable {server}? Clients lose its tools and resources."),
            ServerAction::Enable => format!("Enable {server}?"),
        };
        Dialog::Confirm { question, command: GatewayCommand::Server(action, id.to_owned()) }
    }

    /// Scrolls the help or a reader. `max` is the maximum position of the last frame.
    pub fn scroll(&mut self, by: isize, max: usize) {
        if let Dialog::Help { scroll } | Dialog::Reader(ResultDialog { scroll, .. }) = self {
            crate::state::scroll(scroll, by, max);
        }
    }
}

/// The result of a call or a read, or the wait for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultDialog {
    pub title: String,
    pub waits_for: Option<u64>,
    pub lines: Vec<String>,
    pub is_error: bool,
    pub scroll: usize,
}

impl ResultDialog {
    pub fn waiting(title: &str, ticket: u64) -> ResultDialog {
        ResultDialog { title: clean(title), waits_for: Some(ticket), ..ResultDialog::default() }
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
        (self.waits_for, self.is_error) = (None, is_error);
    }
}
