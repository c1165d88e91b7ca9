//! The CPU that Goblin needs for servers that cannot announce changes, while all clients are idle.
//!
//! The measurement covers two refresh intervals. It includes the keep-alives of the clients' streams.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::{Map, json};

use crate::client::{Client, EventStream};
use crate::procfs;
use crate::workspace::{Workspace, listed_tools};

const SERVERS: usize = 20;
const TOOLS: usize = 100;
const CLIENTS: usize = 50;
/// Twice the interval of refreshes with its jitter.
const WATCHED: Duration = Duration::from_secs(150);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const START_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Serialize)]
pub struct RefreshCost {
    pub cpu: Duration,
    pub watched: Duration,
}

impl RefreshCost {
    /// Returns the part of one core, in percent.
    pub fn percent(&self) -> f64 {
        100.0 * self.cpu.as_secs_f64() / self.watched.as_secs_f64()
    }

    pub fn title() -> String {
        format!("{SERVERS} servers of {TOOLS} tools without `listChanged`, {CLIENTS} idle clients")
    }
}

/// Measures the cost. Returns `None` if Goblin is not measured.
pub async fn measure(workspace: &Workspace) -> Result<Option<RefreshCost>> {
    let this = std::env::current_exe()?;
    let server = |number: usize| {
        (format!("s{number}"), json!({ "command": this, "args": ["pipe", "--tools", TOOLS.to_string()] }))
    };
    let servers: Map<_, _> = (0..SERVERS).map(server).collect();
    let config = json!({
        "gateway": { "port": 0 },
        "policies": { "pageSize": SERVERS * TOOLS },
        "exposure": "all",
        "metaTools": false,
        "mcpServers": servers,
    });
    let Some(goblin) = workspace.goblin(&config)? else { return Ok(None) };
    let mut waited = Duration::ZERO;
    while listed_tools(&goblin).await? < SERVERS * TOOLS {
        ensure!(waited < START_TIMEOUT, "goblin did not list all tools in {START_TIMEOUT:?}");
        tokio::time::sleep(POLL_INTERVAL).await;
        waited += POLL_INTERVAL;
    }
    let mut streams: Vec<EventStream> = Vec::with_capacity(CLIENTS);
    for number in 0..CLIENTS {
        let mut client = Client::connect(goblin.address).await?;
        client.learn_setup().await?;
        streams.push(client.into_stream().await.with_context(|| format!("cannot open event stream {number}"))?);
    }
    let before = procfs::cpu(goblin.pid())?;
    tokio::time::sleep(WATCHED).await;
    let cpu = procfs::cpu(goblin.pid())?.since(&before);
    drop(streams);
    Ok(Some(RefreshCost { cpu, watched: WATCHED }))
}
