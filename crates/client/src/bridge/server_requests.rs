//! Server requests, which the gateway sends to the client, and the responses to them.
//!
//! A server request and its response belong to one session: in the next session the same id is a different server request. A yes to one server request
//! must never become a yes to another. When a session ends, the bridge cancels its server requests at the client and drops late
//! responses. If a server request reuses an id that the client may still answer, it gets a new id; all other ids are forwarded
//! unchanged.

use std::collections::HashMap;

use bytes::Bytes;
use goblin_wire::json::{Span, Splice, quote};
use goblin_wire::{Error, Id, Method, Notification, Request};
use http::StatusCode;
use parking_lot::MutexGuard;

use crate::bridge::call::SendProgress;
use crate::bridge::message::{self, ClientMessage, GatewayMessage};
use crate::bridge::session::{GatewaySession, backoff};
use crate::bridge::wire::ResponseMessages;
use crate::bridge::{Bridge, ClientOutput, MAX_ATTEMPTS, SIDE_TIMEOUT};

/// The maximum number of server requests that one client may have open. Further server requests are rejected.
pub(crate) const MAX_SERVER_REQUESTS: usize = 256;
/// The session of a server request that no session waits for any more. Real generations start at 1.
const NO_SESSION: u64 = 0;

/// The server requests that the client has not answered, by the id that the client knows.
#[derive(Default)]
pub(crate) struct PendingServerRequests {
    open: HashMap<Id, ServerRequestOrigin>,
    /// The number of ids that the bridge has generated.
    minted: u64,
}

struct ServerRequestOrigin {
    /// The session that waits for the response.
    session: u64,
    /// The id of the server request within that session.
    id: Id,
}

/// The result of registering a server request.
#[derive(Debug, PartialEq, Eq)]
enum RegisterOutcome {
    /// The line to forward to the client.
    New(Bytes),
    /// The client already has this server request.
    Known,
    Full,
}

impl PendingServerRequests {
    fn register(&mut self, server_request: &Request, session: u64) -> RegisterOutcome {
        let before = self.open.get(&server_request.id).map(|before| before.session);
        if before == Some(session) {
            return RegisterOutcome::Known;
        }
        if !self.make_room(session) {
            return RegisterOutcome::Full;
        }
        let origin = ServerRequestOrigin { session, id: server_request.id.clone() };
        if before.is_none() {
            self.open.insert(server_request.id.clone(), origin);
            return RegisterOutcome::New(server_request.raw.bytes().clone());
        }
        let id = self.mint();
        let line = server_request.rekeyed(&id, Splice::new());
        self.open.insert(id, origin);
        RegisterOutcome::New(line)
    }

    /// Evicts the oldest server request of an earlier session if the table is full. Returns `false` if every entry belongs to this
    /// session.
    fn make_room(&mut self, session: u64) -> bool {
        if self.open.len() < MAX_SERVER_REQUESTS {
            return true;
        }
        let ended = self.open.iter().filter(|(_, origin)| origin.session < session);
        let oldest = ended.min_by_key(|(_, origin)| origin.session).map(|(id, _)| id.clone());
        oldest.is_some_and(|id| self.open.remove(&id).is_some())
    }

    fn mint(&mut self) -> Id {
        loop {
            self.minted += 1;
            let token = Bytes::from(quote(&format!("goblin-bridge-{}", self.minted)));
            let id = Id::parse(&token, Span::new(0, token.len()));
            if let Some(id) = id.filter(|id| !self.open.contains_key(id)) {
                return id;
            }
        }
    }

    /// Removes an answered server request. Returns its id within `session`, or `None` if that session does not wait for it.
    fn settle(&mut self, id: &Id, session: u64) -> Option<Id> {
        self.open.remove(id).filter(|origin| origin.session == session).map(|origin| origin.id)
    }

    /// Marks the server request `id` of `session` as cancelled. Returns the notification with the id that the client knows.
    fn cancel(&mut self, notification: &Notification, id: &Id, session: u64) -> Bytes {
        let raw = notification.raw.bytes();
        let found = self.open.iter_mut().find(|(_, origin)| origin.session == session && origin.id == *id);
        let Some((known, origin)) = found else { return raw.clone() };
        // Keep the entry: the client may have answered before it reads the cancellation.
        origin.session = NO_SESSION;
        match notification.params.request_id {
            Some(at) if known != id => {
                let mut edits = Splice::new();
                edits.replace(at, known.token());
                edits.apply(raw)
            }
            _ => raw.clone(),
        }
    }

    /// Marks the server requests of all sessions before `before` as abandoned. Returns those that a session still waited for: the
    /// id that the client knows, and the id within the session.
    fn abandon(&mut self, before: u64) -> Vec<(Id, Id)> {
        let waited_for =
            self.open.iter_mut().filter(|(_, origin)| origin.session != NO_SESSION && origin.session < before);
        let abandoned = waited_for.map(|(known, origin)| {
            origin.session = NO_SESSION;
            (known.clone(), origin.id.clone())
        });
        abandoned.collect()
    }
}

impl Bridge {
    fn server_requests(&self) -> MutexGuard<'_, PendingServerRequests> {
        self.server_requests.lock()
    }

    /// Forwards a message that the gateway sent in `session`. Returns an error if the client does not read any more.
    pub(crate) async fn deliver(
        &self,
        message: GatewayMessage,
        session: &GatewaySession,
        output: &ClientOutput,
    ) -> Result<(), OutputClosed> {
        let line = match message {
            GatewayMessage::Plain(line) => line,
            GatewayMessage::ResourcesChanged(line) => {
                self.stale_subscriptions.notify_one();
                line
            }
            GatewayMessage::Answer(answer) => answer.raw.bytes().clone(),
            GatewayMessage::Cancel(notification, id) => {
                self.server_requests().cancel(&notification, &id, session.generation)
            }
            GatewayMessage::Request(server_request) if session.generation < self.session.borrow().generation => {
                tracing::debug!(id = %server_request.id, "dropped a server request: its session has ended");
                return Ok(());
            }
            GatewayMessage::Request(server_request) => {
                let entry = self.server_requests().register(&server_request, session.generation);
                match entry {
                    RegisterOutcome::New(line) => line,
                    RegisterOutcome::Known => return Ok(()),
                    RegisterOutcome::Full => {
                        let error =
                            Error::LimitExceeded { limit: "server requests of one client", value: MAX_SERVER_REQUESTS };
                        self.reject_server_request(&server_request.id, &error, session).await;
                        return Ok(());
                    }
                }
            }
        };
        output.send(line).await.map_err(|_| OutputClosed)
    }

    /// Sends a response of the client to the session that asked. Drops the response if that session is over.
    pub(crate) async fn answer(&self, outgoing: &ClientMessage, id: &Id, output: &ClientOutput) {
        let session = self.session.borrow().clone();
        let original_id = self.server_requests().settle(id, session.generation);
        let Some(original_id) = original_id else {
            tracing::warn!(%id, "dropped an answer of the client: the request is no longer open");
            return;
        };
        let body = message::rekeyed(outgoing.body.clone(), &original_id);
        let late = |_| Err(self.unavailable("the gateway took too long".to_owned(), true));
        let delivered =
            tokio::time::timeout(SIDE_TIMEOUT, self.send_answer(body, &session, output)).await.unwrap_or_else(late);
        if let Err(error) = delivered {
            tracing::warn!(%id, %error, "an answer of the client did not reach the gateway");
            if let Error::BackendProtocol { .. } = error {
                self.reject_server_request(&original_id, &error, &session).await;
            }
        }
    }

    /// Sends a response, with up to [`MAX_ATTEMPTS`] attempts. A response may arrive twice without harm, so a lost
    /// connection is a reason to retry.
    async fn send_answer(&self, body: Bytes, session: &GatewaySession, output: &ClientOutput) -> Result<(), Error> {
        let mut backoff = backoff();
        let mut tries = 1;
        loop {
            let lost = match self.wire.post(body.clone(), &session.headers).await {
                Ok(response) if response.status().is_success() => {
                    let progress = SendProgress::default();
                    return self
                        .forward_answers(ResponseMessages::new(response), session, output, &mut Vec::new(), &progress)
                        .await;
                }
                Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                    self.mark_lost(session);
                    return Err(self.unavailable("the session of the request has ended".to_owned(), false));
                }
                Ok(response) => return Err(self.wire.rejection_error(response.status(), None)),
                Err(lost) => lost,
            };
            if tries == MAX_ATTEMPTS || !self.wire.is_alive() {
                return Err(self.unreachable(&lost));
            }
            tries += 1;
            tokio::time::sleep(backoff.pause()).await;
        }
    }

    /// Rejects a server request on behalf of the client.
    async fn reject_server_request(&self, id: &Id, error: &Error, session: &GatewaySession) {
        let body = goblin_wire::error_reply(Some(id), &error.to_json()).concat();
        let _ = tokio::time::timeout(SIDE_TIMEOUT, self.wire.post(body, &session.headers)).await;
    }

    /// Sends the client a cancellation for each server request of the sessions before the current one.
    pub(crate) async fn cancel_server_requests(&self, output: &ClientOutput) {
        let session = self.session.borrow().generation;
        let abandoned = self.server_requests().abandon(session);
        for (known, _) in abandoned {
            let params = format!(r#"{{"requestId":{known},"reason":"the gateway was restarted"}}"#);
            let _ = output.send(goblin_wire::notification(&Method::Cancelled, Some(&params))).await;
        }
    }

    /// Rejects all open server requests because the client is gone. The calls that wait for them can then end.
    pub(crate) async fn reject_open_server_requests(&self) {
        let session = self.session.borrow().clone();
        let abandoned = self.server_requests().abandon(session.generation + 1);
        let error = Error::Internal("the client closed its input and sends no more answers".to_owned());
        for (_, id) in abandoned {
            self.reject_server_request(&id, &error, &session).await;
        }
    }
}

/// The error if the client does not read its output any more.
pub(crate) struct OutputClosed;

#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;

    fn id(token: &str) -> Id {
        let raw = Bytes::copy_from_slice(token.as_bytes());
        Id::parse(&raw, Span::new(0, raw.len())).expect("an id")
    }

    fn server_request(id: &str) -> Request {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        let Ok(Message::Request(server_request)) = Message::parse(text.into()) else { panic!("a request") };
        server_request
    }

    fn cancel(server_requests: &mut PendingServerRequests, number: &str, session: u64) -> String {
        let text =
            format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{number}}}}}"#);
        let Ok(Message::Notification(notification)) = Message::parse(text.into()) else { panic!("a notification") };
        String::from_utf8_lossy(&server_requests.cancel(&notification, &id(number), session)).into_owned()
    }

    fn unchanged(number: &str) -> RegisterOutcome {
        RegisterOutcome::New(server_request(number).raw.bytes().clone())
    }

    #[test]
    fn an_answer_is_accepted_once_and_only_for_the_session_of_its_server_request() {
        let mut server_requests = PendingServerRequests::default();
        assert_eq!(server_requests.register(&server_request("1"), 1), unchanged("1"));
        assert_eq!(server_requests.register(&server_request("\"1\""), 1), unchanged("\"1\""));
        assert_eq!(server_requests.register(&server_request("1"), 1), RegisterOutcome::Known);
        assert_eq!(server_requests.settle(&id("1"), 1), Some(id("1")));
        assert_eq!(server_requests.settle(&id("1"), 1), None);
        assert_eq!(server_requests.settle(&id("\"1\""), 2), None, "the session is another");
        assert_eq!(server_requests.settle(&id("7"), 1), None, "nobody asked");
    }

    #[test]
    fn an_id_still_open_at_the_client_is_given_to_no_other_server_request() {
        let mut server_requests = PendingServerRequests::default();
        server_requests.register(&server_request("1"), 1);
        let renamed = RegisterOutcome::New(server_request("\"goblin-bridge-1\"").raw.bytes().clone());
        assert_eq!(server_requests.register(&server_request("1"), 2), renamed);
        assert_eq!(server_requests.settle(&id("1"), 2), None, "it is of the first session");
        assert!(cancel(&mut server_requests, "1", 2).contains(r#""requestId":"goblin-bridge-1""#));
        assert_eq!(server_requests.register(&server_request("1"), 3), unchanged("1"), "the first was answered");
        assert!(cancel(&mut server_requests, "1", 3).contains(r#""requestId":1"#));
        assert_eq!(server_requests.settle(&id("1"), 3), None, "it was cancelled");
    }

    #[test]
    fn open_server_requests_of_an_ended_session_are_returned_once() {
        let mut server_requests = PendingServerRequests::default();
        for (number, session) in [("1", 1), ("2", 1), ("3", 2)] {
            server_requests.register(&server_request(number), session);
        }
        cancel(&mut server_requests, "2", 1);
        assert_eq!(server_requests.abandon(2), [(id("1"), id("1"))]);
        assert_eq!(server_requests.abandon(2), []);
    }

    #[test]
    fn server_requests_are_limited_and_cancelled_or_old_ones_make_room() {
        let mut server_requests = PendingServerRequests::default();
        for number in 0..MAX_SERVER_REQUESTS {
            assert_eq!(
                server_requests.register(&server_request(&number.to_string()), 1),
                unchanged(&number.to_string())
            );
        }
        assert_eq!(server_requests.register(&server_request("\"more\""), 1), RegisterOutcome::Full);
        cancel(&mut server_requests, "0", 1);
        assert_eq!(server_requests.register(&server_request("\"more\""), 1), unchanged("\"more\""));
        assert_eq!(server_requests.register(&server_request("\"even more\""), 1), RegisterOutcome::Full);
        assert_eq!(server_requests.register(&server_request("\"even more\""), 2), unchanged("\"even more\""));
        assert_eq!(server_requests.open.len(), MAX_SERVER_REQUESTS);
    }
}
