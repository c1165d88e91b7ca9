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
use goblin_client::admin::UNKNOWN_SERVER;
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
    pub on_applied: Box<dyn FnOnce(&Reloaded) + Send>,
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
    pub overrides: BTreeMap<ServerId, bool>,
    pub published: Arc<watch::Sender<Configuration>>,
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
                    AdminCommand::Server { id, action, done } => drop(done.send(self.execute(&id, action))),
                },
            }
        }
    }

    async fn reload(&mut self) -> Result<Reloaded, AdminError> {
        let outcome = self.read().await.and_then(|new_config| self.accept(new_config));
        match &outcome {
            Ok(reloaded) => {
                let Reloaded { started, changed, stopped, unchanged, .. } = reloaded;
                let (started, changed, stopped) = (started.len(), changed.len(), stopped.len());
                let (unchanged, what) = (*unchanged, &*reloaded.summary());
                self.observe.emit(&Event::ConfigReloaded { what, started, changed, stopped, unchanged });
            }
            Err(error) => self.observe.emit(&Event::ConfigRejected { reason: &error.message }),
        }
        let problem = outcome.as_ref().err().map(|error| error.message.clone());
        self.publish(|status| {
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
            return Err(conflict("this gateway has no configuration file to reload"));
        };
        let read = Arc::clone(&source.read);
        let read = tokio::task::spawn_blocking(move || read()).await;
        read.unwrap_or_else(|panic| Err(panic.to_string())).map_err(rejected)
    }

    /// Applies a configuration. Returns an error if it changes a setting that needs a restart.
    fn accept(&mut self, new_config: NewConfig) -> Result<Reloaded, AdminError> {
        let NewConfig { config, warnings, on_applied } = new_config;
        let frozen = frozen(&self.config, &config);
        if !frozen.is_empty() {
            return Err(rejected(format!(
                "{} cannot change while the gateway runs: restart it, or undo the change",
                frozen.join(", ")
            )));
        }
        let old = std::mem::replace(&mut self.config, config);
        let new = &self.config;
        self.overrides.retain(|id, _| new.servers.contains_key(id) && new.servers.get(id) == old.servers.get(id));
        self.observe.feed().set_servers(new.servers.keys().map(ServerId::as_str));
        let reloaded = self.supervisor.apply(self.effective_config());
        on_applied(&reloaded);
        for warning in &warnings {
            self.observe.emit(&Event::ConfigWarning { warning });
        }
        Ok(reloaded)
    }

    /// Executes a command for one server.
    fn execute(&mut self, id: &ServerId, action: ServerAction) -> Result<(), AdminError> {
        if !self.config.servers.contains_key(id) {
            return Err(self.unknown(id));
        }
        match action {
            ServerAction::Restart if !self.supervisor.restart(id) => {
                return Err(conflict(self.reason_not_running(id)));
            }
            ServerAction::Restart => {}
            ServerAction::Enable | ServerAction::Disable => {
                self.overrides.insert(id.clone(), action == ServerAction::Enable);
                self.supervisor.apply(self.effective_config());
                self.publish(|_| ());
            }
        }
        self.observe.emit(&Event::ServerCommand { server: id.as_str(), command: action.as_str() });
        Ok(())
    }

    /// Returns the reason why a configured server does not run.
    fn reason_not_running(&self, id: &ServerId) -> String {
        let config = self.effective_config();
        let enabled = config.servers.get(id).filter(|server| server.enabled);
        match enabled.and_then(|server| server.misconfiguration()) {
            Some(misconfiguration) => format!("{id} is misconfigured: {}", misconfiguration.reason()),
            None => format!("{id} is disabled: enable it first"),
        }
    }

    fn unknown(&self, id: &ServerId) -> AdminError {
        let near = nearest(id.as_str(), self.config.servers.keys().map(ServerId::as_str), 1);
        let near = near.first().map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        AdminError::new(StatusCode::NOT_FOUND, format!("{UNKNOWN_SERVER} {id}{near}"))
    }

    /// Returns the configuration of the file with the servers that operators enabled or disabled.
    fn effective_config(&self) -> Config {
        let mut config = self.config.clone();
        for (id, enabled) in &self.overrides {
            if let Some(server) = config.servers.get_mut(id) {
                *server = Arc::new(Server { enabled: *enabled, ..Server::clone(server) });
            }
        }
        config
    }

    /// Publishes the servers and a change of the status.
    fn publish(&self, change: impl FnOnce(&mut ConfigurationStatus)) {
        let effective = self.effective_config();
        self.published.send_modify(|configuration| {
            configuration.servers = Configuration::servers_of(&effective);
            change(&mut configuration.status);
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
