//! The state of the current configuration. The application publishes it, and the admin API reads it.

use std::time::SystemTime;

use goblin_admin::api::ConfigurationStatus;
use goblin_config::{Config, ServerId};

use crate::admin::status::iso;

#[derive(Clone, Debug)]
pub struct Configuration {
    pub status: ConfigurationStatus,
    /// The servers in the order of the file, and whether each is enabled.
    pub servers: Vec<(ServerId, bool)>,
}

impl Configuration {
    /// Returns the state at start-up.
    pub fn new(config: &Config) -> Configuration {
        let status = ConfigurationStatus { loaded: iso(SystemTime::now()), ..ConfigurationStatus::default() };
        Configuration { status, servers: Configuration::servers_of(config) }
    }

    pub fn servers_of(config: &Config) -> Vec<(ServerId, bool)> {
        config.servers.iter().map(|(id, server)| (id.clone(), server.enabled)).collect()
    }
}
