//! The newest events and stderr lines of each server.
//!
//! Every server of the configuration has a ring of its own, which lives until the server is removed. The limits per
//! server shrink if there are many servers, so that all rings together have a limit too.

use std::collections::HashMap;
use std::sync::Arc;

use goblin_wire::memory::{BufferKind, Memory, Reservation};

use crate::EventKind;
use crate::feed::FeedRecord;
use crate::log_ring::LogRing;

/// The limits of one server's log, in records and in bytes.
const MAX_RECORDS: usize = 200;
const MAX_BYTES: usize = 64 * 1024;
/// The limit of the logs of all servers together, in bytes.
const MAX_TOTAL_BYTES: usize = 16 * 1024 * 1024;

/// Reports whether the log of a server keeps this kind also at level `debug`. These records explain why a server does
/// not work.
pub(super) fn is_server_log(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::BackendStderr | EventKind::BackendFailed | EventKind::BackendLog | EventKind::InvalidOutput
    )
}

/// The logs of all servers.
#[derive(Debug)]
pub(super) struct ServerLogs {
    logs: HashMap<Box<str>, LogRing>,
    /// The limit of one log in bytes.
    max_bytes: usize,
    reserved: Reservation,
}

impl ServerLogs {
    pub(super) fn new(memory: &Arc<Memory>) -> ServerLogs {
        ServerLogs { logs: HashMap::new(), max_bytes: MAX_BYTES, reserved: memory.hold(BufferKind::Logs, 0) }
    }

    /// Keeps logs for exactly these servers. Drops the logs of all others.
    pub(super) fn set<'a>(&mut self, servers: impl ExactSizeIterator<Item = &'a str>) {
        self.max_bytes = (MAX_TOTAL_BYTES / servers.len().max(1)).min(MAX_BYTES);
        let mut old = std::mem::take(&mut self.logs);
        self.logs = servers.map(|server| (server.into(), old.remove(server).unwrap_or_default())).collect();
        let removed = old.values().map(LogRing::bytes).sum();
        self.reserved.shrink(removed);
        for log in self.logs.values_mut() {
            self.reserved.shrink(log.trim(MAX_RECORDS, self.max_bytes));
        }
    }

    /// Adds a record to the log of its server. Ignores records of no server and of unknown servers.
    pub(super) fn push(&mut self, record: &Arc<FeedRecord>) {
        let Some(log) = record.server.as_deref().and_then(|server| self.logs.get_mut(server)) else { return };
        self.reserved.add(log.push(record));
        self.reserved.shrink(log.trim(MAX_RECORDS, self.max_bytes));
    }

    /// Returns the log of a server.
    pub(super) fn get(&self, server: &str) -> Option<&LogRing> {
        self.logs.get(server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Observe};

    fn stderr(observe: &Observe, server: &str, line: &str, repeated: bool) {
        observe.emit(&Event::BackendStderr { server, line, repeated });
    }

    fn lines(observe: &Observe, server: &str) -> Vec<String> {
        observe.feed().read_after(Some(server), 0).records.iter().map(|record| record.message.clone()).collect()
    }

    fn reserved(observe: &Observe) -> usize {
        let kinds = observe.memory.read();
        let logs = kinds.iter().find(|(kind, _)| *kind == "logs").expect("a kind").1;
        // The feed of all events counts as the same kind.
        logs - observe.feed().bytes()
    }

    #[test]
    fn use7_a_chatty_server_displaces_only_its_own_lines() {
        let observe = Observe::default();
        observe.feed().set_servers(["a", "b"].into_iter());
        stderr(&observe, "a", "one", false);
        stderr(&observe, "a", "two", true);
        for number in 0..crate::feed::MAX_RECORDS + 5 {
            stderr(&observe, "b", &number.to_string(), false);
        }
        assert_eq!(lines(&observe, "a"), ["one", "two"]);
        let kept = lines(&observe, "b");
        assert_eq!((kept.len(), kept[0].as_str(), kept[MAX_RECORDS - 1].as_str()), (MAX_RECORDS, "805", "1004"));
        let log = observe.feed().read_after(Some("b"), 0);
        assert_eq!((log.records.last().map(|record| record.seq), log.missed), (Some(log.last), 805));
        assert_eq!(observe.feed().read_after(Some("b"), log.last - 1).missed, 0);
    }

    #[test]
    fn use7_the_bytes_of_all_logs_are_bounded_and_counted() {
        let observe = Observe::default();
        observe.feed().set_servers(["a", "b"].into_iter());
        for _ in 0..MAX_RECORDS {
            stderr(&observe, "a", &"x".repeat(1000), false);
            stderr(&observe, "c", "unknown", false);
        }
        let kept = lines(&observe, "a").len();
        assert!((40..MAX_RECORDS).contains(&kept), "{kept}");
        assert!((1000 * kept..=MAX_BYTES).contains(&reserved(&observe)), "{}", reserved(&observe));
        assert_eq!(lines(&observe, "c"), [""; 0]);
        let ids: Vec<_> =
            (0..1024).map(|number| if number == 0 { "a".to_owned() } else { number.to_string() }).collect();
        observe.feed().set_servers(ids.iter().map(String::as_str));
        assert!(reserved(&observe) <= MAX_TOTAL_BYTES / 1024, "{}", reserved(&observe));
        assert!(!lines(&observe, "a").is_empty());
        observe.feed().set_servers(["b"].into_iter());
        assert_eq!(reserved(&observe), 0, "the log ends with its server");
    }
}
