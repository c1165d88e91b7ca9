//! `goblin resources`: lists, searches and reads the gateway's resources.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use goblin_catalog::listing::List;
use goblin_client::content::ContentBlock;
use goblin_wire::Method;
use goblin_wire::json::quote;
use serde_json::{Value, json};

use crate::catalog::cards::{self, Cards};
use crate::catalog::client::CatalogClient;
use crate::catalog::{self, CommonArgs, EXIT_CODES, ListArgs, ListFilter, complete, content, show};
use crate::cli::CliError;
use crate::style::print_json;
use crate::tools::list;

#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Resources {
    #[command(subcommand)]
    pub verb: ResourcesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ResourcesCommand {
    /// List all resources
    List(ListArgs),
    /// Write the content of a resource to stdout, byte for byte
    #[command(after_long_help = READ_EXAMPLES)]
    Read {
        /// URI or identifier of the resource in the list of the gateway
        #[arg(add = ArgValueCompleter::new(complete::resources))]
        uri: String,
        /// Write to this file instead of stdout
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Search for resources and templates, best match first
    #[command(after_long_help = SEARCH_EXAMPLES)]
    Search {
        /// Words to search for
        #[arg(required = true)]
        query: Vec<String>,
        /// Only resources of this MIME type, such as text/markdown or text/*
        #[arg(long, value_name = "TYPE")]
        mime_type: Option<String>,
        #[command(flatten)]
        filter: ListFilter,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// List the resource templates
    Templates(ListArgs),
}

const READ_EXAMPLES: &str = "\
Examples:
  goblin resources read file:///me/project/notes.md
  goblin resources read --output logo.png files+file:///me/project/logo.png
  goblin resources read --json note:///alpha | jq -r '.contents[].mimeType'";

const SEARCH_EXAMPLES: &str = "\
Examples:
  goblin resources search release notes
  goblin resources search --mime-type 'text/*' --server files --json notes | jq -r '.resources[].uri'";

pub(crate) async fn run(arguments: Resources) -> Result<ExitCode> {
    match arguments.verb {
        ResourcesCommand::List(arguments) => list(List::Resources, &arguments).await,
        ResourcesCommand::Templates(arguments) => list(List::Templates, &arguments).await,
        ResourcesCommand::Read { uri, output, common } => {
            catalog::run(&common, async |client| read(client, &uri, output.as_deref(), common.json).await).await
        }
        ResourcesCommand::Search { query, mime_type, filter, common } => {
            let mut arguments = json!({ "query": query.join(" ") });
            if let Some(mime_type) = mime_type {
                arguments["mimeType"] = mime_type.into();
            }
            catalog::run(&common, async |client| search(client, arguments, &filter, common.json).await).await
        }
    }
}

async fn read(client: &mut CatalogClient, uri: &str, output: Option<&Path>, json: bool) -> Result<(), CliError> {
    let result = client.request(&Method::ResourcesRead, &format!(r#"{{"uri":{}}}"#, quote(uri))).await?;
    let value: Value = serde_json::from_str(result.get()).unwrap_or_default();
    let contents = value["contents"].as_array().map(Vec::as_slice).unwrap_or_default();
    let blocks: Vec<_> = contents.iter().map(ContentBlock::of_resource).collect();
    if let Some(path) = output {
        content::write_file(path, &content::joined(&blocks))?;
    }
    match (json, output) {
        (true, _) => Ok(print_json(result.get())?),
        (false, None) => content::write_resource(uri, &blocks),
        (false, Some(_)) => Ok(()),
    }
}

async fn search(client: &mut CatalogClient, arguments: Value, filter: &ListFilter, json: bool) -> Result<(), CliError> {
    let found = cards::search(client, "search_resources", filter, arguments).await?;
    if json {
        return Ok(print_json(&found)?);
    }
    Ok(show::both(&Cards::read(List::Resources, &found), &Cards::read(List::Templates, &found))?)
}
