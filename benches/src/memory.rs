//! The resident memory of a fresh Goblin: idle, and with many idle sessions.
//!
//! Each session has one connection, which carries its open event stream.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::client::{Client, EventStream};
use crate::procfs::{self, Memory};
use crate::scenario::FEW_TOOLS;
use crate::workspace::Workspace;

const SETTLE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Serialize)]
pub struct Footprint {
    pub idle: Memory,
    pub with_sessions: Memory,
    pub sessions: usize,
}

impl Footprint {
    /// Returns the bytes per session that `part` of the memory grew by.
    pub fn per_session(&self, part: fn(&Memory) -> u64) -> u64 {
        part(&self.with_sessions).saturating_sub(part(&self.idle)) / self.sessions as u64
    }
}

/// Measures the memory. Returns `None` if Goblin is not measured.
pub async fn measure(workspace: &Workspace, sessions: usize) -> Result<Option<Footprint>> {
    let Some(gateway) = workspace.gateway(1, FEW_TOOLS).await? else { return Ok(None) };
    let goblin = gateway.goblin();
    tokio::time::sleep(SETTLE).await;
    let idle = procfs::memory(goblin.pid())?;

    let mut streams: Vec<EventStream> = Vec::with_capacity(sessions);
    for number in 0..sessions {
        let mut client = Client::connect(goblin.address).await?;
        client.learn_setup().await?;
        let stream = client.into_stream().await.with_context(|| format!("cannot open event stream {number}"))?;
        streams.push(stream);
    }
    tokio::time::sleep(SETTLE).await;
    let with_sessions = procfs::memory(goblin.pid())?;
    drop(streams);
    Ok(Some(Footprint { idle, with_sessions, sessions }))
}
