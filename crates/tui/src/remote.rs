//! Communicates with the gateway: polls its status, follows its events, and executes commands.
//!
//! Status and changes use the admin API ([`api`]). Calls, reads and watches use MCP ([`calls`]), in the same way as any
//! other client. If the gateway is gone, the dashboard reports it and retries with growing delays.

pub mod api;
pub(crate) mod calls;
mod feeds;
mod logins;

use std::path::PathBuf;
use std::time::Duration;

use goblin_admin::api::{EntryList, EventInfo, Missed, Reloaded, Status};
use goblin_admin::routes::{List, ServerAction};
use goblin_client::bridge::MAX_MESSAGE;
use goblin_client::events::{Backoff, EventStream, ResumePosition};
use goblin_wire::framing::{Frame, SseEvent};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::remote::api::{Api, GatewayAddress};
use crate::state::data::CatalogItem;
use crate::state::message::{Effect, GatewayCommand, Interest, LinkStatus, StatusMessage, UiEvent};

/// The polling interval.
const PERIOD: Duration = Duration::from_secs(1);
/// The longest delay between attempts to reach a gateway that is gone.
const MAX_PAUSE: Duration = Duration::from_secs(8);

pub struct Remote {
    gateway: GatewayAddress,
    api: Api,
}

impl Remote {
    pub fn new(gateway: GatewayAddress) -> anyhow::Result<Remote> {
        let api = Api::new(&gateway)?;
        Ok(Remote { gateway, api })
    }

    /// Returns the address of the gateway, for display.
    pub fn place(&self) -> String {
        self.gateway.place()
    }

    /// Returns the configuration file, if the gateway runs on this machine and has one.
    pub fn config_file(&self) -> Option<PathBuf> {
        self.gateway.config_file()
    }

    /// Runs until the receiver of `events` is dropped.
    pub async fn run(
        self,
        events: mpsc::Sender<UiEvent>,
        called: mpsc::Receiver<Effect>,
        commanded: mpsc::Receiver<GatewayCommand>,
        interest: watch::Receiver<Interest>,
    ) {
        let Remote { gateway, api } = &self;
        tokio::join!(
            poll(api, &events),
            feeds::run(api, &events, interest),
            follow(api, &events),
            run_commands(api, &events, commanded),
            calls::run(gateway, &events, called),
        );
    }
}

/// Returns the pace of attempts to reach the gateway.
fn backoff() -> Backoff {
    Backoff::new(PERIOD, MAX_PAUSE)
}

/// Returns the position before the first event.
fn start() -> ResumePosition {
    // The dashboard keeps its own pace, and the events of the gateway never repeat.
    ResumePosition::new(Duration::ZERO..=Duration::ZERO, 0)
}

/// Polls the status every second. Reads the lists of the catalog after they changed.
async fn poll(api: &Api, events: &mpsc::Sender<UiEvent>) {
    let begun = Instant::now();
    let (mut backoff, mut known) = (backoff(), LastPoll::default());
    loop {
        let wait = match poll_once(api, events, begun, &mut known).await {
            Ok(()) => {
                backoff.reset();
                PERIOD
            }
            Err(reason) => {
                let retry_in = backoff.pause();
                known.version = None;
                if send(events, UiEvent::Link(LinkStatus::Lost { reason, retry_in })).await.is_none() {
                    return;
                }
                retry_in
            }
        };
        if events.is_closed() {
            return;
        }
        tokio::time::sleep(wait).await;
    }
}

/// The state of the gateway at the last poll.
#[derive(Default)]
struct LastPoll {
    /// The start time of the gateway. A different time means that it was restarted.
    started: String,
    /// The version of the catalog. `None` if its lists must be read.
    version: Option<u64>,
}

async fn poll_once(
    api: &Api,
    events: &mpsc::Sender<UiEvent>,
    begun: Instant,
    known: &mut LastPoll,
) -> Result<(), String> {
    let status: Status = api.get("/api/status").await?;
    let (at, now) = (begun.elapsed(), status.catalog.version);
    if known.started != status.started {
        if !known.started.is_empty() {
            api.mark_restarted();
        }
        *known = LastPoll { started: status.started.clone(), version: None };
    }
    let _ = send(events, UiEvent::Link(LinkStatus::Live)).await;
    let _ = send(events, UiEvent::Status { at, status: Box::new(status) }).await;
    if known.version != Some(now) {
        for kind in List::ALL {
            let list: EntryList = api.get(&format!("/api/{}s", kind.noun())).await?;
            let items = list.entries.iter().map(CatalogItem::read).collect();
            let _ = send(events, UiEvent::Items(kind, items)).await;
        }
        known.version = Some(now);
    }
    Ok(())
}

/// Sends a message to the dashboard. Returns `None` if the dashboard ended.
async fn send(events: &mpsc::Sender<UiEvent>, message: UiEvent) -> Option<()> {
    events.send(message).await.ok()
}

/// Follows the events. Resumes a broken stream after the last event. After a restart of the gateway it starts at the
/// beginning.
async fn follow(api: &Api, events: &mpsc::Sender<UiEvent>) {
    let (mut backoff, mut position) = (backoff(), start());
    let mut gateways = api.gateways();
    while !events.is_closed() {
        if gateways.has_changed().is_ok_and(|changed| changed) {
            gateways.mark_unchanged();
            position = start();
        }
        if let Ok(response) = api.stream("/api/events", &position).await {
            backoff.reset();
            let mut stream = EventStream::new(response.into_body(), MAX_MESSAGE);
            let is_restarted = loop {
                let event = tokio::select! {
                    event = stream.next() => event,
                    _ = gateways.changed() => break true,
                };
                let Ok(Some(Frame::Whole(event))) = event else { break false };
                position.note(&event);
                if let Some(event) = parse_event(&event)
                    && send(events, UiEvent::Event(event)).await.is_none()
                {
                    return;
                }
            };
            if is_restarted {
                position = start();
                continue;
            }
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Reads an event of the stream. A report of missed events also becomes an event.
fn parse_event(event: &SseEvent) -> Option<EventInfo> {
    if event.name.as_deref() == Some("missed") {
        let Missed { missed } = serde_json::from_slice(&event.data).ok()?;
        let message = format!("{missed} events were dropped: they arrived too fast");
        return Some(EventInfo {
            level: "warn".to_owned(),
            kind: "missed".to_owned(),
            message,
            ..EventInfo::default()
        });
    }
    serde_json::from_slice(&event.data).ok().filter(|event: &EventInfo| !event.kind.is_empty())
}

/// Executes commands, one after the other.
async fn run_commands(api: &Api, events: &mpsc::Sender<UiEvent>, mut commanded: mpsc::Receiver<GatewayCommand>) {
    while let Some(command) = commanded.recv().await {
        let message = match command {
            GatewayCommand::Server(action, id) => UiEvent::Notice(match change(api, action, &id).await {
                Ok(text) => StatusMessage::good(text),
                Err(text) => StatusMessage::bad(text),
            }),
            GatewayCommand::LogIn(server) => logins::begin(api, server).await,
            GatewayCommand::FinishLogin { server, callback } => logins::finish(api, server, callback).await,
            GatewayCommand::LogOut(server) => logins::log_out(api, server).await,
            GatewayCommand::Reload => match api.post::<Reloaded>("/api/reload").await {
                Ok(done) => UiEvent::Notice(StatusMessage::good(reloaded(&done))),
                // A faulty configuration has several lines, with the place and the cure of each problem.
                Err(text) => UiEvent::Report { title: "The new configuration is not in force".to_owned(), text },
            },
        };
        if send(events, message).await.is_none() {
            return;
        }
    }
}

async fn change(api: &Api, action: ServerAction, id: &str) -> Result<String, String> {
    let verb = action.as_str();
    let _: serde_json::Value = api.post(&format!("{}/{verb}", logins::path(id))).await?;
    Ok(format!("{id} is {}ed", verb.trim_end_matches('e')))
}

fn reloaded(done: &Reloaded) -> String {
    let parts = [("started", &done.started), ("changed", &done.changed), ("stopped", &done.stopped)];
    let parts: Vec<_> = parts
        .iter()
        .filter(|(_, servers)| !servers.is_empty())
        .map(|(change, servers)| format!("{change} {}", servers.join(", ")))
        .collect();
    match parts.is_empty() {
        true => "the configuration was reloaded; no server changed since it was last read".to_owned(),
        false => format!("the configuration was reloaded: {}", parts.join("; ")),
    }
}

/// Parses a response of the admin API.
fn read<T: DeserializeOwned>(path: &str, body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("{path} sent an unexpected response: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_attempts_doubles_up_to_a_limit() {
        let mut backoff = backoff();
        let seconds: Vec<_> = (0..5).map(|_| backoff.pause().as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 8]);
    }

    #[test]
    fn missed_events_are_shown_as_an_event_and_invalid_ones_are_ignored() {
        let read = |name: Option<&str>, data: &'static str| {
            let event = SseEvent { name: name.map(str::to_owned), data: data.into(), ..SseEvent::default() };
            parse_event(&event).map(|event| (event.kind, event.message))
        };
        let missed = ("missed".to_owned(), "3 events were dropped: they arrived too fast".to_owned());
        assert_eq!(read(Some("missed"), r#"{"missed":3}"#), Some(missed));
        assert_eq!(read(None, r#"{"kind":"a","message":"b"}"#), Some(("a".to_owned(), "b".to_owned())));
        assert_eq!((read(None, "{}"), read(None, ""), read(None, "[")), (None, None, None));
    }

    #[test]
    fn a_reload_message_names_the_affected_servers() {
        let done = Reloaded { started: vec!["a".into(), "b".into()], stopped: vec!["c".into()], ..Reloaded::default() };
        assert_eq!(reloaded(&done), "the configuration was reloaded: started a, b; stopped c");
        assert_eq!(
            reloaded(&Reloaded::default()),
            "the configuration was reloaded; no server changed since it was last read"
        );
    }
}
