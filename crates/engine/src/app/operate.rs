//! Applies the changes that operators request: by the configuration file, by a signal, or over the admin API.
//!
//! The file sets the target state. If an operator enables or disables a server, that holds until the file changes the
//! server's entry. A file that is invalid, or that changes a setting that needs a restart, is rejected as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use goblin_admin::api::Reloaded;
use goblin_admin::routes::ServerAction;
use goblin_catalog::search::nearest;
use goblin_config::diff::frozen;
use goblin_config::{Config, Server, ServerId};
use goblin_telemetry::{Event, Observe};
use tokio::sync::{Notify, mpsc, watch};

use crate::admin::command::{AdminCommand, CommandError};
use crate::admin::configuration::Configuration;
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
pub struct CommandExecutor {
    supervisor: Arc<BackendSupervisor>,
    observe: Arc<Observe>,
    source: Option<ConfigSource>,
    commands: mpsc::Receiver<AdminCommand>,
    /// The configuration as it was read last.
    config: Config,
    /// The servers that an operator enabled or disabled, regardless of the file.
    switched: BTreeMap<ServerId, bool>,
    told: Arc<watch::Sender<Configuration>>,
}

impl CommandExecutor {
    pub fn new(
        config: Config,
        supervisor: Arc<BackendSupervisor>,
        observe: Arc<Observe>,
        commands: mpsc::Receiver<AdminCommand>,
        told: Arc<watch::Sender<Configuration>>,
    ) -> CommandExecutor {
        CommandExecutor { supervisor, observe, source: None, commands, config, switched: BTreeMap::new(), told }
    }

    /// Sets the source of the configuration.
    pub fn follow(&mut self, source: ConfigSource) {
        self.source = Some(source);
    }

    /// Executes commands and reloads. Never returns, but may be dropped between two of them.
    pub async fn run(mut self) {
        let changed = self.source.as_ref().map_or_else(Arc::default, |source| Arc::clone(&source.changed));
        loop {
            tokio::select! {
                () = changed.notified() => {
                    // The log and the status report the result.
                    let _ = self.reload().await;
                }
                Some(command) = self.commands.recv() => self.obey(command).await,
            }
        }
    }

    async fn obey(&mut self, command: AdminCommand) {
        // The command is executed even if its sender does not wait for the result any more.
        match command {
            AdminCommand::Reload(done) => {
                let _ = done.send(self.reload().await);
            }
            AdminCommand::Server { id, wish, done } => {
                let _ = done.send(self.grant(&id, wish));
            }
        }
    }

    async fn reload(&mut self) -> Result<Reloaded, CommandError> {
        let outcome = self.read().await.and_then(|fresh| self.accept(fresh));
        match &outcome {
            Ok(Reloaded { started, changed, stopped, unchanged }) => {
                let (started, changed, stopped) = (started.len(), changed.len(), stopped.len());
                self.observe.emit(&Event::ConfigReloaded { started, changed, stopped, unchanged: *unchanged });
            }
            Err(refusal) => self.observe.emit(&Event::ConfigRejected { reason: &refusal.to_string() }),
        }
        let problem = outcome.as_ref().err().map(CommandError::to_string);
        self.tell(|told| {
            if problem.is_none() {
                told.loaded = SystemTime::now();
                told.reloads += 1;
            }
            told.problem = problem;
        });
        outcome
    }

    async fn read(&self) -> Result<NewConfig, CommandError> {
        let Some(source) = &self.source else {
            return Err(CommandError::Conflict("this gateway has no configuration file to read again".to_owned()));
        };
        let read = Arc::clone(&source.read);
        let read = tokio::task::spawn_blocking(move || read()).await;
        read.unwrap_or_else(|panic| Err(panic.to_string())).map_err(CommandError::Configuration)
    }

    /// Applies a configuration. Returns an error if it changes a setting that needs a restart.
    fn accept(&mut self, fresh: NewConfig) -> Result<Reloaded, CommandError> {
        let NewConfig { config, warnings, in_force } = fresh;
        let frozen = frozen(&self.config, &config);
        if !frozen.is_empty() {
            return Err(CommandError::Configuration(format!(
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
    fn grant(&mut self, id: &ServerId, wish: ServerAction) -> Result<(), CommandError> {
        if !self.config.servers.contains_key(id) {
            return Err(self.unknown(id));
        }
        match wish {
            ServerAction::Restart if !self.supervisor.restart(id) => {
                return Err(CommandError::Conflict(format!("{id} is disabled: enable it first")));
            }
            ServerAction::Restart => {}
            ServerAction::Enable | ServerAction::Disable => {
                self.switched.insert(id.clone(), wish == ServerAction::Enable);
                self.supervisor.become_as(self.wanted());
                self.tell(|_| ());
            }
        }
        self.observe.emit(&Event::ServerCommanded { server: id.as_str(), command: wish.word() });
        Ok(())
    }

    fn unknown(&self, id: &ServerId) -> CommandError {
        let near = nearest(id.as_str(), self.config.servers.keys().map(ServerId::as_str), 1);
        let near = near.first().map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        CommandError::UnknownServer(format!("there is no server {id}{near}"))
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

    fn tell(&self, change: impl FnOnce(&mut Configuration)) {
        let wanted = self.wanted();
        self.told.send_modify(|told| {
            told.servers = Configuration::servers_of(&wanted);
            change(told);
        });
    }
}
