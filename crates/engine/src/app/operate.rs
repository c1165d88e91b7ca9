//! Applies the changes that operators request: by the configuration file, by a signal, or over the admin API.
//!
//! The file sets the target state. If an operator enables or disables a server, that holds until the file changes the
//! server's entry. A file that is invalid, or that changes a setting that needs a restart, is rejected as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use goblin_admin::api::{ConfigurationStatus, Reloaded};
use goblin_admin::routes::ServerAction;
use goblin_catalog::search::nearest;
use goblin_config::diff::frozen;
use goblin_config::{Config, Server, ServerId};
use goblin_telemetry::{Event, Observe};
use http::StatusCode;
use tokio::sync::{Notify, mpsc, watch};

use crate::admin::AdminError;
use crate::admin::changes::AdminCommand;
use crate::admin::configuration::Configuration;
use crate::admin::status::iso;
use crate::app::supervisor::BackendSupervisor;

/// The source of the configuration.
pub struct ConfigSource {
    /// Reads the configuration. Returns a description of the problem as an error.
    pub read: Arc<dyn Fn() -> Result<NewConfig, String> + Send + Sync>,
    /// Notified when the configuration may have changed.
    pub changed: Arc<Notify>,
}

/// A configuration that was just read.
pub struct NewConfig {
    pub config: Config,
    pub warnings: Vec<String>,
    /// A callback to call after the configuration was applied.
    pub in_force: Box<dyn FnOnce() + Send>,
}

/// Executes commands and reloads, one after the other.
pub(super) struct CommandExecutor {
    pub supervisor: Arc<BackendSupervisor>,
    pub observe: Arc<Observe>,
    pub source: Option<ConfigSource>,
    pub commands: mpsc::Receiver<AdminCommand>,
    /// The configuration as it was read last.
    pub config: Config,
    /// The servers that an operator enabled or disabled, regardless of the file.
    pub switched: BTreeMap<ServerId, bool>,
    pub told: Arc<watch::Sender<Configuration>>,
}

impl CommandExecutor {
    /// Executes commands and reloads. Never returns, but may be dropped between two of them.
    pub(super) async fn run(mut self) {
        let changed = self.source.as_ref().map_or_else(Arc::default, |source| Arc::clone(&source.changed));
        loop {
            tokio::select! {
                () = changed.notified() => {
                    // The log and the status report the result.
                    let _ = self.reload().await;
                }
                // A command is executed even if its sender does not wait for the result any more.
                Some(command) = self.commands.recv() => match command {
                    AdminCommand::Reload(done) => drop(done.send(self.reload().await)),
                    AdminCommand::Server { id, wish, done } => drop(done.send(self.grant(&id, wish))),
                },
            }
        }
    }

    async fn reload(&mut self) -> Result<Reloaded, AdminError> {
        let outcome = self.read().await.and_then(|fresh| self.accept(fresh));
        match &outcome {
            Ok(Reloaded { started, changed, stopped, unchanged }) => {
                let (started, changed, stopped) = (started.len(), changed.len(), stopped.len());
                self.observe.emit(&Event::ConfigReloaded { started, changed, stopped, unchanged: *unchanged });
            }
            Err(refusal) => self.observe.emit(&Event::ConfigRejected { reason: &refusal.message }),
        }
        let problem = outcome.as_ref().err().map(|refusal| refusal.message.clone());
        self.tell(|status| {
            if problem.is_none() {
                status.loaded = iso(SystemTime::now());
                status.reloads += 1;
            }
            status.problem = problem;
        });
        outcome
    }

    async fn read(&self) -> Result<NewConfig, AdminError> {
        let Some(source) = &self.source else {
            return Err(conflict("this gateway has no configuration file to read again"));
        };
        let read = Arc::clone(&source.read);
        let read = tokio::task::spawn_blocking(move || read()).await;
        read.unwrap_or_else(|panic| Err(panic.to_string())).map_err(rejected)
    }

    /// Applies a configuration. Returns an error if it changes a setting that needs a restart.
    fn accept(&mut self, fresh: NewConfig) -> Result<Reloaded, AdminError> {
        let NewConfig { config, warnings, in_force } = fresh;
        let frozen = frozen(&self.config, &config);
        if !frozen.is_empty() {
            return Err(rejected(format!(
                "{} cannot change while the gateway runs: restart it, or take the change back",
                frozen.join(", ")
            )));
        }
        let old = std::mem::replace(&mut self.config, config);
        let new = &self.config;
        self.switched.retain(|id, _| new.servers.contains_key(id) && new.servers.get(id) == old.servers.get(id));
        let reloaded = self.supervisor.become_as(self.wanted());
        in_force();
        for warning in &warnings {
            self.observe.emit(&Event::ConfigWarning { warning });
        }
        Ok(reloaded)
    }

    /// Executes a command for one server.
    fn grant(&mut self, id: &ServerId, wish: ServerAction) -> Result<(), AdminError> {
        if !self.config.servers.contains_key(id) {
            return Err(self.unknown(id));
        }
        match wish {
            ServerAction::Restart if !self.supervisor.restart(id) => {
                return Err(conflict(format!("{id} is disabled: enable it first")));
            }
            ServerAction::Restart => {}
            ServerAction::Enable | ServerAction::Disable => {
                self.switched.insert(id.clone(), wish == ServerAction::Enable);
                self.supervisor.become_as(self.wanted());
                self.tell(|_| ());
            }
        }
        self.observe.emit(&Event::ServerCommanded { server: id.as_str(), command: wish.as_str() });
        Ok(())
    }

    fn unknown(&self, id: &ServerId) -> AdminError {
        let near = nearest(id.as_str(), self.config.servers.keys().map(ServerId::as_str), 1);
        let near = near.first().map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        AdminError::new(StatusCode::NOT_FOUND, format!("there is no server {id}{near}"))
    }

    /// Returns the configuration of the file with the servers that operators enabled or disabled.
    fn wanted(&self) -> Config {
        let mut config = self.config.clone();
        for (id, enabled) in &self.switched {
            if let Some(server) = config.servers.get_mut(id) {
                *server = Arc::new(Server { enabled: *enabled, ..Server::clone(server) });
            }
        }
        config
    }

    /// Publishes the servers and a change of the status.
    fn tell(&self, change: impl FnOnce(&mut ConfigurationStatus)) {
        let wanted = self.wanted();
        self.told.send_modify(|told| {
            told.servers = Configuration::servers_of(&wanted);
            change(&mut told.status);
        });
    }
}

/// Rejects a file with problems, or with a change that needs a restart of the gateway.
fn rejected(message: String) -> AdminError {
    AdminError::new(StatusCode::UNPROCESSABLE_ENTITY, message)
}

/// Rejects a command that the current state does not allow.
fn conflict(message: impl Into<String>) -> AdminError {
    AdminError::new(StatusCode::CONFLICT, message)
}
