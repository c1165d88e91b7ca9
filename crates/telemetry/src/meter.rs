//! Counters of one server, stored in arrays with one slot per label. Counting needs no lock, hash or allocation. The
//! map of tools is locked only to build a catalog or to read the counters. The histogram of the metrics library takes a
//! lock, so this module has its own. A meter also keeps the last failure of the server, which no metric shows.
//!
//! A meter belongs to its backend and is dropped with it, so a removed server leaves no series behind. Each counter
//! only grows. A scrape may see one of two related counters before the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use goblin_wire::{Method, Mime};
use parking_lot::Mutex;

use crate::cleaned;

/// The upper bounds of the duration buckets in milliseconds. They range from a call over loopback to a slow tool.
pub(crate) const BOUNDS: [f64; 15] =
    [0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1_000.0, 2_500.0, 10_000.0, 60_000.0, 300_000.0];

/// The bucket bounds for the gateway's own overhead, which is mostly below a millisecond.
pub(crate) const FINE_BOUNDS: [f64; 15] =
    [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 1_000.0];

const NANOSECONDS_IN_MILLISECOND: f64 = 1e6;

/// The number of tools of one server that are counted by name. Further tools, and tools with a name longer than
/// [`MAX_TOOL_NAME`], share one counter.
const MAX_COUNTED_TOOLS: usize = 1000;
const MAX_TOOL_NAME: usize = 128;
/// The number of bytes that a meter keeps of the reason of a failure.
const MAX_REASON: usize = 4096;
/// The label of the shared counter.
const OTHERS: &str = "(others)";

goblin_wire::labels! {
    /// The method of a client's request to a server.
    MethodLabel {
        ToolsCall = "tools/call",
        PromptsGet = "prompts/get",
        ResourcesRead = "resources/read",
        Subscribe = "resources/subscribe",
        Unsubscribe = "resources/unsubscribe",
        Complete = "completion/complete",
        Other = "other",
    }
}

impl From<&Method> for MethodLabel {
    fn from(method: &Method) -> MethodLabel {
        match method {
            Method::ToolsCall => MethodLabel::ToolsCall,
            Method::PromptsGet => MethodLabel::PromptsGet,
            Method::ResourcesRead => MethodLabel::ResourcesRead,
            Method::Subscribe => MethodLabel::Subscribe,
            Method::Unsubscribe => MethodLabel::Unsubscribe,
            Method::Complete => MethodLabel::Complete,
            _ => MethodLabel::Other,
        }
    }
}

goblin_wire::labels! {
    /// The outcome of a request to a server. A tool's own failure (`isError`) counts as `Ok`, because results are not
    /// inspected.
    RequestOutcome {
        Ok = "ok",
        Error = "error",
        Timeout = "timeout",
        Cancelled = "cancelled",
        Unavailable = "unavailable",
        Overloaded = "overloaded",
        Protocol = "protocol",
    }
}

goblin_wire::labels! {
    /// The outcome of a read (MET-1).
    ReadStatus {
        Success = "success",
        Failure = "failure",
    }
}

const METHODS: usize = MethodLabel::ALL.len();
const OUTCOMES: usize = RequestOutcome::ALL.len();
const MIMES: usize = Mime::ALL.len();
const STATUSES: usize = ReadStatus::ALL.len();

/// The counters of one server.
#[derive(Debug, Default)]
pub struct Meter {
    outcomes: [[AtomicU64; OUTCOMES]; METHODS],
    durations: [Durations; METHODS],
    reads: [[AtomicU64; STATUSES]; MIMES],
    restarts: AtomicU64,
    last_failure: Mutex<Option<ServerFailure>>,
    tools: Mutex<BTreeMap<Box<str>, Arc<OutcomeCounts>>>,
}

/// A lost connection to a server, or a failed attempt to connect.
#[derive(Clone, Debug)]
pub struct ServerFailure {
    pub time: SystemTime,
    /// The reason, which may quote the server.
    pub reason: Box<str>,
}

/// The outcomes of the calls of one tool.
#[derive(Debug, Default)]
pub struct OutcomeCounts([AtomicU64; OUTCOMES]);

impl OutcomeCounts {
    pub fn add(&self, outcome: RequestOutcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, outcome: RequestOutcome) -> u64 {
        self.0[outcome as usize].load(Ordering::Relaxed)
    }
}

/// A histogram of durations.
#[derive(Debug)]
pub struct Durations {
    bounds: &'static [f64; BOUNDS.len()],
    /// The count of each bucket. The last bucket has no upper bound.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

impl Default for Durations {
    fn default() -> Durations {
        Durations::with_bounds(&BOUNDS)
    }
}

impl Meter {
    /// Returns the counters of a tool, given its native name. Names with the same visible characters share them, because
    /// two series must not have the same labels.
    pub fn tool(&self, native: &str) -> Arc<OutcomeCounts> {
        let name = cleaned(native);
        let mut tools = self.tools.lock();
        let is_known = tools.contains_key(&*name);
        let has_room = name.len() <= MAX_TOOL_NAME && tools.len() < MAX_COUNTED_TOOLS;
        let name = if is_known || has_room { &*name } else { OTHERS };
        Arc::clone(tools.entry(name.into()).or_default())
    }

    /// Returns the counters of all tools.
    pub fn tools(&self) -> Vec<(Box<str>, Arc<OutcomeCounts>)> {
        let tools = self.tools.lock();
        tools.iter().map(|(name, outcomes)| (name.clone(), Arc::clone(outcomes))).collect()
    }

    pub fn count_outcome(&self, method: MethodLabel, outcome: RequestOutcome) {
        self.outcomes[method as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Records the round-trip time of a request that was sent.
    pub fn record_duration(&self, method: MethodLabel, duration: Duration) {
        self.durations[method as usize].add(duration);
    }

    pub fn count_read(&self, mime: Mime, status: ReadStatus) {
        self.reads[mime as usize][status as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Replaces the last failure.
    pub fn record_failure(&self, reason: &str) {
        let reason = reason[..reason.floor_char_boundary(MAX_REASON)].into();
        *self.last_failure.lock() = Some(ServerFailure { time: SystemTime::now(), reason });
    }

    /// Returns the last failure, even if the server has recovered.
    pub fn last_failure(&self) -> Option<ServerFailure> {
        self.last_failure.lock().clone()
    }

    pub fn outcome_count(&self, method: MethodLabel, outcome: RequestOutcome) -> u64 {
        self.outcomes[method as usize][outcome as usize].load(Ordering::Relaxed)
    }

    pub fn durations(&self, method: MethodLabel) -> &Durations {
        &self.durations[method as usize]
    }

    pub fn read_count(&self, mime: Mime, status: ReadStatus) -> u64 {
        self.reads[mime as usize][status as usize].load(Ordering::Relaxed)
    }

    pub fn restart_count(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }
}

impl Durations {
    pub fn with_bounds(bounds: &'static [f64; BOUNDS.len()]) -> Durations {
        Durations { bounds, buckets: Default::default(), nanoseconds: AtomicU64::new(0) }
    }

    pub fn add(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let milliseconds = nanoseconds as f64 / NANOSECONDS_IN_MILLISECOND;
        let bucket = self.bounds.iter().position(|bound| milliseconds <= *bound).unwrap_or(BOUNDS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Returns each bucket as its upper bound in seconds and its own count. The last bound is infinite.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = self.bounds.iter().map(|bound| seconds((bound * NANOSECONDS_IN_MILLISECOND).round()));
        let bounds = bounds.chain([f64::INFINITY]);
        bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Ordering::Relaxed))).collect()
    }

    pub fn sum(&self) -> f64 {
        seconds(self.nanoseconds.load(Ordering::Relaxed) as f64)
    }
}

fn seconds(nanoseconds: f64) -> f64 {
    nanoseconds / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_falls_into_one_bucket() {
        let meter = Meter::default();
        for nanoseconds in [0, 500_000, 500_001, 1_000_000_000, 300_000_000_001, 86_400_000_000_000] {
            meter.record_duration(MethodLabel::ToolsCall, Duration::from_nanos(nanoseconds));
        }
        let buckets = meter.durations(MethodLabel::ToolsCall).buckets();
        let filled: Vec<_> = buckets.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(filled, [(0.0005, 2), (0.001, 1), (1.0, 1), (f64::INFINITY, 2)]);
        assert!((meter.durations(MethodLabel::ToolsCall).sum() - 86_701.001_000_002).abs() < 0.001);
    }

    #[test]
    fn tools_are_counted_by_name_up_to_a_bound() {
        let meter = Meter::default();
        for number in 0..MAX_COUNTED_TOOLS + 5 {
            meter.tool(&format!("t{number}")).add(RequestOutcome::Ok);
        }
        meter.tool(&"x".repeat(MAX_TOOL_NAME + 1)).add(RequestOutcome::Error);
        meter.tool("t0").add(RequestOutcome::Ok);
        let tools = meter.tools();
        let count = |name: &str, outcome| {
            tools.iter().find(|(known, _)| **known == *name).map(|(_, counts)| counts.get(outcome))
        };
        assert_eq!(tools.len(), MAX_COUNTED_TOOLS + 1);
        assert_eq!((count("t0", RequestOutcome::Ok), count("t9", RequestOutcome::Ok)), (Some(2), Some(1)));
        assert_eq!((count(OTHERS, RequestOutcome::Ok), count(OTHERS, RequestOutcome::Error)), (Some(5), Some(1)));
    }

    #[test]
    fn methods_without_a_label_count_as_other() {
        assert_eq!(MethodLabel::from(&Method::parse("tools/call")), MethodLabel::ToolsCall);
        for name in ["evil\"} 1", "tools/list", ""] {
            assert_eq!(MethodLabel::from(&Method::parse(name)), MethodLabel::Other);
        }
    }
}
