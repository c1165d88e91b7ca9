//! The dashboard of `goblin top`. It reads a gateway through the admin API, and calls tools as an MCP client.
//!
//! The parts are separate: [`state`] holds plain values and makes all decisions, [`view`] draws them, and [`input`]
//! reads keys and the mouse. Only [`remote`] communicates with the gateway. This file is the loop between them. The
//! loop and the connections run as one task, so no part may block.

mod editor;
#[cfg(test)]
mod example;
pub mod input;
pub mod remote;
mod state;
mod terminal;
pub mod view;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::remote::Remote;
use crate::state::State;
use crate::state::message::{Effect, GatewayCommand, Interest, StatusMessage, UiEvent};
use crate::terminal::Terminal;
use crate::view::FrameLayout;
use crate::view::theme::Theme;

/// The maximum number of messages that wait for the next frame. If the queue is full, the reader of the gateway waits.
const MAX_QUEUED_EVENTS: usize = 256;
/// The maximum number of effects that wait. If the queue is full, the next one is rejected with a notice.
const MAX_QUEUED_EFFECTS: usize = 16;
/// The minimum time between two frames.
const FRAME: Duration = Duration::from_millis(30);

/// Opens a page in the browser of this desktop. Does nothing if there is no desktop.
pub type OpenPage = fn(&str) -> std::io::Result<()>;

/// Runs the dashboard until the user quits or `terminated` resolves. A termination during an edit waits for the editor,
/// which uses the same terminal.
pub async fn run(remote: Remote, theme: Theme, open_page: OpenPage, mut terminated: impl AsyncFnMut()) -> Result<()> {
    let (events_in, events) = mpsc::channel(MAX_QUEUED_EVENTS);
    let (calls, called) = mpsc::channel(MAX_QUEUED_EFFECTS);
    let (commands, commanded) = mpsc::channel(MAX_QUEUED_EFFECTS);
    let (interest, shown) = watch::channel(Interest::default());
    let (editing, mut is_editing) = watch::channel(false);
    let state = State::new(remote.place(), remote.config_file());
    let screen = Dashboard { state, events, calls, commands, interest, editing, open_page };
    let terminal = Terminal::open(theme).context("cannot use the terminal")?;
    let terminated = async {
        terminated().await;
        // An error means that the dashboard ended.
        let _ = is_editing.wait_for(|is_editing| !is_editing).await;
    };
    tokio::select! {
        ended = screen.run(terminal) => ended,
        () = remote.run(events_in, called, commanded, shown) => bail!("the connection to the gateway ended"),
        () = terminated => Ok(()),
    }
}

/// The loop between the state, the terminal and the remote side.
struct Dashboard {
    state: State,
    events: mpsc::Receiver<UiEvent>,
    calls: mpsc::Sender<Effect>,
    commands: mpsc::Sender<GatewayCommand>,
    interest: watch::Sender<Interest>,
    editing: watch::Sender<bool>,
    open_page: OpenPage,
}

/// The work that the loop must do before the next event.
enum NextStep {
    Continue,
    Quit,
    /// Copies a text, which has a name for the user.
    Copy(String, String),
    Edit(PathBuf),
}

impl Dashboard {
    async fn run(mut self, mut terminal: Terminal) -> Result<()> {
        let mut terminal_events = EventStream::new();
        loop {
            let drawn = terminal.draw(&self.state).context("cannot draw on the terminal")?;
            let next = Instant::now() + FRAME;
            self.update(UiEvent::Measured(drawn.measures));
            let mut step = tokio::select! {
                event = terminal_events.next() => self.on_event(event, &drawn)?,
                Some(message) = self.events.recv() => self.update(message),
            };
            // Handle everything that arrives before the next frame is due.
            while matches!(step, NextStep::Continue) && Instant::now() < next {
                step = tokio::select! {
                    event = terminal_events.next() => self.on_event(event, &drawn)?,
                    Some(message) = self.events.recv() => self.update(message),
                    () = tokio::time::sleep_until(next) => break,
                };
            }
            match step {
                NextStep::Continue => {}
                NextStep::Quit => return Ok(()),
                NextStep::Copy(label, text) => {
                    terminal.copy(&text).context("cannot write to the terminal")?;
                    let note = StatusMessage::good(format!("copied {label} {}", terminal::clipboard_note()));
                    self.update(UiEvent::Notice(note));
                }
                NextStep::Edit(path) => {
                    // The reader of keys must not compete with the editor for the input.
                    drop(terminal_events);
                    terminal.suspend();
                    self.edit(&path).await;
                    terminal.resume().context("cannot use the terminal")?;
                    terminal_events = EventStream::new();
                }
            }
        }
    }

    /// Waits for the editor. Messages of the gateway still change the state.
    async fn edit(&mut self, path: &Path) {
        self.editing.send_replace(true);
        let edited = editor::run(path);
        tokio::pin!(edited);
        let edited = loop {
            tokio::select! {
                edited = &mut edited => break edited,
                Some(message) = self.events.recv() => drop(self.update(message)),
            }
        };
        self.editing.send_replace(false);
        self.update(UiEvent::Edited(edited));
    }

    /// Handles an event of the terminal.
    fn on_event(&mut self, event: Option<std::io::Result<Event>>, drawn: &FrameLayout) -> Result<NextStep> {
        let event = event.context("the terminal was closed")?.context("cannot read from the terminal")?;
        let message = input::message(&event, &self.state, drawn);
        Ok(message.map_or(NextStep::Continue, |message| self.update(message)))
    }

    /// Opens a page in a browser. The dialog shows its address in any case.
    fn open_browser(&mut self, url: &str) {
        if let Err(error) = (self.open_page)(url) {
            let note = StatusMessage::bad(format!("the browser did not open: {error}"));
            self.state.update(UiEvent::Notice(note));
        }
    }

    /// Updates the state and queues the effects.
    fn update(&mut self, message: UiEvent) -> NextStep {
        let effects = self.state.update(message);
        let interest = self.state.interest();
        self.interest.send_if_modified(|known| std::mem::replace(known, interest.clone()) != interest);
        let mut step = NextStep::Continue;
        for effect in effects {
            let taken = match effect {
                Effect::Quit => return NextStep::Quit,
                Effect::Copy { label, text } => {
                    step = NextStep::Copy(label, text);
                    true
                }
                Effect::Edit { path } => {
                    step = NextStep::Edit(path);
                    true
                }
                Effect::OpenBrowser { url } => {
                    self.open_browser(&url);
                    true
                }
                Effect::Command(command) => self.commands.try_send(command).is_ok(),
                other => self.calls.try_send(other).is_ok(),
            };
            if !taken {
                self.state.update(UiEvent::Notice(StatusMessage::bad("too many actions are waiting; try again")));
            }
        }
        step
    }
}
