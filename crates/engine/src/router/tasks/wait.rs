//! Calls of a tool that always makes tasks, for clients that do not support tasks.
//!
//! The gateway sends the call as a task, polls the task and answers the call with its result. Server requests during
//! the task belong to the call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use goblin_telemetry::worker;
use goblin_wire::json::Splice;
use goblin_wire::{Era, Method, Outcome};

use crate::client::call::{Call, CallTimeouts};
use crate::router::Router;
use crate::upstream::tasks::description::TaskDescription;
use crate::upstream::tasks::task_request;
use crate::upstream::{Backend, BackendResponse, CallEnd, OutgoingRequest, TaskPolicy};

/// The timeouts of a cancel request. No client waits for its answer.
const CANCEL_TIMEOUTS: CallTimeouts = CallTimeouts { idle: Some(Duration::from_secs(10)), most: None };

impl Router {
    /// Polls a task until it ends, then returns its result. Each poll counts as a sign of life. If the call ends first,
    /// cancels the task.
    pub(super) async fn await_task(
        &self,
        call: &Arc<Call>,
        backend: &Arc<Backend>,
        (native, interval): (&str, Duration),
        patience: CallTimeouts,
    ) -> Result<BackendResponse, CallEnd> {
        let answered = follow(call, backend, (native, interval), patience).await;
        if answered.is_err() {
            cancel(call, backend, native);
        }
        answered
    }
}

async fn follow(
    call: &Arc<Call>,
    backend: &Backend,
    (native, mut interval): (&str, Duration),
    patience: CallTimeouts,
) -> Result<BackendResponse, CallEnd> {
    let begun = Instant::now();
    let left = || CallTimeouts { most: patience.most.map(|most| most.saturating_sub(begun.elapsed())), ..patience };
    loop {
        tokio::select! {
            biased;
            end = call.ended() => return Err(backend.abort_outcome(end, call).1),
            () = tokio::time::sleep(interval) => {}
        }
        let answered = ask(call, backend, &Method::TasksGet, native, left()).await?;
        let Outcome::Result(result) = answered.response.outcome else { return Ok(answered) };
        let told = TaskDescription { text: answered.response.raw.as_str(), task: result, era: Era::Legacy };
        if told.has_ended() || told.status() == "input_required" {
            break;
        }
        interval = told.interval();
    }
    // This request is answered when the task ends, or after its server requests. The idle timeout does not apply.
    ask(call, backend, &Method::TasksResult, native, CallTimeouts { idle: None, ..left() }).await
}

/// Sends a request about the task on behalf of the call.
async fn ask(
    call: &Arc<Call>,
    backend: &Backend,
    method: &Method,
    native: &str,
    patience: CallTimeouts,
) -> Result<BackendResponse, CallEnd> {
    let request = task_request(method, native, "");
    let (edits, tasks) = (Splice::new(), TaskPolicy::default());
    let outgoing =
        OutgoingRequest { request: &request, edits, progress_token_at: None, name: Some(native), mirrors: None, tasks };
    backend.call(&outgoing, call, patience).await
}

/// Cancels the task in the background, because the caller is gone or already has its error.
fn cancel(call: &Call, backend: &Arc<Backend>, native: &str) {
    let request = task_request(&Method::TasksCancel, native, "");
    let call = Arc::new(Call::new(call.caller.clone(), Arc::clone(&call.client), request, None));
    let (backend, native) = (Arc::clone(backend), native.to_owned());
    worker::spawn(async move { ask(&call, &backend, &Method::TasksCancel, &native, CANCEL_TIMEOUTS).await.map(drop) });
}
