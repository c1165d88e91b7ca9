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
use crate::client::input_request::InputRequest;
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
const EXTRA_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval at which expired calls are removed.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct SuspendedCalls {
    calls: Mutex<HashMap<u128, SuspendedCall>>,
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
        SuspendedCalls { calls: Mutex::default(), room: Arc::new(Semaphore::new(MAX_SUSPENDED)) }
    }
}

impl SuspendedCalls {
    /// Cancels the calls with an expired suspension.
    pub(crate) fn cancel_expired(&self, now: Instant) {
        let expired: Vec<_> = self.calls.lock().extract_if(|_, suspended| suspended.expires <= now).collect();
        for (_, suspended) in expired {
            suspended.pending.call.cancel("the client did not return the requested input in time");
        }
    }
}

impl Dispatcher {
    /// Cancels expired calls and removes expired tasks periodically. Never returns.
    pub(crate) async fn remove_expired_periodically(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.suspended.cancel_expired(Instant::now());
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
        let open = input_requests(&pending.call, requests);
        if open.is_empty() {
            return;
        }
        let Ok(place) = Arc::clone(&self.suspended.room).try_acquire_owned() else {
            for request in open {
                pending.call.reject(Some(&request.id), "too many calls wait for input from their clients");
            }
            return;
        };
        let reply = self.store_suspended(pending.suspend(), pending.id(), open, place);
        pending.reply_with(reply);
    }

    fn store_suspended(
        &self,
        pending: PendingCall,
        request: &Id,
        open: Vec<InputRequest>,
        place: OwnedSemaphorePermit,
    ) -> Reply {
        let timeout = self.policies.load().ask_timeout.unwrap_or(MAX_SUSPENSION).min(MAX_SUSPENSION) + EXTRA_TIMEOUT;
        let id = random();
        let call = &pending.call;
        let state = self.router.states.seal(&RequestState::Suspended(id), &call.caller, &call.request, timeout);
        let members: Vec<_> = open.iter().map(|request| request.member.as_str()).collect();
        let result = input_required(&members.join(","), &state);
        self.suspended
            .calls
            .lock()
            .insert(id, SuspendedCall { pending, open, expires: Instant::now() + timeout, place });
        goblin_wire::reply(request, result).into()
    }

    /// Resumes the suspended call `id` with the input in `request`. Returns an error if there is no such call. The call
    /// is suspended again if it needs more input.
    pub(crate) fn resume(&self, id: u128, request: &Request, token: Option<Bytes>) -> Result<Begun, Error> {
        let suspended = self.suspended.calls.lock().remove(&id);
        let SuspendedCall { mut pending, mut open, place, .. } = suspended.ok_or(Error::StaleState)?;
        // Set the token before the backend receives the input, so that its further progress carries the new token.
        pending.call.set_progress_token(token);
        let requests = pending.resume(&request.id);
        let call = &pending.call;
        open.retain(|input| !input.answer(call, request) && input.is_open(call));
        open.extend(input_requests(call, requests));
        Ok(match open.is_empty() {
            true => Begun::Pending(pending),
            false => Begun::Ready(self.store_suspended(pending, &request.id, open, place)),
        })
    }
}

/// Converts server requests to input requests. Rejects those that have no such form and omits those that were
/// cancelled.
fn input_requests(call: &Call, messages: Vec<Bytes>) -> Vec<InputRequest> {
    let mut open = Vec::new();
    for message in messages {
        match InputRequest::from_server_request(message) {
            Ok(request) => open.push(request),
            Err(id) => call.reject(id.as_ref(), "this request needs a session"),
        }
    }
    open.retain(|request| request.is_open(call));
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
    fn call_with_requests(count: usize) -> (PendingCall, Vec<OpenServerRequest>) {
        let call = Call::example_of(Dialect::NEWEST);
        let requests: Vec<_> = (0..count).map(|_| call.client.open_request().expect("there is room")).collect();
        for request in &requests {
            assert!(
                call.queue_request(format!(r#"{{"jsonrpc":"2.0","id":{},"method":"roots/list"}}"#, request.id).into())
            );
        }
        let never = std::future::pending().boxed();
        (PendingCall::new(Arc::new(call), never, OnDrop::Cancel, &Arc::default()), requests)
    }

    /// Returns the `input_required` reply, or `None` if the call goes on.
    fn input_request(dispatcher: &Dispatcher, pending: &mut PendingCall) -> Option<Reply> {
        match dispatcher.next_event(pending).now_or_never()? {
            CallEvent::Done(reply) => reply,
            event => panic!("{event:?}"),
        }
    }

    fn suspend_call(
        dispatcher: &Dispatcher,
        (mut pending, requests): (PendingCall, Vec<OpenServerRequest>),
    ) -> (Arc<Call>, Vec<OpenServerRequest>, bool) {
        let is_suspended = input_request(dispatcher, &mut pending).is_some();
        (Arc::clone(&pending.call), requests, is_suspended)
    }

    #[tokio::test]
    async fn a_suspended_call_is_cancelled_at_its_timeout_and_not_before() {
        let dispatcher = Dispatcher::example(1);
        let (call, _requests, is_suspended) = suspend_call(&dispatcher, call_with_requests(1));
        assert!(is_suspended);
        let id = *dispatcher.suspended.calls.lock().keys().next().expect("the call is suspended");
        let timeout = dispatcher.policies.load().ask_timeout.expect("requests have a timeout") + EXTRA_TIMEOUT;
        dispatcher.suspended.cancel_expired(Instant::now() + timeout - Duration::from_secs(5));
        assert_eq!(call.abort_reason(), None);
        dispatcher.suspended.cancel_expired(Instant::now() + timeout);
        assert!(
            matches!(call.abort_reason(), Some(AbortReason::Cancelled(reason)) if reason.contains("requested input"))
        );
        assert!(matches!(dispatcher.resume(id, &call.request, None), Err(Error::StaleState)), "the input is too late");
        assert_eq!(dispatcher.suspended.room.available_permits(), MAX_SUSPENDED);
    }

    #[tokio::test]
    async fn suspended_calls_are_limited_and_the_next_server_request_is_rejected() {
        let dispatcher = Dispatcher::example(1);
        let mut suspended: Vec<_> =
            (0..MAX_SUSPENDED).map(|_| suspend_call(&dispatcher, call_with_requests(1))).collect();
        assert!(suspended.iter().all(|(_, _, is_suspended)| *is_suspended));
        let (_, mut requests, is_suspended) = suspend_call(&dispatcher, call_with_requests(2));
        assert!(!is_suspended);
        for request in &mut requests {
            let rejection = request.next().await;
            assert!(
                matches!(rejection, ServerRequestEvent::Answer(answer) if answer.raw.as_str().contains("too many calls"))
            );
        }
        let (call, mut requests, _) = suspended.pop().expect("there are some");
        let is_same_call = |suspended: &SuspendedCall| Arc::ptr_eq(&suspended.pending.call, &call);
        let id_of_call = || {
            let calls = dispatcher.suspended.calls.lock();
            calls
                .iter()
                .find(|(_, suspended)| is_same_call(suspended))
                .map(|(id, _)| *id)
                .expect("the call is suspended")
        };
        // A call that is suspended again keeps its place.
        assert!(matches!(dispatcher.resume(id_of_call(), &call.request, None), Ok(Begun::Ready(_))));
        assert!(!suspend_call(&dispatcher, call_with_requests(1)).2);
        // The backend waits for no response any more. The call goes on and its place is free.
        requests.clear();
        assert!(matches!(dispatcher.resume(id_of_call(), &call.request, None), Ok(Begun::Pending(_))));
        assert!(suspend_call(&dispatcher, call_with_requests(1)).2);
    }

    #[tokio::test]
    async fn a_withdrawn_server_request_is_not_sent() {
        let dispatcher = Dispatcher::example(1);
        let (pending, mut requests) = call_with_requests(2);
        requests.clear();
        assert!(!suspend_call(&dispatcher, (pending, requests)).2, "no server request is open");
        let (mut pending, mut requests) = call_with_requests(2);
        requests.pop();
        let reply = input_request(&dispatcher, &mut pending).expect("the call is suspended");
        let text = String::from_utf8_lossy(&reply.pieces.concat()).into_owned();
        assert!(text.contains("input-1") && !text.contains("input-2"), "{text}");
    }

    #[test]
    fn an_input_request_drops_the_metadata_of_its_server_request() {
        let check = |message: &'static str, expected: Option<&str>| {
            let request = InputRequest::from_server_request(Bytes::from_static(message.as_bytes()));
            let member = request.ok().map(|request| request.member);
            assert_eq!(member.as_deref(), expected, "{message}");
        };
        check(
            r#"{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"mode":"url","elicitationId":"e","url":"u","_meta":{"progressToken":3},"x":1.0}}"#,
            Some(r#""input-3":{"method":"elicitation/create","params":{"mode":"url","url":"u","x":1.0}}"#),
        );
        check(r#"{"jsonrpc":"2.0","id":4,"method":"roots/list"}"#, Some(r#""input-4":{"method":"roots/list"}"#));
        check(r#"{"jsonrpc":"2.0","id":5,"method":"tasks/get","params":{}}"#, None);
    }
}
