//! Reads the settings for sharing a server's connection among clients, and for the requests allowed on it.

use crate::field::{Field, Section};
use crate::problem::Fault;
use crate::{Declare, Sharing, Transport};

pub(crate) const SESSIONS: [(&str, Sharing); 2] = [("shared", Sharing::Shared), ("per-client", Sharing::PerClient)];

/// The values of `declare`, each with the capability it declares.
pub(crate) const DECLARABLE: [(&str, Declare); 2] = [
    ("sampling", Declare { sampling: true, elicitation: false }),
    ("elicitation", Declare { sampling: false, elicitation: true }),
];

/// The default limit of clients with their own connection. Each connection may be a process.
pub(crate) const MAX_CLIENTS: usize = 100;

/// Reads `session`. Reports `maxClients` and `roots` if they do not apply to the chosen value.
pub(crate) fn session(section: &Section<'_>, transport: Option<&Transport>) -> Sharing {
    let mut session = Some(Sharing::default());
    if let Some(field) = section.get("session") {
        session = field.choice(&SESSIONS);
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
                let fault = Fault::new(
                    "cannot be combined with \"session\": \"per-client\", where each client reports its own",
                );
                field.key_problem(fault.cure("remove it"));
            }
        }
        // The value was invalid and has been reported, so the other members cannot be checked.
        None => {}
    }
    session.unwrap_or_default()
}

pub(crate) fn declare(field: &Field<'_>) -> Option<Declare> {
    let features = field.list(|field| field.choice(&DECLARABLE))?;
    Some(Declare {
        sampling: features.iter().any(|feature| feature.sampling),
        elicitation: features.iter().any(|feature| feature.elicitation),
    })
}
