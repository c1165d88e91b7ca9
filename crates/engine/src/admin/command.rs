//! What an operator may want done, on its way to whoever can do it.
//!
//! No command ever carries a program to run: those come from the configuration file.

use tokio::sync::{mpsc, oneshot};

use goblin_admin::api::Reloaded;
use goblin_admin::routes::Wish;
use goblin_config::ServerId;

/// Commands that wait at most. Full: the next is refused as overloaded.
pub const MOST_WAITING: usize = 16;

#[derive(Debug)]
pub enum Command {
    /// Read the configuration file anew.
    Reload(oneshot::Sender<Result<Reloaded, Refusal>>),
    Server {
        id: ServerId,
        wish: Wish,
        done: oneshot::Sender<Result<(), Refusal>>,
    },
}

/// Why a command was not carried out; nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The file is broken, or wants what needs a restart of the gateway.
    #[error("{0}")]
    Configuration(String),
    /// There is no server of this id. The nearest ones are named.
    #[error("{0}")]
    UnknownServer(String),
    /// It is not in a state for this.
    #[error("{0}")]
    Conflict(String),
}

/// The way to whoever carries commands out.
pub type Commands = mpsc::Sender<Command>;
