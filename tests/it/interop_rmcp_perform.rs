//! The tool `perform` of the server with the Rust SDK: it sends the messages that its caller lists.
#![expect(deprecated, reason = "older versions of the protocol are served too")]

use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientResult, ContentBlock, CustomNotification,
    CustomRequest, ErrorData, InputRequest, InputRequests, InputRequiredResult, LoggingLevel,
    LoggingMessageNotificationParam, ProgressNotificationParam, ServerNotification, ServerRequest,
};
use rmcp::service::{RequestContext, ServiceError};
use serde_json::{Map, Value, json};

use crate::interop_rmcp_server::{Change, is_modern, typed};

/// The parts of the server that the tool needs.
pub struct Stage<'a> {
    pub request: &'a CallToolRequestParams,
    pub context: &'a RequestContext<RoleServer>,
    /// The lowest level of log messages that the client receives.
    pub level: Option<LoggingLevel>,
    pub change: &'a (dyn Fn(Change) + Sync),
}

/// Performs the messages in order. The answers of the client are the text of the result.
pub async fn perform(stage: Stage<'_>) -> Result<CallToolResponse, ErrorData> {
    let arguments = Value::Object(stage.request.arguments.clone().unwrap_or_default());
    let mut answers = Vec::new();
    for (index, action) in arguments["do"].as_array().into_iter().flatten().enumerate() {
        let (kind, given) = action.as_object().and_then(|action| action.iter().next()).expect("one member");
        match kind.as_str() {
            "log" => stage.log(given).await,
            "progress" => stage.progress(given).await,
            "notify" => stage.notify(given).await,
            "meta" => answers.push(labels(&serde_json::to_value(&stage.context.meta).expect("JSON"))),
            "change" => (stage.change)(Change::List(given.as_str().expect("a list").to_owned())),
            "update" => (stage.change)(Change::Resource(given.as_str().expect("a URI").to_owned())),
            "ask" => match stage.ask(&format!("ask{index}"), given).await {
                Ok(answer) => answers.push(answer),
                Err(question) => return Ok(*question),
            },
            other => panic!("there is no action {other}"),
        }
    }
    if let Some(error) = arguments.get("error") {
        return Err(typed(error.clone()));
    }
    Ok(match arguments.get("result") {
        Some(result) => typed::<CallToolResult>(with_result_type(result, stage.context)).into(),
        None => CallToolResult::success(vec![ContentBlock::text(json!(answers).to_string())]).into(),
    })
}

/// Returns a result with the member that the era of the client requires.
pub fn with_result_type(result: &Value, context: &RequestContext<RoleServer>) -> Value {
    let mut result = result.clone();
    if is_modern(context) {
        result["resultType"] = json!("complete");
    }
    result
}

/// Returns the members of `_meta` that are the test's own.
pub fn labels(meta: &Value) -> Value {
    let own = meta.as_object().into_iter().flatten().filter(|(key, _)| key.starts_with("test/"));
    Value::Object(own.map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>())
}

impl Stage<'_> {
    async fn log(&self, given: &Value) {
        let level: LoggingLevel = typed(given["level"].clone());
        if self.level.is_some_and(|lowest| level as u8 >= lowest as u8) {
            let mut message = LoggingMessageNotificationParam::new(level, given["data"].clone());
            message.logger = given["logger"].as_str().map(str::to_owned);
            let _ = self.context.peer.notify_logging_message(message).await;
        }
    }

    async fn progress(&self, given: &Value) {
        let Some(token) = self.context.meta.get_progress_token() else { return };
        let mut progress = ProgressNotificationParam::new(token, given["progress"].as_f64().expect("a number"));
        progress.total = given["total"].as_f64();
        progress.message = given["message"].as_str().map(str::to_owned);
        let _ = self.context.peer.notify_progress(progress).await;
    }

    async fn notify(&self, given: &Value) {
        let method = given["method"].as_str().expect("a method");
        let notification = CustomNotification::new(method, given.get("params").cloned());
        let _ = self.context.peer.send_notification(ServerNotification::CustomNotification(notification)).await;
    }

    /// Sends a request to a legacy client. Returns `Err` with the result that asks a modern client.
    async fn ask(&self, key: &str, question: &Value) -> Result<Value, Box<CallToolResponse>> {
        if is_modern(self.context) {
            let given = self.request.input_responses.as_ref().and_then(|answers| answers.get(key));
            let question = match (given, serde_json::from_value::<InputRequest>(question.clone())) {
                (Some(given), _) => return Ok(given.clone()),
                (None, Err(error)) => return Ok(json!({"unknown to the SDK": error.to_string()})),
                (None, Ok(question)) => question,
            };
            let requests = InputRequests::from([(key.to_owned(), question)]);
            let required = InputRequiredResult::new(Some(requests), Some("a state of the server".to_owned()));
            return Err(Box::new(required.into()));
        }
        let method = question["method"].as_str().expect("a method");
        let request = CustomRequest::new(method, question.get("params").cloned());
        Ok(match self.context.peer.send_request(ServerRequest::CustomRequest(request)).await {
            Ok(ClientResult::CustomResult(result)) => result.0,
            Ok(result) => serde_json::to_value(result).expect("JSON"),
            Err(ServiceError::McpError(error)) => serde_json::to_value(error).expect("JSON"),
            Err(error) => json!({"message": error.to_string()}),
        })
    }
}
