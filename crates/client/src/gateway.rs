//! Connections to a running gateway.

use std::sync::Arc;

use anyhow::{Context, Result};
use goblin_config::exposure::ProfileName;
use goblin_config::secret::Secret;
use tokio::io::DuplexStream;

use crate::authorization::Authorization;
use crate::bridge::wire::{GatewayConnection, GatewayTarget};
use crate::environment::environment;
use crate::runtime::{GatewayRecord, RecordDirectories};
use crate::{address, bridge};

/// The capacity of the pipe between a command and the gateway. A writer waits while the pipe is full.
pub const PIPE_BYTES: usize = 64 * 1024;

pub fn to_url(url: &str, token: Option<&Secret>, profile: Option<&ProfileName>) -> Result<GatewayConnection> {
    Ok(GatewayConnection::to(GatewayTarget::new(&address::endpoint(url, profile), token, None)?))
}

/// Connects to an endpoint with the tokens of a login.
pub fn to_login(url: &str, login: Arc<dyn Authorization>, profile: Option<&ProfileName>) -> Result<GatewayConnection> {
    let target = GatewayTarget::new(&address::endpoint(url, profile), None, None)?;
    Ok(GatewayConnection::to(target.with_login(login)))
}

/// Connects to the gateway of this record, and to its successor after a restart. `may_follow` is a further condition for
/// a successor.
pub fn to_record(
    record: GatewayRecord,
    profile: Option<&ProfileName>,
    may_follow: fn(&GatewayRecord) -> bool,
) -> Result<GatewayConnection> {
    let profile = profile.cloned();
    following(record, may_follow, move |record| {
        let token =
            record.token().with_context(|| format!("cannot read the token of the gateway at {}", record.url))?;
        let url = address::endpoint(&record.address(), profile.as_ref());
        GatewayTarget::new(&url, token.as_ref(), Some(record))
    })
}

/// Connects to the gateway of this record. When it has ended, a gateway of the same file or directory is its successor.
/// The configuration of the successor may have changed.
pub(crate) fn following(
    record: GatewayRecord,
    may_follow: fn(&GatewayRecord) -> bool,
    target: impl Fn(GatewayRecord) -> Result<GatewayTarget> + Send + Sync + 'static,
) -> Result<GatewayConnection> {
    let own = record.identity.clone();
    let current = target(record)?;
    let successor = move || {
        let mut running = RecordDirectories::of(&environment).running().into_iter();
        target(running.find(|record| record.identity.is_same_place(&own) && may_follow(record))?).ok()
    };
    Ok(GatewayConnection::to_successors(current, successor))
}

/// Carries messages between the pipe and the gateway until the other end of the pipe is dropped.
pub async fn carry(wire: GatewayConnection, far: DuplexStream) {
    let (input, output) = tokio::io::split(far);
    bridge::run(wire, input, output, async || std::future::pending().await).await;
}
