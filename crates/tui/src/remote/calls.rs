//! Calls, reads and watches over one MCP session. The session opens when it is first needed, and again after it was
//! lost.

use std::collections::HashMap;

use goblin_client::bridge::message::complaint;
use goblin_client::bridge::wire::Wire;
use goblin_client::content::{Block, Outcomes, blocks};
use goblin_client::gateway::{self, PIPE_BYTES};
use goblin_client::peer::{Heard, Peer};
use goblin_client::runtime::Record;
use goblin_client::update::{Update, now};
use goblin_wire::extensions::SUBSCRIPTIONS;
use goblin_wire::json::quote;
use goblin_wire::{Id, Method, Outcome, Response};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::remote::api::Gateway;
use crate::state::words::clock;
use crate::state::{Effect, Message, Notice};

/// A request without a response.
enum Open {
    Call { ticket: u64 },
    Read { ticket: u64 },
    Watch { uri: String },
    Unwatch { uri: String },
}

pub(crate) async fn run(gateway: &Gateway, news: &mpsc::Sender<Message>, mut called: mpsc::Receiver<Effect>) {
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
        let mut talk = Talk { peer: Peer::new(near), news, open: HashMap::new() };
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

fn wire(gateway: &Gateway) -> anyhow::Result<Wire> {
    match gateway {
        Gateway::Named { url, token, .. } => gateway::to_url(url, token.as_ref(), None),
        Gateway::Recorded(record) => gateway::to_record(Record::clone(record), None),
    }
}

/// Returns the message for an effect that failed.
fn failed(effect: Effect, reason: &str) -> Message {
    match effect {
        Effect::Call { ticket, .. } | Effect::Read { ticket, .. } => {
            Message::Answered { ticket, text: reason.to_owned(), is_error: true }
        }
        _ => Message::Said(Notice::bad(reason)),
    }
}

struct Talk<'a> {
    peer: Peer,
    news: &'a mpsc::Sender<Message>,
    /// The requests without a response, by their id.
    open: HashMap<u64, Open>,
}

impl Talk<'_> {
    /// Runs the session until it ends. Returns `true` if the session was lost but the dashboard still runs.
    async fn run(&mut self, first: Effect, called: &mut mpsc::Receiver<Effect>) -> bool {
        let capabilities = format!(r#"{{"experimental":{{"{SUBSCRIPTIONS}":{{}}}}}}"#);
        let begun = self.peer.begin("goblin top", &capabilities).await;
        let refused = match &begun {
            Some(answer) => complaint(answer.raw.bytes()),
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
                (Method::ToolsCall, params, Open::Call { ticket })
            }
            Effect::Read { ticket, uri } => (Method::ResourcesRead, about(&uri), Open::Read { ticket }),
            Effect::Watch { uri } => (Method::Subscribe, about(&uri), Open::Watch { uri }),
            Effect::Unwatch { uri } => (Method::Unsubscribe, about(&uri), Open::Unwatch { uri }),
            Effect::Forget { ticket } => return self.forget(ticket),
            // The loop of the dashboard handles these.
            Effect::Quit | Effect::Command(_) => return,
        };
        let number = self.peer.request(&method, &params);
        self.open.insert(number, open);
    }

    fn forget(&mut self, wanted: u64) {
        let is_wanted = |open: &Open| match open {
            Open::Call { ticket } | Open::Read { ticket } => *ticket == wanted,
            Open::Watch { .. } | Open::Unwatch { .. } => false,
        };
        let number = self.open.iter().find(|(_, open)| is_wanted(open)).map(|(number, _)| *number);
        if let Some(number) = number {
            self.open.remove(&number);
            let params = format!(r#"{{"requestId":{number},"reason":"not wanted any more"}}"#);
            self.peer.notify(&Method::Cancelled, Some(&params));
        }
    }

    /// Handles a message of the gateway. Returns `None` if the dashboard ended.
    async fn hear(&mut self, heard: Heard) -> Option<()> {
        let message = match heard {
            Heard::Answer(answer) => {
                let open = answer.id.as_ref().and_then(Id::as_u64).and_then(|number| self.open.remove(&number));
                open.map(|open| answered(open, &answer))
            }
            Heard::Told(told) => Update::read(&told).filter(|_| is_update(&told.method)).map(|update| {
                let Update { uri, is_deleted, .. } = update;
                Message::Updated { uri, time: clock(&now()).to_owned(), is_deleted }
            }),
            Heard::Asked(ask) => {
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
                Open::Call { ticket } | Open::Read { ticket } => Message::Answered { ticket, text, is_error: true },
                Open::Watch { .. } | Open::Unwatch { .. } => Message::Said(Notice::bad(text)),
            };
            let _ = self.news.send(message).await;
        }
    }
}

fn is_update(method: &Method) -> bool {
    matches!(method, Method::ResourceUpdated | Method::ResourceDeleted)
}

fn answered(open: Open, answer: &Response) -> Message {
    let text = answer.raw.as_str();
    let result = match answer.outcome {
        Outcome::Result(at) => Ok(at.get(text)),
        Outcome::Error(_) => Err(complaint(answer.raw.bytes()).unwrap_or_else(|| "an error without words".to_owned())),
    };
    match (open, result) {
        (Open::Call { ticket }, Ok(result)) => {
            let (text, is_error) = call_text(result);
            Message::Answered { ticket, text, is_error }
        }
        (Open::Read { ticket }, Ok(result)) => Message::Answered { ticket, text: read_text(result), is_error: false },
        (Open::Call { ticket } | Open::Read { ticket }, Err(text)) => {
            Message::Answered { ticket, text, is_error: true }
        }
        (Open::Watch { uri }, Ok(_)) => Message::Watching { uri, is_on: true },
        (Open::Unwatch { uri }, Ok(_)) => Message::Watching { uri, is_on: false },
        (Open::Watch { uri } | Open::Unwatch { uri }, Err(reason)) => {
            Message::Said(Notice::bad(format!("{uri}: {reason}")))
        }
    }
}

fn call_text(result: &str) -> (String, bool) {
    let Ok(raw) = serde_json::from_str(result) else { return (result.to_owned(), true) };
    let outcomes = Outcomes { raw };
    (lines(&blocks(&outcomes)), outcomes.is_error())
}

fn read_text(result: &str) -> String {
    let value: Value = serde_json::from_str(result).unwrap_or_default();
    let contents = value["contents"].as_array().map(Vec::as_slice).unwrap_or_default();
    lines(&contents.iter().map(Block::of_resource).collect::<Vec<_>>())
}

fn lines(blocks: &[Block]) -> String {
    blocks.iter().map(Block::line).collect::<Vec<_>>().join("\n")
}
