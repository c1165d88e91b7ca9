//! Who listens to a task of 2025-11-25 for a client that cannot be asked.
//!
//! Such a task asks while somebody waits for its result, and its client sees in `tasks/get` what is asked and answers by
//! `tasks/update`. So once a task wants an input, a call for its result is kept open here, in the client's name; what it is
//! asked stands here until it is answered. It ends with the task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::upstream::{Backend, Outgoing, Tasks};
use crate::client::caller::{Caller, Introduction};
use crate::client::lane::{Call, Patience, Said};
use crate::client::mailbox::replay::Replay;
use crate::client::mailbox::{Mailbox, Versions};
use goblin_wire::Request;
use goblin_wire::json::Splice;
use goblin_wire::method::Method;
use crate::router::inputs::{Question, question, refuse};
use crate::router::tasks::{Errand, about};
use goblin_telemetry::worker;

/// How long a client that wants to know what is asked waits for its backend to ask it.
const PATIENCE: Duration = Duration::from_secs(1);

pub struct Attendant {
    /// The ids of what is asked are from here, so none comes twice.
    mailbox: Arc<Mailbox>,
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Default)]
struct State {
    /// That which waits for the result.
    call: Option<Arc<Call>>,
    open: Vec<Question>,
}

impl Attendant {
    fn new() -> Attendant {
        let mailbox = Mailbox::new(Introduction::default(), Versions::default(), Replay::new(0));
        Attendant { mailbox: Arc::new(mailbox), state: Mutex::default(), bell: Notify::new() }
    }

    /// Its task is gone.
    pub fn dismiss(&self) {
        if let Some(call) = self.lock().call.take() {
            call.cancel("its task is forgotten");
        }
        self.mailbox.close();
    }

    /// Begins to wait for the result, where nobody does.
    fn begin(self: &Arc<Attendant>, caller: &Caller, backend: &Arc<Backend>, native: &str) {
        let mut state = self.lock();
        if state.call.is_some() {
            return;
        }
        let request = about(&Method::TasksResult, native, "");
        let call = Arc::new(Call::new(caller.clone(), Arc::clone(&self.mailbox), request, None));
        state.call = Some(Arc::clone(&call));
        drop(state);
        let (attendant, backend, native) = (Arc::clone(self), Arc::clone(backend), native.to_owned());
        worker::spawn(async move {
            let tasks = Tasks::default();
            let outgoing = Outgoing {
                request: &call.request,
                edits: Splice::new(),
                progress_token_at: None,
                name: Some(&native),
                mirrors: None,
                tasks,
            };
            let answer = backend.call(&outgoing, &call, Patience { idle: None, most: None });
            tokio::pin!(answer);
            loop {
                tokio::select! {
                    biased;
                    // Whoever wants the result asks for it then: here it is not kept.
                    _ = &mut answer => break,
                    said = call.lane.next() => attendant.hear(&call, said),
                }
            }
            call.finish();
            *attendant.lock() = State::default();
            attendant.bell.notify_waiters();
        });
    }

    fn hear(&self, call: &Call, said: Option<Said>) {
        let Some(Said::Ask(ask)) = said else { return };
        match question(ask) {
            Ok(question) => self.lock().open.push(question),
            Err(refused) => refuse(call, refused, "it cannot be asked this without a session"),
        }
        self.bell.notify_waiters();
    }

    /// What is asked, members of an object; once there is something.
    async fn asked(&self) -> String {
        let heard = async {
            loop {
                let rung = self.bell.notified();
                if self.has_news() {
                    return;
                }
                rung.await;
            }
        };
        // It may ask later, and be looked at again.
        let _ = tokio::time::timeout(PATIENCE, heard).await;
        let state = self.lock();
        let is_open = |question: &&Question| state.call.as_ref().is_some_and(|call| question.is_open(call));
        let asked: Vec<_> = state.open.iter().filter(is_open).map(|question| question.asked.as_str()).collect();
        asked.join(",")
    }

    fn has_news(&self) -> bool {
        let state = self.lock();
        state.call.is_none() || !state.open.is_empty()
    }

    /// Gives the backend what the client answers.
    fn answer(&self, request: &Request) {
        let mut state = self.lock();
        if let State { call: Some(call), open } = &mut *state {
            open.retain(|question| !question.answer(call, request) && question.is_open(call));
        }
    }

    /// No code that holds this lock can panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Errand<'_> {
    /// What the task asks of its client.
    pub(super) async fn attend(&self) -> String {
        let attendant = {
            let mut attendant = self.task.attendant.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(attendant.get_or_insert_with(|| Arc::new(Attendant::new())))
        };
        attendant.begin(&self.call.caller, self.backend, &self.task.native.id);
        attendant.asked().await
    }

    /// What the client answers.
    pub(super) fn attended(&self, request: &Request) {
        let attendant = self.task.attendant.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(attendant) = attendant {
            attendant.answer(request);
        }
    }
}
