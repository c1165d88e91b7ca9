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
use crate::fleet::{Yard, listed_tools};

const SERVERS: usize = 10;
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(2);

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
    pub mute: usize,
    pub rounds: Vec<Start>,
}

impl Starts {
    pub fn title(&self) -> String {
        match self.mute {
            0 => format!("{SERVERS} servers"),
            mute => format!("{SERVERS} servers, {mute} of which never answers"),
        }
    }
}

/// Measures all starts. Returns an empty list if Goblin is not measured.
pub async fn measure(yard: &Yard, rounds: usize) -> Result<Vec<Starts>> {
    let mut all = Vec::new();
    for mute in [0, 1] {
        let mut starts = Starts { mute, rounds: Vec::new() };
        for _ in 0..rounds {
            let Some(start) = once(yard, mute).await? else { return Ok(Vec::new()) };
            starts.rounds.push(start);
        }
        eprintln!("start, {}: {rounds} rounds", starts.title());
        all.push(starts);
    }
    Ok(all)
}

async fn once(yard: &Yard, mute: usize) -> Result<Option<Start>> {
    let this = std::env::current_exe()?;
    let server = |number: usize| {
        let silent = (number < mute).then_some("--silent");
        let args: Vec<_> = ["pipe"].into_iter().chain(silent).collect();
        (format!("s{number}"), json!({ "command": this, "args": args }))
    };
    let servers: Map<_, _> = (0..SERVERS).map(server).collect();
    let config = json!({ "gateway": { "port": 0 }, "metaTools": false, "mcpServers": servers });
    let begin = Instant::now();
    let Some(goblin) = yard.goblin(&config)? else { return Ok(None) };
    let listening = begin.elapsed();
    let (listed, ready) = tokio::try_join!(
        until(begin, || async { Ok(listed_tools(&goblin).await? == SERVERS - mute) }),
        until(begin, || is_ready(&goblin)),
    )?;
    Ok(Some(Start { listening, listed, ready }))
}

async fn until<F: Future<Output = Result<bool>>>(begin: Instant, mut look: impl FnMut() -> F) -> Result<Duration> {
    while begin.elapsed() < PATIENCE {
        if look().await? {
            return Ok(begin.elapsed());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    bail!("goblin was not ready in {PATIENCE:?}")
}

async fn is_ready(goblin: &Child) -> Result<bool> {
    let mut stream = TcpStream::connect(goblin.address).await?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.starts_with("HTTP/1.1 200"))
}
