//! Counts the refreshes of the tokens of each server.
//!
//! The counters belong to the process and not to a connection, because a login outlives the connections of its server.
//! The map is locked only for a refresh and for a scrape.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::Event;

/// The number of servers that are counted. Further ones are not.
const MAX_SERVERS: usize = 1000;

goblin_wire::labels! {
    /// The result of a refresh. A retry may help after `Temporary`, and only a login helps after `Ended`.
    RefreshResult {
        Refreshed = "refreshed",
        Temporary = "temporary",
        Ended = "ended",
    }
}

impl RefreshResult {
    /// Returns the server and the result, if the event is the end of a refresh.
    pub(crate) fn of<'a>(event: &Event<'a>) -> Option<(&'a str, RefreshResult)> {
        match *event {
            Event::TokenRefreshed { server } => Some((server, RefreshResult::Refreshed)),
            Event::TokenRefreshFailed { server, ended: false, .. } => Some((server, RefreshResult::Temporary)),
            Event::TokenRefreshFailed { server, ended: true, .. } => Some((server, RefreshResult::Ended)),
            _ => None,
        }
    }
}

type Counts = [u64; RefreshResult::ALL.len()];

/// The refreshes of all servers, by result.
#[derive(Debug, Default)]
pub(crate) struct RefreshCounts(Mutex<BTreeMap<Box<str>, Counts>>);

impl RefreshCounts {
    pub(crate) fn add(&self, server: &str, result: RefreshResult) {
        let mut servers = self.0.lock();
        if servers.len() < MAX_SERVERS || servers.contains_key(server) {
            servers.entry(server.into()).or_default()[result as usize] += 1;
        }
    }

    pub(crate) fn read(&self, server: &str) -> Counts {
        self.0.lock().get(server).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Observe;

    #[test]
    fn oauth2_refreshes_are_counted_by_server_and_result() {
        let observe = Observe::default();
        let failed = |server, ended| Event::TokenRefreshFailed { server, reason: "late", ended, repeated: false };
        for event in [
            Event::TokenRefreshed { server: "a" },
            failed("a", false),
            failed("a", false),
            failed("a", true),
            failed("b", true),
            Event::LoginDone { server: "a" },
        ] {
            observe.emit(&event);
        }
        assert_eq!(observe.refresh_counts("a"), [1, 2, 1]);
        assert_eq!(observe.refresh_counts("b"), [0, 0, 1]);
        assert_eq!(observe.refresh_counts("c"), [0, 0, 0]);
    }

    #[test]
    fn the_number_of_counted_servers_is_bounded() {
        let counts = RefreshCounts::default();
        for number in 0..=MAX_SERVERS {
            counts.add(&number.to_string(), RefreshResult::Ended);
        }
        counts.add("0", RefreshResult::Ended);
        assert_eq!(counts.read("0"), [0, 0, 2]);
        assert_eq!(counts.read(&MAX_SERVERS.to_string()), [0, 0, 0]);
    }
}
