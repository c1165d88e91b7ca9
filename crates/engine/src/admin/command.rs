//! Commands of operators, as sent to the application.
//!
//! Invariant: no command carries a program to run. Programs come from the configuration file alone.

use goblin_admin::api::Reloaded;
use goblin_admin::routes::ServerAction;
use goblin_config::ServerId;
use tokio::sync::{mpsc, oneshot};

/// The capacity of the command queue. A command is rejected while the queue is full.
pub(crate) const MAX_QUEUED_COMMANDS: usize = 16;

#[derive(Debug)]
pub enum AdminCommand {
    /// Reads the configuration file again.
    Reload(oneshot::Sender<Result<Reloaded, CommandError>>),
    Server {
        id: ServerId,
        wish: ServerAction,
        done: oneshot::Sender<Result<(), CommandError>>,
    },
}

/// The reason for rejecting a command. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The file has problems, or a change needs a restart of the gateway.
    #[error("{0}")]
    Configuration(String),
    /// There is no server with this id. The message suggests similar ids.
    #[error("{0}")]
    UnknownServer(String),
    /// The server's state does not allow the command.
    #[error("{0}")]
    Conflict(String),
}

/// The sender of commands to the application.
pub(crate) type CommandSender = mpsc::Sender<AdminCommand>;
