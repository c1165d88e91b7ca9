//! The text that `y` copies: of the dialog, of the focused details, or of the selected row.

use goblin_config::visible::is_hidden;
use goblin_telemetry::clean;
use goblin_wire::units;

use crate::state::State;
use crate::state::detail::Line;
use crate::state::dialog::Dialog;
use crate::state::message::{Effect, StatusMessage};
use crate::state::table::{RowItem, event_text};

/// The maximum number of bytes. Many terminals drop longer texts without a message.
const MAX_COPIED_BYTES: usize = 64 * 1024;

impl State {
    pub(super) fn copy(&mut self) -> Vec<Effect> {
        let Some((label, text)) = self.copied() else {
            self.notice = Some(StatusMessage::bad("there is nothing to copy"));
            return Vec::new();
        };
        // A pasted control character could be a command of a shell.
        let text: String =
            text.chars().filter(|character| matches!(character, '\n' | '\t') || !is_hidden(*character)).collect();
        if text.len() > MAX_COPIED_BYTES {
            let reason = format!(
                "{label} has {}; terminals copy at most {}",
                units::bytes(text.len() as u64),
                units::bytes(MAX_COPIED_BYTES as u64)
            );
            self.notice = Some(StatusMessage::bad(reason));
            return Vec::new();
        }
        vec![Effect::Copy { label: clean(&label), text }]
    }

    /// Returns the text to copy, and its name for the user.
    fn copied(&self) -> Option<(String, String)> {
        match &self.dialog {
            Some(Dialog::Reader(reader)) if reader.waits_for.is_none() => {
                return Some(("the result".to_owned(), reader.text.clone()));
            }
            Some(Dialog::Logs(view)) => {
                let lines = view.lines(&self.data, self.level);
                let lines = lines.iter().map(|line| format!("{} {} {}", line.time, line.source, line.text));
                return Some(("the log".to_owned(), lines.collect::<Vec<_>>().join("\n")));
            }
            Some(Dialog::Login(login)) => {
                return Some(("the address of the login".to_owned(), login.url()?.to_owned()));
            }
            _ => {}
        }
        let what = self.row()?.what;
        match self.pane {
            Some(pane) if pane.is_focused => self.copied_details(what),
            _ => self.copied_row(what),
        }
        .filter(|(_, text)| !text.is_empty())
    }

    /// Returns the definition of an entry as JSON, or the lines of the details.
    fn copied_details(&self, what: RowItem) -> Option<(String, String)> {
        if let RowItem::Item(kind, at) = what {
            let definition = self.data.items(kind).get(at)?.definition.clone();
            return Some(("the definition".to_owned(), definition));
        }
        let lines = self.detail()?.lines.into_iter().map(|line| match line {
            Line::Heading(text) => format!("\n{text}"),
            Line::Field(label, value, _) => format!("{label}: {value}"),
            Line::Text(text, _) => text,
        });
        Some(("the details".to_owned(), lines.collect::<Vec<_>>().join("\n")))
    }

    /// Returns the error of a failed row, or else its name.
    fn copied_row(&self, what: RowItem) -> Option<(String, String)> {
        let named = |name: &str| Some((clean(name), name.to_owned()));
        match what {
            RowItem::Server(at) => {
                let server = self.data.servers().get(at)?;
                match &server.reason {
                    Some(reason) => Some((format!("the error of {}", server.id), reason.clone())),
                    None => named(&server.id),
                }
            }
            RowItem::Item(kind, at) => named(&self.data.items(kind).get(at)?.exposed),
            RowItem::Subscription(at) => named(&self.data.subscriptions.subscriptions.get(at)?.uri),
            RowItem::Session(at) => {
                let session = self.data.sessions.sessions.get(at)?;
                named(if session.id.is_empty() { &session.client } else { &session.id })
            }
            RowItem::Call(at) => {
                let call = self.data.calls.calls.get(at)?;
                match &call.error {
                    Some(error) => Some((format!("the error of {}", call.name), error.clone())),
                    None => named(&call.name),
                }
            }
            RowItem::Event(at) => Some(("the event".to_owned(), event_text(self.data.events.get(at)?))),
        }
    }
}
