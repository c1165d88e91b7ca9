//! The official Rust SDK as a client that plays the scripts of the features.
//!
//! It runs in the process of the test, and returns the same verdicts as the clients of other languages.
#![expect(deprecated, reason = "older versions of the protocol are supported too")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResponse, ClientConfig, ClientNotification, ClientRequest,
    CreateMessageRequestParams, CreateMessageResult, CustomNotification, CustomRequest, CustomResult,
    ElicitRequestParams, ElicitResult, ErrorData, GetTaskParams, ListRootsResult, LoggingMessageNotificationParam,
    ProgressNotificationParam, ProgressToken, ProtocolVersion, RequestMetaObject, ResourceUpdatedNotificationParam,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, NotificationContext, PeerRequestOptions,
    RequestContext, RequestHandle, RunningService, ServiceError,
};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, UnixSocketHttpClient};
use rmcp::{ClientHandler, RoleClient};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixListener};
use tokio::task::JoinSet;

use crate::harness::{Deadline, Scratch, TIMEOUT};
use crate::interop_features::{Era, FEATURES, Verdict, Verdicts, judge, read, script};

/// The time limit of a step, so that a failing step does not use up the time of a whole test.
const STEP: Duration = Duration::from_secs(45);
const POLL: Duration = Duration::from_millis(20);

/// Plays all features against the server at this URL.
pub async fn play(url: &str, era: Era, mark: &str) -> Verdicts {
    let mut player = match Player::connect(url, era, mark).await {
        Ok(player) => player,
        Err(error) => return read("", &format!("no connection: {error}")),
    };
    let mut verdicts = Verdicts::new();
    for feature in FEATURES {
        verdicts.insert(feature, player.play(feature).await);
    }
    verdicts
}

/// Plays a script against the server at this URL. Returns a report like that of the other clients.
pub async fn play_script(url: &str, era: Era, mark: &str, steps: &[Value]) -> Value {
    let mut player = Player::connect(url, era, mark).await.unwrap_or_else(|error| panic!("no connection: {error}"));
    let info = value(player.service.peer_info().expect("the handshake is over"));
    let mut played = Vec::new();
    for step in steps {
        let name = text(&step["do"]).to_owned();
        player.acted = player.recorder.count();
        let limit = step["timeoutMs"].as_u64().map_or(STEP, Duration::from_millis);
        let mut outcome = match tokio::time::timeout(limit, player.step(&name, step)).await {
            Ok(outcome) => outcome.unwrap_or_else(|lacking| json!({"ok": false, "error": {"message": lacking}})),
            Err(_) => json!({"ok": false, "error": {"message": format!("{name} did not end within {limit:?}")}}),
        };
        outcome["do"] = json!(name);
        played.push(outcome);
    }
    json!({
        "protocolVersion": info["protocolVersion"], "serverInfo": info["serverInfo"],
        "capabilities": info["capabilities"], "instructions": info["instructions"],
        "steps": played, "trace": *player.recorder.trace.lock().expect("no test panics here"),
    })
}

/// The outcome of a step; `Err` if the SDK does not support it.
type Outcome = Result<Value, String>;

struct Player {
    service: RunningService<RoleClient, Recorder>,
    recorder: Recorder,
    era: Era,
    mark: String,
    /// The call that is in progress while other steps are played.
    begun: Option<RequestHandle<RoleClient>>,
    acted: usize,
    /// The tasks of the subscriptions and of the connection to the server.
    tasks: JoinSet<()>,
    _scratch: Scratch,
}

impl Player {
    async fn connect(url: &str, era: Era, mark: &str) -> Result<Player, ClientInitializeError> {
        let scratch = Scratch::new();
        let mut tasks = JoinSet::new();
        let socket = forward(url, &scratch, &mut tasks);
        // The full URL provides the `Host` header. The path alone is a request target that every server understands.
        let client = UnixSocketHttpClient::new(&socket.display().to_string(), url);
        let config = StreamableHttpClientTransportConfig::with_uri("/mcp");
        let transport = StreamableHttpClientTransport::with_client(client, config);
        let lifecycle = match era {
            Era::Legacy => ClientLifecycleMode::Initialize,
            Era::Modern => ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
        };
        let recorder = Recorder { mark: mark.to_owned(), ..Recorder::default() };
        let service = tokio::time::timeout(TIMEOUT, recorder.clone().serve_with_lifecycle(transport, lifecycle)).await;
        let service = service.expect("a connection in time")?;
        Ok(Player { service, recorder, era, mark: mark.to_owned(), begun: None, acted: 0, tasks, _scratch: scratch })
    }

    async fn play(&mut self, feature: &str) -> Verdict {
        for (index, step) in script(feature, self.era, &self.mark).iter().enumerate() {
            let name = step["do"].as_str().expect("a step has a name").to_owned();
            if name != "wait_notification" {
                self.acted = self.recorder.count();
            }
            let outcome = match tokio::time::timeout(STEP, self.step(&name, step)).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(lacking)) => return Verdict::Skipped(lacking),
                Err(_) => json!({"ok": false, "error": {"message": format!("no end within {STEP:?}")}}),
            };
            if let Some(problem) = judge(step, &outcome) {
                return Verdict::Fails(format!("step {index} {name}: {problem}"));
            }
        }
        Verdict::Works
    }

    async fn step(&mut self, name: &str, step: &Value) -> Outcome {
        let service = &self.service;
        Ok(match name {
            "await_tool" => self.await_tool(text(&step["name"])).await,
            "list_prompts" => outcome(service.list_prompts(None).await),
            "list_resources" => outcome(service.list_resources(None).await),
            "list_templates" => outcome(service.list_resource_templates(None).await),
            "call_tool" => outcome(service.call_tool(call_of(step)).await),
            "get_prompt" => outcome(service.get_prompt(params_of(step)).await),
            "read_resource" => outcome(service.read_resource(params_of(step)).await),
            "complete" => outcome(service.complete(params_of(step)).await),
            "set_level" => outcome(service.set_level(params_of(step)).await),
            "subscribe" => outcome(service.subscribe(params_of(step)).await),
            "unsubscribe" => outcome(service.unsubscribe(params_of(step)).await),
            "listen" => self.listen(step).await,
            "wait_notification" => self.wait(step).await,
            "count_notifications" => json!({"ok": true, "result": self.recorder.matching(step, 0).len()}),
            "await_text" => self.await_text(step).await,
            "begin_call" => self.begin(step).await,
            "await_progress" => self.await_progress(step).await,
            "cancel_call" => {
                let call = self.begun.take().expect("a call was begun");
                outcome(call.cancel(Some("no longer wanted".to_owned())).await)
            }
            "call_as_task" => return self.call_as_task(step).await,
            "list_tools" => outcome(service.list_all_tools().await),
            "ping" => outcome(service.send_request(ClientRequest::PingRequest(Default::default())).await),
            "request" => {
                let request = CustomRequest::new(text(&step["method"]), step.get("params").cloned());
                outcome(service.send_request(ClientRequest::CustomRequest(request)).await)
            }
            "notify" => {
                let notification = CustomNotification::new(text(&step["method"]), step.get("params").cloned());
                outcome(service.send_notification(ClientNotification::CustomNotification(notification)).await)
            }
            other => panic!("there is no step {other}"),
        })
    }

    async fn await_tool(&self, name: &str) -> Value {
        loop {
            match self.service.list_all_tools().await {
                Ok(tools) if tools.iter().any(|tool| tool.name == name) => return json!({ "ok": true }),
                Ok(_) => tokio::time::sleep(POLL).await,
                Err(error) => return outcome::<()>(Err(error)),
            }
        }
    }

    async fn await_text(&self, step: &Value) -> Value {
        loop {
            let outcome = outcome(self.service.call_tool(call_of(step)).await);
            if outcome["ok"] != true || outcome["result"]["content"][0]["text"] == step["text"] {
                return outcome;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn listen(&mut self, step: &Value) -> Value {
        let mut subscription = match self.service.listen(typed(step["notifications"].clone())).await {
            Ok(subscription) => subscription,
            Err(error) => return outcome::<()>(Err(error)),
        };
        let acknowledged = value(subscription.acknowledged());
        let recorder = self.recorder.clone();
        self.tasks.spawn(async move {
            while let Ok(Some(notification)) = subscription.next().await {
                recorder.record(value(notification));
            }
        });
        json!({"ok": true, "result": {"notifications": acknowledged}})
    }

    async fn wait(&self, step: &Value) -> Value {
        let since = if step["fresh"] == true { self.acted } else { 0 };
        loop {
            if let Some(notification) = self.recorder.matching(step, since).first() {
                return json!({"ok": true, "result": notification});
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn begin(&mut self, step: &Value) -> Value {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(call_of(step)));
        match self.service.send_cancellable_request(request, PeerRequestOptions::no_options()).await {
            Ok(call) => {
                self.begun = Some(call);
                json!({ "ok": true })
            }
            Err(error) => outcome::<()>(Err(error)),
        }
    }

    async fn await_progress(&self, step: &Value) -> Value {
        let token = &self.begun.as_ref().expect("a call was begun").progress_token;
        let wanted = step["count"].as_u64().expect("a count");
        loop {
            let progress = self.recorder.progress_of(token);
            if progress.len() as u64 >= wanted {
                return json!({"ok": true, "result": progress});
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn call_as_task(&self, step: &Value) -> Outcome {
        if self.era == Era::Legacy {
            return Err("rmcp 3.8 knows the tasks of 2026-07-28 only".to_owned());
        }
        let created = match self.service.call_tool_once(call_of(step)).await {
            Ok(CallToolResponse::Task(created)) => created,
            Ok(_) => return Err("the server did not make a task of it".to_owned()),
            Err(error) => return Ok(outcome::<()>(Err(error))),
        };
        let deadline = Deadline::new();
        loop {
            match self.service.get_task(GetTaskParams::new(created.task.task_id.as_str())).await {
                Ok(found) if found.task.status().is_terminal() => {
                    let task = value(found);
                    return Ok(json!({"ok": true, "status": task["status"], "result": task["result"]}));
                }
                Ok(_) => deadline.pause("the task is over").await,
                Err(error) => return Ok(outcome::<()>(Err(error))),
            }
        }
    }
}

/// Forwards a Unix socket to the server. The SDK's HTTP client without further dependencies only supports Unix sockets.
fn forward(url: &str, scratch: &Scratch, tasks: &mut JoinSet<()>) -> PathBuf {
    let address: SocketAddr =
        url.split('/').nth(2).and_then(|address| address.parse().ok()).expect("a URL with an address");
    let path = scratch.path().join("server");
    let listener = UnixListener::bind(&path).expect("a socket");
    tasks.spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut far = TcpStream::connect(address).await.expect("the server listens");
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    path
}

/// The handler of server messages. It records notifications and answers every request with the mark.
#[derive(Clone, Default)]
struct Recorder {
    mark: String,
    received: Arc<Mutex<Vec<Value>>>,
    /// All messages of the server.
    trace: Arc<Mutex<Vec<Value>>>,
    progress: Arc<Mutex<Vec<ProgressNotificationParam>>>,
}

impl Recorder {
    fn trace(&self, entry: Value) {
        self.trace.lock().expect("no test panics here").push(entry);
    }

    /// Records a server request. Returns the answer that the server's `_meta` names, or else `usual`.
    fn answer<T: DeserializeOwned>(&self, method: &str, params: Value, usual: Value) -> Result<T, ErrorData> {
        let wanted = params["_meta"]["test/answer"].clone();
        self.trace(json!({"ask": {"method": method, "params": params}}));
        match (wanted.get("error"), wanted.get("result")) {
            (Some(error), _) => Err(typed(error.clone())),
            (None, Some(result)) => Ok(typed(result.clone())),
            (None, None) => Ok(typed(usual)),
        }
    }

    fn record(&self, notification: Value) {
        self.trace(json!({"notification": notification}));
        self.received.lock().expect("no test panics here").push(notification);
    }

    fn count(&self) -> usize {
        self.received.lock().expect("no test panics here").len()
    }

    /// Returns the notifications from index `since` on that have this method and these members.
    fn matching(&self, step: &Value, since: usize) -> Vec<Value> {
        let members = step["params"].as_object();
        let matches = |notification: &&Value| {
            let has = |(name, value): (&String, &Value)| notification["params"][name] == *value;
            notification["method"] == step["method"] && members.into_iter().flatten().all(has)
        };
        self.received.lock().expect("no test panics here")[since..].iter().filter(matches).cloned().collect()
    }

    /// Returns the progress notifications sorted by their number. The SDK handles each in its own task, so the order of
    /// arrival is lost.
    fn progress_of(&self, token: &ProgressToken) -> Vec<Value> {
        let mut received = self.progress.lock().expect("no test panics here").clone();
        received.retain(|progress| progress.progress_token == *token);
        received.sort_by(|one, other| one.progress.total_cmp(&other.progress));
        received.iter().map(value).collect()
    }
}

impl ClientHandler for Recorder {
    fn get_info(&self) -> ClientConfig {
        let mut config = ClientConfig::default();
        let tasks = json!({"io.modelcontextprotocol/tasks": {}});
        config.capabilities = typed(
            json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"tools": {}}, "roots": {}, "extensions": tasks}),
        );
        config
    }

    async fn create_message(
        &self,
        params: CreateMessageRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let content = json!({"type": "text", "text": self.mark});
        let usual = json!({"role": "assistant", "content": content, "model": "none"});
        self.answer("sampling/createMessage", with_meta(value(params), &context), usual)
    }

    async fn list_roots(&self, context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        let usual = json!({"roots": [{"uri": format!("file:///{}", self.mark)}]});
        self.answer("roots/list", with_meta(json!({}), &context), usual)
    }

    async fn create_elicitation(
        &self,
        params: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let usual = json!({"action": "accept", "content": {"name": self.mark}});
        self.answer("elicitation/create", with_meta(value(params), &context), usual)
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleClient>,
    ) -> Result<CustomResult, ErrorData> {
        let params = request.params.unwrap_or_default();
        self.answer(&request.method, params.clone(), json!({ "echo": params }))
    }

    async fn on_custom_notification(&self, notification: CustomNotification, _: NotificationContext<RoleClient>) {
        self.record(json!({"method": notification.method, "params": notification.params}));
    }

    async fn on_prompt_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record(json!({"method": "notifications/prompts/list_changed"}));
    }

    async fn on_resource_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record(json!({"method": "notifications/resources/list_changed"}));
    }

    async fn on_progress(&self, params: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        let mut entry = value(&params);
        entry.as_object_mut().expect("an object").remove("progressToken");
        self.trace(json!({ "progress": entry }));
        self.progress.lock().expect("no test panics here").push(params);
    }

    async fn on_logging_message(&self, params: LoggingMessageNotificationParam, _: NotificationContext<RoleClient>) {
        self.record(json!({"method": "notifications/message", "params": value(params)}));
    }

    async fn on_resource_updated(&self, params: ResourceUpdatedNotificationParam, _: NotificationContext<RoleClient>) {
        self.record(json!({"method": "notifications/resources/updated", "params": value(params)}));
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.record(json!({"method": "notifications/tools/list_changed"}));
    }
}

/// Returns the params of a request with the `_meta` that the SDK moved into the context.
fn with_meta(mut params: Value, context: &RequestContext<RoleClient>) -> Value {
    let meta = value(&context.meta);
    if meta.as_object().is_some_and(|meta| !meta.is_empty()) {
        params["_meta"] = meta;
    }
    params
}

/// Converts a typed value to its JSON form.
fn value(typed: impl Serialize) -> Value {
    serde_json::to_value(typed).expect("JSON")
}

fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Parses the params of a step, which has further members.
fn params_of<T: DeserializeOwned>(step: &Value) -> T {
    typed(step.clone())
}

fn call_of(step: &Value) -> CallToolRequestParams {
    let mut params = CallToolRequestParams::new(text(&step["name"]).to_owned());
    params.arguments = step["arguments"].as_object().cloned();
    if !step["level"].is_null() {
        let mut meta = RequestMetaObject::default();
        meta.set_log_level(typed(step["level"].clone()));
        params.meta = Some(meta);
    }
    params
}

fn outcome<T: Serialize>(result: Result<T, ServiceError>) -> Value {
    match result {
        Ok(result) => json!({"ok": true, "result": value(result)}),
        Err(ServiceError::McpError(error)) => json!({"ok": false, "error": value(error)}),
        Err(error) => json!({"ok": false, "error": {"message": error.to_string()}}),
    }
}
