//! Decides when lists are fetched again whose changes the server does not announce (D20).
//!
//! The schedule is a plain value with the time as a parameter. A refresh has one of four causes: a tool call, a client
//! that lists, a name that is not found, or the passage of time. A refresh without effect lengthens the pause before
//! the next one. A client that lists after a tool call, or that uses an unknown name, does not wait for that pause:
//! without the gateway, it would see the new lists at once.
//!
//! Some servers declare announcements and send none. Lists without any announcement so far are checked too, but only
//! after tool calls, and each check without a change lengthens the pause.

use std::time::{Duration, Instant};

use crate::upstream::health;

/// The time between two refreshes without a cause, unless the configuration sets another.
pub(crate) const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// The longest time that a client waits for a refresh.
pub(crate) const MAX_CLIENT_WAIT: Duration = Duration::from_secs(1);
/// The shortest time between the starts of two refreshes.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// The time from the end of a tool call to the refresh that it causes. Further calls within it cause no other.
const CALL_DELAY: Duration = Duration::from_secs(1);
/// The age from which on a listing is fetched again when a client lists.
const MAX_LISTING_AGE: Duration = Duration::from_secs(5);
/// The longest pause after a list that exceeds a limit. One fetch of that list may cost thousands of requests.
const MAX_LIMIT_PAUSE: Duration = Duration::from_secs(600);
/// The longest pauses that a server can demand with `Retry-After` and with `ttlMs`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// The lists are unstable from this count of changes in a row on. A tool call before the refresh explains a change: a
/// server may add a tool with each call for a while. Three changes without an explanation are enough.
const UNSTABLE: u32 = 60;
const UNEXPLAINED_CHANGE: u32 = 20;

/// The reason why a client needs a refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefreshReason {
    /// The client lists.
    List,
    /// The client uses a name or URI that is not found.
    Miss,
}

/// The outcome of a fetch of the silent lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchOutcome {
    pub change: FetchChange,
    /// The time for which the server declares the lists as fresh.
    pub ttl: Option<Duration>,
    /// The time that the server demands before the next request.
    pub retry_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FetchChange {
    Unchanged,
    Changed,
    Failed,
    /// A list exceeds a limit.
    TooLarge,
}

impl FetchOutcome {
    pub(crate) fn unchanged() -> FetchOutcome {
        FetchOutcome { change: FetchChange::Unchanged, ttl: None, retry_after: None }
    }
}

/// The schedule of the refreshes of one link.
#[derive(Debug)]
pub(crate) struct RefreshSchedule {
    interval: Duration,
    /// Whether the server declares announcements, so that only tool calls cause refreshes.
    needs_call: bool,
    /// The start of the last fetch.
    last_start: Instant,
    /// The start of the interval until the next refresh without a cause.
    interval_start: Instant,
    /// The start of the last refresh. The first fetch of a link is none.
    last_refresh: Option<Instant>,
    /// The pause after `last_start`.
    pause: Duration,
    /// No refresh starts before this time, by the `ttlMs` or the `Retry-After` of the server.
    not_before: Instant,
    /// The end of the first tool call since the last fetch.
    called: Option<Instant>,
    /// The time of the refresh that a client waits for.
    requested: Option<Instant>,
    /// Whether only unknown names request that refresh, or the fetch in progress.
    is_for_miss: bool,
    /// The last refresh for unknown names that found no change, and the pause after it. A client that guesses names
    /// must not wait for a refresh each time.
    last_miss: Option<Instant>,
    miss_pause: Duration,
    /// Whether a tool call preceded the fetch in progress.
    is_explained: bool,
    is_first: bool,
    is_failing: bool,
    instability: u32,
    /// A number in 0..1 that spreads the refreshes of several servers.
    jitter: f64,
}

impl RefreshSchedule {
    pub(crate) fn new(now: Instant) -> RefreshSchedule {
        RefreshSchedule::with_interval(now, REFRESH_INTERVAL)
    }

    pub(crate) fn with_interval(now: Instant, interval: Duration) -> RefreshSchedule {
        RefreshSchedule {
            interval,
            needs_call: false,
            last_start: now,
            interval_start: now,
            last_refresh: None,
            pause: MIN_PAUSE,
            not_before: now,
            called: None,
            requested: None,
            is_for_miss: false,
            last_miss: None,
            miss_pause: MIN_PAUSE,
            is_explained: false,
            is_first: true,
            is_failing: false,
            instability: 0,
            jitter: health::jitter(),
        }
    }

    /// Sets the time between two refreshes without a cause. A shorter interval also shortens the pause of the backoff.
    pub(crate) fn set_interval(&mut self, interval: Duration) {
        if self.interval != interval {
            self.interval = interval;
            let max = interval.max(MIN_PAUSE);
            (self.pause, self.miss_pause) = (self.pause.min(max), self.miss_pause.min(max));
        }
    }

    /// Sets whether only tool calls cause refreshes.
    pub(crate) fn set_needs_call(&mut self, needs_call: bool) {
        self.needs_call = needs_call;
    }

    /// Reports whether the lists changed in too many refreshes in a row.
    pub(crate) fn is_unstable(&self) -> bool {
        self.instability >= UNSTABLE
    }

    /// Records the end of a tool call.
    pub(crate) fn call_ended(&mut self, now: Instant) {
        self.called.get_or_insert(now);
    }

    /// Records the start of a fetch. `was_called` reports whether a tool call preceded it.
    pub(crate) fn started(&mut self, now: Instant, was_called: bool) {
        (self.last_start, self.interval_start) = (now, now);
        self.last_refresh = (!self.is_first).then_some(now);
        (self.called, self.requested) = (None, None);
        self.is_explained = was_called;
    }

    /// Records the end of a fetch and computes the next pause.
    pub(crate) fn ended(&mut self, now: Instant, outcome: FetchOutcome) {
        let change = outcome.change;
        // The first fetch of a link has nothing to compare.
        let is_first = std::mem::replace(&mut self.is_first, false);
        self.is_failing = matches!(change, FetchChange::Failed | FetchChange::TooLarge);
        match change {
            FetchChange::Changed if !is_first => {
                let weight = if self.is_explained { 1 } else { UNEXPLAINED_CHANGE };
                self.instability = self.instability.saturating_add(weight);
            }
            FetchChange::Unchanged => self.instability = 0,
            _ => {}
        }
        let has_effect = change == FetchChange::Changed && !self.is_unstable();
        let max = if change == FetchChange::TooLarge { MAX_LIMIT_PAUSE } else { self.interval };
        match (change, std::mem::take(&mut self.is_for_miss)) {
            (FetchChange::Unchanged, true) => {
                self.last_miss = Some(self.last_start);
                self.miss_pause = (self.miss_pause * 2).min(self.interval).max(MIN_PAUSE);
            }
            (FetchChange::Changed, _) => self.miss_pause = MIN_PAUSE,
            _ => {}
        }
        self.pause = match has_effect || is_first && !self.is_failing {
            true => MIN_PAUSE,
            false => (self.pause * 2).min(max).max(MIN_PAUSE),
        };
        let fresh_until = self.last_start + outcome.ttl.unwrap_or_default().min(MAX_TTL);
        let allowed = now + outcome.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER);
        self.not_before = fresh_until.max(allowed);
        self.jitter = health::jitter();
    }

    /// Requests a refresh for a client. Returns `false` if the client should use the listing that is known.
    pub(crate) fn request(&mut self, now: Instant, reason: RefreshReason, was_called: bool) -> bool {
        if self.needs_call && !was_called {
            return false;
        }
        let is_urgent = was_called || reason == RefreshReason::Miss;
        let is_recent = now < self.last_start + MAX_LISTING_AGE.min(self.interval);
        if !is_urgent && is_recent {
            return false;
        }
        let is_guess = reason == RefreshReason::Miss && !was_called;
        let due = match is_urgent && !self.is_held_back() {
            true => self.last_refresh.map_or(now, |refresh| refresh + MIN_PAUSE),
            false => self.last_start + self.pause,
        };
        let after_guess = self.last_miss.filter(|_| is_guess).map_or(now, |miss| miss + self.miss_pause);
        let due = due.max(self.not_before).max(after_guess);
        if due > now + MAX_CLIENT_WAIT {
            return false;
        }
        self.is_for_miss = is_guess && (self.requested.is_none() || self.is_for_miss);
        self.requested = Some(self.requested.map_or(due, |requested| requested.min(due)));
        true
    }

    /// Reports whether even urgent refreshes wait for the pause.
    fn is_held_back(&self) -> bool {
        self.is_failing || self.is_unstable() || self.needs_call
    }

    /// Returns the time of the next refresh, if nothing else happens.
    pub(crate) fn next_due(&self) -> Instant {
        let causes = [self.requested, self.after_call()].into_iter().flatten();
        causes.fold(self.after_interval(), Instant::min).max(self.not_before)
    }

    /// Reports whether a refresh is due. Starts the interval again if only the interval has passed, and no client is
    /// connected or a call is needed.
    pub(crate) fn is_due(&mut self, now: Instant, has_clients: impl Fn() -> bool) -> bool {
        if now < self.not_before {
            return false;
        }
        if [self.requested, self.after_call()].into_iter().flatten().any(|due| due <= now) {
            return true;
        }
        if now < self.after_interval() {
            return false;
        }
        let is_due = !self.needs_call && has_clients();
        if !is_due {
            self.interval_start = now;
        }
        is_due
    }

    fn after_call(&self) -> Option<Instant> {
        self.called.map(|called| (called + CALL_DELAY).max(self.last_start + self.pause))
    }

    fn after_interval(&self) -> Instant {
        self.interval_start + self.interval.max(self.pause).mul_f64(1.0 + 0.2 * self.jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn outcome(change: FetchChange) -> FetchOutcome {
        FetchOutcome { change, ..FetchOutcome::unchanged() }
    }

    /// Returns a schedule after its first fetch at `now`, without jitter.
    fn schedule(now: Instant) -> RefreshSchedule {
        let mut schedule = RefreshSchedule::new(now);
        fetch(&mut schedule, now, FetchChange::Changed);
        schedule
    }

    fn fetch(schedule: &mut RefreshSchedule, now: Instant, change: FetchChange) {
        schedule.started(now, schedule.called.is_some());
        schedule.ended(now, outcome(change));
        schedule.jitter = 0.0;
    }

    #[test]
    fn d20_each_cause_has_its_time() {
        let begin = Instant::now();
        let mut lists = schedule(begin);
        assert_eq!(lists.next_due(), begin + 60 * SECOND, "the interval");
        lists.call_ended(begin + 10 * SECOND);
        lists.call_ended(begin + 10 * SECOND + SECOND / 2);
        assert_eq!(lists.next_due(), begin + 11 * SECOND, "one second after the first call");
        assert!(!lists.is_due(begin + 10 * SECOND, || true));
        assert!(lists.is_due(begin + 11 * SECOND, || false), "a call needs no connected client");
        fetch(&mut lists, begin + 11 * SECOND, FetchChange::Changed);
        let now = begin + 13 * SECOND;
        assert!(!lists.request(now, RefreshReason::List, false), "the listing is recent");
        assert!(lists.request(now + 4 * SECOND, RefreshReason::List, false), "the listing is old");
        fetch(&mut lists, now, FetchChange::Changed);
        assert!(lists.request(now, RefreshReason::Miss, false), "a miss waits for at most a second");
        assert_eq!(lists.next_due(), now + SECOND, "one refresh per second");
        fetch(&mut lists, now, FetchChange::Changed);
        assert!(lists.request(now, RefreshReason::List, true), "a call explains the request");
        assert_eq!(lists.next_due(), now + SECOND);
        let mut lists = schedule(now);
        assert!(lists.request(now, RefreshReason::Miss, false));
        assert_eq!(lists.next_due(), now, "the first fetch of a link is no refresh");
    }

    #[test]
    fn d20_the_interval_counts_only_while_a_client_is_connected() {
        let begin = Instant::now();
        let mut lists = schedule(begin);
        let now = begin + 60 * SECOND;
        assert!(!lists.is_due(now, || false));
        assert_eq!(lists.next_due(), now + 60 * SECOND);
        assert!(lists.is_due(now + 60 * SECOND, || true));
    }

    #[test]
    fn d20_refreshes_without_effect_back_off_up_to_the_interval() {
        for change in [FetchChange::Unchanged, FetchChange::Failed] {
            let begin = Instant::now();
            let mut lists = schedule(begin);
            for pause in [2, 4, 8, 16, 32, 60, 60] {
                fetch(&mut lists, begin, change);
                lists.call_ended(begin);
                assert_eq!(lists.next_due(), begin + pause * SECOND, "{change:?}");
            }
            // A client sees the effect of a call at once, unless the server fails.
            let now = begin + 10 * SECOND;
            assert!(!lists.request(now, RefreshReason::List, false));
            assert_eq!(lists.request(now, RefreshReason::List, true), change == FetchChange::Unchanged);
            assert_eq!(lists.request(now, RefreshReason::Miss, false), change == FetchChange::Unchanged);
            fetch(&mut lists, begin, FetchChange::Changed);
            lists.call_ended(begin);
            assert_eq!(lists.next_due(), begin + SECOND, "a change ends the backoff");
        }
    }

    #[test]
    fn d20_a_client_that_guesses_names_does_not_wait_each_time() {
        let begin = Instant::now();
        let mut lists = schedule(begin);
        let miss = |lists: &mut RefreshSchedule, now| lists.request(now, RefreshReason::Miss, false);
        let mut now = begin;
        for pause in [2, 4, 8] {
            assert!(miss(&mut lists, now));
            fetch(&mut lists, now, FetchChange::Unchanged);
            assert!(!miss(&mut lists, now), "the next refresh is {pause} s away");
            assert!(lists.request(now, RefreshReason::Miss, true), "a call may have added the name");
            fetch(&mut lists, now, FetchChange::Unchanged);
            now += pause * SECOND;
        }
        assert!(miss(&mut lists, now));
        fetch(&mut lists, now, FetchChange::Changed);
        assert!(miss(&mut lists, now), "a change ends the backoff");
    }

    #[test]
    fn d20_lists_with_declared_announcements_are_checked_after_calls_alone() {
        let begin = Instant::now();
        let mut lists = schedule(begin);
        lists.set_needs_call(true);
        let later = begin + 100 * SECOND;
        assert!(!lists.is_due(later, || true), "the interval is no cause");
        assert!(!lists.request(later, RefreshReason::List, false) && !lists.request(later, RefreshReason::Miss, false));
        lists.call_ended(later);
        assert!(lists.request(later, RefreshReason::List, true), "a client that lists after a call waits");
        assert!(lists.is_due(later, || false));
        fetch(&mut lists, later, FetchChange::Unchanged);
        fetch(&mut lists, later, FetchChange::Unchanged);
        assert!(!lists.request(later, RefreshReason::List, true), "the pause counts for urgent requests too");
        lists.call_ended(later);
        assert_eq!(lists.next_due(), later + 4 * SECOND);
    }

    #[test]
    fn d20_lists_that_change_with_every_fetch_back_off() {
        let begin = Instant::now();
        let mut lists = schedule(begin);
        for _ in 0..3 {
            assert!(!lists.is_unstable());
            fetch(&mut lists, begin, FetchChange::Changed);
        }
        assert!(lists.is_unstable());
        assert!(!lists.request(begin, RefreshReason::Miss, false), "the pause counts for misses too");
        fetch(&mut lists, begin, FetchChange::Changed);
        assert_eq!(lists.pause, 4 * SECOND);
        fetch(&mut lists, begin, FetchChange::Unchanged);
        assert!(!lists.is_unstable());
        // Tool calls explain changes.
        for _ in 1..UNSTABLE {
            lists.call_ended(begin);
            fetch(&mut lists, begin, FetchChange::Changed);
            assert!(!lists.is_unstable() && lists.request(begin, RefreshReason::List, true));
        }
        lists.call_ended(begin);
        fetch(&mut lists, begin, FetchChange::Changed);
        assert!(lists.is_unstable());
    }

    #[test]
    fn d20_a_list_beyond_a_limit_has_longer_pauses() {
        let begin = Instant::now();
        let mut lists = schedule(begin);
        (0..12).for_each(|_| fetch(&mut lists, begin, FetchChange::TooLarge));
        assert_eq!(lists.next_due(), begin + MAX_LIMIT_PAUSE);
    }

    #[test]
    fn d20_the_times_of_the_server_are_obeyed() {
        let begin = Instant::now();
        let mut lists = schedule(begin);
        lists.started(begin, false);
        lists.ended(begin, FetchOutcome { ttl: Some(100 * SECOND), ..FetchOutcome::unchanged() });
        assert!(!lists.request(begin + 50 * SECOND, RefreshReason::Miss, true), "the listing is fresh");
        assert!(!lists.is_due(begin + 90 * SECOND, || true));
        assert!(lists.request(begin + 100 * SECOND, RefreshReason::List, false), "the ttl has expired");
        assert!(lists.is_due(begin + 100 * SECOND, || true));
        lists.started(begin, false);
        let busy = FetchOutcome { retry_after: Some(30 * SECOND), ..outcome(FetchChange::Failed) };
        lists.ended(begin, busy);
        lists.call_ended(begin);
        assert_eq!(lists.next_due(), begin + 30 * SECOND);
        lists.ended(begin, FetchOutcome { retry_after: Some(Duration::from_secs(u64::MAX / 2)), ..busy });
        assert_eq!(lists.next_due(), begin + MAX_RETRY_AFTER);
    }
}
