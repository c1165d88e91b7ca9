//! The prompts that the suite's scenarios name, and their completion.
//!
//! A prompt may request input first, like a tool, so it is a function of the responses so far.

use rmcp::ErrorData;
use rmcp::model::{
    CompleteRequestParams, ContentBlock, GetPromptResult, JsonObject, Prompt, PromptArgument, PromptMessage, Reference,
    ResourceContents, Role,
};
use serde_json::json;

use crate::ask::{Answers, Step, form};
use crate::tools::content::PIXEL;
use crate::world::{Subject, World};

/// The completions of the argument `arg1`.
const COMPLETIONS: [&str; 4] = ["paris", "park", "party", "testing"];

pub fn list(world: &World) -> Vec<Prompt> {
    let prompt = |name, description: &str, arguments| Prompt::new(name, Some(description), arguments);
    let argument = |name, description| PromptArgument::new(name).with_description(description).with_required(true);
    let changing = format!("changed {} times, by test_trigger_prompt_change", world.changes(Subject::Prompts));
    vec![
        prompt("test_simple_prompt", "a text", None),
        prompt(
            "test_prompt_with_arguments",
            "a text with two arguments",
            Some(vec![argument("arg1", "the first argument"), argument("arg2", "the second argument")]),
        ),
        prompt(
            "test_prompt_with_embedded_resource",
            "a resource and a text",
            Some(vec![argument("resourceUri", "URI of the resource to embed")]),
        ),
        prompt("test_prompt_with_image", "an image and a text", None),
        prompt("test_input_required_result_prompt", "elicits a context first", None),
        prompt("test_changing_prompt", &changing, None),
    ]
}

/// Takes the next step towards the messages of a prompt.
pub fn step(name: &str, arguments: &JsonObject, answers: &Answers) -> Result<Step<GetPromptResult>, ErrorData> {
    let user = |content| PromptMessage::new(Role::User, content);
    let text = |text: &str| user(ContentBlock::text(text));
    let argument = |key: &str| {
        let value = arguments.get(key).and_then(|value| value.as_str());
        value.ok_or_else(|| ErrorData::invalid_params(format!("prompt {name} needs the argument {key}"), None))
    };
    let messages = match name {
        "test_simple_prompt" => vec![text("a simple prompt")],
        "test_prompt_with_arguments" => {
            vec![text(&format!("arg1='{}', arg2='{}'", argument("arg1")?, argument("arg2")?))]
        }
        "test_prompt_with_embedded_resource" => {
            let resource = ResourceContents::text("an embedded resource", argument("resourceUri")?);
            let resource = ContentBlock::resource(resource.with_mime_type("text/plain"));
            vec![user(resource), text("process the resource above")]
        }
        "test_prompt_with_image" => {
            vec![user(ContentBlock::image(PIXEL, "image/png")), text("analyse the image above")]
        }
        "test_changing_prompt" => vec![text("a prompt whose description changes")],
        "test_input_required_result_prompt" => {
            let request = form("what context should the prompt use?", &json!({"context": {"type": "string"}}))?;
            let context = answers.field("user_context", "context", request);
            return Ok(context.map(|context| GetPromptResult::new(vec![text(&format!("the context: {context}"))])));
        }
        _ => return Err(ErrorData::invalid_params(format!("unknown prompt: {name}"), None)),
    };
    Ok(Step::Done(GetPromptResult::new(messages)))
}

/// Returns the words that start with the argument's value.
pub fn complete(request: &CompleteRequestParams) -> Vec<String> {
    match &request.r#ref {
        Reference::Prompt(prompt) if prompt.name == "test_prompt_with_arguments" => {
            let known = COMPLETIONS.into_iter().filter(|word| word.starts_with(&request.argument.value));
            known.map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}
