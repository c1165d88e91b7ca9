//! The state that all requests share: the changing lists, the tasks, and the key of `requestState`.
//!
//! A change increments a counter. The tasks that notify clients watch the counter, so a burst of changes becomes one
//! notification and none is missed.

use rmcp::ErrorData;
use rmcp::model::{RequestStateCodec, SealOptions};
use rmcp::task_manager::TaskManager;
use serde_json::Value;
use tokio::sync::watch;

/// The key of `requestState`. It need not be secret, because it only protects test conversations.
const STATE_KEY: &[u8] = b"goblin-conformance: the seal of requestState";

pub struct World {
    tools: watch::Sender<u64>,
    prompts: watch::Sender<u64>,
    watched: watch::Sender<u64>,
    pub tasks: TaskManager,
    codec: RequestStateCodec,
}

impl Default for World {
    fn default() -> World {
        World {
            tools: watch::Sender::new(0),
            prompts: watch::Sender::new(0),
            watched: watch::Sender::new(0),
            tasks: TaskManager::new(),
            codec: RequestStateCodec::try_new(STATE_KEY).expect("the key is long enough"),
        }
    }
}

/// The lists and the resource that can change while the server runs.
#[derive(Clone, Copy)]
pub enum Subject {
    Tools,
    Prompts,
    /// The only resource that clients can watch.
    Watched,
}

impl World {
    fn sender(&self, subject: Subject) -> &watch::Sender<u64> {
        match subject {
            Subject::Tools => &self.tools,
            Subject::Prompts => &self.prompts,
            Subject::Watched => &self.watched,
        }
    }

    pub fn change(&self, subject: Subject) {
        self.sender(subject).send_modify(|count| *count += 1);
    }

    /// Returns the number of changes so far.
    pub fn changes(&self, subject: Subject) -> u64 {
        *self.sender(subject).borrow()
    }

    /// Returns a receiver of every change from now on.
    pub fn watch(&self) -> Changes {
        Changes { tools: self.tools.subscribe(), prompts: self.prompts.subscribe(), watched: self.watched.subscribe() }
    }

    /// Seals a `requestState` that only the tool `opener` can open.
    pub fn seal(&self, opener: &str, state: &Value) -> Result<String, ErrorData> {
        let options = SealOptions::new().associated_data(opener.as_bytes());
        let sealed = self.codec.seal_json_with(state, &options);
        sealed.map_err(|error| ErrorData::internal_error(format!("cannot seal the requestState: {error}"), None))
    }

    pub fn open(&self, opener: &str, sealed: &str) -> Result<Value, ErrorData> {
        let opened = self.codec.open_json_with(sealed, opener.as_bytes());
        opened.map_err(|error| ErrorData::invalid_params(format!("requestState is not ours: {error}"), None))
    }
}

#[derive(Clone)]
pub struct Changes {
    tools: watch::Receiver<u64>,
    prompts: watch::Receiver<u64>,
    watched: watch::Receiver<u64>,
}

impl Changes {
    /// Waits for the next change. Never returns after the world is dropped.
    pub async fn next(&mut self) -> Subject {
        tokio::select! {
            Ok(()) = self.tools.changed() => Subject::Tools,
            Ok(()) = self.prompts.changed() => Subject::Prompts,
            Ok(()) = self.watched.changed() => Subject::Watched,
            else => std::future::pending().await,
        }
    }
}
