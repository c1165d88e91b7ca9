//! Subscribes to the resources and prints every update until the watch ends.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use goblin_client::bridge::message::error_message;
use goblin_client::peer::{Peer, PeerMessage};
use goblin_client::update::{ResourceUpdate, utc_now};
use goblin_telemetry::clean;
use goblin_wire::extensions::SUBSCRIPTIONS;
use goblin_wire::{Method, Notification, Outcome, Response, json};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use crate::style::{fail, note, plural};
use crate::watch::exec::CommandQueue;
use crate::watch::show::{self, OutputStyle};
use crate::watch::target::{UriKind, WatchTarget, WatchTargets};

/// The maximum number of concurrent subscribe requests. A gateway may reject more.
const MAX_PENDING: usize = 16;

/// The maximum number of pages to read from the resource list.
const MAX_PAGES: usize = 1000;

pub(crate) struct WatchSession {
    peer: Peer,
    style: OutputStyle,
    commands: Option<CommandQueue>,
    /// The address of the gateway, for messages.
    place: String,
    targets: WatchTargets,
    /// The number of subscribe requests that were sent.
    requested: usize,
    /// The subscribe requests without a response, by their id.
    pending: HashMap<u64, WatchTarget>,
    active: Vec<ActiveWatch>,
}

/// A confirmed subscription to a resource or a pattern.
struct ActiveWatch {
    /// The common prefix of the URIs of its updates, in the gateway's spelling.
    literal: String,
    is_pattern: bool,
    server: Option<String>,
}

/// The reason why the watch ended.
enum WatchEnd {
    Stopped,
    /// The reader closed stdout.
    OutputClosed,
    /// Every subscription was rejected.
    NoSubscription,
    /// The gateway closed the pipe.
    Disconnected,
}

impl WatchSession {
    pub(crate) fn new(peer: Peer, targets: WatchTargets, style: OutputStyle, place: String) -> WatchSession {
        let (pending, active) = (HashMap::new(), Vec::new());
        WatchSession { peer, style, commands: None, place, targets, requested: 0, pending, active }
    }

    /// Adds commands that run for each update.
    pub(crate) fn with(self, commands: CommandQueue) -> WatchSession {
        WatchSession { commands: Some(commands), ..self }
    }

    /// Watches until `stopped` is set, or until nothing is left to watch.
    pub(crate) async fn run(mut self, mut stopped: watch::Receiver<bool>) -> Result<ExitCode> {
        let end = tokio::select! {
            end = self.watch() => end,
            _ = stopped.wait_for(|stopped| *stopped) => Ok(WatchEnd::Stopped),
        };
        let WatchSession { peer, commands, .. } = self;
        // Ends the session, which also ends its subscriptions.
        drop(peer);
        if let Some(commands) = commands {
            commands.finish().await;
        }
        Ok(match end? {
            WatchEnd::Stopped | WatchEnd::OutputClosed => ExitCode::SUCCESS,
            WatchEnd::NoSubscription => ExitCode::FAILURE,
            WatchEnd::Disconnected => {
                fail("the gateway closed the connection");
                ExitCode::FAILURE
            }
        })
    }

    async fn watch(&mut self) -> Result<WatchEnd> {
        self.begin().await?;
        if self.targets.needs_listing() && self.find_exact_uris().await.is_none() {
            return Ok(WatchEnd::Disconnected);
        }
        loop {
            self.subscribe_more();
            let has_room = self.commands.as_ref().is_none_or(CommandQueue::has_room);
            let message = tokio::select! {
                message = self.peer.next(), if has_room => message,
                () = advance(&mut self.commands) => continue,
            };
            let end = match message {
                Some(PeerMessage::Answer(answer)) => self.on_answer(&answer),
                Some(PeerMessage::Notification(notification)) => self.on_update(&notification).await?,
                Some(PeerMessage::Request(request)) => {
                    self.peer.reject(&request);
                    None
                }
                None => Some(WatchEnd::Disconnected),
            };
            if let Some(end) = end {
                return Ok(end);
            }
        }
    }

    /// Performs the handshake. The only declared capability is deletions; requests of the server cannot be answered
    /// here.
    async fn begin(&mut self) -> Result<()> {
        let capabilities = format!(r#"{{"experimental":{{"{SUBSCRIPTIONS}":{{}}}}}}"#);
        let answer = self.peer.begin("goblin watch", &capabilities).await;
        let answer = answer.ok_or_else(|| anyhow!("the gateway closed the connection before it answered"))?;
        error_message(&answer).map_or(Ok(()), |error_message| Err(anyhow!(error_message)))
    }

    /// Looks for URIs in the resource list: a listed URI is a resource, even if it looks like a pattern. Returns `None`
    /// if the gateway closed the pipe.
    async fn find_exact_uris(&mut self) -> Option<()> {
        let mut params = "{}".to_owned();
        for _ in 0..MAX_PAGES {
            let number = self.peer.request(&Method::ResourcesList, &params);
            let answer = self.peer.answer_to(number).await?;
            let (text, result) = (answer.raw.as_str(), answer.outcome.span());
            self.targets.mark_listed(text, result);
            let next = json::member(text, result, "nextCursor").filter(|next| next.get(text).starts_with('"'));
            let Some(next) = next else { break };
            params = format!(r#"{{"cursor":{}}}"#, next.get(text));
        }
        Some(())
    }

    fn subscribe_more(&mut self) {
        while self.pending.len() < MAX_PENDING
            && let Some(target) = self.targets.targets.get(self.requested)
        {
            let number = self.peer.request(&Method::Subscribe, &self.targets.params(target));
            self.pending.insert(number, target.clone());
            self.requested += 1;
        }
    }

    fn on_answer(&mut self, answer: &Response) -> Option<WatchEnd> {
        let target = answer.id.as_ref().and_then(|id| self.pending.remove(&id.as_u64()?))?;
        match answer.outcome {
            Outcome::Result(_) => self.active.push(active(answer, &target)),
            Outcome::Error(_) => {
                let reason =
                    error_message(answer).unwrap_or_else(|| "the gateway rejected the subscription".to_owned());
                fail(&format!("{}: {reason}", clean(&target.uri)));
            }
        }
        if !self.pending.is_empty() || self.requested < self.targets.targets.len() {
            return None;
        }
        if self.active.is_empty() {
            return Some(WatchEnd::NoSubscription);
        }
        let patterns = self.active.iter().filter(|active| active.is_pattern).count();
        let count = [(self.active.len() - patterns, "resource"), (patterns, "pattern")];
        let count: Vec<_> =
            count.iter().filter(|(count, _)| *count > 0).map(|(count, one)| plural(*count, one)).collect();
        note(&format!("watching {} at {}; press Ctrl-C to stop", count.join(" and "), self.place));
        None
    }

    async fn on_update(&mut self, notification: &Notification) -> Result<Option<WatchEnd>> {
        let Some(update) = ResourceUpdate::read(notification) else { return Ok(None) };
        let line = show::line(&update, self.style, &utc_now(), self.server_of(&update.uri));
        let mut stdout = tokio::io::stdout();
        let printed = async {
            stdout.write_all(line.as_bytes()).await?;
            stdout.flush().await
        };
        match printed.await {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(Some(WatchEnd::OutputClosed)),
            printed => printed.context("cannot write to stdout")?,
        }
        if let Some(commands) = &mut self.commands {
            commands.put(update);
        }
        Ok(None)
    }

    /// Returns the server of the subscription with the longest prefix of `uri`.
    fn server_of(&self, uri: &str) -> Option<&str> {
        let matching = self.active.iter().filter(|active| uri.starts_with(&active.literal));
        matching.max_by_key(|active| active.literal.len()).and_then(|active| active.server.as_deref())
    }
}

async fn advance(commands: &mut Option<CommandQueue>) {
    match commands {
        Some(commands) => commands.advance().await,
        None => std::future::pending().await,
    }
}

/// Reads the gateway's metadata about a new subscription. Other gateways than Goblin send none.
fn active(answer: &Response, target: &WatchTarget) -> ActiveWatch {
    let text = answer.raw.as_str();
    let meta = json::member(text, answer.outcome.span(), "_meta");
    let string = |key| {
        let string = json::member(text, meta?, key)?;
        json::string(text, string).map(|string| string.into_owned())
    };
    if string("dev.goblin/state").as_deref() == Some("pending") {
        note(&format!("{}: the server is not connected; updates start when it connects", clean(&target.uri)));
    }
    let uri = string("dev.goblin/uri").unwrap_or_else(|| target.uri.clone());
    let is_pattern = target.kind != UriKind::Exact;
    ActiveWatch { literal: target.literal(&uri).to_owned(), is_pattern, server: string("dev.goblin/server") }
}
