//! An MCP client that sends one request at a time.
//!
//! While it waits for a response, it prints progress and answers elicitations of the server (see [`form`]).

use std::io::{IsTerminal, Write};

use goblin_client::content::ToolOutput;
use goblin_client::peer::{Peer, PeerMessage};
use goblin_telemetry::clean;
use goblin_wire::extensions::META_TOOLS;
use goblin_wire::json::quote;
use goblin_wire::{Id, Method, Notification, Outcome, Response};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::catalog::form;
use crate::cli::CliError;
use crate::progress::ProgressLine;
use crate::style::note;

/// Error codes of the gateway that mean that a server or the gateway cannot be reached.
const OUT_OF_REACH: [&str; 5] = ["BACKEND_UNAVAILABLE", "BACKEND_PROTOCOL", "OVERLOADED", "SHUTTING_DOWN", "TIMEOUT"];
/// Error codes of the gateway that mean that an entry does not exist.
const NOT_FOUND: [&str; 3] = ["TOOL_NOT_FOUND", "PROMPT_NOT_FOUND", "RESOURCE_NOT_FOUND"];

pub(crate) struct CatalogClient {
    peer: Peer,
    /// The address of the gateway, for messages.
    pub place: String,
    /// The prefix of the meta tools' names. `None` if the gateway serves no meta tools.
    prefix: Option<String>,
    /// The id of the request without a response.
    open: Option<u64>,
    progress: ProgressPrinter,
}

impl CatalogClient {
    pub(crate) fn new(peer: Peer, place: String) -> CatalogClient {
        CatalogClient { peer, place, prefix: None, open: None, progress: ProgressPrinter::default() }
    }

    pub(crate) async fn begin(&mut self) -> Result<(), CliError> {
        // Ask for the meta tools, because the gateway advertises them only if they are on.
        let capabilities = format!(r#"{{"elicitation":{{}},"experimental":{{"{META_TOOLS}":{{}}}}}}"#);
        let answer = self.peer.begin("goblin", &capabilities).await;
        let initialized: Value =
            serde_json::from_str(result(&answer.ok_or_else(connection_closed)?)?.get()).unwrap_or_default();
        let served = &initialized["capabilities"]["experimental"][META_TOOLS];
        self.prefix = served.is_object().then(|| served["prefix"].as_str().unwrap_or_default().to_owned());
        Ok(())
    }

    /// Ends the session. Cancels an open request first.
    pub(crate) async fn end(mut self) {
        if let Some(number) = self.open {
            let params = format!(r#"{{"requestId":{number},"reason":"interrupted"}}"#);
            self.peer.notify(&Method::Cancelled, Some(&params));
        }
        self.progress.end();
        self.peer.flush().await;
    }

    /// Sends a request and returns its result. Handles progress and requests of the server while it waits.
    pub(crate) async fn request(&mut self, method: &Method, params: &str) -> Result<Box<RawValue>, CliError> {
        let number = self.peer.request(method, params);
        self.open = Some(number);
        let answer = loop {
            match self.peer.next().await.ok_or_else(connection_closed)? {
                PeerMessage::Answer(answer) if answer.id.as_ref().and_then(Id::as_u64) == Some(number) => break answer,
                PeerMessage::Answer(_) => {}
                PeerMessage::Notification(notification) if notification.method == Method::Progress => {
                    self.progress.show(&notification)
                }
                PeerMessage::Notification(_) => {}
                PeerMessage::Request(request) if request.method == Method::Elicit => {
                    self.progress.end();
                    let answer = form::answer(&request).await;
                    self.peer.answer(&request, answer);
                }
                PeerMessage::Request(request) => {
                    note(&format!(
                        "the server sent a {} request, which this command does not support",
                        clean(request.method.as_str())
                    ));
                    self.peer.reject(&request);
                }
            }
        };
        self.open = None;
        self.progress.end();
        result(&answer)
    }

    /// Calls a tool. `arguments` is a JSON object.
    pub(crate) async fn call(&mut self, name: &str, arguments: &str) -> Result<ToolOutput, CliError> {
        let params = format!(r#"{{"name":{},"arguments":{arguments},"_meta":{{"progressToken":1}}}}"#, quote(name));
        self.request(&Method::ToolsCall, &params).await.map(|raw| ToolOutput { raw })
    }

    /// Reports whether the gateway serves meta tools.
    pub(crate) fn has_meta_tools(&self) -> bool {
        self.prefix.is_some()
    }

    /// Calls a meta tool. An error of a meta tool is caused by wrong arguments, so it becomes [`CliError::Usage`].
    pub(crate) async fn call_meta_tool(&mut self, tool: &str, arguments: &Value) -> Result<ToolOutput, CliError> {
        let name = format!("{}{tool}", self.prefix.as_deref().unwrap_or_default());
        let outcomes = self.call(&name, &arguments.to_string()).await?;
        match outcomes.is_error() {
            true => Err(CliError::Usage(clean(&outcomes.text()))),
            false => Ok(outcomes),
        }
    }
}

fn connection_closed() -> CliError {
    CliError::Unavailable("the gateway closed the connection before it answered".to_owned())
}

/// Returns the result in a response, or the failure for its error.
fn result(answer: &Response) -> Result<Box<RawValue>, CliError> {
    let at = match answer.outcome {
        Outcome::Result(at) | Outcome::Error(at) => at.get(answer.raw.as_str()),
    };
    let raw: Box<RawValue> = serde_json::from_str(at).map_err(|error| CliError::Refused(error.to_string()))?;
    match answer.outcome {
        Outcome::Result(_) => Ok(raw),
        Outcome::Error(_) => Err(failure(&serde_json::from_str(raw.get()).unwrap_or_default())),
    }
}

/// Maps a JSON-RPC error to a failure, which determines the exit code.
fn failure(error: &Value) -> CliError {
    let message = clean(error["message"].as_str().unwrap_or("an error without a message"));
    match error["data"]["code"].as_str().unwrap_or_default() {
        code if OUT_OF_REACH.contains(&code) => CliError::Unavailable(message),
        code if NOT_FOUND.contains(&code) => CliError::Usage(message),
        _ => CliError::Refused(message),
    }
}

/// Prints the progress of a call on stderr: one line that changes on a terminal, separate lines elsewhere.
#[derive(Default)]
struct ProgressPrinter {
    line: Option<ProgressLine>,
}

impl ProgressPrinter {
    fn show(&mut self, notification: &Notification) {
        let params = notification.params.whole.map_or("{}", |whole| whole.get(notification.raw.as_str()));
        let text = progress_line(&serde_json::from_str(params).unwrap_or_default());
        match std::io::stderr().is_terminal() {
            true => self.line.get_or_insert_with(ProgressLine::new).show(text),
            // A closed stderr is no error here.
            false => drop(writeln!(std::io::stderr(), "{text}")),
        }
    }

    /// Erases the progress line, so that other text can follow.
    fn end(&mut self) {
        self.line = None;
    }
}

fn progress_line(params: &Value) -> String {
    let number = |key: &str| params[key].as_f64().map(|number| number.to_string());
    let done = number("progress").unwrap_or_else(|| "?".to_owned());
    let total = number("total").map(|total| format!(" of {total}")).unwrap_or_default();
    let message = params["message"].as_str().map(|message| format!(", {}", clean(message))).unwrap_or_default();
    format!("progress: {done}{total}{message}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_have_their_exit_codes() {
        for (data, code) in [
            (json!({"code": "BACKEND_UNAVAILABLE"}), 3),
            (json!({"code": "TIMEOUT"}), 3),
            (json!({"code": "TOOL_NOT_FOUND"}), 2),
            (json!({"code": "RESOURCE_NOT_FOUND"}), 2),
            (json!({"code": "LIMIT_EXCEEDED"}), 1),
            (json!("anything"), 1),
            (Value::Null, 1),
        ] {
            let failure = failure(&json!({"code": -1, "message": "words", "data": data}));
            assert_eq!((failure.code(), failure.to_string()), (code, "words".to_owned()), "{data}");
        }
    }

    #[test]
    fn a_progress_line_shows_the_known_members() {
        for (params, expected) in [
            (json!({"progress": 1, "total": 3, "message": "half\nway"}), "progress: 1 of 3, half way"),
            (json!({"progress": 0.5}), "progress: 0.5"),
            (json!({}), "progress: ?"),
        ] {
            assert_eq!(progress_line(&params), expected);
        }
    }
}
