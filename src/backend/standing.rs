//! How a server stands, in the words that operators and agents are told.

use crate::backend::{Backend, State};

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
            // Connected, but what it offers is not known yet.
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
