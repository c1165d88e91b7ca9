//! Connections to a gateway that runs already.

use anyhow::{Context, Result};
use goblin_config::exposure::ProfileName;
use goblin_config::secret::Secret;
use tokio::io::DuplexStream;

use crate::bridge::wire::{Target, Wire};
use crate::connect::ProxyEnvironment;
use crate::environment::environment;
use crate::runtime::identity::Identity;
use crate::runtime::{Places, Record};
use crate::{address, bridge};

/// What may be between a command and the gateway behind the pipe; beyond it whoever writes waits.
pub const PIPE_BYTES: usize = 64 * 1024;

pub fn to_url(url: &str, token: Option<&Secret>, profile: Option<&ProfileName>) -> Result<Wire> {
    let target = Target::new(&address::endpoint(url, profile), token, &ProxyEnvironment::from_process())?;
    Ok(Wire::to(target))
}

/// The gateway of this record, and the one that takes its place.
pub fn to_record(record: Record, profile: Option<&ProfileName>) -> Result<Wire> {
    let identity = record.identity.clone();
    let target = target_of(record, profile)?;
    let profile = profile.cloned();
    Ok(Wire::to_successors(target, move || successor(&identity, profile.as_ref())))
}

/// Carries messages between the pipe and the gateway until the other end of the pipe is dropped.
pub async fn carry(wire: Wire, far: DuplexStream) {
    let (input, output) = tokio::io::split(far);
    bridge::run(wire, input, output, async || std::future::pending().await).await;
}

/// The gateway that was started in place of the one that ended, whatever its configuration says by now.
fn successor(own: &Identity, profile: Option<&ProfileName>) -> Option<Target> {
    let is_successor = |record: &Record| record.identity.is_same_place(own);
    let record = Places::of(&environment).running().into_iter().find(is_successor)?;
    target_of(record, profile).ok()
}

fn target_of(record: Record, profile: Option<&ProfileName>) -> Result<Target> {
    let token = record.token().with_context(|| format!("cannot read the token of the gateway at {}", record.url))?;
    let url = address::endpoint(&record.address(), profile);
    Target::of_record(&url, record, token.as_ref(), &ProxyEnvironment::from_process())
}
