//! Translates requests about a task between the protocol of its client and that of its backend.
//!
//! 2025-11-25 and the extension of 2026-07-28 define tasks differently. A request of one may need several of the other.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use goblin_wire::json::{self, Span, Splice, quote};
use goblin_wire::modern::RELATED_TASK;
use goblin_wire::{Era, Error, Method, Outcome};

use crate::client::call::Reply;
use crate::router::inputs::edited_slice;
use crate::router::rounds::InputResponse;
use crate::router::tasks::{TaskRequest, modern_result};
use crate::upstream::tasks::description::TaskDescription;
use crate::upstream::tasks::input_relay::TaskInputRelay;
use crate::upstream::tasks::task_request;
use crate::upstream::{BackendResponse, CallEnd};

/// The code that a legacy backend returns if it cannot cancel a task because the task has ended.
const INVALID_PARAMS: &str = "-32602";

impl TaskRequest<'_> {
    /// Sends a request of the gateway about the task, on behalf of the client's call.
    async fn request(&self, method: &Method, more: &str) -> Result<BackendResponse, CallEnd> {
        let request = task_request(method, &self.task.native.id, more);
        let outgoing = self.outgoing(&request, Splice::new(), None);
        self.backend.call(&outgoing, self.call, self.timeouts(method)).await
    }

    fn protocol_error(&self, reason: &str) -> CallEnd {
        Error::BackendProtocol { server: self.backend.id.to_string(), reason: reason.to_owned() }.into()
    }

    /// Handles a request of a 2025-11-25 client about a task of the extension.
    pub(super) async fn answer_legacy(&self) -> Result<Reply, CallEnd> {
        match self.call.request.method {
            Method::TasksResult => self.legacy_result().await,
            Method::TasksCancel => self.legacy_cancel().await,
            _ => {
                let answer = self.request(&Method::TasksGet, "").await?;
                Ok(self.legacy_task(&answer))
            }
        }
    }

    /// Returns the task in the form of 2025-11-25.
    fn legacy_task(&self, answer: &BackendResponse) -> Reply {
        let Outcome::Result(task) = answer.response.outcome else { return self.translate_error(answer) };
        let description = TaskDescription { text: answer.response.raw.as_str(), task, era: Era::Modern };
        self.record(&description);
        goblin_wire::reply(&self.call.request.id, description.legacy_form(&self.task.id)).into()
    }

    /// Cancels a task. In 2025-11-25 the answer means that the task is cancelled, and an ended task cannot be. In the
    /// extension the backend may take its time. The answer therefore has the current status of the task.
    async fn legacy_cancel(&self) -> Result<Reply, CallEnd> {
        let before = self.request(&Method::TasksGet, "").await?;
        let Outcome::Result(task) = before.response.outcome else { return Ok(self.translate_error(&before)) };
        let description = TaskDescription { text: before.response.raw.as_str(), task, era: Era::Modern };
        if description.has_ended() {
            let reason = format!("the task has already ended with the status {}", description.status());
            return Err(Error::InvalidParams(reason).into());
        }
        let cancelled = self.request(&Method::TasksCancel, "").await?;
        if matches!(cancelled.response.outcome, Outcome::Error(_)) {
            return Ok(self.translate_error(&cancelled));
        }
        Ok(self.legacy_task(&self.request(&Method::TasksGet, "").await?))
    }

    /// Waits for the end of the task and returns its result. Sends the task's input requests to the client meanwhile.
    async fn legacy_result(&self) -> Result<Reply, CallEnd> {
        loop {
            let answer = self.request(&Method::TasksGet, "").await?;
            let Outcome::Result(task) = answer.response.outcome else { return Ok(self.translate_error(&answer)) };
            let description = TaskDescription { text: answer.response.raw.as_str(), task, era: Era::Modern };
            self.record(&description);
            match &*description.status() {
                "completed" => {
                    let result = description
                        .outcome("result")
                        .ok_or_else(|| self.protocol_error("a task ended without a result"))?;
                    return Ok(self.legacy_outcome(&answer, result));
                }
                "failed" => {
                    let error = description
                        .outcome("error")
                        .ok_or_else(|| self.protocol_error("a task failed without an error"))?;
                    let code = json::member(description.text, error, "code")
                        .and_then(|code| code.get(description.text).parse().ok());
                    let pieces = goblin_wire::error_reply(Some(&self.call.request.id), error.get(description.text));
                    return Ok(Reply { pieces, code, is_error: true });
                }
                "cancelled" => return Err(Error::InvalidParams("the task was cancelled".to_owned()).into()),
                "input_required" => self.legacy_inputs(&description).await?,
                _ => {}
            }
            self.pause(description.interval()).await?;
        }
    }

    /// Waits before the next poll. Returns an error if the call must end.
    async fn pause(&self, time: Duration) -> Result<(), CallEnd> {
        tokio::select! {
            biased;
            end = self.call.ended() => Err(self.backend.abort_outcome(end, self.call).1),
            () = tokio::time::sleep(time) => Ok(()),
        }
    }

    /// Returns the result of the tool with the id of its task in `_meta`, as 2025-11-25 requires.
    fn legacy_outcome(&self, answer: &BackendResponse, result: Span) -> Reply {
        let text = answer.response.raw.as_str();
        let result = edited_slice(text, result, self.result_edits(answer, result));
        let related = format!(r#""{RELATED_TASK}":{{"taskId":{}}}"#, quote(&self.task.id));
        let mut edits = Splice::new();
        let whole = json::whole(&result);
        match json::member(&result, whole, "_meta").filter(|meta| meta.get(&result).starts_with('{')) {
            Some(meta) => json::prepend(&result, meta, &related, &mut edits),
            None => json::prepend(&result, whole, &format!(r#""_meta":{{{related}}}"#), &mut edits),
        }
        let result = edits.apply(&Bytes::from(result));
        goblin_wire::reply(&self.call.request.id, result).into()
    }

    /// Sends the task's input requests to the client and the responses to the backend. If the client rejects sampling
    /// or roots, the call ends, and the task keeps waiting.
    async fn legacy_inputs(&self, description: &TaskDescription<'_>) -> Result<(), CallEnd> {
        let inputs = self.router.request_inputs(self.call, self.backend, description.text, description.task).await?;
        let mut responses = Vec::new();
        for (key, input) in inputs {
            match input {
                InputResponse::Result(result) => responses.push(format!("{key}:{result}")),
                InputResponse::Missing(reason) => return Err(Error::ClientUnavailable { reason }.into()),
            }
        }
        let more = format!(r#","inputResponses":{{{}}}"#, responses.join(","));
        match self.request(&Method::TasksUpdate, &more).await?.response.outcome {
            Outcome::Result(_) => Ok(()),
            Outcome::Error(_) => Err(self.protocol_error("the server rejected the input that it had requested")),
        }
    }

    /// Handles a request of a client of the extension about a 2025-11-25 task.
    pub(super) async fn answer_modern(&self) -> Result<Reply, CallEnd> {
        match self.call.request.method {
            Method::TasksGet => self.modern_get().await,
            Method::TasksUpdate => {
                if let Some(input_relay) = self.task.input_relay.get() {
                    input_relay.deliver_responses(&self.call.request);
                }
                Ok(self.acknowledged())
            }
            _ => {
                let answer = self.request(&Method::TasksCancel, "").await?;
                let text = answer.response.raw.as_str();
                let code = match answer.response.outcome {
                    Outcome::Result(_) => None,
                    Outcome::Error(error) => json::member(text, error, "code").map(|code| code.get(text)),
                };
                // In the extension, an ended task can be cancelled again without an error.
                Ok(if matches!(code, None | Some(INVALID_PARAMS)) {
                    self.acknowledged()
                } else {
                    self.translate_error(&answer)
                })
            }
        }
    }

    fn acknowledged(&self) -> Reply {
        goblin_wire::reply(&self.call.request.id, modern_result("complete", "")).into()
    }

    /// Returns the status of the task with its result, its error or its input requests.
    async fn modern_get(&self) -> Result<Reply, CallEnd> {
        let answer = self.request(&Method::TasksGet, "").await?;
        let Outcome::Result(task) = answer.response.outcome else { return Ok(self.translate_error(&answer)) };
        let description = TaskDescription { text: answer.response.raw.as_str(), task, era: Era::Legacy };
        self.record(&description);
        let mut members = description.modern_members(&self.task.id);
        match &*description.status() {
            // A tool error is a result too. The extension calls such a task completed, and 2025-11-25 calls it failed.
            "completed" | "failed" => {
                let ended = self.request(&Method::TasksResult, "").await?;
                let text = ended.response.raw.as_str();
                let (status, outcome) = match ended.response.outcome {
                    Outcome::Result(result) => {
                        let mut edits = self.result_edits(&ended, result);
                        edits.append(self.router.expose_related_task((self.backend, &self.call.caller), text, result));
                        ("completed", format!(r#""result":{}"#, edited_slice(text, result, edits)))
                    }
                    Outcome::Error(error) => ("failed", format!(r#""error":{}"#, error.get(text))),
                };
                members = set_status(&members, status);
                members.push_str(&format!(",{outcome}"));
            }
            "input_required" => {
                let input_relay = self.task.input_relay.get_or_init(|| Arc::new(TaskInputRelay::new()));
                input_relay.start(&self.call.caller, self.backend, &self.task.native.id);
                let requests = input_relay.open_requests().await;
                members.push_str(&format!(r#","inputRequests":{{{requests}}}"#));
            }
            _ => {}
        }
        Ok(goblin_wire::reply(&self.call.request.id, modern_result("complete", &members)).into())
    }
}

/// Returns the members of a task with another status.
fn set_status(members: &str, status: &str) -> String {
    let object = format!("{{{members}}}");
    let mut edits = Splice::new();
    if let Some(at) = json::member(&object, json::whole(&object), "status") {
        edits.replace(at, quote(status));
    }
    let object = edits.apply(&Bytes::from(object));
    String::from_utf8_lossy(&object[1..object.len() - 1]).into_owned()
}
