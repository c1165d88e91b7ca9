//! The messages that a client has received and no test has taken yet, in order of arrival.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard};

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::watch;

/// The stream of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The response to the POST of a request.
    Post,
    /// The session's stream. HTTP+SSE and stdio have no other one.
    Session,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub way: Way,
    pub text: String,
}

impl Received {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Returns the original text of a member of the message.
    pub fn raw(&self, name: &str) -> String {
        raw_member(&self.text, name).unwrap_or_else(|| panic!("no {name} in {}", self.text))
    }
}

/// Returns the original text of a member of an object.
pub fn raw_member(object: &str, name: &str) -> Option<String> {
    let mut members: HashMap<String, Box<RawValue>> = serde_json::from_str(object).ok()?;
    members.remove(name).map(|value| value.get().to_owned())
}

/// Which messages remain when a later one is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    Kept,
    Dropped,
}

#[derive(Default)]
pub struct Inbox {
    state: Mutex<State>,
    /// Changes with each arrival.
    arrivals: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    /// The messages with their numbers.
    messages: VecDeque<(u64, Received)>,
    next: u64,
    is_closed: bool,
}

impl Inbox {
    pub fn push(&self, way: Way, text: String) {
        let mut state = self.state();
        let number = state.next;
        state.messages.push_back((number, Received { way, text }));
        state.next += 1;
        drop(state);
        self.arrivals.send_replace(());
    }

    /// Marks the end of the stream.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.arrivals.send_replace(());
    }

    /// Waits for the oldest message that satisfies `wanted`. Returns `None` at the end of the stream.
    pub async fn take(&self, earlier: Earlier, wanted: impl Fn(&Received) -> bool) -> Option<Received> {
        let mut arrivals = self.arrivals.subscribe();
        let mut seen = 0;
        loop {
            match self.look(&mut seen, earlier, &wanted) {
                ControlFlow::Break(found) => return found,
                ControlFlow::Continue(()) => arrivals.changed().await.expect("the inbox holds the sender"),
            }
        }
    }

    /// Examines the messages from the number `seen` on.
    fn look(
        &self,
        seen: &mut u64,
        earlier: Earlier,
        wanted: impl Fn(&Received) -> bool,
    ) -> ControlFlow<Option<Received>> {
        let mut state = self.state();
        let start = state.messages.partition_point(|(number, _)| number < seen);
        *seen = state.next;
        let found = state.messages.iter().skip(start).position(|(_, received)| wanted(received));
        match (found, earlier) {
            (None, _) if state.is_closed => ControlFlow::Break(None),
            (None, _) => ControlFlow::Continue(()),
            (Some(offset), Earlier::Kept) => ControlFlow::Break(state.messages.remove(start + offset).map(message)),
            (Some(offset), Earlier::Dropped) => {
                ControlFlow::Break(state.messages.drain(..=start + offset).next_back().map(message))
            }
        }
    }

    /// Removes all messages.
    pub fn drain(&self) -> Vec<Received> {
        self.state().messages.drain(..).map(message).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics here")
    }
}

fn message((_, received): (u64, Received)) -> Received {
    received
}
