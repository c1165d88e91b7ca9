//! Tasks: calls that are answered at once with an id and end later (TASK-1).
//!
//! A client knows a task by an id of the gateway (`TaskTable`), which is replaced by the backend's id on the way. If
//! both sides use the same protocol, everything else passes unchanged. Otherwise `bridge` translates between the two. A
//! client that does not support tasks waits for the result (`wait`).

mod bridge;
mod wait;
pub(crate) mod watch;

use std::sync::Arc;
use std::time::Instant;

use goblin_catalog::content;
use goblin_catalog::definition::requires_task;
use goblin_config::ServerId;
use goblin_wire::json::{self, Pieces, Span, Splice, quote};
use goblin_wire::modern::{IDENTITY, RELATED_TASK, SERVER_INFO, TASKS_DECLARED};
use goblin_wire::params::{related_task, required};
use goblin_wire::{Era, Error, Method, Outcome, Request};

use crate::catalog_store::{Catalog, Source};
use crate::client::call::{Call, CallTimeouts};
use crate::client::caller::Caller;
use crate::router::inputs::Exchange;
use crate::router::{Reply, RouteTarget, Router};
use crate::upstream::tasks::description::{self, TaskDescription};
use crate::upstream::tasks::{NativeTask, NewTask, Task, TaskOwner, TaskPermit, included_edits};
use crate::upstream::{Backend, BackendResponse, CallEnd, OutgoingRequest, TaskPolicy};

/// The code of a backend that needs a task for a call that does not declare support for tasks.
const MISSING_CAPABILITY: &str = "-32021";

/// The task options of a call.
#[derive(Default)]
pub(crate) struct TaskOptions {
    pub tasks: TaskPolicy,
    /// The reserved place for the task.
    place: Option<TaskPermit>,
    /// The reason why no place was reserved, if the client supports tasks.
    full: Option<Error>,
}

impl TaskOptions {
    /// Reports whether the answer may contain a task, or an error because of a missing one.
    pub(crate) fn may_contain_task(&self, request: &Request, answer: &BackendResponse) -> bool {
        if self.tasks != TaskPolicy::default() || self.full.is_some() {
            return true;
        }
        // A correct backend returns no task here, but check for it.
        let text = answer.response.raw.as_str();
        let Outcome::Result(result) = answer.response.outcome else { return false };
        request.method == Method::ToolsCall
            && answer.dialect.has_result_types()
            && description::created_task(text, result, Era::Modern).is_some()
    }
}

/// The outcome of an answer that may contain a task.
pub(crate) enum TaskOutcome {
    Reply(Reply),
    Result(BackendResponse),
}

/// A request about one task.
struct TaskRequest<'a> {
    router: &'a Router,
    call: &'a Arc<Call>,
    backend: &'a Arc<Backend>,
    task: &'a Arc<Task>,
}

impl Router {
    /// Reports whether a backend makes tasks. If so, the gateway declares the capability to clients.
    pub(crate) fn offers_tasks(&self) -> bool {
        self.catalogs
            .backends()
            .iter()
            .any(|backend| backend.listing().hello.as_ref().is_some_and(|hello| hello.capabilities.tasks))
    }

    /// Returns the task options of a call. Returns an error if the client requests a task and there is no place. If the
    /// backend decides about tasks and there is no place, the call is sent without support for tasks.
    pub(crate) fn task_options(
        &self,
        call: &Call,
        catalog: &Catalog,
        target: &RouteTarget,
    ) -> Result<TaskOptions, Error> {
        let RouteTarget::Tool(index) = target else { return Ok(TaskOptions::default()) };
        let entry = &catalog.tools.entries[*index];
        let (caller, is_requested) = (&call.caller, call.request.params.task.is_some());
        if !(declares_tasks(catalog.source(entry.source)) || is_requested && caller.dialect.has_tasks()) {
            return Ok(TaskOptions::default());
        }
        if caller.dialect.has_tasks() {
            if !is_requested {
                return Ok(TaskOptions::default());
            }
            let place = self.tasks.reserve(TaskOwner::of(caller), Instant::now())?;
            let tasks = TaskPolicy { accepted: true, required: false };
            return Ok(TaskOptions { tasks, place: Some(place), full: None });
        }
        let required = requires_task(&entry.definition);
        if !supports_tasks(caller) {
            return Ok(TaskOptions { tasks: TaskPolicy { accepted: false, required }, ..TaskOptions::default() });
        }
        let place = self.tasks.reserve(TaskOwner::of(caller), Instant::now());
        let tasks = TaskPolicy { accepted: place.is_ok(), required };
        Ok(match place {
            Ok(place) => TaskOptions { tasks, place: Some(place), full: None },
            Err(error) => TaskOptions { tasks, place: None, full: Some(error) },
        })
    }

    /// Handles the answer to a call. If it is a task, adds the task to the table or waits for its end.
    pub(crate) async fn handle_task_answer(
        &self,
        call: &Arc<Call>,
        backend: &Arc<Backend>,
        (options, timeouts): (TaskOptions, CallTimeouts),
        answer: BackendResponse,
    ) -> Result<TaskOutcome, CallEnd> {
        let (text, era) = (answer.response.raw.as_str(), answer.dialect.era());
        let result = match answer.response.outcome {
            Outcome::Result(result) => result,
            Outcome::Error(error) => {
                let code = json::member(text, error, "code").map(|code| code.get(text));
                return match options.full {
                    Some(full) if code == Some(MISSING_CAPABILITY) => Err(full.into()),
                    _ => Ok(TaskOutcome::Result(answer)),
                };
            }
        };
        let Some(description) = description::created_task(text, result, era) else {
            return Ok(TaskOutcome::Result(answer));
        };
        let id = description.id().unwrap_or_default();
        match options.place {
            Some(place) => {
                let own = if backend.own_links().is_some() { call.caller.session } else { None };
                let native = NativeTask { server: backend.id.clone(), own, era, id: (*id).into() };
                Ok(TaskOutcome::Reply(self.add_task(call, (place, native), &description, &answer)))
            }
            None if options.tasks.required => {
                let id = id.into_owned();
                self.await_task(call, backend, (&id, description.interval()), timeouts).await.map(TaskOutcome::Result)
            }
            None => {
                let reason = "the server returned a task for a call that did not request one".to_owned();
                Err(Error::BackendProtocol { server: backend.id.to_string(), reason }.into())
            }
        }
    }

    /// Adds a task to the table and returns its description in the client's protocol.
    fn add_task(
        &self,
        call: &Call,
        (place, native): (TaskPermit, NativeTask),
        description: &TaskDescription<'_>,
        BackendResponse { response, .. }: &BackendResponse,
    ) -> Reply {
        let era = call.caller.dialect.era();
        let new_task = NewTask { native, era, lifetime: description.lifetime(), client: &call.client };
        let task = self.tasks.insert(place, new_task, Instant::now());
        task.record(description.lifetime(), description.summary(&task.id));
        let id = &call.request.id;
        match (era, description.era) {
            (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => {
                response.rekeyed(id, description.edits(&task.id))
            }
            (Era::Legacy, Era::Modern) => {
                goblin_wire::reply(id, format!(r#"{{"task":{}}}"#, description.legacy_form(&task.id)))
            }
            (Era::Modern, Era::Legacy) => {
                goblin_wire::reply(id, modern_result("task", &description.modern_members(&task.id)))
            }
        }
        .into()
    }

    /// Answers `tasks/list` with the last known state of each task. A request to every backend would let a slow or lost
    /// one block the list. A client can request a single task for its exact state.
    pub(crate) fn list_tasks(&self, caller: &Caller, request: &Request) -> Result<Pieces, Error> {
        let text = request.raw.as_str();
        if request.params.cursor.is_some_and(|at| at.get(text) != "null") {
            return Err(Error::InvalidCursor);
        }
        let tasks = self.tasks.list(caller, Instant::now());
        Ok(goblin_wire::reply(&request.id, format!(r#"{{"tasks":[{}]}}"#, tasks.join(","))))
    }

    /// Handles a request about one task.
    pub(crate) async fn task_request(&self, call: &Arc<Call>) -> Result<Reply, CallEnd> {
        let request = &call.request;
        if !call.caller.dialect.has_handshake() {
            check_declared(&call.caller)?;
        }
        let id = required(request.raw.as_str(), request.params.task_id, "taskId")?;
        let unknown = || Error::InvalidParams(format!("there is no task {}", quote(&id)));
        let task = self.tasks.find(&id, &call.caller, Instant::now()).ok_or_else(unknown)?;
        let backend = self.backend(&task.native.server).ok_or_else(unknown)?;
        let task_request = TaskRequest { router: self, call, backend: &backend, task: &task };
        match (call.caller.dialect.era(), task.native.era) {
            (Era::Legacy, Era::Legacy) | (Era::Modern, Era::Modern) => task_request.forward().await,
            (Era::Legacy, Era::Modern) => task_request.answer_legacy().await,
            (Era::Modern, Era::Legacy) => task_request.answer_modern().await,
        }
    }

    pub(crate) fn backend(&self, server: &ServerId) -> Option<Arc<Backend>> {
        self.catalogs.backends().iter().find(|backend| backend.id == *server).cloned()
    }

    /// Replaces the task id in `_meta` of the object at `holder` by the caller's. Removes the entry if the caller does
    /// not know the task.
    pub(crate) fn expose_related_task(
        &self,
        (backend, caller): (&Backend, &Caller),
        text: &str,
        holder: Span,
    ) -> Splice {
        let mut edits = Splice::new();
        let Some(at) = related_task(text, holder) else { return edits };
        let own = if backend.own_links().is_some() { caller.session } else { None };
        let native = json::string(text, at).unwrap_or_default();
        let id = self.tasks.exposed_id(&backend.id, own, &native).filter(|_| caller.dialect.has_tasks());
        match id {
            Some(id) => edits.replace(at, quote(&id)),
            None => {
                let meta = json::member(text, holder, "_meta").expect("_meta holds the task");
                json::cut_members(text, meta, |key| key == RELATED_TASK, &mut edits);
            }
        }
        edits
    }

    /// Replaces the task id in `_meta` of a request by the backend's.
    pub(crate) fn restore_related_task(&self, backend: &Backend, request: &Request, edits: &mut Splice) {
        let text = request.raw.as_str();
        let Some(at) = request.params.whole.and_then(|params| related_task(text, params)) else { return };
        if let Some(native) = json::string(text, at).and_then(|id| self.tasks.native_id(&backend.id, &id)) {
            edits.replace(at, quote(&native));
        }
    }
}

impl TaskRequest<'_> {
    /// Forwards the request with the backend's task id, for a client of the same protocol.
    async fn forward(&self) -> Result<Reply, CallEnd> {
        let (call, native) = (self.call, &*self.task.native.id);
        let request = &call.request;
        let mut edits = Splice::new();
        if let Some(at) = request.params.task_id {
            edits.replace(at, quote(native));
        }
        let progress_token_at = request.params.known_meta.progress_token;
        let outgoing = self.outgoing(request, edits, progress_token_at);
        let answer = self.backend.call(&outgoing, call, self.timeouts(&request.method)).await?;
        Ok(self.translate(&answer))
    }

    /// Returns a request about the task for the backend. It declares support for tasks, which modern backends require.
    fn outgoing<'a>(
        &'a self,
        request: &'a Request,
        edits: Splice,
        progress_token_at: Option<Span>,
    ) -> OutgoingRequest<'a> {
        let name = Some(&*self.task.native.id);
        let tasks = TaskPolicy { accepted: true, required: false };
        OutgoingRequest { request, edits, progress_token_at, name, mirrors: None, tasks }
    }

    /// Returns the timeouts of a request about a task. A request for the result may take as long as the task (ROUTE-3).
    fn timeouts(&self, method: &Method) -> CallTimeouts {
        let (config, policies) = (&self.backend.config, self.router.policies.load());
        match method {
            Method::TasksResult => CallTimeouts { idle: None, total: None },
            _ => {
                let idle = config.timeout.map_or(policies.default_timeout, |timeout| timeout.duration());
                CallTimeouts { idle, total: policies.max_timeout }
            }
        }
    }

    /// Returns the backend's answer for a client of the same protocol.
    fn translate(&self, answer: &BackendResponse) -> Reply {
        let (request, caller) = (&self.call.request, &self.call.caller);
        let text = answer.response.raw.as_str();
        let Outcome::Result(result) = answer.response.outcome else { return self.translate_error(answer) };
        let mut edits = match (&request.method, self.task.native.era) {
            (Method::TasksResult, _) => self.result_edits(answer, result),
            (Method::TasksGet, era) | (Method::TasksCancel, era @ Era::Legacy) => {
                let description = TaskDescription { text, task: result, era };
                self.record(&description);
                let mut edits = description.edits(&self.task.id);
                edits.append(included_edits(&self.backend.events, &description, self.task.era));
                edits
            }
            _ => Splice::new(),
        };
        if caller.dialect.has_handshake() {
            edits.append(self.router.expose_related_task((self.backend, caller), text, result));
        }
        answer.response.rekeyed(&request.id, edits).into()
    }

    /// Returns the backend's error for the client.
    fn translate_error(&self, answer: &BackendResponse) -> Reply {
        let exchange = Exchange { backend: self.backend, caller: &self.call.caller, request: &self.call.request };
        self.router.forward_error(exchange, &answer.response, Splice::new())
    }

    /// Records the state of the task. Answers that describe no task are ignored.
    fn record(&self, description: &TaskDescription<'_>) {
        if description.id().is_some() {
            self.task.record(description.lifetime(), description.summary(&self.task.id));
        }
    }

    /// Returns the changes to the tool result at `result` for this client.
    fn result_edits(&self, answer: &BackendResponse, result: Span) -> Splice {
        let (text, caller) = (answer.response.raw.as_str(), &self.call.caller);
        let expose = |native: &str| self.backend.events.expose(native);
        let mut edits = content::edits(caller.dialect, &Method::ToolsCall, text, result, expose);
        match (caller.dialect.has_result_types(), answer.dialect.has_result_types()) {
            (true, true) => {}
            (true, false) => content::add_result_type(&Method::ToolsCall, text, result, &mut edits),
            (false, has_kind) => content::remove_foreign(has_kind, &Method::ToolsCall, text, result, &mut edits),
        }
        edits
    }
}

/// Reports whether a client without a handshake supports tasks.
fn supports_tasks(caller: &Caller) -> bool {
    !caller.dialect.has_handshake() && caller.client_capabilities.tasks
}

/// Returns an error unless the request declares the tasks extension.
pub(crate) fn check_declared(caller: &Caller) -> Result<(), Error> {
    if supports_tasks(caller) { Ok(()) } else { Err(Error::MissingCapability { required: TASKS_DECLARED }) }
}

/// Reports whether the backend of a source declares tasks.
pub(crate) fn declares_tasks(source: &Source) -> bool {
    source.listing.hello.as_ref().is_some_and(|hello| hello.capabilities.tasks)
}

/// Returns a result of the gateway for a client with result types.
fn modern_result(kind: &str, members: &str) -> String {
    let comma = if members.is_empty() { "" } else { "," };
    format!(r#"{{"resultType":"{kind}"{comma}{members},"_meta":{{"{SERVER_INFO}":{IDENTITY}}}}}"#)
}
