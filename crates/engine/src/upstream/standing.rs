//! The status of a server in the words that operators and agents see.

use goblin_telemetry::clean;
use goblin_wire::Era;

use crate::upstream::{Backend, State};

/// The status of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Ready,
    Starting,
    Failed,
}

impl Standing {
    pub fn of(backend: &Backend) -> Standing {
        Standing::judge(&backend.state(), backend.has_settled())
    }

    fn judge(state: &State, has_settled: bool) -> Standing {
        match state {
            // Connected, but the first listing is not complete.
            State::Ready if !has_settled => Standing::Starting,
            State::Ready => Standing::Ready,
            State::Starting => Standing::Starting,
            State::Lost(_) | State::Stopped => Standing::Failed,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Standing::Ready => "ready",
            Standing::Starting => "starting",
            Standing::Failed => "failed",
        }
    }
}

/// The server's description of itself from its last connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The name and version of the server's software.
    pub software: String,
    /// The protocol version of the connection.
    pub protocol: &'static str,
    /// `legacy`, `modern` or `both`.
    pub era: &'static str,
}

impl Seen {
    /// Returns `None` if the gateway has never connected to the server.
    pub fn of(backend: &Backend) -> Option<Seen> {
        let hello = backend.listing().hello.clone()?;
        let era = match hello.dialect.era() {
            _ if backend.has_both_eras() => "both",
            Era::Legacy => "legacy",
            Era::Modern => "modern",
        };
        Some(Seen { software: clean(&hello.software), protocol: hello.dialect.as_str(), era })
    }
}

/// Returns the defects of a server in words: lists that failed, tools that were left out, and a new configuration that
/// does not work yet.
pub fn lacking(backend: &Backend) -> Vec<String> {
    let failed = backend.failed_lists().into_iter();
    let failed = failed.map(|(list, reason)| format!("{} failed: {}", list.method(), clean(&reason)));
    let left_out = backend.left_out().into_iter();
    let left_out =
        left_out.map(|left_out| format!("the tool {} is left out: {}", clean(&left_out.tool), clean(&left_out.reason)));
    let successor = backend.successor.load();
    let unready = successor.as_ref().map(|successor| match successor.state() {
        State::Lost(reason) => format!("its new configuration is not in force: {}", clean(&reason)),
        _ => "its new configuration is not in force yet".to_owned(),
    });
    failed.chain(left_out).chain(unready).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_ready_when_it_is_connected_and_listed() {
        let lost = State::Lost("gone".to_owned());
        for (state, has_settled, standing) in [
            (&State::Starting, false, Standing::Starting),
            (&State::Ready, false, Standing::Starting),
            (&State::Ready, true, Standing::Ready),
            (&lost, true, Standing::Failed),
            (&lost, false, Standing::Failed),
            (&State::Stopped, true, Standing::Failed),
        ] {
            assert_eq!(Standing::judge(state, has_settled), standing, "{state:?} {has_settled}");
        }
    }
}
