//! Sends the log level that clients want to a backend.

use std::convert::Infallible;

use goblin_wire::Method;

use crate::client::caller::Level;
use crate::client::levels::WantedLevel;
use crate::upstream::inbound::LinkOwner;
use crate::upstream::link::{Link, LinkLevel};
use crate::upstream::links::LinkTable;
use crate::upstream::supervisor::ConnectedLink;

/// Sends the log level that the clients want to the backend, and again when it changes.
pub(crate) async fn follow_level(table: &LinkTable, connected: &ConnectedLink) -> Infallible {
    let link = &connected.link;
    // A link that only fetches lists carries no calls, so no client receives its log messages.
    let can_set = can_set_level(connected) && !table.is_per_client();
    link.level.send_replace(if can_set { LinkLevel::Set(None) } else { LinkLevel::Fixed });
    let mut level = table.deps.level.clone();
    level.mark_changed();
    let mut was_set = false;
    while can_set && level.changed().await.is_ok() {
        let lowest = match *level.borrow_and_update() {
            WantedLevel::AtLeast(lowest) => lowest,
            // No request restores the backend's own selection.
            WantedLevel::OfBackend if was_set => Level::LOWEST,
            WantedLevel::OfBackend | WantedLevel::Any => continue,
        };
        was_set = true;
        let start_timeout = table.deps.policies.load().start_timeout;
        let _ = tokio::time::timeout(start_timeout, set_level(link, lowest)).await;
    }
    std::future::pending().await
}

/// Sends the log level that the client requested, if the backend supports log levels.
pub(crate) async fn set_own_level(owner: &LinkOwner, connected: &ConnectedLink) {
    if let Some(level) = owner.client.requested_level().filter(|_| can_set_level(connected)) {
        set_level(&connected.link, level).await;
    }
}

pub(crate) fn can_set_level(connected: &ConnectedLink) -> bool {
    connected.hello.capabilities.logging && connected.hello.dialect.has_handshake()
}

/// Sends a log level. A rejection is harmless: the gateway filters log messages by the client's level in any case.
async fn set_level(link: &Link, level: Level) {
    let params = format!(r#"{{"level":"{}"}}"#, level.as_str());
    let _ = link.query(&Method::SetLevel, &params).await;
    link.level.send_replace(LinkLevel::Set(Some(level)));
}
