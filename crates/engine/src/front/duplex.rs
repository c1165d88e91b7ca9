//! A client with one channel for all answers: over stdio or over HTTP+SSE.
//!
//! It reserves its session's place before the handshake. Requests before `initialize` are rejected, and later ones go
//! to the dispatcher. The transport decides how an answer reaches the client.

use std::sync::Arc;

use bytes::Bytes;
use goblin_config::exposure::ProfileName;
use goblin_telemetry::Observe;
use goblin_wire::json::Pieces;
use goblin_wire::modern::is_stateless;
use goblin_wire::params::cancelled;
use goblin_wire::{Dialect, Era, Error, MalformedMessage, Message, Method, Notification, Request};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::client::Client;
use crate::client::caller::Introduction;
use crate::client::pending::{OpenCall, OpenCallGuard, PendingCall};
use crate::client::sessions::{Presence, SessionPermit};
use crate::dispatcher::listening::ListenSubscription;
use crate::dispatcher::stateless::{StatelessClient, check_meta, check_version};
use crate::dispatcher::{Begun, CANCELLED, Dispatcher};
use crate::router::NotificationSender;

pub(crate) struct DuplexClient {
    dispatcher: Arc<Dispatcher>,
    observe: Arc<Observe>,
    profile: Option<ProfileName>,
    state: Mutex<DuplexState>,
    /// The client as the sender of requests without a handshake. `None` if the transport does not support them.
    pub stateless: Option<Arc<Client>>,
}

enum DuplexState {
    Waiting(SessionPermit),
    /// The session, held by a stream guard. It is never idle while the connection is open.
    Begun(Presence),
    Ended,
}

/// The outcome of a message.
pub(crate) enum MessageOutcome {
    Nothing,
    /// The client finished the handshake. Before this it receives only answers.
    Initialized(Arc<Client>),
    Answer(Pieces),
    /// A call. The guard frees the id of a request without a handshake.
    Call(PendingCall, Option<OpenCallGuard>),
    /// A `subscriptions/listen` stream. The receiver gets a reason if the client cancels it, and an error if it must
    /// end otherwise.
    Listening(ListenSubscription, (OpenCallGuard, oneshot::Receiver<String>)),
}

impl DuplexClient {
    pub(crate) fn new(
        dispatcher: &Arc<Dispatcher>,
        observe: &Arc<Observe>,
        profile: Option<ProfileName>,
    ) -> Result<DuplexClient, Error> {
        let state = Mutex::new(DuplexState::Waiting(dispatcher.reserve()?));
        Ok(DuplexClient {
            dispatcher: Arc::clone(dispatcher),
            observe: Arc::clone(observe),
            profile,
            state,
            stateless: None,
        })
    }

    /// Creates a client that also accepts requests without a handshake.
    pub(crate) fn of_both_eras(
        dispatcher: &Arc<Dispatcher>,
        observe: &Arc<Observe>,
        profile: Option<ProfileName>,
    ) -> Result<DuplexClient, Error> {
        let stateless =
            Client::stateless(Introduction::default()).with_session(dispatcher.sessions.new_id(), profile.clone());
        let stateless = Some(Arc::new(stateless));
        DuplexClient::new(dispatcher, observe, profile).map(|duplex| DuplexClient { stateless, ..duplex })
    }

    /// Returns the session. Returns `None` before the handshake and after the end.
    pub(crate) fn session(&self) -> Option<Arc<Client>> {
        match &*self.state() {
            DuplexState::Begun(presence) => Some(Arc::clone(&presence.client)),
            DuplexState::Waiting(_) | DuplexState::Ended => None,
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(*self.state(), DuplexState::Ended)
    }

    /// Ends the session and all open requests. A second call has no effect.
    pub(crate) fn end(&self, reason: &str) {
        let before = std::mem::replace(&mut *self.state(), DuplexState::Ended);
        if let DuplexState::Begun(presence) = before {
            self.dispatcher.sessions.end(&presence.client, reason);
        }
        if let Some(stateless) = &self.stateless {
            stateless.calls.close("the client disconnected");
            stateless.close();
        }
    }

    /// Splits a batch into its messages. Returns `None` if `raw` is no batch, and an error if the version has no
    /// batches.
    pub(crate) fn split_batch(&self, raw: &Bytes) -> Option<Result<Vec<Bytes>, MalformedMessage>> {
        let batch = Message::split_batch(raw)?.map_err(|malformed| self.count_limit(malformed));
        let dialect = self.session().map(|session| session.dialect);
        Some(batch.and_then(|batch| match check_batch(dialect, &batch) {
            Ok(()) => Ok(batch),
            Err(error) => Err(MalformedMessage::new(error, None)),
        }))
    }

    /// Handles one message.
    pub(crate) fn handle_message(&self, raw: Bytes) -> Result<MessageOutcome, MalformedMessage> {
        Ok(match Message::parse(raw).map_err(|malformed| self.count_limit(malformed))? {
            Message::Request(request) => match &self.stateless {
                Some(stateless) if is_stateless(&request) => {
                    let id = request.id.clone();
                    self.on_stateless_request(stateless, request).unwrap_or_else(|error| {
                        MessageOutcome::Answer(goblin_wire::error_reply(Some(&id), &error.to_json()))
                    })
                }
                _ => self.on_request(request),
            },
            Message::Notification(notification) => self.on_notification(&notification),
            Message::Response(response) => {
                // There is no open server request before the handshake.
                if let Some(session) = self.session() {
                    self.dispatcher.handle_response(&session, response);
                }
                MessageOutcome::Nothing
            }
        })
    }

    /// Counts the limit that a message exceeds.
    fn count_limit(&self, malformed: MalformedMessage) -> MalformedMessage {
        self.observe.count_limit(&malformed.error);
        malformed
    }

    fn on_notification(&self, notification: &Notification) -> MessageOutcome {
        if let Some(stateless) = &self.stateless
            && notification.method == Method::Cancelled
            && let Some((id, reason)) = cancelled(notification, CANCELLED)
            && stateless.calls.cancel_and_free(&id, &reason)
        {
            return MessageOutcome::Nothing;
        }
        let Some(session) = self.session() else {
            if let Some(stateless) = &self.stateless {
                let (session, profile) = (stateless.session, self.profile.as_ref());
                let sender = NotificationSender { session, profile, era: Era::Modern };
                self.dispatcher.router.forward_notification(sender, notification);
            }
            return MessageOutcome::Nothing;
        };
        self.dispatcher.handle_notification(&session, notification);
        if notification.method == Method::Initialized {
            MessageOutcome::Initialized(session)
        } else {
            MessageOutcome::Nothing
        }
    }

    fn on_request(&self, request: Request) -> MessageOutcome {
        let Some(session) = self.session() else { return MessageOutcome::Answer(self.before_session(&request)) };
        match self.dispatcher.begin(&session, request) {
            Begun::Ready(reply) => MessageOutcome::Answer(reply.pieces),
            Begun::Pending(pending) => MessageOutcome::Call(pending, None),
        }
    }

    /// Begins a request without a handshake. Returns an error if the id is in use or too many requests are open.
    fn on_stateless_request(&self, stateless: &Arc<Client>, request: Request) -> Result<MessageOutcome, Error> {
        check_meta(&request)?;
        check_version(&request)?;
        let guard = stateless.calls.admit(Some(&request.id), OpenCall::Starting, self.dispatcher.max_in_flight())?;
        let stateless = &StatelessClient::Stdio(Arc::clone(stateless));
        if request.method == Method::Listen {
            let listening = self.dispatcher.listen(stateless, &request)?;
            let (cancel, cancelled) = oneshot::channel();
            guard.set(OpenCall::Listen(cancel));
            return Ok(MessageOutcome::Listening(listening, (guard, cancelled)));
        }
        Ok(match self.dispatcher.begin_stateless(stateless, request)? {
            Begun::Ready(reply) => MessageOutcome::Answer(reply.pieces),
            Begun::Pending(pending) => {
                guard.set(OpenCall::Call(Arc::clone(&pending.call)));
                MessageOutcome::Call(pending, Some(guard))
            }
        })
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
        let taken = || match std::mem::replace(&mut *state, DuplexState::Ended) {
            DuplexState::Waiting(place) => Ok(place),
            // A concurrent handshake or end came between the check and the lock.
            before => {
                *state = before;
                Err(Error::InvalidRequest("this session is already initialized or has ended".to_owned()))
            }
        };
        let (session, hello) = self.dispatcher.initialize(request, self.profile.as_ref(), taken)?;
        *state = DuplexState::Begun(self.dispatcher.sessions.open_stream(&session));
        Ok(hello)
    }

    fn state(&self) -> MutexGuard<'_, DuplexState> {
        self.state.lock()
    }
}

fn check_batch(dialect: Option<Dialect>, batch: &[Bytes]) -> Result<(), Error> {
    match dialect {
        None => Err(handshake_first()),
        Some(dialect) if !dialect.has_batches() => {
            Err(Error::InvalidRequest(format!("protocol version {dialect} has no batches")))
        }
        Some(_) if batch.is_empty() => Err(Error::InvalidRequest("a batch must not be empty".to_owned())),
        Some(_) => Ok(()),
    }
}

fn handshake_first() -> Error {
    Error::InvalidRequest("the first request must be initialize".to_owned())
}

/// Returns the answer to a malformed message.
pub(crate) fn error_reply(malformed: &MalformedMessage) -> Pieces {
    goblin_wire::error_reply(malformed.id.as_ref(), &malformed.error.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the answer to a message. Panics if there is none.
    fn answer(duplex: &DuplexClient, message: &'static str) -> String {
        match duplex.handle_message(Bytes::from_static(message.as_bytes())) {
            Ok(MessageOutcome::Answer(answer)) => String::from_utf8_lossy(&answer.concat()).into_owned(),
            _ => panic!("{message} has an answer"),
        }
    }

    const HELLO: &str =
        r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}"#;

    #[test]
    fn sess2_no_session_begins_after_the_client_ends() {
        let dispatcher = Arc::new(Dispatcher::example(1));
        let duplex = DuplexClient::new(&dispatcher, &Arc::default(), None).expect("there is room");
        assert!(DuplexClient::new(&dispatcher, &Arc::default(), None).is_err(), "a client counts before its handshake");
        duplex.end("test");
        assert!(answer(&duplex, HELLO).contains("-32600"));
        assert!(dispatcher.sessions.is_empty() && duplex.session().is_none());
    }

    #[test]
    fn a_failed_handshake_keeps_its_session_place() {
        let dispatcher = Arc::new(Dispatcher::example(1));
        let duplex = DuplexClient::new(&dispatcher, &Arc::default(), None).expect("there is room");
        let without_version = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}"#;
        assert!(answer(&duplex, without_version).contains("-32602"));
        assert_eq!(dispatcher.sessions.len(), 1);
        assert!(answer(&duplex, HELLO).contains("serverInfo"));
        assert_eq!(dispatcher.sessions.len(), 1);
        duplex.end("test");
        assert!(dispatcher.sessions.is_empty());
    }
}
