//! Measures the cost of tool lists in a model's context: the tokens of the bytes that a client receives from a running
//! Goblin.
//!
//! The backends offer tools of published servers, one process per server. The same tools are listed in each mode. They
//! are also searched and called, like a model would to answer queries. The measurement depends on no times.

mod gateway;
mod price;
mod sample;
pub mod shelf;
mod tokens;

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::context::gateway::{Gateway, ToolAnswer};
pub use crate::context::price::{Terms, Use, break_even, requests};
use crate::context::sample::{Published, Query};
pub use crate::context::tokens::Size;
use crate::context::tokens::count;
use crate::workspace::Workspace;

/// The numbers of tools behind the gateway. The search runs with the last one.
const TOOLS: [usize; 3] = [10, 100, 1000];
const QUERIES: usize = 30;

/// The token counts of a run.
#[derive(Serialize)]
pub struct Context {
    /// The definitions as the servers send them, by number of tools.
    pub direct: Vec<(usize, Size)>,
    pub lists: Vec<Listed>,
    /// The gateway's own tools by name.
    pub own: Vec<(String, Size)>,
    /// All of them as a list.
    pub own_list: Size,
    pub walks: Vec<Walk>,
}

/// The mode in which the gateway lists tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// All backend tools, without the gateway's own tools.
    Plain,
    /// All backend tools and all of the gateway's own tools.
    Full,
    /// The default.
    All,
    Search,
    Auto,
}

/// The size of one tool list.
#[derive(Serialize)]
pub struct Listed {
    pub setting: Setting,
    /// The number of tools behind the gateway.
    pub tools: usize,
    /// The number of tools in the list.
    pub entries: usize,
    pub size: Size,
    /// The tokens of the `instructions` that the gateway sends.
    pub instructions: usize,
}

/// The steps from a query to the call of a tool.
#[derive(Serialize)]
pub struct Walk {
    pub query: String,
    /// Whether the search found a right tool.
    pub found: bool,
    pub search: Step,
    pub describe: Step,
    /// The tokens of the name and arguments of `call_tool`, with empty arguments for the tool itself.
    pub call: usize,
    /// The tokens of the same call by the tool's own name.
    pub direct: usize,
}

/// A call of one of the gateway's own tools, in tokens.
#[derive(Clone, Copy, Serialize)]
pub struct Step {
    /// The tool's name and arguments.
    pub request_tokens: usize,
    /// The text content of the result. Clients show either this or the structured content.
    pub text: usize,
    pub structured: usize,
}

impl Setting {
    pub const ALL: [Self; 5] = [Self::Plain, Self::Full, Self::All, Self::Search, Self::Auto];

    pub fn title(self) -> &'static str {
        match self {
            Self::Plain => "`all`, no meta tools",
            Self::Full => "`all`, all meta tools",
            Self::All => "`all`",
            Self::Search => "`search`",
            Self::Auto => "`auto`",
        }
    }

    fn mode(self) -> &'static str {
        match self {
            Self::Plain | Self::Full | Self::All => "all",
            Self::Search => "search",
            Self::Auto => "auto",
        }
    }

    /// Returns the setting of the gateway's own tools.
    fn meta_tools(self) -> Value {
        match self {
            Self::Plain => json!(false),
            Self::Full => json!(true),
            Self::All | Self::Search | Self::Auto => json!("auto"),
        }
    }
}

impl Context {
    pub fn list(&self, setting: Setting, tools: usize) -> Option<&Listed> {
        self.lists.iter().find(|listed| listed.setting == setting && listed.tools == tools)
    }

    /// Returns the number of tools that the search runs with.
    pub fn max_tools(&self) -> usize {
        TOOLS[TOOLS.len() - 1]
    }
}

/// Measures all lists and walks. Returns `None` if Goblin is not measured.
pub async fn measure(workspace: &Workspace) -> Result<Option<Context>> {
    let published = sample::published()?;
    let mut context = Context {
        direct: Vec::new(),
        lists: Vec::new(),
        own: Vec::new(),
        own_list: Size::default(),
        walks: Vec::new(),
    };
    for tools in TOOLS {
        let chosen = sample::choose(&published, tools);
        let definitions = chosen.iter().flat_map(|server| &server.tools).map(|tool| tool.definition.clone());
        context.direct.push((tools, Size::of_list(&definitions.collect::<Vec<_>>())?));
        // The native name of each listed tool.
        let mut natives = HashMap::new();
        for setting in Setting::ALL {
            let Some(mut gateway) = Gateway::start(workspace, setting, &chosen).await? else { return Ok(None) };
            let list = gateway.list().await?;
            let (entries, size) = (list.len(), Size::of_list(&list)?);
            let instructions = count(&gateway.instructions);
            eprintln!("context, {tools} tools, {}: {entries} listed", setting.title());
            context.lists.push(Listed { setting, tools, entries, size, instructions });
            if setting == Setting::Plain {
                natives = list.iter().map(|it| named(it)).collect::<Result<_>>()?;
            }
            if setting == Setting::Full && tools == context.max_tools() {
                let own = &list[tools..];
                context.own = own.iter().map(|it| Ok((name(it)?, Size::of_one(it)?))).collect::<Result<_>>()?;
                context.own_list = Size::of_list(own)?;
            }
            if setting == Setting::Search && tools == context.max_tools() {
                context.walks = walks(&mut gateway, &chosen, &natives).await?;
            }
            gateway.end().await?;
        }
    }
    Ok(Some(context))
}

async fn walks(gateway: &mut Gateway, chosen: &[Published], natives: &HashMap<String, String>) -> Result<Vec<Walk>> {
    let mut walks = Vec::new();
    for query in sample::queries(chosen, QUERIES)? {
        let walk = walk(gateway, &query, natives).await;
        walks.push(walk.with_context(|| format!("with the query `{}`", query.query))?);
    }
    Ok(walks)
}

/// Follows the steps of a model that recognises the right tool when it sees it. If the search did not find one, the
/// walk continues with a right tool from the list.
async fn walk(gateway: &mut Gateway, query: &Query, natives: &HashMap<String, String>) -> Result<Walk> {
    let is_right = |name: &String| natives.get(name).is_some_and(|native| query.answers.contains(native));
    let (search, answer) = step(gateway, "search_tools", json!({ "query": query.query })).await?;
    let found: Found = serde_json::from_str(answer.structured()?)?;
    let hit = found.tools.into_iter().map(|card| card.name).find(is_right);
    let right = hit.as_ref().or_else(|| natives.keys().filter(|name| is_right(name)).min());
    let right = right.context("no tool in the list is an answer")?;
    let (describe, _) = step(gateway, "describe_tool", json!({ "name": right })).await?;
    let arguments = json!({ "name": right, "arguments": {} });
    let call = request_tokens("call_tool", &arguments);
    gateway.call("call_tool", &arguments).await?.check_done()?;
    let direct = request_tokens(right, &json!({}));
    Ok(Walk { query: query.query.clone(), found: hit.is_some(), search, describe, call, direct })
}

async fn step(gateway: &mut Gateway, tool: &str, arguments: Value) -> Result<(Step, ToolAnswer)> {
    let answer = gateway.call(tool, &arguments).await?;
    let (text, structured) = (count(answer.text()?), count(answer.structured()?));
    Ok((Step { request_tokens: request_tokens(tool, &arguments), text, structured }, answer))
}

/// Returns the tokens that a model writes to call a tool. The delimiters around a call differ between models and are
/// not counted.
fn request_tokens(tool: &str, arguments: &Value) -> usize {
    count(tool) + count(&arguments.to_string())
}

#[derive(Deserialize)]
struct Found {
    tools: Vec<Card>,
}

#[derive(Deserialize)]
struct Card {
    name: String,
}

/// The members of a definition that name its origin.
#[derive(Deserialize)]
struct Definition {
    name: String,
    #[serde(rename = "_meta")]
    meta: Origin,
}

#[derive(Deserialize)]
struct Origin {
    #[serde(rename = "dev.goblin/server")]
    server: String,
    #[serde(rename = "dev.goblin/native")]
    native: String,
}

fn name(definition: &RawValue) -> Result<String> {
    let Card { name } = serde_json::from_str(definition.get())?;
    Ok(name)
}

/// Returns the tool's name in the list and its native name as `server/name`.
fn named(definition: &RawValue) -> Result<(String, String)> {
    let definition: Definition = serde_json::from_str(definition.get()).context("a tool does not name its origin")?;
    let Origin { server, native } = definition.meta;
    Ok((definition.name, format!("{server}/{native}")))
}
