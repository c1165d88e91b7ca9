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
use goblin_telemetry::worker;
use goblin_wire::json::Splice;
use goblin_wire::{Error, Id, Message, Request};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::call::{Call, CallMessage};
use crate::client::input_request::{InputRequest, question, refuse};
use crate::router::Reply;
use crate::router::inputs::input_required;
use crate::router::state::RequestState;
use crate::session::dispatcher::{Dispatcher, PendingCall};

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

/// The outcome of a request that resumes a suspended call.
pub(crate) enum CallResumeOutcome {
    /// The call needs more input and is suspended again.
    Asks(Reply),
    Pending(PendingCall),
}

impl Default for SuspendedCalls {
    fn default() -> SuspendedCalls {
        SuspendedCalls { book: Mutex::default(), room: Arc::new(Semaphore::new(MAX_SUSPENDED)) }
    }
}

impl SuspendedCalls {
    fn book(&self) -> MutexGuard<'_, HashMap<u128, SuspendedCall>> {
        self.book.lock()
    }

    /// Cancels the calls with an expired suspension.
    pub(crate) fn forget_late(&self, now: Instant) {
        let late: Vec<_> = self.book().extract_if(|_, parked| parked.expires <= now).collect();
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
            self.router.tasks.forget_late(Instant::now());
        }
    }

    /// Suspends a call with server requests. Returns the `input_required` reply to `request`, which began or resumed
    /// the call. Returns the call as an error if no request can be passed to the client. The backend then got an error
    /// for each.
    pub fn suspended(&self, mut pending: PendingCall, request: &Id, asks: Vec<Bytes>) -> Result<Reply, PendingCall> {
        let open = questions(&pending.call, asks);
        if open.is_empty() {
            return Err(pending);
        }
        let Ok(place) = Arc::clone(&self.suspended.room).try_acquire_owned() else {
            for question in open {
                refuse(&pending.call, Some(question.id), "too many calls wait for their clients");
            }
            return Err(pending);
        };
        // A task drives the call while it is suspended, since no transport polls it.
        let answer = worker::spawn(pending.answer);
        pending.answer = Box::pin(async move { answer.await.ok().flatten() });
        Ok(self.put(pending, request, open, place))
    }

    fn put(&self, pending: PendingCall, request: &Id, open: Vec<InputRequest>, place: OwnedSemaphorePermit) -> Reply {
        let patience = self.policies.ask_timeout.unwrap_or(MAX_SUSPENSION).min(MAX_SUSPENSION) + AFTERWARDS;
        let id = random();
        let call = &pending.call;
        let state = self.router.states.seal(&RequestState::Parked(id), &call.caller, &call.request, patience);
        let asked: Vec<_> = open.iter().map(|question| question.asked.as_str()).collect();
        let result = input_required(&asked.join(","), &state);
        self.suspended.book().insert(id, SuspendedCall { pending, open, expires: Instant::now() + patience, place });
        goblin_wire::reply(request, result).into()
    }

    /// Resumes the suspended call `id` with the input in `request`. Returns an error if there is no such call.
    pub(crate) fn resume(&self, id: u128, request: &Request, token: Option<Bytes>) -> Result<CallResumeOutcome, Error> {
        let SuspendedCall { mut pending, mut open, place, .. } =
            self.suspended.book().remove(&id).ok_or(Error::StaleState)?;
        // Set the token before the backend receives the input, so that its further progress carries the new token.
        // Progress queued before this point carries the old token, so it is dropped.
        pending.call.set_progress_token(token);
        let call = &pending.call;
        let asks = std::iter::from_fn(|| call.lane.try_next()).filter_map(|said| match said {
            CallMessage::Ask(ask) => Some(ask),
            CallMessage::Note(_) => None,
        });
        let asks = asks.collect();
        open.retain(|question| !question.answer(call, request) && question.is_open(call));
        open.extend(questions(call, asks));
        if !open.is_empty() {
            return Ok(CallResumeOutcome::Asks(self.put(pending, &request.id, open, place)));
        }
        let id = request.id.clone();
        let answer = std::mem::replace(&mut pending.answer, Box::pin(std::future::ready(None)));
        pending.answer = Box::pin(async move { answer.await.map(|reply| under(reply, &id)) });
        Ok(CallResumeOutcome::Pending(pending))
    }
}

/// Converts server requests to input requests. Rejects those that have no such form and omits those that were
/// cancelled.
fn questions(call: &Call, asks: Vec<Bytes>) -> Vec<InputRequest> {
    let mut open = Vec::new();
    for ask in asks {
        match question(ask) {
            Ok(question) => open.push(question),
            Err(refused) => refuse(call, refused, "it cannot be asked this without a session"),
        }
    }
    open.retain(|question| question.is_open(call));
    open
}

/// Returns the reply with the id of another request.
fn under(reply: Reply, id: &Id) -> Reply {
    match Message::parse(reply.pieces.concat()) {
        Ok(Message::Response(response)) => Reply { pieces: response.rekeyed(id, Splice::new()), code: reply.code },
        // The gateway wrote the reply, so it always parses.
        _ => reply,
    }
}

fn random() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    u128::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::call::AbortReason;
    use crate::client::mailbox::server_requests::{OpenServerRequest, ServerRequestEvent};

    /// Returns a call that never completes, with `count` server requests of its backend.
    fn asking(count: usize) -> (PendingCall, Vec<OpenServerRequest>, Vec<Bytes>) {
        let call = Arc::new(Call::example());
        let asks: Vec<_> = (0..count).map(|_| call.mailbox.asks.open().expect("there is room")).collect();
        let messages = asks.iter().map(|ask| {
            let id = ask.id;
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#).into()
        });
        let messages = messages.collect();
        (PendingCall { call, answer: Box::pin(std::future::pending()) }, asks, messages)
    }

    fn suspended(
        dispatcher: &Dispatcher,
        (pending, asks, messages): (PendingCall, Vec<OpenServerRequest>, Vec<Bytes>),
    ) -> (Arc<Call>, Vec<OpenServerRequest>, bool) {
        let call = Arc::clone(&pending.call);
        let is_parked = dispatcher.suspended(pending, &Id::from(1), messages).is_ok();
        (call, asks, is_parked)
    }

    #[tokio::test]
    async fn ask_a_client_that_does_not_come_back_ends_its_call_in_time_and_not_before() {
        let dispatcher = Dispatcher::example(1);
        let (call, _asks, is_parked) = suspended(&dispatcher, asking(1));
        assert!(is_parked);
        let id = *dispatcher.suspended.book().keys().next().expect("it waits");
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
        let id =
            dispatcher.suspended.book().iter().find(|(_, parked)| is_its(parked)).map(|(id, _)| *id).expect("it waits");
        // A call that is suspended again keeps its place.
        assert!(matches!(dispatcher.resume(id, &call.request, None), Ok(CallResumeOutcome::Asks(_))));
        assert!(!suspended(&dispatcher, asking(1)).2);
        // The backend waits for no response any more. The call goes on and its place is free.
        asks.clear();
        let id =
            dispatcher.suspended.book().iter().find(|(_, parked)| is_its(parked)).map(|(id, _)| *id).expect("it waits");
        assert!(matches!(dispatcher.resume(id, &call.request, None), Ok(CallResumeOutcome::Pending(_))));
        assert!(suspended(&dispatcher, asking(1)).2);
    }

    #[tokio::test]
    async fn ask_what_was_taken_back_is_not_asked() {
        let dispatcher = Dispatcher::example(1);
        let (pending, mut asks, messages) = asking(2);
        asks.clear();
        assert!(!suspended(&dispatcher, (pending, asks, messages)).2, "there is nothing to ask");
        let (pending, mut asks, messages) = asking(2);
        asks.pop();
        let Ok(reply) = dispatcher.suspended(pending, &Id::from(1), messages) else { panic!("it is parked") };
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
