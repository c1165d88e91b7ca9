//! What is known of the configuration that is in force. Whoever carries commands out publishes it.

use std::time::SystemTime;

use goblin_config::{Config, ServerId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The file, or in words what is served without one.
    pub source: String,
    /// When it was read.
    pub loaded: SystemTime,
    /// How often it was read anew since the start.
    pub reloads: u64,
    /// Why the file, as it is now, is not in force.
    pub problem: Option<String>,
    /// Its servers in their order, and whether they are to run.
    pub servers: Vec<(ServerId, bool)>,
}

impl Configuration {
    /// As it is at the start.
    pub fn new(source: String, config: &Config) -> Configuration {
        let servers = Configuration::servers_of(config);
        Configuration { source, loaded: SystemTime::now(), reloads: 0, problem: None, servers }
    }

    pub fn servers_of(config: &Config) -> Vec<(ServerId, bool)> {
        config.servers.iter().map(|(id, server)| (id.clone(), server.enabled)).collect()
    }
}
