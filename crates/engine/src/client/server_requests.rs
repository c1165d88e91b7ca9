//! The open requests from backends to one client.
//!
//! The ids are assigned here. A client never sees an id of a backend, since two backends may use the same one. If
//! [`MAX_SERVER_REQUESTS`] requests are open, the next one is rejected. A response without an open request is ignored.

use std::collections::HashMap;
use std::sync::Arc;

use goblin_wire::{Id, Notification, Response};
use tokio::sync::{mpsc, oneshot};

use crate::client::Client;

/// The largest number of requests that one client can have open at once.
pub(crate) const MAX_SERVER_REQUESTS: usize = 32;
/// The progress notifications of one request that wait for the backend. Further ones are dropped.
const MAX_QUEUED_PROGRESS: usize = 16;

#[derive(Default)]
pub(super) struct ServerRequestTable {
    open: HashMap<u64, ServerRequestWaiter>,
    last: u64,
    closed: bool,
}

impl ServerRequestTable {
    /// Rejects new requests. Returns the open ones. Dropping them ends the tasks that wait for them.
    pub(super) fn close(&mut self) -> HashMap<u64, ServerRequestWaiter> {
        self.closed = true;
        std::mem::take(&mut self.open)
    }
}

pub(super) struct ServerRequestWaiter {
    answer: oneshot::Sender<Response>,
    progress: mpsc::Sender<Notification>,
}

/// The reason why a request cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerRequestError {
    Full,
    Closed,
}

/// An open request. Dropping it removes it from the table, so that a later response is ignored.
pub struct OpenServerRequest {
    pub id: u64,
    client: Arc<Client>,
    answer: oneshot::Receiver<Response>,
    progress: mpsc::Receiver<Notification>,
}

/// An event of an open request.
pub enum ServerRequestEvent {
    Answer(Response),
    Progress(Box<Notification>),
    /// The client is gone.
    Closed,
}

impl Client {
    /// Opens a request with a new id. Returns an error if too many are open or the client is gone.
    pub fn open_request(self: &Arc<Client>) -> Result<OpenServerRequest, ServerRequestError> {
        let (answer, answered) = oneshot::channel();
        let (progress, progressed) = mpsc::channel(MAX_QUEUED_PROGRESS);
        let requests = &mut self.state.lock().requests;
        if requests.closed {
            return Err(ServerRequestError::Closed);
        }
        if requests.open.len() >= MAX_SERVER_REQUESTS {
            return Err(ServerRequestError::Full);
        }
        requests.last += 1;
        let id = requests.last;
        requests.open.insert(id, ServerRequestWaiter { answer, progress });
        Ok(OpenServerRequest { id, client: Arc::clone(self), answer: answered, progress: progressed })
    }

    /// Delivers a response to the task that waits for it. Returns `false` if the id names no open request.
    pub fn answer(&self, response: Response) -> bool {
        let waiting =
            response.id.as_ref().and_then(Id::as_u64).and_then(|id| self.state.lock().requests.open.remove(&id));
        waiting.is_some_and(|waiting| waiting.answer.send(response).is_ok())
    }

    /// Reports whether the request with this id waits for its response.
    pub fn is_request_open(&self, id: &Id) -> bool {
        id.as_u64().is_some_and(|id| self.state.lock().requests.open.contains_key(&id))
    }

    /// Delivers progress to the task that waits for the request. Returns `false` if there is none or its queue is full.
    pub fn progress(&self, notification: Notification) -> bool {
        let token = notification.params.progress_token.map(|at| notification.raw.get(at));
        let id: Option<u64> = token.and_then(|token| token.parse().ok());
        let waiting =
            id.and_then(|id| self.state.lock().requests.open.get(&id).map(|waiting| waiting.progress.clone()));
        waiting.is_some_and(|progress| progress.try_send(notification).is_ok())
    }

    /// Reports whether a server request waits for its response.
    pub(crate) fn has_open_requests(&self) -> bool {
        !self.state.lock().requests.open.is_empty()
    }

    /// Ends all open requests with [`ServerRequestEvent::Closed`] and rejects new ones, because the client cannot
    /// answer any more.
    pub fn close_requests(&self) {
        let open = self.state.lock().requests.close();
        drop(open);
    }
}

impl OpenServerRequest {
    /// Waits for the next event of the request. It is cancel-safe.
    pub async fn next(&mut self) -> ServerRequestEvent {
        tokio::select! {
            biased;
            // Progress that arrived before the response is returned first.
            Some(notification) = self.progress.recv() => ServerRequestEvent::Progress(Box::new(notification)),
            answer = &mut self.answer => answer.map_or(ServerRequestEvent::Closed, ServerRequestEvent::Answer),
        }
    }
}

impl Drop for OpenServerRequest {
    fn drop(&mut self) {
        self.client.state.lock().requests.open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use goblin_wire::Message;

    use super::*;

    fn response(text: String) -> Response {
        match Message::parse(text.into()) {
            Ok(Message::Response(response)) => response,
            other => panic!("{other:?}"),
        }
    }

    fn answer(id: u64) -> Response {
        response(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"n":{id}}}}}"#))
    }

    #[tokio::test]
    async fn an_answer_matches_its_server_request_once() {
        let client = Arc::new(Client::stateless(Default::default()));
        let (mut first, mut second) = (client.open_request().expect("room"), client.open_request().expect("room"));
        assert!(client.answer(answer(second.id)));
        assert!(!client.answer(answer(second.id)), "a second answer has no open request");
        assert!(!client.answer(answer(99)));
        assert!(!client.answer(response(r#"{"jsonrpc":"2.0","id":"1","result":{}}"#.to_owned())), "1 is not \"1\"");
        assert!(
            matches!(second.next().await, ServerRequestEvent::Answer(response) if response.raw.as_str().contains("\"n\":2"))
        );
        client.close_requests();
        assert!(matches!(first.next().await, ServerRequestEvent::Closed));
        assert!(matches!(client.open_request(), Err(ServerRequestError::Closed)));
    }

    #[test]
    fn open_server_requests_are_limited_and_a_dropped_one_makes_room() {
        let client = Arc::new(Client::stateless(Default::default()));
        let mut open: Vec<_> = (0..MAX_SERVER_REQUESTS).map(|_| client.open_request().expect("room")).collect();
        assert!(matches!(client.open_request(), Err(ServerRequestError::Full)));
        open.pop();
        assert!(client.open_request().is_ok());
        drop(open);
        assert!(!client.has_open_requests());
    }

    #[tokio::test]
    async fn server_request_progress_is_delivered_before_the_answer() {
        let client = Arc::new(Client::stateless(Default::default()));
        let mut request = client.open_request().expect("room");
        let progress =
            r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":5}}"#;
        let Ok(Message::Notification(progress)) = Message::parse(progress.into()) else { panic!() };
        assert!(client.progress(progress.clone()));
        assert!(client.answer(answer(1)));
        assert!(!client.progress(progress));
        assert!(matches!(request.next().await, ServerRequestEvent::Progress(_)));
        assert!(matches!(request.next().await, ServerRequestEvent::Answer(_)));
    }
}
