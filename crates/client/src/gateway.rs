//! Connections to a running gateway.

use anyhow::{Context, Result};
use goblin_config::exposure::ProfileName;
use goblin_config::secret::Secret;
use tokio::io::DuplexStream;

use crate::bridge::wire::{GatewayConnection, GatewayTarget};
use crate::connect::ProxyEnvironment;
use crate::environment::environment;
use crate::runtime::identity::Identity;
use crate::runtime::{GatewayRecord, RecordDirectories};
use crate::{address, bridge};

/// The capacity of the pipe between a command and the gateway. A writer waits while the pipe is full.
pub const PIPE_BYTES: usize = 64 * 1024;

pub fn to_url(url: &str, token: Option<&Secret>, profile: Option<&ProfileName>) -> Result<GatewayConnection> {
    let target = GatewayTarget::new(&address::endpoint(url, profile), token, &ProxyEnvironment::from_process())?;
    Ok(GatewayConnection::to(target))
}

/// Connects to the gateway of this record, and to its successor after a restart.
pub fn to_record(record: GatewayRecord, profile: Option<&ProfileName>) -> Result<GatewayConnection> {
    let identity = record.identity.clone();
    let target = target_of(record, profile)?;
    let profile = profile.cloned();
    Ok(GatewayConnection::to_successors(target, move || successor(&identity, profile.as_ref())))
}

/// Carries messages between the pipe and the gateway until the other end of the pipe is dropped.
pub async fn carry(wire: GatewayConnection, far: DuplexStream) {
    let (input, output) = tokio::io::split(far);
    bridge::run(wire, input, output, async || std::future::pending().await).await;
}

/// Returns the gateway that replaced one that ended. Its configuration may have changed.
fn successor(own: &Identity, profile: Option<&ProfileName>) -> Option<GatewayTarget> {
    let is_successor = |record: &GatewayRecord| record.identity.is_same_place(own);
    let record = RecordDirectories::of(&environment).running().into_iter().find(is_successor)?;
    target_of(record, profile).ok()
}

fn target_of(record: GatewayRecord, profile: Option<&ProfileName>) -> Result<GatewayTarget> {
    let token = record.token().with_context(|| format!("cannot read the token of the gateway at {}", record.url))?;
    let url = address::endpoint(&record.address(), profile);
    GatewayTarget::of_record(&url, record, token.as_ref(), &ProxyEnvironment::from_process())
}
