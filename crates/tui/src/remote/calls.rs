//! Calls, reads and watches over one MCP session. The session opens when it is first needed, and again after it was
//! lost.

use std::collections::HashMap;

use goblin_client::bridge::message::complaint;
use goblin_client::bridge::wire::GatewayConnection;
use goblin_client::content::{ContentBlock, ToolOutput, blocks};
use goblin_client::gateway::{self, PIPE_BYTES};
use goblin_client::peer::{Peer, PeerMessage};
use goblin_client::runtime::GatewayRecord;
use goblin_client::update::{ResourceUpdate, now};
use goblin_wire::extensions::SUBSCRIPTIONS;
use goblin_wire::json::quote;
use goblin_wire::{Id, Method, Outcome, Response};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::remote::api::GatewayAddress;
use crate::state::words::clock;
use crate::state::{Effect, StatusMessage, UiEvent};

/// A request without a response.
enum PendingRequest {
    Call { ticket: u64 },
    Read { ticket: u64 },
    Watch { uri: String },
    Unwatch { uri: String },
}

pub(crate) async fn run(gateway: &GatewayAddress, news: &mpsc::Sender<UiEvent>, mut called: mpsc::Receiver<Effect>) {
    let mut first = called.recv().await;
    while let Some(effect) = first {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let wire = match wire(gateway) {
            Ok(wire) => wire,
            Err(error) => {
                let _ = news.send(failed(effect, &format!("{error:#}"))).await;
                first = called.recv().await;
                continue;
            }
        };
        let mut talk = PeerLoop { peer: Peer::new(near), news, open: HashMap::new() };
        let talked = async move {
            let goes_on = talk.run(effect, &mut called).await;
            talk.give_up().await;
            (called, goes_on)
        };
        let (returned, ()) = tokio::join!(talked, gateway::carry(wire, far));
        let goes_on;
        (called, goes_on) = returned;
        if !goes_on {
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
fn failed(effect: Effect, reason: &str) -> UiEvent {
    match effect {
        Effect::Call { ticket, .. } | Effect::Read { ticket, .. } => {
            UiEvent::Answered { ticket, text: reason.to_owned(), is_error: true }
        }
        _ => UiEvent::Said(StatusMessage::bad(reason)),
    }
}

struct PeerLoop<'a> {
    peer: Peer,
    news: &'a mpsc::Sender<UiEvent>,
    /// The requests without a response, by their id.
    open: HashMap<u64, PendingRequest>,
}

impl PeerLoop<'_> {
    /// Runs the session until it ends. Returns `true` if the session was lost but the dashboard still runs.
    async fn run(&mut self, first: Effect, called: &mut mpsc::Receiver<Effect>) -> bool {
        let capabilities = format!(r#"{{"experimental":{{"{SUBSCRIPTIONS}":{{}}}}}}"#);
        let begun = self.peer.begin("goblin top", &capabilities).await;
        let refused = match &begun {
            Some(answer) => complaint(answer),
            None => Some("the gateway ended before it answered".to_owned()),
        };
        if let Some(reason) = refused {
            return self.news.send(failed(first, &reason)).await.is_ok();
        }
        self.begin(first);
        loop {
            tokio::select! {
                effect = called.recv() => match effect {
                    Some(effect) => self.begin(effect),
                    None => return false,
                },
                heard = self.peer.next() => {
                    let Some(heard) = heard else { return true };
                    if self.hear(heard).await.is_none() {
                        return false;
                    }
                }
            }
        }
    }

    fn begin(&mut self, effect: Effect) {
        let about = |uri: &str| format!(r#"{{"uri":{}}}"#, quote(uri));
        let (method, params, open) = match effect {
            Effect::Call { ticket, tool, arguments } => {
                let params = format!(r#"{{"name":{},"arguments":{arguments}}}"#, quote(&tool));
                (Method::ToolsCall, params, PendingRequest::Call { ticket })
            }
            Effect::Read { ticket, uri } => (Method::ResourcesRead, about(&uri), PendingRequest::Read { ticket }),
            Effect::Watch { uri } => (Method::Subscribe, about(&uri), PendingRequest::Watch { uri }),
            Effect::Unwatch { uri } => (Method::Unsubscribe, about(&uri), PendingRequest::Unwatch { uri }),
            Effect::Forget { ticket } => return self.forget(ticket),
            // The loop of the dashboard handles these.
            Effect::Quit | Effect::Command(_) => return,
        };
        let number = self.peer.request(&method, &params);
        self.open.insert(number, open);
    }

    fn forget(&mut self, wanted: u64) {
        let is_wanted = |open: &PendingRequest| match open {
            PendingRequest::Call { ticket } | PendingRequest::Read { ticket } => *ticket == wanted,
            PendingRequest::Watch { .. } | PendingRequest::Unwatch { .. } => false,
        };
        let number = self.open.iter().find(|(_, open)| is_wanted(open)).map(|(number, _)| *number);
        if let Some(number) = number {
            self.open.remove(&number);
            let params = format!(r#"{{"requestId":{number},"reason":"not wanted any more"}}"#);
            self.peer.notify(&Method::Cancelled, Some(&params));
        }
    }

    /// Handles a message of the gateway. Returns `None` if the dashboard ended.
    async fn hear(&mut self, heard: PeerMessage) -> Option<()> {
        let message = match heard {
            PeerMessage::Answer(answer) => {
                let open = answer.id.as_ref().and_then(Id::as_u64).and_then(|number| self.open.remove(&number));
                open.map(|open| answered(open, &answer))
            }
            PeerMessage::Told(told) => ResourceUpdate::read(&told).filter(|_| is_update(&told.method)).map(|update| {
                let ResourceUpdate { uri, is_deleted, .. } = update;
                UiEvent::Updated { uri, time: clock(&now()).to_owned(), is_deleted }
            }),
            PeerMessage::Asked(ask) => {
                self.peer.refuse(&ask);
                None
            }
        };
        match message {
            Some(message) => self.news.send(message).await.ok(),
            None => Some(()),
        }
    }

    /// Fails all open requests.
    async fn give_up(mut self) {
        for (_, open) in self.open.drain() {
            let text = "the connection to the gateway was lost".to_owned();
            let message = match open {
                PendingRequest::Call { ticket } | PendingRequest::Read { ticket } => {
                    UiEvent::Answered { ticket, text, is_error: true }
                }
                PendingRequest::Watch { .. } | PendingRequest::Unwatch { .. } => {
                    UiEvent::Said(StatusMessage::bad(text))
                }
            };
            let _ = self.news.send(message).await;
        }
    }
}

fn is_update(method: &Method) -> bool {
    matches!(method, Method::ResourceUpdated | Method::ResourceDeleted)
}

fn answered(open: PendingRequest, answer: &Response) -> UiEvent {
    let text = answer.raw.as_str();
    let result = match answer.outcome {
        Outcome::Result(at) => Ok(at.get(text)),
        Outcome::Error(_) => Err(complaint(answer).unwrap_or_else(|| "an error without words".to_owned())),
    };
    match (open, result) {
        (PendingRequest::Call { ticket }, Ok(result)) => {
            let (text, is_error) = call_text(result);
            UiEvent::Answered { ticket, text, is_error }
        }
        (PendingRequest::Read { ticket }, Ok(result)) => {
            UiEvent::Answered { ticket, text: read_text(result), is_error: false }
        }
        (PendingRequest::Call { ticket } | PendingRequest::Read { ticket }, Err(text)) => {
            UiEvent::Answered { ticket, text, is_error: true }
        }
        (PendingRequest::Watch { uri }, Ok(_)) => UiEvent::Watching { uri, is_on: true },
        (PendingRequest::Unwatch { uri }, Ok(_)) => UiEvent::Watching { uri, is_on: false },
        (PendingRequest::Watch { uri } | PendingRequest::Unwatch { uri }, Err(reason)) => {
            UiEvent::Said(StatusMessage::bad(format!("{uri}: {reason}")))
        }
    }
}

fn call_text(result: &str) -> (String, bool) {
    let Ok(raw) = serde_json::from_str(result) else { return (result.to_owned(), true) };
    let outcomes = ToolOutput { raw };
    (lines(&blocks(&outcomes)), outcomes.is_error())
}

fn read_text(result: &str) -> String {
    let value: Value = serde_json::from_str(result).unwrap_or_default();
    let contents = value["contents"].as_array().map(Vec::as_slice).unwrap_or_default();
    lines(&contents.iter().map(ContentBlock::of_resource).collect::<Vec<_>>())
}

fn lines(blocks: &[ContentBlock]) -> String {
    blocks.iter().map(ContentBlock::line).collect::<Vec<_>>().join("\n")
}
