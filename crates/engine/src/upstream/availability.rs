//! The status of a server as operators and agents see it.

use goblin_config::ServerId;
use goblin_config::misconfigured::Misconfiguration;
use goblin_telemetry::clean;
use goblin_wire::Era;

use crate::upstream::{Backend, BackendState};

/// The status of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Availability {
    Ready,
    Starting,
    Failed,
    /// The server does not run until a person logs in.
    LoginNeeded,
    /// The server's entry needs a variable or a file that is missing, so the server does not run (D16).
    Misconfigured,
}

/// A server whose entry needs a variable or a file that is missing.
#[derive(Clone, Debug, PartialEq)]
pub struct MisconfiguredServer {
    pub id: ServerId,
    pub misconfiguration: Misconfiguration,
    /// Whether the server runs with its previous entry.
    pub is_running: bool,
}

impl MisconfiguredServer {
    /// Reports whether one of these has the same problems, wherever the file has them now.
    pub fn is_among(&self, others: &[MisconfiguredServer]) -> bool {
        let key =
            |server: &MisconfiguredServer| (server.id.clone(), server.is_running, server.misconfiguration.summary());
        let own = key(self);
        others.iter().any(|other| key(other) == own)
    }
}

impl Availability {
    pub fn of(backend: &Backend) -> Availability {
        Availability::from_state(&backend.state(), backend.has_settled())
    }

    fn from_state(state: &BackendState, has_settled: bool) -> Availability {
        match state {
            // Connected, but the first listing is not complete.
            BackendState::Ready if !has_settled => Availability::Starting,
            BackendState::Ready => Availability::Ready,
            BackendState::Starting => Availability::Starting,
            BackendState::Lost(_) | BackendState::Stopped => Availability::Failed,
            BackendState::LoginNeeded(_) => Availability::LoginNeeded,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Availability::Ready => "ready",
            Availability::Starting => "starting",
            Availability::Failed => "failed",
            Availability::LoginNeeded => "login_needed",
            Availability::Misconfigured => "misconfigured",
        }
    }
}

/// The server's description of itself from its last connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerDescription {
    /// The name and version of the server's software.
    pub software: String,
    /// The protocol version of the connection.
    pub protocol: &'static str,
    /// `legacy`, `modern` or `both`.
    pub era: &'static str,
}

impl ServerDescription {
    /// Returns `None` if the gateway has never connected to the server.
    pub fn of(backend: &Backend) -> Option<ServerDescription> {
        let hello = backend.listing().hello.clone()?;
        let era = match hello.dialect.era() {
            _ if backend.has_both_eras() => "both",
            Era::Legacy => "legacy",
            Era::Modern => "modern",
        };
        Some(ServerDescription { software: clean(&hello.software), protocol: hello.dialect.as_str(), era })
    }
}

/// Returns the defects of a server as texts: lists that failed, tools that were skipped, and a new configuration that
/// does not work yet.
pub fn defects(backend: &Backend) -> Vec<String> {
    let failed = backend.failed_lists().into_iter();
    let failed = failed.map(|(list, reason)| format!("{} failed: {}", list.method(), clean(&reason)));
    let skipped = backend.skipped_tools().into_iter();
    let skipped =
        skipped.map(|skipped| format!("tool {} is skipped: {}", clean(&skipped.tool), clean(&skipped.reason)));
    let unstable = backend.has_unstable_lists().then(|| {
        "its lists change with every fetch, so they are fetched less often (let the server list in a fixed order, and \
         declare listChanged)"
            .to_owned()
    });
    let successor = backend.successor.load();
    let replacement = successor.as_ref().map(|successor| match successor.state() {
        BackendState::Lost(reason) | BackendState::LoginNeeded(reason) => {
            format!("its new configuration is not in force: {}", clean(&reason))
        }
        _ => "its new configuration is not in force yet".to_owned(),
    });
    failed.chain(skipped).chain(unstable).chain(replacement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_ready_when_it_is_connected_and_listed() {
        let lost = BackendState::Lost("exited".to_owned());
        for (state, has_settled, expected) in [
            (&BackendState::Starting, false, Availability::Starting),
            (&BackendState::Ready, false, Availability::Starting),
            (&BackendState::Ready, true, Availability::Ready),
            (&lost, true, Availability::Failed),
            (&lost, false, Availability::Failed),
            (&BackendState::LoginNeeded("revoked".to_owned()), true, Availability::LoginNeeded),
            (&BackendState::Stopped, true, Availability::Failed),
        ] {
            assert_eq!(Availability::from_state(state, has_settled), expected, "{state:?} {has_settled}");
        }
    }
}
