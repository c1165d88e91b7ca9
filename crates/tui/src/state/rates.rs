//! Computes rates from the differences between the counters of two polls.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use goblin_admin::api::{Calls, Latency, ServerStatus, Status};

/// The number of polls in a sparkline.
pub(crate) const MAX_SAMPLES: usize = 60;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// The time of the last poll, since the start of the dashboard.
    at: Option<Duration>,
    pub total: Rate,
    /// Calls per second, newest last.
    pub history: VecDeque<f64>,
    pub servers: BTreeMap<String, ServerRate>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    pub calls: f64,
    pub failed: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerRate {
    seen: CounterSample,
    pub rate: Rate,
    /// The mean latency in milliseconds between two polls, newest last. `None` if there was no response.
    pub latency: VecDeque<Option<f64>>,
}

/// The counters of one poll.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CounterSample {
    calls: u64,
    failed: u64,
    answers: u64,
    milliseconds: f64,
}

impl CounterSample {
    fn of(calls: &Calls, latency: &Latency) -> CounterSample {
        let milliseconds = latency.mean_ms.unwrap_or_default() * latency.count as f64;
        CounterSample { calls: calls.total(), failed: calls.failed(), answers: latency.count, milliseconds }
    }
}

impl Rates {
    pub fn record(&mut self, at: Duration, status: &Status) {
        let seconds = self.at.map(|before| at.saturating_sub(before).as_secs_f64()).filter(|seconds| *seconds > 0.0);
        self.at = Some(at);
        self.servers.retain(|id, _| status.servers.iter().any(|server| server.id == *id));
        self.total = Rate::default();
        for server in &status.servers {
            let is_new = !self.servers.contains_key(&server.id);
            let known = self.servers.entry(server.id.clone()).or_default();
            known.record(server, seconds.filter(|_| !is_new));
            self.total.calls += known.rate.calls;
            self.total.failed += known.rate.failed;
        }
        if seconds.is_some() {
            remember(&mut self.history, self.total.calls);
        }
    }

    /// Drops all counters, because another gateway may answer now.
    pub fn forget(&mut self) {
        *self = Rates::default();
    }
}

impl ServerRate {
    /// Adds the counters of a poll. Counters that went down belong to a restarted gateway, and count as no change.
    fn record(&mut self, server: &ServerStatus, seconds: Option<f64>) {
        let seen = CounterSample::of(&server.calls, &server.latency);
        let before = std::mem::replace(&mut self.seen, seen);
        let Some(seconds) = seconds else { return };
        let per_second = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        self.rate =
            Rate { calls: per_second(seen.calls, before.calls), failed: per_second(seen.failed, before.failed) };
        let answers = seen.answers.saturating_sub(before.answers);
        let mean = (answers > 0).then(|| ((seen.milliseconds - before.milliseconds) / answers as f64).max(0.0));
        remember(&mut self.latency, mean);
    }
}

fn remember<T>(history: &mut VecDeque<T>, value: T) {
    history.push_back(value);
    while history.len() > MAX_SAMPLES {
        history.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(ok: u64, error: u64, mean: f64) -> Status {
        let calls = Calls { ok, error, ..Calls::default() };
        let latency = Latency { count: ok, mean_ms: Some(mean), ..Latency::default() };
        let server = ServerStatus { id: "a".to_owned(), calls, latency, ..ServerStatus::default() };
        Status { servers: vec![server], ..Status::default() }
    }

    #[test]
    fn rates_are_differences_over_the_time_between() {
        let mut rates = Rates::default();
        let mut record = |seconds: u64, status: Status| {
            rates.record(Duration::from_secs(seconds), &status);
            let server = &rates.servers["a"];
            (rates.total.calls, rates.total.failed, server.latency.back().copied().flatten(), rates.history.len())
        };
        assert_eq!(record(0, status(100, 5, 2.0)), (0.0, 0.0, None, 0), "one sample gives no rate");
        assert_eq!(record(2, status(110, 15, 3.0)), (10.0, 5.0, Some(13.0), 1), "330 ms less 200 ms, for 10 answers");
        assert_eq!(record(3, status(110, 15, 3.0)), (0.0, 0.0, None, 2));
        assert_eq!(record(4, status(1, 0, 9.0)), (0.0, 0.0, None, 3), "a restarted gateway");
        assert_eq!(record(5, status(2, 0, 9.0)), (1.0, 0.0, Some(9.0), 4));
    }

    #[test]
    fn only_the_last_looks_are_remembered() {
        let mut rates = Rates::default();
        for second in 0..100 {
            rates.record(Duration::from_secs(second), &status(second, 0, 1.0));
        }
        assert_eq!((rates.history.len(), rates.servers["a"].latency.len()), (MAX_SAMPLES, MAX_SAMPLES));
        rates.record(Duration::from_secs(101), &Status::default());
        assert!(rates.servers.is_empty(), "a removed server");
    }
}
