//! The state of the current configuration. The application publishes it, and the admin API reads it.

use std::time::SystemTime;

use goblin_config::{Config, ServerId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The path of the file, or a description of the directory served without a file.
    pub source: String,
    /// The time at which the configuration was read.
    pub loaded: SystemTime,
    /// The number of reloads since the start.
    pub reloads: u64,
    /// The reason why the file on disk is not in effect.
    pub problem: Option<String>,
    /// The servers in the order of the file, and whether each is enabled.
    pub servers: Vec<(ServerId, bool)>,
}

impl Configuration {
    /// Returns the state at start-up.
    pub fn new(source: String, config: &Config) -> Configuration {
        let servers = Configuration::servers_of(config);
        Configuration { source, loaded: SystemTime::now(), reloads: 0, problem: None, servers }
    }

    pub fn servers_of(config: &Config) -> Vec<(ServerId, bool)> {
        config.servers.iter().map(|(id, server)| (id.clone(), server.enabled)).collect()
    }
}
