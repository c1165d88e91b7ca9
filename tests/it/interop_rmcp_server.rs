//! A server with the official Rust SDK, for both eras, that serves the content of `tests/clients/catalog.json`. It runs
//! in the process of the test.
#![expect(deprecated, reason = "older versions of the protocol are served too")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientResult, CompleteRequestParams, CompleteResult,
    ContentBlock, CreateTaskResult, CustomNotification, CustomRequest, CustomResult, ErrorCode, ErrorData,
    GetPromptRequestParams, GetPromptResponse, GetTaskParams, GetTaskResult, InputRequest, InputRequests,
    InputRequiredResult, ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    LoggingLevel, LoggingMessageNotificationParam, PaginatedRequestParams, ProgressNotificationParam, ProtocolVersion,
    ReadResourceRequestParams, ReadResourceResponse, ResourceUpdatedNotificationParam, ServerConfig, ServerRequest,
    SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, UnsubscribeRequestParams,
};
use rmcp::service::{NotificationContext, RequestContext, ServiceError, SubscriptionContext, SubscriptionSendError};
use rmcp::task_manager::{TaskManager, TaskOptions};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{RoleServer, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::interop_rmcp_perform::{Stage, labels, perform, with_result_type};
use crate::raw_server::Acceptor;

static CATALOG: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("../clients/catalog.json")).expect("the catalog is JSON"));

/// A server on a free port that ends with the test.
pub struct RmcpServer {
    pub url: String,
    _acceptor: Acceptor,
}

impl RmcpServer {
    pub async fn start() -> RmcpServer {
        let world = Arc::new(World::default());
        let handler = move || Ok(Server::new(&world));
        let config = StreamableHttpServerConfig::default();
        let service = StreamableHttpService::new(handler, Arc::new(LocalSessionManager::default()), config);
        let acceptor = Acceptor::start(move |connection| {
            let service = service.clone();
            async move {
                let answer = service_fn(|request| {
                    let service = service.clone();
                    async move { Ok::<_, std::convert::Infallible>(service.handle(request).await) }
                });
                // A client that disconnects does not affect the others.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), answer).await;
            }
        });
        let acceptor = acceptor.await;
        RmcpServer { url: acceptor.url(), _acceptor: acceptor }
    }
}

/// A change that clients may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A list, by its name in the method of the notification.
    List(String),
    Resource(String),
}

/// All changes so far, in their order.
type Changes = Vec<Change>;

/// The state that outlives a session, or a request in the modern era.
#[derive(Default)]
struct World {
    grown: Mutex<Vec<Value>>,
    /// The number of started and of cancelled calls of `slow`, by key.
    calls: Mutex<BTreeMap<String, (u32, u32)>>,
    changes: watch::Sender<Changes>,
    tasks: TaskManager,
    /// The notes that clients sent.
    notes: watch::Sender<Vec<Value>>,
}

impl World {
    fn change(&self, change: Change) {
        self.changes.send_modify(|changes| changes.push(change));
    }

    fn count(&self, key: &str, change: impl FnOnce(&mut (u32, u32))) -> (u32, u32) {
        let mut calls = self.calls.lock().expect("no test panics here");
        let count = calls.entry(key.to_owned()).or_default();
        change(count);
        *count
    }
}

struct Server {
    world: Arc<World>,
    /// The subscription to changes. It starts before the client sees the server, so that no change is missed.
    changes: watch::Receiver<Changes>,
    /// The number of changes before the session or the request began.
    begun: usize,
    /// The URIs that this session subscribed to.
    subscribed: Arc<Mutex<BTreeSet<String>>>,
    level: Mutex<Option<LoggingLevel>>,
}

/// Converts a JSON value to a typed one.
pub fn typed<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("the value has the shape of the protocol")
}

pub fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

fn text(value: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(value)])
}

/// The client's response, or the input request to return as the result of the call.
enum InputReply {
    Answer(Value),
    Question(CallToolResponse),
}

async fn request_input(
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
    question: Value,
) -> Result<InputReply, ErrorData> {
    if let Some(answers) = request.input_responses.as_ref().and_then(|answers| answers.get("answer")) {
        return Ok(InputReply::Answer(answers.clone()));
    }
    let question: InputRequest = typed(question);
    if is_modern(context) {
        let requests = InputRequests::from([("answer".to_owned(), question)]);
        return Ok(InputReply::Question(InputRequiredResult::new(Some(requests), None).into()));
    }
    let pushed = match question {
        InputRequest::CreateMessage(request) => ServerRequest::CreateMessageRequest(request),
        InputRequest::Elicitation(request) => ServerRequest::ElicitRequest(request),
        InputRequest::ListRoots(request) => ServerRequest::ListRootsRequest(request),
        _ => return Err(ErrorData::internal_error("a question of a new kind", None)),
    };
    match context.peer.send_request(pushed).await {
        Ok(ClientResult::CustomResult(result)) => Ok(InputReply::Answer(result.0)),
        Ok(result) => Ok(InputReply::Answer(serde_json::to_value(result).expect("JSON"))),
        Err(ServiceError::McpError(error)) => Err(error),
        Err(error) => Err(ErrorData::internal_error(error.to_string(), None)),
    }
}

impl Server {
    fn new(world: &Arc<World>) -> Server {
        let (world, changes) = (Arc::clone(world), world.changes.subscribe());
        let begun = changes.borrow().len();
        Server { world, changes, begun, subscribed: Arc::default(), level: Mutex::default() }
    }

    async fn slow(&self, arguments: &Value, context: &RequestContext<RoleServer>) -> CallToolResult {
        let key = arguments["key"].as_str().expect("a key");
        self.world.count(key, |count| count.0 += 1);
        if let Some(token) = context.meta.get_progress_token() {
            for step in 1..=3 {
                let progress = ProgressNotificationParam::new(token.clone(), f64::from(step));
                let progress = progress.with_total(3.0).with_message(format!("step {step}"));
                let _ = context.peer.notify_progress(progress).await;
            }
        }
        let time = Duration::from_millis(arguments["ms"].as_u64().expect("a time"));
        tokio::select! {
            () = context.ct.cancelled() => { self.world.count(key, |count| count.1 += 1); }
            () = tokio::time::sleep(time) => {}
        }
        text("waited")
    }

    /// Returns the lowest level of log messages that the client receives.
    fn wanted_level(&self, context: &RequestContext<RoleServer>) -> Option<LoggingLevel> {
        let session = *self.level.lock().expect("no test panics here");
        if is_modern(context) { context.meta.log_level() } else { session.or(Some(LoggingLevel::Debug)) }
    }

    async fn chat(&self, context: &RequestContext<RoleServer>) -> CallToolResult {
        let wanted = self.wanted_level(context);
        let lines = [
            (LoggingLevel::Debug, "a debug line"),
            (LoggingLevel::Info, "an info line"),
            (LoggingLevel::Warning, "a warning line"),
        ];
        for (level, line) in lines {
            if wanted.is_some_and(|wanted| level as u8 >= wanted as u8) {
                let message = LoggingMessageNotificationParam::new(level, json!(line)).with_logger("chatty");
                let _ = context.peer.notify_logging_message(message).await;
            }
        }
        text("sent")
    }

    fn later(&self, context: &RequestContext<RoleServer>) -> CallToolResponse {
        let capabilities = context.client_capabilities().unwrap_or_default();
        if !is_modern(context) || !capabilities.supports_tasks() {
            return text("done later").into();
        }
        let options = TaskOptions::new().with_poll_interval_ms(20);
        CreateTaskResult::new(self.world.tasks.spawn(options, |_| Box::pin(async { Ok(text("done later")) }))).into()
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = json!({
            "tools": {"listChanged": true}, "prompts": {"listChanged": true},
            "resources": {"subscribe": true, "listChanged": true}, "completions": {}, "logging": {},
            "extensions": {"io.modelcontextprotocol/tasks": {}}, "experimental": {"test/feature": {"version": 1}},
        });
        ServerConfig::new(typed(capabilities)).with_instructions("Call the tools in any order.")
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut tools: Vec<Value> = typed(CATALOG["tools"].clone());
        tools.extend(self.world.grown.lock().expect("no test panics here").iter().cloned());
        Ok(ListToolsResult::with_all_items(typed(json!(tools))))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = Value::Object(request.arguments.clone().unwrap_or_default());
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
        let message = json!({"role": "user", "content": {"type": "text", "text": "Say something"}});
        let question = match request.name.as_ref() {
            "greet_elicit" => {
                let params = json!({"message": "Who are you?", "requestedSchema": schema});
                json!({"method": "elicitation/create", "params": params})
            }
            "sample_it" => {
                json!({"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 100}})
            }
            "list_my_roots" => json!({"method": "roots/list"}),
            _ => Value::Null,
        };
        let answer = if question.is_null() {
            Value::Null
        } else {
            match request_input(&request, &context, question).await? {
                InputReply::Answer(answer) => answer,
                InputReply::Question(question) => return Ok(question),
            }
        };
        let text_value = |value: &Value| value.as_str().unwrap_or("nothing").to_owned();
        Ok(match request.name.as_ref() {
            "add" => {
                let sum = arguments["a"].as_f64().zip(arguments["b"].as_f64()).map(|(a, b)| a + b);
                let invalid = || ErrorData::invalid_params("two numbers are required", None);
                text(sum.ok_or_else(invalid)?.to_string()).into()
            }
            "greet_elicit" if answer["action"] == "accept" => {
                text(format!("Hello, {}!", text_value(&answer["content"]["name"]))).into()
            }
            "greet_elicit" => text(format!("the user said {}", text_value(&answer["action"]))).into(),
            "sample_it" => {
                let content = answer["content"].get(0).unwrap_or(&answer["content"]);
                text(format!("sampled {}", text_value(&content["text"]))).into()
            }
            "list_my_roots" => text(format!("roots {}", text_value(&answer["roots"][0]["uri"]))).into(),
            "slow" => self.slow(&arguments, &context).await.into(),
            "cancelled_count" => {
                let (started, cancelled) = self.world.count(arguments["key"].as_str().expect("a key"), |_| {});
                text(format!("{started} started, {cancelled} cancelled")).into()
            }
            "chatty" => self.chat(&context).await.into(),
            "touch" => {
                self.world.change(Change::Resource("note://a".to_owned()));
                text("touched").into()
            }
            "grow" => {
                let tool = json!({"name": arguments["name"], "inputSchema": {"type": "object"}});
                self.world.grown.lock().expect("no test panics here").push(tool);
                self.world.change(Change::List("tools".to_owned()));
                text("grown").into()
            }
            "later" => self.later(&context),
            "perform" => {
                let (level, change) = (self.wanted_level(&context), |change| self.world.change(change));
                perform(Stage { request: &request, context: &context, level, change: &change }).await?
            }
            other => return Err(ErrorData::invalid_params(format!("there is no tool {other}"), None)),
        })
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.world.tasks.get_task(&request.task_id).map(GetTaskResult::new)
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(typed(CATALOG["prompts"].clone())))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        if request.name == "wide" {
            let mut wide = CATALOG["widePrompt"].clone();
            wide["resultType"] = json!("complete");
            return Ok(GetPromptResponse::Complete(typed(wide)));
        }
        if request.name != "greet" {
            return Err(ErrorData::invalid_params("no such prompt", Some(json!({"prompt": request.name}))));
        }
        let greeting = format!("Hello, {}!", arguments.get("name").and_then(Value::as_str).unwrap_or_default());
        let message = json!({"role": "user", "content": {"type": "text", "text": greeting}});
        Ok(GetPromptResponse::Complete(typed(json!({"resultType": "complete", "messages": [message]}))))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(typed(CATALOG["resources"].clone())))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(typed(CATALOG["resourceTemplates"].clone())))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        if request.uri == "note://wide" {
            let wide = json!({"resultType": "complete", "contents": CATALOG["wideContents"]});
            return Ok(ReadResourceResponse::Complete(typed(wide)));
        }
        let text_value = match (request.uri.as_str(), request.uri.strip_prefix("note://t/")) {
            ("note://a" | "note://b", _) => format!("note {}", &request.uri["note://".len()..]),
            (_, Some(id)) => format!("note t {id}"),
            (uri, None) => {
                return Err(ErrorData::resource_not_found("Resource not found", Some(json!({ "uri": uri }))));
            }
        };
        let contents = json!([{"uri": request.uri, "text": text_value}]);
        Ok(ReadResourceResponse::Complete(typed(json!({"resultType": "complete", "contents": contents}))))
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let names: Vec<String> = typed(CATALOG["names"].clone());
        let mut values: Vec<_> = names.into_iter().filter(|name| name.starts_with(&request.argument.value)).collect();
        let total = values.len();
        let given = request.context.and_then(|context| context.arguments).unwrap_or_default();
        values.extend(given.into_values());
        Ok(typed(json!({"resultType": "complete", "completion": {"values": values, "total": total, "hasMore": false}})))
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let params = request.params.unwrap_or_default();
        let result = match request.method.as_str() {
            // The SDK handles each message in a task of its own, so the note before this request may come after it.
            "test/notes" => {
                let mut notes = self.world.notes.subscribe();
                let notes = notes.wait_for(|notes| !notes.is_empty()).await.expect("the sender is in the world");
                json!({"notes": *notes})
            }
            "test/echo" if params.get("error").is_some() => return Err(typed(params["error"].clone())),
            "test/echo" => {
                let meta = labels(&serde_json::to_value(&context.meta).expect("JSON"));
                json!({"echo": params["value"], "meta": meta, "_meta": {"test/label": "echo"}})
            }
            other => return Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, other.to_owned(), None)),
        };
        Ok(CustomResult::new(with_result_type(&result, &context)))
    }

    async fn on_custom_notification(&self, notification: CustomNotification, _: NotificationContext<RoleServer>) {
        if notification.method == "notifications/test/note" {
            let note = notification.params.unwrap_or_default();
            self.world.notes.send_modify(|notes| notes.push(note));
        }
    }

    async fn set_level(&self, request: SetLevelRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        *self.level.lock().expect("no test panics here") = Some(request.level);
        Ok(())
    }

    async fn subscribe(&self, request: SubscribeRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.subscribed.lock().expect("no test panics here").insert(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscribed.lock().expect("no test panics here").remove(&request.uri);
        Ok(())
    }

    /// Starts to notify the session of changes.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let (mut changes, subscribed) = (self.changes.clone(), Arc::clone(&self.subscribed));
        let mut seen = changes.borrow().len();
        tokio::spawn(async move {
            while changes.changed().await.is_ok() {
                let new: Vec<Change> = changes.borrow_and_update()[seen..].to_vec();
                seen += new.len();
                for change in new {
                    let sent = match change {
                        Change::List(list) if list == "tools" => context.peer.notify_tool_list_changed().await,
                        Change::List(list) if list == "prompts" => context.peer.notify_prompt_list_changed().await,
                        Change::List(_) => context.peer.notify_resource_list_changed().await,
                        Change::Resource(uri) if subscribed.lock().expect("no test panics here").contains(&uri) => {
                            context.peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
                        }
                        Change::Resource(_) => Ok(()),
                    };
                    if sent.is_err() {
                        return;
                    }
                }
            }
        });
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.supported_by(&self.get_info().capabilities))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.clone();
        // The SDK sends the acknowledgement before it calls this.
        let mut seen = self.begun;
        loop {
            let new: Vec<Change> = changes.borrow_and_update()[seen..].to_vec();
            seen += new.len();
            for change in new {
                let sent = match change {
                    Change::List(list) if list == "tools" => context.sink().notify_tool_list_changed().await,
                    Change::List(list) if list == "prompts" => context.sink().notify_prompt_list_changed().await,
                    Change::List(_) => context.sink().notify_resource_list_changed().await,
                    Change::Resource(uri) => context.sink().notify_resource_updated(uri.as_str()).await,
                };
                if is_over(sent) {
                    return Ok(());
                }
            }
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                changed = changes.changed() => if changed.is_err() { return Ok(()) },
            }
        }
    }
}

fn is_over(sent: Result<(), SubscriptionSendError>) -> bool {
    !matches!(sent, Ok(()) | Err(SubscriptionSendError::NotificationNotAccepted(_)))
}
