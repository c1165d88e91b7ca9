//! A client with one channel for all answers: over stdio or over HTTP+SSE.
//!
//! It reserves its session's place before the handshake. Requests before `initialize` are rejected, and later ones go
//! to the desk. The transport decides how an answer reaches the client.

use std::sync::Arc;

use bytes::Bytes;
use goblin_config::exposure::ProfileName;
use goblin_telemetry::Observe;
use goblin_wire::json::Pieces;
use goblin_wire::modern::is_visit;
use goblin_wire::{Dialect, Error, Malformed, Message, Method, Notification, Request};
use parking_lot::{Mutex, MutexGuard};

use crate::front::guest::{Greeted, Guests, Leash};
use crate::front::stream::Carried;
use crate::front::visit::Visit;
use crate::session::desk::{Begun, Desk};
use crate::session::listening::Listening;
use crate::session::{self, Place, Session};

pub(crate) struct Dialogue {
    desk: Arc<Desk>,
    observe: Arc<Observe>,
    profile: Option<ProfileName>,
    state: Mutex<State>,
    /// The open requests without a handshake. `None` if the transport does not support them.
    pub guests: Option<Guests>,
}

enum State {
    Waiting(Place),
    /// The session, held by a stream guard. It is never idle while the connection is open.
    Begun(session::Stream),
    Ended,
}

/// The outcome of a message.
pub(crate) enum Heard {
    Nothing,
    /// The client finished the handshake. Before this it receives only answers.
    Initialized(Arc<Session>),
    Answer(Pieces),
    Call(Carried),
    Visit(Visit, Leash),
    Listening(Listening, Leash),
}

impl Dialogue {
    pub(crate) fn new(
        desk: &Arc<Desk>,
        observe: &Arc<Observe>,
        profile: Option<ProfileName>,
    ) -> Result<Dialogue, Error> {
        let state = Mutex::new(State::Waiting(desk.reserve()?));
        Ok(Dialogue { desk: Arc::clone(desk), observe: Arc::clone(observe), profile, state, guests: None })
    }

    /// Creates a dialogue that also accepts requests without a handshake.
    pub(crate) fn of_both_eras(
        desk: &Arc<Desk>,
        observe: &Arc<Observe>,
        profile: Option<ProfileName>,
    ) -> Result<Dialogue, Error> {
        let guests = Some(Guests::new(desk, profile.clone()));
        Dialogue::new(desk, observe, profile).map(|dialogue| Dialogue { guests, ..dialogue })
    }

    /// Returns the session. Returns `None` before the handshake and after the end.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        match &*self.state() {
            State::Begun(present) => Some(Arc::clone(&present.session)),
            State::Waiting(_) | State::Ended => None,
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(*self.state(), State::Ended)
    }

    /// Ends the session and all open requests. A second call has no effect.
    pub(crate) fn end(&self, reason: &str) {
        let before = std::mem::replace(&mut *self.state(), State::Ended);
        if let State::Begun(present) = before {
            self.desk.sessions.end(present.session.id, reason);
        }
        if let Some(guests) = &self.guests {
            guests.end();
        }
    }

    /// Splits a batch into its messages. Returns `None` if `raw` is no batch, and an error if the version has no
    /// batches.
    pub(crate) fn split_batch(&self, raw: &Bytes) -> Option<Result<Vec<Bytes>, Malformed>> {
        let batch = Message::split_batch(raw)?.map_err(|malformed| self.refused(malformed));
        let dialect = self.session().map(|session| session.dialect);
        Some(batch.and_then(|batch| match check_batch(dialect, &batch) {
            Ok(()) => Ok(batch),
            Err(error) => Err(Malformed::new(error, None)),
        }))
    }

    /// Handles one message.
    pub(crate) fn hear(&self, raw: Bytes) -> Result<Heard, Malformed> {
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
                // There is no open server request before the handshake.
                if let Some(session) = self.session() {
                    self.desk.hear_answer(&session, response);
                }
                Heard::Nothing
            }
        })
    }

    /// Counts the limit that a message exceeds.
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
            // A concurrent handshake or end came between the check and the lock.
            before => {
                *state = before;
                Err(Error::InvalidRequest("this session is initialized already, or has ended".to_owned()))
            }
        };
        let (session, hello) = self.desk.initialize(request, self.profile.as_ref(), taken)?;
        *state = State::Begun(session.open_stream());
        Ok(hello)
    }

    /// Ignores poisoning, because no code is expected to panic while it holds this lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
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

/// Returns the answer to a malformed message.
pub(crate) fn refusal(malformed: &Malformed) -> Pieces {
    goblin_wire::error_reply(malformed.id.as_ref(), &malformed.error.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answer to a message. Panics if there is none.
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
