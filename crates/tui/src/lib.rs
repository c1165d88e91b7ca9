//! The dashboard of `goblin top`. It reads a gateway through the admin API, and calls tools as an MCP client.
//!
//! The parts are separate: [`state`] holds plain values and makes all decisions, [`view`] draws them, and [`input`]
//! reads keys and the mouse. Only [`remote`] communicates with the gateway. This file is the loop between them. The
//! loop and the connections run as one task, so no part may block.

#[cfg(test)]
mod example;
pub mod input;
pub mod remote;
mod state;
mod terminal;
pub mod view;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::remote::Remote;
use crate::state::{Effect, GatewayCommand, Panel, State, StatusMessage, UiEvent};
use crate::terminal::Terminal;
use crate::view::FrameLayout;
use crate::view::theme::Theme;

/// The maximum number of messages that wait for the next frame. If the queue is full, the reader of the gateway waits.
const MAX_QUEUED_EVENTS: usize = 256;
/// The maximum number of effects that wait. If the queue is full, the next one is rejected with a notice.
const MAX_QUEUED_EFFECTS: usize = 16;
/// The minimum time between two frames.
const FRAME: Duration = Duration::from_millis(30);

/// Runs the dashboard until the user quits or `terminated` resolves.
pub async fn run(remote: Remote, theme: Theme, mut terminated: impl AsyncFnMut()) -> Result<()> {
    let (events_in, events) = mpsc::channel(MAX_QUEUED_EVENTS);
    let (calls, called) = mpsc::channel(MAX_QUEUED_EFFECTS);
    let (commands, commanded) = mpsc::channel(MAX_QUEUED_EFFECTS);
    let (panel, shown_panel) = watch::channel(Panel::default());
    let state = State::new(remote.place());
    let screen = Dashboard { state, events, calls, commands, panel };
    let terminal = Terminal::open(theme).context("cannot use the terminal")?;
    tokio::select! {
        ended = screen.run(terminal) => ended,
        () = remote.run(events_in, called, commanded, shown_panel) => bail!("the connection to the gateway ended"),
        () = terminated() => Ok(()),
    }
}

/// The loop between the state, the terminal and the remote side.
struct Dashboard {
    state: State,
    events: mpsc::Receiver<UiEvent>,
    calls: mpsc::Sender<Effect>,
    commands: mpsc::Sender<GatewayCommand>,
    panel: watch::Sender<Panel>,
}

impl Dashboard {
    async fn run(mut self, mut terminal: Terminal) -> Result<()> {
        let mut terminal_events = EventStream::new();
        loop {
            let drawn = terminal.draw(&self.state).context("cannot draw on the terminal")?;
            let next = Instant::now() + FRAME;
            self.state.update(UiEvent::Measured(drawn.measures));
            let mut is_over = tokio::select! {
                event = terminal_events.next() => self.on_event(event, &drawn)?,
                message = self.events.recv() => message.is_some_and(|message| self.on_message(message)),
            };
            // Handle everything that arrives before the next frame is due.
            while !is_over && Instant::now() < next {
                is_over = tokio::select! {
                    event = terminal_events.next() => self.on_event(event, &drawn)?,
                    Some(message) = self.events.recv() => self.on_message(message),
                    () = tokio::time::sleep_until(next) => break,
                };
            }
            if is_over {
                return Ok(());
            }
        }
    }

    /// Handles an event of the terminal. Returns `true` if the user quits.
    fn on_event(&mut self, event: Option<std::io::Result<Event>>, drawn: &FrameLayout) -> Result<bool> {
        let event = event.context("the terminal was closed")?.context("cannot read from the terminal")?;
        let message = input::message(&event, &self.state, drawn);
        Ok(message.is_some_and(|message| self.on_message(message)))
    }

    /// Updates the state and queues the effects. Returns `true` if the user quits.
    fn on_message(&mut self, message: UiEvent) -> bool {
        let effects = self.state.update(message);
        self.panel.send_if_modified(|panel| std::mem::replace(panel, self.state.panel) != self.state.panel);
        let mut is_over = false;
        for effect in effects {
            let taken = match effect {
                Effect::Quit => {
                    is_over = true;
                    true
                }
                Effect::Command(command) => self.commands.try_send(command).is_ok(),
                other => self.calls.try_send(other).is_ok(),
            };
            if !taken {
                self.state.update(UiEvent::Notice(StatusMessage::bad("too many actions are waiting; try again")));
            }
        }
        is_over
    }
}
