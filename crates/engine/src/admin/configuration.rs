//! The state of the current configuration. The application publishes it, and the admin API reads it.

use std::sync::Arc;
use std::time::SystemTime;

use goblin_admin::api::ConfigurationStatus;
use goblin_config::target::Target;
use goblin_config::{Config, Server, ServerId};

use crate::admin::status::iso;

#[derive(Clone, Debug)]
pub struct Configuration {
    pub status: ConfigurationStatus,
    /// The servers in the order of the file.
    pub servers: Vec<ConfiguredServer>,
}

/// A server of the file.
#[derive(Clone, Debug)]
pub struct ConfiguredServer {
    pub id: ServerId,
    pub enabled: bool,
    pub target: Target,
}

impl Configuration {
    /// Returns the state at start-up.
    pub fn new(config: &Config) -> Configuration {
        let status = ConfigurationStatus { loaded: iso(SystemTime::now()), ..ConfigurationStatus::default() };
        Configuration { status, servers: Configuration::servers_of(config) }
    }

    pub fn servers_of(config: &Config) -> Vec<ConfiguredServer> {
        let server = |(id, server): (&ServerId, &Arc<Server>)| ConfiguredServer {
            id: id.clone(),
            enabled: server.enabled,
            target: Target::of(&server.transport),
        };
        config.servers.iter().map(server).collect()
    }
}
