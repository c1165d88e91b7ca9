//! The client that the suite starts for a scenario that judges clients.
//!
//! The suite plays the server and judges its client. If a gateway is in between, the gateway is judged, and this client
//! only uses it: it makes the calls of the scenario and answers server requests. If there is no gateway, this client
//! itself is judged, which proves that it behaves correctly.

mod auth;
mod gateway;
mod mirror;
mod peer;
mod script;
mod wire;

use std::env;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::time::timeout;

pub use crate::client::gateway::Gateway;
use crate::client::peer::{Peer, is_modern};

/// The variable that names the gateway's binary. If it is not set, the client connects to the suite directly.
pub const GATEWAY: &str = "GOBLIN_CONFORMANCE_GATEWAY";
/// The variable that names the client's protocol version. The default is the version of the suite's server.
pub const CLIENT_VERSION: &str = "GOBLIN_CONFORMANCE_SPOKEN";

/// The time limit of a scenario. The suite kills its client after 30 s, which would leave the gateway running.
const TIMEOUT: Duration = Duration::from_secs(25);

/// The scenario to play, from the environment that the suite sets.
pub struct Part {
    pub scenario: String,
    pub context: Value,
    /// The protocol version of the suite's server.
    server: String,
    /// The protocol version of this client.
    client_version: String,
}

impl Part {
    fn from_environment() -> Result<Part> {
        let context = env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_else(|_| "{}".to_owned());
        let server = env::var("MCP_CONFORMANCE_PROTOCOL_VERSION").context("the suite has not named a version")?;
        Ok(Part {
            scenario: env::var("MCP_CONFORMANCE_SCENARIO").context("the suite has not named a scenario")?,
            context: serde_json::from_str(&context).context("the context of the scenario is no JSON")?,
            client_version: env::var(CLIENT_VERSION).unwrap_or_else(|_| server.clone()),
            server,
        })
    }

    async fn play(&self, url: &str) -> Result<()> {
        let Some(program) = env::var_os(GATEWAY) else {
            return self.perform(url).await;
        };
        let gateway = Gateway::start(&program, self.entry(url)).await?;
        let outcome = match self.needs_login() {
            true => auth::play(self, &gateway, Path::new(&program)).await,
            false => self.perform(&gateway.url).await,
        };
        gateway.stop().await?;
        outcome
    }

    /// Reports whether the suite's server needs a login.
    fn needs_login(&self) -> bool {
        self.scenario.starts_with("auth/")
    }

    /// Returns the entry of the suite's server in the gateway's configuration.
    fn entry(&self, url: &str) -> Value {
        let mut entry = json!({ "url": url, "protocol": self.protocol() });
        if self.scenario.starts_with("auth/client-credentials") {
            entry["oauth"] = auth::machine_options(&self.context);
        } else if self.needs_login() {
            entry["oauth"] = auth::options(&self.context);
        }
        entry
    }

    /// Returns the `protocol` setting of the gateway. For a legacy client, `auto` would probe for a legacy server
    /// first. The suite's servers of 2026-07-28 answer such a probe but count it as a failure.
    fn protocol(&self) -> &'static str {
        if is_modern(&self.server) && !is_modern(&self.client_version) { "modern" } else { "auto" }
    }

    async fn perform(&self, url: &str) -> Result<()> {
        let peer = Peer::connect(url, &self.client_version).await?;
        script::play(self, &peer).await
    }
}

pub async fn play(url: &str) -> Result<()> {
    let part = Part::from_environment()?;
    // On a timeout the drop kills a gateway that still runs.
    timeout(TIMEOUT, part.play(url)).await.context("the scenario did not end")?
}
