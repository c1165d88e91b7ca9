//! The tools: their names, and the module that answers each call.
//!
//! The suite defines the names and the required results.

mod asking;
pub mod content;
mod definitions;
mod jobs;
mod talking;

use rmcp::ErrorData;
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject, Tool};
use rmcp::service::{RequestContext, RoleServer};

use crate::ask::{Answers, Reply, capabilities, drive};
use crate::server::Server;
use crate::tools::asking::Call;
use crate::world::{Subject, World};

pub fn list(world: &World) -> Vec<Tool> {
    definitions::list(world)
}

pub async fn call(
    server: &Server,
    request: CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let name = request.name.as_ref();
    if let Some(result) = content::answer(name) {
        return Ok(result.into());
    }
    let arguments = request.arguments.unwrap_or_default();
    let world = server.world();
    let result = match name {
        "greet" => content::text(format!("Hello, {}!", text_argument(&arguments, "name")?)),
        "test_header_mirror" => content::text(format!("region: {:?}", arguments.get("region"))),
        "test_tool_with_progress" => talking::progress(context).await?,
        "test_tool_with_logging" | "test_logging_tool" => talking::logging(server, context).await?,
        "test_reconnection" => talking::reconnection(context).await?,
        "test_trigger_tool_change" => changed(world, Subject::Tools),
        "test_trigger_prompt_change" => changed(world, Subject::Prompts),
        "test_trigger_resource_change" => changed(world, Subject::Watched),
        "slow_compute" => return jobs::slow(world, &arguments, &capabilities(context)).await,
        "failing_job" | "protocol_error_job" | "confirm_delete" | "multi_input" => {
            return jobs::required(world, name, &arguments, &capabilities(context));
        }
        _ => {
            let answers = Answers::new(request.input_responses, request.request_state);
            return call_with_input(world, name, &arguments, answers, context).await;
        }
    };
    Ok(result.into())
}

/// Calls tools that request input first or become a task.
async fn call_with_input(
    world: &World,
    name: &str,
    arguments: &JsonObject,
    answers: Answers,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResponse, ErrorData> {
    let capabilities = capabilities(context);
    if name == "test_tool_with_task" {
        jobs::require_tasks(&capabilities)?;
        let step = |answers: &Answers| Ok(answers.field("user_name", "name", asking::name_form()?));
        let reply = drive(context, answers, step).await?;
        return Ok(response(reply, |name| jobs::greet(world, name)));
    }
    let call = Call { world, name, arguments, capabilities: &capabilities };
    let reply = drive(context, answers, |answers| asking::step(&call, answers)).await?;
    Ok(response(reply, CallToolResponse::from))
}

fn response<T>(reply: Reply<T>, done: impl FnOnce(T) -> CallToolResponse) -> CallToolResponse {
    match reply {
        Reply::Done(value) => done(value),
        Reply::Rejected => CallToolResult::error(vec![ContentBlock::text("the user refused")]).into(),
        Reply::InputRequired(result) => result.into(),
    }
}

fn changed(world: &World, subject: Subject) -> CallToolResult {
    world.change(subject);
    content::text("changed")
}

fn unknown(name: &str) -> ErrorData {
    ErrorData::invalid_params(format!("unknown tool: {name}"), None)
}

fn text_argument<'a>(arguments: &'a JsonObject, name: &str) -> Result<&'a str, ErrorData> {
    let value = arguments.get(name).and_then(|value| value.as_str());
    value.ok_or_else(|| ErrorData::invalid_params(format!("the argument {name} must be a text"), None))
}
