//! Decides when to reconnect: backoff and circuit breaker as plain values, with the time as a parameter.
//!
//! A failed backend is retried after a growing pause. After [`BREAKER_FAILURES`] failures within [`BREAKER_WINDOW`] the
//! breaker opens, and the pause is at least [`BREAKER_PAUSE`] until one connection has lasted.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(30);
pub(crate) const BREAKER_FAILURES: usize = 5;
const BREAKER_WINDOW: Duration = Duration::from_secs(60);
const BREAKER_PAUSE: Duration = Duration::from_secs(30);
/// A connection that lasted this long closes the breaker.
const PROVEN_AFTER: Duration = Duration::from_secs(10);

/// The failures of one backend or link.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failures: VecDeque<Instant>,
    in_a_row: u32,
    /// Whether the breaker is open. Stays `true` until a connection has lasted.
    open: bool,
    connected_at: Option<Instant>,
}

impl Health {
    pub(crate) fn connected(&mut self, now: Instant) {
        self.connected_at = Some(now);
    }

    /// Records that an attempt or a connection ended at `now`. Returns the pause before the next attempt. `jitter` is
    /// in 0..1 and spreads the retries of backends that failed together.
    pub(crate) fn failed(&mut self, now: Instant, jitter: f64) -> Duration {
        let lasted = self.connected_at.take().is_some_and(|since| now.duration_since(since) >= PROVEN_AFTER);
        if lasted {
            self.failures.clear();
            self.in_a_row = 0;
            self.open = false;
        }
        self.failures.push_back(now);
        while self.failures.front().is_some_and(|first| now.duration_since(*first) > BREAKER_WINDOW) {
            self.failures.pop_front();
        }
        self.open |= self.failures.len() >= BREAKER_FAILURES;
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.in_a_row.min(16)).min(MAX_RECONNECT_PAUSE);
        self.in_a_row = self.in_a_row.saturating_add(1);
        let pause = if self.is_open() { doubled.max(BREAKER_PAUSE) } else { doubled };
        pause.mul_f64(1.0 + 0.2 * jitter.clamp(0.0, 1.0))
    }

    /// Reports whether the breaker is open. The backend is then still retried, with long pauses.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}

/// Returns a random number in 0..1.
pub(crate) fn jitter() -> f64 {
    let mut byte = [0];
    let random = getrandom::fill(&mut byte).is_ok();
    if random { f64::from(byte[0]) / 255.0 } else { 0.5 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_the_breaker_opens() {
        let mut health = Health::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..7 {
            let pause = health.failed(now, 0.0);
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 30_000, 30_000, 30_000]);
        assert!(health.is_open());
    }

    #[test]
    fn a_crash_loop_of_200_starts_is_spread_over_more_than_an_hour() {
        let mut health = Health::default();
        let started = Instant::now();
        let mut now = started;
        for _ in 0..200 {
            health.connected(now);
            now += health.failed(now, 0.0);
        }
        assert!(now - started > Duration::from_secs(3600));
    }

    #[test]
    fn a_lasting_connection_resets_the_pauses() {
        let mut health = Health::default();
        let mut now = Instant::now();
        for _ in 0..5 {
            now += health.failed(now, 0.0);
        }
        health.connected(now);
        now += PROVEN_AFTER;
        assert_eq!(health.failed(now, 0.0), FIRST_PAUSE);
        assert!(!health.is_open());
    }

    #[test]
    fn jitter_adds_at_most_a_fifth() {
        assert_eq!(Health::default().failed(Instant::now(), 1.0), FIRST_PAUSE.mul_f64(1.2));
    }
}
