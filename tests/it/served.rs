//! A gateway that follows its configuration file, for tests of reloads.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::admin_client::get_admin;
use crate::client::Client;
use crate::harness::{Gateway, Scratch, eventually, goblin, servers_only, signal};

/// A gateway and its file.
pub struct Served {
    pub gateway: Gateway,
    pub scratch: Scratch,
    pub path: PathBuf,
}

impl Served {
    pub async fn start(servers: Value) -> Served {
        Served::with(&text(servers)).await
    }

    /// Starts a gateway with this file.
    pub async fn with(text: &str) -> Served {
        let scratch = Scratch::new();
        let path = scratch.write("goblin.json", text);
        let mut command = goblin(scratch.path());
        command.args(["serve", "--port", "0", "--log-level", "debug", "--config"]).arg(&path);
        Served { gateway: Gateway::of(command).await, scratch, path }
    }

    /// Replaces the file by a rename, like editors do.
    pub fn put(&self, text: &str) {
        let new = self.scratch.write("goblin.json.new", text);
        std::fs::rename(new, &self.path).expect("the file can be renamed");
    }

    pub fn hang_up(&self) {
        signal(self.gateway.child.id().expect("the process runs"), "HUP");
    }

    pub async fn status(&self) -> Value {
        let answer = get_admin(&Client::new(self.gateway.address), "/api/status").await;
        answer.json()
    }

    /// Waits until the configuration was reloaded this many times.
    pub async fn reloads(&self, count: u64) -> Value {
        eventually(&format!("the configuration was read {count} times"), || async {
            let status = self.status().await;
            (status["configuration"]["reloads"] == count).then_some(status)
        })
        .await
    }

    /// Waits until the file is rejected with an error that contains these words.
    pub async fn is_rejected(&self, fragments: &[&str]) -> String {
        eventually(&format!("the file is rejected with {fragments:?}"), || async {
            let status = self.status().await;
            let problem = status["configuration"]["problem"].as_str()?;
            fragments.iter().all(|fragment| problem.contains(fragment)).then(|| problem.to_owned())
        })
        .await
    }
}

/// Returns a file with these servers.
pub fn text(servers: Value) -> String {
    servers_only(json!({ "mcpServers": servers })).to_string()
}
