//! The MCP server: one `Server` per session, or per request in the modern era.
//!
//! It implements the handler of `rmcp` and delegates to the modules for tools, prompts and resources. The shared
//! [`World`] holds everything that outlives a session.
#![expect(deprecated, reason = "older versions of the protocol are served too")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult, CompletionInfo,
    ErrorData, GetPromptRequestParams, GetPromptResponse, GetTaskParams, GetTaskResult, Implementation,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel,
    LoggingMessageNotificationParam, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ReadResourceResult, ResourceUpdatedNotificationParam, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{NotificationContext, RequestContext, RoleServer, SubscriptionContext, SubscriptionSendError};
use rmcp::{Peer, ServerHandler};
use serde_json::json;

use crate::ask::{Answers, Reply, drive, is_modern};
use crate::resources::WATCHED;
use crate::world::{Changes, Subject, World};
use crate::{prompts, resources, tools};

pub struct Server {
    world: Arc<World>,
    /// The subscription to changes. It starts before the client sees the server, so that no change is missed.
    changes: Changes,
    /// The URIs that a session subscribed to, shared with the task that notifies its client.
    subscribed: Arc<Mutex<BTreeSet<String>>>,
    level: Mutex<LoggingLevel>,
}

impl Server {
    pub fn new(world: Arc<World>) -> Server {
        let changes = world.watch();
        let level = Mutex::new(LoggingLevel::Info);
        Server { world, changes, subscribed: Arc::default(), level }
    }

    pub fn world(&self) -> &World {
        &self.world
    }

    /// Sends a log message at level info, if the client's level includes it.
    pub async fn log(&self, context: &RequestContext<RoleServer>, message: &str) {
        let level = if is_modern(context) {
            context.meta.log_level()
        } else {
            Some(*self.level.lock().unwrap_or_else(PoisonError::into_inner))
        };
        if matches!(level, Some(LoggingLevel::Debug | LoggingLevel::Info)) {
            let message = LoggingMessageNotificationParam::new(LoggingLevel::Info, json!(message));
            // The call continues even if the client has disconnected.
            let _ = context.peer.notify_logging_message(message).await;
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_tasks()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list(&self.world)))
    }

    /// Returns the tool by name. `rmcp` uses its schema to check the headers that mirror arguments.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::list(&self.world).into_iter().find(|tool| tool.name == name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        tools::call(self, request, &context).await
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(prompts::list(&self.world)))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let answers = Answers::new(request.input_responses, request.request_state);
        let step = |answers: &Answers| prompts::step(&request.name, &arguments, answers);
        match drive(&context, answers, step).await? {
            Reply::Done(result) => Ok(result.into()),
            Reply::InputRequired(result) => Ok(result.into()),
            Reply::Rejected => Err(ErrorData::invalid_request("the user refused", None)),
        }
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let completion = CompletionInfo::with_all_values(prompts::complete(&request));
        completion.map(CompleteResult::new).map_err(|error| ErrorData::internal_error(error, None))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(resources::list()))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let contents = resources::read(&self.world, &request.uri)?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if is_modern(&context) {
            return Err(ErrorData::method_not_found::<rmcp::model::SetLevelRequestMethod>());
        }
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = request.level;
        Ok(())
    }

    async fn subscribe(&self, request: SubscribeRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).insert(request.uri);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).remove(&request.uri);
        Ok(())
    }

    /// Starts to notify the session of changes.
    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        tokio::spawn(notify_session(context.peer, self.changes.clone(), Arc::clone(&self.subscribed)));
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.supported_by(&self.get_info().capabilities))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.clone();
        loop {
            let subject = tokio::select! {
                () = context.cancelled() => return Ok(()),
                subject = changes.next() => subject,
            };
            let sent = match subject {
                Subject::Tools => context.sink().notify_tool_list_changed().await,
                Subject::Prompts => context.sink().notify_prompt_list_changed().await,
                Subject::Watched => context.sink().notify_resource_updated(WATCHED).await,
            };
            match sent {
                Ok(()) | Err(SubscriptionSendError::NotificationNotAccepted(_)) => {}
                Err(_) => return Ok(()),
            }
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.world.tasks.get_task(&request.task_id).map(GetTaskResult::new)
    }

    async fn update_task(&self, request: UpdateTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.world.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(&self, request: CancelTaskParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        self.world.tasks.cancel_task(&request.task_id)
    }
}

/// Notifies the client of a session about changes, until a notification fails.
async fn notify_session(peer: Peer<RoleServer>, mut changes: Changes, subscribed: Arc<Mutex<BTreeSet<String>>>) {
    loop {
        let sent = match changes.next().await {
            Subject::Tools => peer.notify_tool_list_changed().await,
            Subject::Prompts => peer.notify_prompt_list_changed().await,
            Subject::Watched => {
                let wanted = subscribed.lock().unwrap_or_else(PoisonError::into_inner).contains(WATCHED);
                if !wanted {
                    continue;
                }
                peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(WATCHED)).await
            }
        };
        if sent.is_err() {
            return;
        }
    }
}
