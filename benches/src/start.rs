//! Measures the time from the start of the process to readiness, with ten child processes as servers. In one variant
//! all of them answer, in the other one is silent.
//!
//! The times are wall-clock times, so a busy machine distorts them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::{Map, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::child::Child;
use crate::workspace::{Workspace, listed_tools};

const SERVERS: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The times of one start, each from the start of the process.
#[derive(Clone, Copy, Serialize)]
pub struct Start {
    /// Until Goblin accepts connections.
    pub listening: Duration,
    /// Until a client sees the tools of every answering server.
    pub listed: Duration,
    /// Until `/readyz` reports ready.
    pub ready: Duration,
}

/// The starts of one kind, in the order of the rounds.
#[derive(Serialize)]
pub struct Starts {
    pub silent_servers: usize,
    pub rounds: Vec<Start>,
}

impl Starts {
    pub fn title(&self) -> String {
        match self.silent_servers {
            0 => format!("{SERVERS} servers"),
            silent_servers => format!("{SERVERS} servers, {silent_servers} of which never answers"),
        }
    }
}

/// Measures all starts. Returns an empty list if Goblin is not measured.
pub async fn measure(workspace: &Workspace, rounds: usize) -> Result<Vec<Starts>> {
    let mut all = Vec::new();
    for silent_servers in [0, 1] {
        let mut starts = Starts { silent_servers, rounds: Vec::new() };
        for _ in 0..rounds {
            let Some(start) = once(workspace, silent_servers).await? else { return Ok(Vec::new()) };
            starts.rounds.push(start);
        }
        eprintln!("start, {}: {rounds} rounds", starts.title());
        all.push(starts);
    }
    Ok(all)
}

async fn once(workspace: &Workspace, silent_servers: usize) -> Result<Option<Start>> {
    let this = std::env::current_exe()?;
    let server = |number: usize| {
        let silent = (number < silent_servers).then_some("--silent");
        let args: Vec<_> = ["pipe"].into_iter().chain(silent).collect();
        (format!("s{number}"), json!({ "command": this, "args": args }))
    };
    let servers: Map<_, _> = (0..SERVERS).map(server).collect();
    let config = json!({ "gateway": { "port": 0 }, "metaTools": false, "mcpServers": servers });
    let begin = Instant::now();
    let Some(goblin) = workspace.goblin(&config)? else { return Ok(None) };
    let listening = begin.elapsed();
    let (listed, ready) = tokio::try_join!(
        until(begin, || async { Ok(listed_tools(&goblin).await? == SERVERS - silent_servers) }),
        until(begin, || is_ready(&goblin)),
    )?;
    Ok(Some(Start { listening, listed, ready }))
}

async fn until<F: Future<Output = Result<bool>>>(begin: Instant, mut check: impl FnMut() -> F) -> Result<Duration> {
    while begin.elapsed() < TIMEOUT {
        if check().await? {
            return Ok(begin.elapsed());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    bail!("goblin was not ready in {TIMEOUT:?}")
}

async fn is_ready(goblin: &Child) -> Result<bool> {
    let mut stream = TcpStream::connect(goblin.address).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}
