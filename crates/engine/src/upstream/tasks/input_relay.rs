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
use crate::upstream::tasks::about;
use crate::upstream::{Backend, OutgoingRequest, TaskPolicy};

/// The longest time that `tasks/get` waits for the backend to send its requests.
const INPUT_TIMEOUT: Duration = Duration::from_secs(1);

pub struct TaskInputRelay {
    /// The client that assigns the ids of the requests, so that each id is used once.
    client: Arc<Client>,
    state: Mutex<RelayState>,
    bell: Notify,
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
        TaskInputRelay { client: Arc::new(client), state: Mutex::default(), bell: Notify::new() }
    }

    /// Cancels the call and closes its client, because the task was removed.
    pub(crate) fn dismiss(&self) {
        if let Some(call) = self.state.lock().call.take() {
            call.cancel("its task is forgotten");
        }
        self.client.close();
    }

    /// Begins a call for the task's result, unless one is open.
    pub(crate) fn begin(self: &Arc<TaskInputRelay>, caller: &Caller, backend: &Arc<Backend>, native: &str) {
        let mut state = self.state.lock();
        if state.call.is_some() {
            return;
        }
        let request = about(&Method::TasksResult, native, "");
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
                    said = call.next() => input_relay.hear(&call, said),
                }
            }
            call.finish();
            *input_relay.state.lock() = RelayState::default();
            input_relay.bell.notify_waiters();
        });
    }

    fn hear(&self, call: &Call, said: CallEvent) {
        let CallEvent::Request(ask) = said else { return };
        match InputRequest::from_server_request(ask) {
            Ok(question) => self.state.lock().open.push(question),
            Err(refused) => call.reject(refused.as_ref(), "it cannot be asked this without a session"),
        }
        self.bell.notify_waiters();
    }

    /// Returns the open requests as members of an object. Waits at most [`INPUT_TIMEOUT`] for the first one.
    pub(crate) async fn asked(&self) -> String {
        let heard = async {
            loop {
                let rung = self.bell.notified();
                if self.has_news() {
                    return;
                }
                rung.await;
            }
        };
        // If the backend sends no request in time, a later `tasks/get` returns it.
        let _ = tokio::time::timeout(INPUT_TIMEOUT, heard).await;
        let state = self.state.lock();
        let is_open = |question: &&InputRequest| state.call.as_ref().is_some_and(|call| question.is_open(call));
        let asked: Vec<_> = state.open.iter().filter(is_open).map(|question| question.member.as_str()).collect();
        asked.join(",")
    }

    fn has_news(&self) -> bool {
        let state = self.state.lock();
        state.call.is_none() || !state.open.is_empty()
    }

    /// Delivers the client's responses to the backend.
    pub(crate) fn answer(&self, request: &Request) {
        let mut state = self.state.lock();
        if let RelayState { call: Some(call), open } = &mut *state {
            open.retain(|question| !question.answer(call, request) && question.is_open(call));
        }
    }
}
