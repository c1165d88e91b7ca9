//! What must survive a stream: which changes a client has been told of.
//!
//! One per session. It holds levels, not events: "the tools changed" is a version number, so a client without an open
//! stream misses nothing and a burst is told once.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use crate::protocol;
use crate::protocol::method::Method;

/// The state of the three lists that clients are told of. A greater number means changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    pub tools: u64,
    pub prompts: u64,
    pub resources: u64,
    /// Of the catalog as a whole.
    pub catalog: u64,
}

pub struct Mailbox {
    told: Mutex<Versions>,
}

impl Mailbox {
    /// For a client that will see the lists as of `now`.
    pub fn new(now: Versions) -> Mailbox {
        Mailbox { told: Mutex::new(now) }
    }

    /// The notifications that are due when the lists stand at `now`; they count as told.
    pub fn take_due(&self, now: Versions) -> Vec<Bytes> {
        let told = std::mem::replace(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner), now);
        let kinds = [
            (told.tools != now.tools, Method::ToolsChanged),
            (told.prompts != now.prompts, Method::PromptsChanged),
            (told.resources != now.resources, Method::ResourcesChanged),
        ];
        kinds.iter().filter(|(due, _)| *due).map(|(_, method)| protocol::notification(method, None)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reg8_each_changed_list_is_told_once() {
        let mailbox = Mailbox::new(Versions::default());
        assert!(mailbox.take_due(Versions { catalog: 9, ..Versions::default() }).is_empty());
        let now = Versions { tools: 5, resources: 1, ..Versions::default() };
        assert_eq!(
            mailbox.take_due(now),
            [
                r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
                r#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#,
            ]
        );
        assert!(mailbox.take_due(now).is_empty());
    }
}
