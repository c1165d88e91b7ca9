//! The open requests of a link.
//!
//! [`OpenRequests`] serves links with one stream for all messages (stdio, HTTP+SSE) and matches responses to requests
//! by id. [`OpenCalls`] serves Streamable HTTP and keeps only the calls, to attribute messages that come outside of a
//! call's own stream.
//!
//! A message that names no call goes to the only client with calls in flight on the link. A backend may still work on a
//! cancelled call. The call counts as open until the backend answers it or [`LINGER`] has passed. Locks are held only
//! for a lookup.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use goblin_subscriptions::ClientId;
use goblin_telemetry::Event;
use goblin_wire::{Error, Id, MalformedMessage, Method, Notification, Request, Response};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::client::call::Call;
use crate::upstream::inbound::{Attribution, InboundHandler, ReplySink};
use crate::upstream::link::LinkError;

/// The time for which a cancelled call still counts as open.
const LINGER: Duration = Duration::from_secs(5);
/// The number of cancelled calls that are remembered. The oldest is forgotten first.
const MAX_CANCELLED_CALLS: usize = 32;

/// Cancelled calls that the backend may still work on.
#[derive(Default)]
struct CancelledCalls(VecDeque<CancelledCall>);

struct CancelledCall {
    request: u64,
    client: ClientId,
    at: Instant,
}

impl CancelledCalls {
    fn note(&mut self, request: u64, call: &Arc<Call>, now: Instant) {
        if self.0.len() == MAX_CANCELLED_CALLS {
            self.0.pop_front();
        }
        self.0.push_back(CancelledCall { request, client: call.origin, at: now });
    }

    /// Removes a call, because the backend answered it after all.
    fn forget(&mut self, request: u64) {
        self.0.retain(|gone| gone.request != request);
    }

    /// Turns a clear owner into [`Attribution::Unsure`] if a cancelled call of another client is recent.
    fn judge(&self, whose: Attribution, now: Instant) -> Attribution {
        let Attribution::Calls(calls) = &whose else { return whose };
        let Some(sole) = calls.first().map(|call| call.origin) else { return whose };
        let is_other = |gone: &CancelledCall| gone.client != sole && now.duration_since(gone.at) < LINGER;
        if self.0.iter().any(is_other) { Attribution::Unsure } else { whose }
    }
}

/// The open requests of a link with one stream for all messages.
pub(crate) struct OpenRequests {
    inbound: Arc<InboundHandler>,
    table: Mutex<RequestTable>,
}

#[derive(Default)]
struct RequestTable {
    requests: HashMap<u64, RequestWaiter>,
    left: CancelledCalls,
    closed: bool,
}

struct RequestWaiter {
    answer: oneshot::Sender<Result<Response, LinkError>>,
    call: Option<Arc<Call>>,
}

/// Receives the response to a request.
pub(crate) type ResponseReceiver = oneshot::Receiver<Result<Response, LinkError>>;

/// The entry of a request. Dropping it removes the entry, and remembers the call as cancelled if it has no response.
pub(crate) struct OpenRequestGuard<'a> {
    open: &'a OpenRequests,
    id: u64,
}

impl Drop for OpenRequestGuard<'_> {
    fn drop(&mut self) {
        let mut table = self.open.lock();
        // An answered request was removed earlier.
        if let Some(call) = table.requests.remove(&self.id).and_then(|waiting| waiting.call) {
            table.left.note(self.id, &call, Instant::now());
        }
    }
}

impl OpenRequests {
    pub(crate) fn new(inbound: Arc<InboundHandler>) -> OpenRequests {
        OpenRequests { inbound, table: Mutex::default() }
    }

    /// Adds a request. Returns `None` if the link is closed.
    pub(crate) fn enter(&self, id: u64, call: Option<&Arc<Call>>) -> Option<(OpenRequestGuard<'_>, ResponseReceiver)> {
        let (answer, answered) = oneshot::channel();
        let waiting = RequestWaiter { answer, call: call.cloned() };
        let mut table = self.lock();
        if table.closed {
            return None;
        }
        table.requests.insert(id, waiting);
        Some((OpenRequestGuard { open: self, id }, answered))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().requests.is_empty()
    }

    /// Passes a response to the request with its id. Reports a response without a request.
    pub(crate) fn on_response(&self, response: Response) {
        let waiting = response.id.as_ref().and_then(Id::as_u64).and_then(|id| {
            let mut table = self.lock();
            table.left.forget(id);
            table.requests.remove(&id)
        });
        match waiting {
            // The receiver may be dropped at this moment. The response then has no use.
            Some(waiting) => drop(waiting.answer.send(Ok(response))),
            None => self.inbound.emit(&Event::AnswerWithoutCall { server: self.inbound.server() }),
        }
    }

    /// Handles a notification. Progress belongs to the call with the token; the owner of any other one is determined
    /// from the open calls.
    pub(crate) fn on_notification(&self, notification: &Notification) {
        if notification.method == Method::Progress {
            let call = |id| self.lock().requests.get(&id).and_then(|waiting| waiting.call.clone());
            let call = request_of(notification).and_then(call);
            match call {
                Some(call) => self.inbound.hear_progress(notification, &call),
                None => self.inbound.emit(&Event::ProgressDropped { server: self.inbound.server() }),
            }
            return;
        }
        self.inbound.hear(notification, || self.whose());
    }

    pub(crate) fn on_ask(&self, ask: Request, reply_sink: Arc<dyn ReplySink>) {
        self.inbound.take_ask(ask, self.whose(), reply_sink);
    }

    /// Reports that an oversized message was dropped. Fails the request that it answers, if its id can still be read.
    pub(crate) fn on_too_long(&self, head: &[u8]) {
        self.inbound.emit(&Event::BackendTooLong { server: self.inbound.server() });
        let waiting = id_in(head).and_then(|id| self.lock().requests.remove(&id));
        if let Some(waiting) = waiting {
            let error = LinkError::Protocol("its answer is larger than maxMessageSize".to_owned());
            drop(waiting.answer.send(Err(error)));
        }
    }

    /// Fails the request if its response exceeds a limit.
    pub(crate) fn on_malformed(&self, malformed: &MalformedMessage) {
        let Some(error) = beyond_limit(malformed) else { return };
        let waiting = malformed.id.as_ref().and_then(Id::as_u64).and_then(|id| self.lock().requests.remove(&id));
        if let Some(waiting) = waiting {
            // The receiver may be dropped at this moment.
            drop(waiting.answer.send(Err(error)));
        }
    }

    /// Fails all open requests with `error` and rejects new ones.
    pub(crate) fn close(&self, error: &LinkError) {
        let orphans = {
            let mut table = self.lock();
            table.closed = true;
            std::mem::take(&mut table.requests)
        };
        for waiting in orphans.into_values() {
            drop(waiting.answer.send(Err(error.clone())));
        }
        self.inbound.close();
    }

    fn whose(&self) -> Attribution {
        let table = self.lock();
        let whose = Attribution::among(table.requests.values().filter_map(|waiting| waiting.call.as_ref()));
        table.left.judge(whose, Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, RequestTable> {
        self.table.lock()
    }
}

/// The open calls of a link over Streamable HTTP.
#[derive(Default)]
pub(crate) struct OpenCalls(Mutex<OpenCallTable>);

#[derive(Default)]
struct OpenCallTable {
    open: HashMap<u64, Arc<Call>>,
    left: CancelledCalls,
}

/// The entry of a call. Dropping it removes the entry, and remembers the call as cancelled if it has no response.
pub(crate) struct OpenCallGuard<'a> {
    open: &'a OpenCalls,
    id: u64,
}

impl OpenCalls {
    pub(crate) fn enter(&self, id: u64, call: &Arc<Call>) -> OpenCallGuard<'_> {
        self.lock().open.insert(id, Arc::clone(call));
        OpenCallGuard { open: self, id }
    }

    /// Removes a call that has its response.
    pub(crate) fn answered(&self, id: u64) {
        self.lock().open.remove(&id);
    }

    pub(crate) fn get(&self, id: u64) -> Option<Arc<Call>> {
        self.lock().open.get(&id).cloned()
    }

    pub(crate) fn whose(&self) -> Attribution {
        let calls = self.lock();
        calls.left.judge(Attribution::among(calls.open.values()), Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, OpenCallTable> {
        self.0.lock()
    }
}

impl Drop for OpenCallGuard<'_> {
    fn drop(&mut self) {
        let mut calls = self.open.lock();
        // An answered call was removed earlier.
        if let Some(call) = calls.open.remove(&self.id) {
            calls.left.note(self.id, &call, Instant::now());
        }
    }
}

/// Returns the request that a progress notification belongs to. The gateway's progress tokens are its request ids.
pub(crate) fn request_of(progress: &Notification) -> Option<u64> {
    progress.params.progress_token.and_then(|at| progress.raw.get(at).parse().ok())
}

/// Reports whether a message with this beginning is a response and not a request or notification.
pub(crate) fn is_answer(head: &[u8]) -> bool {
    let asks = find(head, "\"method\"").min(find(head, "\"params\""));
    payload(head) < asks
}

/// Returns the error for a complete response that exceeds a limit.
pub(crate) fn beyond_limit(malformed: &MalformedMessage) -> Option<LinkError> {
    let Error::LimitExceeded { limit, value } = malformed.error else { return None };
    malformed.is_answer.then(|| LinkError::Protocol(format!("its answer is nested too deep: {limit} is {value}")))
}

/// Returns the id of a response from its first bytes. The id must precede the payload, which may contain other ids.
fn id_in(head: &[u8]) -> Option<u64> {
    let at = find(head, "\"id\"");
    if !is_answer(head) || at > payload(head) {
        return None;
    }
    let rest = head.get(at + "\"id\"".len()..)?;
    let rest = std::str::from_utf8(&rest[..rest.len().min(64)]).ok()?.trim_start().strip_prefix(':')?.trim_start();
    let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Returns the position of the payload of a response.
fn payload(head: &[u8]) -> usize {
    find(head, "\"result\"").min(find(head, "\"error\""))
}

fn find(head: &[u8], word: &str) -> usize {
    memchr::memmem::find(head, word.as_bytes()).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use goblin_wire::Dialect;

    use super::*;
    use crate::client::mailbox::Mailbox;

    #[test]
    fn p2_while_a_call_of_another_was_just_cancelled_nothing_is_certain() {
        let open = OpenCalls::default();
        let (one, two) = (Arc::new(Call::example()), Arc::new(Call::example()));
        let is_certain = || matches!(open.whose(), Attribution::Calls(_));
        let held = open.enter(1, &one);
        let answered = open.enter(2, &two);
        open.answered(2);
        drop(answered);
        assert!(is_certain());
        drop(open.enter(3, &one));
        assert!(is_certain(), "it was the same client's");
        drop(open.enter(4, &two));
        assert!(!is_certain());
        drop(held);
        assert!(matches!(open.whose(), Attribution::Nobodys));
        let long_ago = Instant::now().checked_sub(LINGER).expect("the machine runs for longer");
        let mut left = CancelledCalls::default();
        for number in 0..99 {
            left.note(number, &two, long_ago);
        }
        assert_eq!(left.0.len(), MAX_CANCELLED_CALLS);
        assert!(matches!(left.judge(Attribution::of(Some(&one)), Instant::now()), Attribution::Calls(_)));
    }

    /// Returns a call of a client that receives server requests only as the result of a call.
    fn passing(mailbox: &Arc<Mailbox>) -> Arc<Call> {
        let Call { mut caller, request, .. } = Call::example();
        caller.dialect = Dialect::NEWEST;
        Arc::new(Call::new(caller, Arc::clone(mailbox), request, None))
    }

    #[test]
    fn p2_of_calls_that_are_asked_by_their_answers_none_is_guessed() {
        let (open, mailbox) = (OpenCalls::default(), Arc::clone(&Call::example().mailbox));
        let (one, two) = (passing(&mailbox), passing(&mailbox));
        let _held = open.enter(1, &one);
        assert!(matches!(open.whose(), Attribution::Calls(_)));
        let other = open.enter(2, &two);
        assert!(matches!(open.whose(), Attribution::Unsure), "they are of one client");
        drop(other);
        assert!(matches!(open.whose(), Attribution::Unsure), "the other was just cancelled");
        // One that is gone must not be taken for another.
        for _ in 0..100 {
            let open = OpenCalls::default();
            drop(open.enter(1, &passing(&Arc::clone(&Call::example().mailbox))));
            let next = passing(&Arc::clone(&Call::example().mailbox));
            let _held = open.enter(2, &next);
            assert!(matches!(open.whose(), Attribution::Unsure));
        }
    }

    #[tokio::test]
    async fn p2_a_call_that_has_its_answer_says_no_more_on_the_same_stream() {
        let open = OpenRequests::new(Arc::new(InboundHandler::example()));
        let (one, two) = (Arc::new(Call::example()), Arc::new(Call::example()));
        let is_certain = || matches!(open.whose(), Attribution::Calls(_));
        let _held = open.enter(1, Some(&one)).expect("it is open");
        let answer = |id: u64| {
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
            match goblin_wire::Message::parse(answer.into()) {
                Ok(goblin_wire::Message::Response(answer)) => open.on_response(answer),
                other => panic!("{other:?}"),
            }
        };
        let answered = open.enter(2, Some(&two)).expect("it is open");
        answer(2);
        drop(answered);
        assert!(is_certain());
        drop(open.enter(3, Some(&two)));
        assert!(!is_certain(), "it may still be at work for the one that was cancelled");
        answer(3);
        assert!(is_certain(), "it answered all the same");
    }

    #[test]
    fn the_id_of_a_dropped_message_is_found_where_it_can_be() {
        for (head, id) in [
            (&b"{\"jsonrpc\":\"2.0\",\"id\":17,\"result\":{"[..], Some(17)),
            (b"{\"id\" : 3,\"error\":{\"data\":{\"method\":1", Some(3)),
            (b"{\"id\":\"x\",\"result\":{", None),
            (b"{\"result\":{", None),
            (b"{\"id\"", None),
            // Ids of other objects.
            (b"{\"result\":{\"id\":17", None),
            (b"{\"jsonrpc\":\"2.0\",\"id\":17,\"method\":\"sampling/createMessage\",\"params\":{\"result\":1", None),
            (b"{\"method\":\"x\",\"params\":{\"id\":17,\"result\":1", None),
        ] {
            assert_eq!(id_in(head), id);
        }
    }
}
