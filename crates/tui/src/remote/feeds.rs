//! Reads the data that only one panel shows, while the user looks at it: subscriptions, sessions, calls and logs.
//!
//! The feeds are separate from the status. A slow feed delays no status, and a failed feed ends no connection. Of the
//! calls, the dashboard requests only those that it does not have yet.

use goblin_admin::api::{CallList, LogList, SessionList, SubscriptionList};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use crate::remote::api::Api;
use crate::remote::{PERIOD, logins, send};
use crate::state::message::{Feed, Interest, UiEvent};

/// The number of calls that are kept.
const MAX_CALLS: usize = 1000;

/// Reads the feeds every second, and at once when the user looks at something else. Returns when the dashboard ended.
pub(super) async fn run(api: &Api, events: &mpsc::Sender<UiEvent>, mut interest: watch::Receiver<Interest>) {
    let mut calls = CallHistory::default();
    loop {
        let looked_at = interest.borrow_and_update().clone();
        let round = async {
            read_all(api, events, &looked_at, &mut calls).await;
            tokio::time::sleep(PERIOD).await;
        };
        tokio::select! {
            () = round => {}
            // A read that is no longer needed ends here.
            changed = interest.changed() => if changed.is_err() { return },
        }
    }
}

async fn read_all(api: &Api, events: &mpsc::Sender<UiEvent>, interest: &Interest, calls: &mut CallHistory) {
    if let Some(server) = &interest.logs_of {
        // An id may contain any character.
        let path = format!("/api/logs?level=debug&server={}", utf8_percent_encode(server, NON_ALPHANUMERIC));
        let message = read(api, Feed::Logs, &path, |list: LogList| UiEvent::Logs { server: server.clone(), list });
        let _ = send(events, message.await).await;
    }
    if let Some(server) = &interest.login_of {
        let _ = send(events, logins::read(api, server.clone()).await).await;
    }
    let message = match interest.panel.feed() {
        Some(feed @ Feed::Subscriptions) => {
            read(api, feed, "/api/subscriptions", |list: SubscriptionList| UiEvent::Subscriptions(list)).await
        }
        Some(feed @ Feed::Sessions) => {
            read(api, feed, "/api/sessions", |list: SessionList| UiEvent::Sessions(list)).await
        }
        Some(feed @ Feed::Calls) => {
            let path = calls.path();
            read(api, feed, &path, |list: CallList| UiEvent::Calls(calls.merge(list))).await
        }
        Some(Feed::Logs) | None => return,
    };
    let _ = send(events, message).await;
}

async fn read<T: DeserializeOwned>(api: &Api, feed: Feed, path: &str, message: impl FnOnce(T) -> UiEvent) -> UiEvent {
    match api.find(path).await {
        Ok(Some(list)) => message(list),
        Ok(None) => {
            let route = path.split('?').next().unwrap_or(path);
            UiEvent::Unreadable { feed, reason: format!("the gateway is older than this dashboard: it has no {route}") }
        }
        Err(reason) => UiEvent::Unreadable { feed, reason },
    }
}

/// The calls that the gateway has sent so far, newest first.
#[derive(Default)]
struct CallHistory(CallList);

impl CallHistory {
    /// Returns the request for the calls that are not known yet.
    fn path(&self) -> String {
        format!("/api/calls?after={}&limit={MAX_CALLS}", self.0.total)
    }

    /// Adds the newer calls. Returns all of them. Begins again if the gateway restarted: the next request then returns
    /// its calls.
    fn merge(&mut self, newer: CallList) -> CallList {
        let known = &mut self.0;
        if !known.started.is_empty() && known.started != newer.started {
            *known = CallList::default();
            return CallList { calls: Vec::new(), ..newer };
        }
        let older = std::mem::take(&mut known.calls);
        *known = newer;
        known.calls.extend(older);
        known.calls.truncate(MAX_CALLS);
        known.clone()
    }
}

#[cfg(test)]
mod tests {
    use goblin_admin::api::CallInfo;

    use super::*;

    #[test]
    fn use6_only_new_calls_are_requested_and_a_restart_begins_again() {
        let list = |started: &str, seqs: std::ops::RangeInclusive<u64>| CallList {
            started: started.to_owned(),
            total: *seqs.end(),
            calls: seqs.rev().map(|seq| CallInfo { seq, ..CallInfo::default() }).collect(),
            ..CallList::default()
        };
        let ends = |list: CallList| {
            (list.calls.len(), list.calls.first().map(|call| call.seq), list.calls.last().map(|call| call.seq))
        };
        let mut history = CallHistory::default();
        assert_eq!(history.path(), "/api/calls?after=0&limit=1000");
        assert_eq!(ends(history.merge(list("a", 1..=3))), (3, Some(3), Some(1)));
        assert_eq!(history.path(), "/api/calls?after=3&limit=1000");
        assert_eq!(ends(history.merge(list("a", 4..=4))), (4, Some(4), Some(1)));
        assert_eq!(ends(history.merge(list("a", 5..=1002))), (MAX_CALLS, Some(1002), Some(3)));
        assert_eq!(ends(history.merge(list("b", 1..=2))), (0, None, None));
        assert_eq!(history.path(), "/api/calls?after=0&limit=1000");
        assert_eq!(ends(history.merge(list("b", 1..=2))), (2, Some(2), Some(1)));
    }
}
