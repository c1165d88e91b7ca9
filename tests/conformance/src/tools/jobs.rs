//! Tools that become tasks, for clients with the tasks extension.
//!
//! A client without the extension gets the result of an optional task directly, and an error for a required one.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{CallToolResponse, CallToolResult, ClientCapabilities, ContentBlock, CreateTaskResult, JsonObject};
use rmcp::task_manager::{TaskContext, TaskExit, TaskFuture, TaskOptions};
use serde_json::json;
use tokio::time::sleep;

use crate::ask::form;
use crate::tools::content::text;
use crate::tools::{text_argument, unknown};
use crate::world::World;

const POLL_INTERVAL_MS: u64 = 100;
/// The duration of a job without a given one.
const WORK: Duration = Duration::from_millis(200);

/// Runs `slow_compute`. It becomes a task only if it takes time and the client supports tasks.
pub async fn slow(
    world: &World,
    arguments: &JsonObject,
    capabilities: &ClientCapabilities,
) -> Result<CallToolResponse, ErrorData> {
    let seconds = arguments.get("seconds").and_then(|seconds| seconds.as_f64()).unwrap_or_default();
    let time = Duration::try_from_secs_f64(seconds)
        .map_err(|error| ErrorData::invalid_params(format!("seconds: {error}"), None))?;
    let label = arguments.get("label").and_then(|label| label.as_str()).unwrap_or("work");
    let result = text(format!("{label}: {seconds} s"));
    if time.is_zero() || !capabilities.supports_tasks() {
        sleep(time).await;
        return Ok(result.into());
    }
    Ok(start(world, move |task| {
        Box::pin(async move {
            tokio::select! {
                () = task.cancelled() => Err(TaskExit::Cancelled),
                () = sleep(time) => Ok(result),
            }
        })
    }))
}

/// Runs a tool that requires a task.
pub fn required(
    world: &World,
    name: &str,
    arguments: &JsonObject,
    capabilities: &ClientCapabilities,
) -> Result<CallToolResponse, ErrorData> {
    require_tasks(capabilities)?;
    match name {
        "failing_job" => Ok(start(world, |_| {
            Box::pin(async {
                sleep(WORK).await;
                Ok(CallToolResult::error(vec![ContentBlock::text("the job failed")]))
            })
        })),
        "protocol_error_job" => Ok(start(world, |_| {
            Box::pin(async {
                sleep(WORK).await;
                Err(TaskExit::Error(ErrorData::internal_error("the job broke down", None)))
            })
        })),
        "confirm_delete" => {
            let filename = text_argument(arguments, "filename")?.to_owned();
            Ok(start(world, |task| Box::pin(confirm_delete(task, filename))))
        }
        "multi_input" => Ok(start(world, |task| Box::pin(multi_input(task)))),
        _ => Err(unknown(name)),
    }
}

pub fn require_tasks(capabilities: &ClientCapabilities) -> Result<(), ErrorData> {
    if capabilities.supports_tasks() {
        return Ok(());
    }
    Err(ErrorData::missing_required_client_capability(ClientCapabilities::builder().enable_tasks().build()))
}

/// Starts a task that returns a greeting.
pub fn greet(world: &World, name: String) -> CallToolResponse {
    start(world, |_| {
        Box::pin(async move {
            sleep(WORK).await;
            Ok(text(format!("hello {name}")))
        })
    })
}

fn start(world: &World, job: impl FnOnce(TaskContext) -> TaskFuture) -> CallToolResponse {
    let options = TaskOptions::new().with_poll_interval_ms(POLL_INTERVAL_MS);
    CreateTaskResult::new(world.tasks.spawn(options, job)).into()
}

async fn confirm_delete(task: TaskContext, filename: String) -> Result<CallToolResult, TaskExit> {
    let request = form(&format!("delete {filename}?"), &json!({"confirm": {"type": "boolean"}}))?;
    let answer = task.request_input("confirm", request).await?;
    let confirmed = answer["action"] == "accept" && answer["content"]["confirm"] == true;
    Ok(text(if confirmed { format!("deleted {filename}") } else { format!("kept {filename}") }))
}

async fn multi_input(task: TaskContext) -> Result<CallToolResult, TaskExit> {
    let name = form("what is your name?", &json!({"name": {"type": "string"}}))?;
    let confirm = form("are you sure?", &json!({"confirm": {"type": "boolean"}}))?;
    let (name, confirm) = tokio::join!(task.request_input("name", name), task.request_input("confirm", confirm));
    Ok(text(format!("{} {}", name?["content"], confirm?["content"])))
}
