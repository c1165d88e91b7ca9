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
use crate::router::inputs::inside;
use crate::router::rounds::InputResponse;
use crate::router::tasks::{TaskRequest, newer_result};
use crate::upstream::tasks::description::TaskDescription;
use crate::upstream::tasks::input_relay::TaskInputRelay;
use crate::upstream::tasks::task_request;
use crate::upstream::{BackendResponse, CallEnd};

/// The code that a legacy backend returns if it cannot cancel a task because the task has ended.
const INVALID_PARAMS: &str = "-32602";

impl TaskRequest<'_> {
    /// Sends a request of the gateway about the task, on behalf of the client's call.
    async fn ask(&self, method: &Method, more: &str) -> Result<BackendResponse, CallEnd> {
        let request = task_request(method, &self.task.native.id, more);
        let outgoing = self.outgoing(&request, Splice::new(), None);
        self.backend.call(&outgoing, self.call, self.patience(method)).await
    }

    fn broken(&self, reason: &str) -> CallEnd {
        Error::BackendProtocol { server: self.backend.id.to_string(), reason: reason.to_owned() }.into()
    }

    /// Handles a request of a 2025-11-25 client about a task of the extension.
    pub(super) async fn for_older(&self) -> Result<Reply, CallEnd> {
        match self.call.request.method {
            Method::TasksResult => self.older_result().await,
            Method::TasksCancel => self.older_cancel().await,
            _ => {
                let answered = self.ask(&Method::TasksGet, "").await?;
                Ok(self.older_task(&answered))
            }
        }
    }

    /// Returns the task in the form of 2025-11-25.
    fn older_task(&self, answered: &BackendResponse) -> Reply {
        let Outcome::Result(task) = answered.response.outcome else { return self.failed(answered) };
        let told = TaskDescription { text: answered.response.raw.as_str(), task, era: Era::Modern };
        self.note(&told);
        goblin_wire::reply(&self.call.request.id, told.legacy_form(&self.task.id)).into()
    }

    /// Cancels a task. In 2025-11-25 the answer means that the task is cancelled, and an ended task cannot be. In the
    /// extension the backend may take its time. The answer therefore has the current status of the task.
    async fn older_cancel(&self) -> Result<Reply, CallEnd> {
        let before = self.ask(&Method::TasksGet, "").await?;
        let Outcome::Result(task) = before.response.outcome else { return Ok(self.failed(&before)) };
        let told = TaskDescription { text: before.response.raw.as_str(), task, era: Era::Modern };
        if told.has_ended() {
            let reason = format!("the task is over: it is {}", told.status());
            return Err(Error::InvalidParams(reason).into());
        }
        let cancelled = self.ask(&Method::TasksCancel, "").await?;
        if matches!(cancelled.response.outcome, Outcome::Error(_)) {
            return Ok(self.failed(&cancelled));
        }
        Ok(self.older_task(&self.ask(&Method::TasksGet, "").await?))
    }

    /// Waits for the end of the task and returns its result. Sends the task's input requests to the client meanwhile.
    async fn older_result(&self) -> Result<Reply, CallEnd> {
        loop {
            let answered = self.ask(&Method::TasksGet, "").await?;
            let Outcome::Result(task) = answered.response.outcome else { return Ok(self.failed(&answered)) };
            let told = TaskDescription { text: answered.response.raw.as_str(), task, era: Era::Modern };
            self.note(&told);
            match &*told.status() {
                "completed" => {
                    let result = told.outcome("result").ok_or_else(|| self.broken("a task ended without a result"))?;
                    return Ok(self.older_outcome(&answered, result));
                }
                "failed" => {
                    let error = told.outcome("error").ok_or_else(|| self.broken("a task failed without an error"))?;
                    let code = json::member(told.text, error, "code").and_then(|code| code.get(told.text).parse().ok());
                    let pieces = goblin_wire::error_reply(Some(&self.call.request.id), error.get(told.text));
                    return Ok(Reply { pieces, code });
                }
                "cancelled" => return Err(Error::InvalidParams("the task was cancelled".to_owned()).into()),
                "input_required" => self.older_inputs(&told).await?,
                _ => {}
            }
            self.pause(told.interval()).await?;
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
    fn older_outcome(&self, answered: &BackendResponse, result: Span) -> Reply {
        let text = answered.response.raw.as_str();
        let shown = inside(text, result, self.result_edits(answered, result));
        let related = format!(r#""{RELATED_TASK}":{{"taskId":{}}}"#, quote(&self.task.id));
        let mut edits = Splice::new();
        let whole = json::whole(&shown);
        match json::member(&shown, whole, "_meta").filter(|meta| meta.get(&shown).starts_with('{')) {
            Some(meta) => json::prepend(&shown, meta, &related, &mut edits),
            None => json::prepend(&shown, whole, &format!(r#""_meta":{{{related}}}"#), &mut edits),
        }
        let shown = edits.apply(&Bytes::from(shown));
        goblin_wire::reply(&self.call.request.id, shown).into()
    }

    /// Sends the task's input requests to the client and the responses to the backend. If the client rejects sampling
    /// or roots, the call ends, and the task keeps waiting.
    async fn older_inputs(&self, told: &TaskDescription<'_>) -> Result<(), CallEnd> {
        let said = self.router.ask_all(self.call, self.backend, told.text, told.task).await?;
        let mut responses = Vec::new();
        for (key, said) in said {
            match said {
                InputResponse::Result(result) => responses.push(format!("{key}:{result}")),
                InputResponse::Nothing(reason) => return Err(Error::ClientUnavailable { reason }.into()),
            }
        }
        let more = format!(r#","inputResponses":{{{}}}"#, responses.join(","));
        match self.ask(&Method::TasksUpdate, &more).await?.response.outcome {
            Outcome::Result(_) => Ok(()),
            Outcome::Error(_) => Err(self.broken("it refused what it had asked for")),
        }
    }

    /// Handles a request of a client of the extension about a 2025-11-25 task.
    pub(super) async fn for_newer(&self) -> Result<Reply, CallEnd> {
        match self.call.request.method {
            Method::TasksGet => self.newer_get().await,
            Method::TasksUpdate => {
                if let Some(input_relay) = self.task.input_relay.get() {
                    input_relay.deliver_responses(&self.call.request);
                }
                Ok(self.acknowledged())
            }
            _ => {
                let answered = self.ask(&Method::TasksCancel, "").await?;
                let text = answered.response.raw.as_str();
                let code = match answered.response.outcome {
                    Outcome::Result(_) => None,
                    Outcome::Error(error) => json::member(text, error, "code").map(|code| code.get(text)),
                };
                // In the extension, an ended task can be cancelled again without an error.
                Ok(if matches!(code, None | Some(INVALID_PARAMS)) {
                    self.acknowledged()
                } else {
                    self.failed(&answered)
                })
            }
        }
    }

    fn acknowledged(&self) -> Reply {
        goblin_wire::reply(&self.call.request.id, newer_result("complete", "")).into()
    }

    /// Returns the status of the task with its result, its error or its input requests.
    async fn newer_get(&self) -> Result<Reply, CallEnd> {
        let answered = self.ask(&Method::TasksGet, "").await?;
        let Outcome::Result(task) = answered.response.outcome else { return Ok(self.failed(&answered)) };
        let told = TaskDescription { text: answered.response.raw.as_str(), task, era: Era::Legacy };
        self.note(&told);
        let mut members = told.modern_members(&self.task.id);
        match &*told.status() {
            // A tool error is a result too. The extension calls such a task completed, and 2025-11-25 calls it failed.
            "completed" | "failed" => {
                let ended = self.ask(&Method::TasksResult, "").await?;
                let text = ended.response.raw.as_str();
                let (status, outcome) = match ended.response.outcome {
                    Outcome::Result(result) => {
                        let mut edits = self.result_edits(&ended, result);
                        edits.append(self.router.related((self.backend, &self.call.caller), text, result));
                        ("completed", format!(r#""result":{}"#, inside(text, result, edits)))
                    }
                    Outcome::Error(error) => ("failed", format!(r#""error":{}"#, error.get(text))),
                };
                members = set_status(&members, status);
                members.push_str(&format!(",{outcome}"));
            }
            "input_required" => {
                let input_relay = self.task.input_relay.get_or_init(|| Arc::new(TaskInputRelay::new()));
                input_relay.start(&self.call.caller, self.backend, &self.task.native.id);
                let asked = input_relay.open_requests().await;
                members.push_str(&format!(r#","inputRequests":{{{asked}}}"#));
            }
            _ => {}
        }
        Ok(goblin_wire::reply(&self.call.request.id, newer_result("complete", &members)).into())
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
