//! The position in an event stream: the data needed to resume it on another connection and to recognize repeated
//! events. All functions are pure.
//!
//! Event ids should be unique in a session, and a server should continue after the given one. Some servers restart
//! their numbers on each connection, and some repeat the last event. A message therefore counts as repeated only if its
//! id and text are equal, and only after a gap.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use goblin_wire::framing::SseEvent;
use http::HeaderValue;

const FIRST_RECONNECT: Duration = Duration::from_secs(1);
/// The shortest pause before a reconnect, even if the backend asks for a shorter one.
const FASTEST_RECONNECT: Duration = Duration::from_millis(500);
const SLOWEST_RECONNECT: Duration = Duration::from_secs(30);
/// The longest usable id in bytes. Servers do not accept a longer header.
const MAX_EVENT_ID: usize = 4096;
/// The number of messages that are remembered. The oldest is forgotten first.
const MAX_REMEMBERED: usize = 1024;
/// The number of bytes of a message that identify it, besides its length.
const LOOKED_AT: usize = 256;

/// The position in one stream.
#[derive(Default)]
pub(crate) struct ResumePosition {
    position: Option<HeaderValue>,
    retry: Option<Duration>,
    told: VecDeque<u64>,
    has_gap: bool,
}

impl ResumePosition {
    /// Records an event. Returns `false` if it repeats an earlier one.
    pub(crate) fn note(&mut self, event: &SseEvent) -> bool {
        if let Some(asked) = event.retry.map(Duration::from_millis) {
            self.retry = Some(asked.clamp(FASTEST_RECONNECT, SLOWEST_RECONNECT));
        }
        let Some(id) = &event.id else { return true };
        let is_usable = !id.is_empty() && id.len() <= MAX_EVENT_ID;
        self.position = HeaderValue::from_bytes(id.as_bytes()).ok().filter(|_| is_usable);
        // Servers use the id of a priming event also for the first message.
        if event.data.is_empty() {
            return true;
        }
        let mark = mark(id, &event.data);
        if self.has_gap && self.told.contains(&mark) {
            return false;
        }
        if self.told.len() == MAX_REMEMBERED {
            self.told.pop_front();
        }
        self.told.push_back(mark);
        true
    }

    /// Returns the id of the last event. Returns `None` if no event had a usable id.
    pub(crate) fn position(&self) -> Option<&HeaderValue> {
        self.position.as_ref()
    }

    /// Clears the position, because the backend does not know it.
    pub(crate) fn forget_position(&mut self) {
        self.position = None;
    }

    /// Records that the next events come over another connection.
    pub(crate) fn gap(&mut self) {
        self.has_gap = true;
    }

    /// Returns the pause before the next connection, after `in_vain` fruitless ones.
    pub(crate) fn pause(&self, in_vain: u32) -> Duration {
        let first = self.retry.unwrap_or(FIRST_RECONNECT);
        first.saturating_mul(1 << in_vain.min(8)).min(SLOWEST_RECONNECT)
    }
}

fn mark(id: &str, data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (id, data.len(), &data[..data.len().min(LOOKED_AT)]).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, data: &str) -> SseEvent {
        SseEvent { id: Some(id.to_owned()), data: data.to_owned().into(), ..SseEvent::default() }
    }

    fn retry(milliseconds: u64) -> SseEvent {
        SseEvent { retry: Some(milliseconds), ..SseEvent::default() }
    }

    #[test]
    fn what_was_told_is_known_again_behind_a_gap_only() {
        let mut trail = ResumePosition::default();
        assert!(trail.note(&event("1", "")), "a priming event");
        assert!(trail.note(&event("1", "a")), "with the id of the priming event");
        assert!(trail.note(&event("1", "a")), "a server whose ids mean nothing");
        trail.gap();
        assert!(!trail.note(&event("1", "a")));
        assert!(trail.note(&event("1", "b")), "numbered anew");
        assert!(trail.note(&event("2", "a")));
        assert!(!trail.note(&event("2", "a")));
        assert!(
            trail.note(&SseEvent { data: "a".into(), ..SseEvent::default() }),
            "without an id nothing is known again"
        );
    }

    #[test]
    fn exactly_so_many_are_remembered() {
        let mut trail = ResumePosition::default();
        for number in 0..=MAX_REMEMBERED {
            trail.note(&event(&number.to_string(), "x"));
        }
        trail.gap();
        assert_eq!(trail.told.len(), MAX_REMEMBERED);
        assert!(!trail.note(&event("1", "x")));
        assert!(trail.note(&event("0", "x")), "the oldest is forgotten");
        assert_eq!(trail.told.len(), MAX_REMEMBERED);
    }

    #[test]
    fn the_position_is_the_last_id_that_fits_in_a_header() {
        let after = |ids: &[&str]| {
            let mut trail = ResumePosition::default();
            for id in ids {
                trail.note(&event(id, "x"));
            }
            trail.note(&SseEvent { data: "no id".into(), ..SseEvent::default() });
            trail.position().map(|id| id.as_bytes().to_vec())
        };
        assert_eq!(after(&[]), None);
        assert_eq!(after(&["1", "2/ü"]), Some("2/ü".into()));
        assert_eq!(after(&["1", ""]), None);
        assert_eq!(after(&["1", "a\u{7}"]), None);
        assert_eq!(after(&["1", &"x".repeat(MAX_EVENT_ID + 1)]), None);
    }

    #[test]
    fn the_backend_says_how_long_to_wait_within_reason() {
        let mut trail = ResumePosition::default();
        assert_eq!(trail.pause(0), FIRST_RECONNECT);
        assert_eq!(trail.pause(2), 4 * FIRST_RECONNECT);
        for (asked, expected) in [(2500, Duration::from_millis(2500)), (0, FASTEST_RECONNECT)] {
            trail.note(&retry(asked));
            assert_eq!(trail.pause(0), expected);
        }
        trail.note(&event("1", "keeps what was asked for"));
        assert_eq!(trail.pause(0), FASTEST_RECONNECT);
        trail.note(&retry(u64::MAX));
        assert_eq!((trail.pause(0), trail.pause(u32::MAX)), (SLOWEST_RECONNECT, SLOWEST_RECONNECT));
    }
}
