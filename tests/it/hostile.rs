//! The frame of every hostile test: a neighbour that makes calls during the attack, and the state of the gateway after
//! it.
//!
//! A test starts a gateway with the attacked parts and a healthy server, then [`Attack::begin`], then attacks, then
//! [`Attack::end`]. The end asserts that every call of the neighbour succeeded and that no worker thread was busy for
//! long. The memory of the gateway must stay below the ceiling that the test documents.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::client::Client;
use crate::harness::{Gateway, eventually};
use crate::scrape::metric;
use crate::support::peak_memory;

/// The name of the healthy server. The neighbour calls its tool.
pub const HEALTHY: &str = "healthy";
/// The minimal number of the neighbour's calls, so that they overlap with the attack.
const MIN_CALLS: usize = 20;

/// An attack under observation.
pub struct Attack {
    name: &'static str,
    pid: u32,
    client: Client,
    stop: Arc<AtomicBool>,
    calls: JoinHandle<Vec<Duration>>,
}

impl Attack {
    /// Starts a neighbour that calls the tool `echo` of the server [`HEALTHY`] until the attack ends.
    pub async fn begin(name: &'static str, gateway: &Gateway) -> Attack {
        let client = gateway.client_seeing(&format!("{HEALTHY}_echo")).await;
        let stop = Arc::<AtomicBool>::default();
        let calls = tokio::spawn(call_until(client.clone(), Arc::clone(&stop)));
        Attack { name, pid: gateway.child.id().expect("the gateway runs"), client, stop, calls }
    }

    /// Asserts that the neighbour's calls succeeded and that no worker thread was busy. The peak of the gateway's
    /// resident memory must be below `ceiling` MiB. Returns the peak in MiB.
    pub async fn end(self, ceiling: u64) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = self.calls.await.expect("every call of the neighbour succeeds");
        times.sort();
        assert_no_busy_worker(&self.client).await;
        let peak = peak_memory(self.pid) / 1024;
        let p99 = times[times.len() * 99 / 100];
        report(self.name, times.len(), p99, peak);
        assert!(peak < ceiling, "{}: the gateway used {peak} MiB, more than {ceiling} MiB", self.name);
        peak
    }
}

async fn call_until(client: Client, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let mut times = Vec::new();
    while times.len() < MIN_CALLS || !stop.load(Ordering::Relaxed) {
        let (begin, value) = (Instant::now(), format!("neighbour {}", times.len()));
        let arguments = json!({ "text": value });
        let answer = client.request("tools/call", json!({ "name": format!("{HEALTHY}_echo"), "arguments": arguments }));
        let answer: Value = answer.await;
        assert!(answer["error"].is_null() && answer.to_string().contains(&value), "the neighbour got {answer}");
        times.push(begin.elapsed());
    }
    times
}

/// Asserts that no worker thread was busy for long.
pub async fn assert_no_busy_worker(client: &Client) {
    assert_eq!(counter(client, "goblin_events_total", r#"kind="worker_busy""#).await, 0, "a worker thread was busy");
}

/// Returns one series of a counter.
pub async fn counter(client: &Client, family: &str, label: &str) -> u64 {
    metric(client, &format!("{family}{{{label}}}")).await
}

/// Returns how often the limit was reached.
pub async fn limit_hits(client: &Client, limit: &str) -> u64 {
    counter(client, "goblin_limit_hits_total", &format!(r#"limit="{limit}""#)).await
}

/// Waits until the limit is reached.
pub async fn await_limit(client: &Client, limit: &str) {
    eventually(&format!("the limit {limit} is reached"), || async {
        (limit_hits(client, limit).await > 0).then_some(())
    })
    .await;
}

/// Appends one line of JSON to the file that `GOBLIN_ATTACK_REPORT` names.
fn report(name: &str, calls: usize, p99: Duration, peak: u64) {
    let Some(path) = std::env::var_os("GOBLIN_ATTACK_REPORT") else { return };
    let line = json!({ "attack": name, "calls": calls, "p99_us": p99.as_micros(), "peak_mib": peak });
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    writeln!(file.expect("the report can be opened"), "{line}").expect("the report can be written");
}
