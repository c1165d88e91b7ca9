//! `goblin tools`: lists, searches, describes and calls the gateway's tools.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use goblin_catalog::listing::List;
use goblin_client::content::{ToolOutput, blocks};
use goblin_client::schema::ToolSchema;
use goblin_telemetry::clean;
use serde_json::json;

use crate::catalog::cards::{self, Cards};
use crate::catalog::client::CatalogClient;
use crate::catalog::{
    self, CommonArgs, EXIT_CODES, ListArgs, ListFilter, arguments, complete, content, definition, show,
};
use crate::cli::CliError;
use crate::style::{is_colourful, print, print_json, width};

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Tools {
    #[command(subcommand)]
    pub verb: ToolsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ToolsCommand {
    /// List all tools, including those that clients must search for
    #[command(after_long_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show the description and the arguments of a tool
    Describe {
        /// Name of the tool in the list of the gateway
        #[arg(add = ArgValueCompleter::new(complete::tools))]
        name: String,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Search for tools, best match first
    #[command(after_long_help = SEARCH_EXAMPLES)]
    Search {
        /// Words to search for
        #[arg(required = true)]
        query: Vec<String>,
        #[command(flatten)]
        filter: ListFilter,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Call a tool and print its result
    #[command(after_long_help = CALL_EXAMPLES)]
    Call {
        /// Name of the tool in the list of the gateway
        #[arg(add = ArgValueCompleter::new(complete::tools))]
        name: String,
        /// Arguments: key=value, key:=JSON, a JSON object, @FILE with such an object, or - to read it from stdin
        #[arg(add = ArgValueCompleter::new(complete::tool_arguments))]
        arguments: Vec<String>,
        /// Save images, audio and other files of the result to FILE; further files get a number
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        common: CommonArgs,
    },
}

const LIST_EXAMPLES: &str = "\
Examples:
  goblin tools list
  goblin tools list --server github --json | jq -r '.tools[].name'
  goblin tools list --config goblin.json";

const SEARCH_EXAMPLES: &str = "\
Examples:
  goblin tools search create an issue
  goblin tools search --limit 3 --json read a file | jq -r '.tools[].name'";

const CALL_EXAMPLES: &str = "\
Examples:
  goblin tools call github_create_issue owner=me repo=project title='It is broken'
  goblin tools call weather_forecast city=Oslo days=3 'fields=[\"wind\",\"rain\"]'
  goblin tools call notes_add text:='\"3\"'
  goblin tools call notes_add '{\"text\": \"hello\"}'
  jq -n '{text: \"hello\"}' | goblin tools call notes_add -
  goblin tools call chart_draw @chart.json --output chart.png

The schema of the tool sets the type of a value: count=3 is a number if the schema has a number there. Arrays and \
objects are written as JSON. key:=JSON is passed as written. Progress is printed on stderr. A question of the server \
is shown on a terminal, and declined if there is none. Ctrl-C cancels the call.";

pub(crate) async fn run(arguments: Tools) -> Result<ExitCode> {
    match arguments.verb {
        ToolsCommand::List(arguments) => list(List::Tools, &arguments).await,
        ToolsCommand::Describe { name, common } => {
            catalog::run(&common, async |client| describe(client, &name, common.json).await).await
        }
        ToolsCommand::Search { query, filter, common } => {
            catalog::run(&common, async |client| search(client, &query.join(" "), &filter, common.json).await).await
        }
        ToolsCommand::Call { name, arguments, output, common } => {
            let call = ToolCall { name, arguments, output, json: common.json };
            catalog::run(&common, async |client| call.run(client).await).await
        }
    }
}

/// Prints the list of one kind.
pub(crate) async fn list(kind: List, arguments: &ListArgs) -> Result<ExitCode> {
    let ListArgs { filter, common } = arguments;
    catalog::run(common, async |client| {
        let cards = cards::list(client, kind, filter).await?;
        match common.json {
            true => print_json(&cards.to_json())?,
            false => show::cards(&cards)?,
        }
        Ok(())
    })
    .await
}

async fn describe(client: &mut CatalogClient, name: &str, json: bool) -> Result<(), CliError> {
    let tool = cards::describe(client, List::Tools, name).await?;
    let stdout = std::io::stdout();
    match json {
        true => print_json(&tool.json)?,
        false => print(&definition::render(&tool, width(&stdout), is_colourful(&stdout)))?,
    }
    Ok(())
}

async fn search(client: &mut CatalogClient, query: &str, filter: &ListFilter, json: bool) -> Result<(), CliError> {
    let found = cards::search(client, "search_tools", filter, json!({ "query": query })).await?;
    match json {
        true => print_json(&found)?,
        false => show::cards(&Cards::read(List::Tools, &found))?,
    }
    Ok(())
}

struct ToolCall {
    name: String,
    arguments: Vec<String>,
    output: Option<PathBuf>,
    json: bool,
}

impl ToolCall {
    async fn run(self, client: &mut CatalogClient) -> Result<(), CliError> {
        let tool = cards::describe(client, List::Tools, &self.name).await?;
        let schema = ToolSchema::new(&tool.value["inputSchema"]);
        let arguments = arguments::read(&clean(&self.name), &self.arguments, schema).map_err(CliError::Usage)?;
        let outcomes = client.call(&self.name, &arguments).await?;
        let blocks = blocks(&outcomes);
        if let Some(path) = &self.output {
            content::save(&blocks, path)?;
        }
        match (self.json, outcomes.is_error()) {
            (true, _) => print_json(outcomes.raw.get())?,
            (false, false) => content::print(&blocks)?,
            (false, true) => {}
        }
        match outcomes.is_error() {
            true => Err(CliError::Refused(error_text(&self.name, &outcomes))),
            false => Ok(()),
        }
    }
}

/// Returns the error text of a failed tool.
fn error_text(name: &str, outcomes: &ToolOutput) -> String {
    let text = outcomes.text();
    let lines: Vec<_> = text.lines().map(clean).collect();
    match lines.is_empty() {
        true => format!("{name} failed without a message"),
        false => lines.join("\n"),
    }
}
