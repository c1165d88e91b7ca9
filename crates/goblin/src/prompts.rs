//! `goblin prompts`: lists the gateway's prompts and gets one of them.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use goblin_catalog::listing::List;
use goblin_client::content::ContentBlock;
use goblin_client::schema::ToolSchema;
use goblin_telemetry::clean;
use goblin_wire::Method;
use goblin_wire::json::quote;
use serde_json::{Value, json};

use crate::catalog::cards;
use crate::catalog::client::CatalogClient;
use crate::catalog::{self, CommonArgs, EXIT_CODES, ListArgs, arguments, complete, content};
use crate::cli::CliError;
use crate::style::print_json;
use crate::tools::list;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Prompts {
    #[command(subcommand)]
    pub verb: PromptsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PromptsCommand {
    /// List all prompts
    List(ListArgs),
    /// Print the messages of a prompt
    #[command(after_long_help = GET_EXAMPLES)]
    Get {
        /// Name of the prompt in the list of the gateway
        #[arg(add = ArgValueCompleter::new(complete::prompts))]
        name: String,
        /// Arguments: key=value, a JSON object of strings, @FILE with such an object, or - to read it from stdin
        #[arg(add = ArgValueCompleter::new(complete::prompt_arguments))]
        arguments: Vec<String>,
        #[command(flatten)]
        common: CommonArgs,
    },
}

const GET_EXAMPLES: &str = "\
Examples:
  goblin prompts get git_commit_message style=short
  goblin prompts get git_commit_message --json | jq -r '.messages[].content.text'";

pub(crate) async fn run(arguments: Prompts) -> Result<ExitCode> {
    match arguments.verb {
        PromptsCommand::List(arguments) => list(List::Prompts, &arguments).await,
        PromptsCommand::Get { name, arguments, common } => {
            catalog::run(&common, async |client| get(client, &name, &arguments, common.json).await).await
        }
    }
}

async fn get(client: &mut CatalogClient, name: &str, given: &[String], json: bool) -> Result<(), CliError> {
    let prompt = cards::describe(client, List::Prompts, name).await?;
    let schema = schema(&prompt.value);
    let arguments = arguments::read(&clean(name), given, ToolSchema::new(&schema)).map_err(CliError::Usage)?;
    let params = format!(r#"{{"name":{},"arguments":{arguments}}}"#, quote(name));
    let result = client.request(&Method::PromptsGet, &params).await?;
    if json {
        return Ok(print_json(result.get())?);
    }
    let value: Value = serde_json::from_str(result.get()).unwrap_or_default();
    let messages = value["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let message = |message: &Value| {
        let role = clean(message["role"].as_str().unwrap_or("?"));
        [ContentBlock::Text(format!("{role}:")), ContentBlock::read(&message["content"])]
    };
    Ok(content::print(&messages.iter().flat_map(message).collect::<Vec<_>>())?)
}

/// Returns the arguments of a prompt as a JSON schema. All of them are strings.
pub(crate) fn schema(prompt: &Value) -> Value {
    let arguments = prompt["arguments"].as_array().map(Vec::as_slice).unwrap_or_default();
    let names = || arguments.iter().filter_map(|argument| Some((argument["name"].as_str()?, argument)));
    let properties: serde_json::Map<_, _> =
        names().map(|(name, _)| (name.to_owned(), json!({ "type": "string" }))).collect();
    let required: Vec<_> = names().filter(|(_, argument)| argument["required"] == true).map(|(name, _)| name).collect();
    json!({ "properties": properties, "required": required })
}
