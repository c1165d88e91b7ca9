//! Notifications about changed and deleted resources.

use goblin_wire::{Method, Notification, json};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

const DELETED: &str = "dev.goblin/deleted";

/// A notification that a resource changed or was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceUpdate {
    pub uri: String,
    pub is_deleted: bool,
    /// The params as the gateway sent them.
    pub params: String,
}

impl ResourceUpdate {
    /// Reads a notification. Returns `None` if it is no update or names no resource.
    pub fn read(notification: &Notification) -> Option<ResourceUpdate> {
        if !matches!(notification.method, Method::ResourceUpdated | Method::ResourceDeleted) {
            return None;
        }
        let text = notification.raw.as_str();
        let uri = json::string(text, notification.params.uri?)?.into_owned();
        let deleted = notification.params.meta.and_then(|meta| json::member(text, meta, DELETED));
        let is_deleted = notification.method == Method::ResourceDeleted
            || deleted.is_some_and(|deleted| deleted.get(text) == "true");
        let params = notification.params.whole.map_or("{}", |whole| whole.get(text)).to_owned();
        Some(ResourceUpdate { uri, is_deleted, params })
    }
}

/// Returns the present time as in the log: RFC 3339 in UTC. `goblin watch` and the dashboard print it.
pub fn utc_now() -> String {
    let mut text = String::new();
    // Nothing but the memory could fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_in_utc() {
        let time = utc_now();
        assert!(time.len() > "2025-01-01T00:00:00".len() && time.ends_with('Z') && time.contains('T'), "{time}");
    }
}
