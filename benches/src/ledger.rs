//! Measures the cost of a subscription: its memory, and its end. The program `goblin-bench-heap` next to this binary
//! does the counting.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

const COUNTER: &str = "goblin-bench-heap";

/// The output of `goblin-bench-heap`.
#[derive(Serialize, Deserialize)]
pub struct Ledger {
    pub memory: Vec<Kept>,
    pub ends: Vec<End>,
}

/// Subscriptions that existed at the same time.
#[derive(Serialize, Deserialize)]
pub struct Kept {
    pub clients: usize,
    pub uris: usize,
    pub subscriptions: usize,
    /// The growth of the heap.
    pub bytes: usize,
}

/// Clients that ended one after the other.
#[derive(Serialize, Deserialize)]
pub struct End {
    /// The subscriptions of each ended client.
    pub own: usize,
    /// The subscriptions of other clients to the same resources.
    pub others: usize,
    /// The median CPU time of one end.
    pub nanoseconds: u64,
}

pub fn measure() -> Result<Ledger> {
    let this = std::env::current_exe().context("cannot find the path of this binary")?;
    let counter = this.with_file_name(COUNTER);
    let output = Command::new(&counter).output().with_context(|| format!("cannot start {}", counter.display()))?;
    ensure!(output.status.success(), "{COUNTER} failed: {}", String::from_utf8_lossy(&output.stderr));
    eprintln!("subscriptions: counted");
    serde_json::from_slice(&output.stdout).with_context(|| format!("{COUNTER} printed unexpected output"))
}
