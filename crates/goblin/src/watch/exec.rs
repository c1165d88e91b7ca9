//! Runs a command for every update, one at a time.
//!
//! If a resource changes again before its command started, only the newest update is kept. If [`MAX_WAITING_UPDATES`]
//! resources wait, the watch stops reading until a command ends. The gateway then also keeps only the newest update of
//! each resource.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use goblin_client::update::ResourceUpdate;
use goblin_telemetry::clean;
use indexmap::IndexMap;
use tokio::process::{Child, Command};

use crate::style::warn;

/// The maximum number of resources with a waiting update.
const MAX_WAITING_UPDATES: usize = 4096;
/// How long a running command may take after the watch ended. Then it is killed.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) struct CommandQueue {
    command: String,
    /// Set if stdout carries JSON, so the command's output goes to stderr.
    has_own_stdout: bool,
    waiting: IndexMap<String, ResourceUpdate>,
    running: Option<(String, Child)>,
}

impl CommandQueue {
    pub(crate) fn new(command: String, has_own_stdout: bool) -> CommandQueue {
        CommandQueue { command, has_own_stdout, waiting: IndexMap::new(), running: None }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < MAX_WAITING_UPDATES
    }

    pub(crate) fn put(&mut self, update: ResourceUpdate) {
        self.waiting.insert(update.uri.clone(), update);
        self.start_next();
    }

    /// Waits for the running command and starts the next. Never returns if no command runs. Cancel safe.
    pub(crate) async fn advance(&mut self) {
        let Some((uri, child)) = &mut self.running else { return std::future::pending().await };
        let ended = child.wait().await;
        report(uri, ended);
        self.running = None;
        self.start_next();
    }

    fn start_next(&mut self) {
        while self.running.is_none()
            && let Some((uri, update)) = self.waiting.shift_remove_index(0)
        {
            match self.start(&update) {
                Ok(child) => self.running = Some((uri, child)),
                Err(error) => warn(&format!("{}: cannot start sh: {error}", clean(&uri))),
            }
        }
    }

    fn start(&self, update: &ResourceUpdate) -> std::io::Result<Child> {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command, "sh", &update.uri]).env("GOBLIN_URI", &update.uri);
        command.env_remove("GOBLIN_DELETED").envs(update.is_deleted.then_some(("GOBLIN_DELETED", "1")));
        if self.has_own_stdout {
            command.stdout(std::io::stderr());
        }
        command.stdin(Stdio::null()).kill_on_drop(true).spawn()
    }

    /// Waits for the running command and drops the waiting updates.
    pub(crate) async fn finish(mut self) {
        self.waiting.clear();
        if self.running.is_some() {
            let _ = tokio::time::timeout(GRACE, self.advance()).await;
        }
    }
}

fn report(uri: &str, ended: std::io::Result<ExitStatus>) {
    let how = match ended {
        Ok(status) if status.success() => return,
        Ok(status) => match status.code() {
            Some(code) => format!("exit code {code}"),
            None => status.to_string(),
        },
        Err(error) => error.to_string(),
    };
    warn(&format!("{}: the command failed: {how}", clean(uri)));
}
