//! The client connections of all listeners, with one common limit.
//!
//! The limit reserves descriptors for links, child processes and files. If it is reached, the oldest idle connection is
//! closed for the new one. Connections that never sent a request go first while they are many. Idle connections
//! therefore block neither clients nor operators.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use goblin_telemetry::Observe;
use goblin_wire::Limit;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::eviction::{EvictionCandidate, EvictionQueue};
use crate::front::activity::ConnectionActivity;

/// The number of connections per session, because a client may open several.
const CONNECTIONS_PER_SESSION: usize = 4;
/// The number of descriptors that each server may need: pipes, watches, connections.
const DESCRIPTORS_PER_SERVER: usize = 16;
/// The number of descriptors for listeners, the log and files.
const OTHER_DESCRIPTORS: usize = 64;
/// The divisor for the share of descriptors that clients never get.
const RESERVED_SHARE: usize = 4;
/// The smallest limit, even if there are very few descriptors.
const MIN_CONNECTIONS: usize = 16;
/// The time that a new connection waits for an evicted one to close before another is evicted.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(100);
/// The largest number of idle connections that are evicted for one new connection.
const MAX_EVICTIONS: usize = 8;

pub(crate) struct Connections {
    max: usize,
    room: Arc<Semaphore>,
    table: Mutex<ConnectionTable>,
    begin: Instant,
    observe: Arc<Observe>,
}

#[derive(Default)]
struct ConnectionTable {
    open: HashMap<u64, Arc<ConnectionActivity>>,
    last: u64,
    victims: EvictionQueue<u64>,
}

/// A connection that counts towards the limit until it is dropped.
pub(crate) struct Connection {
    pub activity: Arc<ConnectionActivity>,
    number: u64,
    connections: Arc<Connections>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.table.lock().open.remove(&self.number);
    }
}

/// Returns the limit of connections for this number of sessions, servers and descriptors.
pub(crate) fn bound(max_sessions: usize, servers: usize, descriptors: Option<u64>) -> usize {
    let wanted = max_sessions.saturating_mul(CONNECTIONS_PER_SESSION).min(Semaphore::MAX_PERMITS);
    let Some(descriptors) = descriptors.and_then(|limit| usize::try_from(limit).ok()) else { return wanted };
    let reserved = (OTHER_DESCRIPTORS + servers * DESCRIPTORS_PER_SERVER).max(descriptors / RESERVED_SHARE);
    wanted.min(descriptors.saturating_sub(reserved).max(MIN_CONNECTIONS))
}

impl Connections {
    pub(crate) fn new(max: usize, observe: Arc<Observe>) -> Arc<Connections> {
        let (room, table) = (Arc::new(Semaphore::new(max)), Mutex::default());
        Arc::new(Connections { max, room, table, begin: Instant::now(), observe })
    }

    /// Admits a connection. If the limit is reached, waits until an idle connection has closed. Returns `None` if every
    /// connection is in use.
    pub(crate) async fn admit(self: &Arc<Connections>) -> Option<Connection> {
        if let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() {
            return Some(self.insert(permit));
        }
        self.observe.limit_hit(Limit::MaxConnections);
        for _ in 0..MAX_EVICTIONS {
            if !self.evict() {
                return None;
            }
            // A connection with a request arriving at this moment stays open. In that case evict the next one.
            let permit = tokio::time::timeout(CLOSE_TIMEOUT, Arc::clone(&self.room).acquire_owned()).await;
            if let Ok(Ok(permit)) = permit {
                return Some(self.insert(permit));
            }
        }
        None
    }

    fn insert(self: &Arc<Connections>, permit: OwnedSemaphorePermit) -> Connection {
        let activity = ConnectionActivity::new(self.begin);
        let mut table = self.table.lock();
        table.last += 1;
        let number = table.last;
        table.open.insert(number, Arc::clone(&activity));
        drop(table);
        Connection { activity, number, connections: Arc::clone(self), _permit: permit }
    }

    /// Asks the oldest idle connection to close. Returns `false` if there is none.
    pub(crate) fn evict(&self) -> bool {
        let ConnectionTable { open, victims, .. } = &mut *self.table.lock();
        loop {
            while let Some(victim) = victims.pop() {
                let activity = open.get(&victim.key).filter(|activity| activity.idle_since() == Some(victim.since));
                if let Some(activity) = activity {
                    activity.evict();
                    return true;
                }
            }
            let candidate = |(number, activity): (&u64, &Arc<ConnectionActivity>)| {
                let since = activity.idle_since()?;
                Some(EvictionCandidate { key: *number, is_new: activity.is_new(since), since })
            };
            if !victims.refill(self.max, Instant::now(), || open.iter().filter_map(candidate).collect()) {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard5_connections_leave_descriptors_for_everything_else() {
        for (sessions, servers, descriptors, expected) in [
            (10_000, 5, Some(65_536), 40_000),
            (10_000, 5, Some(1024), 768),
            (10_000, 5, Some(256), 256 - 64 - 5 * 16),
            (10_000, 50, Some(256), MIN_CONNECTIONS),
            (2, 5, Some(1024), 8),
            (10_000, 5, None, 40_000),
        ] {
            assert_eq!(bound(sessions, servers, descriptors), expected, "{sessions} {servers} {descriptors:?}");
        }
    }

    #[tokio::test]
    async fn hard5_the_oldest_idle_connection_makes_room_and_a_busy_one_does_not() {
        let connections = Connections::new(2, Arc::default());
        let (first, second) = (connections.admit().await, connections.admit().await);
        let (first, second) = (first.expect("there is room"), second.expect("there is room"));
        let work = first.activity.begin_work();
        let closing = async {
            second.activity.evicted().await;
            drop(second);
        };
        let (third, ()) = tokio::join!(connections.admit(), closing);
        let third = third.expect("the idle connection has closed");
        let _busy = third.activity.begin_work();
        assert!(connections.admit().await.is_none(), "both are busy");
        drop(work);
        assert!(connections.evict(), "the first is idle again");
        first.activity.evicted().await;
        assert_eq!(connections.table.lock().open.len(), 2);
        assert!(connections.observe.limit_counts().contains(&("maxConnections", 2)));
    }
}
