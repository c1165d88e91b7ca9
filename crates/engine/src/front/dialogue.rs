//! One client all of whose messages are answered on one way back: over stdio, and over HTTP+SSE.
//!
//! It begins without a handshake and has its place among the sessions from then on. What is said before `initialize` is
//! refused; what is said after it goes to the desk. How the answers travel is the transport's business.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use goblin_config::exposure::ProfileName;
use crate::front::guest::{Greeted, Guests, Leash};
use crate::front::stream::Carried;
use crate::front::visit::Visit;
use goblin_telemetry::Observe;
use goblin_wire::dialect::Dialect;
use goblin_wire::error::Error;
use goblin_wire::json::Pieces;
use goblin_wire::method::Method;
use goblin_wire::modern::is_visit;
use goblin_wire::{Malformed, Message, Notification, Request};
use crate::client::session::desk::{Begun, Desk};
use crate::client::session::listening::Listening;
use crate::client::session::{self, Place, Session};

pub struct Dialogue {
    desk: Arc<Desk>,
    observe: Arc<Observe>,
    profile: Option<ProfileName>,
    state: Mutex<State>,
    /// Requests that need no handshake, where the transport has them.
    pub guests: Option<Guests>,
}

enum State {
    Waiting(Place),
    /// The client is there as long as its connection is: its session is never idle.
    Begun(session::Stream),
    Ended,
}

/// What comes of a message.
pub enum Heard {
    Nothing,
    /// The client has finished the handshake: until then it need not expect anything but answers.
    Initialized(Arc<Session>),
    Answer(Pieces),
    Call(Carried),
    Visit(Visit, Leash),
    Listening(Listening, Leash),
}

impl Dialogue {
    pub fn new(desk: &Arc<Desk>, observe: &Arc<Observe>, profile: Option<ProfileName>) -> Result<Dialogue, Error> {
        let state = Mutex::new(State::Waiting(desk.reserve()?));
        Ok(Dialogue { desk: Arc::clone(desk), observe: Arc::clone(observe), profile, state, guests: None })
    }

    /// The same over a transport that has requests without a handshake too.
    pub fn of_both_eras(
        desk: &Arc<Desk>,
        observe: &Arc<Observe>,
        profile: Option<ProfileName>,
    ) -> Result<Dialogue, Error> {
        let guests = Some(Guests::new(desk, profile.clone()));
        Dialogue::new(desk, observe, profile).map(|dialogue| Dialogue { guests, ..dialogue })
    }

    /// The session, between the handshake and the end.
    pub fn session(&self) -> Option<Arc<Session>> {
        match &*self.state() {
            State::Begun(present) => Some(Arc::clone(&present.session)),
            State::Waiting(_) | State::Ended => None,
        }
    }

    pub fn is_ended(&self) -> bool {
        matches!(*self.state(), State::Ended)
    }

    /// Ends the session and all it holds. The first reason stands.
    pub fn end(&self, reason: &str) {
        let before = std::mem::replace(&mut *self.state(), State::Ended);
        if let State::Begun(present) = before {
            self.desk.sessions.end(present.session.id, reason);
        }
        if let Some(guests) = &self.guests {
            guests.end();
        }
    }

    /// The messages of a batch, where the version spoken has them; nothing when this is no batch.
    pub fn split_batch(&self, raw: &Bytes) -> Option<Result<Vec<Bytes>, Malformed>> {
        let batch = Message::split_batch(raw)?.map_err(|malformed| self.refused(malformed));
        let dialect = self.session().map(|session| session.dialect);
        Some(batch.and_then(|batch| match check_batch(dialect, &batch) {
            Ok(()) => Ok(batch),
            Err(error) => Err(Malformed::new(error, None)),
        }))
    }

    /// One message.
    pub fn hear(&self, raw: Bytes) -> Result<Heard, Malformed> {
        Ok(match Message::parse(raw).map_err(|malformed| self.refused(malformed))? {
            Message::Request(request) => match &self.guests {
                Some(guests) if is_visit(&request) => match guests.greet(request) {
                    Greeted::Answer(answer) => Heard::Answer(answer),
                    Greeted::Visit(visit, leash) => Heard::Visit(visit, leash),
                    Greeted::Listening(listening, leash) => Heard::Listening(listening, leash),
                },
                _ => self.on_request(request),
            },
            Message::Notification(notification) => self.on_notification(&notification),
            Message::Response(response) => {
                // Before the handshake nothing was asked.
                if let Some(session) = self.session() {
                    self.desk.hear_answer(&session, response);
                }
                Heard::Nothing
            }
        })
    }

    /// Counts the limit that a message is beyond.
    fn refused(&self, malformed: Malformed) -> Malformed {
        self.observe.count_limit(&malformed.error);
        malformed
    }

    fn on_notification(&self, notification: &Notification) -> Heard {
        let is_cancelled =
            |guests: &Guests| notification.method == Method::Cancelled && guests.hear_cancelled(notification);
        if self.guests.as_ref().is_some_and(is_cancelled) {
            return Heard::Nothing;
        }
        let Some(session) = self.session() else { return Heard::Nothing };
        self.desk.hear(&session, notification);
        if notification.method == Method::Initialized { Heard::Initialized(session) } else { Heard::Nothing }
    }

    fn on_request(&self, request: Request) -> Heard {
        let Some(session) = self.session() else { return Heard::Answer(self.before_session(&request)) };
        match self.desk.begin(&session, request) {
            Begun::Ready(answer) => Heard::Answer(answer),
            Begun::Pending(pending) => Heard::Call(Carried::new(pending, session, Arc::clone(&self.observe))),
        }
    }

    fn before_session(&self, request: &Request) -> Pieces {
        let answer = match request.method {
            Method::Initialize => self.initialize(request),
            Method::Ping => Ok(goblin_wire::reply(&request.id, "{}")),
            _ => Err(handshake_first()),
        };
        answer.unwrap_or_else(|error| goblin_wire::error_reply(Some(&request.id), &error.to_json()))
    }

    fn initialize(&self, request: &Request) -> Result<Pieces, Error> {
        let mut state = self.state();
        let taken = || match std::mem::replace(&mut *state, State::Ended) {
            State::Waiting(place) => Ok(place),
            // Another handshake, or the end, came between the look and this.
            before => {
                *state = before;
                Err(Error::InvalidRequest("this session is initialized already, or has ended".to_owned()))
            }
        };
        let (session, hello) = self.desk.initialize(request, self.profile.as_ref(), taken)?;
        *state = State::Begun(session.open_stream());
        Ok(hello)
    }

    /// No code that holds this lock is meant to panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_batch(dialect: Option<Dialect>, batch: &[Bytes]) -> Result<(), Error> {
    match dialect {
        None => Err(handshake_first()),
        Some(dialect) if !dialect.has_batches() => {
            Err(Error::InvalidRequest(format!("protocol version {dialect} has no batches")))
        }
        Some(_) if batch.is_empty() => Err(Error::InvalidRequest("an empty batch".to_owned())),
        Some(_) => Ok(()),
    }
}

fn handshake_first() -> Error {
    Error::InvalidRequest("the first request must be initialize".to_owned())
}

/// What is answered to bytes that are no message, where they have an answer.
pub fn refusal(malformed: &Malformed) -> Pieces {
    goblin_wire::error_reply(malformed.id.as_ref(), &malformed.error.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is answered to this message.
    fn answer(dialogue: &Dialogue, message: &'static str) -> String {
        match dialogue.hear(Bytes::from_static(message.as_bytes())) {
            Ok(Heard::Answer(answer)) => String::from_utf8_lossy(&answer.concat()).into_owned(),
            _ => panic!("{message} has an answer"),
        }
    }

    const HELLO: &str =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;

    #[test]
    fn sess2_no_session_begins_after_the_end() {
        let desk = Arc::new(Desk::example(1));
        let dialogue = Dialogue::new(&desk, &Arc::default(), None).expect("there is room");
        assert!(Dialogue::new(&desk, &Arc::default(), None).is_err(), "it counts before its handshake");
        dialogue.end("test");
        assert!(answer(&dialogue, HELLO).contains("-32600"));
        assert!(desk.sessions.is_empty() && dialogue.session().is_none());
    }

    #[test]
    fn a_handshake_that_fails_keeps_its_place_for_the_next() {
        let desk = Arc::new(Desk::example(1));
        let dialogue = Dialogue::new(&desk, &Arc::default(), None).expect("there is room");
        let without_version = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        assert!(answer(&dialogue, without_version).contains("-32602"));
        assert_eq!(desk.sessions.len(), 1);
        assert!(answer(&dialogue, HELLO).contains("serverInfo"));
        assert_eq!(desk.sessions.len(), 1);
        dialogue.end("test");
        assert!(desk.sessions.is_empty());
    }
}
