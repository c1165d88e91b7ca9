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
const CANCEL_TIMEOUTS: CallTimeouts = CallTimeouts { idle: Some(Duration::from_secs(10)), total: None };

impl Router {
    /// Polls a task until it ends, then returns its result. Each poll counts as a sign of life. If the call ends first,
    /// cancels the task.
    pub(super) async fn await_task(
        &self,
        call: &Arc<Call>,
        backend: &Arc<Backend>,
        (native, interval): (&str, Duration),
        timeouts: CallTimeouts,
    ) -> Result<BackendResponse, CallEnd> {
        let answer = poll_until_end(call, backend, (native, interval), timeouts).await;
        if answer.is_err() {
            cancel(call, backend, native);
        }
        answer
    }
}

async fn poll_until_end(
    call: &Arc<Call>,
    backend: &Backend,
    (native, mut interval): (&str, Duration),
    timeouts: CallTimeouts,
) -> Result<BackendResponse, CallEnd> {
    let begun = Instant::now();
    let remaining =
        || CallTimeouts { total: timeouts.total.map(|total| total.saturating_sub(begun.elapsed())), ..timeouts };
    loop {
        tokio::select! {
            biased;
            end = call.ended() => return Err(backend.abort_outcome(end, call).1),
            () = tokio::time::sleep(interval) => {}
        }
        let answer = send_request(call, backend, &Method::TasksGet, native, remaining()).await?;
        let Outcome::Result(result) = answer.response.outcome else { return Ok(answer) };
        let description = TaskDescription { text: answer.response.raw.as_str(), task: result, era: Era::Legacy };
        if description.has_ended() || description.status() == "input_required" {
            break;
        }
        interval = description.interval();
    }
    // This request is answered when the task ends, or after its server requests. The idle timeout does not apply.
    send_request(call, backend, &Method::TasksResult, native, CallTimeouts { idle: None, ..remaining() }).await
}

/// Sends a request about the task on behalf of the call.
async fn send_request(
    call: &Arc<Call>,
    backend: &Backend,
    method: &Method,
    native: &str,
    timeouts: CallTimeouts,
) -> Result<BackendResponse, CallEnd> {
    let request = task_request(method, native, "");
    let (edits, tasks) = (Splice::new(), TaskPolicy::default());
    let outgoing =
        OutgoingRequest { request: &request, edits, progress_token_at: None, name: Some(native), mirrors: None, tasks };
    backend.call(&outgoing, call, timeouts).await
}

/// Cancels the task in the background, because the caller is gone or already has its error.
fn cancel(call: &Call, backend: &Arc<Backend>, native: &str) {
    let request = task_request(&Method::TasksCancel, native, "");
    let call = Arc::new(Call::new(call.caller.clone(), Arc::clone(&call.client), request, None));
    let (backend, native) = (Arc::clone(backend), native.to_owned());
    worker::spawn(async move {
        send_request(&call, &backend, &Method::TasksCancel, &native, CANCEL_TIMEOUTS).await.map(drop)
    });
}
