//! A running Goblin in front of servers with chosen tools, and one client of it.
//!
//! The context measurement starts one gateway for each mode and number of tools. The client returns definitions as raw
//! JSON, because their tokens are counted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::child::Child;
use crate::client::{Client, Template};
use crate::context::Setting;
use crate::context::sample::Published;
use crate::context::shelf::DONE;
use crate::workspace::Workspace;

const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub struct Gateway {
    client: Client,
    /// The instructions in the `initialize` result.
    pub instructions: String,
    _goblin: Child,
}

/// The result of a call.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolAnswer {
    content: Vec<Block>,
    structured_content: Option<Box<RawValue>>,
    #[serde(default)]
    is_error: bool,
}

#[derive(Deserialize)]
struct Block {
    text: String,
}

#[derive(Deserialize)]
struct Answer {
    result: Box<RawValue>,
}

#[derive(Deserialize)]
struct Initialized {
    #[serde(default)]
    instructions: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    tools: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Total {
    total: usize,
}

impl Gateway {
    /// Starts a gateway and waits until it has all tools of `servers`. Returns `None` if Goblin is not measured.
    pub async fn start(workspace: &Workspace, setting: Setting, servers: &[Published]) -> Result<Option<Self>> {
        let Some(goblin) = workspace.goblin(&config(setting, servers)?)? else { return Ok(None) };
        let expected: usize = servers.iter().map(|server| server.tools.len()).sum();
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT {
            // The instructions depend on the catalog at the time of `initialize`, so each attempt connects anew.
            let mut client = Client::connect(goblin.address).await?;
            let (_, answer) = client.learn_setup().await?;
            let Initialized { instructions } = result(&answer)?;
            if tools(&mut client).await? == expected {
                return Ok(Some(Self { client, instructions, _goblin: goblin }));
            }
            client.close().await?;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        bail!("goblin did not have {expected} tools in {TIMEOUT:?}; its log:\n{}", goblin.last_lines())
    }

    /// Returns the tools of all pages, each as the gateway sent it.
    pub async fn list(&mut self) -> Result<Vec<Box<RawValue>>> {
        list(&mut self.client).await
    }

    pub async fn call(&mut self, tool: &str, arguments: &Value) -> Result<ToolAnswer> {
        call(&mut self.client, tool, arguments).await
    }

    pub async fn end(self) -> Result<()> {
        self.client.close().await
    }
}

impl ToolAnswer {
    pub fn text(&self) -> Result<&str> {
        let [block] = &self.content[..] else { bail!("{} blocks where one was expected", self.content.len()) };
        Ok(&block.text)
    }

    pub fn structured(&self) -> Result<&str> {
        Ok(self.structured_content.as_deref().context("no structured content")?.get())
    }

    /// Returns an error if this is not the result of every tool of a [`shelf`](crate::context::shelf).
    pub fn check_done(&self) -> Result<()> {
        ensure!(self.text()? == DONE, "not the answer of the tool: {}", self.text()?);
        Ok(())
    }
}

fn config(setting: Setting, servers: &[Published]) -> Result<Value> {
    let this = std::env::current_exe().context("cannot find the path of this binary")?;
    let server = |server: &Published| {
        let args = json!(["shelf", "--server", server.id, "--tools", server.tools.len().to_string()]);
        (server.id.clone(), json!({ "command": this, "args": args }))
    };
    let servers: Map<_, _> = servers.iter().map(server).collect();
    Ok(json!({
        "gateway": { "port": 0 },
        "exposure": setting.mode(),
        "metaTools": setting.meta_tools(),
        "mcpServers": servers,
    }))
}

/// Returns the number of backend tools that the gateway has now, listed or not.
async fn tools(client: &mut Client) -> Result<usize> {
    let answer = call(client, "catalog_tools", &json!({ "limit": 1 })).await?;
    let Total { total } = serde_json::from_str(answer.structured()?)?;
    Ok(total)
}

async fn list(client: &mut Client) -> Result<Vec<Box<RawValue>>> {
    let (mut tools, mut params) = (Vec::new(), json!({}));
    loop {
        let page: Page = request(client, "tools/list", &params).await?;
        tools.extend(page.tools);
        let Some(cursor) = page.next_cursor else { return Ok(tools) };
        params = json!({ "cursor": cursor });
    }
}

async fn call(client: &mut Client, tool: &str, arguments: &Value) -> Result<ToolAnswer> {
    let answer: ToolAnswer = request(client, "tools/call", &json!({ "name": tool, "arguments": arguments })).await?;
    ensure!(!answer.is_error, "{tool} failed: {}", answer.text()?);
    Ok(answer)
}

async fn request<Content: DeserializeOwned>(client: &mut Client, method: &str, params: &Value) -> Result<Content> {
    let (before, after) =
        (r#"{"jsonrpc":"2.0","id":"#.to_owned(), format!(r#","method":"{method}","params":{params}}}"#));
    let (_, answer) = client.learn(&Template { before, after, repeated: None }).await?;
    result(&answer)
}

fn result<Content: DeserializeOwned>(answer: &[u8]) -> Result<Content> {
    let unexpected = || format!("not the expected result: {}", String::from_utf8_lossy(answer));
    let Answer { result } = serde_json::from_slice(answer).with_context(unexpected)?;
    serde_json::from_str(result.get()).with_context(unexpected)
}
