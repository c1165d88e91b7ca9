//! Calls, reads and watches over one MCP session. The session opens when it is first needed, and again after it was
//! lost.

use std::collections::HashMap;

use goblin_client::bridge::message::error_message;
use goblin_client::bridge::wire::GatewayConnection;
use goblin_client::content::{ContentBlock, ToolOutput, blocks};
use goblin_client::gateway::{self, PIPE_BYTES};
use goblin_client::peer::{Peer, PeerMessage};
use goblin_client::runtime::GatewayRecord;
use goblin_client::update::{ResourceUpdate, utc_now};
use goblin_wire::extensions::SUBSCRIPTIONS;
use goblin_wire::json::quote;
use goblin_wire::{Id, Method, Outcome, Response};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::remote::api::GatewayAddress;
use crate::state::format::clock;
use crate::state::message::{Effect, StatusMessage, UiEvent};

/// A request without a response.
enum PendingRequest {
    /// A call or a read, with the function that reads its result.
    Result {
        ticket: u64,
        read: fn(&str) -> (String, bool),
    },
    Completion {
        ticket: u64,
    },
    Watch {
        uri: String,
        is_on: bool,
    },
}

impl PendingRequest {
    /// Returns the request of an effect: its method, its parameters and its state. Returns `None` for other effects.
    fn of(effect: Effect) -> Option<(Method, String, PendingRequest)> {
        let uri_params = |uri: &str| format!(r#"{{"uri":{}}}"#, quote(uri));
        Some(match effect {
            Effect::Call { ticket, tool, arguments } => {
                let params = format!(r#"{{"name":{},"arguments":{arguments}}}"#, quote(&tool));
                (Method::ToolsCall, params, PendingRequest::Result { ticket, read: call_text })
            }
            Effect::GetPrompt { ticket, prompt, arguments } => {
                let params = format!(r#"{{"name":{},"arguments":{arguments}}}"#, quote(&prompt));
                (Method::PromptsGet, params, PendingRequest::Result { ticket, read: prompt_text })
            }
            Effect::Complete { ticket, params } => (Method::Complete, params, PendingRequest::Completion { ticket }),
            Effect::Read { ticket, uri } => {
                (Method::ResourcesRead, uri_params(&uri), PendingRequest::Result { ticket, read: read_text })
            }
            Effect::Watch { uri } => (Method::Subscribe, uri_params(&uri), PendingRequest::Watch { uri, is_on: true }),
            Effect::Unwatch { uri } => {
                (Method::Unsubscribe, uri_params(&uri), PendingRequest::Watch { uri, is_on: false })
            }
            Effect::Quit
            | Effect::Copy { .. }
            | Effect::Edit { .. }
            | Effect::Forget { .. }
            | Effect::OpenBrowser { .. }
            | Effect::Command(_) => return None,
        })
    }

    fn failed(self, text: String) -> UiEvent {
        match self {
            PendingRequest::Result { ticket, .. } => UiEvent::Answered { ticket, text, is_error: true },
            // A server without completion has no suggestions.
            PendingRequest::Completion { ticket } => UiEvent::Suggested { ticket, values: Vec::new() },
            PendingRequest::Watch { .. } => UiEvent::Notice(StatusMessage::bad(text)),
        }
    }

    fn answered(self, answer: &Response) -> UiEvent {
        let error_message = || error_message(answer).unwrap_or_else(|| "an error without a message".to_owned());
        match (answer.outcome, self) {
            (Outcome::Result(at), PendingRequest::Result { ticket, read }) => {
                let (text, is_error) = read(at.get(answer.raw.as_str()));
                UiEvent::Answered { ticket, text, is_error }
            }
            (Outcome::Result(at), PendingRequest::Completion { ticket }) => {
                UiEvent::Suggested { ticket, values: suggestions(at.get(answer.raw.as_str())) }
            }
            (Outcome::Result(_), PendingRequest::Watch { uri, is_on }) => UiEvent::Watching { uri, is_on },
            (Outcome::Error(_), PendingRequest::Watch { uri, .. }) => {
                UiEvent::Notice(StatusMessage::bad(format!("{uri}: {}", error_message())))
            }
            (Outcome::Error(_), request) => request.failed(error_message()),
        }
    }
}

pub(crate) async fn run(gateway: &GatewayAddress, events: &mpsc::Sender<UiEvent>, mut called: mpsc::Receiver<Effect>) {
    let mut first = called.recv().await;
    while let Some(effect) = first {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let wire = match wire(gateway) {
            Ok(wire) => wire,
            Err(error) => {
                let _ = events.send(failed(effect, format!("{error:#}"))).await;
                first = called.recv().await;
                continue;
            }
        };
        let mut peer_loop = PeerLoop { peer: Peer::new(near), events, open: HashMap::new() };
        let finished = async move {
            let continues = peer_loop.run(effect, &mut called).await;
            peer_loop.fail_open_requests().await;
            (called, continues)
        };
        let (returned, ()) = tokio::join!(finished, gateway::carry(wire, far));
        let continues;
        (called, continues) = returned;
        if !continues {
            return;
        }
        first = called.recv().await;
    }
}

fn wire(gateway: &GatewayAddress) -> anyhow::Result<GatewayConnection> {
    match gateway {
        GatewayAddress::Named { url, token, .. } => gateway::to_url(url, token.as_ref(), None),
        GatewayAddress::Recorded(record) => gateway::to_record(GatewayRecord::clone(record), None, |_| true),
    }
}

/// Returns the message for an effect that failed.
fn failed(effect: Effect, reason: String) -> UiEvent {
    match PendingRequest::of(effect) {
        Some((_, _, request)) => request.failed(reason),
        None => UiEvent::Notice(StatusMessage::bad(reason)),
    }
}

struct PeerLoop<'a> {
    peer: Peer,
    events: &'a mpsc::Sender<UiEvent>,
    /// The requests without a response, by their id.
    open: HashMap<u64, PendingRequest>,
}

impl PeerLoop<'_> {
    /// Runs the session until it ends. Returns `true` if the session was lost but the dashboard still runs.
    async fn run(&mut self, first: Effect, called: &mut mpsc::Receiver<Effect>) -> bool {
        let capabilities = format!(r#"{{"experimental":{{"{SUBSCRIPTIONS}":{{}}}}}}"#);
        let answer = self.peer.begin("goblin top", &capabilities).await;
        let error = match &answer {
            Some(answer) => error_message(answer),
            None => Some("the gateway closed the connection before it answered".to_owned()),
        };
        if let Some(reason) = error {
            return self.events.send(failed(first, reason)).await.is_ok();
        }
        self.begin(first);
        loop {
            tokio::select! {
                effect = called.recv() => match effect {
                    Some(effect) => self.begin(effect),
                    None => return false,
                },
                message = self.peer.next() => {
                    let Some(message) = message else { return true };
                    if self.handle(message).await.is_none() {
                        return false;
                    }
                }
            }
        }
    }

    fn begin(&mut self, effect: Effect) {
        if let Effect::Forget { ticket } = effect {
            return self.forget(ticket);
        }
        // The loop of the dashboard handles the effects that are no requests.
        if let Some((method, params, request)) = PendingRequest::of(effect) {
            let number = self.peer.request(&method, &params);
            self.open.insert(number, request);
        }
    }

    fn forget(&mut self, cancelled: u64) {
        let has_ticket =
            |open: &PendingRequest| matches!(open, PendingRequest::Result { ticket, .. } if *ticket == cancelled);
        let number = self.open.iter().find(|(_, open)| has_ticket(open)).map(|(number, _)| *number);
        if let Some(number) = number {
            self.open.remove(&number);
            let params = format!(r#"{{"requestId":{number},"reason":"no longer needed"}}"#);
            self.peer.notify(&Method::Cancelled, Some(&params));
        }
    }

    /// Handles a message of the gateway. Returns `None` if the dashboard ended.
    async fn handle(&mut self, message: PeerMessage) -> Option<()> {
        let message = match message {
            PeerMessage::Answer(answer) => {
                let open = answer.id.as_ref().and_then(Id::as_u64).and_then(|number| self.open.remove(&number));
                open.map(|open| open.answered(&answer))
            }
            PeerMessage::Notification(notification) => ResourceUpdate::read(&notification).map(|update| {
                let ResourceUpdate { uri, is_deleted, .. } = update;
                UiEvent::Updated { uri, time: clock(&utc_now()).to_owned(), is_deleted }
            }),
            PeerMessage::Request(request) => {
                self.peer.reject(&request);
                None
            }
        };
        match message {
            Some(message) => self.events.send(message).await.ok(),
            None => Some(()),
        }
    }

    /// Fails all open requests.
    async fn fail_open_requests(mut self) {
        for (_, open) in self.open.drain() {
            let _ = self.events.send(open.failed("the connection to the gateway was lost".to_owned())).await;
        }
    }
}

fn call_text(result: &str) -> (String, bool) {
    let Ok(raw) = serde_json::from_str(result) else { return (result.to_owned(), true) };
    let outcomes = ToolOutput { raw };
    (lines(&blocks(&outcomes)), outcomes.is_error())
}

fn read_text(result: &str) -> (String, bool) {
    let value: Value = serde_json::from_str(result).unwrap_or_default();
    let contents = value["contents"].as_array().map(Vec::as_slice).unwrap_or_default();
    (lines(&contents.iter().map(ContentBlock::of_resource).collect::<Vec<_>>()), false)
}

/// Returns the messages of a prompt, each below its role.
fn prompt_text(result: &str) -> (String, bool) {
    let value: Value = serde_json::from_str(result).unwrap_or_default();
    let messages = value["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let message = |message: &Value| {
        let role = message["role"].as_str().unwrap_or("?");
        format!("{role}:\n{}", ContentBlock::read(&message["content"]).line().trim_end())
    };
    (messages.iter().map(message).collect::<Vec<_>>().join("\n\n"), false)
}

/// Returns the values of a completion.
fn suggestions(result: &str) -> Vec<String> {
    let value: Value = serde_json::from_str(result).unwrap_or_default();
    let values = value["completion"]["values"].as_array().map(Vec::as_slice).unwrap_or_default();
    values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn lines(blocks: &[ContentBlock]) -> String {
    blocks.iter().map(ContentBlock::line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use14_the_messages_of_a_prompt_are_readable() {
        let result = r#"{"messages":[
            {"role":"user","content":{"type":"text","text":"Review main\n"}},
            {"role":"assistant","content":{"type":"image","mimeType":"image/png","data":"AAAA"}}]}"#;
        assert_eq!(prompt_text(result).0, "user:\nReview main\n\nassistant:\n[image image/png, 3 B]");
        assert_eq!(suggestions(r#"{"completion":{"values":["a",1,"b"]}}"#), ["a", "b"]);
        assert!(suggestions("{}").is_empty());
    }
}
