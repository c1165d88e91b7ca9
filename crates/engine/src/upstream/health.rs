//! Decides when to reconnect: backoff and circuit breaker as plain values, with the time as a parameter.
//!
//! A failed backend is retried after a growing pause. After [`BREAKER_FAILURES`] failures within [`BREAKER_WINDOW`] the
//! breaker opens, and the pause is at least [`BREAKER_PAUSE`] until one connection has lasted.
//!
//! A call ends the pause early. Such attempts have a distance of [`DEMAND_INTERVAL`] from the last attempt, or of
//! [`DEMAND_INTERVAL_FAILING`] after [`BREAKER_FAILURES`] failures within [`BREAKER_WINDOW`].
//!
//! A server that the gateway drops because of a loop is tried again after [`FIRST_DROP_PAUSE`], which doubles.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(30);
const BREAKER_FAILURES: usize = 5;
const BREAKER_WINDOW: Duration = Duration::from_secs(60);
const BREAKER_PAUSE: Duration = Duration::from_secs(30);
/// The shortest time between the last attempt and one that a call triggers.
const DEMAND_INTERVAL: Duration = Duration::from_secs(1);
/// The same, for a backend that keeps failing.
const DEMAND_INTERVAL_FAILING: Duration = Duration::from_secs(5);
/// The pause after the gateway dropped the server. An attempt costs little, and another gateway may have cut the loop.
const FIRST_DROP_PAUSE: Duration = Duration::from_secs(5);
const MAX_DROP_PAUSE: Duration = Duration::from_secs(600);
/// A connection that lasted this long closes the breaker.
const PROVEN_AFTER: Duration = Duration::from_secs(10);

/// The failures of one backend or link.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failures: VecDeque<Instant>,
    in_a_row: u32,
    /// The number of times in a row that the gateway dropped the server.
    drops: u32,
    /// Whether the breaker is open. Stays `true` until a connection has lasted.
    open: bool,
    attempted_at: Option<Instant>,
    connected_at: Option<Instant>,
}

impl Health {
    /// Records the start of an attempt.
    pub(crate) fn attempted(&mut self, now: Instant) {
        self.attempted_at = Some(now);
    }

    /// Returns the earliest time of an attempt that a call triggers at `now`.
    pub(crate) fn demand_due(&self, now: Instant) -> Instant {
        let recent = self.failures.iter().filter(|failure| now.duration_since(**failure) <= BREAKER_WINDOW).count();
        let interval = if recent >= BREAKER_FAILURES { DEMAND_INTERVAL_FAILING } else { DEMAND_INTERVAL };
        self.attempted_at.map_or(now, |attempted_at| now.max(attempted_at + interval))
    }

    pub(crate) fn connected(&mut self, now: Instant) {
        self.connected_at = Some(now);
    }

    /// Records that an attempt or a connection ended at `now`. Returns the pause before the next attempt. `jitter` is
    /// in 0..1 and spreads the retries of backends that failed together.
    pub(crate) fn failed(&mut self, now: Instant, jitter: f64) -> Duration {
        let lasted = self.connected_at.take().is_some_and(|since| now.duration_since(since) >= PROVEN_AFTER);
        if lasted {
            self.failures.clear();
            (self.in_a_row, self.drops) = (0, 0);
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
        spread(pause, jitter)
    }

    /// Records that the gateway dropped the server at `now`. Returns the pause before the next attempt. The `jitter`
    /// separates the gateways of one loop, of which only one has to cut it.
    pub(crate) fn dropped(&mut self, now: Instant, jitter: f64) -> Duration {
        if self.connected_at.take().is_some_and(|since| now.duration_since(since) >= PROVEN_AFTER) {
            self.drops = 0;
        }
        let pause = FIRST_DROP_PAUSE.saturating_mul(1 << self.drops.min(16)).min(MAX_DROP_PAUSE);
        self.drops = self.drops.saturating_add(1);
        spread(pause, jitter)
    }

    /// Returns the number of times in a row that the gateway dropped the server.
    pub(crate) fn drops(&self) -> u32 {
        self.drops
    }

    /// Reports whether the breaker is open. The backend is then still retried, with long pauses.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}

/// Returns a pause that is shorter by up to a fifth, so that it never exceeds its limit.
fn spread(pause: Duration, jitter: f64) -> Duration {
    pause.mul_f64(1.0 - 0.2 * jitter.clamp(0.0, 1.0))
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
    fn d18_calls_trigger_one_attempt_per_second_and_one_per_five_seconds_after_five_failures() {
        let (mut health, started) = (Health::default(), Instant::now());
        assert_eq!(health.demand_due(started), started, "the first attempt needs no distance");
        let mut now = started;
        let mut distances = Vec::new();
        for _ in 0..7 {
            health.attempted(now);
            let failed = now + Duration::from_millis(10);
            health.failed(failed, 0.0);
            distances.push(health.demand_due(failed).duration_since(now).as_secs());
            now = health.demand_due(failed);
        }
        assert_eq!(distances, [1, 1, 1, 1, 5, 5, 5]);
        let later = now + BREAKER_WINDOW + Duration::from_secs(1);
        assert_eq!(health.demand_due(later), later, "old failures do not count");
        health.attempted(later);
        assert_eq!(health.demand_due(later), later + DEMAND_INTERVAL);
    }

    #[test]
    fn use1_the_pauses_of_a_dropped_server_grow_from_5_s_to_10_min() {
        let (mut health, mut now, mut pauses) = (Health::default(), Instant::now(), Vec::new());
        for _ in 0..9 {
            health.connected(now);
            let pause = health.dropped(now, 0.0);
            pauses.push(pause.as_secs());
            now += pause;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 320, 600, 600]);
        assert!(!health.is_open(), "the server has not failed");
        health.connected(now);
        assert_eq!(health.dropped(now + PROVEN_AFTER, 0.0), FIRST_DROP_PAUSE, "the loop is a new one");
    }

    #[test]
    fn jitter_removes_at_most_a_fifth() {
        assert_eq!(Health::default().failed(Instant::now(), 1.0), FIRST_PAUSE.mul_f64(0.8));
    }
}
