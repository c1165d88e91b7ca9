//! What is known of the configuration that is in force. Whoever carries commands out publishes it.

use std::time::SystemTime;

use crate::config::{Config, ServerId};

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
    /// The servers that are in it and do not run.
    pub disabled: Vec<ServerId>,
}

impl Configuration {
    /// As it is at the start.
    pub fn new(source: String, config: &Config) -> Configuration {
        let disabled = Configuration::disabled_of(config);
        Configuration { source, loaded: SystemTime::now(), reloads: 0, problem: None, disabled }
    }

    pub fn disabled_of(config: &Config) -> Vec<ServerId> {
        let disabled = config.servers.iter().filter(|(_, server)| !server.enabled);
        disabled.map(|(id, _)| id.clone()).collect()
    }
}
