//! Who shares the connection to a server, and what the server may ask of clients over it.

use crate::field::{Field, Section};
use crate::problem::Fault;
use crate::{Declare, Sharing, Transport};

pub(crate) const SESSIONS: [(&str, Sharing); 2] = [("shared", Sharing::Shared), ("per-client", Sharing::PerClient)];

/// Each word with what it alone declares.
pub(crate) const DECLARABLE: [(&str, Declare); 2] = [
    ("sampling", Declare { sampling: true, elicitation: false }),
    ("elicitation", Declare { sampling: false, elicitation: true }),
];

/// Each may be a process.
pub(crate) const MAX_CLIENTS: usize = 100;

/// The answer, and whether the members that go with one of the two ways only stand beside it.
pub(crate) fn session(section: &Section<'_>, transport: Option<&Transport>) -> Sharing {
    let mut session = Some(Sharing::default());
    if let Some(field) = section.get("session") {
        session = field.choice(&SESSIONS, &[]);
        if session == Some(Sharing::PerClient) && matches!(transport, Some(Transport::Files(_))) {
            let fault = Fault::new("a server of type files is the same for every client");
            field.problem(fault.cure("use \"shared\""));
        }
    }
    match session {
        Some(Sharing::Shared) => {
            if let Some(field) = section.get("maxClients") {
                let fault = Fault::new("has no effect while all clients share the connection");
                field.key_problem(fault.cure("remove it or add \"session\": \"per-client\""));
            }
        }
        Some(Sharing::PerClient) => {
            if let Some(field) = section.get("roots") {
                let fault = Fault::new("does not go with \"session\": \"per-client\", where each client tells its own");
                field.key_problem(fault.cure("remove it"));
            }
        }
        // Reported, so nobody knows which of them were meant.
        None => {}
    }
    session.unwrap_or_default()
}

pub(crate) fn declare(field: &Field<'_>) -> Option<Declare> {
    let words = field.list(|field| field.choice(&DECLARABLE, &[]))?;
    Some(Declare {
        sampling: words.iter().any(|word| word.sampling),
        elicitation: words.iter().any(|word| word.elicitation),
    })
}
