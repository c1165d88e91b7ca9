//! The client that the suite starts for a scenario in which clients are judged.
//!
//! The suite plays the server and judges whoever speaks to it. With a gateway in between that is the gateway, and this
//! client is only its user: it calls what the scenario wants called and answers what it is asked. Without a gateway it
//! is judged itself, which shows that it plays its part well.

mod gateway;
mod mirror;
mod peer;
mod script;
mod wire;

use std::env;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::time::timeout;

use crate::client::gateway::Gateway;
use crate::client::peer::{Peer, is_modern};

/// Names the gateway's binary; without it the client speaks to the suite itself.
pub const GATEWAY: &str = "GOBLIN_CONFORMANCE_GATEWAY";
/// Names the version that the client speaks; without it, it is the one that the suite's server speaks.
pub const SPOKEN: &str = "GOBLIN_CONFORMANCE_SPOKEN";

/// The suite gives up on its client after 30 s and would leave the gateway behind.
const PATIENCE: Duration = Duration::from_secs(25);

/// What is to be played, as the suite has put it into the environment.
pub struct Part {
    pub scenario: String,
    pub context: Value,
    /// The version that the suite's server speaks.
    server: String,
    /// The version that this client speaks.
    spoken: String,
}

impl Part {
    fn from_environment() -> Result<Part> {
        let context = env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_else(|_| "{}".to_owned());
        let server = env::var("MCP_CONFORMANCE_PROTOCOL_VERSION").context("the suite has not named a version")?;
        Ok(Part {
            scenario: env::var("MCP_CONFORMANCE_SCENARIO").context("the suite has not named a scenario")?,
            context: serde_json::from_str(&context).context("the context of the scenario is no JSON")?,
            spoken: env::var(SPOKEN).unwrap_or_else(|_| server.clone()),
            server,
        })
    }

    async fn play(&self, url: &str) -> Result<()> {
        let Some(program) = env::var_os(GATEWAY) else {
            return self.perform(url).await;
        };
        let gateway = Gateway::start(&program, url, self.protocol()).await?;
        let outcome = self.perform(&gateway.url).await;
        gateway.stop().await?;
        outcome
    }

    /// For a client with a handshake a gateway would look for a server with one, and the suite's servers of 2026-07-28
    /// answer that too, but count it as a fault.
    fn protocol(&self) -> &'static str {
        if is_modern(&self.server) && !is_modern(&self.spoken) { "modern" } else { "auto" }
    }

    async fn perform(&self, url: &str) -> Result<()> {
        let peer = Peer::connect(url, &self.spoken).await?;
        script::play(self, &peer).await
    }
}

pub async fn play(url: &str) -> Result<()> {
    let part = Part::from_environment()?;
    // A gateway that is still there then ends with this.
    timeout(PATIENCE, part.play(url)).await.context("the scenario did not come to its end")?
}
