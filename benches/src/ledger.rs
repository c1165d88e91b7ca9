//! What a subscription costs: its memory, and its end. Counted by `goblin-bench-heap`, which lies beside this binary.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

const COUNTER: &str = "goblin-bench-heap";

/// What the counter prints.
#[derive(Serialize, Deserialize)]
pub struct Ledger {
    pub memory: Vec<Kept>,
    pub ends: Vec<End>,
}

/// Subscriptions that were kept at once.
#[derive(Serialize, Deserialize)]
pub struct Kept {
    pub clients: usize,
    pub uris: usize,
    pub subscriptions: usize,
    /// All that the heap grew by.
    pub bytes: usize,
}

/// Clients that ended, one after the other.
#[derive(Serialize, Deserialize)]
pub struct End {
    /// Subscriptions of each.
    pub own: usize,
    /// Subscriptions of other clients to the same resources.
    pub others: usize,
    /// CPU time for each, the median.
    pub nanoseconds: u64,
}

pub fn measure() -> Result<Ledger> {
    let this = std::env::current_exe().context("cannot find the path of this binary")?;
    let counter = this.with_file_name(COUNTER);
    let output = Command::new(&counter).output().with_context(|| format!("cannot start {}", counter.display()))?;
    ensure!(output.status.success(), "{COUNTER} failed: {}", String::from_utf8_lossy(&output.stderr));
    eprintln!("subscriptions: counted");
    serde_json::from_slice(&output.stdout).with_context(|| format!("{COUNTER} did not print what was expected"))
}
