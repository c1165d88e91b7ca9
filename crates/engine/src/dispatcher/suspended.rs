//! Suspended calls that wait for input from a client without a session.
//!
//! A legacy backend sends a request to the client during a call and waits for the response. A client without a session
//! cannot receive that request. The gateway therefore answers the call with `input_required`, and the client sends
//! another request with its input. The original call stays open meanwhile and is never sent again. If too many calls
//! are suspended, the backend's request is rejected. A call is cancelled if its client does not return in time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use goblin_wire::{Error, Id, Request};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::call::{Call, CallEvent, Reply};
use crate::client::input_request::{InputRequest, question};
use crate::client::pending::PendingCall;
use crate::dispatcher::{Begun, Dispatcher};
use crate::router::inputs::input_required;
use crate::router::state::RequestState;

/// The largest number of suspended calls.
const MAX_SUSPENDED: usize = 1024;
/// The longest suspension if server requests have no timeout.
const MAX_SUSPENSION: Duration = Duration::from_secs(3600);
/// The time that is added to the timeout of a server request. A backend may go on after that timeout, so the client can
/// still collect an answer.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// The interval at which expired calls are removed.
const LOOK_EVERY: Duration = Duration::from_secs(5);

pub(crate) struct SuspendedCalls {
    book: Mutex<HashMap<u128, SuspendedCall>>,
    room: Arc<Semaphore>,
}

/// A suspended call.
struct SuspendedCall {
    pending: PendingCall,
    open: Vec<InputRequest>,
    expires: Instant,
    place: OwnedSemaphorePermit,
}

impl Default for SuspendedCalls {
    fn default() -> SuspendedCalls {
        SuspendedCalls { book: Mutex::default(), room: Arc::new(Semaphore::new(MAX_SUSPENDED)) }
    }
}

impl SuspendedCalls {
    /// Cancels the calls with an expired suspension.
    pub(crate) fn forget_late(&self, now: Instant) {
        let late: Vec<_> = self.book.lock().extract_if(|_, parked| parked.expires <= now).collect();
        for (_, parked) in late {
            parked.pending.call.cancel("the client did not come back with what it was asked");
        }
    }
}

impl Dispatcher {
    /// Cancels expired calls and removes expired tasks periodically. Never returns.
    pub(crate) async fn keep_park(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.suspended.forget_late(Instant::now());
            self.router.tasks.remove_expired(Instant::now());
        }
    }

    /// Waits for the next event of a call. A server request suspends a call without a session. The reader then gets
    /// the `input_required` reply. It is cancel-safe.
    pub(crate) async fn next_event(&self, pending: &mut PendingCall) -> CallEvent {
        loop {
            match pending.next().await {
                CallEvent::Request(request) if !pending.call.caller.dialect.has_server_requests() => {
                    self.suspend(pending, request);
                }
                event => return event,
            }
        }
    }

    /// Suspends a call with a server request. The call goes on if no request can be passed to the client. The backend
    /// then got an error for each.
    fn suspend(&self, pending: &mut PendingCall, request: Bytes) {
        let requests = std::iter::once(request).chain(pending.take_requests()).collect();
        let open = questions(&pending.call, requests);
        if open.is_empty() {
            return;
        }
        let Ok(place) = Arc::clone(&self.suspended.room).try_acquire_owned() else {
            for question in open {
                pending.call.refuse(Some(&question.id), "too many calls wait for their clients");
            }
            return;
        };
        let reply = self.put(pending.suspend(), pending.id(), open, place);
        pending.reply_with(reply);
    }

    fn put(&self, pending: PendingCall, request: &Id, open: Vec<InputRequest>, place: OwnedSemaphorePermit) -> Reply {
        let patience = self.policies.ask_timeout.unwrap_or(MAX_SUSPENSION).min(MAX_SUSPENSION) + AFTERWARDS;
        let id = random();
        let call = &pending.call;
        let state = self.router.states.seal(&RequestState::Parked(id), &call.caller, &call.request, patience);
        let asked: Vec<_> = open.iter().map(|question| question.asked.as_str()).collect();
        let result = input_required(&asked.join(","), &state);
        self.suspended
            .book
            .lock()
            .insert(id, SuspendedCall { pending, open, expires: Instant::now() + patience, place });
        goblin_wire::reply(request, result).into()
    }

    /// Resumes the suspended call `id` with the input in `request`. Returns an error if there is no such call. The call
    /// is suspended again if it needs more input.
    pub(crate) fn resume(&self, id: u128, request: &Request, token: Option<Bytes>) -> Result<Begun, Error> {
        let suspended = self.suspended.book.lock().remove(&id);
        let SuspendedCall { mut pending, mut open, place, .. } = suspended.ok_or(Error::StaleState)?;
        // Set the token before the backend receives the input, so that its further progress carries the new token.
        pending.call.set_progress_token(token);
        let requests = pending.resume(&request.id);
        let call = &pending.call;
        open.retain(|question| !question.answer(call, request) && question.is_open(call));
        open.extend(questions(call, requests));
        Ok(match open.is_empty() {
            true => Begun::Pending(pending),
            false => Begun::Ready(self.put(pending, &request.id, open, place)),
        })
    }
}

/// Converts server requests to input requests. Rejects those that have no such form and omits those that were
/// cancelled.
fn questions(call: &Call, asks: Vec<Bytes>) -> Vec<InputRequest> {
    let mut open = Vec::new();
    for ask in asks {
        match question(ask) {
            Ok(question) => open.push(question),
            Err(refused) => call.refuse(refused.as_ref(), "it cannot be asked this without a session"),
        }
    }
    open.retain(|question| question.is_open(call));
    open
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    u128::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use goblin_wire::Dialect;

    use super::*;
    use crate::client::call::AbortReason;
    use crate::client::pending::OnDrop;
    use crate::client::server_requests::{OpenServerRequest, ServerRequestEvent};

    /// Returns a call that never completes, with `count` server requests of its backend.
    fn asking(count: usize) -> (PendingCall, Vec<OpenServerRequest>) {
        let call = Call::example_of(Dialect::NEWEST);
        let asks: Vec<_> = (0..count).map(|_| call.client.open_request().expect("there is room")).collect();
        for ask in &asks {
            assert!(call.ask(format!(r#"{{"jsonrpc":"2.0","id":{},"method":"roots/list"}}"#, ask.id).into()));
        }
        let never = std::future::pending().boxed();
        (PendingCall::new(Arc::new(call), never, OnDrop::Cancel, &Arc::default()), asks)
    }

    /// Returns the `input_required` reply, or `None` if the call goes on.
    fn input_request(dispatcher: &Dispatcher, pending: &mut PendingCall) -> Option<Reply> {
        match dispatcher.next_event(pending).now_or_never()? {
            CallEvent::Done(reply) => reply,
            event => panic!("{event:?}"),
        }
    }

    fn suspended(
        dispatcher: &Dispatcher,
        (mut pending, asks): (PendingCall, Vec<OpenServerRequest>),
    ) -> (Arc<Call>, Vec<OpenServerRequest>, bool) {
        let is_parked = input_request(dispatcher, &mut pending).is_some();
        (Arc::clone(&pending.call), asks, is_parked)
    }

    #[tokio::test]
    async fn ask_a_client_that_does_not_come_back_ends_its_call_in_time_and_not_before() {
        let dispatcher = Dispatcher::example(1);
        let (call, _asks, is_parked) = suspended(&dispatcher, asking(1));
        assert!(is_parked);
        let id = *dispatcher.suspended.book.lock().keys().next().expect("it waits");
        let patience = dispatcher.policies.ask_timeout.expect("asks have a time-out") + AFTERWARDS;
        dispatcher.suspended.forget_late(Instant::now() + patience - Duration::from_secs(5));
        assert_eq!(call.end_so_far(), None);
        dispatcher.suspended.forget_late(Instant::now() + patience);
        assert!(
            matches!(call.end_so_far(), Some(AbortReason::Cancelled(reason)) if reason.contains("did not come back"))
        );
        assert!(matches!(dispatcher.resume(id, &call.request, None), Err(Error::StaleState)), "it comes too late");
        assert_eq!(dispatcher.suspended.room.available_permits(), MAX_SUSPENDED);
    }

    #[tokio::test]
    async fn ask_exactly_so_many_calls_wait_and_the_next_ask_is_refused() {
        let dispatcher = Dispatcher::example(1);
        let mut parked: Vec<_> = (0..MAX_SUSPENDED).map(|_| suspended(&dispatcher, asking(1))).collect();
        assert!(parked.iter().all(|(_, _, is_parked)| *is_parked));
        let (_, mut asks, is_parked) = suspended(&dispatcher, asking(2));
        assert!(!is_parked);
        for ask in &mut asks {
            let refusal = ask.next().await;
            assert!(
                matches!(refusal, ServerRequestEvent::Answer(answer) if answer.raw.as_str().contains("too many calls"))
            );
        }
        let (call, mut asks, _) = parked.pop().expect("there are some");
        let is_its = |parked: &SuspendedCall| Arc::ptr_eq(&parked.pending.call, &call);
        let id_of_it = || {
            let book = dispatcher.suspended.book.lock();
            book.iter().find(|(_, parked)| is_its(parked)).map(|(id, _)| *id).expect("it waits")
        };
        // A call that is suspended again keeps its place.
        assert!(matches!(dispatcher.resume(id_of_it(), &call.request, None), Ok(Begun::Ready(_))));
        assert!(!suspended(&dispatcher, asking(1)).2);
        // The backend waits for no response any more. The call goes on and its place is free.
        asks.clear();
        assert!(matches!(dispatcher.resume(id_of_it(), &call.request, None), Ok(Begun::Pending(_))));
        assert!(suspended(&dispatcher, asking(1)).2);
    }

    #[tokio::test]
    async fn ask_what_was_taken_back_is_not_asked() {
        let dispatcher = Dispatcher::example(1);
        let (pending, mut asks) = asking(2);
        asks.clear();
        assert!(!suspended(&dispatcher, (pending, asks)).2, "there is nothing to ask");
        let (mut pending, mut asks) = asking(2);
        asks.pop();
        let reply = input_request(&dispatcher, &mut pending).expect("it is parked");
        let text = String::from_utf8_lossy(&reply.pieces.concat()).into_owned();
        assert!(text.contains("ask-1") && !text.contains("ask-2"), "{text}");
    }

    #[test]
    fn ask_a_question_keeps_what_it_asks_and_no_more() {
        let check = |ask: &'static str, expected: Option<&str>| {
            let asked = question(Bytes::from_static(ask.as_bytes())).ok().map(|question| question.asked);
            assert_eq!(asked.as_deref(), expected, "{ask}");
        };
        check(
            r#"{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e","url":"u","_meta":{"progressToken":3},"x":1.0}}"#,
            Some(r#""ask-3":{"method":"elicitation/create","params":{"mode":"url","url":"u","x":1.0}}"#),
        );
        check(r#"{"jsonrpc":"2.0","id":4,"method":"roots/list"}"#, Some(r#""ask-4":{"method":"roots/list"}"#));
        check(r#"{"jsonrpc":"2.0","id":5,"method":"tasks/get","params":{}}"#, None);
    }
}
