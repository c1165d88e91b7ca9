//! Collects the server requests of a 2025-11-25 task for a client without a session.
//!
//! The backend of such a task sends its requests while a call for the result is open. The client, however, reads them
//! in `tasks/get` and responds with `tasks/update`. Once a task needs input, the gateway therefore keeps a call for its
//! result open in the client's name. The requests are kept here until they are answered. The call ends with the task.
//!
//! Lock order: the state of a relay comes before the client's table of open server requests.

use std::sync::Arc;
use std::time::Duration;

use goblin_telemetry::worker;
use goblin_wire::json::Splice;
use goblin_wire::{Method, Request};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::Client;
use crate::client::call::{Call, CallEvent, CallTimeouts};
use crate::client::caller::{Caller, Introduction};
use crate::client::input_request::InputRequest;
use crate::upstream::tasks::task_request;
use crate::upstream::{Backend, OutgoingRequest, TaskPolicy};

/// The longest time that `tasks/get` waits for the backend to send its requests.
const INPUT_TIMEOUT: Duration = Duration::from_secs(1);

pub struct TaskInputRelay {
    /// The client that assigns the ids of the requests, so that each id is used once.
    client: Arc<Client>,
    state: Mutex<RelayState>,
    changed: Notify,
}

#[derive(Default)]
struct RelayState {
    /// The call that waits for the task's result.
    call: Option<Arc<Call>>,
    open: Vec<InputRequest>,
}

impl TaskInputRelay {
    pub(crate) fn new() -> TaskInputRelay {
        let client = Client::stateless(Introduction::default());
        TaskInputRelay { client: Arc::new(client), state: Mutex::default(), changed: Notify::new() }
    }

    /// Cancels the call and closes its client, because the task was removed.
    pub(crate) fn close(&self) {
        if let Some(call) = self.state.lock().call.take() {
            call.cancel("its task was removed");
        }
        self.client.close();
    }

    /// Starts a call for the task's result, unless one is open.
    pub(crate) fn start(self: &Arc<TaskInputRelay>, caller: &Caller, backend: &Arc<Backend>, native: &str) {
        let mut state = self.state.lock();
        if state.call.is_some() {
            return;
        }
        let request = task_request(&Method::TasksResult, native, "");
        let call = Arc::new(Call::new(caller.clone(), Arc::clone(&self.client), request, None));
        state.call = Some(Arc::clone(&call));
        drop(state);
        let (input_relay, backend, native) = (Arc::clone(self), Arc::clone(backend), native.to_owned());
        worker::spawn(async move {
            let tasks = TaskPolicy::default();
            let outgoing = OutgoingRequest {
                request: &call.request,
                edits: Splice::new(),
                progress_token_at: None,
                name: Some(&native),
                mirrors: None,
                tasks,
            };
            let answer = backend.call(&outgoing, &call, CallTimeouts { idle: None, total: None });
            tokio::pin!(answer);
            loop {
                tokio::select! {
                    biased;
                    // The result is not kept. A client that wants it requests it later.
                    _ = &mut answer => break,
                    event = call.next() => input_relay.on_event(&call, event),
                }
            }
            call.finish();
            *input_relay.state.lock() = RelayState::default();
            input_relay.changed.notify_waiters();
        });
    }

    fn on_event(&self, call: &Call, event: CallEvent) {
        let CallEvent::Request(request) = event else { return };
        match InputRequest::from_server_request(request) {
            Ok(request) => self.state.lock().open.push(request),
            Err(id) => call.reject(id.as_ref(), "it cannot receive this request without a session"),
        }
        self.changed.notify_waiters();
    }

    /// Returns the open requests as members of an object. Waits at most [`INPUT_TIMEOUT`] for the first one.
    pub(crate) async fn open_requests(&self) -> String {
        let ready = async {
            loop {
                let notified = self.changed.notified();
                if self.is_ready() {
                    return;
                }
                notified.await;
            }
        };
        // If the backend sends no request in time, a later `tasks/get` returns it.
        let _ = tokio::time::timeout(INPUT_TIMEOUT, ready).await;
        let state = self.state.lock();
        let is_open = |request: &&InputRequest| state.call.as_ref().is_some_and(|call| request.is_open(call));
        let members: Vec<_> = state.open.iter().filter(is_open).map(|request| request.member.as_str()).collect();
        members.join(",")
    }

    fn is_ready(&self) -> bool {
        let state = self.state.lock();
        state.call.is_none() || !state.open.is_empty()
    }

    /// Delivers the client's responses to the backend.
    pub(crate) fn deliver_responses(&self, update: &Request) {
        let mut state = self.state.lock();
        if let RelayState { call: Some(call), open } = &mut *state {
            open.retain(|request| !request.answer(call, update) && request.is_open(call));
        }
    }
}
